"""What runs on a node: readers of counters and sensors, loads of host and GPUs, the agent and its workers."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from burnin_helpers import CONFIG, NAME, fleet, gpu_of, hello, load
from counter_examples import DRAIN, MONITOR, NOT_CHECKED
from framework_helpers import framework_python
from judged import figures, judged
from paths import DATA

from pytest_gpucluster.kit.framework.payload_step import sent
from pytest_gpucluster.suites.burnin import (
    error_checks,
    load_checks,
    payload,
    payload_counters,
    payload_gpu,
    payload_host,
    payload_process,
    payload_sensors,
)
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals

SOURCE = Path(payload.__file__)
MIB = payload_process.MIB
PORTS = "/sys/class/infiniband/mlx5_0/ports/1\n/sys/class/infiniband/hfi1/ports/1\n"


def recorded_xml() -> str:
    text = (DATA / "sandbox" / "nvidia-smi-q-x-of-one-gpu.xml").read_text()
    return text if "<nvidia_smi_log" in text else f"<nvidia_smi_log>{text}</nvidia_smi_log>"


UUID = payload_counters.read_xml(recorded_xml())[0]["uuid"]


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


def test_the_temperature_from_which_a_gpu_slows_down() -> None:
    # since Hopper, before it, unknown
    for margin, threshold, expected in (("49 C", "", 89.0), ("N/A", "90 C", 90.0), ("N/A", "N/A", None)):
        text = recorded_xml().replace("<gpu_temp_tlimit>49 C<", f"<gpu_temp_tlimit>{margin}<")
        own = f"<gpu_temp_slow_threshold>{threshold}</gpu_temp_slow_threshold><gpu_temp_tlimit>"
        (gpu,) = payload_counters.read_xml(text.replace("<gpu_temp_tlimit>", own))
        assert gpu["slow_celsius"] == expected


class Tools:
    """The commands of a node: what nvidia-smi, the kernel log and the ports of InfiniBand say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status, self.log = 0, "[0.5] Linux\n"
        self.links = f"GPU 0: x (UUID: {UUID})\n  Link 0: Replay Errors: 3\n"
        monkeypatch.setattr(payload_counters, "output_of", self.output_of)
        monkeypatch.setattr(payload_counters, "SMI", payload_counters.Smi())

    def output_of(self, argv: list[str], _timeout: float) -> tuple[int, str, str]:
        words = " ".join(argv)
        if argv[0] == "nvidia-smi":
            answers = {"-q": recorded_xml(), "nvlink": self.links}
            silent = argv[1] == "nvlink" and not self.links
            return (9 if silent else self.status, answers.get(argv[1], f"{UUID}, 40, 690, 1700, 0x8\n"), "no NVML")
        if argv[0] in ("dmesg", "journalctl"):
            return (0, self.log, "") if self.log else (1, "", f"denied\n{argv[0]} says no\n")
        if "ls -d" in words:
            return 0, PORTS, ""
        ndr = "400 Gb/sec (4X NDR)\nsymbol_error 7\nlink_downed \n"
        return 0, ndr if "mlx5_0" in words else "symbol_error 1\n", ""


@pytest.mark.parametrize("status", [0, 14])
def test_a_snapshot_is_whole_beside_a_warning_of_smi(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """nvidia-smi(1): 14 is a corrupted InfoROM, beside a whole answer."""
    tools, counters = Tools(monkeypatch), payload_counters.Counters()
    tools.status = status
    found = counters.snapshot()
    assert [gpu["uuid"] for gpu in found["gpus"]] == [UUID]
    parts = found["parts"]
    assert (parts[UUID]["nvlink_replay_errors"], parts[UUID]["ecc_uncorrected_volatile"]) == (3, 0)
    assert (parts["mlx5_0/1"], parts["hfi1/1"]) == ({"symbol_error": 7}, {"symbol_error": 1})
    assert (counters.port_rates, counters.unread, found["kernel"]) == ({"mlx5_0/1": 50.0}, {}, {})
    tools.links = ""
    counters.snapshot()
    assert counters.unread == {"nvlink": "no NVML"}
    tools.status, tools.log = 1, ""
    found = counters.snapshot()
    assert (found["gpus"], found["kernel"]) == ([], None)
    missing = "dmesg: dmesg says no; journalctl: journalctl says no; "
    assert counters.unread == {"gpu": "no NVML", "xid": missing}


def test_others_on_the_gpus_are_distinguished_from_ours() -> None:
    five, seven = ({"pid": pid, "name": "python3"} for pid in (5, 7))
    gpus = [{"uuid": "GPU-a", "processes": [five, seven]}, {"uuid": "GPU-b", "processes": [five]}]
    assert payload_counters.other_processes(gpus, {5}) == {"GPU-a": ["python3 (pid 7)"]}
    assert payload_counters.other_processes(gpus, {5, 7}) == {}
    assert payload_counters.other_processes(gpus, {99}) == {}, "another namespace: one of them may be ours"


def test_nvlink_errors_are_summed_over_the_links() -> None:
    found = payload_counters.read_nvlink((DATA / "h200x8" / "nvlink-e.txt").read_text())
    assert [set(counts.values()) for counts in found.values()] == [{0}] * 8
    text = "GPU 0: NVIDIA H200 (UUID: GPU-a)\n\t Link 0: Replay Errors: 3\n\t Link 1: Replay Errors: 4\n"
    assert payload_counters.read_nvlink(text) == {"GPU-a": {"nvlink_replay_errors": 7}}


def snapshot(counters: dict[str, int] | None, xids: dict[str, int] | None) -> dict[str, Any]:
    gpus = [{"uuid": "GPU-b", "bus": "-"}] if counters is None else [{"uuid": "GPU-a", "bus": "0000:1b:00.0"}]
    parts = {"GPU-b": {"pcie_replay": 1}} | ({} if counters is None else {"GPU-a": counters})
    return {"gpus": gpus, "kernel": xids, "parts": parts}


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


def test_an_nvidia_smi_that_hangs_is_known_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [10.0], list[float]()
    status: list[int | None] = [0]

    def output_of(_: object, timeout: float) -> tuple[int | None, str, str]:
        given.append(timeout)
        now[0] += timeout if status[0] is None else 1
        return status[0], "", ""

    monkeypatch.setattr(payload_counters, "output_of", output_of)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    smi, silent = payload_counters.Smi(), list[float]()
    for status[0] in (0, None, None, 14):
        smi.query("-q", timeout=60.0)
        silent.append(smi.silence())
    assert silent == [0, 60, 65, 0]
    assert given == [60, 60, 5, 5], "it is not waited for as long again"


def test_a_command_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs in the kernel dies when it comes back, and not before."""
    assert payload_process.output_of(["sh", "-c", "echo a; echo b >&2; exit 3"], 600.0) == (3, "a\n", "b\n")
    assert payload_process.output_of(["/no/such"], 600.0)[:2] == (127, "")
    waited: list[float] = []

    class Stuck:
        def __init__(self, *_: object, **__: object) -> None: ...

        def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
            assert timeout is not None, "it waits for ever"
            waited.append(timeout)
            raise subprocess.TimeoutExpired("nvidia-smi", timeout)

        def kill(self) -> None: ...

    monkeypatch.setattr(subprocess, "Popen", Stuck)
    assert payload_process.output_of(["nvidia-smi"], 60.0) == (None, "", "nvidia-smi: no end after 60 s")
    assert waited == [60.0, 2]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second a look at it."""
    now = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))


@pytest.mark.usefixtures("ticking")
def test_memory_is_read_back_and_a_changed_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    large = payload_host.burn_memory(8.0, 1, 4 * MIB)
    assert large["bytes"] == 2 * MIB  # what an eighth of the time wrote: four patterns are written and read
    assert (large["wrong"], large["first"], large["passes"] >= 4) == (0, None, True)
    true_block = payload_host.memory_block

    def flipped(view: memoryview, at: int) -> Any:
        return true_block(view, at) if at != MIB else b"\0" + bytes(true_block(view, at))[1:]

    monkeypatch.setattr(payload_host, "memory_block", flipped)
    bad = payload_host.burn_memory(8.0, 1, 2 * MIB)
    assert (bad["wrong"] >= 3, bad["first"]) == (True, MIB)  # every pattern that does not begin with 0 anyway


def test_memory_is_not_taken_before_it_is_written() -> None:
    """The first touch of 64 GiB takes longer than a load may: recorded on a host of 500 GB, 40 s in place of 4 s."""
    program = (
        "import resource, sys; exec(compile(sys.stdin.read(), 'burnin.py', 'exec'), module := {'__name__': 'burnin'}); "
        "module['burn_memory'](0.001, 1, 4 << 30); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, input=sent(SOURCE), capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1 << 20  # KiB


def test_storage_is_read_back_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_block, true_read, seen = payload_host.random_block, payload_host.read_block, list[int]()

    def noted(seed: int, size: int) -> bytes:  # called before data are written
        seen.append(len(list(tmp_path.iterdir())))
        return true_block(seed, size)

    monkeypatch.setattr(payload_host, "random_block", noted)
    found = payload_host.burn_storage(str(tmp_path), 8 * MIB, 50.0, 1)
    assert (found["bytes"], found["wrong"], seen) == (8 * MIB, 0, [0])
    monkeypatch.setattr(payload_host, "read_block", lambda handle, size: true_read(handle, size)[:-1] + b"?")
    assert payload_host.burn_storage(str(tmp_path), 8 * MIB, 50.0, 1)["wrong"] == 2
    assert list(tmp_path.iterdir()) == []
    assert "MiB free" in payload_host.burn_storage(str(tmp_path), 1 << 60, 1.0, 1)["lacks"]


def test_cpu_work_gives_the_same_everywhere() -> None:
    assert payload_host.cpu_unit(1) == payload_host.cpu_unit(1) != payload_host.cpu_unit(2)
    assert payload_host.spread(2, lambda index: {"index": index}) == [{"index": 0}, {"index": 1}]
    assert "ZeroDivisionError" in payload_host.spread(1, lambda _: {"x": 1 // 0})[0]["problem"]


def test_the_worker_of_the_host_runs_each_load() -> None:
    worker = payload_host.HostWorker({})
    worker.cpus, worker.memory = 1, MIB
    for kind in ("cpu", "memory"):
        (found,) = worker.loads({"load": kind, "seconds": 0.0, "seed": 3})
        assert (found["load"], found["wrong"], found["problem"], found["rate"] > 0) == (kind, 0, "", True)
    assert [it["skip"] for it in worker.loads({"load": "storage", "seconds": 0.0})] != []


ON_CPU = """
import contextlib, os, sys, types
module = types.ModuleType("burnin")
exec(compile(sys.stdin.read(), "burnin.py", "exec"), module.__dict__)
import time, torch
torch.set_num_threads(1)
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *a: None
torch.cuda.mem_get_info = lambda device: (64 << 20, 1 << 30)
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
def say(lie=False, more={}, **load):
    for found in gpu.loads(load):
        module.print_json(lie=lie, **found, **more)
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
    say(lie, load="matmul", dtypes=["fp64", "fp32", "int8"], seconds=0.3, seed=3, n=64, copies=True)
for lie in (False, True):
    if lie:
        made, true_xor = [], torch.bitwise_xor
        def xor(unit, number, out):
            true_xor(unit, number, out=out)
            made.append(1)
            if len(made) == 2:
                out[5] ^= 4
        torch.bitwise_xor = xor
    say(lie, load="gpu_memory", seconds=0.05, seed=1)
say(load="bursts", seconds=1.0, period=0.25, n=64)
torch.cuda.set_device = lambda device: None
torch.cuda.Stream, torch.cuda.stream = lambda device: None, lambda stream: contextlib.nullcontext()
module.SIZES["fp32"], burn, times = 64, gpu.burn, []
gpu.burn = lambda: times.append(1) or burn()
gpu.product = type(gpu).product.__get__(gpu)
for hot in (True, False):
    say(load="hbm", seconds=0.5, seed=1, hot=hot, more={"burnt": times})
    say(load="nonsense", seconds=0.05, hot=hot)
"""


@pytest.mark.thorough
def test_products_are_compared_bit_by_bit() -> None:
    """The worker of a GPU, on torch's CPU: the arithmetic of its inputs, digests and comparisons."""
    argv = [str(framework_python()), "-c", ON_CPU]
    done = subprocess.run(argv, input=sent(SOURCE), capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    products = [it for it in found if it.get("load") == "matmul"]
    honest, lying = ([it for it in products if it["lie"] is lie] for lie in (False, True))
    assert [it["dtype"] for it in honest] == ["fp64", "fp32", "int8"], done.stderr
    assert all(it["wrong"] == 0 and it["checked"] > 0 and it["tflops"] > 0 for it in honest)
    assert any(it["wrong"] > 0 for it in lying)
    assert {it["hash"] for it in honest} == {it["hash"] for it in lying}, "the first product is right in both"
    assert all(0 < it["checking"] < 1 and it["window"][0] < it["window"][1] for it in honest)
    right, wrong = (it for it in found if it.get("load") == "gpu_memory")
    assert (right["wrong"], right["first"], wrong["wrong"], right["tested"] > 0.9) == (0, "", 1, True)
    address, words = wrong["first"].removeprefix("at address 0x").split(": ")
    assert int(address, 16) > 0
    assert int(words.split()[1].strip(","), 0) ^ int(words.split()[3], 0) == 4
    (bursts,) = (it for it in found if it.get("load") == "bursts")
    assert 1 <= bursts["bursts"] <= 6  # fewer on a busy machine
    hot, hot_nonsense, cold, nonsense = found[-4:]
    assert (hot["wrong"], "gbs" in hot) == (0, False)
    assert len(hot["burnt"]) > 1, "the GPU multiplies while the load runs"
    assert (cold["wrong"], cold["gbs"] > 0) == (0, True)
    assert "AttributeError" in hot_nonsense["problem"] == nonsense["problem"]


def test_the_hottest_products_have_half_of_the_time() -> None:
    assert payload_gpu.shares(8.0, ["bf16"], "bf16") == {"bf16": 8.0}
    assert payload_gpu.shares(8.0, ["bf16", "int8", "fp32"], "bf16") == {"bf16": 4, "int8": 2, "fp32": 2}
    # the cluster file leaves the hottest out
    assert payload_gpu.shares(8.0, ["fp64", "fp32"], "bf16") == {"fp64": 4.0, "fp32": 4.0}


def test_power_between_two_loads_is_in_the_record_and_in_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    Tools(monkeypatch)
    monkeypatch.setattr(payload_sensors, "SMI", payload_counters.SMI)
    sensors = payload_sensors.Sensors(2.0)
    sensors.sample()
    sensors.loaded = True
    sensors.sample()
    found = sensors.summary()[UUID]
    assert (found["samples"], found["watts"], found["slow"]) == (1, {"690": 2}, {"hw_slowdown": 1.0})


class Process:
    """A process that ended, of which nothing is killed."""

    pid = 4711

    def wait(self, _seconds: float = 0.0) -> int:
        return -9


class Worker(payload.WorkerProcess):
    """A worker of one GPU whose lines a test states, without its process."""

    made: list[Worker]
    answers: dict[str, dict[str, Any]]

    def start(self) -> None:
        self.process: Any = Process()
        self.busy, self.ready, self.restarts = 0, False, self.restarts + 1
        self.started: list[dict[str, Any]] = []
        Worker.made.append(self)

    def wait_ready(self, end: float) -> None:
        index = int(self.name.removeprefix("gpu")) if self.name != "host" else 0
        self.ready, self.about = True, [{"gpu": index, "uuid": f"GPU-{index}"}]

    def send(self, command: Any) -> None:
        self.started.append(dict(command))

    def results(self, command: Any, end: float) -> Any:
        dtypes = command.get("dtypes", [None])
        return [{**self.part(), "load": command["load"], "dtype": it, **self.answers.get(it, {})} for it in dtypes]

    def kill(self) -> None: ...


def worker(index: int, *, busy: bool) -> Worker:
    made = Worker(f"gpu{index}", [], {})
    made.wait_ready(0.0)
    made.busy = int(busy)
    return made


class Ran:
    """An agent in this process: what it said, and what its workers were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rounds: list[dict[str, Any]], **options: Any) -> None:
        Tools(monkeypatch)
        Worker.made, Worker.answers, self.said = [], options.pop("answers", {}), list[dict[str, Any]]()
        self.left = [json.dumps({"do": "round", "id": n, "round": n, "loads": it}) for n, it in enumerate(rounds)]
        read, self.write = os.pipe()
        monkeypatch.setattr(payload, "WorkerProcess", Worker)
        monkeypatch.setattr(payload, "again", lambda *words: [*words])
        monkeypatch.setattr(payload, "print_json", self.hear)
        monkeypatch.setattr(payload, "node_name", lambda: "n1")
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(os, "killpg", lambda *_: None)
        monkeypatch.setattr(payload_sensors.Sensors, "start", lambda _: None)
        self.agent = payload.Agent({"beat": 600.0, **options})
        with os.fdopen(read) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            try:
                self.agent.run()
            finally:
                os.close(self.write)  # the thread that reads it ends

    def hear(self, **line: Any) -> None:
        self.said.append(line)
        if line["burnin"] in ("hello", "load"):
            for at, watts in enumerate((500, 500, 690, 690, 600, 600)):
                row = payload_sensors.Row(100.0 + at, ("60", str(watts), "1755", "0x0"), loaded=True)
                self.agent.sensors.rows.setdefault("GPU-0", []).append(row)
        if line["burnin"] in ("hello", "done"):
            stop = json.dumps({"do": "stop"})
            os.write(self.write, (self.left.pop(0) if self.left else stop).encode() + b"\n")

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.said if line["burnin"] == kind]


def test_each_node_takes_its_part_of_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    groups = [{"members": ["n0", "n2"], "ranks": [4, 4]}, {"members": ["n5", "n1"], "ranks": [4, 2], "port": 9}]
    other = [{"members": ["n0"], "ranks": [4]}]
    loads = [{"load": "nccl", "seconds": 1, "groups": it} for it in (groups, other)]
    beside = [{"load": "cpu", "seconds": 1}]
    ran = Ran(monkeypatch, [*loads, {"load": "matmul", "seconds": 1, "beside": beside}], gpus=2)
    by_name = {it.name: it.started for it in Worker.made}
    assert [it["load"] for it in by_name["gpu1"]] == ["nccl", "matmul"]
    asked = by_name["gpu0"][0]
    assert (asked["first"], asked["size"], asked["port"], "groups" in asked) == (4, 6, 9, False)
    assert [it["load"] for it in by_name["host"]] == ["cpu"]
    (_, alone, _) = ran.told("load")
    assert [it["lacks"] for it in alone["results"]] == ["nothing to do on this node"]


def test_each_load_goes_to_the_workers_that_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.setattr(payload, "output_of", lambda argv, *_: (0, json.dumps(argv), "beside"))
    loads = [{"load": it, "seconds": 1} for it in ("cpu", "memory", "hbm", "storage")]
    ran = Ran(monkeypatch, [*loads, {"load": "dcgm", "level": 3, "timeout": 9}], gpus=1)
    by_name = {it.name: [one["load"] for one in it.started] for it in Worker.made}
    assert by_name == {"host": ["cpu", "memory", "storage"], "gpu0": ["hbm"]}
    (found,) = ran.told("load")[-1]["results"]
    assert json.loads(found.pop("out")) == ["dcgmi", "diag", "-r", "3", "-j"]
    assert found == {"load": "dcgm", "rc": 0, "err": "beside"}


def test_the_data_type_that_draws_most_is_known_once_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {it: {"window": [100.0 + at, 101.0 + at]} for it, at in (("fp64", 0), ("bf16", 2), ("int8", 4))}
    answers = {**known, "fp8": {"window": [300.0, 301.0]}}  # no reading is of that time
    rounds = [[{"load": "matmul", "seconds": 1, "dtypes": [*it]}] for it in (answers, known, known)]
    ran = Ran(monkeypatch, *rounds, gpus=1, answers=answers)
    (started,) = (it.started for it in Worker.made if it.name == "gpu0")
    assert [it.get("hottest") for it in started] == [None, None, "bf16"]
    assert not any("window" in it for line in ran.told("load") for it in line["results"])


def test_what_changes_results_or_speed_is_kept_from_the_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on an H200 with NVIDIA_TF32_OVERRIDE=0 in a profile: tf32 at 51 TFLOP/s, and a drain."""
    foreign = {"NVIDIA_TF32_OVERRIDE": "0", "CUDA_LAUNCH_BLOCKING": "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    for name, value in (foreign | {"NCCL_PROTO": "LL", "CUDA_VISIBLE_DEVICES": "0"}).items():
        monkeypatch.setenv(name, value)
    Ran(monkeypatch, gpus=1)
    assert [it.name for it in Worker.made] == ["host", "gpu0"]
    for env in (it.env for it in Worker.made):
        assert not {"NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING"} & env.keys()
        assert env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert (env["NCCL_PROTO"], env["CUDA_VISIBLE_DEVICES"]) == ("LL", "0")


def test_a_step_without_gpus_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on an H200: '0 took part: no reason is known'."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for visible, words in ((None, []), ("", ["CUDA_VISIBLE_DEVICES= in the step"]), ("0", [])):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        (said,) = Ran(monkeypatch, gpus=1).told("hello")
        assert (said["broken"], len(said["devices"])) == (words, visible != "")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What an agent says that a test does not run."""
    Worker.made, lines = [], list[dict[str, Any]]()
    monkeypatch.setattr(payload, "print_json", lambda **fields: lines.append(fields))
    return lines


def test_load_hung_at_the_end_is_no_pass(monkeypatch: pytest.MonkeyPatch, said: list[dict[str, Any]]) -> None:
    """A worker that was stopped, or waits for its GPU for ever: its load is told although it was cut short."""
    monkeypatch.setattr(time, "monotonic", lambda: 150.0)
    agent = payload.Agent({"gpus": 3})
    hbm = {"id": 7, "load": "hbm", "seconds": 10.0}
    # GPU 0 hangs, GPU 1 has done its part, and GPU 2 has only begun
    begun = ((True, 50.0), (False, 50.0), (True, 140.0))
    agent.waiting = [(worker(at, busy=busy), hbm, begin) for at, (busy, begin) in enumerate(begun)]
    agent.stop()
    devices = [{"gpu": i, "uuid": f"GPU-{i}"} for i in range(3)]
    told = NodeTotals("n1", hello={"devices": devices, "cpus": 1})
    for line in said:
        told.add(line)
    whole = BurninResult({"n1": told}, requested=1.0, gpus=3)
    (finding,) = load_checks.survived(whole, "n1").findings
    assert (str(finding.part), finding.code) == ("GPU 0 (GPU-0)", "hangs")
    assert figures(finding.measured)[-2:] == [100, 10]
    verdict = load_checks.memory_bandwidth(whole, "n1", CONFIG)
    assert (judged(verdict)[0], "see burnin.survived" in verdict.reason) == (NOT_CHECKED, True)


@pytest.mark.thorough
def test_a_process_that_was_stopped_is_distinguished_from_one_that_computes(said: object) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        one = worker(0, busy=True)
        one.process = process
        try:
            assert one.exit_reason() == ("hangs", "did not answer in time")
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            assert one.exit_reason()[0] == "stopped"
        finally:
            process.kill()


OOM = "Killed process 4711 (python3) total-vm:34356472kB"


def test_lack_of_host_memory_is_no_broken_gpu(monkeypatch: pytest.MonkeyPatch, said: object) -> None:
    """Recorded on two H200: a memory limit of the job's cgroup drained the node."""
    for log, words in (
        (f"Memory cgroup out of memory: {OOM}", ": by the OOM killer, at the memory limit of its cgroup"),
        (f"Out of memory: {OOM}", ": by the OOM killer"),
        (f"Out of memory: {OOM.replace('4711', '471')}", ""),
    ):
        text = f"[ 0.5] Linux\n[ 1.0] {log}\n"
        monkeypatch.setattr(payload, "output_of", lambda *_, text=text: (0, text, ""))
        code, why = worker(0, busy=True).exit_reason()
        assert (code, why) == ("starved" if words else "killed", f"ended by signal 9{words}")
        died = {"load": "hbm", "uuid": gpu_of("a", 0), "problem": f"the load {why}", "code": code}
        lines = [load("a", "matmul"), {"load": "hbm", "results": [died]}]
        verdict = load_checks.survived(fleet(1, a=lines), "a")
        assert judged(verdict)[0] == MONITOR  # no fault of hardware sends KILL
        assert ("DefMemPerNode" in verdict.hint) == bool(words)


def test_a_collective_that_failed_is_reported_once(monkeypatch: pytest.MonkeyPatch, said: object) -> None:
    """The worker says why, and ends: its communicator cannot be trusted any more."""
    monkeypatch.setattr(payload, "output_of", lambda *_: (1, "", ""))
    one, real = worker(0, busy=True), payload.WorkerProcess.results
    lines = iter([{"id": 7, "load": "nccl", "problem": "NCCL error: x"}, None, None])
    monkeypatch.setattr(one, "next", lambda _: next(lines))
    command = {"id": 7, "load": "nccl", "members": ["a", "b"]}
    assert [found["problem"] for found in real(one, command, 0.0)] == ["NCCL error: x"]
    (died,) = real(one, command, 0.0)  # without a word before
    assert (died["problem"], died["code"]) == ("the load ended by signal 9", "killed")
    assert died["members"] == ["a", "b"]
    assert one.restarts == 2


def test_a_driver_hung_under_load_fails(monkeypatch: pytest.MonkeyPatch, said: list[dict[str, Any]]) -> None:
    """Recorded on an H200: such a burn-in ended with 'ask for more time', and the counters passed."""
    monkeypatch.setattr(payload_counters, "output_of", lambda *_: (None, "", ""))
    smi = payload_counters.Smi()
    monkeypatch.setattr(payload, "SMI", smi)
    monkeypatch.setattr(payload, "SMI_LATE", 0.0)
    agent = payload.Agent({"gpus": 1})
    agent.at = "round 0 matmul"
    smi.query("-q", timeout=0.2)
    agent.stop()
    told = NodeTotals("a", hello=hello("a", 1))
    for line in said:
        told.add(line)
    assert not told.ran
    verdict = error_checks.counters(BurninResult({"a": told}, requested=1.0, gpus=1), "a", CONFIG)
    assert (judged(verdict), "the driver" in verdict.cause) == ((DRAIN, ["nvidia-smi"]), True)
    assert "(round 0 matmul)" in str(verdict.findings[0].measured)


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
