"""The shipped profiles: what they say, where it is known from, and which one is found for a node."""

from __future__ import annotations

import doctest
import re

import jsonschema
import pytest
import yaml

from pytest_gpucluster import config
from pytest_gpucluster.config import json_schema, profile_files
from pytest_gpucluster.core.errors import ConfigError

ALL = config.profile_names()
SIMULATED = [f"sandbox-{model}" for model in ("a100", "gb200", "h100", "h200", "t4", "v100")]
GIB = 2**30


@pytest.mark.parametrize("name", ALL)
def test_a_profile_says_what_it_is_and_where_its_figures_come_from(name: str) -> None:
    profile = config.load_profile(name)
    assert profile.name == name
    assert profile.description
    assert profile.source
    assert all(row.source for row in profile.nccl)
    jsonschema.Draft202012Validator(json_schema.schema("profile")).validate(
        yaml.safe_load((profile_files.PROFILES / f"{name}.yaml").read_text())
    )


@pytest.mark.parametrize("name", ALL)
def test_minima_have_no_tolerance_and_measured_rows_have_one(name: str) -> None:
    for row in config.load_profile(name).nccl:
        assert (row.tolerance == 0) == ("minimum" in row.source), row
        assert ("measured" in row.source) != ("minimum" in row.source), row


@pytest.mark.parametrize("name", ALL)
def test_a_node_without_ports_says_why_and_names_no_rate(name: str) -> None:
    profile = config.load_profile(name)
    if profile.gpu and not profile.fabric.hcas:
        assert profile.fabric.rate is None
        assert not profile.fabric.peer_memory
        assert any(pattern.startswith("fabric.") for pattern in profile.absent), name


@pytest.mark.parametrize(
    ("name", "nodes", "size", "busbw"),
    [
        ("dgx-a100", 4, 4 * GIB, 191.05),
        ("dgx-a100", 4, GIB, 178.69),
        ("azure-nd40rs-v2", 1, 8 * GIB, 110),
        ("azure-nd96asr-v4", 1, 16 * GIB, 228),
        ("azure-nc48ads-a100-v4", 1, 16 * GIB, 193),
        ("azure-nc96ads-a100-v4", 1, 8 * GIB, 25),
        ("azure-nd96isr-h100-v5", 1, 16 * GIB, 460),
        ("azure-nc80adis-h100-v5", 1, 16 * GIB, 208),
        ("azure-nd96isr-h200-v5", 1, 16 * GIB, 431),
        ("h200-8", 1, 16 * GIB, 431),
        ("h200-8-nonvls", 1, 4 * GIB, 365),
        ("h200-vm", 1, GIB, 359),
        ("gcp-a3-high", 2, 8 * GIB, 60),
        ("gcp-a3-mega", 2, 8 * GIB, 150),
        ("gcp-a3-ultra", 2, 8 * GIB, 250),
        ("gcp-a4", 2, 8 * GIB, 250),
        ("gcp-a4x", 2, 8 * GIB, 160),
    ],
)
def test_the_published_figures(name: str, nodes: int, size: int, busbw: float) -> None:
    profile = config.load_profile(name)
    assert profile.gpu
    rows = [
        row.busbw
        for row in profile.nccl
        if (row.nodes, row.size, row.gpus_per_node) == (nodes, size, profile.gpu.count)
    ]
    assert rows == [busbw]


def test_rows_measured_without_multicast_hold_without_multicast() -> None:
    for name in ("h200-vm", "h200-8-nonvls"):
        assert all(row.conditions == {"NCCL_NVLS_ENABLE": "0"} for row in config.load_profile(name).nccl)
    assert not config.load_profile("h200-8").nccl[0].conditions


def test_h200_vm_where_a_node_is_dealt_fewer_gpus() -> None:
    gpu = config.load_profile("h200-vm:2").gpu
    assert gpu
    assert (gpu.count, gpu.nvlinks, gpu.nvswitch) == (2, 18, False)
    with pytest.raises(ConfigError, match="8 or 1 or 2 or 4 GPUs per node, not '7'"):
        config.load_profile("h200-vm:7")
    with pytest.raises(ConfigError, match="no GPUs per node, not '2'"):
        config.load_profile("generic:2")


def test_the_sandbox_is_marked_as_simulated_and_nothing_else_is() -> None:
    assert [name for name in ALL if config.load_profile(name).simulated] == SIMULATED


@pytest.mark.parametrize(
    ("gpu", "count", "hcas", "name"),
    [
        ("NVIDIA H200", 8, None, "h200-vm"),
        ("NVIDIA H200", 8, 8, "h200-8"),
        ("NVIDIA H200", 2, None, "h200-vm:2"),
        ("NVIDIA H200", 7, None, None),  # a GPU that fell off must not find a profile without it
        ("NVIDIA A100-SXM4-80GB", 8, None, "dgx-a100"),
        ("NVIDIA A100-SXM4-40GB", 8, 8, "dgx-a100-40gb"),
        ("NVIDIA H100 80GB HBM3", 8, 8, "dgx-h100"),
        ("Tesla T4", 4, None, "aws-g4dn:4"),
        ("NVIDIA GeForce GT 710", 1, None, None),
    ],
)
def test_match(gpu: str, count: int, hcas: int | None, name: str | None) -> None:
    assert config.match_profile(gpu, count, hcas=hcas) == name
    if name:
        found = config.load_profile(name).gpu
        assert found
        assert (found.name, found.count) == (gpu, count)


def test_what_hardware_with_gpus_must_have_checked() -> None:
    for name in ALL:
        profile = config.load_profile(name)
        assert ("gpu.count" in profile.required) == bool(profile.gpu), name


def test_a_simulated_profile_never_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_files, "profile_names", lambda: ("sandbox-h200",))
    assert config.match_profile("NVIDIA H200", 8) is None


def test_patterns_of_what_is_absent_name_a_suite() -> None:
    for name in ALL:
        for pattern in config.load_profile(name).absent:
            assert re.fullmatch(r"(gpu|fabric|nccl)\.[a-z0-9_*]+", pattern), (name, pattern)


@pytest.mark.parametrize("module", [profile_files, json_schema])
def test_examples_of_the_docstrings(module: object) -> None:
    outcome = doctest.testmod(module)  # type: ignore[arg-type]
    assert outcome.attempted
    assert not outcome.failed
