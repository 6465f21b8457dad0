"""Facts of nodes: each command goes to all nodes once, a probe reads each answer once, an item gets those of its node."""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_gpucluster.cluster.channel.batch import batched
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, with_root
from pytest_gpucluster.suite import probe_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from pytest_gpucluster.cluster.channel.batch import Batch
    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.fact import Fact
    from pytest_gpucluster.plugin.items import Record
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suite import AnyProbe

T = TypeVar("T")


class FactsCache:
    """The facts of all nodes. `channel` returns the channel to the nodes, or raises GpuClusterError without one."""

    def __init__(self, cluster: Cluster, channel: Callable[[], Channel]) -> None:
        self._cluster, self._channel = cluster, channel
        self._facts: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)  # of a probe, by node
        self._probes: dict[AnyProbe, Probe[Any]] = {}
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

    def of_fleet(self, source: AnyProbe) -> dict[str, Any]:
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

    def probe(self, source: AnyProbe) -> Probe[Any]:
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
        if answer.rc is None:
            return ProbeError(f"{probe.name} on {node}: {answer.problem}")
        try:
            return probe.parse(answer)
        except NotAvailable as error:
            return error
        except ProbeError as error:
            return ProbeError(f"{probe.name} on {node}: {error}")

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
        return with_root(command) if probe.root and self._cluster.sudo else command

    def prefetch(self, probes: Sequence[Probe[Any]]) -> None:
        """Send the commands of probes together, without waiting for answers."""
        alone = [(self.rooted(it, it.command), it.timeout) for it in probes if it.alone]
        others = [(self.rooted(it, it.command), it.timeout) for it in probes if not it.alone]
        self._batch = batched(others)
        together = [(self._batch.command, self._batch.timeout)] if self._batch else others
        self.prefetched = [*alone, *together]
        self._channel().prefetch(self.prefetched)

    def release(self, probes: Iterable[Probe[Any]]) -> None:
        """Let go of what these probes read: their answers, which are smaller, are read again where somebody asks."""
        for probe in probes:
            self._facts.pop((probe.name, probe.command), None)

    def forget(self, *, batch: bool = False) -> None:
        """Release all facts: hundreds of megabytes for thousands of nodes. `batch`: ask each command alone from now."""
        if batch:
            self._batch = None
        for cache in (self._facts, self._split, self.prefetched):
            cache.clear()


class Made(NamedTuple):
    """What a fact of the run is, or what its function raised; `rest` cleans up after it."""

    value: Any = None
    error: Exception | None = None
    traceback: TracebackType | None = None
    rest: Iterator[Any] = iter(())


class MadeFacts:
    """The facts of a run that are made once, each with what cleans up after it."""

    def __init__(self) -> None:
        self._made: dict[Fact, Made] = {}

    def once(self, fact: Fact, arguments: dict[str, Any]) -> Any:
        """Return what the function of a fact returned or yielded, or raise what it raised, at the first call."""
        __tracebackhide__ = True
        if fact not in self._made:
            self._made[fact] = _made(fact, arguments)
        found = self._made[fact]
        if found.error is not None:
            raise found.error.with_traceback(found.traceback)
        return found.value

    def end(self) -> None:
        """Let go of the facts of the run; those that clean up do, the last one first. Raise the first error."""
        made, self._made = list(self._made.values()), {}
        with contextlib.ExitStack() as cleaning:
            for one in made:
                cleaning.callback(next, one.rest, None)


def _made(fact: Fact, arguments: dict[str, Any]) -> Made:
    __tracebackhide__ = True
    try:
        value = fact.function(**arguments)
        return Made(next(value), rest=value) if inspect.isgeneratorfunction(fact.function) else Made(value)
    except Exception as error:  # noqa: BLE001 - raised in each item that needs the fact
        return Made(error=error, traceback=error.__traceback__)


class ItemView:
    """What the facts of one item are made of: the run, and the record of the item."""

    __slots__ = ("record", "session")

    def __init__(self, session: ClusterSession, record: Record) -> None:
        self.session, self.record = session, record

    @property
    def node(self) -> Node:
        """The node of the item."""
        return self.session.nodes[self.record.node]

    def of_peers(self, source: AnyProbe, reduce: Callable[[dict[str, Any]], Any]) -> Any:
        """Return what the facts of the nodes that are compared with the item's node reduce to."""
        return self.session.of_peers(self.record.node, source, reduce)

    def facts(self, source: AnyProbe) -> Any:
        """Return the facts of the item's node; NotAvailable without them."""
        record, cache = self.record, self.session.facts
        probe = cache.probe(source)
        if probe not in record.probes:
            record.probes.append(probe)
        try:
            facts = cache(record.node, probe)
        except NotAvailable as error:
            raise NotAvailable(f"{probe.name}: {error}") from error
        record.versions.update(cache.new_versions(record.node, probe, facts))
        return facts
