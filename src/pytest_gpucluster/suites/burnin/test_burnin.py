"""Burn-in: hours of load on GPUs, memory, links, CPUs and storage, and a verdict a node on what showed under it.

One long step with an agent a node; a node that fails leaves, the others go on. `-m burnin --burnin-time=4h`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.suite import checks_as_tests
from pytest_gpucluster.suites.burnin import SUITE, dcgm, error_checks, load_checks, stragglers
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.steps import EARLY, EVENT, Burnin

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.plugin.live_line import LiveLine
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.burnin.results import BurninResult

# a node that is lost under load is judged here, not left untested
pytestmark = [pytest.mark.burnin, pytest.mark.judges_node]


@pytest.fixture(scope="session")
def burnt(
    request: pytest.FixtureRequest,
    allocation: Allocation,  # not applicable without a scheduler
    gpucluster_session: ClusterSession,
    event: Callable[..., None],
    live_line: LiveLine,
) -> dict[str, BurninResult]:
    """The burn-in of every allocation, one after another: {node: what was found}."""
    if hasattr(request.config, "workerinput"):
        raise ConfigError("a burn-in loads all nodes at once: run pytest without -n")
    session, found = gpucluster_session, {}
    for held in session.allocations:
        told = _burn(request, session, held, event, live_line)
        live_line.close()
        live_line.say(
            f"burn-in of job {held.job_id}: {told.rounds} rounds in {told.seconds:.0f} s: {told.ended}"
        )
        if told.ended.startswith(EARLY):  # never green by what was not done
            session.stop(SUITE, f"burn-in: {told.ended}; what was found by then is judged")
        elif not told.rounds and any(not (one.lost or one.out) for one in told.nodes.values()):
            session.stop(
                SUITE, f"burn-in: no round of loads was finished in {told.seconds:.0f} s: ask for more time"
            )
        found.update(dict.fromkeys(told.nodes, told))
        if session.stopped:
            break
    return found


def _burn(
    request: pytest.FixtureRequest,
    session: ClusterSession,
    held: Allocation,
    event: Callable[..., None],
    live_line: LiveLine,
) -> BurninResult:
    nodes = session.without_problem(held.nodes)
    profile, info = session.nodes[held.nodes[0]].profile, session.inventory.get(held.nodes[0])
    gpus = 0 if profile.gpu is None else (info and info.gpus) or profile.gpu.count
    before = getattr(request.config.option, "burnin_before", None)
    if before is not None:
        for told in before.nodes.values():  # so that this log can be resumed as well
            event(EVENT, what="totals", totals=told.as_dict(), seconds=before.seconds, rounds=before.rounds)
    burnin = Burnin(
        held.slurm,
        held,
        session.cluster,
        session.inventory,
        nodes=nodes,
        gpus=gpus,
        seconds=session.cluster.section(BurninConfig).time,
        before=before,
    )
    burnin.result.take_limits(profile)
    return burnin.run(lambda **fields: event(EVENT, **fields), lambda progress: live_line.show(str(progress)))


@pytest.fixture
def whole(burnt: dict[str, BurninResult], node: Node) -> BurninResult:
    """The burn-in that this item's node took part in."""
    if node.name not in burnt:
        pytest.skip("not checked: the burn-in was stopped before it came to this node")
    return burnt[node.name]


@pytest.fixture
def config(cluster: Cluster) -> BurninConfig:
    """What the cluster file says of the burn-in."""
    return cluster.section(BurninConfig)


globals().update(checks_as_tests(load_checks, error_checks, dcgm, stragglers))
