"""What one run holds: the cluster, Slurm's inventory, the plan, the allocations and the channel to the nodes.

The controller owns the allocations and the channel. An xdist worker has the same view of them, made from the plain
data that the controller hands over, and owns nothing.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_gpucluster.cluster.channel.batch import batched
from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.channel.channel_server import FleetClient, FleetServer
from pytest_gpucluster.cluster.channel.multi_channel import JoinedChannel
from pytest_gpucluster.cluster.channel.testinfra_backend import host_of
from pytest_gpucluster.cluster.slurm import leftovers
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.completing import mark_stuck, wait_completed
from pytest_gpucluster.cluster.slurm.inventory import seen_from_inside
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import (
    AllocationError,
    ConfigError,
    GpuClusterError,
    NotAvailable,
    ProbeError,
    SlurmError,
    StepError,
    TransportError,
)
from pytest_gpucluster.core.probe import Answer, Probe, with_root
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.kit.containers import remove_containers, stale_user_files
from pytest_gpucluster.kit.versions import versions_in
from pytest_gpucluster.plugin import signals
from pytest_gpucluster.plugin.item_result import NOT_APPLICABLE, NOT_CHECKED, Record, clean, matches
from pytest_gpucluster.plugin.node_partition import Lanes, NodeLease, make_lanes
from pytest_gpucluster.plugin.plan import Kind, Plan, Problem, judge_node, shares
from pytest_gpucluster.suite import probe_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.channel.batch import Batch
    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster, Profile, SlurmConfig
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.drain import Trial
    from pytest_gpucluster.kit.suite_work import Submission
    from pytest_gpucluster.report.step_logs import StepLogs
    from pytest_gpucluster.suite import AnyProbe

T = TypeVar("T")

LOOK_AFTER = 15.0  # seconds until the batch jobs are looked at, where nobody has asked for them earlier
LAST_LOOK = 60.0  # seconds that epilogs may take for us to see what comes of them
FRESH_STARTS = 3  # further allocations where nodes fall out as they start


@dataclass(frozen=True)
class Node:
    """One node under test: its name, hardware profile, group of the cluster file, and Slurm's entry (if any)."""

    name: str
    profile: Profile
    group: Any
    info: NodeInfo | None

    def __str__(self) -> str:
        return self.name


class ClusterSession:
    """One run. `channel` is None until nodes are had; `record` is of the item that runs."""

    def __init__(
        self, cluster: Cluster, inventory: Mapping[str, NodeInfo], plan: Plan, slurm: Slurm | None
    ) -> None:
        self.cluster, self.inventory, self.plan, self.slurm = cluster, inventory, plan, slurm
        self.nodes = {name: self._node(name) for name in plan.selected}
        self.allocations: tuple[Allocation, ...] = ()
        self.channel: Channel | None = None
        self.record = Record("", "", "")
        self._begun: dict[str, Future[Any]] = {}  # suite -> its work before the first test
        self._prefetched: list[tuple[str, float]] = []
        self._batch: Batch | None = None
        self._split: dict[str, dict[str, Answer]] = {}
        self.messages: list[str] = []
        self.notes: list[str] = []  # what the header says before all else
        self.step_logs: StepLogs | None = None
        self._seen: set[tuple[str, str]] = set()
        self.stopped = self.stopped_by = (
            ""  # why the run was stopped, and the suite that still judges what it has
        )
        self._facts: dict[tuple[str, str, str], Any] = {}
        self._probes: dict[AnyProbe, Probe[Any]] = {}
        self._lost_at_end: Mapping[str, str] | None = None
        self._hosts: dict[str, Any] = {}
        self.made: dict[Any, Any] = {}  # the function of a session fact -> what it returned or raised
        self.lanes: Lanes = (plan.testable,)
        self.turn_problem = ""  # why the item could not have its nodes

    def turn(self, place: NodeLease | None) -> contextlib.AbstractContextManager[None]:  # a worker's
        """Have the nodes of an item while it runs; a single process always has them."""
        return contextlib.nullcontext()

    def lane_of(self, node: str) -> tuple[str, ...]:
        """Return the nodes of a node's lane; all that are tested, where no lane has it."""
        return next((lane for lane in self.lanes if node in lane), self.plan.testable)

    def _node(self, name: str) -> Node:
        group = self.cluster.group_of(name)
        return Node(name, group.profile, group, self.inventory.get(name))

    def lost(self) -> Mapping[str, str]:
        """Return the nodes that went away during the run, and why; after close(), as it was then."""
        if self._lost_at_end is not None:
            return self._lost_at_end
        return self.channel.lost if self.channel is not None else {}

    def cut(self, node: str) -> bool:
        """Say whether a node is lost for no fault of its own: the channel to all nodes ended."""
        return self.channel is not None and node in self.channel.cut

    def stop(self, suite: Suite, why: str) -> None:
        """End the run at the next item of another suite."""
        self.stopped, self.stopped_by = why, suite.name

    def problem(self, node: str) -> Problem | None:
        """Say why a node cannot be tested, None where it can."""
        lost = self.lost()
        if node in lost:
            return Problem(Kind.CUT if self.cut(node) else Kind.LOST, clean(lost[node]))
        planned = self.plan.problems.get(node)
        return planned and Problem(planned.kind, clean(planned.text))

    def allocation_of(self, node: str) -> Allocation | None:
        """Return the allocation that holds a node."""
        return next((held for held in self.allocations if node in held.nodes), None)

    def need_channel(self) -> Channel:
        """Return the channel; GpuClusterError where no node was had."""
        if self.channel is None:
            raise GpuClusterError("no node is allocated: this test cannot run")
        return self.channel

    def facts(self, node: str, probe: Probe[T]) -> T:
        """Return the facts of one node. The command is asked of all nodes at once and remembered.

        Raise NotAvailable where the command could not do its work there, ProbeError where its answer is not
        understood or never came.
        """
        key = (node, probe.name, probe.command)
        if key not in self._facts:
            self._facts[key] = self._read(node, probe)
        found = self._facts[key]
        if isinstance(found, ProbeError):
            raise found
        return found  # type: ignore[no-any-return] # the key holds the probe that made it

    def answer(self, node: str, probe: Probe[Any]) -> Answer:
        """Return what one node answered to a probe's command, as it came; one that never came in says why not."""
        if node not in self.need_channel().nodes:
            problem = self.problem(node)
            return Answer(node, None, problem=problem.text if problem else "no agent was started there")
        return self._ask(node, self.command(probe), probe.timeout)

    def probe(self, asked: AnyProbe) -> Probe[Any]:
        """Return a probe, made for this cluster once where it is a function of it."""
        if isinstance(asked, Probe):
            return asked
        if asked not in self._probes:
            self._probes[asked] = probe_for(asked, self.cluster)
        return self._probes[asked]

    def requires(self, record: Record) -> bool:
        """Return True where the cluster file or the node's profile requires an item's check."""
        profile = self.nodes[record.node].profile.required if record.node else ()
        return matches(record.check, (*self.cluster.required, *profile)) is not None

    def facts_of_item(self, asked: AnyProbe) -> Any:
        """Return the facts of the running item's node; what it could not tell ends the item as 'not checked'."""
        probe, record = self.probe(asked), self.record
        if probe not in record.probes:
            record.probes.append(probe)
        try:
            facts = self.facts(record.node, probe)
            if (record.node, probe.name) not in self._seen:  # said once a node
                self._seen.add((record.node, probe.name))
                record.versions |= versions_in(probe.name, facts)
            return facts  # noqa: TRY300 - the except is of facts()
        except NotAvailable as error:
            if self.requires(record):
                raise
            pytest.skip(f"{NOT_CHECKED}{probe.name}: {error}")

    def fleet_facts(self, asked: AnyProbe) -> dict[str, Any]:
        """Return the facts of all nodes that could tell; the others speak for themselves in their own items."""
        probe, told = self.probe(asked), {}
        for node in self.need_channel().nodes:
            try:
                told[node] = self.facts(node, probe)
            except ProbeError:
                continue
        return told

    def _read(self, node: str, probe: Probe[Any]) -> Any:
        try:
            answer = self._ask(node, self.command(probe), probe.timeout)
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

    def _ask(self, node: str, command: str, timeout: float) -> Answer:
        channel, batch = self.need_channel(), self._batch
        if batch is not None and any(command == known for known, _ in batch.commands):
            if node not in self._split:
                whole = channel.ask_node(node, batch.command, timeout=batch.timeout)
                self._split[node] = batch.split(whole)
            if command in self._split[node]:
                return self._split[node][command]
        return channel.ask_node(node, command, timeout=timeout)

    def command(self, probe: Probe[Any]) -> str:
        """Return the command as it is sent: through `sudo -n` where it needs root and the cluster file allows it."""
        return self.rooted(probe, probe.command)

    def rooted(self, probe: Probe[Any], command: str) -> str:
        """Return a command of a probe, its own or its short form, with sudo where that applies."""
        return with_root(command) if probe.root and self.cluster.sudo else command

    def under_test(self) -> tuple[str, ...]:
        """Return the nodes that are really under test, in the order of the cluster file."""
        return self.without_problem(self.plan.testable)

    def without_problem(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return those of the nodes that can be tested by now, in their order."""
        return tuple(node for node in nodes if self.problem(node) is None)

    def prefetch(self, probes: Sequence[Probe[Any]]) -> None:
        """Send the commands of probes in one go; later facts() finds them answered."""
        alone = [(self.command(probe), probe.timeout) for probe in probes if probe.alone]
        others = [(self.command(probe), probe.timeout) for probe in probes if not probe.alone]
        self._batch = batched(others)
        self._prefetched = [
            *alone,
            *([(self._batch.command, self._batch.timeout)] if self._batch else others),
        ]
        self.need_channel().prefetch(self._prefetched)

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
            for command, timeout in self._prefetched:  # first: the work is judged last
                self.need_channel().ask(command, timeout=timeout)
            future.set_result(suite.load(suite.before_first_test.part)(self))
        except BaseException as error:  # noqa: BLE001 - raised in the test that asks for the result
            future.set_exception(error)

    def host(self, node: str) -> Any:
        """Return the testinfra Host of a node, made once."""
        if node not in self._hosts:
            self._hosts[node] = host_of(self.need_channel(), node, sudo=self.cluster.sudo)
        return self._hosts[node]

    def run_step(
        self, argv: Sequence[str], *, nodes: Sequence[str], environment: str | None, **options: Any
    ) -> StepResult:
        """Run a step on these nodes (none: all of the first allocation), in an environment of the cluster file."""
        if self.slurm is None:
            pytest.skip(f"{NOT_APPLICABLE}{self.cluster.why_no_slurm}")
        held = self.allocation_of(nodes[0]) if nodes else (self.allocations or (None,))[0]
        if held is None:
            raise StepError(f"no allocation holds {', '.join(nodes) or 'any node'}: the step cannot run")
        known = self.cluster.environments
        if environment is not None and environment not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"environment {environment!r} is not in cluster {self.cluster.name}; it has: {names}"
            )
        chosen = known[environment] if environment else None
        request = StepRequest(
            argv=tuple(argv), nodes=tuple(nodes) or held.nodes, environment=chosen, **options
        )
        return run_step(self.slurm, held, request)

    def keep_steps(self, logs: StepLogs) -> None:
        """Write a log of every step from now on, and tell the item that runs then."""
        self.step_logs = logs
        if self.slurm is not None:
            self.slurm.on_step = self._keep_step

    def _keep_step(self, result: StepResult) -> None:
        assert self.step_logs is not None  # it is what made this the listener
        own = threading.current_thread() is threading.main_thread()  # work of begin() runs beside the items
        path = self.step_logs.keep(self.record.check if own else "", result)
        if own and path:
            self.record.logs.append(path)

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

    def forget(self, channel: Channel) -> None:
        """Forget every answer, and ask through this channel from now on."""
        self.channel, self._batch, self._begun = channel, None, {}
        self.forget_answers()

    def forget_answers(self) -> None:
        """Let go of the facts of all nodes, which are hundreds of megabytes where nodes are thousands."""
        for answers in (self._facts, self._split, self._hosts, self._prefetched, self.made):
            answers.clear()

    def let_agents_leave(self) -> None:
        """Begin to close the channel, where it is ours: all is judged, and reports are still to be written."""

    def start_giving_back(self) -> None:
        """Begin to let go of the nodes: what is left of the run needs none."""

    def last_look(self, say: Callable[[str], None]) -> dict[str, NodeInfo]:  # the controller's
        """Return the nodes that were given back, as Slurm has them once their epilogs have ended."""
        return {}

    def give_back(self) -> None:
        """Let go of the nodes."""

    def close(self) -> None:
        """Let go of everything that this run holds."""


class Controller(ClusterSession):
    """The session that owns the allocations."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._server: FleetServer | None = None
        self._parts: list[Fleet] = []
        self._look: threading.Timer | None = None
        self._leaving: threading.Thread | None = None
        self._giving_back: threading.Thread | None = None
        self._submissions: dict[
            str, Submission | ConfigError
        ] = {}  # suite -> its jobs, or why there are none
        self._lock = threading.Lock()
        self.places: list[str] | None = None  # the lane of every item, as an xdist worker tells it
        self.reserved: frozenset[str] = frozenset()  # the nodes of the reservation that we allocate in
        self.drained_by_us: dict[str, str] = {}  # node -> the reason of ours that it had at the start
        self.edited: dict[str, str] = {}  # node -> why its reason, which begins as ours do, is none of ours
        self.trial: Trial | None = None
        self._started = self._cleared = self._still_held = False
        self.left_behind: list[str] = []  # what could not be given back, and what to do about it

    def read_inventory(self, slurm: Slurm) -> Mapping[str, NodeInfo]:
        """Ask Slurm for its nodes anew, as a job of our reservation sees them."""
        slurm.refresh()
        nodes = mark_stuck(slurm, slurm.nodes(), self.cluster.slurm.completing)
        return seen_from_inside(nodes, self.reserved)

    def allocate(self, say: Callable[[str], None], submitting: Iterable[Suite]) -> None:
        """Get the nodes and open the channel; AllocationError where there are none.

        The jobs of the `submitting` suites go first: beside an allocation of all nodes none could start.
        """
        if self.channel is not None or not self.plan.testable:
            return
        self._clear_dead_runs(say)
        if self.cluster.access == "ssh":
            self.channel = open_over_ssh(self.cluster, self.plan.testable)
            return
        if self.slurm is None:
            self.channel = Fleet.local(self.plan.testable[0])
            return
        if self.trial is not None:
            self._begin_trial(self.slurm, self.trial, say)
        for suite in submitting:
            self._submit(suite)
        ids = [job for one in self._submitted() for job in one.job_ids()]
        self._open_others(self.slurm, ":".join(("afterany", *ids)) if ids else None, say)
        # they end about now, and may be forgotten (MinJobAge) before the suite asks
        self._look = threading.Timer(LOOK_AFTER, self._look_at_jobs)
        self._look.daemon = True
        self._look.start()
        for _ in range(FRESH_STARTS):
            if not self._left_out_fallen(self.slurm, say):
                return
            self._open_others(self.slurm, None, say)

    def _clear_dead_runs(self, say: Callable[[str], None]) -> None:
        """Remove what killed runs have left in the queue and on this machine; what may be of a live run stays."""
        try:
            found = [
                *(leftovers.jobs(self.slurm) if self.slurm else ()),
                *leftovers.folders(),
                *stale_user_files(),
            ]
            leftovers.remove([one for one in found if one.remove is not None], say)
        except SlurmError as error:
            say(f"jobs of runs that were killed may be left: {error}")

    def _begin_trial(self, slurm: Slurm, trial: Trial, say: Callable[[str], None]) -> None:
        """Undrain the nodes on trial; one that does not come is not tested."""
        trial.begin()
        inventory = self.read_inventory(slurm)
        problems = {node: Problem(Kind.UNAVAILABLE, why) for node, why in trial.refused.items()}
        for node, problem in problems.items():
            say(f"{node} is not on trial: {clean(problem.text)}")
        self._replan(inventory, problems)

    def _replan(self, inventory: Mapping[str, NodeInfo], problems: Mapping[str, Problem]) -> None:
        self.inventory = inventory
        self.plan = replace(self.plan, problems={**self.plan.problems, **problems})
        self.nodes = {name: self._node(name) for name in self.plan.selected}

    def _open_others(self, slurm: Slurm, dependency: str | None, say: Callable[[str], None]) -> None:
        """Open the channel, without the nodes that went out of service or to others since the inventory was read."""
        for _ in range(FRESH_STARTS):
            try:
                return self._open(slurm, dependency, say)
            except AllocationError as error:
                # in these words Slurm speaks of any limit; without our jobs it is asked again, at the price of theirs
                if "job submit limit" in error.stderr and self._withdraw(str(error)):
                    self._give_back()
                    dependency = None
                    continue
                if not error.nodes or not set(self.plan.testable) - error.nodes.keys():
                    raise
                inventory = self.read_inventory(slurm)
                fallen = {
                    node: judge_node(node, inventory, wait=False) or Problem(Kind.UNAVAILABLE, why)
                    for node, why in error.nodes.items()
                }
                if self.plan.wait and any(problem.kind is Kind.BUSY for problem in fallen.values()):
                    raise  # who names nodes does not want less
                self._leave_out(fallen, inventory, say)
        return self._open(slurm, dependency, say)

    def _withdraw(self, why: str) -> bool:
        """Cancel jobs of suites where Slurm allows no allocation beside them; False where there are none."""
        withdrawn = [one.withdraw(why) for one in self._submitted()]
        return any(withdrawn)

    def _leave_out(
        self, fallen: Mapping[str, Problem], inventory: Mapping[str, NodeInfo], say: Callable[[str], None]
    ) -> None:
        for node, problem in fallen.items():
            say(f"{node} is left out: {clean(problem.text)}; asking for the others again")
        self._give_back()
        self._replan(inventory, fallen)

    def _give_back(self) -> None:
        """Let go of what has been had of the nodes, to ask afresh."""
        for part in self._parts:  # the channel is made of them once all nodes are had
            part.close()
        self._let_go()
        self.channel, self.allocations, self._started = None, (), False

    def _open(self, slurm: Slurm, dependency: str | None, say: Callable[[str], None]) -> None:
        """Allocate the testable nodes, and start an agent on each."""
        parts = self._parts = []
        for (partition, gpus), nodes in shares(self.cluster, self.inventory, self.plan.testable).items():
            request = make_request(self.cluster.slurm, partition, gpus, nodes)
            beside = tuple(held.job_id for held in self.allocations)
            request = replace(request, dependency=dependency, beside=beside)
            held = Allocation.request(slurm, request, say=say)
            self.allocations += (held,)
            parts.append(Fleet.over_slurm(slurm, held))
        if parts:
            self.channel = parts[0] if len(parts) == 1 else JoinedChannel(parts)
        for part in parts:
            part.wait_started()
        self._started = True

    def _left_out_fallen(self, slurm: Slurm, say: Callable[[str], None]) -> bool:
        """Where the agents of all nodes went with the first, leave out the nodes at fault; True: start afresh.

        A prolog that fails on one node drains it and ends the whole job, and a slurmd that takes no task ends the
        whole step; the other nodes are not to blame.
        """
        stillborn = {node: why for part in self._parts for node, why in part.launch_failed.items()}
        if self.channel is None or not self.channel.lost:
            return False
        if not stillborn and all(held.alive for held in self.allocations):
            return False
        inventory = self.read_inventory(slurm)
        fallen = {node: Problem(Kind.LOST, why) for node, why in stillborn.items()}
        for node in self.plan.testable:
            if (problem := judge_node(node, inventory, wait=True)) is not None:
                fallen[node] = problem
        if not fallen:
            return False
        self._leave_out(fallen, inventory, say)
        return True

    def _submit(self, suite: Suite) -> None:
        """Submit the jobs of a suite; what the cluster file lacks for them is raised by its own items."""
        assert suite.before_allocation is not None  # it is what made the suite one of those that submit
        if self.slurm is None:
            return
        try:
            made: Submission | None = suite.load(suite.before_allocation.part)(self.slurm, self.cluster)
        except ConfigError as error:
            self._submissions[suite.name] = error
        else:
            if made is not None:
                self._submissions[suite.name] = made

    def _look_at_jobs(self) -> None:
        for one in self._submitted():
            one.refresh()

    def _submitted(self) -> list[Submission]:
        return [one for one in self._submissions.values() if not isinstance(one, ConfigError)]

    def outcome(self, suite: Suite) -> Any:
        """Return what became of a suite's jobs; those that need no nodes are submitted now where no node is held."""
        work = suite.before_allocation
        if suite.name not in self._submissions and not self.allocations and work and not work.needs_nodes:
            self._submit(suite)
        found = self._submissions.get(suite.name)
        if isinstance(found, ConfigError):
            raise found
        return found.outcome() if found is not None else None

    def hand_over(self, workers: int) -> str:
        """Return what one of so many workers needs to see the same, as plain text for xdist."""
        address: tuple[Any, ...] | None = None
        if self.channel is not None:
            with self._lock:
                if self._server is None:
                    self.lanes = make_lanes(self.channel.nodes, workers, self._leaves())
                    also: dict[str, Callable[..., Any]] = {
                        "places": self._take_places,
                        "outcome": self.outcome,
                    }
                    self._server = FleetServer(self.channel, also, self._cancel_steps)
            address = self._server.address
        jobs = [(held.job_id, held.nodes) for held in self.allocations]
        data = (self.cluster, dict(self.inventory), self.plan, jobs, address, self.lanes)
        return base64.b64encode(pickle.dumps(data)).decode()

    def _take_places(self, places: list[str]) -> None:
        self.places = places

    def _leaves(self) -> Mapping[str, str]:
        """Return {node: leaf switch} where Slurm knows its topology."""
        if self.slurm is None or "tree" not in self.slurm.config().get("TopologyPlugin", ""):
            return {}
        try:
            return parse_slurm_topology(self.slurm.run("scontrol", "show", "topology", "-o"))
        except GpuClusterError:
            return {}  # lanes in Slurm's order are right too

    def _cancel_steps(self, nodes: frozenset[str]) -> None:
        """End the steps that a dead worker has left on these nodes; step 0 of a job is the channel."""
        if self.slurm is None:
            return
        for held in self.allocations:
            if not nodes & set(held.nodes):
                continue
            for step in self.slurm.steps(held.job_id):
                number = step.id.rpartition(".")[2]
                if number.isdigit() and int(number) > 0 and nodes & set(step.nodes):
                    self.slurm.run("scancel", step.id)

    def _clear_containers(self) -> None:
        """Remove the containers that steps of this run, or of one that was killed, have left; once."""
        # agents that have not started would be waited for, and have run no step
        if self.channel is None or self.slurm is None or not self._started or self._cleared:
            return
        if not self.cluster.starts_containers:
            return
        self._cleared = True
        try:
            jobs = {held.job_id for held in self.allocations}
            left = remove_containers(self.slurm, self.channel, jobs, hurry=bool(signals.noted()))
        except GpuClusterError as error:  # the nodes are given back all the same
            left = [f"containers of this run may be left on the nodes: {error}"]
        self.left_behind += left

    def let_agents_leave(self) -> None:
        """Begin to close the channel: the agents of a large fleet take a second to end."""
        self._lost_at_end = self.lost()
        self._clear_containers()
        if self.channel is not None:
            self._leaving = threading.Thread(target=self.channel.close, name="leaving", daemon=True)
            self._leaving.start()

    def start_giving_back(self) -> None:
        """Begin to give the nodes back, while reports are written: those can take long."""
        self._lost_at_end = self.lost()
        if self._giving_back is None:
            self._giving_back = threading.Thread(
                target=self._give_back_early, name="giving back", daemon=True
            )
            self._giving_back.start()

    def last_look(self, say: Callable[[str], None]) -> dict[str, NodeInfo]:
        """Wait a while until the nodes have let go of our jobs; return them as Slurm has them then."""
        nodes = [node for held in self.allocations for node in held.nodes]
        if self.slurm is None or not nodes or self._still_held:
            return {}
        patience = min(self.cluster.slurm.completing or LAST_LOOK, LAST_LOOK)
        return wait_completed(self.slurm, nodes, patience, say, signals.pause)

    def _let_go(self) -> None:
        if self._leaving is not None:
            self._leaving.join()
        if self.channel is not None:
            self.channel.close()
        for held in self.allocations:
            try:
                held.release()
            except AllocationError as error:
                self._still_held = True
                self.left_behind.append(str(error))

    def give_back(self) -> None:
        """Close the channel and give the nodes back; again and again is harmless."""
        self._lost_at_end = self.lost()
        if self._giving_back is not None:
            self._giving_back.join()
        self._give_all_back()

    def _give_back_early(self) -> None:
        with contextlib.suppress(Exception):  # give_back() tries again, where an error is seen
            self._give_all_back()

    def _give_all_back(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._server is not None:
            self._server.close()
        self._clear_containers()
        if self.trial is not None:
            self.left_behind += self.trial.end()  # while we hold them, nobody else gets them in between
        self._let_go()
        for one in self._submitted():
            one.close()

    def close(self) -> None:
        """Give the nodes back, and close the connection; again and again is harmless."""
        self.give_back()
        if self.slurm is not None:
            self.slurm.transport.close()


class Worker(ClusterSession):
    """The view of an xdist worker on the controller's session."""

    relay: FleetClient | None = None
    orderly = False  # some item loads nodes: who reads them takes turns with it
    _has: NodeLease | None = None

    def turn(self, place: NodeLease | None) -> contextlib.AbstractContextManager[None]:
        """Have the nodes of an item while it runs."""
        return self._turn(place) if place is not None and self.relay is not None else contextlib.nullcontext()

    @contextlib.contextmanager
    def _turn(self, place: NodeLease) -> Iterator[None]:
        assert self.relay is not None  # turn() has looked
        self._has, self.turn_problem = place, ""
        taken = place.load or (self.orderly and bool(place.nodes))
        try:
            if taken:
                self.relay.take(place.nodes, load=place.load)
        except TransportError as error:
            self.turn_problem = str(error)
        try:
            yield
        finally:
            if taken or self._has is not place:
                with contextlib.suppress(TransportError):  # then nobody waits for the nodes either
                    self.relay.leave()
            self._has = None

    def run_step(
        self, argv: Sequence[str], *, nodes: Sequence[str], environment: str | None, **options: Any
    ) -> StepResult:
        """Run a step as Session does; the nodes that it takes beyond those of the item are waited for."""
        held = self.allocations[0].nodes if self.allocations else ()
        self._widen(frozenset(nodes or held))
        return super().run_step(argv, nodes=nodes, environment=environment, **options)

    def _widen(self, nodes: frozenset[str]) -> None:
        has = self._has
        mine = has.nodes if has is not None and has.load else frozenset()
        if has is not None and self.relay is not None and not nodes <= mine:
            self._has = replace(has, nodes=nodes | mine, load=True)
            self.relay.take(nodes | mine, load=True)

    def outcome(self, suite: Suite) -> Any:
        """Ask the controller, which has looked before Slurm forgot."""
        return self.relay.call("outcome", suite) if self.relay is not None else None

    @classmethod
    def take_over(cls, text: str, make_slurm: Callable[[Cluster], Slurm | None]) -> Worker:
        """Make the session from what the controller handed over."""
        data = pickle.loads(base64.b64decode(text))  # noqa: S301 - the controller wrote it
        cluster, inventory, plan, held, address, lanes = data
        worker = cls(cluster, inventory, plan, make_slurm(cluster))
        worker.lanes = lanes
        if worker.slurm is not None:
            worker.allocations = tuple(Allocation.attach(worker.slurm, job, nodes) for job, nodes in held)
        if address is not None:
            worker.channel = worker.relay = FleetClient(*address)
        return worker

    def close(self) -> None:
        """Leave the controller's channel."""
        if self.channel is not None:
            self.channel.close()
        if self.slurm is not None:
            self.slurm.transport.close()


def open_over_ssh(cluster: Cluster, nodes: tuple[str, ...]) -> Fleet:
    """Open a channel to nodes by one SSH connection each."""
    from pytest_gpucluster.cluster.channel.over_ssh import fleet_over_ssh  # Fabric takes 0.2 s to import

    return fleet_over_ssh(nodes, cluster.ssh, cluster.hosts)


def make_request(
    slurm: SlurmConfig, partition: str | None, gpus: int, nodes: tuple[str, ...]
) -> AllocationRequest:
    """Put the cluster file's `slurm:` section into salloc's words."""
    return AllocationRequest(
        nodes=nodes,
        partition=partition,
        account=slurm.account,
        qos=slurm.qos,
        reservation=slurm.reservation,
        comment=slurm.comment,
        constraint=slurm.constraint,
        time=slurm.time,
        queue_wait=slurm.queue_wait,
        exclusive=slurm.exclusive,
        gpus_per_node=gpus or None,
        extra_args=slurm.extra_args,
    )
