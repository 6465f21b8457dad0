"""Burn-in worker of a node's CPUs, memory and storage. Python 3.6 and the standard library only."""

import contextlib
import hashlib
import json
import math
import mmap
import os
import secrets
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, Mapping

from pytest_gpucluster.kit.payloads.perftest import PerftestNode, absent_tools
from pytest_gpucluster.suites.burnin.payload_process import MIB, die_with_parent, reason_of

RDMA_SLACK = 20.0  # seconds beyond the time of a transfer after which it hangs


def spread(count: int, function: Callable[[int], Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return the results of `count` forked processes that run a function at the same time."""
    children = []
    for index in range(count):
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(out)
            try:
                die_with_parent()
                os.nice(10)  # the workers of the GPUs have priority
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
    """Return pseudo-random bytes of a seed, the same on every machine."""
    block = b"".join(hashlib.sha512(b"%d/%d" % (seed, part)).digest() for part in range(4096))
    return (block * (size // len(block) + 1))[:size]


def cpu_unit(seed: int) -> str:
    """Return the digest of a fixed computation in integers, vectors and IEEE arithmetic.

    It uses only operations with one correct result on every CPU: no sine, whose last bit depends on the library.
    """
    block = random_block(seed, MIB)
    packed = zlib.compress(block[: MIB // 8], 6)
    digest = hashlib.sha256(zlib.decompress(packed))
    digest.update(hashlib.sha512(block).digest() + hashlib.md5(block).digest())
    value, total = float(seed + 1), 0.0
    for step in range(1, 20000):
        value = math.sqrt(value * value + step) / (1.0 + 1.0 / step)
        total += value
    digest.update(repr(total).encode())
    digest.update(str(pow(3 + seed, 4001, (1 << 521) - 1)).encode())
    return digest.hexdigest()


def burn_cpu(seconds: float, seed: int) -> Dict[str, Any]:
    """Repeat `cpu_unit`: `units`, `rate` in units/s, `wrong` repetitions with another digest than the first."""
    begin, right, units, wrong = time.monotonic(), cpu_unit(seed), 1, 0
    while time.monotonic() - begin < seconds:
        wrong += cpu_unit(seed) != right
        units += 1
    return {"units": units, "rate": units / (time.monotonic() - begin), "wrong": wrong, "hash": right}


def burn_memory(seconds: float, seed: int, size: int) -> Dict[str, Any]:
    """Write patterns over `size` bytes and read them back, at least once each, for `seconds`; rate in GB/s.

    Fewer bytes if the patterns do not fit into the time (a host may have terabytes); `bytes` is the number used.
    """
    size = max(MIB, size // MIB * MIB)
    view = memoryview(mmap.mmap(-1, size))  # unlike a bytearray it takes no page before it is written
    random = random_block(seed, MIB)
    patterns = [random, bytes(255 - byte for byte in random), b"\x55" * MIB, b"\xaa" * MIB]
    begin, moved, wrong, first, turn = time.monotonic(), 0, 0, None, 0
    # all patterns are written and read within the time; the first pass is the slowest, as it allocates the pages
    share = seconds / (2 * len(patterns))
    while turn < len(patterns) or time.monotonic() - begin < seconds:
        pattern = patterns[turn % len(patterns)]
        for at in range(0, size, MIB):
            if not turn and at and time.monotonic() - begin > share:
                size = at
                break
            view[at : at + MIB] = pattern
        for at in range(0, size, MIB):
            if memory_block(view, at) != pattern:
                wrong += 1
                first = at if first is None else first
        moved += 2 * size
        turn += 1
    rate = moved / (time.monotonic() - begin) / 1e9
    return {"bytes": size, "passes": turn, "rate": rate, "wrong": wrong, "first": first}


def memory_block(view: memoryview, at: int) -> memoryview:
    """Return the block of 1 MiB at an offset; a function, so that a simulated fault can replace it."""
    return view[at : at + MIB]


def read_block(handle: int, size: int) -> bytes:
    """Return the next `size` bytes of a file, fewer at its end."""
    parts, left = [], size
    while left:
        part = os.read(handle, left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def burn_storage(folder: str, size: int, seconds: float, seed: int) -> Dict[str, Any]:
    """Write a file of at most `size` bytes, sync it, drop it from the cache, read it back and compare; rates in GB/s.

    The file is unlinked before data are written, so that none is left if this process is killed.
    """
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < 2 * size:
        need = "%s has %d MiB free, twice %d MiB are needed" % (folder, free // MIB, size // MIB)
        return {"lacks": need + ": free some, or set burnin.storage"}
    name, parent = "gpucluster-" + secrets.token_hex(8), os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=parent)  # follows no link
        os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)
    try:
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


def burn_rdma(command: Mapping[str, Any], seconds: float) -> Dict[str, Any]:
    """Send data to the partner over all rails at once, and receive as long; rate in GB/s of the slowest rail that sends."""
    absent = absent_tools()
    if absent:
        lacks = "not installed: %s: install perftest, or leave rdma out of burnin.loads"
        return {"lacks": lacks % ", ".join(absent)}
    found = []  # type: List[Dict[str, Any]]
    plan = {"nodes": command["nodes"], "gid": command["gid"], "limit": seconds + RDMA_SLACK}
    plan["seconds"] = max(1, int(seconds / 2))
    node = PerftestNode(plan, lambda _, **facts: found.append(facts))
    with contextlib.closing(node.meeting):
        node.slot(0, node.rails, ["write", "send"], command["members"])
    problems = [str(one["problem"]) for one in found if "problem" in one]
    return {"problem": problems[0]} if problems else {"rate": min(one["bandwidth"] for one in found)}


class HostWorker:
    """The worker of CPUs, memory, storage and adapters."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        spare = options.get("gpus") or 0
        cores = len(os.sched_getaffinity(0))
        self.cpus = max(1, cores - spare)
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file if ":" in line)
        # a quarter of what is available, in bytes
        self.memory = min(64 << 30, int(rows["MemAvailable"].split()[0]) * 1024 // 4)

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
        elif load == "rdma":
            yield dict(burn_rdma(command, seconds), load=load)
        elif load == "storage":
            folder, size = self.options.get("storage"), int(self.options.get("storage_bytes") or 0)
            if not folder or not size:
                yield {"load": load, "skip": "burnin.storage of the cluster file names no folder"}
            else:
                yield dict(burn_storage(folder, size, seconds, seed), load=load)
