"""Sizes, durations and bandwidths."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.core import units
from slurm_sandbox import node_files

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


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_list_inverts_the_format_of_the_kernel(cpus: set[int]) -> None:
    assert units.cpu_list(",".join(map(str, sorted(cpus)))) == cpus
    assert units.cpu_list(node_files.ranges(sorted(cpus)) + "\n") == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,5\n", {0, 1, 2, 5}), (" 3 , 4\n", {3, 4}), ("", set()), ("0-99999,0-31071", set(range(100_000)))],
)
def test_cpu_list(text: str, cpus: set[int]) -> None:
    assert units.cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1-x", "not a CPU list: '1-x'"),
        ("0-2,?", "not a CPU list: '0-2,\\?'"),
        ("a", "not a CPU list: 'a'"),
        ("123456", "not a CPU list"),
        ("٣", "not a CPU list"),
        ("0-99999,0-31072", "a CPU list of more than 131072 CPUs"),
    ],
)
def test_what_is_no_cpu_list_is_refused_as_a_whole(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        units.cpu_list(text)


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


# --- exactly


def test_sizes_of_every_unit() -> None:
    for power, prefix in enumerate("KMGTP", 1):
        for text in (f"3{prefix}", f"3{prefix}i", f"3{prefix}iB", f"3 {prefix.lower()}ib"):
            assert units.parse_size(text) == 3 * 1024**power
        assert units.parse_size(f"3{prefix}B") == 3 * 1000**power
        assert units.parse_size(f" 3 {prefix.lower()}b ") == 3 * 1000**power
        assert units.format_size(1024**power) == f"1 {prefix}iB"
        assert units.format_size(1024**power * 1.5) == f"1.5 {prefix}iB"
        assert units.write_size(1024**power) == f"1{prefix}iB"
        assert units.write_size(1024**power + 1) == f"{1024**power + 1}B"
    assert units.parse_size("3B") == 3
    assert units.parse_size("3.9") == 3
    assert [units.format_size(size) for size in (2**60, -2048, 1.5)] == ["1024 PiB", "-2 KiB", "1.5 B"]
    assert [units.write_size(size) for size in (0, 1, 1536, 2**60)] == ["0B", "1B", "1536B", "1024PiB"]


@pytest.mark.parametrize("text", ["1.G", ".5G", "G", "1 0G", "4 GB x", "x4G", "4_G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size") as caught:
        units.parse_size(text)
    assert str(caught.value) == f"not a size: {text!r} (write it like 512, 4G, 81559MiB or 2TB)"


def test_a_size_that_is_too_large_is_reported_in_short() -> None:
    with pytest.raises(ValueError, match="not a size") as caught:
        units.parse_size("9" * 400)
    assert str(caught.value) == f"not a size: '{'9' * 40}': too large"


def test_shares() -> None:
    for text, whole, share in (
        ("3", 16, 3), (" 3 ", 16, 3), (3, 1, 3), ("999999", 1, 999999), ("90%", 16, 15), (" 90 % ", 16, 15),
        ("100%", 4, 4), ("100.0%", 4, 4), ("0.000001%", 4, 1), ("12.345678%", 100, 13), ("50%", 3, 2),
        ("16.1%", 1000, 161), ("010%", 10, 1), (" " * 59 + "3", 1, 3),
    ):  # fmt: skip
        assert units.share_of(text, whole) == share
    for text in (
        "0",
        "01",
        "1000000",
        "1x",
        "0%",
        "100.5%",
        "101%",
        "1000%",
        "1.1234567%",
        "1.%",
        "-1",
        "3.5",
        "",
        "x",
        "3 4",
        "5%x",
        " " * 60 + "3",
    ):
        with pytest.raises(ValueError, match="from 1,") as caught:
            units.share_of(text, 100)
        assert str(caught.value) == f"must be a number from 1, or a percentage like 90%, not {text[:40]!r}"


def test_durations_of_every_unit() -> None:
    for text, seconds in (
        ("5ms", 0.005), ("5 MS", 0.005), ("1.5s", 1.5), ("5 sec", 5), ("5m", 300), ("5min", 300), ("5 H", 18000),
        ("5 hour", 18000), ("5hours", 18000), ("1d", 86400), ("1 day", 86400), ("1.5 days", 129600), (" 7s ", 7),
        (" 7.5 ", 7.5), (7, 7), ("1-02:03:04", 93784), ("1-2:3", 93780), ("0-5", 18000), (" 1:02:03 ", 3723),
        ("10:30", 630), ("0" * 59 + "7", 7),
    ):  # fmt: skip
        found = units.parse_duration(text)
        assert found == pytest.approx(seconds)
        assert isinstance(found, float)


@pytest.mark.parametrize(
    "text",
    [
        "1:2:3:4",
        "1-",
        "-5",
        "1-2:",
        ":5",
        "5:",
        "1.5:3",
        "5 seconds",
        "5s x",
        "1.",
        "1 0",
        "5.x",
        "5.5x",
        "s",
        ".5s",
        ".5",
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration") as caught:
        units.parse_duration(text)
    assert str(caught.value) == f"not a duration: {text!r} (write it like 90s, 10m, 4h or Slurm's 1-02:00:00)"


def test_what_is_too_long_is_reported_in_short() -> None:
    long = "9" * 61
    for parse, what in ((units.parse_duration, "duration"), (units.parse_bandwidth, "bandwidth")):
        with pytest.raises(ValueError, match="not a ") as caught:
            parse(long)
        assert str(caught.value) == f"not a {what}: '{'9' * 40}'...: too long"
    assert units.parse_bandwidth("9" * 60) == float("9" * 60)


@pytest.mark.parametrize("text", ["2147483641", "35791394.02m", "24856d", "24855-03:14:01", "9" * 60])
def test_a_time_that_slurm_cannot_count_is_refused(text: str) -> None:
    assert units.parse_duration("2147483640") == units.LONGEST == 2147483640
    assert units.parse_duration("35791394m") == units.parse_duration("24855-03:14:00") == units.LONGEST
    with pytest.raises(ValueError, match="Slurm") as caught:
        units.parse_duration(text)
    printed = f"{text!r} is longer than Slurm can count: at most 2147483640s (68 years)"
    assert str(caught.value) == printed


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_size, "٣G"),
        (units.parse_duration, "٣s"),
        (units.parse_duration, "٣٠"),
        (units.parse_duration, "0:٣:00"),
        (units.parse_duration, "1-٣"),
        (units.parse_bandwidth, "٣"),
        (units.parse_bandwidth, "٣ GB/s"),
        (units.parse_option_time, "٣"),
        (lambda text: units.share_of(text, 9), "٣%"),
        (lambda text: units.share_of(text, 9), "1٣"),
        (lambda text: units.share_of(text, 9), "x%"),
        (lambda text: units.share_of(text, 9), "1.x%"),
        (units.parse_duration, "1.x s"),
        (units.parse_duration, "1.s"),
        (units.parse_duration, "x-1:00"),
        (units.parse_duration, "1-x:00"),
        (units.parse_duration, "1:02:0x"),
        (units.parse_bandwidth, "1.x GB/s"),
    ],
)
def test_letters_and_digits_of_other_scripts_are_no_number(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match=r"^(not a |must be )"):
        parse(text)


def test_a_time_of_an_option_needs_its_unit() -> None:
    assert units.parse_option_time("5m") == 300
    assert units.parse_option_time("5:00") == 300
    with pytest.raises(ValueError, match="unit") as caught:
        units.parse_option_time(" 5 ")
    assert str(caught.value) == "' 5 ' has no unit: write 5s, 5m, 5h or 5d"
    with pytest.raises(ValueError, match="greater") as caught:
        units.parse_option_time("0m")
    assert str(caught.value) == "must be greater than 0, not '0m'"


def test_durations_for_people_at_their_bounds() -> None:
    for seconds, text in (
        (0, "0 s"), (0.123, "0.12 s"), (9.9, "9.9 s"), (10, "10 s"), (10.4, "10 s"), (59.4, "59 s"), (59.6, "1 min"),
        (60, "1 min"), (61, "1 min 1 s"), (3599, "59 min 59 s"), (3600, "1 h"), (3659, "1 h"), (3660, "1 h 1 min"),
        (86399, "23 h 59 min"), (86400, "1 d"), (89999, "1 d"), (90000, "1 d 1 h"), (8640000, "100 d"),
    ):  # fmt: skip
        assert units.format_duration(seconds) == text


def test_slurm_time_is_written_in_full() -> None:
    for seconds, text in (
        (0, "0-00:00:00"),
        (93784, "1-02:03:04"),
        (59.6, "0-00:01:00"),
        (864000, "10-00:00:00"),
    ):
        assert units.slurm_time(seconds) == text


def test_bandwidths_of_every_unit() -> None:
    for text, rate in (
        ("5 TB/s", 5000), ("5GB/s", 5), ("5 GBps", 5), (" 5 GB ", 5), ("5 MB/s", 0.005), ("5 KB/s", 5e-6),
        ("5e", None), ("5000000000 B/s", 5), ("8 Gb/s", 1), ("8 Gbit/s", 1), ("8Gbps", 1), ("8000000000bps", 1),
        (" 5.5 ", 5.5), (5, 5), ("5 gB/s", None), ("5 GB/", None), ("5 GB/s x", None), ("5. GB/s", None),
        ("5 GBx", None), ("5 GBit/s", None), ("5 PB/s", None), ("5 6", None), ("5.x", None), ("5.5x", None),
        ("x5", None), ("GB/s", None), (".5 GB/s", None), (".5", None),
    ):  # fmt: skip
        if rate is not None:
            assert units.parse_bandwidth(text) == pytest.approx(rate)
            assert isinstance(units.parse_bandwidth(text), float)
            continue
        with pytest.raises(ValueError, match="not a bandwidth") as caught:
            units.parse_bandwidth(text)
        assert str(caught.value) == f"not a bandwidth: {text!r} (write it like 365 GB/s or 400 Gb/s)"
