"""What `scontrol show config` states of isolation, as Slurm 22.05.8 (and 25.11.7: NamespaceType) printed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.suites.isolation import settings

SHOWN = {
    "JobContainerType": "job_container/tmpfs",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "TaskPlugin": "task/cgroup,task/affinity",
    "ConstrainCores": "yes",
    "ConstrainDevices": "yes",
    "ConstrainRAMSpace": "yes",
}


def shared(config: dict[str, str], **kinds: bool) -> dict[str, str]:
    """Return what is shared on a cluster whose file requires these kinds of isolation, or excludes them."""
    required = tuple(f"isolation.{kind}" for kind, wanted in kinds.items() if wanted)
    excluded = {f"isolation.{kind}": "why" for kind, wanted in kinds.items() if not wanted}
    file = load_cluster("local").model_copy(update={"required": required, "not_applicable": excluded})
    return settings.shared_resources(config, file)


def test_resources_that_slurm_leaves_to_all_jobs_have_the_setting_as_reason() -> None:
    for change, expected in (
        ({}, set()),
        ({"ConstrainCores": "no"}, {"cpus"}),
        ({"ConstrainDevices": "no"}, {"devices"}),
        ({"ConstrainRAMSpace": "no"}, {"memory"}),
        ({"SelectTypeParameters": "CR_CORE"}, {"memory"}),
        ({"JobContainerType": "(null)"}, {"tmp"}),
        ({"JobContainerType": "(null)", "NamespaceType": "namespace/linux"}, set()),
        ({"TaskPlugin": "task/affinity"}, {"cpus", "devices", "memory"}),
    ):
        found = shared(SHOWN | change)
        assert {kind for kind, reason in found.items() if "=" in reason} == expected
        assert not settings.isolates_nothing(found)
    assert shared(SHOWN | {"ConstrainCores": "no"}, cpus=True, tmp=False) == {}, "the cluster file decides"


def test_nothing_is_proved_where_slurm_isolates_nothing_and_the_cluster_file_does_not_accept_it() -> None:
    bare = {"TaskPlugin": "task/affinity"}
    cases: Any = (({}, NotAvailable), ({"cpus": False}, NotApplicable), ({"tmp": True}, NotApplicable))
    for stated, error in cases:
        with pytest.raises(error):
            settings.require(shared(bare, **stated), "devices")
    settings.require(shared(SHOWN), "devices")


def test_slurm_may_allow_a_task_more_memory_than_its_limit() -> None:
    for shown, share in (("150.0%", 1.5), ("50.0%", 1.0), ("(null)", 1.0)):
        assert settings.allowed_memory({"AllowedRAMSpace": shown}) == share


def test_a_sandbox_alone_has_device_files_and_ssh_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "lab.yaml"
    for text, tree in (("sandbox: true\n", Path("/s")), ("", None)):
        file.write_text(f"nodes: gpu01\nslurm: {{conf: /s/etc/slurm.conf}}\n{text}")
        assert settings.sandbox_tree(load_cluster(file)) == tree
