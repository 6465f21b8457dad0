"""What a check finds, written to the event log and read from it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_gpucluster.core.finding import Action, Advisory, Finding, Metric, Quantity, Quote, Remark, mapped
from pytest_gpucluster.core.part import Part, nvlink
from pytest_gpucluster.core.safe_json import loads
from pytest_gpucluster.report.machine.events import strict_json

GPU = Part("gpu", 3, "GPU-x", "0000:1b:00.0", "S1", model="H200")
SLOW = Quantity(25.5, "GB/s", "25.5 of 50")


PAIR = Part("pair", of=GPU, nodes=("a", "b"))
WRITTEN = (
    Finding(PAIR, SLOW, Quote("why"), Action.REBOOT, "gpu.count", "slow"),
    Advisory("GPU 3", "1 replay", "0", "replays"),
    Remark("a line", 3),
    Metric("busbw", -math.inf, "GB/s", "GPU 3", detail=True, better="higher"),
)


@pytest.mark.parametrize("found", WRITTEN)
def test_what_is_written_is_read(found: Any) -> None:
    read = type(found).from_dict(loads(strict_json(found.as_dict())))
    assert repr(read) == repr(found), "the setting too, by which no two are compared"


@pytest.mark.parametrize("kind", [Finding, Advisory])
def test_a_bare_number_is_no_measure(kind: Any) -> None:
    for measures in ((7, "8 GPUs"), ("7 GPUs", 8)):
        with pytest.raises(TypeError, match="measured and expected are a Quantity, a Quote or words, not "):
            kind(GPU, *measures)


def test_keys_of_the_log_stay_in_their_order() -> None:
    assert list(Metric("a", 1, "W").as_dict()) == ["name", "value", "unit", "part", "detail", "better"]
    found = Finding(nvlink(7, Part("gpu", serial="1", model="H")), Quantity(25, "GB/s"), Quote("a\x1b\nb"), code="slow")
    assert found.as_dict() == {
        "code": "slow",
        "part": {"kind": "nvlink", "index": 7, "of": {"kind": "gpu", "serial": "1", "model": "H"}},
        "measured": {"number": 25, "unit": "GB/s"},
        "expected": {"quote": "a? b"},
    }


def test_a_changed_text_changes_nothing_that_decides() -> None:
    found = Finding(Part("disk", name="a", model="x"), Quantity(1, text="one"), Quantity(2), Action.DRAIN, "x", "slow")
    other = mapped(found, str.upper)
    assert other.words == "A (X): measured ONE, expected 2"
    assert (other.code, other.relation, other.action, other.setting) == ("slow", "<", Action.DRAIN, "x")


SECONDS, MILLISECONDS = Quantity(1, "s"), Quantity(2, "ms")


@pytest.mark.parametrize("kind", [Finding, Advisory])
@pytest.mark.parametrize("odd", [(7, "8"), (SECONDS, MILLISECONDS), ("1", "2", "Un-Known"), ("1", "2", "a b")])
def test_what_no_program_can_decide_by_is_refused_and_read_as_words(kind: Any, odd: Any) -> None:
    measured, expected, code = (*odd, "")[:3]
    with pytest.raises((TypeError, ValueError), match=r"Quantity|state both in one unit|must be one word"):
        kind("x", measured, expected, code=code)
    plain = [{"number": it.number, "unit": it.unit} if isinstance(it, Quantity) else it for it in odd[:2]]
    read = kind.from_dict({"measured": plain[0], "expected": plain[1], "code": code})
    assert (read.code, read.relation, mapped(read, str.upper).relation) == ("", "", "")


@pytest.mark.parametrize("value", ["NaN", "odd", None, True, [1], {}, 10**400])
def test_a_value_that_is_no_number_is_nan(value: Any) -> None:
    metric = Metric.from_dict({"value": value})
    assert (str(metric.value), metric.number) == ("nan", None)


@pytest.mark.parametrize("action", [None, "", "explode", "DRAIN", ["drain"], 1])
def test_a_damaged_finding_is_read_as_empty(action: Any) -> None:
    assert Finding.from_dict({"part": None, "measured": 7, "action": action}) == Finding("", "7", "")
    assert Remark.from_dict({"count": "many"}) == Remark("", 1)
