"""The collective payload: pure parts here, and real gloo processes on loopback with Slurm's variables set by hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forked import Fork
from paths import ROOT
from sandbox_helpers import free_port

from pytest_gpucluster.kit.framework.payload_step import sent
from pytest_gpucluster.kit.nccl.measurement import Measurement
from pytest_gpucluster.kit.nccl.nccl_failures import rank_failures
from pytest_gpucluster.kit.payloads import collective, collective_data, rendezvous

PAYLOAD = Path(collective.__file__)
PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"
PATCHED = """
import sys, types
collective = types.ModuleType("collective")
exec(compile({source!r}, "collective.py", "exec"), collective.__dict__)
{patch}
collective.exit_now(collective.main(sys.argv[1:]))
"""


def with_torch(test: Any) -> Any:
    """Leave a test of real ranks to make test-all, where it runs alone."""
    return pytest.mark.thorough(pytest.mark.alone(test))


@pytest.fixture(scope="module")
def python() -> Path:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: make .cache/frameworks (torch for the CPU)")
    return PYTHON


class Result:
    """What the ranks of one run said."""

    def __init__(self, processes: list[Fork]) -> None:
        self.codes = [process.wait(120) for process in processes]
        printed = [process.texts() for process in processes]
        self.stdout = "".join(out for out, _ in printed)
        self.stderr = "".join(err for _, err in printed)

    @property
    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.stdout.splitlines() if re.match(r"\s+\d+\s+\d+\s+\w+\s", line)]

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]


def environment(rank: int, size: int, per_node: int, port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER"))}
    return {
        **kept,
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(size),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURMD_NODENAME": f"gpu{rank // per_node + 1:02}",
        "SLURM_STEP_NODELIST": f"gpu[01-{size // per_node:02}]",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def launch(python: Path, size: int, *args: str, per_node: int = 1, patch: str = "") -> Result:
    """Start one process a rank, as srun would."""
    program = PATCHED.format(source=sent(PAYLOAD), patch=patch) if patch else sent(PAYLOAD)
    port = free_port()
    argv = [str(python), "-c", program, *args, "--device", "cpu"]
    return Result([Fork(argv, ROOT, environment(rank, size, per_node, port)) for rank in range(size)])


ALL = ",".join(collective_data.COLLECTIVES)
SMALL = ("sweep", "-b", "4K", "-e", "4K")


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    factors = {name: collective_data.busbw_factor(name, 8) for name in collective_data.COLLECTIVES}
    share = dict.fromkeys(("all_gather", "reduce_scatter", "alltoall"), 0.875)
    assert factors == {"all_reduce": 1.75, **share, "broadcast": 1.0, "sendrecv": 1.0}


@pytest.mark.parametrize(
    ("name", "nbytes", "count", "total"),
    [  # from recorded tables of nccl-tests 2.19.6 on 8 GPUs
        ("all_reduce", 1048576, 262144, 1048576),
        ("all_gather", 8388608, 262144, 8388608),
        ("reduce_scatter", 536870912, 16777216, 536870912),
        ("all_gather", 8, 0, 0),
        ("broadcast", 8, 2, 8),
    ],
)
def test_counts_are_those_of_nccl_tests(name: str, nbytes: int, count: int, total: int) -> None:
    shape = collective_data.BufferSizes(name, nbytes, 4, 8)
    assert (shape.count, shape.nbytes) == (count, total)


def test_a_row_looks_like_a_recorded_one() -> None:
    # 1073741824 ... 5236.39 205.05 358.84 0 of the recording
    assert collective.half(5236.39e-6, 1073741824, 1.75, "0") == "  5236.39  205.05  358.84       0"
    assert collective.half(10360.0e-6, 2147483648, 1.75, "0").split() == ["10360.0", "207.29", "362.75", "0"]
    assert [collective.shorten(v, 10**3) for v in (27.59, 1171.8, 18198.4)] == ["27.59", "1171.8", "18198"]


def test_the_useful_line_of_an_nccl_error_is_reported() -> None:
    same = "Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 60"
    error = "NCCL error in: x.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n{}\nLast error:\n{}"
    duplicate = error.format("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", same)
    text, code = collective.reason_of(RuntimeError(duplicate))
    assert (text.startswith(f"duplicate GPU: {same}"), code) == (True, rendezvous.EXIT_NCCL)
    other = error.format("ncclSystemError: System call failed.", "socket refused")
    assert collective.reason_of(RuntimeError(other)) == ("NCCL error: socket refused", rendezvous.EXIT_NCCL)


def test_nccls_log_stays_out_of_the_results() -> None:
    env = {"NCCL_DEBUG": "INFO"}
    collective.prepare(collective.parser().parse_args(["sweep"]), env)
    assert env["NCCL_DEBUG_FILE"] == "/dev/stderr"
    # a task prolog or an image has set them otherwise
    env = {"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}
    collective.prepare(collective.parser().parse_args(["sweep", "--nccl-debug", "INFO"]), env)
    assert env == {**env, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/dev/stderr"}


@with_torch
def test_every_collective_and_type_is_right_on_three_ranks(python: Path) -> None:
    types = "float,double,half,bfloat16,int32,int64,int8,uint8"
    sizes = ("-b", "96", "-e", "48K", "-f", "512")
    result = launch(python, 3, "sweep", "-c", ALL, "-d", types, *sizes, "-w", "1", "-n", "2")
    assert result.codes == [0, 0, 0], result.stderr
    assert len(result.rows) == 6 * 8 * 2
    assert all(len(row) == 13 and row[8] == "0" and row[12] == "0" for row in result.rows)
    assert result.stdout.count("# Out of bounds values : 0 OK") == 6
    assert re.search(r"#  Rank  2 Group  0 Pid +\d+ on +\S+ device  0 \[-\] CPU", result.stdout)
    assert "# rank 2: node gpu03 uuid -" in result.stdout


def failed(stderr: str) -> list[str]:
    return [failure.text for failure in rank_failures(stderr).failures]


ONE_WRONG = """
right = collective.Collective.call
def spoilt(self, in_place):
    run = right(self, in_place)
    def call():
        run()
        if self.rank == 1: self.buffers(in_place)[1][-1] += 1
    return call
collective.Collective.call = spoilt
"""
NOTHING_MOVES = "collective.Collective.call = lambda self, in_place: lambda: None"


@with_torch
@pytest.mark.parametrize(("patch", "wrong"), [(ONE_WRONG, range(1, 2)), (NOTHING_MOVES, range(401, 10_000))])
def test_wrong_elements_are_counted_in_every_collective(python: Path, patch: str, wrong: range) -> None:
    result = launch(python, 2, *SMALL, "-c", ALL, "-w", "0", "-n", "1", patch=patch)
    assert result.codes == [rendezvous.EXIT_WRONG] * 2, result.stderr
    assert len(result.rows) == 6
    assert all(int(row[8]) in wrong for row in result.rows)
    assert result.stdout.count("FAILED") == 6
    if patch == ONE_WRONG:
        assert {row[12] for row in result.rows} == {"1"}
        assert result.stdout.count("# Out of bounds values : 2 FAILED") == 6


@with_torch
def test_a_rank_that_fails_ends_the_sweep_for_all(python: Path) -> None:
    """Nobody waits for it until the deadline, and what it says is not drowned."""
    patch = """
collective.BEAT = 0.1
measure = collective.Collective.measure
def fail(self, *args):
    if self.rank == 1: raise RuntimeError("CUDA out of memory. Process 42 has 9 GiB. Of the allocated memory much")
    return measure(self, *args)
collective.Collective.measure = fail
"""
    result = launch(python, 3, *SMALL, patch=patch)
    assert result.codes == [rendezvous.EXIT_FAILED] * 3, result.stderr
    assert "rank 1: RuntimeError: CUDA out of memory. Process 42 has 9 GiB." in failed(result.stderr)
    assert (
        rendezvous.GIVEN_UP in result.stdout
    )  # once, unless rank 0 and its store are gone before the others hear of it


STOPPED = """
import os, signal
collective.BEAT, collective.SILENT = 0.5, %s
measure, leave = collective.Collective.measure, collective.exit_now
def stop(self, *args):
    if self.rank == %d: os.kill(os.getpid(), signal.SIGSTOP)
    return measure(self, *args)
collective.Collective.measure = stop
class HeartbeatMonitor(collective.HeartbeatMonitor):
    def report(self, rank, what):
        pid = self.about[rank]["pid"]
        collective.exit_now = lambda code: (os.kill(pid, signal.SIGKILL), leave(code))  # the test waits for its end
        super().report(rank, what)
collective.HeartbeatMonitor = HeartbeatMonitor
"""


# a deadline may be shorter than a silence; and with rank 0 the store falls silent
@pytest.mark.parametrize(
    ("stopped", "reporter", "silent", "words"),
    [(1, 0, "4.0", "for 4 s"), (1, 0, "600.0", "when the deadline"), (0, 1, "4.0", "when the deadline")],
)
@with_torch
def test_a_stopped_rank_is_named(python: Path, stopped: int, reporter: int, silent: str, words: str) -> None:
    args = (*SMALL, "--deadline", "60" if words == "for 4 s" else "12")
    result = launch(python, 3, *args, patch=STOPPED % (silent, stopped))
    assert result.codes[stopped] == -9
    assert result.codes[reporter] == rendezvous.EXIT_DEADLINE, result.stderr
    (named,) = (it for it in rank_failures(result.stderr).failures if it.silent)
    assert (named.host, named.text.startswith(f"rank {stopped}: ")) == (f"gpu0{stopped + 1}", True)
    assert result.stdout.count(rendezvous.GIVEN_UP) == 1


@with_torch
def test_a_rank_without_a_gpu_keeps_nobody_waiting(python: Path) -> None:
    patch = """
collective.BEAT = 0.1
device_of = collective.device_of
def lacking(torch, place, wanted):
    if place.rank == {rank}: raise collective.Failure(collective.EXIT_NO_GPU, "torch finds no CUDA device")
    return device_of(torch, place, wanted)
collective.device_of = lacking
"""
    for rank in (0, 1):
        result = launch(python, 2, *SMALL, patch=patch.replace("{rank}", str(rank)))
        assert result.codes[rank] == rendezvous.EXIT_NO_GPU
        assert result.codes[1 - rank] == rendezvous.EXIT_RENDEZVOUS, result.stderr
        assert [it.kind for it in rank_failures(result.stderr).failures].count("relayed") == 1


SCHEDULE = [
    [["gpu01"], ["gpu02"], ["gpu03"], ["gpu04"]],
    [["gpu01", "gpu02"], ["gpu03", "gpu04"]],
    [["gpu02", "gpu03"], ["gpu04", "gpu01"]],
]
ROUNDS = ("rounds", "-s", "64K", "-n", "2", "--schedule", json.dumps(SCHEDULE))


def reported(result: Result) -> dict[tuple[int, str], dict[str, Any]]:
    found = {(line["round"], " ".join(line["members"])): line for line in result.lines}
    assert len(found) == len(result.lines), "a group was reported twice"
    return found


@with_torch
def test_groups_are_formed_anew_in_every_round(python: Path) -> None:
    schedule = [*SCHEDULE, [["gpu01:1", "gpu03:1"], ["gpu02:0", "gpu02:1"]]]
    args = ("rounds", "-s", "64K", "-n", "2", "--schedule", json.dumps(schedule))
    result = launch(python, 8, *args, per_node=2)
    assert result.codes == [0] * 8, result.stderr
    lines = reported(result)
    assert {key[1] for key in lines} == {" ".join(group) for groups in schedule for group in groups}
    assert [it["rank"] for it in lines[2, "gpu04 gpu01"]["ranks"]] == [6, 7, 0, 1]
    assert [it["node"] for it in lines[3, "gpu01:1 gpu03:1"]["ranks"]] == ["gpu01", "gpu03"]
    for line in result.lines:
        measured = Measurement.from_dict(line)
        assert measured.busbw
        assert not measured.problem


@with_torch
def test_a_hung_group_costs_its_own_results_only(python: Path) -> None:
    patch = """
import time
measure = collective.GroupRounds.measure
def hang(self, name, ranks):
    if self.context.rank == 1 and name.startswith("round1"): time.sleep(600)
    return measure(self, name, ranks)
collective.GroupRounds.measure = hang
"""
    result = launch(python, 4, *ROUNDS, "--deadline", "4", patch=patch)
    lines = reported(result)
    # rank 0, which keeps the rendezvous, is of the hung group: the others must get through nevertheless
    assert result.codes == [rendezvous.EXIT_DEADLINE, rendezvous.EXIT_DEADLINE, 0, 0], result.stderr
    assert lines[1, "gpu01 gpu02"]["problem"] == "hung for 4 s"
    assert lines[1, "gpu03 gpu04"]["busbw"] > 0
    assert lines[2, "gpu02 gpu03"]["skipped"]
    assert lines[2, "gpu04 gpu01"]["skipped"]
    assert "round 1, group gpu01 gpu02: hung" in result.stderr


@with_torch
def test_a_crashed_rank_costs_its_own_group_only(python: Path) -> None:
    patch = """
import os
collective.GRACE = 2.0
measure = collective.GroupRounds.measure
def crash(self, name, ranks):
    if self.context.rank == 3 and name.startswith("round1"): os._exit(9)
    return measure(self, name, ranks)
collective.GroupRounds.measure = crash
"""
    result = launch(python, 4, *ROUNDS, "--deadline", "4", patch=patch)
    lines = reported(result)
    assert result.codes[:2] == [0, 0], result.stderr
    assert result.codes[3] == 9
    assert lines[1, "gpu01 gpu02"]["busbw"] > 0
    assert re.match("hung|crashed", lines[1, "gpu03 gpu04"]["problem"])
    assert lines[2, "gpu02 gpu03"]["skipped"]
    assert lines[2, "gpu04 gpu01"]["skipped"]


@with_torch
def test_a_node_without_ranks_is_reported(python: Path) -> None:
    result = launch(python, 1, "rounds", "-s", "4K", "-n", "1", "--schedule", '[[["gpu07"]], [["gpu01"]]]')
    assert result.codes == [0], result.stderr
    assert reported(result)[0, "gpu07"]["problem"] == "gpu07: 0 of 1 ranks came to the rendezvous"


PORT = 9  # discard: nobody listens there; as a value of a test it is the same in all workers
AWAY = ["sweep", "--device", "cpu", "--rendezvous", "2", "--address", "127.0.0.1", "--port", f"{PORT}"]
REFUSED: list[tuple[list[str], str, int, str]] = [
    (["sweep"], "", rendezvous.EXIT_USAGE, "SLURM_PROCID"),
    (["sweep"], "0 of 1", rendezvous.EXIT_NO_GPU, "rank 0: torch finds no CUDA device"),
    (AWAY, "1 of 2", rendezvous.EXIT_RENDEZVOUS, f"rendezvous unreachable: 127.0.0.1 port {PORT}"),
    (["sweep", "-f", "1"], "0 of 1", rendezvous.EXIT_USAGE, "would not end"),
    *(
        (["rounds", "--device", "cpu", "--schedule", schedule], "0 of 1", rendezvous.EXIT_USAGE, "schedule")
        for schedule in ("", "{", '[[["a", "b"], ["b", "c"]]]', "[[[1]]]", "7")
    ),
]


@with_torch
@pytest.mark.parametrize(("args", "place", "status", "words"), REFUSED)
def test_what_cannot_run_is_refused_in_one_line(
    python: Path, args: list[str], place: str, status: int, words: str
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER"))}
    if place:
        rank, _, size = place.partition(" of ")
        env |= {"SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURMD_NODENAME": "gpu05"}
    argv = [str(python), "-c", sent(PAYLOAD), *args]
    done = subprocess.run(argv, env=env, text=True, capture_output=True, timeout=60, check=False)
    (said,) = failed(done.stderr)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False)
    assert words in said


class Slow:
    """A collective, and its buffers and device, that takes so many seconds a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.runs, self.timed = seconds, 0, [0]

    def job(self) -> collective_data.Collective:
        job: Any = object.__new__(collective_data.Collective)
        job.source = job.target = job.device = self
        job.size, job.call, job.total = 2, lambda _: self.run, lambda value: 2 * value
        return job  # type: ignore[no-any-return]

    def zero_(self) -> None:
        """The buffers hold nothing."""

    def synchronize(self) -> None:
        """Nothing runs in the background."""

    def run(self) -> None:
        self.runs += 1

    def time(self, run: Any, iterations: int) -> float:
        self.timed.append(iterations)
        for _ in range(iterations):
            run()
        return self.seconds


@pytest.mark.parametrize(
    ("seconds", "iterations", "runs"),
    [
        (0.001, 20, 1 + 1 + 5 + 20),
        (1.0, 5, 1 + 1 + 5),  # 4 GiB over one link of 4 GB/s
        (8.0, 1, 1 + 1),  # and of 0.5 GB/s: the one that was timed
    ],
)
def test_on_a_slow_network_a_size_is_measured_less_often(seconds: float, iterations: int, runs: int) -> None:
    slow = Slow(seconds)
    assert slow.job().measure(False, 5, 20, 5.0) == seconds  # in place or not
    assert (slow.timed[-1], slow.runs) == (iterations, runs)
    always = Slow(seconds)
    always.job().measure(False, 5, 20)  # the burn-in's, which knows how long it is to take
    assert (always.timed, always.runs) == ([0, 20], 25)
