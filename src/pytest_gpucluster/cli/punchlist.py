"""`gpucluster punchlist`: open findings as work for hands, by trade and place; claim items, report them done, hand units over."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import config
from pytest_gpucluster.cli.command import Argument, Command, argument
from pytest_gpucluster.cli.history import COMMON, cluster_name, history_file
from pytest_gpucluster.core import hostlist, redact
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.run_mark import user
from pytest_gpucluster.core.sanitize import clean
from pytest_gpucluster.core.text import count
from pytest_gpucluster.report.describe import labelled
from pytest_gpucluster.report.history.punchlist import RUNS, entries, handover, proofs_in
from pytest_gpucluster.report.history.regression import when
from pytest_gpucluster.report.history.run_snapshot import plain
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.history.work import CLAIMED, DONE, OPEN, PROVED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.report.history.punchlist import PunchlistRow
    from pytest_gpucluster.report.history.work import WorkItem

FORMULA = tuple("=+-@\t\r")  # what a spreadsheet takes as the beginning of one


def punchlist(args: argparse.Namespace) -> None:
    """Print the list, of one unit with whether it is handed over."""
    with contextlib.closing(History(history_file(args))) as history:
        name = cluster_name(args, history)
        cluster = _cluster_file(args, name)
        nodes = _unit(args.unit, cluster)
        simulated = history.runs(name, 1)[0].simulated
        items = history.work.items(name, simulated=simulated, proved=args.all)
        if nodes is not None:
            items = [it for it in items if set(it.nodes or (it.node,)).intersection(nodes)]
        lines = [_counted(items)]
        if nodes is not None:
            proofs = proofs_in(history, name, nodes, simulated=simulated, runs=args.runs)
            lines.append(handover(args.unit, nodes, [it for it in items if it.state != PROVED], proofs))
    found = entries(items, cluster, args.report_dir)
    head = f"punch list of {labelled(name, simulated=simulated)}"
    if args.format == "csv":
        print(_csv(found), end="")
    elif args.format == "html":
        print(_html(name, found, lines, simulated=simulated))
    else:
        _terminal(head, found, lines)


def _cluster_file(args: argparse.Namespace, name: str) -> Cluster | None:
    """Return the cluster file of --cluster, else the one with the name of the cluster; None where it cannot be read."""
    try:
        return config.load_cluster(args.cluster or name)
    except GpuClusterError as error:  # the history may be on another machine than the cluster file
        print(f"WARNING: places, cables and units are not known: {clean(str(error))}", file=sys.stderr)
    return None


def _unit(unit: str | None, cluster: Cluster | None) -> tuple[str, ...] | None:
    if unit is None:
        return None
    known = cluster.units if cluster is not None else {}
    if unit not in known:
        has = f"it has {', '.join(known)}" if known else "it has none (key `units`)"
        raise ConfigError(f"--unit {unit}: no unit of the cluster file; {has}")
    return hostlist.expand(known[unit])


def _counted(items: Sequence[WorkItem]) -> str:
    by_state = grouped((it.state, it) for it in items)
    states = ", ".join(f"{len(found)} {state}" for state, found in by_state.items())
    return count(len(items), "item") + (f": {states}" if items else "")


def _row(entry: PunchlistRow) -> dict[str, object]:
    item = entry.item
    row = {
        "item": item.id,
        "trade": entry.trade,
        "state": item.state,
        "who": item.who,
        "place": entry.place,
        "nodes": entry.nodes,
        "part": entry.part,
        "serial_numbers": item.serials,
        "check": item.check,
        "finding": item.words,
        "next_step": entry.step,
        "case_file": entry.evidence,
        "note": item.note,
        "since": when(item.since),
        "reopened": item.reopened,
        "proved_by": item.proof,
    }
    return {key: clean(it) if isinstance(it, str) else it for key, it in row.items()}


def _terminal(head: str, found: Sequence[PunchlistRow], lines: Sequence[str]) -> None:
    print(clean(head))
    for trade, rows in grouped((it.trade, _row(it)) for it in found).items():
        print(f"\n{clean(trade)}: {count(len(rows), 'item')}")
        for row in rows:
            print("\n".join(_block(row)))
    print()
    for line in lines:
        print(clean(line))


def _block(row: dict[str, object]) -> list[str]:
    who = f" ({row['who']})" if row["who"] else ""
    again = f" (failed again: {row['reopened']})" if row["reopened"] else ""
    about = [str(row[key]) for key in ("place", "nodes", "part", "serial_numbers") if row[key]]
    labelled_rows = [
        ("next", row["next_step"]),
        ("case file", row["case_file"]),
        ("note", row["note"]),
        ("proved by", row["proved_by"]),
    ]
    return [
        f"{row['item']:>5}  {row['state']}{who}{again}, since {row['since']}: {'; '.join(about)}",
        f"       {row['check']}: {row['finding']}",
        *(f"       {label}: {text}" for label, text in labelled_rows if text),
    ]


def _csv(found: Sequence[PunchlistRow]) -> str:
    """Return the rows as CSV; a cell that a spreadsheet would take as a formula begins with an apostrophe."""
    rows = [_row(it) for it in found]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in rows:
        cells = [str(row[name]) for name in COLUMNS]
        writer.writerow(f"'{cell}" if cell.startswith(FORMULA) else cell for cell in cells)
    return text.getvalue()


COLUMNS = ("item", "trade", "state", "who", "place", "nodes", "part", "serial_numbers", "check", "finding", "next_step", "case_file",
           "note", "since", "reopened", "proved_by")  # fmt: skip


def _html(name: str, found: Sequence[PunchlistRow], lines: Sequence[str], *, simulated: bool) -> str:
    from pytest_gpucluster.report.page import html_page  # the other formats need no templates

    return html_page.template("punchlist.html.j2").render(
        cluster=clean(name),
        now=when(time.time()),
        style=html_page.style(),
        simulated=simulated,
        lines=[*map(clean, lines)],
        trades=[*grouped((clean(it.trade), _row(it)) for it in found).items()],
    )


def change(args: argparse.Namespace) -> None:
    """Give items a state, and print them."""
    who = plain(redact.text(args.by or user()))
    note = plain(redact.text(args.note))
    with contextlib.closing(History(history_file(args))) as history:
        found = history.change_work(args.items, args.state, who=who, note=note, at=time.time())
    for it in found:
        by = f" by {it.who}" if it.who else ""
        print(clean(f"item {it.id}: {it.state}{by}: {it.check} on {it.node or 'the cluster'}"))
    if args.state == DONE:
        print("next: pytest --cluster=NAME --punchlist tests what is done; a passing check proves it")


def _item(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"must be the number of an item, not {text!r}")
    return int(text)


def _below(known: Argument) -> Argument:
    """Return an option of `punchlist` for its subcommands, whose default leaves the value before the subcommand."""
    return Argument(known.names, {**known.attributes, "default": argparse.SUPPRESS}, known.completes)


_BELOW = tuple(map(_below, COMMON))
_ITEMS = argument("items", metavar="ITEM", nargs="+", type=_item, help="number of an item in the list")
_BY = argument("--by", metavar="NAME", default="", help="who does the work (default: the user)")
_NOTE = argument("--note", metavar="TEXT", default="", help="what was done, like 'cable exchanged'")


def _change(name: str, about: str, state: str, *arguments: Argument) -> Command:
    values: dict[str, Any] = {"state": state, "by": "", "note": ""}
    return Command(name, about, change, (_ITEMS, *arguments, *_BELOW), values=values)


COMMAND = Command(
    "punchlist",
    "list open findings of all runs as work for hands, by trade and place; only a passing check closes an item",
    punchlist,
    (
        *COMMON,
        argument(
            "--format",
            choices=("terminal", "csv", "html"),
            default="terminal",
            help="terminal; csv for a spreadsheet; html for paper (%(default)s)",
        ),
        argument(
            "--unit", metavar="NAME", help="only this unit of the cluster file (`units`), and whether it is handed over"
        ),
        argument("--all", action="store_true", help="also the items that are proved"),
        argument(
            "--runs",
            type=_item,
            default=RUNS,
            metavar="N",
            help="with --unit: the number of last runs that must have a proof of each suite (%(default)s)",
        ),
        argument(
            "--report-dir",
            type=Path,
            default=Path("reports"),
            metavar="DIR",
            help="the --report-dir of the runs, for the case files (%(default)s)",
        ),
    ),
    commands=(
        _change("claim", "mark items as being worked on", CLAIMED, _BY),
        _change("done", "report items done: pytest --punchlist tests them", DONE, _BY, _NOTE),
        _change("open", "reopen items that are claimed or done", OPEN, _NOTE),
    ),
)
