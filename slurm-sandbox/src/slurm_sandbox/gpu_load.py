"""The GPUs of a simulated node under load, and dcgmi. Uses only the standard library.

The sandbox copies this file into its state folder. SIMULATED: rates come from the hardware model and the node's faults;
counters, temperatures and the kernel log change in the files of the simulated nvidia-smi and dmesg. A program that
replaces a site's load test on simulated nodes uses these classes.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NOISE = 0.004
_LOAD_FIELDS = ("temperature.gpu", "power.draw", "clocks.current.sm", "clocks_event_reasons.active")
THERMAL = 0x40  # hw_thermal_slowdown (nvml.h)


class NodeFiles:
    """The files of one node that the simulated tools print."""

    def __init__(self, folder: Path, base: Path, node: str) -> None:
        self.folder, self.base = folder / node, base

    def read(self, name: str) -> str:
        """Return a file of the last load, else of the node, else of healthy nodes."""
        places = (self.folder / "load", self.folder, self.base)
        return next(folder for folder in places if (folder / name).exists()).joinpath(name).read_text()

    def write(self, name: str, text: str) -> None:
        """Replace a file atomically: a tool may be reading the old one."""
        new = self.folder / "load" / f"{name}.{os.getpid()}"  # writable for each user of the sandbox
        new.write_text(text)
        new.chmod(0o644)  # readable for the tools of all users
        new.replace(self.folder / "load" / name)

    def change(self, change: Callable[[dict[str, list[str]]], None]) -> None:
        """Change fields of the GPUs: `change` gets {field: one value per GPU}."""
        rows = [line.split("\t") for line in self.read("gpus").splitlines()]
        table = {row[0]: row[2:] for row in rows}
        before = json.dumps(table)
        change(table)
        if json.dumps(table) != before:
            lines = ("\t".join([row[0], row[1], *table[row[0]]]) for row in rows)
            self.write("gpus", "".join(f"{line}\n" for line in lines))


class LoadedGpus:
    """All GPUs of the node."""

    def __init__(self, files: NodeFiles, node: str, count: int) -> None:
        self.files, self.node = files, node
        self.fault: dict[str, Any] = json.loads(files.read("burnin.json"))
        self.network: dict[str, Any] = json.loads(files.read("network.json"))
        rows = {line.split("\t")[0]: line.split("\t")[2:] for line in files.read("gpus").splitlines()}
        self.uuids, self.names = rows["uuid"][:count], rows["name"]
        self.buses = [bus[4:].lower() for bus in rows["pci.bus_id"]]
        self.noise = random.Random(f"{node}/{os.getpid()}")
        self.load: dict[str, Any] = self.fault["load"]  # of a healthy GPU: models.BurninRates
        self.idle: dict[str, list[str]] = {}
        self.done = 0

    def of(self, kind: str, gpu: int, healthy: float = 1.0) -> float:
        """Return the value of a fault for a GPU, `healthy` without one."""
        return float(self.fault.get(kind, {}).get(str(gpu), healthy))

    def rate(self, healthy: float, factor: float = 1.0) -> float:
        """Return a rate with a little noise."""
        return healthy * factor * self.noise.lognormvariate(0.0, NOISE)

    def heat(self, table: dict[str, list[str]]) -> None:
        """Set the fields of the GPUs to their values under load."""
        self.idle = self.idle or {name: list(table[name]) for name in _LOAD_FIELDS}
        for gpu in range(len(self.uuids)):
            hot = self.of("hot", gpu, 0.0)
            table["temperature.gpu"][gpu] = f"{hot or self.load['celsius'] + gpu % 4:.0f}"
            table["power.draw"][gpu] = f"{self.load['watts'] * self.of('weak', gpu) - gpu * 0.1:.2f}"
            table["clocks.current.sm"][gpu] = f"{self.load['mhz'] * (0.5 if hot else self.of('slow', gpu)):.0f}"
            table["clocks_event_reasons.active"][gpu] = f"0x{THERMAL if hot else 0:016x}"

    def cool(self, table: dict[str, list[str]]) -> None:
        """Set the fields to their values before the load."""
        table |= {name: list(values) for name, values in self.idle.items()}

    def count(self, table: dict[str, list[str]]) -> None:
        """Increase the counters of faulty GPUs, once per load."""
        for kind, field in (
            ("ecc", "ecc.errors.uncorrected.volatile.dram"),
            ("ecc", "ecc.errors.uncorrected.volatile.total"),
            ("replay", "q.replay"),
        ):
            for gpu, count in self.fault.get(kind, {}).items():
                row = table[field]
                row[int(gpu)] = str(int(row[int(gpu)]) + int(count))

    def xids(self) -> None:
        """Write Xids of faulty GPUs to the kernel log, once per load."""
        for gpu, number in self.fault.get("xid", {}).items():
            bus = self.buses[int(gpu)].rpartition(".")[0]
            line = f"[1903300.{self.done:06d}] NVRM: Xid (PCI:{bus}): {number}, pid='<unknown>', name=<unknown>\n"
            self.files.write("dmesg", self.files.read("dmesg") + line)


def dcgmi(files: NodeFiles, argv: list[str]) -> int:
    """Print the output of `dcgmi diag -r N -j` of DCGM 3 (styled text of jsoncpp); return 226 if a test fails."""
    if argv[:1] != ["diag"] or "-j" not in argv:
        sys.stderr.write("simulated dcgmi: only `diag -r LEVEL -j` is simulated\n")
        return 1
    sys.stderr.write("dcgmi: SIMULATED by the sandbox\n")
    fault = json.loads(files.read("burnin.json")).get("dcgm", {})
    level = int(argv[argv.index("-r") + 1]) if "-r" in argv else 1
    count = len(files.read("gpus").splitlines()[0].split("\t")) - 2
    software = (
        *("Denylist", "NVML Library", "CUDA Main Library", "Permissions and OS-related Blocks"),
        *("Persistence Mode", "Environmental Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom"),
    )
    categories = [
        {"category": "Deployment", "tests": [{"name": name, "results": [{"status": "Pass"}]} for name in software]}
    ]
    further = [("Integration", "PCIe"), ("Hardware", "GPU Memory")] if level > 1 else []
    further += [("Hardware", "Diagnostic"), ("Stress", "Targeted Stress")] if level > 2 else []
    for category, name in further or ([("Hardware", "GPU Memory")] if fault else []):
        results: list[dict[str, Any]] = []
        for gpu in range(count):
            warning = fault.get(str(gpu)) if name == "GPU Memory" else None
            result: dict[str, Any] = {"gpu_id": str(gpu), "status": "Fail" if warning else "Pass"}
            results.append({**result, **({"warnings": [{"error_id": 44, "warning": warning}]} if warning else {})})
        categories.append({"category": category, "tests": [{"name": name, "results": results}]})
    root = {"DCGM GPU Diagnostic": {"test_categories": categories, "version": "3.3.9"}}
    sys.stdout.write(json.dumps(root, indent="\t", separators=(",", " : ")) + "\n")
    return 226 if fault else 0


def main(argv: list[str]) -> int:
    """Run as `NODES BASE dcgmi ARGUMENTS`."""
    node = os.environ.get("SLURMD_NODENAME", "none")
    return dcgmi(NodeFiles(Path(argv[0]), Path(argv[1]), node), argv[3:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
