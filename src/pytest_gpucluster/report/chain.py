"""The chain of an event log: every line ends with the sha256 of all bytes of the file before it.

`head -n 41 events.jsonl | sha256sum` prints what line 42 ends with. A line that a full disk has cut is part of those bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core import safe_json

if TYPE_CHECKING:
    from pathlib import Path

KEY = "sha256_before"
_SEAL = re.compile(rb', "sha256_before": "([0-9a-f]{64})"\}\n?\Z')


class Chain:
    """The sha256 of the bytes of a log so far, and how many lines they are."""

    def __init__(self) -> None:
        self._hash, self.lines, self.is_cut = hashlib.sha256(), 0, False

    def take(self, data: bytes) -> None:
        """Continue with the next bytes of the file."""
        if data:
            self._hash.update(data)
            self.lines += data.count(b"\n")
            self.is_cut = not data.endswith(b"\n")

    def seal(self, line: str) -> bytes:
        """Return the next line, a JSON object with keys, as it must stand in the file."""
        return f'{line[:-1]}, "{KEY}": "{self.sha256}"}}\n'.encode()

    @property
    def sha256(self) -> str:
        """The hash of all bytes so far."""
        return self._hash.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)


class Checked(NamedTuple):
    """A log whose chain was checked. `problem`: the first line that breaks it, '' for none. `cut`: numbers of cut lines."""

    chain: Chain
    is_chained: bool
    problem: str
    cut: list[int]


def check(path: Path) -> Checked:
    """Check every line of a log against all bytes before it. OSError where it cannot be read."""
    chain, cut, bare, problem, sealed = Chain(), list[int](), list[int](), "", 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            seal = _SEAL.search(line)
            if seal is None:
                (bare if _is_json(line) else cut).append(number)
            else:
                sealed += 1
                if seal[1].decode() != chain.sha256:
                    problem = problem or _broken(path, number)
            chain.take(line)
    if not sealed:
        problem = f"{path}: its lines are not chained: an earlier version of pytest-gpucluster wrote it"
    elif bare and not problem:
        problem = f"{path}:{bare[0]}: the line has no {KEY}: it was added or changed after it was written"
    return Checked(chain, sealed > 0, problem, cut)


def _broken(path: Path, number: int) -> str:
    before = f"line {number - 1}" if number > 1 else "the start of the file"
    return (
        f"{path}:{number}: does not follow from {before}: one of the two was changed, or lines between them were "
        "added or removed"
    )


def _is_json(line: bytes) -> bool:
    try:
        safe_json.loads(line)
    except ValueError:
        return False
    return True
