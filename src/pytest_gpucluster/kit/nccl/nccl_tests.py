"""Parser of the output of nccl-tests (all_reduce_perf and the other programs). Pure.

A row is accepted only if its size, count, time, bandwidths and number of ranks agree; a rejected line is reported with
its number and the reason.

Units: microseconds, bytes, GB/s (10**9 B/s). Version 1.0 prints milliseconds; they are converted.

Source of every format: the printf calls of github.com/NVIDIA/nccl-tests, tags v1.0.0 to v2.18.3 and 2.19.6:

    1.0             `bytes N type op`, time in ms, `res`; no `#` before the summary
    2.0 to 2.11     `error` (largest deviation) instead of `#wrong`; leading columns vary with the collective;
                    until 2.4 all_gather and reduce_scatter print the bus bandwidth as algorithm bandwidth too
    2.13.0          five leading columns, `#wrong`; header gains `agg iters`, `graph`
    2.13.4          `Group` in the Rank lines
    2.14.1          device [0x1b] becomes [0000:1b:00]
    2.16.7          `# Collective test starting: NAME`
    2.17.4          first line names the version; numbers may print as 2e+06
    2.17.6          -S appends date and time to each row
    2.19.2          -I appends i_min i_max i_p99 i_cv% to each half
    2.20.0          first line names the commit too: 2.20.0 (b4d5bee)
DCGM's build    `#iters` at the end of each row (testing/python3/mocks/all_reduce_perf of NVIDIA/DCGM)

Until 2.13 collectives without a reduction leave the column `redop` blank.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.complaint import first_complaint
from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.mpi.mpi_errors import LaunchFailure
from pytest_gpucluster.kit.nccl.nccl_failures import RankFailures, merge_ranks, rank_failures, read_failure
from pytest_gpucluster.kit.nccl.nccl_rows import (
    COLLECTIVES,
    BadRowError,
    TableFacts,
    fields,
    layout_of,
    read_number,
    read_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.kit.nccl.nccl_rows import NcclRow, TableLayout

# Exit codes of nccl-tests (testResult_t of src/common.h); 7 came with 2.17.3, before that wrong data was 1.
EXIT_CODES = {
    0: "ok",
    1: "internal error (before 2.17.3 also: wrong data or low bandwidth)",
    2: "CUDA error",
    3: "NCCL error",
    4: "timeout",
    5: "not implemented, or fewer GPUs than requested",
    6: "invalid usage",
    7: "wrong data, or bandwidth below NCCL_TESTS_MIN_BW",
}

_MAX_SHOWN = 60


@dataclass(frozen=True)
class RankLine:
    """One `Rank` line. `group` is None in versions without it."""

    rank: int
    group: int | None
    host: str
    device: int
    bus_id: str
    name: str


@dataclass(frozen=True)
class NcclRun:
    """One table of nccl-tests: its ranks, rows and summary, and the reasons to reject it.

    `label` is the task label of the lines ('' for none). `world` is the number of ranks according to the Rank lines.
    `complete`: header, every row of the sweep and the summary were read and nothing was rejected.
    """

    version: str = ""
    collective: str = ""
    ranks: tuple[RankLine, ...] = ()
    rows: tuple[NcclRow, ...] = ()
    out_of_bounds: int | None = None
    avg_busbw: float | None = None
    failures: tuple[LaunchFailure, ...] = ()
    complete: bool = False
    reasons: tuple[str, ...] = ()
    label: str = ""
    world: int = 0
    validation: bool | None = None
    sweep: tuple[int, ...] = ()
    nccl_version: str = ""

    def curve(self) -> list[tuple[int, float]]:
        """Return (bytes, GB/s) of each size that was measured: the out-of-place bus bandwidth."""
        halves = ((row.size, row.out_of_place.busbw) for row in self.rows)
        return [(size, busbw) for size, busbw in halves if busbw is not None]


@dataclass(frozen=True)
class NcclOutput:
    """The output of one command: its tables, and the failures and reasons that belong to no table.

    `messages`: complaints beside a right result, which they do not change.
    """

    runs: tuple[NcclRun, ...] = ()
    failures: tuple[LaunchFailure, ...] = ()
    reasons: tuple[str, ...] = ()
    messages: tuple[LaunchFailure, ...] = ()

    @property
    def singletons(self) -> int:
        """The number of processes that ran alone as rank 0; 0 if other ranks are present or no rank number is known."""
        ranks = [line.rank for run in self.runs for line in run.ranks]
        return 0 if any(ranks) else len(ranks)

    @property
    def problems(self) -> tuple[str, ...]:
        """All failures and reasons, one line each."""
        failures = [*self.failures, *(failure for run in self.runs for failure in run.failures)]
        reasons = [*self.reasons, *(reason for run in self.runs for reason in run.reasons)]
        return (*(f"{failure.kind}: {failure.text}" for failure in failures), *reasons)


def explain_exit_status(rc: int) -> str:
    """Return the meaning of an exit status of nccl-tests; 128 + N is signal N."""
    if rc in EXIT_CODES:
        return f"exit {rc}: {EXIT_CODES[rc]}"
    if rc > 128:  # the shell's own offset for signals
        return f"exit {rc}: killed by signal {rc - 128}"
    return f"exit {rc}: not an exit code of nccl-tests"


def read(text: str, *, rc: int | None = None, collective: str = "", mpi: str | None = None) -> NcclOutput:
    """Parse the output of nccl-tests: stdout, or stdout and stderr together, with or without task labels.

    `rc` is the exit status if known: 0 without a table is a failure. `collective` names the collective (`all_reduce`)
    for versions before 2.16.7, which do not print it. `mpi` is srun's --mpi ('' for none), shown in launch failures.
    """
    ranks = rank_failures(text)
    streams, unterminated = _streams(ranks.rest)
    return _read(streams, unterminated, ranks, rc=rc, collective=collective, mpi=mpi)


def read_tasks(
    stdout: Mapping[str, str], *, stderr: str = "", rc: int | None = None, collective: str = "", mpi: str | None = None
) -> NcclOutput:
    """Parse the separate outputs of tasks: {label: stdout}; the other parameters are those of `read`.

    Separate outputs show for each task whether its last line is terminated. Labels that a task prints itself (mpirun)
    take precedence.
    """
    streams: dict[str, list[tuple[int, str]]] = {}
    unterminated: list[tuple[int, str]] = []
    ranks = rank_failures("\n".join([*stdout.values(), stderr]))
    for label, text in [*stdout.items(), ("", stderr)]:
        found, rest = _streams(rank_failures(text).rest)
        unterminated += rest if label else []  # stderr holds no numbers
        for inner, lines in found.items():
            streams.setdefault(inner or label, []).extend(lines)
    return _read(streams, unterminated, ranks, rc=rc, collective=collective, mpi=mpi)


def _read(
    streams: Mapping[str, list[tuple[int, str]]],
    unterminated: Sequence[tuple[int, str]],
    ranks: RankFailures,
    *,
    rc: int | None,
    collective: str,
    mpi: str | None,
) -> NcclOutput:
    readers = {label: _read_stream(label, lines) for label, lines in streams.items()}
    tables = [table for reader in readers.values() for table in reader.tables]
    orphans = [line for reader in readers.values() for line in reader.ranks_without_table]
    if len(tables) == 1:  # version 1.0: each process prints its own Rank lines
        tables[0].ranks += orphans
    runs = tuple(_conclude(table, collective) for table in tables)
    of_tool = (failure for reader in readers.values() for failure in reader.failures)
    failures = merge_ranks([*ranks.failures, *of_tool])
    known = {failure.kind for failure in failures}
    printed = "\n".join([ranks.rest, *(failure.what for failure in ranks.failures)])
    explained = mpi_errors.explain(printed, mpi=mpi, low_limits=ranks.low_limits)
    failures += [failure for failure in explained if failure.kind not in known]
    reasons = [f"cut: line {number} is not terminated: {_show(line)}" for number, line in unterminated]
    reasons += [] if len(tables) == 1 else [f"line {n}: Rank line without a table" for n, _ in orphans[:3]]
    if rc is not None and rc != 0:
        failures.append(LaunchFailure("exit code", "", explain_exit_status(rc), "see the lines before it"))
    if not runs or not any(run.rows for run in runs):
        usage = any(failure.kind == "usage" for failure in failures)
        status = " although it exited 0: an unknown option prints the usage and exits 0" if rc == 0 else ""
        reasons.append(f"no table was printed{', but the usage' if usage else ''}{status}")
    if not reasons and not rc and _is_right(runs):
        return NcclOutput(runs, messages=tuple(failures))
    failures = _with_complaint(failures, ranks.shown)
    return NcclOutput(runs, tuple(failures), tuple(reasons))


_SYMPTOMS = {"NCCL": 1, "CUDA": 1, "relayed": 2, "exit code": 2}  # they name no cause


def _with_complaint(failures: Sequence[LaunchFailure], text: str) -> list[LaunchFailure]:
    """Return the failures, those that name a cause first; if none does, the first one quotes the first complaint."""
    ordered = sorted(failures, key=lambda it: _SYMPTOMS.get(it.kind, 0))
    said = first_complaint(text) if ordered and ordered[0].kind in _SYMPTOMS else ""
    if said and said not in ordered[0].text:
        ordered[0] = replace(ordered[0], text=f"{ordered[0].text}; first complaint: {said}")
    return ordered


def _is_right(runs: Sequence[NcclRun]) -> bool:
    """Return whether one table holds every row, of every rank, and no wrong data."""
    halves = [half for run in runs for row in run.rows for half in (row.out_of_place, row.in_place) if half]
    whole = all(run.complete and sorted(it.rank for it in run.ranks) == [*range(run.world)] for run in runs)
    return len(runs) == 1 and whole and not runs[0].out_of_bounds and not any(half.wrong for half in halves)


def sweep(first: int, last: int, step: int, *, factor: bool) -> tuple[int, ...]:
    """Return the sizes from `first` to `last` in the steps of nccl-tests; () if the steps would not end."""
    sizes: list[int] = []
    size = first
    while size <= last:
        if len(sizes) > 100_000 or step < (2 if factor else 1) or (factor and size == 0):
            return ()
        sizes.append(size)
        size = size * step if factor else size + step
    return tuple(sizes)


# --- lines and labels -------------------------------------------------------------------------------------

# srun --label; Open MPI's --tag-output (with PRRTE's job name); MPICH's and Intel's -l
_LABEL = re.compile(r"\s*(\d{1,18}): ?|\[[^\],<>]*,(\d{1,18})\]<(?:stdout|stderr)>: ?|\[(\d{1,18})\] ?")


def labelled(line: str) -> tuple[str, str]:
    """Return the task label of a line ('' for none) and the text after it."""
    match = _LABEL.match(line)
    return (str(int(next(filter(None, match.groups())))), line[match.end() :]) if match else ("", line)


def _streams(text: str) -> tuple[dict[str, list[tuple[int, str]]], list[tuple[int, str]]]:
    """Return {label: numbered lines}, and the last line if it is not terminated: it may be cut."""
    lines = text.split("\n")
    rest = lines.pop()
    streams: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(lines, 1):
        label, body = labelled(line)
        streams.setdefault(label, []).append((number, body.rstrip("\r")))
    return streams, [(len(lines) + 1, rest)] if rest.strip() else []


# --- one stream -------------------------------------------------------------------------------------------

_HEADERS = (
    ("version", re.compile(r"# nccl-tests version (\S+)(?: \(\w+\))?"
                           r"(?: nccl-headers=\d+ nccl-library=(\d{1,18}))?\s*$")),
    ("starting", re.compile(r"# Collective test starting: (\S+)\s*$")),
    ("sizes", re.compile(r"#? ?nThread (\d{1,18}) nGpus (\d{1,18}) minBytes (\d{1,18}) maxBytes (\d{1,18}) "
                         r"step: (\d{1,18})\((\w+)\) .*"
                         r"validation: (\d{1,18})")),
    ("devices", re.compile(r"# Using devices\s*$")),
)  # fmt: skip
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,18}) (?:Group\s+(-?\d{1,18}) )?(?:Pid\s+\d{1,18} )?on\s+(\S+) device\s+(\d{1,18}) "
    r"\[([^\]\s]+)\] (\S.*?)\s*$"
)
_COLUMNS = re.compile(r"#\s+(?:size|bytes)\s+(?:count|N)\s+type\s")
_BOUNDS = re.compile(r"#? *Out of bounds values\s+: (\d{1,18}) (OK|FAILED)\s*$")
_AVERAGE = re.compile(r"#? *Avg bus bandwidth\s+: (\S+) ?(OK|FAILED)?\s*$")
_CONCLUDED = re.compile(r"# Collective test concluded: (\S+)\s*$")
_REDUCED = re.compile(r"# Reducing maxBytes to (\d{1,18}) due to memory limitation\s*$")
# A line of NCCL's own log, also at the end of another unfinished line (then the host starts with a letter)
_STAMP = r"(?:\[[^\]\n]{8,40}\] )?"
_LOG = r":\d+:\d+ (?:\[-?\d+\] .{0,200}?NCCL (?:INFO|WARN|TRACE|ABORT|PROFILE)\b|NCCL CALL\b)"
_LOG_LINE = re.compile(rf"\s*{_STAMP}\w[\w.-]{{0,255}}{_LOG}|NCCL version ")
_GLUED_LOG = re.compile(rf"{_STAMP}[A-Za-z][\w.-]{{0,255}}{_LOG}")
_DIGITS = re.compile(r"\s*\d+(?:\s|$)")


@dataclass
class _Table:
    """The lines of one table, before its rows are validated."""

    label: str
    version: str = ""
    nccl: str = ""
    program: str = ""
    threads: int = 0
    gpus: int = 0
    sizes: tuple[int, ...] = ()
    validation: bool | None = None
    columns: tuple[str, ...] = ()
    layout: TableLayout | None = None
    ranks: list[tuple[int, RankLine]] = field(default_factory=list)
    rows: list[tuple[int, str]] = field(default_factory=list)
    bounds: int | None = None
    average: str = ""
    failures: list[LaunchFailure] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    cut_ranks: bool = False

    @property
    def width(self) -> int:
        """The number of fields of a row, 0 if it is unknown."""
        return self.layout.width if self.layout else 0

    def successor(self) -> _Table:
        """Return the next table under the same header."""
        return replace(self, rows=[], bounds=None, average="", failures=[], reasons=[])


@dataclass
class _Stream:
    """The tables and other findings in the lines of one label."""

    label: str
    tables: list[_Table] = field(default_factory=list)
    failures: list[LaunchFailure] = field(default_factory=list)
    ranks_without_table: list[tuple[int, RankLine]] = field(default_factory=list)
    pending: tuple[int, str] | None = None

    @property
    def table(self) -> _Table | None:
        return self.tables[-1] if self.tables else None

    def open(self, header: str) -> _Table:
        """Return the table of a header line; a repeated header starts the next table."""
        if not self.tables or header in self.tables[-1].seen or "columns" in self.tables[-1].seen:
            self.tables.append(_Table(self.label))
        self.tables[-1].seen.add(header)
        return self.tables[-1]


def _read_stream(label: str, lines: Iterable[tuple[int, str]]) -> _Stream:
    stream = _Stream(label)
    for number, line in lines:
        if _LOG_LINE.match(line):
            continue
        body, interrupted = _strip_log(line, stream.table)
        if not body.strip() and not (stream.pending and _is_row(stream.pending[1])):
            continue  # an empty line ends a row that was interrupted
        if stream.pending:
            first, fragment = stream.pending
            stream.pending = None
            if _continues(fragment, body, stream.table):
                _take(stream, first, fragment + body, open_end=interrupted)
                continue
            _reject_fragment(stream.table, first, fragment)
        _take(stream, number, body, open_end=interrupted)
    if stream.pending:
        _reject_fragment(stream.table, *stream.pending)
    return stream


def _strip_log(line: str, table: _Table | None) -> tuple[str, bool]:
    """Return the line without NCCL's log line at its end, and whether there was one."""
    if "NCCL" not in line:
        return line, False
    hosts = {rank.host for _, rank in table.ranks} if table else set()
    near = [host for host in hosts if f"{host}:" in line]
    known = [match.start() for host in near if (match := re.search(rf"{_STAMP}{re.escape(host)}{_LOG}", line))]
    match = _GLUED_LOG.search(line)
    start = min(known) if known else match.start() if match else None
    if start is None:
        return line, False
    if line[:start].endswith("N/") and line[start : start + 1] == "A":  # 'N/A' and a host: 'N/Avm:'
        start += 1
    return line[:start], True


def _continues(fragment: str, body: str, table: _Table | None) -> bool:
    """Return whether `body` continues an interrupted line."""
    if not _is_row(fragment):
        return True
    if body.startswith("#") or table is None:
        return False
    return len(fields(fragment + body, table.layout)) <= table.width


def _reject_fragment(table: _Table | None, number: int, text: str) -> None:
    if table:
        table.reasons.append(f"line {number}: row is cut: {_show(text)}")


def _take(stream: _Stream, number: int, line: str, *, open_end: bool) -> None:
    """Add one line to the stream: a row, a comment, a failure or an unfinished row."""
    table = stream.table
    cut = _is_row(line) and table and len(fields(line, table.layout)) < table.width and not read_failure(line)
    if open_end or cut:
        stream.pending = (number, line)
        return
    if _is_row(line) and table and table.columns and not read_failure(line):
        if table.average:  # a further table under the same header
            table = table.successor()
            stream.tables.append(table)
        table.rows.append((number, line))
    elif line.lstrip().startswith("#") or "Out of bounds" in line or "Avg bus" in line or "nThread" in line:
        _take_comment(stream, number, line)
    else:
        _take_other(stream, number, line)


def _is_row(line: str) -> bool:
    return bool(_DIGITS.match(line))


def _take_comment(stream: _Stream, number: int, line: str) -> None:
    rank = _RANK.match(line)
    if rank:
        _take_rank(stream, number, rank)
        return
    for header, pattern in _HEADERS:
        match = pattern.match(line)
        if match:
            _take_header(stream.open(header), header, match.groups())
            return
    if "Rank" in line and re.match(r"#\s+Rank", line):
        target = stream.table
        if target and line.rstrip().endswith("..."):  # nccl-tests cuts the lines of a process at 2048 bytes
            target.cut_ranks = True
        if target:
            target.reasons.append(f"line {number}: Rank line not understood: {_show(line)}")
        return
    if stream.table:
        _take_table_comment(stream.table, number, line)


def _take_rank(stream: _Stream, number: int, match: re.Match[str]) -> None:
    rank, group, host, device, bus_id, name = match.groups()
    line = RankLine(int(rank), int(group) if group else None, host, int(device), bus_id, name)
    if stream.table and "columns" not in stream.table.seen:
        stream.table.ranks.append((number, line))
    else:
        stream.ranks_without_table.append((number, line))


def _take_header(table: _Table, header: str, values: Sequence[str]) -> None:
    if header == "version":
        table.version, table.nccl = values[0], values[1] or ""
    elif header == "starting":
        table.program = values[0]
    elif header == "sizes":
        table.threads, table.gpus = int(values[0]), int(values[1])
        first, last, step = (int(value) for value in values[2:5])
        table.sizes = sweep(first, last, step, factor=values[5] == "factor")
        table.validation = int(values[6]) > 0


def _take_table_comment(table: _Table, number: int, line: str) -> None:
    problem = ""
    if _COLUMNS.match(line):
        problem = _take_columns(table, tuple(line.split()[1:]))
    elif match := _BOUNDS.match(line):
        table.bounds = int(match[1])
        problem = "summary contradicts itself" * ((table.bounds > 0) != (match[2] == "FAILED"))
    elif match := _AVERAGE.match(line):
        table.average = match[1]
        if match[2] == "FAILED":
            text = f"average bus bandwidth {match[1]} GB/s is below 0.9 x NCCL_TESTS_MIN_BW"
            table.failures.append(LaunchFailure("minimum bandwidth", "", text, "judge per size instead"))
    elif match := _CONCLUDED.match(line):
        problem = f"{table.program} was started" if table.program not in ("", match[1]) else ""
    elif match := _REDUCED.match(line):
        table.sizes = tuple(size for size in table.sizes if size <= int(match[1]))
        problem = "the largest sizes were left out: they exceed the GPU's memory"
    elif line.startswith("# error: "):
        text = line.removeprefix("# error: ").strip()
        table.failures.append(LaunchFailure("NCCL", "", text, "set NCCL_DEBUG=INFO and repeat"))
    if problem:
        table.reasons.append(f"line {number}: {problem}: {_show(line)}")


def _take_columns(table: _Table, columns: tuple[str, ...]) -> str:
    table.seen.add("columns")
    if table.columns and table.columns != columns:
        return "the columns change within the table"
    layout = layout_of(columns)
    if layout:
        table.columns, table.layout = columns, layout
    return "" if layout else "columns not understood"


def _take_other(stream: _Stream, number: int, line: str) -> None:
    failure = read_failure(line)
    if failure:
        stream.failures.append(failure)
        if _is_row(line) and stream.table:
            stream.table.reasons.append(f"line {number}: row ends in a failure: {_show(line)}")
    elif _is_row(line) and stream.table:
        stream.table.reasons.append(f"line {number}: row before its column header: {_show(line)}")


def _show(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "...")


# --- the whole table --------------------------------------------------------------------------------------


def _conclude(table: _Table, collective: str) -> NcclRun:
    """Return the run of a table: its validated rows and the reasons to reject it."""
    reasons = [*table.reasons]
    name = _collective(table, collective, reasons)
    world = _ranks(table, reasons)
    layout = table.layout
    rows: list[NcclRow] = []
    if layout and world and name is not None:
        for number, line in table.rows:
            try:
                rows.append(read_row(line, TableFacts(name, world, layout)))
            except BadRowError as error:
                reasons.append(f"line {number}: row rejected: {error}: {_show(line)}")
    elif table.rows:
        reasons.append(f"{len(table.rows)} rows rejected: no {'column header' if not layout else 'valid Rank lines'}")
    average = _average(table, reasons)
    run = NcclRun(
        version=table.version or _version(table, layout), collective=name or "",
        ranks=tuple(line for _, line in table.ranks), rows=tuple(rows), out_of_bounds=table.bounds,
        avg_busbw=average, failures=tuple(table.failures), label=table.label, world=world,
        validation=table.validation, sweep=table.sizes, nccl_version=table.nccl,
    )  # fmt: skip
    return completed(run, reasons)


def completed(run: NcclRun, reasons: Sequence[str]) -> NcclRun:
    """Return the run with these reasons and those of its completeness."""
    found = [*reasons, *_missing(run)]
    if not reasons and not run.failures:
        found += _average_disagrees(run)
    return replace(run, reasons=tuple(found), complete=not found and not run.failures and bool(run.rows))


def _missing(run: NcclRun) -> Iterator[str]:
    if not run.rows:
        yield "table has no rows"
    elif not run.sweep:
        yield "the requested sizes are unknown: header line missing"
    elif len(run.rows) % len(run.sweep):
        yield f"{len(run.rows)} rows for {len(run.sweep)} sizes: rows are missing"
    if run.out_of_bounds is None:
        yield "no summary line 'Out of bounds values': cut or crashed"
    if run.avg_busbw is None and "Avg" not in "".join(run.reasons):
        yield "no summary line 'Avg bus bandwidth', or it is nan"


def _average_disagrees(run: NcclRun) -> Iterator[str]:
    """Yield a reason if the printed average differs from the rows: rows were lost."""
    halves = [half for row in run.rows for half in (row.out_of_place, row.in_place) if half]
    values = [half.busbw for half in halves if half.busbw is not None]
    if run.avg_busbw is None or not values or len(values) != len(halves):
        return
    mean = sum(values) / len(values)
    slack = 1e-5 * mean + sum(_rounding(value) for value in values) / len(values)
    if abs(mean - run.avg_busbw) > slack:
        yield f"rows average {mean:.6g} GB/s, the summary prints {run.avg_busbw:g}: rows are missing"


def _rounding(value: float) -> float:
    """Return the largest rounding error of a value in a field of six characters (getFloatStr of util.cu)."""
    for limit, lost in ((1e3, 0.005), (1e4, 0.05), (1e6, 0.5)):
        if value < limit:
            return lost
    return value / 2


def _collective(table: _Table, requested: str, reasons: list[str]) -> str | None:
    """Return the collective, '' if it is not named, None if its bandwidth rule is unknown."""
    printed = table.program.rsplit("/", 1)[-1].split("_perf")[0] if table.program else ""
    if printed and requested and printed != requested:
        reasons.append(f"{printed} ran, but {requested} was requested")
    name = printed or requested
    if name and name not in COLLECTIVES:
        reasons.append(f"collective {name!r} is none of {', '.join(COLLECTIVES)}: its bandwidth cannot be checked")
        return None
    if not name:
        reasons.append("the output does not name its collective (before 2.16.7): pass `collective`")
    return name


def _ranks(table: _Table, reasons: list[str]) -> int:
    """Return the number of ranks of the table's communicator, 0 if the Rank lines do not determine it."""
    ranks = [line for _, line in table.ranks]
    if not ranks:
        reasons.append("no Rank lines")
        return 0
    duplicates = [rank for rank, times in Counter(line.rank for line in ranks).items() if times > 1]
    if duplicates:
        reasons.append(f"rank {duplicates[0]} appears more than once: several tables without labels (run srun --label)")
        return 0
    first = min(ranks, key=lambda line: line.rank)
    # NCCL_TESTS_SPLIT: rank 0 prints its own group's table
    if any(line.group != first.group for line in ranks):
        return sum(line.group == first.group for line in ranks)
    world = max(line.rank for line in ranks) + 1
    each = max(1, table.threads * table.gpus)
    world = -(-world // each) * each if table.cut_ranks else world
    if world != len(ranks):
        reasons.append(f"Rank lines of {world - len(ranks)} of {world} ranks are missing")
    return world


def _average(table: _Table, reasons: list[str]) -> float | None:
    if not table.average:
        return None
    try:
        number = read_number(table.average)
    except BadRowError:
        reasons.append(f"Avg bus bandwidth {table.average!r} is not a number")
        return None
    return number.value if number else None


def _version(table: _Table, layout: TableLayout | None) -> str:
    """Return the range of versions that print this layout."""
    if not layout:
        return ""
    if layout.factor != 1:
        return "1.0"
    if layout.old:
        return "2.0-2.11"
    if table.program:
        return "2.16.7-2.17.3"
    if any(line.group is None for _, line in table.ranks):
        return "2.13.0-2.13.3"
    short = any(line.bus_id.startswith("0x") for _, line in table.ranks)
    return "2.13.4-2.14.0" if short else "2.14.1-2.16.6"
