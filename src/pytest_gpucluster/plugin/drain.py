"""--drain and --resume-passing: failed items are repeated, then the controller drains or resumes nodes.

It happens after the last test, while the nodes are still held: a node that is drained then finishes the run's job as
DRAINING, and no other job starts in between. Every command has a deadline, so that the release of the nodes is delayed
by a bounded time. A run that was stopped early drains and resumes nothing.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import drain
from pytest_gpucluster.cluster import signals
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.budget import Budget
from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.text import count
from pytest_gpucluster.drain import policy
from pytest_gpucluster.plugin.controller import Controller
from pytest_gpucluster.plugin.items import CheckItem, phases, used_by
from pytest_gpucluster.plugin.option_table import runs_tests
from pytest_gpucluster.plugin.reporting import classify, retest_line
from pytest_gpucluster.plugin.scheduling import LEASE
from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine.events import logs_below
from pytest_gpucluster.report.result import read_result
from pytest_gpucluster.run.facts import CheckFailed
from pytest_gpucluster.run.item_record import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import DrainConfig
    from pytest_gpucluster.core.finding import Explanation, Finding
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.report.machine.events import EventLog
    from pytest_gpucluster.report.result import DeviatingVerdict, Result
    from pytest_gpucluster.report.run_model import Run
    from pytest_gpucluster.run.session import ClusterSession


ANSWER_TIMEOUT, CAP = 30.0, 1 << 20


class UncachedChannel:
    """A channel without cached answers; satisfies Channel.

    Answers are cached by the text of a command: a comment makes it another one with the same effect.
    """

    def __init__(self, channel: Channel, attempt: int) -> None:
        self._channel = channel
        self._mark = f"\n# fresh attempt {attempt}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes of the channel."""
        return self._channel.nodes

    @property
    def lost(self) -> Mapping[str, Explanation]:
        """The nodes that no longer answer, and why."""
        return self._channel.lost

    @property
    def disconnected(self) -> frozenset[str]:
        """The lost nodes that went with the channel as a whole."""
        return self._channel.disconnected

    def ask(self, command: str, *, timeout: float = ANSWER_TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Send a command to all nodes, once in this attempt."""
        return self._channel.ask(command + self._mark, timeout=timeout, cap=cap)

    def ask_node(
        self, node: str, command: str, *, timeout: float = ANSWER_TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return one node's answer of this attempt."""
        return self._channel.ask_node(node, command + self._mark, timeout=timeout, cap=cap, fresh=fresh)

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Send commands without waiting."""
        self._channel.prefetch([(command + self._mark, timeout) for command, timeout in commands])

    def close(self) -> None:
        """Leave the channel open: it belongs to the session."""


def is_repeatable(item: pytest.Item) -> bool:
    """Return False for an item on jobs that go before the allocation: they could not start beside it."""
    works = (suite.before_allocation for suite in suites())
    return not {work.fixture for work in works if work is not None} & used_by(item)


def run_again(
    items: Sequence[pytest.Item], session: ClusterSession, attempt: int
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Run failed items once more: nodeid -> (how it ended, its record). They are not counted or reported."""
    before, found = session.channel, {}
    if before is not None:
        session.forget(UncachedChannel(before, attempt))
    try:
        again = [_new_item(item) for item in items]
        for item, following in zip(again, [*again[1:], None], strict=True):
            # the last one takes every fixture down
            with session.turn(item.stash.get(LEASE, None)):
                make = item.ihook.pytest_runtest_makereport  # these reports are not logged
                reports = [make(item=item, call=call) for call in phases(item, following)]
                found[item.nodeid] = _end_of(reports)
    finally:
        if before is not None:
            session.forget(before)
    return found


def _new_item(item: pytest.Item) -> pytest.Item:
    """Return an item like one that has run. Only the plugin's own can run twice: pytest collects others once more."""
    if isinstance(item, CheckItem):
        item.record = None
        return item
    collector: Any = item.parent
    name = getattr(item, "originalname", item.name)
    hook = collector.ihook.pytest_pycollect_makeitem
    made = hook(collector=collector, name=name, obj=getattr(collector.obj, name))
    fresh: pytest.Item = next(it for it in made if it.nodeid == item.nodeid)
    fresh.own_markers[:] = item.own_markers
    if LEASE in item.stash:
        fresh.stash[LEASE] = item.stash[LEASE]
    return fresh


def _end_of(reports: Sequence[pytest.TestReport]) -> tuple[str, dict[str, Any]]:
    """Return how the item ended: the worst of its phases, and its record."""
    ends = [(classify(r), r) for r in reports]
    known = [(end, report) for end, report in ends if end is not None]
    for wanted in ("error", "failed"):
        for end, report in known:
            if end == wanted:
                return end, getattr(report, "gpucluster", {})
    return (known[0][0], getattr(known[0][1], "gpucluster", {})) if known else ("error", {})


PATIENCE, TIMEOUT = 5.0, 20.0  # seconds, for a controller that does not answer, and for one command
CONFIRMED = "gpucluster_confirmed"  # key of xdist's workeroutput


@dataclass(frozen=True)
class DrainOptions:
    """What command line and cluster file say about drain and resume."""

    mode: str
    retries: int
    budget: Budget
    least: Action
    resume: bool

    @property
    def wanted(self) -> bool:
        """True where an option of drain or resume is given."""
        return self.mode != "off" or self.resume

    @property
    def dry(self) -> bool:
        """Nothing may be touched."""
        return self.mode == "dry-run"

    @classmethod
    def read(cls, option: Any, config: DrainConfig) -> DrainOptions:
        """Read the options and the section `drain` of the cluster file."""
        return cls(
            mode=option.drain or "off",
            retries=config.retries,
            budget=Budget.parse(str(config.max)),
            least=policy.NAMES[config.min_action],
            resume=bool(option.resume_passing),
        )


def little_patience(slurm: Slurm) -> Slurm:
    """Return a client with a short timeout: nodes wait for their release."""
    return Slurm(slurm.transport, retry_for=PATIENCE, timeout=TIMEOUT)


def durable(log: EventLog) -> Callable[..., None]:
    """Return a writer of events that raises where the log cannot hold them: no act without its event."""

    def write(event: str, **fields: Any) -> None:
        log.write(event, **fields)
        if log.failed:
            raise GpuClusterError(f"the event log is not whole: {log.failed}: no node is touched")

    return write


def retest_reasons(
    options: DrainOptions, inventory: Mapping[str, NodeInfo], reserved: frozenset[str] | None, edited: Collection[str]
) -> dict[str, str]:
    """Return the nodes drained by gpucluster that a run may undrain for its tests, with their reasons."""
    if not options.resume or options.dry or reserved is None:
        return {}
    return {
        node: info.reason
        for node, info in inventory.items()
        if node in reserved and node not in edited and drain.fit_for_retest(info)
    }


def edited_reasons(
    inventory: Mapping[str, NodeInfo], cluster: str, history: Path | None, reports: Path
) -> dict[str, str]:
    """Return the nodes whose reason begins as gpucluster's but was not written by it, and why.

    A reason must be exactly as a run wrote it. With a history, that run must be in it, or its event log below the
    report folder; without one the checksum of the reason decides, since old logs are deleted.
    """
    found = {node: policy.own_reason(info) for node, info in inventory.items() if policy.counts(info)}
    unknown = _unknown({mine.run for mine in found.values() if mine}, cluster, history, reports)
    why = {}
    for node, mine in found.items():
        if mine is None:
            why[node] = f'its reason is not as gpucluster wrote it for this node: "{inventory[node].reason}"'
        elif mine.run in unknown:
            why[node] = (
                f"its reason names run {mine.run}, which is neither in the history {history} nor below {reports}: "
                "gpucluster history --import takes that run's events.jsonl"
            )
    return why


def _unknown(runs: set[str], cluster: str, history: Path | None, reports: Path) -> set[str]:
    if not runs or history is None or not history.exists():
        return set()
    with contextlib.closing(History(history)) as stored:
        return {run for run in runs if not stored.has(cluster, run)} - logs_below([reports]).keys()


class DrainPlugin:
    """Registered where --drain or --resume-passing is given, in the controller and in every xdist worker."""

    def __init__(
        self, config: pytest.Config, session: ClusterSession, log: EventLog | None, options: DrainOptions
    ) -> None:
        self.config, self.session, self.log, self.options = config, session, log, options
        self.lines: list[str] = []
        self._items: dict[str, pytest.Item] = {}  # here: failed with grounds
        self._confirmed: dict[str, str] = {}  # nodeid -> why it is not confirmed, '' where it is
        self._failed: dict[str, Result] = {}  # in the controller, by nodeid
        self._ends: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._worse: dict[str, list[str]] = defaultdict(list)
        self._why: dict[str, str] = {}  # node on trial -> why it is not resumed
        self._reported: set[str] = set()  # nodes drained by gpucluster that have a line
        self._trouble = False
        if log is not None:  # now the controller is known to answer, and has answered both
            assert session.slurm is not None  # start refuses the options for a cluster without a scheduler
            partitions = session.slurm.partitions()
            self._default = next((name for name, info in partitions.items() if info.default), "")
            self._lock = drain.lock_path(session.slurm.config().get("ClusterName", ""))

    # --- one item

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Remember the item of a verdict that is grounds to drain."""
        report = yield
        failed = report.when == "call" and report.failed and call.excinfo is not None
        if failed and isinstance(call.excinfo and call.excinfo.value, CheckFailed):
            result = read_result(getattr(report, "gpucluster", {}))
            verdict = self._deciding(result) if result.node else None
            if verdict is not None and verdict.repeated:
                self._confirmed.setdefault(item.nodeid, "")
            elif verdict is not None:
                self._items.setdefault(item.nodeid, item)
        return report

    def _deciding(self, result: Result) -> DeviatingVerdict | None:
        """Return the failed verdict of an item that is grounds to drain."""
        reached = (it for it in _failed(result) if policy.reaches(it.action, self.options.least))
        return next(reached, None)

    def _read(self, run: Run) -> None:
        """Take from the run's model how every check of every node ended."""
        for result in run.results:
            if not result.node:
                continue
            self._ends[result.node][result.check].append(result.outcome)
            if result.outcome == "error" or (result.outcome == "failed" and not _mild(result)):
                self._worse[result.node].append(result.check)
            if result.outcome == "failed" and self._deciding(result):
                self._failed[result.nodeid] = result

    # --- the end of the tests

    @pytest.hookimpl(wrapper=True, trylast=True)  # while the nodes are held: before the late checks
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Try again what failed, where the items are; then act, where the log is."""
        try:
            result = yield
            if self.log is not None:
                settle(self.log.model)
            if session.items and runs_tests(session.config.option):  # under xdist the controller has none
                self._confirm()
        except BaseException as error:
            self._stopped_early(error)
            raise
        if self.log is not None:
            self._act(self.log)
        return result

    def _stopped_early(self, error: BaseException) -> None:
        if self.log is not None:
            self.log.write("drain_skipped", why=f"the run was stopped early ({type(error).__name__})")
            self.lines.append("the run was stopped early: nothing is drained or resumed")

    def _confirm(self) -> None:
        """Run the failed items again, `drain.retries` times, each time with new facts."""
        waiting = []
        model = self.log.model if self.log is not None else None
        common = {result.nodeid for result in model.results if result.common} if model is not None else set()
        for nodeid, item in self._items.items() if self.options.mode != "off" else ():
            if nodeid in common:
                continue
            if is_repeatable(item):
                waiting.append(item)
            else:
                self._confirmed[nodeid] = "its jobs went before the allocation and cannot be sent again"
        for attempt in range(1, self.options.retries + 1):
            ends = run_again(waiting, self.session, attempt) if waiting else {}
            for nodeid, (end, record) in ends.items():
                if end == "failed" and self._deciding(read_result(record)):
                    self._confirmed[nodeid] = ""
                else:
                    self._confirmed[nodeid] = f"fresh attempt {attempt} ended as {end}"
            waiting = [item for item in waiting if not self._confirmed[item.nodeid]]
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[CONFIRMED] = json.dumps(self._confirmed)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # xdist's own names
        """Take what an xdist worker has tried again."""
        confirmed = getattr(node, "workeroutput", {}).get(CONFIRMED)
        self._confirmed.update(json.loads(confirmed) if confirmed else {})

    # --- the acts

    def _act(self, log: EventLog) -> None:
        slurm = self.session.slurm
        assert slurm is not None  # as in __init__
        assert isinstance(self.session, Controller)  # who has the log
        self._read(log.model)
        write = durable(log)
        actor = drain.DrainExecutor(little_patience(slurm), write, log.run, dry=self.options.dry, shown=self._command)
        try:
            grounds = self._all_grounds(write)
            with self._locked():
                if self.options.resume:
                    self._resume(actor, self.session)
                    self._end_retest()
                if grounds:  # now that the budget counts what is drained again
                    actor.drain(grounds, self._limits(), spared=self._spared(grounds))
        except Exception as error:  # noqa: BLE001 - after any error reports are written and nodes released
            if isinstance(error, drain.LockError):
                log.write("drain_unlocked", why=str(error))
            self._loud(f"drain: {clean(str(error))}")
        self._progress(actor, log)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        if not self.options.dry:
            return drain.locked(self._lock)
        try:  # a dry run changes nothing and needs no lock, and says what --drain=apply would meet
            with drain.locked(self._lock, patience=0):
                pass
        except drain.LockError as error:
            self.lines.append(f"drain: {clean(str(error))}")
        return contextlib.nullcontext()

    def _all_grounds(self, write: Callable[..., None]) -> list[policy.Grounds]:
        if self.options.mode == "off":
            return []
        found = []
        for nodeid, result in self._failed.items():
            verdict = self._deciding(result)
            assert verdict is not None  # _failed holds no others
            why = self._confirmed.get(nodeid, "it was not repeated: its process has died")
            grounds = policy.Grounds(
                node=result.node, check=result.check, action=verdict.action, finding=_hardest(verdict), unconfirmed=why
            )
            write(
                "drain_confirm",
                node=grounds.node,
                check=grounds.check,
                attempts=0 if verdict.repeated else self.options.retries,
                confirmed=not why,
                why=why,
                evidence=self._evidence_of(grounds.node),
            )
            found.append(grounds)
        return found

    def _evidence_of(self, node: str) -> str:
        """Return the folder of the evidence that was read of a node, '' where there is none."""
        return str(self.log.model.evidence.get(node, {}).get("folder", "")) if self.log is not None else ""

    def _spared(self, grounds: Sequence[policy.Grounds]) -> dict[str, str]:
        """Say which nodes are left alone whatever they failed: those that were lost."""
        return {
            one.node: f"it could not be tested to the end: {problem.text}"
            for one in grounds
            if (problem := self.session.problem(one.node)) is not None
        }

    def _limits(self) -> drain.Limits:
        cluster = self.session.cluster
        partitions = {
            node: cluster.group_of(node).partition or cluster.slurm.partition or self._default
            for node in self.session.plan.selected
        }
        return drain.Limits(self.options.budget, partitions)

    def _resume(self, actor: drain.DrainExecutor, session: Controller) -> None:
        for node, why in session.edited.items():
            self.lines.append(f"{node} stays drained: {why}")
        retest = session.retest
        for node, text in session.own_drains.items():
            reason = drain.read_reason(node, text)
            assert reason is not None  # start has read it
            retested = retest is not None and node in retest.running
            why = self._not_passed(node, reason) or (self._changed_meanwhile(actor, node, text) if retested else "")
            if why or retested:
                self._why[node] = why
                actor.decide_resume(node, why, text)
            if retest is not None and retested and (why or retest.keep(node)):
                continue  # _end_retest reports it
            self._reported.add(node)
            if why:
                self.lines.append(f"{node} stays drained: {why}")
            elif actor.resume(node, text):
                self.lines.append(f"{node} is resumed: it passed {', '.join(reason.checks)}")

    def _not_passed(self, node: str, reason: drain.DrainReason) -> str:
        problem = self.session.problem(node)
        if problem is not None:
            hint = "" if self.session.cluster.slurm.reservation else "; --set slurm.reservation=NAME lets it be tested"
            return f"it was not tested: {problem.text}{hint}"
        return policy.why_not_passed(reason, self._ends.get(node, {}), self._worse.get(node, ()))

    def _changed_meanwhile(self, actor: drain.DrainExecutor, node: str, reason: str) -> str:
        now = actor.current(node)
        if now is None:
            return "its state cannot be read"
        changed = policy.why_not_drain_again(now, reason)
        if not changed or not policy.why_not_resume(now, reason):
            return ""  # drained with its reason: the run did it, since the shell was killed
        return f"it was changed during its trial: {now.why_unavailable() or changed}"

    def _end_retest(self) -> None:
        """Drain again the nodes that were not resumed, and report the state of each as Slurm shows it."""
        retest = self.session.retest if isinstance(self.session, Controller) else None
        if retest is None:
            return
        for problem in retest.end():
            self._loud(f"drain: {clean(problem)}")
        for node in sorted(retest.ended.keys() - self._reported):
            self._reported.add(node)
            result, why = retest.ended[node], self._why.get(node, "the run came to no decision about it")
            if result == "resumed":
                self.lines.append(f"{node} is resumed: it passed all checks that drained it")
            elif result == "drained":
                word = "stays drained" if node in retest.refused else "is drained again"
                self.lines.append(f"{node} {word}: {why}")
            elif result == "left":
                left = retest.left.get(node, "")
                more = f" ({why})" if why and left not in why else ""
                self.lines.append(f"{node} is left as another user set it during its trial: {left}{more}")

    # --- what people see

    def _command(self, argv: Sequence[str]) -> str:
        """Return the command as it is typed on a login node."""
        slurm = self.session.cluster.slurm
        program = f"{slurm.bin}/{argv[0]}" if slurm.bin else argv[0]
        conf = ("env", f"SLURM_CONF={slurm.conf}") if slurm.conf else ()
        return shlex.join([*conf, program, *argv[1:]])

    def _loud(self, message: str) -> None:
        self._trouble = True
        self.session.messages.append(message)

    def _progress(self, actor: drain.DrainExecutor, log: EventLog) -> None:
        for common in log.model.common if self.options.mode != "off" else ():
            nodes = list(common.nodes)
            log.write("drain_common", check=common.check, nodes=nodes, why=common.cause)
            self.lines.append(
                f"not drained: {hostlist.fold(nodes)} ({common.check}): a finding of the cluster: {common.cause}"
            )
        word = "would be drained" if self.options.dry else "drained"
        if actor.drained:
            self.lines.append(f"{word}: {hostlist.fold(actor.drained)}")
        if actor.drained and not self.options.dry:
            checks = [one.check for one in self._failed.values() if one.node in actor.drained]
            again = retest_line(actor.drained, checks, self.session, self.config)
            self.lines.append(f"repaired? test and resume: {again}")
        self.lines += [f"dry run, nothing was touched: {command}" for command in actor.commands]
        self.lines += actor.spared_lines
        self.lines += [f"if the node is at fault: {command}" for command in actor.by_hand]
        for problem in actor.problems:
            self._loud(f"drain: {clean(problem)}")
        if actor.over_budget:
            text = (
                f"{count(len(actor.over_budget), 'more node')} failed than drain.max={self.options.budget} allows to drain; "
                f"left in service: {hostlist.fold(actor.over_budget)}: drain them with scontrol, or raise drain.max"
            )
            log.write("drain_over_budget", nodes=actor.over_budget, budget=str(self.options.budget))
            self._loud(text)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """An act that did not work is no success; nor is a trial that a run which was stopped early has not ended."""
        signals.ignore()
        self._end_retest()
        if self._trouble and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was drained, resumed and left alone, and why."""
        if self.log is None or not self.lines:
            return
        terminalreporter.section("drain and resume")
        for line in self.lines:
            terminalreporter.write_line(clean(line))


def _hardest(verdict: DeviatingVerdict) -> Finding:
    """Return the first finding that asks for the action of the verdict: it is the reason of a drain."""
    asking = (it for it in verdict.findings if (it.action or verdict.action) == verdict.action)
    return next(asking, verdict.findings[0])


def _failed(result: Result) -> list[DeviatingVerdict]:
    return [verdict for verdict in result.verdicts if verdict.outcome == Outcome.FAILED.value]


def _mild(result: Result) -> bool:
    """Return True for a failure by verdicts of which none asks for a repair of the node."""
    failed = _failed(result)
    return bool(failed) and not any(verdict.action.is_repair for verdict in failed)
