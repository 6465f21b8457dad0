"""Burn-in without a cluster: readers, loads, sums, verdicts, figures, dcgmi's JSON, the live line, options."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from burnin_helpers import CONFIG, NAME, failed, fleet, gpu_of, hello, load
from constants import with_constants
from counter_examples import DRAIN, MONITOR, result
from framework_helpers import framework_python, imported
from hypothesis import given
from hypothesis import strategies as st
from judged import figures, judged
from paths import DATA

from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import ConfigError, StepMisplaced
from pytest_gpucluster.kit.fabric.rails import RailPort
from pytest_gpucluster.kit.framework.payload_step import command, sent
from pytest_gpucluster.plugin.fixtures import LiveLine
from pytest_gpucluster.report.events import read_log
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.suites.burnin import (
    error_checks,
    load_checks,
    payload,
    payload_counters,
    payload_gpu,
    payload_host,
    payload_process,
    payload_sensors,
    removal,
    steps,
    stragglers,
)
from pytest_gpucluster.suites.burnin import options as burnin_options
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals
from pytest_gpucluster.suites.burnin.steps import Burnin, Progress, ResumeState, _pairs

SOURCE = Path(payload.__file__)
MIB = payload_process.MIB


# --- what the payload reads ----------------------------------------------------------------------------------------


def recorded_xml() -> str:
    text = (DATA / "sandbox" / "nvidia-smi-q-x-of-one-gpu.xml").read_text()
    return text if "<nvidia_smi_log" in text else f"<nvidia_smi_log>{text}</nvidia_smi_log>"


def test_xml_of_nvidia_smi_gives_counters_names_and_limits() -> None:
    (gpu,) = payload_counters.read_xml(recorded_xml())
    assert (gpu["uuid"][:4], gpu["bus"].count(":"), gpu["name"]) == ("GPU-", 2, NAME)
    assert (gpu["pcie_gen"], gpu["pcie_width"]) == (5, 16)
    assert (gpu["power_limit"], gpu["power_default"]) == (700.0, 700.0)
    scopes = ("volatile", "aggregate")
    ecc = {f"ecc_{kind}_{scope}" for kind in ("corrected", "uncorrected") for scope in scopes}
    remapped = {f"remapped_{what}" for what in ("uncorrectable", "correctable", "pending", "failure")}
    others = {"pcie_replay", "throttled_hw_thermal_us", "throttled_hw_power_us"}
    assert gpu["counters"] == dict.fromkeys(ecc | remapped | others, 0)
    unread = recorded_xml().replace("<replay_counter>0<", "<replay_counter>N/A<")
    assert "pcie_replay" not in payload_counters.read_xml(unread)[0]["counters"]


@pytest.mark.parametrize(
    ("margin", "threshold", "expected"),
    [("49 C", "", 89.0), ("N/A", "90 C", 90.0), ("N/A", "N/A", None)],  # since Hopper, before it, unknown
)
def test_the_temperature_from_which_a_gpu_slows_down(
    margin: str, threshold: str, expected: float | None
) -> None:
    text = recorded_xml().replace("<gpu_temp_tlimit>49 C<", f"<gpu_temp_tlimit>{margin}<")
    own = f"<gpu_temp_slow_threshold>{threshold}</gpu_temp_slow_threshold><gpu_temp_tlimit>"
    (gpu,) = payload_counters.read_xml(text.replace("<gpu_temp_tlimit>", own))
    assert gpu["slow_celsius"] == expected


def test_ports_have_their_counters_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    def output_of(argv: list[str], _: float) -> tuple[int, str, str]:
        if "ls -d" in argv[-1]:
            return 0, "/sys/class/infiniband/mlx5_0/ports/1\n/sys/class/infiniband/hfi1/ports/1\n", ""
        return (
            0,
            "400 Gb/sec (4X NDR)\nsymbol_error 7\nlink_downed \n"
            if "mlx5_0" in argv[-1]
            else "symbol_error 1\n",
            "",
        )

    monkeypatch.setattr(payload_counters, "output_of", output_of)
    counters = payload_counters.Counters()
    assert counters._infiniband() == {"mlx5_0/1": {"symbol_error": 7}, "hfi1/1": {"symbol_error": 1}}
    assert counters.port_rates == {"mlx5_0/1": 50.0}


WARNING = "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"


def test_a_warning_of_nvidia_smi_hides_no_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi(1): it then ends with 14, beside a whole answer."""
    (tmp_path / "gpus.xml").write_text(recorded_xml())
    uuid = payload_counters.read_xml(recorded_xml())[0]["uuid"]
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f"#!/bin/sh\ncase $* in -q*) cat {tmp_path}/gpus.xml;; nvlink*) echo 'GPU 0: x (UUID: {uuid})'; "
        f"echo '  Link 0: Replay Errors: 3';; *) echo '{uuid}, 40, 45, 690, 1700, 99, 0x8';; esac\n"
        f"echo '{WARNING.strip()}'; exit 14\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    counters = payload_counters.Counters()
    found = counters.snapshot()
    assert [gpu["uuid"] for gpu in found["gpus"]] == [uuid]
    assert found["parts"][uuid]["nvlink_replay_errors"] == 3
    assert found["parts"][uuid]["ecc_uncorrected_volatile"] == 0
    assert counters.unread.keys() <= {"xid"}
    sensors = payload_sensors.Sensors(1.0)
    sensors.begin()
    sensors.sample()
    assert sensors.summary()[uuid]["slow"] == {"hw_slowdown": 1.0}


def entry(pid: int, name: str = "python3") -> dict[str, Any]:
    return {"pid": pid, "name": name}


def test_others_on_the_gpus_are_distinguished_from_ours() -> None:
    gpus = [{"uuid": "GPU-a", "processes": [entry(5), entry(7)]}, {"uuid": "GPU-b", "processes": [entry(5)]}]
    assert payload_counters.other_processes(gpus, {5}) == {"GPU-a": ["python3 (pid 7)"]}
    assert payload_counters.other_processes(gpus, {5, 7}) == {}
    assert payload_counters.other_processes(gpus, {99}) == {}, (
        "the pids of another namespace: one of them may be ours"
    )


def test_nvlink_errors_are_summed_over_the_links() -> None:
    found = payload_counters.read_nvlink((DATA / "h200x8" / "nvlink-e.txt").read_text())
    assert len(found) == 8
    assert all(set(counts.values()) == {0} for counts in found.values())
    text = "GPU 0: NVIDIA H200 (UUID: GPU-a)\n\t Link 0: Replay Errors: 3\n\t Link 1: Replay Errors: 4\n"
    assert payload_counters.read_nvlink(text) == {"GPU-a": {"nvlink_replay_errors": 7}}


def snapshot(counters: dict[str, int] | None, xids: dict[str, int] | None) -> dict[str, Any]:
    gpus = [] if counters is None else [{"uuid": "GPU-a", "bus": "0000:1b:00.0"}]
    other = {"GPU-b": {"pcie_replay": 1}}
    return {
        "gpus": gpus or [{"uuid": "GPU-b", "bus": "-"}],
        "kernel": xids,
        "parts": {**other, **({} if counters is None else {"GPU-a": counters})},
    }


def test_only_what_rose_between_two_snapshots_counts() -> None:
    before = snapshot({"ecc": 5, "replay": 7, "same": 1}, {"xid 48 0000:1b:00": 1})
    after = snapshot({"ecc": 6, "replay": 2, "same": 1}, {"xid 48 0000:1b:00": 2, "xid 79 0000:ff:00": 1})
    # a counter that fell was reset; an Xid of a GPU that is not this node's is not this node's fault
    assert payload_counters.deltas(before, after) == {"GPU-a": {"ecc": 1, "replay": 2, "xid_48": 1}}
    assert payload_counters.deltas(before, before) == {}
    assert payload_counters.deltas(before, snapshot(None, None)) == {"GPU-a": {"gone": 1}}
    silent: dict[str, Any] = {"gpus": [], "parts": {}, "kernel": None}
    assert payload_counters.deltas(before, silent) == {}, "a silent nvidia-smi accuses no GPU"


def test_xids_of_the_kernel_log_are_counted_by_gpu() -> None:
    line = "[1.0] NVRM: Xid (PCI:0000:1B:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
    switch = "[2.0] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): "
    log = f"""{line * 2}{switch}20034, Fatal, Link 30 LTSSM Fault Up
{switch}20034, Severity 1 Engine instance 30 Sub-engine instance 00
{switch}20034, Data {{0x50610002, 0x10100030, 0x00000000}}
{switch}12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
[3.0] usb: hello
[4.0] NVRM: Xid (0000:03:00): 45, Ch 00000010
[5.0] NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 31, pid=7, name=fatal.py, Ch 00000008
[6.0] NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)
[6.5] NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001)
[6.6] NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)
[6.7] NVRM: Xid (PCI:0018:01:00): 149, NETIR stopped
[6.8] NVRM: Xid (PCI:0000:5e:00): 74, pid=1, name=a, NVLink: fatal error detected on link 6(0x1, 0x0, 0x0)
[7.0] NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
[8.0] NVRM: Xid (PCI:0000:01:00): 94, pid=7062, name=a, Contained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No
"""
    assert payload_counters.read_kernel_log(log) == {
        "xid 79 0000:1b:00": 2,
        "sxid 20034:Fatal nvidia-nvswitch0": 1,
        "sxid 12028:Non-fatal nvidia-nvswitch0": 1,
        "xid 45 0000:03:00": 1,
        "xid 31 0000:1b:00": 1,
        "xid 149:NETIR_BER_EVENT_Nonfatal_(0x00000226_0x00000001 0018:01:00": 2,
        "xid 149:NETIR_LINK_EVT_Fatal_(0x021005c6_0x00000000 0018:01:00": 1,
        "xid 149 0018:01:00": 1,
        "xid 74:fatal_(0x1,_0x0,_0x0) 0000:5e:00": 1,
        "xid 154:to_0x2_(Node_Reboot_Required) 0018:01:00": 1,
        "xid 94:RST:_Yes 0000:01:00": 1,
    }


@given(st.text(max_size=300))
def test_no_text_breaks_the_readers(text: str) -> None:
    payload_counters.read_nvlink(text)
    payload_counters.read_kernel_log(text)
    payload_counters.number(text)


# --- the host's loads ----------------------------------------------------------------------------------------------


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second a look at it."""
    now = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))


@pytest.mark.usefixtures("ticking")
def test_memory_is_read_back_and_a_changed_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    good = payload_host.burn_memory(80.0, 1, 2 * MIB)
    assert (good["wrong"], good["first"]) == (0, None)
    assert good["passes"] >= 4
    true_block = payload_host.memory_block
    monkeypatch.setattr(
        payload_host,
        "memory_block",
        lambda view, at: true_block(view, at) if at != MIB else b"\0" + bytes(true_block(view, at))[1:],
    )
    bad = payload_host.burn_memory(80.0, 1, 2 * MIB)
    assert bad["wrong"] >= 3  # every pattern that does not begin with 0 anyway
    assert bad["first"] == MIB


@pytest.mark.usefixtures("ticking")
@pytest.mark.thorough
def test_memory_that_does_not_fit_into_the_time_is_tested_in_part() -> None:
    found = payload_host.burn_memory(80.0, 1, 16 * MIB)
    assert found["bytes"] == 11 * MIB  # what an eighth of the time wrote: four patterns are written and read
    assert found["passes"] >= 4


def test_memory_is_not_taken_before_it_is_written() -> None:
    """The first touch of 64 GiB takes longer than a load may: recorded on a host of 500 GB, 40 s in place of 4 s."""
    program = (
        "import resource, sys; exec(compile(sys.stdin.read(), 'burnin.py', 'exec'), module := {'__name__': 'burnin'}); "
        "module['burn_memory'](0.001, 1, 4 << 30); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=sent(SOURCE), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1 << 20  # KiB


def test_storage_is_read_back_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = payload_host.burn_storage(str(tmp_path), 8 * MIB, 5.0, 1)
    assert (found["bytes"], found["wrong"]) == (8 * MIB, 0)
    assert list(tmp_path.iterdir()) == []
    true_block, seen = payload_host.random_block, list[int]()

    def noted(seed: int, size: int) -> bytes:  # called before data are written
        seen.append(len(list(tmp_path.iterdir())))
        return true_block(seed, size)

    monkeypatch.setattr(payload_host, "random_block", noted)
    payload_host.burn_storage(str(tmp_path), 8 * MIB, 5.0, 1)
    assert seen == [0]
    true_read = payload_host.read_block
    monkeypatch.setattr(payload_host, "read_block", lambda handle, size: true_read(handle, size)[:-1] + b"?")
    assert payload_host.burn_storage(str(tmp_path), 8 * MIB, 5.0, 1)["wrong"] == 2
    assert list(tmp_path.iterdir()) == []


def test_storage_without_room_is_left_alone(tmp_path: Path) -> None:
    found = payload_host.burn_storage(str(tmp_path), 1 << 60, 1.0, 1)
    assert "MiB free" in found["lacks"]


def test_cpu_work_gives_the_same_everywhere() -> None:
    assert payload_host.cpu_unit(1) == payload_host.cpu_unit(1) != payload_host.cpu_unit(2)
    found = payload_host.spread(2, lambda index: {"index": index})
    assert found == [{"index": 0}, {"index": 1}]
    assert "ZeroDivisionError" in payload_host.spread(1, lambda _: {"x": 1 // 0})[0]["problem"]


def test_payload_needs_the_standard_library_of_3_6_and_torch_alone() -> None:
    assert not {
        name for name in imported(SOURCE) if name.startswith("pytest") or name in {"numpy", "dataclasses"}
    }


ON_CPU = """
import contextlib, os, sys, types
module = types.ModuleType("burnin")
exec(compile(sys.stdin.read(), "burnin.py", "exec"), module.__dict__)
import time, torch
torch.set_num_threads(1)
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *a: None
torch.cuda.mem_get_info = lambda device: (256 << 20, 1 << 30)
module.CHUNK = 1 << 20
class Event:
    def __init__(self, enable_timing): pass
    def record(self): self.at = time.perf_counter()
    def synchronize(self): pass
    def elapsed_time(self, other): return (other.at - self.at) * 1e3
torch.cuda.Event = Event
gpu = module.GpuWorker.__new__(module.GpuWorker)
gpu.torch, gpu.index, gpu.device, gpu.uuid, gpu.alike = torch, 0, torch.device("cpu"), "GPU-a", "cpu"
gpu.capability, gpu.hottest, gpu.fire, gpu.copier, gpu.integrated = (9, 0), "fp32", None, None, False
for lie in (False, True):
    if lie:
        true, calls = gpu.product, []
        def product(dtype, a, b):
            multiply = true(dtype, a, b)
            def sometimes():
                out = multiply()
                calls.append(1)
                if len(calls) % 50 == 0:
                    out.view(-1)[7] += 1
                return out
            return sometimes
        gpu.product = product
    for found in gpu.loads({"load": "matmul", "dtypes": ["fp64", "fp32", "int8"], "seconds": 0.3, "seed": 3, "n": 64, "copies": True}):
        module.print_json(lie=lie, **found)
for lie in (False, True):
    if lie:
        pattern, made = gpu.pattern, []
        true_xor = torch.bitwise_xor
        def xor(unit, number, out):
            true_xor(unit, number, out=out)
            made.append(1)
            if len(made) == 2:
                out[5] ^= 4
        torch.bitwise_xor = xor
    module.print_json(lie=lie, **list(gpu.loads({"load": "gpu_memory", "seconds": 0.05, "seed": 1}))[0])
begin = time.time()
module.print_json(lie=False, **list(gpu.loads({"load": "bursts", "seconds": 1.0, "period": 0.25, "n": 64}))[0], took=time.time() - begin)
torch.cuda.set_device = lambda device: None
torch.cuda.Stream, torch.cuda.stream = lambda device: None, lambda stream: contextlib.nullcontext()
module.SIZES["fp32"], made = 64, gpu.burn
def burn():
    burn.times += 1
    return made()
gpu.burn, burn.times = burn, 0
gpu.product = type(gpu).product.__get__(gpu)
module.print_json(lie=False, hot=True, **list(gpu.loads({"load": "hbm", "seconds": 0.5, "seed": 1, "hot": True}))[0], times=burn.times)
module.print_json(lie=False, hot=True, **list(gpu.loads({"load": "nonsense", "hot": True}))[0])
module.print_json(lie=False, **list(gpu.loads({"load": "hbm", "seconds": 0.05, "seed": 1}))[0])
module.print_json(lie=False, **list(gpu.loads({"load": "nonsense", "seconds": 0.05}))[0])
"""


@pytest.mark.thorough
def test_products_are_compared_bit_by_bit() -> None:
    """The worker of a GPU, on torch's CPU: the arithmetic of its inputs, digests and comparisons."""
    argv = [str(framework_python()), "-c", ON_CPU]
    done = subprocess.run(argv, input=sent(SOURCE), capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    honest, lying = (
        [it for it in found if it.get("load") == "matmul" and it["lie"] is lie] for lie in (False, True)
    )
    assert [it["dtype"] for it in honest] == ["fp64", "fp32", "int8"], done.stderr
    assert all(it["wrong"] == 0 and it["checked"] > 0 and it["tflops"] > 0 for it in honest)
    assert any(it["wrong"] > 0 for it in lying)
    assert {it["hash"] for it in honest} == {it["hash"] for it in lying}, "the first product is right in both"
    assert all(0 < it["checking"] < 1 and it["window"][0] < it["window"][1] for it in honest)
    right, wrong = (it for it in found if it.get("load") == "gpu_memory")
    assert (right["wrong"], right["first"], wrong["wrong"]) == (0, "", 1)
    assert right["tested"] > 0.9
    address, words = wrong["first"].removeprefix("at address 0x").split(": ")
    assert int(address, 16) > 0
    assert int(words.split()[1].strip(","), 0) ^ int(words.split()[3], 0) == 4
    (bursts,) = (it for it in found if it.get("load") == "bursts")
    assert 2 <= bursts["bursts"] <= 6  # fewer on a busy machine
    hot, broken = (it for it in found if it.get("hot"))
    assert (hot["wrong"], "gbs" in hot) == (0, False)
    assert hot["times"] > 1, "the GPU multiplies while the load runs"
    assert "AttributeError" in broken["problem"]
    assert (found[-2]["wrong"], found[-2]["gbs"] > 0) == (0, True)
    assert "AttributeError" in found[-1]["problem"]


@pytest.mark.parametrize(
    ("dtypes", "hottest", "expected"),
    [
        (["bf16"], "bf16", {"bf16": 8.0}),
        (["bf16", "fp64", "fp32"], "bf16", {"bf16": 4.0, "fp64": 2.0, "fp32": 2.0}),
        (["fp64", "fp32"], "bf16", {"fp64": 4.0, "fp32": 4.0}),  # the cluster file leaves the hottest out
    ],
)
def test_the_hottest_products_have_half_of_the_time(
    dtypes: list[str], hottest: str, expected: dict[str, float]
) -> None:
    assert payload_gpu.shares(8.0, dtypes, hottest) == expected


def rows_of(sensors: payload_sensors.Sensors, *watts: int, uuid: str = "GPU-a", mask: str = "0x0") -> None:
    """Readings a second apart, from 100 s on."""
    sensors.rows.setdefault(uuid, []).extend(
        payload_sensors.Row(100.0 + at, ("60", "70", str(it), "1755", "99", mask), loaded=True)
        for at, it in enumerate(watts)
    )


def test_the_record_of_a_load_is_a_histogram_with_seconds_of_throttling_and_the_sum_of_the_node() -> None:
    sensors = payload_sensors.Sensors(2.0)
    rows_of(sensors, 100, 701, 699, mask="0x4")
    rows_of(sensors, 300, 700, 500, uuid="GPU-b")
    assert sensors.watts_between("GPU-a", 100, 102) == 700.0, "the first second is left out"
    assert sensors.watts_between("GPU-c", 0, 200) is None
    found = sensors.summary()
    assert found["GPU-a"]["held"] == {
        "celsius": {"60": 3},
        "watts": {"100": 1, "700": 2},
        "sm_mhz": {"1755": 3},
        "busy": {"99": 3},
    }
    assert found["GPU-a"]["slowed"] == {"sw_power_cap": 6.0}
    assert (found["GPU-a"]["slow"], found["GPU-a"]["usual_watts"]) == ({}, 699.0)
    assert found[""] == {"held": {"watts": {"400": 1, "1400": 1, "1200": 1}}}
    assert sensors.summary() == {}, "each reading counts once"


def test_power_between_two_loads_is_in_the_record_and_in_no_load() -> None:
    sensors = payload_sensors.Sensors(2.0)
    rows_of(sensors, 690)
    sensors.rows["GPU-a"].append(
        payload_sensors.Row(103.0, ("60", "70", "120", "300", "0", "0x80"), loaded=False)
    )
    found = sensors.summary()["GPU-a"]
    assert (found["samples"], found["usual_watts"], found["slow"]) == (1, 690.0, {})
    assert found["held"]["watts"] == {"690": 1, "120": 1}


def test_the_data_type_that_draws_most_is_found_once_all_are_known() -> None:
    agent = payload.Agent({})
    rows_of(agent.sensors, 500, 500, 690, 690, 600, 600)
    results = [
        {"dtype": dtype, "uuid": "GPU-a", "window": [100.0 + at, 101.0 + at]}
        for dtype, at in (("fp64", 0), ("bf16", 2), ("int8", 4))
    ]
    unknown = {"dtype": "fp8", "uuid": "GPU-a", "window": [300.0, 301.0]}
    agent._find_hottest([dict(it) for it in [*results, unknown]])
    assert agent.hottest == ""
    agent._find_hottest(results)
    assert agent.hottest == "bf16"
    assert all("window" not in it for it in results)
    assert agent._load_of_node({"load": "matmul"}, 1) == {"load": "matmul", "id": 1, "hottest": "bf16"}


# --- sums ----------------------------------------------------------------------------------------------------------


def power_of(node: str, gpu: int, watts: int) -> dict[str, Any]:
    held = {"watts": {str(watts): 19, "100": 1}, **{it: {"50": 20} for it in ("celsius", "sm_mhz", "busy")}}
    slowed = {"sw_power_cap": 8.0}
    return {gpu_of(node, gpu): {"samples": 20, "usual_watts": watts, "held": held, "slowed": slowed}}


def test_power_is_recorded_of_hot_loads_and_compared_over_the_fleet() -> None:
    whole = fleet(4)
    for name, totals in whole.nodes.items():
        for gpu in range(4):
            watts = 400 if (name, gpu) == ("b", 2) else 690 + gpu
            totals.add(load(name, "matmul", sensors=power_of(name, gpu, watts)))
            totals.add(load(name, "hbm", sensors=power_of(name, gpu, 200)))
    for name in whole.nodes:
        verdict = stragglers.stragglers(whole, name, CONFIG)
        assert len(verdict.findings) == (name == "b")
        if verdict.findings:
            assert verdict.findings[0].part == "GPU 2 (GPU-b-2, 0000:20:00.0)"
            assert figures(verdict.findings[0].measured) == [400, 42]
    found = error_checks.temperature(whole, "a", CONFIG).metrics
    units = {it.name.removesuffix("_mean"): it.unit for it in found if it.name.endswith("_mean")}
    assert units == {"burnin_watts": "W", "burnin_celsius": "C", "burnin_sm_mhz": "MHz", "burnin_busy": "%"}
    metrics = {(it.name, it.device): it.value for it in found}
    part = whole.nodes["a"].part(gpu_of("a", 0))
    assert metrics["burnin_watts_mean", part] == 660.5
    assert metrics["burnin_watts_p95", part] == 690
    assert metrics["burnin_slowed_sw_power_cap", part] == 8.0, "not those of hbm"


def test_power_of_all_rounds_adds_up_and_that_of_a_gpu_that_multiplied_nothing_is_not_compared() -> None:
    """Only the first round has the agent's hello; a resumed burn-in adds them up."""
    both, uuid = NodeTotals("a"), gpu_of("a", 0)
    for first in (True, False):
        one = NodeTotals("a", hello=hello("a")) if first else NodeTotals("a")
        one.add(load("a", "matmul", sensors=power_of("a", 0, 690)))
        both.merge(NodeTotals.from_dict(json.loads(json.dumps(one.as_dict()))))
    assert (both.held[uuid]["watts"], both.slowed[uuid]) == ({"690": 38, "100": 2}, {"sw_power_cap": 16.0})
    idle = NodeTotals("a", hello={**hello("a"), "devices": []})
    lacking = {"load": "matmul", "results": [{"load": "matmul", "lacks": "no torch"}]}
    idle.add({**lacking, "sensors": power_of("a", 0, 80)})
    assert "power" not in idle.rates
    burnin = BurninResult({"a": idle}, 3600, 4, seconds=3600, rounds=1)
    metrics = error_checks.temperature(burnin, "a", CONFIG).metrics
    assert [it.name for it in metrics if it.name.endswith("_mean")] == []


def test_cycles_let_the_gpus_cool_after_the_stated_heat(monkeypatch: pytest.MonkeyPatch) -> None:
    burnin = burnin_of(1, constants={"cycle_heat": 150, "cycle_idle": 50}, profile="cycles")
    now, sent_loads = [1000.0], list[tuple[str, float]]()

    def run_loads(loads: list[dict[str, Any]]) -> bool:
        sent_loads.extend(
            (one["load"], round(one["seconds"])) for one in loads if one["load"] in ("matmul", "idle")
        )
        now[0] += sum(one["seconds"] for one in loads)
        return now[0] < 1400

    monkeypatch.setattr("pytest_gpucluster.suites.burnin.steps.time.monotonic", lambda: now[0])
    burnin.started, burnin.end = 1000.0, 2000.0
    burnin._step = object()  # type: ignore[assignment]
    monkeypatch.setattr(burnin, "_wait", lambda *_: True)
    monkeypatch.setattr(burnin, "_command", run_loads)
    monkeypatch.setattr(burnin, "_collectives", lambda *_, **__: [])
    monkeypatch.setattr(burnin, "_write_totals", lambda _: None)
    burnin._rounds()
    # the first round, which is quiet, lasts longer than a hot one
    assert [name for name, _ in sent_loads[:6]] == ["matmul", "matmul", "idle", "matmul", "matmul", "matmul"]
    assert ("idle", 50) in sent_loads


# --- rounds, progress, options -------------------------------------------------------------------------------------


class FakeSlurm:
    """What the runner asks of Slurm before it starts."""

    def __init__(self, left: str) -> None:
        self.left = left

    def run(self, *argv: str) -> str:
        assert argv[0] == "squeue"
        return self.left + "\n"


def burnin_of(
    nodes: int,
    gpus: int = 4,
    seconds: float = 3600.0,
    left: str = "UNLIMITED",
    constants: dict[str, float] | None = None,
    **config: Any,
) -> Burnin:
    section = with_constants(BurninConfig, constants or {}, **config)
    cluster: Any = types.SimpleNamespace(section=lambda _: section, sudo=False, environment=lambda *_: None)
    held: Any = types.SimpleNamespace(job_id=7)
    slurm: Any = FakeSlurm(left)
    made = Burnin(slurm, held, cluster, {}, nodes=[f"n{i}" for i in range(nodes)], gpus=gpus, seconds=seconds)
    for name, told in made.result.nodes.items():
        told.hello = hello(name, gpus)
    return made


def test_a_quiet_round_has_every_load_and_three_partners() -> None:
    burnin = burnin_of(4)
    first, second = burnin._loads(0), burnin._loads(1)
    assert [one["load"] for one in first] == ["dcgm", "matmul", "gpu_memory", "hbm", "copies", *3 * ["peer"]]
    assert [one["load"] for one in second] == [one["load"] for one in first[1:]]
    assert [one["load"] for one in first[1]["beside"]] == ["cpu", "memory", "storage"]
    assert sum(one["seconds"] for one in first[1]["beside"]) == pytest.approx(first[1]["seconds"])
    seeds = [burnin._loads(number)[-1]["seed"] for number in range(1, 9)]
    assert seeds == [1, 2, 3, 0, 1, 2, 3, 0], "inputs come again, so that rounds can be compared"
    alone, *pairs = burnin._collectives(0)
    assert [group["members"] for group in alone["groups"]] == [["n0"], ["n1"], ["n2"], ["n3"]]
    groups = [group for turn in pairs for group in turn["groups"]]
    assert all(group["ranks"] == [4, 4] for group in groups)
    assert len({frozenset(group["members"]) for group in groups}) == 6, "each of four has met every other"
    bare = burnin_of(2, gpus=0)
    assert [one["load"] for one in bare._loads(1)] == ["cpu", "memory", "storage"]
    assert bare._collectives(1) == []
    bursts = burnin_of(1, constants={"burst_period": 0.5}, profile="bursts")._loads(1)
    assert [one["period"] for one in bursts if one["load"] == "bursts"] == [0.5]
    assert BurninConfig().load_seconds(14400) == 10
    assert BurninConfig().load_seconds(300) == 6, "three rounds fit into a short time"
    assert burnin_of(2, gpus=8).result.gpus == 8
    assert burnin_of(2, gpus=8, loads=("memory", "storage")).result.gpus == 0


def test_a_hot_round_never_pauses_the_products_and_partners_change() -> None:
    burnin = burnin_of(4)
    assert [one["load"] for one in burnin._loads(5, hot=True)] == ["matmul", "gpu_memory", "peer"]
    assert burnin._loads(5, hot=True)[-1]["hot"]
    turns = [burnin._collectives(number, hot=True) for number in range(3)]
    assert all(len(turn) == 1 and turn[0]["hot"] for turn in turns)
    met = {frozenset(group["members"]) for turn in turns for group in turn[0]["groups"]}
    assert len(met) == 6, "in three rounds each of four has met every other"
    (alone,) = burnin_of(1)._collectives(0, hot=True)
    assert [group["members"] for group in alone["groups"]] == [["n0"]]
    burnin.started -= 3601
    assert [one["load"] for one in burnin._loads(5, hot=True)] == ["matmul", "peer"]
    assert "gpu_memory" in [one["load"] for one in burnin._loads(5)], "once more at the end"


def test_a_node_that_lacks_a_gpu_is_in_no_collective() -> None:
    burnin = burnin_of(3)
    lacking = burnin.result.nodes["n1"].hello
    assert lacking is not None
    lacking["devices"].pop()
    (alone, pairs) = burnin._collectives(0)
    assert [group["members"] for group in alone["groups"]] == [["n0"], ["n2"]]
    assert [group["members"] for group in pairs["groups"]] == [["n0", "n2"]]


def test_rdma_pairs_change_each_round_and_share_the_rails_that_both_nodes_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    burnin = burnin_of(4, loads=("cpu", "rdma"))
    burnin.rails = {
        f"n{i}": {place: RailPort(f"mlx5_{place}", 1, place, 0) for place in "abc"[: 3 - (i == 1)]}
        for i in range(3)
    }
    monkeypatch.setattr("pytest_gpucluster.suites.burnin.steps.gid_index", lambda *_: 3)
    cpu, rdma = burnin._beside(10, 0, 0)
    assert (cpu["load"], rdma["load"], rdma["seconds"], rdma["gid"]) == ("cpu", "rdma", 5, 3)
    met = [one for number in range(3) for one in burnin._rdma_pairs(number)]
    assert {frozenset(one["members"]) for one in met} == {
        frozenset(pair) for pair in (("n0", "n1"), ("n0", "n2"), ("n1", "n2"))
    }
    common = {tuple(one["members"]): [sorted(node["rails"]) for node in one["nodes"].values()] for one in met}
    assert all(rails == [["a", "b"]] * 2 for members, rails in common.items() if "n1" in members)
    assert {node["place"] for one in met for node in one["nodes"].values()} == {0, 1, 2}
    assert burnin_of(4)._rdma_pairs(0) == [], "the load is not among the default ones"


@pytest.mark.parametrize(("gpus", "rounds"), [(2, 1), (4, 3), (8, 7), (5, 5)])
def test_peers_change_until_every_pair_has_met(gpus: int, rounds: int) -> None:
    assert len(_pairs(gpus)) == rounds
    ways = {way for turn in _pairs(gpus) for way in turn}
    assert ways == {(a, b) for a in range(gpus) for b in range(gpus) if a != b}


def test_it_ends_before_slurm_takes_the_nodes_back() -> None:
    burnin = burnin_of(1, seconds=3600, left="10:00")
    burnin.end = burnin.started + 3600
    assert "time limit of the allocation" in burnin._limit_to_allocation()
    assert burnin.end - burnin.started < 560
    burnin = burnin_of(1, seconds=3600, left="2:00:00")
    burnin.end = burnin.started + 3600
    assert burnin._limit_to_allocation() == "the time is up"


class Last:
    """A step that is over; one node says goodbye when the other has been silent for long."""

    def __init__(self) -> None:
        self.now, self.stopped = 1000.0, 0.0

    def send(self, line: str) -> None:
        assert "stop" in line

    def lines(self, seconds: float) -> list[tuple[int, str]]:
        self.now += seconds
        return [(1, json.dumps({"burnin": "bye", "node": "n1"}))] if self.now > 1010 else []

    def stop(self) -> None:
        self.stopped = self.now


def test_a_node_that_died_in_the_last_minute_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slurmstepd killed then ended a burn-in of two H200 well: silence is minded after a minute only."""
    burnin: Any = burnin_of(3)
    last = Last()
    monkeypatch.setattr(time, "monotonic", lambda: last.now)
    burnin._step = last
    burnin._last_line = {"n0": 970.0, "n1": 980.0, "n2": 999.0}
    burnin._finish()
    assert [node for node, told in burnin.result.nodes.items() if told.lost] == ["n0"]
    assert burnin.result.nodes["n0"].lost == "silent for 1 min at the end"
    assert last.stopped == 1030.5
    burnin, last = burnin_of(2), Last()
    burnin._step = last
    burnin._last_line = dict.fromkeys(("n0", "n1"), 990.0)
    burnin._finish()
    assert (burnin.live, last.stopped) == (["n0", "n1"], 1000.0), (
        "nobody waits where all have been heard lately"
    )


def test_the_step_is_in_the_containers_environment_and_ends_with_no_node() -> None:
    started: list[list[str]] = []

    def spawn(argv: list[str], *, env: dict[str, str]) -> subprocess.Popen[bytes]:
        started.append([*argv, f"PYTHONHASHSEED={env.get('PYTHONHASHSEED')}"])
        pipe = subprocess.PIPE
        return subprocess.Popen(["true"], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    burnin: Any = burnin_of(2)
    burnin.environment = EnvironmentConfig(
        container_image="nvcr.io#nvidia/pytorch:25.10-py3",
        python="python3.12",
        exports={"PYTHONHASHSEED": "1"},
    )
    burnin._slurm = types.SimpleNamespace(transport=types.SimpleNamespace(spawn=spawn), env={})
    burnin._start().stop()
    (argv,) = started
    words = ["--container-image=nvcr.io#nvidia/pytorch:25.10-py3", "--no-kill", "--wait=0", "--gres=gpu:4"]
    words += [
        "--kill-on-bad-exit=0",
        "--ntasks-per-node=1",
        "--nodelist=n[0-1]",
        "PYTHONHASHSEED=1",
        "python3.12",
    ]
    assert [word for word in words if word not in argv] == []
    assert max(len(word) for word in argv) < 1 << 17, "Linux: MAX_ARG_STRLEN"
    assert sum(len(word) for word in argv) < 1 << 16, "the whole command has to fit into one over SSH"


@pytest.mark.parametrize(
    ("requested", "totals"),
    [("requested", "totals"), ("asked", "told")],
    ids=["this version", "earlier ones"],
)
def test_state_of_a_resumed_burnin_is_read_from_a_log(requested: str, totals: str) -> None:
    nodes = [({"node": "a", "rounds": 1}, 100.0, 1), ({"node": "b", "out": "wrong data"}, 120.0, 1)]
    nodes.append(({"node": "a", "rounds": 1}, 200.0, 2))
    events: list[dict[str, Any]] = [
        {"event": "start"},
        {"event": "burnin", "what": "begin", requested: 600.0, "seconds": 0.0, "rounds": 0},
        *(
            {"event": "burnin", "what": totals, totals: node, "seconds": seconds, "rounds": rounds}
            for node, seconds, rounds in nodes
        ),
    ]
    before = ResumeState()
    read_run(events, burnin=before.add)
    assert (before.requested, before.seconds, before.rounds) == (600.0, 200.0, 2)
    assert (before.nodes["a"].rounds, before.nodes["b"].out) == (2, "wrong data")


def test_progress_says_all_that_matters_in_a_line() -> None:
    text = str(Progress(elapsed=3725, total=14400, rounds=13, healthy=15, suspect=1, lost=2))
    assert text == "burn-in 1 h 2 min of 4 h, round 14: 15 healthy, 1 suspect, 2 lost, 2 h 57 min left"


class Screen:
    """A terminal reporter that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def rewrite(self, line: str, **_: bool) -> None:
        self.calls.append(("rewrite", line))

    def write_line(self, line: str | bytes, **_: bool) -> None:
        self.calls.append(("line", str(line)))

    def ensure_newline(self) -> None:
        pass


def test_off_a_terminal_there_is_one_line_a_minute() -> None:
    screen, now = Screen(), [0.0]
    live = LiveLine(screen, terminal=False, clock=lambda: now[0])
    for second in range(150):
        now[0] = float(second)
        live.show(f"at {second}")
    assert screen.calls == [("line", "at 0"), ("line", "at 60"), ("line", "at 120")]


def test_on_a_terminal_the_line_is_rewritten() -> None:
    screen = Screen()
    live = LiveLine(screen, terminal=True)
    for text in ("one", "one", "two"):
        live.show(text)
    live.close()
    assert screen.calls == [("rewrite", "one"), ("rewrite", "two"), ("line", "")]


def options(**given: Any) -> Any:
    return types.SimpleNamespace(**{"burnin_time": None, "burnin_resume": None, "markexpr": "", **given})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    begin = {"event": "burnin", "what": "begin", "requested": 100.0, "seconds": 0.0, "rounds": 0}
    totals = {"event": "burnin", "what": "totals", "totals": {"node": "a"}, "seconds": 40.0, "rounds": 2}
    path.write_text("".join(json.dumps(event) + "\n" for event in (begin, totals)) + '{"event": "cut')
    return path


def test_options_say_how_long(log: Path) -> None:
    assert burnin_options.seconds(options(burnin_time="4h"), CONFIG) == 14400
    assert burnin_options.seconds(options(), CONFIG) == CONFIG.time
    resumed = options(burnin_resume=str(log))
    burnin_options.prepare(resumed, read_log)
    assert burnin_options.seconds(resumed, CONFIG) == 100
    resumed.burnin_time = "30s"
    with pytest.raises(ConfigError, match="complete: 40 s of 30 s"):
        burnin_options.seconds(resumed, CONFIG)


def test_wrong_options_are_reported_in_a_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"event": "start"}\n')
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"event": "burnin"}\n')
    for wrong, what in (
        ({"burnin_resume": str(tmp_path / "absent")}, "No such file"),
        ({"burnin_resume": str(empty)}, "this event log holds no burn-in"),
        ({"burnin_resume": str(broken)}, "not an event log of this release"),
        ({"burnin_time": "1h", "numprocesses": 2}, "run pytest without -n"),
    ):
        with pytest.raises(ConfigError, match=what):
            burnin_options.prepare(options(**wrong), read_log)
    with pytest.raises(ConfigError, match="--burnin-time"):
        burnin_options.seconds(options(burnin_time="soon"), CONFIG)


def test_hours_of_load_never_come_unasked() -> None:
    assert not burnin_options.requested(options())
    assert not burnin_options.requested(options(markexpr="gpu or nccl"))
    assert burnin_options.requested(options(markexpr="burnin"))
    assert burnin_options.requested(options(burnin_time="1h"))


@pytest.mark.thorough
def test_the_agent_ends_with_its_input_and_leaves_nothing(tmp_path: Path) -> None:
    """The real agent on this machine, without GPUs: one round of CPU, memory and storage."""
    wanted = {
        "gpus": 0,
        "beat": 0.2,
        "storage": str(tmp_path),
        "storage_bytes": 4 * MIB,
        "memory_bytes": MIB,
        "cpus": 1,
    }
    loads = [{"load": kind, "seconds": 0.2, "seed": 1} for kind in ("cpu", "memory", "storage", "hbm")]
    round_ = json.dumps({"do": "round", "id": 1, "round": 0, "loads": loads}) + "\n"
    path = os.pathsep.join(["/usr/bin", "/bin"])
    said = []
    with subprocess.Popen(
        command("python3", SOURCE, "agent", json.dumps(wanted)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": path, "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": ""},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(round_)
        process.stdin.flush()
        for line in process.stdout:
            said.append(json.loads(line))
            if said[-1]["burnin"] == "done":
                process.stdin.close()
    assert process.returncode == 0
    told = NodeTotals("n1")
    for one in said:
        if one["burnin"] == "load":
            told.add(one)
    assert {one["node"] for one in said} == {"n1"}
    assert said[-1]["burnin"] == "bye"
    assert (told.ran["cpu"], told.ran["memory"], told.ran["storage"]) == (1, 1, 1)
    assert told.problems == []
    assert told.lacks["hbm"] == "nothing to do on this node"
    assert list(tmp_path.iterdir()) == []


def worker(index: int, *, busy: bool) -> Any:
    """A worker of one GPU without its process."""
    made: Any = object.__new__(payload.WorkerProcess)
    made.name, made.about, made.busy = f"gpu{index}", [{"gpu": index, "uuid": f"GPU-{index}"}], busy
    made.process = types.SimpleNamespace(pid=0)
    return made


def test_a_load_that_hangs_when_the_burn_in_ends_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped, or waits for its GPU for ever: its load is told although it was cut short."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(payload, "print_json", lambda **fields: said.append(fields))
    monkeypatch.setattr(time, "monotonic", lambda: 150.0)
    agent = payload.Agent({"gpus": 3})
    load = {"id": 7, "load": "hbm", "seconds": 10.0}
    # GPU 0 hangs, GPU 1 has done its part, and GPU 2 has only begun
    agent.waiting = [
        (worker(0, busy=True), load, 50.0),
        (worker(1, busy=False), load, 50.0),
        (worker(2, busy=True), load, 140.0),
    ]
    agent.stop()
    (line,) = said
    told = NodeTotals("n1", hello={"devices": [{"gpu": i, "uuid": f"GPU-{i}"} for i in range(3)], "cpus": 1})
    told.add(line)
    whole = BurninResult({"n1": told}, requested=1.0, gpus=3)
    assert failed(load_checks.survived(whole, "n1")) == [
        "GPU 0 (GPU-0): hbm: the load did not end after 100 s instead of 10 s"
    ]
    verdict = load_checks.memory_bandwidth(whole, "n1", CONFIG)
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason == "hbm did not run to its end: see burnin.survived"


@pytest.mark.parametrize(
    ("held", "action"),
    [
        (": its process is stopped by a signal", MONITOR),
        (": its process hangs in the kernel (state D)", DRAIN),
    ],
)
def test_who_stops_our_processes_breaks_no_hardware(held: str, action: str) -> None:
    """Recorded on an H200: SIGSTOP to the worker of its GPU amid NCCL."""
    for kind in ("nccl", "copies"):
        problem = {"load": kind, "uuid": gpu_of("a", 0), "problem": f"the load did not answer in time{held}"}
        whole = fleet(2, a=[load("a", "matmul"), {"load": kind, "results": [problem]}])
        nccl = kind == "nccl"
        verdict = load_checks.nccl(whole, "a", CONFIG) if nccl else load_checks.survived(whole, "a")
        assert result(verdict) == action
        assert ("scontrol suspend" in verdict.cause) == (action is MONITOR)


@pytest.mark.thorough
def test_a_process_that_was_stopped_is_distinguished_from_one_that_computes() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        one = worker(0, busy=True)
        one.process = process
        try:
            assert one.exit_reason() == "did not answer in time"
            process.send_signal(signal.SIGSTOP)
            assert one.exit_reason() == "did not answer in time: its process is stopped by a signal"
        finally:
            process.kill()


OOM = "Killed process 4711 (python3) total-vm:34356472kB"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (f"Memory cgroup out of memory: {OOM}", ": by the OOM killer, at the memory limit of its cgroup"),
        (f"Out of memory: {OOM}", ": by the OOM killer"),
        (f"Out of memory: {OOM.replace('4711', '471')}", ""),
        ("", ""),
    ],
)
def test_who_lacks_memory_of_the_host_has_no_broken_gpu(
    monkeypatch: pytest.MonkeyPatch, said: str, words: str
) -> None:
    """Recorded on two H200: a memory limit of the job's cgroup drained the node."""
    one = worker(0, busy=True)
    monkeypatch.setattr(one, "process", types.SimpleNamespace(pid=4711, wait=lambda _: -9))
    monkeypatch.setattr(payload, "output_of", lambda *_: (0, f"[ 0.5] Linux\n[ 1.0] {said}\n", ""))
    assert one.exit_reason() == f"ended by signal 9{words}"
    died = {"load": "hbm", "uuid": gpu_of("a", 0), "problem": f"the load {one.exit_reason()}"}
    verdict = load_checks.survived(fleet(1, a=[load("a", "matmul"), {"load": "hbm", "results": [died]}]), "a")
    assert result(verdict) == MONITOR  # no fault of hardware sends KILL
    assert ("DefMemPerNode" in verdict.hint) == bool(words)


def test_a_collective_that_failed_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker says why, and ends: its communicator cannot be trusted any more."""
    one = worker(0, busy=True)
    lines = iter([{"id": 7, "load": "nccl", "problem": "NCCL error: x"}, None, None])
    monkeypatch.setattr(one, "next", lambda _: next(lines))
    for name, found in (("exit_reason", "ended with 3"), ("kill", None), ("start", None)):
        monkeypatch.setattr(one, name, lambda found=found: found)
    one.restarts = 0
    command = {"id": 7, "load": "nccl", "members": ["a", "b"]}
    assert [found["problem"] for found in one.results(command, 0.0)] == ["NCCL error: x"]
    (died,) = one.results(command, 0.0)  # without a word before
    assert (died["problem"], died["members"]) == ("the load ended with 3", ["a", "b"])


def test_an_nvidia_smi_that_hangs_is_known_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, status, given = [10.0], [0], list[float]()

    def output_of(_: object, timeout: float) -> tuple[int, str, str]:
        given.append(timeout)
        now[0] += timeout if status[0] == 124 else 1
        return status[0], "", ""

    monkeypatch.setattr(payload_counters, "output_of", output_of)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    smi, silent = payload_counters.Smi(), list[float]()
    for status[0] in (0, 124, 124, 14):
        smi.query("-q", timeout=60.0)
        silent.append(smi.silence())
    assert silent == [0, 60, 65, 0]
    assert given == [60, 60, 5, 5], "it is not waited for as long again"


def test_a_driver_that_hangs_under_load_fails_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on an H200: such a burn-in ended with 'ask for more time', and the counters passed."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(payload, "print_json", lambda **fields: said.append(fields))
    monkeypatch.setattr(payload_counters, "output_of", lambda *_: (124, "", ""))
    smi = payload_counters.Smi()
    monkeypatch.setattr(payload, "SMI", smi)
    monkeypatch.setattr(payload, "SMI_LATE", 0.0)
    agent = payload.Agent({"gpus": 1})
    agent.at = "round 0 matmul"
    smi.query("-q", timeout=0.2)
    agent.stop()
    (line,) = said
    told = NodeTotals("a", hello=hello("a", 1))
    told.add(line)
    assert not told.ran
    verdict = error_checks.counters(BurninResult({"a": told}, requested=1.0, gpus=1), "a", CONFIG)
    assert (judged(verdict), verdict.cause[:26]) == ((DRAIN, ["nvidia-smi"]), "the driver does not answer")
    assert "(round 0 matmul)" in verdict.findings[0].measured


ABSENT = "FileNotFoundError: nvidia-smi"


@pytest.mark.parametrize(
    ("at_first", "later", "outcome"),
    [
        ("", "", Outcome.PASSED),
        ("", "nvidia-smi: no end after 60 s", Outcome.FAILED),
        ("", "Failed to initialize NVML: Unknown Error", Outcome.FAILED),  # it had answered before the loads
        ("nvidia-smi: no end after 60 s", "", Outcome.FAILED),
        (ABSENT, ABSENT, Outcome.NOT_CHECKED),  # the counters of InfiniBand are read all the same
    ],
)
def test_counters_of_gpus_that_cannot_be_read_are_no_pass(
    at_first: str, later: str, outcome: Outcome
) -> None:
    whole = fleet(1, a=[load("a", "matmul", unread={"gpu": later} if later else {})])
    whole.nodes["a"].hello = told = hello("a", unread={"gpu": at_first} if at_first else {})
    if at_first == ABSENT:
        told["gpus"] = []
    whole.gpus = 4
    assert error_checks.counters(whole, "a", CONFIG).outcome is outcome
    whole.gpus = 0  # nodes without GPUs, which need no nvidia-smi
    if at_first == ABSENT:
        assert error_checks.counters(whole, "a", CONFIG).outcome is Outcome.PASSED


def test_an_nvidia_smi_that_answers_again_is_no_driver_that_hangs() -> None:
    late = load("a", "matmul", unread={"gpu": "nvidia-smi: no end after 60 s", "xid": "dmesg: no"})
    again = load("a", "hbm", unread={})
    whole = fleet(1, a=[late, again])
    assert error_checks.counters(whole, "a", CONFIG).outcome is Outcome.PASSED
    assert whole.nodes["a"].unread == {"xid": "dmesg: no"}
    assert not removal.suspicious(whole, "a", CONFIG, 60.0)
    assert removal.suspicious(fleet(1, a=[late]), "a", CONFIG, 60.0)
    earlier, later = NodeTotals("a"), NodeTotals("a")
    earlier.add(late)
    later.add(again)
    earlier.merge(later)
    assert earlier.unread == {"xid": "dmesg: no"}
    earlier.add(late)
    earlier.add({"load": "", "results": []})  # says nothing about it
    assert "gpu" in earlier.unread


def test_a_command_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs in the kernel dies when it comes back, and not before."""
    waited: list[float] = []

    class Stuck:
        def __init__(self, *_: object, **__: object) -> None: ...

        def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
            assert timeout is not None, "it waits for ever"
            waited.append(timeout)
            raise subprocess.TimeoutExpired("nvidia-smi", timeout)

        def kill(self) -> None: ...

    monkeypatch.setattr(subprocess, "Popen", Stuck)
    assert payload_process.output_of(["nvidia-smi"], 60.0) == (124, "", "nvidia-smi: no end after 60 s")
    assert waited == [60.0, 2]


def test_what_changes_results_or_speed_is_kept_from_the_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on an H200 with NVIDIA_TF32_OVERRIDE=0 in a profile: tf32 at 51 TFLOP/s, and a drain."""
    foreign = {"NVIDIA_TF32_OVERRIDE": "0", "CUDA_LAUNCH_BLOCKING": "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    for name, value in (foreign | {"NCCL_PROTO": "LL", "CUDA_VISIBLE_DEVICES": "0"}).items():
        monkeypatch.setenv(name, value)
    given: list[dict[str, str]] = []
    monkeypatch.setattr(payload, "WorkerProcess", lambda _name, _argv, env: given.append(env))
    payload.Agent({"gpus": 1, "worker": ["own"]})._start_workers()
    assert len(given) == 2
    for env in given:
        assert not {"NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING"} & env.keys()
        assert env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert (env["NCCL_PROTO"], env["CUDA_VISIBLE_DEVICES"]) == ("LL", "0")


@pytest.mark.parametrize(
    ("visible", "words"), [("", ["CUDA_VISIBLE_DEVICES= in the step"]), (None, []), ("0", [])]
)
def test_a_step_without_gpus_says_so(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, words: list[str]
) -> None:
    """Recorded on an H200: '0 took part: no reason is known'."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    agent = payload.Agent({"gpus": 1})
    agent.workers = [worker(0, busy=False)] if visible else []
    assert agent._no_gpu_reason() == words


def test_nodes_whose_tasks_run_outside_of_the_container_leave_before_the_first_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    burnin: Any = burnin_of(2)
    burnin.environment = EnvironmentConfig(container_image="/pt.sqsh")
    asked: list[StepRequest] = []

    def run(_: Any, __: Any, request: StepRequest) -> None:
        asked.append(request)
        error = StepMisplaced("n1 and others")
        error.nodes = {"n1": "the task ran on the host"}
        raise error

    monkeypatch.setattr(steps, "run_step", run)
    burnin._remove_misplaced()
    assert (burnin.live, burnin.result.nodes["n1"].out) == (["n0"], "the task ran on the host")
    assert (asked[0].nodes, asked[0].environment) == (("n0", "n1"), burnin.environment)
    burnin.environment = EnvironmentConfig()
    burnin._remove_misplaced()
    assert len(asked) == 1, "no container is stated"


def test_a_gpu_burns_on_between_two_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    burnt = 0

    def burn() -> bool:
        nonlocal burnt
        burnt += 1
        if burnt == 3:  # the next command comes
            os.write(write, b'{"id": 2}\n')
            os.close(write)
        return True

    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        os.write(write, b'{"id": 1}\n')
        commands = payload.commands_of(burn)
        assert next(commands) == {"id": 1}
        assert burnt == 0, "nothing burns before the first load"
        assert next(commands) == {"id": 2}
        assert burnt >= 3
        assert list(commands) == []
