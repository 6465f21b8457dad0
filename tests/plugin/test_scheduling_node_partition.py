"""Lanes: the nodes divided, turns on them, and which worker gets what; pure."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.cluster.channel.node_lock import NodeLocks
from pytest_gpucluster.cluster.plan import make_lanes
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.plugin.scheduling import LaneScheduling, unit_of

NODES = tuple(f"gpu{at:02}" for at in range(1, 8))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
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


def waits(turns: NodeLocks, owner: str, *nodes: str, load: bool) -> bool:
    """Return True where an owner does not get these nodes; it gives up its turn then."""
    thread = threading.Thread(
        target=turns.take, args=(owner, frozenset(nodes)), kwargs={"load": load}, daemon=True
    )
    thread.start()
    thread.join(0.2)
    return thread.is_alive()


def test_readers_share_and_a_load_is_alone() -> None:
    turns = NodeLocks()
    turns.take("a", frozenset({"gpu01"}), load=False)
    assert not waits(turns, "b", "gpu01", "gpu02", load=False)
    assert waits(turns, "c", "gpu01", load=True)
    assert not waits(turns, "d", "gpu03", load=True)
    assert waits(turns, "e", "gpu03", load=False)
    assert turns.loaded_by("a") == frozenset()
    turns.leave("a")
    turns.leave("b")
    while turns.loaded_by("c") != {"gpu01"}:
        pass  # c has waited for both


def test_more_nodes_are_requested_without_holding_any() -> None:
    turns = NodeLocks()
    turns.take("a", frozenset({"gpu01"}), load=True)
    turns.take("b", frozenset({"gpu02"}), load=True)
    both = frozenset({"gpu01", "gpu02"})
    threads = [threading.Thread(target=ask, args=(turns, name, both), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
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
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler(
    places: list[str], workers: list[Worker], dist: str = "load", names: Any = None
) -> LaneScheduling:
    config: Any = SimpleNamespace(
        getvalue={"dist": dist, "tx": ["popen"] * len(workers)}.__getitem__,
        getoption={"maxschedchunk": None}.get,
    )
    made = LaneScheduling(config, SimpleNamespace(loadsched=lambda *_words: None), lambda: places)
    for worker in workers:
        made.add_node(worker)
        made.add_node_collection(worker, names or [f"test_x.py::test_{at}" for at in range(len(places))])
    made.schedule()
    return made


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
