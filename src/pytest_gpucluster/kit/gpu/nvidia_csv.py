"""CSV output of nvidia-smi: tables, rows and cells. Pure. Formats: see nvidia_smi.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pytest_gpucluster.core.errors import ProbeError

NOT_REPORTED = "not reported by this driver"
Reader = Callable[[str, str], Any]  # (cell, unit of the header) -> value; ValueError if it is not a value
# Text instead of a value: NVML's error messages (nvmlErrorString) in brackets, nvidia-smi's own without
_NO_VALUE = re.compile(r"\[.*\]|N/?A|Not (Supported|Available|Found)|Unknown( Error)?|ERR!?|", re.IGNORECASE)
# of a field whose values are words of the driver, like the status "Unknown Error"
_NO_WORD = re.compile(r"\[.*\]|N/?A|Not Supported|", re.IGNORECASE)
# Those that report a feature that the GPU, its driver or a guest lacks
_LACKS = re.compile(
    r"\[?(N/?A|Not Supported|Function Not Found|Requested functionality has been deprecated)\]?",  # since driver 580
    re.IGNORECASE,
)
# Those that say neither why there is no value nor that reading it failed; every other text is an error
_UNSAID = re.compile(r"\[?(Not (Available|Found)|Unknown)\]?", re.IGNORECASE)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?: (\S+))?")
_BUS = re.compile(r"(?:[0-9A-Fa-f]{4})?([0-9A-Fa-f]{4}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")


def number(unit: str = "", scale: float = 1.0) -> Reader:
    """Return a reader of numbers with this unit, in the cell or, with nounits, in the header."""

    def read(cell: str, header_unit: str) -> float:
        match = _NUMBER.fullmatch(cell)
        if not match or (match[2] or header_unit) != unit:
            raise ValueError(cell)
        return float(match[1]) * scale

    return read


def whole(unit: str = "", scale: int = 1) -> Reader:
    """Return a reader of integers with this unit."""

    def read(cell: str, header_unit: str) -> int:
        match = re.fullmatch(r"(\d+)(?: (\S+))?", cell)
        if not match or (match[2] or header_unit) != unit:
            raise ValueError(cell)
        return int(match[1]) * scale

    return read


def text_value(cell: str, _: str) -> str:
    """Return the cell as it is."""
    return cell


def enumeration(cell: str, _: str) -> str:
    """Return the cell as it is, also where another field would have no value."""
    return cell


def either(yes: str, no: str) -> Reader:
    """Return a reader of a boolean in these words."""

    def read(cell: str, _: str) -> bool:
        return {yes: True, no: False}[cell]

    return read


def bus_id(cell: str, _: str = "") -> str:
    """Return a PCI address in the kernel's format: 0000:1b:00.0 for 00000000:1B:00.0; ValueError otherwise."""
    match = _BUS.fullmatch(cell)
    if not match:
        raise ValueError(cell)
    return f"{match[1]}:{match[2]}:{match[3]}.{match[4]}".lower()


def bit_mask(cell: str, _: str) -> int:
    """Return a mask like 0x0000000000000001 as a number."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell):
        raise ValueError(cell)
    return int(cell, 16)


# {other name of a field: the canonical name}
_ALIASES = {
    "gpu_uuid": "uuid",
    "gpu_name": "name",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.current.sm": "clocks.sm",
    "clocks.current.memory": "clocks.mem",
    "clocks.max.memory": "clocks.max.mem",
    "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.default_applications.gr": "clocks.default_applications.graphics",
    "clocks_event_reasons.active": "clocks_throttle_reasons.active",
    "power.requested_limit": "power.limit",
    "gpu.power.requested_limit": "power.limit",
    "used_gpu_memory": "used_memory",
}


@dataclass(frozen=True)
class CsvTable:
    """A CSV of nvidia-smi: rows of {column: (cell, unit of the header)}, and the other lines as messages."""

    rows: tuple[dict[str, tuple[str, str]], ...]
    messages: tuple[str, ...]


def read_csv(text: str, first: str, free: str = "") -> CsvTable:
    """Return the table of `--format=csv`, with or without nounits.

    `first` is the name of the first column, which identifies the header. nvidia-smi quotes nothing, so surplus commas
    of a row belong to the column `free`, which may contain any text. ProbeError if a row is cut or has too many cells.
    """
    rows, messages, header = [], [], list[tuple[str, str]]()
    for line in filter(None, (line.strip() for line in text.splitlines())):
        cells = [sys.intern(cell.strip()) for cell in line.split(",")]  # most are equal on all nodes
        if not header:
            if _column(cells[0])[0] == first:
                header = [_column(cell) for cell in cells]
            else:
                messages.append(line)
            continue
        row = _row(line, cells, [name for name, _ in header], free)
        if row is None:
            messages.append(line)
        else:
            rows.append({name: (cell, unit) for (name, unit), cell in zip(header, row, strict=True)})
    return CsvTable(tuple(rows), tuple(messages))


def _column(cell: str) -> tuple[str, str]:
    """Return the canonical name and the unit of a column like 'memory.total [MiB]'."""
    name, _, unit = cell.partition(" [")
    return _ALIASES.get(name, name), unit.removesuffix("]")


def _row(line: str, cells: list[str], names: list[str], free: str) -> list[str] | None:
    surplus = len(cells) - len(names)
    if surplus < 0:
        if re.match(r"(\d+|GPU-[0-9a-f-]+)\s*,", line):
            raise ProbeError(f"nvidia-smi: a row of {len(cells)} of {len(names)} cells, cut? {line[:80]!r}")
        return None
    if surplus and free not in names:
        raise ProbeError(f"nvidia-smi: a row of {len(cells)} cells under {len(names)} columns: {line[:80]!r}")
    if surplus:
        at = names.index(free)
        cells = [*cells[:at], ", ".join(cells[at : at + surplus + 1]), *cells[at + surplus + 1 :]]
    return cells


def read_cell(row: Mapping[str, tuple[str, str]], column: str, read: Reader) -> tuple[Any, str]:
    """Return (value, '') or (None, the text instead of a value)."""
    if column not in row:
        return None, NOT_REPORTED
    return _parsed_cell(read, *row[column])


@lru_cache(maxsize=1 << 14)
def _parsed_cell(read: Reader, cell: str, unit: str) -> tuple[Any, str]:
    """Return (value, '') or (None, text) of a cell; cached, since most are equal on all GPUs of a fleet."""
    if (_NO_WORD if read is enumeration else _NO_VALUE).fullmatch(cell):
        return None, cell or "an empty cell"
    try:
        return read(cell, unit), ""
    except (ValueError, KeyError):
        return None, f"{cell!r}, which is not understood"


def is_unsupported(text: str) -> bool:
    """Whether this text instead of a value reports an unsupported attribute: '[N/A]', '[Not Supported]', ..."""
    return text == NOT_REPORTED or bool(_LACKS.fullmatch(text))


def is_unsaid(text: str) -> bool:
    """Whether this text instead of a value reports neither an unsupported attribute nor an error: 'Unknown', '[Not Found]'."""
    return bool(_UNSAID.fullmatch(text))
