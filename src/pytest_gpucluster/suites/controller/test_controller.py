"""Slurm's daemons: every controller answers, slurmctld is not overloaded; errors of its log and of slurmd's are warnings.

Only the logs of slurmd need the nodes: one command.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import Probe
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.suite import Tests, given, of_fleet
from pytest_gpucluster.suites.controller import checks, steps
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import log_command, read_log
from pytest_gpucluster.suites.controller.log_lines import folded

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.controller.checks import DaemonLog, Diagnostics
    from pytest_gpucluster.suites.controller.steps import Folding


slurm = of_fleet(given.session)(lambda session: session.need_slurm())


config = of_fleet(given.cluster)(lambda cluster: cluster.section(ControllerConfig))


controllers = of_fleet(slurm)(lambda slurm: steps.query_controllers(slurm, slurm.config()))


@of_fleet(slurm, config)
def diagnostics(slurm: Slurm, config: ControllerConfig) -> Diagnostics:
    """The figures of sdiag."""
    return steps.query_load(slurm, slurm.config(), config)


@of_fleet(slurm, config, given.session)
def controller_log(slurm: Slurm, config: ControllerConfig, session: ClusterSession) -> DaemonLog:
    """The errors of slurmctld's log, folded."""
    folding = _folding(session, config, "controller.errors")
    cluster = session.cluster
    return steps.query_controller_log(slurm, slurm.config(), config, folding, sudo=cluster.sudo and not cluster.sandbox)


@of_fleet(given.fleet, slurm, config, given.session)
def slurmd_logs(fleet: Channel, slurm: Slurm, config: ControllerConfig, session: ClusterSession) -> DaemonLog:
    """The errors of slurmd's logs on all nodes, folded."""
    command = log_command(slurm.config().get("SlurmdLogFile", ""), "slurmd", config.log_size)
    probe = Probe("slurmd log", command, read_log, root=True)
    folding = _folding(session, config, "controller.node_errors")
    return steps.query_slurmd_logs(fleet.nodes, lambda node: session.facts(node, probe), folding)


def _folding(session: ClusterSession, config: ControllerConfig, check: str) -> Folding:
    """Fold lines since the last accepted run of the history that showed them; without one, those of `log_window`."""
    window = time.time() - (_last_accepted(session, check) or session.started - config.log_window)
    slurm = session.need_slurm()
    return partial(
        folded,
        window=window,
        nodes=frozenset(session.plan.selected),
        of_site=session.cluster.known,
        jobs=steps.own_jobs(slurm, slurm.config(), window),
    )


def _last_accepted(session: ClusterSession, check: str) -> float | None:
    """Return when the last accepted run that has this check began, in seconds since the epoch."""
    if session.history is None or not session.history.exists():
        return None
    with contextlib.suppress(GpuClusterError), contextlib.closing(History(session.history)) as history:
        return history.last_accepted(session.cluster.name, check, simulated=session.simulated)
    return None  # the end of the run reports a file that cannot be read


TESTS = Tests(checks, marks=("controller", "slurm"))
