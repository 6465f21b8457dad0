"""The five classes: what the kernel log may decide on a node, and that all else is shown. Logs are folded as a node folds its own."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from counter_examples import DRAIN, MONITOR, NOT_CHECKED, PASSED, REBOOT, STAYS, WARNING, CounterExample, result
from judged import parts
from kernel_logs import fold, fold_raw
from suite_helpers import considered

from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog
from pytest_gpucluster.kit.node.log_classes import CORRECTED
from pytest_gpucluster.suites.os.checks.kernel_log import PartsNow, kernel_log
from pytest_gpucluster.suites.os.device_facts import Devices, Drive, PciFunction
from pytest_gpucluster.suites.os.facts import Mount

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

USB = "usb 1-1: new device"
UE = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x7740c0)"
CHECKED = "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134"
PAGE = "Memory failure: 0x3f8e65: recovery action for dirty LRU page: Recovered"
KILLED = "Memory failure: 0x3f8e65: Sending SIGBUS to python:4711 due to hardware memory corruption"
RECORD = ("event severity: {}", "Error 0, type: {}", "fru_text: B1", "section_type: memory error")
INJECTING = "Injecting memory failure for pfn 0x3f8e65 at process virtual address 0x7f"
OOPS = "BUG: kernel NULL pointer dereference, address: 0000000000000008"
COUNTED = "Oops: 0002 [#1] SMP NOPTI"
DISABLED = "nvme nvme1: Disabling device after reset failure: -19"
READ_ONLY = "EXT4-fs (nvme1n1p1): Remounting filesystem read-only"
ON_LOOP = READ_ONLY.replace("nvme1n1p1", "loop0")
ON_VOLUME = READ_ONLY.replace("nvme1n1p1", "dm-3")
JOURNAL = "Aborting journal on device nvme1n1p1-8."
XFS = "XFS (nvme1n1): Filesystem has been shut down due to log error (0x2)."
LOST = "md/raid1:md0: Disk failure on sda1, disabling device."
HEALTH = "mlx5_core 0000:2b:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count"
PROBE = "mlx5_core: probe of 0000:2b:00.0 failed with error -22"
CE = "EDAC MC1: {} CE memory read error on CPU_SrcID#1_Chan#1_DIMM#1 (channel:1 slot:1 page:0x0)"
AER = "{} 0000:{:02x}:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
XID_94 = "NVRM: Xid (PCI:0009:01:00): 94, pid=4711, name=python, Contained: SM (0x1)"


def late(*lines: str) -> list[str]:
    """Return the lines as they are printed after the first minute of the boot."""
    return [*[USB] * 61, *lines]


def record(severity: str) -> list[str]:
    return [f"{{1}}[Hardware Error]: {words.format(severity)}" for words in RECORD]


UNREAD = PartsNow()


def verdict_of(log: KernelLog, now: PartsNow = UNREAD, known: tuple[KnownLine, ...] = ()) -> Verdict:
    return kernel_log(log, now, known)


def shown(verdict: Verdict) -> str:
    return " | ".join(str(it.measured) for it in (*verdict.findings, *verdict.advisories))


@pytest.mark.parametrize(
    ("lines", "expected", "part"),
    [
        # 1: uncorrected errors of memory and processors
        ([UE], DRAIN, "CPU_SrcID#0_Chan#1_DIMM#0"),
        ([CHECKED], DRAIN, "CPU 12: Machine Check: 0 Bank 7"),
        ([KILLED], DRAIN, "memory"),
        ([CHECKED, PAGE, UE], DRAIN, "CPU_SrcID#0_Chan#1_DIMM#0"),  # one fault, named from all its lines
        ([UE, UE.replace("DIMM#0", "DIMM#1")], DRAIN, "CPU_SrcID#0_Chan#1_DIMM#0, CPU_SrcID#0_Chan#1_DIMM#1"),
        (record("fatal"), DRAIN, "B1"),
        (record("recoverable"), MONITOR, "B1"),
        ([PAGE], MONITOR, "memory"),
        (["mce: Machine check injector initialized", CHECKED], WARNING, ""),
        ([INJECTING, PAGE], WARNING, ""),
        ([XID_94, PAGE], WARNING, ""),  # memory of a GPU
        ([XID_94, *[USB] * 61, PAGE], MONITOR, "memory"),
        ([KILLED, XID_94.replace(" 94,", " 43,")], DRAIN, "memory"),  # the program that was killed used a GPU
        ([INJECTING, *[USB] * 61, PAGE], MONITOR, "memory"),
        # 2: crashes
        ([OOPS, COUNTED], REBOOT, "kernel"),
        (["LustreError: 3341:0:(osc_cache.c:1014:osc_extent_truncate()) LBUG"], REBOOT, "kernel"),
        # 4: parts that the kernel gave up
        ([HEALTH], MONITOR, "0000:2b:00.0"),
        ([HEALTH, "mlx5_core 0000:2b:00.0: health recovery succeeded"], WARNING, "0000:2b:00.0"),
        ([HEALTH, "mlx5_core 0000:2c:00.0: health recovery succeeded"], MONITOR, "0000:2b:00.0"),
        (["mlx5_core 0000:2b:00.0: health recovery succeeded", HEALTH], MONITOR, "0000:2b:00.0"),
        ([DISABLED, READ_ONLY], MONITOR, "nvme1"),
        ([DISABLED, "nvme nvme1: 16/0/0 default/read/poll queues"], WARNING, "nvme1"),
        ([LOST], MONITOR, "md0"),
        ([LOST, "md: md0: recovery done."], WARNING, "md0"),
        ([LOST, "md: md1: recovery done."], MONITOR, "md0"),
        ([ON_LOOP], WARNING, "loop0"),
        # 5: storms
        ([CE.format(32767)], MONITOR, "CPU_SrcID#1_Chan#1_DIMM#1"),
        ([CE.format(60), CE.format(60).replace("read", "scrubbing")], MONITOR, "CPU_SrcID#1_Chan#1_DIMM#1"),
        ([CE.format(99)], WARNING, ""),
        ([AER.format("nvidia", 16)] * 100, MONITOR, "0000:10:00.0"),
        ([AER.format("nvidia", 16)] * 99, WARNING, ""),
        ([AER.format("nvidia", 16 + n % 6) for n in range(120)], WARNING, ""),  # devices are counted apart
        ([AER.format("iwlwifi", 16)] * 150, WARNING, ""),
    ],
)
def test_the_five_classes(tmp_path: Path, lines: list[str], expected: str, part: str) -> None:
    verdict = verdict_of(fold(tmp_path, *late(*lines)))
    assert result(verdict) == expected
    if verdict.findings or part:
        (found,) = verdict.findings or verdict.advisories[:1]
        assert str(found.part) == part


def test_an_error_of_the_first_minute_is_of_the_boot_before_and_a_crash_is_not(tmp_path: Path) -> None:
    verdict = verdict_of(fold(tmp_path, CHECKED, PAGE))
    assert result(verdict) == WARNING
    assert "of the boot before" in shown(verdict)
    assert result(verdict_of(fold(tmp_path, CHECKED, *[USB] * 61, CHECKED))) == DRAIN
    assert result(verdict_of(fold(tmp_path, OOPS))) == REBOOT


@pytest.mark.parametrize(
    ("count", "last", "bad"),
    [
        (100, 86400.0, True),
        (100, 86401.0, False),
        (199, 2 * 86400.0, False),
        (200, 2 * 86400.0, True),
        (100, None, True),
    ],
)
def test_corrected_errors_are_counted_for_each_day(count: int, last: float | None, *, bad: bool) -> None:
    log = KernelLog("dmesg", 900, 0.0, None, (Event(CORRECTED, count, 0.0, last, CE.format(1)),))
    assert (result(verdict_of(log)) == MONITOR) is bad


# --- what belongs together


def test_one_fault_hides_no_other(tmp_path: Path) -> None:
    lines = (UE, *[USB] * 90, HEALTH, HEALTH.replace("2b", "3b"), OOPS, XFS)
    verdict = verdict_of(fold(tmp_path, *late(*lines)))
    named = ("CPU_SrcID#0_Chan#1_DIMM#0", "0000:2b:00.0", "0000:3b:00.0", "nvme1n1")
    assert {*parts(verdict)} == {*named, "kernel"}
    assert result(verdict) == DRAIN


def test_an_excuse_of_one_line_is_none_of_another_line_of_its_fault(tmp_path: Path) -> None:
    early = [*[USB] * 40, CHECKED, *[USB] * 30]
    assert result(verdict_of(fold(tmp_path, *early, PAGE))) == MONITOR
    storm = verdict_of(fold(tmp_path, UE, UE.replace(" 1 UE", " 150 CE")))
    assert (result(storm), storm.findings[0].code) == (MONITOR, "corrected_errors")
    used = (DISABLED, "nvme nvme1: 16/0/0 default/read/poll queues")
    assert result(verdict_of(fold(tmp_path, *late(*used)), PartsNow(NVME_MOUNT, devices("dead")))) == DRAIN


def test_a_line_of_the_same_part_within_a_minute_is_shown_under_the_fault(tmp_path: Path) -> None:
    error = "I/O error, dev nvme1n1, sector 4711 op 0x1:(WRITE)"
    other = error.replace("nvme1n1", "nvme2n1")
    verdict = verdict_of(fold(tmp_path, *late(DISABLED, error, other, *[USB] * 60, f"{error} again")))
    (found,), (rest,) = ([str(it.measured) for it in of] for of in (verdict.findings, verdict.advisories))
    assert (error in found, other in found, "again" in found) == (True, False, False)
    assert (f"{error} (" in rest, other in rest, "again" in rest) == (False, True, True)


def test_a_finding_quotes_some_lines_and_counts_the_others(tmp_path: Path) -> None:
    errors = [f"nvme nvme1: {word} failed" for word in ("write", "read", "flush", "trim", "query")]
    (found,) = verdict_of(fold(tmp_path, *late(DISABLED, *errors))).findings
    assert str(found.measured).count("; with ") == 3
    assert str(found.measured).endswith("; 2 more")
    assert found.code == "gave_up"


# --- what the part's own check read


def mounted(source: str, fstype: str, options: str) -> dict[str, Mount]:
    root = Mount("/dev/sda2", "/", "ext4", ("rw",))
    return {"/": root, "/raid": Mount(source, "/raid", fstype, tuple(options.split(",")))}


def devices(state: str = "live", degraded: str = "", driver: str = "mlx5_core") -> Devices:
    functions = (PciFunction("0000:2b:00.0", "0207", "15b3:1021", None, driver),)
    arrays = {"md0": degraded} if degraded else {}
    drives = (Drive("nvme1", "Micron", "1", state),) if state != "absent" else ()
    return Devices(functions, drives, ("md0",), arrays, frozenset())


RO_NOW, LACKS, DEAD_NOW = "/raid is read-only now", "/proc/mdstat: md0 [U_]", "nvme1 is dead now"
NVME_MOUNT = mounted("/dev/nvme1n1p1", "ext4", "rw")


@pytest.mark.parametrize(
    ("line", "now", "expected", "words"),
    [
        (READ_ONLY, PartsNow(mounted("/dev/nvme1n1p1", "ext4", "ro")), DRAIN, "/raid is read-only now"),
        (READ_ONLY, PartsNow(mounted("/dev/nvme1n1p1", "ext4", "rw,emergency_ro")), DRAIN, RO_NOW),
        (READ_ONLY, PartsNow(NVME_MOUNT), WARNING, "/raid can be written to now"),
        (READ_ONLY, PartsNow(mounted("/dev/sdb1", "ext4", "ro")), WARNING, "it is not mounted now"),
        (READ_ONLY, PartsNow(None, devices()), MONITOR, ""),
        (ON_LOOP, PartsNow(mounted("/dev/loop0", "ext4", "ro")), WARNING, "no disk of the node"),
        # mounted by another name
        (READ_ONLY, PartsNow(mounted("/dev/root", "ext4", "ro")), DRAIN, "/raid is read-only now"),
        (JOURNAL, PartsNow(mounted("/dev/root", "ext4", "ro")), DRAIN, "/raid is read-only now"),
        (READ_ONLY, PartsNow(mounted("/dev/root", "ext4", "rw")), MONITOR, ""),
        (READ_ONLY, PartsNow(mounted("/dev/root", "squashfs", "ro")), MONITOR, ""),  # an image
        (ON_VOLUME, PartsNow(mounted("/dev/mapper/vg-raid", "ext4", "ro")), DRAIN, "/raid is read-only now"),
        (ON_VOLUME, PartsNow(mounted("/dev/mapper/vg-raid", "xfs", "ro")), MONITOR, ""),
        (ON_VOLUME, PartsNow(NVME_MOUNT), MONITOR, ""),
        (XFS, PartsNow(mounted("/dev/nvme1n1", "xfs", "rw")), MONITOR, ""),  # its mount shows no shutdown
        (LOST, PartsNow(None, devices(degraded="md0 [U_]")), MONITOR, "/proc/mdstat: md0 [U_]"),
        (LOST, PartsNow(mounted("/dev/md0", "ext4", "rw"), devices(degraded="md0 [U_]")), MONITOR, LACKS),
        (LOST, PartsNow(None, devices()), WARNING, "no array lacks a member now"),
        (DISABLED, PartsNow(NVME_MOUNT, devices("dead")), DRAIN, "nvme1 is dead now"),
        (DISABLED, PartsNow(NVME_MOUNT, devices("absent")), DRAIN, "nvme1 is absent now"),
        (DISABLED, PartsNow(mounted("/dev/nvme11n1", "ext4", "rw"), devices("dead")), MONITOR, DEAD_NOW),
        (DISABLED, PartsNow(NVME_MOUNT, devices("live")), WARNING, "nvme1 is live now"),
        (DISABLED, PartsNow(NVME_MOUNT, devices("")), MONITOR, ""),
        (PROBE, PartsNow(None, devices()), WARNING, "driver mlx5_core uses it now"),
        (PROBE, PartsNow(None, devices(driver="")), MONITOR, "no driver uses it now"),
        (PROBE.replace("2b", "3b"), PartsNow(None, devices()), MONITOR, ""),
        (HEALTH, PartsNow(None, devices()), MONITOR, ""),  # the driver keeps an adapter that does not answer
    ],
)
def test_the_parts_check_decides(tmp_path: Path, line: str, now: PartsNow, expected: str, words: str) -> None:
    verdict = verdict_of(fold(tmp_path, *late(line)), now)
    assert result(verdict) == expected
    text = str((verdict.findings or verdict.advisories)[0].measured)
    assert text.endswith(f"; {words}" if words else ")")


# --- everything else


def test_all_other_errors_are_one_warning_with_count_and_time(tmp_path: Path) -> None:
    logged = ((3, "a"), (2, "b"), (3, "a"), (4, "c"))
    lines = [f"<{level}>[ 10{at}.0] {it}: failed" for at, (level, it) in enumerate(logged)]
    (warning,) = verdict_of(fold_raw(tmp_path, "[ 0.0] Linux\n" + "\n".join(lines) + "\n")).advisories
    shown = "b: failed (1 time, last 101 s after boot); a: failed (2 times, last 102 s after boot)"
    assert (warning.code, str(warning.measured)) == ("other_errors", f"3 other lines: {shown}")


def test_what_the_warning_has_no_room_for_is_a_remark(tmp_path: Path) -> None:
    errors = [f"driver{chr(97 + n)}: {'x' * 100} failed" for n in range(9)]
    verdict = verdict_of(fold(tmp_path, *late(*errors)))
    (warning,) = (str(it.measured) for it in verdict.advisories)
    quoted = warning.count(" time, last ")
    assert 1 < quoted < 9
    assert warning.endswith(f"; {10 - quoted} more kinds")
    assert len(verdict.remarks) == 10 - quoted
    flood = replace(fold(tmp_path, *late(errors[0])), unsent_errors=7)
    assert shown(verdict_of(flood)).endswith("; 7 more kinds")


def test_faults_that_were_not_read_are_not_checked(tmp_path: Path) -> None:
    log = fold(tmp_path, USB)
    assert result(verdict_of(log)) == PASSED
    assert result(verdict_of(replace(log, unsent=1))) == NOT_CHECKED


def test_what_the_cluster_file_knows_decides_first(tmp_path: Path) -> None:
    def entry(**values: str) -> KnownLine:
        return KnownLine.model_validate({"meaning": "cable of rack 7", "reason": "T-1", **values})

    log = replace(log := fold(tmp_path, UE), events=log.events[-1:])
    assert result(verdict_of(log, known=(entry(pattern="DIMM#0"),))) == PASSED
    warning = verdict_of(log, known=(entry(pattern="UE", action="warn"),))
    assert (result(warning), "cable of rack 7 (known: T-1)" in shown(warning)) == (WARNING, True)
    rebooting = verdict_of(log, known=(entry(pattern="UE", action="reboot"),))
    assert (result(rebooting), rebooting.findings[0].setting) == (REBOOT, "known")
    assert parts(rebooting) == ["CPU_SrcID#0_Chan#1_DIMM#0"]


# --- machines that were considered


def machine(what: str, source: str, expected: str, *lines: str) -> CounterExample:
    """Return the check of a machine with this log."""

    def verdict() -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            return verdict_of(fold(Path(folder), *late(*lines)))

    return CounterExample("os.kernel_log", what, source, expected, verdict, sick=expected not in STAYS)


STALL = "nfs: server fs1 not responding, timed out"
SOFT = "watchdog: BUG: soft lockup - CPU#3 stuck for 52s! [python:4711]"
LIMIT = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9900kB, anon-rss:900kB, UID:1000"
ROOT = "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: errors=remount-ro. Quota mode: none."
TIMEOUT = "nvme nvme3: I/O 12 QID 3 timeout, completion polled"
COUNTER_EXAMPLES = (
    machine("Debian's root", "ext4(5): errors", WARNING, ROOT),
    machine("one corrected memory error", "edac_mc.c: edac_ce_error", WARNING, CE.format(1)),
    machine("a file server that was rebooted", "nfs(5): soft", WARNING, STALL, "nfs: server fs1 OK"),
    machine("a guest whose host stood still", "kernel/watchdog.c", WARNING, SOFT),
    machine("a job at the limit of its memory", "mm/oom_kill.c", WARNING, LIMIT),
    machine("an NVMe command without an interrupt", "nvme/host/pci.c: nvme_timeout", WARNING, TIMEOUT),
    machine("a lost context of a GPU", "drivers/gpu/drm", WARNING, "i915 0000:00:02.0: GuC context corrupt"),
    machine("a memory module lost data", "edac_mc.c: edac_ue_error", DRAIN, UE),
    machine("an oops", "arch/x86/kernel/dumpstack.c", REBOOT, OOPS, COUNTED),
    machine("a drive that was given up", "nvme/host/pci.c: nvme_reset_work", MONITOR, DISABLED),
)
test_a_machine_gets_the_verdict_of_a_person = considered(COUNTER_EXAMPLES)
