"""What one run holds: the cluster, Slurm's inventory, the plan, the allocations and the channel to the nodes.

The controller owns the allocations and the channel. An xdist worker has the same view of them, made from the plain
data that the controller hands over, and owns nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.plan import Plan, Problem, ProblemKind
from pytest_gpucluster.cluster.slurm.error_hints import FOR_OTHERS
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.common_cause import Place, peer_groups
from pytest_gpucluster.core.errors import GpuClusterError, NotApplicable, StepError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.scope import Scope
from pytest_gpucluster.run.facts import FactsCache, MadeFacts
from pytest_gpucluster.run.item_record import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pytest

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.plan import Lanes, NodeLease
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster, Profile
    from pytest_gpucluster.core.common_cause import PeerGroup
    from pytest_gpucluster.core.finding import Explanation
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.kit.suite_work import Contradiction


NEWEST = 10.0  # seconds for which Slurm's entries of lost nodes are not read again


def shows_simulated(cluster: Cluster, inventory: Mapping[str, NodeInfo], nodes: Iterable[str]) -> bool:
    """Return whether any of these nodes shows simulated hardware, as the profiles or Slurm say."""
    found = (inventory.get(node) for node in nodes)
    return cluster.simulated or any(info.simulated for info in found if info is not None)


@dataclass(frozen=True)
class Node:
    """One node under test: its name, hardware profile, group of the cluster file, and Slurm's entry (if any).

    `peers`: the nodes of its group, partition and architecture, itself too; `twins`: those with its operating system.
    """

    name: str
    profile: Profile
    group: Any
    info: NodeInfo | None
    peers: PeerGroup
    twins: PeerGroup

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False, repr=False)
class ClusterSession:
    """One run. `channel` is None until the nodes are allocated.

    `run`: its id, as in the event log. `last_good`: when an earlier run found a node good, in seconds since the epoch.
    `history`: the file of earlier runs. `scope`: what --punchlist tests; without checks it leaves nothing out. `contradictions`: {nodes of a group: why its profile does not fit}.
    `notes`: what the header says before all else. `shell`: the warning of plugin/open_session.py.
    `selection`: the event, once the items are collected. `turn_problem`: why the item that runs could not have its nodes.
    `stopped`: why the run was stopped; `stopped_by`: the suite that still judges what it has.
    """

    cluster: Cluster
    inventory: Mapping[str, NodeInfo]
    plan: Plan
    slurm: Slurm | None
    run: str = ""
    allocations: tuple[Allocation, ...] = ()
    channel: Channel | None = None
    lanes: Lanes = ()
    contradictions: Mapping[str, Contradiction] = field(default_factory=dict)
    last_good: Mapping[str, float] = field(default_factory=dict)
    history: Path | None = None
    scope: Scope = field(default_factory=Scope)
    notes: Sequence[str] = ()
    shell: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started = time.time()
        self.nodes = self._nodes()
        self.lanes = self.lanes or (self.plan.testable,)
        self.facts, self.made = FactsCache(self.cluster, self.need_channel), MadeFacts()
        self.messages: list[str] = []
        self.stopped = self.stopped_by = self.turn_problem = ""
        self.item: pytest.Item | None = None  # that runs
        self.selection: dict[str, Any] | None = None
        self._begun: dict[str, Future[Any]] = {}  # suite -> its work before the first test
        self._lost_at_end: Mapping[str, Explanation] | None = None
        self._entries: Mapping[str, NodeInfo] = {}
        self._asked = -NEWEST
        self._hosts: dict[str, Any] = {}

    @cached_property
    def simulated(self) -> bool:
        """Whether any node shows simulated hardware: by its profile, or by the feature that a sandbox gives its nodes."""
        return shows_simulated(self.cluster, self.inventory, self.plan.selected)

    in_worker = False  # of xdist

    def turn(self, lease: NodeLease | None) -> contextlib.AbstractContextManager[None]:  # a worker's
        """Have the nodes of an item while it runs; a single process always has them."""
        return contextlib.nullcontext()

    def lane_of(self, node: str) -> tuple[str, ...]:
        """Return the nodes of a node's lane; all that are tested, where no lane has it."""
        return next((lane for lane in self.lanes if node in lane), self.plan.testable)

    def _nodes(self) -> dict[str, Node]:
        places = {name: self.place(name) for name in self.plan.selected}
        peers, twins = (peer_groups(places, image=image) for image in (False, True))
        return {name: self._node(name, peers[name], twins[name]) for name in places}

    def _node(self, name: str, peers: PeerGroup, twins: PeerGroup) -> Node:
        group = self.cluster.group_of(name)
        return Node(name, group.profile, group, self.inventory.get(name), peers, twins)

    def place(self, name: str, leaves: Mapping[str, str] | None = None) -> Place:
        """Return what a node must share with others to be compared with them. `leaves`: {node: leaf switch}."""
        group, info = self.cluster.group_of(name), self.inventory.get(name)
        partition = group.partition or self.cluster.slurm.partition or ""
        switch = (leaves or {}).get(name, "")
        if info is None:
            return Place(group.nodes, partition, switch=switch)
        if "," in partition:  # Slurm takes any of them
            partition = ",".join(sorted(set(partition.split(",")).intersection(info.partitions)))
        return Place(group.nodes, partition, info.arch, info.system, switch)

    def lost(self) -> Mapping[str, Explanation]:
        """Return the nodes that went away during the run, and why; after close(), as it was then."""
        if self._lost_at_end is not None:
            return self._lost_at_end
        return self.channel.lost if self.channel is not None else {}

    def entry(self, node: str) -> NodeInfo | None:
        """Return Slurm's entry of a node at the start; of a lost one as it is now, where Slurm answers."""
        if self.slurm is None or node not in self.lost():
            return self.inventory.get(node)
        if time.monotonic() - self._asked > NEWEST:
            with contextlib.suppress(GpuClusterError):
                self.slurm.refresh()
                self._entries = self.slurm.nodes()
            self._asked = time.monotonic()
        return self._entries.get(node, self.inventory.get(node))

    def is_disconnected(self, node: str) -> bool:
        """Say whether a node is lost for no fault of its own: the channel to all nodes ended."""
        return self.channel is not None and node in self.channel.disconnected

    def stop(self, suite: Suite, why: str) -> None:
        """End the run at the next item of another suite."""
        self.stopped, self.stopped_by = why, suite.name

    def problem(self, node: str) -> Problem | None:
        """Return why a node cannot be tested, None where it can."""
        lost = self.lost()
        if node in lost:
            kind = ProblemKind.DISCONNECTED if self.is_disconnected(node) else ProblemKind.LOST
            return Problem(kind, clean(lost[node].text), lost[node].code)
        planned = self.plan.problems.get(node)
        return planned and replace(planned, text=clean(planned.text))

    def allocation_of(self, node: str) -> Allocation | None:
        """Return the allocation that holds a node."""
        return next((held for held in self.allocations if node in held.nodes), None)

    def need_channel(self) -> Channel:
        """Return the channel; GpuClusterError where no node is allocated."""
        if self.channel is None:
            raise GpuClusterError("no node is allocated: this test cannot run")
        return self.channel

    def need_slurm(self) -> Slurm:
        """Return the client; NotApplicable without a scheduler."""
        if self.slurm is None:
            raise NotApplicable(self.cluster.why_no_slurm)
        return self.slurm

    def answer(self, node: str, probe: Probe[Any]) -> Answer:
        """Return what one node answered to a probe's command, as it came; one that never came in says why not."""
        if node not in self.need_channel().nodes:
            problem = self.problem(node)
            return Answer(node, None, problem=problem.text if problem else "no agent was started there")
        return self.facts.answer(node, probe)

    def under_test(self) -> tuple[str, ...]:
        """Return the nodes that are really under test, in the order of the cluster file."""
        return self.without_problem(self.plan.testable)

    def without_problem(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return those of the nodes that can be tested by now, in their order."""
        return tuple(node for node in nodes if self.problem(node) is None)

    def begin(self, suite: Suite) -> Future[Any]:
        """Start a suite's work before the first test, once; it runs while answers are judged."""
        if suite.name not in self._begun:
            self._begun[suite.name] = future = Future[Any]()
            threading.Thread(
                target=self._work, args=(suite, future), name=f"{suite.name}, before the tests", daemon=True
            ).start()
        return self._begun[suite.name]

    def _work(self, suite: Suite, future: Future[Any]) -> None:
        assert suite.before_first_test is not None  # begin() is for those that have some
        try:
            # others wait for the answers of the nodes, which are judged before the work
            for command, timeout in () if suite.before_first_test.first else self.facts.prefetched:
                self.need_channel().ask(command, timeout=timeout)
            future.set_result(suite.load(suite.before_first_test.part)(self))
        except BaseException as error:  # noqa: BLE001 - raised in the test that asks for the result
            future.set_exception(error)

    def host(self, node: str) -> Any:
        """Return the testinfra Host of a node, made once."""
        from pytest_gpucluster.cluster.channel.testinfra_backend import host_of  # slow to import

        if node not in self._hosts:
            self._hosts[node] = host_of(self.need_channel(), node, sudo=self.cluster.sudo)
        return self._hosts[node]

    def last_command(self, node: str) -> str:
        """Return the last command on the testinfra Host of a node since the last call, '' where there is none."""
        host = self._hosts.get(node)
        if host is None:
            return ""
        command, host.backend.last_command = host.backend.last_command, ""
        return str(command)

    def run_step(
        self, argv: Sequence[str], *, nodes: Sequence[str], environment: str | None, **options: Any
    ) -> StepResult:
        """Run a step on these nodes (none: all of the first allocation), in an environment of the cluster file.

        Without a name the environment is `default`, where the cluster file has it.
        """
        slurm = self.need_slurm()
        held = self.allocation_of(nodes[0]) if nodes else (self.allocations or (None,))[0]
        if held is None:
            raise StepError(f"no allocation holds {', '.join(nodes) or 'any node'}: the step cannot run")
        chosen = self.cluster.environment(environment, f"cluster {self.cluster.name}: environment")
        request = StepRequest(argv=tuple(argv), nodes=tuple(nodes) or held.nodes, environment=chosen, **options)
        return run_step(slurm, held, request)

    def outcome(self, suite: Suite) -> Any:  # the controller's
        """Return what became of the jobs that a suite submitted before the nodes were allocated; None without any."""
        return None

    def ended_early(self) -> list[str]:
        """Say of the allocations that ended under the run why they did: one line each."""
        return [
            f"job {held.job_id}, which held {hostlist.fold(held.nodes)} for this run, has ended: {held.why_ended()}"
            for held in self.allocations
            if held.owned and not held.alive
        ]

    @property
    def taken_back(self) -> bool:
        """Whether Slurm ended a job of this run for others' sake; known after `ended_early`."""
        return any(held.end_state in FOR_OTHERS for held in self.allocations)

    def forget(self, channel: Channel) -> None:
        """Forget every answer and fact, and ask through this channel from now on."""
        self.made.end()
        self.channel, self._begun = channel, {}
        self.forget_answers()

    def forget_answers(self) -> None:
        """Let go of the facts of all nodes, which are hundreds of megabytes where nodes are thousands."""
        self.facts.forget()
        self._hosts.clear()

    def let_agents_leave(self) -> None:
        """Start to close the channel in the process that owns it: all items are judged, reports are not written yet."""

    def start_releasing(self) -> None:
        """Begin to let go of the nodes: what is left of the run needs none."""

    def nodes_after_release(self, progress: Callable[[str], None]) -> dict[str, NodeInfo]:  # the controller's
        """Return the released nodes, as Slurm shows them after their epilogs."""
        return {}

    def release_nodes(self) -> None:
        """Let go of the nodes."""

    def close(self) -> None:
        """Let go of everything that this run holds."""
