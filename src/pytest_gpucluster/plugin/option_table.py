"""The options of pytest beside --cluster: their names are Slurm's where Slurm has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.registry import suites

if TYPE_CHECKING:
    from collections.abc import Callable

    Add = Callable[..., object]


def add_all(add: Add) -> None:
    """Call `add` as addoption() for each option."""
    _add_selection(add)
    _add_run(add)
    _add_drain(add)
    add_campaign(add)


def runs_tests(option: Any) -> bool:
    """Return False for options of pytest that only show something: no nodes are allocated."""
    shows = ("collectonly", "setupplan", "show_fixtures_per_test", "cacheshow")
    return not any(getattr(option, name, False) for name in shows)


def attribute_of(name: str, **attributes: Any) -> str:
    """Return the attribute that holds an option, from its name and the arguments of addoption()."""
    found: str = attributes.get("dest") or name.strip("-").replace("-", "_")
    return found


def text_options() -> list[tuple[str, str]]:
    """Return the options with a value, and the attributes that hold them."""
    found: list[tuple[str, str]] = []

    def add(name: str, **attributes: Any) -> None:
        if "metavar" in attributes and "action" not in attributes:
            found.append((name, attribute_of(name, **attributes)))

    add_all(add)
    return found


def _add_selection(add: Add) -> None:
    add("--nodes", metavar="HOSTLIST", help="test only these nodes, like gpu[01-16]; wait for busy ones")
    add(
        "--punchlist",
        action="store_true",
        help="test only what proves the items of the punch list that are done, on their nodes and healthy neighbours; needs a history",
    )
    add("--exclude-nodes", metavar="HOSTLIST", help="do not test these nodes")
    add(
        "--budget",
        metavar="NODEHOURS",
        help="test only as many idle nodes as this pays for, like 40nodeh, the most urgent first: without a good verdict, with a part "
        "changed or booted since it, failed before, tested long ago; needs a history",
    )
    add(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="replace a value of the cluster file for this run, like --set slurm.reservation=maint; may be repeated",
    )
    add("--profile", metavar="NAME|PATH", help="hardware profile of all nodes (default: those of the cluster file)")


def _add_run(add: Add) -> None:
    add("--time", metavar="TIME", dest="time_limit", help="time limit of the allocation: 90s, 10m, 4h, 01:30:00")
    add(
        "--report-dir",
        metavar="DIR",
        default="reports",
        help="each run writes its reports into a folder of its own in this folder: events.jsonl, junit.xml, report.html, "
        "metrics.prom, steps/; DIR/latest is a link to the newest full run, DIR/latest-rerun to the newest other (%(default)s)",
    )
    add(
        "--history",
        metavar="FILE",
        help="store the run in this SQLite file and list what got worse since earlier runs (cluster file: history)",
    )
    for suite in suites():
        for name, attributes in suite.options.items():
            add(name, **attributes)
    add("--slow", action="store_true", help="also run the tests marked slow")
    add(
        "--intrusive",
        action="store_true",
        help="also run the tests marked intrusive, which disturb users for a short time",
    )


def _add_drain(add: Add) -> None:
    add(
        "--drain",
        choices=("off", "dry-run", "apply"),
        help="drain nodes that fail a check with a repair as its action, and fail it again when it is repeated; dry-run only "
        "prints the commands (off; cluster file: drain)",
    )
    add(
        "--evidence",
        choices=("repairs", "all", "off"),
        help="read what a vendor asks for of nodes with a failed part, before they are drained or released: after failures with a "
        "repair as their action, after all, or never (repairs; cluster file: evidence)",
    )
    add(
        "--resume-passing",
        action="store_true",
        default=None,
        help="resume nodes that gpucluster drained and that pass now; to test them, name their reservation: "
        "--set slurm.reservation=NAME",
    )


def add_campaign(add: Add) -> None:
    """Add the options of a campaign, which its runs do not get."""
    add(
        "--campaign",
        metavar="NAME",
        help="test the nodes of a busy cluster in many small runs, as they come free, until each has a verdict; the same "
        "command continues a campaign that was stopped; needs a history",
    )
    add(
        "--campaign-time",
        metavar="TIME",
        help="end the campaign after this time (default: when every node in service has a verdict)",
    )
    add("--campaign-window", metavar="HH:MM-HH:MM", help="start runs only within this daily window, local time")
    add(
        "--max-nodes-at-once",
        metavar="N",
        type=int,
        default=8,
        help="maximum number of nodes of the cluster that all campaigns together test and wait for (%(default)s)",
    )
    add(
        "--untested-for",
        metavar="TIME",
        help="test only nodes of which a selected suite has no good verdict younger than this, like 7d; needs a history",
    )
