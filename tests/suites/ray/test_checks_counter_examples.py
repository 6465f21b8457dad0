"""Healthy Ray clusters that look broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from typing import Any

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

NODES = ("gpu01", "gpu02")
START = "https://docs.ray.io/en/latest/cluster/cli.html"
SLURM = "https://docs.ray.io/en/latest/cluster/vms/user-guides/community/slurm.html"
OBJECTS = "https://docs.ray.io/en/latest/ray-core/objects.html"
ACTORS = "https://docs.ray.io/en/latest/ray-core/actors.html"


def cluster(requested: tuple[str, ...] = NODES, **changed: Any) -> ClusterFacts:
    """Return a cluster; a value replaces that of the driver's kind, `known` the facts of nodes."""
    known = {node: NodeFacts({"ended": {"ended": True}}) for node in requested} | changed.pop("known", {})
    driver = {
        "nodes": {"alive": {node: {"cpu": 8.0, "gpu": 8.0} for node in NODES}, "seconds": 9.0},
        "tasks": {"ran": {node: node for node in NODES}},
        "actors": {"ran": {node: node for node in NODES}, "counted": {node: [1, 2] for node in NODES}},
        "objects": {
            "sent": dict.fromkeys(NODES, True),
            "fetched": dict.fromkeys(NODES, True),
            "rates": dict.fromkeys(NODES, 900.0),
        },
        **changed,
    }
    return ClusterFacts(dict.fromkeys(requested, Share(8, 8)), "gpu01", known, driver, "2.60.0")


def alive(**nodes: dict[str, float]) -> dict[str, Any]:
    return {"alive": nodes, "seconds": 9.0}


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"ray.{check}", name, source, expected, judged, sick=sick)


FULL = {"cpu": 8.0, "gpu": 8.0}
COUNTER_EXAMPLES = (
    machine("nodes", "all joined", START, PASSED, lambda: checks.nodes(cluster())),
    machine(
        "nodes", "a cluster of one node", START, NOT_APPLICABLE, lambda: checks.nodes(cluster(("gpu01",)))
    ),
    machine(
        "nodes",
        "a worker joined late",
        SLURM,
        PASSED,
        lambda: checks.nodes(cluster(nodes={"alive": dict.fromkeys(NODES, FULL), "seconds": 58.0})),
    ),
    machine(
        "nodes",
        "a worker did not join",
        SLURM,
        MONITOR,
        lambda: checks.nodes(cluster(nodes=alive(gpu01=FULL))),
        sick=True,
    ),
    machine(
        "nodes",
        "a node of another cluster joined",
        SLURM,
        MONITOR,
        lambda: checks.nodes(cluster(nodes=alive(gpu01=FULL, gpu02=FULL, gpu09=FULL))),
        sick=True,
    ),
    machine(
        "nodes",
        "a node lost a GPU",
        START,
        MONITOR,
        lambda: checks.nodes(cluster(nodes=alive(gpu01=FULL, gpu02={"cpu": 8.0, "gpu": 7.0}))),
        sick=True,
    ),
    machine("tasks", "ran where it was bound", START, PASSED, lambda: checks.tasks("gpu02", cluster())),
    machine(
        "tasks",
        "the node is in no cluster",
        SLURM,
        NOT_CHECKED,
        lambda: checks.tasks("gpu02", cluster(nodes=alive(gpu01=FULL))),
    ),
    machine(
        "tasks",
        "ran on another node",
        START,
        MONITOR,
        lambda: checks.tasks("gpu02", cluster(tasks={"ran": {"gpu01": "gpu01", "gpu02": "gpu01"}})),
        sick=True,
    ),
    machine(
        "tasks",
        "did not run",
        START,
        MONITOR,
        lambda: checks.tasks("gpu02", cluster(tasks={"ran": {"gpu01": "gpu01"}})),
        sick=True,
    ),
    machine("actors", "counts once and once more", ACTORS, PASSED, lambda: checks.actors("gpu02", cluster())),
    machine(
        "actors",
        "the release reports no counts",
        ACTORS,
        NOT_CHECKED,
        lambda: checks.actors("gpu02", cluster(actors={"ran": {node: node for node in NODES}})),
    ),
    machine(
        "actors",
        "was restarted between two calls",
        ACTORS,
        MONITOR,
        lambda: checks.actors(
            "gpu02", cluster(actors={"ran": {node: node for node in NODES}, "counted": {"gpu02": [1, 1]}})
        ),
        sick=True,
    ),
    machine(
        "objects",
        "arrive slowly over Ethernet",
        OBJECTS,
        PASSED,
        lambda: checks.objects(
            "gpu02",
            cluster(objects={"sent": {"gpu02": True}, "fetched": {"gpu02": True}, "rates": {"gpu02": 40.0}}),
        ),
    ),
    machine(
        "objects",
        "no rate was measured",
        OBJECTS,
        PASSED,
        lambda: checks.objects(
            "gpu02", cluster(objects={"sent": {"gpu02": True}, "fetched": {"gpu02": True}})
        ),
    ),
    machine(
        "objects",
        "other content",
        OBJECTS,
        MONITOR,
        lambda: checks.objects(
            "gpu02", cluster(objects={"sent": {"gpu02": False}, "fetched": {"gpu02": True}})
        ),
        sick=True,
    ),
    machine(
        "objects",
        "nothing arrived at the head",
        OBJECTS,
        MONITOR,
        lambda: checks.objects("gpu02", cluster(objects={"sent": {"gpu02": True}, "fetched": {}})),
        sick=True,
    ),
    machine("left", "nothing", SLURM, PASSED, lambda: checks.left("")),
    machine("left", "the node did not answer", SLURM, NOT_CHECKED, lambda: checks.left(None)),
    machine(
        "left",
        "a raylet outlived its step",
        SLURM,
        MONITOR,
        lambda: checks.left("process 4711 /opt/ray/raylet --raylet_socket_name=..."),
        sick=True,
    ),
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_clusters_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
