"""Open a session for --cluster: cluster file, inventory, plan, the shell; bad input ends here in one line and exit code 4."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster import signals
from pytest_gpucluster.cluster.plan import Selection, judge_node, make_plan
from pytest_gpucluster.cluster.slurm.client import make_slurm
from pytest_gpucluster.cluster.slurm.completing import mark_stuck
from pytest_gpucluster.cluster.slurm.inventory import seen_from_inside
from pytest_gpucluster.cluster.slurm.option_check import refuse_options
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError, SlurmError, has_waited
from pytest_gpucluster.core.registry import parts_of_suites, suites
from pytest_gpucluster.core.scope import Scope
from pytest_gpucluster.core.secure_tempfile import Folder, group_id, temporary_folder
from pytest_gpucluster.core.text import count
from pytest_gpucluster.core.units import parse_option_time
from pytest_gpucluster.drain import Retest, lock_path, why_no_rights
from pytest_gpucluster.drain.policy import own_reason
from pytest_gpucluster.plugin import fixtures
from pytest_gpucluster.plugin.collection import Collection, choose, names_of
from pytest_gpucluster.plugin.controller import Controller
from pytest_gpucluster.plugin.drain import (
    DrainOptions,
    DrainPlugin,
    durable,
    edited_reasons,
    little_patience,
    retest_reasons,
)
from pytest_gpucluster.plugin.equal_failures import EqualFailures
from pytest_gpucluster.plugin.evidence import register_evidence
from pytest_gpucluster.plugin.hooks import Hooks
from pytest_gpucluster.plugin.items import ItemProtocol
from pytest_gpucluster.plugin.option_table import runs_tests
from pytest_gpucluster.plugin.options import check_nodes, refuse_names, refuse_unmatched, refuse_words
from pytest_gpucluster.plugin.run_outputs import (
    HistoryWriter,
    HtmlReport,
    MetricsFile,
    Notifier,
    StepListener,
    history_path,
    is_full,
)
from pytest_gpucluster.plugin.scheduling import NodeAccess, ProfileCheck
from pytest_gpucluster.plugin.worker import Worker
from pytest_gpucluster.report.history.cost import earlier_runs, estimate, is_partial
from pytest_gpucluster.report.history.punchlist import scope_of
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.history.work import numbered
from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.machine.atomic_write import Reports, is_stream
from pytest_gpucluster.report.machine.events import EventLog, read_log
from pytest_gpucluster.report.machine.run_folder import EVENTS, OF_CAMPAIGN, RunFolder
from pytest_gpucluster.report.machine.step_logs import StepLogs
from pytest_gpucluster.report.run_model import REFUSED, WAITED
from pytest_gpucluster.run.item_record import clean, one_line
from pytest_gpucluster.run.session import shows_simulated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.kit.suite_work import OnRequest
    from pytest_gpucluster.report.history.cost import Cost, EarlierRun
    from pytest_gpucluster.run.session import ClusterSession


# limits that Slurm can pass on: slurm.conf(5), PropagateResourceLimits
_PASSED = ("as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "rss", "stack")


def shell_warning(cluster: Cluster, slurm: Mapping[str, str], limits: Mapping[str, float]) -> dict[str, Any]:
    """Return what the log says of this shell: `text`, `limits` and `action`; {} if no limit is lower than `os.limits`.

    `slurm`: slurmctld's configuration; `limits`: the soft limits of this process. Over SSH no limit of this machine
    reaches a job.
    """
    if cluster.transport.kind != "local" or cluster.access == "ssh":
        return {}
    least = {
        name: value
        for found in parts_of_suites(lambda suite: suite.least_limits)
        for name, value in found(cluster).items()
    }
    lower = [name for name in inherited_limits(slurm) if name in least and limits.get(name, math.inf) < least[name][0]]
    if not lower:
        return {}
    shown = (
        f"{name} {show(limits[name])} (os.limits: {show(bound)})"
        for name, (bound, show) in ((name, least[name]) for name in lower)
    )
    return {
        "text": f"the shell that runs pytest: jobs that are submitted from it inherit {', '.join(shown)} unless "
        "slurm.conf has PropagateResourceLimits=NONE: raise it for logins",
        "limits": {name: least[name][1](limits[name]) for name in lower},
        "action": Action.CONFIGURE.value,
        "setting": "os.limits",
    }


def inherited_limits(slurm: Mapping[str, str]) -> tuple[str, ...]:
    """Return the limits that jobs inherit from the shell that submits them, from slurmctld's configuration."""

    def stated(key: str) -> set[str]:
        text = slurm.get(key, "").strip("()").lower()
        return set() if text in ("", "null") else set(text.split(","))

    if excepted := stated("PropagateResourceLimitsExcept"):
        return tuple(name for name in _PASSED if name not in excepted)
    chosen = stated("PropagateResourceLimits") or {"all"}
    if "none" in chosen:
        return ()
    return tuple(name for name in _PASSED if "all" in chosen or name in chosen)


def own_limits() -> dict[str, float]:
    """Return the soft limits of this process in bytes or numbers; math.inf: unlimited."""
    found = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in _PASSED}
    return {name: math.inf if value == resource.RLIM_INFINITY else value for name, value in found.items()}


FIRST_PATIENCE = 5.0  # seconds; a client of a dead controller tries for 9 by itself (22.05)


def register(config: pytest.Config) -> None:
    """Open the session and register the hooks and fixtures that need one."""
    if config.option.help or config.option.version or config.option.markers:
        return
    refuse_words(config.option)
    signals.catch()
    try:
        # with -n, this folder has a socket
        if hasattr(config, "workerinput") or getattr(config.option, "dist", "no") != "no":
            temporary_folder().close()
        reports = Reports()
        session, log = open_session(config, reports)
        if session.slurm is not None and runs_tests(config.option):
            worker = getattr(config, "workerinput", {}).get("workerid", "")
            listener = StepListener(session.slurm, StepLogs(reports, worker))
            config.pluginmanager.register(listener, "gpucluster-steps")
        hooks = Hooks(config, session, log, reports)
        options = DrainOptions.read(config.option, session.cluster.drain)
        config.args = choose(config, session.cluster.suites)
        _add_cost(config, session, log)
        history = make_history(config, session, log, reports)
        metrics_file = MetricsFile(session.cluster, log, reports) if log is not None else None
    except GpuClusterError as error:
        _log_refusal(config, error)
        raise pytest.UsageError(clean(one_line(error))) from error
    # suites may lie in an installation or checkout of another user, where pytest cannot write its cache
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestCacheWarning")
    config.stash[fixtures.SESSION] = session
    config.stash[fixtures.PROPERTIES] = of_run(session, log)
    config.pluginmanager.register(fixtures, "gpucluster-fixtures")
    config.pluginmanager.register(hooks, "gpucluster-hooks")
    config.pluginmanager.register(hooks.item_reports, "gpucluster-reports")
    config.pluginmanager.register(hooks.late, "gpucluster-late-checks")
    collection = Collection(config, session)
    config.pluginmanager.register(collection, "gpucluster-collection")
    config.pluginmanager.register(NodeAccess(session, collection, log, hooks.write_message), "gpucluster-nodes")
    if log is not None:
        config.pluginmanager.register(ItemProtocol(config), "gpucluster-items")
        config.pluginmanager.register(ProfileCheck(session, config), "gpucluster-profile")
        if config.get_verbosity() <= 0:
            equal = hooks.item_reports.equal = EqualFailures(log.model, config)
            config.pluginmanager.register(equal, "gpucluster-equal-failures")
    if options.wanted:
        config.pluginmanager.register(DrainPlugin(config, session, log, options), "gpucluster-drain")
    register_evidence(config, session, log, reports)
    if history is not None:
        config.pluginmanager.register(history, "gpucluster-history")
    if metrics_file is not None and log is not None:
        _add_writers(config, hooks, metrics_file, history, log)


def _add_writers(
    config: pytest.Config, hooks: Hooks, metrics_file: MetricsFile, history: HistoryWriter | None, log: EventLog
) -> None:
    """Register what writes the reports at the end of the run."""
    session, reports = hooks.session, hooks.reports
    html_report = HtmlReport(config, log, reports)
    config.pluginmanager.register(html_report, "gpucluster-html")
    config.pluginmanager.register(metrics_file, "gpucluster-metrics")
    stored = [history.write] if history is not None else []
    # metrics raise alerts
    hooks.end.writers += [
        metrics_file.write,
        hooks.write_junit,
        *stored,
        html_report.write,
        Notifier(session.cluster, log, reports, hooks.write_message).write,
    ]
    hooks.end.stating += [metrics_file.write, hooks.write_junit, html_report.write]


def _log_refusal(config: pytest.Config, error: GpuClusterError) -> None:
    """Write the log of a run of a campaign that does not begin: the campaign reads there whether it may try again."""
    if not OF_CAMPAIGN or hasattr(config, "workerinput"):
        return
    run, option = _run_id(), config.option
    with (
        contextlib.suppress(GpuClusterError, OSError),
        contextlib.closing(EventLog(Path(option.report_dir) / run / EVENTS, run)) as log,
    ):
        log.write("error", message=str(error), end=WAITED if has_waited(error) else REFUSED)
        log.write("finish", exit=int(pytest.ExitCode.USAGE_ERROR), end=log.model.end)


def of_run(session: ClusterSession, log: EventLog | None) -> list[tuple[str, str]]:
    """Return the properties of the run for pytest's JUnit file; an xdist worker writes none."""
    if log is None:
        return []
    cluster = session.cluster
    found = junit.run_properties(log.run, cluster.name, session.plan.selected, simulated=session.simulated)
    return [(name, clean(value)) for name, value in found]


def open_session(config: pytest.Config, reports: Reports) -> tuple[ClusterSession, EventLog | None]:
    """Return the controller's session and event log, or an xdist worker's view."""
    handed: Mapping[str, str] = getattr(config, "workerinput", {})
    if "gpucluster" in handed:
        reports.folder = Path(handed["gpucluster_reports"])
        worker = Worker.take_over(handed["gpucluster"], reports.folder.name, make_slurm)
        reports.group = group_id(worker.cluster.reports.group)
        return worker, None
    option = config.option
    for check in parts_of_suites(lambda suite: suite.check_options):
        check(option)
    for module in requested(option):
        module.prepare(option, read_log)
    notes: list[str] = []
    cluster = with_options(find_cluster(option, notes), option)
    reports.group = group_id(cluster.reports.group)
    notes += cluster.warnings
    selection = Selection.parse(option.nodes, option.exclude_nodes)
    slurm = make_slurm(cluster)
    options = DrainOptions.read(option, cluster.drain)
    if options.wanted and slurm is None:
        raise ConfigError(f"--drain and --resume-passing: cluster {cluster.name} has no scheduler")
    refuse_names(cluster)
    notes += refuse_unmatched(config, cluster)
    if slurm is not None:
        refuse_options(cluster, slurm)
    inventory = first_contact(cluster, slurm) if slurm else {}
    reserved = reserved_nodes(cluster, slurm) if slurm else None
    inventory = seen_from_inside(inventory, reserved or ())
    history = history_path(option.history, cluster.history)
    scope = punched(cluster, inventory, reserved, selection, history) if option.punchlist else Scope()
    if scope.items:
        selection = replace(selection, nodes=scope.nodes or None)
        notes += about_scope(scope)
    if slurm is not None and runs_tests(option):
        check_rights(options, slurm)
    edited: dict[str, str] = {}
    if options.resume:
        edited = edited_reasons(inventory, cluster.name, history, Path(option.report_dir))
    to_retest = retest_reasons(options, inventory, reserved, edited)
    plan = make_plan(cluster, inventory, selection, reserved=reserved, to_retest=to_retest)
    run = _run_id()
    keep, full = cluster.reports.keep, is_full(config)
    log = open_log(option, run, reports, keep=keep, full=full) if runs_tests(option) else None
    drained = {node for node in plan.selected if node not in edited and drained_by_gpucluster(inventory, node)}
    on_trial = {node: reason for node, reason in to_retest.items() if node in plan.selected}
    retest = None
    if on_trial and slurm is not None and log is not None:
        retest = Retest(little_patience(slurm), on_trial, durable(log), lock_of(slurm))
    simulated = shows_simulated(cluster, inventory, plan.selected)
    session = Controller(
        cluster,
        inventory,
        plan,
        slurm,
        run=run,
        notes=notes,
        shell=shell_warning(cluster, slurm.config(), own_limits()) if slurm is not None else {},
        reserved=reserved or frozenset(),
        last_good=good_before(history, cluster.name, simulated=simulated),
        history=history,
        scope=scope,
        own_drains={node: inventory[node].reason for node in drained},
        edited={node: edited[node] for node in plan.selected if node in edited},
        retest=retest,
    )
    return session, log


def punched(
    cluster: Cluster,
    inventory: Mapping[str, NodeInfo],
    reserved: frozenset[str] | None,
    selection: Selection,
    path: Path | None,
) -> Scope:
    """Return what a run of the punch list tests; ConfigError where that is nothing."""
    if path is None:
        raise ConfigError("--punchlist: needs a history: --history=FILE, or `history` in the cluster file")
    nodes = [node for group in cluster.groups for node in group.names]
    free = [node for node in nodes if is_free(node, cluster, inventory, reserved)]
    with contextlib.closing(History(path)) as history:
        simulated = shows_simulated(cluster, inventory, nodes)
        items = history.work.items(cluster.name, simulated=simulated)
    scope = scope_of(items, cluster, free, selection.exclude)
    if not scope.items:
        raise ConfigError(
            f"--punchlist: no item of cluster {cluster.name} is done on the selected nodes, so nothing is tested ({count(len(items), 'item')} open or "
            "claimed: gpucluster punchlist lists them; gpucluster punchlist done ITEM reports one done)"
        )
    return scope


def is_free(
    node: str,
    cluster: Cluster,
    inventory: Mapping[str, NodeInfo],
    reserved: frozenset[str] | None,
    *,
    wait: bool = False,
) -> bool:
    """Return whether Slurm can give the node to this run now; `wait`: or later, since the run waits for a busy node."""
    if cluster.why_no_slurm:
        return True
    return judge_node(node, inventory, wait=wait) is None and (reserved is None or node in reserved)


def _add_cost(config: pytest.Config, session: ClusterSession, log: EventLog | None) -> None:
    """Let the header of a run that tests say what it will cost."""
    nodes = len(session.plan.testable)
    if log is not None and nodes and session.slurm is not None:
        cost = cost_of(config, session.cluster, session.slurm, session.inventory, nodes, session.history)
        session.notes = [*session.notes, cost.text]


def cost_of(
    config: pytest.Config,
    cluster: Cluster,
    slurm: Slurm | None,
    inventory: Mapping[str, NodeInfo],
    nodes: int,
    path: Path | None,
) -> Cost:
    """Return what testing so many nodes will cost. `path`: of the history."""
    names, words = names_of(config, slurm, cluster), [str(word) for word in config.invocation_params.args]
    planned = 0.0
    if names <= {suite.name for suite in suites() if suite.on_request is not None}:
        planned = max((it.configure(config.option, cluster)[1] for it in requested(config.option)), default=0.0)
    earlier: list[EarlierRun] = []
    if not planned and path is not None and path.exists():
        kind, known = ((cluster.name, shows_simulated(cluster, inventory, inventory)), [it.name for it in suites()])
        with contextlib.suppress(GpuClusterError), contextlib.closing(History(path)) as history:
            earlier = earlier_runs(history, kind, names, known, words)
    return estimate(earlier, nodes, cluster.slurm.time, planned=planned, partial=is_partial(words))


def about_scope(scope: Scope) -> Iterator[str]:
    """Yield what a run of the punch list tests, for the header."""
    beside = f", and {hostlist.fold(scope.neighbours)} beside them" if scope.neighbours else ""
    tested = hostlist.fold(node for node in scope.nodes if node not in scope.neighbours) or "the cluster"
    yield f"punch list: {numbered(scope.items)} on {tested}{beside}"
    if scope.gone:
        yield f"punch list: {numbered(scope.gone)}: none of the nodes is selected: not tested"


def _run_id() -> str:
    return time.strftime("%Y%m%dT%H%M%S") + f"-{os.getpid()}"


def good_before(path: Path | None, cluster: str, *, simulated: bool) -> Mapping[str, float]:
    """Return {node: when a run last found it good}; {} without a history. The end of the run reports one that cannot be read."""
    if path is not None and path.exists():
        with contextlib.suppress(GpuClusterError), contextlib.closing(History(path)) as history:
            return history.last_good(cluster, simulated=simulated)
    return {}


def open_log(option: Any, run: str, reports: Reports, *, keep: int, full: bool) -> EventLog:
    """Open the event log in the folder of the run, and empty what would pass for this run's --junitxml if it were killed."""
    root = Path(option.report_dir)
    try:
        reports.runs = RunFolder(root, run, most=keep, full=full, group=reports.group)
    except OSError as error:
        raise ConfigError(f"cannot write {root}: {error.strerror}: --report-dir=DIR names another folder") from error
    reports.folder = reports.runs.path
    log = EventLog(reports.folder / EVENTS, run, reports.group)
    if named := getattr(option, "xmlpath", None):  # none with -p no:junitxml
        make_private(Path(os.path.expandvars(named)).expanduser(), reports.group)
    return log


def make_private(path: Path, group: int | None) -> None:
    """Replace the file of an earlier run by an empty one with the mode of reports, which pytest will write to."""
    if is_stream(path):
        return
    try:
        with contextlib.closing(Folder(path.parent, create=True, group=group)) as folder:
            folder.remove(path.name)
            os.close(folder.open(path.name))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}: --junitxml=FILE names another") from error


def lock_of(slurm: Slurm) -> Path | None:
    """Return the lock of runs that drain or resume nodes of this Slurm."""
    return lock_path(slurm.config().get("ClusterName", ""))


def drained_by_gpucluster(inventory: Mapping[str, NodeInfo], node: str) -> bool:
    """Return True for a node that gpucluster has drained."""
    return node in inventory and own_reason(inventory[node]) is not None


def reserved_nodes(cluster: Cluster, slurm: Slurm) -> frozenset[str] | None:
    """Return the nodes of the chosen reservation; None: none is chosen, it has no nodes, or salloc reports it."""
    if cluster.slurm.reservation is None:
        return None
    found = slurm.reservations().get(cluster.slurm.reservation)
    return frozenset(found.nodes) or None if found else None


def make_history(
    config: pytest.Config, session: ClusterSession, log: EventLog | None, reports: Reports
) -> HistoryWriter | None:
    """Open the history where one is configured; a wrong file is reported here, before nodes are allocated."""
    path = history_path(config.option.history, session.cluster.history)
    if path is None or log is None:
        return None
    return HistoryWriter(path, log, reports, session.scope.items)


def find_cluster(option: Any, notes: list[str]) -> Cluster:
    """Load the cluster file; `sandbox` is started where it does not run, and `notes` gets a line then."""
    if option.cluster != "sandbox":
        return load_cluster(option.cluster, profile=option.profile, changes=option.set)
    from pytest_gpucluster.sandbox import Sandbox, refused  # real clusters have no need of it

    sandbox = Sandbox()
    if not sandbox.running:
        with refused():
            sandbox.up()
        notes.append("sandbox: started for this run, and continues after it; stop it with: gpucluster sandbox down")
    return load_cluster(str(sandbox.cluster_file), profile=option.profile, changes=option.set)


def requested(option: Any) -> list[OnRequest]:
    """Return the suites that run only on request and are requested in this run."""
    return [module for module in parts_of_suites(lambda suite: suite.on_request) if module.requested(option)]


def with_options(cluster: Cluster, option: Any) -> Cluster:
    """Return the cluster with the settings that the command line replaces."""
    given: dict[str, Any] = {}
    if option.time_limit is not None:
        try:
            given["time"] = parse_option_time(option.time_limit)
        except ValueError as error:
            raise ConfigError(f"--time: {error}") from error
    for suite in requested(option):
        cluster, seconds = suite.configure(option, cluster)
        if option.time_limit is None:  # the allocation must last as long
            given["time"] = max(cluster.slurm.time, seconds, given.get("time", 0))
    update: dict[str, Any] = {"slurm": cluster.slurm.model_copy(update=given)}
    of_suites = {
        check: why
        for found in parts_of_suites(lambda suite: suite.not_applicable)
        for check, why in found(cluster).items()
    }
    update["not_applicable"] = {**of_suites, **cluster.not_applicable}
    return cluster.model_copy(update=update)


def first_contact(cluster: Cluster, slurm: Slurm) -> Mapping[str, NodeInfo]:
    """Read nodes, partitions and version from Slurm. An operator waits at the start: the timeout is short."""
    patience, slurm.retry_for = slurm.retry_for, FIRST_PATIENCE
    try:
        inventory = mark_stuck(slurm, slurm.nodes(), cluster.slurm.completing)
        check_partitions(cluster, slurm)
        check_nodes(cluster, inventory)
        slurm.config()
    except SlurmError as error:
        if "permission denied" not in error.stderr.lower():
            raise
        raise ConfigError(
            f"{error}: PrivateData of slurm.conf may hide it from you: run as Slurm's operator (sacctmgr modify user "
            "NAME set AdminLevel=Operator)"
        ) from error
    finally:
        slurm.retry_for = patience
    return inventory


def check_rights(options: DrainOptions, slurm: Slurm) -> None:
    """Raise ConfigError for --drain=apply or --resume-passing of a user whom Slurm lets change no node."""
    if options.wanted and not options.dry and (why := why_no_rights(slurm)):
        option = "--drain=apply" if options.mode != "off" else "--resume-passing"
        raise ConfigError(
            f"{option}: {why}: only Slurm's administrators change nodes: sacctmgr modify user NAME set "
            "AdminLevel=Administrator (Operator is too little), or --drain=dry-run, which prints the commands"
        )


def check_partitions(cluster: Cluster, slurm: Slurm) -> None:
    """Raise ConfigError for a partition that Slurm does not have, before anything is started."""
    there = slurm.partitions()
    named = {group.partition or cluster.slurm.partition for group in cluster.groups}
    for partition in sorted(name for name in named if name):
        for name in partition.split(","):
            if name not in there:
                known = ", ".join(sorted(there))
                raise ConfigError(f"cluster {cluster.name}: partition {name!r} does not exist; Slurm has {known}")
