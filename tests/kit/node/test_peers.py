from __future__ import annotations

from dataclasses import replace

from os_helpers import CPUS, GIB, GROUP, MEMORY

from pytest_gpucluster.config.models import Group
from pytest_gpucluster.kit.node.peers import Peers


def test_peers_are_those_of_the_group() -> None:
    facts = {"n1": CPUS, "n2": replace(CPUS, online=4), "n3": CPUS, "other": replace(CPUS, online=1)}
    norm = Peers(facts).of(GROUP, "online")
    assert (norm.value, norm.agree, norm.total) == (8, 2, 3)
    peers = Peers(facts)
    alone = Group(nodes="n2", profile=GROUP.profile)
    assert [peers.of(group, "online").value for group in (GROUP, alone)] == [8, 4]


def test_values_within_the_tolerance_are_one_vote() -> None:
    sizes = Peers({"n1": replace(MEMORY, total=100), "n2": replace(MEMORY, total=99), "n3": MEMORY})
    assert sizes.of(GROUP, "total").votes == ((100, ("n1",)), (99, ("n2",)), (64 * GIB, ("n3",)))
    assert sizes.of(GROUP, "total", 0.02).votes == ((100, ("n1", "n2")), (64 * GIB, ("n3",)))
    assert sizes.of(GROUP, "total").voters == "nodes of its group"
