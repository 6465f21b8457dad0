"""Text of nccl-tests (all_reduce_perf and its sisters) -> runs. Pure.

Never a wrong number, always a reason: a row is accepted only if its own arithmetic agrees (size, time, algorithm
and bus bandwidth, count, number of ranks); what is refused is named with its line.

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
    of DCGM         `#iters` behind each row (testing/python3/mocks/all_reduce_perf of NVIDIA/DCGM)

Until 2.13 alltoall and its like leave the column `redop` blank.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.kit import mpi_errors
from pytest_gpucluster.kit.mpi_errors import LaunchFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "COLLECTIVES",
    "EXIT_CODES",
    "Half",
    "IterStats",
    "LaunchFailure",
    "NcclOutput",
    "NcclRow",
    "NcclRun",
    "RankLine",
    "bus_factor",
    "explain_exit_status",
    "labelled",
    "read",
    "read_tasks",
    "sweep",
]

# Exit codes of nccl-tests (testResult_t of src/common.h); 7 came with 2.17.3, before that wrong data was 1.
EXIT_CODES = {
    0: "ok",
    1: "internal error (before 2.17.3 also: wrong data or low bandwidth)",
    2: "CUDA error",
    3: "NCCL error",
    4: "timeout",
    5: "not implemented, or fewer GPUs than asked for",
    6: "invalid usage",
    7: "wrong data, or bandwidth below NCCL_TESTS_MIN_BW",
}

# Bus bandwidth over algorithm bandwidth, and whether `size` counts the buffers of all ranks (doc/PERFORMANCE.md).
COLLECTIVES = {
    "all_reduce": ("2(n-1)/n", False),
    "all_gather": ("(n-1)/n", True),
    "reduce_scatter": ("(n-1)/n", True),
    "alltoall": ("(n-1)/n", True),
    "gather": ("(n-1)/n", True),
    "scatter": ("(n-1)/n", True),
    "broadcast": ("1", False),
    "reduce": ("1", False),
    "sendrecv": ("1", False),
    "hypercube": ("(n-1)/n", True),
}
# These print the bus bandwidth as algorithm bandwidth too.
_NO_ALGBW = ("hypercube",)
_TYPE_SIZE = {
    "int8": 1, "uint8": 1, "char": 1, "f8e4m3": 1, "f8e5m2": 1, "half": 2, "bfloat16": 2, "float": 4,
    "int32": 4, "uint32": 4, "int": 4, "double": 8, "int64": 8, "uint64": 8,
}  # fmt: skip
_LEADING = {"size": "size", "bytes": "size", "count": "count", "N": "count", "type": "type", "redop": "redop",
            "op": "redop", "root": "root"}  # fmt: skip
_STATS = ("i_min", "i_max", "i_p99", "i_cv%")
_MAX_SHOWN = 60
_MAX_SAID = 2048  # of a line that is no row: patterns take the square of it


@dataclass(frozen=True)
class RankLine:
    """One `Rank` line: who ran where, on which device. `group` and `pid` are None in versions without them."""

    rank: int
    group: int | None
    pid: int | None
    host: str
    device: int
    bus_id: str
    name: str


@dataclass(frozen=True)
class IterStats:
    """Per-iteration times of -I: microseconds, and the coefficient of variation in percent."""

    min_us: float
    max_us: float
    p99_us: float
    cv_percent: float


@dataclass(frozen=True)
class Half:
    """One half of a row. None: printed as `nan`, or N/A for `wrong`.

    `wrong` is the number of wrong elements (2.13.0 and later), `error` the largest deviation (before that).
    """

    time_us: float | None
    algbw: float | None
    busbw: float | None
    wrong: int | None
    error: float | None = None
    iterations: IterStats | None = None


@dataclass(frozen=True)
class NcclRow:
    """One message size. `size` in bytes; `redop` and `root` are '' and -1 where the version has no such column."""

    size: int
    count: int
    type: str
    redop: str
    root: int
    out_of_place: Half
    in_place: Half | None


@dataclass(frozen=True)
class NcclRun:
    """One table of nccl-tests: what ran where, what was measured, and why it may not be believed.

    `label` is the task label of the lines ('' where there was none). `world` is the number of ranks that the
    Rank lines prove. `complete`: header, every row of the sweep and the summary were read and nothing was refused.
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


@dataclass(frozen=True)
class NcclOutput:
    """Everything that one command printed: its tables, and failures and reasons that belong to none of them."""

    runs: tuple[NcclRun, ...] = ()
    failures: tuple[LaunchFailure, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def singletons(self) -> int:
        """How many times rank 0 ran as a world of its own; 0: other ranks were there, or none said its number."""
        ranks = [line.rank for run in self.runs for line in run.ranks]
        return 0 if any(ranks) else len(ranks)

    @property
    def problems(self) -> tuple[str, ...]:
        """All failures and reasons, one line each."""
        failures = [*self.failures, *(failure for run in self.runs for failure in run.failures)]
        reasons = [*self.reasons, *(reason for run in self.runs for reason in run.reasons)]
        return (*(f"{failure.kind}: {failure.text}" for failure in failures), *reasons)


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth over size/time for so many ranks; KeyError for a collective without one."""
    rule = COLLECTIVES[collective][0]
    return {"2(n-1)/n": 2 * (ranks - 1) / ranks, "(n-1)/n": (ranks - 1) / ranks, "1": 1.0}[rule]


def explain_exit_status(rc: int) -> str:
    """Say what an exit status of nccl-tests means; 128 + N is signal N."""
    if rc in EXIT_CODES:
        return f"exit {rc}: {EXIT_CODES[rc]}"
    if rc > 128:  # the shell's own offset for signals
        return f"exit {rc}: killed by signal {rc - 128}"
    return f"exit {rc}: not an exit code of nccl-tests"


def read(text: str, *, rc: int | None = None, collective: str = "", mpi: str | None = None) -> NcclOutput:
    """Read all that nccl-tests printed: stdout, or stdout and stderr together, labelled or not.

    `rc` is the exit status, where it is known: 0 without a table is a failure. `collective` names what ran
    (`all_reduce`) for versions before 2.16.7, which do not print it. `mpi` is srun's --mpi
    ('' for none), told in launch failures.
    """
    streams, unterminated = _streams(text)
    return _read(streams, unterminated, text, rc=rc, collective=collective, mpi=mpi)


def read_tasks(
    stdout: Mapping[str, str],
    *,
    stderr: str = "",
    rc: int | None = None,
    collective: str = "",
    mpi: str | None = None,
) -> NcclOutput:
    """Read the output of tasks that was kept apart: {label: stdout}; the rest is that of `read`.

    Prefer it to putting the texts together: it knows for each task whether its last line was ended. A task that
    labels its own lines (mpirun) keeps those labels.
    """
    streams: dict[str, list[tuple[int, str]]] = {}
    unterminated: list[tuple[int, str]] = []
    for label, text in [*stdout.items(), ("", stderr)]:
        found, rest = _streams(text)
        unterminated += rest if label else []  # stderr holds no numbers
        for inner, lines in found.items():
            streams.setdefault(inner or label, []).extend(lines)
    whole = "\n".join([*stdout.values(), stderr])
    return _read(streams, unterminated, whole, rc=rc, collective=collective, mpi=mpi)


def _read(
    streams: Mapping[str, list[tuple[int, str]]],
    unterminated: Sequence[tuple[int, str]],
    text: str,
    *,
    rc: int | None,
    collective: str,
    mpi: str | None,
) -> NcclOutput:
    readers = {label: _read_stream(label, lines) for label, lines in streams.items()}
    tables = [table for reader in readers.values() for table in reader.tables]
    orphans = [line for reader in readers.values() for line in reader.orphan_ranks]
    if len(tables) == 1:  # version 1.0: each process prints its own Rank lines
        tables[0].ranks += orphans
    runs = tuple(_conclude(table, collective) for table in tables)
    failures = _of_ranks([failure for reader in readers.values() for failure in reader.failures])
    told = {failure.kind for failure in failures}
    failures += [failure for failure in mpi_errors.explain(text, mpi=mpi) if failure.kind not in told]
    reasons = [f"cut: line {place} is not terminated: {_show(line)}" for place, line in unterminated]
    reasons += [] if len(tables) == 1 else [f"line {n}: Rank line without a table" for n, _ in orphans[:3]]
    if rc is not None and rc != 0:
        failures.append(LaunchFailure("exit code", "", explain_exit_status(rc), "the lines above it say why"))
    if not runs or not any(run.rows for run in runs):
        usage = any(failure.kind == "usage" for failure in failures)
        status = " although it exited 0: an unknown option prints the usage and exits 0" if rc == 0 else ""
        reasons.append(f"no table was printed{', but the usage' if usage else ''}{status}")
    return NcclOutput(runs, tuple(failures), tuple(reasons))


def sweep(first: int, last: int, step: int, *, factor: bool) -> tuple[int, ...]:
    """Return the sizes from `first` to `last`, as nccl-tests steps through them; () if that would not end."""
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
    """Return the label of a line's task ('' without one), and what stands behind it."""
    match = _LABEL.match(line)
    return (str(int(next(filter(None, match.groups())))), line[match.end() :]) if match else ("", line)


def _streams(text: str) -> tuple[dict[str, list[tuple[int, str]]], list[tuple[int, str]]]:
    """Part the lines by label; a last line without an end is given apart, for nothing in it can be trusted."""
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
    r"#\s+Rank\s+(\d{1,18}) (?:Group\s+(-?\d{1,18}) )?(?:Pid\s+(\d{1,18}) )?on\s+(\S+) device\s+(\d{1,18}) "
    r"\[([^\]\s]+)\] (\S.*?)\s*$"
)
_CUT_RANKS = re.compile(r".*\.\.\.\s*$")
_COLUMNS = re.compile(r"#\s+(?:size|bytes)\s+(?:count|N)\s+type\s")
_BOUNDS = re.compile(r"#? *Out of bounds values\s+: (\d{1,18}) (OK|FAILED)\s*$")
_AVERAGE = re.compile(r"#? *Avg bus bandwidth\s+: (\S+) ?(OK|FAILED)?\s*$")
_CONCLUDED = re.compile(r"# Collective test concluded: (\S+)\s*$")
_REDUCED = re.compile(r"# Reducing maxBytes to (\d{1,18}) due to memory limitation\s*$")
# A line of NCCL's own log, also where it is glued to the end of something else (then a host starts with a letter).
_STAMP = r"(?:\[[^\]\n]{8,40}\] )?"
_LOG = r":\d+:\d+ (?:\[-?\d+\] .{0,200}?NCCL (?:INFO|WARN|TRACE|ABORT|PROFILE)\b|NCCL CALL\b)"
_LOG_LINE = re.compile(rf"\s*{_STAMP}\w[\w.-]{{0,255}}{_LOG}|NCCL version ")
_GLUED_LOG = re.compile(rf"{_STAMP}[A-Za-z][\w.-]{{0,255}}{_LOG}")
_DIGITS = re.compile(r"\s*\d+(?:\s|$)")


@dataclass
class _Table:
    """What was read of one table before its rows are believed."""

    label: str
    version: str = ""
    nccl: str = ""
    program: str = ""
    threads: int = 0
    gpus: int = 0
    sizes: tuple[int, ...] = ()
    validation: bool | None = None
    columns: tuple[str, ...] = ()
    ranks: list[tuple[int, RankLine]] = field(default_factory=list)
    rows: list[tuple[int, str]] = field(default_factory=list)
    bounds: int | None = None
    average: str = ""
    failures: list[LaunchFailure] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    cut_ranks: bool = False

    def successor(self) -> _Table:
        """Return an empty table with the same header."""
        return replace(self, rows=[], bounds=None, average="", failures=[], reasons=[])


@dataclass
class _Stream:
    """Reads the lines of one label."""

    label: str
    tables: list[_Table] = field(default_factory=list)
    failures: list[LaunchFailure] = field(default_factory=list)
    orphan_ranks: list[tuple[int, RankLine]] = field(default_factory=list)
    pending: tuple[int, str] | None = None

    @property
    def table(self) -> _Table | None:
        return self.tables[-1] if self.tables else None

    def open(self, kind: str) -> _Table:
        """Return the table that a header line of this kind belongs to; a second one opens the next table."""
        if not self.tables or kind in self.tables[-1].seen or "columns" in self.tables[-1].seen:
            self.tables.append(_Table(self.label))
        self.tables[-1].seen.add(kind)
        return self.tables[-1]


def _read_stream(label: str, lines: Iterable[tuple[int, str]]) -> _Stream:
    stream = _Stream(label)
    for number, line in lines:
        if _LOG_LINE.match(line):
            continue
        body, glued = _part_log(line, stream.table)
        if not body.strip() and not (stream.pending and _is_row(stream.pending[1])):
            continue  # an empty line ends a row that was parted from its end
        if stream.pending:
            first, begun = stream.pending
            stream.pending = None
            if _continues(begun, body, stream.table):
                _take(stream, first, begun + body, open_end=glued)
                continue
            _refuse_fragment(stream.table, first, begun)
        _take(stream, number, body, open_end=glued)
    if stream.pending:
        _refuse_fragment(stream.table, *stream.pending)
    return stream


def _part_log(line: str, table: _Table | None) -> tuple[str, bool]:
    """Cut NCCL's own line off the end of a row that was not finished; True where that was so."""
    if "NCCL" not in line:
        return line, False
    hosts = {rank.host for _, rank in table.ranks} if table else set()
    near = [host for host in hosts if f"{host}:" in line]
    known = [
        match.start() for host in near if (match := re.search(rf"{_STAMP}{re.escape(host)}{_LOG}", line))
    ]
    match = _GLUED_LOG.search(line)
    start = min(known) if known else match.start() if match else None
    if start is None:
        return line, False
    if line[:start].endswith("N/") and line[start : start + 1] == "A":  # 'N/A' and a host: 'N/Avm:'
        start += 1
    return line[:start], True


def _continues(begun: str, body: str, table: _Table | None) -> bool:
    """Tell whether `body` goes on where an interrupted line stopped."""
    if not _is_row(begun):
        return True
    if body.startswith("#") or table is None:
        return False
    return len(_fields(begun + body, table.columns)) <= _width(table.columns)


def _refuse_fragment(table: _Table | None, number: int, text: str) -> None:
    if table:
        table.reasons.append(f"line {number}: row is cut: {_show(text)}")


def _take(stream: _Stream, number: int, line: str, *, open_end: bool) -> None:
    """Put one line where it belongs."""
    table = stream.table
    if open_end or (_is_row(line) and table and len(_fields(line, table.columns)) < _width(table.columns)):
        failure = None if open_end else _failure(line)
        if failure is None:
            stream.pending = (number, line)
            return
    if _is_row(line) and table and table.columns and not _failure(line):
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
    for kind, pattern in _HEADERS:
        match = pattern.match(line)
        if match:
            _take_header(stream.open(kind), kind, match.groups())
            return
    if "Rank" in line and re.match(r"#\s+Rank", line):
        target = stream.table
        if target and _CUT_RANKS.match(line):  # nccl-tests itself cuts the lines of a process at 2048 bytes
            target.cut_ranks = True
        if target:
            target.reasons.append(f"line {number}: Rank line not understood: {_show(line)}")
        return
    if stream.table:
        _take_table_comment(stream.table, number, line)


def _take_rank(stream: _Stream, number: int, match: re.Match[str]) -> None:
    rank, group, pid, host, device, bus_id, name = match.groups()
    line = RankLine(int(rank), _int(group), _int(pid), host, int(device), bus_id, name)
    if stream.table and "columns" not in stream.table.seen:
        stream.table.ranks.append((number, line))
    else:
        stream.orphan_ranks.append((number, line))


def _take_header(table: _Table, kind: str, values: Sequence[str]) -> None:
    if kind == "version":
        table.version, table.nccl = values[0], values[1] or ""
    elif kind == "starting":
        table.program = values[0]
    elif kind == "sizes":
        table.threads, table.gpus = int(values[0]), int(values[1])
        first, last, step = (int(value) for value in values[2:5])
        table.sizes = sweep(first, last, step, factor=values[5] == "factor")
        table.validation = int(values[6]) > 0


def _take_table_comment(table: _Table, number: int, line: str) -> None:
    for pattern, take in _COMMENTS:
        match = pattern.match(line)
        if match:
            problem = take(table, match)
            if problem:
                table.reasons.append(f"line {number}: {problem}: {_show(line)}")
            return


def _take_columns(table: _Table, match: re.Match[str]) -> str:
    table.seen.add("columns")
    columns = tuple(match.string.split()[1:])
    if table.columns and table.columns != columns:
        return "the columns change within the table"
    if not _layout(columns):
        return "columns not understood"
    table.columns = columns
    return ""


def _take_bounds(table: _Table, match: re.Match[str]) -> str:
    table.bounds = int(match[1])
    return "" if (table.bounds > 0) == (match[2] == "FAILED") else "summary contradicts itself"


def _take_average(table: _Table, match: re.Match[str]) -> str:
    table.average = match[1]
    if match[2] == "FAILED":
        text = f"average bus bandwidth {match[1]} GB/s is below 0.9 x NCCL_TESTS_MIN_BW"
        table.failures.append(LaunchFailure("minimum bandwidth", "", text, "judge per size instead"))
    return ""


def _take_concluded(table: _Table, match: re.Match[str]) -> str:
    return f"{table.program} was started" if table.program and match[1] != table.program else ""


def _take_reduced(table: _Table, match: re.Match[str]) -> str:
    table.sizes = tuple(size for size in table.sizes if size <= int(match[1]))
    return "the largest size was cut, the GPU's memory holds no more"


def _take_error(table: _Table, match: re.Match[str]) -> str:
    table.failures.append(LaunchFailure("NCCL", "", match[1].strip(), "set NCCL_DEBUG=INFO and repeat"))
    return ""


_COMMENTS: tuple[tuple[re.Pattern[str], Callable[[_Table, re.Match[str]], str]], ...] = (
    (_COLUMNS, _take_columns),
    (_BOUNDS, _take_bounds),
    (_AVERAGE, _take_average),
    (_CONCLUDED, _take_concluded),
    (_REDUCED, _take_reduced),
    (re.compile(r"# error: (.*)"), _take_error),
)


def _take_other(stream: _Stream, number: int, line: str) -> None:
    failure = _failure(line)
    if failure:
        (stream.table.failures if stream.table else stream.failures).append(failure)
        if _is_row(line) and stream.table:
            stream.table.reasons.append(f"line {number}: row ends in a failure: {_show(line)}")
    elif _is_row(line) and stream.table:
        stream.table.reasons.append(f"line {number}: row before its column header: {_show(line)}")


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _show(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "...")


# --- failures ---------------------------------------------------------------------------------------------

# Where a failure is glued to an unfinished row, its host has to start with a letter: '0node7:' is host node7.
_HOST = r"(?P<host>[A-Za-z][\w.-]*|(?<![\w.-])[\w.-]+)"
_FAILURES = (
    ("NCCL", re.compile(rf"{_HOST}: Test NCCL failure "),
     "the log above it says why; set NCCL_DEBUG=INFO and repeat"),
    ("CUDA", re.compile(rf"{_HOST}: Test CUDA failure "),
     "look for Xids in the kernel log of the host (dmesg | grep -i xid)"),
    ("NCCL", re.compile(r"^(?P<host>)NCCL failure "),  # 1.x
     "the log above it says why; set NCCL_DEBUG=INFO and repeat"),
    ("CUDA", re.compile(r"^(?P<host>)Cuda failure "),  # 1.x
     "look for Xids in the kernel log of the host (dmesg | grep -i xid)"),
    ("timeout", re.compile(rf"{_HOST}: Test timeout \(\d+s\)"),
     "a rank hangs: test the nodes alone, then in pairs"),
    ("relayed", re.compile(r" ?\.\. (?P<host>\S+) pid \d+: Test failure "),
     "the failure above it is the cause"),
    ("too few GPUs", re.compile(r"(?P<host>)Invalid number of GPUs: \d+ requested but only \d+ were found"),
     "ask for the GPUs in the step (--gpus-per-node), or start fewer processes or threads a node"),
    ("usage", re.compile(r"(?P<host>)(?:invalid (?:option|sizes?|type|op)\b|USAGE: )"),
     "this version does not know the option or value; it prints the usage and exits 0"),
    ("NCCL", re.compile(r"(?P<host>)(?:NCCL 2\.7 or later is needed for |Incompatible NCCL versions)"),
     "rebuild nccl-tests against the NCCL that is loaded"),
)  # fmt: skip


# What our payload says of a rank that failed. Others then have nobody to meet, and only say so.
_RANK_FAILED = re.compile(
    r"collective: (?P<rank>rank \d+) on (?P<host>\S+)(?P<gpu> \(GPU \S+\))?: (?P<what>.*)"
)
_SILENT = "no sign of life"
_FORLORN = re.compile(
    r"never came to the rendezvous|rendezvous unreachable|[Cc]onnection (?:closed|reset|refused)"
)


def _rank_failure(match: re.Match[str]) -> LaunchFailure:
    text = f"{match['rank']}{match['gpu'] or ''}: {match['what']}"
    if _FORLORN.search(match["what"]):
        return LaunchFailure("relayed", match["host"], text, "another rank failed before")
    known = mpi_errors.explain(match["what"])
    if known:
        return LaunchFailure(known[0].kind, match["host"], text, known[0].hint)
    return LaunchFailure("a rank failed", match["host"], text, "look at dmesg and nvidia-smi of the node")


def _of_ranks(failures: Sequence[LaunchFailure]) -> list[LaunchFailure]:
    """Leave out what is told of each of many ranks alike, and shared GPUs, which are told once for all ranks."""
    if any(
        _SILENT in failure.text for failure in failures
    ):  # then all deadlines have passed for want of that rank
        failures = [failure for failure in failures if failure.kind != "timeout"]
    found: dict[tuple[str, str], LaunchFailure] = {}
    for failure in failures:
        rank, _, what = failure.text.partition(": ")
        found.setdefault((failure.kind, what if rank.startswith("rank ") else failure.text), failure)
    return [
        failure
        for failure in found.values()
        if not failure.text.partition(": ")[2].startswith("duplicate GPU")
    ]


def _failure(line: str) -> LaunchFailure | None:
    if ranks := _RANK_FAILED.search(line[:_MAX_SAID]):
        return _rank_failure(ranks)
    for kind, pattern, hint in _FAILURES:
        match = pattern.search(line[:_MAX_SAID])
        if match:
            return LaunchFailure(kind, match["host"], line[match.start() :].strip(), hint)
    return None


# --- rows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    leading: tuple[str, ...]
    halves: tuple[tuple[str, ...], ...]
    iters: bool
    stamped: bool
    old: bool  # `error` or `res` instead of `#wrong`
    factor: float  # printed time to microseconds
    cpu_time: bool

    @property
    def width(self) -> int:
        """The number of fields of a row."""
        return len(self.leading) + sum(map(len, self.halves)) + self.iters + 2 * self.stamped


def _layout(columns: Sequence[str]) -> _Layout | None:
    """Return what the column header promises, None where it promises nothing known."""
    names = [*columns]
    stamped = names[-1:] == ["timestamp"]
    names = names[:-1] if stamped else names
    iters = names[-1:] == ["#iters"]
    names = names[:-1] if iters else names
    starts = [place for place, name in enumerate(names) if name in ("time", "cputime")]
    if len(starts) not in (1, 2):
        return None
    leading = tuple(_LEADING.get(name, "?") for name in names[: starts[0]])
    halves = tuple(tuple(names[a:b]) for a, b in zip(starts, [*starts[1:], len(names)], strict=True))
    last = halves[0][3] if len(halves[0]) > 3 else ""  # time, algbw, busbw, then this
    good = all(
        half[1:] in (("algbw", "busbw", last), ("algbw", "busbw", last, *_STATS)) and half == halves[0]
        for half in halves
    )
    known = leading[:3] == ("size", "count", "type") and "?" not in leading
    if not (good and known and last in ("#wrong", "error", "res")):
        return None
    scale = 1000.0 if names[0] == "bytes" else 1.0
    return _Layout(leading, halves, iters, stamped, last != "#wrong", scale, halves[0][0] == "cputime")


def _width(columns: Sequence[str]) -> int:
    layout = _layout(columns)
    return layout.width if layout else 0


def _fields(line: str, columns: Sequence[str]) -> list[str]:
    """Return the fields of a row; the reduction that alltoall and its like leave blank until 2.13 is ''."""
    tokens, layout = line.split(), _layout(columns)
    place = layout.leading.index("redop") if layout and "redop" in layout.leading else len(tokens)
    blank = place < len(tokens) and not _WORD.fullmatch(tokens[place])
    return [*tokens[:place], "", *tokens[place:]] if blank else tokens


_WORD = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"(?:0|[1-9]\d*)(?:\.(\d{1,18}))?(?:e([+-]\d{2,3}))?")
_WHOLE = re.compile(r"0|[1-9]\d*")
_WRONG = re.compile(r"(?:0|[1-9]\d*)(?:\.\d+)?(?:e\+\d{2,3})?")  # %g
_NAN = ("nan", "-nan")
_STAMPS = re.compile(r"\d{4}(?:-\d\d){2} \d\d(?::\d\d){2}")


@dataclass(frozen=True)
class _Number:
    """A printed number and the interval that rounds to it."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> _Number:
        return _Number(self.value * factor, self.low * factor, self.high * factor)

    def meets(self, other: _Number) -> bool:
        slack = 1e-9 * max(abs(self.high), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack


class _BadRowError(Exception):
    """Why a row is refused."""


def _number(text: str) -> _Number | None:
    """Read a printed number; None for nan."""
    if text in _NAN:
        return None
    match = _NUMBER.fullmatch(text)
    if not match:
        raise _BadRowError(f"{text!r} is no number")
    value = float(text)
    unit = 10.0 ** (int(match[2] or 0) - len(match[1] or ""))
    return _Number(value, max(0.0, value - unit / 2), value + unit / 2)


@dataclass(frozen=True)
class _World:
    """What the rows are held against."""

    collective: str
    ranks: int
    layout: _Layout
    columns: tuple[str, ...]


def _row(line: str, world: _World) -> NcclRow:
    """Read one row and prove it; _BadRowError says what is wrong with it."""
    layout = world.layout
    tokens = _fields(line, world.columns)
    if len(tokens) != layout.width:
        raise _BadRowError(f"{len(tokens)} fields instead of {layout.width}")
    if layout.stamped and not _STAMPS.fullmatch(" ".join(tokens[-2:])):
        raise _BadRowError(f"{' '.join(tokens[-2:])!r} is no date and time")
    lead = dict(zip(layout.leading, tokens, strict=False))
    size, count = (_whole(lead[name]) for name in ("size", "count"))
    _prove_count(size, count, lead["type"], world)
    rest = tokens[len(layout.leading) :]
    width = len(layout.halves[0])
    halves = [
        _half(rest[start : start + width], size, world)
        for start in range(0, width * len(layout.halves), width)
    ]
    root = lead.get("root", "-1")
    if root != "-1" and not _WHOLE.fullmatch(root):
        raise _BadRowError(f"{root!r} is no root")
    redop = lead.get("redop", "")
    if redop and not _WORD.fullmatch(redop):
        raise _BadRowError(f"{redop!r} is no reduction")
    return NcclRow(
        size, count, lead["type"], redop, int(root), halves[0], halves[1] if len(halves) > 1 else None
    )


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise _BadRowError(f"{text!r} is no whole number")
    return int(text)


def _prove_count(size: int, count: int, kind: str, world: _World) -> None:
    if kind not in _TYPE_SIZE:
        raise _BadRowError(f"{kind!r} is no data type")
    one = count * _TYPE_SIZE[kind]
    every = one * world.ranks
    fits = {one, every} if not world.collective else {every if COLLECTIVES[world.collective][1] else one}
    if size not in fits:
        raise _BadRowError(f"{count} elements of {kind} do not make {size} B on {world.ranks} ranks")


def _half(tokens: Sequence[str], size: int, world: _World) -> Half:
    printed, algbw, busbw = (_number(token) for token in tokens[:3])
    time = printed.times(world.layout.factor) if printed else None
    _prove_bandwidth(time, algbw, busbw, size, world)
    wrong, error = _wrong(tokens[3], old=world.layout.old)
    return Half(_value(time), _value(algbw), _value(busbw), wrong, error, _stats(tokens[4:]))


def _value(number: _Number | None) -> float | None:
    return number.value if number else None


def _wrong(token: str, *, old: bool) -> tuple[int | None, float | None]:
    if token == "N/A":  # noqa: S105 - not a password
        return None, None
    if old:
        number = _number(token)
        return None, None if number is None else number.value
    if not _WRONG.fullmatch(token):
        raise _BadRowError(f"{token!r} is no number of wrong elements")
    return int(float(token)), None


def _stats(tokens: Sequence[str]) -> IterStats | None:
    if not tokens:
        return None
    numbers = [_number(token) for token in tokens]
    low, high, p99, spread = numbers
    if low is None or high is None or p99 is None or spread is None:
        raise _BadRowError("per-iteration times are nan")
    if low.low > p99.high or p99.low > high.high:
        raise _BadRowError("per-iteration times are out of order")
    return IterStats(low.value, high.value, p99.value, spread.value)


def _prove_bandwidth(
    time: _Number | None, algbw: _Number | None, busbw: _Number | None, size: int, world: _World
) -> None:
    """Hold size, time and both bandwidths against each other, within what printing rounded off."""
    if time is None or algbw is None or busbw is None:
        if size == 0 or (time is not None and time.low <= 0):
            return  # 0 B in 0 us: nothing was measured, and None says so
        raise _BadRowError("time or bandwidth is nan")
    for factor, old in _factors(world):
        share = factor if old else 1.0
        if not world.layout.cpu_time and not _agrees(algbw, size * share, time):
            continue
        if busbw.meets(algbw.times(1.0 if old else factor)):
            return
    raise _BadRowError(
        f"{size} B in {time.value:g} us with algbw {algbw.value:g} and busbw {busbw.value:g} GB/s"
        f" do not agree on {world.ranks} ranks"
    )


def _factors(world: _World) -> Iterator[tuple[float, bool]]:
    """Yield bus factors that may hold, and whether the algorithm bandwidth already has it (until 2.4)."""
    names = [world.collective] if world.collective else [*COLLECTIVES]
    for name in names:
        yield bus_factor(name, world.ranks), name in _NO_ALGBW
        if world.layout.old and name in ("all_gather", "reduce_scatter"):
            yield bus_factor(name, world.ranks), True


def _agrees(algbw: _Number, size: float, time: _Number) -> bool:
    highest = size / time.low / 1e3 if time.low > 0 else float("inf")
    return _Number(0.0, size / time.high / 1e3, highest).meets(algbw) if time.high > 0 else True


# --- the whole table --------------------------------------------------------------------------------------


def _conclude(table: _Table, collective: str) -> NcclRun:
    """Turn what was read into a Run: prove the rows, then the completeness."""
    reasons = [*table.reasons]
    name = _collective(table, collective, reasons)
    world = _ranks(table, reasons)
    layout = _layout(table.columns) if table.columns else None
    rows: list[NcclRow] = []
    if layout and world and name is not None:
        for number, line in table.rows:
            try:
                rows.append(_row(line, _World(name, world, layout, table.columns)))
            except _BadRowError as error:
                reasons.append(f"line {number}: row refused: {error}: {_show(line)}")
    elif table.rows:
        reasons.append(
            f"{len(table.rows)} rows refused: no {'column header' if not layout else 'proven ranks'}"
        )
    average = _average(table, reasons)
    run = NcclRun(
        version=table.version or _version(table, layout), collective=name or "",
        ranks=tuple(line for _, line in table.ranks), rows=tuple(rows), out_of_bounds=table.bounds,
        avg_busbw=average, failures=tuple(table.failures), label=table.label, world=world,
        validation=table.validation, sweep=table.sizes, nccl_version=table.nccl,
    )  # fmt: skip
    return completed(run, reasons)


def completed(run: NcclRun, reasons: Sequence[str]) -> NcclRun:
    """Return the run with its reasons, those of its own completeness added."""
    found = [*reasons, *_missing(run)]
    if not reasons and not run.failures:
        found += _average_disagrees(run)
    return replace(run, reasons=tuple(found), complete=not found and not run.failures and bool(run.rows))


def _missing(run: NcclRun) -> Iterator[str]:
    if not run.rows:
        yield "table has no rows"
    elif not run.sweep:
        yield "the sizes that were asked for are not known: header line missing"
    elif len(run.rows) % len(run.sweep):
        yield f"{len(run.rows)} rows for {len(run.sweep)} sizes: rows are missing"
    if run.out_of_bounds is None:
        yield "no summary line 'Out of bounds values': cut or crashed"
    if run.avg_busbw is None and "Avg" not in "".join(run.reasons):
        yield "no summary line 'Avg bus bandwidth', or it is nan"


def _average_disagrees(run: NcclRun) -> Iterator[str]:
    """The average of all halves is printed too: it shows rows that are lost."""
    halves = [half for row in run.rows for half in (row.out_of_place, row.in_place) if half]
    values = [half.busbw for half in halves if half.busbw is not None]
    if run.avg_busbw is None or not values or len(values) != len(halves):
        return
    mean = sum(values) / len(values)
    slack = 1e-5 * mean + sum(_rounding(value) for value in values) / len(values)
    if abs(mean - run.avg_busbw) > slack:
        yield f"rows average {mean:.6g} GB/s, the summary says {run.avg_busbw:g}: rows are missing"


def _rounding(value: float) -> float:
    """Return the most that printing in a field of six characters took away (getFloatStr of util.cu)."""
    for limit, lost in ((1e3, 0.005), (1e4, 0.05), (1e6, 0.5)):
        if value < limit:
            return lost
    return value / 2


def _collective(table: _Table, asked: str, reasons: list[str]) -> str | None:
    """Return the collective, '' where nobody named it, None where its arithmetic is not known."""
    printed = table.program.rsplit("/", 1)[-1].split("_perf")[0] if table.program else ""
    if printed and asked and printed != asked:
        reasons.append(f"{printed} ran, but {asked} was asked for")
    name = printed or asked
    if name and name not in COLLECTIVES:
        reasons.append(
            f"collective {name!r} is none of {', '.join(COLLECTIVES)}: its bandwidth cannot be proved"
        )
        return None
    if not name:
        reasons.append("the output does not name its collective (before 2.16.7): say which one ran")
    return name


def _ranks(table: _Table, reasons: list[str]) -> int:
    """Return the number of ranks of the table's communicator, 0 where the Rank lines prove none."""
    ranks = [line for _, line in table.ranks]
    if not ranks:
        reasons.append("no Rank lines")
        return 0
    twice = [rank for rank, times in Counter(line.rank for line in ranks).items() if times > 1]
    if twice:
        reasons.append(
            f"rank {twice[0]} appears more than once: several tables without labels (run srun --label)"
        )
        return 0
    first = min(ranks, key=lambda line: line.rank)
    if any(
        line.group != first.group for line in ranks
    ):  # NCCL_TESTS_SPLIT: rank 0 prints its own group's table
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
        number = _number(table.average)
    except _BadRowError:
        reasons.append(f"Avg bus bandwidth {table.average!r} is no number")
        return None
    return number.value if number else None


def _version(table: _Table, layout: _Layout | None) -> str:
    """Tell the version from the grammar, as narrow as the grammar allows."""
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
    return (
        "2.13.4-2.14.0" if any(line.bus_id.startswith("0x") for _, line in table.ranks) else "2.14.1-2.16.6"
    )
