"""What a check finds, written to the event log and read from it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.core.finding import Finding, Metric, Remark


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
