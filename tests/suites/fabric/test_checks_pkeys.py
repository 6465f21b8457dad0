"""Partition keys of InfiniBand ports: the reader, and fabric.pkeys on machines that were considered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, CounterExample, assert_as_expected, name
from fabric_helpers import IB, NONE, answer, host, listing

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.kit.fabric.facts import ADAPTERS, ADAPTERS_LATER, Adapters, parse_adapters
from pytest_gpucluster.suites.fabric import checks as fabric
from pytest_gpucluster.suites.fabric.config import FabricConfig

FULL, LIMITED, OTHER = 0x8001, 0x0001, 0x8002
DEFAULT, DEFAULT_LIMITED = 0xFFFF, 0x7FFF


def test_the_keys_of_each_port_are_read() -> None:
    text = listing().replace(
        "mtus\n",
        "/sys/class/infiniband/mlx5_0/ports/1/pkeys/0:0xffff\n/sys/class/infiniband/mlx5_0/ports/1/pkeys/3:0x8001\n"
        "/x/root/sys/class/infiniband/mlx5_1/ports/1/pkeys/0:0x7fff\nmtus\n",
    )
    assert [port.pkeys for port in parse_adapters(answer(text)).ports] == [
        (FULL, DEFAULT),
        (DEFAULT_LIMITED,),
    ]
    assert [port.pkeys for port in parse_adapters(answer(listing())).ports] == [(), ()]


def test_the_second_reading_of_the_counters_reads_no_keys() -> None:
    assert ADAPTERS.command.startswith("keys=read;")
    assert ADAPTERS_LATER.command.startswith("keys=;")


# --- machines that were considered


def node(*keys: int, **changes: object) -> Adapters:
    """Return a node with two ports, of which the second has these keys."""
    found = host(**changes)
    return replace(
        found,
        ports=(replace(found.ports[0], pkeys=(FULL,)), replace(found.ports[1], pkeys=tuple(sorted(keys)))),
    )


def judge(mine: Adapters, usual: Adapters, *stated: str, others: int = 3) -> Verdict:
    fleet = {"gpu01": mine, **{f"gpu{n:02}": usual for n in range(2, 2 + others)}}
    return fabric.pkeys(IB, mine, FabricConfig(pkeys=stated), fabric.pkeys_majority(fleet))


SHARP = "https://docs.nvidia.com/networking (UFM: partitions)"
ROWS = (
    ("the default partition on all nodes", "opensm(8)", PASSED, lambda: judge(node(DEFAULT), node(DEFAULT)), False),
    ("a virtual machine with the partition of its tenant", "https://github.com/MicrosoftDocs/azure-docs/issues/69185", PASSED, lambda: judge(node(0x8023, DEFAULT_LIMITED), node(0x8023, DEFAULT_LIMITED)), False),
    ("full member where the others are limited members", "partitions.conf", PASSED, lambda: judge(node(FULL), node(LIMITED)), False),
    ("one more partition, for storage", SHARP, PASSED, lambda: judge(node(DEFAULT, OTHER), node(DEFAULT)), False),
    ("a port that is down has no keys of a subnet manager", "IBTA", PASSED, lambda: judge(node(DEFAULT_LIMITED, state="DOWN"), node(DEFAULT)), False),
    ("RoCE: 0xffff at index 0 and nothing else", "https://github.com/openucx/ucx/pull/7724", PASSED, lambda: judge(node(DEFAULT, link_layer="Ethernet"), node(FULL)), False),
    ("the stated key, written in both cases", "cluster file", PASSED, lambda: judge(node(FULL), node(), "0x8001", others=0), False),
    ("the only node", "one node", PASSED, lambda: judge(node(OTHER), node(OTHER), others=0), False),
    ("a node without adapters", "profile", NOT_APPLICABLE, lambda: fabric.pkeys(NONE, node(FULL), FabricConfig(), {}), False),
    ("keys that the kernel does not show", "an old driver", NOT_APPLICABLE, lambda: judge(host(), host()), False),
    ("the first port lacks the stated key", "cluster file", CONFIGURE, lambda: judge(node(0x80AB, FULL), node(), "0x80aB", others=0), True),
    ("not in the partition of the others", "partitions.conf lacks its GUID", CONFIGURE, lambda: judge(node(DEFAULT_LIMITED), node(FULL, DEFAULT_LIMITED)), True),
    ("a limited member among full members", "https://github.com/openucx/ucx/pull/5141", CONFIGURE, lambda: judge(node(LIMITED), node(FULL)), True),
    ("alone, without the stated key", "cluster file", CONFIGURE, lambda: judge(node(DEFAULT), node(), "0x8001", others=0), True),
)  # fmt: skip
COUNTER_EXAMPLES = tuple(
    CounterExample("fabric.pkeys", machine, source, expected, judged, sick=sick)
    for machine, source, expected, judged, sick in ROWS
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)


def test_a_finding_names_the_keys() -> None:
    found = judge(node(DEFAULT_LIMITED), node(FULL, DEFAULT_LIMITED)).findings[0]
    assert (found.part, found.measured) == ("mlx5_1 port 1", "0x7fff")
    assert found.expected == "0x7fff 0x8001, as on 3 of 4 nodes"
