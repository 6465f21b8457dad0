"""Words of the command line and names of the cluster file that mean nothing end the run before it starts."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import config
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.config.models import Cluster, Group, Profile
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.plugin import text_options
from pytest_gpucluster.plugin.options import check_nodes, refuse_names, refuse_words

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = Profile(name="plain", description="of a test", source="none")
TEXTS = {"--time": "time_limit"}  # {option: its attribute}
NAMES = """
nodes exclude-nodes profile report-dir baseline history burnin-time burnin-resume campaign campaign-time campaign-window
max-nodes-at-once untested-for
"""
TEXTS |= {f"--{name}": name.replace("-", "_") for name in NAMES.split()}


def options(**changes: Any) -> Any:
    return Namespace(**{**dict.fromkeys(TEXTS.values()), **changes})


def refused(option: Any) -> str:
    with pytest.raises(pytest.UsageError) as caught:
        refuse_words(option)
    return str(caught.value)


def test_an_option_without_its_value_is_refused() -> None:
    assert dict(text_options()) == TEXTS
    for name, attribute in TEXTS.items():
        assert refused(options(**{attribute: ""})).startswith(f"{name}: has no value")


@pytest.mark.parametrize("word", ["numprocesses", "maxprocesses"])
def test_less_than_no_process_and_every_test_in_every_worker_are_refused(word: str) -> None:
    for fine in ({}, {"nodes": "gpu01", word: 0, "dist": "load"}, {"numprocesses": "auto"}, {word: 3}):
        refuse_words(options(**fine))
    assert "-1: must be a number of processes from 0 on" in refused(options(**{word: -1}))
    assert refused(options(dist="each")).startswith("--dist=each: ")


def cluster(*nodes: str, **more: Any) -> Cluster:
    return Cluster(name="lab", groups=tuple(Group(nodes=one, profile=PLAIN) for one in nodes), **more)


def inventory(nodes: str) -> dict[str, NodeInfo]:
    return {name: NodeInfo(name, "IDLE") for name in hostlist.expand(nodes)}


def test_a_file_whose_nodes_slurm_does_not_know_is_refused() -> None:
    lab = cluster("gpu[01-02]", "old1")
    for known, has in (("node[1-9]", r"node\[1-9\]"), ("", "none that this user sees")):
        nodes = inventory(known)
        with pytest.raises(ConfigError, match=rf"Slurm knows no node of gpu\[01-02\],old1; it has {has}: "):
            check_nodes(lab, nodes)
    check_nodes(lab, {"old1": NodeInfo("old1", "IDLE")})


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"matrix": {"expected": {"srun-mpi": "why", "srun_mpi": "why"}}}, "did you mean 'srun-mpi'"),
        ({"matrix": {"expected": {"zz": "why"}}}, "the cells are mpirun-cpu, mpirun-gpu, "),
        (
            {"os": {"limits": {"nofile": "1024", "memlok": "unlimited"}}},
            r"os\.limits: unknown limit 'memlok'",
        ),
        ({"nccl": {"command": "all_reduce_perf -f 1"}}, "-f must be a number"),
    ],
)
def test_a_name_that_means_nothing_is_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        refuse_names(cluster("gpu01", **section))
    expected, limits = {"srun_pyxis-nccl": "why"}, {"memlock": "unlimited", "nofile": "1024"}  # these exist
    refuse_names(cluster("gpu01", nccl={"command": "all_reduce_perf -b 8 -e 8"}, matrix={}))
    refuse_names(cluster("gpu01", os={"limits": limits}, matrix={"expected": expected}))


WITHOUT_EFFECT = {
    "transport: {port: 22, user: me}": "transport.port: has no effect without 'host' (and 1 more)",
    "min_nodes: 3": "min_nodes: asks for 3 nodes; the cluster has 2",
    "nccl: {environment: pt}": "nccl.environment: no environment is called 'pt'; did you mean 'ptx'?",
    "matrix: {framework: ptxx}": "matrix.framework: no environment is called 'ptxx'; did you mean 'ptx'?",
    **{
        f"{section}: {{nodes: 3, environment: ptx}}": f"{section}.nodes: asks for 3 nodes; the cluster has 2"
        for section in ("container", "ray")
    },
}


@pytest.mark.parametrize("text", WITHOUT_EFFECT)
def test_a_key_without_effect_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(f"groups: [{{nodes: a}}, {{nodes: b}}]\n{text}\nenvironments: {{ptx: {{}}, mpi: {{}}}}\n")
    with pytest.raises(ConfigError) as caught:
        config.load_cluster(path)
    assert str(caught.value).startswith(f"{path}:2: {WITHOUT_EFFECT[text]}")
