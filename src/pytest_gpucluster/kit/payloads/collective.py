# A hung or broken backend may raise anything (BLE001); "in place" is a flag of nccl-tests (FBT); two calls are private
# in old torch (SLF001); errors are raised where they are found and printed in one place (TRY301).
"""Collectives on torch.distributed: bus bandwidth and correctness, without nccl-tests. One process per GPU.

Runs on the nodes, under the site's python with torch (1.13 and later) or a container's; nothing else is imported.
Started with -c (LOADER, SOURCE: `payload_step.command`):

    srun --ntasks-per-node=8 python3 -c LOADER sweep -c all_reduce -b 8 -e 4G -f 2 PAYLOAD SOURCE
    srun --ntasks-per-node=8 python3 -c LOADER rounds --schedule '[[["gpu01", "gpu02"]]]' -s 1G PAYLOAD SOURCE

Rank, size and node names come from Slurm's variables; rank 0's node is the rendezvous, the port is derived from job and
step id (or --port, MASTER_ADDR, MASTER_PORT). `sweep` prints the table of nccl-tests 2.19 with its bus bandwidth
factors, and checks the data against closed forms; torch's all_reduce and broadcast are in place in both halves, its
alltoall and send/receive in none. `rounds` measures groups of nodes (or of GPUs, 'node:local rank'), round by round,
each group with its own communicator, and prints a JSON line per group and round:

    {"round": 0, "members": ["gpu01", "gpu02"], "busbw": 93.1, "time_us": 20112.1, "size": 1073741824, "wrong": 0,
     "problem": "", "skipped": false, "ranks": [{"rank": 0, "node": "gpu01", "host": ..., "device": ..., "uuid": ...}]}

A group that hangs is aborted after --deadline seconds: its processes exit, the others continue without them.
A sweep is aborted by all as soon as one rank fails; a rank without heartbeats (killed, stopped) is named.
Exit codes: 0 all measured, 1 something else failed, 2 usage, 3 NCCL, 4 deadline, 5 no GPU, 6 rendezvous, 7 wrong data.
"""

import argparse
import json
import os
import re
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from pytest_gpucluster.kit.payloads.collective_data import COLLECTIVES, SUMS, TYPES, Collective, busbw_factor
from pytest_gpucluster.kit.payloads.prelude import Failure, exit_now, first_line, gpu_facts, no_device, write_line
from pytest_gpucluster.kit.payloads.rendezvous import (
    EXIT_DEADLINE,
    EXIT_FAILED,
    EXIT_NCCL,
    EXIT_NO_GPU,
    EXIT_RENDEZVOUS,
    EXIT_USAGE,
    EXIT_WRONG,
    Deadline,
    HeartbeatMonitor,
    RankContext,
    Rendezvous,
    join,
    report_failure,
)

GRACE = 15.0  # seconds after the deadline until a rank without an answer counts as dead
CONCLUDED = "# Collective test concluded"
SLOW = 5.0  # seconds for the repetitions of one size: a slow network has fewer repetitions


# -- failures ---------------------------------------------------------------------------------------------------


def print_failure(context: Optional[RankContext], text: str, code: str = "") -> None:
    """Print a failure of this rank to stderr."""
    if context:
        report_failure(context.rank, context.node, context.bus, code, text)
    else:
        report_failure(None, socket.gethostname(), "-", code, text)


def reason_of(error: BaseException) -> Tuple[str, int]:
    """Return (one useful line, exit code) of an exception, NCCL's own last error first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "\n".join(lines)
    duplicate = re.search(r"Duplicate GPU detected.*", text)
    if duplicate:
        hint = "; two ranks use the same GPU: bind with --gpus-per-task or --gpu-bind"
        return "duplicate GPU: " + duplicate.group(0) + hint, EXIT_NCCL
    if "NCCL" in text or "nccl" in text:
        after = text.partition("Last error:")[2].strip().splitlines()
        codes = [line for line in lines if re.match(r"nccl[A-Z]\w+", line)]
        return "NCCL error: " + (after or codes or lines)[0], EXIT_NCCL
    return "%s: %s" % (type(error).__name__, first_line(error) or type(error).__name__), EXIT_FAILED


# -- the device -------------------------------------------------------------------------------------------------


class CpuDevice:
    """The host's memory, with gloo: for tests and for hosts without GPUs."""

    name, bus, uuid, backend, index = "CPU", "-", "-", "gloo", 0

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.device = torch.device("cpu")

    def synchronize(self) -> None:
        """Return at once: nothing is asynchronous."""

    def time(self, function: Callable[[], Any], iterations: int) -> float:
        """Return seconds per iteration."""
        start = time.perf_counter()
        for _ in range(iterations):
            function()
        return (time.perf_counter() - start) / iterations


class CudaDevice:
    """One GPU, with NCCL, timed by CUDA events."""

    backend = "nccl"

    def __init__(self, torch: Any, context: RankContext) -> None:
        if not torch.cuda.is_available():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
            setup = "torch %s, CUDA_VISIBLE_DEVICES=%s; check --gpus-per-task" % (torch.__version__, visible)
            why, code = no_device(torch)
            text = "torch finds no CUDA device: %s (%s)" % (why, setup)
            raise Failure(EXIT_NO_GPU, text, code or "no_gpu")
        count = torch.cuda.device_count()
        # with --gpus-per-task each task sees only its own GPU
        if count > 1 and context.local >= count:
            raise Failure(EXIT_NO_GPU, "local rank %d, but only %d GPUs are visible" % (context.local, count))
        self.index = 0 if count == 1 else context.local
        torch.cuda.set_device(self.index)
        self.torch = torch
        self.device = torch.device("cuda", self.index)
        about = gpu_facts(torch.cuda.get_device_properties(self.index))
        self.name, self.uuid, self.bus = about["name"], about["uuid"] or "-", about["bus"] or "-"

    def synchronize(self) -> None:
        """Wait until the GPU is idle."""
        self.torch.cuda.synchronize(self.device)

    def time(self, function: Callable[[], Any], iterations: int) -> float:
        """Return seconds per iteration."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(iterations):
            function()
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / iterations


def device_of(torch: Any, context: RankContext, wanted: str) -> Any:
    """Return the device of this rank; 'auto' is the GPU if there is one."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return CpuDevice(torch)
    return CudaDevice(torch, context)


# -- the table of nccl-tests ------------------------------------------------------------------------------------

COLUMNS = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"""


def shorten(value: float, fine: float) -> str:
    """Return a number with two decimals below `fine`, one below its tenfold, none above."""
    return "%.*f" % (2 if value < fine else 1 if value < 10 * fine else 0, value)


def half(seconds: float, nbytes: int, factor: float, wrong: str) -> str:
    """Return one half of a row as nccl-tests 2.19: time (us), algorithm and bus bandwidth (GB/s), wrong elements."""
    algbw = nbytes / 1e9 / seconds if seconds else 0.0
    rates = [shorten(rate, 10**3) for rate in (algbw, algbw * factor)]
    return "  %7s %7s %7s %7s" % (shorten(seconds * 1e6, 10**4), *rates, wrong)


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
    keys = ("rank", "pid", "host", "device", "bus", "name")
    lines += [form % tuple(it[key] for key in keys) for it in ranks]
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
    """All sizes and types of the requested collectives, over all ranks; rank 0 prints."""

    def __init__(
        self,
        args: Any,
        torch: Any,
        device: Any,
        context: RankContext,
        ranks: Sequence[Mapping[str, Any]],
        heartbeat: Any,
    ) -> None:
        self.args, self.torch, self.device, self.context, self.ranks = args, torch, device, context, ranks
        self.heartbeat = heartbeat

    def run(self) -> int:
        """Return the exit code."""
        return max([self.table(collective) for collective in self.args.collective])

    def print(self, text: str) -> None:
        """Print a line on rank 0 only."""
        if self.context.rank == 0:
            write_line(text)

    def table(self, collective: str) -> int:
        """Print the table of one collective."""
        version = self.torch.cuda.nccl.version() if self.device.backend == "nccl" else ()
        library = "nccl " + ".".join(map(str, version)) if version else "gloo"
        about = "torch %s %s" % (self.torch.__version__, library)
        self.print(header(self.args, collective, self.ranks, about))
        bad, busbw = 0, []
        factor = busbw_factor(collective, self.context.size)
        for dtype in self.args.datatype:
            for nbytes in sizes(self.args):
                with Deadline(
                    self.args.deadline,
                    lambda: self.time_out(collective, nbytes),  # noqa: B023 - ends within the iteration
                ):
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
        rank, size = self.context.rank, self.context.size
        job = Collective(self.torch, self.device, collective, nbytes, dtype, rank, size)
        redop, root = ("sum" if collective in SUMS else "none"), (0 if collective == "broadcast" else -1)
        text = "%12d  %12d  %8s  %6s  %6d" % (job.shape.nbytes, job.shape.count, dtype, redop, root)
        bad, rates = 0, []
        for wanted in (False, True):
            # those have no in-place form in torch
            in_place = wanted and collective not in ("alltoall", "sendrecv")
            arguments = (in_place, self.args.warmup, self.args.iters, SLOW)
            seconds = job.measure(*arguments) if job.shape.nbytes else 0.0
            wrong = job.check(in_place, nbytes + wanted) if self.args.check and job.shape.nbytes else 0
            bad += wrong
            rates.append(job.shape.nbytes / 1e9 / seconds * factor if seconds else 0.0)
            text += half(seconds, job.shape.nbytes, factor, str(wrong) if self.args.check else "N/A")
        return bad, text, rates

    def time_out(self, collective: str, nbytes: int) -> None:
        """Print the size that hung, in the format of nccl-tests, and exit."""
        self.heartbeat.report_silent()
        about = (self.context.node, self.args.deadline, collective, nbytes)
        write_line("%s: Test timeout (%ds) %s at %d bytes" % about)
        exit_now(EXIT_DEADLINE)


# -- rounds of groups -------------------------------------------------------------------------------------------


class GroupRounds:
    """Measures groups round by round; each group has its own process group for its round."""

    def __init__(self, args: Any, torch: Any, device: Any, context: RankContext, rendezvous: Rendezvous) -> None:
        self.args, self.torch, self.device, self.context = args, torch, device, context
        self.rendezvous = rendezvous
        self.about: Dict[int, Dict[str, Any]] = {}
        self.members: Dict[str, List[int]] = {}
        self.full = 0  # ranks of a complete node
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
                self.run_group(number, members)
            limit, vanished = self.args.deadline + GRACE, self.vanished(number, groups)
            self.rendezvous.reach("round%d" % number, limit, vanished)
        self.rendezvous.close(len(schedule) * (self.args.deadline + GRACE))
        return self.code

    def vanished(self, number: int, groups: Sequence[Sequence[str]]) -> Callable[[int], None]:
        """Return a function that reports the group of a rank that ended without a message."""

        def report(lost: int) -> None:
            for members in groups:
                ranks = [rank for member in members for rank in self.members.get(member, [])]
                if lost in ranks and self.is_first_report(number, ranks):
                    problem = "crashed: rank %d on %s vanished" % (lost, self.about[lost]["node"])
                    self.report(number, members, ranks, problem=problem)

        return report

    def is_first_report(self, number: int, ranks: Sequence[int]) -> bool:
        """Return whether no rank has reported this group yet; the caller then must."""
        return bool(self.rendezvous.control.add("reported/%d/%d" % (number, ranks[0]), 1) == 1)

    def run_group(self, number: int, members: Sequence[str]) -> None:
        """Take part in a group if this rank belongs to it; the lowest remaining rank reports an incomplete group."""
        ranks = [rank for member in members for rank in self.members.get(member, [])]
        reporter = min(self.about)  # of groups without a remaining rank
        if self.context.rank not in ranks and self.context.rank != reporter:
            return
        present = [rank for rank in ranks if not self.rendezvous.has_left(rank)]
        problem = self.incomplete(members)
        if problem:
            if self.context.rank == (present[0] if present else reporter):
                self.report(number, members, ranks, problem=problem)
        elif present != ranks:
            lost = self.about[next(rank for rank in ranks if rank not in present)]
            if self.context.rank == (present[0] if present else reporter):
                problem = "rank %d on %s has left" % (lost["rank"], lost["node"])
                self.report(number, members, ranks, problem=problem, skipped=True)
        elif self.context.rank in ranks:
            self.take_part(number, members, ranks)

    def incomplete(self, members: Sequence[str]) -> str:
        """Return why ranks of a group are missing; '' if it is complete."""
        for member in members:
            here = len(self.members.get(member, []))
            if not here or (":" not in member and here < self.full):
                wanted = 1 if ":" in member else self.full
                return "%s: %d of %d ranks came to the rendezvous" % (member, here, wanted)
        return ""

    def take_part(self, number: int, members: Sequence[str], ranks: Sequence[int]) -> None:
        """Measure one group under the deadline and report it."""

        def late() -> None:
            self.abort(number, members, ranks, "hung for %g s" % self.args.deadline, EXIT_DEADLINE)

        with Deadline(self.args.deadline, late):
            try:
                seconds, wrong = self.measure("round%d/%s" % (number, "-".join(map(str, ranks))), ranks)
            except Exception as error:  # whatever the backend raises is the result of this group
                reason, code = reason_of(error)
                self.abort(number, members, ranks, "crashed: " + reason, code)
        if wrong:
            self.code = EXIT_WRONG
        if self.context.rank == ranks[0] and self.is_first_report(number, ranks):
            self.report(number, members, ranks, seconds=seconds, wrong=wrong)

    def measure(self, name: str, ranks: Sequence[int]) -> Tuple[float, int]:
        """Return (seconds per iteration, wrong elements) of one group."""
        position, size, dist = list(ranks).index(self.context.rank), len(ranks), self.torch.distributed
        store = dist.PrefixStore(name, self.rendezvous.groups)
        join(self.torch, self.device, store, position, size, 2 * self.args.deadline)
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

    def abort(self, number: int, members: Sequence[str], ranks: Sequence[int], problem: str, code: int) -> None:
        """Report the group once, leave, and exit: its communicator is unusable."""
        print_failure(self.context, "round %d, group %s: %s" % (number, " ".join(members), problem))
        try:
            if self.is_first_report(number, ranks):
                self.report(number, members, ranks, problem=problem)
            self.rendezvous.leave("round%d" % number, problem)
            self.rendezvous.linger(self.args.deadline * 20)
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
    """Return a parser of comma-separated names."""

    def read(text: str) -> List[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError("%r is none of %s" % (name, ", ".join(known)))
        return names

    return read


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; short options are those of nccl-tests."""
    top = argparse.ArgumentParser(prog="collective", description="Collectives on torch.distributed")
    modes = top.add_subparsers(dest="mode")
    for mode in ("sweep", "rounds"):
        add = modes.add_parser(mode).add_argument
        known, commas = names_of(COLLECTIVES), "names, with commas"
        add("-c", "--collective", type=known, default=["all_reduce"], help=commas)
        add("-d", "--datatype", type=names_of(tuple(TYPES)), default=["float"], help=commas)
        add("-w", "--warmup", type=int, default=5 if mode == "sweep" else 2)
        add("-n", "--iters", type=int, default=20 if mode == "sweep" else 10)
        add("--check", type=int, choices=(0, 1), default=1, help="1: check the data")
        add("--device", choices=("auto", "cuda", "cpu"), default="cuda", help="cpu measures by gloo")
        add("--deadline", type=float, default=120.0, help="seconds for one size, or one round")
        add("--rendezvous", type=float, default=120.0, help="seconds to wait for all ranks")
        add("--address", default="", help="rendezvous host, if not the first node of the step")
        add("--port", type=int, default=0, help="rendezvous port, if not derived from job and step")
        add("--nccl-debug", default="", help="NCCL_DEBUG; overrides a task prolog or an image")
        if mode == "sweep":
            add("-b", "--begin", type=parse_size, default=32 << 20, metavar="SIZE")
            add("-e", "--end", type=parse_size, default=32 << 20, metavar="SIZE")
            add("-f", "--factor", type=int, default=0, help="next size = size x factor")
            add("-i", "--increment", type=parse_size, default=1 << 20, metavar="SIZE")
        else:
            add("-s", "--size", type=parse_size, default=256 << 20, metavar="SIZE")
            form = "JSON: rounds of groups of members; - reads stdin; else $COLLECTIVE_SCHEDULE"
            add("--schedule", default="", help=form)
    return top


def schedule_of(args: Any, env: Mapping[str, str]) -> List[List[List[str]]]:
    """Return the rounds to run; Failure if the schedule is invalid."""
    text = sys.stdin.read() if args.schedule == "-" else args.schedule or env.get("COLLECTIVE_SCHEDULE", "")
    try:
        rounds = json.loads(text)
        for groups in rounds:
            members = [member for group in groups for member in group]
            if not all(isinstance(member, str) for member in members) or len(set(members)) != len(members):
                raise ValueError("a round needs disjoint groups of names: %s" % json.dumps(groups)[:80])
    except (ValueError, TypeError) as error:
        why = "invalid schedule in --schedule or COLLECTIVE_SCHEDULE: %s" % error
        raise Failure(EXIT_USAGE, why) from None
    return rounds


def prepare(args: Any, env: Any) -> None:
    """Set NCCL's variables, before torch starts it."""
    # torch would abort a rank whose partner died before it prints the reason; the payload has its own deadline
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    env.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    if args.nccl_debug:
        # the runner reads stderr, not a site's file
        env.update(NCCL_DEBUG=args.nccl_debug, NCCL_DEBUG_FILE="/dev/stderr")
    elif env.get("NCCL_DEBUG"):
        env.setdefault("NCCL_DEBUG_FILE", "/dev/stderr")  # stdout is for results


def work(args: Any, context: RankContext) -> int:
    """Run the requested mode; return the exit code."""
    if args.mode == "sweep" and not (args.factor > 1 or (args.factor == 0 and args.increment > 0)):
        raise Failure(EXIT_USAGE, "the sweep would not end: -f must be 2 or more, or -i greater than 0")
    schedule = schedule_of(args, os.environ) if args.mode == "rounds" else []
    prepare(args, os.environ)
    try:
        import torch  # after the environment is set
        import torch.distributed
    except ImportError as error:
        raise Failure(EXIT_USAGE, "%s: configure an environment whose python has torch" % error) from None
    rendezvous = Rendezvous(torch, context, args.rendezvous)
    try:
        device = device_of(torch, context, args.device)
    except Exception:  # the others must not wait for this rank
        rendezvous.withdraw(args.rendezvous)
        raise
    about = {name: getattr(context, name) for name in ("rank", "local", "node", "host")}
    about.update(pid=os.getpid(), device=device.index, name=device.name, bus=device.bus, uuid=device.uuid)
    context.bus = device.bus
    ranks = rendezvous.introduce(about, args.rendezvous)
    if args.mode == "rounds":
        return GroupRounds(args, torch, device, context, rendezvous).run(schedule, ranks)
    missing = sorted(set(range(context.size)) - {it["rank"] for it in ranks})
    if missing:
        text = "ranks %s never came to the rendezvous" % " ".join(map(str, missing))
        raise Failure(EXIT_RENDEZVOUS, text, "rendezvous")
    with HeartbeatMonitor(rendezvous, ranks) as heartbeat:
        groups = torch.distributed.PrefixStore("sweep", rendezvous.groups)
        with Deadline(args.deadline, lambda: hung_at_start(context, args.deadline, heartbeat)):
            join(torch, device, groups, context.rank, context.size, 2 * args.deadline)
        code = SizeSweep(args, torch, device, context, ranks, heartbeat).run()
    torch.distributed.destroy_process_group()
    rendezvous.close(args.deadline)
    return code


def hung_at_start(context: RankContext, seconds: float, heartbeat: HeartbeatMonitor) -> None:
    """Print that the communicator did not start, and exit."""
    heartbeat.report_silent()
    print_failure(context, "the communicator of all ranks did not come up within %g s" % seconds)
    exit_now(EXIT_DEADLINE)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the payload; return the exit code."""
    args = parser().parse_args(argv)
    context = None
    try:
        if not args.mode:
            raise Failure(EXIT_USAGE, "missing mode: sweep or rounds")
        context = RankContext(os.environ, args.address, args.port)
        return work(args, context)
    except Failure as error:
        print_failure(context, str(error), error.code)
        return int(error.kind)
    except SystemExit as error:  # an odd variable
        print_failure(context, str(error))
        return EXIT_USAGE
    except Exception as error:  # one line instead of a traceback from every rank
        text, code = reason_of(error)
        print_failure(context, text)
        return code


if __name__ == "__main__":
    exit_now(main())
