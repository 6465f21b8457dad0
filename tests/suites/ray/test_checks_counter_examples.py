"""Healthy Ray clusters that look broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    CounterExample,
    assert_as_expected,
    name,
)

from pytest_gpucluster.suites.ray import checks
from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts, Share

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Check

NODES = ("gpu01", "gpu02")
FULL = {"cpu": 8.0, "gpu": 8.0}
START = "https://docs.ray.io/en/latest/cluster/cli.html"
SLURM = "https://docs.ray.io/en/latest/cluster/vms/user-guides/community/slurm.html"
OBJECTS = "https://docs.ray.io/en/latest/ray-core/objects.html"
ACTORS = "https://docs.ray.io/en/latest/ray-core/actors.html"


def cluster(requested: tuple[str, ...] = NODES, **changed: Any) -> ClusterFacts:
    """Return a cluster; a value replaces that of the driver's kind, `known` the facts of nodes."""
    known = {node: NodeFacts({"ended": {"ended": True}}) for node in requested} | changed.pop("known", {})
    ran, yes = {node: node for node in NODES}, dict.fromkeys(NODES, True)
    driver = {
        "nodes": {"alive": dict.fromkeys(NODES, FULL), "seconds": 9.0},
        "tasks": {"ran": ran},
        "actors": {"ran": ran, "counted": {node: [1, 2] for node in NODES}},
        "objects": {"sent": yes, "fetched": yes, "rates": dict.fromkeys(NODES, 900.0)},
        **changed,
    }
    return ClusterFacts(dict.fromkeys(requested, Share(8, 8)), "gpu01", known, driver, "2.60.0")


def alive(**nodes: dict[str, float]) -> dict[str, Any]:
    return {"alive": nodes, "seconds": 9.0}


def machine(
    check: Check[...], words: str, source: str, expected: str, *facts: Any, sick: bool = False
) -> CounterExample:
    return CounterExample(check.name, words, source, expected, lambda: check(*facts), sick)


def objects(sent: object = True, **more: Any) -> ClusterFacts:
    return cluster(objects={"sent": {"gpu02": sent}, "fetched": {"gpu02": True}, **more})


LATE = cluster(nodes={"alive": dict.fromkeys(NODES, FULL), "seconds": 58.0})
STRANGER = cluster(nodes=alive(gpu01=FULL, gpu02=FULL, gpu09=FULL))
LESS = cluster(nodes=alive(gpu01=FULL, gpu02={"cpu": 8.0, "gpu": 7.0}))
ALONE = cluster(nodes=alive(gpu01=FULL))
RAN = {node: node for node in NODES}
ELSEWHERE = cluster(tasks={"ran": {"gpu01": "gpu01", "gpu02": "gpu01"}})
RESTARTED = cluster(actors={"ran": RAN, "counted": {"gpu02": [1, 1]}})
RAYLET = "process 4711 /opt/ray/raylet --raylet_socket_name=..."
nodes, tasks, actors, moved, left = checks.nodes, checks.tasks, checks.actors, checks.objects, checks.left
COUNTER_EXAMPLES = (
    machine(nodes, "all joined", START, PASSED, cluster()),
    machine(nodes, "a cluster of one node", START, NOT_APPLICABLE, cluster(("gpu01",))),
    machine(nodes, "a worker joined late", SLURM, PASSED, LATE),
    machine(nodes, "a worker did not join", SLURM, MONITOR, ALONE, sick=True),
    machine(nodes, "a node of another cluster joined", SLURM, MONITOR, STRANGER, sick=True),
    machine(nodes, "a node lost a GPU", START, MONITOR, LESS, sick=True),
    machine(tasks, "ran where it was bound", START, PASSED, "gpu02", cluster()),
    machine(tasks, "the node is in no cluster", SLURM, NOT_CHECKED, "gpu02", ALONE),
    machine(tasks, "ran on another node", START, MONITOR, "gpu02", ELSEWHERE, sick=True),
    machine(
        tasks, "did not run", START, MONITOR, "gpu02", cluster(tasks={"ran": {"gpu01": "gpu01"}}), sick=True
    ),
    machine(actors, "counts once and once more", ACTORS, PASSED, "gpu02", cluster()),
    machine(
        actors, "the release reports no counts", ACTORS, NOT_CHECKED, "gpu02", cluster(actors={"ran": RAN})
    ),
    machine(actors, "was restarted between two calls", ACTORS, MONITOR, "gpu02", RESTARTED, sick=True),
    machine(moved, "slowly over Ethernet", OBJECTS, PASSED, "gpu02", objects(rates={"gpu02": 40.0})),
    machine(moved, "no rate was measured", OBJECTS, PASSED, "gpu02", objects()),
    machine(moved, "other content", OBJECTS, MONITOR, "gpu02", objects(sent=False), sick=True),
    machine(moved, "nothing came to the head", OBJECTS, MONITOR, "gpu02", objects(fetched={}), sick=True),
    machine(left, "nothing", SLURM, PASSED, ""),
    machine(left, "the node did not answer", SLURM, NOT_CHECKED, None),
    machine(left, "a raylet outlived its step", SLURM, MONITOR, RAYLET, sick=True),
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_clusters_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
