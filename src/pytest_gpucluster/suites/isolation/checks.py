"""Checks of the isolation of jobs. Pure.

No failure drains a node: each is a setting of Slurm or of the node, which jobs on a node of their own do not notice.
"""

from __future__ import annotations

import errno
import re
import signal
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucluster.core import units
from pytest_gpucluster.core.check import Action, Advisory, Finding, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.suites.isolation.config import IsolationConfig
from pytest_gpucluster.suites.isolation.pam import ADOPT
from pytest_gpucluster.suites.isolation.settings import require
from pytest_gpucluster.suites.isolation.steps import CPUS, ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.suites.isolation.logins import Login
    from pytest_gpucluster.suites.isolation.pam import PamFacts
    from pytest_gpucluster.suites.isolation.steps import MemoryStep, PtyResult, StepPair

T = TypeVar("T")
Facts = dict[str, dict[str, Any]]

NO_STEP = "no step has run on the node"
APART = "the two steps did not run at the same time on the node, so that they may have used the same resources"
YOUNGER = 60.0  # seconds; a private folder is as old as the job, and that of the node as old as the node
_REFUSED = (errno.EPERM, errno.EACCES)  # by a device cgroup, or by the mode of the file
_DAEMON = "on the node: diff its cgroup.conf with that of the controller; systemctl restart slurmd"


@check(
    "isolation.cpus",
    cause="cgroup.conf of the node lacks ConstrainCores=yes, or slurmd was not restarted since",
    hint=f"srun -w NODE --exact -c1 sh -c 'taskset -pc 0-999 $$; taskset -pc $$'; {_DAEMON}",
    action=Action.CONFIGURE,
)
def cpus(node_name: str, shared: Mapping[str, str], step_pair: StepPair | None) -> Judgement:
    """Judge that a step can use its own CPUs only, also if it requests all, and that two steps share none."""
    require(shared, "cpus")
    found, missing = _facts(_tried(step_pair), node_name, "cpus")
    yield from missing
    for role, facts in found.items():
        cores, reach = facts["cpus"]["cores"], facts["cpus"]["reach"]
        if not cores:
            yield NotAvailable("the kernel does not show which CPUs are threads of one core")
        elif cores > CPUS:  # Slurm gives whole cores, which may have several threads
            usable = Quantity(cores, "cores", f"can use CPU {listed(reach)} of {cores} cores")
            own = Quantity(CPUS, "cores", f"{CPUS} core")
            yield Finding(named("step", f"{role} step"), usable, own, code="too_many_cores")
    if len(found) < len(ROLES):
        return
    yield from _disjoint("CPUs", "use", [set(facts["cpus"]["reach"]) for facts in found.values()], found)


@check(
    "isolation.devices",
    cause="cgroup.conf of the node lacks ConstrainDevices=yes, or its gres.conf names no device files (File=)",
    hint=f"srun -w NODE --gres=gpu:1 nvidia-smi -L; gres.conf of the node; {_DAEMON}",
    action=Action.CONFIGURE,
)
def devices(node_name: str, shared: Mapping[str, str], step_pair: StepPair | None, info: NodeInfo | None) -> Judgement:
    """Judge that a step can open the device files of its own GPUs only."""
    require(shared, "devices")
    if info is None or not info.gpus:
        raise NotApplicable("Slurm has no GPUs on this node")
    if info.allocates_mig:
        raise NotApplicable("MIG instances of one GPU share its device file")
    step_pair = _tried(step_pair)
    found, missing = _facts(step_pair, node_name, "devices")
    yield from missing
    if not found:
        return
    opened = [_opened(facts["devices"]["files"]) for facts in found.values()]
    if None in opened:
        raise NotAvailable(f"no file {IsolationConfig.device_files} exists, or its mode lets this user open none")
    if free := _unmanaged(opened, info.gpus, next(iter(found.values()))["devices"]["files"]):
        files, expected = Part("device", name=listed(sorted(free))), "a GPU of gres.conf, or no device file"
        yield Advisory(files, "every job can open it", expected, code="unmanaged")
        opened = [(reached or set()) - free for reached in opened]
    for role, reached in zip(found, opened, strict=True):
        given = step_pair.gpus[role]
        if reached is not None and len(reached) != given:
            shown = f": {listed(sorted(reached))}" if reached else ""
            part = named("step", f"device files of the {role} step")
            usable = Quantity(len(reached), "files", f"{len(reached)} can be opened{shown}")
            own = Quantity(given, "files", f"{given}, the number of its GPUs")
            yield Finding(part, usable, own, code="not_its_own")
    if len(found) == len(ROLES):
        yield from _disjoint("GPUs", "open", opened, found)


def _unmanaged(opened: Sequence[set[str] | None], gpus: int, files: Mapping[str, int]) -> set[str]:
    """Return the device files that gres.conf leaves out, as of a GPU for a display: Slurm denies them to no job.

    Both steps reach them, and there are at most as many as the node has more files than GPUs in Slurm.
    """
    if len(opened) < len(ROLES):
        return set()
    shared = set.intersection(*(one or set() for one in opened))
    return shared if len(shared) <= len(files) - gpus else set()


def _opened(files: Mapping[str, int]) -> set[str] | None:
    """Return the device files that can be opened; None if there are none, or the mode of all excludes this user."""
    if set(files.values()) <= {errno.EACCES}:
        return None
    return {path for path, error in files.items() if error not in _REFUSED}


def _disjoint(what: str, verb: str, reached: Sequence[set[Any] | None], found: Mapping[str, Facts]) -> Judgement:
    """Judge that two steps reach nothing in common, if they ran at the same time."""
    shared = sorted(set.intersection(*(one or set() for one in reached)))
    if not all(facts.get("met", {}).get("met") is True for facts in found.values()):
        yield NotAvailable(APART)
    elif shared:
        part, measured = named("step", f"{what} of two steps"), f"both can {verb} {listed(shared)}"
        yield Finding(part, measured, f"no {what} in common", code="shared")


@check(
    "isolation.tmp",
    cause="job_container.conf (namespace.yaml) of the node does not name it or the folder, or slurmd was not restarted since",
    hint="srun -w NODE findmnt -T /tmp; job_container.conf; isolation.private_folders of the cluster file if other folders "
    "are private",
    action=Action.CONFIGURE,
)
def tmp(node_name: str, shared: Mapping[str, str], step_pair: StepPair | None) -> Judgement:
    """Judge that /tmp and /dev/shm of a job are not those of the node, which all its jobs would share."""
    require(shared, "tmp")
    step_pair = _tried(step_pair)
    found, missing = _facts(step_pair, node_name, "folders")
    if not found:
        yield from missing
        return
    for folder, facts in next(iter(found.values()))["folders"]["found"].items():
        if facts["error"]:
            yield NotAvailable(f"{folder}: {facts['error']}")
            continue
        private = _private(facts, step_pair)
        if private is None:
            advice = "sudo: true in the cluster file"
            yield NotAvailable(f"{folder}: only root can compare it with that of the node: {advice}")
        elif not private:
            measured = "the folder of the node, which all jobs share"
            yield Finding(named("mount", folder), measured, "a folder of this job", code="shared")


@check(
    "isolation.memory",
    cause="cgroup.conf of the node lacks ConstrainRAMSpace=yes, or slurmd was not restarted since",
    hint=f"srun -w NODE --mem=256M sh -c 'head -c 600M /dev/zero | tail'; {_DAEMON}",
    action=Action.CONFIGURE,
    marks=("intrusive",),  # the kernel ends a process for want of memory, and logs it
)
def memory(node_name: str, shared: Mapping[str, str], memory_step: MemoryStep | None) -> Judgement:
    """Judge that a task above its memory limit is ended, one below it lives, and the node stays in service."""
    require(shared, "memory")
    tried = _tried(memory_step)
    facts = tried.step.last_facts(node_name)
    if state := tried.states.get(node_name):
        yield Finding(Part("node"), Quote(f"after the task: {state}"), "in service", code="out_of_service")
    if refused := facts.get("refused"):
        raise NotAvailable(str(refused["reason"]))
    limit = units.format_size(tried.limit)
    part = named("step", f"task with --mem={tried.limit >> 20}M")
    killed = any(it.node == node_name and it.signal == signal.SIGKILL for it in tried.step.tasks)
    if held := facts.get("held"):
        yield from _held(part, held, tried)
    elif "below" in facts and killed:
        if not tried.reported:
            measured = "ended, and Slurm does not report why"
            yield Advisory(part, measured, "OUT_OF_MEMORY", code="not_reported")
    elif killed and tried.reported:
        measured, expected = f"ended below a quarter of {limit}", f"lives below {limit}"
        yield Finding(part, measured, expected, code="ended_early")
    else:
        raise NotAvailable(tried.step.silence(node_name))


@check(
    "isolation.pam_slurm_adopt",
    cause="the node was left out when PAM was configured, or an update restored /etc/pam.d",
    hint="on the node: grep -r slurm /etc/pam.d; sshd -T | grep -i usepam; slurm.schedmd.com/pam_slurm_adopt.html",
    action=Action.CONFIGURE,
)
def pam_slurm_adopt(pam: PamFacts, adopting: str, prolog_flags: str) -> Judgement:
    """Judge that sshd puts a login into the user's job: PAM's stack, the module and Slurm's configuration."""
    if adopting:
        raise NotApplicable(adopting)
    if not pam.readable:
        raise NotAvailable("/etc/pam.d/sshd of the node cannot be read")
    if not pam.adopts:
        part = named("setting", "account stack of sshd")
        yield Finding(part, f"without {ADOPT}", f"with {ADOPT}", code="not_in_stack")
    elif not pam.module:
        measured = "the file does not exist in a folder of PAM modules"
        yield Finding(named("file", pam.adopts), measured, "installed", code="absent")
    if pam.use_pam == "no":
        measured = "no: sshd does not use PAM"
        yield Finding(named("setting", "UsePAM of sshd"), measured, "yes", code="not_used")
    if not re.search(r"\bcontain\b", prolog_flags, re.IGNORECASE):
        part, flags = named("setting", "PrologFlags of slurm.conf"), Quote(prolog_flags or "none")
        yield Finding(part, flags, "with Contain", code="without_contain")


@check(
    "isolation.login",
    cause="pam_slurm_adopt is not in the account stack of this sshd, or comes after a module that ends the stack (sufficient)",
    hint="ssh to the node without a job there; journalctl -t sshd on the node",
    action=Action.CONFIGURE,
    marks=("intrusive",),  # sshd logs a refused login, which may raise an alarm
)
def login(adopting: str, refused: bool, login_without_job: Login | None) -> Judgement:
    """Judge that sshd refuses the user without a job on the node."""
    if adopting:
        raise NotApplicable(adopting)
    if login_without_job is None:
        raise NotAvailable("no login to the node was tried")
    if login_without_job.problem:
        raise NotAvailable(login_without_job.problem)
    if login_without_job.refusal:
        return
    if login_without_job.uid == 0:
        raise NotApplicable("pam_slurm_adopt admits root without a job: run the tests as another user")
    if not refused:
        raise NotAvailable(
            "most nodes of the group admit this user without a job (pam_access, action_no_jobs=ignore): run the tests as a "
            "user whom they refuse"
        )
    part, expected = named("service", "login without a job"), "refused, as on most nodes of the group"
    yield Finding(part, "a shell", expected, code="admitted")


@check(
    "isolation.pty",
    cause="/dev/pts of the node, a prolog that hangs, or a firewall between node and login node (SrunPortRange)",
    hint="srun -w NODE --pty bash; slurmd's log on the node",
    action=Action.CONFIGURE,
)
def pty(ptys: Sequence[PtyResult]) -> Judgement:
    """Judge that `srun --pty` opens a terminal on the first node of each partition."""
    for one in ptys:
        part = Part("node", name=one.node)
        if one.problem:
            yield NotAvailable(f"{one.node}: {one.problem}")
        elif one.end and one.end.hung:
            yield Finding(part, "srun --pty did not end in time", "a shell that ends", code="no_end")
        elif one.end is None or one.end.signal:
            yield NotAvailable(f"{one.node}: srun --pty: {one.end or 'no end'}")
        elif one.terminal is None:
            measured = Quote(f"no output of the shell: {one.text or 'no message'} ({one.end})")
            yield Finding(part, measured, "a shell", code="no_output")
        elif not one.terminal:
            yield Finding(part, "the shell has no terminal", "a terminal", code="no_terminal")


def _tried(result: T | None) -> T:
    if result is None:
        raise NotAvailable(NO_STEP)
    return result


def _facts(step_pair: StepPair, node: str, kind: str) -> tuple[dict[str, Facts], list[NotAvailable]]:
    """Return {role: facts of the node} of the steps that reported this kind, and why the others did not."""
    found: dict[str, Facts] = {}
    missing: list[NotAvailable] = []
    for role, step in step_pair.steps.items():
        facts = {key: dict(fact) for key, fact in step.last_facts(node).items()}
        if kind in facts:
            found[role] = facts
        else:
            missing.append(NotAvailable(f"{role} step: {step.silence(node)}"))
    return found, missing


def _private(facts: Mapping[str, Any], step_pair: StepPair) -> bool | None:
    """Return whether a folder belongs to the job alone; None if that is unknown.

    It does not if the first process of the node has the same one, if nothing is mounted there, if systemd mounted it for
    slurmd (PrivateTmp=), or if it is older than the job. Slurm mounts BASE/JOB/.JOB or BASE/NODE/JOB/.JOB on /tmp, and a
    new tmpfs on /dev/shm.
    """
    root = facts["root"]
    if root is None or facts["own"] == facts["node"]:
        return False
    if any(part.lstrip(".") == str(step_pair.job) for part in root.split("/")):
        return True
    if "/systemd-private-" in root:
        return False
    if step_pair.job_age is not None and facts["age"] >= 0:
        if facts["age"] > step_pair.job_age + YOUNGER:
            return False
        if facts["uptime"] > step_pair.job_age + 2 * YOUNGER:
            return True
    return True if facts["node"] else None


def _held(part: Part, held: Mapping[str, Any], memory_step: MemoryStep) -> Judgement:
    """Judge a task that was not ended: memory beyond its limit must be in swap (ConstrainSwapSpace=no)."""
    resident, swapped = (units.format_size(held[key]) for key in ("resident", "swapped"))
    if held["resident"] > memory_step.most:
        found = Quantity(held["resident"], "B", f"has {resident} of memory and was not ended")
        most = Quantity(memory_step.most, "B", f"ended at {units.format_size(memory_step.most)}")
        yield Finding(part, found, most, code="not_ended")
    else:
        measured = f"not ended: {swapped} of it are in swap space"
        yield Advisory(part, measured, "ended (ConstrainSwapSpace=yes)", code="in_swap")
