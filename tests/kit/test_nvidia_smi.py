"""The readers of nvidia-smi and of the kernel log: recordings, the survey in a real shell, and rubbish."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import TESTS

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit import kernel_log, nvidia_csv, nvidia_smi

if TYPE_CHECKING:
    from pathlib import Path

DATA = TESTS / "data" / "h200x8"


def recorded(name: str) -> str:
    """A recording without its command line and its exit status."""
    return "\n".join((DATA / name).read_text().splitlines()[1:-1]) + "\n"


def survey(**texts: str) -> Answer:
    """An answer of the survey: name=text, exit 0; a text that begins with '!N ' exits N."""
    parts = []
    for name, text in texts.items():
        rc, body = (text[1:].split(" ", 1)) if text.startswith("!") else ("0", text)
        parts.append(f"@@ {name} {rc}\n{body}\n")
    return Answer("gpu01", 0, "".join(parts).encode())


def run_survey(tmp_path: Path, body: str, command: str = "") -> Answer:
    """Run the survey, or another command, in a real shell, with a nvidia-smi of this body first on the PATH."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nr() {{ sed -e 1d -e '/^rc=0$/d' {DATA}/$1; }}\n{body}")
    tool.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", command or nvidia_smi.SURVEY],
        capture_output=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        timeout=120,
        check=False,
    )
    return Answer("gpu01", done.returncode, done.stdout, done.stderr)


REPLAY = """case "$*" in
  *query-gpu=*%s*) echo 'Field "%s" is not a valid field to query.'; echo; exit 2;;
  *query-gpu*) r query-gpu.txt;;
  *query-remap*) r query-remap.txt;;
  *query-compute*) r query-apps.txt;;
  "") r nvidia-smi.txt;;
  "nvlink -s") r nvlink-s.txt;;
  "nvlink -e") r nvlink-e.txt;;
  "topo -m") r topo.txt;;
  "topo -p2p n") r topo-p2p.txt;;
  *) exit 3;;
esac
"""


def test_the_survey_of_the_recorded_host_in_a_real_shell(tmp_path: Path) -> None:
    answer = run_survey(tmp_path, REPLAY % ("gpu_recovery_action", "gpu_recovery_action"))
    gpus = nvidia_smi.parse_gpus(answer)
    assert len(gpus) == 8
    assert gpus.cuda == "13.0"
    assert gpus.driver_problem == ""
    last = gpus.devices[7]
    assert (last.bus, last.memory, last.throttle) == ("0000:00:0d.0", 143771 * 2**20, 1)
    assert last.ecc_aggregate_uncorrected == 1
    assert last.unread["recovery_action"] == nvidia_csv.NOT_REPORTED  # dropped, and the query asked again
    assert last.unread["retired_pending"] == "[N/A]"
    assert str(last) == "GPU 7 (GPU-c255404e-4fb4-4003-4d66-08697a8d41be, 0000:00:0d.0)"
    assert nvidia_smi.parse_rows(answer)[last.uuid or ""].correctable == 1
    assert nvidia_smi.parse_apps(answer) == ()
    assert {len(links) for links in nvidia_smi.parse_nvlink(answer).values()} == {18}
    assert {row.zeros for row in nvidia_smi.parse_nvlink_errors(answer).values()} == {54}
    assert nvidia_smi.parse_topology(answer).links[3][5] == "NV18"
    assert nvidia_smi.parse_p2p(answer)[0][1] == "OK"
    assert len(answer.stdout) < 12_000


def test_the_clock_reasons_that_last_are_those_of_every_later_reading(tmp_path: Path) -> None:
    body = """case $* in *uuid,clocks_*csv) ;; *) exit 3;; esac; echo x >>"$0.n"; n=$(grep -c x "$0.n")
echo 'uuid, clocks_event_reasons.active'
case $n in 2) echo 'GPU-a, 0x0000000000000040';; *) echo 'GPU-a, 0x0000000000000048';; esac
echo 'GPU-b, 0x0000000000000081'; [ "$n" = 3 ] || echo 'GPU-c, 0x0000000000000001'; echo 'GPU-d, [N/A]'
"""
    command = nvidia_smi.CLOCKS_LATER.command.replace(f"sleep {nvidia_smi.PAUSE}", "sleep 0")
    answer = run_survey(tmp_path, body, command)
    assert nvidia_smi.parse_lasting(answer) == {"GPU-a": 0x40, "GPU-b": 0x81}
    with pytest.raises(NotAvailable):
        nvidia_smi.parse_lasting(run_survey(tmp_path, "echo 'No devices were found'; exit 6", command))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9',
            "couldn't communicate",
        ),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
    ],
)
def test_a_dead_driver_is_a_fact_and_stops_the_survey(tmp_path: Path, body: str, said: str) -> None:
    answer = run_survey(tmp_path, body)
    gpus = nvidia_smi.parse_gpus(answer)
    assert said in gpus.driver_problem
    assert len(gpus) == 0
    with pytest.raises(NotAvailable):
        nvidia_smi.parse_nvlink(answer)


@pytest.mark.parametrize(
    "text",
    ["No devices were found", "Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error"],
)
def test_a_lost_gpu_is_no_problem_of_the_driver(text: str) -> None:
    gpus = nvidia_smi.parse_gpus(survey(gpus=f"!6 {text}"))
    assert gpus.driver_problem == ""
    assert gpus.messages == (text,)


def test_an_nvidia_smi_that_hangs_costs_its_own_section_and_the_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_smi, "SURVEY", nvidia_smi.SURVEY.replace(f"-k 5 {nvidia_smi.HANG}", "-k 1 2"))
    body = REPLAY % ("none", "none")
    answer = run_survey(tmp_path, body.replace('"nvlink -s")', '"nvlink -s") exec sleep 50;; never)'))
    assert len(nvidia_smi.parse_gpus(answer)) == 8
    assert nvidia_smi.parse_gpus(answer).cuda == "13.0"
    assert nvidia_smi.parse_gpus(answer).cut_off == "nvlink"
    with pytest.raises(NotAvailable, match="exit 124"):
        nvidia_smi.parse_nvlink(answer)
    with pytest.raises(NotAvailable, match="not queried"):
        nvidia_smi.parse_topology(answer)


def test_a_hung_nvidia_smi_is_named() -> None:
    hung = Answer("gpu01", 0, b"\n@@ hung 124\n")
    assert "did not answer" in nvidia_smi.parse_gpus(hung).driver_problem
    assert "did not answer" in nvidia_smi.parse_gpus(survey(gpus="!124 ")).driver_problem


@pytest.mark.parametrize(
    "junk",
    ["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "ERR!", "", "7 GiB", "-3", "nan"],
)
def test_what_stands_in_place_of_a_value_is_never_a_number(junk: str) -> None:
    gpu = nvidia_smi.parse_gpus(survey(gpus=f"index, memory.used [MiB]\n0, {junk}\n")).devices[0]
    assert gpu.memory_used is None
    assert gpu.unread["memory_used"]


@pytest.mark.parametrize("text", ["index, memory.used [MiB]\n0, 7 MiB\n", "index, memory.used [MiB]\n0, 7\n"])
def test_units_in_the_cell_or_in_the_header(text: str) -> None:
    assert nvidia_smi.parse_gpus(survey(gpus=text)).devices[0].memory_used == 7 * 2**20


def test_no_unit_anywhere_is_no_number() -> None:
    assert nvidia_smi.parse_gpus(survey(gpus="index, memory.used\n0, 7\n")).devices[0].memory_used is None


def test_names_with_commas_are_put_together_again() -> None:
    text = "pid, gpu_uuid, used_gpu_memory [MiB], process_name\n7, GPU-1, 528 MiB, python a, b, c\n"
    (app,) = nvidia_smi.parse_apps(survey(apps=text))
    assert (app.pid, app.memory, app.name) == (7, 528 * 2**20, "python a, b, c")


def test_a_cut_row_is_an_error() -> None:
    with pytest.raises(ProbeError, match="cut"):
        nvidia_smi.parse_gpus(survey(gpus="index, uuid, name\n0, GPU-1\n"))


def test_a_cut_matrix_is_an_error() -> None:
    text = "\n".join(recorded("topo.txt").splitlines()[:5]) + "\n"
    with pytest.raises(ProbeError, match="no row"):
        nvidia_smi.parse_topology(survey(topology=text))


def test_a_node_without_gpus_says_so_in_every_section() -> None:
    """Recorded from driver 580 with the device file of the only GPU masked; topo prints its legend alone."""
    none = "No devices were found"
    legend = "\n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks"
    answer = survey(nvlink=none, errors=f"!6 {none}", topology=legend, p2p=legend)
    for parse in (
        nvidia_smi.parse_nvlink,
        nvidia_smi.parse_nvlink_errors,
        nvidia_smi.parse_topology,
        nvidia_smi.parse_p2p,
    ):
        with pytest.raises(NotAvailable, match=none):
            parse(answer)


BANNER = "*** Authorised use only ***\nWARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"


@pytest.mark.parametrize("rc", ["0", "14"])  # nvidia-smi(1): 14 warns of the infoROM beside a whole answer
def test_a_banner_and_warnings_hide_nothing(rc: str) -> None:
    links = recorded("nvlink-s.txt")
    text = f"!{rc} {BANNER}{links}{BANNER[28:]}"
    assert nvidia_smi.parse_nvlink(survey(nvlink=text)) == nvidia_smi.parse_nvlink(survey(nvlink=links))
    assert len(nvidia_smi.parse_nvlink(survey(nvlink=text))) == 8


def test_a_banner_alone_is_no_state_of_nvlink() -> None:
    with pytest.raises(ProbeError, match="Authorised"):
        nvidia_smi.parse_nvlink(survey(nvlink=BANNER))


def test_what_ended_nvidia_smi_is_kept_beside_what_it_listed() -> None:
    gpus = nvidia_smi.parse_gpus(survey(gpus="!139 index, uuid\n0, GPU-1\n"))
    assert (len(gpus), gpus.failed) == (1, "exit 139, signal 11")
    assert nvidia_smi.parse_gpus(survey(gpus="!14 index, uuid\n0, GPU-1\n")).failed == ""


def test_a_comma_of_another_cell_moves_no_value_to_a_wrong_column() -> None:
    text = "index, name, pci.bus_id, memory.used [MiB]\n0, NVIDIA H200, 00000000:1B:00.0, 0,5 MiB\n"
    with pytest.raises(ProbeError, match="more cells than columns"):
        nvidia_smi.parse_gpus(survey(gpus=text))


def test_rubbish_is_told_short_and_without_control_characters() -> None:
    (said,) = nvidia_smi.parse_gpus(survey(gpus="\x1b[2J\x07" + "x" * 500)).messages
    assert said.isprintable()
    assert len(said) == 160


FIELDS = [query for query, _ in nvidia_smi._FIELDS.values()]
CELLS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.sampled_from(
        ["[N/A]", "ERR!", "[Unknown Error]", "Enabled", "Yes", "0x1", "1 MiB", "3 W", "4 MHz", "x"]
    ),
    st.text(st.characters(blacklist_characters="\n\r,", blacklist_categories=["Cs"]), max_size=8),
)


@given(st.lists(st.sampled_from(FIELDS), unique=True, max_size=6), st.data())
def test_every_number_that_is_read_was_printed_so(columns: list[str], data: st.DataObject) -> None:
    cells = [data.draw(CELLS) for _ in columns]
    text = ", ".join(["index", *columns]) + "\n" + ", ".join(["0", *cells]) + "\n"
    if "index" in columns:
        return
    with contextlib.suppress(ProbeError):
        for gpu in nvidia_smi.parse_gpus(survey(gpus=text)):
            printed = dict(zip(columns, (cell.strip() for cell in cells), strict=True))
            for attribute, (query, _) in nvidia_smi._FIELDS.items():
                value = getattr(gpu, attribute)
                assert (value is None) == (attribute in gpu.unread)  # never without a reason
                if isinstance(value, (int, float)) and query in printed:
                    assert (
                        printed[query][:1].isdigit() or printed[query] in ("Enabled", "Yes") or value is False
                    )
                if query in printed and printed[query] in ("[N/A]", "ERR!", "[Unknown Error]", ""):
                    assert value is None


PARSERS = [
    nvidia_smi.parse_gpus,
    nvidia_smi.parse_rows,
    nvidia_smi.parse_apps,
    nvidia_smi.parse_nvlink,
    nvidia_smi.parse_nvlink_errors,
    nvidia_smi.parse_topology,
    nvidia_smi.parse_p2p,
    nvidia_smi.parse_device_files,
    kernel_log.parse,
]


@pytest.mark.parametrize("parse", PARSERS)
@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
)
def test_rubbish_gives_a_reason_and_no_facts(parse: Any, junk: bytes) -> None:
    with pytest.raises(ProbeError) as caught:
        parse(Answer("gpu01", 0, junk))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gpus", "rows", "apps", "nvlink", "errors", "topology", "p2p"])
@given(st.text(max_size=200))
def test_rubbish_in_a_section_gives_no_number(name: str, junk: str) -> None:
    answer = Answer("gpu01", 0, f"@@ {name} 0\n{junk}\n".encode(errors="replace"))
    for parse in PARSERS[:7]:
        with contextlib.suppress(ProbeError):
            facts: Any = parse(answer)
            assert len(facts) == 0, facts
            assert getattr(facts, "cuda", None) is None


# --- NVLink and topology of other machines ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("[N/A]", True),
        ("N/A", True),
        ("[Not Supported]", True),
        ("[Not Available]", True),
        ("[Not Found]", True),
        ("[Function Not Found]", True),
        ("Unknown", True),
        ("[Requested functionality has been deprecated]", True),
        (nvidia_csv.NOT_REPORTED, True),
        ("[Unknown Error]", False),
        ("ERR!", False),
        ("[GPU is lost]", False),
        ("[GPU requires reset]", False),
        ("[Insufficient Permissions]", False),
        ("[Timeout]", False),
        ("", False),
    ],
)
def test_no_such_thing_and_an_error_are_told_apart(text: str, *, lacks: bool) -> None:
    assert nvidia_csv.is_unsupported(text) is lacks
    assert nvidia_smi.Gpu(unread={"ecc": text}).lacks("ecc") is lacks


def test_unknown_is_no_performance_state() -> None:
    (one,) = nvidia_smi.parse_gpus(survey(gpus="index, pstate\n0, Unknown\n"))
    assert (one.pstate, one.unread["pstate"]) == (None, "Unknown")


@pytest.mark.parametrize("rc", [0, 3])
@pytest.mark.parametrize(
    "said",
    [
        "Device does not have or support Nvlink",
        "Nvlink queries are not supported for Devices in MIG mode",
        "NVML: Unable to retrieve NVLink information as all links are inActive",
    ],
)
def test_a_gpu_without_links_has_none(said: str, rc: int) -> None:
    """Recorded from drivers 535 to 610; the exit status is not."""
    text = f"!{rc} GPU 0: NVIDIA L40S (UUID: GPU-1)\n{said}\nGPU 1: NVIDIA L40S (UUID: GPU-2)\n\t Link 0: <inactive>\n"
    found = nvidia_smi.parse_nvlink(survey(nvlink=text))
    assert found == {"GPU-1": {}, "GPU-2": {0: None}}
    assert nvidia_smi.parse_nvlink(survey(nvlink=f"!{rc} {said}")) == {}


def test_other_words_about_a_gpu_are_not_understood() -> None:
    with pytest.raises(ProbeError, match="not understood: 'Surprise'"):
        nvidia_smi.parse_nvlink(survey(nvlink="GPU 0: NVIDIA L40S (UUID: GPU-1)\nSurprise\n"))


# A healthy B300 (p6-b300.48xlarge, driver 595.91.07): names and values at boot as published, put into lines here.
NVLINK_5 = """\
\t Link 0: Malformed packet Errors: 0
\t Link 0: Buffer overrun Errors: 0
\t Link 0: Rx Errors: 0
\t Link 0: Rx remote Errors: 0
\t Link 0: Rx General Errors: 0
\t Link 0: Local link integrity Errors: 0
\t Link 0: Tx discards: 0
\t Link 0: Link recovery successful events: 0
\t Link 0: Link recovery failed events: 0
\t Link 0: Total link recovery events: 0
\t Link 0: Effective Errors: 0
\t Link 0: Effective BER: 15e-255
\t Link 0: Symbol Errors: 0
\t Link 0: Symbol BER: 15e-255
\t Link 0: Raw BER Lane 0: 2061
\t Link 0: Raw BER Lane 1: 1038
\t Link 0: Raw BER Total: 1037
\t Link 0: Raw Errors Lane 0: 82
\t Link 0: Raw Errors Lane 1: 4
\t Link 0: FEC Errors - 0: 36140749276
\t Link 0: FEC Errors - 1: 175
\t Link 0: FEC Errors - 15: 0
\t Link 0: Tx packets: 9
\t Link 0: Rx bytes: 12
"""
NVLINK_5_SICK = """\
\t Link 1: Link recovery failed events: 2
\t Link 1: Link recovery successful events: 505
\t Link 1: Effective BER: 15e-3
\t Link 1: Symbol BER: 15e-254
\t Link 1: PLR Xmit Retry Blocks: 7
\t Link 1: Replay Errors: N/A
"""


def fold(tmp_path: Path, text: str) -> nvidia_smi.LinkErrors:
    (tmp_path / "errors").write_text(f"GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-1)\n{text}")
    found = nvidia_smi.parse_nvlink_errors(
        run_survey(tmp_path, f'case "$*" in "nvlink -e") cat {tmp_path}/errors;; esac\n')
    )
    return found["GPU-1"]


def test_harmless_counters_are_folded_on_the_node(tmp_path: Path) -> None:
    assert fold(tmp_path, NVLINK_5) == nvidia_smi.LinkErrors(24, ())


def test_other_counters_and_rates_are_read(tmp_path: Path) -> None:
    assert fold(tmp_path, NVLINK_5 + NVLINK_5_SICK) == nvidia_smi.LinkErrors(
        24,
        (
            (1, "Link recovery failed events", 2),
            (1, "Link recovery successful events", 505),
            (1, "Effective BER", 15e-3),
            (1, "Symbol BER", 15e-254),
            (1, "PLR Xmit Retry Blocks", 7),
        ),
        ((1, "Replay Errors", "N/A"),),
    )


def test_a_query_of_nothing_ends(tmp_path: Path) -> None:
    """Else the survey would ask for no field for ever."""
    said = 'echo "Field \\"${f%%,*}\\" is not a valid field to query."'
    found = nvidia_smi.parse_gpus(
        run_survey(tmp_path, f'case "$*" in *query-gpu*) f=${{1#*=}}; {said}; exit 2;; esac\n')
    )
    assert (found.devices, found.driver_problem, found.failed) == ((), "", "exit 2")


TOPO = """\
\t\x1b[4mGPU0\tGPU1\trocep139s0\tibp25s0\tmlx5_bond_0\trdmap79s0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tNODE\tSYS\tPHB\t0-55,112-167\t0-1\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\tPXB\tPHB\t56-111\t2\t\t10
"""


def test_adapters_have_whatever_names_the_driver_gives_them() -> None:
    found = nvidia_smi.parse_topology(survey(topology=TOPO))
    assert found.links == {0: {0: "X", 1: "NV18"}, 1: {0: "NV18", 1: "X"}}
    assert found.nics[1] == {"rocep139s0": "SYS", "ibp25s0": "SYS", "mlx5_bond_0": "PXB", "rdmap79s0": "PHB"}
    assert found.numa == {0: "0-1", 1: "2"}
    assert found.memory == {1: "10"}  # Grace: the GPU's own memory is that node


@pytest.mark.parametrize(
    ("header", "rest", "numa"),
    [
        ("", "", {}),
        ("\tCPU Affinity", "\t0-19,40-59", {}),
        ("\tCPU Affinity\tNUMA Affinity", "\t0-127\t0", {0: "0"}),
        ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-7\t\tN/A\t\tN/A", {}),
        ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t\t\t\tN/A", {}),
        ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-7\t3\t\tN/A", {0: "3"}),
    ],
)
def test_affinities_of_old_drivers_and_of_guests(header: str, rest: str, numa: dict[int, str]) -> None:
    found = nvidia_smi.parse_topology(survey(topology=f"\tGPU0{header}\nGPU0\t X {rest}\n\nLegend:\n"))
    assert (found.links, found.nics) == ({0: {0: "X"}}, {0: {}})
    assert (found.numa, found.memory) == (numa, {})


def test_the_rows_of_adapters_are_not_needed() -> None:
    text = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tSYS\tPIX\nGPU1\tSYS\t X \tSYS\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    assert nvidia_smi.parse_topology(survey(topology=text)).nics == {
        0: {"mlx5_0": "PIX"},
        1: {"mlx5_0": "SYS"},
    }
    with pytest.raises(ProbeError, match="no row for GPU1; the answer is cut"):
        nvidia_smi.parse_topology(survey(topology="\tGPU0\tGPU1\nGPU0\t X \tSYS\n"))
    with pytest.raises(ProbeError, match="the row of GPU0 is cut"):
        nvidia_smi.parse_topology(survey(topology="\tGPU0\tGPU1\nGPU0\t X \t\n"))


# --- kernel log --------------------------------------------------------------------------------------------------

LOG = """[    0.000000] Linux version 6.8
[   12.114906] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04
[   20.000000] NVRM: Xid (PCI:0000:1b:00): 31, pid=123, name=python, Ch 00000008
[   21.000000] NVRM: Xid (PCI:0000:1b:00): 31, pid=124, name=python, Ch 00000009
[   99.500000] NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  100.000000] EXT4-fs error (device sda1): ext4_find_entry: inode #2: comm ls: reading directory
[  101.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress
"""


def read_log(tmp_path: Path, dmesg: str, journalctl: str = "exit 1") -> Answer:
    for name, body in (("dmesg", dmesg), ("journalctl", journalctl)):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", kernel_log.kernel_log_of(()).command],
        capture_output=True,
        env=env,
        timeout=60,
        check=False,
    )
    return Answer("gpu01", done.returncode, done.stdout, done.stderr)


def test_the_log_is_folded_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    log = kernel_log.parse(read_log(tmp_path, f"exec cat {tmp_path}/log"))
    assert (log.source, log.lines, log.since) == ("dmesg", 7, 0.0)
    assert [(found.number, found.bus, found.event.count) for found in log.xids] == [
        (31, "0000:1b:00", 2),
        (79, "0000:43:00", 1),
    ]
    assert [event.kind for event in log.events] == ["xid", "xid", "filesystem", "sxid"]
    assert log.sxids[0].text.startswith("Non-fatal")


def test_a_flood_hides_nothing(tmp_path: Path) -> None:
    flood = "".join(f"[{n}.000000] NVRM: Xid (PCI:0000:1b:00): 13, pid={n}, Graphics\n" for n in range(3000))
    (tmp_path / "log").write_text(LOG + flood)
    answer = read_log(tmp_path, f"exec cat {tmp_path}/log")
    assert {found.number for found in kernel_log.parse(answer).xids} == {13, 31, 79}
    assert len(answer.stdout) < 3000


def test_without_permission_the_journal_is_asked(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    log = kernel_log.parse(read_log(tmp_path, "echo denied >&2; exit 1", f"exec cat {tmp_path}/log"))
    assert log.source == "journalctl"
    assert len(log.xids) == 2


@pytest.mark.parametrize("journal", ["exit 1", "exit 0"])
def test_an_unreadable_or_empty_log_is_no_good_news(tmp_path: Path, journal: str) -> None:
    with pytest.raises(NotAvailable, match="not permitted"):
        kernel_log.parse(read_log(tmp_path, "echo 'dmesg: not permitted' >&2; exit 1", journal))
    with pytest.raises(NotAvailable):
        kernel_log.parse(read_log(tmp_path, "exit 0", journal))


def test_a_wrapped_log_says_from_when_it_reaches_back(tmp_path: Path) -> None:
    log = kernel_log.parse(read_log(tmp_path, "echo '[86400.000000] usb 1-1: new device'"))
    assert log.since == 86400.0


@pytest.mark.parametrize(
    "first",
    ["Hint: You are currently not seeing messages from other users and the system.", "\x1b\ufffd\x00" * 9],
)
def test_a_message_or_rubbish_is_no_kernel_log(first: str) -> None:
    lines = 2 if first.startswith("Hint") else 400
    text = f"source journalctl\nfrom\t{first}\nend\t{lines}\t0\t0\t0\t\n"
    with pytest.raises(NotAvailable, match="not a kernel log"):
        kernel_log.parse(Answer("gpu01", 0, text.encode()))


@pytest.mark.parametrize(
    "first", ["[    0.000000] Linux", "[Sa Nov 21 10:00:00 2026] Linux", "<5>[ 1.0] Linux"]
)
def test_every_way_to_write_times_is_a_kernel_log(first: str) -> None:
    text = f"source dmesg\nfrom\t{first}\nend\t1\t0\t0\t0\t\n"
    assert kernel_log.parse(Answer("gpu01", 0, text.encode())).lines == 1


def test_a_kernel_without_times_has_a_log_too() -> None:
    assert (
        kernel_log.parse(
            Answer("gpu01", 0, b"source dmesg\nfrom\tLinux version 6\nend\t400\t0\t0\t0\t\n")
        ).lines
        == 400
    )


def test_a_warning_below_the_table_is_a_message_once() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0008:00:00.0"
    table = "index, name\n0, Tesla V100"
    header = f"{warning}  \nCUDA Version: 11.2     "
    found = nvidia_smi.parse_gpus(survey(gpus=table, header=header))
    assert (found.messages, found.cuda) == ((warning,), "11.2")
    assert nvidia_smi.parse_gpus(survey(gpus=f"{table}\n{warning}", header=header)).messages == (warning,)
    assert nvidia_smi.parse_gpus(survey(gpus=table, header="CUDA Version: 11.2")).messages == ()
    assert nvidia_smi.parse_gpus(survey(gpus=table)).messages == ()


@pytest.mark.parametrize("stripped", [False, True])
def test_a_matrix_whose_tabs_became_spaces(*, stripped: bool) -> None:
    text = (
        "        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18    PIX     0-47,96-143     0               N/A\n"
        "GPU1    NV18     X      SYS     48-95           1               N/A\n"
        "NIC0    PIX     SYS      X\n\nLegend:\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    text = text.strip() if stripped else text
    for found in map(
        nvidia_smi.parse_topology, (survey(topology=text), survey(topology=re.sub(" {2,}", "\t", text)))
    ):
        assert found.links == {0: {0: "X", 1: "NV18"}, 1: {0: "NV18", 1: "X"}}
        assert found.nics == {0: {"mlx5_0": "PIX"}, 1: {"mlx5_0": "SYS"}}
        assert found.numa == {0: "0", 1: "1"}
