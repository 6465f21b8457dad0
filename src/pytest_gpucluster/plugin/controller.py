"""The owner of the allocations: takes the nodes, shares them with xdist's workers, and gives them back."""

from __future__ import annotations

import base64
import contextlib
import pickle
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster import signals
from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.channel.channel_server import FleetServer
from pytest_gpucluster.cluster.channel.multi_channel import JoinedChannel
from pytest_gpucluster.cluster.plan import Problem, ProblemKind, judge_node, make_lanes, shares
from pytest_gpucluster.cluster.slurm import leftovers
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.completing import mark_stuck, wait_completed
from pytest_gpucluster.cluster.slurm.inventory import seen_from_inside
from pytest_gpucluster.core.errors import AllocationError, ConfigError, GpuClusterError, SlurmError
from pytest_gpucluster.core.registry import parts_of_suites, suites
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.run.item_record import clean
from pytest_gpucluster.run.session import ClusterSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster, SlurmConfig
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.drain import Retest
    from pytest_gpucluster.kit.suite_work import Submission


REFRESH_AFTER = 15.0  # seconds until the state of the jobs is read, unless a test reads it earlier


class SuiteJobs:
    """The jobs of one run, by suite."""

    def __init__(self, cluster: Cluster, slurm: Slurm | None) -> None:
        self._cluster, self._slurm = cluster, slurm
        self._found: dict[str, Submission | ConfigError] = {}  # suite -> its jobs, or why there are none
        self._timer: threading.Timer | None = None

    def _all(self) -> list[Submission]:
        return [one for one in self._found.values() if not isinstance(one, ConfigError)]

    def submit(self, suite: Suite, nodes: Sequence[str] = ()) -> None:
        """Submit the jobs of a suite, before a run requests these nodes; what the cluster file lacks for them is raised by its own items."""
        if self._slurm is None or suite.before_allocation is None:
            return
        try:
            made: Submission | None = suite.load(suite.before_allocation.part)(self._slurm, self._cluster)
        except ConfigError as error:
            self._found[suite.name] = error
        else:
            if made is not None:
                self._found[suite.name] = made
                made.use_nodes(nodes)

    def ids(self) -> list[str]:
        """Return the jobs for whose end the allocation must wait."""
        return [job for one in self._all() for job in one.job_ids()]

    def refresh_later(self) -> None:
        """Read the state of the jobs after REFRESH_AFTER: slurmctld forgets ended jobs (MinJobAge)."""
        self._timer = threading.Timer(REFRESH_AFTER, self._refresh_all)
        self._timer.daemon = True
        self._timer.start()

    def _refresh_all(self) -> None:
        for one in self._all():
            one.refresh()

    def withdraw(self, why: str) -> bool:
        """Cancel the jobs where Slurm allows no allocation beside them; return False where there are none."""
        withdrawn = [one.withdraw(why) for one in self._all()]
        return any(withdrawn)

    def outcome(self, suite: Suite, *, submit_now: bool) -> Any:
        """Return the outcome of a suite's jobs. `submit_now`: submit those that need no nodes, unless submitted."""
        work = suite.before_allocation
        if submit_now and suite.name not in self._found and work and not work.needs_nodes:
            self.submit(suite)
        found = self._found.get(suite.name)
        if isinstance(found, ConfigError):
            raise found
        return found.outcome() if found is not None else None

    def close(self) -> None:
        """Cancel what is left of the jobs; repeated calls have no further effect."""
        if self._timer is not None:
            self._timer.cancel()
        for one in self._all():
            one.close()


EPILOG_WAIT = 60.0  # seconds in which epilogs must end for a run to judge them
FRESH_STARTS = 5  # further allocations where nodes fall out as they start
# to xdist's workers
HANDED_OVER = "cluster", "plan", "lanes", "contradictions", "last_good", "history", "scope"


@dataclass(eq=False, repr=False)
class Controller(ClusterSession):
    """The session that owns the allocations.

    `reserved`: the nodes of the run's reservation. `own_drains`: {node: the reason, written by gpucluster, at the start}.
    `edited`: {node: why its reason, which begins as gpucluster's, counts as foreign}.
    """

    reserved: frozenset[str] = frozenset()
    own_drains: dict[str, str] = field(default_factory=dict)
    edited: dict[str, str] = field(default_factory=dict)
    retest: Retest | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._server: FleetServer | None = None
        self._parts: list[Fleet] = []
        self._stillborn: set[str] = set()  # nodes that have started no task once
        self._leaving: threading.Thread | None = None
        self._releasing: threading.Thread | None = None
        self.jobs = SuiteJobs(self.cluster, self.slurm)
        self._lock = threading.Lock()
        self.item_lanes: list[str] | None = None  # the lane of every item, as an xdist worker reports it
        self._started = self._cleared = self._still_held = False
        self._ended: list[str] | None = None  # until the release
        self.left_behind: list[str] = []  # what could not be released, and what to do about it

    def read_inventory(self, slurm: Slurm) -> Mapping[str, NodeInfo]:
        """Read the nodes from Slurm again, as a job of the run's reservation sees them."""
        slurm.refresh()
        nodes = mark_stuck(slurm, slurm.nodes(), self.cluster.slurm.completing)
        return seen_from_inside(nodes, self.reserved)

    def allocate(self, progress: Callable[[str], None], submitting: Iterable[Suite]) -> None:
        """Get the nodes and open the channel; AllocationError where there are none.

        The jobs of the `submitting` suites go first: beside an allocation of all nodes none could start.
        """
        if self.channel is not None or not self.plan.testable:
            return
        self._clear_dead_runs(progress)
        if self.cluster.access == "ssh":
            self.channel = fleet = open_over_ssh(self.cluster, self.plan.testable)
            fleet.wait_started()
            unreachable = {node: Problem(ProblemKind.UNAVAILABLE, why.text) for node, why in fleet.lost.items()}
            if unreachable:
                self._replan(self.inventory, unreachable)
            return
        if self.slurm is None:
            self.channel = Fleet.local(self.plan.testable[0])
            return
        if self.retest is not None:
            self._begin_retest(self.slurm, self.retest, progress)
        for suite in submitting:
            self.jobs.submit(suite, self.plan.testable)
        ids = self.jobs.ids()
        self._open_others(self.slurm, ":".join(("afterany", *ids)) if ids else None, progress)
        self.jobs.refresh_later()
        for _ in range(FRESH_STARTS):
            if not self._left_out_fallen(self.slurm, progress):
                return
            self._open_others(self.slurm, None, progress)

    def _clear_dead_runs(self, progress: Callable[[str], None]) -> None:
        """Remove what killed runs have left in the queue and on this machine; what may be of a live run stays."""
        try:
            found = [
                *(leftovers.jobs(self.slurm) if self.slurm else ()),
                *leftovers.folders(),
                *(one for found in parts_of_suites(lambda suite: suite.local_leftovers) for one in found()),
            ]
            leftovers.remove([one for one in found if one.remove is not None], progress)
        except SlurmError as error:
            progress(f"jobs of runs that were killed may be left: {error}")

    def _begin_retest(self, slurm: Slurm, retest: Retest, progress: Callable[[str], None]) -> None:
        """Undrain the nodes on trial; one that does not come is not tested."""
        retest.begin()
        inventory = self.read_inventory(slurm)
        problems = {node: Problem(ProblemKind.UNAVAILABLE, why) for node, why in retest.refused.items()}
        for node, problem in problems.items():
            progress(f"{node} is not on trial: {clean(problem.text)}")
        self._replan(inventory, problems)

    def _replan(self, inventory: Mapping[str, NodeInfo], problems: Mapping[str, Problem]) -> None:
        self.inventory = inventory
        self.plan = replace(self.plan, problems={**self.plan.problems, **problems})
        self.nodes = self._nodes()

    def _open_others(self, slurm: Slurm, dependency: str | None, progress: Callable[[str], None]) -> None:
        """Open the channel, without the nodes that went out of service or to others since the inventory was read."""
        for _ in range(FRESH_STARTS):
            try:
                return self._open(slurm, dependency, progress)
            except AllocationError as error:
                # Slurm prints this for any limit: request again without the jobs of suites
                if "job submit limit" in error.stderr and self.jobs.withdraw(str(error)):
                    self._drop_allocations()
                    dependency = None
                    continue
                if not error.nodes or not set(self.plan.testable) - error.nodes.keys():
                    raise
                inventory = self.read_inventory(slurm)
                fallen = {
                    node: judge_node(node, inventory, wait=False) or Problem(ProblemKind.UNAVAILABLE, why)
                    for node, why in error.nodes.items()
                }
                if self.plan.wait and any(problem.kind is ProblemKind.BUSY for problem in fallen.values()):
                    raise  # --nodes requires all nodes that it names
                self._leave_out(fallen, inventory, progress)
        return self._open(slurm, dependency, progress)

    def _leave_out(
        self, fallen: Mapping[str, Problem], inventory: Mapping[str, NodeInfo], progress: Callable[[str], None]
    ) -> None:
        for node, problem in fallen.items():
            progress(f"{node} is left out: {clean(problem.text)}; requesting the other nodes again")
        self._drop_allocations()
        self._replan(inventory, fallen)

    def _drop_allocations(self) -> None:
        """Release all allocations and agents, to request the nodes again."""
        for part in self._parts:  # the channel is made of them once all nodes are allocated
            part.close()
        self._let_go()
        self.channel, self.allocations, self._started = None, (), False

    def _open(self, slurm: Slurm, dependency: str | None, progress: Callable[[str], None]) -> None:
        """Allocate the testable nodes, and start an agent on each."""
        parts = self._parts = []
        for (partition, gpus), nodes in shares(self.cluster, self.inventory, self.plan.testable).items():
            request = make_request(self.cluster.slurm, partition, gpus, nodes)
            beside = tuple(held.job_id for held in self.allocations)
            request = replace(request, dependency=dependency, beside=beside)
            held = Allocation.request(slurm, request, progress=progress)
            self.allocations += (held,)
            parts.append(Fleet.over_slurm(slurm, held))
        if parts:
            self.channel = parts[0] if len(parts) == 1 else JoinedChannel(parts)
        for part in parts:
            part.wait_started()
        self._started = True

    def _left_out_fallen(self, slurm: Slurm, progress: Callable[[str], None]) -> bool:
        """Where one node ended the agents of all nodes, leave out the nodes at fault; True: allocate again.

        A prolog that fails on one node drains it and ends the whole job, and a slurmd that accepts no task ends the
        whole step; the other nodes are not at fault. One timeout of a busy slurmd is no fault of the node: the second is.
        """
        stillborn = {node: why for part in self._parts for node, why in part.launch_failed.items()}
        if self.channel is None or not self.channel.lost:
            return False
        if not stillborn and all(held.alive for held in self.allocations):
            return False
        inventory = self.read_inventory(slurm)
        again = stillborn.keys() & self._stillborn
        self._stillborn |= stillborn.keys()
        fallen = {node: Problem(ProblemKind.LOST, stillborn[node].text, stillborn[node].code) for node in again}
        for node in self.plan.testable:
            if (problem := judge_node(node, inventory, wait=True)) is not None:
                fallen[node] = problem
        for node in sorted(stillborn.keys() - fallen.keys()):
            progress(f"{node}: {clean(stillborn[node].text)}; requesting it once more")
        if not fallen and not stillborn:
            return False
        self._leave_out(fallen, inventory, progress)
        return True

    def outcome(self, suite: Suite) -> Any:
        """Return what became of a suite's jobs; those that need no nodes are submitted now where no node is held."""
        return self.jobs.outcome(suite, submit_now=not self.allocations)

    def hand_over(self, workers: int) -> str:
        """Return what each of `workers` xdist workers needs to attach to this session, as plain text."""
        address: tuple[Any, ...] | None = None
        if self.channel is not None:
            with self._lock:
                if self._server is None:
                    self.lanes = make_lanes(self.channel.nodes, workers, self.leaves())
                    also: dict[str, Callable[..., Any]] = {
                        "item_lanes": self._take_lanes,
                        "selection": self._take_selection,
                        "outcome": self.outcome,
                    }
                    self._server = FleetServer(self.channel, also, self._cancel_steps)
            address = self._server.address
        jobs = [(held.job_id, held.nodes) for held in self.allocations]
        fields = {name: getattr(self, name) for name in HANDED_OVER} | {"inventory": dict(self.inventory)}
        data = fields, jobs, address
        return base64.b64encode(pickle.dumps(data)).decode()

    def _take_selection(self, selection: dict[str, Any]) -> None:
        self.selection = self.selection or selection

    def _take_lanes(self, lanes: list[str]) -> None:
        self.item_lanes = lanes

    def leaves(self) -> Mapping[str, str]:
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

    def _clear_nodes(self) -> None:
        """Let the suites remove what steps have left on the nodes, of this run or of one that was killed; once."""
        # agents that have not started would be waited for, and have run no step
        if self.channel is None or self.slurm is None or not self._started or self._cleared:
            return
        self._cleared = True
        for suite in suites():
            if (clear := suite.before_release) is None:
                continue
            try:
                self.left_behind += clear(self, hurry=bool(signals.noted()))
            except GpuClusterError as error:  # the nodes are released nevertheless
                self.left_behind.append(f"{suite.name}: what this run left on the nodes may still be there: {error}")

    def let_agents_leave(self) -> None:
        """Begin to close the channel: the agents of a large fleet take a second to end."""
        self._lost_at_end = self.lost()
        self._clear_nodes()
        if self.channel is not None:
            self._leaving = threading.Thread(target=self.channel.close, name="leaving", daemon=True)
            self._leaving.start()

    def start_releasing(self) -> None:
        """Start to release the nodes while reports are written, which can take long."""
        self._lost_at_end = self.lost()
        if self._releasing is None:
            self._releasing = threading.Thread(target=self._release_early, name="releasing", daemon=True)
            self._releasing.start()

    def nodes_after_release(self, progress: Callable[[str], None]) -> dict[str, NodeInfo]:
        """Wait at most EPILOG_WAIT until the jobs of this run have ended on the nodes; return the nodes' states."""
        nodes = [node for held in self.allocations for node in held.nodes]
        if self.slurm is None or not nodes or self._still_held:
            return {}
        patience = min(self.cluster.slurm.completing or EPILOG_WAIT, EPILOG_WAIT)
        return wait_completed(self.slurm, nodes, patience, progress, signals.pause)

    def ended_early(self) -> list[str]:
        """Say of the allocations that ended under the run why they did; after the release, as it was then."""
        return super().ended_early() if self._ended is None else self._ended

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

    def release_nodes(self) -> None:
        """Close the channel and release the nodes; repeated calls have no further effect."""
        self._lost_at_end = self.lost()
        if self._releasing is not None:
            self._releasing.join()
        self._release_all()

    def _release_early(self) -> None:
        with contextlib.suppress(Exception):  # release_nodes() tries again and reports errors
            self._release_all()

    def _release_all(self) -> None:
        if self._server is not None:
            self._server.close()
        self._clear_nodes()
        if self._ended is None:
            self._ended = self.ended_early()
        if self.retest is not None:
            self.left_behind += self.retest.end()  # while the nodes are held: no other job starts in between
        self._let_go()
        self.jobs.close()

    def close(self) -> None:
        """Release the nodes and close the connection; repeated calls have no further effect."""
        self.release_nodes()
        if self.slurm is not None:
            self.slurm.transport.close()


def open_over_ssh(cluster: Cluster, nodes: tuple[str, ...]) -> Fleet:
    """Open a channel to nodes by one SSH connection each."""
    from pytest_gpucluster.cluster.channel.over_ssh import fleet_over_ssh  # Fabric takes 0.2 s to import

    return fleet_over_ssh(nodes, cluster.ssh, cluster.hosts)


def make_request(slurm: SlurmConfig, partition: str | None, gpus: int, nodes: tuple[str, ...]) -> AllocationRequest:
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
