"""The sites of the first night: what an operator has, does wrong or finds, and what the product must print then.

Each expectation was written before the code that meets it. A site is run twice: as it is, and with one sick node. No site
is accepted without a measurement, no node is drained for the configuration of its site, and each sick node is found.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paths import ROOT
from sandbox_helpers import slurm

from slurm_sandbox import hardware, models, node_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpucluster.sandbox import Sandbox

    World = Callable[[Sandbox], contextlib.AbstractContextManager[None]]

ACCEPTED, WAIVED = "ACCEPTED:", "ACCEPTED, WITH WAIVERS:"
REJECTED, UNPROVED = "NOT ACCEPTED:", "NOT PROVED:"
EXIT = {ACCEPTED: 0, WAIVED: 0, REJECTED: 1, UNPROVED: 1}
FRAMEWORKS = ROOT / ".cache" / "frameworks" / "bin" / "python"


@dataclass(frozen=True)
class Sick:
    """One sick node: a fault of the sandbox, the check that finds it, and whether a repair takes the node out of service."""

    fault: str
    check: str
    repair: bool = True
    node: str = "gpu02"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """One site. `shell`: variables of the shell that runs pytest.

    `world`: what the sandbox is changed into; `edit`: keys that the operator adds to the drafted cluster file, {state}
    is the sandbox's folder; None removes a key. `drafted`, `prints`, `never`: patterns that the draft must have, that the healthy run must print, and
    that it must not print.
    """

    name: str
    about: str
    sick: Sick
    healthy: str | tuple[str, ...] = ACCEPTED
    nodes: int = 3
    up: Mapping[str, Any] = field(default_factory=dict)
    shell: Mapping[str, str] = field(default_factory=dict)
    world: World | None = None
    edit: Mapping[str, Any] = field(default_factory=dict)
    init: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    drafted: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def box(self) -> str:
        """The sandbox that the site needs: sites with the same one share it."""
        return json.dumps({"nodes": self.nodes, **self.up}, sort_keys=True)


# --- worlds: changes of a running sandbox that end with the test


@contextlib.contextmanager
def without_tools(sandbox: Sandbox, *patterns: str) -> Iterator[None]:
    """The nodes lack these programs."""
    gone = [path for pattern in patterns for path in sandbox.layout.simbin.glob(pattern)]
    aside = sandbox.layout.root / "aside"
    aside.mkdir(exist_ok=True)
    for path in gone:
        path.rename(aside / path.name)
    try:
        yield
    finally:
        for path in gone:
            (aside / path.name).rename(path)


@contextlib.contextmanager
def everywhere(sandbox: Sandbox, kind: str, **options: Any) -> Iterator[None]:
    """All nodes are like this on purpose."""
    sandbox.fault(kind, ",".join(sandbox.nodes), **options)
    try:
        yield
    finally:
        sandbox.heal(kind=kind)


@contextlib.contextmanager
def slurm_conf(sandbox: Sandbox, change: Callable[[str], str]) -> Iterator[None]:
    """slurm.conf is another."""
    before = sandbox.layout.conf.read_text()
    sandbox.layout.conf.write_text(change(before))
    slurm(sandbox, "scontrol", "reconfigure")
    try:
        yield
    finally:
        sandbox.layout.conf.write_text(before)
        slurm(sandbox, "scontrol", "reconfigure")


@contextlib.contextmanager
def other_hardware(sandbox: Sandbox, node: str, model: str) -> Iterator[None]:
    """One node has other hardware, in Slurm and in its tools, and a partition of its own."""
    layout, spec = sandbox.layout, models.model(model)
    present = json.loads(layout.state.read_text())
    shared = str(layout.root / "shared")
    base = node_files.files(
        hardware.healthy_node("none", 0, present["gpus_per_node"], models.model(present["model"]), shared)
    )
    index = sandbox.nodes.index(node)
    node_files.write_node(layout, hardware.healthy_node(node, index, spec.gpus, spec, shared), base)

    def change(conf: str) -> str:
        text = conf.replace(
            "PartitionName=batch Nodes=ALL",
            "PartitionName=batch Nodes=" + ",".join(n for n in sandbox.nodes if n != node),
        )
        text = re.sub(r"PartitionName=debug[^\n]*\n", "", text)
        return text + f"PartitionName=old Nodes={node} MaxTime=60 State=UP\n"

    try:
        with slurm_conf(sandbox, change):
            yield
    finally:
        sandbox.heal(node)
        node_files.write_node(
            layout,
            hardware.healthy_node(node, index, present["gpus_per_node"], models.model(present["model"]), shared),
            base,
        )


@contextlib.contextmanager
def _half(sandbox: Sandbox, kind: str) -> Iterator[None]:
    names = sandbox.nodes[: len(sandbox.nodes) // 2]
    sandbox.fault(kind, ",".join(names))
    try:
        yield
    finally:
        sandbox.heal(kind=kind)


# --- the sites

IMAGE = "{state}/images/sandbox.sqsh"
# the image has neither Python nor the simulated programs
PROGRAMS = [f"{it}:{it}" for it in ("/usr", sys.base_prefix, str(Path(sys.executable).parents[2]), "{state}")]
IN_IMAGE = {
    "environments": {"default": {"container_image": IMAGE, "container_mounts": PROGRAMS}},
    "nccl": {"command": "{state}/simbin/all_reduce_perf -b 1M -e 4G -f 2 -g 1"},
}
GPU_MISSING = Sick("gpu_missing", "gpu.count")

SHELLS = (
    Site("plain", "an ordinary site, as root", GPU_MISSING, drafted=(r"(extends|profile): h200-8",)),
    Site(
        "foreign-locale",
        "a locale that the nodes lack, a far time zone, a narrow terminal",
        Sick("xid", "gpu.xid"),
        shell={"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Chatham", "COLUMNS": "60"},
    ),
    Site(
        "no-home",
        "HOME is missing, TERM is dumb, as under cron",
        Sick("remap_pending", "gpu.remapped_pending"),
        shell={"HOME": "/proc/nonexistent", "TERM": "dumb", "SHELL": "/bin/false", "USER": "", "LOGNAME": ""},
    ),
)
STATES = (
    Site(
        "after-maintenance",
        "all nodes were rebooted a minute ago",
        Sick("ecc_volatile", "gpu.ecc_volatile"),
        world=lambda box: everywhere(box, "rebooted"),
    ),
    Site(
        "rolling-upgrade",
        "half of the nodes have the next driver already",
        GPU_MISSING,
        nodes=4,
        world=lambda box: _half(box, "driver_drift"),
        healthy=(ACCEPTED, REJECTED),  # reported either way; no driver is wrong
        prints=(r"gpu\.driver",),
    ),
    Site(
        "no-nccl-tests",
        "neither nccl-tests nor torch on the nodes: nothing measures NCCL",
        GPU_MISSING,
        healthy=UNPROVED,
        world=lambda box: without_tools(box, "*_perf"),
        edit={"nccl": None, "burnin": None},
        prints=(r"nccl.*(neither|not found|no nccl-tests)",),
    ),
    Site(
        "wrong-profile",
        "the operator names the profile of other GPUs",
        Sick("xid", "gpu.xid"),
        healthy=REJECTED,
        edit={"profile": "dgx-a100"},
        prints=(r"configure", r"h200-8"),
        never=(r"return to vendor",),
    ),
    Site(
        "wrong-expectation",
        "the cluster file requires a service and a mount that no node has",
        GPU_MISSING,
        healthy=REJECTED,
        edit={"os": {"services": ["nvidia-fabricmanagr"], "mounts": [{"path": "/scratch"}]}},
        prints=(r"os\.services", r"configure"),
    ),
)
HARDWARE = (
    Site("v100", "DGX-1", Sick("ecc_volatile", "gpu.ecc_volatile"), up={"model": "v100"}),
    Site("a100", "DGX A100", GPU_MISSING, up={"model": "a100"}, drafted=(r"dgx-a100",)),
    Site("t4-virtual-machines", "virtual machines with T4, Ethernet only", GPU_MISSING, up={"model": "t4"}),
    Site("gb200", "trays of an NVL72", Sick("xid", "gpu.xid"), up={"model": "gb200"}),
    Site("cpu-nodes", "nodes without a GPU", Sick("d_state", "os.dstate", repair=False), up={"gpus_per_node": 0}),
    Site(
        "one-gpu-each",
        "one H100 SXM in each node, as gpu:h100:1",
        Sick("remap_failure", "gpu.remapped_rows", options={"gpu": 0}),
        up={"model": "h100", "gpus_per_node": 1},
    ),
    Site(
        "half-nodes",
        "virtual machines with four of eight H200",
        Sick("ecc_volatile", "gpu.ecc_volatile", options={"gpu": 1}),
        up={"gpus_per_node": 4},
    ),
    Site("one-node", "a cluster of one node", Sick("xid", "gpu.xid", node="gpu01"), nodes=1),
    Site(
        "two-kinds",
        "two partitions with different hardware",
        GPU_MISSING,
        healthy=UNPROVED,  # gpu03 has no other node of its kind: nothing between nodes is proved
        world=lambda box: other_hardware(box, "gpu03", "a100"),
    ),
)
IMAGES = (
    Site("image", "the suites run in an image", GPU_MISSING, edit=IN_IMAGE, up={"pyxis": "auto"}),
    Site(
        "ddp-on-cpus",
        "CPU nodes with torch in an environment only",
        Sick("d_state", "os.dstate", repair=False),
        nodes=2,
        up={"gpus_per_node": 0},
        edit={"ddp": {}, "environments": {"default": {"python": str(FRAMEWORKS)}}},
    ),
)


def stranger(site: Site, folder: Path, slurm_conf: str) -> dict[str, str]:
    """Return the environment of the site's shell: nothing of the one that runs the tests."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(folder),
        "TERM": "xterm",
        "COLUMNS": "100",
        "SLURM_CONF": slurm_conf,
        "PYTHONDONTWRITEBYTECODE": "1",
        **site.shell,
    }


ALL = {site.name: site for site in (*SHELLS, *STATES, *HARDWARE, *IMAGES)}
