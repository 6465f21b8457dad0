"""Present state of a node: load, memory in use, user, response, time service."""

from __future__ import annotations

import re
import statistics
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Verdict, check, revised, with_cause
from pytest_gpucluster.core.fault_rules import Situation, unless_unsettled
from pytest_gpucluster.core.finding import Explanation, Quantity, Quote
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.units import format_duration, format_size
from pytest_gpucluster.kit.node.peers import alike
from pytest_gpucluster.suites.os.checks import disks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.suites.os.facts import Load
    from pytest_gpucluster.suites.os.memory_facts import MemoryUse
    from pytest_gpucluster.suites.os.software_facts import TimeSync

MAX_CLOCK_OFFSET = 1.0  # seconds against the time source
# chrony shows "Normal" for weeks after it lost its servers; a source may be polled every 36 hours (chrony.conf(5), maxpoll 17)
MAX_SILENCE, SILENT_POLLS = 86400.0, 4


@check(
    "os.load",
    cause="something runs on a node that should be idle: a leftover of a job, a runaway daemon",
    hint="top; loginctl list-sessions; squeue -w NODE; end the leftovers",
    action=Action.MONITOR,
    of_job=True,
)
def load(load: Load, online_cpus: int, max_load: float, uptime_if_known: float | None = None) -> Judgement:
    """The 1-minute load per CPU is that of an idle node."""
    yield Metric("load_per_cpu", load.one / online_cpus, "")
    if load.one > max_load * online_cpus:
        measured = Quantity(load.one, "", f"a load of {load.one:g} over 1 minute on {online_cpus} CPUs")
        most = Quantity(max_load * online_cpus, "", f"at most {max_load * online_cpus:g}")
        found = Finding(Part("node"), measured, most, code="load")
        yield from unless_unsettled(Situation(uptime_if_known).why_not_yet(), iter((found,)))


USUAL_NODES = 3  # of which most decide what an idle node uses
# of the memory, beyond what most nodes use: slabs of file systems and daemons differ by less between idle nodes
MEMORY_SHARE, MEMORY_BYTES = 0.05, 8 << 30
ALONE_SHARE = 0.25  # a warning where there are no nodes to compare with
_SHOWN = 3  # users of memory that a finding names


@check(
    "os.memory_in_use",
    cause="files in /dev/shm or processes are left of ended jobs, or a daemon leaks memory",
    hint="ls -lR /dev/shm; ps -eo rss,pid,user,args --sort=-rss | head; squeue -w NODE; remove the files, end the processes; smem or "
    "slabtop if neither explains it",
    action=Action.MONITOR,
    of_job=True,
)
def memory_in_use(memory_use: MemoryUse, all_used: Mapping[str, int] = MappingProxyType({})) -> Judgement:
    """An idle node uses at most 5% of its memory (at least 8 GiB) more than the median of its group; alone, 25% is a warning.

    Page cache, reserved huge pages, the cache of ZFS and tmpfs are not in use; files in /dev/shm are. all_used: bytes of each node.
    """
    used, total = memory_use.used, memory_use.total
    yield Metric("memory_in_use", used / 2**30, "GiB")
    text = f"{format_size(used)} of {format_size(total)} in use{_users(memory_use)}"
    part, measured = Part("memory"), Quantity(used, "B", text)
    if len(all_used) < USUAL_NODES:
        if used > (most := ALONE_SHARE * total):
            bound = Quantity(most, "B", f"at most {format_size(most)} on an idle node")
            yield Advisory(part, measured, bound, code="much_in_use")
        return
    usual = statistics.median_low(all_used.values())
    most = usual + max(MEMORY_SHARE * total, MEMORY_BYTES)
    if used > most:
        text = f"at most {format_size(most)} (median of its group: {format_size(usual)})"
        yield Finding(part, measured, Quantity(most, "B", text), code="much_in_use")


def _users(use: MemoryUse) -> str:
    """Return what uses the memory, as far as the node could tell."""
    names = [f"/dev/shm {format_size(use.shm)}"] if use.shm else []
    names += [f"{format_size(one.size)} {one}" for one in (*use.files[:_SHOWN], *use.processes[:_SHOWN])]
    return f": {', '.join(names)}" if names else ""


@check(
    "os.user",
    cause="the directory service (LDAP, SSSD) does not answer here, or local accounts differ",
    hint="getent passwd; getent group; sssctl domain-status; compare /etc/passwd and /etc/group",
    action=Action.CONFIGURE,
)
def user(user: str, usual_user: Norm[Any]) -> Judgement:
    """The user of the run has the same name and uid as on the other nodes, and the names of their groups."""
    yield from alike(Part("user"), user, usual_user, worse=_worse_user, harmless="the groups differ")


def _worse_user(mine: str, theirs: str) -> bool:
    """Another uid, or fewer groups: a local group like render has another number on each installation."""
    (uid, own), (usual_uid, usual) = map(_user, (mine, theirs))
    return uid != usual_uid or not own >= usual


def _user(text: str) -> tuple[str, set[str]]:
    """Return the uid with its name, and the names of all groups (their numbers if they have none)."""
    uid, _, rest = text.partition(" gid=")
    groups = re.findall(r"(\d+)(?:\(([^)]*)\))?", rest.partition(" context=")[0])
    return uid, {name or number for number, name in groups}


shared_storage = disks.shared_storage  # its place in the order of items

# code of a loss: cause, hint, action
_LOSSES = {
    "prolog_failed": (
        "the TaskProlog of slurm.conf fails on this node: no task of any job starts there",
        "run the TaskProlog of `scontrol show config` on the node as the user of the run; slurmd's log",
        Action.CONFIGURE,
    ),
    "starts_no_task": (
        "slurmd was killed, hangs or refuses the step (munge, a plugin), or its Prolog outlasts MessageTimeout",
        "systemctl status slurmd munge on the node; slurmd's log there; time the Prolog; systemctl restart slurmd",
        Action.DRAIN,
    ),
    "task_ended": (
        "the task was killed on the node: memory ran out, a health check or a person ended it, or slurmstepd failed",
        "dmesg -T | grep -iE 'oom|killed process' and slurmd's log on the node; rerun",
        Action.MONITOR,
    ),
}


def _loss(verdict: Verdict, *_facts: object) -> Verdict:
    """Return the cause that belongs to the code of the loss."""
    for code, (cause, hint, action) in _LOSSES.items():
        verdict = with_cause(verdict, code, cause, hint, action=action)
    return verdict


@revised(_loss)
@check(
    "os.responds",
    cause="the node is down, hangs, or Slurm's step daemon on it was killed",
    hint="check the node's console and slurmd's log; power-cycle it; scontrol update nodename=NODE state=resume",
    action=Action.REBOOT,
    never_healthy="Slurm gave the node to this run as idle, and for longer than a step may take to start the node ran no command at "
    "all; programs of the site that end tasks, as a TaskProlog, are recognised",
    marks=("judges_node",),
)
def responds(answer: Answer, lost: Explanation | None = None, loss: str = "") -> Judgement:
    """The node executes a command.

    lost: why the channel abandoned the node during the run, if it did. loss: the code of the reason, also where the node never
    joined the channel.
    """
    if lost or answer.rc is None:
        why = Quote(str(lost or answer.problem or "no answer"))
        yield Finding(Part("node"), why, "executes the command 'true'", code=loss or "no_answer")
    elif answer.rc != 0:
        measured = f"'true' ended with exit status {answer.rc}"
        yield Finding(Part("node"), measured, "exit status 0", Action.MONITOR, code="exit_status")


@check(
    "os.time_sync",
    cause="no time service runs, or it reaches none of its servers",
    hint="chronyc sources -v; systemctl enable --now chronyd (or systemd-timesyncd); check UDP port 123",
    action=Action.CONFIGURE,
)
def time_sync(time_sync: TimeSync, uptime_if_known: float | None = None) -> Judgement:
    """The clock is synchronised, its offset against the source is small, and the source is still measured."""
    yield from unless_unsettled(Situation(uptime_if_known).why_not_yet(), _time_sync(time_sync))


def _time_sync(time_sync: TimeSync) -> Judgement:
    silent, most = time_sync.silent or 0.0, max(MAX_SILENCE, SILENT_POLLS * time_sync.interval)
    if time_sync.offset is not None:
        yield Metric("time_offset", time_sync.offset, "s", better=NEITHER)  # has a sign
    part = named("service", "time service")
    within = Quantity(MAX_CLOCK_OFFSET, "s", f"within {MAX_CLOCK_OFFSET:g} s")
    if not time_sync.synchronised:
        measured = Quote(f"not synchronised ({time_sync.source}: {time_sync.detail})")
        yield Finding(part, measured, "synchronised", code="not_synchronised")
    elif time_sync.offset is not None and not abs(time_sync.offset) <= MAX_CLOCK_OFFSET:
        text = f"offset {time_sync.offset:g} s ({time_sync.source})"
        yield Finding(part, Quantity(abs(time_sync.offset), "s", text), within, code="offset")
    elif silent > most:
        text = f"no measurement of a source for {format_duration(silent)} ({time_sync.source}: {time_sync.detail})"
        bound = Quantity(most, "s", f"one within {format_duration(most)}")
        yield Finding(part, Quantity(silent, "s", text), bound, code="no_measurement")
    elif time_sync.error is not None and time_sync.error > MAX_CLOCK_OFFSET:
        text = f"an error of up to {time_sync.error:g} s ({time_sync.source})"
        yield Finding(part, Quantity(time_sync.error, "s", text), within, code="large_error")
