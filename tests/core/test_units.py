"""Sizes, durations and bandwidths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.core import units
from slurm_sandbox import node_files

if TYPE_CHECKING:
    from collections.abc import Callable

QUANTITIES = (units.parse_size, units.parse_duration, units.parse_bandwidth)


def test_a_duration_is_written_in_two_units_for_people() -> None:
    words = {0.25: "0.25 s", 12: "12 s", 185: "3 min 5 s", 7800: "2 h 10 min", 86400: "1 d", 356400: "4 d 3 h"}
    assert {seconds: units.format_duration(seconds) for seconds in words} == words


def test_sizes_of_every_unit() -> None:
    for power, prefix in enumerate("KMGTP", 1):
        for text in (f"3{prefix}", f"3{prefix}i", f"3 {prefix.lower()}ib"):
            assert units.parse_size(text) == 3 * 1024**power
        assert units.parse_size(f" 3 {prefix.lower()}b ") == 3 * 1000**power
        assert units.format_size(1024**power * 1.5) == f"1.5 {prefix}iB"
        assert units.write_size(1024**power) == f"1{prefix}iB"
        assert units.write_size(1024**power + 1) == f"{1024**power + 1}B"
    assert [units.parse_size(size) for size in ("3B", "3.9", "1.5K", 7)] == [3, 3, 1536, 7]
    sizes = {0: "0 B", 1.5: "1.5 B", 1023: "1023 B", 1024: "1 KiB", -2048: "-2 KiB", 2**60: "1024 PiB"}
    assert {size: units.format_size(size) for size in sizes} == sizes
    assert [units.write_size(size) for size in (0, 1, 1536, 2**60)] == ["0B", "1B", "1536B", "1024PiB"]


SECONDS = {
    0.005: "5ms|5 MS",
    1.5: "1.5s",
    5: "5 sec",
    300: "5m|5min",
    18000: "5 H|5 hour|5hours|0-5",
    86400: "1d|1 day",
    129600: "1.5 days",
    7.5: " 7.5 ",
    93784: "1-02:03:04",
    93780: "1-2:3",
    3723: " 1:02:03 |1:2:3",
    630: "10:30",
    7: f"{'0' * 59}7",
    units.LONGEST: "2147483640|35791394m|24855-03:14:00",
}


RATES = {
    5000: "5 TB/s",
    5: "5GB/s|5 GBps| 5 GB |5000000000 B/s",
    0.005: "5 MB/s",
    5e-6: "5 KB/s",
    1: "8 Gb/s|8 Gbit/s|8Gbps|8000000000bps",
    5.5: " 5.5 ",
    float("9" * 60): "9" * 60,
}


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((units.parse_duration, text, it) for it, texts in SECONDS.items() for text in texts.split("|")),
        *((units.parse_bandwidth, text, it) for it, texts in RATES.items() for text in texts.split("|")),
        *((units.parse_duration, 7, 7), (units.parse_duration, 1.5, 1.5), (units.parse_bandwidth, 5, 5)),
    ],
)
def test_quantities_of_every_unit(parse: Callable[[str | float], float], text: str | float, value: float) -> None:
    found = parse(text)
    assert found == pytest.approx(value)
    assert isinstance(found, float)


NO_QUANTITY = (*("", "x", "-1", "nan", "inf", "1e400", "10 parsec", "4:x", "1.", "1 0", "5.x", ".5", "٣"), "9" * 5000)
NO_SIZE = ("1.G", ".5G", "G", "4 GB x", "x4G", "4_G", "٣G", "9" * 400 + "TB")
NO_DURATION = (
    *("1:2:3:4", "1-", "-5", "1-2:", ":5", "5:", "1.5:3", "5 seconds", "5s x", "5.5x", "s", ".5s", "٣s"),
    *("0:٣:00", "1-٣", "1.x s", "1.s", "x-1:00", "1-x:00", "1:02:0x", "9" * 61, "9" * 400 + ":30", "٣٠"),
    *("2147483641", "35791394.02m", "24856d", "24855-03:14:01", "9" * 60),  # Slurm cannot count it
)
NO_BANDWIDTH = (
    *("5e", "5 gB/s", "5 GB/", "5 GB/s x", "5. GB/s", "5 GBx", "5 GBit/s", "5 PB/s", "5 6", "5.5x", "x5"),
    *("GB/s", ".5 GB/s", "٣ GB/s", "1.x GB/s", "9" * 61, "9" * 400 + " GB/s"),
)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse, text) for parse in QUANTITIES for text in NO_QUANTITY),
        *((units.parse_size, text) for text in NO_SIZE),
        *((units.parse_duration, text) for text in NO_DURATION),
        *((units.parse_bandwidth, text) for text in NO_BANDWIDTH),
    ],
)
def test_what_is_no_quantity_is_refused_in_short(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match=r"^not a |Slurm can count") as caught:
        parse(text)
    assert repr(text[:40])[:-1] in str(caught.value)
    assert len(str(caught.value)) < 160


SHARES: tuple[tuple[Any, int, int], ...] = (
    *(("3", 16, 3), (" 3 ", 16, 3), (3, 1, 3), ("999999", 1, 999999), (" " * 59 + "3", 1, 3)),
    *(("90%", 16, 15), (" 90 % ", 16, 15), ("100%", 4, 4), ("100.0%", 4, 4), ("0.000001%", 4, 1)),
    *(("12.345678%", 100, 13), ("50%", 3, 2), ("16.1%", 1000, 161), ("010%", 10, 1)),
)
NO_SHARE = (
    *("0", "01", "1000000", "1x", "0%", "100.5%", "101%", "1000%", "1.1234567%", "1.%", "-1", "3.5", "", "x"),
    *("3 4", "5%x", " " * 60 + "3", "٣%", "1٣", "x%", "1.x%"),
)


def test_shares() -> None:
    for text, whole, share in SHARES:
        assert units.share_of(text, whole) == share
    for text in NO_SHARE:
        with pytest.raises(ValueError, match="a number from 1,"):
            units.share_of(text, 100)


def test_a_time_of_an_option_needs_its_unit() -> None:
    assert units.parse_option_time("5m") == units.parse_option_time("5:00") == 300
    for text, why in ((" 5 ", "no unit: write 5s"), ("0m", "greater than 0"), ("٣", "not a duration")):
        with pytest.raises(ValueError, match=why):
            units.parse_option_time(text)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_list_inverts_the_format_of_the_kernel(cpus: set[int]) -> None:
    assert units.cpu_list(",".join(map(str, sorted(cpus)))) == cpus
    assert units.cpu_list(node_files.ranges(sorted(cpus)) + "\n") == cpus


@pytest.mark.parametrize("text", ["1-x", "0-2,?", "a", "123456", "٣", "0-99999,0-31072"])
def test_what_is_no_cpu_list_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        units.cpu_list(text)


@given(st.integers(0, 400 * 86400))
def test_slurm_time_is_read_back(seconds: int) -> None:
    assert units.parse_duration(units.slurm_time(seconds)) == seconds
