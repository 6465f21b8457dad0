"""The reader of nccl-tests' text: recordings, every grammar, and random runs with labels, noise and cuts."""

from __future__ import annotations

import random

import pytest
from judged import figures
from paths import TESTS
from payload_helpers import rank_row

from pytest_gpucluster.kit.nccl import nccl_failures, nccl_rows, nccl_tests
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_tests import RankLine, read, read_tasks, sweep

DATA = TESTS / "data" / "nccl"
VERSIONS = ("1.0", "2.0", "2.11", "2.13.0", "2.13.4", "2.14.1", "2.16.7", "2.17.4", "2.17.6", "2.19.2")


def text_of(name: str) -> str:
    return (DATA / name).read_text()


LABELS = {"srun": "{}: ", "mpirun": "[1,{}]<stdout>:", "prrte": "[prterun-h-12@1,{}]<stdout>:"}
SAMPLES = sorted(path.name for path in DATA.glob("derived-*-all_reduce.txt"))


@pytest.mark.parametrize(("version", "label"), [("1.0", ""), ("2.11", "3: "), ("2.19.2", "")])
def test_a_cut_loses_rows_and_never_changes_one(version: str, label: str) -> None:
    """A number that lost its end must not be read as a smaller one."""
    lines = text_of(f"derived-{version}-all_reduce.txt").splitlines()
    text = "".join(f"{label}{line}\n" for line in lines)
    (whole,) = read(text, collective="all_reduce").runs
    last = text.index("4194304")  # its row: before it a few ends are enough
    for end in (*range(text.index("ank 15"), last, 9), *range(last, len(text))):
        output = read(text[:end], collective="all_reduce")
        rows = tuple(row for run in output.runs for row in run.rows)
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
    queues = [[LABELS[style].format(task) + it for it in text.splitlines()] for task, text in whole.items()]
    mixed = []
    while any(queues):
        mixed.append(chance.choice([queue for queue in queues if queue]).pop(0))
    output = read("\n".join(mixed) + "\n", collective="all_reduce")
    assert {run.label: run.rows for run in output.runs} == {
        task: read(text, collective="all_reduce").runs[0].rows for task, text in whole.items()
    }


@pytest.mark.parametrize(
    ("name", "collective", "ranks", "rows", "average"),
    [
        ("nccl-allreduce-g8.txt", "all_reduce", 8, 13, 258.669),
        ("nccl-allgather.txt", "all_gather", 8, 4, 246.148),
        ("nccl-debug-info.txt", "all_reduce", 8, 4, 237.513),
    ],
)
def test_recordings_are_whole(name: str, collective: str, ranks: int, rows: int, average: float) -> None:
    (run,) = read(text_of(name), rc=0).runs
    assert (run.version, run.collective, run.world) == ("2.19.6", collective, ranks)
    assert (len(run.rows), run.avg_busbw) == (rows, average)
    assert run.complete, run.reasons
    assert (run.ranks[0].host, run.ranks[0].bus_id, run.ranks[0].name) == ("vm", "0000:00:06", "NVIDIA H200")


def test_tables_without_labels_are_refused() -> None:
    bare = "\n".join(line.partition(": ")[2] for line in text_of("per-node.txt").splitlines()) + "\n"
    output = read(bare)
    assert not [row for run in output.runs for row in run.rows]
    assert any("srun --label" in problem for problem in output.problems)


RANGES = {
    "2.0": "2.0-2.11",
    "2.11": "2.0-2.11",
    "2.13.0": "2.13.0-2.13.3",
    "2.13.4": "2.13.4-2.14.0",
    "2.14.1": "2.14.1-2.16.6",
    "2.16.7": "2.16.7-2.17.3",
}


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "reduce"])
@pytest.mark.parametrize("version", VERSIONS)
def test_samples_of_every_grammar(version: str, collective: str) -> None:
    """Files derived from the grammar of the sources."""
    (run,) = read(text_of(f"derived-{version}-{collective}.txt"), collective=collective).runs
    assert run.complete, run.reasons
    assert run.version == RANGES.get(version, version)
    assert [row.size for row in run.rows] == [2**20, 2**21, 2**22]
    assert run.world == 16
    half = run.rows[0].out_of_place
    assert half.time_us == pytest.approx(123.0, rel=0.01)
    old = version in ("1.0", "2.0", "2.11")
    assert (half.wrong is None, half.error is None) == (old, not old)
    assert (run.rows[0].in_place is None) == (version == "1.0" and collective == "broadcast")


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
TAIL = (
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.1125\n#\n# Collective test concluded: all_reduce_perf\n"
)
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
        RankLine(0, 0, "vm", 0, "0000:00:06", "NVIDIA H200"),
        RankLine(1, 0, "vm", 1, "0000:00:07", "NVIDIA H200"),
    )
    assert run.rows == (
        NcclRow(1024, Half(10.24, 0.1, 0.1, 0), Half(20.48, 0.05, 0.05, 0)),
        NcclRow(2048, Half(10.24, 0.2, 0.2, 0), Half(20.48, 0.1, 0.1, None)),
    )
    (bare,) = read(WHOLE.replace("nccl-headers=22809 nccl-library=22809", "(b4d5bee)")).runs
    assert (bare.version, bare.nccl_version) == ("2.19.6", "")
    (unchecked,) = read(WHOLE.replace("validation: 1", "validation: 0")).runs
    assert unchecked.validation is False


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1024 ", "1025 ", "256 elements of type float are not 1025 B on 2 ranks"),
        ("float", "real", "'real' is not a data type"),
        ("-1", "-2", "'-2' is not a root rank"),
        ("10.24", "nan", "time or bandwidth is nan"),
        ("\n", " 7\n", "14 fields instead of 13"),
        ("10.24", "99.99", "1024 B in 99.99 us with algbw 0.1 and busbw 0.1 GB/s do not agree on 2 ranks"),
        ("0.10 0.10", "0.10 0.20", "1024 B in 10.24 us with algbw 0.1 and busbw 0.2 GB/s do not agree"),
    ],
)
def test_a_row_that_is_refused_says_why(old: str, new: str, said: str) -> None:
    refused, missing = reasons(WHOLE.replace(ONE, ONE.replace(old, new, 1)))
    assert refused.startswith(f"line 9: row rejected: {said}")
    assert missing == "1 rows for 2 sizes: rows are missing"


def test_rounding_is_no_contradiction() -> None:
    for time in ("9.80", "10.77"):  # 0.1045 and 0.0951 GB/s: both print as 0.10
        (run,) = read(WHOLE.replace("10.24 0.10 0.10", f"{time} 0.10 0.10")).runs
        assert len(run.rows) == 2
    for time in ("9.70", "10.79"):
        assert len(reasons(WHOLE.replace("10.24 0.10 0.10", f"{time} 0.10 0.10"))) == 2


def without(*parts: str) -> str:
    text = WHOLE
    for part in parts:
        text = text.replace(part, "")
    return text


NO_ROWS, EARLY = "table has no rows", "row before its column header"
ENDED = WHOLE.replace("concluded: all_reduce", "concluded: broadcast")
BOUNDS, AVERAGE = "# Out of bounds values : 0 OK\n", "# Avg bus bandwidth    : 0.1125\n"
CHANGED = COLUMNS + COLUMNS.replace("redop", "op")
REDUCING = "# Reducing maxBytes to 1024 due to memory limitation\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WHOLE.replace("0 OK", "0 FAILED"), ["line 11: summary contradicts itself"]),
        (ENDED, ["line 14: all_reduce_perf was started"]),
        (without(BOUNDS), ["no summary line 'Out of bounds values'"]),
        (without(AVERAGE), ["no summary line 'Avg bus bandwidth'"]),
        (WHOLE.replace("0.1125", "0.2"), ["rows average 0.1125 GB/s, the summary prints 0.2"]),
        (without(ONE), ["1 rows for 2 sizes: rows are missing"]),
        (without(ONE, TWO), [NO_ROWS]),
        (WHOLE.replace("# nThread", "# mThread"), ["the requested sizes are unknown"]),
        (WHOLE.replace("Rank  1", "Rank  0"), ["rank 0 appears more than once", "2 rows rejected", NO_ROWS]),
        (WHOLE.replace("Rank  1", "Rank  2"), ["Rank lines of 1 of 3", "line 9: ", "line 10: ", NO_ROWS]),
        (WHOLE.replace("all_reduce_perf", "odd_perf"), ["collective 'odd' is", "2 rows rejected", NO_ROWS]),
        (WHOLE.replace(COLUMNS, CHANGED), ["line 9: the columns change within the table"]),
        (WHOLE.replace("busbw", "xbw"), ["line 7: column", f"line 9: {EARLY}", f"line 10: {EARLY}", NO_ROWS]),
        (HEAD + ONE + COLUMNS + TWO + TAIL, [f"line 7: {EARLY}: '1024 256", "1 rows for 2 sizes"]),
        (WHOLE.replace(TWO, TWO + REDUCING), ["line 11: the largest sizes were left out"]),
        (WHOLE.replace("Pid   2836 on         vm device  1", "..."), ["line 6: Rank line not understood"]),
    ],
)
def test_a_table_that_is_not_whole_says_why(text: str, said: list[str]) -> None:
    found = reasons(text)
    assert len(said) == 1 or len(found) == len(said), found
    for reason, start in zip(found, said, strict=False):
        assert reason.startswith(start)


def test_the_collective_may_be_asked_for() -> None:
    nameless = WHOLE.replace("# Collective test starting: all_reduce_perf\n", "")
    assert read(nameless, collective="all_reduce").runs[0].complete
    assert ["does not name its collective" in reason for reason in reasons(nameless)] == [True]
    assert reasons(WHOLE, collective="broadcast") == ("all_reduce ran, but broadcast was requested",)


def test_what_a_run_says_beside_its_tables() -> None:
    assert ["an unknown option" in it for it in read("words\n", rc=0).reasons] == [True]
    assert read("words\n").reasons == ("no table was printed",)
    assert read("USAGE: all_reduce_perf\n", rc=1).reasons == ("no table was printed, but the usage",)
    assert read(HEAD + COLUMNS).reasons == ("no table was printed",)
    assert read(WHOLE + "2048 51").reasons == ("cut: line 15 is not terminated: '2048 51'",)
    assert read(WHOLE + "  ").reasons == ()
    assert [(it.kind, it.host) for it in read(WHOLE, rc=3).failures] == [("exit code", "")]
    orphan = read("#  Rank  0 Group  0 Pid   2836 on  vm device  0 [0000:00:06] NVIDIA H200\n")
    assert orphan.reasons == ("line 1: Rank line without a table", "no table was printed")


@pytest.mark.parametrize(
    ("line", "kind", "host", "hint"),
    [
        ("vm: Test NCCL failure common.cu:1 'unhandled'", "NCCL", "vm", "NCCL_DEBUG=INFO"),
        ("vm: Test CUDA failure common.cu:1 'out of memory'", "CUDA", "vm", "Xids"),
        ("NCCL failure a.cu:1 'x'", "NCCL", "", "NCCL_DEBUG=INFO"),
        ("Cuda failure a.cu:1 'x'", "CUDA", "", "Xids"),
        ("vm: Test timeout (30s) out", "timeout", "vm", "test the nodes alone"),
        ("vm pid 77: Test failure common.cu:9", "relayed", "vm", "the failure before it"),
        ("Invalid number of GPUs: 8 requested but only 4 were found", "too few GPUs", "", "--gpus-per-node"),
        ("invalid option -- x", "usage", "", "does not support the option"),
        ("NCCL 2.7 or later is needed for alltoall", "NCCL", "", "rebuild nccl-tests"),
    ],
)
def test_a_failure_of_nccl_tests(line: str, kind: str, host: str, hint: str) -> None:
    found = nccl_failures.read_failure(f" .. {line}" if kind == "relayed" else line)
    assert found
    assert (found.kind, found.host) == (kind, host)
    assert line in found.text
    assert hint in found.hint
    assert nccl_failures.read_failure("x" * 2100 + line) is None  # too long to be of the tool


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        ("", "never came to the rendezvous", "a rank failed"),  # words alone mean nothing
        ("rendezvous", "odd words", "relayed"),
        ("", "Connection reset by peer", "relayed"),
        ("port_taken", "odd words", "port taken"),
        ("silent", "odd words", "a rank failed"),
    ],
)
def test_what_a_rank_of_our_payload_failed_of(code: str, words: str, kind: str) -> None:
    row = rank_row(12, words, code)
    found = nccl_failures.rank_failures(f"one\n7: {row}\n{row[:-9]}\n{row.replace('12', '[', 1)}")
    (failure,) = found.failures
    assert (failure.kind, failure.host, failure.silent) == (kind, "n01", code == "silent")
    assert failure.text == f"rank 12 (GPU 0000:00:07): {words}"
    assert found.rest.split("\n")[:3] == ["one", "7: ", row[:-9]]
    assert found.shown.split("\n")[1] == f"7: {failure.text}"


def test_failures_of_a_table() -> None:
    (run,) = read(WHOLE.replace("0.1125", "0.1125 FAILED")).runs
    assert [(it.kind, figures(it.text)) for it in run.failures] == [("minimum bandwidth", [0.1125, 0.9])]
    assert not run.complete
    (run,) = read(WHOLE + "# error: words \n").runs
    assert [(it.kind, it.text) for it in run.failures] == [("NCCL", "words")]


@pytest.mark.parametrize(
    ("first", "last", "step", "factor", "sizes"),
    [
        (8, 32, 2, True, (8, 16, 32)),
        (8, 31, 2, True, (8, 16)),
        (8, 24, 8, False, (8, 16, 24)),
        (8, 9, 1, False, (8, 9)),
        (8, 32, 1, True, ()),
        (0, 2, 1, False, (0, 1, 2)),
        (1, 100_002, 1, False, ()),
    ],
)
def test_sizes_of_a_sweep(first: int, last: int, step: int, sizes: tuple[int, ...], *, factor: bool) -> None:
    assert sweep(first, last, step, factor=factor) == sizes


BYTES_OF = {
    1: ["int8", "uint8", "char", "f8e4m3", "f8e5m2"],
    2: ["half", "bfloat16"],
    4: ["float", "int32", "uint32", "int"],
    8: ["double", "int64", "uint64"],
}


@pytest.mark.parametrize("size", BYTES_OF)
def test_a_row_is_read_whose_count_and_data_type_give_its_size(size: int) -> None:
    for name in BYTES_OF[size]:
        (run,) = read(WHOLE.replace("256 float", f"{1024 // size} {name}")).runs
        assert [row.size for row in run.rows] == [1024, 2048], name


def test_the_arithmetic_of_each_collective() -> None:
    of_all = ["all_gather", "reduce_scatter", "alltoall", "gather", "scatter", "hypercube"]
    factors = {name: nccl_rows.bus_factor(name, 4) for name in nccl_rows.COLLECTIVES}
    one = dict.fromkeys(("broadcast", "reduce", "sendrecv"), 1.0)
    assert factors == {"all_reduce": 1.5, **dict.fromkeys(of_all, 0.75), **one}
    assert {name for name, (_, every) in nccl_rows.COLLECTIVES.items() if every} == {*of_all}


def test_tasks_kept_apart_and_labels() -> None:
    output = read_tasks({"0": WHOLE, "1": WHOLE + "2048 51"}, stderr="1024 25")
    assert [run.label for run in output.runs] == ["0", "1"]
    assert output.reasons == ("cut: line 15 is not terminated: '2048 51'",)
    labelled = "".join(f"{label}: {line}\n" for label in ("0", "01") for line in WHOLE.splitlines())
    assert [(run.label, run.complete) for run in read(labelled).runs] == [("0", True), ("1", True)]
    tagged = "".join(f"[1,3]<stdout>: {line}\r\n" for line in WHOLE.splitlines())
    assert [(run.label, run.complete) for run in read(tagged).runs] == [("3", True)]


def test_a_row_that_a_log_line_parts() -> None:
    log = "vm:1:2 [0] NCCL INFO words"
    for place in (5, 20, 40):
        (run,) = read(WHOLE.replace(ONE, f"{ONE[:place]}{log}\n{ONE[place:]}")).runs
        assert run.complete, run.reasons
    (cut,) = read(WHOLE.replace(ONE, f"{ONE[:20]}{log}\n")).runs
    assert cut.reasons[0] == f"line 9: row is cut: {ONE[:20].strip()!r}"
    output = read(WHOLE.replace(ONE, f"{ONE[:30]}vm: Test NCCL failure a.cu:1 'x'\n"))
    assert output.runs[0].reasons[0].startswith("line 9: row ends in a failure: ")
    assert [it.kind for it in output.failures] == ["NCCL"]


# --- lines, and lines that are almost one

SIZES_LINE = "# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 1 validation: 1 graph: 0\n"
RANK = "#  Rank  0 Group  0 Pid   2836 on         vm device  1 [0000:00:06] NVIDIA H200"


RANK_LINES = {
    RANK: RankLine(0, 0, "vm", 1, "0000:00:06", "NVIDIA H200"),
    f"{RANK}  ": RankLine(0, 0, "vm", 1, "0000:00:06", "NVIDIA H200"),
    "#   Rank  7 Pid   2836 on vm.example device  0 [0x1b] Tesla V100": RankLine(
        7, None, "vm.example", 0, "0x1b", "Tesla V100"
    ),
    "# Rank 1 Group -1 on vm device 0 [-] X": RankLine(1, -1, "vm", 0, "-", "X"),
}


@pytest.mark.parametrize("line", RANK_LINES)
def test_a_line_of_a_rank(line: str) -> None:
    (run,) = read(f"{SIZES_LINE}{line}\n").runs
    assert run.ranks == (RANK_LINES[line],)


def test_the_largest_size_that_memory_holds() -> None:
    def limited(words: str) -> nccl_tests.NcclRun:
        text = f"# Reducing maxBytes to {words}\n"
        return read(WHOLE.replace("#\n", text)).runs[0]

    sizes = {"1024": (1024,), "2047": (1024,), "2048": (1024, 2048)}
    for limit, sweep_of in sizes.items():
        run = limited(f"{limit} due to memory limitation  ")
        assert (run.sweep, "left out" in run.reasons[0]) == (sweep_of, True)


def test_cycles_repeat_the_rows_and_a_group_counts_its_own_ranks() -> None:
    (run,) = read(WHOLE.replace(ONE, ONE + TWO + ONE)).runs
    assert (len(run.rows), run.complete) == (4, True)
    assert read(WHOLE.replace("Rank  1 Group  0", "Rank  1 Group  1")).runs[0].world == 1


STATS = (
    HEAD.replace("maxBytes 2048", "maxBytes 1024")
    + "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv%\n"
    + "1024 256 float sum -1 10.24 0.10 0.10 0 {}\n# Out of bounds values : 0 OK\n# Avg bus bandwidth : 0.1\n"
)


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ("11 12 11 3", ""),
        ("9 12 13 3", ""),  # both may be 12.5
        ("9 12 14 3", "out of order"),
        *((cells, "nan") for cells in ("nan 12 11 3", "9 nan 11 3", "9 12 nan 3", "9 12 11 -nan")),
    ],
)
def test_times_of_each_iteration(cells: str, problem: str) -> None:
    (run,) = read(STATS.format(cells)).runs
    if problem:
        assert f"row rejected: per-iteration times are {problem}: " in run.reasons[0]
    else:
        assert run.reasons == ()


@pytest.mark.parametrize(
    ("cell", "wrong"), [("0", 0), ("7", 7), ("2e+06", 2_000_000), ("1.5e+06", 1_500_000), ("N/A", None)]
)
def test_how_many_elements_are_wrong(cell: str, wrong: int | None) -> None:
    (run,) = read(WHOLE.replace("0.10 0.10 0 20.48", f"0.10 0.10 {cell} 20.48")).runs
    assert run.rows[0].out_of_place.wrong == wrong


NAMELESS = HEAD.replace("# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n", "")
OLDER = NAMELESS.replace("# Collective test starting: all_reduce_perf\n", "").replace("maxBytes 2048", "maxBytes 1024")
BELOW = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.1\n"


def older(columns: str, row: str, head: str = OLDER, collective: str = "all_reduce") -> nccl_tests.NcclRun:
    (run,) = read(f"{head}# {columns}\n{row}\n{BELOW}", collective=collective).runs
    return run


MODERN = "size count type redop root time algbw busbw #wrong"


@pytest.mark.parametrize(
    ("collective", "last", "numbers", "good"),
    [
        ("all_gather", "error", "0.10 0.10", True),
        ("all_gather", "#wrong", "0.10 0.10", False),
        ("all_gather", "#wrong", "0.20 0.10", True),
        ("hypercube", "#wrong", "0.20 0.10", False),
    ],
)
def test_until_2_4_some_print_busbw_twice(collective: str, last: str, numbers: str, *, good: bool) -> None:
    head = OLDER.replace("Bytes 1024", "Bytes 2048")
    columns, row = f"size count type time algbw busbw {last}", f"2048 256 float 10.24 {numbers} 0"
    run = older(columns, row, head, collective)
    assert bool(run.rows) is good


def test_times_that_are_zero() -> None:
    head = OLDER.replace("Bytes 1024", "Bytes 0").replace("step: 2(factor)", "step: 8(bytes)")

    def accepted(row: str) -> bool:
        return bool(older(MODERN, row, head).rows)

    for cells in ("0.00 nan nan", "1.50 0.00 0.00", "nan nan nan"):
        assert accepted(f"0 0 float sum -1 {cells} 0")
    for cells, good in (("0.00 inf inf", False), ("0.00 nan nan", True), ("0.90 nan nan", False)):
        assert accepted(f"1024 256 float sum -1 {cells} 0") is good


def test_the_processes_of_1_0_print_their_own_ranks() -> None:
    head, ranks = OLDER.partition("#  Rank")[0], "#  Rank" + OLDER.partition("#  Rank")[2]
    table = "# bytes N type op time algbw busbw res\n1024 256 float sum 0.010 0.10 0.10 0e+00\n"
    (run,) = read(f"{head}{table}{ranks}{BELOW}", collective="all_reduce").runs
    assert ([line.rank for line in run.ranks], run.world, run.complete) == ([0, 1], 2, True)
    (none,) = read(f"{head}{table}{BELOW}", collective="all_reduce").runs
    assert (none.ranks, none.world, none.reasons[0]) == ((), 0, "no Rank lines")


def test_two_tables_of_one_output() -> None:
    twice = read(WHOLE + WHOLE.replace("all_reduce_perf", "broadcast_perf").replace("-1 ", "0 "))
    assert [run.collective for run in twice.runs] == ["all_reduce", "broadcast"]
    assert all(run.complete for run in twice.runs)
    assert read(HEAD + COLUMNS + WHOLE).reasons == ()
    cut = WHOLE.replace("0 OK", "1 OK") + ONE + TWO + TAIL
    first, second = read(cut).runs
    assert (len(first.reasons), second.complete) == (1, True)


def test_a_log_line_behind_na_takes_no_letter_of_it() -> None:
    log = "vm:1:2 [0] NCCL INFO words"
    row = ONE.replace("0.05 0\n", "0.05 N/")
    ends = (f"{row}A{log}\n\n", f"{row}A{log.replace('vm', 'other')}\n\n", f"{ONE.strip()}{log}\n \n")
    for end in ends:  # the end of a row is printed by itself
        (run,) = read(WHOLE.replace(ONE, end)).runs
        assert run.complete, run.reasons
    (short,) = read(WHOLE.replace(ONE, f"{ONE[:30]}{log}\n\n")).runs
    assert short.reasons[0] == f"line 9: row is cut: {ONE[:30].strip()!r}"
    (comment,) = read(WHOLE.replace(ONE, f"{ONE[:20]}{log}\n# words\n{ONE[20:]}")).runs
    assert comment.reasons[0] == f"line 9: row is cut: {ONE[:20].strip()!r}"


PMIX = "[gpu01:21] PMIX ERROR: PMIX_ERR_FILE_OPEN_FAILURE in file gds_shmem2.c at line 1009"
MESSAGES = (
    PMIX,
    "Call to ibv_create_cq failed with error Cannot allocate memory",
    "gpu01: Test NCCL failure a.cu:1 'x'",
)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_beside_a_right_table_is_no_failure(message: str) -> None:
    for text in (f"{message}\n{WHOLE}", WHOLE.replace(COLUMNS, f"{message}\n{COLUMNS}"), f"{WHOLE}{message}\n"):
        output = read(text, rc=0)
        assert (output.runs[0].complete, output.problems, len(output.messages)) == (True, (), 1)


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize(
    ("old", "new", "rc"),
    [
        ("", "", 1),  # the exit status
        (ONE, "", 0),  # a row is missing
        (ONE, ONE.replace(" 0 20.48", " 7 20.48"), 0),  # wrong data
        ("#  Rank  1", "#  Rank  2", 0),
    ],
)
def test_a_message_beside_a_wrong_table_is_its_reason(message: str, old: str, new: str, rc: int) -> None:
    output = read(f"{message}\n{WHOLE}".replace(old, new), rc=rc)
    assert output.messages == ()
    assert output.failures[0].text in message
