"""The reader of nccl-tests' text: recordings, every grammar, and random runs with labels, noise and cuts."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import TESTS

from pytest_gpucluster.kit.mpi.mpi_errors import LaunchFailure
from pytest_gpucluster.kit.nccl import nccl_failures, nccl_rows, nccl_tests
from pytest_gpucluster.kit.nccl.nccl_rows import COLLECTIVES, Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_tests import (
    NcclOutput,
    NcclRun,
    RankLine,
    explain_exit_status,
    read,
    read_tasks,
    sweep,
)

DATA = TESTS / "data" / "nccl"
SIZES = {"float": 4, "half": 2, "double": 8}
VERSIONS = ("1.0", "2.0", "2.11", "2.13.0", "2.13.4", "2.14.1", "2.16.7", "2.17.4", "2.17.6", "2.19.2")
NEW = VERSIONS[3:]


def text_of(name: str) -> str:
    return (DATA / name).read_text()


# --- a renderer: the printf calls of each version -------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    version: str
    collective: str
    type: str
    hosts: tuple[str, ...]
    gpus: int
    first: int
    steps: int
    times: tuple[float, ...]
    wrong: tuple[int | None, ...]
    stamps: bool = False
    stats: bool = False
    label: str = ""

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.gpus

    @property
    def old(self) -> bool:
        return self.version in VERSIONS[:3]


def fit(value: float, width: int) -> str:
    """getFloatStr of util.cu."""
    for form in (f"%{width}.2f", f"%{width}.1f", f"%{width}.0f"):
        if len(form % value) <= width:
            return form % value
    return (f"%{width}.1e" if width >= 7 else f"%{width}.0e") % value


def numbers(model: Model, time: float, algbw: float, busbw: float) -> list[str]:
    if model.version == "1.0":
        return ["%7.3f" % (time / 1000), "%5.2f" % algbw, "%5.2f" % busbw]
    if model.version >= "2.17.4":
        return [fit(time, 7), fit(algbw, 6), fit(busbw, 6)]
    shown = "%7.0f" % time if time >= 10000 else "%7.1f" % time if time >= 1000 else "%7.2f" % time
    return [shown, "%6.2f" % algbw, "%6.2f" % busbw]


def checked(model: Model, wrong: int | None) -> str:
    if model.old:
        none = {"1.0": "    N/A"}.get(model.version, "  N/A")
        return none if wrong is None else ("%7.0e" if model.version == "1.0" else "%5.0e") % (wrong * 1e-7)
    width = 6 if model.version >= "2.17.4" else 5
    return f"{'N/A':>{width}}" if wrong is None else f"%{width}g" % wrong


def half_of(model: Model, size: int, time: float, wrong: int | None) -> tuple[str, Half]:
    n = model.ranks
    rule = COLLECTIVES[model.collective][0]
    factor = {"2(n-1)/n": 2 * (n - 1) / n, "(n-1)/n": (n - 1) / n, "1": 1.0}[rule]
    if time:
        algbw = size / time / 1e3
        busbw = algbw * factor
        early = model.version in ("1.0", "2.0") and model.collective in ("all_gather", "reduce_scatter")
        if early or model.collective == "hypercube":
            algbw = busbw
        tokens = numbers(model, time, algbw, busbw)
    else:
        tokens = [numbers(model, 0.0, 0, 0)[0], "  -nan", "  -nan"]
    shown = checked(model, wrong)
    text = "".join(f"  {token}" for token in [*tokens, shown])
    shown_time, shown_algbw, shown_busbw = (None if "nan" in token else float(token) for token in tokens)
    assert shown_time is not None
    half = Half(
        shown_time * (1000.0 if model.version == "1.0" else 1.0),
        shown_algbw,
        shown_busbw,
        None if model.old or wrong is None else int(float(shown)),
        float(shown) if model.old and wrong is not None else None,
    )
    return text, half


def pieces_of(model: Model) -> tuple[list[list[str]], list[NcclRow]]:
    """Return each row as the pieces that separate printf calls write, and what is to be read."""
    names = columns(model)
    rows, expected = [], []
    size, times, wrongs = model.first, iter(model.times), iter(model.wrong)
    for _ in range(model.steps):
        width = SIZES[model.type]
        count, everyone = size // width, COLLECTIVES[model.collective][1]
        if everyone:
            count //= model.ranks
            count = count if model.old else count & ~(16 // width - 1)
        printed = count * width * (model.ranks if everyone else 1)
        cells = {
            "redop": ("%6s", "sum"),
            "op": ("%6s", "sum"),
            "root": ("%6s", "-1" if not model.old else "0"),
        }
        kind = "%6s" if model.version in ("1.0", "2.0") else "%8s"
        lead = "%12d  %12d  " % (printed, count) + kind % model.type
        lead += "".join("  " + cells[name][0] % cells[name][1] for name in names if name in cells)
        parts, halves = [lead], []
        for place in range(1 if model.version == "1.0" and model.collective == "broadcast" else 2):
            time = next(times)
            text, half = half_of(model, printed, time if printed else 0.0, next(wrongs))
            if model.stats:
                low, high, p99, spread = (
                    fit(value, 7) for value in (time * 0.9, time * 1.2, time * 1.1, 3.25)
                )
                text += f"  {low}  {high}  {p99}  {spread}"
                half = replace(half, iterations=None)
            if place and model.stamps:
                text += "%21s" % "2026-11-20 15:33:36"
            parts.append(text)
            halves.append(half)
        rows.append(parts)
        expected.append(NcclRow(printed, count, model.type, "sum" if {"redop", "op"} & set(names) else "",
                            int(cells["root"][1]) if "root" in names else -1, halves[0],
                            halves[1] if len(halves) > 1 else None))  # fmt: skip
        size *= 2
    return rows, expected


def columns(model: Model) -> list[str]:
    last = {"1.0": "res"}.get(model.version, "error" if model.old else "#wrong")
    if not model.old:
        lead = ["type", "redop", "root"]
    else:
        redop = "op" if model.version == "1.0" else "redop"
        lead = [
            "type",
            *{
                "broadcast": ["root"],
                "gather": ["root"],
                "scatter": ["root"],
                "reduce": [redop, "root"],
                "all_gather": [],
                "hypercube": [],
                "sendrecv": [],
            }.get(model.collective, [redop]),
        ]
    half = ["time", "algbw", "busbw", last, *(["i_min", "i_max", "i_p99", "i_cv%"] if model.stats else [])]
    halves = half if model.version == "1.0" and model.collective == "broadcast" else half * 2
    return (
        ["bytes", "N", *lead, *halves]
        if model.version == "1.0"
        else ["size", "count", *lead, *halves, *(["timestamp"] if model.stamps else [])]
    )


def header_of(model: Model) -> list[str]:
    mark = "" if model.version == "1.0" else "# "
    last = model.first * 2 ** (model.steps - 1)
    lines = []
    if model.version >= "2.17.4":
        lines.append(f"# nccl-tests version {model.version} nccl-headers=22809 nccl-library=22809")
    if model.version >= "2.16.7":
        lines.append(f"# Collective test starting: {model.collective}_perf")
    more = "" if model.old else " graph: 0"
    agg = "" if model.old else " agg iters: 1"
    lines.append(
        f"{mark}nThread 1 nGpus {model.gpus} minBytes {model.first} maxBytes {last} step: 2(factor) "
        f"warmup iters: 5 iters: 20{agg} validation: 1{more} "
    )
    lines += [] if model.version == "1.0" else ["#"]
    lines.append("# Using devices")
    for rank in range(model.ranks):
        device = rank % model.gpus
        host = model.hosts[rank // model.gpus]
        bus = f"[0000:{device + 6:02x}:00]" if model.version >= "2.14.1" else f"[0x{device + 6:02x}]"
        group = "Group  0 " if model.version >= "2.13.4" else ""
        pid = "" if model.version == "1.0" else "Pid   %4d " % (3000 + rank)
        lines.append(f"#  Rank %2d {group}{pid}on %10s device %2d {bus} NVIDIA H200" % (rank, host, device))
    lines += ["#", "# " + "  ".join(columns(model))]
    return lines


def footer_of(model: Model, rows: list[NcclRow]) -> list[str]:
    mark = " " if model.version == "1.0" else "# "
    halves = [half for row in rows for half in (row.out_of_place, row.in_place) if half]
    values = [half.busbw for half in halves]
    known = [value for value in values if value is not None]
    mean = "-nan" if None in values else "%g" % (sum(known) / len(known))
    end = (
        [f"# Collective test concluded: {model.collective}_perf", "#"] if model.version >= "2.16.7" else ["#"]
    )
    return [f"{mark}Out of bounds values : 0 OK", f"{mark}Avg bus bandwidth    : {mean} ", "#", *end, ""]


def noise(chance: random.Random, host: str) -> str:
    kind = chance.choice(
        [
            "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
            "NCCL INFO comm 0x1 rank 3 nRanks 8",
            "init.cc:486 NCCL WARN 7 8 9 10 11 12 13",
        ]
    )
    stamp = "[2026-11-20 15:33:36] " if "WARN" in kind else ""
    return f"{stamp}{host}:2912:2957 [{chance.randrange(8)}] {kind}"


def render(model: Model, chance: random.Random | None = None) -> tuple[list[str], list[NcclRow]]:
    """Return the lines of a run and its rows; with `chance` NCCL's lines stand between and inside of them."""
    rows, expected = pieces_of(model)
    lines = header_of(model)
    for parts in rows:
        line = ""
        for place, part in enumerate(parts):
            line += part
            if chance and place < len(parts) - 1 and chance.random() < 0.3:
                lines.append(line + noise(chance, chance.choice(model.hosts)))
                line = ""
        lines.append(line)
    lines += footer_of(model, expected)
    if chance:
        for _ in range(chance.randrange(6)):
            lines.insert(chance.randrange(len(lines)), noise(chance, "node7"))
    return lines, expected


def same(found: tuple[NcclRow, ...], expected: list[NcclRow]) -> bool:
    """Equal but for the per-iteration numbers, which the renderer does not hand back."""

    def plain(row: NcclRow) -> NcclRow:
        inside = row.in_place and replace(row.in_place, iterations=None)
        return replace(row, out_of_place=replace(row.out_of_place, iterations=None), in_place=inside)

    return [plain(row) for row in found] == expected


@st.composite
def models(draw: st.DrawFn) -> Model:
    version = draw(st.sampled_from(VERSIONS))
    known = (
        [*COLLECTIVES]
        if version not in ("1.0", "2.0")
        else ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]
    )
    steps = draw(st.integers(1, 5))
    count = draw(st.integers(1, 3))
    times = st.floats(0.01, 1e8, allow_nan=False)
    wrong = st.one_of(st.none(), st.just(0), st.integers(0, 9_999_999))
    return Model(
        version, draw(st.sampled_from(known)), draw(st.sampled_from([*SIZES])),
        tuple(draw(st.sampled_from(["node", "gpu-a", "h7x"])) + f"{place}" for place in range(count)),
        draw(st.integers(1, 8)), 8 * 2 ** draw(st.integers(0, 24)), steps,
        tuple(draw(st.lists(times, min_size=2 * steps, max_size=2 * steps))),
        tuple(draw(st.lists(wrong, min_size=2 * steps, max_size=2 * steps))),
        stamps=version in ("2.17.6", "2.19.2") and draw(st.booleans()),
        stats=version == "2.19.2" and draw(st.booleans()),
    )  # fmt: skip


LABELS = {
    "none": "",
    "srun": "{}: ",
    "mpirun": "[1,{}]<stdout>:",
    "prrte": "[prterun-h-12@1,{}]<stdout>:",
    "mpich": "[{}] ",
}


def labelled(lines: list[str], task: int, style: str) -> list[str]:
    return [LABELS[style].format(task) + line for line in lines]


# --- properties -----------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(models(), st.sampled_from([*LABELS]), st.integers(0, 2**32), st.booleans())
def test_any_run_is_read_exactly(model: Model, style: str, seed: int, noisy: bool) -> None:
    lines, expected = render(model, random.Random(seed) if noisy else None)
    output = read("\n".join(labelled(lines, 3, style)) + "\n", collective=model.collective)
    assert len(output.runs) == 1, output
    run = output.runs[0]
    assert same(run.rows, expected), run.reasons
    assert (run.collective, run.world, run.out_of_bounds) == (model.collective, model.ranks, 0)
    if all(half.busbw is not None for row in expected for half in (row.out_of_place, row.in_place) if half):
        assert run.complete, run.reasons


@settings(max_examples=300, deadline=None)
@given(
    models(),
    st.sampled_from(["none", "srun", "mpirun"]),
    st.integers(0, 2**32),
    st.booleans(),
    st.floats(0, 1),
)
def test_a_cut_loses_rows_and_never_changes_one(
    model: Model, style: str, seed: int, noisy: bool, where: float
) -> None:
    lines, expected = render(model, random.Random(seed) if noisy else None)
    text = "\n".join(labelled(lines, 0, style)) + "\n"
    cut = text[: int(len(text) * where)]
    output = read(cut, collective=model.collective)
    rows = [row for run in output.runs for row in run.rows]
    assert same(tuple(rows), expected[: len(rows)])
    if len(rows) < len(expected):
        assert not any(run.complete for run in output.runs)
        assert output.problems


@pytest.mark.parametrize("version", ["1.0", "2.11", "2.13.4", "2.19.2"])
@pytest.mark.parametrize("style", ["none", "srun"])
def test_every_cut_of_one_run(version: str, style: str) -> None:
    """Last columns of several digits: a number that lost its end must not be read as a smaller one."""
    model = model_of(version=version, steps=2, hosts=("n1",), gpus=2, wrong=(0, 123456, 17, 4242, 0, 0))
    lines, expected = render(model)
    text = "\n".join(labelled(lines, 0, style)) + "\n"
    whole = read(text, collective="all_reduce").runs[0]
    assert same(whole.rows, expected)
    for end in range(len(text)):
        output = read(text[:end], collective="all_reduce")
        rows = tuple(row for run in output.runs for row in run.rows)
        assert same(rows, expected[: len(rows)]), text[:end]
        ranks = tuple(line for run in output.runs for line in run.ranks)
        assert ranks == whole.ranks[: len(ranks)]
        averages = [run.avg_busbw for run in output.runs if run.avg_busbw is not None]
        assert averages in ([], [whole.avg_busbw])
        if len(rows) < len(expected):
            assert output.problems


@settings(max_examples=100, deadline=None)
@given(
    st.lists(models(), min_size=2, max_size=4),
    st.sampled_from(["srun", "mpirun", "prrte"]),
    st.integers(0, 2**32),
)
def test_interleaved_tables_are_parted_by_label(several: list[Model], style: str, seed: int) -> None:
    chance = random.Random(seed)
    rendered = [render(replace(model, collective="all_reduce"), chance) for model in several]
    queues = [labelled(lines, task, style) for task, (lines, _) in enumerate(rendered)]
    mixed = []
    while any(queues):
        mixed.append(chance.choice([queue for queue in queues if queue]).pop(0))
    output = read("\n".join(mixed) + "\n", collective="all_reduce")
    found = {run.label: run for run in output.runs}
    assert sorted(found) == [str(task) for task in range(len(several))]
    for task, (_, expected) in enumerate(rendered):
        assert same(found[str(task)].rows, expected), found[str(task)].reasons


@settings(max_examples=300, deadline=None)
@given(models().filter(lambda model: model.ranks > 1), st.integers(0, 2**32))
def test_a_changed_number_is_refused_or_is_rounding(model: Model, seed: int) -> None:
    """Ten times a time, a bandwidth or a size contradicts the rest of its row."""
    model = replace(
        model, times=tuple(10 + time % 5000 for time in model.times), first=max(model.first, 2**20)
    )
    chance = random.Random(seed)
    lines, expected = render(model)
    places = [
        place for place, line in enumerate(lines) if line.strip()[:1].isdigit() and "nThread" not in line
    ]
    place = chance.choice(places)
    tokens = lines[place].split()
    lead = len(columns(model)[: columns(model).index("time")])
    token = chance.choice([0, 1, lead, lead + 1, lead + 2])
    if float(tokens[token]) == 0:
        return
    tokens[token] = "7" + tokens[token]
    lines[place] = "  " + "  ".join(tokens)
    run = read("\n".join(lines) + "\n", collective=model.collective).runs[0]
    assert len(run.rows) == len(expected) - 1
    assert any("rejected" in reason for reason in run.reasons)
    assert not run.complete


@given(st.text())
@settings(max_examples=200, deadline=None)
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


def test_old_row_of_the_performance_guide() -> None:
    """The row of DGX A100, 4 nodes (DeepOps performance guide), under a header of that version."""
    model = Model(
        "2.11", "all_reduce", "float", ("dgx1", "dgx2", "dgx3", "dgx4"), 8, 2**32, 1, (1.0, 1.0), (0, 0)
    )
    row = "  4294967296    1073741824   float     sum    43557   98.61  191.05  1e-06    43440   98.87  191.56  1e-06"
    text = "\n".join(
        [*header_of(model), row, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 191.305 ", ""]
    )
    (run,) = read(text, collective="all_reduce").runs
    assert run.rows[0].out_of_place == Half(43557.0, 98.61, 191.05, None, 1e-06)
    assert run.complete, run.reasons


# --- single troubles ------------------------------------------------------------------------------------------


def model_of(**change: Any) -> Model:
    return replace(Model("2.19.2", "all_reduce", "float", ("n1", "n2"), 8, 2**20, 3,
                         (123.0, 124, 200, 201, 350, 351), (0,) * 6), **change)  # fmt: skip


def lines_of(**change: Any) -> list[str]:
    return render(model_of(**change))[0]


def one(lines: list[str], **more: Any) -> NcclRun:
    output = read("\n".join(lines) + "\n", **more)
    assert len(output.runs) == 1, output
    return output.runs[0]


def test_missing_row_is_noticed() -> None:
    lines = [line for line in lines_of() if not line.lstrip().startswith("2097152 ")]
    run = one(lines)
    assert not run.complete
    assert "2 rows for 3 sizes: rows are missing" in run.reasons


def test_missing_sweep_is_noticed_by_the_average() -> None:
    lines = lines_of()
    rows = [place for place, line in enumerate(lines) if line.strip()[:1].isdigit()]
    run = one(
        [*lines[: rows[2]], lines[rows[1]], *lines[rows[2] + 1 :]]
    )  # the last row replaced by its neighbour
    assert not run.complete
    assert "rows average" in " ".join(run.reasons)


def test_second_table_under_one_header() -> None:
    lines = lines_of()
    start = next(place for place, line in enumerate(lines) if line.strip()[:1].isdigit())
    output = read("\n".join([*lines, *lines[start:]]) + "\n")
    assert [len(run.rows) for run in output.runs] == [3, 3]
    assert all(run.complete for run in output.runs)


def test_cycles_repeat_the_rows() -> None:
    lines = lines_of()
    rows = [line for line in lines if line.strip()[:1].isdigit()]
    place = lines.index(rows[0])
    run = one([*lines[:place], *rows, *lines[place:]])
    assert len(run.rows) == 6
    assert run.complete, run.reasons


@pytest.mark.parametrize(
    "said",
    [
        "node7: Test NCCL failure common.cu:303 'unhandled system error / x'",
        "node7: Test CUDA failure common.cu:1045 'an illegal memory access'",
        "node7: Test timeout (60s) common.cu:523",
    ],
)
def test_failure_glued_to_a_row(said: str) -> None:
    lines = lines_of()
    rows = [place for place, line in enumerate(lines) if line.strip()[:1].isdigit()]
    head = lines[rows[1]][:54]  # up to the root column
    run = one([*lines[: rows[1]], head + said, " .. node7 pid 4242: Test failure common.cu:1454"])
    assert len(run.rows) == 1
    assert [failure.host for failure in run.failures] == ["node7", "node7"]
    assert run.failures[0].kind in said
    assert not run.complete


@pytest.mark.parametrize("host", ["n1", "elsewhere"])
def test_log_glued_to_not_applicable(host: str) -> None:
    """'N/A' and the host's name run together; the half before it is still whole."""
    lines = lines_of(wrong=(None, 0, 0, 0, 0, 0))
    place = next(place for place, line in enumerate(lines) if "N/A" in line)
    head, tail = lines[place].split("N/A")
    glued = f"{head}N/A{host}:2912:2957 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    run = one([*lines[:place], glued, tail, *lines[place + 1 :]])
    assert run.complete, run.reasons
    assert run.rows[0].out_of_place.wrong is None


def test_wrong_elements_and_failed_summary() -> None:
    lines = [
        line.replace("values : 0 OK", "values : 3 FAILED") for line in lines_of(wrong=(3, 0, 0, 0, 0, 0))
    ]
    run = one(lines)
    assert run.rows[0].out_of_place.wrong == 3
    assert run.out_of_bounds == 3


def test_summary_that_contradicts_itself() -> None:
    run = one([line.replace("values : 0 OK", "values : 3 OK") for line in lines_of()])
    assert "contradicts itself" in " ".join(run.reasons)


def test_zero_size_rows_are_kept_and_reported() -> None:
    run = one(lines_of(first=8, collective="all_gather", times=(1.0,) * 6))
    assert [row.size for row in run.rows] == [0, 0, 0]
    assert run.rows[0].out_of_place.busbw is None
    assert not run.complete


def test_usage_with_exit_0_is_a_failure() -> None:
    output = read("invalid option 'Q'\nUSAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>] \n", rc=0)
    assert [failure.kind for failure in output.failures] == ["usage", "usage"]
    assert "no table was printed, but the usage" in output.reasons[0]


def test_too_many_gpus() -> None:
    (run,) = read(text_of("nccl-toomany.txt"), rc=5).runs
    assert run.failures[0].kind == "too few GPUs"
    assert not run.rows


def test_renamed_collective_is_reported() -> None:
    assert "all_reduce ran, but all_gather was requested" in one(lines_of(), collective="all_gather").reasons


def test_unknown_collective_is_refused() -> None:
    run = one([line.replace("all_reduce_perf", "alltoallv_perf") for line in lines_of()])
    assert not run.rows
    assert "cannot be checked" in run.reasons[0]


def test_without_a_name_the_collective_is_asked_for() -> None:
    run = one(lines_of(version="2.13.4"))
    assert len(run.rows) == 3
    assert not run.complete
    assert "pass `collective`" in " ".join(run.reasons)


def test_missing_rank_line() -> None:
    run = one([line for line in lines_of() if "Rank  5" not in line])
    assert "Rank lines of 1 of 16 ranks are missing" in run.reasons


def test_split_groups_count_their_own_ranks() -> None:
    lines = [line.replace("Group  0", "Group  1") if "on         n2" in line else line for line in
             render(model_of(hosts=("n1", "n2")))[0]]  # fmt: skip
    rows = [line for line in render(model_of(hosts=("n1",)))[0] if line.strip()[:1].isdigit()]
    table = [line for line in lines if not line.strip()[:1].isdigit() and "Avg" not in line]
    place = next(place for place, line in enumerate(table) if "Out of bounds" in line)
    run = one([*table[:place], *rows, *table[place:]])
    assert run.world == 8
    assert len(run.rows) == 3


def test_thousand_nodes() -> None:
    model = model_of(hosts=tuple(f"gpu{place:04}" for place in range(1000)))
    run = one(render(model)[0])
    assert run.world == 8000
    assert run.complete, run.reasons


def test_exit_codes() -> None:
    assert "CUDA" in explain_exit_status(2)
    assert "wrong data" in explain_exit_status(7)
    assert "signal 9" in explain_exit_status(137)
    assert "not an exit code" in explain_exit_status(99)


def test_sweep() -> None:
    assert sweep(8, 64, 2, factor=True) == (8, 16, 32, 64)
    assert sweep(8, 30, 10, factor=False) == (8, 18, 28)
    assert sweep(0, 64, 2, factor=True) == ()


def test_empty_output_has_a_reason() -> None:
    assert read("") == NcclOutput(reasons=("no table was printed",))


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


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NCCL failure all_reduce.cu:95 'unhandled cuda error'", "NCCL"),
        ("Cuda failure common.cu:510 'an illegal memory access was encountered'", "CUDA"),
    ],
)
def test_failures_of_version_1_name_no_host(line: str, kind: str) -> None:
    output = read(f"{line}\n", rc=1, collective="all_reduce")
    assert [(it.kind, it.host, it.text) for it in output.failures][:1] == [(kind, "", line)]


def test_a_version_may_name_its_commit() -> None:
    text = "# nccl-tests version 2.20.0 (b4d5bee) nccl-headers=23102 nccl-library=23102\n" + OLD_ALLTOALL
    (run,) = read(text, rc=0, collective="alltoall").runs
    assert (run.version, run.nccl_version) == ("2.20.0", "23102")


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


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("alltoall", 0.75), ("gather", 0.75),
     ("scatter", 0.75), ("hypercube", 0.75), ("broadcast", 1.0), ("reduce", 1.0), ("sendrecv", 1.0)],
)  # fmt: skip
def test_the_factor_of_the_bus_bandwidth(collective: str, factor: float) -> None:
    assert nccl_rows.bus_factor(collective, 4) == factor


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
