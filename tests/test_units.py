"""Sizes, durations and bandwidths."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster import units

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("4G", 4 * 2**30),
        ("4GiB", 4 * 2**30),
        ("16GB", 16 * 10**9),
        ("1.5K", 1536),
        ("81559MiB", 81559 * 2**20),
        (" 2 TB ", 2 * 10**12),
        (7, 7),
    ],
)
def test_size(text: str | int, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("250ms", 0.25),
        ("10m", 600),
        ("4h", 14400),
        ("2 days", 172800),
        ("1:30", 90),
        ("01:30:00", 5400),
        ("1-02:00:00", 93600),
        ("2-12", 216000),
        (1.5, 1.5),
    ],
)
def test_duration(text: str | float, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "rate"),
    [("26.562 GB/s", 26.562), ("400 Gb/s", 50), ("100Gbps", 12.5), ("8000 Mbit/s", 1), ("365", 365), (2, 2)],
)
def test_bandwidth(text: str | float, rate: float) -> None:
    assert units.parse_bandwidth(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "4 G G", "1e400", "10 parsec", "4:x"])
@pytest.mark.parametrize("parse", [units.parse_size, units.parse_duration, units.parse_bandwidth])
def test_what_is_no_quantity_is_refused_with_the_forms(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match=r"not a \w+: .*write it like"):
        parse(text)


@given(st.integers(0, 400 * 86400))
def test_slurm_time_is_read_back(seconds: int) -> None:
    assert units.parse_duration(units.slurm_time(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (12, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (86400, "1 d")],
)
def test_duration_for_people(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (2**32, "4 GiB"), (1.5 * 2**40, "1.5 TiB")]
)
def test_size_for_people(size: float, text: str) -> None:
    assert units.format_size(size) == text


def test_examples_of_the_docstrings() -> None:
    outcome = doctest.testmod(units)
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.parametrize("parse", [units.parse_size, units.parse_duration, units.parse_bandwidth])
@pytest.mark.parametrize("text", ["9" * 5000, "9" * 400 + ":30", "9" * 400 + " GB/s", "9" * 400 + "TB"])
def test_a_number_without_end_is_no_infinite_value(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match="not a "):
        parse(text)
