"""Sizes, durations and bandwidths as people and Slurm write them, and lists of CPUs as the kernel writes them.

Sizes are bytes (int), durations are seconds (float), bandwidths are GB/s (float, 1 GB = 10**9 B).
All functions raise ValueError, those of quantities with the forms that they accept.
"""

from __future__ import annotations

import math
import re

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
# ASCII: \d would take the digits of every script
_SHARE = re.compile(r"\s*(?:([1-9]\d{0,5})|(\d{1,3}(?:\.\d{1,6})?)\s*%)\s*", re.ASCII)
_LONGEST = 60  # characters of a value with its unit
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)(B?)\s*", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"\s*\d+(?:\.\d+)?\s*", re.ASCII)
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|sec|m|min|h|hours?|d|days?)\s*", re.IGNORECASE | re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(B|b|bit)(?:/s|ps)?\s*", re.ASCII)
# Slurm's commands hold the seconds of a time in an int, which overflows without an error (time_str2secs() of
# src/common/parse_time.c, the same from 20.11 to 26.05); salloc gets whole minutes
LONGEST = 35_791_394 * 60  # whole minutes in 2**31 - 1 seconds
_CPUS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
MAX_CPUS = 1 << 17  # of a list; the kernel is built for 8192


def parse_size(text: str | int) -> int:
    """Return bytes: '81559MiB', '4G' (binary, as Slurm and nccl-tests write), '2 TB' (decimal), or a number.

    >>> parse_size("4G"), parse_size("1 TB"), parse_size(512)
    (4294967296, 1000000000000, 512)
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"not a size: {text!r} (write it like 512, 4G, 81559MiB or 2TB)")
    number, prefix, binary, byte = match.groups()
    factors = _DECIMAL if byte and prefix and not binary else _BINARY
    size = float(number) * factors[prefix.upper()]
    if not math.isfinite(size):
        raise ValueError(f"not a size: {text[:40]!r}: too large")
    return int(size)


def format_size(size: float) -> str:
    """Write bytes with a binary unit: 4294967296 becomes '4 GiB'."""
    power = min(5, max(0, (int(abs(size)).bit_length() - 1) // 10))
    return f"{size / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"


def write_size(size: int) -> str:
    """Write bytes so that parse_size reads the same: '143771MiB'."""
    power = next((power for power in range(5, 0, -1) if size and size % 1024**power == 0), 0)
    return f"{size // 1024**power}{('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"


def share_of(text: str | int, whole: int) -> int:
    """Return how many of `whole` a number ('3') or a percentage ('90%', rounded up) means.

    >>> share_of("90%", 16), share_of(3, 16), share_of("100%", 4)
    (15, 3, 4)
    """
    match = _SHARE.fullmatch(str(text)[:_LONGEST])
    percent = float(match[2] or 100) if match else 0.0
    if match is None or not 0 < percent <= 100:  # percent
        raise ValueError(f"must be a number from 1, or a percentage like 90%, not {str(text)[:40]!r}")
    return int(match[1]) if match[1] else math.ceil(whole * percent / 100 - 1e-9)


def parse_duration(text: str | float) -> float:
    """Return seconds: '90s', '10m', '4h', '250ms', Slurm's '1-02:00:00' and '01:30:00', or a number.

    Slurm reads a bare number as minutes; here it is always seconds. ValueError also beyond Slurm's longest time.

    >>> parse_duration("01:30:00"), parse_duration("10m"), parse_duration("90")
    (5400.0, 600.0, 90.0)
    """
    if isinstance(text, (int, float)):
        return float(text)
    if len(text) > _LONGEST:  # float() returns infinity for that many digits
        raise ValueError(f"not a duration: {text[:40]!r}...: too long")
    seconds = _seconds(text)
    if seconds > LONGEST:
        raise ValueError(f"{text!r} is longer than Slurm can count: at most {LONGEST}s (68 years)")
    return seconds


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match:
        number, unit = match.groups()
        unit = unit.lower()
        return float(number) * _SECONDS["ms" if unit == "ms" else unit[0]]
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _SLURM_TIME.fullmatch(text.strip())
    if not match or (match[1] is None and match[3] is None):
        raise ValueError(f"not a duration: {text!r} (write it like 90s, 10m, 4h or Slurm's 1-02:00:00)")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None:  # D-HH[:MM[:SS]]
        return float(days * 86400 + first * 3600 + second * 60 + third)
    if match[4] is not None:  # HH:MM:SS
        return float(first * 3600 + second * 60 + third)
    return float(first * 60 + second)  # MM:SS


def parse_option_time(text: str) -> float:
    """Return seconds of a command line's time, which needs a unit: a bare number means minutes to Slurm's commands."""
    bare = text.strip()
    if bare.isascii() and bare.isdecimal():
        raise ValueError(f"{text!r} has no unit: write {bare}s, {bare}m, {bare}h or {bare}d")
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError(f"must be greater than 0, not {text!r}")
    return seconds


def parse_node_hours(text: str) -> float:
    """Return seconds of nodes: '40nodeh' is 40 hours of one node.

    >>> parse_node_hours("0.5nodeh")
    1800.0
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?nodeh", text.strip(), re.ASCII)
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a number of node-hours greater than 0; write it like 40nodeh")
    return float(match[1]) * 3600


def format_duration(seconds: float) -> str:
    """Write seconds for people: 0.25 s, 12 s, 3 min 5 s, 2 h 10 min, 4 d 3 h."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def slurm_time(seconds: float) -> str:
    """Write seconds as Slurm's D-HH:MM:SS."""
    whole = round(seconds)
    return f"{whole // 86400}-{whole % 86400 // 3600:02}:{whole % 3600 // 60:02}:{whole % 60:02}"


def parse_bandwidth(text: str | float) -> float:
    """Return GB/s (10**9 bytes per second): '26.562 GB/s', '400 Gb/s' (50.0), '100Gbps', or a number.

    >>> parse_bandwidth("400 Gb/s"), parse_bandwidth("365 GB/s"), parse_bandwidth("365")
    (50.0, 365.0, 365.0)
    """
    if isinstance(text, (int, float)):
        return float(text)
    if len(text) > _LONGEST:
        raise ValueError(f"not a bandwidth: {text[:40]!r}...: too long")
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _RATE.fullmatch(text)
    if not match:
        raise ValueError(f"not a bandwidth: {text!r} (write it like 365 GB/s or 400 Gb/s)")
    number, prefix, what = match.groups()
    factor = _DECIMAL[prefix] if prefix else 1
    return float(number) * factor / 1e9 / (1 if what == "B" else 8)


def cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs in a list of the kernel or lscpu, none for ''; ValueError for another text: no CPU may be missed.

    >>> sorted(cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    cpus: set[int] = set()
    total = 0
    for part in filter(None, text.strip().split(",")):
        match = _CPUS.fullmatch(part.strip())
        if not match:
            raise ValueError(f"not a CPU list: {text[:40]!r}")
        span = range(int(match[1]), int(match[2] or match[1]) + 1)
        total += len(span)
        if total > MAX_CPUS:
            raise ValueError(f"a CPU list of more than {MAX_CPUS} CPUs: {text[:40]!r}")
        cpus.update(span)
    return frozenset(cpus)
