"""Values far from the median, and values in two halves."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core import outliers
from pytest_gpucluster.core.outliers import Halves, Outliers


def by_name(*values: float) -> dict[str, float]:
    return dict(zip("abcdefghij", values, strict=False))


def test_outliers_in_full() -> None:
    assert outliers.FEWEST == 4
    assert outliers.outliers(by_name(100.0, 90.0, 100.0)) == Outliers(
        100.0, 0.0, {}, {}, "3 values are too few to name an outlier (spread 10)"
    )
    assert outliers.outliers(by_name(100.0)).note == "1 values are too few to name an outlier (spread 0)"
    assert outliers.outliers(by_name(100.0, 100.0, 80.0, 100.0, 125.0, 100.0)) == Outliers(
        100.0, 0.0, {"c": -0.2}, {"e": 0.25}
    )
    assert outliers.outliers(by_name(-100.0, -100.0, -80.0, -100.0)) == Outliers(-100.0, 0.0, {"c": -0.2}, {})
    with pytest.raises(ValueError, match=r"^outliers need at least one value$"):
        outliers.outliers({})
    zero = outliers.outliers(by_name(0.0, 0.0, 0.0, 5.0))
    assert zero == Outliers(0.0, 0.0, {}, {}, "median is 0: no relative distance")
    # median 101, MAD 1: of 8 values 3.662 / 0.6745 = 5.429 is beyond the spread; 5.05 is the least distance
    spread = by_name(100.0, 102.0, 100.0, 102.0, 100.0, 102.0, 95.58, 106.42)
    assert outliers.outliers(spread).low == outliers.outliers(spread).high == {}
    spread = by_name(100.0, 102.0, 100.0, 102.0, 100.0, 102.0, 95.56, 106.44)
    assert list(outliers.outliers(spread).low) == ["g"]
    assert list(outliers.outliers(spread).high) == ["h"]
    assert outliers.outliers(spread, min_relative=0.06).low == {}


@pytest.mark.parametrize(("least", "low"), [(0.05, {}), (0.049, {"d": -0.05})])
def test_the_least_distance_is_not_enough_by_itself(least: float, low: dict[str, float]) -> None:
    assert outliers.outliers(by_name(100.0, 100.0, 100.0, 95.0), min_relative=least).low == low
    assert outliers.outliers(by_name(100.0, 100.0, 100.0, 95.0)).low == {}


@pytest.mark.parametrize(
    ("values", "halves"),
    [
        ((50.0, 51.0, 100.0, 102.0), Halves(("a", "b"), ("c", "d"), 50.5, 101.0)),
        ((50.0, 51.0, 52.0, 100.0, 102.0), Halves(("a", "b", "c"), ("d", "e"), 51.0, 101.0)),
        ((50.0, 51.0, 100.0, 101.0, 102.0), None),  # a minority is named as outliers
        ((50.0, 51.0, 52.0, 102.0), None),  # one alone is fast
        ((50.0, 50.0, 50.0, 50.0, 60.0, 100.0, 100.0), Halves(tuple("abcde"), ("f", "g"), 50.0, 100.0)),
        ((50.0, 50.0, 50.0, 50.0, 90.0, 100.0, 100.0), Halves(tuple("abcd"), tuple("efg"), 50.0, 100.0)),
        ((95.0, 95.0, 100.0, 100.0), None),  # the least distance
        ((94.9, 94.9, 100.0, 100.0), Halves(("a", "b"), ("c", "d"), 94.9, 100.0)),
        ((80.0, 90.0, 100.0, 110.0), None),  # no wider than noise
        # MAD of the slow half 1, of the fast one 0: the gap must be 5.189
        ((90.0, 92.0, 97.18, 97.18), None),
        ((90.0, 92.0, 97.20, 97.20), Halves(("a", "b"), ("c", "d"), 91.0, 97.20)),
        ((90.0, 90.0, 95.18, 97.18), None),
    ],
)
def test_a_fleet_of_two_speeds(values: tuple[float, ...], halves: Halves | None) -> None:
    found = outliers.outliers(by_name(*values)).halves
    assert (found is None) is (halves is None)
    if found and halves:
        assert (found.slow, found.fast) == (halves.slow, halves.fast)
        assert (found.slow_median, found.fast_median) == pytest.approx((halves.slow_median, halves.fast_median))


def test_the_gap_between_two_speeds_is_measured_by_the_number_of_values() -> None:
    # halves with a MAD of 1 and a gap of 5.5, which is 3.7 modified z-scores: 6 values need 3.58, 6000 need 5.1
    few = {f"n{number}": value for number, value in enumerate([40.0, 39.0, 38.0, 45.5, 46.5, 47.5])}
    assert outliers.outliers(few).halves is not None
    many = {f"{name}-{copy}": value for name, value in few.items() for copy in range(1000)}
    assert outliers.outliers(many).halves is None
