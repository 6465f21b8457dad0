from __future__ import annotations

from dataclasses import replace

from os_helpers import ALONE, GROUP, MEMORY, MOST, NONE, failed, not_applicable, passed, peers, split

from pytest_gpucluster.config.models import NodeProfile
from pytest_gpucluster.core.check import Action, Advisory, Finding, Outcome, Verdict
from pytest_gpucluster.kit.node.peers import Peers
from pytest_gpucluster.suites.os.checks import hardware as checks


def test_a_group_of_one_has_nothing_to_compare_with() -> None:
    assert not_applicable(checks.swap(MEMORY, ALONE)) == (
        "not stated in the cluster file, and no other node to compare with"
    )


def test_memory_against_profile_and_peers() -> None:
    many = Peers({"n1": MEMORY, "n2": MEMORY, "n3": replace(MEMORY, total=60 * 2**30)})
    norm = many.of(GROUP, "total", checks.PEER_MEMORY_TOLERANCE)
    passed(checks.memory(MEMORY, NodeProfile(memory=66 * 2**30), norm))
    failed(checks.memory(MEMORY, NodeProfile(memory=128 * 2**30), norm), "memory")
    failed(checks.memory(many.facts["n3"], NodeProfile(), norm), "memory")
    passed(checks.memory(MEMORY, NodeProfile(), norm))
    single = Peers({"n1": MEMORY}).of(GROUP, "total", checks.PEER_MEMORY_TOLERANCE)
    assert not_applicable(checks.memory(MEMORY, NodeProfile(), single))
    passed(checks.memory(MEMORY, NodeProfile(memory=64 * 2**30), single))


def test_memory_of_a_group_in_halves_is_not_returned_to_its_vendor() -> None:
    half = replace(MEMORY, total=60 * 2**30)
    pages = [replace(one, total=one.total - 4096 * n) for n, one in enumerate((MEMORY, MEMORY, half, half))]
    fleet = Peers({f"n{n}": one for n, one in enumerate(pages, 1)})
    norm = fleet.of(GROUP, "total", checks.PEER_MEMORY_TOLERANCE)
    passed(checks.memory(MEMORY, NodeProfile(), norm))  # it lacks nothing
    assert "64 GiB on n[1-2], 60 GiB on n[3-4]" in split(checks.memory(half, NodeProfile(), norm), "memory")
    most = Peers({"n1": MEMORY, "n2": MEMORY, "n3": half}).of(GROUP, "total", checks.PEER_MEMORY_TOLERANCE)
    verdict = checks.memory(half, NodeProfile(), most)
    assert failed(verdict, "memory") == "60 GiB | 64 GiB, as on 2 of 3 nodes of its group"
    assert verdict.action is Action.VENDOR


def test_governor() -> None:
    passed(checks.governor({"performance": 8}, "performance", ALONE))
    failed(checks.governor({"performance": 7, "powersave": 1}, "performance", ALONE), "governor")
    failed(checks.governor({}, "performance", ALONE), "governor")
    assert "no CPU frequency scaling" in not_applicable(checks.governor({}, None, peers({}, {})))
    failed(checks.governor({"powersave": 8}, None, peers({"powersave": 8}, {"performance": 8})), "governor")
    failed(checks.governor({}, None, peers({}, {"performance": 8})), "governor")


def test_memory_at_its_bounds() -> None:
    def memory(total: int, profile: int | None, theirs: int | None) -> Verdict:
        norm = peers(total, theirs) if theirs else NONE
        return checks.memory(replace(MEMORY, total=total), NodeProfile(memory=profile), norm)

    assert memory(95 << 20, 100 << 20, None).outcome is Outcome.PASSED
    assert memory(105 << 20, 100 << 20, None).outcome is Outcome.PASSED
    low = memory((95 << 20) - 1, 100 << 20, 9 << 30)
    assert low.findings == (Finding("memory", "95 MiB", "100 MiB within 5%", Action.VENDOR),)
    assert memory((95 << 20) - 1, 100 << 20, None).action is Action.CONFIGURE  # the profile alone
    more = memory((105 << 20) + 1, 100 << 20, None)
    assert more.advisories == (Advisory("memory", "105 MiB", "100 MiB within 5%"),)
    passed(memory(990 << 30, None, 1000 << 30))
    assert memory((990 << 30) - 1, None, 1000 << 30).findings == (
        Finding("memory", "990 GiB", f"1000 GiB, {MOST}", Action.VENDOR),
    )
    passed(memory(15 << 30, None, 16 << 30))  # 1 GiB of a small node
    assert memory((15 << 30) - 1, None, 16 << 30).action is Action.VENDOR
    passed(memory(2000 << 30, 2000 << 30, 1000 << 30))
