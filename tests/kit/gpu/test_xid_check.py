"""Xids and SXids: what each asks for, and which of them a node fails for. Logs are folded as a node folds its own."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from counter_examples import DRAIN, MONITOR, NOT_CHECKED, PASSED, REBOOT, STAYS, VENDOR, WARNING, CounterExample, result
from judged import judged
from kernel_logs import fold
from suite_helpers import considered

from pytest_gpucluster.core.check import Action
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.kit.gpu import xid
from pytest_gpucluster.kit.gpu import xid_check as checks
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus
from pytest_gpucluster.kit.gpu.xid import Advice

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.kit.node.kernel_log import KernelLog

# NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, 2025-10-29), column "Resolution
# Bucket (Immediate Action)", written down number by number apart from the table of the plugin.
CATALOGUE = {
    "IGNORE": "14 37 38 43 44 63 66 67 92 93 106 107 108 121 137 141 152 153 157 160 161",
    "RESTART_APP": "8 11 13 25 31 32 39 40 41 60 68 69 70 71 72 75 76 77 80 82 83 84 85 86 88 89 94 96 97 98 99 100 "
    "101 102 103 104 105 126 127 128 129 130 131 132 133 134 135 139",
    "RESET_GPU": "46 62 64 95 109 110 119 120 136 140 143 155 156 158",
    "RESTART_BM": "79",
    "RESTART_VM": "151",
    "CONTACT_SUPPORT": "1 2 3 4 5 6 7 9 10 12 15 16 17 18 19 20 21 22 23 24 26 27 28 29 30 33 34 35 36 42 47 49 50 51 "
    "52 53 55 56 57 58 59 61 65 73 81 87 90 91 111 112 113 114 115 116 117 118 122 123 124 125 138 142",
    "CHECK_MECHANICALS": "54",
    "UPDATE_SWFW": "78",
    "CHECK_UVM": "159",
    "WORKFLOW_XID_45": "45",
    "WORKFLOW_XID_48": "48",
    "WORKFLOW_NVLINK_ERR": "74",
    "WORKFLOW_NVLINK5_ERR": "144 145 146 147 148 149 150",
    "XID_154": "154",
    "": "162 163 164 165 166 167 168 169 170 171 172",
}
ADVICE = {
    "IGNORE": Advice.IGNORE,
    "RESTART_APP": Advice.APPLICATION,
    "RESET_GPU": Advice.RESET,
    "RESTART_BM": Advice.REBOOT,
    "RESTART_VM": Advice.REBOOT,
    "CONTACT_SUPPORT": Advice.SUPPORT,
    "CHECK_MECHANICALS": Advice.INSPECT,
    "UPDATE_SWFW": Advice.SOFTWARE,
    "CHECK_UVM": Advice.SOFTWARE,
    "WORKFLOW_XID_45": Advice.APPLICATION,
    "WORKFLOW_XID_48": Advice.RESET,
    "WORKFLOW_NVLINK_ERR": Advice.RESET,
    "WORKFLOW_NVLINK5_ERR": Advice.UNKNOWN,  # decoded by its message: test_nvlink5.py
    "XID_154": Advice.UNKNOWN,
    "": Advice.UNKNOWN,
}
# Without a bucket: the power smoothing circuit reports what it does; 171 and 172 repeat an Xid 48 in detail
OWN = {162: Advice.IGNORE, 163: Advice.IGNORE, 171: Advice.RESET, 172: Advice.RESET}


def test_every_number_is_judged_as_nvidias_catalogue_says() -> None:
    expected = {
        int(number): OWN.get(int(number), ADVICE[bucket])
        for bucket, numbers in CATALOGUE.items()
        for number in numbers.split()
    }
    assert sorted(expected) == list(range(1, 173))
    assert {number: xid.lookup(number).advice for number in expected} == expected
    # of the driver alone: the catalogue does not hold them
    assert {number for number in xid.table() if number not in expected} == {173, 174, 175, 176}
    assert {xid.lookup(number).advice for number in range(173, 177)} == {Advice.UNKNOWN}


# NVLink 5: "UNIT Severity XC0 i0 Link NN (registers)"; contained errors: kern_gpu_error_cont_ga100.c
@pytest.mark.parametrize(
    ("number", "text", "advice"),
    [
        (144, "SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000001 0x00000004)", Advice.IGNORE),
        (150, "pid=7, name=nonfatal, MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x0 0x00000000)", Advice.RESET),
        (145, "pid=8, name=ray::Worker, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x8)", Advice.IGNORE),
        (143, "Nonfatal", Advice.RESET),
        (151, "Nonfatal", Advice.REBOOT),
        (94, "pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No", Advice.APPLICATION),
        (94, "pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: Yes", Advice.RESET),
        (95, "pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", Advice.RESET),
        (13, "RST: Yes", Advice.APPLICATION),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Advice.RESET),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", Advice.REBOOT),
        (154, "GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", Advice.INSPECT),
        (154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", Advice.RESET),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", Advice.IGNORE),
        (154, "GPU recovery action changed from 0x0 (None) to 0x9 (Something Else)", Advice.UNKNOWN),
        (154, "", Advice.UNKNOWN),
    ],
)
def test_the_words_of_an_event_go_before_the_table(number: int, text: str, advice: Advice) -> None:
    assert xid.lookup(number, text).advice is advice


# --- the check

GPUS = Gpus()
RESET = Action.RESET_GPU.value


def verdict_of(log: KernelLog, gpus: Gpus = GPUS, known: tuple[KnownLine, ...] = ()) -> Verdict:
    return checks.xid(log, gpus, known)


def said(verdict: Verdict) -> list[str]:
    return [str(it.measured) for it in verdict.findings or verdict.advisories]


def event(number: int, text: str) -> str:
    return f"NVRM: Xid (PCI:0000:43:00): {number}, {text}"


LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"
OFF = event(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
GSP = event(119, "pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU0 GSP!")
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): "
DETAIL = ("Severity 0 Engine instance 32 Sub-engine instance 00", "Data {0x00000000, 0x00000000, 0x00000000}")
FATAL = [f"{SWITCH}20034, {text}" for text in ("Fatal, Link 30 LTSSM Fault Up", *DETAIL)]
MILD = [f"{SWITCH}20034, {text}" for text in ("Non-fatal, Link 30 LTSSM Fault Up", *DETAIL)]
LINK_EVENT = event(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)")
BIT_ERRORS = event(149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)")
LINK_DOWN = event(149, "NETIR_LINK_DOWN Fatal XC0 i0 Link {} (0x{} 0x00000000)")
NEEDS, NONE = (LINK_DOWN.format("01", "02102011"), LINK_DOWN.format("03", "02606011"))  # subcodes 100001, 100110
CONTAINED = event(94, "pid=7, name=a, Contained: CE User Channel (0x9). RST: {}, D-RST: No")
ASKED = event(154, "GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)")
DRAINED = event(154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
OVER = event(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
QUIET = ["usb 1-1: hello"] * 60
NVLINK = event(74, "pid=1, name=a, NVLink: fatal error detected on link 6({})")
UNKNOWN_SORTS = [f"NVRM: Xid (PCI:0000:43:00): {number}, x" for number in range(1001, 1203)]
# the lines of a log, the verdict, how many findings or warnings it has
LOGS: list[tuple[list[str], str, int]] = [
    ([LOADED, OFF, OFF], REBOOT, 1),
    (MILD + MILD, PASSED, 0),  # three lines are one event, and no fault
    (FATAL + MILD, RESET, 1),  # a mild one hides no fatal one of its number
    ([LINK_EVENT, BIT_ERRORS], RESET, 1),
    ([NEEDS, NONE], RESET, 1),
    ([NONE, NEEDS], RESET, 1),
    ([NONE], WARNING, 1),
    ([CONTAINED.format("Yes"), CONTAINED.format("No")], RESET, 1),
    *(([event(number, "pid=1, name=a, x")], WARNING, 1) for number in (4711, 78, 165)),  # unknown
    ([DRAINED, ASKED], RESET, 1),
    ([DRAINED, ASKED, OVER], PASSED, 0),
    ([OFF, OVER], WARNING, 1),  # the last recovery action counts
    ([OVER, OFF], REBOOT, 1),
    ([OFF, OVER.replace("43", "44")], REBOOT, 1),
    ([OFF, OVER.replace("to 0x0 (None)", "to 0x3 (Drain P2P)")], DRAIN, 2),
    ([OFF, OVER.replace("154", "155")], REBOOT, 2),
    ([LOADED, OFF, FATAL[0], *QUIET, LOADED], WARNING, 2),  # before the driver was loaded again
    ([LOADED, *QUIET, LOADED, OFF], REBOOT, 1),
    ([OFF, *QUIET[1:], LOADED], REBOOT, 1),  # the greeting comes after the GPUs were probed
    (UNKNOWN_SORTS, NOT_CHECKED, 200),
    (UNKNOWN_SORTS[:200], WARNING, 200),
]


@pytest.mark.parametrize(("lines", "expected", "count"), LOGS)
def test_events_are_judged_together(tmp_path: Path, lines: list[str], expected: str, count: int) -> None:
    verdict = verdict_of(fold(tmp_path, *lines))
    assert (result(verdict), len(said(verdict))) == (expected, count)


GPU = Gpu(bus="0000:43:00.0", recovery_action="None", temperature=31.0)


@pytest.mark.parametrize(
    ("line", "now", "good"),
    [
        # the driver states that the GPU needs nothing: it was reset, or the error was overcome
        (OFF, GPU, True),
        (GSP, GPU, True),
        (ASKED, GPU, True),
        # it still requires a recovery
        (OFF, replace(GPU, recovery_action="Reset"), False),
        (GSP, replace(GPU, recovery_action="Drain and Reset"), False),
        # drivers before the recovery action: a GPU off the bus answers nothing, but one whose GSP hangs may
        (OFF, replace(GPU, recovery_action=None), True),
        (OFF, replace(GPU, recovery_action=None, temperature=None), False),
        (GSP, replace(GPU, recovery_action=None), False),
        # another GPU answers; nvidia-smi lists none
        (OFF, replace(GPU, bus="0000:44:00.0"), False),
        (OFF, None, False),
        # the driver does not link these Xids to its recovery action
        (event(46, "pid=1, name=a, x"), GPU, False),
        (event(140, "pid=1, name=a, x"), GPU, False),
    ],
)
def test_the_present_state_answers_an_xid(tmp_path: Path, line: str, now: Gpu | None, *, good: bool) -> None:
    verdict = verdict_of(fold(tmp_path, line), Gpus((now,) if now else ()))
    assert (result(verdict) == WARNING) is good
    assert bool(verdict.findings) is not good


@pytest.mark.parametrize(
    ("registers", "good"),
    [
        ("0x40000000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", True),
        ("0x1, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", True),
        ("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", False),
        ("0x1, 0x2, 0x0, 0x0, 0x0, 0x0, 0x0", False),
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x4", False),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", False),
    ],
)
def test_bits_of_an_nvlink_error_that_do_not_count(tmp_path: Path, registers: str, *, good: bool) -> None:
    assert (result(verdict_of(fold(tmp_path, NVLINK.format(registers)))) in STAYS) is good
    fatal = NVLINK.format("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0")
    assert verdict_of(fold(tmp_path, fatal, NVLINK.format(registers))).findings


def test_the_cluster_files_known_lines_decide_first(tmp_path: Path) -> None:
    line = KnownLine(pattern="Xid .* 79,", meaning="riser of this rack", reason="ticket 7")
    switch = KnownLine(pattern="SXid", meaning="link of the test bench", reason="no cable", action="warn")
    fails, warns = (line.model_copy(update={"action": action}) for action in ("return to vendor", "warn"))
    log = fold(tmp_path, OFF, FATAL[0])
    assert judged(verdict_of(log, known=(line,))) == (RESET, ["nvidia-nvswitch3"])
    assert result(verdict_of(log, known=(fails, switch))) == VENDOR
    verdict = verdict_of(log, known=(warns, switch))
    assert judged(verdict) == (WARNING, ["GPU (0000:43:00)", "nvidia-nvswitch3"])
    assert [it.code for it in verdict.advisories] == ["xid_79", "xid_20034"]
    assert "riser of this rack (known: ticket 7), last" in said(verdict)[0]
    (long,) = said(verdict_of(fold(tmp_path, f"{SWITCH}20034, Fatal, {'x' * 100}"), known=(switch,)))
    assert long.startswith(f"Fatal, {'x' * 73}: link of the test bench")


# --- GPUs that the driver gave up

INIT = "NVRM: GPU 0000:{}:00.0: RmInitAdapter failed! (0x62:0x40:1941)"
GONE = "NVRM: GPU 0000:43:00.0: GPU has fallen off the bus."
PROBE = "NVRM: The NVIDIA probe routine failed for 1 device(s)."
UNCONTAINED = "NVRM: Xid (PCI:0000:50:00): 95, pid=7, Uncontained: FBHUB. RST: Yes, D-RST: No"
OTHER = replace(GPU, bus="0000:44:00.0")
LOST = replace(GPU, temperature=None, unread={"temperature": "[GPU is lost]"})


@pytest.mark.parametrize(
    ("line", "now", "expected", "part"),
    [
        (GONE, (), MONITOR, "GPU (0000:43:00)"),  # nvidia-smi did not run
        (GONE, (OTHER,), REBOOT, "GPU (0000:43:00)"),
        (GONE, (GPU,), WARNING, str(GPU.part)),
        (GONE, (LOST,), MONITOR, str(LOST.part)),
        (GONE, (replace(GPU, recovery_action="Reset"),), MONITOR, str(GPU.part)),
        (GONE, (replace(GPU, recovery_action=None),), WARNING, str(GPU.part)),
        (PROBE, (), MONITOR, "GPUs"),
        (PROBE, (GPU, OTHER), WARNING, "GPUs"),
        (PROBE, (GPU, LOST), MONITOR, "GPUs"),
    ],
)
def test_nvidia_smi_says_whether_the_driver_uses_a_gpu_again(
    tmp_path: Path, line: str, now: tuple[Gpu, ...], expected: str, part: str
) -> None:
    verdict = verdict_of(fold(tmp_path, line), Gpus(now))
    assert judged(verdict) == (expected, [part])
    assert {it.code for it in (*verdict.findings, *verdict.advisories)} <= {"gone", "given_up"}


def test_an_xid_of_one_gpu_hides_no_line_of_another(tmp_path: Path) -> None:
    verdict = verdict_of(fold(tmp_path, INIT.format("4f"), UNCONTAINED, INIT.format("51")))
    named = ["GPU (0000:50:00)", "GPU (0000:4f:00)", "GPU (0000:51:00)"]
    assert judged(verdict) == (RESET, named)


def test_a_line_of_the_same_gpu_within_a_minute_is_shown_under_its_xid(tmp_path: Path) -> None:
    (found,) = verdict_of(fold(tmp_path, PROBE, OFF, GONE)).findings
    shown = str(found.measured)
    assert (" ".join(PROBE.split()) in shown, GONE in shown) == (True, True)
    apart = verdict_of(fold(tmp_path, OFF, *QUIET, GONE))
    assert judged(apart) == (REBOOT, ["GPU (0000:43:00)"] * 2)
    page_fault = event(31, "pid=7, MMU")  # of an application: it explains nothing
    assert judged(verdict_of(fold(tmp_path, page_fault, GONE))) == (MONITOR, ["GPU (0000:43:00)"])


def test_a_gpu_given_up_before_the_driver_was_loaded_again_is_a_warning(tmp_path: Path) -> None:
    assert result(verdict_of(fold(tmp_path, LOADED, GONE, *QUIET, LOADED))) == WARNING
    assert result(verdict_of(fold(tmp_path, GONE, LOADED))) == MONITOR
    known = (KnownLine(pattern="0000:43:00", meaning="riser", reason="ticket 7"),)
    assert result(verdict_of(fold(tmp_path, GONE), known=known)) == PASSED


def test_lines_that_name_no_gpu_are_shown_with_those_that_do(tmp_path: Path) -> None:
    probe = "nvidia 0000:43:00.0: probe with driver nvidia failed with error -1"
    (found,) = verdict_of(fold(tmp_path, probe, "NVRM: None of the NVIDIA devices were initialized.")).findings
    assert "None of the NVIDIA devices" in str(found.measured)


# --- machines that were considered


def machine(what: str, source: str, expected: str, *lines: str) -> CounterExample:
    """Return the check of a machine with this log; a machine that does not stay in service is sick, but for support's word."""

    def verdict() -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            return verdict_of(fold(Path(folder), *lines))

    return CounterExample("gpu.xid", what, source, expected, verdict, sick=expected not in {*STAYS, MONITOR})


CATALOG, SHEET = "NVIDIA's Xid catalogue", "decode sheet: 149"
COUNTER_EXAMPLES = (
    machine("a job's illegal address", f"{CATALOG}: 13, RESTART_APP", PASSED, event(13, "pid=7, SM")),
    machine("a job ended with its channel", f"{CATALOG}: 43, IGNORE", PASSED, event(43, "pid=7, Ch 0")),
    machine("an application's page fault", f"{CATALOG}: 31, RESTART_APP", PASSED, event(31, "pid=7, MMU")),
    machine("off the bus before a reload of the driver", "driver upgrade", WARNING, OFF, *QUIET, LOADED),
    machine("the peer's cable has bit errors", f"{SHEET} NETIR_BER_EVENT, IGNORE", WARNING, BIT_ERRORS),
    machine("the host cut the link", f"{SHEET} subcode 101000", WARNING, LINK_DOWN.format("01", "02802011")),
    machine("a KVM switch at a display", f"{CATALOG}: 56, CONTACT_SUPPORT", MONITOR, event(56, "CMDre 0")),
    machine("an error of the encoder", f"{CATALOG}: 142, CONTACT_SUPPORT", MONITOR, event(142, "pid=7")),
    machine("no power cable", f"{CATALOG}: 54, CHECK_MECHANICALS", DRAIN, event(54, "not powered")),
    machine("a clean log", "dmesg", PASSED, "pci 0000:43:00.0: enabling device"),
    machine("fell off the bus", f"{CATALOG}: 79, RESTART_BM", REBOOT, OFF),
    machine("the peer of the link failed", f"{SHEET} subcode 100001, RESET_GPU", RESET, LINK_EVENT),
    machine("an uncontained error", f"{CATALOG}: 95, RESET_GPU", RESET, event(95, "pid=7, Uncontained")),
)
test_a_machine_gets_the_verdict_of_a_person = considered(COUNTER_EXAMPLES)
