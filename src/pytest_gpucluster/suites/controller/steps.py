"""Requests to slurmctld: ping, sdiag, the end of its log. One process each, whatever the number of nodes."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import ProbeError, SlurmError, TransportError
from pytest_gpucluster.core.probe import Answer, with_root
from pytest_gpucluster.suites.controller import facts
from pytest_gpucluster.suites.controller.checks import ControllerLog, Controllers, Diagnostics, is_high
from pytest_gpucluster.suites.controller.known_errors import SLURMCTLD, LogError, sorted_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.core.known_lines import KnownLine
    from pytest_gpucluster.suites.controller.config import ControllerConfig

LATER = 3.0  # seconds until the second query after a high figure
TIMEOUT = 60.0  # scontrol ping waits MessageTimeout (10 s) for each controller that does not answer


def query_controllers(slurm: Slurm, settings: Mapping[str, str]) -> Controllers:
    """Run `scontrol ping`, whose exit status is 1 where no controller answers."""
    hosts = [value for key, value in settings.items() if re.fullmatch(r"SlurmctldHost(\[\d+\])?", key)]
    configured = tuple(host.partition("(")[0] for host in hosts if host)
    try:
        done = slurm.transport.run(("scontrol", "ping"), timeout=TIMEOUT, env=slurm.env)
        return Controllers(facts.parse_ping(done.stdout), configured)
    except (TransportError, ProbeError) as error:
        return Controllers((), configured, str(error))


def query_load(slurm: Slurm, settings: Mapping[str, str], config: ControllerConfig) -> Diagnostics:
    """Run sdiag; once more after LATER where a figure is high."""
    try:
        began = time.monotonic()
        first = facts.parse_sdiag(slurm.run("sdiag", timeout=TIMEOUT))
        seconds = time.monotonic() - began
        later = None
        if is_high(first, config):
            time.sleep(LATER)
            later = facts.parse_sdiag(slurm.run("sdiag", timeout=TIMEOUT))
    except (SlurmError, ProbeError) as error:
        return Diagnostics(problem=str(error), settings=settings)
    return Diagnostics(first, later, seconds, settings)


def query_controller_log(
    slurm: Slurm,
    settings: Mapping[str, str],
    config: ControllerConfig,
    nodes: Collection[str],
    *,
    known_lines: Collection[KnownLine] = (),
    started: float,
    sudo: bool,
) -> ControllerLog:
    """Read the end of slurmctld's log on the machine of Slurm's commands. `started`: begin of the run (Unix time)."""
    path = settings.get("SlurmctldLogFile", "")
    command = facts.log_command(path, "slurmctld", config.log_size, config.log_window)
    command = with_root(command) if sudo else command
    try:
        done = slurm.transport.run(("sh", "-c", command), timeout=TIMEOUT, env=slurm.env)
        tail = facts.read_log(Answer("", done.rc, done.stdout.encode(), done.stderr.encode()))
    except (TransportError, ProbeError) as error:
        return ControllerLog(problem=f"slurmctld's log: {error}")
    if tail.idle is not None and tail.idle > config.log_window:
        # a running slurmctld logs every job, at least those of this run: it writes on another machine
        return ControllerLog(
            problem=f"slurmctld's log: {path} was not written within the last {config.log_window / 3600:g} h"
        )
    found: dict[str, list[LogError]] = defaultdict(list)
    for one in sorted_errors(
        tail.lines,
        SLURMCTLD,
        window=config.log_window,
        ignored=config.ignored_errors,
        of_site=known_lines,
        nodes=nodes,
    ):
        for node in one.nodes or ("",):
            found[node].append(one)
    return ControllerLog(
        {node: tuple(lines) for node, lines in found.items()}, max(0.0, time.time() - started)
    )
