"""What a run shows and writes: the tables of the terminal, logs of steps, history, page and metrics."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import GROUP, __version__
from pytest_gpucluster.cluster import signals
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import last_line
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.run_mark import user
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.core.text import some
from pytest_gpucluster.plugin.items import WAIVED, record_of
from pytest_gpucluster.plugin.option_table import attribute_of, runs_tests
from pytest_gpucluster.report.describe import folded, number, on_request_line, remark_lines, short
from pytest_gpucluster.report.history.run_snapshot import recorded
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.history.work import numbered
from pytest_gpucluster.report.machine.atomic_write import take_away, write_whole
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.report.machine.junit import shell_property
from pytest_gpucluster.report.machine.run_folder import EVENTS, LATEST
from pytest_gpucluster.report.proof import CLUSTER, NOT_PROVED, NOT_TESTED
from pytest_gpucluster.report.shared_causes import of_run
from pytest_gpucluster.report.terminal.ascii_plot import draw
from pytest_gpucluster.report.terminal.tables import table
from pytest_gpucluster.report.verdict import PUNCHLIST, ends_of_checks
from pytest_gpucluster.report.waivers import unused, uses
from pytest_gpucluster.run.item_record import Record, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.report.history.regression import Comparison
    from pytest_gpucluster.report.machine.atomic_write import Reports
    from pytest_gpucluster.report.machine.events import EventLog
    from pytest_gpucluster.report.machine.step_logs import StepLogs
    from pytest_gpucluster.report.run_model import Run
    from pytest_gpucluster.run.session import ClusterSession


DISTRIBUTIONS = ("pytest", "pytest-xdist", "pytest-testinfra", "pydantic", "ClusterShell")
NARROWING = ("nodes", "exclude_nodes")
SCOPE = (*NARROWING, "budget", "set", "profile")
# keys of the cluster file that decide which suites and nodes a run has
CHOOSING = re.compile(r"(nodes|groups|inventory|suites|not_applicable|slurm\.(partition|reservation|constraint))\b")


def about(config: pytest.Config, session: ClusterSession) -> dict[str, Any]:
    """Return who runs what from where, on which hardware, judged against what."""
    cluster = session.cluster
    return {
        "description": cluster.description,
        "cluster_file": {"file": cluster.file, "sha256": cluster.file_sha256},
        "versions": versions(),
        "host": platform.node(),
        "utc_offset": time.localtime().tm_gmtoff,
        "system": platform.platform(),
        "user": user(),
        "folder": str(config.invocation_params.dir),
        "groups": [
            {
                "nodes": group.nodes,
                "partition": group.partition or cluster.slurm.partition,
                "profile": group.profile.name,
                "description": group.profile.description,
                "source": group.profile.source,
                "simulated": group.profile.simulated,
                "sha256": group.profile.sha256,
                # what the picture of a node in report.html draws
                "gpus": group.profile.gpu.count if group.profile.gpu else 0,
                "nvlinks": (group.profile.gpu.nvlinks if group.profile.gpu else 0) or 0,
                "ports": group.profile.fabric.hcas,
            }
            for group in cluster.groups
        ],
        "slurmd": slurmds(session),
        "scope": scope(config, session.scope.items),
        "shell": session.shell,
        "required": list(cluster.required),
        "not_applicable": dict(cluster.not_applicable),
        "waivers": [waiver.as_dict(date.today()) for waiver in cluster.waivers],  # noqa: DTZ011 - the site's day
        "evidence": config.option.evidence or cluster.evidence.when,
        "full": is_full(config),
    }


def is_full(config: pytest.Config) -> bool:
    """Return whether a run has all suites and all nodes of the cluster file: no option and no path narrows it."""
    option = config.option
    pytests = (
        getattr(option, name, None)
        # of plugins that -p no: may leave out
        for name in ("lf", "deselect", "ignore", "ignore_glob", "stepwise", "maxfail")
    )
    narrowed = any(getattr(option, name, None) for name in (*NARROWING, "markexpr", "keyword"))
    narrowed = narrowed or option.punchlist or any(map(CHOOSING.match, option.set))
    return not narrowed and not any(pytests) and config.args_source is not pytest.Config.ArgsSource.ARGS


def versions() -> dict[str, str]:
    """Return the versions of what judges."""
    found = {"Python": platform.python_version(), "pytest-gpucluster": __version__}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    of_suites = (one.dist for one in entry_points(group=GROUP) if one.dist is not None)
    return {**found, **{dist.name: dist.version for dist in of_suites}}


def slurmds(session: ClusterSession) -> dict[str, list[str]]:
    """Return version of slurmd -> nodes, as Slurm's inventory has it."""
    found: dict[str, list[str]] = {}
    for node in session.plan.selected:
        info = session.inventory.get(node)
        if info is not None and info.version:
            found.setdefault(info.version, []).append(node)
    return found


def scope(config: pytest.Config, items: Collection[int] = ()) -> dict[str, str | list[str]]:
    """Return the given options that decide what a run tests. `items`: of the punch list."""
    option = config.option
    given = {"-m": option.markexpr, "-k": option.keyword}
    given |= {PUNCHLIST: f"({numbered(items)})"} if items else {}
    given |= {f"--{name.replace('_', '-')}": getattr(option, name) for name in SCOPE}
    for suite in suites():
        given |= {name: getattr(option, attribute_of(name, **it)) for name, it in suite.options.items()}
    given |= {"--slow": "yes" if option.slow else "", "--intrusive": "yes" if option.intrusive else ""}
    return {name: value if isinstance(value, list) else str(value) for name, value in given.items() if value}


UNJUDGED = ("not checked", "not applicable")
MAX_NAMES = 4
MAX_CURVES = 8
MAX_ROWS = 15  # of nodes by suites
NODES_SHARE = 4  # names of nodes have this part of the width; more of them are counted
EMPTY = "-"  # a cell without a result
MAX_PROBLEMS, MAX_UNJUDGED, MAX_WARNINGS = 10, 20, 20  # lines


def node_table(run: Run, width: int) -> list[str]:
    """Draw nodes by suites; nodes with the same cells share a row. Bad rows come last, nearest to the prompt.

    A table without room has a row for each suite. Suites of which nothing applies share one line below.
    """
    aside = run.aside
    suites = [suite for suite in run.suites if suite not in aside]
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node, by_suite in run.counts.items():
        if any(suite in by_suite for suite in suites):
            rows[tuple(cell(by_suite.get(suite, Counter())) for suite in suites)].append(node)
    ordered = sorted(rows.items(), key=lambda row: any("FAILED" in c or "ERROR" in c for c in row[0]))
    left_out = max(0, len(ordered) - MAX_ROWS)
    body = [(short(nodes, width // NODES_SHARE), *cells) for cells, nodes in ordered[left_out:]]
    drawn = table(("nodes", *suites), body, sys.maxsize)
    if drawn and max(map(len, drawn)) > width:
        left_out, drawn = 0, table(("suite", "nodes"), _by_suite(run, suites, width), width)
    drawn += [f"and {left_out} more kinds of nodes: see report.html"] if left_out else []
    return [*drawn, f"not applicable here: {', '.join(aside)} (-v says why)"] if aside else drawn


def _by_suite(run: Run, suites: Iterable[str], width: int) -> Iterator[tuple[str, str]]:
    """Yield each suite with its cells and their nodes: 'gpu[01-03]: 31 ok; gpu04: 30 ok, 1 FAILED'."""
    for suite in suites:
        alike: dict[str, list[str]] = defaultdict(list)
        for node, by_suite in run.counts.items():
            if (found := cell(by_suite.get(suite, Counter()))) != EMPTY:
                alike[found].append(node)
        yield (suite, "; ".join(f"{short(nodes, width // NODES_SHARE)}: {found}" for found, nodes in alike.items()))


def metric_table(run: Run, width: int) -> list[str]:
    """Draw one row per metric: how many values, least, median and greatest, and where the ends were measured."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for result in run.results:
        for it in result.metrics:
            if not it.detail:
                part = f"{result.node or CLUSTER} {it.device}".strip()
                found[it.name, it.unit].append((float(it.value), part))
    rows = []
    for (name, unit), values in sorted(found.items()):
        low, high = min(values), max(values)
        spread: tuple[str, ...] = ("", "", "")  # one value needs no range
        if len(values) > 1:
            middle = statistics.median(value for value, _ in values)
            spread = (number(middle), number(high[0]), high[1])
        rows.append((name, unit, len(values), number(low[0]), low[1], *spread))
    headers = ("metric", "unit", "n", "min", "at", "median", "max", "at")
    return table(headers, rows, width)


def suite_tables(run: Run, width: int) -> list[list[str]]:
    """Draw the tables that suites have filled; rows and columns by their place, notes below."""
    return [[title, *draw_cells(cells, width)] for title, cells in run.cells.items()]


def only_reason(run: Run) -> str:
    """Return the one reason of all that was not judged; '' where there are several, or none."""
    reasons = {why for outcome in UNJUDGED for why in run.unjudged.get(outcome, ())}
    return reasons.pop() if len(reasons) == 1 else ""


def unjudged_lines(run: Run, outcome: str) -> list[str]:
    """Say what was not checked or not applicable, and why: one line a reason, checks and nodes folded."""
    lines = []
    for why, checks in run.unjudged.get(outcome, {}).items():
        names = sorted(checks)
        lines.append(f"{outcome}: {some(names, MAX_NAMES)} on {folded(sorted(set().union(*checks.values())))}: {why}")
    return lines


def without_expectation(run: Run, sections: Collection[str] = ()) -> list[str]:
    """Name the checks that the cluster file states nothing for, in one line. `sections`: those that the file has."""
    if not run.unstated:
        return []
    drafted = {check.partition(".")[0] for check in run.unstated} <= set(sections)
    hint = "" if drafted else " (gpucluster init --from-nodes drafts what most nodes have)"
    return [f"no expectation in the cluster file: {', '.join(sorted(run.unstated))}{hint}"]


def advisory_lines(run: Run) -> list[str]:
    """Write the warnings that fail no check: one line for each text, nodes folded."""
    lines = [
        f"warning: {check} on {folded(row.nodes)}: {part}: measured {measured}, expected {expected}"
        for (check, part, measured, expected, _), row in run.warnings.items()
    ]
    rest = len(lines) - MAX_WARNINGS
    more = f"warning: {rest} more kinds: see report.html"
    return [*lines[:MAX_WARNINGS], more] if rest > 0 else lines


def coverage(run: Run) -> str:
    """Say in a line how many checks were really judged."""
    ends = ends_of_checks(run)
    judged = sum(ends[end] for end in ("passed", "failed", NOT_PROVED))  # the last: all nodes fail alike
    parts = [f"{judged} of {ends.total()} checks judged"]
    parts += [
        f"{count} {outcome}"
        for outcome in (WAIVED, "not applicable", "not checked", "not tested", "error", "skipped")
        if (count := ends[outcome])
    ]
    return f"coverage: {', '.join(parts)}"


def draw_cells(cells: Iterable[dict[str, Any]], width: int) -> list[str]:
    """Draw one table of cells (row, column, text, note, place), each note once below it."""
    known = list(cells)
    rows = list(dict.fromkeys(put["row"] for put in sorted(known, key=lambda put: put["place"][0])))
    columns = list(dict.fromkeys(put["column"] for put in sorted(known, key=lambda put: put["place"][1])))
    ordered = sorted(known, key=lambda put: (rows.index(put["row"]), columns.index(put["column"])))
    notes = list(dict.fromkeys(put["note"] for put in ordered if put["note"]))
    texts = {
        (put["row"], put["column"]): put["text"] + (f" [{notes.index(put['note']) + 1}]" if put["note"] else "")
        for put in ordered
    }
    lines = [(row, *(texts.get((row, column), "") for column in columns)) for row in rows]
    return [*table(("", *columns), lines, width), *(f"[{number}] {note}" for number, note in enumerate(notes, 1))]


def cell(counter: Counter[str]) -> str:
    """Write one cell: '24 ok', '23 ok, 1 FAILED'. What is not applicable is left out."""
    shown = {
        "passed": "ok",
        "failed": "FAILED",
        "error": "ERROR",
        NOT_PROVED: "failed alike",  # on all nodes: none of them is at fault
        "waived": "waived",
        "not checked": "not checked",
        "not tested": "not tested",
    }
    return ", ".join(f"{counter[outcome]} {word}" for outcome, word in shown.items() if counter[outcome]) or EMPTY


def header(session: ClusterSession, without_section: Sequence[str] = ()) -> list[str]:
    """Return what is under test, and what is not. `without_section`: suites that the cluster file has no section for."""
    plan = session.plan
    slurm = ", real Slurm" if session.slurm is not None else ""
    label = f"SIMULATED hardware{slurm}; " if session.simulated else ""
    lines = [
        *session.notes,
        f"cluster: {session.cluster.name}: {label}{len(plan.judged)} of {len(plan.selected)} nodes",
    ]
    known = list(plan.problems.items())
    lines += [f"not tested: {node}: {clean(problem.text)}" for node, problem in known[:MAX_PROBLEMS]]
    if known[MAX_PROBLEMS:]:
        lines.append(f"not tested: {len(known) - MAX_PROBLEMS} more, listed at the end")
    if without_section:
        lines.append(f"no section in the cluster file, not tested: {', '.join(without_section)}")
    return lines


def summary(session: ClusterSession, run: Run, *, verbose: bool) -> Iterator[str]:
    """Yield nodes by suites, the metrics, what was not covered, and what was not tested."""
    width = get_terminal_size().columns
    tables = (node_table(run, width), metric_table(run, width) if verbose else [], *suite_tables(run, width))
    for lines in filter(None, tables):
        yield from (*lines, "")
    for curve in run.curves[:MAX_CURVES]:
        yield from draw(curve["points"], width=min(100, width), title=f"{curve['title']}: bus bandwidth, GB/s")
        yield ""
    yield from unjudged_lines(run, "not applicable") if verbose else ()
    yield from unjudged_lines(run, "not checked")[:MAX_UNJUDGED]
    stated = {key for key, section in session.cluster.sections().items() if section.model_fields_set}
    yield from without_expectation(run, stated)
    yield from advisory_lines(run)
    yield from remark_lines(run) if verbose else ()
    yield from of_run(run).lines(verbose=verbose)
    yield from (f"warning: {text}" for _, text in shell_property(run))
    yield from (f"waived: {line}" for use in uses(run) for line in use.lines())
    yield from (f"warning: {line}" for line in unused(run))
    by_text: dict[tuple[str, str], list[str]] = {}
    for node in run.selected:
        problem = session.problem(node)
        if problem is not None:
            # as the counts have it: also a node that is lost or out of service may have failed
            untested = run.proofs.nodes.get(node) == NOT_TESTED
            word = "lost" if problem.lost else "not tested" if untested else "out of service"
            by_text.setdefault((word, problem.text), []).append(node)
    yield from (f"{word}: {hostlist.fold(names)}: {text}" for (word, text), names in by_text.items())
    if line := on_request_line(session.selection or {}):
        yield line
    yield coverage(run)


class StepListener:
    """Registered where steps are run: writes a log of each, and notes it in the record of the item."""

    def __init__(self, slurm: Slurm, logs: StepLogs) -> None:
        self._logs, self._record = logs, Record("", "", "")
        slurm.on_step = self._keep

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A step that a fixture of a wider scope runs belongs to the item that needs the fixture first."""
        self._record = record_of(item)

    def _keep(self, result: StepResult) -> None:
        # work before the first test runs beside the items
        own = threading.current_thread() is threading.main_thread()
        path = self._logs.keep(self._record.check if own else "", result)
        if own and path:
            self._record.logs.append(path)


class HistoryWriter:
    """Registered in the controller of a run with a history. `comparison` is None until the run is stored."""

    def __init__(self, path: Path, log: EventLog, reports: Reports, tested: Collection[int] = ()) -> None:
        """`tested`: the items of the punch list that the run tests."""
        self.path, self.log, self.reports, self.tested = path, log, reports, tested
        self.comparison: Comparison | None = None
        self.work: list[str] = []  # what changed in the punch list
        self.undecided: list[str] = []  # why tested items are not proved
        self.parts: list[str] = []  # what the ledger knows of parts that came from elsewhere
        with contextlib.closing(History(path, create=True, group=reports.group)):
            pass  # a wrong file is reported before nodes are allocated

    def write(self) -> None:
        """Store the run. The nodes are released by now, so a lock of another writer holds none."""
        with self.reports.writing(self.path):
            try:
                self._store()
            except (GpuClusterError, OSError) as error:
                raise GpuClusterError(f"the run is not in the history: {error}") from error
            if self.undecided:  # the exit status must not say that the items are proved
                raise GpuClusterError("; ".join(self.undecided))

    def runs(self) -> set[str]:
        """Return the ids of all stored runs; GpuClusterError or OSError if the file cannot be read."""
        if not self.path.exists():
            return set()
        with contextlib.closing(History(self.path)) as history:
            return history.ids()

    def _store(self) -> None:
        if self.log.failed:  # a run with holes would pass for a whole one
            raise GpuClusterError(f"the event log is not whole: {self.log.failed}")
        run = recorded(self.log.model, str(self.log.path))
        group, wait = self.reports.group, signals.pause
        with contextlib.closing(History(self.path, create=True, group=group, wait=wait)) as history:
            history.add(run)
            self.parts = [*history.ledger.news(run)]
            self.work = [*history.work.news(run)]
            self.undecided = [*history.work.undecided(run, self.tested)]
            self.comparison = history.compare(history.find(run.cluster, run.run))
        self.log.write("compared", **asdict(self.comparison.for_html()))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """End with each metric beside its past, and name what got worse: nearest to the prompt."""
        found = self.comparison

        def write(line: str, *, yellow: bool = False) -> None:
            terminalreporter.write_line(clean(line), yellow=yellow)  # another user may have written the file

        if found is not None:
            terminalreporter.section("history")
            verbose = terminalreporter.verbosity > 0
            width = get_terminal_size().columns
            compared = ["", *found.table(width, constant=verbose), ""] if found.against else []
            for line in (found.head, *compared):
                write(line)
            for line in (*found.lines(), *self.parts[:MAX_WARNINGS]):
                write(line, yellow=True)
            write(found.verdict())
            for line in self.work[:MAX_WARNINGS]:
                write(line)


def history_path(option: str | None, key: str | None) -> Path | None:
    """Return the file of --history, else the cluster file's `history`; None where neither is given."""
    chosen = option if option is not None else key
    if chosen is None:
        return None
    if not chosen.strip():
        raise GpuClusterError("--history: names no file")
    return Path(chosen).expanduser()


class HtmlReport:
    """The page and the record. Registered in the controller; `gpucluster report` makes the same from the log."""

    def __init__(self, config: pytest.Config, log: EventLog, reports: Reports) -> None:
        self.config, self.log, self.reports = config, log, reports
        self.path = reports.folder / "report.html"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Make the template ready beside the run: there is time while it waits for its nodes, and none at its end."""
        if runs_tests(self.config.option):
            threading.Thread(target=_prepare, name="template", daemon=True).start()

    def write(self) -> None:
        """Write the record, and the page that states its sha256."""
        from pytest_gpucluster.report.machine import (
            acceptance_record as record,  # the start of a run needs no templates
        )
        from pytest_gpucluster.report.page import html

        path, stated = self.path.with_name(record.RECORD), None
        with self.reports.writing(path):
            stated = record.render(self.log.model)
            write_whole(path, stated, group=self.reports.group)
        with self.reports.writing(self.path):
            html.write(self.log.model, self.path, record=stated, group=self.reports.group)


def _prepare() -> None:
    from pytest_gpucluster.report.page import html  # the start of a run needs no templates

    html.prepare()


PATIENCE = 30.0  # seconds for the receiver of a message


class Notifier:
    """Sends one message about a run that changed something; the last writer of the run's end. `report`: prints a line."""

    def __init__(self, cluster: Cluster, log: EventLog, reports: Reports, report: Callable[[str], None]) -> None:
        self._wanted, self._log, self._reports, self._report = cluster.notify, log, reports, report
        # of the run before, whose folder is the latest one until the first result
        latest = reports.folder.parent / LATEST
        self._earlier = latest.resolve() / EVENTS if latest.exists() else None

    def write(self) -> None:
        """Send the message; what prevents it is one line, and no failure of the run."""
        if not self._wanted.command or not self._reports.is_published:
            return
        from pytest_gpucluster.report.terminal.notice import notice  # a run without it has no need of this

        earlier = read_log(self._earlier) if self._earlier and self._earlier.is_file() else None
        message = notice(self._log.model, earlier, str(self._reports.folder.resolve()))
        if message is None:
            return
        try:
            self._run(json.dumps(message))
        except (GpuClusterError, OSError, ValueError) as error:
            self._report(f"WARNING: notify: {one_line(error)}")

    def _run(self, text: str) -> None:
        done = LocalTransport().run(self._wanted.command, timeout=PATIENCE, input=text)
        if done.rc != 0:
            raise GpuClusterError(
                f"{self._wanted.command[0]} ended with exit status {done.rc}: {last_line(done.stderr)}"
            )


NAME = "metrics.prom"
FOR_COLLECTORS = 0o644  # names and numbers alone, for a collector that runs as a user of its own


class MetricsFile:
    """Registered in the controller."""

    def __init__(self, cluster: Cluster, log: EventLog, reports: Reports) -> None:
        path = cluster.reports.metrics and Path(cluster.reports.metrics).expanduser()
        if path:
            refuse(path)
        self.log, self.reports = log, reports
        self._modes: dict[Path, int | None] = {reports.folder / NAME: None}
        if path:
            self._modes[path] = FOR_COLLECTORS if reports.group is None else None
        self._before: dict[Path, str] = {}  # the page of an earlier run
        # of the run before, whose folder is the latest one until the first result
        self._earlier = reports.runs.link.resolve() / NAME if reports.runs is not None else None

    def write(self) -> None:
        """Write the files. Those of an earlier run are removed in any case: they do not describe this run."""
        for path, mode in self._modes.items():
            with self.reports.writing(path):
                try:
                    self._write(path, mode)
                except Exception as error:  # noqa: BLE001 - whatever it is
                    try:
                        take_away(path)
                    except OSError as more:
                        raise GpuClusterError(
                            f"{error}; the file of an earlier run is still there ({more.strerror or more})"
                        ) from error
                    self._write(path, mode)  # its place on a full disk is free

    def _write(self, path: Path, mode: int | None) -> None:
        from pytest_gpucluster.report.machine import prom  # the start of a run has no need of it

        if path not in self._before:
            own = path.parent == self.reports.folder
            self._before[path] = prom.read(self._earlier if own and self._earlier else path)
        prom.write(self.log.model, path, self._before[path], group=self.reports.group, mode=mode)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the file of `reports.metrics`."""
        for path in self._modes.keys() & self.reports.written.keys():
            if path.parent != self.reports.folder:
                terminalreporter.write_line(f"metrics: {path}")


def refuse(path: Path) -> None:
    """Raise GpuClusterError for a file that node_exporter would not read, or that cannot be written."""
    if path.suffix != ".prom":
        raise GpuClusterError(f"reports.metrics: {path}: node_exporter reads files that end in .prom only")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise GpuClusterError(f"reports.metrics: {path}: {path.parent} is not a folder that can be written to")
    try:
        Folder(path.parent).close()
    except OSError as error:
        raise GpuClusterError(f"reports.metrics: {path}: {path.parent}: {error.strerror}; name another file") from error
