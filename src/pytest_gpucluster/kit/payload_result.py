"""The results of the tasks of one payload step, for the checks of the framework suites. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.majority import decides

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Fact = Mapping[str, Any]

MAX_LINE = 300
# slurmstepd's own lines: 'slurmstepd: error: ...', since 25.05 '[TIME] error: ...' as in its log
_OF_SLURM = re.compile(r"slurmstepd|\[\d{4}-\d\d-\d\dT[^]]*\] (?:error|fatal): ")
TELLING = re.compile(r"[Ee]rror|[Cc]annot|[Nn]ot found|does not|[Ff]ailed|Killed")


@dataclass(frozen=True)
class PayloadTask:
    """One Slurm task: its facts, one mapping a line of JSON, and how it ended. `words`: what it wrote last to stderr."""

    task: int
    node: str
    rc: int | None
    signal: int | None
    facts: tuple[Fact, ...]
    words: str = ""

    def ending(self) -> str:
        """Return how the task ended, as text."""
        if self.signal is not None:
            return f"ended by signal {self.signal} ({signal_name(self.signal)})"
        if self.rc is None:
            return "never ended"
        message = f": {self.words}" if self.words and self.rc else ""
        return f"exit status {self.rc}{message}"


@dataclass(frozen=True)
class PayloadResult:
    """One step: `key` is the payload's mark, `problem` why the step did not end by itself or did not start.

    `hint`: what is known of the messages of a step that failed, in one line.
    """

    key: str
    nodes: tuple[str, ...]
    ntasks: int
    tasks: tuple[PayloadTask, ...] = ()
    problem: str = ""
    command: str = ""
    seconds: float = 0.0
    rc: int = 0
    hint: str = ""

    @property
    def failure(self) -> str:
        """Why the step failed as a whole, in one line; '' where it ended with 0."""
        return self.problem or (self.rc and (self.hint or f"the step ended with {self.rc}")) or ""

    def facts(self, kind: str) -> list[Fact]:
        """Return all facts of a kind, sorted by rank."""
        found = [
            fact
            for task in self.tasks
            for fact in task.facts
            # a rank that is not a number is not from the payload
            if fact.get(self.key) == kind and isinstance(fact.get("rank", -1), int)
        ]
        return sorted(found, key=lambda fact: int(fact.get("rank", -1)))

    def of_node(self, node: str, kind: str) -> list[Fact]:
        """Return the facts of a kind from one node."""
        return [fact for fact in self.facts(kind) if fact.get("node") == node]

    def last_facts(self, node: str = "") -> dict[str, Fact]:
        """Return {kind: its last fact}, of one node or of all."""
        told = (fact for task in self.tasks for fact in task.facts)
        return {str(fact[self.key]): fact for fact in told if not node or fact.get("node") == node}

    def by_rank(self, kind: str) -> dict[int, Fact]:
        """Return {rank: fact}; the last one for a rank with several."""
        return {int(fact["rank"]): fact for fact in self.facts(kind)}

    def silence(self, node: str) -> str:
        """Return why a node sent no result."""
        tasks = [task for task in self.tasks if task.node == node]
        bad = next((task for task in tasks if task.rc != 0), None)
        if bad is not None:
            return f"task {bad.task}: {bad.ending()}"
        return self.problem or self.hint or ("sent no result" if tasks else "no task started there")


def read_facts(text: str, key: str) -> tuple[Fact, ...]:
    """Return the lines of JSON that have the payload's key; other lines are output of the framework."""
    facts = []
    for line in text.splitlines():
        start = line.find(f'{{"{key}": ')
        if start < 0:
            continue
        try:
            facts.append(jsontext.loads(line[start:]))
        except ValueError:
            continue  # cut; the check reports the missing fact
    return tuple(facts)


def last_stderr_line(stderr: str) -> str:
    """Return the last line of a program that tells of an error, else its last line that is not empty; cut."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    words = [line for line in lines if not _OF_SLURM.match(line)] or lines
    telling = [line for line in words if TELLING.search(line)] or words
    return telling[-1][:MAX_LINE] if telling else ""


def most_common(values: Iterable[str]) -> str:
    """Return the value of at least two thirds (see core/majority.py), '' if there is none."""
    known = list(values)
    return next((value for value in known if decides(known.count(value), len(known))), "")


def signal_name(number: int) -> str:
    """Return the name of a signal, like SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
