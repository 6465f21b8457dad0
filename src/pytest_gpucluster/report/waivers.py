"""What the waivers of the cluster file cover in a run, which of them have expired, and which cover nothing. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.safe_json import as_dicts, as_list
from pytest_gpucluster.report.describe import folded, for_nodes
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.run_model import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucluster.report.run_model import Run


@dataclass(frozen=True)
class Covered:
    """Nodes on which a check failed alike, or broke, and a waiver covers it. `message` has NODE for the name."""

    check: str
    outcome: str
    message: str
    nodes: list[str] = field(default_factory=list)

    @property
    def finding(self) -> str:
        """What was found, with the nodes."""
        return for_nodes(self.message, self.nodes)


@dataclass
class Use:
    """One waiver of the cluster file, and what it covers in the run."""

    at: str
    nodes: str = ""
    checks: tuple[str, ...] = ()
    reason: str = ""
    ticket: str = ""
    until: str = ""
    expired: bool = False
    covered: dict[tuple[str, str, str], Covered] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Ticket, last day and reason."""
        if not self.until:  # of a log that does not list its waivers
            return self.reason
        return (
            f"{self.ticket}, until {self.until}: {self.reason}" if self.ticket else f"until {self.until}: {self.reason}"
        )

    def lines(self) -> Iterator[str]:
        """Yield a line for each deviation that is covered."""
        for one in self.covered.values():
            yield f"{one.check} on {folded(one.nodes)}: {one.finding} ({self.words})"

    def concerns(self, ends: Iterable[tuple[str, str]]) -> bool:
        """Return whether the waiver is for one of these (check, node), expired or not."""
        try:
            names = set(hostlist.expand(self.nodes)) if self.nodes else None
        except ValueError:  # of a damaged log
            return True
        return any(
            (names is None or node in names)
            and any(fnmatchcase(check, pattern.partition("/")[0]) for pattern in self.checks)
            for check, node in ends
        )


def all_waivers(run: Run) -> list[Use]:
    """Return the waivers of the cluster file in their order, with what they cover."""
    found = {one_line(it.get("at")): _read(it) for it in as_dicts(run.start.get("waivers"))}
    for result in run.results:
        if (waiver := result.waiver) is None:
            continue
        node = result.node or CLUSTER
        message = one_line(result.brief)
        like = message.replace(result.node, "NODE") if result.node else message
        key = one_line(result.check), waiver.outcome, like
        for at in map(one_line, waiver.at):
            use = found.setdefault(at, Use(at, reason=one_line(waiver.words)))
            use.covered.setdefault(key, Covered(*key)).nodes.append(one_line(node))
    return list(found.values())


def uses(run: Run) -> list[Use]:
    """Return the waivers that cover something in the run."""
    return [use for use in all_waivers(run) if use.covered]


def expired(run: Run) -> list[str]:
    """Return an error for each expired waiver that concerns the run: a full run, or one of its results."""
    over = [use for use in all_waivers(run) if use.expired]
    if over and not run.start.get("full"):
        ends = {(result.check, result.node) for result in run.results}
        over = [use for use in over if use.concerns(ends)]
    return [
        f"{use.at}: the waiver of {_scope(use)}{_ticket(use)} expired on {use.until} ({use.reason}): "
        "repair what it accepts and remove it, or set another date"
        for use in over
    ]


def unused(run: Run) -> list[str]:
    """Return a warning for each waiver that covers nothing in a full run."""
    if not run.start.get("full"):
        return []
    return [
        f"{use.at}: the waiver of {_scope(use)}{_ticket(use)} matches nothing that failed: remove it"
        for use in all_waivers(run)
        if not use.covered and not use.expired
    ]


def _scope(use: Use) -> str:
    return f"{', '.join(use.checks)} on {use.nodes or 'all nodes'}"


def _ticket(use: Use) -> str:
    return f" ({use.ticket})" if use.ticket else ""


def _read(waiver: dict[str, Any]) -> Use:
    checks = tuple(map(one_line, as_list(waiver.get("checks"))))
    at, nodes, reason, ticket, until = (
        one_line(waiver.get(key)) for key in ("at", "nodes", "reason", "ticket", "until")
    )
    return Use(at, nodes, checks, reason, ticket, until, expired=waiver.get("expired") is True)
