"""What a node counts during a burn-in: errors of GPUs, links and ports, and Xids.

Python 3.6 and the standard library only.
"""

import os
import re
import time
import xml.etree.ElementTree as ET
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from pytest_gpucluster.suites.burnin.payload_process import ending, output_of

SMI_LATE = 60.0  # seconds without an answer of nvidia-smi: longer than any driver takes, also under load
SMI_WARNING = 14  # exit status of nvidia-smi(1): complete output, with a warning of a corrupted InfoROM
IB_ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped",
)  # fmt: skip


class Smi:
    """Runs nvidia-smi and measures how long it does not answer, as with a driver that hangs."""

    def __init__(self) -> None:
        self.unanswered = None  # type: Optional[float]  # start of the first call without an answer

    def query(self, *words: str, timeout: float) -> Tuple[Optional[int], str, str]:
        """Return what `output_of` does; after a call that timed out, the next calls get 5 seconds."""
        hung = self.silence() >= timeout
        self.unanswered = self.unanswered or time.monotonic()
        rc, out, err = output_of(["nvidia-smi", *words], 5.0 if hung else timeout)
        if rc is not None:
            self.unanswered = None
        return rc, out, err

    def silence(self) -> float:
        """Return the seconds since the first call without an answer, 0 if the last call was answered."""
        return time.monotonic() - self.unanswered if self.unanswered else 0.0


SMI = Smi()


def number(text: Optional[str]) -> Optional[float]:
    """Return the number at the start of a text ('38 C', '0'), None if there is none ('N/A')."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)(?:\s|$)", text or "")
    return float(found.group(1)) if found else None


def read_xml(text: str) -> List[Dict[str, Any]]:
    """Read `nvidia-smi -q -x`: names, limits, error counters and processes of each GPU."""
    start, end = max(text.find("<nvidia_smi_log"), 0), "</nvidia_smi_log>"
    inner = text[start:].partition(end)[0] + end  # nvidia-smi prints warnings before and after the document
    root = ET.fromstring(inner)  # nvidia-smi's own output
    return [_read_gpu(index, gpu) for index, gpu in enumerate(root.findall("gpu"))]


def _read_gpu(index: int, gpu: Any) -> Dict[str, Any]:
    find = gpu.findtext
    return {
        "index": index,
        "uuid": find("uuid") or "",
        "bus": (find("pci/pci_bus_id") or gpu.get("id") or "").lower()[-12:],
        "name": find("product_name") or "",
        "pcie_gen": number(find("pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
        "pcie_width": number((find("pci/pci_gpu_link_info/link_widths/max_link_width") or "").rstrip("x")),
        "slow_celsius": _slow_celsius(find),
        "power_limit": number(find("gpu_power_readings/current_power_limit"))
        or number(find("power_readings/power_limit")),
        "power_default": number(find("gpu_power_readings/default_power_limit"))
        or number(find("power_readings/default_power_limit")),
        "counters": _read_counters(find),
        "processes": [
            {"pid": int(number(entry.findtext("pid")) or 0), "name": (entry.findtext("process_name") or "")[:80]}
            for entry in gpu.findall("processes/process_info")
        ],
    }  # fmt: skip


def _slow_celsius(find: Callable[[str], Optional[str]]) -> Optional[float]:
    """Return the temperature from which the GPU slows down; since Hopper nvidia-smi shows margins to its limit instead."""
    names = ("gpu_temp", "gpu_temp_tlimit", "gpu_temp_slow_tlimit_threshold")
    now, margin, slow = [number(find("temperature/" + name)) for name in names]
    if now is None or margin is None or slow is None:
        return number(find("temperature/gpu_temp_slow_threshold"))
    return now + margin - slow


def _read_counters(find: Callable[[str], Optional[str]]) -> Dict[str, int]:
    counters = {}
    for scope in ("volatile", "aggregate"):
        for kind, width, names in (
            ("uncorrected", "double", ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable",
                                       "sram_uncorrectable")),
            ("corrected", "single", ("sram_correctable", "dram_correctable")),
        ):  # fmt: skip
            paths = [*names, width + "_bit/total"]  # the last one: before Ampere
            values = [number(find("ecc_errors/%s/%s" % (scope, path))) for path in paths]
            known = [value for value in values if value is not None]
            if known:
                counters["ecc_%s_%s" % (kind, scope)] = int(sum(known))
    reasons = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
    for name, path in (
        ("remapped_uncorrectable", "remapped_rows/remapped_row_unc"),
        ("remapped_correctable", "remapped_rows/remapped_row_corr"),
        ("pcie_replay", "pci/replay_counter"),
        ("throttled_hw_thermal_us", reasons + "hw_therm_slowdown"),
        ("throttled_hw_power_us", reasons + "hw_power_brake"),
    ):
        value = number(find(path))
        if value is not None:
            counters[name] = int(value)
    for name, path in (("remapped_pending", "pending"), ("remapped_failure", "failure")):
        word = find("remapped_rows/remapped_row_" + path)
        if word in ("Yes", "No"):
            counters[name] = int(word == "Yes")
    return counters


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
            counter = "nvlink_" + entry.group(1).strip().lower().replace(" ", "_")
            found[uuid][counter] = found[uuid].get(counter, 0) + int(entry.group(2))
    return found


def _deciding_words(number: int, text: str) -> str:
    """Return the words of an Xid's message that the required action depends on, '' without any."""
    if 144 <= number <= 150:
        hit = re.match(r"(?i)[ ,]*(\w.*? +(?:non-?)?fatal)\b.*?(\(0x...)..(... 0x[0-9a-f]{1,8})", text)
        if hit:
            return "%s %s00%s" % hit.groups()
    word = re.search(r"(?i)\b(non-?fatal|fatal|correctable)\b|to 0x[0-9a-f]+ \([^)]*\)|RST: Yes", text)
    registers = re.search(r"\(0x[0-9a-f]+(, 0x[0-9a-f]+)+\)", text) if number == 74 else None
    return " ".join(hit.group() for hit in (word, registers) if hit)


def read_kernel_log(text: str) -> Dict[str, int]:
    """Return {Xid or SXid: number of its events}: 'xid 79 0000:9d:00', the PCI address without its function.

    Words of the driver that change the required action follow the number: 'xid 94:RST:_Yes 0000:9d:00'; those of
    NVLink 5 have unit, severity and the first two registers, without the bits of the link. The second and third line
    of an SXid hold its registers; they are not counted.
    """
    found = {}  # type: Dict[str, int]
    for line in text.splitlines():
        hit = re.search(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:]+)[^)]*\): (\d+),?(.*)", line)
        kind = "xid" if hit else "sxid"
        hit = hit or re.search(r"(nvidia-nvswitch\w*):? SXid \([^)]*\): (\d+),?(.*)", line)
        if not hit or (kind == "sxid" and re.match(r" *(Severity \d|Data \{)", hit.group(3))):
            continue
        rest = re.sub(r"^ *pid=[^,]*, *name=[^,]*,?", "", hit.group(3))
        words = _deciding_words(int(hit.group(2)), rest)
        number = hit.group(2) + (":" + re.sub(" +", "_", words) if words else "")
        key = "%s %s %s" % (kind, number, hit.group(1).lower())
        found[key] = found.get(key, 0) + 1
    return found


class Counters:
    """Error counters of GPUs, NVLinks and InfiniBand ports, and Xids of the kernel log."""

    def __init__(self, sudo: bool = False) -> None:
        self.sudo = sudo
        self.unread = {}  # type: Dict[str, str]
        self.port_rates = {}  # type: Dict[str, float]  # GB/s

    def snapshot(self) -> Dict[str, Any]:
        """Return the GPUs that nvidia-smi lists, {part: {counter: value}} and the Xids; sets `unread`."""
        self.unread = {}
        gpus = self._gpus()
        parts = {gpu["uuid"]: dict(gpu["counters"]) for gpu in gpus}
        if gpus:
            rc, out, err = SMI.query("nvlink", "-e", timeout=SMI_LATE)
            if rc in (0, SMI_WARNING):
                for uuid, counts in read_nvlink(out).items():
                    parts.setdefault(uuid, {}).update(counts)
            else:
                self.unread["nvlink"] = (err or out).strip()[:200] or ending(rc)
        parts.update(self._infiniband())
        return {"gpus": gpus, "parts": parts, "kernel": self._kernel()}

    def _gpus(self) -> List[Dict[str, Any]]:
        rc, out, err = SMI.query("-q", "-x", timeout=SMI_LATE)
        try:
            if rc not in (0, SMI_WARNING):
                raise ValueError((err or out).strip()[:200] or ending(rc))
            return read_xml(out)
        except Exception as error:
            self.unread["hung" if rc is None else "killed" if rc < 0 else "gpu"] = str(error)[:200]
            return []

    def _infiniband(self) -> Dict[str, Dict[str, int]]:
        rc, out, _ = output_of(["sh", "-c", "ls -d /sys/class/infiniband/*/ports/* 2>/dev/null"], 10)
        ports = out.split() if rc == 0 else []
        found = {}
        for port in ports:
            script = "cat %s/rate; for f in %s; do printf '%%s ' $f; cat %s/counters/$f 2>/dev/null || echo; done" % (
                port, " ".join(IB_ERRORS), port,
            )  # fmt: skip
            out = output_of(["sh", "-c", script], 10)[1]
            rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", out)
            rows = [row.split() for row in out.splitlines()]
            counts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
            if counts:
                words = port.split("/")
                part = "%s/%s" % (words[-3], words[-1])
                found[part] = counts
                if rate:
                    self.port_rates[part] = float(rate.group(1)) / 8
        return found

    def _kernel(self) -> Optional[Dict[str, int]]:
        sudo = ["sudo", "-n"] if self.sudo and os.getuid() else []
        errors = ""
        for argv in (["dmesg"], ["journalctl", "-q", "-k", "-b", "--no-pager", "-o", "short-monotonic"]):
            rc, out, err = output_of([*sudo, *argv], 30)
            if rc == 0 and out.strip():
                return read_kernel_log(out)
            errors += "%s: %s; " % (argv[0], err.strip().splitlines()[-1] if err.strip() else "empty")
        self.unread["xid"] = errors[:200]
        return None


def deltas(before: Mapping[str, Any], after: Mapping[str, Any]) -> Dict[str, Dict[str, int]]:
    """Return {part: {counter: increase}} without zeros; a GPU that nvidia-smi no longer lists has {"gone": 1}.

    A lower value means that the counter was reset: the new value counts. Xids count for the GPU at their PCI address.
    """
    found = {}  # type: Dict[str, Dict[str, int]]
    for part, old in before["parts"].items():
        if part not in after["parts"]:
            # if nvidia-smi failed as a whole, no single GPU is at fault
            if after["gpus"]:
                found[part] = {"gone": 1}
            continue
        now = after["parts"][part]
        rose = {name: now[name] - (old[name] if now[name] >= old[name] else 0) for name in old if name in now}
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


def other_processes(gpus: Sequence[Mapping[str, Any]], own: Set[int]) -> Dict[str, List[str]]:
    """Return {UUID: processes on the GPU with a pid that is not in `own`}: 'python3 (pid 7)'.

    {} if no pid of `own` is listed: nvidia-smi then shows the pids of another namespace.
    """
    seen = {gpu["uuid"]: gpu["processes"] for gpu in gpus}
    if not own & {entry["pid"] for entries in seen.values() for entry in entries}:
        return {}
    found = {
        uuid: ["%s (pid %d)" % (entry["name"], entry["pid"]) for entry in entries if entry["pid"] not in own]
        for uuid, entries in seen.items()
    }
    return {uuid: names[:8] for uuid, names in found.items() if names}
