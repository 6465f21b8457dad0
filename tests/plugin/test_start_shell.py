"""The one warning of a run about the shell that runs pytest."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_gpucluster.config.models import Cluster, EnvironmentConfig, Group, Profile, TransportConfig
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.plugin.start import folded, inherited_limits, own_limits, shell_warning

PLAIN = {
    "HOME": "/root",
    "PATH": "/bin",
    "LANG": "C",
    "VIRTUAL_ENV": "/v",
    "SLURM_CONF": "/x",
    "TERM": "xterm",
}
MINE = {
    "RANK": "0",
    "http_proxy": "http://me:secret@proxy",
    "NCCL_DEBUG": "INFO",
    "PYTHONPATH": "/x",
    "ROCR_VISIBLE_DEVICES": "0",
    **{f"SLURM_{name}": "1" for name in ("JOB_ID", "NTASKS", "NNODES", "PROCID")},
}


def cluster(**keys: Any) -> Cluster:
    profile = Profile(name="p", description="p", source="p")
    return Cluster(name="c", groups=(Group(nodes="n1", profile=profile),), **keys)


def test_a_plain_shell_is_no_warning() -> None:
    assert shell_warning(cluster(), {}, PLAIN, own_limits()) == {}


def test_variables_that_matter_are_named_without_their_values() -> None:
    found = shell_warning(cluster(), {}, {**PLAIN, **MINE}, {})
    assert found["variables"] == sorted(MINE)
    assert found["action"] == "configure"
    assert "NCCL_DEBUG, PYTHONPATH, RANK, ROCR_VISIBLE_DEVICES, SLURM_* (4), http_proxy" in found["text"]
    assert "secret" not in found["text"]


def test_variables_that_the_cluster_file_passes_are_no_warning() -> None:
    named = cluster(environments={"x": EnvironmentConfig(pass_env=("RANK", "http_*"))})
    assert shell_warning(named, {}, {"RANK": "1", "http_proxy": "x", "NCCL_A": "1"}, {})["variables"] == [
        "NCCL_A"
    ]


def test_over_ssh_this_shell_gives_nothing_to_jobs() -> None:
    far = cluster(transport=TransportConfig(kind="ssh", host="login"))
    assert shell_warning(far, {}, MINE, {}) == {} == shell_warning(cluster(access="ssh"), {}, MINE, {})


@pytest.mark.parametrize(
    ("config", "inherited"),
    [
        ({}, True),
        ({"PropagateResourceLimits": "ALL", "PropagateResourceLimitsExcept": "(null)"}, True),
        ({"PropagateResourceLimits": "NONE"}, False),
        ({"PropagateResourceLimits": "MEMLOCK,NOFILE"}, True),
        ({"PropagateResourceLimits": "MEMLOCK"}, False),
        ({"PropagateResourceLimits": "(null)", "PropagateResourceLimitsExcept": "NOFILE"}, False),
        ({"PropagateResourceLimits": "(null)", "PropagateResourceLimitsExcept": "MEMLOCK"}, True),
    ],
)
def test_limits_that_jobs_inherit_are_those_of_slurm_conf(config: dict[str, str], inherited: bool) -> None:
    assert ("nofile" in inherited_limits(config)) is inherited
    wanting = cluster().model_copy(update={"os": OsConfig(limits={"nofile": "4096"})})
    found = shell_warning(wanting, config, PLAIN, {"nofile": 1024.0, "memlock": math.inf})
    assert ("nofile 1024 (os.limits: 4096)" in found.get("text", "")) is inherited
    assert shell_warning(wanting, config, PLAIN, {"nofile": 4096.0}) == {}


def test_few_variables_of_one_prefix_are_named() -> None:
    assert folded(["NCCL_A", "NCCL_B", "NCCL_C"]) == ["NCCL_A", "NCCL_B", "NCCL_C"]
    assert folded(["NCCL_A", "NCCL_B", "NCCL_C", "NCCL_D"]) == ["NCCL_* (4)"]
