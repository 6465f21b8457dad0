"""Checks of slurmctld, its backups, its load and of the logs of slurmctld, slurmdbd and slurmd. Pure.

No check drains: what a log shows of the past proves nothing about the node now.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import units
from pytest_gpucluster.core.check import (
    Action,
    Advisory,
    Finding,
    Judgement,
    Metric,
    Remark,
    Verdict,
    check,
    revised,
)
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.suites.controller.known_errors import (
    SLURMCTLD,
    SLURMD,
    SLURMDBD,
    Subject,
    subjects,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.suites.controller.config import ControllerConfig
    from pytest_gpucluster.suites.controller.facts import ControllerState, Load
    from pytest_gpucluster.suites.controller.known_errors import KnownError, LogError

FEWEST_CYCLES = 10  # a mean of fewer says nothing: the counters are reset daily and by `sdiag -r`
BACKFILL = 30.0  # seconds: default of bf_interval, and so of bf_max_time (slurm.conf(5))
BACKFILL_LATE = 600.0
MESSAGE_TIMEOUT = 10.0  # seconds: default of MessageTimeout (slurm.conf(5))
SHOWN = 160  # characters of a line that a report quotes


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

    first: Load | None = None
    later: Load | None = None
    seconds: float = 0.0
    settings: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class ControllerLog:
    """The errors of slurmctld's log, by node; '' has those that name no node, and those of slurmdbd's log.

    `problem`: why slurmctld's was not read. Whether slurmdbd's was depends on where it runs.

    `run_age`: seconds since the start of the run when the log was read.
    """

    errors: Mapping[str, tuple[LogError, ...]] = field(default_factory=dict)
    run_age: float = 0.0
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
        yield Finding("scontrol ping", controllers.problem, "an answer")
        return
    if not controllers.states:
        raise NotAvailable(
            "scontrol ping named no controller: run it on this machine, and see SlurmctldHost of slurm.conf"
        )
    yield Metric("controllers", sum(one.up for one in controllers.states), "controllers")
    for one in controllers.states:
        if not one.up:
            yield Finding(f"{one.role} controller {one.host}", "DOWN", "UP")
    for host in set(controllers.configured) - {one.host for one in controllers.states}:
        yield NotAvailable(f"scontrol ping does not name the controller {host} of slurm.conf")
    if config.backup and len(controllers.states) < 2:
        yield Finding("backup controller", "none in slurm.conf", "a second SlurmctldHost")


def is_high(load: Load, config: ControllerConfig, settings: Mapping[str, str]) -> bool:
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
    timeout = config.max_answer or _seconds(settings.get("MessageTimeout", "")) or MESSAGE_TIMEOUT
    yield Metric("sdiag", diagnostics.seconds, "s")
    if diagnostics.seconds > timeout:
        yield Finding("sdiag", f"answered after {diagnostics.seconds:.1f} s", f"<= {timeout:g} s")
    yield from _queues(found, diagnostics.later, config, settings)
    yield from _schedulers(found, config, settings)
    # a client gives up after MessageTimeout (slurm.conf(5))
    slow = {name: mean for name, (count, mean) in found.rpcs.items() if count >= FEWEST_CYCLES}
    if slow:
        yield Metric("slowest_request", 1000 * max(slow.values()), "ms", detail=True)
    for name, mean in slow.items():
        if mean > timeout:
            yield Finding(f"request {name}", f"{mean:.1f} s on average", f"<= {timeout:g} s")


def _queues(
    first: Load, later: Load | None, config: ControllerConfig, settings: Mapping[str, str]
) -> Judgement:
    yield Metric("threads", first.threads, "threads")
    yield Metric("agent_queue", first.agent_queue, "messages")
    # a single query may meet a peak: the lower of two counts
    threads = min(one.threads for one in (first, later) if one)
    queue = min(one.agent_queue for one in (first, later) if one)
    if threads > config.max_threads:  # MAX_SERVER_THREADS of slurmctld.h is 256; sdiag(1): "often close to"
        yield Finding("threads of slurmctld", f"{threads} of 256", f"<= {config.max_threads}")
    if queue > config.max_agent_queue:
        yield Finding(
            "agent queue", f"{queue} messages wait to be sent again", f"<= {config.max_agent_queue}"
        )
    most = _count(settings.get("MaxDBDMsgs", ""))
    if most:  # sdiag(1): investigate immediately above half of MaxDBDMsgs
        yield Metric("dbd_queue", first.dbd_queue, "messages")
        if first.dbd_queue > most / 2:
            falls = later is not None and later.dbd_queue < first.dbd_queue  # slurmdbd was away, and is back
            yield (Advisory if falls else Finding)(
                "records for slurmdbd",
                f"{first.dbd_queue} wait{f', {later.dbd_queue} a moment later' if later else ''}",
                f"<= {most // 2} (half of MaxDBDMsgs)",
            )


def _schedulers(found: Load, config: ControllerConfig, settings: Mapping[str, str]) -> Judgement:
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
            yield Finding(
                name, f"{scheduler.mean:.1f} s per cycle, mean of {scheduler.cycles}", f"<= {most:g} s"
            )
    # only an advisory: backfill also rests while nothing changes (_more_work of backfill.c)
    last = found.now - found.backfilled if found.backfilled else None
    if found.pending and last is not None and last > BACKFILL_LATE:
        yield Advisory(
            "backfill scheduler",
            f"last ran {units.format_duration(last)} ago; {found.pending} jobs are pending",
            f"within {units.format_duration(BACKFILL_LATE)}",
        )


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


def explained(verdict: Verdict, *_: Any) -> Verdict:
    """Return a failure with cause and hint of its first known error."""
    causes: dict[str, KnownError | Subject] = {one.what: one for one in subjects()}
    causes |= {one.what: one for one in (*table(SLURMD), *table(SLURMDBD), *table(SLURMCTLD))}
    known = next((causes[one.part] for one in verdict.findings if one.part in causes), None)
    return replace(verdict, cause=known.cause, hint=known.hint) if known else verdict


@revised(explained)
@check(
    "controller.errors",
    cause="slurmctld or slurmdbd reports an error",
    hint="slurmctld's log (SlurmctldLogFile; journalctl -u slurmctld); slurmdbd's (LogFile of slurmdbd.conf)",
    action=Action.MONITOR,
    never_healthy="only a line of `known` in the cluster file, which a person wrote, can require a repair here",
    marks=("inventory",),
)
def errors(controller_log: ControllerLog, config: ControllerConfig) -> Judgement:
    """The log of slurmctld, and that of slurmdbd where it runs beside it, show no known error without a node."""
    if controller_log.problem:  # the log of slurmdbd may be known
        yield NotAvailable(controller_log.problem)
    yield from _judged(controller_log.errors.get("", ()), controller_log.run_age, config, in_service=True)


@revised(explained)
@check(
    "controller.reported",
    cause="slurmctld reports an error of the node",
    hint="scontrol show node NODE; slurmctld's log; sinfo -R",
    action=Action.MONITOR,
    never_healthy="only a line of `known` in the cluster file, which a person wrote, can require a repair here",
    marks=("inventory", "judges_node"),
)
def reported(
    controller_log: ControllerLog, node_name: str, info: NodeInfo | None, config: ControllerConfig
) -> Judgement:
    """The log of slurmctld shows no known error of the node."""
    if controller_log.problem:
        raise NotAvailable(controller_log.problem)
    in_service = info is not None and info.in_service
    yield from _judged(
        controller_log.errors.get(node_name, ()), controller_log.run_age, config, in_service=in_service
    )


@revised(explained)
@check(
    "controller.node_errors",
    cause="slurmd reports an error",
    hint="slurmd's log on the node (SlurmdLogFile; journalctl -u slurmd)",
    action=Action.MONITOR,
    never_healthy="only a line of `known` in the cluster file, which a person wrote, can require a repair here",
)
def node_errors(
    slurmd_errors: Sequence[LogError], run_age: float, info: NodeInfo | None, config: ControllerConfig
) -> Judgement:
    """The log of slurmd shows no known error."""
    yield from _judged(slurmd_errors, run_age, config, in_service=info is None or info.in_service)


def _judged(
    errors: Iterable[LogError], run_age: float, config: ControllerConfig, *, in_service: bool
) -> Judgement:
    kinds: dict[str, list[LogError]] = defaultdict(list)
    for one in _telling(tuple(errors), in_service=in_service):
        kinds[_part(one)].append(one)
    for what, found in kinds.items():
        known = found[-1].known
        age = min((one.line.age for one in found if one.line.age is not None), default=None)
        if known is None and not in_service:
            yield Advisory(what, _shown(found, age), "no error before Slurm took the node out of service")
        elif known is None:
            yield Remark(found[-1].line.text.partition(": ")[2][:SHOWN], len(found))
        elif isinstance(known, KnownLine):
            words = f"{_shown(found, age)}; {known.words}"
            yield (
                Finding(what, words, "no such line", known.failure)
                if known.failure
                else Advisory(what, words, "no such line")
            )
        elif isinstance(known, Subject):
            yield Advisory(what, _shown(found, age), "no such line")
        else:
            fails = _does_not_run(found[-1], in_service=in_service) or _fails(
                known, age, run_age, config, in_service=in_service
            )
            words = _shown(found, age)
            yield (
                Finding(what, words, "no such line")
                if fails
                else Advisory(what, f"{words}{_since(known, age)}", "no such line")
            )


def _since(known: KnownError, age: float | None) -> str:
    """Say what has happened since a line that no longer fails the check; '' where its log does not say."""
    if known.fails == "drained":  # a node in service was returned to service
        return "; before the last repair: the node is in service again"
    if known.fails == "lasting" and age is not None:
        return f"; repeated every {known.repeats} s while it lasts, and not since"
    return ""


def _telling(errors: Sequence[LogError], *, in_service: bool) -> Iterator[LogError]:
    """Yield the lines that are not quiet; of a node out of service without a known one, the last line too."""
    explains = any(one.known for one in errors)
    for position, one in enumerate(errors, 1):
        last = position == len(errors) and not in_service and not explains
        if last or not one.quiet:
            yield one


def _part(one: LogError) -> str:
    if one.known is None:
        return re.sub(r"\d+", "#", one.line.text)
    return one.known.meaning if isinstance(one.known, KnownLine) else one.known.what


def _does_not_run(one: LogError, *, in_service: bool) -> bool:
    """Return whether a slurmd ended and its node is out of service; slurmctld answers, so that it runs again."""
    return one.ended and one.daemon == SLURMD and not in_service


def _fails(
    known: KnownError, age: float | None, run_age: float, config: ControllerConfig, *, in_service: bool
) -> bool:
    """Return whether the newest line of a kind proves a fault of now; data/slurm-errors.yaml defines `fails`."""
    if known.fails == "never":
        return False
    if age is not None and age <= run_age:
        return True
    if known.fails == "drained":
        return not in_service
    return age is not None and age <= min(known.repeats, config.log_recent)


def _shown(found: Sequence[LogError], age: float | None) -> str:
    times = "" if len(found) == 1 else f"{len(found)} lines, "
    last = f"{units.format_duration(max(0, round(age)))} ago" if age is not None else "at an unknown time"
    text = found[-1].line.text.removeprefix("error: ")[:SHOWN]
    text = f"{SLURMDBD}: {text}" if found[-1].daemon == SLURMDBD else text
    return f"{times}last {last}: {text}" if times else f"{last}: {text}"
