"""Faults that can be injected into a node.

Most change the files of the simulated node; those of Slurm are real: a node is drained, its slurmd killed, its
prolog fails.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slurm_sandbox import hostlist
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.hardware import GIB_KB, SimulatedGpuProcess, SimulatedProcess, alone_path
from slurm_sandbox.models import healthy_fields

if TYPE_CHECKING:
    from collections.abc import Collection

    from slurm_sandbox.hardware import SimulatedDrive, SimulatedGpu, SimulatedHca, SimulatedNode
    from slurm_sandbox.models import NodeModel

Options = dict[str, Any]
Change = Callable[["SimulatedNode", Options], None]


@dataclass(frozen=True)
class InjectedFault:
    """A fault that is active."""

    kind: str
    node: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """One kind of fault; `options`: {name: default}.

    `change` modifies the simulated node; None for a fault of Slurm, which `action` names among the ACTIONS. `harmless`:
    nothing is wrong, or not any more, and a test of the node must not fail.
    """

    name: str
    description: str
    options: Options
    change: Change | None = None
    action: str = ""
    harmless: bool = False


FAULTS: dict[str, Fault] = {}
SLOW_LINK, LINK_ENDS = "slow_link", 2
NO_PID = 4_194_304  # PID_MAX_LIMIT of the kernel: above it, no process of this machine has the number
_NONE = "[N/A]"  # nvidia-smi's text for unsupported fields
# Xids with which the driver sets a recovery action (https://docs.nvidia.com/deploy/xid-errors/)
_NEEDS_RESET = (48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 143, 155, 156, 158, 171, 172)


def _fault(description: str, *, harmless: bool = False, **options: Any) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        name = change.__name__.strip("_")
        FAULTS[name] = Fault(name, description, options, change, harmless=harmless)
        return change

    return register


def slurm_fault(name: str, description: str, **options: Any) -> None:
    """Register a fault of Slurm, whose action has the same name."""
    FAULTS[name] = Fault(name, description, options, action=name)


def find(kind: str) -> Fault:
    """Return a kind of fault; SandboxError names the nearest kind."""
    if kind not in FAULTS:
        close = difflib.get_close_matches(kind, FAULTS, n=1)
        known = f"; did you mean '{close[0]}'?" if close else "; `fault --list` lists all kinds"
        raise SandboxError(f"unknown fault {kind!r}{known}")
    return FAULTS[kind]


def resolve_options(fault: Fault, options: Options, spec: NodeModel | None = None, gpus: int = 0) -> Options:
    """Return the options with their defaults, on nodes of this model with `gpus` GPUs.

    SandboxError names the options of the fault.
    """
    unknown = sorted(options.keys() - fault.options.keys())
    if unknown:
        known = ", ".join(sorted(fault.options)) or "none"
        raise SandboxError(f"fault {fault.name} has no option {', '.join(unknown)} (options: {known})")
    defaults = dict(fault.options)
    if spec is not None:
        defaults = {name: _fit_default(name, value, spec, gpus) for name, value in defaults.items()}
    return {**defaults, **options}


def placed(
    fault: Fault, names: tuple[str, ...], options: Options, known: Collection[str]
) -> tuple[tuple[str, ...], Options]:
    """Return the nodes to change and the options: two nodes of slow_link without `peer` are the ends of one link.

    SandboxError for a link without another end among the nodes of the sandbox, `known`.
    """
    if fault.name != SLOW_LINK:
        return names, options
    if "peer" not in options and len(names) == LINK_ENDS:
        return names[:1], {**options, "peer": names[1]}
    peer = options.get("peer", fault.options["peer"])
    if ("peer" not in options and len(names) > LINK_ENDS) or peer in names or peer not in known:
        raise SandboxError(
            f"fault {SLOW_LINK} on {hostlist.fold(names)} with peer={peer} names no link: use `{SLOW_LINK} A B`, "
            "or peer=NODE for another node of the sandbox"
        )
    return names, options


def _fit_default(name: str, value: Any, spec: NodeModel, gpus: int) -> Any:
    """Return a default within the limits of the model: an existing GPU, link or adapter, and a lower value."""
    fields = healthy_fields(spec)
    ports = -(-gpus // spec.adapters.gpus_each) if spec.adapters else 0
    if name == "hca":
        return f"mlx5_{max(0, min(int(value[5:]), ports - 1))}"
    most = {
        "gpu": gpus - 1 if gpus else value,
        "link": spec.nvlinks - 1,
        "mib": int(int(fields["memory.total"]) * 0.983),
        "watts": float(fields["power.limit"]) * 0.8,
        "generation": int(fields["pcie.link.gen.max"]) - 1,
        "width": int(fields["pcie.link.width.max"]) // 2,
        "missing_gib": spec.memory_mib // 8000,
    }
    return min(value, int(most[name])) if name in most else value


def apply(node: SimulatedNode, injected: InjectedFault) -> None:
    """Apply a fault to a simulated node; faults of Slurm change nothing here."""
    fault = find(injected.kind)
    if fault.change is not None:
        fault.change(node, resolve_options(fault, injected.options, node.spec, node.device_files))


def _gpu(node: SimulatedNode, options: Options) -> SimulatedGpu:
    index = int(options["gpu"])
    if not 0 <= index < len(node.gpus):
        raise SandboxError(f"{node.name} has no GPU {index}: it has 0 to {len(node.gpus) - 1}")
    return node.gpus[index]


def _hca(node: SimulatedNode, options: Options) -> SimulatedHca:
    for hca in node.hcas:
        if hca.name == options["hca"]:
            return hca
    raise SandboxError(f"{node.name} has no adapter {options['hca']}: it has {[h.name for h in node.hcas]}")


def _set(gpu: SimulatedGpu, **fields: str) -> None:
    for name, value in fields.items():
        field = name.replace("__", ".")
        if gpu.fields.get(field, _NONE) == _NONE:
            raise SandboxError(f"nvidia-smi shows no {field} of a {gpu.fields['name']}")
        gpu.fields[field] = value


def _require(value: object, name: str, node: SimulatedNode) -> None:
    if not value:
        raise SandboxError(f"a node of the model {node.spec.name} has no {name}")


# -- GPUs ----------------------------------------------------------------------------------------------------


@_fault("a GPU fell off the bus", gpu=5)
def _gpu_missing(node: SimulatedNode, options: Options) -> None:
    node.gpus.remove(_gpu(node, options))


@_fault("a GPU of another model", gpu=1, name="NVIDIA H100 80GB HBM3")
def _gpu_name(node: SimulatedNode, options: Options) -> None:
    gpu = _gpu(node, options)
    if gpu.fields["name"] == options["name"]:
        raise SandboxError(f"{node.name} has {options['name']} already: choose another name")
    _set(gpu, name=options["name"])


@_fault("a GPU has less memory", gpu=1, mib=141_312)
def _gpu_memory(node: SimulatedNode, options: Options) -> None:
    gpu = _gpu(node, options)
    free = options["mib"] - int(gpu.fields["memory.reserved"])
    _set(gpu, memory__total=str(options["mib"]), memory__free=str(free))


@_fault("uncorrectable ECC errors since the driver was loaded", gpu=2, count=3)
def _ecc_volatile(node: SimulatedNode, options: Options) -> None:
    count = str(options["count"])
    fields = _gpu(node, options).fields
    for name in ("total", "dram", "device_memory"):
        fields[f"ecc.errors.uncorrected.volatile.{name}"] = count


@_fault("uncorrectable SRAM errors beyond the GPU's own threshold", gpu=2, count=12)
def _ecc_aggregate_sram(node: SimulatedNode, options: Options) -> None:
    count = str(options["count"])
    gpu = _gpu(node, options)
    _set(gpu, ecc__errors__uncorrected__aggregate__sram=count, ecc__errors__uncorrected__aggregate__total=count)
    counters = {"sram.secded": count, "sram.sm": count, "sram.thresholdExceeded": "Yes"}  # since driver 550
    for name, value in counters.items():
        if (field := f"ecc.errors.uncorrected.aggregate.{name}") in gpu.fields:
            gpu.fields[field] = value


@_fault("ECC is switched off", gpu=2)
def _ecc_off(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), ecc__mode__current="Disabled", ecc__mode__pending="Disabled")


@_fault("a memory row could not be remapped", gpu=3)
def _remap_failure(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), remapped_rows__failure="Yes")


@_fault("a remapped row waits for a reset", gpu=3)
def _remap_pending(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), remapped_rows__pending="Yes")


@_fault("an NVLink is down", gpu=4, link=7)
def _nvlink_down(node: SimulatedNode, options: Options) -> None:
    gpu = _linked(node, options)
    gpu.links[int(options["link"])] = None
    count = len(gpu.links)
    index = node.gpus.index(gpu)
    counted = not node.spec.wiring.gpus
    for other in range(len(node.gpus)):  # the matrix still counts the trained links
        if other != index and counted:
            node.topology[(min(index, other), max(index, other))] = f"NV{count}"


@_fault("an NVLink replays and shows more CRC errors each second", gpu=4, link=3, rate=200)
def _nvlink_errors(node: SimulatedNode, options: Options) -> None:
    _linked(node, options).link_errors[int(options["link"])] = (0, 2, 0, int(options["rate"]))


@_fault("old CRC errors of an NVLink", harmless=True, gpu=4, link=3, count=143)
def _nvlink_errors_old(node: SimulatedNode, options: Options) -> None:
    _linked(node, options).link_errors[int(options["link"])] = (0, 0, int(options["count"]), 0)


def _linked(node: SimulatedNode, options: Options) -> SimulatedGpu:
    gpu = _gpu(node, options)
    if not 0 <= int(options["link"]) < len(gpu.links):
        raise SandboxError(f"GPUs of the model {node.spec.name} have {len(gpu.links)} NVLinks")
    return gpu


@_fault("a GPU runs on fewer PCIe lanes", gpu=6, width=8)
def _pcie_width(node: SimulatedNode, options: Options) -> None:
    _require(options["width"], "lanes to lose", node)
    _set(_gpu(node, options), pcie__link__width__current=str(options["width"]))


@_fault("a GPU trained to a slower PCIe generation", gpu=6, generation=3)
def _pcie_generation(node: SimulatedNode, options: Options) -> None:
    generation = str(options["generation"])
    fields = _gpu(node, options).fields
    for name in ("current", "gpucurrent", "max"):
        fields[f"pcie.link.gen.{name}"] = generation


@_fault("hardware slowdown: power brake or overheating", gpu=0)
def _throttled(node: SimulatedNode, options: Options) -> None:
    _set(
        _gpu(node, options),
        clocks_event_reasons__active="0x0000000000000088",
        clocks_event_reasons__gpu_idle="Not Active",
        clocks_event_reasons__hw_slowdown="Active",
        clocks_event_reasons__hw_power_brake_slowdown="Active",
    )


@_fault("a hardware slowdown that ended after one reading", harmless=True, gpu=0)
def _throttled_once(node: SimulatedNode, options: Options) -> None:
    gpu = _gpu(node, options)
    before = dict(gpu.fields)
    _throttled(node, options)
    gpu.first, gpu.fields = dict(gpu.fields.items() - before.items()), before


@_fault("a GPU is hot", gpu=0, celsius=96)
def _hot(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), temperature__gpu=str(options["celsius"]))


@_fault("the power limit was lowered", gpu=7, watts=500)
def _power_limit(node: SimulatedNode, options: Options) -> None:
    watts = f"{float(options['watts']):.2f}"
    _set(_gpu(node, options), power__limit=watts, enforced__power__limit=watts)


@_fault("persistence mode is off", gpu=0)
def _persistence_off(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), persistence_mode="Disabled")


@_fault("MIG is on", gpu=1)
def _mig_on(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), mig__mode__current="Enabled", mig__mode__pending="Enabled")


@_fault("compute mode is exclusive", gpu=1)
def _compute_mode(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), compute_mode="Exclusive_Process")


@_fault("memory is in use on an idle GPU", gpu=2, mib=40_960)
def _idle_memory(node: SimulatedNode, options: Options) -> None:
    gpu = _gpu(node, options)
    free = int(gpu.fields["memory.total"]) - int(options["mib"])
    _set(gpu, memory__used=str(options["mib"]), memory__free=str(free))


@_fault("a process of an ended job still uses a GPU", gpu=2, pid=54_321)
def _stray_process(node: SimulatedNode, options: Options) -> None:
    _gpu(node, options).apps.append(SimulatedGpuProcess(int(options["pid"]), "python3", 528))


@_fault("the driver reports an Xid", xid=46, gpu=5, recovered=0)
def _xid(node: SimulatedNode, options: Options) -> None:
    gpu, number = _gpu(node, options), int(options["xid"])
    line = f"NVRM: Xid (PCI:{gpu.fields['pci.bus_id'][4:14].lower()}): {number}, pid='<unknown>', name=<unknown>"
    node.kernel_log.append(f"[1802114.551208] {line}, simulated error {number}")
    if number in _NEEDS_RESET and not int(options["recovered"]):
        _set(gpu, gpu_recovery_action="Reset")


@_fault("a GPU has the UUID of another one", gpu=1, of=0)
def _duplicate_uuid(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), uuid=_gpu(node, {"gpu": options["of"]}).fields["uuid"])


@_fault("a GPU has another VBIOS", gpu=3, version="96.00.74.00.0B")
def _vbios_drift(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), vbios_version=options["version"])


@_fault("the node has another driver", version="570.172.08")
def _driver_drift(node: SimulatedNode, options: Options) -> None:
    for gpu in node.gpus:
        _set(gpu, driver_version=options["version"])


@_fault("a library of the driver is empty", library="libnvidia-ptxjitcompiler.so.1")
def _library_empty(node: SimulatedNode, options: Options) -> None:
    node.empty_libraries.append(str(options["library"]))


@_fault("nvidia-fabricmanager restarts again and again")
def _fabric_manager_dead(node: SimulatedNode, options: Options) -> None:
    _require(node.spec.nvswitch, "NVSwitch", node)
    node.services["nvidia-fabricmanager"] = "activating"


@_fault("fabric manager runs in a container, not on the host", harmless=True)
def _fabric_manager_elsewhere(node: SimulatedNode, options: Options) -> None:
    _require(node.spec.nvswitch, "NVSwitch", node)
    _set(node.gpus[0], fabric__state="Completed")  # refused where GPUs do not report it
    node.services["nvidia-fabricmanager"] = "inactive"
    node.processes = [process for process in node.processes if process.comm != "nv-fabricmanage"]


@_fault("a GPU did not register with the NVLink fabric", gpu=0)
def _fabric_state(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), fabric__state="Completed", fabric__status="Insufficient Resources")


@_fault("a GPU still registers with the NVLink fabric", gpu=0)
def _fabric_registering(node: SimulatedNode, options: Options) -> None:
    _set(_gpu(node, options), fabric__state="In Progress", fabric__status="N/A")


@_fault("two GPUs are connected over PCIe instead of NVLink", gpu=0, peer=1, hop="SYS")
def _topology(node: SimulatedNode, options: Options) -> None:
    _require(not node.spec.wiring.gpus and node.spec.nvlinks, "NVLinks between any two GPUs", node)
    pair = sorted((int(options["gpu"]), int(options["peer"])))
    node.topology[(pair[0], pair[1])] = str(options["hop"])


# -- the operating system ------------------------------------------------------------------------------------


@_fault("the node has another release of the operating system", version="22.04")
def _os_drift(node: SimulatedNode, options: Options) -> None:
    node.os_release["VERSION_ID"] = options["version"]
    node.os_release["PRETTY_NAME"] = f"Ubuntu {options['version']} LTS"


@_fault("the node runs another kernel", version="6.8.0-60-generic")
def _kernel_drift(node: SimulatedNode, options: Options) -> None:
    node.kernel = options["version"]


@_fault("memory modules are missing", missing_gib=256)
def _memory_missing(node: SimulatedNode, options: Options) -> None:
    node.mem_total_kb -= int(options["missing_gib"]) * GIB_KB


@_fault("a CPU is offline", cpu=5)
def _cpu_offline(node: SimulatedNode, options: Options) -> None:
    node.offline_cpus.append(int(options["cpu"]))


@_fault("the CPU governor saves power", governor="powersave")
def _governor(node: SimulatedNode, options: Options) -> None:
    _require(node.governor, "frequency scaling", node)
    node.governor = options["governor"]


@_fault("no huge pages are reserved", pages=0)
def _hugepages(node: SimulatedNode, options: Options) -> None:
    node.hugepages = int(options["pages"])


@_fault("a sysctl was changed", name="kernel.numa_balancing", value="1")
def _sysctl(node: SimulatedNode, options: Options) -> None:
    node.sysctls[options["name"]] = str(options["value"])


@_fault("the clock is wrong", seconds=90)
def _clock_skew(node: SimulatedNode, options: Options) -> None:
    node.clock_offset = float(options["seconds"])


@_fault("the node has more memory than the others", harmless=True, gib=512)
def _memory_added(node: SimulatedNode, options: Options) -> None:
    node.mem_total_kb += int(options["gib"]) * GIB_KB


@_fault("the kernel resynchronises an array", harmless=True)
def _array_resync(node: SimulatedNode, options: Options) -> None:
    node.processes.append(SimulatedProcess(NO_PID + 812, 2, "D", 7_200, "root", "md0_resync", "[md0_resync]"))


@_fault("a soft lockup is over", harmless=True)
def _soft_lockup_over(node: SimulatedNode, options: Options) -> None:
    node.taint |= 1 << 14


@_fault("chrony lost its servers ten days ago", days=10)
def _time_server_lost(node: SimulatedNode, options: Options) -> None:
    node.time_lost_days = float(options["days"])


@_fault("the clock is not synchronised")
def _time_not_synchronised(node: SimulatedNode, options: Options) -> None:
    node.time_synchronised = False


@_fault("a file system is full", path="/")
def _full_disk(node: SimulatedNode, options: Options) -> None:
    for mount in node.mounts:
        if mount.path == options["path"]:
            mount.used_kb = mount.size_kb - 4096
            return
    raise SandboxError(f"{node.name} has no file system at {options['path']}")


@_fault("a file system is not mounted", path="/raid")
def _missing_mount(node: SimulatedNode, options: Options) -> None:
    left = [mount for mount in node.mounts if mount.path != options["path"]]
    if len(left) == len(node.mounts):
        raise SandboxError(f"{node.name} has no file system at {options['path']}")
    node.mounts = left


@_fault("the shared folder is mounted with another version of NFS", version="3")
def _mount_version(node: SimulatedNode, options: Options) -> None:
    version = f"vers={options['version']}"
    for mount in node.mounts[-1:]:
        mount.options = mount.options.replace("vers=4.2", version)


@_fault("the quota of the user leaves this many KiB in the shared folder", left_kib=1024)
def _quota_used(node: SimulatedNode, options: Options) -> None:
    node.quota_left_kb = int(options["left_kib"])


@_fault("files that other nodes write to shared storage are not visible")
def _shared_storage(node: SimulatedNode, options: Options) -> None:
    node.hidden.append(node.mounts[-1].path)


@_fault("a process ended and its parent does not wait for it")
def _zombie(node: SimulatedNode, options: Options) -> None:
    node.processes.append(SimulatedProcess(NO_PID + 37, 1, "Z", 86_400, "alice", "python3", "[python3] <defunct>"))


@_fault("a process hangs in the kernel (state D)")
def _d_state(node: SimulatedNode, options: Options) -> None:
    node.processes.append(SimulatedProcess(NO_PID + 15, 1, "D", 7_200, "alice", "dd", "dd if=/home/alice/x of=/raid/x"))


@_fault("files of an ended job fill /dev/shm", gib=256, user="alice")
def _shm_leftover(node: SimulatedNode, options: Options) -> None:
    file = int(options["gib"]) * GIB_KB // 8
    node.shm += [(file, str(options["user"]), f"/dev/shm/torch_31337_{number}") for number in range(8)]


@_fault("the page cache fills the memory", harmless=True, gib=900)
def _page_cache(node: SimulatedNode, options: Options) -> None:
    node.cached_kb += int(options["gib"]) * GIB_KB


@_fault("an idle node has a high load", load="259.10 257.32 249.77")
def _high_load(node: SimulatedNode, options: Options) -> None:
    node.load = options["load"]


@_fault("the kernel reports a machine check")
def _mce(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += [
        "[1700000.100100] mce: [Hardware Error]: Machine check events logged",
        "[1700000.100131] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: be00000000800092",
    ]


_STALL = (
    "[1799000.100100] nfs: server storage01 not responding, timed out",
    "[1799180.100131] nfs: server storage01 not responding, timed out",
)
_READ_ONLY = (
    "[1799000.100100] EXT4-fs error (device md0): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
    "[1799000.100131] EXT4-fs (md0): Remounting filesystem read-only",
)
_BLOCKED = (f"[1799000.100100] INFO: task dd:{NO_PID + 15} blocked for more than 120 seconds.",)
_LOST_DISK = ("[1799000.100100] md/raid:md0: Disk failure on nvme3n1, disabling device.",)


@_fault("a file server did not answer and is back", harmless=True)
def _file_server_back(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _STALL


@_fault("a file server does not answer")
def _file_server_away(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _STALL
    node.away.append("/home")


@_fault("a file server answers after the deadline of the first reading", harmless=True, seconds=6)
def _file_server_slow(node: SimulatedNode, options: Options) -> None:
    node.slow["/home"] = float(options["seconds"])  # of each of the two df of a reading


@_fault("a file system was read-only and was repaired", harmless=True)
def _file_system_repaired(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _READ_ONLY


@_fault("the kernel made a file system read-only")
def _file_system_read_only(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _READ_ONLY
    for mount in node.mounts:
        if mount.source == "/dev/md0":
            mount.options = mount.options.replace("rw", "ro")


@_fault("tasks were blocked and continue", harmless=True)
def _hung_task_over(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _BLOCKED


@_fault("a task is blocked")
def _hung_task(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _BLOCKED
    _d_state(node, options)


@_fault("an array lost a disk and was rebuilt", harmless=True)
def _array_rebuilt(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _LOST_DISK


@_fault("an array lacks a disk", disk="nvme3n1")
def _array_degraded(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _LOST_DISK
    node.failed_disk = str(options["disk"])


@_fault("a read of a disk failed once", harmless=True)
def _disk_error_over(node: SimulatedNode, options: Options) -> None:
    node.kernel_log.append(
        "[1799000.100100] blk_update_request: critical medium error, dev nvme3n1, sector 4711 op 0x0:(READ) flags 0x80700"
    )


@_fault("the kernel crashed five days ago, and the node booted again", harmless=True)
def _crashed_once(node: SimulatedNode, options: Options) -> None:
    node.crash_files.append((5 * 86_400, "/var/crash/127.0.0.1-2026-01-09-16:16:49/vmcore"))
    node.uptime = 5 * 86_400.0 - 300
    node.clean_shutdown = False


@_fault("the kernel crashes every other day")
def _crashes(node: SimulatedNode, options: Options) -> None:
    node.crash_files += [
        (days * 86_400, f"/var/lib/systemd/pstore/{1_767_000_000 - days}/001/dmesg.txt") for days in (1, 3, 5)
    ]


def _supply(node: SimulatedNode, options: Options) -> tuple[str, str]:
    """Return the number of a power supply, and its sensor as the log of the BMC names it."""
    name = f"STATUS_PSU{options['supply']}"
    if name not in node.bmc_sensors:
        raise SandboxError(f"{node.name} has no power supply {options['supply']}: they are 0 to 5")
    return str(options["supply"]), f"Power Supply #0x{node.bmc_sensors[name][0].lower()}"


@_fault("a power supply failed", supply=2)
def _power_supply_failed(node: SimulatedNode, options: Options) -> None:
    number, sensor = _supply(node, options)
    for name, reading in (
        (f"STATUS_PSU{number}", "Presence detected, Failure detected"),
        (f"PWR_PSU{number}", "0 Watts"),
        ("REDUNDANCY_PSU", "Redundancy Lost"),
    ):
        node.bmc_sensors[name] = (*node.bmc_sensors[name][:3], reading)
    node.bmc_events += [
        (7200, f"{sensor} | Failure detected | Asserted"),
        (7199, "Power Supply #0x70 | Redundancy Lost | Asserted"),
    ]


@_fault("a power supply has its input again, of which the BMC made no entry", harmless=True, supply=2)
def _power_returned(node: SimulatedNode, options: Options) -> None:
    _, sensor = _supply(node, options)
    node.bmc_events += [
        (7200, f"{sensor} | Failure detected | Asserted"),
        (7198, f"{sensor} | Power Supply AC lost | Asserted"),
    ]


@_fault("the BMC recorded a fatal error of a PCIe device")
def _bus_fatal_error(node: SimulatedNode, options: Options) -> None:
    node.bmc_events.append((7200, "Critical Interrupt #0x90 | Bus Fatal Error | Asserted"))


@_fault("a DIMM corrects errors all the time", count=32_767)
def _corrected_memory_errors(node: SimulatedNode, options: Options) -> None:
    node.kernel_log.append(
        f"[1799000.100100] EDAC MC1: {options['count']} CE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 "
        "(channel:1 slot:0 page:0x4a0d75 offset:0x0 grain:32 syndrome:0x0 -  OVERFLOW area:DRAM)"
    )


def _drive(node: SimulatedNode, options: Options) -> SimulatedDrive:
    for drive in node.drives:
        if drive.name == options["drive"]:
            return drive
    raise SandboxError(f"{node.name} has no drive {options['drive']}: it has {[d.name for d in node.drives]}")


@_fault("a drive does not answer on PCIe", drive="nvme3")
def _drive_missing(node: SimulatedNode, options: Options) -> None:
    node.drives.remove(_drive(node, options))


@_fault("a drive was replaced by one of another vendor", harmless=True, drive="nvme3")
def _drive_replaced(node: SimulatedNode, options: Options) -> None:
    drive = _drive(node, options)
    drive.kind, drive.model, drive.firmware = "1E0F:0007", "KIOXIA KCD81RUG3T84", "0103"


@_fault("a drive has older firmware", drive="nvme2", version="EPK8CB5Q")
def _drive_firmware(node: SimulatedNode, options: Options) -> None:
    _drive(node, options).firmware = options["version"]


@_fault("the controller of a drive stopped", drive="nvme4")
def _drive_dead(node: SimulatedNode, options: Options) -> None:
    _drive(node, options).state = "dead"


@_fault("a drive has used up its spare blocks", drive="nvme2", spare=4)
def _drive_failing(node: SimulatedNode, options: Options) -> None:
    drive = _drive(node, options)
    drive.spare, drive.critical_warning, drive.used = int(options["spare"]), 1, 97


@_fault("a drive is hotter than its limit", harmless=True, drive="nvme2")
def _drive_hot(node: SimulatedNode, options: Options) -> None:
    _drive(node, options).critical_warning = 2


@_fault("an adapter runs on fewer PCIe lanes", hca="mlx5_1", width=8)
def _hca_width(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).width = int(options["width"])


@_fault("a drive trained to a slower PCIe generation", drive="nvme1", speed="8.0 GT/s PCIe")
def _drive_speed(node: SimulatedNode, options: Options) -> None:
    _drive(node, options).speed = options["speed"]


@_fault("a GPU was started at the second attempt", harmless=True, gpu=1)
def _gpu_started_later(node: SimulatedNode, options: Options) -> None:
    bus = _gpu(node, options).fields["pci.bus_id"][4:].lower()
    node.kernel_log.append("[1799000.100100] NVRM: GPU " + bus + ": RmInitAdapter failed! (0x62:0x40:2393)")


@_fault("the link of a port went down and came back", harmless=True)
def _link_flapped(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += [
        f"[{1_799_000 + at}.100100] mlx5_core 0000:18:00.0 ens1f0np0: Link {'up' if at % 2 else 'down'}"
        for at in range(6)
    ]


@_fault("a Wi-Fi card corrects PCIe errors, and the processors were hot for a moment", harmless=True)
def _harmless_storm(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += [
        f"[{1_799_000 + at}.100100] iwlwifi 0000:02:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)"
        for at in range(150)
    ]
    node.kernel_log += [
        f"[1799200.{cpu:06}] mce: CPU{cpu}: Package temperature above threshold, cpu clock throttled (total events = 1)"
        for cpu in range(node.spec.cpus.count)
    ]


@_fault("the kernel reported an oops and continues")
def _oops(node: SimulatedNode, options: Options) -> None:
    node.taint |= 1 << 7


@_fault("a required package is not installed", package="datacenter-gpu-manager-4-core")
def _package_missing(node: SimulatedNode, options: Options) -> None:
    if node.packages.pop(options["package"], None) is None:
        raise SandboxError(f"{node.name} has no package {options['package']}")


@_fault("a required service is dead", service="nvidia-persistenced")
def _service_dead(node: SimulatedNode, options: Options) -> None:
    if options["service"] not in node.services:
        raise SandboxError(f"{node.name} has no service {options['service']}: it has {', '.join(node.services)}")
    node.services[options["service"]] = "inactive"


@_fault("systemd does not answer")
def _systemd_gone(node: SimulatedNode, options: Options) -> None:
    node.systemd = False


@_fault("an interface has another MTU", interface="eno1", mtu=9000)
def _interface_mtu(node: SimulatedNode, options: Options) -> None:
    node.mtus[options["interface"]] = int(options["mtu"])


@_fault("the node has the address of another one", of="gpu01")
def _duplicate_address(node: SimulatedNode, options: Options) -> None:
    node.address_of = options["of"]


@_fault("name resolution is slow", seconds=5)
def _slow_names(node: SimulatedNode, options: Options) -> None:
    node.name_delay = float(options["seconds"])


@_fault("the node rebooted recently", harmless=True, seconds=95)
def _rebooted(node: SimulatedNode, options: Options) -> None:
    node.uptime = float(options["seconds"])


# -- the fabric ----------------------------------------------------------------------------------------------


@_fault("proprietary kernel modules without nvidia_peermem: no GPUDirect RDMA")
def _no_peermem(node: SimulatedNode, options: Options) -> None:
    _require(node.hcas, "adapters", node)
    node.modules.pop("nvidia_peermem")
    node.open_modules = False
    node.network.gdr = False


@_fault("an InfiniBand adapter is missing", hca="mlx5_3")
def _hca_missing(node: SimulatedNode, options: Options) -> None:
    node.hcas.remove(_hca(node, options))


@_fault("an InfiniBand port is down", hca="mlx5_2")
def _ib_down(node: SimulatedNode, options: Options) -> None:
    hca = _hca(node, options)
    hca.state, hca.phys_state, hca.rate = "1: DOWN", "3: Disabled", "10 Gb/sec (4X SDR)"


@_fault("half of the rails are down, bridges to NVSwitches and ports for storage are up")
def _rails_down(node: SimulatedNode, options: Options) -> None:
    _require(node.hcas, "adapters", node)
    rails = [hca for hca in node.hcas if hca.near]
    for hca in rails[len(rails) // 2 :]:
        hca.state, hca.phys_state, hca.rate = "1: DOWN", "2: Polling", "10 Gb/sec (4X SDR)"
    _add_other_ports(node, rails[0], "4: ACTIVE", "5: LinkUp")


@_fault("an adapter is missing, ports for storage of the same board are up", hca="mlx5_3")
def _rail_replaced(node: SimulatedNode, options: Options) -> None:
    rail = _hca(node, options)
    node.hcas.remove(rail)
    _add_other_ports(node, rail, "4: ACTIVE", "5: LinkUp")


@_fault("bridges to NVSwitches and ports for storage are down", harmless=True)
def _other_ports_down(node: SimulatedNode, options: Options) -> None:
    _require(node.hcas, "adapters", node)
    _add_other_ports(node, node.hcas[0], "1: DOWN", "3: Disabled")


def _add_other_ports(node: SimulatedNode, like: SimulatedHca, state: str, phys_state: str) -> None:
    """Add four functions of a bridge and a card of two ports."""
    for index, address in enumerate(
        [*(f"0000:e5:00.{function}" for function in range(4)), "0000:f1:00.0", "0000:f1:00.1"]
    ):
        other = replace(
            like, name=f"mlx5_{20 + index}", interface=f"ib{20 + index}", near=(), bridge=index < 4,
            path=alone_path(address), state=state, phys_state=phys_state, counters=dict(like.counters),
        )  # fmt: skip
        node.hcas.append(other)


@_fault("an InfiniBand port trained to a lower rate", hca="mlx5_2")
def _ib_rate(node: SimulatedNode, options: Options) -> None:
    hca = _hca(node, options)
    rate, _, kind = hca.rate.partition(" Gb/sec (4X ")
    hca.rate = f"{int(rate) // 2} Gb/sec (2X {kind}"


@_fault("the symbol errors of an InfiniBand port are at their maximum", hca="mlx5_1", count=65535)
def _ib_errors(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).counters["symbol_error"] = int(options["count"])


@_fault("an InfiniBand link flapped until its counter reached the maximum", hca="mlx5_1", count=255)
def _ib_flaps(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).counters["link_downed"] = int(options["count"])


@_fault("an adapter has other firmware", hca="mlx5_0", version="28.37.1700")
def _ib_firmware(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).firmware = options["version"]


@_fault("an InfiniBand port is not in the partition of the cluster", hca="mlx5_2")
def _ib_partition(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).pkeys = ("0x7fff",)


@_fault("an InfiniBand port has a smaller MTU", hca="mlx5_0", mtu=2048)
def _ib_mtu(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).mtu = int(options["mtu"])


@_fault("a port uses Ethernet instead of InfiniBand", hca="mlx5_0")
def _ib_link_layer(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).link_layer = "Ethernet"


@_fault("PCIe access control is on: no direct traffic between GPUs and adapters")
def _acs_on(node: SimulatedNode, options: Options) -> None:
    _require(node.hcas, "adapters", node)
    node.acs = True


@_fault("an adapter moves less data than its link, which is up at full rate", hca="mlx5_1", factor=0.6)
def _rail_slow(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).speed = float(options["factor"])


@_fault("an adapter answers late", hca="mlx5_1", factor=2.5)
def _rail_latency(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).latency = float(options["factor"])


@_fault("a port has no GID of the index that the cluster file states", hca="mlx5_0")
def _gid_missing(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).gids = 1


# -- NCCL ----------------------------------------------------------------------------------------------------


@_fault("the node is slow in every collective", factor=0.4)
def _slow_node(node: SimulatedNode, options: Options) -> None:
    node.network.speed = float(options["factor"])


@_fault("the node is slow to others in a share of the measurements", factor=0.6, share=0.2)
def _slow_at_times(node: SimulatedNode, options: Options) -> None:
    node.network.at_times = float(options["factor"])
    node.network.share = float(options["share"])


@_fault("the link between two nodes is slow", peer="gpu01", factor=0.3)
def _slow_link(node: SimulatedNode, options: Options) -> None:
    node.network.links[options["peer"]] = float(options["factor"])


@_fault("the leaf switch of these nodes is slow to others; inject it into each of them", leaf="gpu[01-16]", factor=0.4)
def _slow_leaf(node: SimulatedNode, options: Options) -> None:
    node.network.leaf = list(hostlist.expand(options["leaf"]))
    node.network.uplink = float(options["factor"])


@_fault("the cables of two ports are swapped at the leaf switches", hca="mlx5_0", other="mlx5_1")
def _cables_swapped(node: SimulatedNode, options: Options) -> None:
    one, other = _hca(node, options), _hca(node, {"hca": options["other"]})
    one.leaf, one.leaf_port, other.leaf, other.leaf_port = (other.leaf, other.leaf_port, one.leaf, one.leaf_port)


@_fault("a node is cabled to the leaf switches of other nodes", leaf="leaf02")
def _wrong_leaf(node: SimulatedNode, options: Options) -> None:
    _require(node.hcas, "adapters", node)
    for hca in node.hcas:
        hca.leaf, hca.leaf_port = f"{options['leaf']}-{hca.leaf.rpartition('-')[2]}", hca.leaf_port + 16


@_fault("the Ethernet cable of a node is at another port of its switch", port="swp47")
def _ethernet_cable(node: SimulatedNode, options: Options) -> None:
    node.board = node.board[0], str(options["port"])


@_fault("both ends of a node's cable count symbol errors", hca="mlx5_1", per_second=200)
def _cable_errors(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).errors_per_second = int(options["per_second"])


@_fault("the port of the switch at the node's cable drops a partition of the node", hca="mlx5_2", key="0x8001")
def _partition_dropped(node: SimulatedNode, options: Options) -> None:
    _hca(node, options).dropped = (str(options["key"]),)


@_fault("a module receives too little light", hca="mlx5_3", dbm=-12.2)
def _optics_weak(node: SimulatedNode, options: Options) -> None:
    hca = _hca(node, options)
    hca.light = float(options["dbm"]), hca.light[1]


@_fault("an adapter has the GUID of the node's first one", hca="mlx5_3")
def _duplicate_guid(node: SimulatedNode, options: Options) -> None:
    copy = _hca(node, options)
    copy.guid = node.hcas[0].guid


def _uplink(node: SimulatedNode, options: Options, fault: str) -> None:
    """Change an uplink of the leaf switch of the node's first adapter."""
    _require(node.hcas, "adapters", node)
    node.subnet.append(f"uplink {node.hcas[0].leaf} {options['uplink']} {fault}")


@_fault("an uplink of the node's leaf switch is missing", uplink=3)
def _uplink_missing(node: SimulatedNode, options: Options) -> None:
    _uplink(node, options, "down")


@_fault("an uplink of the node's leaf switch runs at a lower speed", uplink=3, speed="EDR")
def _uplink_slow(node: SimulatedNode, options: Options) -> None:
    _uplink(node, options, f"speed {options['speed']}")


@_fault("an uplink of the node's leaf switch counts symbol errors", uplink=4, per_second=200)
def _uplink_errors(node: SimulatedNode, options: Options) -> None:
    _uplink(node, options, f"errors {options['per_second']}")


@_fault("an uplink of the node's leaf switch has a smaller MTU", uplink=5, mtu=2048)
def _uplink_mtu(node: SimulatedNode, options: Options) -> None:
    _uplink(node, options, f"mtu {options['mtu']}")


@_fault("a second subnet manager is master, on this node", hca="mlx5_0")
def _second_manager(node: SimulatedNode, options: Options) -> None:
    node.subnet.append(f"manager {_hca(node, options).guid.replace(':', '')}")


@_fault("slow only with more than two nodes: no pair shows it", factor=0.5)
def _slow_crowd(node: SimulatedNode, options: Options) -> None:
    node.network.crowd = float(options["factor"])


@_fault("NCCL finds no InfiniBand on the node and uses sockets")
def _no_infiniband(node: SimulatedNode, options: Options) -> None:
    _require(node.hcas, "adapters", node)
    node.network.infiniband = False


@_fault("the node returns wrong data", count=17)
def _wrong_data(node: SimulatedNode, options: Options) -> None:
    node.network.wrong = int(options["count"])


@_fault("collectives with the node never end")
def _nccl_hang(node: SimulatedNode, options: Options) -> None:
    node.network.hang = True


@_fault("NCCL fails on the node")
def _nccl_crash(node: SimulatedNode, options: Options) -> None:
    node.network.crash = True


@_fault("two ranks of the node use the same GPU")
def _rank_mixup(node: SimulatedNode, options: Options) -> None:
    node.network.swap_ranks = True


# -- under load: detected by the burn-in ---------------------------------------------------------------------


def _burn_fault(name: str, description: str, table: str, value: type[float | str], **options: Any) -> None:
    """Register a fault of one GPU under load: a value in a table of BurninFaults; the option beside `gpu` is the value, else 1."""

    def change(node: SimulatedNode, given: Options) -> None:
        _gpu(node, given)
        chosen = next((given[key] for key in options if key != "gpu"), 1)
        getattr(node.burn, table)[str(given["gpu"])] = value(chosen)

    FAULTS[name] = Fault(name, description, options, change)


_burn_fault(
    "burn_slow_gpu", "a GPU's clocks are limited: matrix multiplication is slow", "slow", float, gpu=1, factor=0.3
)
_burn_fault("burn_slow_memory", "the memory of a GPU is slow", "hbm", float, gpu=1, factor=0.4)
_burn_fault("burn_corruption", "a GPU computes wrong values without an error", "corrupt", int, gpu=2)
_burn_fault("burn_gpu_memory", "the memory of a GPU loses bits without an ECC error", "bits", int, gpu=2, words=3)
_burn_fault(
    "burn_low_power", "a GPU draws less power than the others under the same load", "weak", float, gpu=4, factor=0.6
)
_burn_fault("burn_ecc", "uncorrectable ECC errors occur under load", "ecc", int, gpu=2, count=1)
_burn_fault("burn_replay", "the PCIe link of a GPU replays under load", "replay", int, gpu=3, count=500)
_burn_fault("burn_xid", "the driver reports an Xid under load", "xid", int, gpu=3, xid=48)
_burn_fault("burn_hot", "a GPU gets too hot under load and slows down", "hot", float, gpu=0, celsius=96)
_burn_fault("burn_dcgm", "a test of dcgmi diag fails", "dcgm", str, gpu=0, warning="GPU 0: memory test found errors")


@_fault("storage returns other data than was written")
def _burn_storage(node: SimulatedNode, options: Options) -> None:
    node.burn.storage = True


@_fault("the memory of the host loses a bit")
def _burn_memory(node: SimulatedNode, options: Options) -> None:
    node.burn.memory = True


@_fault("the node is lost during the burn-in", loads=7)
def _burn_node_lost(node: SimulatedNode, options: Options) -> None:
    node.burn.die_after = int(options["loads"])


# -- Slurm itself --------------------------------------------------------------------------------------------

slurm_fault("drained", "an administrator drained the node", reason="bad cable, ticket 4711")
slurm_fault("slurmd_dead", "slurmd does not run")
slurm_fault("node_hanging", "processes that are started on the node never end")
slurm_fault("prolog_failing", "the prolog fails and Slurm drains the node")
slurm_fault("epilog_failing", "the epilog fails and Slurm drains the node after the job")
slurm_fault("epilog_hanging", "the epilog of an ended job hangs")
slurm_fault("image_missing", "the image file is missing for the node's Enroot")
slurm_fault("image_corrupt", "image files are damaged on the node")
slurm_fault("mount_source_missing", "a source of mounts is missing (the sandbox's own plugin only)", path="*")
slurm_fault("pyxis_missing", "plugstack.conf of the node does not load Pyxis")
slurm_fault("container_left", "a container of a killed job remains", job=4_000_000)
slurm_fault("wrong_gres", "slurmd finds fewer GPUs than slurm.conf lists", count=4)


# -- the environment that tasks see --------------------------------------------------------------------------


@_fault("/etc/nccl.conf of the node switches off the path between its GPUs", line="NCCL_P2P_DISABLE=1")
def _nccl_conf(node: SimulatedNode, options: Options) -> None:
    node.nccl_conf.append(str(options["line"]))


@_fault("Slurm sets a variable in the tasks of this node only, as a TaskProlog does", name="NCCL_PROTO", value="LL")
def _task_variable(node: SimulatedNode, options: Options) -> None:
    node.variables[str(options["name"])] = str(options["value"])
