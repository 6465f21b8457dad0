"""The reader of nccl-tests' text: recordings, every grammar, and random runs with labels, noise and cuts."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import TESTS

from pytest_gpucluster.kit.nccl_rows import COLLECTIVES, Half, NcclRow
from pytest_gpucluster.kit.nccl_tests import NcclOutput, NcclRun, explain_exit_status, read, read_tasks, sweep

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


def test_zero_size_rows_are_kept_and_said() -> None:
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


def test_renamed_collective_is_said() -> None:
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
