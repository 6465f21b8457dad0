"""The link model of the sandbox, and the output of nccl-tests 2.19 on it. Uses only the standard library.

The sandbox copies this file into its state folder and runs it as all_reduce_perf and the other programs, on rank 0 of
a step; the other ranks only log (simbin/all_reduce_perf). The curve fits recordings of 8 H200: t = t0 + S / B.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# GB/s bus bandwidth of all_reduce within a node of H200, by GPUs: with multicast, and without it (NCCL_NVLS_ENABLE=0)
NVLS = {"2": 345.0, "4": 455.0, "8": 478.0}
RING = {"2": 345.0, "4": 363.0, "8": 365.0}  # recorded
LOCAL = 2150.0  # GB/s of a copy within one GPU, recorded
PORT = 50.0 * 0.94  # GB/s that NCCL reaches on one 400 Gb/s port
NO_GDR = 0.45  # factor if data passes through host memory
SOCKET = 3.1  # GB/s over TCP, recorded: 1.9 to 3.8
START_US, NODE_US = 42.0, 9.0  # latency of the first bytes, and of each doubling of the nodes
NOISE = 0.004
PAIR = 2
MNNVL = "P2P/MNNVL"
SHARES = {"all_reduce": 1.0, "all_gather": 0.93, "reduce_scatter": 0.94, "broadcast": 0.92, "sendrecv": 0.8}
# options with a value
_VALUED = "bBefigtnwcmodrzGpTaCRYxDNSJ"
_LONG = {
    "minbytes": "b", "maxbytes": "e", "stepbytes": "i", "stepfactor": "f", "ngpus": "g", "nthreads": "t",
    "iters": "n", "warmup_iters": "w", "check": "c", "op": "o", "datatype": "d", "root": "r",
}  # fmt: skip
_DIVIDED = ("all_gather", "reduce_scatter", "alltoall")  # the size counts the parts of all ranks
_TYPES = {"float": 4, "half": 2, "bfloat16": 2, "double": 8, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}


def factor_of(collective: str, ranks: int) -> float:
    """Return bus bandwidth by algorithm bandwidth, as doc/PERFORMANCE.md of nccl-tests defines it."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in ("all_gather", "reduce_scatter", "alltoall") else 1.0


@dataclass(frozen=True)
class NodeHealth:
    """The bandwidths and faults of one node; see hardware.CollectiveFaults."""

    speed: float = 1.0
    links: dict[str, float] = field(default_factory=dict)
    gdr: bool = True
    infiniband: bool = True
    wrong: int = 0
    hang: bool = False
    crash: bool = False
    swap_ranks: bool = False
    leaf: list[str] = field(default_factory=list)
    uplink: float = 1.0
    crowd: float = 1.0
    at_times: float = 1.0
    share: float = 1.0
    nvls: dict[str, float] = field(default_factory=lambda: dict(NVLS))
    ring: dict[str, float] = field(default_factory=lambda: dict(RING))
    port: float = PORT
    within: str = "P2P/CUMEM"
    domain: bool = False
    hcas: int = 8


@dataclass(frozen=True)
class CommunicatorModel:
    """The communicator: {node: health} in rank order, and the number of GPUs per node."""

    nodes: dict[str, NodeHealth]
    gpus: int
    nvls: bool = True
    mnnvl: bool = True

    @property
    def joined(self) -> bool:
        """Whether NVLink carries the traffic between the nodes."""
        return self.mnnvl and len(self.nodes) > 1 and all(node.domain for node in self.nodes.values())

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.nodes) * self.gpus


def busbw(world: CommunicatorModel, collective: str, size: int) -> float:
    """Return the bus bandwidth in GB/s for a message size in bytes, without noise; 0 for one rank."""
    if world.ranks < 2:  # one rank transfers nothing
        return 0.0
    algbw = _peak(world, collective) * SHARES.get(collective, 0.6) / factor_of(collective, world.ranks)
    start = START_US + NODE_US * math.log2(max(1, len(world.nodes)))
    return size / (start * 1e3 + size / algbw) * factor_of(collective, world.ranks)


def _peak(world: CommunicatorModel, collective: str) -> float:
    """Return the bandwidth of the slowest part in GB/s."""
    health = list(world.nodes.values())
    table = (health[0].nvls if world.nvls else {}) or health[0].ring
    counts = sorted(map(int, table))
    within = table[str(next((count for count in counts if count >= world.gpus), counts[-1]))]
    slowest = min(node.speed for node in health)
    if len(health) == 1 or world.joined:
        return within * slowest
    between = min(_network(node, world.gpus) for node in health)
    if collective == "alltoall":  # each rank sends to the ranks of other nodes
        between *= (world.ranks - 1) / (world.gpus * (world.ranks - world.gpus))
    peak = min(within, between) if world.gpus > 1 else between
    return peak * slowest * min(_links(world), default=1.0)


def _network(node: NodeHealth, gpus: int) -> float:
    if not node.infiniband:
        return SOCKET
    return min(node.hcas, gpus) * node.port * (1.0 if node.gdr else NO_GDR)


def _links(world: CommunicatorModel) -> list[float]:
    found = [factor for node in world.nodes.values() for peer, factor in node.links.items() if peer in world.nodes]
    found += [node.uplink for node in world.nodes.values() if node.leaf and not world.nodes.keys() <= {*node.leaf}]
    found += [node.at_times for node in world.nodes.values()]
    return found + ([node.crowd for node in world.nodes.values()] if len(world.nodes) > PAIR else [])


# -- nccl-tests ----------------------------------------------------------------------------------------------


def expand(hostlist: str) -> list[str]:
    """Return the names in a hostlist like gpu[01-03,07]; the sandbox's have at most one bracket."""
    match = re.fullmatch(r"([^\[]*)\[([^\]]*)\]", hostlist)
    if not match:
        return hostlist.split(",")
    names = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        names += [f"{match[1]}{n:0{len(first)}}" for n in range(int(first), int(last or first) + 1)]
    return names


def size_of(text: str) -> int:
    """Return the bytes of 8, 1M or 4G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGkmg]?)B?", text)
    if not match:
        raise ValueError(text)
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def number(value: float, width: int) -> str:
    """Return a number in the format of nccl-tests: with as many digits as fit into the column."""
    for digits in (2, 1, 0):
        text = f"{value:.{digits}f}"
        if len(text) <= width - (1 if digits else 0):
            return text
    return f"{value:.0e}"


def options(argv: list[str]) -> dict[str, str] | None:
    """Return the options of a command line; None if nccl-tests would print its usage."""
    found = {"b": "32M", "e": "32M", "i": "1M", "f": "1", "g": "1", "t": "1", "n": "20", "w": "1", "c": "1"}
    found |= {"o": "sum", "d": "float", "r": "0", "z": "0", "G": "0", "a": "1"}
    words = iter(argv)
    for word in words:
        name, joined, value = word.lstrip("-").partition("=")
        if word.startswith("--"):
            name = _LONG.get(name, "")
        elif word.startswith("-") and len(word) > 2:  # -b8M
            name, joined, value = word[1], "=", word[2:]
        if not word.startswith("-") or len(name) != 1 or name not in _VALUED:
            return None
        found[name] = value if joined else next(words, "")
    return found


def sizes(chosen: dict[str, str]) -> list[int]:
    """Return the message sizes of -b, -e and -f or -i."""
    size, last, factor = size_of(chosen["b"]), size_of(chosen["e"]), int(chosen["f"])
    found = []
    while size <= last:
        found.append(size)
        size = size * factor if factor > 1 else size + size_of(chosen["i"])
    return found


def rounded(collective: str, size: int, ranks: int) -> int:
    """Return a size as nccl-tests rounds it: down to 16 bytes per rank, where the ranks divide the message."""
    return size // (16 * ranks) * 16 * ranks or size if collective in _DIVIDED else size


def print_line(text: str = "") -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(program: str, argv: list[str], folder: Path, base: Path) -> int:
    """Run as rank 0 of a step, or alone. Return the exit status of nccl-tests."""
    chosen = options(argv)
    if chosen is None or not chosen["g"].isdecimal():
        print_line(
            f"USAGE: {program} \n\t[-t,--nthreads <num threads>] \n\t[-g,--ngpus <gpus per thread>] \n\t[-h,--help]"
        )
        return 0
    collective = program.removesuffix("_perf")
    me = os.environ.get("SLURMD_NODENAME", "localhost")
    joined = any(os.environ.get(name) for name in ("PMI_RANK", "PMI_FD", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))
    size = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    tasks = int(size) if joined else 1
    nodes = expand(os.environ.get("SLURM_STEP_NODELIST", me)) if joined and tasks > 1 else [me]
    per_task = int(chosen["g"])
    tasks_per_node = max(1, tasks // len(nodes))
    dice = random.Random(os.environ.get("SLURM_JOB_ID", "") + os.environ.get("SLURM_STEP_ID", ""))  # of all ranks alike
    health = {node: now(node_health(folder, base, node), dice) for node in nodes}
    if _without_infiniband():  # a launcher passes one environment to all ranks
        health = {node: replace(was, infiniband=False) for node, was in health.items()}
    world = CommunicatorModel(health, tasks_per_node * per_task, is_on("NCCL_NVLS_ENABLE"), is_on("NCCL_MNNVL_ENABLE"))
    _heading(program, chosen)
    gpus = {node: _gpus(folder, base, node) for node in nodes}
    short = next((node for node in nodes if len(gpus[node]) < world.gpus), None)
    if short:
        print_line(f"Invalid number of GPUs: {world.gpus} requested but only {len(gpus[short])} were found.")
        print_line("Please check the number of processes and GPUs per process.")
        print_line(f" .. {short} pid {os.getpid()}: Test failure common.cu:1454")
        return 5
    _devices(world, gpus)
    if os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        for gpu in range(per_task):
            _log(world, gpu, me)
    return _run(world, collective, program, chosen, me, folder)


def is_on(variable: str) -> bool:
    """Return whether a feature of NCCL is not switched off."""
    return os.environ.get(variable, "1") != "0"


def _without_infiniband() -> bool:
    return os.environ.get("NCCL_IB_DISABLE", "0") != "0"


def frozen(folder: Path, node: str) -> bool:
    """Return whether the node hangs."""
    return (folder / node / "fault.hang").exists()


def _run(world: CommunicatorModel, collective: str, program: str, chosen: dict[str, str], me: str, folder: Path) -> int:
    if any(node.crash for node in world.nodes.values()):
        cause = (
            "unhandled system error" if world.nodes[me].crash else "remote process exited or there was a network error"
        )
        print_line(f"{me}: Test NCCL failure common.cu:303 '{cause} / '")
        print_line(f" .. {me} pid {os.getpid()}: Test failure common.cu:1454")
        return 3
    _columns()
    if any(node.hang for node in world.nodes.values()):
        time.sleep(86_400)
    wrong = sum(node.wrong for node in world.nodes.values()) if chosen["c"] != "0" else 0
    noise = random.Random(  # repeatable, nothing secret
        "/".join([*world.nodes, os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")])
    )
    measured = []
    for size in dict.fromkeys(rounded(collective, size, world.ranks) for size in sizes(chosen)):
        while any(frozen(folder, node) for node in world.nodes):
            time.sleep(0.2)  # all wait for a hung node
        halves = [_half(world, collective, size, noise) for _ in range(2)]
        measured += [half[2] for half in halves]
        print_line(_row(world, collective, size, chosen, halves=halves, wrong=wrong))
    rows = len(measured) // 2
    print_line(f"# Out of bounds values : {rows * 2 if wrong else 0} {'FAILED' if wrong else 'OK'}")
    print_line(f"# Avg bus bandwidth    : {sum(measured) / max(1, len(measured)):g} ")
    print_line(f"#\n# Collective test concluded: {program}\n#\n")
    return 7 if wrong else 0


def _half(world: CommunicatorModel, collective: str, size: int, noise: random.Random) -> tuple[float, float, float]:
    """Return (microseconds, algorithm bandwidth, bus bandwidth) of one measurement."""
    bus = busbw(world, collective, size) * noise.lognormvariate(0.0, NOISE)
    alg = bus / factor_of(collective, world.ranks) if world.ranks > 1 else LOCAL * size / (size + 8e6)
    return size / alg / 1e3, alg, bus


def _row(
    world: CommunicatorModel,
    collective: str,
    size: int,
    chosen: dict[str, str],
    *,
    halves: list[tuple[float, float, float]],
    wrong: int,
) -> str:
    count = size // _TYPES.get(chosen["d"], 4)
    if collective in _DIVIDED:
        count //= world.ranks
    reduces = collective in ("all_reduce", "reduce_scatter")
    root = chosen["r"] if collective == "broadcast" else "-1"
    text = f"{size:>12}  {count:>12}  {chosen['d']:>8}  {chosen['o'] if reduces else 'none':>6}  {root:>6}"
    checked = str(wrong) if chosen["c"] != "0" else "N/A"
    for us, alg, bus in halves:
        text += f"  {number(us, 8):>7}  {number(alg, 7):>6}  {number(bus, 7):>6}  {checked:>6}"
    return text


def _heading(program: str, chosen: dict[str, str]) -> None:
    factor = int(chosen["f"])
    step = f"{factor}(factor)" if factor > 1 else f"{size_of(chosen['i'])}(bytes)"
    print_line("# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809")
    print_line(f"# Collective test starting: {program}")
    print_line(
        f"# nThread {chosen['t']} nGpus {chosen['g']} minBytes {size_of(chosen['b'])} maxBytes {size_of(chosen['e'])} "
        f"step: {step} warmup iters: {chosen['w']} iters: {chosen['n']} agg iters: {chosen['a']} "
        f"validation: {chosen['c']} graph: {chosen['G']} unalign: 0"
    )
    print_line("#\n# Using devices")


def _devices(world: CommunicatorModel, gpus: dict[str, list[tuple[str, str]]]) -> None:
    rank = 0
    for number_of_node, (node, health) in enumerate(world.nodes.items()):
        for gpu in range(world.gpus):
            device = 0 if health.swap_ranks and gpu == 1 else gpu
            name, bus = gpus[node][device]
            print_line(
                f"#  Rank {rank:>2} Group  0 Pid {4000 + number_of_node * 16 + gpu:>6} on {node:>10} "
                f"device {device:>2} [{bus}] {name}"
            )
            rank += 1


def _columns() -> None:
    names, units = "    time   algbw   busbw  #wrong ", "    (us)  (GB/s)  (GB/s)         "
    print_line("#")
    print_line("#" + " " * 62 + "out-of-place" + " " * 23 + "in-place          ")
    print_line("#       size         count      type   redop    root " + names + names)
    print_line("#        (B)    (elements)                           " + units + units)


def _log(world: CommunicatorModel, gpu: int, me: str) -> None:
    """Print the log of rank `gpu` of the first node with NCCL_DEBUG=INFO."""
    head = f"{me}:{os.getpid()}:{os.getpid()} [{gpu}] NCCL INFO"
    health = world.nodes[me]
    net = _net(health)
    if gpu == 0:
        print_line(f"{head} NCCL version 2.28.9+cuda13.0")
        if not world.mnnvl:
            print_line(f"{head} NCCL_MNNVL_ENABLE set by environment to 0.")
        if _without_infiniband():
            print_line(f"{head} NCCL_IB_DISABLE set by environment to 1.")
        print_line(
            f"{head} NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.1.0.1<0>"
            if health.infiniband
            else f"{head} NET/IB : No device found."
        )
    print_line(f"{head} Using network {net.split('/')[0]}")
    print_line(
        f"{head} ncclCommInitRankConfig comm 0x55f716{gpu:06x} rank {gpu} nranks {world.ranks} "
        f"cudaDev {gpu} nvmlDev {gpu} busId {gpu:x}0 commId 0xc1ddbf9b406d02b6 - Init START"
    )
    if world.joined:
        print_line(f"{head} {joined_line(gpu, world.ranks)}")
    way = MNNVL if world.joined else f"NET/{net}"
    for line in channels(gpu, world.ranks, world.gpus, way, health.within):
        print_line(f"{head} {line}")
    if world.nvls and health.nvls and world.gpus > 1:
        print_line(f"{head} NVLS multicast support is available on dev {gpu} (NVLS_NCHANNELS 16)")


def joined_line(rank: int, ranks: int) -> str:
    """Return how a rank of an NVLink domain logs that NCCL counts one node."""
    return f"comm 0x55f7160000 rank {rank} nRanks {ranks} nNodes 1 localRanks {ranks} localRank {rank} MNNVL 1"


def channels(rank: int, ranks: int, per_node: int, way: str, within: str) -> list[str]:
    """Return the ring's connections of one rank, as that rank logs them."""
    if ranks < 2:  # one rank has no connection
        return []
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    lines = []
    if before // per_node != rank // per_node:
        lines.append(f"Channel 00/0 : {before}[{before % per_node}] -> {rank}[{rank % per_node}] [receive] via {way}")
    same = after // per_node == rank // per_node
    path = f"via {within}" if same else f"[send] via {way}"
    return [*lines, f"Channel 00/0 : {rank}[{rank % per_node}] -> {after}[{after % per_node}] {path}"]


def _net(health: NodeHealth) -> str:
    return "Socket/0" if not health.infiniband else "IB/0/GDRDMA" if health.gdr else "IB/0"


def _read(folder: Path, base: Path, node: str, name: str) -> str:
    own = folder / node / name
    return (own if own.exists() else base / name).read_text()


def node_health(folder: Path, base: Path, node: str) -> NodeHealth:
    """Return the state of a node from its files."""
    plain: dict[str, Any] = json.loads(_read(folder, base, node, "network.json"))
    return NodeHealth(**plain)


def now(node: NodeHealth, dice: random.Random) -> NodeHealth:
    """Return the state of a node in one measurement: what is slow at times is slow in its share of them."""
    return node if dice.random() < node.share else replace(node, at_times=1.0)


def _gpus(folder: Path, base: Path, node: str) -> list[tuple[str, str]]:
    """Return (name, bus id as nccl-tests writes it) of every GPU of a node."""
    rows = {line.split("\t")[0]: line.split("\t")[2:] for line in _read(folder, base, node, "gpus").splitlines()}
    return [
        (name, bus[4:].lower().partition(".")[0]) for name, bus in zip(rows["name"], rows["pci.bus_id"], strict=False)
    ]


if __name__ == "__main__":
    nodes_at, base_at, called, *words = sys.argv[1:]
    sys.exit(main(called, words, Path(nodes_at), Path(base_at)))
