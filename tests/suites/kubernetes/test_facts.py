"""Matching of nodes, taints and DaemonSets."""

from __future__ import annotations

from pytest_gpucluster.suites.kubernetes import facts


def test_node_is_matched_by_name_first_label_and_address() -> None:
    nodes = [
        facts.KubeNode("gpu01"),
        facts.KubeNode("gpu02.x.com"),
        facts.KubeNode("ip-10-0-0-3", addresses=("10.0.0.3",)),
        facts.KubeNode("cpu01"),
    ]
    known = {"gpu01": "gpu01", "gpu02": "gpu02", "10.0.0.3": "gpu03"}
    assert facts.matched(nodes, known) == {"gpu01": "gpu01", "gpu02.x.com": "gpu02", "ip-10-0-0-3": "gpu03"}


def test_daemonset_belongs_on_nodes_that_it_selects_and_tolerates() -> None:
    tolerating = facts.DaemonSet("a", "b", {"gpu": "true"}, tolerations=({"key": "x", "operator": "Exists"},))
    for key, expected in (("x", True), ("y", None)):
        node = facts.KubeNode("n", {"gpu": "true"}, (facts.Taint(key, "", "NoSchedule"),))
        assert tolerating.belongs_on(node) is expected
    assert tolerating.belongs_on(facts.KubeNode("n", {"gpu": "false"})) is False


def test_resources_for_rdma() -> None:
    names = ("rdma/hca", "mellanox.com/shared_hca_rdma", "vpc.amazonaws.com/efa", "nvidia.com/hostdev")
    others = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "cpu", "memory")
    assert tuple(facts.rdma_of(facts.KubeNode("n", capacity=dict.fromkeys((*names, *others), "1")))) == names
