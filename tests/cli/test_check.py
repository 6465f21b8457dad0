"""`gpucluster check`: every error of a cluster file, or a summary."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster import config
from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli.main import main
from pytest_gpucluster.cluster.calling_shell import unpassed
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in unpassed(config.load_cluster("local"), os.environ):
        monkeypatch.delenv(name)
    folder = tmp_path / "clusters"
    folder.mkdir()
    return folder


def printed(capsys: pytest.CaptureFixture[str], name: str = "lab") -> tuple[int, list[str]]:
    status = cli.main(["check", name])
    out, err = capsys.readouterr()
    assert err == ""
    return status, out.splitlines()


def test_valid_file_is_summarized(
    clusters: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (clusters / "lab.yaml").write_text(
        "slurm: {partition: batch}\nos: {}\nnccl: {mpi: pmix}\n"
        "groups: [{nodes: 'gpu[01-04]', profile: h200-8}, {nodes: cpu1, partition: debug}]\n"
    )
    status, lines = printed(capsys)
    assert status == 0
    assert lines[0] == "clusters/lab.yaml: valid; cluster lab: 5 nodes in 2 groups"
    assert lines[2:] == ["  cpu1: 1 node, profile generic, partition debug", "suites with a section: os, nccl"]
    assert printed(capsys, "clusters/lab.yaml")[0] == 0
    (clusters / "lab.yaml").write_text("nodes: gpu1\n")
    assert printed(capsys)[1][-1] == "suites with a section: none"
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert printed(capsys)[1][-1].startswith("warning: the shell that runs pytest sets NCCL_DEBUG")
    monkeypatch.delenv("NCCL_DEBUG")
    (clusters / "lab.yaml").write_text("nodes: gpu1\nos: {limits: {nofile: unlimited}}\n")
    assert "inherit nofile" in printed(capsys)[1][-1]
    assert printed(capsys, "nowhere")[0] == 4


def test_all_wrong_keys_and_profiles_are_listed(clusters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clusters / "lab.yaml").write_text(
        "os:\n  relese: 3\n  services: many\n"
        "groups:\n  - {nodes: a1, profile: h200-9}\n  - {nodes: a2, profile: {gpu: {count: 1, nam: x}}}\n"
    )
    status, lines = printed(capsys)
    assert status == 4
    assert [line.removeprefix("clusters/lab.yaml:").split(": ")[:2] for line in lines] == [
        ["2", "os.relese"],
        ["3", "os.services"],
        ["5", "groups[0].profile"],
        ["6", "groups[1].profile.gpu.name"],
        ["6", "groups[1].profile.gpu.nam"],
    ]
    with pytest.raises(ConfigError) as caught:
        config.load_cluster("lab")
    assert caught.value.every == tuple(lines)
    assert str(caught.value) == f"{lines[0]} (and 4 more)"


def test_values_that_a_run_refuses_are_listed(clusters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clusters / "lab.yaml").write_text(
        "nodes: 'a[1-2]'\nprofile: {extends: generic, absent: {gpu.cuont: why}}\n"
        "os: {limits: {memlok: 3}}\nmatrix:\n  expected: {srun-mp: why}\n"
        "required: [os.*, gpu.cout, site.own]\nnot_applicable: {os.reles: why}\nsuites: [none]\n"
    )
    status, lines = printed(capsys)
    assert status == 4
    assert [line.removeprefix("clusters/lab.yaml:").split(": ")[:2] for line in lines] == [
        ["3", "os.limits"],
        ["5", "matrix.expected"],
        ["8", "suites[0]"],
        ["6", "required[1]"],
        ["7", "not_applicable.os.reles"],
        ["1", "profile generic"],
    ]


def test_checks_of_the_sites_own_suites_are_known(clusters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clusters / "lab.yaml").write_text("nodes: a1\nrequired: [gpu.site_rule]\nsuites: [own]\n")
    own = clusters / "own" / "gpu" / "test_gpu.py"
    own.parent.mkdir(parents=True)
    own.write_text("def test_site_rule(): pass\n")
    assert printed(capsys)[0] == 0
    own.unlink()
    assert printed(capsys)[0] == 4


# --- waivers

FILE = """\
nodes: gpu[01-04]
waivers:
  - {nodes: gpu03, checks: [gpu.ecc_mode, run.available, nccl.proved, site.mine], reason: r, until: 2999-01-31}
  - {nodes: "gpu[04-05]", checks: [gpu.ecmode, os.drift/kernel, os.drfit/kernel], reason: r, until: 2999-01-31}
"""
OLD = "  - {checks: [gpu.count], reason: r, ticket: OPS-1, until: 2020-02-29}\n"


def test_a_waiver_without_effect_is_a_warning_and_an_expired_one_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prod.yaml"
    path.write_text(FILE)
    assert main(["check", str(path)]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning:")]
    assert warnings == [
        f"warning: {path}:4: waivers[1].nodes: has no effect on gpu05: the cluster has no such node",
        f"warning: {path}:4: 'gpu.ecmode' of a waiver matches no check; the nearest is 'gpu.ecc_mode'",
        f"warning: {path}:4: 'os.drfit/kernel' of a waiver matches no check; the nearest is 'os.drift'",
    ]
    path.write_text(FILE + OLD)
    assert main(["check", str(path)]) == 4
    out = capsys.readouterr().out
    assert f"{path}:5: waivers[2].until: 2020-02-29 expired (OPS-1): repair" in out
