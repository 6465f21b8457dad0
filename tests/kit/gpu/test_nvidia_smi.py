"""The readers of nvidia-smi and of the fabric: recordings, the survey in a real shell, and rubbish."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from gpu_helpers import recorded
from paths import TESTS

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.fabric import facts as infiniband
from pytest_gpucluster.kit.gpu import fabric_manager, nvidia_csv, nvidia_smi
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager

if TYPE_CHECKING:
    from pathlib import Path

DATA = TESTS / "data" / "h200x8"


def survey(rc: int | str = 0, **texts: str) -> Answer:
    """An answer of the survey: the text of each section, all with this exit status."""
    parts = (f"@@ {name} {rc}\n{text}\n" for name, text in texts.items())
    return Answer("gpu01", 0, "".join(parts).encode())


def gpu_of(**cells: str) -> nvidia_smi.Gpu:
    """The only GPU of a table of these columns, by the names of the attributes."""
    columns = [COLUMNS[name][0].partition(" [")[0] for name in cells]
    (gpu,) = nvidia_smi.parse_gpus(survey(gpus=f"{', '.join(columns)}\n{', '.join(cells.values())}"))
    return gpu


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
    assert (gpus.driver_problem, gpus.owner) == ("", "")
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


DEAD = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


@pytest.mark.parametrize(
    ("words", "status"), [(DEAD, 9), ("Failed to initialize NVML: Driver/library version mismatch", 18)]
)
def test_a_dead_driver_is_a_fact_and_stops_the_survey_and_a_diagnostic_explains_it(
    tmp_path: Path, words: str, status: int
) -> None:
    (tmp_path / "ps").write_text("#!/bin/sh\necho ' 12 bash'; echo ' 1234 fieldiag'\n")
    (tmp_path / "ps").chmod(0o755)
    answer = run_survey(tmp_path, f'echo "{words}"; exit {status}')
    gpus = nvidia_smi.parse_gpus(answer)
    assert words in gpus.driver_problem
    assert gpus.owner == "a diagnostic owns the GPUs: fieldiag (process 1234): wait for its end"
    assert len(gpus) == 0
    with pytest.raises(NotAvailable):
        nvidia_smi.parse_nvlink(answer)


def test_a_hung_nvidia_smi_costs_the_later_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "SURVEY", nvidia_smi.SURVEY.replace(f"limited {nvidia_smi.HANG}", "limited 2"))
    body = REPLAY % ("none", "none")
    answer = run_survey(tmp_path, body.replace('"nvlink -s")', '"nvlink -s") exec sleep 50;; never)'))
    assert len(nvidia_smi.parse_gpus(answer)) == 8
    assert nvidia_smi.parse_gpus(answer).cuda == "13.0"
    assert nvidia_smi.parse_gpus(answer).cut_off == "nvlink"
    with pytest.raises(NotAvailable, match="no end within its deadline"):
        nvidia_smi.parse_nvlink(answer)
    with pytest.raises(NotAvailable, match="not queried"):
        nvidia_smi.parse_topology(answer)


BANNER = "*** Authorised use only ***\nWARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"


@pytest.mark.parametrize("rc", ["0", "14"])  # nvidia-smi(1): 14 warns of the infoROM beside a whole answer
def test_a_banner_and_warnings_hide_nothing(rc: str) -> None:
    links = recorded("nvlink-s.txt")
    text = BANNER + links + BANNER[28:]
    assert nvidia_smi.parse_nvlink(survey(rc, nvlink=text)) == nvidia_smi.parse_nvlink(survey(nvlink=links))
    assert len(nvidia_smi.parse_nvlink(survey(rc, nvlink=text))) == 8


LACKING = ["[N/A]", "N/A", "[Not Supported]", "[Function Not Found]"]
UNSAID = ["[Not Available]", "Unknown", "[Unknown]", "[Not Found]"]
DEPRECATED = "[Requested functionality has been deprecated]"
ERRORS = ["", "[Unknown Error]", "ERR!", "[GPU is lost]", "[GPU requires reset]", "[Timeout]"]


@pytest.mark.parametrize("text", [*LACKING, DEPRECATED, nvidia_csv.NOT_REPORTED, *UNSAID, *ERRORS])
def test_no_such_thing_and_an_error_are_distinguished(text: str) -> None:
    lacks = text not in {*ERRORS, *UNSAID}
    assert nvidia_csv.is_unsupported(text) is lacks
    assert nvidia_csv.is_unsaid(text) is (text in UNSAID)
    assert nvidia_smi.Gpu(unread={"ecc": text}).lacks("ecc") is lacks


@pytest.mark.parametrize(
    ("cell", "word", "name"),
    [
        ("Unknown Error", "Unknown Error", None),  # a status of the fabric, and no name
        ("N/A", None, None),
        ("[N/A]", None, None),
        ("[Unknown Error]", None, None),
        ("Success", "Success", "Success"),
    ],
)
def test_a_word_of_the_driver_is_a_value_as_printed(cell: str, word: str | None, name: str | None) -> None:
    row = {"x": (cell, "")}
    assert nvidia_csv.read_cell(row, "x", nvidia_csv.enumeration)[0] == word
    assert nvidia_csv.read_cell(row, "x", nvidia_csv.text_value)[0] == name


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
    text = f"GPU 0: NVIDIA L40S (UUID: GPU-1)\n{said}\nGPU 1: L40S (UUID: GPU-2)\n\t Link 0: <inactive>\n"
    found = nvidia_smi.parse_nvlink(survey(rc, nvlink=text))
    assert found == {"GPU-1": {}, "GPU-2": {0: None}}
    assert nvidia_smi.parse_nvlink(survey(rc, nvlink=said)) == {}


# A healthy B300 (p6-b300.48xlarge, driver 595.91.07): names and values at boot as published, put into lines here.
NVLINK_5 = """\
\t Link 0: Malformed packet Errors: 0
\t Link 0: Local link integrity Errors: 0
\t Link 0: Link recovery successful events: 0
\t Link 0: Effective BER: 15e-255
\t Link 0: Symbol BER: 15e-255
\t Link 0: Raw BER Lane 0: 2061
\t Link 0: Raw BER Total: 1037
\t Link 0: Raw Errors Lane 0: 82
\t Link 0: FEC Errors - 0: 36140749276
\t Link 0: FEC Errors - 1: 175
\t Link 0: Tx packets: 9
\t Link 0: Rx bytes: 12
"""
SICK = """\
\t Link 1: Link recovery failed events: 2
\t Link 1: Link recovery successful events: 505
\t Link 1: Effective BER: 15e-3
\t Link 1: Symbol BER: 15e-254
\t Link 1: PLR Xmit Retry Blocks: 7
\t Link 1: Replay Errors: N/A
"""
SICK_COUNTS = (
    (1, "Link recovery failed events", 2),
    (1, "Link recovery successful events", 505),
    (1, "Effective BER", 15e-3),
    (1, "Symbol BER", 15e-254),
    (1, "PLR Xmit Retry Blocks", 7),
)


@pytest.mark.parametrize(
    ("text", "counts", "unread"), [(NVLINK_5, (), ()), (NVLINK_5 + SICK, SICK_COUNTS, ((1, "Replay Errors", "N/A"),))]
)
def test_harmless_counters_are_folded_on_the_node(
    tmp_path: Path, text: str, counts: tuple[Any, ...], unread: tuple[Any, ...]
) -> None:
    (tmp_path / "errors").write_text(f"GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-1)\n{text}")
    answer = run_survey(tmp_path, f'case "$*" in "nvlink -e") cat {tmp_path}/errors;; esac\n')
    assert nvidia_smi.parse_nvlink_errors(answer)["GPU-1"] == nvidia_smi.LinkErrors(12, counts, unread)


def test_a_query_of_nothing_ends(tmp_path: Path) -> None:
    """Else the survey would ask for no field for ever."""
    said = 'echo "Field \\"${f%%,*}\\" is not a valid field to query."'
    answer = run_survey(tmp_path, f'case "$*" in *query-gpu*) f=${{1#*=}}; {said}; exit 2;; esac\n')
    found = nvidia_smi.parse_gpus(answer)
    assert (found.devices, found.driver_problem, found.failed) == ((), "", "exit 2")


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
    text = re.sub("\t+", " " * 4, MATRIX)
    text = text.strip() if stripped else text
    assert nvidia_smi.parse_topology(survey(topology=text)) == TOPOLOGY
    assert nvidia_smi.parse_topology(survey(topology=re.sub(" {2,}", "\t", text))) == TOPOLOGY


MIB = 2**20


# attribute: nvidia-smi's name of the column (nvidia-smi --help-query-gpu), a cell, the value
COLUMNS: dict[str, tuple[str, str, Any]] = {
    "index": ("index", "3", 3),
    "uuid": ("uuid", "GPU-1", "GPU-1"),
    "name": ("name", "NVIDIA H200", "NVIDIA H200"),
    "bus": ("pci.bus_id", "00000000:1B:00.0", "0000:1b:00.0"),
    "serial": ("serial", "165", "165"),
    "driver": ("driver_version", "580.1", "580.1"),
    "vbios": ("vbios_version", "96.00", "96.00"),
    "memory": ("memory.total [MiB]", "143771 MiB", 143771 * MIB),
    "memory_used": ("memory.used [MiB]", "2 MiB", 2 * MIB),
    "persistence": ("persistence_mode", "Enabled", True),
    "compute_mode": ("compute_mode", "Default", "Default"),
    "mig": ("mig.mode.current", "Disabled", False),
    "ecc": ("ecc.mode.current", "Enabled", True),
    "ecc_volatile_uncorrected": ("ecc.errors.uncorrected.volatile.total", "4", 4),
    "ecc_volatile_corrected": ("ecc.errors.corrected.volatile.total", "5", 5),
    "ecc_aggregate_uncorrected": ("ecc.errors.uncorrected.aggregate.total", "6", 6),
    "ecc_aggregate_sram": ("ecc.errors.uncorrected.aggregate.sram", "7", 7),
    "sram_threshold_exceeded": ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "Yes", True),
    "retired_pending": ("retired_pages.pending", "No", False),
    "pcie_gen": ("pcie.link.gen.current", "4", 4),
    "pcie_gen_max": ("pcie.link.gen.max", "5", 5),
    "pcie_width": ("pcie.link.width.current", "8", 8),
    "pcie_width_max": ("pcie.link.width.max", "16", 16),
    "pstate": ("pstate", "P0", "P0"),
    "clock_sm_max": ("clocks.max.sm [MHz]", "1980 MHz", 1980.0),
    "clock_memory": ("clocks.mem [MHz]", "3201 MHz", 3201.0),
    "clock_memory_max": ("clocks.max.mem [MHz]", "3202 MHz", 3202.0),
    "clock_application": ("clocks.applications.graphics [MHz]", "1979 MHz", 1979.0),
    "clock_application_default": ("clocks.default_applications.graphics [MHz]", "1978 MHz", 1978.0),
    "throttle": ("clocks_throttle_reasons.active", "0x0000000000000010", 16),
    "temperature": ("temperature.gpu", "38", 38.0),
    "power": ("power.draw [W]", "78.54 W", 78.54),
    "power_limit": ("power.limit [W]", "700.00 W", 700.0),
    "fabric_state": ("fabric.state", "Completed", "Completed"),
    "fabric_status": ("fabric.status", "Success", "Success"),
    "recovery_action": ("gpu_recovery_action", "None", "None"),
    "display": ("display_active", "Disabled", False),
    "retired_single": ("retired_pages.single_bit_ecc.count", "1", 1),
    "retired_double": ("retired_pages.double_bit.count", "2", 2),
    "fabric_health": ("fabric.health.summary", "Healthy", "Healthy"),
}
# what other drivers call a column
ALIASES = {
    "uuid": "gpu_uuid",
    "name": "gpu_name",
    "serial": "gpu_serial",
    "pci.bus_id": "gpu_bus_id",
    "clocks.sm [MHz]": "clocks.current.sm [MHz]",
    "clocks.mem [MHz]": "clocks.current.memory [MHz]",
    "clocks.max.mem [MHz]": "clocks.max.memory [MHz]",
    "clocks.applications.graphics [MHz]": "clocks.applications.gr [MHz]",
    "clocks.default_applications.graphics [MHz]": "clocks.default_applications.gr [MHz]",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "power.limit [W]": "power.requested_limit [W]",
}


@pytest.mark.parametrize("names", [{}, ALIASES, {"power.limit [W]": "gpu.power.requested_limit [W]"}])
def test_every_column_is_read(names: dict[str, str]) -> None:
    header = ", ".join(names.get(column, column) for column, _, _ in COLUMNS.values())
    row = ", ".join(cell for _, cell, _ in COLUMNS.values())
    (gpu,) = nvidia_smi.parse_gpus(survey(gpus=f"{header}\n{row}"))
    assert {name: getattr(gpu, name) for name in COLUMNS} == {name: it[2] for name, it in COLUMNS.items()}
    assert gpu.unread == {}
    assert str(gpu) == "GPU 3 (GPU-1, 0000:1b:00.0)"


def test_every_column_is_asked_for() -> None:
    for column, _, _ in COLUMNS.values():
        name = re.escape(column.partition(" [")[0])
        assert re.search(rf"[=,;]{name}(?![.\w])", nvidia_smi.SURVEY), column


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("index", ["-1", "1.0", "x", "1 MiB"]),
        ("memory", ["12", "12 GiB"]),
        ("temperature", ["38 C"]),
        ("bus", ["1B:00.0", "00000000:1B:00.8", "000000000:1B:00.0", "0000:1B:00.0x", "0000:1B:0:0"]),
    ],
)
def test_a_cell_that_is_not_understood_is_no_value(name: str, cells: list[str]) -> None:
    for cell in cells:
        gpu = gpu_of(**{"index": "0", name: cell})
        assert getattr(gpu, name) is None
        assert gpu.unread[name] == f"{cell!r}, which is not understood"


def test_a_gpu_is_lost_that_says_so_or_most_of_whose_values_are_errors() -> None:
    def lost(*texts: str) -> str:
        return nvidia_smi.Gpu(unread=dict(zip(COLUMNS, texts, strict=False))).lost

    assert len(COLUMNS) == 40
    assert lost(*["[Unknown Error]"] * 20) == ""
    assert lost(*["[Unknown Error]"] * 21) == "[Unknown Error]"
    for text in ("[GPU is lost]", "[gpu requires reset]", "GPU has fallen off the bus"):
        assert lost("x", text) == text
    for text in ("[Unknown Error]", "xGPU is lost", "GPU is lostx"):
        assert lost(text) == ""


@pytest.mark.parametrize(
    ("rc", "text", "problem", "failed"),
    [
        (9, "NVIDIA-SMI has failed\n  because", "NVIDIA-SMI has failed because (exit 9)", "exit 9"),
        (127, "sh: nvidia-smi", "sh: nvidia-smi (exit 127)", "exit 127"),
        (124, "x", "", "exit 124"),  # of its own, since it is not the word of a deadline
        (193, "x", "", "exit 193"),
        (128, "x", "", "exit 128"),
        (1, "couldn't communicate", "couldn't communicate (exit 1)", "exit 1"),
        (1, "command not found", "command not found (exit 1)", "exit 1"),
        (6, "No devices were found", "", "exit 6"),
        (14, "WARNING", "", ""),
    ],
)
def test_why_nvidia_smi_did_not_work(rc: int, text: str, problem: str, failed: str) -> None:
    found = nvidia_smi.parse_gpus(survey(rc, gpus=text))
    assert (found.driver_problem, found.failed, found.devices) == (problem, failed, ())
    assert nvidia_smi.parse_gpus(survey(1, gpus="index\n0\nnot found")).driver_problem == ""


@pytest.mark.parametrize("rc", [129, 137, 139, 143, 192])
def test_an_nvidia_smi_that_something_else_killed_is_no_fact(rc: int) -> None:
    with pytest.raises(NotAvailable, match=f"killed by signal {rc - 128}$"):
        nvidia_smi.parse_gpus(survey(rc, gpus="index\n0"))
    with pytest.raises(NotAvailable, match=f"killed by signal {rc - 128}"):
        nvidia_smi.parse_gpus(Answer("gpu01", 0, f"@@ ended {rc}\n".encode()))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("index\n0\n0", "a GPU is listed twice: indices [0, 0]"),
        ("index, name, pci.bus_id\n0, a, b, 0000", "more cells than columns: GPU 0, 'a, b'"),
        ("index, name, uuid\n0 , a", "a row of 2 of 3 cells, cut? '0 , a'"),
        ("index, serial\n0, a, b", "a row of 3 cells under 2 columns: '0, a, b'"),
    ],
)
def test_a_table_that_is_not_understood(text: str, words: str) -> None:
    with pytest.raises(ProbeError, match=re.escape(words) + "$"):
        nvidia_smi.parse_gpus(survey(gpus=text))


def test_lines_that_are_no_rows_are_messages() -> None:
    found = nvidia_smi.parse_gpus(survey(gpus=f"before\nindex, name\n0, a\nafter\x07\n{'x' * 200}"))
    assert found.messages == ("before", "after?", "x" * 160)


def test_an_answer_without_its_first_query() -> None:
    with pytest.raises(ProbeError, match=r"^nvidia-smi: the query of the GPUs has not answered$"):
        nvidia_smi.parse_gpus(survey(rows=""))
    with pytest.raises(ProbeError, match=r"^nvidia-smi: the answer was cut at the cap$"):
        nvidia_smi.parse_gpus(Answer("gpu01", 0, b"@@ gpus 0\nindex\n0\n", truncated=True))
    with pytest.raises(ProbeError, match=r"^nvidia-smi: no section in the answer: 'words'$"):
        nvidia_smi.parse_gpus(Answer("gpu01", 0, b"words"))


SECTIONS = [
    (nvidia_smi.parse_rows, "rows", "nvidia-smi --query-remapped-rows"),
    (nvidia_smi.parse_apps, "apps", "nvidia-smi --query-compute-apps"),
    (nvidia_smi.parse_nvlink, "nvlink", "nvidia-smi nvlink -s"),
    (nvidia_smi.parse_nvlink_errors, "errors", "nvidia-smi nvlink -e"),
    (nvidia_smi.parse_topology, "topology", "nvidia-smi topo -m"),
    (nvidia_smi.parse_p2p, "p2p", "nvidia-smi topo -p2p n"),
]


@pytest.mark.parametrize(("parse", "name", "what"), SECTIONS)
def test_a_section_that_failed_has_the_message_of_nvidia_smi(parse: Any, name: str, what: str) -> None:
    def said(answer: Answer) -> str:
        with pytest.raises((NotAvailable, ProbeError)) as error:
            parse(answer)
        return str(error.value)

    assert said(survey(other="x")) == f"{what}: its section is missing; the answer ended early"
    assert said(survey(2, **{name: "a\nInvalid\n"})) == f"{what}: Invalid (exit 2)"
    assert said(survey(2, **{name: ""})) == f"{what}: no message (exit 2)"
    assert said(survey(0, **{name: "No devices were found"})) == f"{what}: No devices were found"
    skipped = Answer("gpu01", 0, f"@@ {name} -\n\n".encode())
    assert said(skipped) == f"{what}: not queried, since nvidia-smi failed before (see gpu.driver)"


def test_rows_and_processes() -> None:
    names = ("correctable", "uncorrectable", "pending", "failure")
    header = ", ".join(("gpu_uuid", *(f"remapped_rows.{name}" for name in names)))
    rows = nvidia_smi.parse_rows(survey(rows=f"{header}\nGPU-1, 1, 2, Yes, No\nGPU-2, [N/A], 0, x, No"))
    unread = {"correctable": "[N/A]", "pending": "'x', which is not understood"}
    assert rows == {
        "GPU-1": nvidia_smi.RowRemapping(1, 2, pending=True, failure=False),
        "GPU-2": nvidia_smi.RowRemapping(None, 0, None, failure=False, unread=unread),
    }
    header = "pid, gpu_uuid, used_gpu_memory [MiB], process_name"
    apps = nvidia_smi.parse_apps(survey(apps=f"{header}\n7, GPU-1, 3 MiB, a, b\n[N/A], GPU-2, [N/A], c"))
    assert apps == (nvidia_smi.GpuProcess(7, "GPU-1", 3 * MIB, "a, b"), nvidia_smi.GpuProcess(None, "GPU-2", None, "c"))
    assert nvidia_smi.parse_apps(survey(apps="pid\n7")) == (nvidia_smi.GpuProcess(7, "", None, "unnamed"),)
    assert nvidia_smi.parse_apps(survey(apps=header)) == ()


def test_links_and_their_counters() -> None:
    gpu = "GPU 0: NVIDIA H200 (UUID: GPU-1)"
    text = f"b\n{gpu}\n\t Link 0: 26.562 GB/s\n Link 1: <inactive>\n Link 12: 25 GB/s\n Link 3: inActive"
    links = {0: 26.562, 1: None, 12: 25.0, 3: None}
    assert nvidia_smi.parse_nvlink(survey(nvlink=text)) == {"GPU-1": links}
    bad = {f"{gpu}\n{line}\n": line for line in ("Link 0: 26.5 MB/s", "Link x: <inactive>", "words")}
    bad |= {"banner\nmore": "banner", "Link 0: 1 GB/s": "Link 0: 1 GB/s"}
    for text, line in bad.items():
        with pytest.raises(ProbeError, match=f"not understood: '{line}'$"):
            nvidia_smi.parse_nvlink(survey(nvlink=text))


def test_counters_of_links() -> None:
    gpu = "GPU 0: NVIDIA H200 (UUID: GPU-1)"
    with pytest.raises(ProbeError, match="the answer ends within a GPU"):
        nvidia_smi.parse_nvlink_errors(survey(errors=f"{gpu}\n Link 0: Replay Errors: 12"))


MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tPIX\t0-31\t0\t\t4\n"
    "GPU1\tNV18\t X \tSYS\t32-63\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X\n\nLegend:\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)


TOPOLOGY = nvidia_smi.Topology(
    {0: {0: "X", 1: "NV18"}, 1: {0: "NV18", 1: "X"}},
    {0: {"mlx5_0": "PIX"}, 1: {"mlx5_0": "SYS"}},
    {0: "0", 1: "1"},
    {0: "4"},
)


ROW_OF_1 = "GPU1\tNV18\t X \tSYS\t32-63\t1\t\tN/A\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (ROW_OF_1, "", "no row for GPU1; the answer is cut"),
        (ROW_OF_1, "GPU1\tNV18\n", "the row of GPU1 is cut"),
        ("GPU0\t X \tNV18", "GPU0\t\tNV18", "the row of GPU0 is cut"),
    ],
)
def test_a_matrix_that_is_cut(old: str, new: str, words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        nvidia_smi.parse_topology(survey(topology=MATRIX.replace(old, new)))


def test_device_files() -> None:
    def parse(text: str) -> Any:
        return nvidia_smi.parse_device_files(Answer("gpu01", 0, text.encode()))

    assert parse("nvidia0\nnvidiactl\nentries 200\n") == {"nvidia0", "nvidiactl"}
    assert parse("entries 1\n") == set()
    for text in ("entries 0\n", "nvidia0\n", "nvidia0\nentries\n", "entries x", "", "nvidia0 7"):
        with pytest.raises(NotAvailable):
            parse(text)


@pytest.mark.parametrize(
    ("text", "state", "version"),
    [
        ("state active\nversion Fabric Manager version is : 580.159.04\n", "active", "580.159.04"),
        ("state failed\nversion sh: nv-fabricmanager: not found\n", "failed", None),
        ("\nstate  maintenance\nversion\n", "maintenance", None),
    ],
)
def test_fabric_manager(text: str, state: str, version: str | None) -> None:
    assert fabric_manager.parse(Answer("gpu01", 0, text.encode())) == FabricManager(state, version)


def test_for_how_long_a_node_is_up() -> None:
    for early in (Answer("gpu01", 0, b"uptime 5 1\n"), Answer("gpu01", 0, b"end\n", truncated=True)):
        with pytest.raises(ProbeError, match="the answer ended early"):
            infiniband.parse_adapters(early)
