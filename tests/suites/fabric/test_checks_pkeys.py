"""Partition keys of InfiniBand ports: the reader, and fabric.pkeys on machines that were considered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, CounterExample
from fabric_helpers import IB, NONE, answer, host, listing
from judged import judged
from suite_helpers import considered

from pytest_gpucluster.kit.fabric.facts import ADAPTERS, ADAPTERS_LATER, Adapters, parse_adapters
from pytest_gpucluster.suites.fabric import checks as fabric

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

FULL, LIMITED, OTHER = 0x8001, 0x0001, 0x8002
DEFAULT, DEFAULT_LIMITED = 0xFFFF, 0x7FFF


def test_the_keys_of_each_port_are_read_once() -> None:
    keys = "/sys/class/infiniband/{}/ports/1/pkeys/{}\n"
    text = keys.format("mlx5_0", "0:0xffff") + keys.format("mlx5_0", "3:0x8001")
    text += f"/x/root{keys.format('mlx5_1', '0:0x7fff')}"
    read = parse_adapters(answer(listing().replace("mtus\n", f"{text}mtus\n"))).ports
    assert [port.pkeys for port in read] == [(FULL, DEFAULT), (DEFAULT_LIMITED,)]
    assert [port.pkeys for port in parse_adapters(answer(listing())).ports] == [(), ()]
    assert ADAPTERS.command.startswith("keys=read;")
    assert ADAPTERS_LATER.command.startswith("keys=;")


def node(*keys: int, **changes: object) -> Adapters:
    """Return a node with two ports, of which the second has these keys."""
    first, second = host(**changes).ports
    return replace(host(), ports=(replace(first, pkeys=(FULL,)), replace(second, pkeys=tuple(sorted(keys)))))


def judge(mine: Adapters, usual: Adapters, others: int = 3) -> Verdict:
    fleet = {"gpu01": mine, **{f"gpu{n:02}": usual for n in range(2, 2 + others)}}
    return fabric.pkeys(IB, mine, fabric.pkeys_majority(fleet))


alone = partial(judge, others=0)
SHARP = "https://docs.nvidia.com/networking (UFM: partitions)"
UCX, AZURE = "https://github.com/openucx/ucx/pull", "https://github.com/MicrosoftDocs/azure-docs/issues/69185"
TENANT = node(0x8023, DEFAULT_LIMITED)
ROCE, DOWN = node(DEFAULT, link_layer="Ethernet"), node(DEFAULT_LIMITED, state="DOWN")
# machine, source, expected, judge, its arguments
ROWS: tuple[Any, ...] = (
    ("the default partition on all nodes", "opensm(8)", PASSED, judge, node(DEFAULT), node(DEFAULT)),
    ("a virtual machine with its tenant's", AZURE, PASSED, judge, TENANT, TENANT),
    ("full member among limited ones", "partitions.conf", PASSED, judge, node(FULL), node(LIMITED)),
    ("one more partition, for storage", SHARP, PASSED, judge, node(DEFAULT, OTHER), node(DEFAULT)),
    ("down: it has no keys of a subnet manager", "IBTA", PASSED, judge, DOWN, node(DEFAULT)),
    ("RoCE: 0xffff at index 0 and nothing else", f"{UCX}/7724", PASSED, judge, ROCE, node(FULL)),
    ("the only node", "one node", PASSED, alone, node(OTHER), node(OTHER)),
    ("no adapters", "profile", NOT_APPLICABLE, fabric.pkeys, NONE, node(FULL), {}),
    ("keys that the kernel does not show", "an old driver", NOT_APPLICABLE, judge, host(), host()),
    ("no full member", "its GUID", CONFIGURE, judge, node(DEFAULT_LIMITED), node(FULL, DEFAULT_LIMITED)),
    ("a limited member among full members", f"{UCX}/5141", CONFIGURE, judge, node(LIMITED), node(FULL)),
)
COUNTER_EXAMPLES = [
    CounterExample("fabric.pkeys", machine, source, expected, partial(judged_by, *it), expected == CONFIGURE)
    for machine, source, expected, judged_by, *it in ROWS
]
test_counter_example = considered(COUNTER_EXAMPLES)


def test_a_finding_names_the_keys() -> None:
    verdict = judge(node(DEFAULT_LIMITED), node(FULL, DEFAULT_LIMITED))
    assert judged(verdict) == (CONFIGURE, ["mlx5_1 port 1"])
    (found,) = verdict.findings
    assert (str(found.measured), str(found.expected)) == ("0x7fff", "0x7fff 0x8001, as on 3 of 4 nodes")
