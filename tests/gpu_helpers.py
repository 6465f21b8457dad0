"""Recorded GPUs of a sound node, and what tests of their checks share."""

from __future__ import annotations

import copy
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import DRAIN, REBOOT, VENDOR, CounterExample, assert_as_expected
from counter_examples import name as name_of
from judged import judged

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.config.models import GpuProfile
from pytest_gpucluster.core.check import Action, Check, Outcome
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.gpu import nvidia_smi, xid_check
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog
from pytest_gpucluster.suites.gpu import checks, missing_gpus
from pytest_gpucluster.suites.gpu.libraries import Libraries

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

MIB, GIB = 2**20, 2**30
RESET = Action.RESET_GPU.value
DATA = Path(__file__).parent / "data" / "h200x8"
OF_GPU = re.compile(r" \([^)]*\)")  # UUID and bus id in the name of a GPU
DAYS = 86400.0


def recorded(name: str) -> str:
    return "\n".join((DATA / name).read_text().splitlines()[1:-1]) + "\n"


def survey(**texts: str) -> Answer:
    return Answer("gpu01", 0, "".join(f"@@ {name} 0\n{text}\n" for name, text in texts.items()).encode())


PROFILE = GpuProfile(
    count=8,
    name="NVIDIA H200",
    memory=143771 * MIB,
    cuda="12.2",
    nvlinks=18,
    nvlink_speed=26.562,
    pcie_gen=5,
    pcie_width=16,
    power_limit=700,
    topology="NV18",
    nvswitch=True,
    fabric_state=True,
)


@functools.cache
def devices() -> nvidia_smi.Gpus:
    """The recorded GPUs, with the fields that the recording did not ask for as `nvidia-smi -q` has them."""
    answer = survey(gpus=recorded("query-gpu.txt"), header=recorded("nvidia-smi.txt"))
    found = nvidia_smi.parse_gpus(answer)
    more: dict[str, Any] = {"sram_threshold_exceeded": False, "recovery_action": "None", "pstate": "P0"}
    full = tuple(
        replace(
            one,
            ecc_aggregate_sram=one.ecc_aggregate_uncorrected,
            clock_application=1980,
            clock_application_default=1980,
            unread={"retired_pending": "[N/A]"},
            **more,
        )
        for one in found
    )
    return replace(found, devices=full)


@functools.cache
def _tables() -> dict[str, Any]:
    errors = "".join(f"{line}\nzero 54\n" for line in recorded("nvidia-smi-L.txt").splitlines())
    return {
        "rows": nvidia_smi.parse_rows(survey(rows=recorded("query-remap.txt"))),
        "nvlinks": nvidia_smi.parse_nvlink(survey(nvlink=recorded("nvlink-s.txt"))),
        "errors": nvidia_smi.parse_nvlink_errors(survey(errors=errors)),
        "connections": nvidia_smi.parse_topology(survey(topology=recorded("topo.txt"))),
        "peer_access": nvidia_smi.parse_p2p(survey(p2p=recorded("topo-p2p.txt"))),
    }


class Host:
    """The facts of the recorded node by their names; tables are its own, so that tests may change them."""

    def __init__(self, **facts: Any) -> None:
        self.node_name = "gpu01"
        self.gpus = devices()
        self.gpu_profile = PROFILE
        self.known_lines = ()
        self.apps: tuple[nvidia_smi.GpuProcess, ...] = ()
        self.files = frozenset({*(f"nvidia{n}" for n in range(8)), "nvidiactl", "nvidia-uvm"})
        self.libraries = Libraries({"/lib/x86_64-linux-gnu/libnvidia-ml.so.1": True}, {})
        self.fabric_service = FabricManager("active", "580.159.04")
        self.kernel_log = KernelLog("dmesg", 9, 0.0, None)
        self.info = NodeInfo("gpu01", "IDLE", gres={"gpu:h200": 8})
        self.hosts: dict[str, str] = {}  # {another node that lists the same GPUs: its host}
        self.later: Any = None  # NVLink counters of a second reading; those of the first one
        self.throttle_later: Any = None  # {UUID: reasons of every later reading}; those of the first reading
        self.uptime: float | None = 22 * DAYS
        tables: Any = copy.deepcopy(_tables())
        self.rows, self.nvlinks, self.errors = tables["rows"], tables["nvlinks"], tables["errors"]
        self.connections, self.peer_access = tables["connections"], tables["peer_access"]
        vars(self).update(facts)

    def change(self, index: int, **values: Any) -> None:
        unread = {**self.gpus.devices[index].unread, **values.pop("unread", {})}
        changed = list(self.gpus.devices)
        changed[index] = replace(changed[index], unread=unread, **values)
        self.gpus = replace(self.gpus, devices=tuple(changed))


CHECKS = [
    value for module in (*checks.MODULES, xid_check) for value in vars(module).values() if isinstance(value, Check)
]


@functools.cache
def _other_nodes() -> dict[str, nvidia_smi.Gpus]:
    known = devices()
    return {
        node: replace(
            known, devices=tuple(replace(it, uuid=f"{it.uuid}{node}", serial=f"{it.serial}{node}") for it in known)
        )
        for node in ("gpu02", "gpu03", "gpu04")
    }


def judge(host: Host, only: str = "") -> dict[str, Verdict]:
    """All verdicts, or only one, of one node among three healthy ones; the counters are read again 30 s later."""
    fleet = dict.fromkeys(host.hosts, host.gpus) | {"gpu01": host.gpus} | _other_nodes()
    first, later = host.errors, host.later or host.errors
    ended = host.uptime and host.uptime + 30
    made = {
        "driver_majority": checks.inventory.driver_majority(fleet),
        "vbios_majority": checks.inventory.vbios_majority(fleet),
        "usual_buses": missing_gpus.usual_buses(fleet),
        "uuid_owners": checks.inventory.uuid_owners(fleet),
        "serial_owners": checks.inventory.serial_owners(fleet),
        "clock_majority": checks.health.clock_majority(fleet),
        "numa_majority": checks.links.numa_majority(fleet, dict.fromkeys(fleet, _tables()["connections"])),
        "known_nvlinks": host.nvlinks,
        "known_connections": host.connections,
        "nvlink_counters": {key: replace(one, at=host.uptime) for key, one in first.items()},
        "nvlink_later": {key: replace(one, at=ended) for key, one in later.items()},
        "throttle_later": host.throttle_later or {gpu.uuid: gpu.throttle or 0 for gpu in host.gpus},
    }
    facts = vars(host) | made
    return {check.name: check.of_facts(facts) for check in CHECKS if only in ("", check.name)}


# --- changes of a host


def gpus(*indices: int, **values: Any) -> Callable[[Host], None]:
    """Return a change of these GPUs, of all without an index."""

    def change(host: Host) -> None:
        for index in indices or range(len(host.gpus)):
            host.change(index, **values)

    return change


def unread(attribute: str, said: str, *indices: int) -> Callable[[Host], None]:
    """Return a change: nvidia-smi shows this in place of a value, on all GPUs without an index."""
    return gpus(*indices, **{attribute: None}, unread={attribute: said})


LOST = unread("memory", "[GPU is lost]", 4)


def put(**facts: Any) -> Callable[[Host], None]:
    """Return a change of facts of the host, each a value or a function of the host."""

    def change(host: Host) -> None:
        for name, value in facts.items():
            setattr(host, name, value(host) if callable(value) else value)

    return change


def states(**keys: Any) -> Callable[[Host], None]:
    """Return a change: the profile states this."""
    return put(gpu_profile=lambda host: host.gpu_profile.model_copy(update=keys))


def listed(count: int, *messages: str, **more: Any) -> Callable[[Host], None]:
    """Return a change: nvidia-smi lists the first GPUs, with these lines outside of its table."""
    return put(gpus=lambda host: replace(host.gpus, devices=host.gpus.devices[:count], messages=messages, **more))


def remap(**values: Any) -> Callable[[Host], None]:
    """Return a change of the row remapping of GPU 3."""
    return lambda host: host.rows.update({uuid(host, 3): replace(host.rows[uuid(host, 3)], **values)})


def process(index: int, memory: int | None = GIB, name: str = "python3", pid: int | None = 7) -> Callable[[Host], None]:
    """Return a change: one more process on a GPU."""
    return put(apps=lambda host: (*host.apps, nvidia_smi.GpuProcess(pid, uuid(host, index), memory, name)))


def logged(text: str, kind: str = "xid") -> Callable[[Host], None]:
    """Return a change: the kernel logged this twice."""
    return put(kernel_log=lambda host: replace(host.kernel_log, events=(Event(kind, 2, 10.0, 20.0, text),)))


def sick(_host: Host) -> None:
    """Mark an example that must not pass although no repair is asked for."""


# --- what is said of a host


def changed(*changes: Callable[[Host], None]) -> Host:
    host = Host()
    for change in changes:
        change(host)
    return host


def verdict(check: str, *changes: Callable[[Host], None]) -> Verdict:
    return judge(changed(*changes), check)[check]


def told(found: Verdict) -> str:
    """Return the outcome or action and the parts, GPUs by their index: 'drain: GPU 3; GPU 4'."""
    word, parts = judged(found)
    return word + (f": {'; '.join(OF_GPU.sub('', part) for part in parts)}" if parts else "")


def said(check: str, *changes: Callable[[Host], None]) -> str:
    return told(verdict(check, *changes))


def failing(host: Host) -> list[str]:
    return [name for name, found in judge(host).items() if found.outcome is Outcome.FAILED]


def examples(check: str, *rows: tuple[Any, ...]) -> list[CounterExample]:
    """Return machines that differ from the recorded eight H200; a row: expected, machine, source, changes."""
    return [
        CounterExample(
            check,
            machine,
            source,
            expected,
            functools.partial(verdict, check, *changes),
            sick=sick in changes or expected in (DRAIN, REBOOT, RESET, VENDOR),
        )
        for expected, machine, source, *changes in rows
    ]


def uuid(host: Host, index: int) -> str:
    return host.gpus.devices[index].uuid or ""


def link(index: int, number: int, speed: float | None) -> Callable[[Host], None]:
    """Return a change of one NVLink of a GPU; speed: None if it is inactive."""
    return lambda host: host.nvlinks[uuid(host, index)].update({number: speed})


def cell(one: int, other: int, text: str) -> Callable[[Host], None]:
    """Return a change of the topology between two GPUs."""
    return lambda host: host.connections.links[one].update({other: text})


def peer(one: int, other: int, text: str) -> Callable[[Host], None]:
    """Return a change of the peer access between two GPUs."""
    return lambda host: host.peer_access[one].update({other: text})


def considered_hosts(rows: list[CounterExample]) -> Callable[[CounterExample], None]:
    """Return the test that each machine gets its verdict, and that a sick one fails no other check; heat slows clocks too."""

    @pytest.mark.parametrize("machine", rows, ids=name_of)
    def judged_hosts(machine: CounterExample) -> None:
        assert_as_expected(machine)
        if machine.sick:
            assert isinstance(machine.judged, functools.partial)
            found = {*failing(changed(*machine.judged.args[1:]))}
            assert found | {"gpu.throttle"} == {machine.check, "gpu.throttle"}

    return judged_hosts
