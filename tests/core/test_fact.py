"""Facts of a node, of its peers and of the fleet: what their functions get, and which commands are sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster import SuiteError
from pytest_gpucluster.core import given
from pytest_gpucluster.core.fact import Fact, in_order, of_fleet, of_node, of_peers
from pytest_gpucluster.core.probe import Probe, text_of
from pytest_gpucluster.run.facts import MadeFacts, make

LOAD = Probe("load", "cat /proc/loadavg", text_of)
FOUND = {"n1": "1", "n2": "2", "n3": "3"}
PEERS = {name: SimpleNamespace(nodes=names, names=names.split(",")) for name, names in
         {"n1": "n1,n2", "n2": "n1,n2", "n3": "n3,n4"}.items()}  # fmt: skip


def made(fact: Fact[Any], node: str = "n1", session: Any = None) -> Any:
    nodes = {name: SimpleNamespace(name=name, peers=peers) for name, peers in PEERS.items()}
    session = session or SimpleNamespace(
        made=MadeFacts(), nodes=nodes, cluster=SimpleNamespace(word="w"), facts=SimpleNamespace(of_fleet=lambda _: FOUND)
    )  # fmt: skip
    view: Any = SimpleNamespace(session=session, node=nodes[node], facts=lambda _: FOUND[node])
    return make(in_order([fact]), view, {})[fact]


def test_a_probe_gives_what_it_found_on_the_node_or_on_all() -> None:
    assert (made(of_node(LOAD), "n2"), made(of_fleet(LOAD))) == ("2", FOUND)
    assert made(of_fleet(LOAD)(len)) == 3
    assert made(of_node(given.cluster, LOAD)(lambda cluster, load: cluster.word + load), "n3") == "w3"
    assert made(of_peers(LOAD)(sorted), "n2") == ["n1", "n2"]
    assert made(of_peers(LOAD)(sorted), "n3") == ["n3"]  # n4 gave no answer


def test_a_fact_of_the_fleet_is_made_once_and_only_of_others() -> None:
    calls: list[int] = []
    once = of_fleet(given.cluster)(lambda _: calls.append(1))
    session = SimpleNamespace(made=MadeFacts(), cluster=None, facts=SimpleNamespace(of_fleet=None))
    for _ in range(2):
        made(once, session=session)
    assert calls == [1]
    with pytest.raises(SuiteError, match="has 'node' as a source, which each item has of its own"):
        of_fleet(given.node)


def test_commands_of_sources_are_sent_before_the_first_test() -> None:
    later = of_node(given.facts, probes=lambda _, nodes: [Probe(node, "true", text_of) for node in nodes])
    facts = [of_node(lambda cluster: Probe(cluster, "date", text_of)), of_fleet(LOAD)(len), later(list)]
    sent = [probe.name for fact in facts if fact.probes for probe in fact.probes("made", ["n1"])]
    assert sent == ["made", "load", "n1"]
    assert [given.node in in_order([fact]) for fact in facts] == [True, False, True]
