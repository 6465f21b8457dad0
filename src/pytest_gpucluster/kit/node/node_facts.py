"""What `gpucluster init` and `gpucluster check --try` read of one node: hardware, programs, Python packages, images. Pure.

Formats: lscpu(1), /sys/class/dmi/id, and lines `NAME<TAB>VALUE` of the scripts below.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.core.survey import Hardware, Software
from pytest_gpucluster.core.text import count
from pytest_gpucluster.kit.gpu import node_links, nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus

_PROGRAMS = ("all_reduce_perf", "mpirun", "mpicc", "enroot", "conda")  # beside those that suites need
# folders in which sites build nccl-tests, where it is not on PATH
_BUILDS = "/opt/nccl-tests/build /opt/nccl_tests/build /usr/local/nccl-tests/build /usr/local/nccl_tests/build $HOME/nccl-tests/build"
_IMAGES = "$HOME/*.sqsh $HOME/images/*.sqsh /shared/*.sqsh /shared/images/*.sqsh /images/*.sqsh /data/images/*.sqsh /opt/images/*.sqsh"
_MOST = 30  # names of modules
PYTHON = """
import importlib.util, json, sys
try:
    from importlib import metadata
except ImportError:
    metadata = None
found = {}
for name in sys.argv[1:]:
    try:
        if importlib.util.find_spec(name) is not None:
            found[name] = metadata.version(name) if metadata else ""
    except Exception:
        found[name] = ""
print("packages\\t" + json.dumps(found))
print("python\\t%s %s" % (sys.executable, sys.version.split()[0]))
"""


def packages() -> tuple[str, ...]:
    """Return the modules of Python that some suite needs."""
    return tuple(dict.fromkeys(name for suite in suites() for name in suite.frameworks))


def software_script(python: str = "python3", *, torch: bool = False, paths: Iterable[str] = ()) -> str:
    """Return the sh script that prints what steps find; each part is bounded, and none changes anything.

    `torch`: start it, to count the GPUs that it sees. `paths`: of programs beside those that suites need.
    """
    programs = dict.fromkeys((*_PROGRAMS, *(name for suite in suites() for name in suite.programs), *paths))
    python = shlex.quote(python)
    count = f"$l {python} -c 'import torch; print(\"devices\\t%d\" % torch.cuda.device_count())' 2>/dev/null </dev/null || :"
    return script(
        __package__,
        "node_software.sh",
        PYTHON=python,
        PROGRAMS=shlex.join(programs),
        BUILDS=_BUILDS,
        IMAGES=_IMAGES,
        MOST=_MOST,
        PACKAGES=" ".join(packages()),
        PACKAGES_PY=shlex.quote(PYTHON.strip()),
        COUNT_GPUS=count if torch else "",
    )


def read_software(answer: Answer) -> Software:
    """Return what the script printed; ProbeError if its end is missing."""
    lines = [line.partition("\t") for line in answer.out.splitlines()]
    if ("end", "", "") not in lines:
        raise ProbeError(last_line(answer.err) or f"exit status {answer.rc}")
    found: dict[str, str] = {key: value.strip() for key, _, value in lines}
    installed: Mapping[str, str] = json.loads(found.get("packages", "{}") or "{}")
    return Software(
        python=found.get("python", ""),
        system=found.get("system", ""),
        devices=int(found["devices"]) if found.get("devices", "").isdecimal() else None,
        programs={key.removeprefix("program "): value for key, value in found.items() if key.startswith("program ")},
        packages={str(name): str(version) for name, version in installed.items()},
        versions={"mpirun": found["mpirun"]} if found.get("mpirun") else {},
        images=tuple(value for key, _, value in lines if key == "image"),
        modules=tuple(value for key, _, value in lines if key == "module"),
        pyxis="pyxis" in found,
    )


def torch_words(found: Software) -> str:
    """Return torch's version and the GPUs that it sees, in words."""
    seen = {None: "does not start", 0: "sees no GPU", 1: "sees 1 GPU"}
    return f"torch {found.packages.get('torch', '')} ({seen.get(found.devices, 'sees ' + count(found.devices or 0, 'GPU'))})"


def torch_problems(found: Software, gpus: int) -> list[str]:
    """Return why an installed torch is of no use on a node with this number of GPUs."""
    if found.devices is None:
        return [f"torch is installed, and does not start in 90 s: {found.python.split()[0]} -c 'import torch'"]
    blind = ["torch sees no GPU there: it is a build for CPUs, or its CUDA needs a newer driver"]
    return blind if gpus and not found.devices else []


SOFTWARE: Probe[Software] = Probe("software of steps", software_script(), read_software, timeout=60)
_MACHINE = "LC_ALL=C lscpu 2>/dev/null; echo; cat /sys/class/dmi/id/sys_vendor 2>/dev/null; echo end"


def read_machine(answer: Answer) -> tuple[bool | None, str]:
    """Return whether the node is a virtual machine (None: lscpu printed nothing), and the vendor of DMI."""
    cpus, _, rest = answer.out.partition("\n\n")
    vendor = next((line.strip() for line in rest.splitlines() if line.strip() not in ("", "end")), "")
    known = re.search(r"^Architecture:", cpus, re.MULTILINE)
    return (bool(re.search(r"^Hypervisor vendor:", cpus, re.MULTILINE)) if known else None), vendor


MACHINE: Probe[tuple[bool | None, str]] = Probe("machine", _MACHINE, read_machine)
HARDWARE: tuple[str, ...] = (nvidia_smi.SURVEY, node_links.NETWORK.command, MACHINE.command)


def read_hardware(survey: Answer, network: Answer, machine: Answer) -> Hardware:
    """Return the hardware of a node from its answers to HARDWARE; what could not be read is in `unread`."""
    unread = []
    gpus: Gpus | None = None
    try:
        gpus = nvidia_smi.GPUS.parse(survey)
        if gpus.driver_problem:
            unread.append(f"GPUs: {gpus.driver_problem}")
    except GpuClusterError as error:
        unread.append(f"GPUs: {error}")
    links = node_links.read_links(survey, network)
    unread += [f"{what}: {why}" for what, why in links.unread.items() if what != "GPUs"]
    virtual, vendor = None, ""
    try:
        virtual, vendor = MACHINE.parse(machine)
    except GpuClusterError as error:
        unread.append(f"machine: {error}")
    devices = tuple(gpus or ())
    try:
        topology = nvidia_smi.TOPOLOGY.parse(survey).links if len(devices) > 1 else {}
    except GpuClusterError:
        topology = {}
    counts = [count for count, _ in links.nvlinks]
    return Hardware(
        gpus=tuple((gpu.name or "", gpu.memory) for gpu in devices),
        nvlinks=(*counts, *([0] * (len(devices) - len(counts)))) if "NVLink" not in links.unread else (),
        links=frozenset(cell for gpu, cells in topology.items() for other, cell in cells.items() if other != gpu),
        mig=any(gpu.mig for gpu in devices),
        settings={key: _shared(devices, key) for key in ("mig", "ecc", "persistence", "compute_mode")},
        ports=tuple((adapter.link_layer, adapter.rate) for adapter in links.adapters),
        virtual=virtual,
        vendor=vendor,
        unread=tuple(unread),
    )


def _shared(gpus: tuple[Gpu, ...], key: str) -> bool | str | None:
    """Return the value that all GPUs have; None if they differ or print none."""
    values = {getattr(gpu, key) for gpu in gpus}
    return values.pop() if len(values) == 1 else None
