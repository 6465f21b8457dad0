"""`gpucluster parts`: where each part was, by serial number, and how often it failed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cli.command import JSON, Command, argument, cluster_option
from pytest_gpucluster.cli.history import COMMON, history_file
from pytest_gpucluster.cli.output import print_clean, print_json
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.sanitize import clean
from pytest_gpucluster.report.history.regression import when
from pytest_gpucluster.report.history.store import History

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_gpucluster.report.history.ledger import KnownPart, Ledger, Stay


def parts(args: argparse.Namespace) -> None:
    """Print parts with their stays and failures, the repeat offenders, or the rates of failure."""
    with contextlib.closing(History(history_file(args))) as history:
        ledger = history.ledger
        simulated = ledger.simulated
        if simulated and not args.json:
            print("SIMULATED hardware")
        if args.name is None and not args.lemons:
            _rates(ledger, simulated=simulated, as_json=args.json)
            return
        found = ledger.failed(simulated=simulated) if args.lemons else []
        if args.name is not None:
            found = ledger.find(args.name, simulated=simulated)
            if not found:
                raise ConfigError(
                    f"history {history.path}: no part with the serial number or UUID {args.name!r}, and no node of this name "
                    "with parts: a full run, or -m parts, lists them"
                )
        if args.lemons:
            found = [it for it in found if it.is_lemon]
    if args.json:
        print_json({"simulated": simulated, "parts": [_plain(it) for it in found]})
    elif len(found) == 1 and args.name in (found[0].serial, found[0].identity):
        _one(found[0])
    elif not found:
        print("no part failed again")
    else:
        print_clean(
            ("part", "model", "serial number", "node", "slot", "since", "until", "failures", "last failure"),
            _rows(found, args.name),
        )


def _rates(ledger: Ledger, *, simulated: bool, as_json: bool) -> None:
    columns = ("part", "model", "number", "firmware", "parts", "days", "failures")
    rows = ledger.rates(simulated=simulated, now=time.time())
    if as_json:
        print_json({"simulated": simulated, "rates": [dict(zip(columns, row, strict=True)) for row in rows]})
        return
    print_clean(
        (*columns[:2], "part number", *columns[3:], "days between failures"),
        [(*row[:5], f"{row[5]:.1f}", row[6], f"{row[5] / row[6]:.1f}" if row[6] else "-") for row in rows],
    )


def _rows(found: Sequence[KnownPart], node: str | None) -> list[tuple[object, ...]]:
    """Return a row of each part, by slot: its stays in this node, else its last one."""
    rows = [
        _row(part, stay) for part in found for stay in [it for it in part.stays if it.node == node] or part.stays[-1:]
    ]
    return sorted(rows, key=lambda row: [str(row[at]) for at in (0, 4, 5)]) if node else rows


def _row(part: KnownPart, stay: Stay) -> tuple[object, ...]:
    last = part.failures[-1] if part.failures else None
    moved = "".join(f", then {it.node} {it.slot}" for it in part.stays[part.stays.index(stay) + 1 :][:1])
    return (
        part.kind,
        part.model,
        part.serial or part.identity,
        stay.node,
        stay.slot,
        when(stay.since),
        f"{when(stay.until)}{moved}" if stay.until else "",
        part.episodes or "",
        f"{last.check} on {last.node}, {when(last.time)}" if last else "",
    )


def _one(part: KnownPart) -> None:
    print(clean(part.title))
    for name, value in (("vendor", part.vendor), ("part number", part.number), ("UUID", part.identity)):
        if value and value != part.serial:
            print(clean(f"{name}: {value}"))
    print()
    print_clean(
        ("node", "slot", "firmware", "since", "until"),
        [(it.node, it.slot, it.firmware, when(it.since), when(it.until) if it.until else "") for it in part.stays],
    )
    if part.failures:
        print()
        print_clean(
            ("when", "run", "node", "check", "action", "failed anew", "finding"),
            [(when(it.time), it.run, it.node, it.check, it.action, it.episode, it.words) for it in part.failures],
        )


def _plain(part: KnownPart) -> dict[str, Any]:
    own = ("kind", "serial", "identity", "model", "vendor", "number", "episodes", "is_lemon")
    return {
        **{key: getattr(part, key) for key in own},
        "stays": [it._asdict() for it in part.stays],
        "failures": [it._asdict() for it in part.failures],
    }


PARTS = Command(
    "parts",
    "where each part was, by serial number, and how often it failed; without arguments: failures by model, part number and firmware",
    parts,
    (
        argument("name", nargs="?", metavar="SERIAL|NODE", help="a serial number, the UUID of a GPU, or a node"),
        argument(
            "--lemons", action="store_true", help="parts that failed again after they were good, or in another slot"
        ),
        COMMON[0],
        cluster_option("cluster whose file names the history; parts are those of all clusters in it"),
        JSON,
    ),
)
