"""Records of crashes and unclean boots: the reader, and os.crashes on machines that were considered."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from counter_examples import MONITOR, PASSED, WARNING, CounterExample, assert_as_expected, name

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.checks.crashes import crashes
from pytest_gpucluster.suites.os.crash_facts import CRASHES, Crashes, CrashRecord, read_crashes
from pytest_gpucluster.suites.os.facts import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict

DAY = 86_400.0
NOW = 1_705_000_000.0  # Thu Jan 11 19:06:40 2024
RUNNING = "reboot   system boot  5.15.0-91-generi Mon Jan  8 10:00:00 2024   still running\n"
DOWN = "shutdown system down  5.15.0-91-generi Mon Jan  8 09:58:00 2024 - Mon Jan  8 10:00:00 2024  (00:02)\n"
BEFORE = (
    "reboot   system boot  5.15.0-91-generi Fri Dec  1 09:00:00 2023 - Mon Jan  8 09:58:00 2024 (38+00:58)\n"
)
WTMP = "\nwtmp begins Fri Dec  1 09:00:00 2023\n"
BOOTED = 1_704_708_000.0
HIDDEN = "find: '/sys/fs/pstore': Permission denied\n"
ABSENT = "find: '/var/crash': No such file or directory\n"


def said(text: str) -> Answer:
    return Answer("n1", 0, f"{text}end\n".encode())


def test_a_boot_after_a_boot_is_unclean() -> None:
    assert read_crashes(said(RUNNING + DOWN + BEFORE + WTMP)) == Crashes()
    assert read_crashes(said(RUNNING + BEFORE + WTMP)) == Crashes((), (BOOTED,))
    assert read_crashes(said(RUNNING + WTMP)) == Crashes()  # wtmp begins with it


def test_the_parts_of_a_record_are_one_crash() -> None:
    parts = "".join(f"file {NOW - 100 + n:.0f}.25 /sys/fs/pstore/dmesg-efi-17049{n}\n" for n in range(3))
    dump = f"file {NOW:.0f} /var/crash/127.0.0.1-2024-01-11-19:06:40/vmcore\n"
    later = f"file {NOW + 2000:.0f} /var/crash/202401111940/dump.202401111940\n"
    found = read_crashes(said(later + dump + parts))
    assert found.records == (
        CrashRecord(NOW - 99.75, "/sys/fs/pstore/dmesg-efi-170490"),
        CrashRecord(NOW + 2000, "/var/crash/202401111940/dump.202401111940"),
    )


def test_what_no_user_may_read_is_not_checked() -> None:
    with pytest.raises(NotAvailable, match="sudo: true"):
        read_crashes(said(HIDDEN + ABSENT + "sh: 1: last: not found\n"))
    assert read_crashes(said(HIDDEN + RUNNING + WTMP)) == Crashes()
    assert read_crashes(said(ABSENT + "sh: 1: last: not found\n")) == Crashes()
    with pytest.raises(ProbeError):
        read_crashes(Answer("n1", 0, RUNNING.encode()))


def test_the_command_finds_the_files_of_each_distribution(tmp_path: Path) -> None:
    kept = (
        "sys/fs/pstore/dmesg-erst-6319986351055831043",
        "var/lib/systemd/pstore/1705000000/001/dmesg.txt",
        "var/crash/127.0.0.1-2024-01-11-19:06:40/vmcore",
        "var/crash/202401111940/dump.202401111940",
        "data/crash/host/vmcore.flat",
    )
    other = (
        "sys/fs/pstore/console-ramoops-0",
        "var/crash/127.0.0.1-2024-01-11-19:06:40/vmcore-dmesg.txt",
        "var/crash/_usr_bin_python3.1000.crash",
        "var/crash/kdump_lock",
    )
    for file in (*kept, *other):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/kdump.conf").write_text(f"# comment\next4 LABEL=x\npath {tmp_path}/data/crash\n")
    command = CRASHES.command
    for top in ("/sys/fs", "/var/lib", "/var/crash", "/etc/kdump"):
        command = command.replace(top, f"{tmp_path}{top}")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    found = {line.split(" ", 2)[2] for line in done.stdout.splitlines() if line.startswith("file ")}
    assert found == {f"{tmp_path}/{file}" for file in kept}


# --- machines that were considered


def judge(*records: tuple[float, str], unclean: tuple[float, ...] = (), good: float = 1e4) -> Verdict:
    """Judge a node whose records, unclean boots and last good run are so many days old."""
    found = tuple(CrashRecord(NOW - days * DAY, path) for days, path in records)
    return crashes(Crashes(found, tuple(NOW - days * DAY for days in unclean)), Clock(NOW), NOW - good * DAY)


VMCORE, PSTORE = "/var/crash/127.0.0.1-2024-01-09/vmcore", "/sys/fs/pstore/dmesg-erst-1"
HEALTHY = (
    ("os.crashes", "no record", "an empty /sys/fs/pstore", PASSED, judge),
    ("os.crashes", "a dump of last year was never removed", "/var/crash", PASSED, lambda: judge((400, VMCORE))),
    ("os.crashes", "it crashed five days ago and works", "https://github.com/coreos/docs/pull/874", WARNING, lambda: judge((5, PSTORE))),
    ("os.crashes", "a person tested kdump with sysrq twice", "echo c > /proc/sysrq-trigger", WARNING, lambda: judge((2, VMCORE), (2.1, VMCORE))),
    ("os.crashes", "reset through the BMC at its delivery, many times", "ipmitool power cycle", WARNING, lambda: judge(unclean=(1, 1.1, 1.2, 1.3))),
    ("os.crashes", "three crashes, before a repair two weeks ago", "RMA", WARNING, lambda: judge((15, VMCORE), (16, VMCORE), (17, VMCORE))),
)  # fmt: skip
SICK = (
    ("os.crashes", "it crashes every other day", "kdump", MONITOR, lambda: judge((1, VMCORE), (3, VMCORE), (5, VMCORE))),
    ("os.crashes", "it panics in the driver after each boot", "pstore", MONITOR, lambda: judge((0.1, PSTORE), (0.2, PSTORE), (0.3, PSTORE), unclean=(0.1, 0.2))),
)  # fmt: skip
COUNTER_EXAMPLES = tuple(
    CounterExample(*row, sick=sick) for rows, sick in ((HEALTHY, False), (SICK, True)) for row in rows
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)


def test_a_crash_before_the_last_good_run_is_no_news_but_three_in_a_week_are() -> None:
    assert judge((5, VMCORE), unclean=(5,), good=4).advisories == ()
    new = judge((5, VMCORE), (3, PSTORE), unclean=(5, 3), good=4)
    assert [one.expected.endswith("at 2024-01-07T19:06:40Z") for one in new.advisories] == [True, True]
    assert len(judge((1, VMCORE), (3, VMCORE), (5, VMCORE), good=0.5).findings) == 1


def test_the_last_crash_is_named_with_its_time() -> None:
    verdict = judge((20, "/old"), (5, VMCORE), unclean=(5,))
    assert [("2024-01-06T19:06:40Z" in it.measured, VMCORE in it.measured) for it in verdict.advisories] == [
        (True, True),
        (True, False),
    ]
