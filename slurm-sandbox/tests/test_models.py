"""A sandbox of each hardware model shows what such machines show, and every suite passes on its healthy nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from slurm_sandbox import faults, hardware, models
from slurm_sandbox import node_files as render
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.layout import Layout
from slurm_sandbox.models import MODELS, healthy_fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slurm_sandbox.hardware import SimulatedNode

OTHERS = ("t4", "v100", "a100", "h100", "gb200")  # the running sandbox of other tests is of the H200
# -- what the simulated tools print, without Slurm ---------------------------------------------------------------


def node_of(model: str, gpus: int | None = None) -> SimulatedNode:
    spec = models.model(model)
    return hardware.healthy_node("gpu02", 1, spec.gpus if gpus is None else gpus, spec, "/state/shared")


def smi_in(layout: Layout) -> Callable[..., str]:
    """Return what nvidia-smi prints on a healthy node of a model: smi(model, *options)."""
    render.write_simulated_tools(layout)

    def shown(model: str, *options: str) -> str:
        folder = layout.node(model)
        if not folder.exists():
            files = render.files(node_of(model))
            folder.mkdir(parents=True)
            for name in ("gpus", "links", "apps", "topo-m", "topo-p2p"):
                (folder / name).write_text(files[name])
        env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": model}
        argv = [str(layout.simbin / "nvidia-smi"), *options]
        return str(subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout)

    return shown


@pytest.fixture(scope="module")
def smi(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    return smi_in(Layout(tmp_path_factory.mktemp("smi")))


def test_gawk_prints_the_same(smi: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gawk = shutil.which("gawk")
    if gawk is None:
        pytest.skip("gawk is not installed")
    (tmp_path / "awk").symlink_to(gawk)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    by_gawk = smi_in(Layout(tmp_path))
    assert f"#!{tmp_path}/awk -E" in (tmp_path / "simbin/nvidia-smi").read_text()
    for options in (("-L",), ("--query-gpu=index,uuid,memory.total", "--format=csv"), ("nvlink", "-s")):
        assert by_gawk("h200", *options) == smi("h200", *options) != ""


# Parts of nvidia-smi -q that were recorded; where from, data/gpus/MODEL.tsv says.
RECORDED = {
    "t4": """\
    Product Name                          : Tesla T4
    Product Brand                         : NVIDIA
    Product Architecture                  : Turing
    MIG Mode
        Current                           : N/A
        Pending                           : N/A
            PCIe Generation
                Max                       : 3
                Current                   : 1
                Device Current            : 1
                Device Max                : 3
                Host Max                  : N/A
    Performance State                     : P8
        Total                             : 15360 MiB
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
    Retired Pages
        Single Bit ECC                    : 0
        Double Bit ECC                    : 0
        Pending Page Blacklist            : No
    Remapped Rows                         : N/A
        GPU Shutdown Temp                 : 96 C
        GPU Slowdown Temp                 : 93 C
        GPU Max Operating Temp            : 85 C
        GPU Target Temperature            : N/A
        Memory Current Temp               : N/A
        Memory Max Operating Temp         : N/A
    Fabric
        State                             : N/A
        Status                            : N/A
    Processes                             : None
""",
    "v100": """\
    Product Brand                         : Tesla
    Product Architecture                  : Volta
    Addressing Mode                       : N/A
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : N/A
    GSP Firmware Version                  : N/A
                Host Max                  : Unknown Error
        Volatile
            Single Bit
                Device Memory             : 0
                Register File             : 0
                L1 Cache                  : 0
                L2 Cache                  : 0
                Texture Memory            : N/A
                Texture Shared            : N/A
                CBU                       : N/A
                Total                     : 0
            Double Bit
                Device Memory             : 0
                Register File             : 0
                L1 Cache                  : 0
                L2 Cache                  : 0
                Texture Memory            : N/A
                Texture Shared            : N/A
                CBU                       : 0
                Total                     : 0
        Aggregate
    Remapped Rows                         : N/A
        GPU T.Limit Temp                  : N/A
        GPU Shutdown Temp                 : 90 C
    GPU Memory Power Readings
        Power Draw                        : N/A
    Fabric
        State                             : N/A
        Status                            : N/A
        CliqueId                          : N/A
        ClusterUUID                       : N/A
        Health
            Bandwidth                     : N/A
    Processes                             : None
""",
    "a100": """\
    Product Name                          : NVIDIA A100-SXM4-80GB
    Product Architecture                  : Ampere
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 640 bank(s)
        GPU T.Limit Temp                  : N/A
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
        GPU Max Operating Temp            : 85 C
        GPU Target Temperature            : N/A
""",
    "h100": """\
    Product Name                          : NVIDIA H100 80GB HBM3
    Platform Info
        RACK Serial Number                : N/A
        Chassis Physical Slot Number      : N/A
        Compute Slot Index                : N/A
        Node Index                        : N/A
        Peer Type                         : N/A
    GPU Recovery Action                   : None
    GSP Firmware Version                  : 565.57.01
            SRAM Threshold Exceeded       : No
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
        GPU T.Limit Temp                  : 57 C
        GPU Shutdown T.Limit Temp         : -8 C
        Memory Max Operating T.Limit Temp : 0 C
    GPU Power Readings
    GPU Memory Power Readings
        Power Draw                        : 69.61 W
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 0
        ClusterUUID                       : 00000000-0000-0000-0000-000000000000
        Health
            Bandwidth                     : N/A
    Processes                             : None
    Capabilities
        EGM                               : disabled
""",
}


@pytest.mark.parametrize("model", RECORDED)
def test_query_prints_the_recorded_lines_in_their_order(smi: Callable[..., str], model: str) -> None:
    _, _, of_first = smi(model, "-q", "-i", "0").partition("Attached GPUs")
    rest = [line.rstrip() for line in of_first.splitlines()]  # nvidia-smi leaves blanks behind some
    for line in RECORDED[model].splitlines():
        assert line in rest, line
        rest = rest[rest.index(line) + 1 :]


@pytest.mark.parametrize("model", sorted(MODELS))
def test_no_value_is_left_open_and_the_xml_is_well_formed(smi: Callable[..., str], model: str) -> None:
    text = smi(model, "-q")
    assert not re.findall(r"[{}@\x01]|N/A (?:C|W|MHz|MiB|%|bank)", text)
    count = MODELS[model].gpus
    assert text.count("Product Name") == count
    tree = ET.fromstring(smi(model, "-q", "-x"))
    assert len(tree.findall("gpu")) == count
    assert not re.findall(r"[{}@]", "".join(element.text or "" for element in tree.iter()))
    assert {gpu.findtext("product_name") for gpu in tree.iter("gpu")} == {healthy_fields(MODELS[model])["name"]}


def test_the_table_of_an_old_driver_is_narrow(smi: Callable[..., str]) -> None:
    lines = smi("t4").splitlines()[1:]
    assert {len(line) for line in lines} == {89}
    assert "|   0  Tesla T4                       On  | 00000000:00:1B.0 Off |                    0 |" in lines
    assert "|                                         |                      |                  N/A |" in lines


def test_a_driver_has_its_own_fields(smi: Callable[..., str]) -> None:
    ask = ("--format=csv,noheader", "-i", "0")
    unknown = 'Field "gpu_recovery_action" is not a valid field to query.'
    assert [unknown in smi(model, "--query-gpu=gpu_recovery_action", *ask) for model in OTHERS] == [
        *[True] * 3,
        *[False] * 2,
    ]
    assert smi("t4", "--query-gpu=retired_pages.pending,remapped_rows.failure,mig.mode.current", *ask) == (
        "No, [N/A], [N/A]\n"
    )
    alias = "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"
    assert smi("a100", f"--query-gpu={alias}", *ask).startswith(f'Field "{alias}" is not a valid')


def test_links_of_the_models(smi: Callable[..., str]) -> None:
    found = {}
    for model in sorted(MODELS):
        links = re.findall(r"Link (\d+): (\S+) GB/s", smi(model, "nvlink", "-s", "-i", "1"))
        found[model] = (len(links), {speed for _, speed in links})
    assert found == {
        "t4": (0, set()),
        "v100": (6, {"25.781"}),
        "a100": (12, {"25"}),
        "h100": (18, {"26.562"}),
        "h200": (18, {"26.562"}),
        "gb200": (18, {"53.125"}),
    }


def test_counters_of_nvlink_5(smi: Callable[..., str]) -> None:
    text = smi("gb200", "nvlink", "-e", "-i", "0")
    assert "Link 17: Effective BER: 15e-255\n" in text
    assert "Link 0: Link recovery failed events: 0\n" in text
    assert "Replay" not in text


def test_matrix_of_a_hybrid_cube_mesh(smi: Callable[..., str]) -> None:
    lines = smi("v100", "topo", "-m").splitlines()
    assert lines[1] == "GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tPHB\tSYS\tSYS\t0-19,40-59\t0\t\tN/A"
    assert lines[8].split()[1:9] == ["SYS", "SYS", "SYS", "NV1", "NV2", "NV1", "NV2", "X"]


def test_matrix_of_a_dgx_a100(smi: Callable[..., str]) -> None:
    rows = [line.split("\t") for line in smi("a100", "topo", "-m").splitlines()[1:9]]
    assert [(row[-4], row[-3]) for row in rows[::2]] == [
        ("48-63,176-191", "3"),
        ("16-31,144-159", "1"),
        ("112-127,240-255", "7"),
        ("80-95,208-223", "5"),
    ]
    assert rows[0][9:19] == ["PXB", "NODE", *["SYS"] * 8]


def test_matrix_of_a_grace_node(smi: Callable[..., str]) -> None:
    lines = smi("gb200", "topo", "-m").splitlines()
    assert lines[3] == "GPU2\tNV18\tNV18\t X \tNV18\tSYS\tSYS\tSYS\tSYS\t72-143\t1,19-25,27-33\t\t18"


def test_processors_of_a_grace_node() -> None:
    shown = render.files(node_of("gb200"))
    assert shown["kernel"].endswith("\naarch64\n")
    lscpu = dict(line.split(":", 1) for line in shown["lscpu"].splitlines())
    reported = {name: text.strip() for name, text in lscpu.items()}
    assert (reported["Model name"], reported["CPU(s)"], reported["Socket(s)"], reported["NUMA node(s)"]) == (
        *("Neoverse-V2", "144"),
        *("2", "34"),
    )
    assert (reported["NUMA node1 CPU(s)"], reported["NUMA node2 CPU(s)"]) == ("72-143", "")
    assert shown["root/sys/devices/system/node/node33/cpulist"] == "\n"


def test_ports_for_storage_are_beside_those_for_gpus() -> None:
    shown = render.files(node_of("a100"))
    ports = "root/sys/class/infiniband"
    assert [shown[f"{ports}/mlx5_{n}/ports/1/link_layer"] for n in (0, 7, 8, 9)] == [
        *["InfiniBand\n"] * 2,
        *["Ethernet\n"] * 2,
    ]
    assert shown[f"{ports}/mlx5_9/ports/1/state"] == "1: DOWN\n"
    assert shown[f"{ports}/mlx5_0/ports/1/counters/link_downed"] == "1\n"


def test_modules_and_greeting_of_the_driver() -> None:
    greetings = {
        model: next(line for line in node_of(model).kernel_log if "NVRM: loading" in line).partition("] ")[2]
        for model in ("v100", "h100", "gb200")
    }
    assert greetings == {
        "v100": "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct 14 22:12:07 UTC 2025",
        "h100": "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build",
        "gb200": "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.126.20  Release Build",
    }


# -- faults --------------------------------------------------------------------------------------------------

NO_ROWS = {"remap_failure", "remap_pending"}
NOTHING_OF_THE_KIND = {
    "t4": NO_ROWS
    | {
        "mig_on",
        "fabric_state",
        "fabric_registering",
        "fabric_manager_dead",
        "fabric_manager_elsewhere",
        "governor",
        "nvlink_down",
        "nvlink_errors",
        "nvlink_errors_old",
        "topology",
    }
    | {
        "acs_on",
        "hca_missing",
        "hca_width",
        "no_infiniband",
        "no_peermem",
        "other_ports_down",
        "rail_replaced",
        "rails_down",
    }
    | {"ib_down", "ib_rate", "ib_errors", "ib_flaps", "ib_firmware", "ib_mtu", "ib_link_layer", "ib_partition"}
    | {
        "cable_errors",
        "cables_swapped",
        "duplicate_guid",
        "optics_weak",
        "partition_dropped",
        "gid_missing",
        "rail_latency",
        "rail_slow",
        "second_manager",
        "uplink_errors",
        "uplink_missing",
        "uplink_mtu",
        "uplink_slow",
        "wrong_leaf",
    },
    "v100": NO_ROWS
    | {"ecc_aggregate_sram", "fabric_manager_dead", "fabric_manager_elsewhere", "fabric_registering"}
    | {"fabric_state", "mig_on", "topology"},
    "a100": {"fabric_manager_elsewhere", "fabric_registering", "fabric_state"},
    "h100": {"gpu_name"},  # the default is this model's own name
    "gb200": {"fabric_manager_dead", "fabric_manager_elsewhere", "pcie_width"},
}


def changes(kind: str, node: SimulatedNode, healthy: dict[str, str]) -> bool:
    """Put a fault into a node, which must show it then; False where the fault was refused."""
    try:
        faults.apply(node, faults.InjectedFault(kind, "gpu02"))
    except SandboxError:
        return False
    assert render.files(node) != healthy or node.hidden, kind
    return True


@pytest.mark.parametrize("model", OTHERS)
def test_a_fault_changes_what_a_node_shows_or_says_why_not(model: str) -> None:
    healthy = render.files(node_of(model))
    kinds = {name for name, fault in faults.FAULTS.items() if fault.change is not None}
    refused = {kind for kind in kinds if not changes(kind, node_of(model), healthy)}
    assert refused == NOTHING_OF_THE_KIND[model]


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("t4", "nvlink_down", "GPUs of the model t4 have 0 NVLinks"),
        ("t4", "remap_failure", "nvidia-smi shows no remapped_rows.failure of a Tesla T4"),
        ("t4", "acs_on", "a node of the model t4 has no adapters"),
        ("gb200", "pcie_width", "a node of the model gb200 has no lanes to lose"),
    ],
)
def test_why_a_fault_makes_no_sense(model: str, kind: str, message: str) -> None:
    with pytest.raises(SandboxError, match=re.escape(message)):
        faults.apply(node_of(model), faults.InjectedFault(kind, "gpu02"))


@pytest.mark.parametrize(
    ("model", "kind", "options"),
    [
        ("t4", "gpu_memory", {"gpu": 1, "mib": 15098}),
        ("t4", "power_limit", {"gpu": 3, "watts": 56}),
        ("t4", "pcie_generation", {"gpu": 3, "generation": 2}),
        ("v100", "nvlink_down", {"gpu": 4, "link": 5}),
        ("v100", "ib_down", {"hca": "mlx5_2"}),
        ("gb200", "xid", {"gpu": 3, "xid": 46, "recovered": 0}),
        ("h200", "gpu_memory", {"gpu": 1, "mib": 141_312}),
        ("h200", "power_limit", {"gpu": 7, "watts": 500}),
        ("h200", "memory_missing", {"missing_gib": 256}),
        ("t4", "memory_missing", {"missing_gib": 23}),
    ],
)
def test_defaults_of_a_fault_fit_the_model(model: str, kind: str, options: dict[str, object]) -> None:
    spec = MODELS[model]
    assert faults.resolve_options(faults.find(kind), {}, spec, spec.gpus) == options


def test_a_slower_port_runs_at_half_the_rate_of_the_model() -> None:
    node = node_of("v100")
    faults.apply(node, faults.InjectedFault("ib_rate", "gpu02"))
    assert [hca.rate for hca in node.hcas] == [
        *["100 Gb/sec (4X EDR)"] * 2,
        *["50 Gb/sec (2X EDR)", "100 Gb/sec (4X EDR)"],
    ]


def test_a_node_has_at_most_the_gpus_of_its_model() -> None:
    with pytest.raises(SandboxError, match="a node of the model gb200 has at most 4 GPUs, not 5"):
        node_of("gb200", 5)
    assert len(node_of("h200", 16).gpus) == 16


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(SandboxError, match=r"unknown hardware model 'b300' \(known: a100, gb200, h100, h200, t4, v100"):
        models.model("b300")


@pytest.mark.parametrize(
    ("options", "action"),
    [
        ({"xid": 119}, "Reset"),
        ({"xid": 119, "recovered": 1}, "None"),
        ({"xid": 46}, "None"),  # without an Xid 154
        ({"xid": 43}, "None"),  # of an application
    ],
)
def test_an_xid_sets_the_recovery_action_that_the_driver_sets(options: dict[str, int], action: str) -> None:
    node = node_of("h200")
    faults.apply(node, faults.InjectedFault("xid", "gpu02", options))
    bus = node.gpus[5].fields["pci.bus_id"].lower()
    assert f"Xid (PCI:{bus[4:].partition('.')[0]}): {options['xid']}, pid=" in node.kernel_log[-1]
    assert node.gpus[5].fields["gpu_recovery_action"] == action
    assert node.gpus[4].fields["gpu_recovery_action"] == "None"
