# A broken library may do anything (BLE001), Python 3.6 has no strict zip (B905).
"""NCCL's three classic programs, by ctypes on libnccl and the driver: no torch, no compiler, no MPI.

    srun --ntasks-per-node=1 --gres=gpu:8      python3 -c SOURCE one-process     ncclCommInitAll
    srun --ntasks-per-node=8 --gpus-per-task=1 python3 -c SOURCE one-device      ncclCommInitRank
    srun --ntasks-per-node=1 --gres=gpu:8      python3 -c SOURCE many-devices    ncclCommInitRank in a group

SOURCE: `payload_step.sent`. Each sums data of which the sum is known and checks every element of every device. Task 0
gives the unique id to the others over a socket. Libraries: libcuda.so.1 of the driver; libnccl.so.2 from NCCL_HOME, the
loader's path, or the python's nvidia-nccl package (torch brings it). Each fact is one line of JSON that starts with
{"nccl_examples": . Exit codes: 0 done, 1 failed, 2 no libnccl, 4 deadline, 7 wrong data.
"""

import argparse
import array
import ctypes
import os
import sys
import time
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, Optional, Sequence

from pytest_gpucluster.kit.payloads.prelude import (
    Failure,
    Watch,
    end_when_stuck,
    error_text,
    exit_now,
    own_port,
    reporter,
)

EXIT_FAILED, EXIT_NO_LIBRARY, EXIT_WRONG = 1, 2, 7
FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t
PERIOD = 31  # elements so far apart hold the same data
POISON = -1.0
LONG_VERSION = 10000  # from 2.9 on 22809 is 2.28.9; before, 2804 was 2.8.4
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES

report = reporter("nccl_examples")


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which goes by value."""

    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


class Library:
    """A C library whose calls raise RuntimeError where they do not return 0."""

    def __init__(self, lib: Any) -> None:
        self.lib, self.where = lib, ""

    def call(self, name: str, *args: Any) -> None:
        """Call a function by its name."""
        code = getattr(self.lib, name)(*args)
        if code != 0:
            words = name.replace("_v2", "") + self.where, self.text_of(code), code
            raise RuntimeError("%s: %s (%d)" % words)

    def make(self, name: str, kind: Any, *args: Any) -> Any:
        """Return what a function writes to its first argument."""
        made = kind()
        self.call(name, ctypes.byref(made), *args)
        return made

    def text_of(self, code: int) -> str:
        """Return the library's words for an error."""
        raise NotImplementedError


class Cuda(Library):
    """The driver's API."""

    def __init__(self) -> None:
        super().__init__(ctypes.CDLL("libcuda.so.1"))
        self.call("cuInit", 0)
        count = self.make("cuDeviceGetCount", ctypes.c_int).value
        self.devices = [self.make("cuDeviceGet", ctypes.c_int, index) for index in range(count)]

    def text_of(self, code: int) -> str:
        """Return the driver's words."""
        text = ctypes.c_char_p()
        self.lib.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown").decode()

    def bus(self, index: int) -> str:
        """Return the PCI address, which no two devices of a host share."""
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, 32, self.devices[index])
        return text.value.decode().lower()


class Nccl(Library):
    """NCCL's API; Failure where neither the loader nor the python has libnccl."""

    def __init__(self) -> None:
        home, complaint = os.environ.get("NCCL_HOME"), ""
        names = [str(Path(home) / "lib" / "libnccl.so.2")] if home else []
        packages = (Path(folder) for folder in sys.path if folder.endswith("-packages"))
        found = [
            str(path) for folder in packages for path in sorted(folder.glob("nvidia/*/lib/libnccl.so.2"))
        ]
        for name in (*names, "libnccl.so.2", *found, "libnccl.so"):
            try:
                super().__init__(ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL))
                break
            except OSError as error:
                complaint = complaint or str(error)
        else:
            raise Failure(EXIT_NO_LIBRARY, complaint)
        self.lib.ncclGetErrorString.restype = ctypes.c_char_p
        self.lib.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        version = self.make("ncclGetVersion", ctypes.c_int).value
        major, rest = divmod(version, 10000 if version >= LONG_VERSION else 1000)
        self.version = "%d.%d.%d" % (major, rest // 100, rest % 100)

    def text_of(self, code: int) -> str:
        """Return NCCL's words, and its last error where it has one."""
        text = (self.lib.ncclGetErrorString(code) or b"unknown").decode()
        if hasattr(self.lib, "ncclGetLastError"):
            self.lib.ncclGetLastError.restype = ctypes.c_char_p
            last = (self.lib.ncclGetLastError(None) or b"").decode().strip().splitlines()
            text += "".join(": " + line for line in last[:1])
        return text


def repeated(values: Sequence[int], count: int) -> bytes:
    """Return floats that repeat."""
    return (array.array("f", values).tobytes() * (count // PERIOD + 1))[: 4 * count]


def data(rank: int, count: int) -> bytes:
    """Return one rank's floats: element i is (7 i + 13 rank) mod 31."""
    return repeated([(7 * i + 13 * rank) % PERIOD for i in range(PERIOD)], count)


def summed(size: int, count: int) -> bytes:
    """Return the sum over all ranks; exact in float up to half a million ranks."""
    return repeated([sum((7 * i + 13 * rank) % PERIOD for rank in range(size)) for i in range(PERIOD)], count)


def wrong_elements(got: bytes, expected: bytes) -> int:
    """Count the floats that differ."""
    pairs = zip(memoryview(got).cast("f"), memoryview(expected).cast("f"))
    return 0 if got == expected else sum(one != other for one, other in pairs)


class Part:
    """One device of this process: context, buffers, stream, communicator, rank."""

    def __init__(self, cuda: Cuda, index: int, count: int, rank: int) -> None:
        self.cuda, self.rank, self.comm, self.where = cuda, rank, ctypes.c_void_p(), " on device %d" % index
        # the primary context: the one that NCCL's CUDA runtime uses, too
        self.context = cuda.make("cuDevicePrimaryCtxRetain", ctypes.c_void_p, cuda.devices[index])
        self.bytes = ctypes.c_size_t(4 * count)
        self.use()
        self.source, self.target = (cuda.make("cuMemAlloc_v2", ctypes.c_uint64, self.bytes) for _ in range(2))
        self.stream = cuda.make("cuStreamCreate", ctypes.c_void_p, 0)
        cuda.call("cuMemcpyHtoD_v2", self.source, data(rank, count), self.bytes)
        cuda.call("cuMemcpyHtoD_v2", self.target, array.array("f", [POISON]).tobytes() * count, self.bytes)

    def use(self) -> None:
        """Make the device current."""
        self.cuda.where = self.where
        self.cuda.call("cuCtxSetCurrent", self.context)

    def result(self) -> bytes:
        """Wait for the stream and return what lies in the target."""
        self.use()
        self.cuda.call("cuStreamSynchronize", self.stream)
        content = ctypes.create_string_buffer(self.bytes.value)
        self.cuda.call("cuMemcpyDtoH_v2", content, self.target, self.bytes)
        return content.raw


def share(port: int, unique: bytes, others: int) -> None:
    """Give the unique id to all other tasks."""
    with Listener(("", port), backlog=min(max(others, 1), 1024)) as server:
        for _ in range(others):
            with server.accept() as peer:
                peer.send_bytes(unique)


def fetch(address: str, port: int) -> bytes:
    """Get the unique id from task 0, which may come up later: the deadline of the phase ends the wait."""
    while True:
        try:
            with Client((address, port)) as peer:
                return peer.recv_bytes(ID_BYTES)
        except (OSError, EOFError):
            time.sleep(0.1)


def communicate(args: argparse.Namespace, nccl: Nccl, parts: Sequence[Part], size: int, watch: Watch) -> None:
    """Make the communicators as the program does."""
    count, first = len(parts), parts[0].rank == 0
    if args.program == "one-process":
        devices = (ctypes.c_int * count)(*range(count))
        for part, comm in zip(parts, nccl.make("ncclCommInitAll", ctypes.c_void_p * count, count, devices)):
            part.comm = ctypes.c_void_p(comm)
        return
    port, others = args.port or own_port(os.environ), size // count - 1
    unique = bytes(nccl.make("ncclGetUniqueId", UniqueId)) if first else b""
    watch.enter("give the unique id to %d tasks" % others if first else "get the unique id of task 0")
    if first:
        share(port, unique, others)
    unique = unique or fetch(args.address, port)
    watch.enter("make the communicators")
    nccl.call("ncclGroupStart")
    for part in parts:
        part.use()
        one = UniqueId.from_buffer_copy(unique)
        nccl.call("ncclCommInitRank", ctypes.byref(part.comm), size, one, part.rank)
    nccl.call("ncclGroupEnd")


def run(args: argparse.Namespace, watch: Watch) -> int:
    """Run one of the three programs; return the exit code."""
    watch.enter("load the libraries")
    cuda, nccl = Cuda(), Nccl()
    visible, rank = len(cuda.devices), int(os.environ.get("SLURM_PROCID") or 0)
    local = int(os.environ.get("SLURM_LOCALID") or 0)
    indices = range(visible)
    if args.program == "one-device" and visible > 1:  # with --gpus-per-task each task sees its own only
        indices = range(local, local + 1)
    if indices.stop > visible or not visible:
        raise RuntimeError("local task %d, but only %d devices are visible" % (local, visible))
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS") or 1)
    rank, tasks = (0, 1) if args.program == "one-process" else (rank, tasks)
    size = tasks * len(indices)
    report("loaded", nccl=nccl.version, devices=len(indices), buses=[cuda.bus(index) for index in indices])
    watch.enter("put the data on the devices")
    first = rank * len(indices)
    parts = [Part(cuda, index, args.elements, first + number) for number, index in enumerate(indices)]
    watch.enter("make the communicators")
    begin = time.monotonic()
    communicate(args, nccl, parts, size, watch)
    made = time.monotonic() - begin
    watch.enter("all-reduce")
    nccl.call("ncclGroupStart")
    words = (ctypes.c_size_t(args.elements), FLOAT32, SUM)
    for part in parts:
        nccl.call("ncclAllReduce", part.source, part.target, *words, part.comm, part.stream)
    nccl.call("ncclGroupEnd")
    expected = summed(size, args.elements)
    wrong = [wrong_elements(part.result(), expected) for part in parts]
    took = watch.took()
    asked = {"rank": "ncclCommUserRank", "size": "ncclCommCount"}
    seen = [{key: asks(nccl, name, part) for key, name in asked.items()} for part in parts]
    report("reduced", ranks=seen, wrong=wrong, elements=args.elements, init=made, seconds=took)
    watch.enter("destroy the communicators")
    for part in parts:
        part.use()
        nccl.call("ncclCommDestroy", part.comm)
    report("done")
    return EXIT_WRONG if any(wrong) else 0


def asks(nccl: Nccl, name: str, part: Part) -> int:
    """Return what a communicator has of itself."""
    number = ctypes.c_int()
    nccl.call(name, part.comm, ctypes.byref(number))
    return number.value


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the payload; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=("one-process", "one-device", "many-devices"))
    parser.add_argument("--address", default="127.0.0.1", help="of the first node, for the unique id")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--deadline", type=float, default=60, help="seconds a phase")
    args = parser.parse_args(argv)
    watch = Watch(args.deadline, end_when_stuck(report))
    try:
        return run(args, watch)
    except Failure as error:
        report("failed", phase="load libnccl", reason=str(error), library=False)
        return EXIT_NO_LIBRARY
    except BaseException as error:
        report("failed", phase=watch.phase, reason=error_text(error))
        return EXIT_FAILED


if __name__ == "__main__":
    exit_now(main())
