"""Records of crashes and unclean boots: the reader, and os.crashes on machines that were considered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from counter_examples import MONITOR, PASSED, WARNING
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import answer, run

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.suites.os.checks.crashes import crashes
from pytest_gpucluster.suites.os.crash_facts import CRASHES, Crashes, CrashRecord, read_crashes
from pytest_gpucluster.suites.os.facts import Clock

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0
NOW = 1_705_000_000.0  # Thu Jan 11 19:06:40 2024
RUNNING = "reboot   system boot  5.15.0-91-generi Mon Jan  8 10:00:00 2024   still running\n"
DOWN = "shutdown system down  5.15.0-91-generi Mon Jan  8 09:58:00 2024 - Mon Jan  8 10:00:00 2024  (00:02)\n"
BEFORE = "reboot   system boot  5.15.0-91-generi Fri Dec  1 09:00:00 2023 - Mon Jan  8 09:58:00 2024 (38+00:58)\n"
WTMP = "\nwtmp begins Fri Dec  1 09:00:00 2023\n"
BOOTED = 1_704_708_000.0
HIDDEN = "find: '/sys/fs/pstore': Permission denied\n"
ABSENT = "find: '/var/crash': No such file or directory\n"
NO_LAST = "sh: 1: last: not found\n"
DUMP = "/var/crash/202401111940/dump.202401111940"


def found_in(text: str) -> Crashes:
    return read_crashes(answer(f"{text}end\n"))


def test_a_boot_after_a_boot_is_unclean_and_what_no_user_may_read_is_not_checked() -> None:
    assert found_in(RUNNING + BEFORE + WTMP) == Crashes((), (BOOTED,))
    for text in (RUNNING + DOWN + BEFORE + WTMP, RUNNING + WTMP, HIDDEN + RUNNING + WTMP, ABSENT + NO_LAST):
        assert found_in(text) == Crashes()  # wtmp may begin with the boot
    with pytest.raises(NotAvailable, match="sudo: true"):
        found_in(HIDDEN + ABSENT + NO_LAST)
    with pytest.raises(ProbeError):
        read_crashes(answer(RUNNING))


def test_the_parts_of_a_record_are_one_crash() -> None:
    parts = "".join(f"file {NOW - 100 + n:.0f}.25 /sys/fs/pstore/dmesg-efi-17049{n}\n" for n in range(3))
    dump = f"file {NOW:.0f} /var/crash/127.0.0.1-2024-01-11-19:06:40/vmcore\n"
    assert found_in(f"file {NOW + 2000:.0f} {DUMP}\n{dump}{parts}").records == (
        CrashRecord(NOW - 99.75, "/sys/fs/pstore/dmesg-efi-170490"),
        CrashRecord(NOW + 2000, DUMP),
    )


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
    for file in (*kept, *other, "etc/kdump.conf"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x")
    (tmp_path / "etc/kdump.conf").write_text(f"# comment\next4 LABEL=x\npath {tmp_path}/data/crash\n")
    command = CRASHES.command
    for top in ("/sys/fs", "/var/lib", "/var/crash", "/etc/kdump"):
        command = command.replace(top, f"{tmp_path}{top}")
    lines = run(command).out.splitlines()
    found = {line.split(" ", 2)[2] for line in lines if line.startswith("file ")}
    assert found == {f"{tmp_path}/{file}" for file in kept}


def judge(*records: tuple[float, str], unclean: tuple[float, ...] = (), good: float = 1e4) -> Verdict:
    """Judge a node whose records, unclean boots and last good run are so many days old."""
    found = tuple(CrashRecord(NOW - days * DAY, path) for days, path in records)
    return crashes(Crashes(found, tuple(NOW - days * DAY for days in unclean)), Clock(NOW), NOW - good * DAY)


VMCORE, PSTORE = "/var/crash/127.0.0.1-2024-01-09/vmcore", "/sys/fs/pstore/dmesg-erst-1"
MACHINES: Machines = {
    ("os.crashes", judge): [
        ("no record | an empty /sys/fs/pstore", PASSED),
        ("a dump of last year was never removed | /var/crash", PASSED, (400, VMCORE)),
        ("it crashed five days ago and works | coreos/docs, pull request 874", WARNING, (5, PSTORE)),
        ("a person tested kdump twice | sysrq-trigger", WARNING, (2, VMCORE), (2.1, VMCORE)),
        ("reset at its delivery | ipmitool power cycle", WARNING, lambda: judge(unclean=(1, 1.1, 1.2, 1.3))),
        ("three crashes, before a repair | RMA", WARNING, (15, VMCORE), (16, VMCORE), (17, VMCORE)),
        ("sick: it crashes every other day | kdump", MONITOR, (1, VMCORE), (3, VMCORE), (5, VMCORE)),
    ]
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


def test_a_crash_before_the_last_good_run_is_no_news_but_three_in_a_week_are() -> None:
    assert judge((5, VMCORE), unclean=(5,), good=4).advisories == ()
    new = judge((5, VMCORE), (3, PSTORE), unclean=(5, 3), good=4)
    assert [str(one.expected).endswith("at 2024-01-07T19:06:40Z") for one in new.advisories] == [True, True]
    assert len(judge((1, VMCORE), (3, VMCORE), (5, VMCORE), good=0.5).findings) == 1
    # the last crash is named with its time
    record, boot = judge((20, "/old"), (5, VMCORE), unclean=(5,)).advisories
    assert all("2024-01-06T19:06:40Z" in str(it.measured) for it in (record, boot))
    assert (VMCORE in str(record.measured), VMCORE in str(boot.measured)) == (True, False)
