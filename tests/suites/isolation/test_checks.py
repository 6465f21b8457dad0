"""Verdicts on facts that the payloads reported in a sandbox with isolated jobs (Slurm 22.05.8, cgroup v1)."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING
from judged import judged

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.isolation import checks
from pytest_gpucluster.suites.isolation.logins import Login
from pytest_gpucluster.suites.isolation.pam import PamFacts
from pytest_gpucluster.suites.isolation.steps import MemoryStep, PtyResult, StepPair

if TYPE_CHECKING:
    from collections.abc import Callable

NODE, MIB = "gpu01", 2**20
ALL: dict[str, str] = {}
INFO = NodeInfo(NODE, "ALLOCATED", gres={"gpu:h200": 4})
SHM = {"error": "", "own": "41:1", "node": "", "root": "/", "age": 4.0, "uptime": 9e5}
TMP = {**SHM, "own": "65024:1672133", "root": "/scratch/gpu01/6/.6"}
ADOPTING = PamFacts(True, "pam_slurm_adopt.so", "/lib64/security/pam_slurm_adopt.so", "yes")


def opened(*numbers: int, **others: int) -> dict[str, Any]:
    """Return the device files of 4 GPUs, of which these can be opened."""
    files = {f"/dev/nvidia{number}": 0 if number in numbers else errno.EPERM for number in range(4)}
    return {"devices": {"files": files | {f"/dev/{name}": error for name, error in others.items()}}}


def reach(*cpus: int, cores: int) -> dict[str, Any]:
    return {"cpus": {"bound": cpus[:1], "reach": cpus, "cores": cores}}


def step(found: dict[str, dict[str, Any]] | None, **ended: Any) -> PayloadResult:
    lines = tuple({"isolation": kind, "rank": 0, "node": NODE, **it} for kind, it in (found or {}).items())
    task = PayloadTask(0, NODE, ended.pop("task_rc", 0), ended.pop("signal", None), lines)
    return PayloadResult("isolation", (NODE,), 1, (task,) if found is not None else (), **ended)


def step_pair(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **changes: Any) -> StepPair:
    """Return a healthy pair of steps with these facts instead."""
    both: dict[str, Any] = {"folders": {"found": {"/tmp": TMP, "/dev/shm": SHM}}, "met": {"met": True}}
    steps = {
        "first": step({**reach(0, cores=1), **opened(0), **both, **(first or {})}),
        "second": step({**reach(1, cores=1), **opened(1), **both, **(second or {})}),
    }
    return replace(StepPair(steps, {"first": 1, "second": 1}, job=6, job_age=5.0), **changes)


def cpus(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> Verdict:
    return checks.cpus(NODE, ALL, step_pair(first, second))


def devices(first: dict[str, Any], second: dict[str, Any]) -> Verdict:
    return checks.devices(NODE, ALL, step_pair(first, second), INFO)


def gres(**gres: Any) -> Verdict:
    return checks.devices(NODE, ALL, step_pair(), replace(INFO, **gres))


def tmp(**change: Any) -> Verdict:
    return checks.tmp(NODE, ALL, step_pair({"folders": {"found": {"/tmp": TMP | change}}}))


def memory(found: dict[str, dict[str, Any]], **changes: Any) -> Verdict:
    ended = {key: changes.pop(key) for key in ("signal", "task_rc") if key in changes}
    given = {"limit": 256 * MIB, "most": 256 * MIB, "reported": True, **changes}
    return checks.memory(NODE, ALL, MemoryStep(step(found, **ended), **given))


def held(resident: int, swapped: int) -> dict[str, Any]:
    return BELOW | {"held": {"resident": resident * MIB, "swapped": swapped * MIB, "taken": 512 * MIB}}


def pam(flags: str, **change: Any) -> Verdict:
    return checks.pam_slurm_adopt(replace(ADOPTING, **change), "", flags)


def login(found: Login | None, *, refused: bool = True) -> Verdict:
    return checks.login("", refused, found)


def pty(rc: int | None, terminal: bool | None, text: str = "") -> Verdict:
    return checks.pty([PtyResult("gpu09", CommandEnd(0), True), PtyResult(NODE, CommandEnd(rc), terminal, text)])


APART = reach(0, cores=1) | {"met": {"met": False}}  # not at the same time
SILENT = step_pair()
SILENT = replace(SILENT, steps={**SILENT.steps, "second": step(None, problem="srun: cancelled")})
UNREPORTED = step_pair(steps=dict.fromkeys(("first", "second"), step(None, problem="srun: cancelled")))
FIRST, SECOND, BOTH = "first step", "second step", "CPUs of two steps"
FILES_1, FILES_2 = "device files of the first step", "device files of the second step"
TWO = "GPUs of two steps"
NO_MODE = {"devices": {"files": dict.fromkeys(("/dev/nvidia0", "/dev/nvidia1"), errno.EACCES)}}
NONE: dict[str, Any] = {"devices": {"files": {}}}
BELOW = {"below": {"bytes": 64 * MIB}}
TASK = "task with --mem=256M"
DRAINING = {NODE: 'DRAINING: "Kill task failed" by root since 2026-11-23T15:00:00'}
PRIVATE_TMP = "/systemd-private-0a1b-slurmd.service-x/tmp"
PANIC = {"refused": {"reason": "vm.panic_on_oom is 1"}}
BROKEN = Login(problem="ssh: Host key verification failed. (exit 255)")
CASES: list[tuple[Callable[[], Verdict], str, list[str]]] = [
    # a step has one core of its own
    (cpus, PASSED, []),
    (lambda: cpus(reach(0, 1, cores=2), reach(0, 1, cores=2)), CONFIGURE, [FIRST, SECOND, BOTH]),
    (lambda: cpus(reach(3, 67, cores=1), reach(4, 68, cores=1)), PASSED, []),  # both threads of a core
    (lambda: cpus(reach(0, cores=1), reach(0, cores=1)), CONFIGURE, [BOTH]),
    (lambda: cpus(None, APART), NOT_CHECKED, []),  # not at the same time
    (lambda: cpus(reach(0, 2, cores=0)), NOT_CHECKED, []),
    (lambda: checks.cpus(NODE, ALL, SILENT), NOT_CHECKED, []),
    (lambda: checks.cpus(NODE, ALL, None), NOT_CHECKED, []),
    # a step opens its own GPUs only
    (lambda: devices(opened(0), opened(1)), PASSED, []),
    (lambda: devices(opened(0, 1, 2, 3), opened(0, 1, 2, 3)), CONFIGURE, [FILES_1, FILES_2, TWO]),
    # the cgroup permits it, and the driver has no GPU
    (lambda: devices(opened(nvidia0=errno.ENXIO), opened(1)), PASSED, []),
    (lambda: devices(opened(0, nvidia1=errno.EACCES), opened(1)), PASSED, []),
    (lambda: devices(opened(), opened(1)), CONFIGURE, [FILES_1]),
    (lambda: devices(opened(0), opened(0)), CONFIGURE, [TWO]),
    # a fifth GPU, for the display: gres.conf has four
    (lambda: devices(opened(0, nvidia4=0), opened(1, nvidia4=0)), WARNING, ["/dev/nvidia4"]),
    (lambda: devices(opened(0, 1, nvidia4=0), opened(0, 1, nvidia4=0)), CONFIGURE, [FILES_1, FILES_2, TWO]),
    (lambda: devices(NONE, NONE), NOT_CHECKED, []),
    (lambda: devices(NO_MODE, NO_MODE), NOT_CHECKED, []),
    (lambda: checks.devices(NODE, ALL, step_pair(), None), NOT_APPLICABLE, []),
    (lambda: gres(gres={"gpu:1g.10gb": 7}), NOT_APPLICABLE, []),
    # who has a folder
    (tmp, PASSED, []),
    (lambda: tmp(root=None), CONFIGURE, ["/tmp"]),  # nothing is mounted there
    (lambda: tmp(node=TMP["own"]), CONFIGURE, ["/tmp"]),  # the first process of the node has the same
    (lambda: tmp(root="/private", node="65024:2"), PASSED, []),  # young, and another than that of the node
    (lambda: tmp(root=PRIVATE_TMP, node="65024:2"), CONFIGURE, ["/tmp"]),
    (lambda: tmp(root="/", age=65.0), PASSED, []),
    (lambda: tmp(root="/", age=66.0), CONFIGURE, ["/tmp"]),  # older than the job
    (lambda: tmp(root="/", age=-1.0), NOT_CHECKED, []),  # no kernel support
    (lambda: tmp(root="/", uptime=125.0), NOT_CHECKED, []),  # the node is as young as the job
    (lambda: tmp(root="/", age=-1.0, node="41:2"), PASSED, []),
    (lambda: tmp(root="/scratch/66/.66", age=-1.0), NOT_CHECKED, []),  # of another job
    (lambda: tmp(error="[Errno 2] No such file or directory: '/tmp'"), NOT_CHECKED, []),
    (lambda: checks.tmp(NODE, ALL, step_pair(job_age=None)), NOT_CHECKED, []),
    (lambda: checks.tmp(NODE, ALL, UNREPORTED), NOT_CHECKED, []),
    # a task lives below its limit and ends above it
    (lambda: memory(BELOW, signal=9, task_rc=137), PASSED, []),
    (lambda: memory(BELOW, signal=9, task_rc=137, reported=False), WARNING, [TASK]),
    (lambda: memory(held(526, 0)), CONFIGURE, [TASK]),
    (lambda: memory(held(256, 270)), WARNING, [TASK]),  # in swap
    (lambda: memory(BELOW, signal=9, states=DRAINING), CONFIGURE, ["node"]),
    (lambda: memory({}, signal=9), CONFIGURE, [TASK]),  # ended far below its limit
    (lambda: memory({}, signal=9, reported=False), NOT_CHECKED, []),  # anything may have ended it
    (lambda: memory(PANIC), NOT_CHECKED, []),
    (lambda: memory(BELOW, task_rc=1), NOT_CHECKED, []),
    (lambda: checks.memory(NODE, ALL, None), NOT_CHECKED, []),
    # the stack of sshd adopts logins
    (lambda: pam("Alloc,Contain"), PASSED, []),
    (lambda: pam("contain", adopts="", module=""), CONFIGURE, ["account stack of sshd"]),
    (lambda: pam("Contain", module=""), CONFIGURE, ["pam_slurm_adopt.so"]),
    (lambda: pam("Contain", use_pam="no"), CONFIGURE, ["UsePAM of sshd"]),
    (lambda: pam("Contain", use_pam=""), PASSED, []),  # unknown
    (lambda: pam("Contain", readable=False, adopts=""), NOT_CHECKED, []),
    (lambda: pam(""), CONFIGURE, ["PrologFlags of slurm.conf"]),
    (lambda: pam("Alloc,ContainX"), CONFIGURE, ["PrologFlags of slurm.conf"]),
    # logins without a job
    (lambda: login(Login(refusal="you have no active jobs on this node")), PASSED, []),
    (lambda: login(Login(1000)), CONFIGURE, ["login without a job"]),
    # a healthy node must not fail: users whom PAM exempts, ssh that does not work
    (lambda: login(Login(1000), refused=False), NOT_CHECKED, []),
    (lambda: login(BROKEN), NOT_CHECKED, []),
    (lambda: login(Login(0)), NOT_APPLICABLE, []),
    # terminals
    (lambda: pty(0, True), PASSED, []),
    (lambda: pty(0, False), CONFIGURE, [NODE]),
    (lambda: pty(1, None, "srun: error: task 0 launch failed"), CONFIGURE, [NODE]),
    (lambda: pty(None, True), CONFIGURE, [NODE]),
    (lambda: pty(137, None), NOT_CHECKED, []),
    (lambda: checks.pty([PtyResult(NODE, problem="script: command not found")]), NOT_CHECKED, []),
]


@pytest.mark.parametrize("at", range(len(CASES)))
def test_each_case_has_its_verdict(at: int) -> None:
    judge, expected, parts = CASES[at]
    assert judged(judge()) == (expected, parts)


def test_shared_resources_and_logins_without_pam_slurm_adopt_are_not_applicable() -> None:
    shared = {"cpus": "a", "devices": "b", "memory": "c"}
    verdicts = [
        checks.cpus(NODE, shared, None),
        checks.devices(NODE, shared, None, INFO),
        checks.memory(NODE, shared, None),
        checks.pam_slurm_adopt(replace(ADOPTING, adopts=""), "d", ""),
        checks.login("e", False, None),
    ]
    assert [(judged(it)[0], it.reason) for it in verdicts] == [(NOT_APPLICABLE, one) for one in "abcde"]
    assert judged(checks.tmp(NODE, {"tmp": "d"}, None))[0] == NOT_APPLICABLE
    assert judged(checks.tmp(NODE, shared | {"tmp": "d"}, None))[0] == NOT_CHECKED, "nothing is isolated"
