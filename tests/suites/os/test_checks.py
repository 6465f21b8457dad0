"""What the checks of the operating system have in common: a value that differs from that of most nodes of the group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, result
from judged import judged
from os_helpers import CPUS, MEMORY, NONE, peers

from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import disks, hardware, mounts, settings, state, system
from pytest_gpucluster.suites.os.storage_facts import SharedFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.core.majority import Norm

ALIKE: list[tuple[str, Callable[[Norm[Any]], Verdict], object, object]] = [
    ("release", lambda p: system.release("a 1", None, p), "a 1", "a 2"),
    ("kernel", lambda p: system.kernel(p.votes[-1][0], None, p), "6.1", "6.8"),
    ("architecture", lambda p: system.architecture(CPUS, p), "x86_64", "aarch64"),
    ("CPU model", lambda p: hardware.cpu_model(CPUS, p), "EPYC", "Xeon"),
    ("NUMA nodes", lambda p: hardware.numa(CPUS, None, p), 2, 8),
    ("governor", lambda p: hardware.governor(p.votes[-1][0], None, p), {"a": 8}, {"performance": 8}),
    ("HugePages_Total", lambda p: hardware.hugepages(MEMORY, None, p), 4, 512),
    ("transparent huge pages", lambda p: hardware.transparent_hugepages("a", p), "a", "b"),
    ("swap", lambda p: hardware.swap(MEMORY, p), 3 << 20, 0),
    ("security modules", lambda p: settings.security_modules("a", p), "a", "b"),
    ("sysctls", lambda p: settings.kernel_settings("a", p), "a", "b"),
    ("id", lambda p: state.user("a", p), "a", "b"),
]


@pytest.mark.parametrize(("part", "judge", "mine", "theirs"), ALIKE)
def test_what_has_to_be_alike(
    part: str, judge: Callable[[Norm[Any]], Verdict], mine: object, theirs: object
) -> None:
    assert judged(judge(peers(mine, theirs))) == (CONFIGURE, [part])
    assert result(judge(peers(theirs, mine))) in {PASSED, WARNING}  # a newer kernel is a warning
    assert judged(judge(norm({"n1": mine}))) == (NOT_APPLICABLE, [])


def test_a_group_in_halves_drains_nobody_and_names_both() -> None:
    halves = norm({"n1": "5.15.0", "n2": "5.15.0", "n3": "6.8.0", "n4": "6.8.0"})
    verdict = system.kernel("5.15.0", None, halves)
    assert judged(verdict) == (CONFIGURE, ["kernel"])
    assert "5.15.0 on n[1-2], 6.8.0 on n[3-4]" in verdict.findings[0].expected
    assert result(system.kernel("6.8.0", None, halves)) == PASSED  # it is ahead
    two = norm({"n1": math.inf, "n2": 65536.0})
    for locked, expected in ((65536.0, CONFIGURE), (math.inf, PASSED)):
        assert result(settings.limits({"Max locked memory": locked}, {}, {"memlock": two})) == expected


ROOM = mounts.ScratchMount()


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (
            lambda: mounts.scratch(mounts.ScratchMounts(ROOM, ROOM), NONE, peers(ROOM, ROOM), 1),
            NOT_APPLICABLE,
        ),
        (
            lambda: mounts.scratch(mounts.ScratchMounts(ROOM, ROOM), peers(ROOM, ROOM), NONE, 1),
            NOT_APPLICABLE,
        ),
        (lambda: disks.shared_storage({"/s": SharedFolder("n1")}, "n2"), PASSED),
        (lambda: disks.shared_storage({"/s": SharedFolder("n1", read_problem="gone")}, "n2"), CONFIGURE),
        (lambda: disks.shared_storage({"/s": SharedFolder("n1", "full", "gone")}, "n1"), CONFIGURE),
        (lambda: disks.shared_storage({"/s": SharedFolder("n1", "full", "gone")}, "n2"), NOT_CHECKED),
        (lambda: disks.shared_storage({"/s": SharedFolder("n1", "Permission denied")}, "n1"), NOT_CHECKED),
    ],
)
def test_where_there_is_nothing_to_compare_with(verdict: Callable[[], Verdict], expected: str) -> None:
    assert result(verdict()) == expected
