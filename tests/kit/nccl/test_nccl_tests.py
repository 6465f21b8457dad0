"""The reader of nccl-tests' text: recordings, every grammar, and random runs with labels, noise and cuts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import TESTS

from pytest_gpucluster.kit.mpi.mpi_errors import LaunchFailure
from pytest_gpucluster.kit.nccl import nccl_failures, nccl_rows, nccl_tests
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_tests import (
    NcclOutput,
    RankLine,
    read,
    read_tasks,
    sweep,
)

DATA = TESTS / "data" / "nccl"
VERSIONS = ("1.0", "2.0", "2.11", "2.13.0", "2.13.4", "2.14.1", "2.16.7", "2.17.4", "2.17.6", "2.19.2")


def text_of(name: str) -> str:
    return (DATA / name).read_text()


def rows_of(output: NcclOutput) -> tuple[NcclRow, ...]:
    return tuple(row for run in output.runs for row in run.rows)


LABELS = {"srun": "{}: ", "mpirun": "[1,{}]<stdout>:", "prrte": "[prterun-h-12@1,{}]<stdout>:"}
SAMPLES = sorted(path.name for path in DATA.glob("derived-*-all_reduce.txt"))


# --- properties -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "label"), [("1.0", ""), ("2.11", "3: "), ("2.19.2", "")])
def test_a_cut_loses_rows_and_never_changes_one(version: str, label: str) -> None:
    """A number that lost its end must not be read as a smaller one."""
    lines = text_of(f"derived-{version}-all_reduce.txt").splitlines()
    text = "".join(f"{label}{line}\n" for line in lines)
    (whole,) = read(text, collective="all_reduce").runs
    for end in range(text.index("ank 15"), len(text)):
        output = read(text[:end], collective="all_reduce")
        rows = rows_of(output)
        assert rows == whole.rows[: len(rows)], text[:end]
        ranks = tuple(line for run in output.runs for line in run.ranks)
        assert ranks == whole.ranks[: len(ranks)]
        assert {run.avg_busbw for run in output.runs} <= {None, whole.avg_busbw}
        if len(rows) < len(whole.rows):
            assert output.problems
            assert not any(run.complete for run in output.runs)


@pytest.mark.parametrize("style", LABELS)
def test_interleaved_tables_are_parted_by_label(style: str) -> None:
    chance = random.Random(style)
    whole = {f"{task}": text_of(name) for task, name in enumerate(SAMPLES)}
    queues = [
        [LABELS[style].format(task) + line for line in text.splitlines()] for task, text in whole.items()
    ]
    mixed = []
    while any(queues):
        mixed.append(chance.choice([queue for queue in queues if queue]).pop(0))
    output = read("\n".join(mixed) + "\n", collective="all_reduce")
    assert {run.label: run.rows for run in output.runs} == {
        task: read(text, collective="all_reduce").runs[0].rows for task, text in whole.items()
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_a_changed_number_is_refused(name: str) -> None:
    """Seven before a size, a count, a time or a bandwidth contradicts the rest of its row."""
    lines = text_of(name).splitlines()
    place = next(at for at, line in enumerate(lines) if line.split()[:1] == ["2097152"])
    tokens = lines[place].split()
    first = next(at for at, token in enumerate(tokens) if "." in token)
    for token in (0, 1, first, first + 1, first + 2):
        changed = [*tokens[:token], "7" + tokens[token], *tokens[token + 1 :]]
        text = "\n".join([*lines[:place], " ".join(changed), *lines[place + 1 :]]) + "\n"
        (run,) = read(text, collective="all_reduce").runs
        assert [row.size for row in run.rows] == [2**20, 2**22]
        assert any("rejected" in reason for reason in run.reasons)


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_any_text_gives_a_reason_and_no_exception(text: str) -> None:
    output = read(text, rc=0)
    assert output.problems
    assert not [row for run in output.runs for row in run.rows]


# --- recordings and samples -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "collective", "ranks", "rows", "average"), [
    ("nccl-allreduce-g1.txt", "all_reduce", 1, 13, 0.0),
    ("nccl-allreduce-g2.txt", "all_reduce", 2, 13, 235.829),
    ("nccl-allreduce-g8.txt", "all_reduce", 8, 13, 258.669),
    ("nccl-allgather.txt", "all_gather", 8, 4, 246.148),
    ("nccl-reducescatter.txt", "reduce_scatter", 8, 4, 248.296),
    ("nccl-debug-info.txt", "all_reduce", 8, 4, 237.513),
    ("nccl-json-stdout.txt", "all_reduce", 8, 4, 247.964),
])  # fmt: skip
def test_recordings_are_whole(name: str, collective: str, ranks: int, rows: int, average: float) -> None:
    (run,) = read(text_of(name), rc=0).runs
    assert (run.version, run.collective, run.world, len(run.rows), run.avg_busbw) == (
        "2.19.6", collective, ranks, rows, average)  # fmt: skip
    assert run.complete, run.reasons
    assert (run.ranks[0].host, run.ranks[0].bus_id, run.ranks[0].name) == ("vm", "0000:00:06", "NVIDIA H200")


def test_values_of_a_recording() -> None:
    (run,) = read(text_of("nccl-allreduce-g8.txt")).runs
    last = run.rows[-1]
    assert (last.size, last.count, last.type, last.redop, last.root) == (2**32, 2**30, "float", "sum", -1)
    assert last.out_of_place == Half(20549.3, 209.01, 365.76, 0)
    assert last.in_place == Half(20552.2, 208.98, 365.71, 0)


def test_numbers_like_2e06_are_read() -> None:
    (run,) = read(text_of("nccl-allreduce-g1.txt")).runs
    assert run.rows[-1].in_place == Half(0.48, 9e6, 0.0, 0)


def test_per_node_tables_are_parted() -> None:
    runs = {run.label: run for run in read(text_of("per-node.txt")).runs}
    assert {label: run.rows[0].out_of_place.busbw for label, run in runs.items()} == {
        "0": 327.36, "1": 328.72, "2": 328.34, "3": 327.81}  # fmt: skip
    assert all(run.complete for run in runs.values())


def test_tasks_kept_apart_know_their_own_ends() -> None:
    """Put together with newlines, a cut row would look whole."""
    tasks: dict[str, str] = {}
    for line in text_of("per-node.txt").splitlines():
        label, _, body = line.partition(": ")
        tasks[label] = tasks.get(label, "") + body + "\n"
    whole = read_tasks(tasks, rc=0)
    assert {run.label: run.complete for run in whole.runs} == dict.fromkeys("0123", True)
    end = tasks["2"].index("# Out of bounds") - 3
    cut = read_tasks({**tasks, "2": tasks["2"][:end]}, stderr="srun: error: gpu03: task 2: Killed")
    assert {run.label: len(run.rows) for run in cut.runs} == {"0": 1, "1": 1, "2": 0, "3": 1}
    assert "is not terminated" in " ".join(cut.reasons)


def test_tables_without_labels_are_refused() -> None:
    bare = "\n".join(line.partition(": ")[2] for line in text_of("per-node.txt").splitlines()) + "\n"
    output = read(bare)
    assert not [row for run in output.runs for row in run.rows]
    assert any("srun --label" in problem for problem in output.problems)


@pytest.mark.parametrize(("version", "collective"), [(version, name) for version in VERSIONS for name in (
    "all_reduce", "all_gather", "broadcast", "reduce")])  # fmt: skip
def test_samples_of_every_grammar(version: str, collective: str) -> None:
    """Files derived from the grammar of the sources, written by `render` and kept."""
    (run,) = read(text_of(f"derived-{version}-{collective}.txt"), collective=collective).runs
    assert run.complete, run.reasons
    assert run.version == {"2.0": "2.0-2.11", "2.11": "2.0-2.11", "2.13.0": "2.13.0-2.13.3",
                           "2.13.4": "2.13.4-2.14.0", "2.14.1": "2.14.1-2.16.6",
                           "2.16.7": "2.16.7-2.17.3"}.get(version, version)  # fmt: skip
    assert [row.size for row in run.rows] == [2**20, 2**21, 2**22]
    assert run.world == 16
    assert run.rows[0].out_of_place.time_us == pytest.approx(123.0, rel=0.01)
    assert (run.rows[0].in_place is None) == (version == "1.0" and collective == "broadcast")


@pytest.mark.parametrize("version", ["2.17.6", "2.19.2"])
def test_time_stamps_and_iteration_columns(version: str) -> None:
    (run,) = read(text_of(f"derived-{version}-stamps.txt")).runs
    assert run.complete, run.reasons
    stats = run.rows[0].out_of_place.iterations
    assert (stats is not None) == (version == "2.19.2")
    if stats:
        assert (stats.min_us, stats.max_us, stats.p99_us, stats.cv_percent) == (110.7, 147.6, 135.3, 3.25)


# --- a reduction that is left blank ---------------------------------------------------------------------------------

OLD_ALLTOALL = """# nThread 1 nGpus 2 minBytes 32 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid      7 on      gpu01 device  0 [0x07] NVIDIA A100-SXM4-40GB
#   Rank  1 Pid      7 on      gpu01 device  1 [0x0b] NVIDIA A100-SXM4-40GB
#
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
          32             4     float            89.00    0.00    0.00  0e+00    85.13    0.00    0.00    N/A
          64             8     float            86.83    0.00    0.00  0e+00    85.77    0.00    0.00    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0
#
"""


def test_alltoall_of_old_versions_leaves_its_reduction_blank() -> None:
    """src/alltoall.cu until 2.13.0 prints '' under redop, and no check of the in-place half."""
    (run,) = read(OLD_ALLTOALL, rc=0, collective="alltoall").runs
    assert run.complete, run.reasons
    assert [(row.size, row.count, row.redop) for row in run.rows] == [(32, 4, ""), (64, 8, "")]
    assert run.rows[0].out_of_place == Half(89.0, 0.0, 0.0, None, 0.0)


def test_a_row_with_a_blank_reduction_that_is_cut_is_still_cut() -> None:
    cut = OLD_ALLTOALL.replace("  85.77    0.00    0.00    N/A", "")
    (run,) = read(cut, rc=0, collective="alltoall").runs
    assert not run.complete
    assert len(run.rows) == 1


def test_a_row_with_a_blank_reduction_goes_on_after_a_log_line() -> None:
    noise = "gpu01:7:7 [0] NCCL INFO Launch mode Parallel\n"
    parted = OLD_ALLTOALL.replace("  86.83    0.00", f"{noise}  86.83    0.00")
    (run,) = read(parted, rc=0, collective="alltoall").runs
    assert run.complete, run.reasons
    assert len(run.rows) == 2


def test_a_table_with_the_number_of_iterations_behind_each_row() -> None:
    """DCGM's all_reduce_perf, testing/python3/mocks of NVIDIA/DCGM."""
    text = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 33554432 maxBytes 33554432 step: 1048576(bytes) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid 12345 on testhost device  0 [0000:1b:00] NVIDIA Test GPU
#
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong  #iters
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
    33554432       8388608     float     sum      -1    25.74  1303.8    0.00       0     0.37   89754    0.00       0      20
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0
#
# Collective test concluded: all_reduce_perf
"""  # as it was printed
    (run,) = read(text).runs
    assert (run.reasons, run.complete, run.rows[0].out_of_place.algbw) == ((), True, 1303.8)
    (cut,) = read(text.replace("       0      20\n", "       0\n")).runs
    assert not cut.complete


# --- value by value ---

HEAD = (
    "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n"
    "# Collective test starting: all_reduce_perf\n"
    "# nThread 1 nGpus 2 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
    "validation: 1 graph: 0 unalign: 0\n"
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid   2836 on         vm device  0 [0000:00:06] NVIDIA H200\n"
    "#  Rank  1 Group  0 Pid   2836 on         vm device  1 [0000:00:07] NVIDIA H200\n"
)
COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)\n"
)
ONE = "1024 256 float sum -1 10.24 0.10 0.10 0 20.48 0.05 0.05 0\n"
TWO = "2048 512 float sum -1 10.24 0.20 0.20 0 20.48 0.10 0.10 N/A\n"
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.1125\n#\n# Collective test concluded: all_reduce_perf\n"
WHOLE = HEAD + COLUMNS + ONE + TWO + TAIL


def reasons(text: str, collective: str = "") -> tuple[str, ...]:
    (run,) = read(text, collective=collective).runs
    assert not run.complete
    return run.reasons


def test_a_whole_table() -> None:
    output = read(WHOLE, rc=0)
    (run,) = output.runs
    assert (output.failures, output.reasons, run.reasons, run.failures) == ((), (), (), ())
    assert (run.version, run.nccl_version, run.collective, run.world) == ("2.19.6", "22809", "all_reduce", 2)
    assert (run.out_of_bounds, run.avg_busbw, run.sweep, run.label) == (0, 0.1125, (1024, 2048), "")
    assert (run.complete, run.validation) == (True, True)
    assert run.ranks == (
        RankLine(0, 0, 2836, "vm", 0, "0000:00:06", "NVIDIA H200"),
        RankLine(1, 0, 2836, "vm", 1, "0000:00:07", "NVIDIA H200"),
    )
    assert run.rows == (
        NcclRow(1024, 256, "float", "sum", -1, Half(10.24, 0.1, 0.1, 0), Half(20.48, 0.05, 0.05, 0)),
        NcclRow(2048, 512, "float", "sum", -1, Half(10.24, 0.2, 0.2, 0), Half(20.48, 0.1, 0.1, None)),
    )
    (bare,) = read(WHOLE.replace(" nccl-headers=22809 nccl-library=22809", "")).runs
    assert (bare.version, bare.nccl_version) == ("2.19.6", "")
    (unchecked,) = read(WHOLE.replace("validation: 1", "validation: 0")).runs
    assert unchecked.validation is False


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (ONE, ONE.replace("1024 ", "1025 ", 1), "256 elements of type float are not 1025 B on 2 ranks"),
        (ONE, ONE.replace("float", "real"), "'real' is not a data type"),
        (ONE, ONE.replace("256", "0256"), "'0256' is not an integer"),
        (ONE, ONE.replace("-1", "-2"), "'-2' is not a root rank"),
        (ONE, ONE.replace("10.24", "nan"), "time or bandwidth is nan"),
        (ONE, ONE.replace("10.24", "nan").replace("0.10 0.10", "nan nan"), "time or bandwidth is nan"),
        (ONE, ONE.replace("0.05 0\n", "0.05 x\n"), "'x' is not a number of wrong elements"),
        (ONE, ONE.replace("10.24", "1,0"), "'1,0' is not a number"),
        (ONE, ONE.replace("10.24", "010.24"), "'010.24' is not a number"),
        (ONE, ONE.strip() + " 7\n", "14 fields instead of 13"),
        (
            ONE, ONE.replace("10.24", "99.99"),
            "1024 B in 99.99 us with algbw 0.1 and busbw 0.1 GB/s do not agree on 2 ranks",
        ),
        (
            ONE, ONE.replace("0.10 0.10", "0.10 0.20"),
            "1024 B in 10.24 us with algbw 0.1 and busbw 0.2 GB/s do not agree on 2 ranks",
        ),
    ],
)  # fmt: skip
def test_a_row_that_is_refused_says_why(old: str, new: str, said: str) -> None:
    shown = " ".join(new.split())
    shown = repr(shown if len(shown) <= 60 else f"{shown[:60]}...")
    assert reasons(WHOLE.replace(old, new)) == (
        f"line 9: row rejected: {said}: {shown}",
        "1 rows for 2 sizes: rows are missing",
    )


def test_rounding_is_no_contradiction() -> None:
    for time in ("9.80", "10.77"):  # 0.1045 and 0.0951 GB/s: both print as 0.10
        (run,) = read(WHOLE.replace("10.24 0.10 0.10", f"{time} 0.10 0.10")).runs
        assert len(run.rows) == 2
    for time in ("9.70", "10.79"):
        assert len(reasons(WHOLE.replace("10.24 0.10 0.10", f"{time} 0.10 0.10"))) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WHOLE.replace("0 OK", "0 FAILED"), ("line 11: summary contradicts itself: '# Out of bounds values : 0 FAILED'",)),
        (WHOLE.replace("0 OK", "3 OK"), ("line 11: summary contradicts itself: '# Out of bounds values : 3 OK'",)),
        (
            WHOLE.replace("concluded: all_reduce", "concluded: broadcast"),
            ("line 14: all_reduce_perf was started: '# Collective test concluded: broadcast_perf'",),
        ),
        (WHOLE.replace("# Out of bounds values : 0 OK\n", ""),
         ("no summary line 'Out of bounds values': cut or crashed",)),
        (WHOLE.replace("# Avg bus bandwidth    : 0.1125\n", ""),
         ("no summary line 'Avg bus bandwidth', or it is nan",)),
        (WHOLE.replace("0.1125", "nan"), ("no summary line 'Avg bus bandwidth', or it is nan",)),
        (WHOLE.replace("0.1125", "x"), ("Avg bus bandwidth 'x' is not a number",)),
        (WHOLE.replace("0.1125", "0.2"),
         ("rows average 0.1125 GB/s, the summary prints 0.2: rows are missing",)),
        (WHOLE.replace(ONE, ""), ("1 rows for 2 sizes: rows are missing",)),
        (WHOLE.replace(ONE, "").replace(TWO, ""), ("table has no rows",)),
        (WHOLE.replace("# nThread", "# mThread"),
         ("the requested sizes are unknown: header line missing",)),
        (WHOLE.replace("Rank  1", "Rank  0"),
         ("rank 0 appears more than once: several tables without labels (run srun --label)",
          "2 rows rejected: no valid Rank lines", "table has no rows")),
        (WHOLE.replace("Rank  1", "Rank  2"),
         ("Rank lines of 1 of 3 ranks are missing",
          "line 9: row rejected: 1024 B in 10.24 us with algbw 0.1 and busbw 0.1 GB/s do not agree on 3 ranks: "
          "'1024 256 float sum -1 10.24 0.10 0.10 0 20.48 0.05 0.05 0'",
          "line 10: row rejected: 2048 B in 10.24 us with algbw 0.2 and busbw 0.2 GB/s do not agree on 3 ranks: "
          "'2048 512 float sum -1 10.24 0.20 0.20 0 20.48 0.10 0.10 N/A'",
          "table has no rows")),
        (WHOLE.replace("all_reduce_perf", "odd_perf"),
         ("collective 'odd' is none of all_reduce, all_gather, reduce_scatter, alltoall, gather, scatter, broadcast, "
          "reduce, sendrecv, hypercube: its bandwidth cannot be checked", "2 rows rejected: no valid Rank lines",
          "table has no rows")),
        (WHOLE.replace(COLUMNS, COLUMNS + COLUMNS.replace("redop", "op")),
         ("line 9: the columns change within the table: '# size count type op root time algbw busbw #wrong time algbw...'",)),
        (WHOLE.replace(COLUMNS, COLUMNS.replace("busbw", "xbw")),
         ("line 7: columns not understood: '# size count type redop root time algbw xbw #wrong time algb...'",)),
        (HEAD + ONE + COLUMNS + TWO + TAIL,
         (f"line 7: row before its column header: {ONE.strip()!r}", "1 rows for 2 sizes: rows are missing")),
        (WHOLE.replace(TWO, TWO + "# Reducing maxBytes to 1024 due to memory limitation\n"),
         ("line 11: the largest sizes were left out: they exceed the GPU's memory: '# Reducing maxBytes to 1024 due to "
          "memory limitation'",)),
        (WHOLE.replace("Pid   2836 on         vm device  1", "Pid ... vm device 1"),
         ("line 6: Rank line not understood: '# Rank 1 Group 0 Pid ... vm device 1 [0000:00:07] NVIDIA H20...'",)),
    ],
)  # fmt: skip
def test_a_table_that_is_not_whole_says_why(text: str, said: tuple[str, ...]) -> None:
    found = reasons(text)
    assert found[0] == said[0]
    assert len(said) == 1 or found == said


def test_the_collective_may_be_asked_for() -> None:
    nameless = WHOLE.replace("# Collective test starting: all_reduce_perf\n", "")
    assert read(nameless, collective="all_reduce").runs[0].complete
    assert reasons(nameless) == (
        "the output does not name its collective (before 2.16.7): pass `collective`",
    )
    assert reasons(WHOLE, collective="broadcast") == ("all_reduce ran, but broadcast was requested",)


def test_what_a_run_says_beside_its_tables() -> None:
    none = read("words\n", rc=0)
    assert none.reasons == (
        "no table was printed although it exited 0: an unknown option prints the usage and exits 0",
    )
    assert read("words\n").reasons == ("no table was printed",)
    assert read("USAGE: all_reduce_perf\n", rc=1).reasons == ("no table was printed, but the usage",)
    assert read(HEAD + COLUMNS).reasons == ("no table was printed",)
    cut = read(WHOLE + "2048 51")
    assert cut.reasons == ("cut: line 15 is not terminated: '2048 51'",)
    assert read(WHOLE + "  ").reasons == ()
    failed = read(WHOLE, rc=3)
    assert [(it.kind, it.host, it.hint) for it in failed.failures] == [
        ("exit code", "", "see the lines before it")
    ]
    orphan = read("#  Rank  0 Group  0 Pid   2836 on  vm device  0 [0000:00:06] NVIDIA H200\n")
    assert orphan.reasons == ("line 1: Rank line without a table", "no table was printed")


FAILURES = [
    ("vm: Test NCCL failure common.cu:1 'unhandled'", LaunchFailure(
        "NCCL", "vm", "vm: Test NCCL failure common.cu:1 'unhandled'",
        "see the log before it; set NCCL_DEBUG=INFO and repeat")),
    ("vm: Test CUDA failure common.cu:1 'out of memory'", LaunchFailure(
        "CUDA", "vm", "vm: Test CUDA failure common.cu:1 'out of memory'",
        "search the kernel log of the host for Xids (dmesg | grep -i xid)")),
    ("NCCL failure a.cu:1 'x'", LaunchFailure(
        "NCCL", "", "NCCL failure a.cu:1 'x'", "see the log before it; set NCCL_DEBUG=INFO and repeat")),
    ("Cuda failure a.cu:1 'x'", LaunchFailure(
        "CUDA", "", "Cuda failure a.cu:1 'x'", "search the kernel log of the host for Xids (dmesg | grep -i xid)")),
    ("vm: Test timeout (30s) out", LaunchFailure(
        "timeout", "vm", "vm: Test timeout (30s) out", "a rank hangs: test the nodes alone, then in pairs")),
    (" .. vm pid 77: Test failure common.cu:9", LaunchFailure(
        "relayed", "vm", ".. vm pid 77: Test failure common.cu:9", "the failure before it is the cause")),
    ("Invalid number of GPUs: 8 requested but only 4 were found", LaunchFailure(
        "too few GPUs", "", "Invalid number of GPUs: 8 requested but only 4 were found",
        "request the GPUs for the step (--gpus-per-node), or start fewer processes or threads per node")),
    ("invalid option -- x", LaunchFailure(
        "usage", "", "invalid option -- x",
        "this version does not support the option or value; it prints the usage and exits 0")),
    ("NCCL 2.7 or later is needed for alltoall", LaunchFailure(
        "NCCL", "", "NCCL 2.7 or later is needed for alltoall", "rebuild nccl-tests against the NCCL that is loaded")),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(FAILURES)))
def test_a_failure_of_nccl_tests(place: int) -> None:
    line, expected = FAILURES[place]
    assert nccl_failures.read_failure(line) == expected
    assert nccl_failures.read_failure("x" * 2100 + line) is None or place in {2, 3}


@pytest.mark.parametrize(
    "line",
    [
        " .. vm pid x7: Test failure a",
        "vm: Test timeout (30 s)",
        "x NCCL failure a.cu:1",
        "invalid optional",
        "",
    ],
)
def test_what_is_no_failure(line: str) -> None:
    assert nccl_failures.read_failure(line) is None


def test_failures_of_a_table() -> None:
    (run,) = read(WHOLE.replace("0.1125", "0.1125 FAILED")).runs
    assert run.failures == (
        LaunchFailure(
            "minimum bandwidth",
            "",
            "average bus bandwidth 0.1125 GB/s is below 0.9 x NCCL_TESTS_MIN_BW",
            "judge per size instead",
        ),
    )
    assert not run.complete
    (run,) = read(WHOLE + "# error: words \n").runs
    assert run.failures == (LaunchFailure("NCCL", "", "words", "set NCCL_DEBUG=INFO and repeat"),)


@pytest.mark.parametrize(
    ("first", "last", "step", "factor", "sizes"),
    [
        (8, 32, 2, True, (8, 16, 32)), (8, 31, 2, True, (8, 16)), (8, 24, 8, False, (8, 16, 24)), (8, 9, 1, False, (8, 9)),
        (8, 8, 2, True, (8,)), (9, 8, 2, True, ()), (8, 32, 1, True, ()), (0, 32, 2, True, ()), (0, 2, 1, False, (0, 1, 2)),
        (8, 32, 0, False, ()), (1, 100_001, 1, False, tuple(range(1, 100_002))), (1, 100_002, 1, False, ()),
    ],
)  # fmt: skip
def test_the_sizes_of_a_sweep(
    first: int, last: int, step: int, sizes: tuple[int, ...], *, factor: bool
) -> None:
    assert sweep(first, last, step, factor=factor) == sizes


def test_tables_of_arithmetic() -> None:
    two = "2(n-1)/n"
    one = "(n-1)/n"
    assert {
        "all_reduce": (two, False), "all_gather": (one, True), "reduce_scatter": (one, True), "alltoall": (one, True),
        "gather": (one, True), "scatter": (one, True), "broadcast": ("1", False), "reduce": ("1", False),
        "sendrecv": ("1", False), "hypercube": (one, True),
    } == nccl_rows.COLLECTIVES  # fmt: skip
    assert {
        **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2"), 1), **dict.fromkeys(("half", "bfloat16"), 2),
        **dict.fromkeys(("float", "int32", "uint32", "int"), 4), **dict.fromkeys(("double", "int64", "uint64"), 8),
    } == nccl_rows._TYPE_SIZE  # fmt: skip
    assert nccl_rows._LEADING == {
        "size": "size", "bytes": "size", "count": "count", "N": "count", "type": "type", "redop": "redop",
        "op": "redop", "root": "root",
    }  # fmt: skip
    assert nccl_tests.EXIT_CODES == {
        0: "ok", 1: "internal error (before 2.17.3 also: wrong data or low bandwidth)", 2: "CUDA error",
        3: "NCCL error", 4: "timeout", 5: "not implemented, or fewer GPUs than requested", 6: "invalid usage",
        7: "wrong data, or bandwidth below NCCL_TESTS_MIN_BW",
    }  # fmt: skip
    assert (nccl_tests._MAX_SHOWN, nccl_failures._MAX_LINE, nccl_rows._NO_ALGBW) == (60, 2048, ("hypercube",))
    assert [nccl_tests._rounding(it) for it in (999.9, 1e3, 9999.0, 1e4, 999999.0, 1e6)] == [
        0.005, 0.05, 0.05, 0.5, 0.5, 5e5
    ]  # fmt: skip


def test_tasks_kept_apart_and_labels() -> None:
    output = read_tasks({"0": WHOLE, "1": WHOLE + "2048 51"}, stderr="1024 25")
    assert [run.label for run in output.runs] == ["0", "1"]
    assert output.reasons == ("cut: line 15 is not terminated: '2048 51'",)
    labelled = "".join(f"{label}: {line}\n" for label in ("0", "01") for line in WHOLE.splitlines())
    assert [(run.label, run.complete) for run in read(labelled).runs] == [("0", True), ("1", True)]
    tagged = "".join(f"[1,3]<stdout>: {line}\r\n" for line in WHOLE.splitlines())
    assert [(run.label, run.complete) for run in read(tagged).runs] == [("3", True)]
    mpich = "".join(f"[4] {line}\n" for line in WHOLE.splitlines())
    assert [(run.label, run.complete) for run in read(mpich).runs] == [("4", True)]


def test_a_row_that_a_log_line_parts() -> None:
    log = "vm:1:2 [0] NCCL INFO words"
    for place in (5, 20, 40):
        (run,) = read(WHOLE.replace(ONE, f"{ONE[:place]}{log}\n{ONE[place:]}")).runs
        assert run.complete, run.reasons
    (cut,) = read(WHOLE.replace(ONE, f"{ONE[:20]}{log}\n")).runs
    assert cut.reasons[0] == f"line 9: row is cut: {ONE[:20].strip()!r}"
    (glued,) = read(WHOLE.replace(ONE, f"{ONE[:30]}vm: Test NCCL failure a.cu:1 'x'\n")).runs
    assert glued.reasons[0].startswith("line 9: row ends in a failure: ")
    assert [it.kind for it in glued.failures] == ["NCCL"]


# --- lines, and lines that are almost one

SIZES_LINE = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 1 validation: 1 graph: 0\n"
)
RANK = "#  Rank  0 Group  0 Pid   2836 on         vm device  1 [0000:00:06] NVIDIA H200"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (RANK, RankLine(0, 0, 2836, "vm", 1, "0000:00:06", "NVIDIA H200")),
        (f"{RANK}  ", RankLine(0, 0, 2836, "vm", 1, "0000:00:06", "NVIDIA H200")),
        ("#   Rank  7 Pid   2836 on vm.example device  0 [0x1b] Tesla V100", RankLine(7, None, 2836, "vm.example", 0, "0x1b", "Tesla V100")),
        ("# Rank 1 Group -1 on vm device 0 [-] X", RankLine(1, -1, None, "vm", 0, "-", "X")),
        (RANK.replace("#  ", "#"), None), (RANK.replace("Rank  0", "Rank  x"), None), (RANK.replace("Rank  0", "Rank0"), None),
        (RANK.replace("Rank  0", "Rank  "), None), (RANK.replace("Group  0", "Group  x"), None),
        (RANK.replace("Group  0", "Group0"), None), (RANK.replace("Pid   2836", "Pid   x"), None),
        (RANK.replace("Pid   2836", "Pid2836"), None), (RANK.replace("on         vm", "onvm"), None),
        (RANK.replace("         vm", " "), None), (RANK.replace("device  1", "device  x"), None),
        (RANK.replace("device  1", "device1"), None), (RANK.replace("0000:00:06", ""), None),
        (RANK.replace("0000:00:06", "0000 06"), None), (RANK.replace("0000:00:06", "[0]"), None),
        (RANK.replace(" NVIDIA H200", ""), None), (RANK.replace(" NVIDIA H200", "   "), None), (f"x{RANK}", None),
    ],
)  # fmt: skip
def test_a_line_of_a_rank(line: str, rank: RankLine | None) -> None:
    (run,) = read(f"{SIZES_LINE}{line}\n").runs
    assert run.ranks == (() if rank is None else (rank,))
    refused = rank is None and line.startswith("# ")
    assert (
        f"line 2: Rank line not understood: {' '.join(line.split())[:10]!r}"[:-1] in run.reasons[0]
    ) is refused


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("# nccl-tests version 2.19.6", ("2.19.6", "")), ("# nccl-tests version 2.20.0 (b4d5bee)", ("2.20.0", "")),
        ("# nccl-tests version 2.20.0 (b4d5bee) nccl-headers=22810 nccl-library=22809  ", ("2.20.0", "22809")),
        ("# nccl-tests version 2.19.6 nccl-headers=22810 nccl-library=22809", ("2.19.6", "22809")),
        ("# nccl-tests version ", None), ("# nccl-tests version 2.1 ()", None), ("# nccl-tests version 2.1 (a b)", None),
        ("# nccl-tests version 2.1 nccl-headers=x nccl-library=2", None), ("# nccl-tests version 2.1 words", None),
        ("# nccl-tests version 2.1 nccl-headers= nccl-library=2", None),
        ("# nccl-tests version 2.1 nccl-headers=1 nccl-library=x", None), ("x# nccl-tests version 2.1", None),
        ("# Using devices", ("", "")), ("# Using devices  ", ("", "")), ("# Using devices of", None),
        ("# Collective test starting: all_reduce_perf  ", ("", "")), ("# Collective test starting: a b", None),
        ("# Collective test starting: ", None),
    ],
)  # fmt: skip
def test_a_line_that_opens_a_table(line: str, found: tuple[str, str] | None) -> None:
    runs = read(f"{line}\n").runs
    assert [(run.version, run.nccl_version) for run in runs] == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("", "", (8, 16)), ("# nT", "nT", (8, 16)), ("# nT", "#nT", (8, 16)), ("# nT", " nT", (8, 16)),
        ("2(factor)", "4(bytes)", (8, 12, 16)), ("maxBytes 16", "maxBytes 32", (8, 16, 32)),
        *((f"{name} {value}", f"{name} {bad}", None) for bad in ("x", "") for name, value in (
            ("nThread", 1), ("nGpus", 2), ("minBytes", 8), ("maxBytes", 16), ("validation:", 1))),
        ("2(", "x(", None), ("2(", "(", None), ("(factor)", "()", None), ("(factor)", "(a b)", None),
        (" warmup iters: 1", "", None), ("# nT", "## nT", None),
    ],
)  # fmt: skip
def test_the_line_of_sizes(old: str, new: str, found: tuple[int, ...] | None) -> None:
    line = (
        SIZES_LINE.replace(old, new, 1)
        if " warmup" not in old
        else SIZES_LINE.replace(" warmup iters: 1 ", "")
    )
    assert [run.sweep for run in read(line).runs] == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("# Out of", "Out of", ""), ("# Out of", "#Out of", ""), ("# Out of", "#   Out of", ""), ("0 OK", "0 OK  ", ""),
        ("values :", "values   :", ""), ("values :", "values:", "bounds"), ("0 OK", "x OK", "bounds"), ("0 OK", " OK", "bounds"),
        ("0 OK", "0 OK x", "bounds"), ("0 OK", "0 GOOD", "bounds"), ("# Out of", "x Out of", "bounds"),
        ("# Avg", "Avg", ""), ("# Avg", "#Avg", ""), ("# Avg", "#   Avg", ""), ("0.1125", "0.1125 OK", ""), ("0.1125", "0.1125  ", ""),
        ("0.1125", "0.1125 x", "average"), ("0.1125", "", "average"), ("width  ", "width", ""), ("width    :", "width:", "average"),
        ("concluded: all_reduce_perf", "concluded: all_reduce_perf  ", ""), ("concluded: all_reduce_perf", "concluded: broadcast x", ""),
        ("concluded: all_reduce_perf", "concluded: ", ""),
        ("#\n", "# Reducing maxBytes to x due to memory limitation\n", ""),
        ("#\n", "# Reducing maxBytes to  due to memory limitation\n", ""),
        ("#\n", "# Reducing maxBytes to 1024 due to memory limitation of\n", ""),
        ("#\n", "# Reducing maxBytes to 2048 due to memory limitation  \n", "largest"),
    ],
)  # fmt: skip
def test_the_lines_below_a_table(old: str, new: str, reason: str) -> None:
    assert old in TAIL
    (run,) = read(WHOLE.replace(TAIL, TAIL.replace(old, new, 1))).runs
    said = {
        "": (),
        "bounds": ("no summary line 'Out of bounds values': cut or crashed",),
        "average": ("no summary line 'Avg bus bandwidth', or it is nan",),
        "largest": ("line 13: the largest sizes were left out: they exceed the GPU's memory: "
                    "'# Reducing maxBytes to 2048 due to memory limitation'",),
    }  # fmt: skip
    assert run.reasons == said[reason]


def test_the_largest_size_that_memory_holds() -> None:
    text = WHOLE.replace("#\n", "# Reducing maxBytes to 1024 due to memory limitation\n")
    assert read(text).runs[0].sweep == (1024,)
    assert read(WHOLE.replace("#\n", "# Reducing maxBytes to 2047 due to memory limitation\n")).runs[
        0
    ].sweep == (1024,)


def test_cycles_repeat_the_rows_and_a_group_counts_its_own_ranks() -> None:
    (run,) = read(WHOLE.replace(ONE, ONE + TWO + ONE)).runs
    assert (len(run.rows), run.complete) == (4, True)
    assert read(WHOLE.replace("Rank  1 Group  0", "Rank  1 Group  1")).runs[0].world == 1


@pytest.mark.parametrize(("collective", "factor"), [("all_reduce", 1.5), ("gather", 0.75), ("sendrecv", 1.0)])
def test_the_factor_of_the_bus_bandwidth(collective: str, factor: float) -> None:
    assert nccl_rows.bus_factor(collective, 4) == factor


def test_the_columns_of_a_table() -> None:
    for new in ("#\tsize", "# size"):
        assert read(WHOLE.replace("#       size", new)).runs[0].complete
    for old, new in (("#       size", "#size"), ("size         count", "sizecount"), ("count      type", "counttype"),
                     ("type   redop", "typeredop"), ("#       size", "x#       size")):  # fmt: skip
        assert read(WHOLE.replace(old, new)).runs[0].rows == ()


STATS = (
    HEAD.replace("maxBytes 2048", "maxBytes 1024")
    + "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv%\n"
    + "1024 256 float sum -1 10.24 0.10 0.10 0 {}\n# Out of bounds values : 0 OK\n# Avg bus bandwidth : 0.1\n"
)


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ("9 12 11 3", ""), ("9 12 12 3", ""), ("11 12 11 3", ""), ("9 12 13 3", ""), ("9 12 14 3", "out of order"), ("12 13 11 3", ""), ("13 14 11 3", "out of order"),
        ("nan 12 11 3", "nan"), ("9 nan 11 3", "nan"), ("9 12 nan 3", "nan"), ("9 12 11 -nan", "nan"),
    ],
)  # fmt: skip
def test_times_of_each_iteration(cells: str, problem: str) -> None:
    (run,) = read(STATS.format(cells)).runs
    if problem:
        assert f"row rejected: per-iteration times are {problem}: " in run.reasons[0]
    else:
        low, high, p99, spread = map(float, cells.split())
        assert run.reasons == ()
        assert run.rows[0].out_of_place.iterations == nccl_rows.IterStats(low, high, p99, spread)


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [("0", 0), ("7", 7), ("2e+06", 2_000_000), ("1.5e+06", 1_500_000), ("N/A", None), ("07", -1), ("1e+6", -1), ("1.e+06", -1),
     (".5", -1), ("2e06", -1), ("1e+0006", -1), ("x", -1), ("1.x", -1), ("2e+x6", -1)],
)  # fmt: skip
def test_how_many_elements_are_wrong(cell: str, wrong: int | None) -> None:
    (run,) = read(WHOLE.replace("0.10 0.10 0 20.48", f"0.10 0.10 {cell} 20.48")).runs
    if wrong == -1:
        assert f"{cell!r} is not a number of wrong elements" in run.reasons[0]
    else:
        assert run.rows[0].out_of_place.wrong == wrong


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", (0.0, 0.0, 0.5)), ("0.10", (0.1, 0.095, 0.105)), ("12", (12.0, 11.5, 12.5)), ("2e+06", (2e6, 1.5e6, 2.5e6)),
        ("2.5e+06", (2.5e6, 2.45e6, 2.55e6)), ("2.5e-02", (0.025, 0.0245, 0.0255)), ("1e+100", (1e100, 5e99, 1.5e100)),
        ("nan", None), ("-nan", None), ("00", ()), ("1.", ()), (".5", ()), ("-1", ()), ("1e5", ()), ("1e+5", ()), ("1e+0005", ()),
        ("1.x", ()), ("x", ()), ("1e+x5", ()), ("1x", ()), ("", ()), ("1e*05", ()),
    ],
)  # fmt: skip
def test_a_printed_number_is_an_interval(text: str, number: tuple[float, ...] | None) -> None:
    if number == ():
        with pytest.raises(nccl_rows.BadRowError, match=r"is not a number$"):
            nccl_rows.read_number(text)
        return
    found = nccl_rows.read_number(text)
    assert (found and (found.value, found.low, found.high)) == (pytest.approx(number) if number else None)


def test_intervals_that_meet() -> None:
    one, two, three = (nccl_rows._Number(it + 0.5, it, it + 1) for it in (1.0, 2.0, 3.0))
    assert one.meets(two)
    assert two.meets(one)
    assert two.meets(three)
    assert not one.meets(three)
    assert not three.meets(one)
    assert one.times(3) == nccl_rows._Number(4.5, 3.0, 6.0)
    assert nccl_rows._Number(0, 0, 1e9).meets(nccl_rows._Number(0, 1e9 + 0.9, 2e9))
    assert not nccl_rows._Number(0, 0, 1e9).meets(nccl_rows._Number(0, 1e9 + 2.5, 2e9))
    assert not nccl_rows._Number(0, 1e9 + 2.5, 2e9).meets(nccl_rows._Number(0, 0, 1e9))


@pytest.mark.parametrize(
    ("rc", "words"),
    [(0, "exit 0: ok"), (7, f"exit 7: {nccl_tests.EXIT_CODES[7]}"), (8, "exit 8: not an exit code of nccl-tests"),
     (128, "exit 128: not an exit code of nccl-tests"), (129, "exit 129: killed by signal 1"), (137, "exit 137: killed by signal 9")],
)  # fmt: skip
def test_what_an_exit_status_means(rc: int, words: str) -> None:
    assert nccl_tests.explain_exit_status(rc) == words


NAMELESS = HEAD.replace("# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n", "")
OLDER = NAMELESS.replace("# Collective test starting: all_reduce_perf\n", "").replace(
    "maxBytes 2048", "maxBytes 1024"
)
BELOW = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.1\n"


def older(columns: str, row: str, head: str = OLDER, collective: str = "all_reduce") -> nccl_tests.NcclRun:
    (run,) = read(f"{head}# {columns}\n{row}\n{BELOW}", collective=collective).runs
    return run


@pytest.mark.parametrize(
    ("head", "columns", "row", "version"),
    [
        (OLDER, "bytes N type op time algbw busbw res time algbw busbw res",
         "1024 256 float sum 0.010 0.10 0.10 0e+00 0.010 0.10 0.10 0e+00", "1.0"),
        (OLDER, "size count type redop time algbw busbw error time algbw busbw error",
         "1024 256 float sum 10.24 0.10 0.10 0e+00 10.24 0.10 0.10 N/A", "2.0-2.11"),
        (OLDER.replace(" Group  0", ""), "size count type redop root time algbw busbw #wrong",
         "1024 256 float sum -1 10.24 0.10 0.10 0", "2.13.0-2.13.3"),
        (OLDER.replace("[0000:00:0", "[0x0"), "size count type redop root time algbw busbw #wrong",
         "1024 256 float sum -1 10.24 0.10 0.10 0", "2.13.4-2.14.0"),
        (OLDER, "size count type redop root time algbw busbw #wrong",
         "1024 256 float sum -1 10.24 0.10 0.10 0", "2.14.1-2.16.6"),
        (NAMELESS.replace("2048", "1024"), "size count type redop root time algbw busbw #wrong",
         "1024 256 float sum -1 10.24 0.10 0.10 0", "2.16.7-2.17.3"),
    ],
)  # fmt: skip
def test_the_grammar_tells_the_version(head: str, columns: str, row: str, version: str) -> None:
    run = older(columns, row, head)
    assert (run.version, run.collective, run.complete, run.reasons) == (version, "all_reduce", True, ())
    half = run.rows[0].out_of_place
    assert (half.algbw, half.wrong, half.error) == (
        (0.1, None, 0.0) if version in {"1.0", "2.0-2.11"} else (0.1, 0, None)
    )
    assert half.time_us == pytest.approx(10.0 if version == "1.0" else 10.24)
    assert (run.rows[0].root, run.rows[0].redop) == (-1, "sum")


@pytest.mark.parametrize(
    ("collective", "last", "numbers", "good"),
    [
        ("all_gather", "error", "0.10 0.10", True), ("reduce_scatter", "error", "0.10 0.10", True),
        ("all_gather", "error", "0.20 0.10", True), ("alltoall", "error", "0.10 0.10", False),
        ("all_gather", "#wrong", "0.10 0.10", False), ("all_gather", "#wrong", "0.20 0.10", True),
        ("hypercube", "#wrong", "0.10 0.10", True), ("hypercube", "#wrong", "0.20 0.10", False),
        ("all_gather", "error", "0.10 0.05", False), ("all_gather", "error", "0.20 0.20", False),
    ],
)  # fmt: skip
def test_until_2_4_some_print_the_bus_bandwidth_twice(
    collective: str, last: str, numbers: str, *, good: bool
) -> None:
    head = OLDER.replace("Bytes 1024", "Bytes 2048")
    run = older(
        f"size count type time algbw busbw {last}", f"2048 256 float 10.24 {numbers} 0", head, collective
    )
    assert bool(run.rows) is good


def test_times_that_are_zero() -> None:
    columns = "size count type redop root time algbw busbw #wrong"
    head = OLDER.replace("Bytes 1024", "Bytes 0").replace("step: 2(factor)", "step: 8(bytes)")
    for row in (
        "0 0 float sum -1 0.00 nan nan 0",
        "0 0 float sum -1 1.50 0.00 0.00 0",
        "0 0 float sum -1 nan nan nan 0",
    ):
        assert older(columns, row, head).rows
    assert older(columns, "1024 256 float sum -1 0.00 inf inf 0").rows == ()
    assert older(columns, "1024 256 float sum -1 0.00 nan nan 0").rows
    assert older(columns, "1024 256 float sum -1 0.90 nan nan 0").rows == ()


def test_the_processes_of_1_0_print_their_own_ranks() -> None:
    head, ranks = OLDER.partition("#  Rank")[0], "#  Rank" + OLDER.partition("#  Rank")[2]
    table = "# bytes N type op time algbw busbw res\n1024 256 float sum 0.010 0.10 0.10 0e+00\n"
    (run,) = read(f"{head}{table}{ranks}{BELOW}", collective="all_reduce").runs
    assert ([line.rank for line in run.ranks], run.world, run.complete) == ([0, 1], 2, True)
    (none,) = read(f"{head}{table}{BELOW}", collective="all_reduce").runs
    assert (none.ranks, none.world, none.reasons[0]) == ((), 0, "no Rank lines")


def test_two_tables_of_one_output() -> None:
    twice = read(WHOLE + WHOLE.replace("all_reduce_perf", "broadcast_perf").replace("-1 ", "0 "))
    assert [(run.collective, run.complete) for run in twice.runs] == [
        ("all_reduce", True),
        ("broadcast", True),
    ]
    assert read(HEAD + COLUMNS + WHOLE).reasons == ()
    again = read(WHOLE + "1024 256 float sum -1 10.24 0.10 0.10 0 20.48 0.05 x 0\n")
    assert len(again.runs) == 2
    assert again.runs[0].complete
    cut = WHOLE.replace("0 OK", "1 OK") + ONE + TWO + TAIL
    first, second = read(cut).runs
    assert (len(first.reasons), second.complete) == (1, True)


@pytest.mark.parametrize(
    ("what", "failure"),
    [
        ("rank 1 on n01 (GPU 0000:00:07): odd words",
         LaunchFailure("a rank failed", "n01", "rank 1 (GPU 0000:00:07): odd words", "check dmesg and nvidia-smi of the node")),
        ("rank 12 on n01: Connection reset by peer",
         LaunchFailure("relayed", "n01", "rank 12: Connection reset by peer", "another rank failed first")),
        *((f"rank 1 on n: {words}", LaunchFailure("relayed", "n", f"rank 1: {words}", "another rank failed first")) for words in (
            "gpu02 never came to the rendezvous", "rendezvous unreachable", "connection closed", "Connection refused")),
        ("rank x on n01: words", None), ("rank on n01: words", None), ("rank 1 on : words", None), ("rank  on n: w", None),
    ],
)  # fmt: skip
def test_what_a_rank_of_our_payload_failed_of(what: str, failure: LaunchFailure | None) -> None:
    assert nccl_failures.read_failure(f"collective: {what}") == failure


def test_a_log_line_behind_na_takes_no_letter_of_it() -> None:
    log = "vm:1:2 [0] NCCL INFO words"
    row = ONE.replace("0.05 0\n", "0.05 N/")
    for end in (
        f"{row}A{log}\n\n",
        f"{ONE.strip()}{log}\n \n",
    ):  # nccl-tests prints the end of a row by itself
        (run,) = read(WHOLE.replace(ONE, end)).runs
        assert run.complete, run.reasons
    (short,) = read(WHOLE.replace(ONE, f"{ONE[:30]}{log}\n\n")).runs
    assert short.reasons[0] == f"line 9: row is cut: {ONE[:30].strip()!r}"
    (comment,) = read(WHOLE.replace(ONE, f"{ONE[:20]}{log}\n# words\n{ONE[20:]}")).runs
    assert comment.reasons[0] == f"line 9: row is cut: {ONE[:20].strip()!r}"
