"""Queries of `gpucluster init --from-nodes`: which nodes are asked, over which channel, and what is reported."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from cli.test_try_steps import Held

from pytest_gpucluster.cli.node_survey import read_nodes, survey
from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.slurm import client
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config.models import Cluster, Group
from pytest_gpucluster.config.profile_files import load_profile
from pytest_gpucluster.core.errors import AllocationError, ConfigError, GpuClusterError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.survey import Pmi, Survey
from pytest_gpucluster.plugin import controller
from pytest_gpucluster.suites.os import draft
from pytest_gpucluster.suites.storage import draft as storage_draft

if TYPE_CHECKING:
    from collections.abc import Sequence

KNOWN = Survey(Pmi(("pmix",)))


class FakeFleet:
    """Answers with the name of the node; `lost` nodes do not answer."""

    def __init__(self, nodes: Sequence[str], lost: Sequence[str] = ()) -> None:
        self.nodes = nodes
        self.lost = dict.fromkeys(lost, "node lost: power")
        self.closed = False

    def ask(self, command: str, *, timeout: float) -> dict[str, Answer]:
        return {
            node: Answer(node, None, problem="node lost") if node in self.lost else Answer(node, 0, command.encode())
            for node in self.nodes
        }

    def ask_node(self, node: str, command: str, *, timeout: float) -> Answer:
        return self.ask(command, timeout=timeout)[node]

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cluster(**more: Any) -> Cluster:
    generic = load_profile("generic")
    groups = (Group(nodes="gpu[01-03]", profile=generic), Group(nodes="cpu1", profile=generic, partition="cpu"))
    return Cluster(name="lab", groups=groups, **more)


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[AllocationRequest]:
    """The requests to a Slurm whose node gpu03 is down, and in which gpu02 is lost after the allocation."""
    found: list[AllocationRequest] = []
    nodes = {
        name: NodeInfo(name, "DOWN" if name == "gpu03" else "IDLE", gres={"gpu": 8})
        for name in ("gpu01", "gpu02", "gpu03", "cpu1")
    }
    slurm: Any = Slurm(LocalTransport())
    monkeypatch.setattr(slurm, "nodes", lambda: nodes)
    monkeypatch.setattr(slurm, "run", lambda *_: "")

    def request(_slurm: object, wanted: AllocationRequest, **_: object) -> Any:
        found.append(wanted)
        if wanted.partition == "cpu" and wanted.comment == "full":
            raise AllocationError("no nodes within 600 s")
        return contextlib.nullcontext(Held(wanted.nodes))

    monkeypatch.setattr(client, "make_slurm", lambda _cluster: slurm)
    monkeypatch.setattr(Allocation, "request", request)
    monkeypatch.setattr(Fleet, "over_slurm", lambda _slurm, held: FakeFleet(held.nodes, ["gpu02"]))
    return found


def test_nodes_are_queried_in_small_allocations(requested: list[AllocationRequest]) -> None:
    printed: list[str] = []
    found = survey(cluster(slurm={"partition": "batch"}), None, KNOWN, printed.append)
    asked = [(one.nodes, one.partition, one.exclusive, one.gpus_per_node, one.time) for one in requested]
    assert asked == [(("gpu01", "gpu02"), "batch", False, None, 300.0), (("cpu1",), "cpu", False, None, 300.0)]
    assert found.pmi == KNOWN.pmi
    assert found.groups == (("gpu01",), ("cpu1",))
    assert found.in_step
    assert {command: set(answers) for command, answers in found.answers.items()} == {
        probe.command: {"gpu01", "cpu1"} for probe in (*draft.PROBES, *storage_draft.PROBES)
    }
    assert [line.partition(":")[0] for line in printed] == ["gpu03 was not checked", "gpu02 was not queried"]
    found = survey(cluster(slurm={"comment": "full"}), None, KNOWN, printed.append)
    assert found.groups == (("gpu01",),)
    assert "cpu1 was not queried: no nodes within 600 s" in printed


@pytest.mark.usefixtures("requested")
def test_nodes_of_the_option_only() -> None:
    found = survey(cluster(), "gpu01", KNOWN, lambda _: None)
    assert found.groups == (("gpu01",),)
    with pytest.raises(ConfigError, match="--nodes: gpu09 not in cluster lab"):
        survey(cluster(), "gpu09", KNOWN, lambda _: None)
    with pytest.raises(GpuClusterError, match="no node was queried: leave out --from-nodes"):
        survey(cluster(), "gpu03", KNOWN, lambda _: None)


def test_ssh_allocates_nothing(requested: list[AllocationRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = FakeFleet(("gpu01", "gpu03"))
    monkeypatch.setattr(client, "make_slurm", lambda _cluster: None)
    monkeypatch.setattr(controller, "open_over_ssh", lambda _cluster, _nodes: fleet)
    found = survey(cluster(access="ssh"), "gpu[01,03]", KNOWN, lambda _: None)
    assert (found.groups, found.in_step, requested) == ((("gpu01", "gpu03"),), False, [])
    assert fleet.closed


def test_one_idle_node_of_each_group_is_read(requested: list[AllocationRequest]) -> None:
    printed: list[str] = []
    found = read_nodes(cluster(slurm={"partition": "batch"}), KNOWN, printed.append)
    asked = [(one.nodes, one.partition, one.gpus_per_node, one.exclusive, one.time) for one in requested]
    assert asked == [(("gpu01",), "batch", 8, False, 300.0), (("cpu1",), "cpu", 8, False, 300.0)]
    assert all(one.queue_wait <= 30 for one in requested)
    assert set(found.hardware) == {"gpu01", "cpu1"}
    assert (found.unread, printed) == ({}, [])


def test_second_node_is_tried_and_a_silent_group_has_its_reason(requested: list[AllocationRequest]) -> None:
    printed: list[str] = []
    found = read_nodes(cluster(slurm={"comment": "full"}), KNOWN, printed.append, "gpu[02-03],cpu1")
    assert [one.nodes for one in requested] == [("gpu02",), ("cpu1",)]  # gpu03 is down
    assert found.hardware == {}
    assert found.unread == {"gpu01": "node lost", "cpu1": "no nodes within 600 s"}
    assert printed == ["gpu[01-03] was not read: node lost", "cpu1 was not read: no nodes within 600 s"]
    found = read_nodes(cluster(), KNOWN, printed.append, "gpu03")
    assert found.hardware == {}
    assert found.unread["gpu01"].startswith("no node of it is idle (gpu03: ")
    assert len(printed) == 3


def test_a_node_is_read_over_ssh(requested: list[AllocationRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, ...]] = []

    def over_ssh(_cluster: Cluster, nodes: tuple[str, ...]) -> FakeFleet:
        opened.append(nodes)
        return FakeFleet(nodes, ["gpu01"])

    monkeypatch.setattr(client, "make_slurm", lambda _cluster: None)
    monkeypatch.setattr(controller, "open_over_ssh", over_ssh)
    found = read_nodes(cluster(access="ssh"), KNOWN, lambda _: None)
    assert opened == [("gpu01",), ("gpu02",), ("cpu1",)]
    assert (set(found.hardware), requested) == ({"gpu02", "cpu1"}, [])
