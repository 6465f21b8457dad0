"""Matching of nodes, taints and DaemonSets."""

from __future__ import annotations

import pytest

from pytest_gpucluster.suites.kubernetes.facts import DaemonSet, KubeNode, Taint, matched


def test_node_is_matched_by_name_first_label_and_address() -> None:
    nodes = [
        KubeNode("gpu01"),
        KubeNode("gpu02.example.com"),
        KubeNode("ip-10-0-0-3", addresses=("10.0.0.3",)),
        KubeNode("cpu01"),
    ]
    known = {"gpu01": "gpu01", "gpu02": "gpu02", "10.0.0.3": "gpu03"}
    assert matched(nodes, known) == {"gpu01": "gpu01", "gpu02.example.com": "gpu02", "ip-10-0-0-3": "gpu03"}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu=present", True),
        ("nvidia.com/gpu:NoSchedule", True),
        ("nvidia.com/gpu=present:NoExecute", False),
        ("nvidia.com/gpu=", False),
        ("nvidia.com", False),
    ],
)
def test_taint_is_stated_by_key_value_and_effect(stated: str, expected: bool) -> None:
    assert Taint("nvidia.com/gpu", "present", "NoSchedule").is_stated([stated]) is expected


def test_daemonset_belongs_on_nodes_that_it_selects_and_tolerates() -> None:
    tolerating = DaemonSet("a", "b", {"gpu": "true"}, tolerations=({"key": "x", "operator": "Exists"},))
    assert tolerating.belongs_on(KubeNode("n", {"gpu": "true"}, (Taint("x", "", "NoSchedule"),))) is True
    assert tolerating.belongs_on(KubeNode("n", {"gpu": "true"}, (Taint("y", "", "NoSchedule"),))) is None
    assert tolerating.belongs_on(KubeNode("n", {"gpu": "false"})) is False
