# A broken GPU may raise anything (BLE001); errors are told where they are found (TRY); forks are the simplest way to
# load every core (no shared state); torch keeps the products of fp8 and int8 private (SLF001).
"""Burn-in of one node: an agent that obeys lines of JSON on stdin, and a worker for each GPU and one for the host.

Runs on the nodes under the site's python (3.6 and later); torch alone is needed beside it, and for the GPUs only. One
file that travels by -c; srun copies its stdin to the agent of every node:

    srun --ntasks-per-node=1 --gres=gpu:8 python3 -c BOOT PACKED agent OPTIONS COLLECTIVE

PACKED is this file, as `payload_step.sent` returns it, by `packed`, COLLECTIVE the payload of the nccl suite likewise,
OPTIONS a JSON object (see `Agent`). Commands, one a line:

    {"do": "round", "id": 3, "round": 1, "loads": [{"load": "matmul", "seconds": 10, "dtypes": ["bf16"], "seed": 1}]}
    {"do": "leave", "nodes": ["gpu07"]}        these agents end
    {"do": "stop"}                             all agents end, at once

The agent prints a line of JSON {"burnin": KIND, "node": ...} for: `hello` (GPUs, their limits), `beat` (every few
seconds), `load` (results of one load; what sensors showed meanwhile; by how much counters rose from before to
after it), `done` (all loads of a command), `bye`. Workers are processes of their own: a hung or dead one costs its
load, not the agent. Nothing is left behind, SIGKILL included: files are unlinked before they are written.
"""

import base64
import contextlib
import ctypes
import hashlib
import json
import math
import mmap
import os
import queue
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
import xml.etree.ElementTree as ET
import zlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from pytest_gpucluster.kit.payloads.prelude import (
    exit_now,
    first_line,
    gpu_facts,
    low_limits_hint,
    no_device,
    node_name,
    say,
)

# The source travels packed: one argument of a command holds 128 KiB at most, and so does a whole command over SSH
BOOT = "import base64, sys, zlib; exec(compile(zlib.decompress(base64.b64decode(sys.argv[1])), 'burnin.py', 'exec'))"
MIB = 1 << 20
CHUNK = 1 << 24  # elements that are filled or summed at once
SIZES = {"fp64": 4096, "fp32": 8192, "tf32": 8192, "fp16": 8192, "bf16": 8192, "fp8": 8192, "int8": 8192}
SLACK = 90.0  # seconds beyond its own time after which a load hangs: the first one loads libraries
LATE = {
    "hbm": 30.0,
    "copies": 30.0,
    "peer": 30.0,
}  # SLACK of loads that load no library, disk or partner can hold up
WARNED = 14  # nvidia-smi(1): all was told, beside a warning of a corrupted InfoROM
SMI_LATE = 60.0  # seconds without an answer of nvidia-smi: longer than any driver takes, also under load
# What a profile or a prolog may set, and then GPUs compute something else, or more slowly, than those of other nodes
FOREIGN = (
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32", "TORCH_BLAS_", "CUBLAS", "PYTORCH_TUNABLEOP_", "DISABLE_ADDMM_CUDA_LT",
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)  # fmt: skip
START = 240.0  # seconds for a worker to come up; torch from a slow file system takes its time
RESTARTS = 3

# Bits of clocks_event_reasons.active that slow a GPU against its will (nvml.h)
SLOW_BITS = {
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
IB_ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped",
)  # fmt: skip


def packed(source: str) -> str:
    """Return a source as BOOT takes it."""
    return base64.b64encode(zlib.compress(source.encode(), 9)).decode()


def reason_of(error: BaseException) -> str:
    """Return an exception as one line."""
    return ("%s: %s" % (type(error).__name__, first_line(error) or "no message"))[:300]


def output_of(
    argv: Sequence[str], timeout: float, started: Optional[Callable[[Any], None]] = None
) -> Tuple[int, str, str]:
    """Run a command; return (exit status, stdout, stderr). 127: not found, 124: did not end.

    `started` is given the process, so that somebody else may end it.
    """
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return 127, "", reason_of(error)
    if started is not None:
        started(process)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        # one that hangs in the kernel dies when it comes back
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=2)
        return 124, "", "%s: no end after %g s" % (argv[0], timeout)
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


class Smi:
    """nvidia-smi, and for how long it has not answered: a hung driver answers nobody any more."""

    def __init__(self) -> None:
        self.asked = None  # type: Optional[float] # when the first question came that has no answer yet

    def ask(self, *words: str, timeout: float) -> Tuple[int, str, str]:
        """Run it; once it has not ended in time, later questions are given up sooner."""
        hung = self.silence() >= timeout
        self.asked = self.asked or time.monotonic()
        rc, out, err = output_of(["nvidia-smi", *words], 5.0 if hung else timeout)
        if rc != 124:  # timeout(1)'s
            self.asked = None
        return rc, out, err

    def silence(self) -> float:
        """Return for how many seconds it has not answered."""
        return time.monotonic() - self.asked if self.asked else 0.0


SMI = Smi()


# -- counters ---------------------------------------------------------------------------------------------------


def number(text: Optional[str]) -> Optional[float]:
    """Return the number at the start of a text ('38 C', '0'), None where there is none ('N/A')."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)(?:\s|$)", text or "")
    return float(found.group(1)) if found else None


def read_xml(text: str) -> List[Dict[str, Any]]:
    """Read `nvidia-smi -q -x`: one mapping a GPU with its names, limits, error counters and processes."""
    gpus = []
    start, end = max(text.find("<nvidia_smi_log"), 0), "</nvidia_smi_log>"
    inner = text[start:].partition(end)[0] + end  # warnings may stand before and behind it
    root = ET.fromstring(inner)  # nvidia-smi's own output
    for index, gpu in enumerate(root.findall("gpu")):
        find = gpu.findtext
        counters = {}
        for scope in ("volatile", "aggregate"):
            for kind, names in (
                ("uncorrected", ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable",
                                 "sram_uncorrectable")),
                ("corrected", ("sram_correctable", "dram_correctable")),
            ):  # fmt: skip
                known = [number(find("ecc_errors/%s/%s" % (scope, name))) for name in names]
                old = number(
                    find("ecc_errors/%s/%s_bit/total" % (scope, "double" if kind[0] == "u" else "single"))
                )
                values = [value for value in [*known, old] if value is not None]
                if values:
                    counters["ecc_%s_%s" % (kind, scope)] = int(sum(values))
        for name, path in (
            ("remapped_uncorrectable", "remapped_rows/remapped_row_unc"),
            ("remapped_correctable", "remapped_rows/remapped_row_corr"),
            ("pcie_replay", "pci/replay_counter"),
            (
                "throttled_hw_thermal_us",
                "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown",
            ),
            (
                "throttled_hw_power_us",
                "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake",
            ),
        ):
            value = number(find(path))
            if value is not None:
                counters[name] = int(value)
        for name, path in (
            ("remapped_pending", "remapped_row_pending"),
            ("remapped_failure", "remapped_row_failure"),
        ):
            word = find("remapped_rows/" + path)
            if word in ("Yes", "No"):
                counters[name] = int(word == "Yes")
        processes = [
            {"pid": int(number(entry.findtext("pid")) or 0), "name": (entry.findtext("process_name") or "")[:80]}
            for entry in gpu.findall("processes/process_info")
        ]  # fmt: skip
        gpus.append({
            "index": index,
            "uuid": find("uuid") or "",
            "bus": (find("pci/pci_bus_id") or gpu.get("id") or "").lower()[-12:],
            "name": find("product_name") or "",
            "pcie_gen": number(find("pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
            "pcie_width": number(
                (find("pci/pci_gpu_link_info/link_widths/max_link_width") or "").rstrip("x")
            ),
            "slow_celsius": number(find("temperature/gpu_temp_slow_threshold")),
            "power_limit": number(find("gpu_power_readings/current_power_limit"))
            or number(find("power_readings/power_limit")),
            "power_default": number(find("gpu_power_readings/default_power_limit"))
            or number(find("power_readings/default_power_limit")),
            "counters": counters,
            "processes": processes,
        })  # fmt: skip
    return gpus


def read_nvlink(text: str) -> Dict[str, Dict[str, int]]:
    """Read `nvidia-smi nvlink -e`: UUID -> sums over the links by kind, like nvlink_replay_errors."""
    found = {}  # type: Dict[str, Dict[str, int]]
    uuid = ""
    for line in text.splitlines():
        head = re.match(r"GPU \d+: .*\(UUID: ([^)]+)\)", line)
        entry = re.match(r"\s+Link \d+: (.+?): (\d+)\s*$", line)
        if head:
            uuid = head.group(1)
            found[uuid] = {}
        elif entry and uuid:
            kind = "nvlink_" + entry.group(1).strip().lower().replace(" ", "_")
            found[uuid][kind] = found[uuid].get(kind, 0) + int(entry.group(2))
    return found


def read_kernel_log(text: str) -> Dict[str, int]:
    """Count Xids and SXids: 'xid 79 0000:9d:00' -> how often. The PCI address is without its function.

    Words of the driver that change what an Xid asks for follow its number: 'xid 149:Nonfatal 0018:01:00'. The second
    and third line of an SXid hold its registers, and are no further events.
    """
    found = {}  # type: Dict[str, int]
    for line in text.splitlines():
        hit = re.search(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:]+)[^)]*\): (\d+),?(.*)", line)
        kind = "xid"
        if not hit:
            hit = re.search(r"(nvidia-nvswitch\w*):? SXid \([^)]*\): (\d+),?(.*)", line)
            kind = "sxid"
        if not hit or (kind == "sxid" and re.match(r" *(Severity \d|Data \{)", hit.group(3))):
            continue
        rest = re.sub(r"^ *pid=[^,]*, *name=[^,]*,?", "", hit.group(3))
        word = re.search(r"(?i)\b(non-?fatal|fatal|correctable)\b|to 0x[0-9a-f]+ \([^)]*\)|RST: Yes", rest)
        number = hit.group(2) + (":" + word.group().replace(" ", "_") if word else "")
        key = "%s %s %s" % (kind, number, hit.group(1).lower())
        found[key] = found.get(key, 0) + 1
    return found


class Counters:
    """What the node counts: of GPUs, NVLinks, InfiniBand ports, and Xids of the kernel log."""

    def __init__(self, sudo: bool = False) -> None:  # an option of the site
        self.sudo = sudo
        self.unread = {}  # type: Dict[str, str]

    def snapshot(self) -> Dict[str, Any]:
        """Return {part: {counter: value}} beside the GPUs as nvidia-smi shows them; `unread` says what failed."""
        self.unread = {}
        parts = {}  # type: Dict[str, Dict[str, int]]
        gpus = self._gpus()
        for gpu in gpus:
            parts[gpu["uuid"]] = dict(gpu["counters"])
        if gpus:
            rc, out, err = SMI.ask("nvlink", "-e", timeout=SMI_LATE)
            if rc in (0, WARNED):
                for uuid, counts in read_nvlink(out).items():
                    parts.setdefault(uuid, {}).update(counts)
            else:
                self.unread["nvlink"] = (err or out).strip()[:200] or "exit %d" % rc
        parts.update(self._infiniband())
        return {"gpus": gpus, "parts": parts, "kernel": self._kernel()}

    def _gpus(self) -> List[Dict[str, Any]]:
        rc, out, err = SMI.ask("-q", "-x", timeout=SMI_LATE)
        try:
            if rc not in (0, WARNED):
                raise ValueError((err or out).strip()[:200] or "exit %d" % rc)
            return read_xml(out)
        except Exception as error:
            self.unread["gpu"] = str(error)[:200]
            return []

    def _infiniband(self) -> Dict[str, Dict[str, int]]:
        rc, out, _ = output_of(["sh", "-c", "ls -d /sys/class/infiniband/*/ports/* 2>/dev/null"], 10)
        ports = out.split() if rc == 0 else []
        found = {}
        for port in ports:
            script = "for f in %s; do printf '%%s ' $f; cat %s/counters/$f 2>/dev/null || echo; done" % (
                " ".join(IB_ERRORS), port,
            )  # fmt: skip
            rows = [row.split() for row in output_of(["sh", "-c", script], 10)[1].splitlines()]
            counts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
            if counts:
                words = port.split("/")
                found["%s/%s" % (words[-3], words[-1])] = counts
        return found

    def _kernel(self) -> Optional[Dict[str, int]]:
        sudo = ["sudo", "-n"] if self.sudo and os.getuid() else []
        said = ""
        for argv in (["dmesg"], ["journalctl", "-q", "-k", "-b", "--no-pager", "-o", "short-monotonic"]):
            rc, out, err = output_of([*sudo, *argv], 30)
            if rc == 0 and out.strip():
                return read_kernel_log(out)
            said += "%s: %s; " % (argv[0], err.strip().splitlines()[-1] if err.strip() else "empty")
        self.unread["xid"] = said[:200]
        return None


def deltas(before: Mapping[str, Any], after: Mapping[str, Any]) -> Dict[str, Dict[str, int]]:
    """Return by how much counters rose, part by part, zeros left out; a GPU that vanished counts as `gone` 1.

    A counter that fell was reset meanwhile: it counts with its new value. Xids count for the GPU on their bus.
    """
    found = {}  # type: Dict[str, Dict[str, int]]
    for part, old in before["parts"].items():
        if part not in after["parts"]:
            # nvidia-smi that failed as a whole says nothing about one GPU
            if after["gpus"]:
                found[part] = {"gone": 1}
            continue
        now = after["parts"][part]
        rose = {
            name: now[name] - old[name] if now[name] >= old[name] else now[name]
            for name in old
            if name in now
        }
        rose = {name: count for name, count in rose.items() if count}
        if rose:
            found[part] = rose
    if before["kernel"] is not None and after["kernel"] is not None:
        uuids = {gpu["bus"].rpartition(".")[0]: gpu["uuid"] for gpu in before["gpus"]}
        for key, count in after["kernel"].items():
            more = count - before["kernel"].get(key, 0)
            kind, what, where = key.split(" ", 2)
            owner = uuids.get(where) if kind == "xid" else where
            if more > 0 and owner is not None:
                found.setdefault(owner, {})["%s_%s" % (kind, what)] = more
    return found


def strangers(gpus: Sequence[Mapping[str, Any]], ours: Set[int]) -> Dict[str, List[str]]:
    """Return {UUID: processes} of others on the GPUs now: 'python3 (pid 7)'.

    Nobody is one where no process of ours is seen: its pids are then those of another namespace.
    """
    seen = {gpu["uuid"]: gpu["processes"] for gpu in gpus}
    if not ours & {entry["pid"] for entries in seen.values() for entry in entries}:
        return {}
    found = {
        uuid: ["%s (pid %d)" % (entry["name"], entry["pid"]) for entry in entries if entry["pid"] not in ours]
        for uuid, entries in seen.items()
    }
    return {uuid: names[:8] for uuid, names in found.items() if names}


class Sensors:
    """Watches temperature, power, clocks and what slows the GPUs, from a thread of its own, while a load runs."""

    FIELDS = "uuid,temperature.gpu,temperature.memory,power.draw,clocks.sm,utilization.gpu,"

    def __init__(self, every: float) -> None:
        self.every, self.reasons = every, "clocks_event_reasons.active"
        self.rows = {}  # type: Dict[str, List[List[Optional[float]]]]
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Sensors":  # Python 3.6 has no Self
        self.thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.over.set()
        self.thread.join(30)

    def _watch(self) -> None:
        while not self.over.wait(min(self.every, 1.0) if not self.rows else self.every):
            self._sample()

    def _sample(self) -> None:
        rc, out, _ = self._ask()
        if rc not in (0, WARNED) and self.reasons.startswith("clocks_event"):
            self.reasons = "clocks_throttle_reasons.active"  # before driver 535
            rc, out, _ = self._ask()
        if rc not in (0, WARNED):
            return
        for line in out.splitlines():
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) == 7:  # the fields
                mask = int(cells[6], 16) if re.match(r"0x[0-9a-fA-F]+$", cells[6]) else None
                self.rows.setdefault(cells[0], []).append([number(cell) for cell in cells[1:6]] + [mask])

    def _ask(self) -> Tuple[int, str, str]:
        query = "--query-gpu=" + self.FIELDS + self.reasons
        return SMI.ask(query, "--format=csv,noheader,nounits", timeout=30)

    def summary(self) -> Dict[str, Dict[str, Any]]:
        """Return {UUID: peaks, median clock, shares of samples with each reason that slows}."""
        found = {}
        for uuid, rows in self.rows.items():
            columns = [
                [value for value in column if value is not None] for column in zip(*rows)
            ]  # Python 3.6 has no strict
            celsius, memory, watts, clock, busy, masks = columns
            slow = {
                name: round(sum(bool(int(mask) & bit) for mask in masks) / len(masks), 3)
                for bit, name in SLOW_BITS.items()
                if any(int(mask) & bit for mask in masks)
            }
            found[uuid] = {
                "samples": len(rows),
                "celsius": max(celsius) if celsius else None,
                "memory_celsius": max(memory) if memory else None,
                "watts": max(watts) if watts else None,
                "sm_mhz": statistics.median(clock) if clock else None,
                "busy": statistics.median(busy) if busy else None,
                "slow": slow,
            }
        return found


# -- the agent --------------------------------------------------------------------------------------------------


class Worker:
    """One worker process: lines of JSON in, lines of JSON out."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.name, self.argv, self.env = name, list(argv), dict(env)
        self.about = []  # type: List[Dict[str, Any]]
        self.broken, self.restarts = "", -1
        self.busy = False  # with a load that it was given
        self.pids = set()  # type: Set[int]  # of all its processes so far
        self.start()

    def start(self) -> None:
        """Start the process, or start it anew; after RESTARTS times it stays broken."""
        self.restarts += 1
        self.lines = queue.Queue()  # type: queue.Queue[Optional[Dict[str, Any]]]
        self.process = subprocess.Popen(
            self.argv,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing of ours holds a lock there
        )
        self.pids.add(self.process.pid)
        self.ready = False
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()

    def _read(self, process: Any, lines: Any) -> None:
        for raw in process.stdout:
            try:
                found = json.loads(raw.decode(errors="replace"))
            except ValueError:
                continue  # chatter of a library
            if isinstance(found, dict):
                lines.put(found)
                self.busy = self.busy and "end" not in found
        lines.put(None)

    def wait_ready(self, end: float) -> None:
        """Wait until it says what it is; `broken` says why it is of no use."""
        if self.ready or self.broken:
            return
        said = self.next(end)
        if said is None:
            self.broken = "%s: %s" % (self.name, self.ending())
        elif "broken" in said:
            self.broken = str(said["broken"])
        else:
            self.about, self.ready = said.get("ready", []), True

    def next(self, end: float) -> Optional[Dict[str, Any]]:
        """Return its next line, None where it ended or the time is up."""
        try:
            return self.lines.get(timeout=max(0.01, end - time.monotonic()))
        except queue.Empty:
            return None

    def send(self, command: Mapping[str, Any]) -> None:
        """Give it a load."""
        assert self.process.stdin is not None
        self.busy = True
        with contextlib.suppress(OSError):  # its end is seen by who waits for its results
            self.process.stdin.write((json.dumps(command) + "\n").encode())
            self.process.stdin.flush()

    def ending(self) -> str:
        """Say how it ended; one that has not ended hangs."""
        try:
            rc = self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return "did not answer in time" + self.held()
        return "ended by signal %d%s" % (-rc, self.starved()) if rc < 0 else "ended with %d" % rc

    def starved(self) -> str:
        """Say that the kernel ended it for want of the host's memory, where its log says so; else ''."""
        rc, out, _ = output_of(["dmesg"], 10)
        hit = re.search(r"(Memory cgroup )?[Oo]ut of memory: Killed process %d " % self.process.pid, out)
        if rc or not hit:
            return ""
        return ": by the OOM killer" + (", at the memory limit of its cgroup" if hit.group(1) else "")

    def held(self) -> str:
        """Say what holds its process, as the kernel knows it: ': it is stopped by a signal'; '' where nothing does."""
        try:
            with open("/proc/%d/stat" % self.process.pid) as file:
                state = file.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return ""
        return {
            "T": ": its process is stopped by a signal",
            "D": ": its process hangs in the kernel (state D)",
        }.get(state, "")

    def part(self) -> Dict[str, Any]:
        """Return what its results are told of: its GPU, if it has but one."""
        about = self.about[0] if len(self.about) == 1 else {}
        return {"worker": self.name, **{key: about[key] for key in ("gpu", "uuid") if key in about}}

    def kill(self) -> None:
        """End it and its children."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def results(self, command: Mapping[str, Any], end: float) -> Iterator[Dict[str, Any]]:
        """Yield what a load gave; a worker that died or hangs is started anew for the next one."""
        failed = False
        while True:
            said = self.next(end)
            if said is None:
                why = self.ending()
                self.kill()
                if not (failed and command["load"] == "nccl"):  # which then ends its worker, and has said why
                    about = {"members": command["members"]} if "members" in command else {}
                    yield dict(self.part(), load=command["load"], problem="the load %s" % why, **about)
                if self.restarts >= RESTARTS:
                    self.broken = "%s was started %d times and %s" % (self.name, self.restarts + 1, why)
                else:
                    self.start()
                return
            if said.get("id") != command["id"]:
                continue
            if "end" in said:
                return
            said.pop("id")
            failed = failed or bool(said.get("problem"))
            yield said


try:
    _PRCTL = ctypes.CDLL(None).prctl  # type: Any
except Exception:  # a libc without it: the end of the step kills what is left
    _PRCTL = None


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (PR_SET_PDEATHSIG): no orphan on a GPU."""
    if _PRCTL is not None:
        _PRCTL(1, signal.SIGKILL)


class Agent:
    """Obeys commands, runs loads on its workers, and tells.

    Options: `gpus` (None: as many as are visible), `sample` and `beat` (seconds), `sudo`, `worker` (command in place of
    ours), `storage` and `storage_bytes`, `memory_bytes`, `cpus` (0: all), `collective` (that payload, packed).
    """

    def __init__(self, options: Mapping[str, Any], source: str) -> None:
        self.options, self.source = options, source
        self.node = node_name()
        self.counters = Counters(bool(options.get("sudo")))
        self.commands = queue.Queue()  # type: queue.Queue[Optional[Dict[str, Any]]]
        self.stopped = threading.Event()
        self.at = "starting"
        self.workers = []  # type: List[Worker]
        self.host = None  # type: Optional[Worker]
        self.before = {}  # type: Dict[str, Any]
        self.diag = None  # type: Any
        self.waiting = []  # type: List[Tuple[Worker, Mapping[str, Any], float]]

    def tell(self, kind: str, **fields: Any) -> None:
        """Print a line about this node."""
        say(burnin=kind, node=self.node, **fields)

    def run(self) -> int:
        """Obey until told to stop, or until stdin ends: then whoever started us is gone."""
        for number_ in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number_, self._killed)
        self.before = self.counters.snapshot()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        self._start_workers()
        self._hello()
        while not self.stopped.is_set():
            command = self.commands.get()
            if command is None:
                break
            self._obey(command)
        self.stop()
        self.tell("bye")
        return 0

    def _killed(self, number_: int, _frame: Any) -> None:
        self._kill_workers()
        os._exit(128 + number_)

    def stop(self) -> None:
        """End all loads now."""
        if not self.stopped.is_set():
            self._tell_late()
        self.stopped.set()
        self._kill_workers()
        self.commands.put(None)

    def _tell_late(self) -> None:
        """Tell of loads that should have ended long before: of what is cut short nothing else is told."""
        late = []
        for worker, load, began in self.waiting:
            took, own = time.monotonic() - began, float(load["seconds"])
            if took > 2 * own + LATE.get(load["load"], SLACK) and worker.busy:
                problem = "the load had not ended after %.0f s instead of %.0f s%s" % (
                    took,
                    own,
                    worker.held(),
                )
                late.append(dict(worker.part(), load=load["load"], problem=problem))
        if late:
            self.tell("load", load=late[0]["load"], results=late)
        if SMI.silence() > SMI_LATE:
            unread = {"gpu": "nvidia-smi: no answer for %.0f s (%s)" % (SMI.silence(), self.at)}
            self.tell("load", load="", results=[], unread=unread)

    def _kill_workers(self) -> None:
        if self.diag is not None:
            with contextlib.suppress(OSError):
                self.diag.send_signal(signal.SIGTERM)  # dcgmi then has the host engine end it too
        for worker in [*self.workers, *([self.host] if self.host else [])]:
            with contextlib.suppress(OSError):
                os.killpg(worker.process.pid, signal.SIGKILL)

    def _read(self) -> None:
        for line in sys.stdin:
            try:
                command = json.loads(line)
            except ValueError:
                continue
            if command.get("do") == "stop" or self.node in command.get("nodes", ()):
                self.stop()
                return
            if command.get("do") == "round":
                self.commands.put(command)
        self.stop()

    def _beat(self) -> None:
        while not self.stopped.wait(self.options.get("beat", 5.0)):
            self.tell("beat", at=self.at)

    def _start_workers(self) -> None:
        ours = [sys.executable or "python3", "-c", BOOT, self.source]
        given = self.options.get("worker") or []
        base = list(given) or ours
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        env.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUBLAS_WORKSPACE_CONFIG=":4096:8")
        # a hung collective is given up by the agent, not by torch, which would abort without a word
        env.update(TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0")
        env.setdefault("NCCL_DEBUG", "WARN")
        env.setdefault("NCCL_DEBUG_FILE", "/dev/stderr")
        env["BURNIN_COLLECTIVE"] = self.options.get("collective") or ""
        words = json.dumps({key: value for key, value in self.options.items() if key != "collective"})
        self.host = Worker("host", [*base, "host", words], env)
        count = self.gpu_count()
        if given:  # one process stands for all GPUs
            self.workers = [Worker("gpus", [*base, "gpu", "all", words], env)] if count else []
        else:
            self.workers = [
                Worker("gpu%d" % index, [*base, "gpu", str(index), words], env) for index in range(count)
            ]

    def gpu_count(self) -> int:
        """Return how many GPUs this step may use."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return len([word for word in visible.split(",") if word.strip()])
        return len(self.before["gpus"])

    def _hello(self) -> None:
        end = time.monotonic() + START
        for worker in [self.host, *self.workers]:
            assert worker is not None
            self.at = "starting " + worker.name
            worker.wait_ready(end)
        if self.stopped.is_set():
            return  # we have killed those that were still starting: that accuses nobody
        devices = [about for worker in self.workers for about in worker.about]
        self.tell(
            "hello",
            host=socket.gethostname(),
            step=os.environ.get("SLURM_STEP_ID", ""),
            cpus=len(os.sched_getaffinity(0)),
            gpus=[{key: gpu[key] for key in gpu if key != "counters"} for gpu in self.before["gpus"]],
            devices=devices,
            counted=sorted({name for part in self.before["parts"].values() for name in part}),
            kernel=self.before["kernel"] is not None,
            unread=self.counters.unread,
            broken=sorted(
                {worker.broken for worker in [self.host, *self.workers] if worker and worker.broken}
            )
            or self._undealt(),
            simulated=any(about.get("simulated") for about in devices),
        )

    def _undealt(self) -> List[str]:
        """Say why there is no worker of a GPU at all, where the step has none to give."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        empty = self.options.get("gpus") and not self.workers and visible is not None
        return ["CUDA_VISIBLE_DEVICES=%s in the step" % visible] if empty else []

    def _obey(self, command: Mapping[str, Any]) -> None:
        for load in command["loads"]:
            if self.stopped.is_set():
                return
            self._run_load(load, command)
        if not self.stopped.is_set():
            self.tell("done", id=command["id"], round=command["round"])

    def _run_load(self, load: Mapping[str, Any], command: Mapping[str, Any]) -> None:
        self.at = "round %s %s" % (command["round"], load["load"])
        begin = time.monotonic()
        with Sensors(self.options.get("sample", 2.0)) as sensors:
            results = self._dcgm(load) if load["load"] == "dcgm" else self._on_workers(load, command)
        seconds = time.monotonic() - begin
        if self.stopped.is_set():
            return  # a load that was cut short says nothing
        after = self.counters.snapshot()
        self.tell(
            "load", round=command["round"], load=load["load"], seconds=round(seconds, 2), results=results,
            sensors=sensors.summary(), deltas=deltas(self.before, after), unread=self.counters.unread,
            strangers=strangers(after["gpus"], {pid for worker in self.workers for pid in worker.pids}),
        )  # fmt: skip
        if after["gpus"] or not self.before["gpus"]:
            self.before = after

    def _on_workers(self, load: Mapping[str, Any], command: Mapping[str, Any]) -> List[Dict[str, Any]]:
        asked, found = [], []  # type: List[Any], List[Dict[str, Any]]
        for part in [load, *load.get("beside", ())]:  # `beside`: loads of the host while the GPUs work
            mine = self._mine(part, command["id"])
            workers = self._of(part["load"])
            for worker in workers:
                worker.wait_ready(time.monotonic() + START)
            able = [worker for worker in workers if not worker.broken] if mine is not None else []
            if not able:
                broken = [worker.broken for worker in workers if worker.broken]
                found.append(
                    {"load": part["load"], "skip": broken[0] if broken else "nothing to do on this node"}
                )
            for worker in able:
                worker.send(mine or {})
                asked.append((worker, mine))
        self.waiting = [(worker, mine, time.monotonic()) for worker, mine in asked]
        for worker, mine in asked:
            end = time.monotonic() + float(load["seconds"]) * 2 + float(load.get("slack", SLACK))
            found += list(worker.results(mine, end))
        self.waiting = []
        return found

    def _of(self, load: str) -> List[Worker]:
        if load in ("cpu", "memory", "storage"):
            return [self.host] if self.host else []
        return self.workers

    def _mine(self, load: Mapping[str, Any], number_: int) -> Optional[Dict[str, Any]]:
        """Return the load as this node's workers need it; None where they have no part in it."""
        mine = {key: value for key, value in load.items() if key not in ("beside", "groups")}
        mine["id"] = number_
        if load["load"] == "nccl":
            group = next((group for group in load["groups"] if self.node in group["members"]), None)
            if group is None:
                return None
            mine.update(group)
            place = group["members"].index(self.node)
            mine.update(first=sum(group["ranks"][:place]), size=sum(group["ranks"]))
        return mine

    def _dcgm(self, load: Mapping[str, Any]) -> List[Dict[str, Any]]:
        if shutil.which("dcgmi") is None:
            return [{"load": "dcgm", "skip": "dcgmi is not installed on the node"}]
        argv = ["dcgmi", "diag", "-r", str(load.get("level", 1)), "-j"]
        rc, out, err = output_of(argv, float(load["timeout"]), lambda process: setattr(self, "diag", process))
        self.diag = None
        return [{"load": "dcgm", "rc": rc, "out": out[: 1 << 18], "err": err[-2000:]}]


# -- the host ---------------------------------------------------------------------------------------------------


def spread(count: int, function: Callable[[int], Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Run a function in so many forked processes at once; return what each gave."""
    children = []
    for index in range(count):
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(out)
            try:
                die_with_parent()
                os.nice(10)  # the workers of the GPUs go first
                found = function(index)
            except BaseException as error:
                found = {"problem": reason_of(error)}
            os.write(into, json.dumps(found).encode())
            os._exit(0)
        os.close(into)
        children.append((pid, out))
    results = []
    for pid, out in children:
        with os.fdopen(out, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        results.append(json.loads(text.decode()) if text else {"problem": "ended with status %d" % status})
    return results


def random_block(seed: int, size: int) -> bytes:
    """Return bytes that depend on the seed alone and look random."""
    block = b"".join(hashlib.sha512(b"%d/%d" % (seed, part)).digest() for part in range(4096))
    return (block * (size // len(block) + 1))[:size]


def cpu_unit(seed: int) -> str:
    """Do a fixed piece of work in integers, vectors and IEEE arithmetic; return the digest of all results.

    Only operations whose result every CPU has to give alike: no sine, whose last bit is the library's own.
    """
    block = random_block(seed, MIB)
    packed = zlib.compress(block[: MIB // 8], 6)
    digest = hashlib.sha256(zlib.decompress(packed))
    digest.update(hashlib.sha512(block).digest() + hashlib.md5(block).digest())  # no secret
    value, total = float(seed + 1), 0.0
    for step in range(1, 20000):
        value = math.sqrt(value * value + step) / (1.0 + 1.0 / step)
        total += value
    digest.update(repr(total).encode())
    digest.update(str(pow(3 + seed, 4001, (1 << 521) - 1)).encode())
    return digest.hexdigest()


def burn_cpu(seconds: float, seed: int) -> Dict[str, Any]:
    """Repeat the same work; every repetition has to give the same."""
    begin, right, units, wrong = time.monotonic(), cpu_unit(seed), 1, 0
    while time.monotonic() - begin < seconds:
        wrong += cpu_unit(seed) != right
        units += 1
    return {"units": units, "rate": units / (time.monotonic() - begin), "wrong": wrong, "hash": right}


def burn_memory(seconds: float, seed: int, size: int) -> Dict[str, Any]:
    """Write patterns over `size` bytes and read them back, at least once each, until the time is up.

    Where that is more than fits into the time (a host may have terabytes), the first part of it; `bytes` says how much.
    """
    size = max(MIB, size // MIB * MIB)
    view = memoryview(mmap.mmap(-1, size))  # unlike a bytearray it takes no page before it is written
    random = random_block(seed, MIB)
    patterns = [random, bytes(255 - byte for byte in random), b"\x55" * MIB, b"\xaa" * MIB]
    begin, moved, wrong, first, turn = time.monotonic(), 0, 0, None, 0
    # all patterns are written and read within the time, and the first writing is the slowest: it takes the pages
    share = seconds / (2 * len(patterns))
    while turn < len(patterns) or time.monotonic() - begin < seconds:
        pattern = patterns[turn % len(patterns)]
        for at in range(0, size, MIB):
            if not turn and at and time.monotonic() - begin > share:
                size = at
                break
            view[at : at + MIB] = pattern
        for at in range(0, size, MIB):
            if look(view, at) != pattern:
                wrong += 1
                first = at if first is None else first
        moved += 2 * size
        turn += 1
    rate = moved / (time.monotonic() - begin) / 1e9
    return {"bytes": size, "passes": turn, "rate": rate, "wrong": wrong, "first": first}


def look(view: memoryview, at: int) -> memoryview:
    """Return a block of the memory that was written."""
    return view[at : at + MIB]


def read_block(handle: int, size: int) -> bytes:
    """Read a block back from the file."""
    parts, left = [], size
    while left:
        part = os.read(handle, left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def burn_storage(folder: str, size: int, seconds: float, seed: int) -> Dict[str, Any]:
    """Write a file of at most `size` bytes, sync it, drop it from the cache, read it back and compare.

    The file has no name while data are in it, so that no end of this process leaves it behind.
    """
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < 2 * size:
        return {"skip": "%s has %d MiB free, twice %d MiB are needed" % (folder, free // MIB, size // MIB)}
    handle, name = tempfile.mkstemp(prefix="burnin-", dir=folder)
    try:
        os.unlink(name)  # nothing but names here
        block, count = random_block(seed, 4 * MIB - 8), 0
        begin = time.monotonic()
        while count * 4 * MIB < size and (count == 0 or time.monotonic() - begin < seconds):
            os.write(handle, count.to_bytes(8, "little") + block)
            count += 1
        os.fsync(handle)
        written = time.monotonic() - begin
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(handle, 0, os.SEEK_SET)
        begin, wrong, first = time.monotonic(), 0, None
        for at in range(count):
            if read_block(handle, 4 * MIB) != at.to_bytes(8, "little") + block:
                wrong += 1
                first = at * 4 * MIB if first is None else first
        took = time.monotonic() - begin
    finally:
        os.close(handle)
    total = count * 4 * MIB
    return {
        "path": folder, "bytes": total, "write": total / written / 1e9, "read": total / max(took, 1e-9) / 1e9,
        "wrong": wrong, "first": first,
    }  # fmt: skip


class Host:
    """The worker of the host: CPU, memory, storage."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        spare = options.get("gpus") or 0
        cores = len(os.sched_getaffinity(0))
        self.cpus = options.get("cpus") or max(1, cores - spare)
        self.memory = int(options.get("memory_bytes") or 0) or self.quarter()

    @staticmethod
    def quarter() -> int:
        """Return a quarter of the memory that is available, 64 GiB at most."""
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file if ":" in line)
        return min(64 << 30, int(rows["MemAvailable"].split()[0]) * 1024 // 4)

    def loads(self, command: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
        """Yield the results of one load."""
        seconds, seed, load = float(command["seconds"]), int(command.get("seed", 0)), command["load"]
        if load == "cpu":
            found = spread(self.cpus, lambda _: burn_cpu(seconds, seed))
            hashes = sorted({it["hash"] for it in found if "hash" in it})
            yield {
                "load": load, "key": "cpu/%d" % seed, "hashes": hashes, "processes": len(found),
                "wrong": sum(it.get("wrong", 0) for it in found), "rate": sum(it.get("rate", 0.0) for it in found),
                "problem": "; ".join(sorted({it["problem"] for it in found if "problem" in it})),
            }  # fmt: skip
        elif load == "memory":
            tasks = max(1, min(self.cpus, 8, self.memory // (64 * MIB)))
            found = spread(tasks, lambda index: burn_memory(seconds, seed + index, self.memory // tasks))
            yield {
                "load": load, "bytes": sum(it.get("bytes", 0) for it in found),
                "wrong": sum(it.get("wrong", 0) for it in found), "rate": sum(it.get("rate", 0.0) for it in found),
                "problem": "; ".join(sorted({it["problem"] for it in found if "problem" in it})),
            }  # fmt: skip
        elif load == "storage":
            folder, size = self.options.get("storage"), int(self.options.get("storage_bytes") or 0)
            if not folder or not size:
                yield {"load": load, "skip": "no folder is named for it (burnin.storage)"}
            else:
                yield dict(burn_storage(folder, size, seconds, seed), load=load)


# -- one GPU ----------------------------------------------------------------------------------------------------


def mixed(torch: Any, device: Any, start: int, stop: int, seed: int) -> Any:
    """Return 16 well mixed bits for elements [start, stop), the same on every machine, as int64."""
    value = torch.arange(start, stop, device=device, dtype=torch.int64) + seed * 1000003
    value = (value * 2654435761) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 2246822519) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 3266489917) & 0xFFFFFFFF
    return (value ^ (value >> 16)) & 0xFFFF


def bits(torch: Any, tensor: Any) -> Any:
    """Return a tensor's bits as integers: NaN and -0 compare like any other value."""
    width = tensor.element_size()
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.reshape(-1).view(kinds[width])


def digest_of(torch: Any, tensor: Any) -> str:
    """Return an exact digest of a tensor's bits: a sum and a sum weighted by place, modulo 2^64, in any order."""
    flat = bits(torch, tensor)
    plain = weighted = 0
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].to(torch.int64)
        place = torch.arange(start, start + part.numel(), device=part.device, dtype=torch.int64) % 65521 + 1
        plain += int(part.sum().item())
        weighted += int((part * place).sum().item())
    return "%016x%016x" % (plain % (1 << 64), weighted % (1 << 64))


class Gpu:
    """The worker of one GPU, on torch."""

    def __init__(self, index: int) -> None:
        import torch

        if not torch.cuda.is_available():
            shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
            raise RuntimeError(
                "torch %s finds no CUDA device: %s (CUDA_VISIBLE_DEVICES=%s)"
                % (torch.__version__, no_device(torch), shown)
            )
        self.torch, self.index = torch, index
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        about = torch.cuda.get_device_properties(index)
        self.capability = torch.cuda.get_device_capability(index)
        self.sms, known = about.multi_processor_count, gpu_facts(about)
        self.name, self.uuid = known["name"], known["uuid"]
        self.bus = known["bus"] and known["bus"] + ".0"
        # results are the same bit by bit only on equal hardware under equal libraries
        self.alike = "%s/%d/%s/%s" % (self.name, self.sms, torch.__version__, torch.version.cuda)
        torch.zeros(1, device=self.device)

    def about(self) -> Dict[str, Any]:
        """Return what this worker is."""
        return {
            "gpu": self.index, "uuid": self.uuid, "bus": self.bus, "name": self.name, "alike": self.alike,
            "dtypes": self.dtypes(),
        }  # fmt: skip

    def dtypes(self) -> List[str]:
        """Return the data types that this GPU and this torch multiply."""
        torch, known = self.torch, ["fp64", "fp32", "fp16"]
        if self.capability >= (8, 0):
            known += ["tf32", "bf16"]
        if self.capability >= (8, 9) and hasattr(torch, "float8_e4m3fn") and hasattr(torch, "_scaled_mm"):
            known.append("fp8")
        if self.capability >= (7, 5) and hasattr(torch, "_int_mm"):
            known.append("int8")
        return known

    def loads(self, command: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
        """Yield the results of one load."""
        load = command["load"]
        base = {"load": load, "gpu": self.index, "uuid": self.uuid}
        if "members" in command:
            base["members"] = command["members"]  # a problem names its group as well
        if load == "matmul":
            asked = command.get("dtypes") or list(SIZES)
            there = [dtype for dtype in asked if dtype in self.dtypes()]
            for dtype in there:
                found = self.told(
                    lambda dtype=dtype: self.matmul(dtype, command, float(command["seconds"]) / len(there))  # type: ignore[misc]
                )
                yield dict(base, dtype=dtype, **found)
        else:
            yield dict(base, **self.told(lambda: getattr(self, load)(command)))

    def told(self, function: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        """Return what a function gave, or its exception as a problem; memory is given back."""
        try:
            found = function()
        except Exception as error:
            found = {"problem": reason_of(error)}
        try:
            self.torch.cuda.empty_cache()
        except Exception as error:
            found.setdefault("problem", reason_of(error))
        return found

    # --- products of matrices

    def matrix(self, n: int, dtype: str, seed: int) -> Any:
        """Return an n x n matrix of the seed's values, all mantissa bits of 16 in use."""
        torch = self.torch
        kind = {"fp64": torch.float64, "fp16": torch.float16, "int8": torch.int8}.get(dtype, torch.float32)
        if dtype == "bf16":
            kind = torch.bfloat16
        if dtype == "fp8":
            kind = torch.float8_e4m3fn
        flat = torch.empty(n * n, dtype=kind, device=self.device)
        for start in range(0, n * n, CHUNK):
            value = mixed(torch, self.device, start, min(start + CHUNK, n * n), seed)
            if dtype == "int8":
                part = ((value & 0xFF) - 128).to(torch.int8)
            else:
                part = ((value - 32768).to(torch.float64) / 32768).to(torch.float32).to(kind)
            flat[start : start + CHUNK].copy_(part)
        return flat.view(n, n)

    def product(self, dtype: str, a: Any, b: Any) -> Callable[[], Any]:
        """Return the function that multiplies once."""
        torch = self.torch
        if dtype in ("fp32", "tf32"):
            allow_tf32(torch, dtype == "tf32")
        if dtype == "fp8":
            one, columns = torch.ones((), device=self.device), b.t()

            def scaled() -> Any:
                found = torch._scaled_mm(a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
                return found[0] if isinstance(found, tuple) else found  # torch before 2.5 returns a pair

            return scaled
        if dtype == "int8":
            turned = b.t()
            return lambda: torch._int_mm(a, turned)
        out = torch.empty_like(a)
        return lambda: torch.matmul(a, b, out=out)

    def matmul(self, dtype: str, command: Mapping[str, Any], seconds: float) -> Dict[str, Any]:
        """Multiply the same seeded matrices over and over: timed batches, then products compared bit by bit."""
        torch, n, seed = self.torch, int(command.get("n") or SIZES[dtype]), int(command.get("seed", 0))
        multiply = self.product(dtype, self.matrix(n, dtype, 2 * seed), self.matrix(n, dtype, 2 * seed + 1))
        first = multiply().clone()
        multiply()
        torch.cuda.synchronize(self.device)
        once = self.clock(multiply, 1)
        batch = max(1, min(1000, int(0.1 / max(once, 1e-6))))
        right, wrong = bits(torch, first), torch.zeros((), dtype=torch.int64, device=self.device)
        checked, timed, products, begin = 0, 0.0, 0, time.monotonic()
        while products == 0 or time.monotonic() - begin < seconds:
            timed += self.clock(multiply, batch)
            products += batch
            for _ in range(max(1, batch // 4)):
                wrong += (bits(torch, multiply()) != right).sum()
                checked += 1
            torch.cuda.synchronize(self.device)
        return {
            "n": n, "key": "%s/%d/%d/%s" % (dtype, n, seed, self.alike), "hash": digest_of(torch, first),
            "wrong": int(wrong.item()), "checked": checked, "products": products + checked,
            "tflops": 2.0 * n**3 * products / timed / 1e12,
        }  # fmt: skip

    def clock(self, function: Callable[[], Any], times: int) -> float:
        """Return seconds that so many calls take on the GPU."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    # --- memory and copies

    def pattern(self, nbytes: int, seed: int) -> Any:
        """Return so many bytes of pattern, as int32."""
        flat = self.torch.empty(nbytes // 4, dtype=self.torch.int32, device=self.device)
        for start in range(0, flat.numel(), CHUNK):
            stop = min(start + CHUNK, flat.numel())
            value = mixed(self.torch, self.device, start, stop, seed)
            flat[start:stop] = ((value * 65537) & 0x7FFFFFFF).to(self.torch.int32)
        return flat

    def repeat(self, function: Callable[[], Any], seconds: float, nbytes: float) -> float:
        """Return GB/s of a function that moves so many bytes, repeated for some seconds."""
        function()
        self.torch.cuda.synchronize(self.device)
        times = max(1, min(500, int(0.1 / max(self.clock(function, 1), 1e-6))))
        taken, moved, begin = 0.0, 0.0, time.monotonic()
        while not moved or time.monotonic() - begin < seconds:
            taken += self.clock(function, times)
            moved += times * nbytes
        return moved / taken / 1e9

    def hbm(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """Copy within the GPU's memory: read and write bandwidth together; the copy has to equal the pattern."""
        free = self.torch.cuda.mem_get_info(self.device)[0]
        nbytes = min(4 << 30, free // 6) // 64 * 64
        source = self.pattern(nbytes, int(command.get("seed", 0)))
        target = self.torch.zeros_like(source)
        rate = self.repeat(lambda: target.copy_(source), float(command["seconds"]), 2.0 * nbytes)
        wrong = 0
        for start in range(0, source.numel(), CHUNK):
            stop = min(start + CHUNK, source.numel())
            value = mixed(self.torch, self.device, start, stop, int(command.get("seed", 0)))
            right = ((value * 65537) & 0x7FFFFFFF).to(self.torch.int32)
            wrong += int((target[start:stop] != right).sum().item())
        return {"bytes": nbytes, "gbs": rate, "wrong": wrong}

    def copies(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """Copy between pinned host memory and the GPU, both directions apart; what comes back has to be equal."""
        torch, nbytes = self.torch, 256 * MIB
        device = self.pattern(nbytes, int(command.get("seed", 0)))
        host = torch.empty(device.numel(), dtype=device.dtype, pin_memory=True)
        back = torch.zeros_like(device)
        half = float(command["seconds"]) / 2
        down = self.repeat(lambda: host.copy_(device, non_blocking=True), half, nbytes)
        up = self.repeat(lambda: back.copy_(host, non_blocking=True), half, nbytes)
        wrong = int((back != device).sum().item())
        return {"bytes": nbytes, "h2d": up, "d2h": down, "wrong": wrong}

    def peer(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """Copy to the partner's memory while the partner copies to ours."""
        torch = self.torch
        partner = dict(map(tuple, command["pairs"])).get(self.index)
        if partner is None:
            return {"skip": "no partner in this round"}
        if not torch.cuda.can_device_access_peer(self.index, partner):
            return {"skip": "GPU %d has no peer access to GPU %d" % (self.index, partner), "partner": partner}
        nbytes = 256 * MIB
        source = self.pattern(nbytes, int(command.get("seed", 0)) + self.index)
        target = torch.zeros(source.numel(), dtype=source.dtype, device=torch.device("cuda", partner))
        rate = self.repeat(lambda: target.copy_(source, non_blocking=True), float(command["seconds"]), nbytes)
        torch.cuda.synchronize(partner)
        equal = digest_of(torch, source) == digest_of(torch, target)
        return {"bytes": nbytes, "partner": partner, "gbs": rate, "wrong": 0 if equal else 1}

    # --- NCCL

    def nccl(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """All-reduce over a group of nodes: data checked in exact sums, bus bandwidth, a communicator of its own."""
        import datetime as dt

        import torch.distributed

        rank, size = int(command["first"]) + self.index, int(command["size"])
        if size < 2:  # a pair
            return {"skip": "one GPU alone has nothing to reduce with"}
        payload = collective()
        place = types.SimpleNamespace(local=self.index)
        device = payload.CudaDevice(self.torch, place)
        store = torch.distributed.TCPStore(
            command["address"], int(command["port"]), None, rank == 0, dt.timedelta(seconds=60),
            wait_for_workers=False,
        )  # fmt: skip
        self.store = store  # kept until the next group: ranks that are later than this one may still read it
        payload.join(self.torch, device, store, rank, size, 60.0)
        nbytes, seed = int(command["bytes"]), int(command.get("seed", 0))
        job = payload.Collective(self.torch, device, "all_reduce", nbytes, "float", rank, size)
        wrong = job.check(False, seed)  # in place or not
        times = 10
        seconds = job.measure(True, 2, times)
        # the mean over all ranks, so that all ranks choose the same number
        times = max(10, min(2000, int(float(command["seconds"]) / max(seconds, 1e-6))))
        seconds = job.measure(True, 2, times)
        wrong += job.check(False, seed + 1)
        torch.distributed.destroy_process_group()
        rate = nbytes / seconds / 1e9 * payload.busbw_factor("all_reduce", size)
        return {
            "members": command["members"], "rank": rank, "busbw": rate, "wrong": wrong, "bytes": nbytes,
            "ranks": size,
        }  # fmt: skip


def collective() -> Any:
    """Return the payload of the nccl suite as a module: its collectives, their data and their checks."""
    global _COLLECTIVE  # made once
    if _COLLECTIVE is None:
        module = types.ModuleType("collective")
        source = zlib.decompress(base64.b64decode(os.environ["BURNIN_COLLECTIVE"]))
        exec(compile(source, "collective.py", "exec"), module.__dict__)
        _COLLECTIVE = module
    return _COLLECTIVE


_COLLECTIVE = None  # type: Any


def allow_tf32(torch: Any, allowed: bool) -> None:  # a switch
    """Let products of float32 use TF32, or not; torch 2.9 has a new name for it."""
    try:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    except Exception:
        torch.set_float32_matmul_precision("high" if allowed else "highest")


# -- the command ------------------------------------------------------------------------------------------------


def serve(worker: Any) -> None:
    """Run loads as they come on stdin, until it ends."""
    for line in sys.stdin:
        command = json.loads(line)
        try:
            for found in worker.loads(command):
                say(id=command["id"], **found)
                if command["load"] == "nccl" and found.get("problem"):
                    os._exit(
                        3
                    )  # its communicator cannot be trusted any more; the agent starts another worker
        except Exception as error:
            say(id=command["id"], load=command["load"], problem=reason_of(error))
        say(id=command["id"], end=True)


def main(argv: Sequence[str]) -> int:
    """Run as `agent OPTIONS`, `host OPTIONS` or `gpu INDEX OPTIONS`."""
    if argv[0] == "agent":
        options = json.loads(argv[1])
        options["collective"] = argv[2] if len(argv) > 2 else ""  # the other payload's source
        return Agent(options, sys.argv[1]).run()
    try:
        worker = Host(json.loads(argv[1])) if argv[0] == "host" else Gpu(int(argv[1]))  # type: Any
    except BaseException as error:
        say(broken=reason_of(error) + low_limits_hint())
        return 1
    say(ready=[worker.about()] if argv[0] == "gpu" else [])
    serve(worker)
    return 0


if __name__ == "__main__":
    exit_now(main(sys.argv[2:]))
