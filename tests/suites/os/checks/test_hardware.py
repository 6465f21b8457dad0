from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, VENDOR, WARNING, result
from judged import figures, judged
from os_helpers import ALONE, CPUS, GIB, GROUP, MEMORY, NONE, peers

from pytest_gpucluster.config.models import NodeProfile
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.kit.node.peers import Peers, norm
from pytest_gpucluster.suites.os.checks import hardware as checks

MIB = 1 << 20


@pytest.mark.parametrize(
    ("total", "profile", "theirs", "expected"),
    [
        (95 * MIB, 100 * MIB, None, PASSED),
        (105 * MIB, 100 * MIB, None, PASSED),
        (95 * MIB - 1, 100 * MIB, None, CONFIGURE),  # the profile alone
        (95 * MIB - 1, 100 * MIB, 9 * GIB, VENDOR),
        (105 * MIB + 1, 100 * MIB, None, WARNING),
        (990 * GIB, None, 1000 * GIB, PASSED),
        (990 * GIB - 1, None, 1000 * GIB, VENDOR),
        (15 * GIB, None, 16 * GIB, PASSED),  # 1 GiB of a small node
        (15 * GIB - 1, None, 16 * GIB, VENDOR),
        (64 * GIB, None, None, NOT_APPLICABLE),
    ],
)
def test_memory_at_its_bounds(total: int, profile: int | None, theirs: int | None, expected: str) -> None:
    most = peers(total, theirs) if theirs else NONE
    verdict = checks.memory(replace(MEMORY, total=total), NodeProfile(memory=profile), most)
    assert judged(verdict) == (expected, [] if expected in {PASSED, NOT_APPLICABLE} else ["memory"])
    assert [(it.name, it.value) for it in verdict.metrics] == [("memory_total", total / GIB)]


def test_memory_of_a_group_in_halves_is_not_returned_to_its_vendor() -> None:
    half = replace(MEMORY, total=60 * GIB)
    pages = [replace(one, total=one.total - 4096 * n) for n, one in enumerate((MEMORY, MEMORY, half, half))]
    fleet = Peers({f"n{n}": one for n, one in enumerate(pages, 1)})
    most = fleet.of(GROUP, "total", checks.PEER_MEMORY_TOLERANCE)
    assert judged(checks.memory(MEMORY, NodeProfile(), most)) == (PASSED, [])  # it lacks nothing
    verdict = checks.memory(half, NodeProfile(), most)
    assert judged(verdict) == (CONFIGURE, ["memory"])
    assert figures(verdict.findings[0].expected)[::3] == [64, 60]


@pytest.mark.parametrize(
    ("online", "offline", "stated", "usual", "expected"),
    [
        (8, "", 8, NONE, PASSED),
        (8, "", None, ALONE, PASSED),
        (7, "7", 8, NONE, CONFIGURE),
        (9, "", 8, NONE, WARNING),
        (6, "6-7", None, ALONE, CONFIGURE),
        (6, "6-7", None, peers(8, 6), PASSED),  # SMT is off everywhere
        (8, "7", None, norm({"n1": 8, "n2": 9}), CONFIGURE),
        (8, "7", None, peers(8, 8), PASSED),
        (8, "7", 8, peers(8, 9), PASSED),
        (8, "", None, norm({"n1": 8, "n2": 6}), PASSED),  # halves: it lacks none
    ],
)
def test_cpus(online: int, offline: str, stated: int | None, usual: Norm[Any], expected: str) -> None:
    verdict = checks.cpus(replace(CPUS, online=online, offline=offline), stated, usual)
    assert judged(verdict) == (expected, [] if expected == PASSED else ["CPUs"])
    assert [(it.name, it.value) for it in verdict.metrics] == [("cpus_online", online)]


@pytest.mark.parametrize(
    ("mine", "stated", "usual", "expected"),
    [
        ({"a": 8}, "a", NONE, PASSED),
        ({"b": 1, "a": 7}, "a", NONE, CONFIGURE),
        ({}, "a", NONE, CONFIGURE),
        ({}, None, peers({}, {"performance": 8}), CONFIGURE),
        ({"performance": 8}, None, peers({"performance": 8}, {}), WARNING),
    ],
)
def test_governor(mine: dict[str, int], stated: str | None, usual: Norm[Any], expected: str) -> None:
    assert result(checks.governor(mine, stated, usual)) == expected


def test_what_is_stated_is_compared_with_that() -> None:
    assert result(checks.numa(CPUS, 2, NONE)) == PASSED
    assert result(checks.numa(CPUS, 4, NONE)) == CONFIGURE
    assert result(checks.hugepages(MEMORY, 4, NONE)) == PASSED
    assert result(checks.hugepages(MEMORY, 5, peers(4, 4))) == CONFIGURE
    assert [(it.name, it.value, it.unit) for it in checks.swap(MEMORY, NONE).metrics] == [
        ("swap_used", 2, "MiB")
    ]
