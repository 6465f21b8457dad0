"""What a check finds, written to the event log and read from it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.core.finding import Action, Finding, Metric, Quantity, Quote, Remark, mapped
from pytest_gpucluster.core.part import Part, nvlink


def test_keys_of_the_log_stay_in_their_order() -> None:
    assert list(Metric("a", 1, "W").as_dict()) == ["name", "value", "unit", "part", "detail", "better"]
    found = Finding(
        nvlink(7, Part("gpu", serial="1", model="H")), Quantity(25, "GB/s"), Quote("a\x1b\nb"), code="slow"
    )
    assert found.as_dict() == {
        "code": "slow",
        "part": {"kind": "nvlink", "index": 7, "of": {"kind": "gpu", "serial": "1", "model": "H"}},
        "measured": {"number": 25, "unit": "GB/s"},
        "expected": {"quote": "a? b"},
    }
    assert Finding.from_dict(found.as_dict()) == found


def test_a_changed_text_changes_nothing_that_decides() -> None:
    found = Finding(
        Part("disk", name="a", model="x"), Quantity(1, "GB/s", "one"), Quantity(2), Action.DRAIN, "x", "slow"
    )
    other = mapped(found, str.upper)
    assert other.words == "A (X): measured ONE, expected 2"
    assert (other.code, other.relation, other.action, other.setting) == ("slow", "<", Action.DRAIN, "x")


@pytest.mark.parametrize("value", ["NaN", "odd", None, True, [1], {}, 10**400])
def test_a_value_that_is_no_number_is_nan(value: Any) -> None:
    metric = Metric.from_dict({"value": value})
    assert (str(metric.value), metric.number) == ("nan", None)


@pytest.mark.parametrize("action", [None, "", "explode", "DRAIN", ["drain"], 1])
def test_a_damaged_finding_is_read_as_empty(action: Any) -> None:
    assert Finding.from_dict({"part": None, "measured": 7, "action": action}) == Finding("", "7", "")
    assert Remark.from_dict({"count": "many"}) == Remark("", 1)
