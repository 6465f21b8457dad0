from __future__ import annotations

import math

import pytest

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.suites.os import limits


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
