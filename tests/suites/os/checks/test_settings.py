from __future__ import annotations

import math

import pytest
from os_helpers import failed, not_applicable, passed

from pytest_gpucluster.config.models import Group, Profile
from pytest_gpucluster.core.check import Finding
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.suites.os import limits
from pytest_gpucluster.suites.os.checks import settings as checks


def test_limits_are_read_in_ulimits_units() -> None:
    wanted = limits.wanted_limits({"memlock": "65536", "nofile": "4096", "stack": "unlimited", "as": "1G"})
    assert wanted == {"memlock": 65536 * 1024, "nofile": 4096, "stack": math.inf, "as": 2**30}
    soft = {"Max locked memory": 65536.0, "Max open files": 8192.0, "Max stack size": math.inf}
    assert "64 KiB | at least 64 MiB" in failed(checks.limits(soft, wanted), "memlock", "as")
    passed(checks.limits({"Max locked memory": math.inf}, {"memlock": math.inf}))
    for bad in ({"memlokc": "1"}, {"memlock": "much"}):
        with pytest.raises(ConfigError):
            limits.wanted_limits(bad)


def test_limits_that_nobody_stated_are_those_of_most_nodes() -> None:
    good = {"Max locked memory": math.inf, "Max open files": 65536.0, "Max processes": 96365.0}
    hand = {"Max locked memory": 65536.0, "Max open files": 131072.0, "Max processes": 96364.0}
    group = Group(nodes="n[1-4]", profile=Profile(name="p", description="d", source="s"))
    fleet = checks.limits_of_group({"n1": good, "n2": good, "n3": good, "n4": hand})
    peers = {name: values.of(group) for name, values in fleet.items()}
    told = failed(checks.limits(hand, {}, peers), "memlock")
    assert told == "64 KiB | unlimited, as on 3 of 4 nodes of its group"
    passed(checks.limits(good, {}, peers))
    passed(checks.limits(hand, {"memlock": 65536.0}, peers))
    assert not_applicable(checks.limits(hand, {}, {}))


def test_each_limit_has_its_line_and_unit() -> None:
    """Lines of /proc/PID/limits as the kernel writes them (fs/proc/base.c), units of ulimit(1)."""
    assert limits.LIMITS == {
        "as": ("Max address space", 1024), "core": ("Max core file size", 1024), "cpu": ("Max cpu time", 1),
        "data": ("Max data size", 1024), "fsize": ("Max file size", 1024), "locks": ("Max file locks", 1),
        "memlock": ("Max locked memory", 1024), "msgqueue": ("Max msgqueue size", 1), "nofile": ("Max open files", 1),
        "nproc": ("Max processes", 1), "rss": ("Max resident set", 1024), "rtprio": ("Max realtime priority", 1),
        "sigpending": ("Max pending signals", 1), "stack": ("Max stack size", 1024),
    }  # fmt: skip
    assert checks.COMPARED_LIMITS == ("memlock", "nofile", "stack", "as")
    for text in ("unlimited", "infinity", "-1"):
        assert limits.wanted_limits({"nofile": text}) == {"nofile": math.inf}
    assert limits.wanted_limits({"memlock": " 64 ", "nofile": "64", "stack": "1M"}) == {
        "memlock": 65536, "nofile": 64, "stack": 2**20,
    }  # fmt: skip


def test_a_limit_that_is_not_there_is_lower_than_any() -> None:
    verdict = checks.limits({"Max open files": 1024.0}, {"nofile": 4096.0, "memlock": math.inf})
    assert verdict.findings == (
        Finding("nofile", "1024", "at least 4096"),
        Finding("memlock", "not listed by the kernel", "at least unlimited"),
    )
    passed(checks.limits({"Max open files": 4096.0}, {"nofile": 4096.0}))


def test_limits_in_words() -> None:
    assert [limits.shown_limit(value, 1) for value in (None, math.inf, 5.0)] == [
        "not listed by the kernel",
        "unlimited",
        "5",
    ]
    assert limits.shown_limit(2048.0, 1024) == "2 KiB"
    with pytest.raises(ConfigError) as caught:
        limits.wanted_limits({"memlokc": "1"})
    assert str(caught.value) == f"os.limits: unknown limit 'memlokc'; use one of {', '.join(limits.LIMITS)}"
    with pytest.raises(ConfigError, match=r"^os\.limits: memlock: .*much.*, or unlimited$"):
        limits.wanted_limits({"memlock": "much"})


@pytest.mark.parametrize(
    ("mine", "theirs", "worse"),
    [
        ("vm.a=1 kernel.b=2 3", "vm.a=1 kernel.b=2 3", False),
        ("vm.a=1 kernel.b=2", "vm.a=1 kernel.b=3", True),  # one of both differs
        ("vm.a=1", "vm.a=1 kernel.b=3", True),
        ("vm.max_map_count=9 vm.a=1", "vm.max_map_count=8 vm.a=1", False),  # a larger bound
        ("vm.max_map_count=7 vm.a=1", "vm.max_map_count=8 vm.a=1", True),
        ("vm.max_map_count= vm.a=1", "vm.max_map_count=8 vm.a=1", True),
        ("unread", "vm.a=1", True),
        ("vm.a=1 vm.=2", "vm.a=1 vm.=2", False),
        ("vm.a=1 kernel.pid_max=9 vm.=2", "vm.a=1 kernel.pid_max=9 vm.=3", True),
    ],
)
def test_settings_are_worse_if_one_of_them_is(mine: str, theirs: str, *, worse: bool) -> None:
    assert checks._worse_settings(mine, theirs) is worse
