"""Verdicts on facts that the payloads reported in a sandbox with isolated jobs (Slurm 22.05.8, cgroup v1)."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING
from judged import figures, judged

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.isolation import checks
from pytest_gpucluster.suites.isolation.exemptions import Exemptions
from pytest_gpucluster.suites.isolation.logins import Login
from pytest_gpucluster.suites.isolation.pam import PamFacts
from pytest_gpucluster.suites.isolation.steps import MemoryStep, PtyResult, StepPair

NODE, MIB = "gpu01", 2**20
ALL = Exemptions()
INFO = NodeInfo(NODE, "ALLOCATED", gres={"gpu:h200": 4})
SHM = {"error": "", "own": "41:1", "node": "", "root": "/", "age": 4.0, "uptime": 9e5}
TMP = {**SHM, "own": "65024:1672133", "root": "/scratch/gpu01/6/.6"}
ADOPTING = PamFacts(
    readable=True,
    adopts="pam_slurm_adopt.so",
    module="/lib64/security/pam_slurm_adopt.so",
    systemd="",
    use_pam="yes",
    logind="active",
)


def opened(*numbers: int, **others: int) -> dict[str, Any]:
    """Return the device files of 4 GPUs, of which these can be opened."""
    files = {f"/dev/nvidia{number}": 0 if number in numbers else errno.EPERM for number in range(4)}
    return {"devices": {"files": files | {f"/dev/{name}": error for name, error in others.items()}}}


def reach(*cpus: int, cores: int) -> dict[str, Any]:
    return {"cpus": {"bound": cpus[:1], "reach": cpus, "cores": cores}}


def step(found: dict[str, dict[str, Any]] | None, **ended: Any) -> PayloadResult:
    lines = tuple(
        {"isolation": kind, "rank": 0, "node": NODE, **fact} for kind, fact in (found or {}).items()
    )
    task = PayloadTask(0, NODE, ended.pop("task_rc", 0), ended.pop("signal", None), lines)
    return PayloadResult("isolation", (NODE,), 1, (task,) if found is not None else (), **ended)


def step_pair(
    first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **changes: Any
) -> StepPair:
    """Return a healthy pair of steps with these facts instead."""
    both: dict[str, Any] = {"folders": {"found": {"/tmp": TMP, "/dev/shm": SHM}}, "met": {"met": True}}
    steps = {
        "first": step({**reach(0, cores=1), **opened(0), **both, **(first or {})}),
        "second": step({**reach(1, cores=1), **opened(1), **both, **(second or {})}),
    }
    return replace(StepPair(steps, {"first": 1, "second": 1}, job=6, job_age=5.0), **changes)


SILENT = step_pair()
SILENT = replace(SILENT, steps={**SILENT.steps, "second": step(None, problem="srun: cancelled")})
BOTH = "CPUs of two steps"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (step_pair(), (PASSED, [])),
        (
            step_pair(reach(0, 1, cores=2), reach(0, 1, cores=2)),
            (CONFIGURE, ["first step", "second step", BOTH]),
        ),
        # both threads of a core
        (step_pair(reach(3, 67, cores=1), reach(4, 68, cores=1)), (PASSED, [])),
        (step_pair(reach(0, cores=1), reach(0, cores=1)), (CONFIGURE, [BOTH])),
        # they did not run at the same time
        (step_pair(second=reach(0, cores=1) | {"met": {"met": False}}), (NOT_CHECKED, [])),
        (step_pair(reach(0, 2, cores=0)), (NOT_CHECKED, [])),
        (SILENT, (NOT_CHECKED, [])),
        (None, (NOT_CHECKED, [])),
    ],
)
def test_a_step_has_one_core_of_its_own(found: StepPair | None, expected: object) -> None:
    assert judged(checks.cpus(NODE, ALL, found)) == expected


def test_a_step_that_reported_nothing_is_named() -> None:
    assert checks.cpus(NODE, ALL, SILENT).reason == "second step: srun: cancelled"


def test_what_is_exempt_is_not_applicable_for_the_reason_of_the_exemption() -> None:
    exempt = Exemptions(cpus="a", devices="b", memory="c", tmp="d")
    verdicts = [
        checks.cpus(NODE, exempt, None),
        checks.devices(NODE, exempt, None, INFO),
        checks.memory(NODE, exempt, None),
        checks.tmp(NODE, exempt, None),
        checks.pam_slurm_adopt(replace(ADOPTING, adopts=""), "e", ""),
        checks.login("f", "", False, None, None),
    ]
    assert [(judged(it)[0], it.reason) for it in verdicts] == [(NOT_APPLICABLE, one) for one in "abcdef"]


FIRST, SECOND, TWO = "device files of the first step", "device files of the second step", "GPUs of two steps"
REFUSED_BY_MODE = {"devices": {"files": dict.fromkeys(("/dev/nvidia0", "/dev/nvidia1"), errno.EACCES)}}
NONE: dict[str, Any] = {"devices": {"files": {}}}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (opened(0), opened(1), (PASSED, [])),
        (opened(0, 1, 2, 3), opened(0, 1, 2, 3), (CONFIGURE, [FIRST, SECOND, TWO])),
        # the cgroup permits it, and the driver has no GPU
        (opened(nvidia0=errno.ENXIO), opened(1), (PASSED, [])),
        (opened(0, nvidia1=errno.EACCES), opened(1), (PASSED, [])),
        (opened(), opened(1), (CONFIGURE, [FIRST])),
        (opened(0), opened(0), (CONFIGURE, [TWO])),
        # a fifth GPU, for the display: gres.conf has four
        (opened(0, nvidia4=0), opened(1, nvidia4=0), (WARNING, ["/dev/nvidia4"])),
        (opened(0, 1, nvidia4=0), opened(0, 1, nvidia4=0), (CONFIGURE, [FIRST, SECOND, TWO])),
        (NONE, NONE, (NOT_CHECKED, [])),
        (REFUSED_BY_MODE, REFUSED_BY_MODE, (NOT_CHECKED, [])),
    ],
)
def test_a_step_opens_its_own_gpus_only(first: Any, second: Any, expected: object) -> None:
    assert judged(checks.devices(NODE, ALL, step_pair(first, second), INFO)) == expected


def test_how_many_device_files_can_be_opened() -> None:
    one, two = checks.devices(NODE, ALL, step_pair(opened(0, 2), opened()), INFO).findings
    assert (figures(one.measured)[0], figures(two.measured), figures(two.expected)) == (2, [0], [1])


def test_nodes_without_gpus_or_with_mig_are_not_applicable() -> None:
    for info in (None, replace(INFO, gres={}), replace(INFO, gres={"gpu:1g.10gb": 7})):
        assert judged(checks.devices(NODE, ALL, step_pair(), info))[0] == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, PASSED),
        ({"root": None}, CONFIGURE),  # nothing is mounted there
        ({"node": TMP["own"]}, CONFIGURE),  # the first process of the node has the same
        ({"root": "/private", "node": "65024:2"}, PASSED),  # young, and another than that of the node
        ({"root": "/systemd-private-0a1b-slurmd.service-x/tmp", "node": "65024:2"}, CONFIGURE),  # PrivateTmp=
        ({"root": "/", "age": 65.0}, PASSED),
        ({"root": "/", "age": 66.0}, CONFIGURE),  # older than the job
        ({"root": "/", "age": -1.0}, NOT_CHECKED),  # no kernel support
        ({"root": "/", "uptime": 125.0}, NOT_CHECKED),  # the node is as young as the job
        ({"root": "/", "age": -1.0, "node": "41:2"}, PASSED),
        ({"root": "/scratch/66/.66", "age": -1.0}, NOT_CHECKED),  # of another job
        ({"error": "[Errno 2] No such file or directory: '/tmp'"}, NOT_CHECKED),
    ],
)
def test_who_has_a_folder(change: dict[str, Any], expected: str) -> None:
    verdict = checks.tmp(NODE, ALL, step_pair({"folders": {"found": {"/tmp": TMP | change}}}))
    assert judged(verdict) == (expected, ["/tmp"] if expected == CONFIGURE else [])


def test_a_folder_of_a_job_of_unknown_age_or_without_a_report_is_not_checked() -> None:
    assert checks.tmp(NODE, ALL, step_pair(job_age=None)).reason.startswith("/dev/shm: ")
    unreported = step_pair(steps=dict.fromkeys(("first", "second"), step(None, problem="srun: cancelled")))
    assert judged(checks.tmp(NODE, ALL, unreported)) == (NOT_CHECKED, [])


def memory_step(found: dict[str, dict[str, Any]], **changes: Any) -> MemoryStep:
    ended = {key: changes.pop(key) for key in ("signal", "task_rc") if key in changes}
    given = {"limit": 256 * MIB, "most": 256 * MIB, "reported": True, **changes}
    return MemoryStep(step(found, **ended), **given)


def held(resident: int, swapped: int) -> dict[str, Any]:
    return BELOW | {"held": {"resident": resident * MIB, "swapped": swapped * MIB, "taken": 512 * MIB}}


BELOW = {"below": {"bytes": 64 * MIB}}
TASK = "task with --mem=256M"
DRAINING = {NODE: 'DRAINING: "Kill task failed" by root since 2026-11-23T15:00:00'}


@pytest.mark.parametrize(
    ("found", "expected", "shown"),
    [
        (memory_step(BELOW, signal=9, task_rc=137), (PASSED, []), []),
        (memory_step(BELOW, signal=9, task_rc=137, reported=False), (WARNING, [TASK]), []),
        (memory_step(held(526, 0)), (CONFIGURE, [TASK]), [526]),
        (memory_step(held(256, 270)), (WARNING, [TASK]), [270]),  # in swap
        (memory_step(BELOW, signal=9, states=DRAINING), (CONFIGURE, ["node"]), None),
        (memory_step({}, signal=9), (CONFIGURE, [TASK]), [256]),  # ended far below its limit
        # without a report of Slurm anything may have ended it
        (memory_step({}, signal=9, reported=False), (NOT_CHECKED, []), None),
        (memory_step({"refused": {"reason": "vm.panic_on_oom is 1"}}), (NOT_CHECKED, []), None),
        (memory_step(BELOW, task_rc=1), (NOT_CHECKED, []), None),
        (None, (NOT_CHECKED, []), None),
    ],
)
def test_a_task_lives_below_its_limit_and_ends_above_it(
    found: MemoryStep | None, expected: object, shown: list[float] | None
) -> None:
    verdict = checks.memory(NODE, ALL, found)
    assert judged(verdict) == expected
    for one in verdict.findings or verdict.advisories:
        assert shown is None or figures(one.measured) == shown


@pytest.mark.parametrize(
    ("change", "flags", "expected"),
    [
        ({}, "Alloc,Contain", (PASSED, [])),
        ({"adopts": "", "module": ""}, "contain", (CONFIGURE, ["account stack of sshd"])),
        ({"module": ""}, "Contain", (CONFIGURE, ["pam_slurm_adopt.so"])),
        ({"use_pam": "no"}, "Contain", (CONFIGURE, ["UsePAM of sshd"])),
        ({"use_pam": ""}, "Contain", (PASSED, [])),  # unknown
        ({"readable": False, "adopts": ""}, "Contain", (NOT_CHECKED, [])),
        ({}, "", (CONFIGURE, ["PrologFlags of slurm.conf"])),
        ({}, "Alloc,ContainX", (CONFIGURE, ["PrologFlags of slurm.conf"])),
        ({"systemd": "sshd"}, "Contain", (WARNING, ["pam_systemd.so in /etc/pam.d/sshd"])),
        ({"systemd": "sshd", "logind": "inactive"}, "Contain", (PASSED, [])),
    ],
)
def test_the_stack_of_sshd_adopts_logins(change: dict[str, Any], flags: str, expected: object) -> None:
    assert judged(checks.pam_slurm_adopt(replace(ADOPTING, **change), "", flags)) == expected


REFUSED = Login(refusal="you have no active jobs on this node")
ADOPTED = Login(1000, 7, "/slurm/uid_1000/job_7/step_extern")
SHELL = Login(1000, None, "/user.slice/user-1000.slice/session-3.scope")
BROKEN = Login(problem="ssh: Host key verification failed. (exit 255)")


@pytest.mark.parametrize(
    ("before", "with_job", "subject", "expected"),
    [
        (REFUSED, ADOPTED, True, (PASSED, [])),
        (SHELL, ADOPTED, True, (CONFIGURE, ["login without a job"])),
        (REFUSED, REFUSED, True, (CONFIGURE, ["login with a job"])),
        (REFUSED, SHELL, True, (CONFIGURE, ["login with a job"])),
        # a healthy node must not fail: users whom PAM exempts, users with jobs, ssh that does not work
        (SHELL, SHELL, False, (NOT_CHECKED, [])),
        (ADOPTED, ADOPTED, True, (NOT_CHECKED, [])),
        (BROKEN, ADOPTED, True, (NOT_CHECKED, [])),
        (REFUSED, BROKEN, True, (NOT_CHECKED, [])),
        (None, ADOPTED, False, (NOT_CHECKED, [])),
        (REFUSED, None, True, (NOT_CHECKED, [])),
        (replace(SHELL, uid=0), SHELL, True, (NOT_APPLICABLE, [])),
    ],
)
def test_logins(before: Login | None, with_job: Login | None, subject: bool, expected: object) -> None:
    assert judged(checks.login("", "", subject, before, with_job)) == expected


def test_logins_that_cannot_be_adopted_are_not_checked() -> None:
    verdict = checks.login("", "slurm.conf has no Contain", False, SHELL, SHELL)
    assert (judged(verdict)[0], verdict.reason) == (NOT_CHECKED, "slurm.conf has no Contain")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (PtyResult("gpu01", 23, "33 101"), (PASSED, [])),
        (PtyResult("gpu01", 0, "33 101"), (CONFIGURE, [NODE])),
        (PtyResult("gpu01", 23, "24 80"), (CONFIGURE, [NODE])),
        (PtyResult("gpu01", 23, ""), (CONFIGURE, [NODE])),
        (PtyResult("gpu01", 23, None, "srun: error: task 0 launch failed"), (CONFIGURE, [NODE])),
        (PtyResult("gpu01", 124, "33 101"), (CONFIGURE, [NODE])),
        (PtyResult("gpu01", problem="script: command not found"), (NOT_CHECKED, [])),
    ],
)
def test_terminals(result: PtyResult, expected: object) -> None:
    assert judged(checks.pty([PtyResult("gpu09", 23, "33 101"), result])) == expected
