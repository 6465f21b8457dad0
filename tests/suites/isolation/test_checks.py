"""Verdicts on facts that the payloads reported in a sandbox with isolated jobs (Slurm 22.05.8, cgroup v1)."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from kernel_logs import fold

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.check import CHECKS, Action, Outcome, Verdict
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.isolation import checks
from pytest_gpucluster.suites.isolation.exemptions import Exemptions
from pytest_gpucluster.suites.isolation.logins import Login
from pytest_gpucluster.suites.isolation.pam import PamFacts
from pytest_gpucluster.suites.isolation.steps import MemoryStep, PtyResult, StepPair
from pytest_gpucluster.suites.os.checks import kernel_log

NODE, MIB = "gpu01", 2**20
ALL = Exemptions()
INFO = NodeInfo(NODE, "ALLOCATED", gres={"gpu:h200": 4})
TMP = {
    "error": "",
    "own": "65024:1672133",
    "node": "",
    "root": "/scratch/gpu01/6/.6",
    "age": 4.0,
    "uptime": 9e5,
}
SHM = {"error": "", "own": "41:1", "node": "", "root": "/", "age": 4.0, "uptime": 9e5}
ADOPTING = PamFacts(
    readable=True,
    adopts="pam_slurm_adopt.so",
    module="/lib64/security/pam_slurm_adopt.so",
    systemd="",
    use_pam="yes",
    logind="active",
)


def devices(*opened: int) -> dict[str, int]:
    """Return the device files of 4 GPUs, of which these can be opened."""
    return {f"/dev/nvidia{number}": 0 if number in opened else errno.EPERM for number in range(4)}


def facts(reach: list[int], files: dict[str, int], **changes: Any) -> dict[str, dict[str, Any]]:
    return {
        "cpus": {"bound": reach, "reach": reach, "cores": len(reach)},
        "devices": {"files": files},
        "folders": {"found": {"/tmp": TMP, "/dev/shm": SHM}},
        "met": {"met": True},
        **changes,
    }


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
    steps = {
        "first": step(facts([0], devices(0)) | (first or {})),
        "second": step(facts([1], devices(1)) | (second or {})),
    }
    return replace(StepPair(steps, {"first": 1, "second": 1}, job=6, job_age=5.0), **changes)


def measured(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.findings]


def test_isolated_jobs_pass() -> None:
    verdicts = [
        checks.cpus(NODE, ALL, step_pair()),
        checks.devices(NODE, ALL, step_pair(), INFO),
        checks.tmp(NODE, ALL, step_pair()),
        checks.pam_slurm_adopt(ADOPTING, "", "Alloc,Contain"),
    ]
    assert [it.outcome for it in verdicts] == [Outcome.PASSED] * 4
    assert not any(it.advisories for it in verdicts)


def test_no_check_drains() -> None:
    actions = {name: it.action for name, it in CHECKS.items() if name.startswith("isolation.")}
    assert len(actions) == 7
    assert set(actions.values()) == {Action.CONFIGURE}


# -- CPUs


def test_cpus_of_the_whole_node_fail() -> None:
    both = {"cpus": {"bound": [0], "reach": [0, 1], "cores": 2}}
    assert measured(checks.cpus(NODE, ALL, step_pair(both, both))) == [
        "first step: can use CPU 0, 1 of 2 cores", "second step: can use CPU 0, 1 of 2 cores",
        "CPUs of two steps: both can use 0, 1",
    ]  # fmt: skip


def test_both_threads_of_a_core_are_one_core() -> None:
    threads = {"cpus": {"bound": [3], "reach": [3, 67], "cores": 1}}
    others = {"cpus": {"bound": [4], "reach": [4, 68], "cores": 1}}
    assert checks.cpus(NODE, ALL, step_pair(threads, others)).outcome is Outcome.PASSED


def test_two_steps_on_one_cpu_fail_only_if_they_ran_at_the_same_time() -> None:
    same = {"cpus": {"bound": [0], "reach": [0], "cores": 1}}
    assert measured(checks.cpus(NODE, ALL, step_pair(same, same))) == ["CPUs of two steps: both can use 0"]
    apart = step_pair(same, same | {"met": {"met": False}})
    assert checks.cpus(NODE, ALL, apart).reason == checks.APART
    assert checks.cpus(NODE, ALL, apart).outcome is Outcome.NOT_CHECKED


def test_unknown_cores_and_missing_steps_are_not_checked() -> None:
    unknown = step_pair({"cpus": {"bound": [0], "reach": [0, 2], "cores": 0}})
    assert checks.cpus(NODE, ALL, unknown).outcome is Outcome.NOT_CHECKED
    silent = step_pair(steps={"first": step(facts([0], {})), "second": step(None, problem="srun: cancelled")})
    assert checks.cpus(NODE, ALL, silent).reason == "second step: srun: cancelled"
    assert checks.cpus(NODE, ALL, None).reason == checks.NO_STEP


def test_what_is_exempt_is_not_applicable() -> None:
    exempt = Exemptions(cpus="a", devices="b", memory="c", tmp="d")
    verdicts = [
        checks.cpus(NODE, exempt, None), checks.devices(NODE, exempt, None, INFO),
        checks.memory(NODE, exempt, None), checks.tmp(NODE, exempt, None),
        checks.pam_slurm_adopt(replace(ADOPTING, adopts=""), "e", ""),
    ]  # fmt: skip
    assert [it.outcome for it in verdicts] == [Outcome.NOT_APPLICABLE] * 5
    assert [it.reason for it in verdicts] == list("abcde")


# -- devices


def test_all_gpus_of_the_node_fail() -> None:
    every = {"devices": {"files": devices(0, 1, 2, 3)}}
    verdict = checks.devices(NODE, ALL, step_pair(every, every), INFO)
    assert [it.part for it in verdict.findings] == [
        "device files of the first step", "device files of the second step", "GPUs of two steps",
    ]  # fmt: skip
    assert "4 can be opened: /dev/nvidia0" in verdict.findings[0].measured


def test_a_device_without_driver_counts_as_opened() -> None:
    # the cgroup permits it: ENXIO, ENODEV or EIO come from the driver
    for error in (errno.ENXIO, errno.ENODEV, errno.EIO):
        files = devices() | {"/dev/nvidia0": error}
        assert (
            checks.devices(NODE, ALL, step_pair({"devices": {"files": files}}), INFO).outcome
            is Outcome.PASSED
        )


def test_a_step_that_cannot_open_its_gpu_fails() -> None:
    verdict = checks.devices(NODE, ALL, step_pair({"devices": {"files": devices()}}), INFO)
    assert measured(verdict) == ["device files of the first step: 0 can be opened"]


def test_the_same_gpu_in_two_steps_fails() -> None:
    verdict = checks.devices(NODE, ALL, step_pair(second={"devices": {"files": devices(0)}}), INFO)
    assert measured(verdict) == ["GPUs of two steps: both can open /dev/nvidia0"]


def test_a_gpu_that_slurm_does_not_manage_is_a_warning() -> None:
    # a fifth GPU, for the display: gres.conf has four
    first, second = ({"devices": {"files": devices(n) | {"/dev/nvidia4": 0}}} for n in (0, 1))
    verdict = checks.devices(NODE, ALL, step_pair(first, second), INFO)
    assert verdict.outcome is Outcome.PASSED
    assert [it.part for it in verdict.advisories] == ["/dev/nvidia4"]
    both = {"devices": {"files": devices(0, 1) | {"/dev/nvidia4": 0}}}
    assert checks.devices(NODE, ALL, step_pair(both, both), INFO).outcome is Outcome.FAILED


@pytest.mark.parametrize("files", [{}, dict.fromkeys(devices(), errno.EACCES)])
def test_no_device_file_or_no_permission_is_not_checked(files: dict[str, int]) -> None:
    found = step_pair({"devices": {"files": files}}, {"devices": {"files": files}})
    assert checks.devices(NODE, ALL, found, INFO).outcome is Outcome.NOT_CHECKED


def test_nodes_without_gpus_or_with_mig_are_not_applicable() -> None:
    for gres in ({}, {"gpu:1g.10gb": 7}):
        info = replace(INFO, gres=gres)
        assert checks.devices(NODE, ALL, step_pair(), info).outcome is Outcome.NOT_APPLICABLE


# -- temporary folders


@pytest.mark.parametrize(
    ("change", "private"),
    [
        ({}, True),
        ({"root": None}, False),  # nothing is mounted there
        ({"node": TMP["own"]}, False),  # the first process of the node has the same
        ({"root": "/private", "node": "65024:2"}, True),  # young, and another than that of the node
        ({"root": "/systemd-private-0a1b-slurmd.service-x/tmp", "node": "65024:2"}, False),  # PrivateTmp=
        ({"root": "/", "age": 66.0}, False),  # older than the job
        ({"root": "/", "age": -1.0}, None),  # no kernel support
        ({"root": "/", "uptime": 100.0}, None),  # the node is as young as the job
        ({"root": "/", "age": -1.0, "node": "41:2"}, True),
        ({"root": "/scratch/66/.66", "age": -1.0}, None),  # of another job
    ],
)
def test_who_has_a_folder(change: dict[str, Any], private: bool | None) -> None:
    found = step_pair({"folders": {"found": {"/tmp": TMP | change}}})
    verdict = checks.tmp(NODE, ALL, found)
    outcomes = {True: Outcome.PASSED, False: Outcome.FAILED, None: Outcome.NOT_CHECKED}
    assert verdict.outcome is outcomes[private], verdict


def test_a_folder_that_is_missing_or_a_job_of_unknown_age_is_not_checked() -> None:
    gone = {"found": {"/tmp": {"error": "[Errno 2] No such file or directory: '/tmp'"}}}
    assert checks.tmp(NODE, ALL, step_pair({"folders": gone})).outcome is Outcome.NOT_CHECKED
    assert checks.tmp(NODE, ALL, step_pair(job_age=None)).reason.startswith("/dev/shm: only root")


# -- memory


def memory_step(found: dict[str, dict[str, Any]], **changes: Any) -> MemoryStep:
    ended = {key: changes.pop(key) for key in ("signal", "task_rc") if key in changes}
    given = {"limit": 256 * MIB, "most": 256 * MIB, "reported": True, **changes}
    return MemoryStep(step(found, **ended), **given)


BELOW = {"below": {"bytes": 64 * MIB}}


def test_a_task_that_is_ended_above_its_limit_passes() -> None:
    verdict = checks.memory(NODE, ALL, memory_step(BELOW, signal=9, task_rc=137))
    assert (verdict.outcome, verdict.advisories) == (Outcome.PASSED, ())
    silent = checks.memory(NODE, ALL, memory_step(BELOW, signal=9, task_rc=137, reported=False))
    assert silent.outcome is Outcome.PASSED
    assert [it.expected for it in silent.advisories] == ["OUT_OF_MEMORY"]


def test_a_task_that_keeps_twice_its_limit_fails() -> None:
    held = {"held": {"resident": 526 * MIB, "swapped": 0, "taken": 512 * MIB}}
    verdict = checks.memory(NODE, ALL, memory_step(BELOW | held))
    assert measured(verdict) == ["task with --mem=256M: has 526 MiB of memory and was not ended"]


def test_memory_in_swap_is_a_warning() -> None:
    held = {"held": {"resident": 255 * MIB, "swapped": 270 * MIB, "taken": 512 * MIB}}
    verdict = checks.memory(NODE, ALL, memory_step(BELOW | held))
    assert verdict.outcome is Outcome.PASSED
    assert "270 MiB" in verdict.advisories[0].measured


def test_a_node_that_leaves_service_meanwhile_fails() -> None:
    states = {NODE: 'DRAINING: "Kill task failed" by root since 2026-11-23T15:00:00'}
    verdict = checks.memory(NODE, ALL, memory_step(BELOW, signal=9, states=states))
    assert measured(verdict) == [f"node: after the task: {states[NODE]}"]


def test_a_task_that_was_ended_far_below_its_limit() -> None:
    assert checks.memory(NODE, ALL, memory_step({}, signal=9)).outcome is Outcome.FAILED
    # without a report of Slurm anything may have ended it
    assert checks.memory(NODE, ALL, memory_step({}, signal=9, reported=False)).outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize(
    "memory_step",
    [
        memory_step({"refused": {"reason": "vm.panic_on_oom is 1: the kernel might panic"}}),
        memory_step(BELOW, task_rc=1),
        None,
    ],
)
def test_what_proves_nothing_about_memory_is_not_checked(memory_step: MemoryStep | None) -> None:
    assert checks.memory(NODE, ALL, memory_step).outcome is Outcome.NOT_CHECKED


def test_the_kernel_log_of_the_ended_task_fails_no_other_check(tmp_path: Any) -> None:
    # printed by Linux 6.18 when this suite's task exceeded its limit
    cgroup = "/gpucluster-8d37170994f2/slurm_gpu01/uid_0/job_3/step_3"
    log = fold(
        tmp_path,
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_3,mems_allowed=0,oom_memcg={cgroup},"
        f"task_memcg={cgroup}/task_0,task=python3,pid=30743,uid=0",
        "Memory cgroup out of memory: Killed process 30743 (python3) total-vm:148736kB, anon-rss:130268kB, "
        "file-rss:6600kB, shmem-rss:0kB, UID:0 pgtables:324kB oom_score_adj:0",
    )
    assert log.lines == 4
    verdict = kernel_log.kernel_log(log, kernel_log.Stalls())
    assert (verdict.outcome, verdict.advisories) == (Outcome.PASSED, ())


# -- logins


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"adopts": "", "module": ""}, "account stack of sshd"),
        ({"module": ""}, "pam_slurm_adopt.so"),
        ({"use_pam": "no"}, "UsePAM of sshd"),
    ],
)
def test_each_fault_of_pam_is_named(change: dict[str, Any], part: str) -> None:
    verdict = checks.pam_slurm_adopt(replace(ADOPTING, **change), "", "Alloc,Contain")
    assert [it.part for it in verdict.findings] == [part]


def test_prolog_flags_must_contain_jobs() -> None:
    for flags in ("", "Alloc", "Alloc,ContainX"):
        verdict = checks.pam_slurm_adopt(ADOPTING, "", flags)
        assert [it.part for it in verdict.findings] == ["PrologFlags of slurm.conf"], flags


def test_pam_systemd_is_a_warning_while_logind_runs() -> None:
    with_it = replace(ADOPTING, systemd="common-session")
    verdict = checks.pam_slurm_adopt(with_it, "", "Contain")
    assert verdict.outcome is Outcome.PASSED
    assert [it.part for it in verdict.advisories] == ["pam_systemd.so in /etc/pam.d/common-session"]
    assert not checks.pam_slurm_adopt(replace(with_it, logind="inactive"), "", "Contain").advisories


def test_unknown_settings_of_sshd_fail_nothing() -> None:
    assert checks.pam_slurm_adopt(replace(ADOPTING, use_pam=""), "", "contain").outcome is Outcome.PASSED
    unread = replace(ADOPTING, readable=False, adopts="")
    assert checks.pam_slurm_adopt(unread, "", "Contain").outcome is Outcome.NOT_CHECKED


REFUSED = Login(refusal="you have no active jobs on this node")
ADOPTED = Login(1000, 7, "/slurm/uid_1000/job_7/step_extern")
SHELL = Login(1000, None, "/user.slice/user-1000.slice/session-3.scope")
BROKEN = Login(problem="ssh: Host key verification failed. (exit 255)")


@pytest.mark.parametrize(
    ("before", "held", "subject", "outcome", "text"),
    [
        (REFUSED, ADOPTED, True, Outcome.PASSED, ""),
        (SHELL, ADOPTED, True, Outcome.FAILED, "login without a job: a shell"),
        (REFUSED, REFUSED, True, Outcome.FAILED, "login with a job: refused: you have no active jobs on this node"),
        (REFUSED, SHELL, True, Outcome.FAILED, f"login with a job: in cgroup {SHELL.cgroup}"),
        # a healthy node must not fail: users whom PAM exempts, users with jobs, ssh that does not work
        (SHELL, SHELL, False, Outcome.NOT_CHECKED, "most nodes of the group admit this user"),
        (ADOPTED, ADOPTED, True, Outcome.NOT_CHECKED, "before the run job 7 of this user"),
        (BROKEN, ADOPTED, True, Outcome.NOT_CHECKED, "without a job: ssh: Host key"),
        (REFUSED, BROKEN, True, Outcome.NOT_CHECKED, "with a job: ssh: Host key"),
        (None, ADOPTED, False, Outcome.NOT_CHECKED, "no login to the node was tried"),
        (REFUSED, None, True, Outcome.NOT_CHECKED, "no login to the node was tried"),
        (replace(SHELL, uid=0), SHELL, True, Outcome.NOT_APPLICABLE, "admits root"),
    ],
)  # fmt: skip
def test_logins(before: Login | None, held: Login | None, subject: bool, outcome: Outcome, text: str) -> None:
    verdict = checks.login("", "", subject, before, held)
    assert verdict.outcome is outcome
    assert text in (verdict.reason or "".join(measured(verdict)))


def test_logins_that_need_not_or_cannot_be_adopted() -> None:
    assert checks.login("exempt", "", False, None, None).outcome is Outcome.NOT_APPLICABLE
    verdict = checks.login("", "slurm.conf has no Contain", False, None, None)
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_CHECKED, "slurm.conf has no Contain")


# -- terminals


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (PtyResult("gpu01", 23, "33 101"), Outcome.PASSED),
        (PtyResult("gpu01", 0, "33 101"), Outcome.FAILED),
        (PtyResult("gpu01", 23, "24 80"), Outcome.FAILED),
        (PtyResult("gpu01", 23, ""), Outcome.FAILED),
        (PtyResult("gpu01", 0, None, "srun: error: task 0 launch failed"), Outcome.FAILED),
        (PtyResult("gpu01", 124, None), Outcome.FAILED),
        (PtyResult("gpu01", problem="script: command not found"), Outcome.NOT_CHECKED),
    ],
)
def test_terminals(result: PtyResult, outcome: Outcome) -> None:
    verdict = checks.pty([PtyResult("gpu09", 23, "33 101"), result])
    assert verdict.outcome is outcome
    assert all(it.part == "gpu01" for it in verdict.findings)
