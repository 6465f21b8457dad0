"""Collectives on torch.distributed: their buffers, data and checks. A shared part of payloads; Python 3.6."""

import math
from typing import Any, Callable, Tuple

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
SUMS = ("all_reduce", "reduce_scatter")
TYPES = {  # names of nccl-tests: torch dtype, bytes
    "float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2), "bfloat16": ("bfloat16", 2),
    "int32": ("int32", 4), "int64": ("int64", 8), "int8": ("int8", 1), "uint8": ("uint8", 1),
}  # fmt: skip
SPREAD = ("all_gather", "reduce_scatter", "alltoall")
# ranks whose sum of values up to 3 a type represents exactly; the others add zeros to the checked data
EXACT_RANKS = {"bfloat16": 85, "half": 682}
PERIOD, POISON = 31, 119
CHUNK = 1 << 24  # elements checked at once: a check of 16 GiB must not need another 16 GiB


def busbw_factor(collective: str, size: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as defined in doc/PERFORMANCE.md of nccl-tests."""
    if collective == "all_reduce":
        return 2.0 * (size - 1) / size
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        return float(size - 1) / size
    return 1.0


class BufferSizes:
    """Element counts as in nccl-tests: `count` and `nbytes` are columns of the table."""

    def __init__(self, collective: str, nbytes: int, width: int, size: int) -> None:
        spread = collective in SPREAD
        aligned = 16 // width  # nccl-tests rounds each rank's part down to 16 bytes
        self.count = nbytes // width // size // aligned * aligned if spread else nbytes // width
        total = self.count * (size if spread else 1)
        self.send = self.count if collective == "all_gather" else total
        self.receive = self.count if collective == "reduce_scatter" else total
        self.nbytes = total * width


def data(torch: Any, device: Any, span: Tuple[int, int], rank: int, seed: int) -> Any:
    """Return elements [start, stop) of one rank's data: 0 to 3, from rank, element and seed."""
    index = torch.arange(span[0], span[1], device=device, dtype=torch.int64)
    return (index * 7 + (index >> 8) + rank * 13 + seed * 5) % PERIOD % 4


def summed(torch: Any, device: Any, span: Tuple[int, int], ranks: int, seed: int) -> Any:
    """Return the sum of the data of these ranks; rank and rank + PERIOD have the same data."""
    total = torch.zeros(span[1] - span[0], device=device, dtype=torch.int64)
    for rank in range(min(ranks, PERIOD)):
        total += data(torch, device, span, rank, seed) * ((ranks - rank + PERIOD - 1) // PERIOD)
    return total


class Collective:
    """One collective at one size and type on the current process group: buffers, call, expected values."""

    def __init__(self, torch: Any, device: Any, collective: str, nbytes: int, dtype: str, rank: int, size: int) -> None:
        self.torch, self.dist, self.device, self.collective = torch, torch.distributed, device, collective
        self.dtype, self.rank, self.size = getattr(torch, TYPES[dtype][0]), rank, size
        self.shape = BufferSizes(collective, nbytes, TYPES[dtype][1], size)
        self.exact = min(size, EXACT_RANKS.get(dtype, size)) if collective in SUMS else size
        self.source = torch.empty(self.shape.send, dtype=self.dtype, device=device.device)
        self.target = torch.empty(self.shape.receive, dtype=self.dtype, device=device.device)

    def buffers(self, in_place: bool) -> Tuple[Any, Any]:
        """Return (source, target) of the call; in place one is a part of the other."""
        mine = slice(self.rank * self.shape.count, (self.rank + 1) * self.shape.count)
        if not in_place:
            return self.source, self.target
        if self.collective == "all_gather":
            return self.target[mine], self.target
        if self.collective == "reduce_scatter":
            return self.source, self.source[mine]
        return self.target, self.target

    def fill(self, seed: int, in_place: bool) -> None:
        """Poison the target, then write new data into the source."""
        self.target.fill_(POISON)
        source = self.buffers(in_place)[0]
        if self.rank >= self.exact:
            source.zero_()
            return
        for start in range(0, source.numel(), CHUNK):
            stop = min(start + CHUNK, source.numel())
            source[start:stop] = data(self.torch, self.device.device, (start, stop), self.rank, seed)

    def call(self, in_place: bool) -> Callable[[], Any]:
        """Return the function that runs the collective once.

        torch's all_reduce and broadcast are always in place: out of place the data is copied beforehand.
        """
        dist = self.dist
        source, target = self.buffers(in_place)
        if self.collective == "all_reduce":
            if not in_place:
                target.copy_(source)
            return lambda: dist.all_reduce(target)
        if self.collective == "broadcast":
            if not in_place and self.rank == 0:
                target.copy_(source)
            return lambda: dist.broadcast(target, 0)
        if self.collective == "all_gather":
            gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
            return lambda: gather(target, source)
        if self.collective == "reduce_scatter":
            scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
            return lambda: scatter(target, source)
        if self.collective == "alltoall":
            return lambda: dist.all_to_all_single(target, source)
        return lambda: self.exchange(source, target)

    def exchange(self, source: Any, target: Any) -> None:
        """Send to the next rank and receive from the previous one."""
        ahead, behind = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        if ahead == self.rank:
            target.copy_(source)
            return
        transfers = [self.dist.P2POp(self.dist.isend, source, ahead), self.dist.P2POp(self.dist.irecv, target, behind)]
        for work in self.dist.batch_isend_irecv(transfers):
            work.wait()

    def expected(self, start: int, stop: int, seed: int) -> Any:
        """Return elements [start, stop) of the correct result on this rank."""
        torch, device, count = self.torch, self.device.device, self.shape.count
        if self.collective == "all_reduce":
            return summed(torch, device, (start, stop), self.exact, seed)
        if self.collective == "reduce_scatter":
            mine = self.rank * count
            return summed(torch, device, (mine + start, mine + stop), self.exact, seed)
        if self.collective in ("broadcast", "sendrecv"):
            origin = 0 if self.collective == "broadcast" else (self.rank - 1) % self.size
            return data(torch, device, (start, stop), origin, seed)
        shift = self.rank * count if self.collective == "alltoall" else 0
        parts = []
        for origin in range(start // count, (stop - 1) // count + 1):  # the part of each rank
            begin, end = max(start - origin * count, 0), min(stop - origin * count, count)
            parts.append(data(torch, device, (shift + begin, shift + end), origin, seed))
        return torch.cat(parts)

    def wrong(self, in_place: bool, seed: int) -> int:
        """Return the number of wrong elements in this rank's result."""
        result, count = self.buffers(in_place)[1], 0
        for start in range(0, result.numel(), CHUNK):
            stop = min(start + CHUNK, result.numel())
            right = self.expected(start, stop, seed).to(self.dtype)
            count += int((result[start:stop] != right).sum().item())
        return count

    def check(self, in_place: bool, seed: int) -> int:
        """Run once on new data; return the number of wrong elements over all ranks."""
        self.fill(seed, in_place)
        run = self.call(in_place)
        self.device.synchronize()
        run()
        self.device.synchronize()
        return int(self.total(self.wrong(in_place, seed)))

    def total(self, value: float) -> float:
        """Return the sum of a number over all ranks; also a barrier."""
        number = self.torch.tensor([value], dtype=self.torch.float64, device=self.device.device)
        self.dist.all_reduce(number)
        return float(number.item())

    def measure(self, in_place: bool, warmup: int, iterations: int, patience: float = math.inf) -> float:
        """Return seconds per iteration, the mean over the ranks (nccl-tests -a 1).

        There are fewer iterations if all would take longer than `patience` seconds.
        """
        self.source.zero_()  # sums of zeros stay zero however often they are repeated
        self.target.zero_()
        run = self.call(in_place)
        if patience < math.inf:
            run()  # the first call connects
            self.device.synchronize()
            # the mean over all ranks, so that all of them choose the same number
            once = self.total(self.device.time(run, 1)) / self.size
            if once * (warmup + iterations) > patience:
                warmup, iterations = 0, int(patience / once)
                if not iterations:
                    return once
        for _ in range(warmup):
            run()
        self.device.synchronize()
        self.total(0)
        return self.total(self.device.time(run, iterations)) / self.size
