"""The hardware models of the sandbox: GPUs, processors and adapters of a node, and their topology.

data/gpus/MODEL.tsv and data/gpus/driver-BRANCH.tsv have the differences of nvidia-smi's values from
data/gpu-fields.tsv; sources are given there, and here beside each model. Rates are those of a healthy node on the link
model and in the simulated burn-in, not those of a real cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from slurm_sandbox.errors import SandboxError

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class CpuModel:
    """The processors of a node. `numa_nodes` are those with CPUs; `memory_nodes` have memory alone (of GPUs)."""

    count: int
    numa_nodes: int
    sockets: int = 2
    threads: int = 1  # per core
    memory_nodes: int = 0
    machine: str = "x86_64"
    lscpu: tuple[tuple[str, str], ...] = ()  # rows that describe the processor

    def of_numa(self, node: int) -> list[int]:
        """Return the CPUs of a NUMA node; the second threads of the cores come after all first ones."""
        cores = self.count // self.threads
        share = cores // self.numa_nodes if node < self.numa_nodes else 0
        return [thread * cores + node * share + core for thread in range(self.threads) for core in range(share)]


@dataclass(frozen=True)
class AdapterModel:
    """The adapters for GPU traffic; `gpus_each` GPUs share one."""

    gpus_each: int
    rate: str  # as /sys/class/infiniband/*/ports/1/rate
    hca_type: str
    board: str
    firmware: str
    lspci: str

    @property
    def part(self) -> int:
        """The number of the chip, as ibv_devinfo prints it."""
        return int(self.hca_type.removeprefix("MT"))


@dataclass(frozen=True)
class CollectiveRates:
    """Bandwidth of a healthy node in GB/s: {GPUs: rate} within the node with multicast and with rings, and per port."""

    nvls: dict[int, float]
    ring: dict[int, float]
    port: float
    within: str = "P2P/CUMEM"  # transport between GPUs of one node, as NCCL logs it
    domain: bool = False  # NVLink joins the nodes (MNNVL)


@dataclass(frozen=True)
class BurninRates:
    """Results of the simulated burn-in on a healthy GPU: TFLOP/s by data type, GB/s, and sensors under load."""

    tflops: dict[str, float]
    hbm: float
    pcie: float
    peer: float
    busbw: float
    celsius: int
    watts: int
    mhz: int


@dataclass(frozen=True)
class GpuTopologyModel:
    """The cells of `nvidia-smi topo -m`: `gpus` is a matrix, or one cell for any pair ('': the number of NVLinks).

    `near` is the hop to an adapter behind the same PCIe switch, `numa` to one of the same NUMA node.
    """

    gpus: tuple[str, ...] | str = ""
    near: str = "PIX"
    numa: str = "NODE"
    gpu_numa: tuple[int, ...] = ()  # () spreads the GPUs evenly
    affinity: tuple[tuple[str, str], ...] = ()  # (NUMA Affinity, GPU NUMA ID) of each GPU; () is its NUMA node, N/A


@dataclass(frozen=True, eq=False)
class NodeModel:
    """One kind of node. `memory_mib` is what the kernel reports; `addresses` are the PCI addresses of the GPUs."""

    name: str
    gres_type: str
    gpus: int
    driver: str  # data/gpus/driver-DRIVER.tsv; '' is that of data/gpu-fields.tsv
    cpus: CpuModel
    memory_mib: int
    nvlinks: int
    link_speed: str
    addresses: tuple[str, ...]
    idle: tuple[int, int]  # watts, degrees Celsius
    lspci: str
    rates: CollectiveRates
    load: BurninRates
    adapters: AdapterModel | None
    wiring: GpuTopologyModel = GpuTopologyModel()
    storage: int = 0  # Ethernet ports for storage: one is up, the others have no cable
    nvswitch: bool = True
    open_modules: bool = True
    kernel: str = "6.8.0-79-generic"
    iommu: str = "iommu=pt"
    governor: str = "performance"  # '' in virtual machines: no frequency scaling
    services: tuple[str, ...] = ()
    vendor: str = "NVIDIA"  # of the machine, in DMI
    product: str = ""
    adapter_addresses: tuple[str, ...] = ()  # of adapters at the processor
    free_gpus: int = 0  # the maximum if GPUs may share addresses

    @property
    def noise(self) -> tuple[str, ...]:
        """Harmless lines of the kernel log of a healthy node."""
        path = DATA / "kernel-log" / f"{self.name}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return tuple(line for line in lines if not line.startswith("#"))

    @property
    def most_gpus(self) -> int:
        """The maximum number of GPUs of such a node."""
        return len(self.addresses)


@cache
def gpu_fields() -> tuple[tuple[str, tuple[str, ...], str, str], ...]:
    """Return (name, aliases, unit, value) of every field on an H200; aliases ('!',): in `nvidia-smi -q` only."""
    rows = []
    for line in (DATA / "gpu-fields.tsv").read_text().splitlines():
        name, aliases, unit, value = line.split("\t")
        rows.append((name, tuple(aliases.split(",")) if aliases != "-" else (), "" if unit == "-" else unit, value))
    return tuple(rows)


@cache
def healthy_fields(spec: NodeModel) -> dict[str, str]:
    """Return {name in --query-gpu or in a template: value} of a healthy GPU, without fields that the driver lacks."""
    found = {name: value for name, _, _, value in gpu_fields()}
    for name in filter(None, (spec.driver and f"driver-{spec.driver}", spec.name)):
        path = DATA / "gpus" / f"{name}.tsv"
        lines = path.read_text().splitlines() if path.exists() else []
        for pattern, value in (line.split("\t") for line in lines if not line.startswith("#")):
            names = [key for key in found if fnmatchcase(key, pattern)] if "*" in pattern else [pattern]
            for key in names:
                if value == "-":
                    found.pop(key, None)
                else:
                    found[key] = value
    return found


# Xeon Platinum 8592+, recorded with the H200
_EMERALD = (
    ("CPU op-mode(s)", "32-bit, 64-bit"),
    ("Address sizes", "46 bits physical, 57 bits virtual"),
    ("Byte Order", "Little Endian"),
    ("Vendor ID", "GenuineIntel"),
    ("Model name", "Intel(R) Xeon(R) Platinum 8592+"),
    ("CPU family", "6"),
    ("Model", "207"),
    ("Stepping", "2"),
)


def _cpu(base: tuple[tuple[str, str], ...], **changes: str) -> tuple[tuple[str, str], ...]:
    named = {name.lower().replace(" ", "_"): name for name, _ in base}
    changed = {named[name]: value for name, value in changes.items()}
    return tuple((name, changed.get(name, value)) for name, value in base)


_CASCADE_LAKE = _cpu(
    _EMERALD, address_sizes="46 bits physical, 48 bits virtual", model="85", stepping="7",
    model_name="Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz",
)  # fmt: skip
_BROADWELL = _cpu(
    _EMERALD, address_sizes="46 bits physical, 48 bits virtual", model="79", stepping="1",
    model_name="Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz",
)  # fmt: skip
_ROME = _cpu(
    _EMERALD, address_sizes="43 bits physical, 48 bits virtual", vendor_id="AuthenticAMD", cpu_family="23",
    model="49", stepping="0", model_name="AMD EPYC 7742 64-Core Processor",
)  # fmt: skip
_SAPPHIRE = _cpu(_EMERALD, model="143", stepping="8", model_name="Intel(R) Xeon(R) Platinum 8480C")
# lscpu of a GH200 (archspec-json issue 83)
_GRACE = (
    ("CPU op-mode(s)", "64-bit"),
    ("Byte Order", "Little Endian"),
    ("Vendor ID", "ARM"),
    ("Model name", "Neoverse-V2"),
    ("Model", "0"),
    ("Stepping", "r0p0"),
)

# Addresses of the GPUs of an HGX board, as lspci shows them on common hosts
_HGX = tuple(f"00000000:{bus}:00.0" for bus in ("1B", "43", "52", "61", "9D", "C3", "D1", "DF"))
_NDR = AdapterModel(1, "400 Gb/sec (4X NDR)", "MT4129", "MT_0000000838", "28.39.1002", "MT2910 Family [ConnectX-7]")
_HOPPER_TFLOPS = {
    "fp64": 58.0,
    "fp32": 51.0,
    "tf32": 370.0,
    "fp16": 720.0,
    "bf16": 730.0,
    "fp8": 1270.0,
    "int8": 1300.0,
}
# bus bandwidth of all_reduce: 8 H200, recorded
_HOPPER_RATES = CollectiveRates(
    {2: 345.0, 4: 455.0, 8: 478.0}, {2: 345.0, 4: 363.0, 8: 365.0}, 47.0
)  # a port: 94% of 400 Gb/s


def _rings(**rates: float) -> dict[int, float]:
    return {int(count.removeprefix("of_")): rate for count, rate in rates.items()}


MODELS = {
    model.name: model
    for model in (
        NodeModel(
            # AWS g4dn.12xlarge: a virtual machine without NVLink, InfiniBand, IOMMU and frequency scaling; CPUs and
            # addresses of the GPUs as AWS documents them, `topo -m` shows PHB as on any such machine
            name="t4",
            gres_type="t4",
            vendor="Amazon EC2",
            gpus=4,
            driver="535",
            cpus=CpuModel(48, 1, sockets=1, threads=2, lscpu=_CASCADE_LAKE),
            memory_mib=190_000,
            nvlinks=0,
            link_speed="",
            addresses=tuple(f"00000000:00:{device}.0" for device in ("1B", "1C", "1D", "1E", "17", "18", "19", "1A")),
            idle=(9, 28),
            lspci="TU104GL [Tesla T4]",
            rates=CollectiveRates({}, _rings(of_2=6.4, of_4=5.6, of_8=5.5), 0.0, within="SHM/direct/direct"),
            load=BurninRates(
                {"fp64": 0.24, "fp32": 4.6, "fp16": 26.0, "int8": 45.0}, 240.0, 6.1, 6.0, 5.6, 62, 69, 900
            ),
            adapters=None,
            wiring=GpuTopologyModel(gpus="PHB"),
            nvswitch=False,
            open_modules=False,
            iommu="console=tty1",
            governor="",
        ),
        NodeModel(
            # DGX-1: hybrid cube mesh and PCIe as `nvidia-smi topo -m` of one shows them (public notes with mlx5_0 to
            # mlx5_3); addresses: NVIDIA/nccl issue 671; two GPUs share an EDR adapter
            name="v100",
            gres_type="v100",
            gpus=8,
            driver="550",
            cpus=CpuModel(80, 2, threads=2, lscpu=_BROADWELL),
            memory_mib=515_896,
            nvlinks=6,
            link_speed="25.781",
            addresses=tuple(f"00000000:{bus}:00.0" for bus in ("06", "07", "0A", "0B", "85", "86", "89", "8A")),
            idle=(44, 36),
            lspci="GV100GL [Tesla V100 SXM2 32GB]",
            rates=CollectiveRates({}, _rings(of_2=46.0, of_4=70.0, of_8=130.0), 11.75),
            load=BurninRates({"fp64": 6.9, "fp32": 14.2, "fp16": 96.0}, 790.0, 11.9, 44.0, 120.0, 58, 290, 1490),
            adapters=AdapterModel(
                2, "100 Gb/sec (4X EDR)", "MT4115", "MT_2180110032", "12.28.2006", "MT27700 Family [ConnectX-4]"
            ),
            wiring=GpuTopologyModel(
                gpus=(
                    " X  NV1 NV1 NV2 NV2 SYS SYS SYS",
                    "NV1  X  NV2 NV1 SYS NV2 SYS SYS",
                    "NV1 NV2  X  NV2 SYS SYS NV1 SYS",
                    "NV2 NV1 NV2  X  SYS SYS SYS NV1",
                    "NV2 SYS SYS SYS  X  NV1 NV1 NV2",
                    "SYS NV2 SYS SYS NV1  X  NV2 NV1",
                    "SYS SYS NV1 SYS NV1 NV2  X  NV2",
                    "SYS SYS SYS NV1 NV2 NV1 NV2  X ",
                ),
                numa="PHB",
            ),
            nvswitch=False,
            open_modules=False,
            kernel="5.15.0-105-generic",
        ),
        NodeModel(
            # DGX A100: NVIDIA/nccl issue 1505 (topo -m, addresses); storage ports: the same matrix
            name="a100",
            gres_type="a100",
            gpus=8,
            driver="535",
            cpus=CpuModel(256, 8, threads=2, lscpu=_ROME),
            memory_mib=1_031_860,
            nvlinks=12,
            link_speed="25",
            addresses=tuple(f"00000000:{bus}:00.0" for bus in ("07", "0F", "47", "4E", "87", "90", "B7", "BD")),
            idle=(58, 28),
            lspci="GA100 [A100 SXM4 80GB]",
            rates=CollectiveRates({}, _rings(of_2=200.0, of_4=225.0, of_8=236.0), 24.4),
            load=BurninRates(
                {"fp64": 18.6, "fp32": 19.1, "tf32": 124.0, "fp16": 262.0, "bf16": 265.0, "int8": 420.0},
                1730.0,
                24.6,
                235.0,
                228.0,
                54,
                392,
                1380,
            ),
            adapters=AdapterModel(
                1, "200 Gb/sec (4X HDR)", "MT4123", "MT_0000000223", "20.38.1002", "MT28908 Family [ConnectX-6]"
            ),
            wiring=GpuTopologyModel(near="PXB", gpu_numa=(3, 3, 1, 1, 7, 7, 5, 5)),
            storage=2,
            kernel="5.15.0-1053-nvidia",
        ),
        NodeModel(
            # DGX H100: two Xeon 8480C; topo -m of such nodes: vllm issue 29944, DeepEP issue 128
            name="h100",
            gres_type="h100",
            gpus=8,
            driver="565",
            cpus=CpuModel(224, 2, threads=2, lscpu=_SAPPHIRE),
            memory_mib=2_063_710,
            nvlinks=18,
            link_speed="26.562",
            addresses=_HGX,
            idle=(75, 29),
            lspci="GH100 [H100 SXM5 80GB]",
            rates=_HOPPER_RATES,
            load=BurninRates(_HOPPER_TFLOPS, 2960.0, 54.0, 370.0, 345.0, 61, 690, 1830),
            adapters=_NDR,
            storage=2,
            kernel="5.15.0-1063-nvidia",
            product="DGXH100",
        ),
        NodeModel(
            # Recorded from a host with 8 H200 (nvidia-smi 580.159.04); network of a DGX H200
            name="h200",
            gres_type="h200",
            gpus=8,
            driver="",
            cpus=CpuModel(128, 2, lscpu=_EMERALD),
            memory_mib=2_064_384,
            nvlinks=18,
            link_speed="26.562",
            addresses=_HGX,
            idle=(76, 30),
            lspci="GH100 [H200 SXM 141GB]",
            rates=_HOPPER_RATES,
            load=BurninRates(_HOPPER_TFLOPS, 4250.0, 54.0, 370.0, 345.0, 61, 690, 1830),
            adapters=_NDR,
            free_gpus=16,
            product="DGXH200",
        ),
        NodeModel(
            # A compute tray of GB200 NVL72, each node of the sandbox of another rack: topo -m, NUMA nodes and memory
            # as in public notes of such trays ("19-25,27-33": GPUs' memory is NUMA nodes without CPUs, all adapters
            # are SYS); addresses: tables of nvidia-smi; speed of a link: NVIDIA's Health Validation, NVLink checks.
            # The NVSwitches are outside the node: it runs nvidia-imex, not nvidia-fabricmanager.
            name="gb200",
            gres_type="gb200",
            gpus=4,
            driver="",
            cpus=CpuModel(144, 2, memory_nodes=32, machine="aarch64", lscpu=_GRACE),
            memory_mib=979_783,
            nvlinks=18,
            link_speed="53.125",
            addresses=tuple(f"{domain}:01:00.0" for domain in ("00000008", "00000009", "00000018", "00000019")),
            idle=(150, 29),
            lspci="Device 2941",
            rates=CollectiveRates({}, _rings(of_2=640.0, of_4=680.0), 47.0, domain=True),
            load=BurninRates(
                {
                    "fp64": 36.0,
                    "fp32": 66.0,
                    "tf32": 820.0,
                    "fp16": 1650.0,
                    "bf16": 1660.0,
                    "fp8": 3200.0,
                    "int8": 3100.0,
                },
                7000.0,
                190.0,
                690.0,
                660.0,
                52,
                1150,
                1900,
            ),
            adapters=_NDR,
            product="GB200 NVL",
            adapter_addresses=tuple(f"{domain}:03:00.0" for domain in ("0000", "0002", "0010", "0012")),
            wiring=GpuTopologyModel(
                near="SYS",
                numa="SYS",
                affinity=(
                    ("0,3-9,11-17", "2"),
                    ("0,3-9,11-17", "10"),
                    ("1,19-25,27-33", "18"),
                    ("1,19-25,27-33", "26"),
                ),
            ),
            nvswitch=False,
            kernel="6.8.0-1025-nvidia-64k",
            iommu="iommu.passthrough=1",
            services=("nvidia-imex",),
        ),
    )
}


def model(name: str) -> NodeModel:
    """Return a hardware model; SandboxError names the existing ones."""
    try:
        return MODELS[name]
    except KeyError:
        raise SandboxError(f"unknown hardware model {name!r} (known: {', '.join(sorted(MODELS))})") from None
