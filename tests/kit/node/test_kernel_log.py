"""How a kernel log is folded on the node and read here: every form of it, and what of it is sent."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from kernel_logs import fold, fold_raw

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node import kernel_log as probes
from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog, XidEvent, parse
from pytest_gpucluster.kit.node.log_classes import AGAIN, CORRECTED, CRASH, DEVICE, DRIVE, GPU, UNCORRECTED

if TYPE_CHECKING:
    from pathlib import Path

PAGE_FAULT = "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=a, Ch 00000008"
OFF = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=a, GPU has fallen off the bus."
CORRECTABLE = "EDAC MC1: {} CE memory read error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#1 (channel:1 slot:1 page:0x0)"
USB = "usb 1-1: new device"


def texts(log: KernelLog) -> list[str]:
    return [event.text for event in log.events]


def letters(count: int) -> list[str]:
    """Return different names without a number, which would be folded."""
    return [f"{chr(97 + n // 26)}{chr(97 + n % 26)}z" for n in range(count)]


def test_a_log_that_may_not_be_read_names_the_remedy() -> None:
    for error in ("dmesg: read failed: Operation not permitted", "journalctl -k: Permission denied"):
        with pytest.raises(NotAvailable, match="sudo: true"):
            parse(Answer("gpu01", 1, b"", error.encode()))
    with pytest.raises(NotAvailable, match="journalctl -k: empty") as found:
        parse(Answer("gpu01", 1, b"", b"dmesg: empty; journalctl -k: empty"))
    assert "sudo: true" not in str(found.value)
    refused = ("sudo: a password is required", "sh: 1: sudo: not found", "ops is not in the sudoers file.")
    for error in (*refused, "Sorry, user ops is not allowed to execute '/bin/sh -c dmesg' as root on gpu01."):
        with pytest.raises(NotAvailable, match="needs NOPASSWD"):
            parse(Answer("x", 1, b"", error.encode()))


# --- what is sent


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("<3>[ 100.5] usb 1-1: device descriptor read, error -71", True),
        ("<4>[ 100.5] usb 1-1: device descriptor read, error -71", False),
        # its class decides, not its level
        ("<6>[ 100.5] EXT4-fs (sda1): Remounting filesystem read-only", True),
        ("<27>[ 100.5] mydaemon: failed", False),  # level 3 of another facility
        ("kern  :err   : [  100.5] usb 1-1: failed", True),
        ("kern  :warn  : [  100.5] usb 1-1: failed", False),
        ("daemon:err   : [  100.5] mydaemon: failed", False),
        ("[ 100.5] usb 1-1: new device", True),  # without a level
        ("[ 59.5] usb 1-1: new device", False),  # as at each boot
        ("[ 59.5] usb 1-1: failed", True),
        ("usb 1-1: new device", True),
        ("[ 100.5] systemd[1]: x.service: Failed", False),  # of a process
        ("[ 100.5] RIP: 0010:nv_open+0x1/0x2", False),  # of a trace
        ("[ 100.5]  ? nv_open+0x1/0x2", False),
        ("[ 100.5] md: kicking non-fresh sdb1 from array!", True),
        ("[ 100.5] rcu: something", True),
    ],
)
def test_an_error_is_sent_and_information_is_not(tmp_path: Path, line: str, *, sent: bool) -> None:
    assert bool(fold_raw(tmp_path, f"[ 0.0] Linux\n{line}\n").events) is sent


def test_the_gravest_level_of_an_event_is_kept(tmp_path: Path) -> None:
    log = fold_raw(tmp_path, "".join(f"<{n}>[ 10{at}.0] nvme nvme0: failed {n}\n" for at, n in enumerate((3, 1, 2))))
    assert [(event.count, event.level) for event in log.events] == [(3, 1)]
    words = ("emerg", "alert", "crit", "err")
    log = fold_raw(tmp_path, "".join(f"kern  :{it:6}: [ 5.0] nvme {it}: failed\n" for it in words))
    assert [event.level for event in log.events] == [0, 1, 2, 3]
    assert fold(tmp_path, "nvme nvme0: failed").events[0].level is None


def test_the_journal_is_read_where_dmesg_is_forbidden_and_its_errors_have_a_level(tmp_path: Path) -> None:
    lines = {"all": ["a: new", "EXT4-fs (sda1): Remounting filesystem read-only", "b: failed"], "err": ["b: failed"]}
    texts_of = {
        name: "".join(f"[  100.{at}] g kernel: {it}\\n" for at, it in enumerate(lines["all"]) if it in found)
        for name, found in lines.items()
    }
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho 'dmesg: Operation not permitted' >&2\nexit 1\n")
    journal = (
        f'#!/bin/sh\ncase "$*" in (*"-p err"*) printf "{texts_of["err"]}";; (*) printf "{texts_of["all"]}";; esac\n'
    )
    (tmp_path / "journalctl").write_text(journal)
    for tool in ("dmesg", "journalctl"):
        (tmp_path / tool).chmod(0o755)
    probe = probes.kernel_log_of(())
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", probe.command], capture_output=True, env=env, timeout=60, check=True)
    log = probe.parse(Answer("gpu01", 0, done.stdout, done.stderr))
    assert (log.source, log.lines) == ("journalctl", 3)
    assert [(event.text, event.level) for event in log.events] == [(lines["all"][1], 6), ("b: failed", 3)]


def test_a_record_of_the_firmware_is_one_event_with_the_name_of_its_module(tmp_path: Path) -> None:
    words = (
        "Hardware error from APEI Generic Hardware Error Source: 4",
        "event severity: fatal",
        " Error 0, type: fatal",
        "fru_text: Card03, ChnA, DIMM0",
        "section_type: memory error",
    )
    record = [f"{{1}}[Hardware Error]: {it}" for it in words]
    second = [it.replace("{1}", "{2}").replace("DIMM0", "DIMM1") for it in record]
    first, other = fold(tmp_path, *record, USB, *second).events
    dimms = [f"Card03, ChnA, DIMM{number}" for number in (0, 1)]
    assert (first.kind, [first.device, other.device]) == (UNCORRECTED, dimms)
    assert first.text.startswith("[Hardware Error]: event severity: fatal; Error 0, type: fatal; fru_text")
    assert (first.count, first.last) == (1, 5.0)


def test_a_message_of_three_lines_names_its_gpu(tmp_path: Path) -> None:
    """github.com/NVIDIA/NVSentinel/issues/155."""
    gone = ("NVRM: (PCI ID: 10de:26b5) installed in this system has", "NVRM: fallen off the bus and is not responding.")
    lines = ["[ 1843.3] NVRM: The NVIDIA GPU 0000:b3:00.0", *(f"               {it}" for it in gone)]
    (event,) = fold_raw(tmp_path, "\n".join(lines) + "\n").of(GPU)
    assert (event.device, event.last) == ("0000:b3:00.0", 1843.3)
    assert fold_raw(tmp_path, "\n".join(lines[1:]) + "\n").of(GPU)[0].device == ""


def test_lines_of_one_moment_are_one_event_and_printed_numbers_are_added(tmp_path: Path) -> None:
    text = "[ 100.{0:06}] mce: CPU{0}: Package temperature above threshold, cpu clock throttled\n"
    (event,) = fold_raw(tmp_path, "".join(text.format(cpu) for cpu in range(112))).events
    assert event.count == 1
    (event,) = fold(tmp_path, CORRECTABLE.format(128), CORRECTABLE.format(32767)).events
    assert event.count == 32895


@pytest.mark.parametrize(
    ("text", "device", "part"),
    [
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:03:00.0", "0000:03:00.0", "0000:03:00"),
        ("pcieport 0000:00:01.0: bridge above 0000:C3:00.0: x", "0000:00:01.0", "0000:00:01"),
        ("EXT4-fs error (device dm-0): ext4_find_entry", "dm-0", "dm-0"),
        ("EXT4-fs (nvme1n1p2): Remounting filesystem read-only", "nvme1n1p2", "nvme1"),
        ("Aborting journal on device sda2-8.", "sda2", "sda"),
        ("BTRFS: error (device vdb state EA) in x", "vdb", "vdb"),
        ("blk_update_request: I/O error, dev nvme0n1, sector 5", "nvme0n1", "nvme0"),
        ("nvme nvme2: Disabling device after reset failure: -19", "nvme2", "nvme2"),
        ("sd 0:0:9:0: [sdk] tag#915 Sense Key : Medium Error", "sdk", "sdk"),
        ("EDAC MC1: 1 CE error on any memory (csrow:3 channel:1 page:0x7)", "csrow:3 channel:1", "="),
        ("EDAC MC1: 1 UE read on CPU_SrcID#0_DIMM#0 (channel:1 slot:0 x)", "CPU_SrcID#0_DIMM#0", "="),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: bea", "CPU 3: Machine Check: 0 Bank 5", "="),
        ("NVRM: GPU at PCI:0000:1b:00: x", "0000:1b:00", "0000:1b:00"),
        ("NVRM: GPU 0000:1B:00.0: x", "0000:1b:00.0", "0000:1b:00"),
        ("md/raid1:md0: Disk failure on sda1, disabling device.", "md0", "md0"),
        ("WARNING: Pool 'tank' has encountered", "tank", "tank"),
        ("nvidia-nvswitch3: unrecoverable error in ISR", "nvidia-nvswitch3", "nvidia-nvswitch3"),
        ("nvme nvmex: I/O 5 QID 0 timeout", "", ""),
    ],
)
def test_the_device_of_an_event_and_the_part_that_it_belongs_to(text: str, device: str, part: str) -> None:
    event = Event("x", 1, None, None, text)
    assert (event.device, event.part) == (device, device if part == "=" else part)


def at(first: float | None, last: float | None, text: str = "nvme nvme0: x", line: int = 0) -> Event:
    return Event(DRIVE, 1, first, last, text, line)


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        (at(100.0, 100.0), at(160.0, 160.0), True),
        (at(100.0, 100.0), at(160.5, 160.5), False),
        (at(160.5, 160.5), at(100.0, 100.0), False),
        (at(100.0, 7000.0), at(100.0, 100.0), False),  # some of its lines only
        (at(100.0, 100.0), at(100.0, 7000.0), True),
        (at(None, None, line=30), at(None, None), True),  # without times
        (at(None, None, line=31), at(100.0, 100.0), False),
    ],
)
def test_events_are_near_within_a_minute(one: Event, other: Event, *, near: bool) -> None:
    assert one.near(other) is near


def test_what_is_used_again_is_named_by_the_part_of_a_disk() -> None:
    controller, disk = at(5.0, 5.0), at(5.0, 5.0, "EXT4-fs (nvme0n1p2): x")
    again = Event(AGAIN, 1, 9.0, 9.0, "nvme nvme0: 16/0/0 default/read/poll queues", 9)
    assert (controller.is_named_by(again), disk.is_named_by(again)) == (True, True)
    assert not at(5.0, 5.0, "nvme nvme1: x").is_named_by(again)


# --- the fold


def test_a_record_of_an_earlier_boot_is_one_line(tmp_path: Path) -> None:
    bert = "BERT: Error records from previous boot:"
    record = [bert, "[Hardware Error]: event severity: fatal", "[Hardware Error]:  Error 0, type: fatal"]
    assert texts(fold(tmp_path, *record, USB)) == [bert]


def test_a_short_log_of_known_messages_is_a_log_without_times_too(tmp_path: Path) -> None:
    assert len(fold_raw(tmp_path, f"{OFF}\n").xids) == 1
    with pytest.raises(NotAvailable, match="not a kernel log"):
        fold_raw(tmp_path, "No journal files were found.\n")


def test_a_flood_of_other_messages_hides_no_xid_and_no_fault(tmp_path: Path) -> None:
    errors = [f"mlx5_ib {name}: failed" for name in letters(300)]
    faults = [f"EDAC MC0: 1 UE memory read error on {name}" for name in letters(300)]
    log = fold(tmp_path, *errors, *faults, PAGE_FAULT, OFF)
    assert [found.number for found in log.xids] == [31, 79]
    assert len(log.of(UNCORRECTED)) == 200
    assert (log.unsent, log.unsent_xids, log.unsent_errors) == (100, 0, 100)


def test_numbers_and_addresses_make_no_new_event(tmp_path: Path) -> None:
    text = "NVRM: RmInitAdapter failed at 0x{0:x} of {0:08x} (ffff{0:04x}) (pid {0}): a:{1} t={0}"
    events = fold(tmp_path, *(text.format(n, n + 100) for n in range(999))).events
    assert [event.count for event in events] == [999]


def test_the_name_of_a_device_makes_a_new_event(tmp_path: Path) -> None:
    buses = ["nvme0n{}", "sda{}", "md{}", "0000:1b:0{}.0", "GPU{}", "ens{}f0"]
    devices = (*buses, "DIMM#{}", "CPU_SrcID#{}_MC#2", "any (csrow:{} channel:1 page:0x7")
    lines = [f"Buffer I/O error on dev {it.format(n)}, logical block 0" for it in devices for n in range(5)]
    assert [event.text for event in fold(tmp_path, *lines).events] == lines


LINES = [
    "EDAC MC0: 1 UE memory scrubbing error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
    "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bd80000000100134",
    "[Hardware Error]: CPU:0 (19:1:1) MC18_STATUS[-|UE|MiscV|AddrV|-|TCC|SyndV|UECC|-|-|-]: 0xbc2030000000011b",
    "BUG: kernel NULL pointer dereference, address: 0000000000000008",
    "LustreError: 3341:0:(osc_cache.c:1014:osc_extent_truncate()) LBUG",
    "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
    "mlx5_core 0000:1a:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
    "nvidia 0000:3a:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    "nvme nvme0: 63/0/0 default/read/poll queues",
]


@pytest.mark.parametrize("awk", ["mawk", "gawk", "busybox awk", "original-awk"])
def test_the_program_runs_in_every_awk(tmp_path: Path, awk: str) -> None:
    if not shutil.which(awk.split(maxsplit=1)[0]):
        pytest.skip(f"{awk} is not installed")
    (tmp_path / "awk").write_text(f'#!/bin/sh\nexec {awk} "$@"\n')
    (tmp_path / "awk").chmod(0o755)
    kinds = [UNCORRECTED] * 3 + [CRASH] * 2 + [GPU, DEVICE, CORRECTED, AGAIN]
    assert [(e.kind, e.text) for e in fold(tmp_path, *LINES).events] == list(zip(kinds, LINES, strict=True))


STAMP = "[ 1234.114906]"
STAMPED = [f"{STAMP} {{}}", f"<3>{STAMP} {{}}", f"kern  :err   : {STAMP} {{}}", f"{STAMP}[ T123] {{}}"]
OF_JOURNAL = [f"{STAMP} g kernel: {{}}", f"{STAMP} kernel: {{}}", f"Feb 23 16:24:18 g kernel: {STAMP} {{}}"]
TIMELESS = ["[Sun Feb 23 16:24:18 2025] {}", "kernel: {}", "[  +0.000844] {}"]
FORMS = (*STAMPED, *OF_JOURNAL, *TIMELESS, "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {}")


XIDS = [
    ("NVRM: Xid (PCI:0000:1B:00): 79, GPU has fallen", 79, "0000:1b:00", "GPU has fallen"),
    ("NVRM: Xid (0000:03:00): 45, Ch 00000010", 45, "0000:03:00", "Ch 00000010"),
    ("NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 31, pid=1", 31, "0000:1b:00", "pid=1"),
    ("NVRM: Xid (PCI:0000:3f:00): 46", 46, "0000:3f:00", ""),
]


@pytest.mark.parametrize(
    ("form", "xid"), [*((form, XIDS[0]) for form in FORMS), *((FORMS[0], xid) for xid in XIDS[1:])]
)
def test_an_xid_is_read_in_every_form(tmp_path: Path, form: str, xid: tuple[str, int, str, str]) -> None:
    line, *values = xid
    (found,) = fold_raw(tmp_path, f"{form.format(line)}\n" * 2).xids
    event, times = found.event, 1234.114906 if "1234" in form else None
    assert [found.number, found.bus, found.text] == values
    assert replace(event, level=None) == Event("xid", 2, times, times, line, 2)


def test_the_name_of_a_process_is_no_severity_and_the_parts_of_a_gpu_are_one(tmp_path: Path) -> None:
    words = "NVRM: Xid (PCI:0000:1b:00): 145, pid=1, name={}, RLW_RXPIPE {} XC0 i0 Link 13 (0x0)"
    assert len(fold(tmp_path, words.format("nonfatal", "Fatal"), words.format("fatal", "Nonfatal")).xids) == 2
    lines = [PAGE_FAULT.replace("1b:00", f"1b:00 GPU-I:0{part}") for part in (1, 5)]
    assert [found.event.count for found in fold(tmp_path, *lines).xids] == [2]


# --- what the site knows


def test_a_node_sends_the_lines_that_only_the_site_knows(tmp_path: Path) -> None:
    entry = {"pattern": "it's [0-9]+/[0-9]+ of rack", "meaning": "cable", "reason": "T-1", "action": "drain"}
    tool = tmp_path / "dmesg"
    tool.write_text("#!/bin/sh\necho '<6>[ 1.0] Linux'; echo \"<6>[ 2.0] foo: it's 3/4 of rack 7\"\n")
    tool.chmod(0o755)
    probe = probes.kernel_log_of((KnownLine.model_validate(entry),))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", probe.command], capture_output=True, env=env, timeout=60, check=True)
    assert texts(probe.parse(Answer("gpu01", 0, done.stdout, done.stderr))) == ["foo: it's 3/4 of rack 7"]


# --- the answer, value by value

ROW = "seen\t3\t4\t[    1.5]\t[ 2.25]\t3\t{}"
END = "end\t900\t1\t2\t3\t[ 12.5]"


def folded(*rows: str, first: str = "[ 0.5] x", end: str = END, clock: str = "1700000100 100.5 7") -> KernelLog:
    text = "\n".join(("source dmesg", f"clock {clock}", f"from\t{first}", *rows, end))
    return parse(Answer("gpu01", 0, f"{text}\n".encode()))


@pytest.mark.parametrize(
    "row", ["seen\t3\t4\t\t\t", "seen\tx\t4\t\t\t\tmce", "seen\t3\tx\t\t\t\tmce", "seen\t\t4\t\t\t\tmce"]
)
def test_a_row_that_is_cut_is_not_understood(row: str) -> None:
    with pytest.raises(ProbeError, match="not understood"):
        folded(row)


@pytest.mark.parametrize("end", ["end\t9\t0\t0\t0", "end\t9\t0\t0\t0\t\t", "", "source x"])
def test_a_log_without_its_end_is_cut(end: str) -> None:
    with pytest.raises(ProbeError, match="the end of the kernel log is missing"):
        folded(end=end)


@pytest.mark.parametrize(
    ("clock", "booted"),
    [
        ("1700000100 100.5 7", "2023-11-14T22:13:19Z"),
        ("1700000100", "0 s after boot"),
        ("x y", "0 s after boot"),
        ("1e30 5", "0 s after boot"),
    ],
)
def test_the_clock_of_the_node(clock: str, booted: str) -> None:
    log = folded(clock=clock)
    assert log.when(0.0) == booted
    assert log.when(None) == "at an unknown time"


def test_every_value_of_an_answer() -> None:
    log = folded(ROW.format("EDAC MC0: 1 CE memory\terror "))
    event = Event(CORRECTED, 3, 1.5, 2.25, "EDAC MC0: 1 CE memory\terror", 4, 3)
    assert log == KernelLog("dmesg", 900, 0.5, log.booted, (event,), 1, 2, 3, 12.5)
    xid = folded(ROW.format("NVRM: Xid (PCI:0000:1B:00): 79,text"), ROW.format("NVRM: Xid (): 79"))
    assert xid.xids == (XidEvent(79, "0000:1b:00", xid.events[0], "text"),)
    switches = [
        ("nvidia-nvswitch3: SXid (PCI:1): 7, Fatal, x", [(7, "nvidia-nvswitch3", "Fatal, x")]),
        ("nvidia-nvswitch4: SXid (): 8", [(8, "nvidia-nvswitch4", "")]),
        ("nvidia-nvswitch3: SXid (PCI:1): 7x, Fatal", [(7, "nvidia-nvswitch3", "")]),
    ]
    for line, values in switches:
        assert [(it.number, it.bus, it.text) for it in folded(ROW.format(line)).sxids] == values
    assert folded(ROW.format("NVRM: Xid (PCI:0000:1b:00): x")).xids == ()
    assert folded(ROW.replace("\t3\t{}", "\t\t{}").format("x")).events[0].level is None
    probe = probes.kernel_log_of(())
    assert (probe.root, probe.timeout) == (True, 60)


@pytest.mark.parametrize(
    ("text", "seconds"), [("[   12.500000]", 12.5), ("[12.5]", 12.5), ("[.5]", None), ("[a1.5]", None), ("[1.b]", None)]
)
def test_the_time_of_a_line_is_in_brackets(text: str, seconds: float | None) -> None:
    assert folded(end=f"end\t900\t1\t2\t3\t{text}").loaded == seconds


DATED = [
    "[    0.0] Linux",
    "[Sat Nov 21 10:00:00 2026] Linux",
    "<6>[ 0.0] Linux",
    "[5] Linux",
    "kern:info:[ 0.0] Linux",
]
DATED += ["kern :info : 2026-11-21T10:00 x", "Nov  1 10:00:00 gpu01 kernel", "2026-11-21T10:00:00 x"]


@pytest.mark.parametrize("first", DATED)
def test_a_time_begins_a_log(first: str) -> None:
    assert folded(first=first, end="end\t1\t0\t0\t0\t").lines == 1


@pytest.mark.parametrize("first", ["words", "[x] Linux", "abcd-11-21 x", "[] x"])
def test_what_begins_otherwise_is_no_log_if_it_is_short(first: str) -> None:
    with pytest.raises(NotAvailable) as error:
        folded(first=first + "y" * 90, end="end\t19\t0\t0\t0\t")
    assert str(error.value) == f"not a kernel log: {(first + 'y' * 90)[:80]!r}"
    assert folded(first=first, end="end\t20\t0\t0\t0\t").lines == 20
    with pytest.raises(NotAvailable, match="the kernel log is empty"):
        folded(first=first, end="end\t0\t0\t0\t0\t")
