# A hung or broken backend may raise anything (BLE001); "in place" is a flag of the domain (FBT); old torch keeps two
# calls private (SLF001); errors are raised where they are found and told in one place (TRY301).
"""Collectives on torch.distributed: bus bandwidth and correctness, without nccl-tests. One process a GPU.

Runs on the nodes, under the site's python with torch (1.13 and later) or a container's; nothing else is imported.
It comes in by -c (SOURCE: `payload_step.sent`):

    srun --ntasks-per-node=8 python3 -c SOURCE sweep -c all_reduce -b 8 -e 4G -f 2
    srun --ntasks-per-node=8 python3 -c SOURCE rounds --schedule '[[["gpu01", "gpu02"]]]' -s 1G

Rank, size and node names come from Slurm's variables; rank 0's node is the rendezvous, the port is drawn from the job
and step id (or --port, MASTER_ADDR, MASTER_PORT). `sweep` prints the table of nccl-tests 2.19 with its bus bandwidth
factors, data checked by closed forms; torch's all_reduce and broadcast are in place in both halves, its alltoall and
send/receive in none. `rounds` measures groups of nodes (or of GPUs, 'node:local rank'), round by
round, each group a communicator of its own, and prints a JSON line a group and round:

    {"round": 0, "members": ["gpu01", "gpu02"], "busbw": 93.1, "time_us": 20112.1, "size": 1073741824, "wrong": 0,
     "problem": "", "skipped": false, "ranks": [{"rank": 0, "node": "gpu01", "host": ..., "device": ..., "uuid": ...}]}

A group that hangs is given up after --deadline seconds a round: its processes leave, the others go on without them.
A sweep is given up by all as soon as one rank fails, and names a rank that has fallen silent (killed, stopped).
Exit codes: 0 all measured, 1 something else failed, 2 usage, 3 NCCL, 4 deadline, 5 no GPU, 6 rendezvous, 7 wrong data.
"""

import argparse
import datetime as dt
import inspect
import json
import math
import os
import re
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from pytest_gpucluster.kit.payloads.prelude import (
    Failure,
    exit_now,
    expand,
    first_line,
    gpu_facts,
    low_limits_hint,
    no_device,
    own_port,
    write_line,
)

EXIT_FAILED, EXIT_USAGE, EXIT_NCCL, EXIT_DEADLINE, EXIT_NO_GPU, EXIT_RENDEZVOUS, EXIT_WRONG = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
SUMS = ("all_reduce", "reduce_scatter")
TYPES = {  # names of nccl-tests: torch dtype, bytes
    "float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2), "bfloat16": ("bfloat16", 2),
    "int32": ("int32", 4), "int64": ("int64", 8), "int8": ("int8", 1), "uint8": ("uint8", 1),
}  # fmt: skip
SPREAD = ("all_gather", "reduce_scatter", "alltoall")
# sums of at most 3 a rank that a type holds exactly; ranks beyond add zeros to the checked data
EXACT_RANKS = {"bfloat16": 85, "half": 682}
PERIOD, POISON = 31, 119
BEAT = 5.0  # seconds between signs of life of the ranks of a sweep
SILENT = 30.0  # seconds without one after which a rank was killed or stopped: one in a hung collective still gives them
MISSED = 3  # signs of life, after which a rank is the likely cause of a deadline that has passed
GRACE = 15.0  # seconds beyond the deadline after which a rank that says nothing is taken for dead
CONCLUDED, GIVEN_UP = "# Collective test concluded", "# Collective test given up"
SLOW = 5.0  # seconds that the repetitions of one size may take: on a slow network it is measured less often
CHUNK = 1 << 24  # elements checked at once, so that a check of 16 GiB needs no second 16 GiB


# -- where am I -------------------------------------------------------------------------------------------------


def resolvable(name: str) -> str:
    """Return the name, or loopback where nothing resolves it: virtual nodes of one host."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


class RankPlace:
    """This process: rank, size, local rank, node name, and where the rendezvous is."""

    def __init__(self, env: Mapping[str, str], address: str = "", port: int = 0) -> None:
        try:
            self.rank = int(env["SLURM_PROCID"])
            self.size = int(env.get("SLURM_STEP_NUM_TASKS") or env["SLURM_NTASKS"])
            self.local = int(env.get("SLURM_LOCALID", "0"))
        except KeyError as error:
            raise Failure(
                EXIT_USAGE, "%s is not set: start this payload with srun, one task a GPU" % error
            ) from None
        nodes = expand(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
        self.host = socket.gethostname().split(".")[0]
        self.node = env.get("SLURMD_NODENAME") or self.host
        self.address = address or env.get("MASTER_ADDR") or resolvable(nodes[0] if nodes else self.host)
        self.port = int(port or env.get("MASTER_PORT") or own_port(env))
        self.at = "rank %d on %s" % (self.rank, self.node)


def named(about: Mapping[str, Any]) -> str:
    """Write a rank for people: 'rank 3 on gpu01 (GPU 0000:9d:00)'."""
    gpu = " (GPU %s)" % about["bus"] if about["bus"] != "-" else ""
    return "rank %d on %s%s" % (about["rank"], about["node"], gpu)


def complain(place: Optional[RankPlace], text: str) -> None:
    """Print a failure line to stderr, as one line."""
    where = place.at if place else socket.gethostname()
    sys.stderr.write("collective: %s: %s%s\n" % (where, " ".join(text.split()), low_limits_hint()))
    sys.stderr.flush()


def reason_of(error: BaseException) -> Tuple[str, int]:
    """Return (one useful line, exit code) of an exception, NCCL's own last error first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "\n".join(lines)
    duplicate = re.search(r"Duplicate GPU detected.*", text)
    if duplicate:
        hint = "; two ranks got the same GPU: bind with --gpus-per-task or --gpu-bind"
        return "duplicate GPU: " + duplicate.group(0) + hint, EXIT_NCCL
    if "NCCL" in text or "nccl" in text:
        after = text.partition("Last error:")[2].strip().splitlines()
        named = [line for line in lines if re.match(r"nccl[A-Z]\w+", line)]
        return "NCCL error: " + (after or named or lines)[0], EXIT_NCCL
    return "%s: %s" % (type(error).__name__, first_line(error) or type(error).__name__), EXIT_FAILED


# -- the device -------------------------------------------------------------------------------------------------


class CpuDevice:
    """The host's memory, gloo: for tests and for hosts without GPUs."""

    name, bus, uuid, backend, index = "CPU", "-", "-", "gloo", 0

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.device = torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing is asynchronous here."""

    def time(self, function: Callable[[], Any], iterations: int) -> float:
        """Return seconds an iteration."""
        start = time.perf_counter()
        for _ in range(iterations):
            function()
        return (time.perf_counter() - start) / iterations


class CudaDevice:
    """One GPU, NCCL. Timed by CUDA events."""

    backend = "nccl"

    def __init__(self, torch: Any, place: RankPlace) -> None:
        if not torch.cuda.is_available():
            raise Failure(
                EXIT_NO_GPU,
                "torch finds no CUDA device: %s (torch %s, CUDA_VISIBLE_DEVICES=%s; check --gpus-per-task)"
                % (no_device(torch), torch.__version__, os.environ.get("CUDA_VISIBLE_DEVICES", "not set")),
            )
        count = torch.cuda.device_count()
        # with --gpus-per-task each task sees its own GPU only
        if count > 1 and place.local >= count:
            raise Failure(EXIT_NO_GPU, "local rank %d, but only %d GPUs are visible" % (place.local, count))
        self.index = 0 if count == 1 else place.local
        torch.cuda.set_device(self.index)
        self.torch = torch
        self.device = torch.device("cuda", self.index)
        about = gpu_facts(torch.cuda.get_device_properties(self.index))
        self.name, self.uuid, self.bus = about["name"], about["uuid"] or "-", about["bus"] or "-"

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self.torch.cuda.synchronize(self.device)

    def time(self, function: Callable[[], Any], iterations: int) -> float:
        """Return seconds an iteration."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(iterations):
            function()
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / iterations


def device_of(torch: Any, place: RankPlace, wanted: str) -> Any:
    """Return the device of this rank; 'auto' is the GPU where there is one."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return CpuDevice(torch)
    return CudaDevice(torch, place)


# -- the collectives --------------------------------------------------------------------------------------------


def busbw_factor(collective: str, size: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as doc/PERFORMANCE.md of nccl-tests has it."""
    if collective == "all_reduce":
        return 2.0 * (size - 1) / size
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        return float(size - 1) / size
    return 1.0


class BufferSizes:
    """Element counts as nccl-tests lays them out: `count` is the table's column, `nbytes` its size column."""

    def __init__(self, collective: str, nbytes: int, width: int, size: int) -> None:
        spread = collective in SPREAD
        aligned = 16 // width  # nccl-tests rounds each rank's part down to 16 bytes
        self.count = nbytes // width // size // aligned * aligned if spread else nbytes // width
        total = self.count * (size if spread else 1)
        self.send = self.count if collective == "all_gather" else total
        self.receive = self.count if collective == "reduce_scatter" else total
        self.nbytes = total * width


def data(torch: Any, device: Any, span: Tuple[int, int], rank: int, seed: int) -> Any:
    """Return elements [start, stop) of one rank's data: 0 to 3, fresh for each rank, element and seed."""
    index = torch.arange(span[0], span[1], device=device, dtype=torch.int64)
    return (index * 7 + (index >> 8) + rank * 13 + seed * 5) % PERIOD % 4


def summed(torch: Any, device: Any, span: Tuple[int, int], ranks: int, seed: int) -> Any:
    """Return the sum of the data of so many ranks: ranks a period apart hold the same."""
    total = torch.zeros(span[1] - span[0], device=device, dtype=torch.int64)
    for rank in range(min(ranks, PERIOD)):
        total += data(torch, device, span, rank, seed) * ((ranks - rank + PERIOD - 1) // PERIOD)
    return total


class Collective:
    """One collective at one size and type on the current process group: buffers, call, expected values."""

    def __init__(
        self, torch: Any, device: Any, collective: str, nbytes: int, dtype: str, rank: int, size: int
    ) -> None:
        self.torch, self.dist, self.device, self.collective = torch, torch.distributed, device, collective
        self.dtype, self.rank, self.size = getattr(torch, TYPES[dtype][0]), rank, size
        self.shape = BufferSizes(collective, nbytes, TYPES[dtype][1], size)
        self.exact = min(size, EXACT_RANKS.get(dtype, size)) if collective in SUMS else size
        self.source = torch.empty(self.shape.send, dtype=self.dtype, device=device.device)
        self.target = torch.empty(self.shape.receive, dtype=self.dtype, device=device.device)

    def buffers(self, in_place: bool) -> Tuple[Any, Any]:
        """Return (what the call reads, where the result lies); in place one is a part of the other."""
        mine = slice(self.rank * self.shape.count, (self.rank + 1) * self.shape.count)
        if not in_place:
            return self.source, self.target
        if self.collective == "all_gather":
            return self.target[mine], self.target
        if self.collective == "reduce_scatter":
            return self.source, self.source[mine]
        return self.target, self.target

    def fill(self, seed: int, in_place: bool) -> None:
        """Poison the target, then put fresh data into what the call reads."""
        self.target.fill_(POISON)
        source = self.buffers(in_place)[0]
        if self.rank >= self.exact:
            source.zero_()
            return
        for start in range(0, source.numel(), CHUNK):
            stop = min(start + CHUNK, source.numel())
            source[start:stop] = data(self.torch, self.device.device, (start, stop), self.rank, seed)

    def call(self, in_place: bool) -> Callable[[], Any]:
        """Return the function that runs the collective once.

        torch's all_reduce and broadcast know only the in-place form: out of place the data is copied beforehand.
        """
        dist = self.dist
        source, target = self.buffers(in_place)
        if self.collective == "all_reduce":
            if not in_place:
                target.copy_(source)
            return lambda: dist.all_reduce(target)
        if self.collective == "broadcast":
            if not in_place and self.rank == 0:
                target.copy_(source)
            return lambda: dist.broadcast(target, 0)
        if self.collective == "all_gather":
            gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
            return lambda: gather(target, source)
        if self.collective == "reduce_scatter":
            scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
            return lambda: scatter(target, source)
        if self.collective == "alltoall":
            return lambda: dist.all_to_all_single(target, source)
        return lambda: self.exchange(source, target)

    def exchange(self, source: Any, target: Any) -> None:
        """Send to the next rank and receive from the one before."""
        ahead, behind = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        if ahead == self.rank:
            target.copy_(source)
            return
        ways = [
            self.dist.P2POp(self.dist.isend, source, ahead),
            self.dist.P2POp(self.dist.irecv, target, behind),
        ]
        for work in self.dist.batch_isend_irecv(ways):
            work.wait()

    def expected(self, start: int, stop: int, seed: int) -> Any:
        """Return elements [start, stop) of the right result on this rank."""
        torch, device, count = self.torch, self.device.device, self.shape.count
        if self.collective == "all_reduce":
            return summed(torch, device, (start, stop), self.exact, seed)
        if self.collective == "reduce_scatter":
            mine = self.rank * count
            return summed(torch, device, (mine + start, mine + stop), self.exact, seed)
        if self.collective in ("broadcast", "sendrecv"):
            origin = 0 if self.collective == "broadcast" else (self.rank - 1) % self.size
            return data(torch, device, (start, stop), origin, seed)
        shift = self.rank * count if self.collective == "alltoall" else 0
        parts = []
        for origin in range(start // count, (stop - 1) // count + 1):  # the part of each rank
            begin, end = max(start - origin * count, 0), min(stop - origin * count, count)
            parts.append(data(torch, device, (shift + begin, shift + end), origin, seed))
        return torch.cat(parts)

    def wrong(self, in_place: bool, seed: int) -> int:
        """Return how many elements of this rank's result are wrong."""
        result, count = self.buffers(in_place)[1], 0
        for start in range(0, result.numel(), CHUNK):
            stop = min(start + CHUNK, result.numel())
            right = self.expected(start, stop, seed).to(self.dtype)
            count += int((result[start:stop] != right).sum().item())
        return count

    def check(self, in_place: bool, seed: int) -> int:
        """Run once on fresh data; return the number of wrong elements over all ranks."""
        self.fill(seed, in_place)
        run = self.call(in_place)
        self.device.synchronize()
        run()
        self.device.synchronize()
        return int(self.total(self.wrong(in_place, seed)))

    def total(self, value: float) -> float:
        """Return the sum of a number over all ranks; also a barrier."""
        number = self.torch.tensor([value], dtype=self.torch.float64, device=self.device.device)
        self.dist.all_reduce(number)
        return float(number.item())

    def measure(self, in_place: bool, warmup: int, iterations: int, patience: float = math.inf) -> float:
        """Return seconds an iteration, the mean over the ranks (nccl-tests -a 1).

        Where all iterations would take longer than `patience` seconds there are fewer of them.
        """
        self.source.zero_()  # sums of zeros stay zero however often they are repeated
        self.target.zero_()
        run = self.call(in_place)
        if patience < math.inf:
            run()  # the first one connects
            self.device.synchronize()
            # the mean over all ranks, so that all of them choose the same number
            once = self.total(self.device.time(run, 1)) / self.size
            if once * (warmup + iterations) > patience:
                warmup, iterations = 0, int(patience / once)
                if not iterations:
                    return once
        for _ in range(warmup):
            run()
        self.device.synchronize()
        self.total(0)
        return self.total(self.device.time(run, iterations)) / self.size


# -- the table of nccl-tests ------------------------------------------------------------------------------------

COLUMNS = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"""


def shorten(value: float, fine: float) -> str:
    """Write two decimals below `fine`, one below its tenfold, none above."""
    return "%.*f" % (2 if value < fine else 1 if value < 10 * fine else 0, value)


def microseconds(value: float) -> str:
    """Write a time as nccl-tests 2.19: 66.50, 1356.19, 10360.0, 123456."""
    return shorten(value, 10**4)


def rate(value: float) -> str:
    """Write GB/s as nccl-tests 2.19: 358.84, 1171.8, 18198."""
    return shorten(value, 10**3)


def half(seconds: float, nbytes: int, factor: float, wrong: str) -> str:
    """Write one half of a row: time, algorithm and bus bandwidth, wrong elements."""
    algbw = nbytes / 1e9 / seconds if seconds else 0.0
    return "  %7s %7s %7s %7s" % (microseconds(seconds * 1e6), rate(algbw), rate(algbw * factor), wrong)


def header(args: Any, collective: str, ranks: Sequence[Mapping[str, Any]], library: str) -> str:
    """Return the lines before the rows."""
    step = "%d(factor)" % args.factor if args.factor else "%d(bytes)" % args.increment
    lines = [
        "# torch.distributed payload, " + library,
        "# Collective test starting: %s_perf" % collective,
        "# nThread 1 nGpus 1 minBytes %d maxBytes %d step: %s warmup iters: %d iters: %d agg iters: 1 validation: %d"
        " graph: 0 unalign: 0" % (args.begin, args.end, step, args.warmup, args.iters, args.check),
        "#",
        "# Using devices",
    ]
    form = "#  Rank %2d Group  0 Pid %6d on %10s device %2d [%s] %s"
    lines += [
        form % tuple(it[key] for key in ("rank", "pid", "host", "device", "bus", "name")) for it in ranks
    ]
    lines += ["# rank %d: node %s uuid %s" % (it["rank"], it["node"], it["uuid"]) for it in ranks]
    return "\n".join([*lines, COLUMNS])


def sizes(args: Any) -> List[int]:
    """Return the message sizes of the sweep, in bytes."""
    found, at = [], args.begin
    while at <= args.end:
        found.append(at)
        at = at * args.factor if args.factor else at + args.increment
    return found


class SizeSweep:
    """All sizes and types of the asked collectives, over all ranks; rank 0 prints."""

    def __init__(
        self,
        args: Any,
        torch: Any,
        device: Any,
        place: RankPlace,
        ranks: Sequence[Mapping[str, Any]],
        vigil: Any,
    ) -> None:
        self.args, self.torch, self.device, self.place, self.ranks = args, torch, device, place, ranks
        self.vigil = vigil

    def run(self) -> int:
        """Return the exit code."""
        return max([self.table(collective) for collective in self.args.collective])

    def print(self, text: str) -> None:
        """Print on rank 0."""
        if self.place.rank == 0:
            write_line(text)

    def table(self, collective: str) -> int:
        """Print the table of one collective."""
        self.print(header(self.args, collective, self.ranks, library_of(self.torch, self.device)))
        bad, busbw = 0, []
        factor = busbw_factor(collective, self.place.size)
        for dtype in self.args.datatype:
            for nbytes in sizes(self.args):
                with Deadline(
                    self.args.deadline,
                    lambda: self.late(collective, nbytes),  # noqa: B023 - ends with the loop's turn
                ):  # ends with the loop's turn
                    found, row, rates = self.row(collective, nbytes, dtype, factor)
                self.print(row)
                bad += found
                busbw += rates
        self.print("# Out of bounds values : %d %s" % (bad, "FAILED" if bad else "OK"))
        self.print("# Avg bus bandwidth    : %g " % (sum(busbw) / len(busbw) if busbw else 0.0))
        self.print("#\n%s: %s_perf\n#" % (CONCLUDED, collective))
        return EXIT_WRONG if bad else 0

    def row(self, collective: str, nbytes: int, dtype: str, factor: float) -> Tuple[int, str, List[float]]:
        """Return (wrong elements, row, bus bandwidths) of one size."""
        job = Collective(self.torch, self.device, collective, nbytes, dtype, self.place.rank, self.place.size)
        redop, root = ("sum" if collective in SUMS else "none"), (0 if collective == "broadcast" else -1)
        text = "%12d  %12d  %8s  %6s  %6d" % (job.shape.nbytes, job.shape.count, dtype, redop, root)
        bad, rates = 0, []
        for wanted in (False, True):
            in_place = wanted and collective not in (
                "alltoall",
                "sendrecv",
            )  # those have no in-place form in torch
            asked = (in_place, self.args.warmup, self.args.iters, SLOW)
            seconds = job.measure(*asked) if job.shape.nbytes else 0.0
            wrong = job.check(in_place, nbytes + wanted) if self.args.check and job.shape.nbytes else 0
            bad += wrong
            rates.append(job.shape.nbytes / 1e9 / seconds * factor if seconds else 0.0)
            text += half(seconds, job.shape.nbytes, factor, str(wrong) if self.args.check else "N/A")
        return bad, text, rates

    def late(self, collective: str, nbytes: int) -> None:
        """Say which size hung, in nccl-tests' words, and leave."""
        self.vigil.accuse_silent()
        write_line(
            "%s: Test timeout (%ds) %s at %d bytes"
            % (self.place.node, self.args.deadline, collective, nbytes)
        )
        exit_now(EXIT_DEADLINE)


def library_of(torch: Any, device: Any) -> str:
    """Return the versions that the table names."""
    if device.backend != "nccl":
        return "torch %s gloo" % torch.__version__
    return "torch %s nccl %s" % (torch.__version__, ".".join(str(part) for part in torch.cuda.nccl.version()))


# -- meeting ----------------------------------------------------------------------------------------------------


class Deadline:
    """Calls `late` from a thread of its own unless the block ends in time."""

    def __init__(self, seconds: float, late: Callable[[], None]) -> None:
        self.timer = threading.Timer(seconds, late)
        self.timer.daemon = True

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *unused: object) -> None:
        self.timer.cancel()


class Rendezvous:
    """The ranks of the step, by a TCP store on rank 0. No collective is needed, so none can hang it.

    `groups` is for the process groups, the other connection for control: a thread that gives up a round must not
    wait for a connection on which a hung group waits.
    """

    def __init__(self, torch: Any, place: RankPlace, timeout: float) -> None:
        self.place, self.gone = place, {}  # type: Tuple[RankPlace, Dict[int, str]]
        wait = dt.timedelta(seconds=timeout)
        try:
            stores = [torch.distributed.TCPStore(
                place.address, place.port, None, place.rank == 0 and first, wait, wait_for_workers=False,
            ) for first in (True, False)]  # fmt: skip
        except Exception as error:
            at = "%s port %d" % (place.address, place.port)
            why = "cannot listen at" if place.rank == 0 else "rendezvous unreachable:"
            raise Failure(EXIT_RENDEZVOUS, "%s %s: %s" % (why, at, str(error).splitlines()[0])) from None
        self.control, self.groups = stores

    def introduce(self, about: Mapping[str, Any], timeout: float) -> List[Dict[str, Any]]:
        """Exchange what each rank says of itself; ranks that did not come within `timeout` seconds are missing."""
        self.control.set("about/%d" % self.place.rank, json.dumps(about))
        self.gather(timeout)
        self.control.wait(["everyone"], dt.timedelta(seconds=timeout + 30))
        everyone = json.loads(self.control.get("everyone").decode())  # type: List[Dict[str, Any]]
        self.arrived = [it["rank"] for it in everyone]
        return everyone

    def gather(self, timeout: float) -> None:
        """On rank 0: wait for what the others say of themselves, and tell it to all."""
        if self.place.rank:
            return
        found, end = [], time.monotonic() + timeout
        for rank in range(self.place.size):
            about = "about/%d" % rank
            while not (self.control.check([about]) or self.has_left(rank)) and time.monotonic() < end:
                time.sleep(0.01)
            if self.control.check([about]):
                found.append(json.loads(self.control.get(about).decode()))
        self.control.set("everyone", json.dumps(found))

    def miss(self, timeout: float) -> None:
        """Tell the others not to wait for this rank: it will not introduce itself."""
        self.control.set("gone/%d" % self.place.rank, "did not come")
        self.gather(timeout)
        if self.place.rank == 0:
            time.sleep(BEAT)  # the others read it meanwhile

    def over(self, point: str) -> bool:
        """Tell whether all ranks have reached a point or left."""
        return bool(self.control.add("at/" + point, 0) + self.control.add("left", 0) >= len(self.arrived))

    def reach(self, point: str, patience: float, vanished: Callable[[int], None]) -> None:
        """Wait until every rank that is still there is at this point; name those that vanished as gone."""
        self.control.set("at/%s/%d" % (point, self.place.rank), "1")
        self.control.add("at/" + point, 1)
        if self.over(point):
            self.control.set("go/" + point, "1")
        try:
            self.control.wait(["go/" + point], dt.timedelta(seconds=patience))
        except Exception:  # torch raises different types for a wait that timed out
            if self.control.add("late/" + point, 1) == 1:
                self.bury(point, vanished)
            self.control.wait(["go/" + point], dt.timedelta(seconds=patience))

    def bury(self, point: str, vanished: Callable[[int], None]) -> None:
        """Mark the ranks that neither came nor left as gone, and let the others go on."""
        for rank in self.arrived:
            if not self.control.check(["at/%s/%d" % (point, rank)]) and not self.has_left(rank):
                vanished(rank)
                self.control.set("gone/%d" % rank, "vanished")
                self.control.add("left", 1)
        self.control.set("go/" + point, "1")

    def has_left(self, rank: int) -> bool:
        """Tell whether a rank has left the step."""
        return bool(self.control.check(["gone/%d" % rank]))

    def part(self, point: str, problem: str) -> None:
        """Leave the others to themselves."""
        self.control.set("gone/%d" % self.place.rank, problem)
        self.control.add("left", 1)
        if self.over(point):
            self.control.set("go/" + point, "1")

    def close(self, patience: float) -> None:
        """Say goodbye; rank 0 keeps the store until all others have."""
        self.control.add("at/bye", 1)
        self.linger(patience)

    def linger(self, patience: float) -> None:
        """Keep the store on rank 0 until all others have said goodbye or left."""
        end = time.monotonic() + patience
        while self.place.rank == 0 and not self.over("bye") and time.monotonic() < end:
            time.sleep(0.05)


class HeartbeatMonitor:
    """Sees to it that no rank of a sweep waits long for one that failed, was killed or stopped.

    Every rank gives signs of life by the control connection, from a thread of its own; rank 0 watches them.
    """

    def __init__(self, meeting: Rendezvous, ranks: Sequence[Mapping[str, Any]]) -> None:
        self.control, self.meeting, self.place = meeting.control, meeting, meeting.place
        self.about = {it["rank"]: it for it in ranks}
        self.heard = {}  # type: Dict[int, Tuple[int, int]] # how many signs, and for how many looks no further one
        self.answered = time.monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self) -> "HeartbeatMonitor":  # Python 3.6 has no Self
        self.thread.start()
        return self

    def __exit__(self, kind: object, *unused: object) -> None:
        self.over.set()
        self.thread.join(BEAT)
        if kind is not None:
            self.give_up()

    def watch(self) -> None:
        """Beat, and look at the others, until it is over."""
        while not self.over.wait(BEAT):
            try:
                self.control.add("beat/%d" % self.place.rank, 1)
                doomed = self.control.check(["doomed"])
                self.answered = time.monotonic()
                silent = self.silent() if self.place.rank == 0 else None
            except Exception:  # rank 0 took the store with it: it has said why, or was killed
                doomed, silent = True, None
            if self.over.is_set():
                return
            if silent is not None:
                self.accuse(silent, "no sign of life for %g s" % SILENT)
            if doomed:
                self.leave(EXIT_FAILED)

    def silent(self) -> Optional[int]:
        """Return a rank that has given no sign of life for too long, None where all have."""
        for rank in self.about:
            signs, looks = self.control.add("beat/%d" % rank, 0), 0
            known, before = self.heard.get(rank, (-1, 0))
            if signs == known:
                looks = before + 1  # not by the clock: where all were suspended for a while, none is to blame
            self.heard[rank] = (signs, looks)
            if looks * BEAT >= SILENT:
                return int(rank)
        return None

    def accuse_silent(self) -> None:
        """Once a deadline has passed: accuse who gave no sign of life lately, for that is who keeps all waiting."""
        if self.place.rank == 0:
            found = next((rank for rank, (_, looks) in self.heard.items() if looks >= MISSED), None)
        elif self.place.rank == 1 and time.monotonic() - self.answered > MISSED * BEAT:
            found = 0  # with it the store has fallen silent
        else:
            return
        if found is not None:
            self.accuse(found, "no sign of life when the deadline had passed")

    def accuse(self, rank: int, what: str) -> None:
        """Name a silent rank in place of itself, and leave."""
        self.over.set()
        why = what + ": its process was killed or stopped, or its node hangs"
        sys.stderr.write("collective: %s: %s\n" % (named(self.about[rank]), why))
        if rank == 0:
            write_line(GIVEN_UP)
            exit_now(EXIT_DEADLINE)
        self.give_up()
        exit_now(EXIT_DEADLINE)

    def give_up(self) -> None:
        """Tell the others to leave; rank 0 keeps the store until they have."""
        try:
            if self.control.add("doomed", 1) == 1:
                write_line(GIVEN_UP)
            self.meeting.part("sweep", "left")
            self.meeting.linger(2 * BEAT)
        except Exception:
            write_line(GIVEN_UP)  # rank 0 is gone

    def leave(self, code: int) -> None:
        """Leave since another rank has failed; that one has said why."""
        try:
            self.meeting.part("sweep", "left")
            self.meeting.linger(2 * BEAT)
        finally:
            exit_now(code)


def join(torch: Any, device: Any, store: Any, rank: int, size: int, timeout: float) -> None:
    """Make the process group of these ranks the current one."""
    options = {
        "store": store,
        "rank": rank,
        "world_size": size,
        "timeout": dt.timedelta(seconds=timeout),
    }
    if (
        device.backend == "nccl"
        and "device_id" in inspect.signature(torch.distributed.init_process_group).parameters
    ):
        options["device_id"] = device.device
    torch.distributed.init_process_group(device.backend, **options)


# -- rounds of groups -------------------------------------------------------------------------------------------


class GroupRounds:
    """Measures groups round by round; each group is a process group of its own, made and unmade in its round."""

    def __init__(self, args: Any, torch: Any, device: Any, place: RankPlace, meeting: Rendezvous) -> None:
        self.args, self.torch, self.device, self.place, self.meeting = args, torch, device, place, meeting
        self.about: Dict[int, Dict[str, Any]] = {}
        self.members: Dict[str, List[int]] = {}
        self.full = 0  # ranks of a node that has them all
        self.code = 0

    def run(self, schedule: Sequence[Sequence[Sequence[str]]], ranks: Sequence[Dict[str, Any]]) -> int:
        """Run all rounds; return the exit code."""
        self.about = {it["rank"]: it for it in ranks}
        for it in ranks:
            self.members.setdefault(it["node"], []).append(it["rank"])
            self.members["%s:%d" % (it["node"], it["local"])] = [it["rank"]]
        self.full = max(len(found) for found in self.members.values())
        for number, groups in enumerate(schedule):
            for members in groups:
                self.turn(number, members)
            self.meeting.reach("round%d" % number, self.args.deadline + GRACE, self.vanished(number, groups))
        self.meeting.close(len(schedule) * (self.args.deadline + GRACE))
        return self.code

    def vanished(self, number: int, groups: Sequence[Sequence[str]]) -> Callable[[int], None]:
        """Return what reports the group of a rank that ended without a word."""

        def report(lost: int) -> None:
            for members in groups:
                ranks = [rank for member in members for rank in self.members.get(member, [])]
                if lost in ranks and self.first_to_tell(number, ranks):
                    problem = "crashed: rank %d on %s vanished" % (lost, self.about[lost]["node"])
                    self.report(number, members, ranks, problem=problem)

        return report

    def first_to_tell(self, number: int, ranks: Sequence[int]) -> bool:
        """Tell whether nobody has reported this group yet; the caller then has to."""
        return bool(self.meeting.control.add("told/%d/%d" % (number, ranks[0]), 1) == 1)

    def turn(self, number: int, members: Sequence[str]) -> None:
        """Take part in a group, if this rank is of it; the lowest rank that is there reports one that cannot be."""
        ranks = [rank for member in members for rank in self.members.get(member, [])]
        speaker = min(self.about)  # for groups of which nobody is there
        if self.place.rank not in ranks and self.place.rank != speaker:
            return
        there = [rank for rank in ranks if not self.meeting.has_left(rank)]
        problem = self.incomplete(members)
        if problem:
            if self.place.rank == (there[0] if there else speaker):
                self.report(number, members, ranks, problem=problem)
        elif there != ranks:
            lost = self.about[next(rank for rank in ranks if rank not in there)]
            if self.place.rank == (there[0] if there else speaker):
                problem = "rank %d on %s had left" % (lost["rank"], lost["node"])
                self.report(number, members, ranks, problem=problem, skipped=True)
        elif self.place.rank in ranks:
            self.take_part(number, members, ranks)

    def incomplete(self, members: Sequence[str]) -> str:
        """Return why a group has not all its ranks; '' where it has."""
        for member in members:
            here = len(self.members.get(member, []))
            if not here or (":" not in member and here < self.full):
                wanted = 1 if ":" in member else self.full
                return "%s: %d of %d ranks came to the rendezvous" % (member, here, wanted)
        return ""

    def take_part(self, number: int, members: Sequence[str], ranks: Sequence[int]) -> None:
        """Measure one group under the deadline and report it."""

        def late() -> None:
            self.give_up(number, members, ranks, "hung for %g s" % self.args.deadline, EXIT_DEADLINE)

        with Deadline(self.args.deadline, late):
            try:
                seconds, wrong = self.measure("round%d/%s" % (number, "-".join(map(str, ranks))), ranks)
            except Exception as error:  # whatever the backend raises is the result of this group
                reason, code = reason_of(error)
                self.give_up(number, members, ranks, "crashed: " + reason, code)
        if wrong:
            self.code = EXIT_WRONG
        if self.place.rank == ranks[0] and self.first_to_tell(number, ranks):
            self.report(number, members, ranks, seconds=seconds, wrong=wrong)

    def measure(self, name: str, ranks: Sequence[int]) -> Tuple[float, int]:
        """Return (seconds an iteration, wrong elements) of one group."""
        position, size, dist = list(ranks).index(self.place.rank), len(ranks), self.torch.distributed
        join(
            self.torch,
            self.device,
            dist.PrefixStore(name, self.meeting.groups),
            position,
            size,
            2 * self.args.deadline,
        )
        collective, dtype = self.args.collective[0], self.args.datatype[0]
        job = Collective(self.torch, self.device, collective, self.args.size, dtype, position, size)
        seconds = job.measure(False, self.args.warmup, self.args.iters)
        wrong = job.check(False, 1) if self.args.check else 0
        dist.destroy_process_group()
        return seconds, wrong

    def report(
        self, number: int, members: Sequence[str], ranks: Sequence[int], seconds: float = 0.0, wrong: int = 0,
        problem: str = "", skipped: bool = False,
    ) -> None:  # fmt: skip
        """Print the line of a group."""
        factor = busbw_factor(self.args.collective[0], len(ranks)) if ranks else 0.0
        line = {
            "round": number,
            "members": list(members),
            "collective": self.args.collective[0],
            "size": self.args.size,
            "busbw": self.args.size / 1e9 / seconds * factor if seconds else None,
            "time_us": seconds * 1e6 if seconds else None,
            "wrong": wrong,
            "problem": problem,
            "skipped": skipped,
            "ranks": [self.about[rank] for rank in ranks],
        }
        write_line(json.dumps(line))

    def give_up(
        self, number: int, members: Sequence[str], ranks: Sequence[int], problem: str, code: int
    ) -> None:
        """Report the group once, tell the others, and leave: its communicator cannot be trusted any more."""
        complain(self.place, "round %d, group %s: %s" % (number, " ".join(members), problem))
        try:
            if self.first_to_tell(number, ranks):
                self.report(number, members, ranks, problem=problem)
            self.meeting.part("round%d" % number, problem)
            self.meeting.linger(self.args.deadline * 20)
        finally:
            exit_now(code)


# -- the command ------------------------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """Return bytes of 512, 8M or 4G (binary, as nccl-tests)."""
    found = re.match(r"(\d+)([KMGT]?)B?$", text.strip(), re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError("not a size: %r (write it like 512, 8M or 4G)" % text)
    return int(found.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[found.group(2).upper()]


def names_of(known: Sequence[str]) -> Callable[[str], List[str]]:
    """Return a reader of comma separated names."""

    def read(text: str) -> List[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError("%r is none of %s" % (name, ", ".join(known)))
        return names

    return read


def parser() -> argparse.ArgumentParser:
    """Return the command line; short options are nccl-tests' where it has them."""
    top = argparse.ArgumentParser(prog="collective", description="Collectives on torch.distributed")
    modes = top.add_subparsers(dest="mode")
    for mode in ("sweep", "rounds"):
        add = modes.add_parser(mode).add_argument
        add(
            "-c",
            "--collective",
            type=names_of(COLLECTIVES),
            default=["all_reduce"],
            help="names, with commas",
        )
        add("-d", "--datatype", type=names_of(tuple(TYPES)), default=["float"], help="names, with commas")
        add("-w", "--warmup", type=int, default=5 if mode == "sweep" else 2)
        add("-n", "--iters", type=int, default=20 if mode == "sweep" else 10)
        add("--check", type=int, choices=(0, 1), default=1, help="1: check the data")
        add("--device", choices=("auto", "cuda", "cpu"), default="cuda", help="cpu measures by gloo")
        add("--deadline", type=float, default=120.0, help="seconds for one size, or one round")
        add("--rendezvous", type=float, default=120.0, help="seconds to wait for all ranks")
        add("--address", default="", help="rendezvous host, where it is not the first node of the step")
        add("--port", type=int, default=0, help="rendezvous port, where it is not drawn from job and step")
        add("--nccl-debug", default="", help="NCCL_DEBUG, whatever a task prolog or an image has set")
        add(
            "--hostid-from-slurm",
            action="store_true",
            help="NCCL_HOSTID=$SLURMD_NODENAME: virtual nodes use the network",
        )
        if mode == "sweep":
            add("-b", "--begin", type=parse_size, default=32 << 20, metavar="SIZE")
            add("-e", "--end", type=parse_size, default=32 << 20, metavar="SIZE")
            add("-f", "--factor", type=int, default=0, help="next size = size x factor")
            add("-i", "--increment", type=parse_size, default=1 << 20, metavar="SIZE")
        else:
            add("-s", "--size", type=parse_size, default=256 << 20, metavar="SIZE")
            add(
                "--schedule",
                default="",
                help="JSON: rounds of groups of members; - reads stdin; else $COLLECTIVE_SCHEDULE",
            )
    return top


def schedule_of(args: Any, env: Mapping[str, str]) -> List[List[List[str]]]:
    """Return the rounds to run; Failure where they are no schedule."""
    text = sys.stdin.read() if args.schedule == "-" else args.schedule or env.get("COLLECTIVE_SCHEDULE", "")
    try:
        rounds = json.loads(text)
        for groups in rounds:
            members = [member for group in groups for member in group]
            if not all(isinstance(member, str) for member in members) or len(set(members)) != len(members):
                raise ValueError("a round needs disjoint groups of names: %s" % json.dumps(groups)[:80])
    except (ValueError, TypeError) as error:
        raise Failure(EXIT_USAGE, "no schedule in --schedule or COLLECTIVE_SCHEDULE: %s" % error) from None
    return rounds


def prepare(args: Any, env: Any, place: RankPlace) -> None:
    """Set what NCCL reads from the environment, before torch starts it."""
    if args.hostid_from_slurm:
        env["NCCL_HOSTID"] = place.node
    # torch would abort the process of a rank whose partner died, before it can say so; the deadline is ours
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    env.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    if args.nccl_debug:
        env.update(
            NCCL_DEBUG=args.nccl_debug, NCCL_DEBUG_FILE="/dev/stderr"
        )  # which is read, unlike a site's file
    elif env.get("NCCL_DEBUG"):
        env.setdefault("NCCL_DEBUG_FILE", "/dev/stderr")  # stdout is for results


def work(args: Any, place: RankPlace) -> int:
    """Do what was asked; return the exit code."""
    if args.mode == "sweep" and (
        args.factor == 1 or args.factor < 0 or (not args.factor and args.increment <= 0)
    ):
        raise Failure(EXIT_USAGE, "the sweep never ends: -f has to be 2 or more, or -i above 0")
    schedule = schedule_of(args, os.environ) if args.mode == "rounds" else []
    prepare(args, os.environ, place)
    try:
        import torch  # after the environment is set
        import torch.distributed
    except ImportError as error:
        raise Failure(EXIT_USAGE, "%s: give the environment a python that has torch" % error) from None
    meeting = Rendezvous(torch, place, args.rendezvous)
    try:
        device = device_of(torch, place, args.device)
    except Exception:  # whatever it is: nobody needs to wait for this rank
        meeting.miss(args.rendezvous)
        raise
    about = {
        "rank": place.rank,
        "local": place.local,
        "node": place.node,
        "host": place.host,
        "pid": os.getpid(),
    }
    about.update(device=device.index, name=device.name, bus=device.bus, uuid=device.uuid)
    place.at = named(about)
    ranks = meeting.introduce(about, args.rendezvous)
    if args.mode == "rounds":
        return GroupRounds(args, torch, device, place, meeting).run(schedule, ranks)
    missing = sorted(set(range(place.size)) - {it["rank"] for it in ranks})
    if missing:
        raise Failure(EXIT_RENDEZVOUS, "ranks %s never came to the rendezvous" % " ".join(map(str, missing)))
    with HeartbeatMonitor(meeting, ranks) as vigil:
        groups = torch.distributed.PrefixStore("sweep", meeting.groups)
        with Deadline(args.deadline, lambda: hung_at_start(place, args.deadline, vigil)):
            join(torch, device, groups, place.rank, place.size, 2 * args.deadline)
        code = SizeSweep(args, torch, device, place, ranks, vigil).run()
    torch.distributed.destroy_process_group()
    meeting.close(args.deadline)
    return code


def hung_at_start(place: RankPlace, seconds: float, vigil: HeartbeatMonitor) -> None:
    """Say that the communicator never came up, and leave."""
    vigil.accuse_silent()
    complain(place, "the communicator of all ranks did not come up within %g s" % seconds)
    exit_now(EXIT_DEADLINE)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the payload; return the exit code."""
    args = parser().parse_args(argv)
    place = None
    try:
        if not args.mode:
            raise Failure(EXIT_USAGE, "say sweep or rounds")
        place = RankPlace(os.environ, args.address, args.port)
        return work(args, place)
    except Failure as error:
        complain(place, str(error))
        return int(error.kind)
    except Exception as error:  # one line for people instead of a traceback from every rank
        text, code = reason_of(error)
        complain(place, text)
        return code


if __name__ == "__main__":
    exit_now(main())
