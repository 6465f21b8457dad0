"""Slurm's daemons: every controller answers, slurmctld is not overloaded, its log and those of slurmd show no known error.

Only the logs of slurmd need the nodes: one command. With --intrusive also a burst of submissions, hold and singleton.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Probe
from pytest_gpucluster.suite import Tests, fact
from pytest_gpucluster.suites.controller import SUITE, checks, job_checks, steps
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import log_command, read_log
from pytest_gpucluster.suites.controller.jobs import Burst, BurstFacts
from pytest_gpucluster.suites.controller.known_errors import SLURMD, sorted_errors

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.run.facts import ItemView
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.controller.checks import ControllerLog, Controllers, Diagnostics
    from pytest_gpucluster.suites.controller.jobs import OrderFacts
    from pytest_gpucluster.suites.controller.known_errors import LogError


@fact(once=True)
def slurm(gpucluster_session: ClusterSession) -> Slurm:
    """The client; not applicable without a scheduler."""
    return gpucluster_session.need_slurm()


@fact(once=True)
def config(cluster: Cluster) -> ControllerConfig:
    """The section `controller` of the cluster file."""
    return cluster.section(ControllerConfig)


@fact(once=True)
def controllers(slurm: Slurm) -> Controllers:
    """The answer of `scontrol ping`."""
    return steps.query_controllers(slurm, slurm.config())


@fact(once=True)
def diagnostics(slurm: Slurm, config: ControllerConfig) -> Diagnostics:
    """The figures of sdiag."""
    return steps.query_load(slurm, slurm.config(), config)


@fact(once=True)
def controller_log(
    slurm: Slurm, config: ControllerConfig, gpucluster_session: ClusterSession
) -> ControllerLog:
    """The errors of slurmctld's log, by node."""
    session = gpucluster_session
    return steps.query_controller_log(
        slurm,
        slurm.config(),
        config,
        session.plan.selected,
        known_lines=session.cluster.known,
        started=session.started,
        sudo=session.cluster.sudo and not session.cluster.sandbox,
    )


info = fact(lambda node: node.info)


@fact
def slurmd_errors(
    node: Node,
    slurm: Slurm,
    config: ControllerConfig,
    gpucluster_item: ItemView,
    gpucluster_session: ClusterSession,
) -> tuple[LogError, ...]:
    """The errors of slurmd's log on the item's node. The same command goes to all nodes at once."""
    path = slurm.config().get("SlurmdLogFile", "")
    command = log_command(path, "slurmd", config.log_size, config.log_window)
    tail = gpucluster_item.facts(Probe("slurmd log", command, read_log, root=True))
    return tuple(
        sorted_errors(
            tail.lines,
            SLURMD,
            window=config.log_window,
            of_site=gpucluster_session.cluster.known,
        )
    )


@fact
def run_age(gpucluster_session: ClusterSession) -> float:
    """Seconds since the start of the run."""
    return time.time() - gpucluster_session.started


@fact(once=True)
def order(slurm: Slurm, gpucluster_session: ClusterSession) -> OrderFacts:
    """The held job and the singletons, which were submitted before the nodes were allocated."""
    found: OrderFacts | None = gpucluster_session.outcome(SUITE)
    if found is None:
        raise NotAvailable("the jobs were not submitted before the nodes were allocated")
    return found


@fact(once=True)
def burst_facts(
    slurm: Slurm, cluster: Cluster, config: ControllerConfig, diagnostics: Diagnostics
) -> BurstFacts:
    """The burst of submissions, which takes place once."""
    return Burst(slurm, cluster, config).run(diagnostics.first, slurm.config())


TESTS = Tests(
    checks,
    job_checks,
    marks=(
        "controller",
        "slurm",
    ),
)
