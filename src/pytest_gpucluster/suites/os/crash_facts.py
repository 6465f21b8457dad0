"""Records of kernel crashes, and boots that no shutdown preceded.

Formats: Documentation/admin-guide/pstore-blk.rst and systemd-pstore.service(8), kdump.conf(5), kdump-config(8), last(1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.core.scripts import script

ONE_CRASH = 900.0  # seconds; pstore writes a record in parts, and kdump writes after it


@dataclass(frozen=True)
class CrashRecord:
    """A crash of the kernel: seconds since the epoch, and the file that shows it."""

    time: float
    path: str


@dataclass(frozen=True)
class Crashes:
    """What a node shows of its past. `unclean`: times of boots that no shutdown preceded; both in the order of time."""

    records: tuple[CrashRecord, ...] = ()
    unclean: tuple[float, ...] = ()


_BOOT = re.compile(r"^(reboot|shutdown)\s+system (?:boot|down)\s+\S+\s+(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})")


def read_crashes(answer: Answer) -> Crashes:
    """Read the output of crashes.sh; NotAvailable if the user could read neither the folders nor wtmp."""
    lines = answer.out.splitlines()
    if "end" not in lines:
        raise ProbeError("records of crashes: the answer ended early")
    found = [
        CrashRecord(float(match[1]), match[2])
        for line in lines
        if (match := re.fullmatch(r"file (\d{1,12}(?:\.\d+)?) (/.+)", line))
    ]
    ends = [match.groups() for line in lines if (match := _BOOT.match(line))]
    hidden = [line for line in lines if line.startswith("find: ") and "Permission denied" in line]
    if not ends and not found and hidden:
        raise NotAvailable(f"{hidden[0]}; last shows no boot: set sudo: true in the cluster file")
    return Crashes(_distinct(found), _unclean(ends))


def _distinct(found: list[CrashRecord]) -> tuple[CrashRecord, ...]:
    """Return the first record of each crash."""
    distinct: list[CrashRecord] = []
    latest = 0.0
    for record in sorted(found, key=lambda one: one.time):
        if not distinct or record.time - latest > ONE_CRASH:
            distinct.append(record)
        latest = record.time
    return tuple(distinct)


def _unclean(ends: list[tuple[str, ...]]) -> tuple[float, ...]:
    """Return the times of boots that another boot precedes, of records with the newest first."""
    boots = [when for (kind, when), (before, _) in pairwise(ends) if kind == before == "reboot"]
    return tuple(sorted(map(_seconds, boots)))


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=timezone.utc).timestamp()


CRASHES: Probe[Crashes] = Probe(
    "records of crashes",
    script(__package__, "crashes.sh"),
    read_crashes,
    root=True,
    by_hand="ls -lR /sys/fs/pstore /var/lib/systemd/pstore /var/crash; last -x -F reboot shutdown | head",
)
