"""The burn-in on a simulated node: a worker that replaces those of the GPUs, and dcgmi.

The sandbox copies this file and the real payload into its state folder. SIMULATED: rates come from the hardware model
and the node's faults; counters, temperatures and the kernel log change in the files of the simulated nvidia-smi and
dmesg. The worker of the host is the payload's own and loads this machine; a fault of memory or storage changes the
data that it reads back. Uses only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class SimulatedGpus:
    """All GPUs of the node as one worker."""

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

    def about(self) -> list[dict[str, Any]]:
        """Return the facts of the GPUs."""
        return [
            {
                "gpu": index,
                "uuid": uuid,
                "bus": self.buses[index],
                "name": self.names[index],
                "alike": "simulated",
                "dtypes": list(self.load["tflops"]),
                "simulated": True,
            }
            for index, uuid in enumerate(self.uuids)
        ]

    def of(self, kind: str, gpu: int, healthy: float = 1.0) -> float:
        """Return the value of a fault for a GPU, `healthy` without one."""
        return float(self.fault.get(kind, {}).get(str(gpu), healthy))

    def rate(self, healthy: float, factor: float = 1.0) -> float:
        """Return a rate with a little noise."""
        return healthy * factor * self.noise.lognormvariate(0.0, NOISE)

    def loads(self, command: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the results of a load after its time."""
        load, seconds = command["load"], float(command["seconds"])
        self.fault = json.loads(self.files.read("burnin.json"))
        if load != "idle":
            self.files.change(self.heat)
        time.sleep(seconds)
        self.files.change(self.count)
        self.xids()
        self.files.change(self.cool)
        self.done += 1
        if self.fault.get("die_after") and self.done >= self.fault["die_after"]:
            os.kill(os.getppid(), signal.SIGKILL)  # the agent, and with it the node's task
        for gpu, uuid in enumerate(self.uuids):
            base = {"load": load, "gpu": gpu, "uuid": uuid, "simulated": True}
            for found in self.results(load, gpu, command):
                yield {**base, **found}

    def results(self, load: str, gpu: int, command: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the results of one GPU."""
        if load == "matmul":
            for dtype in filter(self.load["tflops"].get, command["dtypes"]):
                key = f"{dtype}/8192/{command['seed']}/simulated"
                corruption = str(self.of("corrupt", gpu, 0.0)) if self.of("corrupt", gpu, 0.0) else ""
                yield {
                    "dtype": dtype,
                    "key": key,
                    "hash": hashlib.sha256((key + corruption).encode()).hexdigest()[:32],
                    "wrong": 0,
                    "checked": 100,
                    "tflops": self.rate(self.load["tflops"][dtype], self.of("slow", gpu)),
                }
        elif load == "gpu_memory":
            wrong = int(self.of("bits", gpu, 0.0))
            first = "at address 0x7f2c40000000: read 0x00000004, expected 0x00000000" if wrong else ""
            yield {"bytes": 1, "tested": 0.95, "wrong": wrong, "first": first}
        elif load in ("idle", "bursts"):
            yield {}
        elif load == "hbm":
            yield {"gbs": self.rate(self.load["hbm"], self.of("hbm", gpu)), "wrong": 0}
        elif load == "copies":
            yield {"h2d": self.rate(self.load["pcie"]), "d2h": self.rate(self.load["pcie"]), "wrong": 0}
        elif load == "peer":
            partner = dict(map(tuple, command["pairs"])).get(gpu)
            yield (
                {"gbs": self.rate(self.load["peer"]), "partner": partner, "wrong": 0}
                if partner is not None
                else {"skip": "no partner in this round"}
            )
        elif load == "nccl":
            rank, size = command["first"] + gpu, command["size"]
            if size < 2:  # a pair
                yield {"skip": "one GPU alone has nothing to reduce with"}
                return
            wrong = self.network["wrong"]
            yield {
                "members": command["members"],
                "rank": rank,
                "wrong": wrong,
                "ranks": size,
                "busbw": self.rate(self.load["busbw"], self.network["speed"]),
            }

    def heat(self, table: dict[str, list[str]]) -> None:
        """Set the fields of the GPUs to their values under load."""
        self.idle = self.idle or {name: list(table[name]) for name in _LOAD_FIELDS}
        for gpu in range(len(self.uuids)):
            hot = self.of("hot", gpu, 0.0)
            table["temperature.gpu"][gpu] = f"{hot or self.load['celsius'] + gpu % 4:.0f}"
            table["power.draw"][gpu] = f"{self.load['watts'] * self.of('weak', gpu) - gpu * 0.1:.2f}"
            table["clocks.current.sm"][gpu] = (
                f"{self.load['mhz'] * (0.5 if hot else self.of('slow', gpu)):.0f}"
            )
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


def payload_of(base: Path) -> types.ModuleType:
    """Return the real payload as a module."""
    module = types.ModuleType("burnin")
    exec(compile((base / "burnin_payload.py").read_text(), "burnin.py", "exec"), module.__dict__)
    return module


def host(payload: Any, files: NodeFiles, options: dict[str, Any]) -> None:
    """Run the payload's own worker of the host, with faults in the data that it reads back."""
    fault = json.loads(files.read("burnin.json"))
    if fault.get("storage"):
        real_read = payload.read_block
        payload.read_block = lambda handle, size: _flipped(real_read(handle, size))
    if fault.get("memory"):
        real_block = payload.memory_block
        payload.memory_block = lambda view, at: _flipped(bytes(real_block(view, at)))
    payload.say(ready=[])
    payload.serve(payload.HostWorker(options))


def _flipped(data: bytes) -> bytes:
    """Return data with one bit changed."""
    return data[:100] + bytes([data[100] ^ 4]) + data[101:]


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
        *(
            "Persistence Mode",
            "Environmental Variables",
            "Page Retirement/Row Remap",
            "Graphics Processes",
            "Inforom",
        ),
    )
    categories = [
        {
            "category": "Deployment",
            "tests": [{"name": name, "results": [{"status": "Pass"}]} for name in software],
        }
    ]
    further = [("Integration", "PCIe"), ("Hardware", "GPU Memory")] if level > 1 else []
    further += [("Hardware", "Diagnostic"), ("Stress", "Targeted Stress")] if level > 2 else []
    for category, name in further or ([("Hardware", "GPU Memory")] if fault else []):
        results: list[dict[str, Any]] = []
        for gpu in range(count):
            warning = fault.get(str(gpu)) if name == "GPU Memory" else None
            result: dict[str, Any] = {"gpu_id": str(gpu), "status": "Fail" if warning else "Pass"}
            results.append(
                {**result, **({"warnings": [{"error_id": 44, "warning": warning}]} if warning else {})}
            )
        categories.append({"category": category, "tests": [{"name": name, "results": results}]})
    root = {"DCGM GPU Diagnostic": {"test_categories": categories, "version": "3.3.9"}}
    sys.stdout.write(json.dumps(root, indent="\t", separators=(",", " : ")) + "\n")
    return 226 if fault else 0


def main(argv: list[str]) -> int:
    """Run as `NODES BASE gpu all OPTIONS`, `... host OPTIONS` or `... dcgmi ARGUMENTS`."""
    node = os.environ.get("SLURMD_NODENAME", "none")
    files, base = NodeFiles(Path(argv[0]), Path(argv[1]), node), Path(argv[1])
    if argv[2] == "dcgmi":
        return dcgmi(files, argv[3:])
    payload: Any = payload_of(base)
    options = json.loads(argv[-1])
    if argv[2] == "host":
        host(payload, files, options)
        return 0
    visible = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    worker = SimulatedGpus(files, node, len(visible) or int(options.get("gpus") or 0))
    payload.say(ready=worker.about())
    payload.serve(worker)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
