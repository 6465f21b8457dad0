"""RDMA between the adapters of nodes: each rail with partners, the links between them, latency, all rails at once.

docs/suites/rdma.md has the limits of every check. The fabric suite judges what the ports state of themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.kit.fabric.facts import ADAPTERS
from pytest_gpucluster.kit.fabric.rails import rails_of_all
from pytest_gpucluster.kit.framework.framework_step import framework_runner
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.rdma import checks
from pytest_gpucluster.suites.rdma.config import RdmaConfig
from pytest_gpucluster.suites.rdma.steps import Rdma

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.kit.fabric.facts import Adapters
    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.rdma.results import RdmaResult

config = required_section(RdmaConfig)


@of_fleet(config, given.allocation, given.session, ADAPTERS)
def runners(
    config: RdmaConfig,
    allocation: object,  # not applicable without a scheduler
    session: ClusterSession,
    adapters: dict[str, Adapters],
) -> list[Rdma]:
    """Perftest on the nodes of each allocation whose nodes have adapters."""
    rails = rails_of_all(adapters, session.nodes)
    made = Rdma.of_allocations(session, config, all_rails=rails)
    return [one for one in made if has_verbs(session.nodes[one.nodes[0]].profile)]


def has_verbs(profile: Profile) -> bool:
    """Whether perftest connects the adapters of a node: over InfiniBand or RoCE; EFA has no reliable connection."""
    return profile.fabric.has_adapters and profile.fabric.link_layer != "none"


runner = framework_runner(
    Rdma, runners, without="the profile has no InfiniBand or RoCE, or `rdma.nodes` selects fewer nodes"
)
reach = of_node(runner)(lambda runner: runner.reach)
rdma = of_node(runner)(lambda runner: runner.result)


@of_node(runners)
def results(runners: list[Rdma]) -> list[RdmaResult]:
    """The results of every allocation."""
    if not runners:
        raise NotApplicable("no profile of the cluster has InfiniBand or RoCE")
    return [runner.result for runner in runners]


TESTS = Tests(checks, marks=("rdma",))
