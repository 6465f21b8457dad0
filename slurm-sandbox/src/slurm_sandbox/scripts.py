"""Shell scripts of a sandbox, made of files with marks like @STATE@."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write(source: Path, target: Path, values: Mapping[str, str]) -> None:
    """Write a script, executable for all, with `values` in the places of its marks: words of the shell, quoted."""
    text = source.read_text()
    for mark, value in values.items():
        text = text.replace(f"@{mark}@", value)
    target.write_text(text)
    target.chmod(0o755)
