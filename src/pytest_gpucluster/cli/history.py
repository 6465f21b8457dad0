"""`gpucluster history` and `gpucluster compare`: the runs that --history has stored.

Exit status of compare: 0 nothing got worse, 3 something did; errors as in the other commands.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import config
from pytest_gpucluster.cli.command import JSON, Command, argument, cluster_option, one_of
from pytest_gpucluster.cli.output import print_clean, print_json
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.sanitize import clean
from pytest_gpucluster.core.text import count, some
from pytest_gpucluster.report.describe import labelled, number
from pytest_gpucluster.report.history.fleet_runs import MAX_RUNS, read_fleet
from pytest_gpucluster.report.history.history_file import MIGRATIONS
from pytest_gpucluster.report.history.regression import fold, share, when
from pytest_gpucluster.report.history.store import LAST, LAST_GOOD, History
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.shared_causes import of_history
from pytest_gpucluster.report.terminal.night import night

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.report.history.regression import Past, Worse
    from pytest_gpucluster.report.history.run_snapshot import ItemMetric
    from pytest_gpucluster.report.history.store import MetricHistory

WORSE = 3
VARIABLE = "GPUCLUSTER_HISTORY"
MAX_RED = 20
RUNS = 20
ALL_RUNS = 2**31 - 1
_BARS = "▁▂▃▄▅▆▇█"


def history(args: argparse.Namespace) -> None:
    """Show runs or a node, or import, delete or accept runs, or convert what an earlier version wrote."""
    _refuse_mixed(args)
    if args.convert:
        _convert_logs(args.convert)
        return
    with _open(args, create=bool(args.logs), convert=args.convert is not None) as found:
        if args.convert is not None:
            now = len(MIGRATIONS)
            done = (
                f"converted from schema {found.converted} to {now}" if found.converted < now else "nothing to convert"
            )
            _print(f"{found.path}: {done}")
        elif args.logs:
            _import(found, args.logs)
        elif args.keep:
            _print(f"{found.path}: {found.keep(args.keep)} runs deleted")
        elif args.accept:
            _accept(found, args)
        elif args.night or args.shared:
            cluster, runs = cluster_name(args, found), args.runs or RUNS
            lines = night(found, cluster) if args.night else of_history(found, cluster, runs).lines(verbose=True)
            for line in lines:
                _print(line)
        elif args.html:
            _page(found, cluster_name(args, found), args)
        else:
            _show(found, cluster_name(args, found), args)


def _refuse_mixed(args: argparse.Namespace) -> None:
    others = (args.logs, args.keep, args.accept, args.night, args.html, args.node, args.convert is not None)
    if args.intermittent and any(others):
        raise ConfigError(
            "--intermittent judges all nodes of stored runs: leave out NODE and options that do something else"
        )


def _show(found: History, cluster: str, args: argparse.Namespace) -> None:
    if args.intermittent:
        _intermittent(found, cluster, args)
    elif args.node is None:
        _runs(found, cluster, args)
    else:
        _node(found, cluster, args)


def compare(args: argparse.Namespace) -> int:
    """Compare run B with run A; return WORSE if something got worse."""
    with _open(args) as found:
        cluster = cluster_name(args, found)
        later = found.find(cluster, args.b)
        earlier = None
        if args.a is not None:
            earlier = found.find(cluster, args.a, before=later if args.a in (LAST, LAST_GOOD) else None)
            if earlier.run == later.run:
                raise ConfigError(f"run {later.run} is compared with itself: name two runs")
        comparison = found.compare(later, earlier)
        if not comparison.against:
            raise ConfigError(comparison.head)
        earlier = earlier or comparison.last_good or comparison.against[0]
    if args.json:
        print_json(
            {
                "a": _past(earlier),
                "b": _past(later),
                "worse": [*map(_change, comparison.worse)],
                "better": [*map(_change, comparison.better)],
                "failed": [{"node": it.node, "check": it.check, "outcome": it.now} for it in comparison.turned],
            }
        )
        return WORSE if comparison.lines() else 0
    _print(f"A  {_about(earlier)}" if args.a is not None else comparison.head)
    _print(f"B  {_about(later)}")
    for line in ("", *comparison.table(get_terminal_size().columns, constant=args.all, more="--all"), ""):
        _print(line)
    for word, lines in (("", comparison.lines()), ("better: ", [it.text for it in comparison.better])):
        for line in lines:
            _print(f"{word}{line}")
    if new := {it.item.check for it in comparison.changes if it.trend == "new"}:
        _print(f"not compared, since only B has them: metrics of {some(sorted(new))}")
    if not comparison.lines():
        _print(comparison.verdict() or "history: the two runs have no metric in common")
    return WORSE if comparison.lines() else 0


# --- which file, which cluster


@contextlib.contextmanager
def _open(args: argparse.Namespace, *, create: bool = False, convert: bool = False) -> Iterator[History]:
    with contextlib.closing(History(history_file(args), create=create, convert=convert)) as found:
        yield found


def history_file(args: argparse.Namespace) -> Path:
    """Return the file of --history, of the variable, or of the cluster file; ConfigError for none."""
    if args.history is not None:
        return Path(args.history).expanduser()
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    if args.cluster is not None:
        key = config.load_cluster(args.cluster).history
        if key is not None:
            return Path(key).expanduser()
    raise ConfigError(f"no history file: use --history FILE, set {VARIABLE}, or --cluster with `history` in its file")


def cluster_name(args: argparse.Namespace, found: History) -> str:
    """Return the name of the cluster whose runs are meant; ConfigError where it is not clear or has none."""
    names = found.clusters()
    if args.cluster is None:
        if len(names) == 1:
            return names[0]
        has = f"has clusters {', '.join(names)}: choose with --cluster" if names else "holds no run yet"
        raise ConfigError(f"history {found.path}: {has}")
    if args.cluster in names:
        return str(args.cluster)
    with contextlib.suppress(ConfigError):
        name = config.load_cluster(args.cluster).name
        if name in names:
            return name
    raise ConfigError(f"history {found.path}: no run of cluster {args.cluster}; it has: {', '.join(names) or 'none'}")


# --- changes


def _import(found: History, logs: Sequence[Path]) -> None:
    from pytest_gpucluster.report.history.run_snapshot import recorded
    from pytest_gpucluster.report.machine.events import read_log  # only here

    runs = []
    for path in logs:
        try:
            runs.append((recorded(read_log(path), str(path)), path))
        except OSError as error:
            raise GpuClusterError(f"{path}: cannot be read ({error.strerror})") from error
    for run, path in sorted(runs, key=lambda it: it[0].started):  # each is compared with those before it
        note = "" if run.complete else ", incomplete: it never serves as a baseline"
        new = found.add(run)
        there = "stored" if new else "is stored already"
        _print(f"{path}: run {run.run} of cluster {run.cluster} {there}{note}")
        for line in (*found.ledger.news(run), *found.work.news(run)) if new else ():
            _print(line)


def _convert_logs(logs: Sequence[Path]) -> None:
    from pytest_gpucluster.report.machine.convert import convert_log  # only here

    for path in logs:
        try:
            _print(f"{path}: {'converted' if convert_log(path) else 'nothing to convert'}")
        except OSError as error:
            raise GpuClusterError(f"{path}: cannot be read ({error.strerror})") from error


def _page(found: History, cluster: str, args: argparse.Namespace) -> None:
    if args.node is not None:
        raise ConfigError("--html shows all nodes: leave out NODE, or --html")
    from pytest_gpucluster.report.page import html_fleet  # the other commands need no templates

    fleet = read_fleet(found, cluster, now=time.time(), most=args.runs or MAX_RUNS)
    html_fleet.write(fleet, args.html)
    runs, nodes = len(fleet.runs), len(fleet.states.keys() - {""})
    _print(f"{args.html}: written: {count(runs, 'run')} of {count(nodes, 'node')} of cluster {cluster}")


def _intermittent(found: History, cluster: str, args: argparse.Namespace) -> None:
    from pytest_gpucluster.cli.intermittent import show_intermittent  # only here
    from pytest_gpucluster.report.history.slow_series import intermittent

    table = intermittent(found, cluster, most=args.runs or ALL_RUNS, pattern=args.metric or "*")
    show_intermittent(table, cluster, as_json=args.json)


def _accept(found: History, args: argparse.Namespace) -> None:
    cluster = cluster_name(args, found)
    past = found.find(cluster, args.accept)
    if args.node is not None and not found.node_runs(cluster, _name(args.node), 1):
        raise _unknown(found, cluster, args.node)
    found.accept(past, None if args.node is None else _name(args.node))
    _print(f"{args.node or 'all nodes'} of cluster {cluster}: baselines begin with run {past.run} from here on")


# --- output


def _about(past: Past) -> str:
    note = "simulated, " if past.simulated else ""
    errors, nodes = count(past.error, "error"), count(past.nodes, "node")
    counts = f"{past.passed} passed, {past.failed} failed, {errors}, {past.unjudged} not judged"
    return f"{past.run}  {when(past.started)}  {note}{past.outcome}: {counts} on {nodes}"


def _past(past: Past) -> dict[str, Any]:
    return {
        "run": past.run,
        "cluster": past.cluster,
        "started": past.started,
        "outcome": past.outcome,
        "simulated": past.simulated,
        "exit": past.exit,
        "nodes": past.nodes,
        "passed": past.passed,
        "failed": past.failed,
        "errors": past.error,
        "not_judged": past.unjudged,
    }


def _change(worse: Worse) -> dict[str, Any]:
    """Return what got worse, or better."""
    change = worse.change
    return {
        "where": worse.where,
        **_metric(change.item),
        "now": change.metric.number,
        "before": change.judged.level,
        "distance": change.judged.distance,
        "parts": worse.parts,
        "text": worse.text,
    }


def _metric(item: ItemMetric) -> dict[str, str]:
    metric = item.metric
    return {"check": item.check, "metric": metric.name, "device": metric.device, "unit": metric.unit}


def _runs(found: History, cluster: str, args: argparse.Namespace) -> None:
    runs = found.runs(cluster, args.runs or RUNS)
    if args.json:
        print_json({"cluster": cluster, "runs": [*map(_past, runs)]})
        return
    rows = [
        (
            it.run,
            when(it.started),
            ("simulated " if it.simulated else "") + it.outcome,
            it.nodes,
            it.passed,
            it.failed,
            it.error,
            it.unjudged,
        )
        for it in reversed(runs)
    ]
    print_clean(("run", "began", "was", "nodes", "passed", "failed", "errors", "not judged"), rows)


def _node(found: History, cluster: str, args: argparse.Namespace) -> None:
    node = _name(args.node)
    runs = found.node_runs(cluster, node, args.runs or RUNS)
    if not runs:
        raise _unknown(found, cluster, args.node)
    simulated = runs[0][0].simulated
    runs = [(past, counts) for past, counts in runs if past.simulated == simulated]
    red = found.node_red(cluster, node, [past.run for past, _ in runs])
    metrics = [
        it
        for it in found.node_values(cluster, node, simulated=simulated, count=args.runs or RUNS)
        if it.values and (args.metric is None or fnmatchcase(it.item.metric.name, args.metric))
    ]
    acts = found.node_acts(cluster, node, simulated=simulated)
    if args.json:
        print_json(
            {
                "cluster": cluster,
                "node": node,
                "acts": [dict(zip(("time", "result", "user", "run", "reason"), act, strict=True)) for act in acts],
                "simulated": simulated,
                "runs": [
                    {
                        "run": past.run,
                        "started": past.started,
                        "outcome": past.outcome,
                        "good": bool(counts["good"]),
                        "passed": counts["passed"],
                        "failed": counts["failed"],
                        "errors": counts["error"],
                        "not_judged": counts["unjudged"],
                    }
                    for past, counts in runs
                ],
                "failures": [dict(zip(("run", "check", "outcome", "message"), row, strict=True)) for row in red],
                "metrics": [
                    {**_metric(it.item), "values": [{"value": value, "good": good} for value, good in it.values]}
                    for it in metrics
                ],
            }
        )
        return
    _print(f"cluster {labelled(cluster, simulated=simulated)}, {args.node}: the last {count(len(runs), 'run')}\n")
    rows = [
        (
            past.run,
            when(past.started),
            past.outcome,
            "good" if counts["good"] else "bad" if counts["failed"] or counts["error"] else "-",
            *list(counts.values())[1:],
        )
        for past, counts in reversed(runs)
    ]
    print_clean(("run", "began", "run was", "node was", "passed", "failed", "errors", "not judged"), rows)
    _node_red(red)
    if acts:
        _print("")
        columns = ("when", "Slurm's node was", "by", "run", "reason")
        print_clean(
            columns, [(when(time), result, user, run, reason) for time, result, user, run, reason in acts[:MAX_RED]]
        )
    _node_metrics(metrics, args)


def _node_red(red: Sequence[tuple[str, str, str, str]]) -> None:
    """Print what was red, newest first; a check that fails in each run is one line, which hides no other."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for run, check, outcome, message in red:
        alike.setdefault((check, outcome), []).append((run, message))
    for (check, outcome), runs in list(alike.items())[:MAX_RED]:
        newest, message = runs[0]
        often = f" (and in {len(runs) - 1} of the runs before, since {runs[-1][0]})" if runs[1:] else ""
        _print(f"{newest}  {outcome}{often}: {check}: {message}")
    if len(alike) > MAX_RED:
        _print(f"and {len(alike) - MAX_RED} more checks")


def _node_metrics(metrics: Sequence[MetricHistory], args: argparse.Namespace) -> None:
    shown = metrics if args.all or args.metric else [it for it in metrics if not _constant(it)]
    lines = [_metric_row(it) for it in shown]
    columns = ("check", "metric", "unit", "runs", "lowest", "median", "highest", "last", "change")
    if lines:
        _print("")
        print_clean((*columns, "old to new"), lines)
    if alike := len(metrics) - len(shown):
        _print(f"{alike} more metrics did not change in these runs (--all shows them)")


def _constant(one: MetricHistory) -> bool:
    return len({value for value, _ in one.values}) == 1


def _metric_row(one: MetricHistory) -> tuple[str, ...]:
    """Return one row; the change is that of the last value from the median of the good ones before it."""
    seen, metric = one.values, one.item.metric
    known = [value for value, _ in seen if value is not None]
    last = seen[-1][0]
    fit = [value for value, good in seen[:-1] if good and value is not None]
    level = statistics.median(fit) if fit else None
    change = share((last - level) / abs(level)) if last is not None and level else "-"
    ends = (min(known), statistics.median(known), max(known)) if known else (None, None, None)
    label = f"{metric.name} {metric.device}".strip()
    # fmt: off
    return (
        one.item.check, label, metric.unit, str(len(seen)), *map(number, ends), number(last), change,
        _spark([value for value, _ in seen]),
    )
    # fmt: on


def _spark(values: Sequence[float | None]) -> str:
    """Return bars from lowest to highest, '.' for a missing value; '' if the terminal cannot show them."""
    known = [value for value in values if value is not None]
    try:
        _BARS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ""
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join("." if value is None else _BARS[round((value - low) / step)] for value in values)


def _unknown(found: History, cluster: str, node: str) -> ConfigError:
    known = [name for name in found.nodes(cluster) if name]
    return ConfigError(f"history {found.path}: no node {node!r} of cluster {cluster}; it has: {fold(known) or 'none'}")


def _name(node: str) -> str:
    return "" if node == CLUSTER else node


def _positive(text: str) -> int:
    from argparse import ArgumentTypeError  # only for a wrong value

    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) < 2**31:
        raise ArgumentTypeError(f"must be a number from 1, not {text!r}")
    return int(text)


def _print(text: str) -> None:
    print(clean(text))  # another user may have written the file


_ABOUT_RUN = f"id of a run, the beginning of one, '{LAST}' or '{LAST_GOOD}'"
COMMON = (
    argument(
        "--history",
        type=Path,
        metavar="FILE",
        help=f"the file of pytest's --history (default: ${VARIABLE}, else `history` of the cluster file)",
    ),
    cluster_option("cluster of the runs (default: the only cluster in the file)"),
)
HISTORY = Command(
    "history",
    "list the runs that pytest's --history has stored, or the history of one node",
    history,
    (
        argument(
            "node",
            nargs="?",
            help=f"show the runs and metrics of this node; '{CLUSTER}': of items about no single node",
        ),
        *COMMON,
        argument(
            "--runs",
            type=_positive,
            metavar="N",
            help=f"number of runs ({RUNS}; of --html: all, at most {MAX_RUNS}; of --intermittent: all)",
        ),
        argument("--metric", metavar="PATTERN", help="only metrics with these names, like 'busbw*'"),
        argument(
            "--all", action="store_true", help="also show metrics of the node that were the same in all these runs"
        ),
        argument(
            "--intermittent",
            action="store_true",
            help="the parts that were slow at times, more often than chance explains, over the runs; with --metric: by these metrics only",
        ),
        one_of(
            JSON,
            argument(
                "--import",
                dest="logs",
                type=Path,
                nargs="+",
                metavar="EVENTS",
                help="store runs from their events.jsonl; a killed run is stored as incomplete, and is never a good run",
            ),
            argument(
                "--convert",
                type=Path,
                nargs="*",
                metavar="EVENTS",
                help="bring a history of 0.2.0, or these events.jsonl, to the present form, in place; a run refuses such a history",
            ),
            argument(
                "--night",
                action="store_true",
                help="what the newest run changed, in at most 15 lines: new, changed, healed and open failures with their ages",
            ),
            argument(
                "--shared",
                action="store_true",
                help="what nodes with a finding, or with a shifted metric, share in the last runs: rack, cooling loop, firmware",
            ),
            argument(
                "--html",
                type=Path,
                metavar="FILE",
                help="write one HTML page over all nodes and runs: states, ages of verdicts, worst nodes, drains and resumes",
            ),
            argument("--keep", type=_positive, metavar="N", help="delete all but the last N runs of each cluster"),
            argument(
                "--accept",
                metavar="RUN",
                help="compare later runs with this run, for NODE or for all nodes (after an intended change)",
            ),
        ),
    ),
)
COMPARE = Command(
    "compare",
    "compare two runs; exit status 3 if something got worse",
    compare,
    (
        argument("a", metavar="A", nargs="?", help=f"{_ABOUT_RUN}; default: the last good runs of each node"),
        argument("b", metavar="B", nargs="?", default=LAST, help="compared with A (%(default)s)"),
        *COMMON,
        argument("--all", action="store_true", help="also show metrics that did not change"),
        JSON,
    ),
)
