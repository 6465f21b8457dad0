"""What the error lines of the logs of slurmctld, slurmd and slurmdbd mean. Pure.

data/slurm-errors.yaml has the lines with a known meaning, data/slurm-subjects.yaml the subjects whose lines are a warning,
data/slurm-quiet.yaml the classes of lines that mean nothing for the daemon, all with their source in Slurm. A line of none is
unknown. What an unknown or quiet line means is answered by the present state of the node: it says why a node is out of service,
and nothing of one in service.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.known_lines import known, regular_expression
from pytest_gpucluster.core.values import Model, Text
from pytest_gpucluster.kit.node.known_lines import data_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pytest_gpucluster.core.known_lines import KnownLine
    from pytest_gpucluster.suites.controller.facts import LogLine

Daemon = Literal["slurmctld", "slurmd", "slurmdbd"]
SLURMCTLD: Daemon = "slurmctld"
SLURMD: Daemon = "slurmd"
SLURMDBD: Daemon = "slurmdbd"
_PACKAGE = "pytest_gpucluster.suites.controller"


# of Python: these logs are read here, not by awk on the nodes
Expression = Annotated[str, AfterValidator(regular_expression)]


class KnownError(Model):
    """One kind of line; data/slurm-errors.yaml describes the keys."""

    daemon: Literal["slurmctld", "slurmd", "slurmdbd", "any"]
    what: Text
    pattern: Expression
    fails: Literal["drained", "lasting", "running", "never"]
    repeats: int = 0
    cause: Text
    hint: Text
    source: Text
    versions: Text

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern."""
        return re.compile(self.pattern)


class _Keys(Model):
    source: Text
    keys: tuple[Text, ...]


class Subject(Model):
    """What an error line is about; data/slurm-subjects.yaml describes the keys."""

    what: Text
    names: tuple[Expression, ...]
    unless: tuple[Expression, ...]
    cause: Text
    hint: Text
    source: Text

    def matches(self, text: str) -> bool:
        """Return whether a line is about this subject."""
        names, unless = self._compiled
        return bool(names.search(text)) and not unless.search(text)

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        names = "|".join(self.names).replace(
            "KEY", f"(?:{'|'.join(key.removesuffix('s') for key in _keys())})"
        )
        return re.compile(names), re.compile("|".join(self.unless))


class _Quiet(Model):
    kind: Literal["job", "user", "peer", "restart", "node", "plugin", "client"]
    pattern: Expression
    why: Text
    source: Text


@cache
def table(daemon: Daemon) -> tuple[KnownError, ...]:
    """Return the known lines of one daemon, in the order of their rank."""
    found = data_file("slurm-errors.yaml", KnownError, _PACKAGE)
    return tuple(one for one in found if one.daemon in (daemon, "any"))


@cache
def subjects() -> tuple[Subject, ...]:
    """Return the subjects whose error lines are a warning."""
    return data_file("slurm-subjects.yaml", Subject, _PACKAGE)


@cache
def _keys() -> tuple[str, ...]:
    return tuple(key for group in data_file("slurm-keys.yaml", _Keys, _PACKAGE) for key in group.keys)


@cache
def _quiet(*kinds: str) -> re.Pattern[str]:
    """Return one expression of the classes of these kinds, of all without one."""
    found = data_file("slurm-quiet.yaml", _Quiet, _PACKAGE)
    return re.compile("|".join(one.pattern for one in found if one.kind in kinds or not kinds))


# log.c: the level follows the time and, in lines of slurmstepd, the step or the mode; lines of other levels may hold these words
_LEVEL = re.compile(r"(?:\[\S+\] |spank-\w+: )?(?:error|fatal|internal error): ")
# printed as plain information
_OF_INFO = re.compile(
    r"reason set to: Kill task failed|unexpectedly rebooted|onfigured (?:with|to autodetect) \w+ functionality, but"
)
_WARNING = re.compile(r"warning: |WARNING: ")  # of a subject or a known line; the others mean nothing
_NAMED = re.compile(r"\b(?:[Nn]odes?(?:\(s\))?|host)[ =](?P<nodes>[A-Za-z0-9][\w.,\[\]-]*)")


@dataclass(frozen=True)
class LogError:
    """A line of a daemon. `known`: its meaning, from the tables or from the cluster file; None: unknown.

    `nodes` are those that it names. `quiet`: it means nothing for a node that is in service.
    """

    known: KnownError | Subject | KnownLine | None
    line: LogLine
    nodes: tuple[str, ...] = ()
    quiet: bool = False
    daemon: Daemon = SLURMCTLD

    @property
    def ended(self) -> bool:
        """Whether the daemon ended with this line (log.c: fatal() exits)."""
        return self.line.text.startswith("fatal: ")


def sorted_errors(
    lines: Iterable[LogLine],
    daemon: Daemon,
    *,
    window: float,
    of_site: Collection[KnownLine] = (),
    nodes: Collection[str] = (),
) -> Iterator[LogError]:
    """Yield the lines within the window but those of jobs and users, with the nodes of `nodes` that they name.

    `of_site`: the known lines of the cluster file, which decide first.
    """
    for line in lines:
        if line.age is not None and line.age > window:
            continue
        if entry := known(of_site, line.text):
            if entry.action != "ignore":
                yield LogError(entry, line, _named(line.text, nodes))
        elif _LEVEL.match(line.text) or _OF_INFO.search(line.text):
            yield from _sorted(line, daemon, nodes)
        elif _WARNING.match(line.text):
            yield from (one for one in _sorted(line, daemon, nodes) if one.known)


def _sorted(line: LogLine, daemon: Daemon, nodes: Collection[str]) -> Iterator[LogError]:
    for entry in table(daemon):
        if match := entry.compiled.search(line.text):
            named = {name: text for name, text in match.groupdict().items() if text}
            members = _members(named.get("nodes") or named.get("host"), nodes)
            yield LogError(entry, line, members, daemon=daemon)
            return
    if subject := next((one for one in subjects() if one.matches(line.text)), None):
        yield LogError(subject, line, _named(line.text, nodes), daemon=daemon)
        return
    found = LogError(None, line, _named(line.text, nodes), bool(_quiet().search(line.text)), daemon)
    if not (found.quiet and _quiet("job", "user", "client").search(line.text)):
        yield found


def _named(text: str, nodes: Collection[str]) -> tuple[str, ...]:
    found = _NAMED.search(text)
    return _members(found["nodes"] if found else None, nodes)


def _members(text: str | None, nodes: Collection[str]) -> tuple[str, ...]:
    try:
        names = hostlist.expand(text.rstrip(".,")) if text else ()
    except ValueError:
        return ()
    return tuple(name for name in names if name in nodes)
