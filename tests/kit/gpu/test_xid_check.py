"""Xids and SXids: what each asks for, and which of them a node fails for. Logs are folded as a node folds its own."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from counter_examples import DRAIN, MONITOR, PASSED, REBOOT, WARNING, CounterExample, assert_as_expected, name
from kernel_logs import fold
from pydantic import ValidationError

from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.kit.gpu import xid
from pytest_gpucluster.kit.gpu import xid_check as checks
from pytest_gpucluster.kit.gpu.gpu_config import GpuConfig
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus
from pytest_gpucluster.kit.gpu.xid import Advice

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

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


@pytest.mark.parametrize("number", [0, 177, 4711])
def test_a_number_that_the_catalogue_lacks_is_unknown(number: int) -> None:
    found = xid.lookup(number)
    assert str(found) == f"Xid {number}: not in the table of this release (no action known)"
    assert (found.fails, found.warns) == (False, True)


@pytest.mark.parametrize(
    ("advice", "fails", "warns"),
    [
        (Advice.IGNORE, False, False),
        (Advice.APPLICATION, False, False),
        (Advice.UNKNOWN, False, True),
        (Advice.SOFTWARE, False, True),
        (Advice.RESET, True, False),
        (Advice.REBOOT, True, False),
        (Advice.SUPPORT, True, False),
        (Advice.INSPECT, True, False),
    ],
)
def test_what_fails_and_what_warns(advice: Advice, fails: bool, warns: bool) -> None:  # a table
    found = xid.Xid(1, "", advice)
    assert (found.fails, found.warns) == (fails, warns)


# NVLink 5: "UNIT Severity XC0 i0 Link NN (registers)"; contained errors: kern_gpu_error_cont_ga100.c
@pytest.mark.parametrize(
    ("number", "text", "advice"),
    [
        (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", Advice.RESET),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)", Advice.IGNORE),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000001 0x00000004)", Advice.IGNORE),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000 0x00000000)", Advice.RESET),
        (
            150,
            "pid=7, name=nonfatal, MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000 0x00000000)",
            Advice.RESET,
        ),
        (
            145,
            "pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
            Advice.IGNORE,
        ),
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


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("Fatal, Link 30 LTSSM Fault Up", Advice.RESET),
        ("Non-fatal, Link 32 egress non-posted PRIV error (First)", Advice.IGNORE),
        ("Correctable, Link 03 something", Advice.IGNORE),
        ("Module 3 boot failure, not Fatal", Advice.UNKNOWN),
        ("Fatality", Advice.UNKNOWN),
    ],
)
def test_the_first_word_of_an_sxid_is_its_severity(text: str, advice: Advice) -> None:
    assert xid.lookup_sxid(12028, text).advice is advice


# --- the check

GPUS = Gpus()


def judged(tmp_path: Path, *lines: str, config: GpuConfig | None = None) -> Verdict:
    return checks.xid(fold(tmp_path, *lines), GPUS, config or GpuConfig(), ())


def shown(verdict: Verdict) -> list[tuple[str, str, Action | None]]:
    return [(it.part, it.measured.partition(", last")[0], it.action) for it in verdict.findings]


def warned(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.advisories]


LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"
OFF = "NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): "
DETAIL = ("Severity 0 Engine instance 32 Sub-engine instance 00", "Data {0x00000000, 0x00000000, 0x00000000}")


def test_a_finding_says_what_the_xid_asks_for(tmp_path: Path) -> None:
    verdict = judged(tmp_path, LOADED, OFF, OFF)
    (found,) = verdict.findings
    assert (found.part, found.expected, found.action) == (
        "GPU at 0000:43:00",
        "no Xid that requires a reset, a reboot or support",
        Action.REBOOT,
    )
    assert (
        found.measured
        == "Xid 79: GPU has fallen off the bus (restart the node), 2 times, last 3 s after boot"
    )
    assert verdict.action is Action.REBOOT
    assert [(it.name, it.value, it.unit, it.device) for it in verdict.metrics] == [
        ("kernel_log_since", 0.0, "s after boot", ""),
        ("xid_79", 2, "events", "GPU at 0000:43:00"),
    ]


def test_the_three_lines_of_a_nonfatal_sxid_are_one_event_and_no_fault(tmp_path: Path) -> None:
    lines = [f"{SWITCH}12028, {text}" for text in ("Non-fatal, Link 32 egress", *DETAIL)]
    verdict = judged(tmp_path, *lines, *lines)
    assert (verdict.outcome, warned(verdict)) == (Outcome.PASSED, [])
    assert [(it.name, it.value, it.device) for it in verdict.metrics[1:]] == [
        ("sxid_12028", 2, "nvidia-nvswitch3")
    ]


def test_a_nonfatal_sxid_hides_no_fatal_one_of_its_number(tmp_path: Path) -> None:
    fatal = [f"{SWITCH}20034, {text}" for text in ("Fatal, Link 30 LTSSM Fault Up", *DETAIL)]
    mild = [f"{SWITCH}20034, {text}" for text in ("Non-fatal, Link 30 LTSSM Fault Up", *DETAIL)]
    verdict = judged(tmp_path, *fatal, *mild)
    assert shown(verdict) == [
        ("nvidia-nvswitch3", "SXid 20034: Fatal, Link 30 LTSSM Fault Up (reset the GPU)", Action.RESET_GPU)
    ]
    assert ("sxid_20034", 2) in {(it.name, it.value) for it in verdict.metrics}


def test_a_nonfatal_nvlink_error_hides_no_fatal_one(tmp_path: Path) -> None:
    gpu = "NVRM: Xid (PCI:0018:01:00): 149, "
    verdict = judged(
        tmp_path,
        f"{gpu}NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)",
        f"{gpu}NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)",
    )
    assert shown(verdict) == [
        (
            "GPU at 0018:01:00",
            "Xid 149: NVLink 5 error of the network port (NETIR): NETIR_LINK_EVT, link 01; the peer at the other end "
            "of the link caused it: examine that GPU or switch (reset the GPU)",
            Action.RESET_GPU,
        )
    ]
    assert ("xid_149", 2) in {(it.name, it.value) for it in verdict.metrics}


def test_a_contained_error_that_asks_for_a_reset_is_not_hidden(tmp_path: Path) -> None:
    gpu = "NVRM: Xid (PCI:0000:01:00): 94, pid=7, name=a, Contained: CE User Channel (0x9). "
    assert [
        found[2] for found in shown(judged(tmp_path, f"{gpu}RST: Yes, D-RST: No", f"{gpu}RST: No, D-RST: No"))
    ] == [Action.RESET_GPU]


@pytest.mark.parametrize("number", [4711, 78, 165])
def test_an_unknown_number_warns_and_drains_nobody(tmp_path: Path, number: int) -> None:
    verdict = judged(tmp_path, f"NVRM: Xid (PCI:0000:43:00): {number}, pid=1, name=a, x")
    assert (verdict.outcome, len(warned(verdict))) == (Outcome.PASSED, 1)


def test_the_last_recovery_action_counts(tmp_path: Path) -> None:
    gpu = "NVRM: Xid (PCI:0019:01:00): 154, GPU recovery action changed from "
    asked, drain, over = (
        f"{gpu}0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
        f"{gpu}0x0 (None) to 0x4 (Drain and Reset)",
        f"{gpu}0x1 (GPU Reset Required) to 0x0 (None)",
    )
    assert [found[1:] for found in shown(judged(tmp_path, drain, asked))] == [
        (
            "Xid 154: the recovery action of the GPU changed to GPU Reset Required (reset the GPU), 2 times",
            Action.RESET_GPU,
        )
    ]
    assert judged(tmp_path, drain, asked, over).outcome is Outcome.PASSED


def test_an_xid_before_its_gpu_was_reset_warns(tmp_path: Path) -> None:
    reset = "NVRM: Xid (PCI:0000:43:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    verdict = judged(tmp_path, OFF, reset)
    assert verdict.outcome is Outcome.PASSED
    assert [text.partition("; ")[2] for text in warned(verdict)] == [
        "the driver withdrew its request for recovery since (Xid 154)"
    ]
    assert judged(tmp_path, reset, OFF).outcome is Outcome.FAILED
    assert judged(tmp_path, OFF, reset.replace("43", "44")).outcome is Outcome.FAILED
    other = judged(tmp_path, OFF, reset.replace("to 0x0 (None)", "to 0x3 (Drain P2P)"))
    assert [found[2] for found in shown(other)] == [Action.REBOOT, Action.DRAIN]
    assert judged(tmp_path, OFF, reset.replace("154", "155")).outcome is Outcome.FAILED


def test_an_xid_before_the_driver_was_loaded_again_warns(tmp_path: Path) -> None:
    quiet = ["usb 1-1: hello"] * 60
    verdict = judged(tmp_path, LOADED, OFF, f"{SWITCH}20034, Fatal, Link 30", *quiet, LOADED)
    assert verdict.outcome is Outcome.PASSED
    assert [text.partition("; ")[2] for text in warned(verdict)] == ["the driver was reloaded since"] * 2
    assert judged(tmp_path, LOADED, *quiet, LOADED, OFF).outcome is Outcome.FAILED
    # the greeting comes after the GPUs were probed
    assert judged(tmp_path, OFF, *quiet[1:], LOADED).outcome is Outcome.FAILED


def test_an_xid_older_than_the_site_says_warns(tmp_path: Path) -> None:
    log = replace(fold(tmp_path, OFF), now=3601.0)
    gpus = GPUS
    assert checks.xid(log, gpus, GpuConfig(xid_max_age=3600), ()).outcome is Outcome.FAILED
    verdict = checks.xid(replace(log, now=3602.0), gpus, GpuConfig(xid_max_age=3600), ())
    assert verdict.outcome is Outcome.PASSED
    assert [text.partition("; ")[2] for text in warned(verdict)] == ["older than gpu.xid_max_age (1 h)"]
    assert checks.xid(replace(log, now=None), gpus, GpuConfig(xid_max_age=3600), ()).outcome is Outcome.FAILED


def test_a_log_without_times_has_no_beginning(tmp_path: Path) -> None:
    log = replace(fold(tmp_path, OFF), since=None)
    assert [it.name for it in checks.xid(log, GPUS, GpuConfig(), ()).metrics] == ["xid_79"]


def test_without_times_an_xid_has_no_age(tmp_path: Path) -> None:
    log = fold(tmp_path, OFF)
    events = tuple(replace(event, last=None) for event in log.events)
    log = replace(log, now=9e9, events=events)
    verdict = checks.xid(log, GPUS, GpuConfig(xid_max_age=60), ())
    assert verdict.outcome is Outcome.FAILED
    assert verdict.findings[0].measured.endswith("last at an unknown time")


def test_a_log_of_more_sorts_than_were_sent_is_not_checked(tmp_path: Path) -> None:
    flood = [f"NVRM: Xid (PCI:0000:43:00): {number}, x" for number in range(1001, 1203)]
    verdict = judged(tmp_path, *flood)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        "2 Xids were not read: more than 200 different ones in the kernel log",
    )
    assert judged(tmp_path, *flood[:200]).outcome is Outcome.PASSED


@pytest.mark.parametrize("values", [{"xid_max_age": 0}, {"xid_max_age": "soon"}, {"xid": [1]}])
def test_the_cluster_files_section_is_checked(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GpuConfig.model_validate(values)


GPU = Gpu(bus="0000:43:00.0", recovery_action="None", temperature=31.0)
GSP = "NVRM: Xid (PCI:0000:43:00): 119, pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU0 GSP!"


@pytest.mark.parametrize(
    ("line", "now", "outcome"),
    [
        # the driver states that the GPU needs nothing: it was reset, or the error was overcome
        (OFF, GPU, Outcome.PASSED),
        (GSP, GPU, Outcome.PASSED),
        ("NVRM: Xid (PCI:0000:43:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
         GPU, Outcome.PASSED),
        # it still requires a recovery
        (OFF, replace(GPU, recovery_action="Reset"), Outcome.FAILED),
        (GSP, replace(GPU, recovery_action="Drain and Reset"), Outcome.FAILED),
        # drivers before the recovery action: a GPU off the bus answers nothing, but one whose GSP hangs may
        (OFF, replace(GPU, recovery_action=None), Outcome.PASSED),
        (OFF, replace(GPU, recovery_action=None, temperature=None), Outcome.FAILED),
        (GSP, replace(GPU, recovery_action=None), Outcome.FAILED),
        # another GPU answers; nvidia-smi lists none
        (OFF, replace(GPU, bus="0000:44:00.0"), Outcome.FAILED),
        (OFF, None, Outcome.FAILED),
        # the driver does not link these Xids to its recovery action
        ("NVRM: Xid (PCI:0000:43:00): 46, pid=1, name=a, x", GPU, Outcome.FAILED),
        ("NVRM: Xid (PCI:0000:43:00): 140, pid=1, name=a, x", GPU, Outcome.FAILED),
    ],
)  # fmt: skip
def test_the_present_state_of_a_gpu_answers_its_xid(
    tmp_path: Path, line: str, now: Gpu | None, outcome: Outcome
) -> None:
    verdict = checks.xid(fold(tmp_path, line), Gpus((now,) if now else ()), GpuConfig(), ())
    assert verdict.outcome is outcome
    assert bool(verdict.advisories) is (outcome is Outcome.PASSED)


def test_an_nvlink_error_without_action_hides_no_reset(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link {} (0x{} 0x00000000)"
    needs, none = line.format("01", "02102011"), line.format("03", "02606011")  # subcodes 100001 and 100110
    for lines in ((needs, none), (none, needs)):
        assert [found[2] for found in shown(judged(tmp_path, *lines))] == [Action.RESET_GPU]
    quiet = judged(tmp_path, none)
    assert (quiet.outcome, len(warned(quiet))) == (Outcome.PASSED, 1)


@pytest.mark.parametrize(
    ("registers", "outcome"),
    [
        ("0x40000000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Outcome.PASSED),
        ("0x1, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", Outcome.PASSED),
        ("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Outcome.FAILED),
        ("0x1, 0x2, 0x0, 0x0, 0x0, 0x0, 0x0", Outcome.FAILED),
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x4", Outcome.FAILED),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Outcome.FAILED),
    ],
)
def test_bits_of_an_nvlink_error_that_nvidias_workflow_ignores(
    tmp_path: Path, registers: str, outcome: Outcome
) -> None:
    line = "NVRM: Xid (PCI:0000:5e:00): 74, pid=1, name=a, NVLink: fatal error detected on link 6({})"
    assert judged(tmp_path, line.format(registers)).outcome is outcome
    fatal = line.format("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0")
    assert judged(tmp_path, fatal, line.format(registers)).outcome is Outcome.FAILED


def test_the_cluster_files_known_lines_decide_first(tmp_path: Path) -> None:
    line = KnownLine(pattern="Xid .* 79,", meaning="riser of this rack", reason="ticket 7")
    fails = line.model_copy(update={"action": "return to vendor"})
    warns = line.model_copy(update={"action": "warn"})
    log = fold(tmp_path, OFF, f"{SWITCH}20034, Fatal, Link 30")
    assert [one.part for one in checks.xid(log, GPUS, GpuConfig(), (line,)).findings] == ["nvidia-nvswitch3"]
    assert checks.xid(log, GPUS, GpuConfig(), (fails,)).findings[0].action is Action.VENDOR
    switch = KnownLine(pattern="SXid", meaning="link of the test bench", reason="no cable", action="warn")
    verdict = checks.xid(log, GPUS, GpuConfig(), (warns, switch))
    assert (verdict.outcome, len(verdict.advisories)) == (Outcome.PASSED, 2)
    assert "riser of this rack (known: ticket 7), last" in verdict.advisories[0].measured
    long = fold(tmp_path, f"{SWITCH}20034, Fatal, {'x' * 100}")
    (one,) = checks.xid(long, GPUS, GpuConfig(), (switch,)).advisories
    assert one.measured.startswith(f"Fatal, {'x' * 73}: link of the test bench (known: no cable)")


# --- machines that were considered


def of_log(*lines: str, config: GpuConfig | None = None) -> Callable[[], Verdict]:
    def judge() -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            return judged(Path(folder), *lines, config=config)

    return judge


def event(number: int, text: str) -> str:
    return f"NVRM: Xid (PCI:0000:43:00): {number}, {text}"


CATALOG = "NVIDIA's Xid catalogue"
COUNTER_EXAMPLES = (
    CounterExample("gpu.xid", "a job's illegal address", f"{CATALOG}: 13, RESTART_APP", PASSED, of_log(event(13, "pid=7, name=python, Graphics SM Warp Exception"))),
    CounterExample("gpu.xid", "a job ended with its channel", f"{CATALOG}: 43, IGNORE", PASSED, of_log(event(43, "pid=7, name=python, Ch 00000008"))),
    CounterExample("gpu.xid", "a page fault of an application", f"{CATALOG}: 31, RESTART_APP", PASSED, of_log(event(31, "pid=7, name=python, Ch 00000010, MMU Fault"))),
    CounterExample("gpu.xid", "fell off the bus before the driver was loaded again", "driver upgrade", WARNING, of_log(OFF, *["usb 1-1: hello"] * 60, LOADED)),
    CounterExample("gpu.xid", "the peer's cable has bit errors", "decode sheet: 149 NETIR_BER_EVENT, IGNORE", WARNING, of_log(event(149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)"))),
    CounterExample("gpu.xid", "the host took the link down", "decode sheet: 149 subcode 101000, Fatal and IGNORE", WARNING, of_log(event(149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 01 (0x02802011 0x00000000)"))),
    CounterExample("gpu.xid", "a KVM switch at the display of an old driver", f"{CATALOG}: 56, Unused, CONTACT_SUPPORT", MONITOR, of_log(event(56, "pid='<unknown>', name=<unknown>, CMDre 00000000"))),
    CounterExample("gpu.xid", "an error of the video encoder", f"{CATALOG}: 142, CONTACT_SUPPORT", MONITOR, of_log(event(142, "pid=7, name=ffmpeg"))),
    CounterExample("gpu.xid", "a power cable is not plugged", f"{CATALOG}: 54, CHECK_MECHANICALS", DRAIN, of_log(event(54, "GPU is not powered")), sick=True),
    CounterExample("gpu.xid", "a clean log", "dmesg", PASSED, of_log("pci 0000:43:00.0: enabling device")),
    CounterExample("gpu.xid", "fell off the bus", f"{CATALOG}: 79, RESTART_BM", REBOOT, of_log(OFF), sick=True),
    CounterExample("gpu.xid", "the peer of the link failed", "decode sheet: 149 subcode 100001, RESET_GPU", Action.RESET_GPU.value, of_log(event(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x021425c6 0x00000000)")), sick=True),
    CounterExample("gpu.xid", "an uncontained error", f"{CATALOG}: 95, RESET_GPU", Action.RESET_GPU.value, of_log(event(95, "pid=7, name=python, Uncontained")), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_a_machine_gets_the_verdict_of_a_person(machine: CounterExample) -> None:
    assert_as_expected(machine)
