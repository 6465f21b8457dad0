"""What a check finds, written to the event log and read from it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_gpucluster.core.finding import Action, Advisory, Finding, Metric, Remark
from pytest_gpucluster.core.safe_json import loads
from pytest_gpucluster.report.events import strict_json


@pytest.mark.parametrize(
    "found",
    [
        Finding("GPU 3", "7", "8", Action.REBOOT, "gpu.count"),
        Advisory("GPU 3", "1 replay", "0"),
        Remark("a line", 3),
        Metric("busbw", 440.5, "GB/s", "GPU 3", detail=True, better="higher"),
        Metric("busbw", math.nan, "GB/s"),
        Metric("busbw", -math.inf, "GB/s"),
    ],
)
def test_what_is_written_is_read(found: Any) -> None:
    read = type(found).from_dict(loads(strict_json(found.as_dict())))
    assert read == found
    assert getattr(read, "setting", "") == getattr(found, "setting", "")


def test_keys_of_the_log_stay_in_their_order() -> None:
    assert list(Metric("a", 1, "W").as_dict()) == ["name", "value", "unit", "device", "detail", "better"]
    assert Finding("a", "1", "2").as_dict() == {"part": "a", "measured": "1", "expected": "2"}


@pytest.mark.parametrize("value", ["NaN", "odd", None, True, [1], {}, 10**400])
def test_a_value_that_is_no_number_is_nan(value: Any) -> None:
    metric = Metric.from_dict({"value": value})
    assert (str(metric.value), metric.number) == ("nan", None)


@pytest.mark.parametrize("action", [None, "", "explode", "DRAIN", ["drain"], 1])
def test_a_damaged_finding_is_read_as_empty(action: Any) -> None:
    assert Finding.from_dict({"part": None, "measured": 7, "action": action}) == Finding("", "7", "")
    assert Remark.from_dict({"count": "many"}) == Remark("", 1)
