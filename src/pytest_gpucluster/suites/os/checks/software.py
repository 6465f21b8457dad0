"""Processes and services."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NOT_STATED, NotApplicable, NotAvailable
from pytest_gpucluster.core.fault_rules import Situation, unless_unsettled
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.suites.os.checks import kernel_log as kernel_log_check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.suites.os.software_facts import Processes, SystemState


HUNG = 120  # seconds: kernel.hung_task_timeout_secs


@check(
    "os.zombies",
    cause="a daemon or a job's parent process does not reap its children",
    hint="ps -eo pid,ppid,stat,etimes,comm | awk '$3 ~ /^Z/'; restart the parent process",
    action=Action.MONITOR,
    of_job=True,
)
def zombies(processes: Processes, max_zombies: int) -> Judgement:
    """At most as many processes as stated remain zombies in three samples, one second apart."""
    found = processes.of_state("Z")
    yield Metric("zombies", len(found), "processes")
    if len(found) > max_zombies:
        them = ", ".join(f"{one.command} (pid {one.pid}, parent {one.ppid})" for one in found[:5])
        measured = Quantity(len(found), "zombies", f"{len(found)} zombies: {them}")
        most = Quantity(max_zombies, "zombies", f"at most {max_zombies}")
        yield Finding(Part("process"), measured, most, code="zombies")


@check(
    "os.dstate",
    cause="processes wait for a device or a file server that does not answer",
    hint="ps -eo pid,stat,wchan:30,args | grep ' D'; dmesg | grep -i 'blocked for more'; check file servers and disks; reboot",
    action=Action.MONITOR,
    of_job=True,
)
def dstate(processes: Processes) -> Judgement:
    """No process is in the same uninterruptible sleep in three samples, one second apart, two minutes after its start.

    Threads of the kernel do their work in this state (md_resync, txg_sync).
    """
    found = [one for one in processes.of_state("D") if not one.kernel and (one.age is None or one.age >= HUNG)]
    yield Metric("dstate", len(found), "processes")
    for process in found[:5]:
        age = "" if process.age is None else f", {format_duration(process.age)} old"
        measured = f"{process.command} of {process.user} in D state{age}"
        yield Finding(Part("process", process.pid), Quote(measured), "not in D state", code="in_d_state")


kernel_log = kernel_log_check.kernel_log  # its place in the order of items
kernel_log_start = kernel_log_check.kernel_log_start

# units of logins, jobs and systemd-run
_OF_USERS = re.compile(r"(user|user-runtime-dir)@|(session|run)-|.*\.scope$")


@check(
    "os.services",
    show="systemctl status PART",
    cause="the service crashed, was stopped, or is not enabled",
    hint="systemctl status and journalctl -b -u with the unit; systemctl enable --now",
    action=Action.CONFIGURE,
    setting="os.services",
)
def services(
    services: Mapping[str, str], stated_services: Sequence[str], uptime_if_known: float | None = None
) -> Judgement:
    """Every service of the cluster file is active."""
    if not stated_services:
        raise NotApplicable("the cluster file states no os.services", NOT_STATED)
    for unit in stated_services:
        if services[unit] not in ("active", "reloading"):
            starts = Situation(uptime_if_known).why_not_yet() if services[unit] == "activating" else ""
            found = Finding(named("service", unit), Quote(services[unit]), "active", code="not_active")
            yield from unless_unsettled(starts, iter((found,)))


@check(
    "os.failed_units",
    show="systemctl status PART",
    cause="a unit failed since boot",
    hint="systemctl --failed; journalctl -b -u with the unit; afterwards systemctl reset-failed",
    action=Action.MONITOR,
)
def failed_units(failed_units: Iterable[str], stated_services: Iterable[str]) -> Judgement:
    """No systemd unit of the system has failed; os.services judges those of the cluster file."""
    own = {unit if "." in unit else f"{unit}.service" for unit in stated_services}
    for unit in failed_units:
        if unit not in own and not _OF_USERS.match(unit):
            yield Finding(named("service", unit), "failed", "no failed unit", code="failed")


@check(
    "os.systemd",
    cause="systemd or its D-Bus hangs or was killed: no service is watched or restarted, logins and jobs' cgroups hang",
    hint="systemctl is-system-running; ps -C dbus-daemon,dbus-broker; journalctl -b -n 50; systemctl daemon-reexec, or "
    "reboot",
    action=Action.MONITOR,
    never_healthy="systemd answers most nodes of the group, and on this node a call to it does not end",
)
def systemd(system_state: SystemState, usual_answers: Norm[Any], uptime_if_known: float | None = None) -> Judgement:
    """Systemd answers if it does on most nodes of the group."""
    part = named("service", "systemd")
    if system_state.word == "offline":
        raise NotApplicable("systemd does not run on the node")
    elif system_state.word == "stopping":
        raise NotAvailable("the node shuts down: repeat the check after its boot")
    elif system_state.word == "maintenance":
        yield Finding(part, system_state.word, "running", code="maintenance")
    elif not system_state.answers and usual_answers.value:
        # a bus that refuses is not systemd: it may be restarted, or not be installed here
        code, action = ("hangs", Action.REBOOT) if system_state.hung else ("no_answer", None)
        problem = Quote(system_state.problem or "no answer")
        found = Finding(part, problem, f"answers, {usual_answers.most}", action, code=code)
        yield from unless_unsettled(Situation(uptime_if_known).why_not_yet(), iter((found,)))
    elif not system_state.answers:
        raise NotAvailable(f"systemctl is-system-running: {system_state.problem or 'no answer'}")
