from __future__ import annotations

import math

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, result
from judged import figures, judged
from os_helpers import GROUP, peers

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os import limits
from pytest_gpucluster.suites.os.checks import settings as checks


def test_limits_are_read_in_the_units_of_ulimit() -> None:
    of_kib = {"as", "core", "data", "fsize", "memlock", "rss", "stack"}
    units = dict.fromkeys(limits.LIMITS, 1) | dict.fromkeys(of_kib, 1024)
    assert len(units) == 14
    assert limits.wanted_limits(dict.fromkeys(units, " 64 ")) == {name: 64 * it for name, it in units.items()}
    for text in ("unlimited", "infinity", "-1"):
        assert limits.wanted_limits({"nofile": text}) == {"nofile": math.inf}
    assert limits.wanted_limits({"as": "1G"}) == {"as": 2**30}
    for bad in ({"memlokc": "1"}, {"memlock": "much"}):
        with pytest.raises(ConfigError, match=r"memlokc|memlock.*much"):
            limits.wanted_limits(bad)


def test_limits_that_are_stated() -> None:
    soft = {"Max locked memory": 65536.0, "Max open files": 4096.0, "Max stack size": math.inf}
    verdict = checks.limits(soft, {"memlock": 2.0**26, "nofile": 4096, "stack": math.inf, "as": math.inf})
    assert judged(verdict) == (CONFIGURE, ["memlock", "as"])
    assert figures(f"{verdict.findings[0].measured} | {verdict.findings[0].expected}") == [64, 64]


def test_limits_that_nobody_stated_are_those_of_most_nodes() -> None:
    good = {"Max locked memory": math.inf, "Max open files": 65536.0, "Max processes": 96365.0}
    hand = {"Max locked memory": 65536.0, "Max open files": 131072.0, "Max processes": 96364.0}
    fleet = checks.limits_of_group({"n1": good, "n2": good, "n3": good, "n4": hand})
    most = {name: values.of(GROUP) for name, values in fleet.items()}
    assert sorted(fleet) == ["as", "memlock", "nofile", "stack"]
    assert judged(checks.limits(hand, {}, most)) == (CONFIGURE, ["memlock"])
    assert judged(checks.limits(good, {}, most)) == (PASSED, [])
    assert judged(checks.limits(hand, {"memlock": 65536.0}, most)) == (PASSED, [])
    assert result(checks.limits(hand, {}, {})) == NOT_APPLICABLE
    halves = {"memlock": norm({"n1": math.inf, "n2": 65536.0})}
    for soft, expected in ((hand, CONFIGURE), (good, PASSED)):
        assert result(checks.limits(soft, {}, halves)) == expected


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("vm.a=1 kernel.b=2", "vm.a=1 kernel.b=3"),  # one of both differs
        ("vm.a=1", "vm.a=1 kernel.b=3"),
        ("vm.max_map_count= vm.a=1", "vm.max_map_count=8 vm.a=1"),
        ("unread", "vm.a=1"),
        ("vm.a=1 kernel.pid_max=9 vm.=2", "vm.a=1 kernel.pid_max=9 vm.=3"),
    ],
)
def test_settings_are_worse_if_one_of_them_is(mine: str, theirs: str) -> None:
    assert result(checks.kernel_settings(mine, peers(mine, theirs))) == CONFIGURE
