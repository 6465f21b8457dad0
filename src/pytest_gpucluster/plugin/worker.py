"""The session of an xdist worker: a view of the controller's, which owns nothing."""

from __future__ import annotations

import base64
import contextlib
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.channel.channel_server import FleetClient
from pytest_gpucluster.cluster.slurm.allocation import Allocation
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.run.session import ClusterSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpucluster.cluster.plan import NodeLease
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.registry import Suite


@dataclass(eq=False, repr=False)
class Worker(ClusterSession):
    """The view of an xdist worker on the controller's session. `relay`: the channel, which is a server of the controller."""

    relay: FleetClient | None = None
    in_worker = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.orderly = False  # some item loads nodes: who reads them takes turns with it
        self._has: NodeLease | None = None

    def turn(self, place: NodeLease | None) -> contextlib.AbstractContextManager[None]:
        """Have the nodes of an item while it runs."""
        return self._turn(place) if place is not None and self.relay is not None else contextlib.nullcontext()

    @contextlib.contextmanager
    def _turn(self, place: NodeLease) -> Iterator[None]:
        assert self.relay is not None  # turn() has checked
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
                with contextlib.suppress(TransportError):  # without a server no item waits for the nodes
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
        """Return the controller's outcome, which was read before Slurm forgot the jobs."""
        return self.relay.call("outcome", suite) if self.relay is not None else None

    @classmethod
    def take_over(cls, text: str, run: str, make_slurm: Callable[[Cluster], Slurm | None]) -> Worker:
        """Make the session from what the controller handed over."""
        data = pickle.loads(base64.b64decode(text))  # noqa: S301 - the controller wrote it
        fields, held, address = data
        slurm, relay = make_slurm(fields["cluster"]), FleetClient(*address) if address is not None else None
        allocations = tuple(Allocation.attach(slurm, job, nodes) for job, nodes in held) if slurm else ()
        return cls(slurm=slurm, run=run, allocations=allocations, channel=relay, relay=relay, **fields)

    def close(self) -> None:
        """Leave the controller's channel."""
        if self.channel is not None:
            self.channel.close()
        if self.slurm is not None:
            self.slurm.transport.close()
