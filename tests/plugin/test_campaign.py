"""The options of a campaign, and which groups its suites get."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import FakeConfig

from pytest_gpucluster import suites_path
from pytest_gpucluster.campaign.model import Kind
from pytest_gpucluster.config.loader import load_cluster
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.plugin.campaign import kinds_of, make_rules, selected_nodes, without_campaign

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.config.models import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    path = tmp_path / "prod.yaml"
    path.write_text("name: prod\nprofile: dgx-h100\nnodes: n[1-4]\n")
    return load_cluster(path)


def config(expression: str, path: str = "") -> Any:
    return FakeConfig(Namespace(markexpr=expression, pyargs=False), [path or suites_path()])


def kinds(cluster: Cluster, expression: str, path: str = "") -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds_of(config(expression, path), cluster)}


def test_suites_of_one_node_and_suites_that_need_partners_get_groups_of_their_own(cluster: Cluster) -> None:
    found = kinds(cluster, "gpu or nccl")
    assert list(found) == ["alone", "nccl"]
    alone, pairs = found.values()
    assert (alone.size, alone.partners, alone.suites) == (1, 0, ("gpu",))
    assert alone.expression.startswith("(gpu or nccl) and not (")
    assert " nccl" in alone.expression
    assert (pairs.size, pairs.partners, pairs.suites) == (2, 3, ("nccl",))
    assert pairs.expression == "(gpu or nccl) and (nccl)"


@pytest.mark.parametrize(
    ("expression", "names"),
    [("gpu", ["alone"]), ("nccl", ["nccl"]), ("ray or ddp or nccl", ["ddp-ray", "nccl"]), ("site", ["alone"])],
)
def test_a_campaign_has_only_its_suites_groups(cluster: Cluster, expression: str, names: list[str]) -> None:
    found = kinds(cluster, expression)
    assert [sorted(name.split("-")) for name in found] == [sorted(name.split("-")) for name in names]


def test_the_runs_get_the_command_line_without_the_options_of_the_campaign() -> None:
    own = ["--campaign=x", "--campaign-time", "3d", "--max-nodes-at-once=4", "--untested-for", "7d"]
    kept = ["--cluster=prod", "-m", "gpu", "--drain=apply", "-k", "not slow", "suites"]
    assert without_campaign([*kept[:3], *own, *kept[3:]]) == kept


def option(**changes: Any) -> Any:
    words = "campaign_window campaign_time untested_for nodes exclude_nodes"
    return Namespace(**{**dict.fromkeys(words.split()), "max_nodes_at_once": 8, "report_dir": "reports", **changes})


PAIRS = (Kind("nccl", "nccl", ("nccl",), size=2, partners=3),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_nodes_at_once": 1}, r"--max-nodes-at-once=1: must be at least 2"),
        ({"campaign_window": "22-6"}, r"--campaign-window: '22-6' must be HH:MM-HH:MM"),
        ({"campaign_time": "5"}, r"--campaign-time: '5' has no unit"),
    ],
)
def test_a_wrong_value_is_refused_with_the_option_that_has_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_rules(option(**changes), PAIRS, ())


def test_the_expected_nodes_are_those_of_the_cluster_file_and_the_options(cluster: Cluster) -> None:
    assert selected_nodes(cluster, option()) == ("n1", "n2", "n3", "n4")
    assert selected_nodes(cluster, option(nodes="n[1-3]", exclude_nodes="n2")) == ("n1", "n3")
    assert selected_nodes(cluster, option(), reserved=("n4",)) == ("n4",)
    with pytest.raises(ConfigError, match=r"--nodes: n9 not in cluster prod"):
        selected_nodes(cluster, option(nodes="n9"))
