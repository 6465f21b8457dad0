"""Requests to slurmctld: ping, sdiag, the end of its log. One process each, whatever the number of nodes."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ProbeError, SlurmError, TransportError
from pytest_gpucluster.core.probe import Answer, with_root
from pytest_gpucluster.core.run_mark import PREFIX
from pytest_gpucluster.suites.controller import facts
from pytest_gpucluster.suites.controller.checks import Controllers, DaemonLog, Diagnostics, is_high

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.suites.controller.config import ControllerConfig
    from pytest_gpucluster.suites.controller.facts import LogLine
    from pytest_gpucluster.suites.controller.log_lines import ErrorKind

    Folding = Callable[[Iterable[tuple[str, LogLine]]], tuple[ErrorKind, ...]]

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
        if is_high(first, config, settings):
            time.sleep(LATER)
            later = facts.parse_sdiag(slurm.run("sdiag", timeout=TIMEOUT))
    except (SlurmError, ProbeError) as error:
        return Diagnostics(problem=str(error), settings=settings)
    return Diagnostics(first, later, seconds, settings)


def own_jobs(slurm: Slurm, settings: Mapping[str, str], seconds: float) -> frozenset[int]:
    """Return the ids of this user's jobs of this project: of the queue, and of the last `seconds` where slurmdbd stores them."""
    asked = ["squeue -h -a -t all -u \"$(id -un)\" -o '%A|%j'"]
    if settings.get("AccountingStorageType", "") == "accounting_storage/slurmdbd":
        since = f"now-{math.ceil(seconds)}seconds"
        asked.append(f'sacct -n -X -P -u "$(id -un)" -S {since} -o JobIDRaw,JobName%100')
    found = set()
    for command in asked:
        with contextlib.suppress(TransportError):
            done = slurm.transport.run(("sh", "-c", command), timeout=TIMEOUT, env=slurm.env)
            for job, _, name in (line.partition("|") for line in done.stdout.splitlines()):
                if job.isdecimal() and re.match(rf"{PREFIX}(-|$)", name):
                    found.add(int(job))
    return frozenset(found)


def query_controller_log(
    slurm: Slurm, settings: Mapping[str, str], config: ControllerConfig, folding: Folding, *, sudo: bool
) -> DaemonLog:
    """Read the end of slurmctld's log, and of slurmdbd's, on the machine of Slurm's commands."""
    path = settings.get("SlurmctldLogFile", "")
    read = partial(_tail, slurm, config, sudo=sudo)
    problem = ""
    try:
        tail = read(path, "slurmctld")
    except (TransportError, ProbeError) as error:
        tail, problem = facts.LogTail(()), f"slurmctld's log: {error}"
    if tail.idle is not None and tail.idle > config.log_window:
        # a running slurmctld logs every job, at least those of this run: it writes on another machine
        hours = f"{config.log_window / 3600:g} h"
        tail, problem = facts.LogTail(()), f"slurmctld's log: {path} was not written within the last {hours}"
    kinds = folding(("", line) for line in tail.lines)
    # slurmdbd may run elsewhere: then its configuration is not here
    with contextlib.suppress(TransportError, ProbeError):
        lines = read(_dbd_log(slurm, settings, sudo=sudo), "slurmdbd").lines
        of_dbd = folding(("", line) for line in lines)
        kinds += tuple(replace(kind, example=f"slurmdbd: {kind.example}") for kind in of_dbd)
    return DaemonLog(kinds, problem)


def query_slurmd_logs(nodes: Sequence[str], read: Callable[[str], facts.LogTail], folding: Folding) -> DaemonLog:
    """Read the end of slurmd's log on each node; `read` returns that of one, and sends its command to all at once."""
    tails: dict[str, facts.LogTail] = {}
    problems: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        try:
            tails[node] = read(node)
        except ProbeError as error:
            problems[str(error)].append(node)
    unread = "; ".join(f"slurmd's log on {hostlist.fold(of)}: {why}" for why, of in problems.items())
    return DaemonLog(folding((node, line) for node, tail in tails.items() for line in tail.lines), unread)


def _dbd_log(slurm: Slurm, settings: Mapping[str, str], *, sudo: bool) -> str:
    """Return the path of slurmdbd's log from slurmdbd.conf, which only its owner can read; ProbeError without it."""
    conf = PurePosixPath(settings.get("SLURM_CONF", "")).with_name("slurmdbd.conf")
    # that line alone: the file also has the password of the database
    command = f"awk 'tolower($0) ~ /^[ \\t]*logfile[ \\t]*=/' {shlex.quote(str(conf))}"
    done = slurm.transport.run(("sh", "-c", with_root(command) if sudo else command), timeout=TIMEOUT, env=slurm.env)
    if done.rc != 0:
        raise ProbeError(f"{conf} cannot be read")
    return facts.dbd_log(done.stdout)


def _tail(slurm: Slurm, config: ControllerConfig, path: str, unit: str, *, sudo: bool) -> facts.LogTail:
    """Return the error lines at the end of a log on the machine of Slurm's commands."""
    command = facts.log_command(path, unit, config.log_size)
    command = with_root(command) if sudo else command
    done = slurm.transport.run(("sh", "-c", command), timeout=TIMEOUT, env=slurm.env)
    return facts.read_log(Answer("", done.rc, done.stdout.encode(), done.stderr.encode()))
