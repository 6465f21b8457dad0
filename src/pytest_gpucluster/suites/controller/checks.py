"""Checks of slurmctld, its backups and its load; what the logs of slurmctld, slurmdbd and slurmd show, as warnings. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist, units
from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, Remark, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import named
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.suites.controller.config import ControllerConfig
    from pytest_gpucluster.suites.controller.facts import ControllerState, SdiagStats
    from pytest_gpucluster.suites.controller.log_lines import ErrorKind

FEWEST_CYCLES = 10  # a mean of fewer says nothing: the counters are reset daily and by `sdiag -r`
BACKFILL = 30.0  # seconds: default of bf_interval, and so of bf_max_time (slurm.conf(5))
BACKFILL_LATE = 600.0
MESSAGE_TIMEOUT = 10.0  # seconds: default of MessageTimeout (slurm.conf(5))
MOST_QUOTED, MOST_SHOWN = 120, 500  # characters of one line, and of all lines, in a warning; reports show 600


@dataclass(frozen=True)
class Controllers:
    """What `scontrol ping` answered. `configured`: the hosts of slurm.conf; `problem`: why there is no answer."""

    states: tuple[ControllerState, ...] = ()
    configured: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Diagnostics:
    """The load of slurmctld at two times: `later` is None where the first shows no high figure.

    `settings`: slurmctld's configuration. `seconds`: what the first sdiag took.
    """

    first: SdiagStats | None = None
    later: SdiagStats | None = None
    seconds: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class DaemonLog:
    """The error lines of the logs of a daemon, folded. `problem`: which log was not read, and why; '' if all were."""

    kinds: tuple[ErrorKind, ...] = ()
    problem: str = ""


@check(
    "controller.ping",
    cause="slurmctld does not run on that host, or cannot be reached from here",
    hint="scontrol ping; systemctl status slurmctld on the host; SlurmctldHost of slurm.conf; the firewall (SlurmctldPort)",
    action=Action.CONFIGURE,
    marks=("inventory",),
)
def ping(controllers: Controllers, config: ControllerConfig) -> Judgement:
    """The primary controller and every backup of slurm.conf answer."""
    if controllers.problem:
        yield Finding(named("service", "scontrol ping"), Quote(controllers.problem), "an answer", code="no_answer")
        return
    if not controllers.states:
        raise NotAvailable(
            "scontrol ping named no controller: run it on this machine, and see SlurmctldHost of slurm.conf"
        )
    yield Metric("controllers", sum(one.up for one in controllers.states), "controllers")
    for one in controllers.states:
        if not one.up:
            yield Finding(named("service", f"{one.role} controller {one.host}"), "DOWN", "UP", code="down")
    for host in set(controllers.configured) - {one.host for one in controllers.states}:
        yield NotAvailable(f"scontrol ping does not name the controller {host} of slurm.conf")
    if config.backup and len(controllers.states) < 2:
        part = named("service", "backup controller")
        yield Finding(part, "none in slurm.conf", "a second SlurmctldHost", code="no_backup")


def is_high(load: SdiagStats, config: ControllerConfig, settings: Mapping[str, str]) -> bool:
    """Return whether a figure that a short peak, or a queue that falls, may explain is above its limit."""
    busy = load.threads > config.max_threads or load.agent_queue > config.max_agent_queue
    return busy or load.dbd_queue > (_count(settings.get("MaxDBDMsgs", "")) or math.inf) / 2


@check(
    "controller.load",
    cause="slurmctld is overloaded: scripts that call squeue or sbatch often, very many jobs, a slow StateSaveLocation, "
    "slurmdbd or job_submit plugin",
    hint="sdiag shows the requests by type and user; SlurmctldParameters=rl_enable; SchedulerParameters: max_rpc_cnt, defer, "
    "bf_interval, default_queue_depth",
    action=Action.MONITOR,
    marks=("inventory",),
)
def load(diagnostics: Diagnostics, config: ControllerConfig) -> Judgement:
    """Threads, queues, schedulers and requests of slurmctld are within their limits."""
    found, settings = diagnostics.first, diagnostics.settings
    if found is None:
        raise NotAvailable(diagnostics.problem)
    timeout = _seconds(settings.get("MessageTimeout", "")) or MESSAGE_TIMEOUT
    yield Metric("sdiag", diagnostics.seconds, "s")
    if diagnostics.seconds > timeout:
        yield _above("sdiag", "slow_answer", diagnostics.seconds, timeout, "s", "answered after {:.1f} s")
    yield from _queues(found, diagnostics.later, config, settings)
    yield from _schedulers(found, config, settings)
    # a client gives up after MessageTimeout (slurm.conf(5))
    slow = {name: mean for name, (count, mean) in found.rpcs.items() if count >= FEWEST_CYCLES}
    if slow:
        yield Metric("slowest_request", 1000 * max(slow.values()), "ms", detail=True)
    for name, mean in slow.items():
        if mean > timeout:
            yield _above(f"request {name}", "slow_request", mean, timeout, "s", "{:.1f} s on average")


def _queues(
    first: SdiagStats, later: SdiagStats | None, config: ControllerConfig, settings: Mapping[str, str]
) -> Judgement:
    yield Metric("threads", first.threads, "threads")
    yield Metric("agent_queue", first.agent_queue, "messages")
    # a single query may meet a peak: the lower of two counts
    threads = min(one.threads for one in (first, later) if one)
    queue = min(one.agent_queue for one in (first, later) if one)
    if threads > config.max_threads:  # MAX_SERVER_THREADS of slurmctld.h is 256; sdiag(1): "often close to"
        yield _above("threads of slurmctld", "busy", threads, config.max_threads, "threads", "{} of 256")
    if queue > (most := config.max_agent_queue):
        words = "{} messages wait to be sent again"
        yield _above("agent queue", "unsent_messages", queue, most, "messages", words)
    most = _count(settings.get("MaxDBDMsgs", ""))
    if most:  # sdiag(1): investigate immediately above half of MaxDBDMsgs
        yield Metric("dbd_queue", first.dbd_queue, "messages")
        if first.dbd_queue > most / 2:
            falls = later is not None and later.dbd_queue < first.dbd_queue  # slurmdbd was away, and is back
            wait = f"{first.dbd_queue} wait{f', {later.dbd_queue} a moment later' if later else ''}"
            yield (Advisory if falls else Finding)(
                named("service", "records for slurmdbd"),
                Quantity(first.dbd_queue, "records", wait),
                Quantity(most // 2, "records", f"<= {most // 2} (half of MaxDBDMsgs)"),
                code="unsent_records",
            )


def _schedulers(found: SdiagStats, config: ControllerConfig, settings: Mapping[str, str]) -> Judgement:
    parameters = _parameters(settings.get("SchedulerParameters", ""))
    backfill = _backfill_limit(parameters)
    # max_sched_time of slurm.conf(5): at most 2 s by default; a mean above it means that cycles are cut
    cycle = max(config.max_cycle, _count(parameters.get("max_sched_time", "")))
    for name, scheduler, most in (
        ("main scheduler", found.main, cycle),
        ("backfill scheduler", found.backfill, backfill),
    ):
        if scheduler.mean is None or scheduler.cycles < FEWEST_CYCLES:
            continue
        yield Metric(name.replace(" ", "_"), 1000 * scheduler.mean, "ms")
        if scheduler.mean > most:
            words = f"{{:.1f}} s per cycle, mean of {scheduler.cycles}"
            yield _above(name, "slow_cycle", scheduler.mean, most, "s", words)
    # only an advisory: backfill also rests while nothing changes (_more_work of backfill.c)
    last = found.now - found.backfilled if found.backfilled else None
    if found.pending and last is not None and last > BACKFILL_LATE:
        yield Advisory(
            named("service", "backfill scheduler"),
            Quantity(last, "s", f"last ran {units.format_duration(last)} ago; {found.pending} jobs are pending"),
            Quantity(BACKFILL_LATE, "s", f"within {units.format_duration(BACKFILL_LATE)}"),
            code="rests",
        )


def _above(part: str, code: str, found: float, most: float, unit: str, words: str) -> Finding:
    """Return a finding about a figure above its limit; `words` show the figure."""
    limit = Quantity(most, unit, f"<= {most:g} s" if unit == "s" else f"<= {most}")
    return Finding(named("service", part), Quantity(found, unit, words.format(found)), limit, code=code)


def _seconds(text: str) -> float:
    """Return the seconds of '10 sec'; 0 for another text."""
    match = re.match(r"(\d{1,9}) sec", text)
    return float(match[1]) if match else 0.0


def _count(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,12}", text) else 0


def _parameters(text: str) -> Mapping[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _backfill_limit(values: Mapping[str, str]) -> float:
    return float(_count(values.get("bf_max_time", "")) or _count(values.get("bf_interval", "")) or BACKFILL)


@check(
    "controller.errors",
    cause="slurmctld or slurmdbd reports errors; the checks `ping` and `load` judge its state",
    hint="slurmctld's log (SlurmctldLogFile; journalctl -u slurmctld); slurmdbd's (LogFile of slurmdbd.conf)",
    action=Action.MONITOR,
    marks=("inventory",),
)
def errors(controller_log: DaemonLog) -> Judgement:
    """The log of slurmctld, and that of slurmdbd where it runs beside it, show no error; each is a warning."""
    yield from _shown("log of slurmctld", controller_log)


@check(
    "controller.node_errors",
    cause="slurmd reports errors; the suite slurm judges its state",
    hint="slurmd's log on the node (SlurmdLogFile; journalctl -u slurmd)",
    action=Action.MONITOR,
)
def node_errors(slurmd_logs: DaemonLog) -> Judgement:
    """The logs of slurmd of all nodes show no error; each is a warning."""
    yield from _shown("logs of slurmd", slurmd_logs)


def _shown(part: str, log: DaemonLog) -> Judgement:
    """Yield one warning: a log proves no fault of now."""
    if log.problem:
        yield NotAvailable(log.problem)
    shown: list[str] = []
    kinds = [kind for kind in log.kinds if not kind.own]
    for kind in kinds:
        words = _kind(kind)
        if shown and sum(map(len, shown)) + len(words) > MOST_SHOWN:
            break
        shown.append(words)
    rest = kinds[len(shown) :]
    if shown:
        total = f"{count(sum(kind.count for kind in kinds), 'error line')} of {count(len(kinds), 'kind')}"
        more = [f"{len(rest)} more"] * bool(rest)
        measured = Quote(f"{total}: {'; '.join([*shown, *more])}")
        yield Advisory(named("file", part), measured, "no line of level error or fatal", code="errors")
    for kind in (*rest, *(kind for kind in log.kinds if kind.own)):
        yield Remark(f"of a job of gpucluster: {kind.example}" if kind.own else kind.example, kind.count)


def _kind(kind: ErrorKind) -> str:
    last = "at an unknown time"
    if kind.age is not None:
        last = f"{units.format_duration(max(0, round(kind.age)))} ago"
    nodes = f"{one_line(hostlist.shown(kind.nodes), MOST_QUOTED)}, " if kind.nodes else ""
    meaning = f": {kind.meaning}" if kind.meaning else ""
    return f"{kind.count} x '{kind.example[:MOST_QUOTED]}' ({nodes}last {last}){meaning}"
