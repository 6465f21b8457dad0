"""Lanes: the nodes divided, turns on them, which worker gets what, and what is not judged on other hardware; pure."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_helpers import FakeConfig, FakeItem, a_cluster, a_session

from pytest_gpucluster.cluster.channel.channel_server import NodeLocks
from pytest_gpucluster.cluster.plan import make_lanes
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.plugin.scheduling import LaneScheduling, contradicted, unit_of
from pytest_gpucluster.suites.gpu.profile_fit import ProfileMismatch

NODES = tuple(f"gpu{at:02}" for at in range(1, 8))


@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_lanes_are_disjoint_and_hold_every_node(count: int) -> None:
    lanes = make_lanes(NODES, count, {})
    assert [node for lane in lanes for node in lane] == list(NODES)
    sizes = {len(lane) for lane in lanes}
    assert len(lanes) == min(count, len(NODES))
    assert max(sizes) - min(sizes) <= 1
    assert 0 not in sizes


def test_a_leaf_switch_stays_together() -> None:
    leaves = {"gpu01": "b", "gpu02": "a", "gpu03": "b", "gpu04": "a"}
    assert make_lanes(NODES[:4], 2, leaves) == (("gpu01", "gpu03"), ("gpu02", "gpu04"))


class Owner(threading.Thread):
    """One that takes nodes, and notes that it has them."""

    def __init__(self, turns: NodeLocks, name: str, *nodes: str, load: bool) -> None:
        super().__init__(daemon=True)
        self.take = partial(turns.take, name, frozenset(nodes), load=load)
        self.has = threading.Event()
        self.start()

    def run(self) -> None:
        self.take()
        self.has.set()


def test_readers_share_and_a_load_is_alone() -> None:
    turns = NodeLocks()
    turns.take("a", frozenset({"gpu01"}), load=False)
    assert Owner(turns, "b", "gpu01", "gpu02", load=False).has.wait(600)
    waits = Owner(turns, "c", "gpu01", load=True)
    assert Owner(turns, "d", "gpu03", load=True).has.wait(600)
    reader = Owner(turns, "e", "gpu03", load=False)
    turns.leave("a")
    assert turns.loaded_by("a") == frozenset()
    assert not waits.has.is_set()  # b reads
    turns.leave("b")
    assert waits.has.wait(600)
    assert turns.loaded_by("c") == {"gpu01"}
    assert not reader.has.is_set()
    turns.leave("d")
    assert reader.has.wait(600)


def test_more_nodes_are_requested_without_holding_any() -> None:
    turns = NodeLocks()
    turns.take("a", frozenset({"gpu01"}), load=True)
    turns.take("b", frozenset({"gpu02"}), load=True)
    both = frozenset({"gpu01", "gpu02"})
    threads = [threading.Thread(target=ask, args=(turns, name, both), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not any(thread.is_alive() for thread in threads)


def ask(turns: NodeLocks, name: str, nodes: frozenset[str]) -> None:
    turns.take(name, nodes, load=True)
    turns.leave(name)


def test_the_end_of_the_run_ends_the_wait() -> None:
    turns = NodeLocks()
    turns.take("a", frozenset({"gpu01"}), load=True)
    turns.close()
    with pytest.raises(TransportError, match="the run ends"):
        turns.take("b", frozenset({"gpu01"}), load=True)


class Worker:
    """An xdist worker, as a scheduler sees it: it keeps what it is sent."""

    def __init__(self, name: str) -> None:
        self.gateway, self.id = self, name
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Silent:
    def loadsched(self, *_words: object) -> None: ...


def scheduler(places: list[str], workers: list[Worker], dist: str = "load", names: Any = None) -> LaneScheduling:
    config: Any = FakeConfig()
    config.getvalue = {"dist": dist, "tx": ["popen"] * len(workers)}.__getitem__
    made = LaneScheduling(config, Silent(), lambda: places)
    for worker in workers:
        made.add_node(worker)
        made.add_node_collection(worker, names or [f"test_x.py::test_{at}" for at in range(len(places))])
    made.schedule()
    return made


def test_workers_that_collected_other_items_run_none() -> None:
    config: Any = FakeConfig()
    config.getvalue = {"dist": "load", "tx": ["popen"] * 2}.__getitem__
    reports: list[pytest.CollectReport] = []
    config.hook = SimpleNamespace(pytest_collectreport=lambda report: reports.append(report))
    made, workers = LaneScheduling(config, Silent(), lambda: None), [Worker("gw0"), Worker("gw1")]
    for worker, names in zip(workers, ("ab", "ac"), strict=True):
        made.add_node(worker)
        made.add_node_collection(worker, list(names))
    made.schedule()
    assert [(report.nodeid, report.outcome) for report in reports] == [("gw1", "failed")]
    assert [worker.sent for worker in workers] == [[], []]


def run_all(made: LaneScheduling) -> dict[str, list[int]]:
    """Let every worker run what it has, in turns, until nothing is left: worker -> its items, in order."""
    ran: dict[str, list[int]] = {worker.gateway.id: [] for worker in made.nodes}
    while made.has_pending:
        for worker in made.nodes:
            pending = made.node2pending[worker]
            assert len(pending) != 1 or worker.shutting_down, "it would wait for a next item"
            for index in pending[:1]:
                ran[worker.gateway.id].append(index)
                made.mark_test_complete(worker, index)
    assert made.tests_finished
    return ran


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_item_runs_once_and_loads_run_with_their_owner(count: int) -> None:
    places = ["", "0", "all", "1", ""] * 20
    places = [place if place != "1" or count > 1 else "0" for place in places]
    ran = run_all(scheduler(places, [Worker(f"gw{at}") for at in range(count)]))
    assert sorted(index for items in ran.values() for index in items) == list(range(100))
    for lane in ("0", "1", "all"):
        owners = [name for name, items in ran.items() if any(places[index] == lane for index in items)]
        assert len(owners) <= 1
    for items in ran.values():
        lanes = [places[index] for index in items]
        assert lanes == sorted(lanes, key=["", "0", "1", "all"].index), "facts, then lanes, then all nodes"


def test_what_a_dead_worker_had_goes_to_others() -> None:
    workers = [Worker("gw0"), Worker("gw1")]
    places = ["all"] * 6 + ["1"] * 6
    made = scheduler(places, workers)
    made.mark_test_complete(workers[0], 0)
    assert made.remove_node(workers[0]) == "test_x.py::test_1"
    late: Any = Worker("gw2")
    made.add_node(late)
    made.add_node_collection(late, made.collection)
    made.schedule()
    ran = run_all(made)
    assert sorted(index for items in ran.values() for index in items) == [2, 3, 4, 5, *range(6, 12)]


@pytest.mark.parametrize(("dist", "unit"), [("loadfile", "a.py"), ("loadscope", "a.py::C"), ("load", "")])
def test_units_of_dist(dist: str, unit: str) -> None:
    assert unit_of("a.py::C::test_x[gpu01]", dist) == unit
    assert unit_of("a.py::C::test_x[gpu01]@rack", "loadgroup") == "rack"


def test_a_unit_is_not_divided() -> None:
    names = [f"test_{file}.py::test_{at}" for at in range(3) for file in "abcd"]
    ran = run_all(scheduler([""] * 12, [Worker("gw0"), Worker("gw1")], "loadfile", names))
    files = [{names[index].partition("::")[0] for index in items} for items in ran.values()]
    assert files[0] & files[1] == set()
    assert files[0] | files[1] == {f"test_{file}.py" for file in "abcd"}


# --- the profile of a group is of other hardware

OTHER = ProfileMismatch("gpu[01-02]", "dgx-a100", "8 NVIDIA H200", "8 NVIDIA A100", ("h200-8",))
REASON = "the nodes gpu[01-02] have 8 NVIDIA H200, profile dgx-a100 states 8 NVIDIA A100: see run.profile"


def session(found: dict[str, ProfileMismatch]) -> Any:
    made = a_session(a_cluster("gpu[01-02]"))
    made.contradictions = {**found}
    return made


@pytest.mark.parametrize(
    ("node", "facts", "nodes"),
    [
        ("gpu01", {"gpus", "gpu_profile"}, OTHER.nodes),
        ("gpu01", {"profile"}, OTHER.nodes),
        ("gpu01", {"gpus"}, ""),  # judges the GPUs by themselves
        ("", {"profile"}, OTHER.nodes),  # about all nodes
    ],
)
def test_an_item_with_a_profile_of_other_hardware_is_unjudged(node: str, facts: set[str], nodes: str) -> None:
    item: Any = FakeItem(node=node, fixturenames=[f"gpucluster_{name}" for name in facts])
    assert contradicted(item, session({"gpu[01-02]": OTHER})) == nodes
    assert contradicted(item, session({})) == ""
    if node:  # the profile of its own group fits
        assert contradicted(item, session({"old1": OTHER})) == ""
    assert OTHER.reason == REASON
