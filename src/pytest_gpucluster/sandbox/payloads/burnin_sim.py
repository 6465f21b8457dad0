"""The burn-in on a simulated node: a worker that replaces those of the GPUs.

It is copied into the sandbox's state folder, beside gpu_load.py of the sandbox and the real payload. The worker of the
host is the payload's own and loads this machine; a fault of memory or storage changes the data that it reads back.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm_sandbox.gpu_load import LoadedGpus, NodeFiles
else:
    sys.path.insert(0, str(Path(__file__).parent))
    from gpu_load import LoadedGpus, NodeFiles


HOST_RATES = {"rate", "read", "write"}


class SimulatedGpus(LoadedGpus):
    """All GPUs of the node as one worker."""

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


def payload_of(base: Path) -> types.ModuleType:
    """Return the real payload as a module."""
    module = types.ModuleType("burnin")
    exec(compile((base / "burnin_payload.py").read_text(), "burnin.py", "exec"), module.__dict__)
    return module


class SharedHost:
    """The payload's own worker of the host with a small real load; its rates are those of no node: all share a machine."""

    def __init__(self, payload: Any, options: dict[str, Any]) -> None:
        self.worker = payload.HostWorker({**options, "storage_bytes": 16 << 20})
        self.worker.cpus, self.worker.memory = 1, 32 << 20

    def loads(self, command: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the results of a load with the same rates on all nodes."""
        for found in self.worker.loads(command):
            yield found | dict.fromkeys(found.keys() & HOST_RATES, 1.0)


def host(payload: Any, files: NodeFiles, options: dict[str, Any]) -> None:
    """Run the worker of the host, with faults in the data that it reads back."""
    fault = json.loads(files.read("burnin.json"))
    if fault.get("storage"):
        real_read = payload.read_block
        payload.read_block = lambda handle, size: _flipped(real_read(handle, size))
    if fault.get("memory"):
        real_block = payload.memory_block
        payload.memory_block = lambda view, at: _flipped(bytes(real_block(view, at)))
    payload.print_json(ready=[])
    payload.serve(SharedHost(payload, options))


def _flipped(data: bytes) -> bytes:
    """Return data with one bit changed."""
    return data[:100] + bytes([data[100] ^ 4]) + data[101:]


def main(argv: list[str]) -> int:
    """Run as `NODES BASE gpu all OPTIONS` or `... host OPTIONS`."""
    node = os.environ.get("SLURMD_NODENAME", "none")
    files, base = NodeFiles(Path(argv[0]), Path(argv[1]), node), Path(argv[1])
    payload: Any = payload_of(base)
    options = json.loads(argv[-1])
    if argv[2] == "host":
        host(payload, files, options)
        return 0
    visible = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    worker = SimulatedGpus(files, node, len(visible) or int(options.get("gpus") or 0))
    payload.print_json(ready=worker.about())
    payload.serve(worker)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
