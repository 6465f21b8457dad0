"""Burn-in worker of one GPU. Python 3.6 and torch only.

torch has no public function for fp8 and int8 matrix products (SLF001).
"""

import contextlib
import functools
import os
import threading
import time
import types
from typing import Any, Callable, Dict, Iterator, List, Mapping

from pytest_gpucluster.kit.payloads.prelude import FewGpus, gpu_facts, no_device, text_of
from pytest_gpucluster.kit.payloads.tensor_bits import CHUNK, bits, digest_of
from pytest_gpucluster.suites.burnin.payload_process import MIB, reason_of

SIZES = {"fp64": 4096, "fp32": 8192, "tf32": 8192, "fp16": 8192, "bf16": 8192, "fp8": 8192, "int8": 8192}
RATES = ("gbs", "busbw")  # of loads that also run beside products, where they say nothing of a link


def mixed(torch: Any, device: Any, start: int, stop: int, seed: int) -> Any:
    """Return 16 pseudo-random bits for elements [start, stop), the same on every machine, as int64."""
    value = torch.arange(start, stop, device=device, dtype=torch.int64) + seed * 1000003
    value = (value * 2654435761) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 2246822519) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 3266489917) & 0xFFFFFFFF
    return (value ^ (value >> 16)) & 0xFFFF


class GpuWorker:
    """The worker of one GPU."""

    def __init__(self, index: int) -> None:
        import torch

        if not torch.cuda.is_available():
            shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
            why, code = no_device(torch)
            text = "torch %s finds no CUDA device: %s (CUDA_VISIBLE_DEVICES=%s)"
            raise FewGpus(text % (torch.__version__, why, shown), code)
        self.torch, self.index = torch, index
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        about = torch.cuda.get_device_properties(index)
        self.capability = torch.cuda.get_device_capability(index)
        self.integrated = bool(getattr(about, "is_integrated", False))  # its memory is the host's
        self.sms, known = about.multi_processor_count, gpu_facts(about)
        self.name, self.uuid = known["name"], known["uuid"]
        self.bus = known["bus"] and known["bus"] + ".0"
        # results are the same bit by bit only on equal hardware under equal libraries
        self.alike = "%s/%d/%s/%s" % (self.name, self.sms, torch.__version__, torch.version.cuda)
        torch.zeros(1, device=self.device)
        self.fire = None  # type: Any
        self.times = 1
        self.hottest = "bf16" if "bf16" in self.dtypes() else "fp16"  # until the agent has measured the power
        self.copier = None  # type: Any

    def about(self) -> Dict[str, Any]:
        """Return index, names and data types of the GPU, as the agent reports them."""
        return {
            "gpu": self.index, "uuid": self.uuid, "bus": self.bus, "name": self.name, "alike": self.alike,
            "dtypes": self.dtypes(),
        }  # fmt: skip

    def dtypes(self) -> List[str]:
        """Return the data types that this GPU and this torch can multiply."""
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
        if command.get("hottest") in self.dtypes() and command["hottest"] != self.hottest:
            self.hottest, self.fire = command["hottest"], None
        if load == "matmul":
            known = self.dtypes()
            dtypes = [dtype for dtype in command.get("dtypes") or SIZES if dtype in known]
            seconds = shares(float(command["seconds"]), dtypes, self.hottest)
            with contextlib.suppress(Exception):  # the load `copies` reports why they cannot begin
                self.copier = Copier(self) if command.get("copies") else None
            for dtype in dtypes:
                found = self.result_of(lambda dtype=dtype: self.matmul(dtype, command, seconds[dtype]))  # type: ignore[misc]
                yield dict(base, dtype=dtype, **found)
            if self.copier:
                copier, self.copier = self.copier, None
                yield dict(base, load="beside", **self.result_of(copier.result))
        else:
            run = self.hot if command.get("hot") else self.result_of
            yield dict(base, **run(lambda: getattr(self, load)(command)))

    def result_of(self, function: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        """Return the result of a function, or its exception as a problem; frees cached GPU memory."""
        try:
            found = function()
        except Exception as error:
            found = {"problem": reason_of(error)}
        try:
            self.torch.cuda.empty_cache()
        except Exception as error:
            found.setdefault("problem", reason_of(error))
        return found

    def hot(self, function: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        """Return the result of a load that runs on a stream of its own while the GPU multiplies, without its rate."""
        found = {}  # type: Dict[str, Any]

        def run() -> Dict[str, Any]:
            self.torch.cuda.set_device(self.device)  # each thread has its own
            with self.torch.cuda.stream(self.torch.cuda.Stream(self.device)):
                return function()

        thread = threading.Thread(target=lambda: found.update(self.result_of(run)), daemon=True)
        thread.start()
        while thread.is_alive() and self.burn():
            pass
        thread.join()
        return {key: value for key, value in found.items() if key not in RATES}

    def burn(self) -> bool:
        """Keep the GPU hot for a tenth of a second between two loads; return whether it can."""
        try:
            if self.fire is None:
                dtype = self.hottest
                self.fire = self.product(dtype, *(self.matrix(SIZES[dtype], dtype, it) for it in (1, 2)))
                self.times = max(1, min(1000, int(0.1 / max(self.clock(self.fire, 3) / 3, 1e-6))))
            self.clock(self.fire, self.times)
        except Exception:  # the next load reports what is wrong with the GPU
            return False
        return True

    # --- products of matrices

    def matrix(self, n: int, dtype: str, seed: int) -> Any:
        """Return an n x n matrix of the seed's values of 16 bits."""
        torch = self.torch
        names = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "fp64": "float64", "int8": "int8"}
        torch_type = getattr(torch, names.get(dtype, "float32"))
        flat = torch.empty(n * n, dtype=torch_type, device=self.device)
        for start in range(0, n * n, CHUNK):
            value = mixed(torch, self.device, start, min(start + CHUNK, n * n), seed)
            if dtype == "int8":
                part = ((value & 0xFF) - 128).to(torch.int8)
            else:
                part = ((value - 32768).to(torch.float64) / 32768).to(torch.float32).to(torch_type)
            flat[start : start + CHUNK].copy_(part)
        return flat.view(n, n)

    def product(self, dtype: str, a: Any, b: Any) -> Callable[[], Any]:
        """Return a function that multiplies the matrices once."""
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
            transposed = b.t()
            return lambda: torch._int_mm(a, transposed)
        out = torch.empty_like(a)
        return lambda: torch.matmul(a, b, out=out)

    def matmul(self, dtype: str, command: Mapping[str, Any], seconds: float) -> Dict[str, Any]:
        """Multiply the same seeded matrices repeatedly: timed batches, and products that are compared bit by bit."""
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
            if self.copier:
                self.copier.feed()
            timed += self.clock(multiply, batch)
            products += batch
            for _ in range(max(1, batch // 4)):
                wrong += (bits(torch, multiply()) != right).sum()
                checked += 1
            torch.cuda.synchronize(self.device)
        end = time.monotonic()
        return {
            "window": [begin, end], "checking": 1.0 - timed / (end - begin),
            "n": n, "key": "%s/%d/%d/%s" % (dtype, n, seed, self.alike), "hash": digest_of(torch, first),
            "wrong": int(wrong.item()), "checked": checked, "products": products + checked,
            "tflops": 2.0 * n**3 * products / timed / 1e12,
        }  # fmt: skip

    def clock(self, function: Callable[[], Any], times: int) -> float:
        """Return the seconds that `times` calls take on the GPU."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    # --- memory and copies

    def pattern(self, nbytes: int, seed: int) -> Any:
        """Return a pattern of `nbytes` bytes, as int32."""
        flat = self.torch.empty(nbytes // 4, dtype=self.torch.int32, device=self.device)
        for start in range(0, flat.numel(), CHUNK):
            stop = min(start + CHUNK, flat.numel())
            value = mixed(self.torch, self.device, start, stop, seed)
            flat[start:stop] = ((value * 65537) & 0x7FFFFFFF).to(self.torch.int32)
        return flat

    def repeat(self, function: Callable[[], Any], seconds: float, nbytes: float) -> float:
        """Return the rate in GB/s of a function that moves `nbytes` bytes, repeated for `seconds`."""
        function()
        self.torch.cuda.synchronize(self.device)
        times = max(1, min(500, int(0.1 / max(self.clock(function, 1), 1e-6))))
        taken, moved, begin = 0.0, 0.0, time.monotonic()
        while not moved or time.monotonic() - begin < seconds:
            taken += self.clock(function, times)
            moved += times * nbytes
        return moved / taken / 1e9

    def hbm(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """Copy within the GPU's memory: sum of read and write bandwidth; the copy must equal the pattern."""
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
        """Copy from the GPU to pinned host memory, then back; the result must equal the pattern."""
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
        """Copy to the partner's memory while the partner copies to this GPU's."""
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

    def gpu_memory(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """Write a pattern and its inverse over the free memory of the GPU and read both back."""
        torch, self.fire = self.torch, None
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(self.device)[0]
        unit = self.pattern(4 * CHUNK, int(command.get("seed", 0)))
        blocks = self.blocks(int((0.5 if self.integrated else 0.96) * free), unit.numel())
        wrong, first = 0, ""
        for flip in (0, -1):
            for index, block in enumerate(blocks):
                torch.bitwise_xor(unit, index ^ flip, out=block)
            sums = [(block != unit ^ (index ^ flip)).sum() for index, block in enumerate(blocks)]
            counts = torch.stack(sums)
            bad = [index for index, count in enumerate(counts.tolist()) if count]
            wrong += int(counts.sum().item())
            if bad and not first:
                first = where_wrong(torch, blocks[bad[0]], unit ^ (bad[0] ^ flip))
        nbytes = 4 * unit.numel() * len(blocks)
        return {"bytes": nbytes, "tested": nbytes / free, "wrong": wrong, "first": first}

    def blocks(self, nbytes: int, size: int) -> List[Any]:
        """Return blocks of `size` int32 that together have at most `nbytes` bytes, fewer if another process takes memory."""
        found = []  # type: List[Any]
        while 4 * size * (len(found) + 1) <= nbytes:
            try:
                found.append(self.torch.empty(size, dtype=self.torch.int32, device=self.device))
            except RuntimeError:  # out of memory
                break
        return found

    # --- changing load

    def idle(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """Leave the GPU alone, so that it cools down."""
        time.sleep(float(command["seconds"]))
        return {}

    def bursts(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """Multiply in the first half of each period of the clock, in step with all GPUs of all nodes; count the periods."""
        period, n = float(command["period"]), int(command.get("n") or 2048)
        multiply = self.product(self.hottest, *(self.matrix(n, self.hottest, it) for it in (1, 2)))
        self.clock(multiply, 3)
        times = max(1, int(period / 50 / max(self.clock(multiply, 10) / 10, 1e-6)))
        seen, end = set(), time.monotonic() + float(command["seconds"])
        while time.monotonic() < end:
            now = time.time()
            if now % period < period / 2:
                seen.add(now // period)
                self.clock(multiply, times)
            else:
                time.sleep(max(0.0, period - time.time() % period))
        return {"bursts": len(seen)}

    # --- NCCL

    def nccl(self, command: Mapping[str, Any]) -> Dict[str, Any]:
        """Run an all-reduce over a group of nodes in a new communicator: exact sums, bus bandwidth in GB/s."""
        import datetime as dt

        import torch.distributed

        rank, size = int(command["first"]) + self.index, int(command["size"])
        if size < 2:  # a pair
            return {"skip": "one GPU alone has nothing to reduce with"}
        payload = collective()
        context = types.SimpleNamespace(local=self.index)
        device = payload.CudaDevice(self.torch, context)
        store = torch.distributed.TCPStore(
            command["address"], int(command["port"]), None, rank == 0, dt.timedelta(seconds=60),
            wait_for_workers=False,
        )  # fmt: skip
        self.store = store  # lives until the next group: slower ranks may still read it
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


def shares(seconds: float, dtypes: List[str], hottest: str) -> Dict[str, float]:
    """Return the seconds of each data type: half of the time for the one that draws the most power."""
    others = len(dtypes) - (hottest in dtypes)
    one = seconds / 2 / others if others and hottest in dtypes else seconds / max(1, len(dtypes))
    return {dtype: seconds / 2 if dtype == hottest and others else one for dtype in dtypes}


def where_wrong(torch: Any, block: Any, right: Any) -> str:
    """Return address and words of the first wrong word of a block, which is read a second time."""
    wrong_words = torch.nonzero(block != right)
    if not wrong_words.numel():
        return "right when it was read a second time"
    at = int(wrong_words[0].item())
    read, expected = int(block[at].item()) & 0xFFFFFFFF, int(right[at].item()) & 0xFFFFFFFF
    return "at address 0x%x: read 0x%08x, expected 0x%08x" % (block.data_ptr() + 4 * at, read, expected)


class Copier:
    """Copies between the GPU and pinned host memory on a stream of its own, while the GPU multiplies."""

    SIZE = 64 * MIB

    def __init__(self, worker: "GpuWorker") -> None:
        torch = worker.torch
        self.worker, self.stream = worker, torch.cuda.Stream(worker.device)
        self.source = worker.pattern(self.SIZE, 1)
        self.host = torch.empty(self.source.numel(), dtype=self.source.dtype, pin_memory=True)
        self.back = torch.zeros_like(self.source)
        torch.cuda.synchronize(worker.device)
        begin = time.monotonic()
        self.done = self.queue(1)
        self.done.synchronize()
        self.times = max(1, min(200, int(0.1 / max(time.monotonic() - begin, 1e-4))))

    def queue(self, times: int) -> Any:
        """Queue copies to the host and back; return the event of their end."""
        torch = self.worker.torch
        with torch.cuda.stream(self.stream):
            for _ in range(times):
                self.host.copy_(self.source, non_blocking=True)
                self.back.copy_(self.host, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self.stream)
        return done

    def feed(self) -> None:
        """Queue copies for a tenth of a second if the last ones have ended."""
        if self.done.query():
            self.done = self.queue(self.times)

    def result(self) -> Dict[str, Any]:
        """Return the number of words that came back changed."""
        self.done.synchronize()
        return {"wrong": int((self.back != self.source).sum().item())}


@functools.lru_cache(None)
def collective() -> Any:
    """Return the payload of the nccl suite as a module: its collectives and their validation."""
    module = types.ModuleType("collective")
    exec(compile(text_of("kit/payloads/collective.py"), "collective.py", "exec"), module.__dict__)
    return module


def allow_tf32(torch: Any, allowed: bool) -> None:
    """Set whether products of float32 use TF32; torch 2.9 renamed the setting."""
    try:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    except Exception:
        torch.set_float32_matmul_precision("high" if allowed else "highest")
