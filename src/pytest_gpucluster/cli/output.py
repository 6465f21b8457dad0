"""What the commands print: tables, or one JSON document with --json (docs/cli.md has the keys)."""

from __future__ import annotations

import json
import math
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.sanitize import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def existing(log: Path) -> Path:
    """Return the log that `source` names; GpuClusterError where there is none."""
    if not log.is_file():
        raise GpuClusterError(f"{log}: does not exist; name a --report-dir, the folder of a run or its events.jsonl")
    return log


def print_json(document: dict[str, Any]) -> None:
    """Print a document in ASCII; numbers that JSON does not have are null."""
    print(json.dumps(_finite(document), indent=2, default=str))


def print_clean(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of a file that another user may have written."""
    print_table(headers, [[clean(str(cell)) for cell in row] for row in rows])


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below their headers; on a terminal without room for them, the columns follow one another."""
    from tabulate import tabulate  # slow to import

    from pytest_gpucluster.report.terminal.tables import table

    known, columns = list(rows), get_terminal_size().columns
    text = tabulate(known, headers=headers, tablefmt="plain", disable_numparse=True)
    if sys.stdout.isatty() and max(map(len, text.splitlines()), default=0) > columns:
        text = "\n".join(table(headers, known, columns))
    print(text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
