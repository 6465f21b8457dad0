"""Facts of nodes: each command goes to all nodes once, a probe reads each answer once, an item gets those of its node.

The facts of an item are made in the order of their sources, without pytest's fixtures.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_gpucluster import SuiteError
from pytest_gpucluster.cluster.calling_shell import with_shell
from pytest_gpucluster.cluster.channel.batch import batched
from pytest_gpucluster.cluster.slurm import task_place
from pytest_gpucluster.config.validation_errors import nearest
from pytest_gpucluster.core import given
from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, Verdict, with_cause
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, ProbeError
from pytest_gpucluster.core.fact import Fact, probe_for
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.metric_direction import HIGHER, LOWER
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.probe import Answer, Probe, with_root
from pytest_gpucluster.core.registry import parts_of_suites
from pytest_gpucluster.report.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType, TracebackType

    from pytest_gpucluster.cluster.channel.batch import Batch
    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.fact import AnyProbe
    from pytest_gpucluster.run.item_record import Record
    from pytest_gpucluster.run.session import ClusterSession, Node

T = TypeVar("T")


class FactsCache:
    """The facts of all nodes. `channel` returns the channel to the nodes, or raises GpuClusterError without one."""

    def __init__(self, cluster: Cluster, channel: Callable[[], Channel]) -> None:
        self._cluster, self._channel = cluster, channel
        self._facts: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)  # of a probe, by node
        self._probes: dict[AnyProbe[Any], Probe[Any]] = {}
        self._with_versions: set[tuple[str, str]] = set()
        self._batch: Batch | None = None
        self._split: dict[str, dict[str, Answer]] = {}
        self.prefetched: list[tuple[str, float]] = []  # commands, and seconds until each times out

    def __call__(self, node: str, probe: Probe[T]) -> T:
        """Return the facts of one node.

        Raise NotAvailable where the command could not do its work there, ProbeError where its answer is not
        understood or never came.
        """
        facts = self._facts[probe.name, probe.command]
        if node not in facts:
            facts[node] = self._read(node, probe)
        found = facts[node]
        if isinstance(found, ProbeError):
            raise found
        return found  # type: ignore[no-any-return] # its key names the probe that made it

    def of_fleet(self, source: AnyProbe[Any]) -> dict[str, Any]:
        """Return {node: facts}; nodes without facts are left out, since their own items report them."""
        probe, found = self.probe(source), {}
        for node in self._channel().nodes:
            try:
                found[node] = self(node, probe)
            except ProbeError:
                continue
        return found

    def is_requested(self, probe: Probe[Any]) -> bool:
        """Return whether the command of a probe was sent to the nodes before the first test."""
        command = self.rooted(probe, probe.command)
        return any(command == sent for sent, _ in self.prefetched)

    def sent_answer(self, node: str, probe: Probe[Any]) -> Answer | None:
        """Return the answer to a command that was sent before the first test; None for any other."""
        command = self.rooted(probe, probe.command)
        together = self._batch.commands if self._batch is not None else ()
        sent = any(command == known for known, _ in (*self.prefetched, *together))
        return self.answer(node, probe) if sent else None

    def probe(self, source: AnyProbe[Any]) -> Probe[Any]:
        """Return a probe, made for this cluster once where it is a function of it."""
        if isinstance(source, Probe):
            return source
        if source not in self._probes:
            self._probes[source] = probe_for(source, self._cluster)
        return self._probes[source]

    def new_versions(self, node: str, probe: Probe[Any], facts: Any) -> dict[str, str]:
        """Return the versions in facts at the first call for a node and probe, {} afterwards."""
        if (node, probe.name) in self._with_versions:
            return {}
        self._with_versions.add((node, probe.name))
        return probe.versions(facts)

    def _read(self, node: str, probe: Probe[Any]) -> Any:
        try:
            answer = self.answer(node, probe)
        except (KeyError, ValueError):
            return ProbeError(f"{probe.name}: {node} is not among the nodes of the channel")
        except NotAvailable as error:  # a gate's budget ended the command
            return error
        if answer.rc is None:
            return ProbeError(f"{probe.name} on {node}: {answer.problem}")
        try:
            return probe.parse(answer)
        except NotAvailable as error:
            return error
        except ProbeError as error:
            return ProbeError(f"{probe.name} on {node}: {_unnamed(probe, error)}")

    def answer(self, node: str, probe: Probe[Any]) -> Answer:
        """Return what a node of the channel answered to a probe's command."""
        command, channel, batch = self.rooted(probe, probe.command), self._channel(), self._batch
        if batch is not None and any(command == known for known, _ in batch.commands):
            if node not in self._split:
                whole = channel.ask_node(node, batch.command, timeout=batch.timeout)
                self._split[node] = batch.split(whole)
            if command in self._split[node]:
                return self._split[node][command]
        return channel.ask_node(node, command, timeout=probe.timeout)

    def rooted(self, probe: Probe[Any], command: str) -> str:
        """Return a command of a probe, with `sudo -n` where it needs root and the cluster file allows it."""
        return self.as_root(command) if probe.root else command

    def as_root(self, command: str) -> str:
        """Return a command with `sudo -n`, if the cluster file allows it."""
        return with_root(command) if self._cluster.sudo else command

    def prefetch(self, probes: Sequence[Probe[Any]]) -> None:
        """Send the commands of probes together, without waiting for answers."""
        alone = [(self.rooted(it, it.command), it.timeout) for it in probes if it.alone]
        others = [(self.rooted(it, it.command), it.timeout) for it in probes if not it.alone]
        self._batch = batched(others)
        together = [(self._batch.command, self._batch.timeout)] if self._batch else others
        self.prefetched = [*alone, *together]
        self._channel().prefetch(self.prefetched)

    def release(self, probes: Iterable[Probe[Any]]) -> None:
        """Let go of what these probes read: their answers, which are smaller, are read again for a later test."""
        for probe in probes:
            self._facts.pop((probe.name, probe.command), None)

    def forget(self, *, batch: bool = False) -> None:
        """Release all facts: hundreds of megabytes for thousands of nodes. `batch`: ask each command alone from now."""
        if batch:
            self._batch = None
        for cache in (self._facts, self._split, self.prefetched):
            cache.clear()


def _unnamed(probe: Probe[Any], error: Exception) -> str:
    """Return the message of an error without the name of the probe, which many begin with."""
    return str(error).removeprefix(f"{probe.name}: ")


class Made(NamedTuple):
    """What a fact of the run is, or what its function raised; `rest` cleans up after it."""

    value: Any = None
    error: Exception | None = None
    traceback: TracebackType | None = None
    rest: Iterator[Any] = iter(())


class MadeFacts:
    """The facts of a run that are made once, each with what cleans up after it."""

    def __init__(self) -> None:
        self._made: dict[Fact[Any], Made] = {}

    def once(self, fact: Fact[Any], arguments: Callable[[Fact[Any]], Iterable[Any]]) -> Any:
        """Return what the function of a fact returned or yielded, or raise what it or its arguments raised, at the first call."""
        __tracebackhide__ = True
        if fact not in self._made:
            self._made[fact] = _made(fact, arguments)
        found = self._made[fact]
        if found.error is not None:
            raise found.error.with_traceback(found.traceback)
        return found.value

    def known(self, fact: Fact[Any]) -> Any:
        """Return what a fact is, if it was made; else None."""
        return self._made[fact].value if fact in self._made else None

    def end(self) -> None:
        """Let go of the facts of the run; those that clean up do, the last one first. Raise the first error."""
        made, self._made = list(self._made.values()), {}
        with contextlib.ExitStack() as cleaning:
            for one in made:
                cleaning.callback(next, one.rest, None)


def _made(fact: Fact[Any], arguments: Callable[[Fact[Any]], Iterable[Any]]) -> Made:
    __tracebackhide__ = True
    try:
        value = fact.function(*arguments(fact))
        return Made(next(value), rest=value) if inspect.isgeneratorfunction(fact.function) else Made(value)
    except Exception as error:  # noqa: BLE001 - raised in each item that needs the fact
        return Made(error=error, traceback=error.__traceback__)


class CheckFailed(AssertionError):  # reads as what it is
    """The verdict of a check: the node, GPU or link is not as expected."""


def with_known_cause(verdict: Verdict, item: ItemView) -> Verdict:
    """Return a verdict that misplaced tasks, the facts of a suite or this shell explain with that as its cause or hint."""
    if {finding.code for finding in verdict.findings} == {task_place.MISPLACED}:
        return with_cause(verdict, "", task_place.CAUSE, task_place.HINT, action=Action.CONFIGURE)
    if verdict.outcome is not Outcome.PASSED:
        for explain in parts_of_suites(lambda suite: suite.known_cause):
            verdict = explain(verdict, item.session, item.record.node)
    return with_shell(verdict, item.session.cluster, os.environ)


class ItemView:
    """The item that runs, for tests of a site and for the facts of suites: its verdict, its metrics, its tables, its steps."""

    __slots__ = ("record", "session")

    def __init__(self, session: ClusterSession, record: Record) -> None:
        self.session, self.record = session, record

    @property
    def node(self) -> Node:
        """The node of the item."""
        return self.session.nodes[self.record.node]

    @property
    def lane_nodes(self) -> tuple[str, ...]:
        """The nodes that no other item uses meanwhile: with -n those of the node's lane, else all nodes under test."""
        session, node = self.session, self.record.node
        return session.without_problem(session.lane_of(node) if node else session.plan.testable)

    def facts(self, source: AnyProbe[Any]) -> Any:
        """Return what a probe found on the item's node; NotAvailable without it."""
        record, cache = self.record, self.session.facts
        probe = cache.probe(source)
        if probe not in record.probes:
            record.probes.append(probe)
        try:
            facts = cache(record.node, probe)
        except NotAvailable as error:
            raise NotAvailable(f"{probe.name}: {_unnamed(probe, error)}") from error
        record.versions.update(cache.new_versions(record.node, probe, facts))
        return facts

    def expect(self, verdict: Verdict) -> None:
        """Judge by the verdict of a check: pass, fail with its findings, or end as not applicable or not checked."""
        record, verdict = self.record, with_known_cause(verdict, self)
        record.add(verdict)
        if verdict.outcome is Outcome.NOT_APPLICABLE:
            raise NotApplicable(verdict.reason)
        if verdict.outcome is Outcome.NOT_CHECKED:
            raise NotAvailable(verdict.reason)
        if verdict.outcome is Outcome.FAILED:
            raise CheckFailed(describe(verdict, record.check, record.node))

    def at_least(
        self,
        name: str,
        value: float,
        bound: float,
        unit: str,
        *,
        device: Part | str = "",
        cause: str = "",
        hint: str = "",
    ) -> None:
        """Record a number, and judge it against a lower bound: `at_least("scratch_free", free, 500, "GiB")`."""
        metric = Metric(name, value, unit, device, better=HIGHER)
        self._bound(metric, value >= bound, Quantity(bound, unit, f">= {bound:g} {unit}"), cause, hint)

    def at_most(
        self,
        name: str,
        value: float,
        bound: float,
        unit: str,
        *,
        device: Part | str = "",
        cause: str = "",
        hint: str = "",
    ) -> None:
        """Record a number, and judge it against an upper bound."""
        metric = Metric(name, value, unit, device, better=LOWER)
        self._bound(metric, value <= bound, Quantity(bound, unit, f"<= {bound:g} {unit}"), cause, hint)

    def _bound(self, metric: Metric, good: bool, expected: Quantity, cause: str, hint: str) -> None:
        part, measured = (metric.part if metric.device else Part(name=metric.name), Quantity(metric.value, metric.unit))
        code = "below_bound" if metric.better == HIGHER else "above_bound"
        finding = Finding(part, measured, expected, code=code)
        outcome = Outcome.PASSED if good else Outcome.FAILED  # NaN compares false: it fails
        findings, metrics, name = () if good else (finding,), (metric,), self.record.check
        self.expect(Verdict(name, outcome, findings, metrics, cause=cause, hint=hint, action=Action.MONITOR))

    def measure(self, name: str, value: float, unit: str, *, device: Part | str = "", better: str = "") -> float:
        """Record a number: `measure("latency", 4.1, "us", device="mlx5_0")`; returns the value.

        `better` is "higher", "lower" or "neither"; by default the unit decides.
        """
        self.record.metrics.append(Metric(name, float(value), unit, device, better=better))
        return value

    def curve(self, title: str, points: Iterable[tuple[int, float]], *, run: str = "") -> None:
        """Add a bandwidth curve to the report, of bytes and GB/s: `curve("all_reduce, 4 nodes", [(1048576, 12.5)])`.

        `run`: the part "run" of the metrics `busbw_bound` that the picture shows beside it.
        """
        plain = {"title": title, "run": run, "points": [[size, rate] for size, rate in points]}
        self.record.curves.append(plain)

    def table(
        self, title: str, row: str, column: str, text: str, *, note: str = "", place: tuple[int, int] = (0, 0)
    ) -> None:
        """Add a cell to a table of the summary: `table("matrix", "srun", "MPI", "fails", note="no PMI support")`.

        `place` is (row, column) as numbers, since items may end in any order.
        """
        put = {"title": title, "row": row, "column": column, "text": text, "note": note, "place": list(place)}
        self.record.cells.append(put)

    def srun(
        self, argv: Sequence[str], *, nodes: Sequence[str] = (), environment: str | None = None, **options: Any
    ) -> StepResult:
        """Run a step: `srun(["hostname"], nodes=("gpu01",), ntasks_per_node=2, environment="pytorch")`.

        Takes the fields of StepRequest; `environment` is a name of the cluster file; without it `environments.default` is
        used, and "none" is no environment. Without `nodes` the step runs on the item's node, or on all nodes if the item
        has no node. Returns a StepResult: `.rc`, `.tasks`, `.command`.
        """
        on = tuple(nodes) or ((self.record.node,) if self.record.node else ())
        result = self.session.run_step(argv, nodes=on, environment=environment, **options)
        self.record.commands.append(result.command)
        return result


def named(names: Iterable[str], facts: Mapping[str, Fact[Any]], who: str) -> dict[str, Fact[Any]]:
    """Return the facts of these names. SuiteError for a name that is no fact."""
    for name in names:
        if name not in facts:
            hint = nearest(name, facts)
            raise SuiteError(f"{who} needs {name!r}, which is no fact of its suite or of the plugin{hint}")
    return {name: facts[name] for name in names}


def make(steps: Iterable[Fact[Any]], view: ItemView, known: Mapping[Fact[Any], Any]) -> dict[Fact[Any], Any]:
    """Make the facts of an item in their order, but those that are known; return all."""
    __tracebackhide__ = True
    session = view.session
    values: dict[Fact[Any], Any] = {given.session: session, given.item: view, **known}

    def arguments(fact: Fact[Any]) -> list[Any]:
        read = session.facts.of_fleet if fact.once else view.facts
        return [values[it] if isinstance(it, Fact) else read(it) for it in fact.sources]

    for fact in steps:
        if fact not in values:
            once = fact.once
            values[fact] = session.made.once(fact, arguments) if once else fact.function(*arguments(fact))
    return values


def facts_of(module: ModuleType) -> dict[str, Fact[Any]]:
    """Return the facts of the file of a suite by name, and those of every run."""
    return given.FACTS | {name: it for name, it in vars(module).items() if isinstance(it, Fact)}


def names_of(facts: Mapping[str, Fact[Any]]) -> dict[Fact[Any], str]:
    """Return {fact: its name} of the facts of a file, and of those of every run whose name the file gives to another one."""
    return {it: name for name, it in (*given.FACTS.items(), *facts.items())}
