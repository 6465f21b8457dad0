"""Faults of the operating system of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_sandbox.errors import SandboxError
from slurm_sandbox.fault_registry import NO_PID, gpu_of, hca_of, node_fault, require
from slurm_sandbox.hardware import GIB_KB, SimulatedProcess

if TYPE_CHECKING:
    from slurm_sandbox.fault_registry import Options
    from slurm_sandbox.hardware import SimulatedDrive, SimulatedNode


@node_fault("the node has another release of the operating system", version="22.04")
def _os_drift(node: SimulatedNode, options: Options) -> None:
    node.os_release["VERSION_ID"] = options["version"]
    node.os_release["PRETTY_NAME"] = f"Ubuntu {options['version']} LTS"


@node_fault("the node runs another kernel", version="6.8.0-60-generic")
def _kernel_drift(node: SimulatedNode, options: Options) -> None:
    node.kernel = options["version"]


@node_fault("memory modules are missing", missing_gib=256)
def _memory_missing(node: SimulatedNode, options: Options) -> None:
    node.mem_total_kb -= int(options["missing_gib"]) * GIB_KB


@node_fault("a CPU is offline", cpu=5)
def _cpu_offline(node: SimulatedNode, options: Options) -> None:
    node.offline_cpus.append(int(options["cpu"]))


@node_fault("the CPU governor saves power", governor="powersave")
def _governor(node: SimulatedNode, options: Options) -> None:
    require(node.governor, "frequency scaling", node)
    node.governor = options["governor"]


@node_fault("no huge pages are reserved", pages=0)
def _hugepages(node: SimulatedNode, options: Options) -> None:
    node.hugepages = int(options["pages"])


@node_fault("a sysctl was changed", name="kernel.numa_balancing", value="1")
def _sysctl(node: SimulatedNode, options: Options) -> None:
    node.sysctls[options["name"]] = str(options["value"])


@node_fault("the clock is wrong", seconds=90)
def _clock_skew(node: SimulatedNode, options: Options) -> None:
    node.clock_offset = float(options["seconds"])


@node_fault("the node has more memory than the others", harmless=True, gib=512)
def _memory_added(node: SimulatedNode, options: Options) -> None:
    node.mem_total_kb += int(options["gib"]) * GIB_KB


@node_fault("the kernel resynchronises an array", harmless=True)
def _array_resync(node: SimulatedNode, options: Options) -> None:
    node.processes.append(SimulatedProcess(NO_PID + 812, 2, "D", 7_200, "root", "md0_resync", "[md0_resync]"))


@node_fault("a soft lockup is over", harmless=True)
def _soft_lockup_over(node: SimulatedNode, options: Options) -> None:
    node.taint |= 1 << 14


@node_fault("chrony lost its servers ten days ago", days=10)
def _time_server_lost(node: SimulatedNode, options: Options) -> None:
    node.time_lost_days = float(options["days"])


@node_fault("the clock is not synchronised")
def _time_not_synchronised(node: SimulatedNode, options: Options) -> None:
    node.time_synchronised = False


@node_fault("a file system is full", path="/")
def _full_disk(node: SimulatedNode, options: Options) -> None:
    for mount in node.mounts:
        if mount.path == options["path"]:
            mount.used_kb = mount.size_kb - 4096
            return
    raise SandboxError(f"{node.name} has no file system at {options['path']}")


@node_fault("a file system is not mounted", path="/raid")
def _missing_mount(node: SimulatedNode, options: Options) -> None:
    left = [mount for mount in node.mounts if mount.path != options["path"]]
    if len(left) == len(node.mounts):
        raise SandboxError(f"{node.name} has no file system at {options['path']}")
    node.mounts = left


@node_fault("the shared folder is mounted with another version of NFS", version="3")
def _mount_version(node: SimulatedNode, options: Options) -> None:
    version = f"vers={options['version']}"
    for mount in node.mounts[-1:]:
        mount.options = mount.options.replace("vers=4.2", version)


@node_fault("the quota of the user leaves this many KiB in the shared folder", left_kib=1024)
def _quota_used(node: SimulatedNode, options: Options) -> None:
    node.quota_left_kb = int(options["left_kib"])


@node_fault("files that other nodes write to shared storage are not visible")
def _shared_storage(node: SimulatedNode, options: Options) -> None:
    node.hidden.append(node.mounts[-1].path)


@node_fault("a process ended and its parent does not wait for it")
def _zombie(node: SimulatedNode, options: Options) -> None:
    node.processes.append(SimulatedProcess(NO_PID + 37, 1, "Z", 86_400, "alice", "python3", "[python3] <defunct>"))


@node_fault("a process hangs in the kernel (state D)")
def _d_state(node: SimulatedNode, options: Options) -> None:
    node.processes.append(SimulatedProcess(NO_PID + 15, 1, "D", 7_200, "alice", "dd", "dd if=/home/alice/x of=/raid/x"))


@node_fault("files of an ended job fill /dev/shm", gib=256, user="alice")
def _shm_leftover(node: SimulatedNode, options: Options) -> None:
    file = int(options["gib"]) * GIB_KB // 8
    node.shm += [(file, str(options["user"]), f"/dev/shm/torch_31337_{number}") for number in range(8)]


@node_fault("the page cache fills the memory", harmless=True, gib=900)
def _page_cache(node: SimulatedNode, options: Options) -> None:
    node.cached_kb += int(options["gib"]) * GIB_KB


@node_fault("an idle node has a high load", load="259.10 257.32 249.77")
def _high_load(node: SimulatedNode, options: Options) -> None:
    node.load = options["load"]


@node_fault("the kernel reports a machine check")
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


@node_fault("a file server did not answer and is back", harmless=True)
def _file_server_back(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _STALL


@node_fault("a file server does not answer")
def _file_server_away(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _STALL
    node.away.append("/home")


@node_fault("a file server answers after the deadline of the first reading", harmless=True, seconds=6)
def _file_server_slow(node: SimulatedNode, options: Options) -> None:
    node.slow["/home"] = float(options["seconds"])  # of each of the two df of a reading


@node_fault("a file system was read-only and was repaired", harmless=True)
def _file_system_repaired(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _READ_ONLY


@node_fault("the kernel made a file system read-only")
def _file_system_read_only(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _READ_ONLY
    for mount in node.mounts:
        if mount.source == "/dev/md0":
            mount.options = mount.options.replace("rw", "ro")


@node_fault("tasks were blocked and continue", harmless=True)
def _hung_task_over(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _BLOCKED


@node_fault("a task is blocked")
def _hung_task(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _BLOCKED
    _d_state(node, options)


@node_fault("an array lost a disk and was rebuilt", harmless=True)
def _array_rebuilt(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _LOST_DISK


@node_fault("an array lacks a disk", disk="nvme3n1")
def _array_degraded(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += _LOST_DISK
    node.failed_disk = str(options["disk"])


@node_fault("a read of a disk failed once", harmless=True)
def _disk_error_over(node: SimulatedNode, options: Options) -> None:
    node.kernel_log.append(
        "[1799000.100100] blk_update_request: critical medium error, dev nvme3n1, sector 4711 op 0x0:(READ) flags 0x80700"
    )


@node_fault("the kernel crashed five days ago, and the node booted again", harmless=True)
def _crashed_once(node: SimulatedNode, options: Options) -> None:
    node.crash_files.append((5 * 86_400, "/var/crash/127.0.0.1-2026-01-09-16:16:49/vmcore"))
    node.uptime = 5 * 86_400.0 - 300
    node.clean_shutdown = False


@node_fault("the kernel crashes every other day")
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


@node_fault("a power supply failed", supply=2)
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


@node_fault("a power supply has its input again, of which the BMC made no entry", harmless=True, supply=2)
def _power_returned(node: SimulatedNode, options: Options) -> None:
    _, sensor = _supply(node, options)
    node.bmc_events += [
        (7200, f"{sensor} | Failure detected | Asserted"),
        (7198, f"{sensor} | Power Supply AC lost | Asserted"),
    ]


@node_fault("the BMC recorded a fatal error of a PCIe device")
def _bus_fatal_error(node: SimulatedNode, options: Options) -> None:
    node.bmc_events.append((7200, "Critical Interrupt #0x90 | Bus Fatal Error | Asserted"))


@node_fault("a DIMM corrects errors all the time", count=32_767)
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


@node_fault("a drive does not answer on PCIe", drive="nvme3")
def _drive_missing(node: SimulatedNode, options: Options) -> None:
    node.drives.remove(_drive(node, options))


@node_fault("a drive was replaced by one of another vendor", harmless=True, drive="nvme3")
def _drive_replaced(node: SimulatedNode, options: Options) -> None:
    drive = _drive(node, options)
    drive.kind, drive.model, drive.firmware = "1E0F:0007", "KIOXIA KCD81RUG3T84", "0103"


@node_fault("a drive has older firmware", drive="nvme2", version="EPK8CB5Q")
def _drive_firmware(node: SimulatedNode, options: Options) -> None:
    _drive(node, options).firmware = options["version"]


@node_fault("the controller of a drive stopped", drive="nvme4")
def _drive_dead(node: SimulatedNode, options: Options) -> None:
    _drive(node, options).state = "dead"


@node_fault("a drive has used up its spare blocks", drive="nvme2", spare=4)
def _drive_failing(node: SimulatedNode, options: Options) -> None:
    drive = _drive(node, options)
    drive.spare, drive.critical_warning, drive.used = int(options["spare"]), 1, 97


@node_fault("a drive is hotter than its limit", harmless=True, drive="nvme2")
def _drive_hot(node: SimulatedNode, options: Options) -> None:
    _drive(node, options).critical_warning = 2


@node_fault("an adapter runs on fewer PCIe lanes", hca="mlx5_1", width=8)
def _hca_width(node: SimulatedNode, options: Options) -> None:
    hca_of(node, options).width = int(options["width"])


@node_fault("a drive trained to a slower PCIe generation", drive="nvme1", speed="8.0 GT/s PCIe")
def _drive_speed(node: SimulatedNode, options: Options) -> None:
    _drive(node, options).speed = options["speed"]


@node_fault("a GPU was started at the second attempt", harmless=True, gpu=1)
def _gpu_started_later(node: SimulatedNode, options: Options) -> None:
    bus = gpu_of(node, options).fields["pci.bus_id"][4:].lower()
    node.kernel_log.append("[1799000.100100] NVRM: GPU " + bus + ": RmInitAdapter failed! (0x62:0x40:2393)")


@node_fault("the link of a port went down and came back", harmless=True)
def _link_flapped(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += [
        f"[{1_799_000 + at}.100100] mlx5_core 0000:18:00.0 ens1f0np0: Link {'up' if at % 2 else 'down'}"
        for at in range(6)
    ]


@node_fault("a Wi-Fi card corrects PCIe errors, and the processors were hot for a moment", harmless=True)
def _harmless_storm(node: SimulatedNode, options: Options) -> None:
    node.kernel_log += [
        f"[{1_799_000 + at}.100100] iwlwifi 0000:02:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)"
        for at in range(150)
    ]
    node.kernel_log += [
        f"[1799200.{cpu:06}] mce: CPU{cpu}: Package temperature above threshold, cpu clock throttled (total events = 1)"
        for cpu in range(node.spec.cpus.count)
    ]


@node_fault("the kernel reported an oops and continues")
def _oops(node: SimulatedNode, options: Options) -> None:
    node.taint |= 1 << 7


@node_fault("a required package is not installed", package="datacenter-gpu-manager-4-core")
def _package_missing(node: SimulatedNode, options: Options) -> None:
    if node.packages.pop(options["package"], None) is None:
        raise SandboxError(f"{node.name} has no package {options['package']}")


@node_fault("a required service is dead", service="nvidia-persistenced")
def _service_dead(node: SimulatedNode, options: Options) -> None:
    if options["service"] not in node.services:
        raise SandboxError(f"{node.name} has no service {options['service']}: it has {', '.join(node.services)}")
    node.services[options["service"]] = "inactive"


@node_fault("systemd does not answer")
def _systemd_gone(node: SimulatedNode, options: Options) -> None:
    node.systemd = False


@node_fault("an interface has another MTU", interface="eno1", mtu=9000)
def _interface_mtu(node: SimulatedNode, options: Options) -> None:
    node.mtus[options["interface"]] = int(options["mtu"])


@node_fault("the node has the address of another one", of="gpu01")
def _duplicate_address(node: SimulatedNode, options: Options) -> None:
    node.address_of = options["of"]


@node_fault("name resolution is slow", seconds=5)
def _slow_names(node: SimulatedNode, options: Options) -> None:
    node.name_delay = float(options["seconds"])


@node_fault("the node rebooted recently", harmless=True, seconds=95)
def _rebooted(node: SimulatedNode, options: Options) -> None:
    node.uptime = float(options["seconds"])
