"""The shipped profiles: what they say, where it is known from, and which one is found for a node."""

from __future__ import annotations

import doctest
import re

import jsonschema
import pytest
import yaml

from pytest_gpucluster import config
from pytest_gpucluster.config import init_template, json_schema, profile_files
from pytest_gpucluster.core.errors import ConfigError

ALL = config.profile_names()
VALIDATOR = jsonschema.Draft202012Validator(json_schema.schema("profile"))
SIMULATED = [f"sandbox-{model}" for model in ("a100", "gb200", "h100", "h200", "t4", "v100")]


@pytest.mark.parametrize("name", ALL)
def test_a_profile_fits_the_schema_and_states_its_sources_and_what_is_absent(name: str) -> None:
    VALIDATOR.validate(yaml.safe_load((profile_files.PROFILES / f"{name}.yaml").read_text()))
    profile = config.load_profile(name)
    assert profile.name == name
    assert profile.description
    assert profile.source
    for row in profile.nccl:
        assert ("measured" in row.source) != ("minimum" in row.source), row
        assert (row.tolerance == 0) == ("minimum" in row.source), row
    assert ("gpu.count" in profile.required) == bool(profile.gpu)
    assert profile.simulated == (name in SIMULATED)
    for pattern in profile.absent:
        assert re.fullmatch(r"(gpu|fabric|nccl)\.[a-z0-9_*]+", pattern), pattern
    if profile.gpu and not profile.fabric.hcas:
        assert profile.fabric.rate is None
        assert not profile.fabric.peer_memory
        assert any(pattern.startswith("fabric.") for pattern in profile.absent), name


def test_h200_vm_where_a_node_is_dealt_fewer_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = config.load_profile("h200-vm:2").gpu
    assert gpu
    assert (gpu.count, gpu.nvlinks, gpu.nvswitch) == (2, 18, False)
    with pytest.raises(ConfigError, match="8 or 1 or 2 or 4 GPUs per node, not '7'"):
        config.load_profile("h200-vm:7")
    with pytest.raises(ConfigError, match="no GPUs per node, not '2'"):
        config.load_profile("generic:2")
    monkeypatch.setattr(profile_files, "profile_names", lambda: ("sandbox-h200",))
    assert config.match_profile("NVIDIA H200", 8) is None  # a simulated profile never matches


@pytest.mark.parametrize(
    ("gpu", "count", "name"),
    [
        ("NVIDIA H200", 8, "h200-vm"),
        ("NVIDIA H200", 2, "h200-vm:2"),
        ("NVIDIA H200", 7, None),  # a GPU that fell off must not find a profile without it
        ("NVIDIA A100-SXM4-40GB", 8, "dgx-a100-40gb"),
        ("Tesla T4", 4, "aws-g4dn:4"),
        ("NVIDIA GeForce GT 710", 1, None),
    ],
)
def test_match(gpu: str, count: int, name: str | None) -> None:
    assert config.match_profile(gpu, count) == name
    if name:
        found = config.load_profile(name).gpu
        assert found
        assert (found.name, found.count) == (gpu, count)


@pytest.mark.parametrize("module", [profile_files, json_schema, init_template])
def test_examples_of_the_docstrings(module: object) -> None:
    outcome = doctest.testmod(module)  # type: ignore[arg-type]
    assert outcome.attempted
    assert not outcome.failed
