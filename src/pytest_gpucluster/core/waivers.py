"""Deviations that a cluster file accepts: `waivers`, each with a reason and the last day on which it holds. Pure."""

from __future__ import annotations

import re
from datetime import date
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from pytest_gpucluster.core.hostlist import expand
from pytest_gpucluster.core.values import Model, NamedNodes, PartPattern, Text

if TYPE_CHECKING:
    from collections.abc import Collection

# The check whose error reports a node that is drained, down or missing.
AVAILABLE = "run.available"


def _day(value: Any) -> date:
    """Return a date; ValueError for anything but YEAR-MONTH-DAY, as pydantic would read 20261231 as seconds."""
    if isinstance(value, date):
        return value
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(value)):
        raise ValueError(f"must be a date like 2027-01-31, not {str(value)!r}")
    return date.fromisoformat(str(value))


class WaiverFile(Model):
    """A deviation that the site accepts until a date: it is reported, and neither fails the run nor drains a node."""

    nodes: NamedNodes | None = Field(
        None, description="Slurm hostlist; default: all nodes, and the checks of the cluster as a whole"
    )
    checks: tuple[PartPattern, ...] = Field(
        min_length=1,
        description="check patterns, or `CHECK/PART` for one part of its findings, like `os.drift/kernel`; `run.available` is a node that is drained, down or missing",
    )
    reason: Text = Field(description="why the site accepts the deviation")
    ticket: Text | None = Field(None, description="ticket or address where the repair is tracked")
    until: Annotated[date, BeforeValidator(_day)] = Field(
        description="the last day on which the waiver holds, like 2027-01-31; an expired waiver is an error of the run"
    )

    @model_validator(mode="after")
    def _accepts_something(self) -> WaiverFile:
        if self.nodes is None and any(not pattern.strip("*/") for pattern in self.checks):
            raise ValueError("checks: all checks on all nodes would accept any cluster; name nodes or checks")
        return self

    @cached_property
    def names(self) -> frozenset[str]:
        """The nodes that the waiver names; empty where it names none."""
        return frozenset(expand(self.nodes)) if self.nodes is not None else frozenset()

    def concerns(self, check: str, node: str) -> bool:
        """Return whether the waiver is for this check of a node ('': of the cluster as a whole), expired or not."""
        at = self.nodes is None or node in self.names
        return at and any(fnmatchcase(check, pattern) for pattern in self.checks)

    def expired(self, today: date) -> bool:
        """Return whether the last day of the waiver is over."""
        return today > self.until

    @property
    def words(self) -> str:
        """What a report says beside a deviation: ticket, last day and reason."""
        ticket = f"{self.ticket}, " if self.ticket else ""
        return f"{ticket}until {self.until.isoformat()}: {self.reason}"


class Waiver(WaiverFile):
    """A waiver and the place where it is written, FILE:LINE."""

    at: str

    def as_dict(self, today: date) -> dict[str, Any]:
        """Return plain types, for the event log."""
        return {
            "nodes": self.nodes or "",
            "checks": list(self.checks),
            "reason": self.reason,
            "ticket": self.ticket or "",
            "until": self.until.isoformat(),
            "at": self.at,
            "expired": self.expired(today),
        }


def covering(waivers: tuple[Waiver, ...], check: str, node: str, today: date) -> Waiver | None:
    """Return the first waiver that holds today for this check of a node ('': of the cluster as a whole)."""
    return next((one for one in waivers if not one.expired(today) and one.concerns(check, node)), None)


def covering_parts(
    waivers: tuple[Waiver, ...], check: str, node: str, parts: Collection[str], today: date
) -> tuple[Waiver, ...]:
    """Return the waivers that hold today for a failure of these parts: one of the check, or one of each part; () where any has none."""
    if whole := covering(waivers, check, node, today):
        return (whole,)
    found = [covering(waivers, f"{check}/{part}", node, today) for part in parts]
    known = [one for one in found if one is not None]
    return tuple({one.at: one for one in known}.values()) if len(known) == len(found) else ()
