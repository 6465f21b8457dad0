"""Rows of the tables of nccl-tests: their layout, and the checks that their values agree. Pure.

Units: microseconds, bytes, GB/s (10**9 B/s). Formats: see nccl_tests.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


@dataclass(frozen=True)
class NcclRow:
    """One message size, in bytes."""

    size: int
    out_of_place: Half
    in_place: Half | None


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth over size/time for this number of ranks; KeyError for an unknown collective."""
    rule = COLLECTIVES[collective][0]
    return {"2(n-1)/n": 2 * (ranks - 1) / ranks, "(n-1)/n": (ranks - 1) / ranks, "1": 1.0}[rule]


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table, as its header names them."""

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


def layout_of(columns: Sequence[str]) -> TableLayout | None:
    """Return the layout of the rows under a column header, None if it is unknown."""
    names = [*columns]
    stamped = names[-1:] == ["timestamp"]
    names = names[:-1] if stamped else names
    iters = names[-1:] == ["#iters"]
    names = names[:-1] if iters else names
    starts = [index for index, name in enumerate(names) if name in ("time", "cputime")]
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
    return TableLayout(leading, halves, iters, stamped, last != "#wrong", scale, halves[0][0] == "cputime")


def fields(line: str, layout: TableLayout | None) -> list[str]:
    """Return the fields of a row; '' stands for the reduction that some collectives leave blank until 2.13."""
    tokens = line.split()
    index = layout.leading.index("redop") if layout and "redop" in layout.leading else len(tokens)
    blank = index < len(tokens) and not _WORD.fullmatch(tokens[index])
    return [*tokens[:index], "", *tokens[index:]] if blank else tokens


_WORD = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"(?:0|[1-9]\d*)(?:\.(\d{1,18}))?(?:e([+-]\d{2,3}))?")
_WHOLE = re.compile(r"0|[1-9]\d*")
_WRONG = re.compile(r"(?:0|[1-9]\d*)(?:\.\d+)?(?:e\+\d{2,3})?")  # %g
_NAN = ("nan", "-nan")
_STAMPS = re.compile(r"\d{4}(?:-\d\d){2} \d\d(?::\d\d){2}")


@dataclass(frozen=True)
class _Number:
    """A printed number and the interval of the values that round to it."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> _Number:
        return _Number(self.value * factor, self.low * factor, self.high * factor)

    def meets(self, other: _Number) -> bool:
        slack = 1e-9 * max(abs(self.high), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack


class BadRowError(Exception):
    """The reason to reject a row."""


def read_number(text: str) -> _Number | None:
    """Return a printed number; None for nan."""
    if text in _NAN:
        return None
    match = _NUMBER.fullmatch(text)
    if not match:
        raise BadRowError(f"{text!r} is not a number")
    value = float(text)
    unit = 10.0 ** (int(match[2] or 0) - len(match[1] or ""))
    return _Number(value, max(0.0, value - unit / 2), value + unit / 2)


@dataclass(frozen=True)
class TableFacts:
    """The table's properties that its rows must agree with."""

    collective: str
    ranks: int
    layout: TableLayout


def read_row(line: str, table: TableFacts) -> NcclRow:
    """Return one validated row; BadRowError if its values do not agree."""
    layout = table.layout
    tokens = fields(line, layout)
    if len(tokens) != layout.width:
        raise BadRowError(f"{len(tokens)} fields instead of {layout.width}")
    if layout.stamped and not _STAMPS.fullmatch(" ".join(tokens[-2:])):
        raise BadRowError(f"{' '.join(tokens[-2:])!r} is not a date and time")
    lead = dict(zip(layout.leading, tokens, strict=False))
    size, count = (_whole(lead[name]) for name in ("size", "count"))
    _check_count(size, count, lead["type"], table)
    rest = tokens[len(layout.leading) :]
    width = len(layout.halves[0])
    halves = [_half(rest[width * n : width * (n + 1)], size, table) for n in range(len(layout.halves))]
    root = lead.get("root", "-1")
    if root != "-1" and not _WHOLE.fullmatch(root):
        raise BadRowError(f"{root!r} is not a root rank")
    redop = lead.get("redop", "")
    if redop and not _WORD.fullmatch(redop):
        raise BadRowError(f"{redop!r} is not a reduction")
    return NcclRow(size, halves[0], halves[1] if len(halves) > 1 else None)


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise BadRowError(f"{text!r} is not an integer")
    return int(text)


def _check_count(size: int, count: int, dtype: str, table: TableFacts) -> None:
    if dtype not in _TYPE_SIZE:
        raise BadRowError(f"{dtype!r} is not a data type")
    one = count * _TYPE_SIZE[dtype]
    every = one * table.ranks
    fits = {one, every} if not table.collective else {every if COLLECTIVES[table.collective][1] else one}
    if size not in fits:
        raise BadRowError(f"{count} elements of type {dtype} are not {size} B on {table.ranks} ranks")


def _half(tokens: Sequence[str], size: int, table: TableFacts) -> Half:
    printed, algbw, busbw = (read_number(token) for token in tokens[:3])
    time = printed.times(table.layout.factor) if printed else None
    _check_bandwidth(time, algbw, busbw, size, table)
    wrong, error = _wrong(tokens[3], old=table.layout.old)
    _check_times([read_number(token) for token in tokens[4:]])
    return Half(_value(time), _value(algbw), _value(busbw), wrong, error)


def _value(number: _Number | None) -> float | None:
    return number.value if number else None


def _wrong(token: str, *, old: bool) -> tuple[int | None, float | None]:
    if token == "N/A":  # noqa: S105 - not a password
        return None, None
    if old:
        return None, _value(read_number(token))
    if not _WRONG.fullmatch(token):
        raise BadRowError(f"{token!r} is not a number of wrong elements")
    return int(float(token)), None


def _check_times(printed: Sequence[_Number | None]) -> None:
    """Raise BadRowError unless the times of each iteration are in order: lowest, highest, 99th percentile, variation."""
    numbers = [number for number in printed if number]
    if len(numbers) < len(printed):
        raise BadRowError("per-iteration times are nan")
    if numbers and (numbers[0].low > numbers[2].high or numbers[2].low > numbers[1].high):
        raise BadRowError("per-iteration times are out of order")


def _check_bandwidth(
    time: _Number | None, algbw: _Number | None, busbw: _Number | None, size: int, table: TableFacts
) -> None:
    """Raise BadRowError unless size, time and both bandwidths agree within the rounding of the printed values."""
    if time is None or algbw is None or busbw is None:
        if size == 0 or (time is not None and time.low <= 0):
            return  # 0 B in 0 us: nothing was measured
        raise BadRowError("time or bandwidth is nan")
    for factor, old in _factors(table):
        share = factor if old else 1.0
        if not table.layout.cpu_time and not _agrees(algbw, size * share, time):
            continue
        if busbw.meets(algbw.times(1.0 if old else factor)):
            return
    raise BadRowError(
        f"{size} B in {time.value:g} us with algbw {algbw.value:g} and busbw {busbw.value:g} GB/s"
        f" do not agree on {table.ranks} ranks"
    )


def _factors(table: TableFacts) -> Iterator[tuple[float, bool]]:
    """Yield the possible bus factors, and whether the algorithm bandwidth already includes it (until 2.4)."""
    names = [table.collective] if table.collective else [*COLLECTIVES]
    for name in names:
        yield bus_factor(name, table.ranks), name in _NO_ALGBW
        if table.layout.old and name in ("all_gather", "reduce_scatter"):
            yield bus_factor(name, table.ranks), True


def _agrees(algbw: _Number, size: float, time: _Number) -> bool:
    highest = size / time.low / 1e3 if time.low > 0 else float("inf")
    return _Number(0.0, size / time.high / 1e3, highest).meets(algbw) if time.high > 0 else True
