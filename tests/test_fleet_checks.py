"""Majority, drift, duplicates and outliers of a fleet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.checks.fleet import drift, majority, outliers, owners


def test_the_majority_and_who_drifts() -> None:
    fleet = majority(["A", "A", "B"])
    assert (fleet.value, fleet.clear, fleet.total) == ("A", True, 3)
    assert list(drift("n", "A", fleet)) == []
    (found,) = drift("n", "B", fleet)
    assert (found.measured, found.expected) == ("B", "A (2 of 3 in the fleet)")


def test_without_a_majority_everybody_drifts_and_it_is_said() -> None:
    fleet = majority(["A", "B"])
    assert fleet.value is None
    (found,) = drift("n", "A", fleet)
    assert "no majority: A (1), B (1)" in found.expected


def test_values_name_their_owners() -> None:
    assert owners({"a": [1, 2], "b": [2], "c": [3, 3]}) == {1: ("a",), 2: ("a", "b"), 3: ("c", "c")}


def test_an_outlier_is_far_in_sigmas_and_in_percent() -> None:
    fleet = {f"n{n}": 100 + n % 3 * 0.1 for n in range(8)}
    assert outliers(fleet) == {}
    assert list(outliers(fleet | {"slow": 80.0})) == ["slow"]
    assert outliers(fleet | {"slow": 97.0}) == {}  # 3%: below the minimum distance
    assert outliers({"a": 1.0, "b": 1.0, "c": 50.0}) == {}


@given(st.dictionaries(st.text(max_size=3), st.floats(95, 105), max_size=20))
def test_nobody_is_accused_of_less_than_the_minimum_distance(values: dict[str, float]) -> None:
    for name, found in outliers(values, min_distance=0.11).items():
        raise AssertionError(f"{name}: {found}")
