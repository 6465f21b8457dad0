"""Stands in for nvidia-smi in the corpus: answers queries as CSV from a recorded `nvidia-smi -q`.

    python corpus_nvidia_smi.py RECORDED --query-gpu=index,name --format=csv

RECORDED is what `nvidia-smi -q` or `nvidia-smi -q -x` printed, of one or more GPUs, whole or in part. A field that it
does not hold is one that the driver does not know: `Field "x" is not a valid field to query.`, exit status 2. Words and
units are those of nvidia-smi's CSV: what `-q` shows as N/A is [N/A], 16x is 16, 38 C is 38; test_corpus_nvidia_smi.py
proves it with a recording that holds both. Where only a list of the GPUs is recorded (`-L`, `nvlink -s`, `topo -m`), it
answers with what that holds, without the other columns.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# What `-q` shows in place of a value: CSV puts it into brackets (nvmlErrorString).
WORDS = (
    "N/A",
    "Not Supported",
    "Unknown Error",
    "GPU is lost",
    "GPU requires reset",
    "Insufficient Permissions",
    "Requested functionality has been deprecated",
)
REASONS = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "SW Power Capping": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}
# Field: (header of its column, the lines of `-q` that hold it, the first that is there counts).
FIELDS = {
    "uuid": ("uuid", "GPU UUID"),
    "name": ("name", "Product Name"),
    "pci.bus_id": ("pci.bus_id", "PCI/Bus Id"),
    "serial": ("serial", "Serial Number"),
    "driver_version": ("driver_version", "Driver Version"),
    "vbios_version": ("vbios_version", "VBIOS Version"),
    "memory.total": ("memory.total [MiB]", "FB Memory Usage/Total"),
    "memory.used": ("memory.used [MiB]", "FB Memory Usage/Used"),
    "display_active": ("display_active", "Display Active"),
    "persistence_mode": ("persistence_mode", "Persistence Mode"),
    "compute_mode": ("compute_mode", "Compute Mode"),
    "mig.mode.current": ("mig.mode.current", "MIG Mode/Current"),
    "ecc.mode.current": ("ecc.mode.current", "ECC Mode/Current", "Ecc Mode/Current"),
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": (
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
        "ECC Errors/Aggregate/SRAM Threshold Exceeded",
    ),
    "retired_pages.single_bit_ecc.count": ("retired_pages.single_bit_ecc.count", "Retired Pages/Single Bit ECC"),
    "retired_pages.double_bit.count": ("retired_pages.double_bit.count", "Retired Pages/Double Bit ECC"),
    "retired_pages.pending": ("retired_pages.pending", "Retired Pages/Pending Page Blacklist", "Retired Pages/Pending"),
    "pcie.link.gen.current": ("pcie.link.gen.current", "PCI/GPU Link Info/PCIe Generation/Current"),
    "pcie.link.gen.max": ("pcie.link.gen.max", "PCI/GPU Link Info/PCIe Generation/Max"),
    "pcie.link.width.current": ("pcie.link.width.current", "PCI/GPU Link Info/Link Width/Current"),
    "pcie.link.width.max": ("pcie.link.width.max", "PCI/GPU Link Info/Link Width/Max"),
    "pstate": ("pstate", "Performance State"),
    "clocks.sm": ("clocks.current.sm [MHz]", "Clocks/SM"),
    "clocks.max.sm": ("clocks.max.sm [MHz]", "Max Clocks/SM"),
    "clocks.mem": ("clocks.current.memory [MHz]", "Clocks/Memory"),
    "clocks.max.mem": ("clocks.max.memory [MHz]", "Max Clocks/Memory"),
    "clocks.applications.graphics": (
        "clocks.applications.graphics [MHz]",
        "Applications Clocks/Graphics",
        "Applications Clocks",
    ),
    "clocks.default_applications.graphics": (
        "clocks.default_applications.graphics [MHz]",
        "Default Applications Clocks/Graphics",
        "Default Applications Clocks",
    ),
    "temperature.gpu": ("temperature.gpu", "Temperature/GPU Current Temp"),
    "power.draw": (
        "power.draw [W]",
        "GPU Power Readings/Average Power Draw",
        "GPU Power Readings/Power Draw",
        "Power Readings/Power Draw",
    ),
    "power.limit": (
        "power.limit [W]",
        "GPU Power Readings/GPU Ceiling Power Limit/Requested Power Limit",  # since driver 610
        "GPU Power Readings/Requested Power Limit",
        "GPU Power Readings/Current Power Limit",
        "Power Readings/Power Limit",
    ),
    "fabric.state": ("fabric.state", "Fabric/State"),
    "fabric.status": ("fabric.status", "Fabric/Status"),
    "fabric.health.summary": ("fabric.health.summary", "Fabric/Health/Summary"),
    "gpu_recovery_action": ("gpu_recovery_action", "GPU Recovery Action"),
}
ROWS = {
    "remapped_rows.correctable": "Remapped Rows/Correctable Error",
    "remapped_rows.uncorrectable": "Remapped Rows/Uncorrectable Error",
    "remapped_rows.pending": "Remapped Rows/Pending",
    "remapped_rows.failure": "Remapped Rows/Remapping Failure Occurred",
}

# Lines of `-q` by the elements of `-q -x` that hold the same; several names are those of several drivers.
ELEMENTS = {
    "GPU UUID": ("uuid",),
    "Product Name": ("product_name",),
    "PCI/Bus Id": ("pci/pci_bus_id",),
    "Serial Number": ("serial",),
    "VBIOS Version": ("vbios_version",),
    "FB Memory Usage/Total": ("fb_memory_usage/total",),
    "FB Memory Usage/Used": ("fb_memory_usage/used",),
    "Display Active": ("display_active",),
    "Persistence Mode": ("persistence_mode",),
    "Compute Mode": ("compute_mode",),
    "MIG Mode/Current": ("mig_mode/current_mig",),
    "ECC Mode/Current": ("ecc_mode/current_ecc",),
    "ECC Errors/Aggregate/SRAM Threshold Exceeded": ("ecc_errors/aggregate/sram_threshold_exceeded",),
    "Retired Pages/Single Bit ECC": ("retired_pages/multiple_single_bit_retirement/retired_count",),
    "Retired Pages/Double Bit ECC": ("retired_pages/double_bit_retirement/retired_count",),
    "Retired Pages/Pending": ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    "PCI/GPU Link Info/PCIe Generation/Current": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "PCI/GPU Link Info/PCIe Generation/Max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "PCI/GPU Link Info/Link Width/Current": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "PCI/GPU Link Info/Link Width/Max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "Performance State": ("performance_state",),
    "Clocks/SM": ("clocks/sm_clock",),
    "Clocks/Memory": ("clocks/mem_clock",),
    "Max Clocks/SM": ("max_clocks/sm_clock",),
    "Max Clocks/Memory": ("max_clocks/mem_clock",),
    "Applications Clocks/Graphics": ("applications_clocks/graphics_clock",),
    "Default Applications Clocks/Graphics": ("default_applications_clocks/graphics_clock",),
    "Temperature/GPU Current Temp": ("temperature/gpu_temp",),
    "Power Readings/Power Draw": ("power_readings/power_draw", "gpu_power_readings/power_draw"),
    "Power Readings/Power Limit": (
        "power_readings/power_limit",
        "gpu_power_readings/requested_power_limit",
        "gpu_power_readings/current_power_limit",
    ),
    "Fabric/State": ("fabric/state",),
    "Fabric/Status": ("fabric/status",),
    "Fabric/Health/Summary": ("fabric/health/summary",),
    "GPU Recovery Action": ("gpu_recovery_action",),
    "Remapped Rows": ("remapped_rows",),
    "Remapped Rows/Correctable Error": ("remapped_rows/remapped_row_corr",),
    "Remapped Rows/Uncorrectable Error": ("remapped_rows/remapped_row_unc",),
    "Remapped Rows/Pending": ("remapped_rows/remapped_row_pending",),
    "Remapped Rows/Remapping Failure Occurred": ("remapped_rows/remapped_row_failure",),
}
_REASON = {"GPU Idle": "Idle", "Display Clocks Setting": "Display Clock Setting"}


class Gpu(dict[str, str]):
    """One GPU: {path of the line: value}, like {'FB Memory Usage/Total': '143771 MiB'}, and its processes."""

    def __init__(self, values: dict[str, str] | None = None) -> None:
        super().__init__(values or {})
        self.processes: list[dict[str, str]] = []

    def first(self, *paths: str) -> str | None:
        return next((self[path] for path in paths if path in self), None)


def read_xml(text: str) -> tuple[dict[str, str], list[Gpu]]:
    """Return the same of `nvidia-smi -q -x`, by the lines of `-q`."""
    import xml.etree.ElementTree as ET  # rarely needed

    root = ET.fromstring(text)
    head = {"Driver Version": root.findtext("driver_version", ""), "CUDA Version": root.findtext("cuda_version", "N/A")}
    gpus = []
    for element in root.iter("gpu"):
        gpu = Gpu()
        for line, paths in ELEMENTS.items():
            value = next((found for path in paths if (found := (element.findtext(path) or "").strip())), "")
            if value:
                gpu[line] = value
        for kind in ("event", "throttle"):
            for reason in element.findall(f"clocks_{kind}_reasons/*"):
                name = reason.tag.partition("_reason_")[2].replace("_", " ").title()
                for word in ("Sw", "Hw", "Gpu"):
                    name = name.replace(f"{word} ", f"{word.upper()} ")
                gpu[f"Clocks Event Reasons/{_REASON.get(name, name)}"] = (reason.text or "").strip()
        for error in element.findall("ecc_errors/*/*"):
            when, name = (("Volatile", "Aggregate")[error in element.findall("ecc_errors/aggregate/*")], error.tag)
            name = f"{name[:4].upper()} {name[5:].replace('_', ' ').capitalize()}"
            if error.text and "correctable" in error.tag:
                gpu[f"ECC Errors/{when}/{name}"] = error.text.strip()
        gpu.processes = [
            {
                "Process ID": process.findtext("pid", ""),
                "Type": process.findtext("type", ""),
                "Name": process.findtext("process_name", ""),
                "Used GPU Memory": process.findtext("used_memory", "N/A"),
            }
            for process in element.findall("processes/process_info")
        ]
        gpus.append(gpu)
    return head, gpus


def read_list(text: str) -> list[Gpu]:
    """Return the GPUs that the lines of `nvidia-smi -L` and `nvlink -s`, or the rows of `topo -m`, name."""
    gpus = []
    for line in text.splitlines():
        listed = re.match(r"GPU \d+: (.+) \(UUID: (\S+)\)", line)
        if listed:
            gpus.append(Gpu({"Product Name": listed[1], "GPU UUID": listed[2]}))
        elif re.match(r"GPU\d+\s+(?!GPU)", line):
            gpus.append(Gpu())
    return gpus


def read(text: str) -> tuple[dict[str, str], list[Gpu]]:
    """Return what stands before the first GPU, and the GPUs."""
    head: dict[str, str] = {}
    gpus: list[Gpu] = []
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        name, colon, value = line.strip().partition(" : ")
        depth = len(line) - len(line.lstrip())
        if not name or name.startswith("="):
            continue
        if depth == 0 and name.startswith("GPU ") and not colon:
            gpus.append(Gpu())
            stack = []
            continue
        if not gpus:
            head[name.strip()] = value.strip()
            continue
        while stack and stack[-1][0] >= depth:
            stack.pop()
        name = name.rstrip(" :")
        above = [above for _, above in stack]
        stack.append((depth, name))
        if "Processes" in above or (name == "Process ID" and above):
            if name == "Process ID":
                gpus[-1].processes.append({})
            if gpus[-1].processes:
                gpus[-1].processes[-1][name] = value.strip()
        elif (colon or line.rstrip().endswith(":")) and above[:1] not in (["MIG Device"], ["MIG Devices"]):
            gpus[-1].setdefault("/".join([*above, name]), value.strip())
    return head, gpus


def cell(value: str, field: str) -> str:
    """Return a value of `-q` in the words of the CSV."""
    if value in WORDS:
        return value if field.startswith("fabric.") else f"[{value}]"
    if field.startswith("pcie.link.width"):
        return value.removesuffix("x")
    return value.removesuffix(" C") if field.startswith("temperature") else value


def value_of(field: str, gpu: Gpu, head: dict[str, str], index: int) -> tuple[str, str] | None:
    """Return (header of the column, cell); None where the recorded driver does not know the field."""
    if field == "index":
        return field, str(index)
    if field == "driver_version":
        version = head.get("Driver Version", "").partition(" [")[0]  # [Deprecated; ...] since driver 610
        return (field, version) if version else None
    if field.startswith("ecc.errors.") and not field.endswith("thresholdExceeded"):
        found = errors(field, gpu)
        return None if found is None else (field, cell(found, field))
    if field == "clocks_throttle_reasons.active":
        return reasons(gpu)
    header, *paths = FIELDS[field]
    text = gpu.first(*paths)
    if field == "power.draw" and text == "N/A":
        text = gpu.first("GPU Power Readings/Instantaneous Power Draw") or text
    return None if text is None else (header, cell(text, field))


def errors(field: str, gpu: Gpu) -> str | None:
    """Return ecc.errors.{un,}corrected.{volatile,aggregate}.{total,sram}: the sum of what `-q` shows apart."""
    _, _, kind, when, where = field.split(".")
    under = f"ECC Errors/{when.capitalize()}/"
    bits = "Single" if kind == "corrected" else "Double"
    if f"{under}{bits} Bit/Total" in gpu:  # before Turing
        return gpu[f"{under}{bits} Bit/Total"] if where == "total" else gpu.get(f"{under}{bits} Bit/SRAM", "N/A")
    word = "Correctable" if kind == "corrected" else "Uncorrectable"
    memories = ("SRAM",) if where == "sram" else ("SRAM", "DRAM")
    parts = [gpu[path] for path in gpu if any(path.startswith(f"{under}{one} {word}") for one in memories)]
    counts = [int(part) for part in parts if part.isdecimal()]
    return str(sum(counts)) if counts else (parts[0] if parts else None)


def reasons(gpu: Gpu) -> tuple[str, str] | None:
    """Return the mask of the reasons that `-q` shows as Active."""
    for title, header in (
        ("Clocks Event Reasons", "clocks_event_reasons.active"),
        ("Clocks Throttle Reasons", "clocks_throttle_reasons.active"),
    ):
        told = {path.rpartition("/")[2]: gpu[path] for path in gpu if path.startswith(f"{title}/")}
        if told:
            return header, f"0x{sum(REASONS[name] for name, value in told.items() if value == 'Active'):016X}"
        if title in gpu:
            return header, cell(gpu[title], header)
    return None


def query_gpu(fields: list[str], head: dict[str, str], gpus: list[Gpu], *, whole: bool = True) -> list[str]:
    """Return the lines of `--query-gpu=FIELDS --format=csv`."""
    columns = []
    for field in fields:
        found = [value_of(field, gpu, head, index) for index, gpu in enumerate(gpus)]
        header = next((one[0] for one in found if one), None)
        if header is None and whole:
            return invalid(field)
        if header is None:
            continue
        columns.append([header, *(one[1] if one else "[N/A]" for one in found)])
    return [", ".join(row) for row in zip(*columns, strict=True)]


def invalid(field: str) -> list[str]:
    return [f'Field "{field}" is not a valid field to query.', ""]


def query_rows(fields: list[str], gpus: list[Gpu]) -> list[str]:
    """Return the lines of `--query-remapped-rows=FIELDS --format=csv`."""
    lines = [", ".join(fields)]
    for gpu in gpus:
        whole = gpu.get("Remapped Rows")  # N/A on what has none
        values = [gpu.get("GPU UUID", "") if field == "gpu_uuid" else whole or gpu.get(ROWS[field]) for field in fields]
        if None in values:
            return invalid(fields[1])
        lines.append(", ".join(cell(value or "", "") for value in values))
    return lines


def query_apps(gpus: list[Gpu]) -> list[str]:
    """Return the lines of `--query-compute-apps=pid,gpu_uuid,used_memory,process_name --format=csv`."""
    lines = ["pid, gpu_uuid, used_gpu_memory [MiB], process_name"]
    for gpu in gpus:
        for app in gpu.processes:
            if "C" in app.get("Type", "C"):
                used = cell(app.get("Used GPU Memory", "N/A"), "")
                lines.append(", ".join((app["Process ID"], gpu["GPU UUID"], used, app.get("Name", "[N/A]"))))
    return lines


def main(recorded: str, *arguments: str) -> int:
    """Print what nvidia-smi prints for these arguments, and return its exit status."""
    text = Path(recorded).read_text(encoding="utf-8")
    whole = "NVSMI LOG" in text or text.startswith("<")
    head, gpus = (read_xml if text.startswith("<") else read)(text) if whole else ({}, read_list(text))
    asked, _, names = (arguments[0] if arguments else "").partition("=")
    fields = names.split(",")
    if not arguments:
        name = "CUDA UMD Version" if "CUDA UMD Version" in head else "CUDA Version"
        cuda = f"{name}: {head.get(name, 'N/A')}"
        version = head.get("Driver Version", "")
        lines = [f"| NVIDIA-SMI {version}              Driver Version: {version}     {cuda}     |"]
    elif asked == "--query-gpu":
        lines = query_gpu(fields, head, gpus, whole=whole)
    elif asked == "--query-remapped-rows":
        lines = query_rows(fields, gpus)
    elif asked == "--query-compute-apps":
        lines = query_apps(gpus)
    else:
        sys.stderr.write(f"nvidia-smi: not recorded: {' '.join(arguments)}\n")
        return 1
    sys.stdout.write("\n".join([*lines, ""]))
    return 2 if lines[0].startswith('Field "') else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
