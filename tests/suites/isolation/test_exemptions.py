"""What `scontrol show config` states of isolation, as Slurm 22.05.8 (and 25.11.7: NamespaceType) printed it."""

from __future__ import annotations

import pytest

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.suites.isolation.exemptions import Exemptions, read_exemptions

SHOWN = {
    "JobContainerType": "job_container/tmpfs",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "TaskPlugin": "task/cgroup,task/affinity",
    "AllowedRAMSpace": "100.0%",
    "ConstrainCores": "yes",
    "ConstrainDevices": "yes",
    "ConstrainRAMSpace": "yes",
}


def exempt(config: dict[str, str], **kinds: bool) -> Exemptions:
    """Return the exemptions of a cluster whose file requires these kinds of isolation, or excludes them."""
    required = tuple(f"isolation.{kind}" for kind, wanted in kinds.items() if wanted)
    excluded = {f"isolation.{kind}": "why" for kind, wanted in kinds.items() if not wanted}
    file = load_cluster("local").model_copy(update={"required": required, "not_applicable": excluded})
    return read_exemptions(config, file)


def test_what_slurm_does_not_isolate_is_exempt() -> None:
    for change, exempted in (
        ({}, set()),
        ({"ConstrainCores": "no"}, {"cpus"}),
        ({"ConstrainDevices": "no"}, {"devices"}),
        ({"ConstrainRAMSpace": "no"}, {"memory"}),
        ({"SelectTypeParameters": "CR_CORE"}, {"memory"}),  # --mem is no limit then
        ({"JobContainerType": "(null)"}, {"tmp"}),
        ({"JobContainerType": "(null)", "NamespaceType": "namespace/linux"}, set()),
        ({"TaskPlugin": "task/affinity"}, {"cpus", "devices", "memory"}),
    ):
        found = exempt(SHOWN | change)
        reasons = {kind: getattr(found, kind) for kind in ("cpus", "devices", "memory", "tmp")}
        assert {kind for kind, reason in reasons.items() if "=" in reason} == exempted
        assert (found.any_step, found.nothing) == (True, False)


def test_the_cluster_file_takes_precedence_and_slurm_may_allow_more_memory() -> None:
    found = exempt(SHOWN | {"ConstrainCores": "no"}, cpus=True, tmp=False)
    assert (found.cpus, found.tmp) == ("", "the cluster file has it under not_applicable")
    nothing = exempt(SHOWN, cpus=False, devices=False, tmp=False)
    assert (nothing.any_step, nothing.memory) == (False, "")
    for shown, share in (("150.0%", 1.5), ("50.0%", 1.0), ("(null)", 1.0)):
        assert exempt(SHOWN | {"AllowedRAMSpace": shown}).allowed_memory == share


def test_nothing_is_proved_where_slurm_isolates_nothing_and_the_cluster_file_does_not_accept_it() -> None:
    bare = {"TaskPlugin": "task/affinity"}
    with pytest.raises(NotAvailable):
        exempt(bare).require("cpus")
    for stated in ({"cpus": False}, {"devices": True}):
        assert not exempt(bare, **stated).nothing
    with pytest.raises(NotApplicable):
        exempt({**bare, "JobContainerType": "job_container/tmpfs"}).require("cpus")
