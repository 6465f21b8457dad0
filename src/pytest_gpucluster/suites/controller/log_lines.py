"""The lines of level error and fatal of Slurm's logs, folded: lines that differ only in numbers and nodes count as one. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.known_lines import known

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_gpucluster.core.known_lines import KnownLine
    from pytest_gpucluster.suites.controller.facts import LogLine

# log.c: the level follows the time and, in lines of slurmstepd, the step or the mode; a debug line may hold the words too
_LEVEL = re.compile(r"(?:\[\S+\] |spank-\w+: )?(?:error|internal error|(?P<fatal>fatal)): ")
_WORD = re.compile(r"[A-Za-z0-9][\w.,-]*(?:\[[\d,-]+\][\w.,-]*)*")
_NUMBER = re.compile(r"\b0x[0-9a-f]+|(?<=SLUID=)\w+|\d+")  # SLUID: of a job, since 25.11
# slurmstepd's [4.batch]; JobId=1_0(4) and StepId=4.0; "JOB 4 ON gpu01"
_JOB = re.compile(r"^\[(\d+)\.|\b(?:job|step)(?: ?id)?[ =](\d+)(?:_\d+)?(?:\((\d+)\))?", re.IGNORECASE)
_SCRIPT = re.compile("prolog|epilog", re.IGNORECASE)  # of the site: their failure is none of the job's


@dataclass(frozen=True)
class ErrorKind:
    """Lines of one kind. `example`: the first; `nodes`: those that the lines name, or whose logs have them.

    `age`: seconds since the newest, None if no line shows a time. `meaning`: words of `known` in the cluster file.
    `own`: jobs of this project caused the lines, as one that requeues itself does.
    """

    example: str
    count: int
    age: float | None
    nodes: tuple[str, ...] = ()
    meaning: str = ""
    own: bool = False

    @property
    def rank(self) -> tuple[bool, float]:
        """The place among other kinds: those of level fatal, then the newest."""
        level = _LEVEL.match(self.example)
        return not (level and level["fatal"]), float("inf") if self.age is None else self.age


def folded(
    lines: Iterable[tuple[str, LogLine]],
    *,
    window: float,
    nodes: Collection[str] = (),
    of_site: Collection[KnownLine] = (),
    jobs: Collection[int] = (),
) -> tuple[ErrorKind, ...]:
    """Fold lines, each with the node whose log has it ('' for a controller's): those of level fatal go first, then the newest.

    `window`: seconds; older lines do not count. `nodes`: the names that a line may hold. `of_site`: the known lines of the
    cluster file; those with `ignore` are left out. `jobs`: the ids of jobs of this project.
    """
    kinds: dict[tuple[bool, str], list[LogLine]] = defaultdict(list)
    places: dict[tuple[bool, str], dict[str, None]] = defaultdict(dict)
    for node, line in lines:
        if not _LEVEL.match(line.text) or (line.age is not None and line.age > window):
            continue
        shape, named = _shape(line.text, nodes)
        kind = (_is_of(jobs, line.text), shape)
        kinds[kind].append(line)
        places[kind] |= dict.fromkeys((node,) if node else named)
    found = []
    for kind, alike in kinds.items():
        entry = known(of_site, alike[0].text)
        if entry is None or entry.action != "ignore":
            age = min((line.age for line in alike if line.age is not None), default=None)
            words = entry.words if entry else ""
            found.append(ErrorKind(alike[0].text, len(alike), age, tuple(places[kind]), words, own=kind[0]))
    return tuple(sorted(found, key=lambda one: one.rank))


def _is_of(jobs: Collection[int], text: str) -> bool:
    """Return whether every job that a line names is one of these, and no script of the site failed."""
    named = [int(number) for match in _JOB.finditer(text) for number in match.groups() if number]
    return bool(named) and not _SCRIPT.search(text) and set(named) <= set(jobs)


def _shape(text: str, nodes: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return a line without its numbers and names of nodes, and these nodes."""
    named: dict[str, None] = {}

    def replaced(word: re.Match[str]) -> str:
        members = _members(word[0].rstrip(".,"), nodes)
        named.update(dict.fromkeys(members))
        return "NODE" if members else word[0]

    return _NUMBER.sub("#", _WORD.sub(replaced, text)), tuple(named)


def _members(word: str, nodes: Collection[str]) -> tuple[str, ...]:
    try:
        names = hostlist.expand(word) if "[" in word else word.split(",")
    except ValueError:
        return ()
    return tuple(name for name in names if name in nodes)
