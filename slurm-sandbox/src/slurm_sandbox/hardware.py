"""The properties of a healthy node of a hardware model. models.py has the models."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from slurm_sandbox.errors import SandboxError
from slurm_sandbox.models import healthy_fields

if TYPE_CHECKING:
    from slurm_sandbox.models import NodeModel

GIB_KB = 2**20  # kB in one GiB
NODES_PER_LEAF = 16  # of a leaf in Slurm's topology; each of their rails has a leaf switch of its own
# Rates of the storage ports of a DGX
_STORAGE = ("100 Gb/sec (4X EDR)", "40 Gb/sec (4X QDR)")


@dataclass
class SimulatedGpuProcess:
    """A process on a GPU; `memory_mib` is GPU memory."""

    pid: int
    name: str
    memory_mib: int


@dataclass
class SimulatedGpu:
    """One GPU, the `slot`-th. `fields`: {name in --query-gpu: value without unit}. `links`: GB/s, None if inactive."""

    slot: int
    numa_node: int
    fields: dict[str, str]
    links: list[str | None]
    # link -> replay, recovery, CRC errors, and how many more replay and CRC errors come per second
    link_errors: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    apps: list[SimulatedGpuProcess] = field(default_factory=list)
    first: dict[str, str] = field(default_factory=dict)  # fields of the first reading of the clock event reasons


@dataclass
class SimulatedHca:
    """One adapter with one port. `near` are the GPUs that it serves; `path` is its link in /sys/devices."""

    name: str
    guid: str
    numa_node: int
    interface: str
    near: tuple[int, ...]
    rate: str
    hca_type: str
    board: str
    firmware: str
    lspci: str
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    link_layer: str = "InfiniBand"
    lid: int = 1
    mtu: int = 4096
    counters: dict[str, int] = field(default_factory=dict)
    path: str = ""
    bridge: bool = False  # to NVSwitches
    width: int = 16  # lanes
    pkeys: tuple[str, ...] = ("0xffff", "0x8001")
    speed: float = 1.0  # factor on its bandwidth in perftest
    latency: float = 1.0  # factor
    gids: int = 8  # entries of its GID table
    leaf: str = ""  # the switch at the other end of its cable, and the port there
    leaf_port: int = 0
    errors_per_second: int = 0  # symbol errors that are counted from now on
    dropped: tuple[str, ...] = ()  # partition keys that the port of the switch lacks, which filters
    celsius: int = 48  # of its module
    light: tuple[float, float] = (1.4, 1.6)  # that the module receives and sends, in dBm


@dataclass
class SimulatedDrive:
    """An NVMe drive on PCIe; address, width and speed are those of sysfs, the last ones of its SMART log in percent."""

    name: str
    address: str
    kind: str = "144D:A80A"
    model: str = "SAMSUNG MZWLJ3T8HBLS-00007"
    firmware: str = "EPK9CB5Q"
    state: str = "live"
    width: int = 4
    speed: str = "16.0 GT/s PCIe"
    critical_warning: int = 0  # bits
    spare: int = 100
    used: int = 3


@dataclass
class SimulatedMount:
    """One file system. Sizes in kB, as df -k."""

    path: str
    source: str
    fstype: str
    options: str
    size_kb: int
    used_kb: int


@dataclass
class SimulatedProcess:
    """One row of ps."""

    pid: int
    ppid: int
    stat: str
    etimes: int
    user: str
    comm: str
    args: str = ""
    rss_kb: int = 9_800


@dataclass
class CollectiveFaults:
    """Faults of a node in collectives: factors on its bandwidth, and failures."""

    speed: float = 1.0
    links: dict[str, float] = field(default_factory=dict)  # {peer node: factor on the link}
    gdr: bool = True
    infiniband: bool = True
    wrong: int = 0
    hang: bool = False
    crash: bool = False
    swap_ranks: bool = False
    leaf: list[str] = field(default_factory=list)  # nodes on the same slow leaf switch
    uplink: float = 1.0  # factor on the traffic of that leaf to others
    crowd: float = 1.0  # factor with more than two nodes
    at_times: float = 1.0  # factor between nodes, in a share of the measurements
    share: float = 1.0
    nvls: dict[str, float] = field(
        default_factory=dict
    )  # of the model, see models.CollectiveRates; keys as JSON has them
    ring: dict[str, float] = field(default_factory=dict)
    port: float = 0.0
    within: str = ""
    domain: bool = False  # NVLink joins the nodes


@dataclass
class BurninFaults:
    """Faults under load. Mappings are {GPU index as in JSON: ...}."""

    slow: dict[str, float] = field(default_factory=dict)  # factor on matrix multiplication
    hbm: dict[str, float] = field(default_factory=dict)  # factor on memory bandwidth
    corrupt: dict[str, int] = field(default_factory=dict)  # results differ
    bits: dict[str, int] = field(default_factory=dict)  # wrong words of GPU memory
    weak: dict[str, float] = field(default_factory=dict)  # factor of the power
    ecc: dict[str, int] = field(default_factory=dict)  # uncorrectable errors per load
    replay: dict[str, int] = field(default_factory=dict)  # PCIe replays per load
    xid: dict[str, int] = field(default_factory=dict)  # Xid that the driver reports each load
    hot: dict[str, float] = field(default_factory=dict)  # degrees Celsius under load, and thermal slowdown
    dcgm: dict[str, str] = field(default_factory=dict)  # warning of a failing test of dcgmi
    storage: bool = False  # data that is read back differs
    memory: bool = False
    die_after: int = 0  # loads until the node's task is killed
    load: dict[str, Any] = field(default_factory=dict)  # of the model, see models.BurninRates


@dataclass
class SimulatedNode:
    """All properties of a simulated node."""

    name: str
    spec: NodeModel
    gpus: list[SimulatedGpu]
    hcas: list[SimulatedHca]
    mounts: list[SimulatedMount]
    mem_total_kb: int
    device_files: int = 0
    offline_cpus: list[int] = field(default_factory=list)
    governor: str = "performance"
    hugepages: int = 16
    cached_kb: int = 961_876
    shm: list[tuple[int, str, str]] = field(default_factory=list)  # files of /dev/shm: kB, owner, path
    empty_libraries: list[str] = field(default_factory=list)  # names of files
    crash_files: list[tuple[float, str]] = field(default_factory=list)  # seconds before now, path
    clean_shutdown: bool = True
    # seconds before now; sensor, event and direction
    bmc_events: list[tuple[float, str]] = field(default_factory=list)
    # name: number, status, entity, reading
    bmc_sensors: dict[str, tuple[str, str, str, str]] = field(default_factory=dict)
    kernel: str = ""
    os_release: dict[str, str] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)
    taint: int = 12_289  # the driver: proprietary, out of tree, unsigned
    services: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    kernel_log: list[str] = field(default_factory=list)
    processes: list[SimulatedProcess] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    quota_left_kb: int = 7 << 30  # of the user, in the shared folder
    away: list[str] = field(default_factory=list)  # mounts whose file server does not answer
    slow: dict[str, float] = field(default_factory=dict)  # {mount: seconds until df of it ends}
    failed_disk: str = ""  # of the array md0
    drives: list[SimulatedDrive] = field(default_factory=list)
    topology: dict[tuple[int, int], str] = field(default_factory=dict)
    uptime: float = 1_903_284.11
    acs: bool = False
    open_modules: bool = True
    load: str = "0.42 0.35 0.31"
    clock_offset: float = 0.0
    time_synchronised: bool = True
    time_lost_days: float = 0.0  # since the last measurement of a time server
    mtus: dict[str, int] = field(default_factory=dict)  # {interface: wrong MTU}
    address_of: str = ""  # the node whose address it has
    name_delay: float = 0.0
    systemd: bool = True
    nccl_conf: list[str] = field(default_factory=list)  # lines of /etc/nccl.conf
    variables: dict[str, str] = field(default_factory=dict)  # of the tasks
    subnet: list[str] = field(default_factory=list)  # faults of its leaf switches, and a second subnet manager
    board: tuple[str, str] = ("", "")  # switch and port at the cable of eno1
    network: CollectiveFaults = field(default_factory=CollectiveFaults)
    burn: BurninFaults = field(default_factory=BurninFaults)

    @property
    def cables(self) -> tuple[tuple[str, str, str, str], ...]:
        """Its cables: (name, adapter or interface, switch, port) of a healthy node."""
        rails = (hca for hca in self.hcas if hca.link_layer == "InfiniBand" and not hca.bridge)
        found = tuple((self.name, hca.name, hca.leaf, str(hca.leaf_port)) for hca in rails)
        return (*found, (self.name, "eno1", *self.board))


def healthy_node(name: str, number: int, gpus: int, spec: NodeModel, shared: str) -> SimulatedNode:
    """Return a healthy node. `number` counts from 0; `shared` is the real folder that all nodes share."""
    if gpus > max(spec.most_gpus, spec.free_gpus):
        raise SandboxError(f"a node of the model {spec.name} has at most {spec.most_gpus} GPUs, not {gpus}")
    shown = [_gpu(name, index, gpus, spec) for index in range(gpus)]
    return SimulatedNode(
        name=name,
        spec=spec,
        gpus=shown,
        hcas=_hcas(name, number, shown, spec),
        mounts=_mounts(shared),
        bmc_sensors=dict(_BMC_SENSORS),
        drives=[SimulatedDrive(f"nvme{n}", f"10000:{1 + n:02x}:00.0") for n in range(5)],
        mem_total_kb=spec.memory_mib * 1024,
        device_files=gpus,
        governor=spec.governor,
        kernel=spec.kernel,
        open_modules=spec.open_modules,
        os_release=dict(_OS_RELEASE),
        sysctls=dict(_SYSCTLS),
        services=dict.fromkeys((*_services(spec), *spec.services), "active"),
        packages=_packages(spec),
        modules={name: size for name, size in _MODULES.items() if spec.adapters or name.startswith("nvidia")},
        kernel_log=_kernel_log(spec),
        processes=[SimulatedProcess(*row) for row in _PROCESSES if spec.nvswitch or row[4] != "nv-fabricmanage"],
        board=(f"eth{number // NODES_PER_LEAF + 1:02}", f"swp{number % NODES_PER_LEAF + 1}"),
        network=_network(spec),
        burn=BurninFaults(load=asdict(spec.load)),
    )


def _network(spec: NodeModel) -> CollectiveFaults:
    rates = spec.rates
    nvls, ring = ({str(count): rate for count, rate in of_count.items()} for of_count in (rates.nvls, rates.ring))
    return CollectiveFaults(
        infiniband=spec.adapters is not None,
        nvls=nvls,
        ring=ring,
        port=rates.port,
        within=rates.within,
        domain=rates.domain,
    )


def digest(*words: object) -> str:
    """Return 64 hex digits that depend only on the words: a GPU has the same UUID in every sandbox."""
    return hashlib.sha256("/".join(map(str, words)).encode()).hexdigest()


def uuid_of(node: str, index: int) -> str:
    """Return the UUID of a GPU, unique across the fleet."""
    text = digest(node, "gpu", index)
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def _gpu(node: str, index: int, gpus: int, spec: NodeModel) -> SimulatedGpu:
    own = digest(node, "gpu", index)
    address = spec.addresses[index % spec.most_gpus]
    domain, bus, device = (int(part, 16) for part in address.partition(".")[0].split(":"))
    watts, celsius = spec.idle
    power = f"{watts + int(own[:4], 16) % 700 / 100:.2f}"
    values = {
        "uuid": uuid_of(node, index),
        "serial": str(1_650_000_000_000 + int(own[:10], 16) % 49_999_999_999),
        "pci.bus_id": address,
        "pci.domain": f"0x{domain:04X}",
        "pci.bus": f"0x{bus:02X}",
        "pci.device": f"0x{device:02X}",
        "temperature.gpu": str(celsius + int(own[10:14], 16) % 6),
        "power.draw": power,
        "power.draw.average": power,
        "power.draw.instant": power,
        "platform.module_id": str(index + 1),
        "q.module_id": str(index + 1),
        "q.pdi": f"0x{own[16:32]}",
        "q.board_id": f"0x{domain << 16 | bus << 8 | device:x}",
        # GB200: each node is in another rack, so no two nodes share an NVLink domain
        "fabric.clusterUuid": _cluster_uuid(node),
        "platform.chassis_serial_number": str(1_820_000_000_000 + int(digest(node, "chassis")[:8], 16)),
        "platform.gpu_fabric_guid": f"0x{own[32:48]}",
    }
    fields = {
        name: values[name] if value.startswith("@") and name in values else value
        for name, value in healthy_fields(spec).items()
    }
    numa_nodes = spec.cpus.numa_nodes
    numa = spec.wiring.gpu_numa[index] if spec.wiring.gpu_numa else index * numa_nodes // gpus
    return SimulatedGpu(index, numa, fields, [spec.link_speed] * spec.nvlinks)


def _cluster_uuid(node: str) -> str:
    text = digest(node, "rack")
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def _hcas(node: str, number: int, gpus: list[SimulatedGpu], spec: NodeModel) -> list[SimulatedHca]:
    """Return the adapters for GPU traffic, then the ports of the storage network."""
    kind = spec.adapters
    if kind is None:
        return []
    each = kind.gpus_each
    groups = [gpus[first : first + each] for first in range(0, len(gpus), each)]
    groups += [[]] * (spec.storage if gpus else 0)
    found = []
    for index, near in enumerate(groups):
        guid = digest(node, "hca", index)[:10]
        text = f"a088c203{guid[:8]}"
        hca = SimulatedHca(
            name=f"mlx5_{index}",
            guid=":".join(text[i : i + 4] for i in range(0, 16, 4)),
            numa_node=near[0].numa_node if near else 0,
            interface=f"ib{index}",
            near=tuple(gpu.slot for gpu in near),
            rate=kind.rate,
            hca_type=kind.hca_type,
            board=kind.board,
            firmware=kind.firmware,
            lspci=kind.lspci,
            lid=1 + number * len(groups) + index,
            counters=dict.fromkeys(_COUNTERS, 0) | (_BRING_UP if spec.noise else {}),
            path=_adapter_path(spec, near, index),
            leaf=f"leaf{number // NODES_PER_LEAF + 1:02}-{index + 1}",
            leaf_port=number % NODES_PER_LEAF + 1,
        )
        if not near:
            _for_storage(hca, index - len(groups) + spec.storage)
        found.append(hca)
    return found


def gpu_path(gpu: SimulatedGpu) -> str:
    """Return the link of a GPU in /sys/devices."""
    domain, bus, device = (int(gpu.fields[f"pci.{part}"], 16) for part in ("domain", "bus", "device"))
    if not bus:  # of a virtual machine
        return f"/sys/devices/pci{domain:04x}:00/{domain:04x}:00:{device:02x}.0"
    return _behind_switch(domain, bus, f"{domain:04x}:{bus:02x}:{device:02x}.0")


def _behind_switch(domain: int, bus: int, address: str) -> str:
    """Return the link of a device below the root port of a GPU, whose bus is the fifth below it."""
    root = f"{domain:04x}:{max(0, bus - 6):02x}"
    return f"/sys/devices/pci{root}/{root}:01.0/{domain:04x}:{max(1, bus - 5):02x}:00.0/{address}"


def _adapter_path(spec: NodeModel, near: list[SimulatedGpu], index: int) -> str:
    if near and spec.adapter_addresses:  # at the processor
        return alone_path(spec.adapter_addresses[index])
    if not near:
        return alone_path(f"0000:e1:00.{index % 2}")
    domain, bus = (int(near[0].fields[f"pci.{part}"], 16) for part in ("domain", "bus"))
    return _behind_switch(domain, bus, f"{domain:04x}:{bus - 3:02x}:00.0")


def alone_path(address: str) -> str:
    """Return the link of a device on a root port of its own."""
    domain, bus, _ = address.split(":")
    root = f"{domain}:{int(bus, 16) - 1:02x}"
    return f"/sys/devices/pci{root}/{root}:01.0/{address}"


def _for_storage(hca: SimulatedHca, port: int) -> None:
    hca.link_layer, hca.interface, hca.lid, hca.mtu = "Ethernet", f"enp225s0f{port}", 0, 1024
    hca.rate = _STORAGE[port]
    if port:  # without a cable
        hca.state, hca.phys_state = "1: DOWN", "3: Disabled"


def _services(spec: NodeModel) -> tuple[str, ...]:
    absent = {*(() if spec.nvswitch else ("nvidia-fabricmanager",)), *(() if spec.adapters else ("openibd",))}
    return tuple(name for name in _SERVICES if name not in absent)


def _packages(spec: NodeModel) -> dict[str, str]:
    driver = healthy_fields(spec)["driver_version"]
    branch = driver.partition(".")[0]
    kind = f"{branch}-server{'-open' if spec.open_modules else ''}"
    own = {f"nvidia-driver-{kind}": f"{driver}-0ubuntu0.24.04.1"}
    if spec.nvswitch:
        own[f"nvidia-fabricmanager-{branch}"] = f"{driver}-0ubuntu0.24.04.1"
    return own | {name: text for name, text in _PACKAGES.items() if spec.adapters or name != "doca-ofed"}


def _kernel_log(spec: NodeModel) -> list[str]:
    driver = healthy_fields(spec)["driver_version"]
    build = spec.kernel.split("-")[1]
    lines = [
        line.format(
            kernel=spec.kernel,
            build=build,
            iommu=spec.iommu,
            cpus=spec.cpus.count,
            driver=driver,
            machine=spec.cpus.machine,
            firmware=spec.adapters.firmware if spec.adapters else "",
        )
        for line in (*_KERNEL_LOG, _NVRM_OPEN if spec.open_modules else _NVRM_CLOSED)
        if spec.adapters or "mlx5" not in line
    ]
    by_time = sorted((*lines, *spec.noise), key=lambda line: float(line[1:].partition("]")[0]))
    return [f"<4>{line}" for line in by_time]  # no errors, as `dmesg -r` prints their level


def _mounts(shared: str) -> list[SimulatedMount]:
    return [
        SimulatedMount("/", "/dev/nvme0n1p2", "ext4", "rw,relatime", 921 * GIB_KB, 84 * GIB_KB),
        SimulatedMount("/dev/shm", "tmpfs", "tmpfs", "rw,nosuid,nodev", 1008 * GIB_KB, 0),  # a mount point
        SimulatedMount("/boot/efi", "/dev/nvme0n1p1", "vfat", "rw,relatime", GIB_KB, 6200),
        SimulatedMount("/raid", "/dev/md0", "ext4", "rw,noatime", 28_000 * GIB_KB, 1_300 * GIB_KB),
        SimulatedMount(
            "/home", "storage01:/export/home", "nfs4", "rw,relatime,vers=4.2,hard", 50_000 * GIB_KB, 21_000 * GIB_KB
        ),
        SimulatedMount(
            shared, "storage01:/export/shared", "nfs4", "rw,relatime,vers=4.2,hard", 80_000 * GIB_KB, 9_000 * GIB_KB
        ),
    ]


_OS_RELEASE = {
    "PRETTY_NAME": "Ubuntu 24.04.3 LTS",
    "NAME": "Ubuntu",
    "VERSION_ID": "24.04",
    "VERSION": "24.04.3 LTS (Noble Numbat)",
    "VERSION_CODENAME": "noble",
    "ID": "ubuntu",
    "ID_LIKE": "debian",
    "HOME_URL": "https://www.ubuntu.com/",
    "SUPPORT_URL": "https://help.ubuntu.com/",
    "BUG_REPORT_URL": "https://bugs.launchpad.net/ubuntu/",
    "PRIVACY_POLICY_URL": "https://www.ubuntu.com/legal/terms-and-policies/privacy-policy",
    "UBUNTU_CODENAME": "noble",
    "LOGO": "ubuntu-logo",
}
_BMC_SENSORS = {
    "TEMP_AMBIENT": ("01", "ok", "55.0", "23 degrees C"),
    **{f"TEMP_CPU{n}": (f"{3 + n:02X}", "ok", f"3.{n}", f"{41 + n} degrees C") for n in range(2)},
    "TEMP_DIMM_C3": ("0C", "ns", "32.7", "No Reading"),  # an empty slot
    "VOLT_P12V": ("20", "ok", "7.0", "12.10 Volts"),
    **{f"SPD_FAN_SYS{n}_F": (f"{48 + n:02X}", "ok", f"29.{n}", f"{9800 + 40 * n} RPM") for n in range(8)},
    **{f"PWR_PSU{n}": (f"{80 + n:02X}", "ok", f"10.{n}", f"{412 + n} Watts") for n in range(6)},
    **{f"STATUS_PSU{n}": (f"{96 + n:02X}", "ok", f"10.{n}", "Presence detected") for n in range(6)},
    "REDUNDANCY_PSU": ("70", "ok", "21.0", "Fully Redundant"),
    "Watchdog": ("C8", "ns", "7.0", "Disabled"),
}
_SYSCTLS = {
    "kernel.core_pattern": "core",
    "kernel.numa_balancing": "0",
    "kernel.pid_max": "4194304",
    "kernel.randomize_va_space": "2",
    "net.core.rmem_max": "16777216",
    "net.core.wmem_max": "16777216",
    "vm.max_map_count": "1048576",
    "vm.overcommit_memory": "0",
    "vm.swappiness": "10",
    "vm.zone_reclaim_mode": "0",
}
_SERVICES = ("chrony", "nvidia-fabricmanager", "nvidia-persistenced", "slurmd", "munge", "ssh", "openibd")
_PACKAGES = {
    "datacenter-gpu-manager-4-core": "1:4.2.3-1",
    "doca-ofed": "3.1.0-091000",
    "munge": "0.5.15-4build1",
    "slurm-wlm": "23.11.4-1.2ubuntu5",
    "chrony": "4.5-1ubuntu4.2",
    "libc6": "2.39-0ubuntu8.5",
    "openssh-server": "1:9.6p1-3ubuntu13.13",
}
_MODULES = {
    "nvidia_uvm": 1_830_912,
    "nvidia_peermem": 16_384,
    "nvidia_modeset": 1_556_480,
    "nvidia": 14_299_136,
    "mlx5_ib": 528_384,
    "ib_umad": 49_152,
    "ib_uverbs": 217_088,
    "ib_core": 573_440,
    "mlx5_core": 2_564_096,
}
_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "port_xmit_wait",
)
# Counters of a healthy port: its link went down once at the start of the switches, and waiting is not an error
_BRING_UP = {"link_downed": 1, "port_xmit_discards": 5, "port_xmit_wait": 918_273_645}
_KERNEL_LOG = (
    "[    0.000000] Linux version {kernel} (buildd@lcy02) (gcc 13.3.0) #{build}-Ubuntu SMP PREEMPT_DYNAMIC",
    "[    0.000000] Command line: BOOT_IMAGE=/vmlinuz-{kernel} root=/dev/nvme0n1p2 ro {iommu}",
    "[    1.204113] smpboot: Allowing {cpus} CPUs, 0 hotplug CPUs",
    "[    3.551874] EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "[    9.017745] mlx5_core 0000:18:00.0: firmware version: {firmware}",
    "[   11.630022] nvidia: loading out-of-tree module taints kernel.",
    "[   14.870311] nvidia-uvm: Loaded the UVM driver, major device number 238.",
    "[   19.442190] EXT4-fs (md0): mounted filesystem with ordered data mode. Quota mode: none.",
)
# the version lines of the open kernel module, and of the proprietary one, which GPUs before Turing need
_NVRM_OPEN = "[   12.114906] NVRM: loading NVIDIA UNIX Open Kernel Module for {machine}  {driver}  Release Build"
_NVRM_CLOSED = (
    "[   12.114906] NVRM: loading NVIDIA UNIX {machine} Kernel Module  {driver}  Tue Oct 14 22:12:07 UTC 2025"
)
_PROCESSES = (
    (1, 0, "Ss", 1_903_270, "root", "systemd", "/sbin/init"),
    (2, 0, "S", 1_903_270, "root", "kthreadd", "[kthreadd]"),
    (1204, 1, "Ssl", 1_903_240, "root", "nvidia-persiste", "/usr/bin/nvidia-persistenced --verbose"),
    (1388, 1, "Ssl", 1_903_239, "root", "nv-fabricmanage", "/usr/bin/nv-fabricmanager -c fabricmanager.cfg"),
    (1542, 1, "S", 1_903_238, "_chrony", "chronyd", "/usr/sbin/chronyd -F 1"),
    (1701, 1, "Ssl", 1_903_236, "munge", "munged", "/usr/sbin/munged"),
    (1822, 1, "Ss", 1_903_235, "root", "slurmd", "/usr/sbin/slurmd --systemd"),
    (1847, 1, "Ss", 1_903_235, "root", "sshd", "sshd: /usr/sbin/sshd -D"),
)
