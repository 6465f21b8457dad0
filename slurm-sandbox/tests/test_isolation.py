"""What a sandbox with isolated jobs requires, and the texts of its configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_sandbox import container_faults, controller_faults, isolation, storage_faults
from slurm_sandbox.api import Sandbox
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.faults import FAULTS
from slurm_sandbox.isolation_faults import ACTIONS, KINDS
from slurm_sandbox.layout import Layout

ELSEWHERE = Path("/var/tmp/sandbox")


@pytest.fixture(autouse=True)
def _able(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that can isolate jobs."""
    for name in isolation.CONTROLLERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    monkeypatch.setattr(isolation, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_why_a_sandbox_cannot_isolate_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isolation.why_not(ELSEWHERE, "plain") == ""
    assert isolation.why_not(ELSEWHERE, "namespaced") == "isolation needs plain nodes"
    assert "/tmp" in isolation.why_not(Path("/tmp/sandbox"), "plain")
    (tmp_path / "devices/cgroup.procs").unlink()
    assert "no controller devices" in isolation.why_not(ELSEWHERE, "plain")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in isolation.why_not(ELSEWHERE, "plain")


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ((22, 5), ("JobContainerType", "job_container/tmpfs")),
        ((25, 5), ("JobContainerType", "job_container/tmpfs")),
        ((25, 11), ("NamespaceType", "namespace/tmpfs")),
    ],
)
def test_jobs_have_a_private_tmp_under_the_name_of_each_version(
    version: tuple[int, int], line: tuple[str, str]
) -> None:
    settings = isolation.slurm_conf(version)
    assert [item for item in settings.items() if item[0] in ("JobContainerType", "NamespaceType")] == [line]


def test_real_gpus_and_more_gpus_than_cpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    sandbox = Sandbox(ELSEWHERE)
    with pytest.raises(SandboxError, match="simulated GPUs"):
        sandbox.up(isolation=True, gpus="real")
    with pytest.raises(SandboxError, match="at most 2 GPUs"):
        sandbox.up(isolation=True, gpus_per_node=3)


def test_configuration() -> None:
    own = isolation.Isolation(Layout(ELSEWHERE))
    assert own.configuration(["gpu01"]) == {
        "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/var/tmp/sandbox/cgroup\nConstrainCores=yes\n"
        "ConstrainDevices=yes\nConstrainRAMSpace=yes\n",
        "job_container.conf": "NodeName=gpu01 AutoBasePath=true BasePath=/var/tmp/sandbox/private/gpu01\n",
    }
    assert "ConstrainCores=no" in own.cgroup_conf(cores=False)
    assert own.cgroup != isolation.Isolation(Layout(ELSEWHERE / "other")).cgroup


def test_cgroups_with_children_are_removed(tmp_path: Path) -> None:
    own = isolation.Isolation(Layout(ELSEWHERE))
    (tmp_path / "memory" / own.cgroup / "slurm_gpu01/uid_0").mkdir(parents=True)
    own.remove()
    assert not (tmp_path / "memory" / own.cgroup).exists()


def test_every_fault_has_its_action_and_is_listed() -> None:
    assert set(KINDS) <= set(FAULTS)
    assert {fault.action for fault in FAULTS.values() if fault.action} == {
        *ACTIONS,
        *controller_faults.ACTIONS,
        *container_faults.ACTIONS,
        *storage_faults.ACTIONS,
    }
