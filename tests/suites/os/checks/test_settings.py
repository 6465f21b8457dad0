from __future__ import annotations

import math

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, WARNING
from judged import figures, judged
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import ALONE, GROUP, peers

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os import limits
from pytest_gpucluster.suites.os.checks import settings as checks

OPEN = {"Max open files": 1048576.0}
LOW, HIGH = "kernel.pid_max=32768 vm.swappiness=60", "kernel.pid_max=4194304 vm.swappiness=60"


def locked(mine: float, usual: float) -> Verdict:
    return checks.limits({"Max locked memory": mine}, {}, {"memlock": peers(mine, usual)})


MACHINES: Machines = {
    ("os.security_modules", checks.security_modules): [
        ("a container without securityfs | soperator", PASSED, "none", peers("none", "none"))
    ],
    ("os.kernel_settings", lambda mine, usual: checks.kernel_settings(mine, peers(mine, usual))): [
        ("a larger pid_max | systemd's 50-pid-max.conf", WARNING, HIGH, LOW),
        ("sick: a lower pid_max | sysctl", CONFIGURE, LOW, HIGH),
        ("sick: one of both differs | sysctl", CONFIGURE, "vm.a=1 kernel.b=2", "vm.a=1 kernel.b=3"),
        ("sick: one is missing | sysctl", CONFIGURE, "vm.a=1", "vm.a=1 kernel.b=3"),
        ("sick: no number | sysctl", CONFIGURE, "vm.max_map_count= vm.a=1", "vm.max_map_count=8 vm.a=1"),
        ("sick: not read | sysctl", CONFIGURE, "unread", "vm.a=1"),
    ],
    ("os.limits", locked): [
        ("higher limits than the others | limits.conf", PASSED, math.inf, 65536.0),
        ("more than stated | LimitNOFILE", PASSED, lambda: checks.limits(OPEN, {"nofile": 65536.0})),
        ("the only node | one node", NOT_APPLICABLE, lambda: checks.limits(OPEN, {}, {"nofile": ALONE})),
        ("sick: memlock of 64 KiB | slurmd without LimitMEMLOCK", CONFIGURE, 65536.0, math.inf),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


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


def test_limits_that_are_stated_or_those_of_most_nodes() -> None:
    soft = {"Max locked memory": 65536.0, "Max open files": 4096.0, "Max stack size": math.inf}
    verdict = checks.limits(soft, {"memlock": 2.0**26, "nofile": 4096, "stack": math.inf, "as": math.inf})
    assert judged(verdict) == (CONFIGURE, ["memlock", "as"])
    assert figures(f"{verdict.findings[0].measured} | {verdict.findings[0].expected}") == [64, 64]
    good = {"Max locked memory": math.inf, "Max open files": 65536.0, "Max processes": 96365.0}
    hand = {"Max locked memory": 65536.0, "Max open files": 131072.0, "Max processes": 96364.0}
    fleet = checks.limits_of_group({"n1": good, "n2": good, "n3": good, "n4": hand})
    most = {name: values.of(GROUP) for name, values in fleet.items()}
    assert sorted(fleet) == ["as", "memlock", "nofile", "stack"]
    assert judged(checks.limits(hand, {}, most)) == (CONFIGURE, ["memlock"])
    assert judged(checks.limits(hand, {"memlock": 65536.0}, most)) == (PASSED, [])
    assert judged(checks.limits(hand, {}, {})) == (NOT_APPLICABLE, [])
    halves = {"memlock": norm({"n1": math.inf, "n2": 65536.0})}
    for limit, expected in ((hand, (CONFIGURE, ["memlock"])), (good, (PASSED, []))):
        assert judged(checks.limits(limit, {}, halves)) == expected
