"""Recorded GPUs of a sound node, and what tests of their checks share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counter_examples import CounterExample

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.config.models import GpuProfile
from pytest_gpucluster.core.check import Check, Outcome
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.gpu import nvidia_smi, xid_check
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
from pytest_gpucluster.kit.gpu.gpu_config import GpuConfig
from pytest_gpucluster.kit.gpu.libraries import Libraries
from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog
from pytest_gpucluster.suites.gpu import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

MIB = 2**20


DATA = Path(__file__).parent / "data" / "h200x8"


def recorded(name: str) -> str:
    return "\n".join((DATA / name).read_text().splitlines()[1:-1]) + "\n"


def survey(**texts: str) -> Answer:
    return Answer("gpu01", 0, "".join(f"@@ {name} 0\n{text}\n" for name, text in texts.items()).encode())


PROFILE = GpuProfile(
    count=8, name="NVIDIA H200", memory=143771 * MIB, cuda="12.2", nvlinks=18, nvlink_speed=26.562, pcie_gen=5,
    pcie_width=16, power_limit=700, topology="NV18", nvswitch=True, fabric_state=True,
)  # fmt: skip


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


def errors_text() -> str:
    return "".join(f"{line}\nzero 54\n" for line in recorded("nvidia-smi-L.txt").splitlines())


def topology() -> nvidia_smi.Topology:
    return nvidia_smi.parse_topology(survey(topology=recorded("topo.txt")))


@dataclass
class Host:
    gpus: nvidia_smi.Gpus = field(default_factory=devices)
    rows: Any = field(default_factory=lambda: nvidia_smi.parse_rows(survey(rows=recorded("query-remap.txt"))))
    apps: Any = ()
    links: Any = field(
        default_factory=lambda: nvidia_smi.parse_nvlink(survey(nvlink=recorded("nvlink-s.txt")))
    )
    errors: Any = field(default_factory=lambda: nvidia_smi.parse_nvlink_errors(survey(errors=errors_text())))
    topology: Any = field(default_factory=topology)
    p2p: Any = field(default_factory=lambda: nvidia_smi.parse_p2p(survey(p2p=recorded("topo-p2p.txt"))))
    files: Any = frozenset({*(f"nvidia{n}" for n in range(8)), "nvidiactl", "nvidia-uvm"})
    libraries: Any = field(
        default_factory=lambda: Libraries({"/lib/x86_64-linux-gnu/libnvidia-ml.so.1": True}, {})
    )
    service: Any = field(default_factory=lambda: FabricManager("active", "580.159.04"))
    log: Any = field(default_factory=lambda: KernelLog("dmesg", 9, 0.0, None))
    later: Any = None  # NVLink counters of a second reading; those of the first one
    throttle_later: Any = None  # {UUID: reasons of every later reading}; those of the first reading
    uptime: float | None = 22 * 86400.0
    uptime_later: float | None = 22 * 86400.0 + 30
    also: Any = field(default_factory=dict)  # {another node that lists the same GPUs: its host}
    info: NodeInfo | None = field(default_factory=lambda: NodeInfo("gpu01", "IDLE", gres={"gpu:h200": 8}))

    def change(self, index: int, **values: Any) -> None:
        unread = {**self.gpus.devices[index].unread, **values.pop("unread", {})}
        changed = list(self.gpus.devices)
        changed[index] = replace(changed[index], unread=unread, **values)
        self.gpus = replace(self.gpus, devices=tuple(changed))


CHECKS = [
    value
    for module in (*checks.MODULES, xid_check)
    for value in vars(module).values()
    if isinstance(value, Check)
]


def judge(host: Host, profile: GpuProfile = PROFILE, only: str = "") -> dict[str, Verdict]:
    """All verdicts, or only one, of one node among three healthy ones."""
    fleet = {"gpu01": host.gpus} | {
        f"gpu0{n}": replace(
            devices(),
            devices=tuple(
                replace(one, uuid=f"{one.uuid}{n}", serial=f"{one.serial}{n}") for one in devices()
            ),
        )
        for n in (2, 3, 4)
    }
    fleet = dict.fromkeys(host.also, host.gpus) | fleet
    facts = {
        "node_name": "gpu01", "gpus": host.gpus, "gpu_profile": profile, "gpu_config": GpuConfig(), "known_lines": (),
        "driver_majority": checks.inventory.driver_majority(fleet),
        "vbios_majority": checks.inventory.vbios_majority(fleet),
        "uuid_owners": checks.inventory.uuid_owners(fleet), "serial_owners": checks.inventory.serial_owners(fleet),
        "clock_majority": checks.health.clock_majority(fleet),
        "numa_majority": checks.links.numa_majority(fleet, dict.fromkeys(fleet, topology())),
        "rows": host.rows, "apps": host.apps, "nvlinks": host.links, "known_nvlinks": host.links,
        "nvlink_counters": {key: replace(one, at=host.uptime) for key, one in host.errors.items()},
        "nvlink_later": {key: replace(one, at=host.uptime_later) for key, one in (host.later or host.errors).items()},
        "throttle_later": host.throttle_later or {gpu.uuid: gpu.throttle or 0 for gpu in host.gpus},
        "known_connections": host.topology, "connections": host.topology, "peer_access": host.p2p, "files": host.files,
        "libraries": host.libraries,
        "fabric_service": host.service, "kernel_log": host.log,
        "info": host.info, "hosts": host.also,
    }  # fmt: skip
    return {check.name: check.of_facts(facts) for check in CHECKS if only in ("", check.name)}


def gpus(*indices: int, **values: Any) -> Callable[[Host], None]:
    """Return a change of these GPUs, of all eight without an index."""

    def change(host: Host) -> None:
        for index in indices or range(len(host.gpus)):
            host.change(index, **values)

    return change


def put(**facts: Any) -> Callable[[Host], None]:
    """Return a change of facts of the host, each a value or a function of the host."""

    def change(host: Host) -> None:
        for name, value in facts.items():
            setattr(host, name, value(host) if callable(value) else value)

    return change


def example(
    check: str,
    machine: str,
    source: str,
    expected: str,
    *changes: Callable[[Host], None],
    sick: bool = False,
    **profile: Any,
) -> CounterExample:
    """Return a machine that differs from the recorded eight H200 by these changes and by these keys of its profile."""

    def judged() -> Verdict:
        host = Host()
        for change in changes:
            change(host)
        return judge(host, PROFILE.model_copy(update=profile), only=check)[check]

    return CounterExample(check, machine, source, expected, judged, sick)


def failing(host: Host, profile: GpuProfile = PROFILE) -> list[str]:
    return [name for name, verdict in judge(host, profile).items() if verdict.outcome is Outcome.FAILED]


def lost() -> Host:
    host = Host()
    host.change(4, memory=None, unread={"memory": "[GPU is lost]"})
    return host


def uuid(host: Host, index: int) -> str:
    return host.gpus.devices[index].uuid or ""


def remap(host: Host, **values: Any) -> None:
    host.rows[uuid(host, 3)] = replace(host.rows[uuid(host, 3)], **values)


def stray(host: Host) -> None:
    host.change(2, memory_used=2000 * MIB)
    host.apps = (nvidia_smi.GpuProcess(7, uuid(host, 2), 2000 * MIB, "python3"),)


def page(host: Host) -> None:
    for index in range(8):
        host.change(index, retired_pending=index == 3)


def logged(text: str, kind: str = "xid") -> Callable[[Host], None]:
    def put(host: Host) -> None:
        host.log = replace(host.log, events=(Event(kind, 2, 10.0, 20.0, text),))

    return put


FAULTS: dict[str, tuple[str, str, Callable[[Host], Any]]] = {
    "lost": ("gpu.count", "GPUs", lambda h: setattr(h, "gpus", replace(h.gpus, devices=h.gpus.devices[:7]))),
    "model": ("gpu.names", "GPU 1", lambda h: h.change(1, name="NVIDIA H100 80GB HBM3")),
    "memory": ("gpu.memory", "GPU 1", lambda h: h.change(1, memory=141312 * MIB)),
    "memory unread": ("gpu.memory", "GPU 1", lambda h: h.change(1, memory=None, unread={"memory": "[Unknown Error]"})),
    "cuda": ("gpu.cuda", "driver", lambda h: setattr(h, "gpus", replace(h.gpus, cuda="11.8"))),
    "vbios": ("gpu.vbios", "GPU 3", lambda h: h.change(3, vbios="96.00.74.00.0B")),
    "uuid twice": ("gpu.uuids", "GPU 2", lambda h: h.change(2, uuid=f"{uuid(h, 2)}2")),
    "serial": ("gpu.serials", "GPU 2", lambda h: h.change(2, serial=None, unread={"serial": "[Unknown Error]"})),
    "inforom": (
        "gpu.inforom",
        "GPU 5 (",
        lambda h: setattr(h, "gpus", replace(h.gpus, messages=("WARNING: infoROM is corrupted at gpu 0000:00:0B.0",))),
    ),
    "uvm": ("gpu.device_files", "/dev/nvidia-uvm", lambda h: setattr(h, "files", h.files - {"nvidia-uvm"})),
    "persistence": ("gpu.persistence", "GPU 0", lambda h: h.change(0, persistence=False)),
    "compute mode": ("gpu.compute_mode", "GPU 0", lambda h: h.change(0, compute_mode="Exclusive_Process")),
    "mig": ("gpu.mig", "GPU 0", lambda h: h.change(0, mig=True)),
    "ecc off": ("gpu.ecc_mode", "GPU 0", lambda h: h.change(0, ecc=False)),
    "volatile": ("gpu.ecc_volatile", "GPU 2", lambda h: h.change(2, ecc_volatile_uncorrected=1)),
    "volatile n/a": (
        "gpu.ecc_volatile",
        "GPU 2",
        lambda h: h.change(2, ecc_volatile_uncorrected=None, unread={"ecc_volatile_uncorrected": "[N/A]"}),
    ),
    "sram": ("gpu.ecc_aggregate", "GPU 2", lambda h: h.change(2, ecc_aggregate_sram=9, sram_threshold_exceeded=True)),
    "remap failed": ("gpu.remapped_rows", "GPU 3", lambda h: remap(h, failure=True)),
    "pending": ("gpu.remapped_pending", "GPU 3", lambda h: remap(h, pending=True)),
    "page": ("gpu.retired_pages", "GPU 3", page),
    "link down": ("gpu.nvlink_state", "GPU 4", lambda h: h.links[uuid(h, 4)].update({7: None})),
    "link slow": ("gpu.nvlink_state", "GPU 4", lambda h: h.links[uuid(h, 4)].update({7: 19.9})),
    "replays": (
        "gpu.nvlink_errors",
        "GPU 4",
        lambda h: setattr(
            h, "later", {**h.errors, uuid(h, 4): nvidia_smi.LinkErrors(53, ((7, "Replay Errors", 1),))}
        ),
    ),
    "lanes": ("gpu.pcie_width", "GPU 6", lambda h: h.change(6, pcie_width=8)),
    "slot": ("gpu.pcie_gen", "GPU 6", lambda h: h.change(6, pcie_gen=4, pcie_gen_max=4)),
    "trained down": ("gpu.pcie_gen", "GPU 6", lambda h: h.change(6, pcie_gen=3)),
    "hop": ("gpu.topology", "GPU 0 to GPU 1", lambda h: h.topology.links[0].update({1: "SYS"})),
    "no peer": ("gpu.p2p", "GPU 0 to GPU 1", lambda h: h.p2p[0].update({1: "NS"})),
    "manager": ("gpu.fabric_manager", "nvidia-fab", lambda h: setattr(h, "service", FabricManager("failed", None))),
    "fabric": ("gpu.fabric_state", "GPU 0", lambda h: h.change(0, fabric_state="In Progress")),
    "brake": ("gpu.throttle", "GPU 0", lambda h: h.change(0, throttle=0x80)),
    "hot": ("gpu.temperature", "GPU 0", lambda h: h.change(0, temperature=96.0)),
    "capped": ("gpu.power_limit", "GPU 0", lambda h: h.change(0, power_limit=500.0)),
    "clocks": ("gpu.clocks", "GPU 0", lambda h: h.change(0, clock_application=1200.0)),
    "leak": ("gpu.idle_memory", "GPU 2", lambda h: h.change(2, memory_used=40_960 * MIB)),
    "stray": ("gpu.stray_processes", "GPU 2", stray),
    "recovery": ("gpu.recovery_action", "GPU 5", lambda h: h.change(5, recovery_action="Reset")),
    "xid": ("gpu.xid", "GPU 5", logged("NVRM: Xid (PCI:0000:00:0b): 46, GPU stopped processing")),
    "sxid": (
        "gpu.xid",
        "nvidia-nvswitch3",
        logged("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 3", "sxid"),
    ),
}  # fmt: skip
