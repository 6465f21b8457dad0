"""What the checks of the operating system have in common: a value that differs from that of most nodes of the group."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, WARNING, CounterExample, result
from judged import judged
from os_helpers import CPUS, MEMORY, peers

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import hardware, settings, state, system

if TYPE_CHECKING:
    from collections.abc import Callable

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
COUNTER_EXAMPLES = tuple(
    CounterExample(judge(norm({"n1": mine})).check, *about, partial(judge, most), sick)
    for _, judge, mine, theirs in ALIKE
    for about, most, sick in (
        (("alike", "one image", PASSED), peers(mine, mine), False),
        (("the only node", "one node", NOT_APPLICABLE), norm({"n1": mine}), False),
        (("not as the others", "another image", CONFIGURE), peers(mine, theirs), True),
    )
)


@pytest.mark.parametrize("part", [row[0] for row in ALIKE])
def test_what_has_to_be_alike(part: str) -> None:
    judge, mine, theirs = next(row[1:] for row in ALIKE if row[0] == part)
    assert judged(judge(peers(mine, theirs))) == (CONFIGURE, [part])
    assert result(judge(peers(theirs, mine))) in {PASSED, WARNING}  # a newer kernel is a warning
    assert judged(judge(norm({"n1": mine}))) == (NOT_APPLICABLE, [])
    assert judged(judge(peers(mine, mine))) == (PASSED, [])
