"""Burn-in: hours of load on GPUs, memory, links, CPUs and storage. `-m burnin --burnin-time=4h`.

One long step with an agent per node; a node that fails leaves, and the others continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import ConfigError, NotAvailable
from pytest_gpucluster.kit.fabric.facts import ADAPTERS
from pytest_gpucluster.kit.fabric.rails import rail_ports, rails_of_all
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node
from pytest_gpucluster.suites.burnin import SUITE, dcgm, error_checks, load_checks, stragglers
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.steps import EVENT, Burnin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.kit.fabric.facts import Adapters
    from pytest_gpucluster.kit.fabric.rails import RailPort
    from pytest_gpucluster.plugin.fixtures import LiveLine
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.burnin.results import BurninResult

# a node that is lost under load fails here; without the mark its items would be untested


@of_fleet(given.pytestconfig, given.allocation, given.session, given.event, given.live_line, given.fleet_facts)
def burnin_results(
    pytestconfig: pytest.Config,
    allocation: Allocation,  # not applicable without a scheduler
    session: ClusterSession,
    event: Callable[..., None],
    live_line: LiveLine,
    fleet_facts: Callable[[object], dict[str, Adapters]],
) -> dict[str, BurninResult]:
    """{node: the burn-in of its allocation}; the allocations run one after another."""
    if session.in_worker:
        raise ConfigError("a burn-in loads all nodes at once: run pytest without -n")
    found: dict[str, BurninResult] = {}
    loads = session.cluster.section(BurninConfig).loads
    rails = rails_of_all(fleet_facts(ADAPTERS), session.nodes) if "rdma" in loads else {}
    ports = {node: rail_ports(of_node, session.nodes[node].profile.fabric) for node, of_node in rails.items()}
    for held in session.allocations:
        result = _burn(pytestconfig, session, held, event, live_line, ports)
        live_line.close()
        seconds = f"{result.seconds:.0f} s"
        live_line.write_line(f"burn-in of job {held.job_id}: {result.rounds} rounds in {seconds}: {result.ended}")
        if result.impossible:
            pytest.exit(f"burn-in: {result.impossible}", returncode=4)
        if result.early:  # else missing rounds would pass
            session.stop(SUITE, f"burn-in: {result.ended}; the results so far are judged")
        elif not result.rounds and any(not (it.lost or it.out) for it in result.nodes.values()):
            session.stop(SUITE, f"burn-in: no round of loads was finished in {seconds}: set a longer time")
        found.update(dict.fromkeys(result.nodes, result))
        if session.stopped:
            break
    return found


def _burn(
    pytestconfig: pytest.Config,
    session: ClusterSession,
    held: Allocation,
    event: Callable[..., None],
    live_line: LiveLine,
    rails: Mapping[str, Mapping[str, RailPort]],
) -> BurninResult:
    nodes = session.without_problem(held.nodes)
    profile, info = session.nodes[held.nodes[0]].profile, session.inventory.get(held.nodes[0])
    gpus = 0 if profile.gpu is None else (info and info.gpus) or profile.gpu.count
    before = getattr(pytestconfig.option, "burnin_before", None)
    if before is not None:
        for totals in before.nodes.values():  # so that this log can be resumed as well
            event(EVENT, what="totals", totals=totals.as_dict(), seconds=before.seconds, rounds=before.rounds)
    runner = Burnin(
        held.slurm,
        held,
        session.cluster,
        session.inventory,
        nodes=nodes,
        gpus=gpus,
        seconds=session.cluster.section(BurninConfig).time,
        before=before,
        rails=rails,
    )
    runner.result.take_limits(profile)
    return runner.run(lambda **fields: event(EVENT, **fields), lambda progress: live_line.show(str(progress)))


@of_node(burnin_results, given.node)
def burnin(burnin_results: dict[str, BurninResult], node: Node) -> BurninResult:
    """The burn-in of this item's node."""
    if node.name not in burnin_results:
        raise NotAvailable("the burn-in was stopped before it started on this node")
    return burnin_results[node.name]


config = of_node(given.cluster)(lambda cluster: cluster.section(BurninConfig))


TESTS = Tests(load_checks, error_checks, dcgm, stragglers, marks=("burnin", "judges_node"))
