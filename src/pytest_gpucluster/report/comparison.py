"""What the HTML report shows of earlier runs: filled by whoever keeps the history, shown by report/html.py. Pure data.

    html.write(events, path, comparison=Comparison(source="history.db", last_good="2026-11-20 02:00", rows=(...)))

What is not known stays at its default and is not shown.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Compared", "Comparison"]


@dataclass(frozen=True)
class Compared:
    """One metric of one node beside its earlier values; None: there is none.

    `last_good`: the node's value in its last run without a failure; `previous`: in its last run of any end;
    `fleet`: the median of the cluster's nodes, now or in the last good run, as `Comparison.fleet_is` says.
    `worse`: the change counts as a worsening, even within the threshold; `note` says so in words.
    """

    node: str
    metric: str
    unit: str
    now: float
    device: str = ""
    last_good: float | None = None
    previous: float | None = None
    fleet: float | None = None
    worse: bool = False
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """All that is compared. `last_good` and `previous` name those runs for people: date, id, verdict."""

    source: str
    rows: tuple[Compared, ...] = ()
    last_good: str = ""
    previous: str = ""
    runs: int = 0
    fleet_is: str = "median of the nodes in this run"
    note: str = ""
