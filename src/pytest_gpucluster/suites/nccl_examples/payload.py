# A broken library may do anything (BLE001), errors are told in one place (TRY301), Python 3.6 has no strict zip (B905).
"""NCCL's three classic programs, by ctypes on libnccl and the driver: no torch, no compiler, no MPI.

    one-process     one process drives all devices of a node        ncclCommInitAll
    one-device      one process a device                            ncclCommInitRank
    many-devices    many devices a process, several processes       ncclCommInitRank in a group

Runs on the nodes under any python3, by -c (SOURCE: `payload_step.sent`); srun starts the processes:

    srun --ntasks-per-node=1 --gres=gpu:8    python3 -c SOURCE one-process
    srun --ntasks-per-node=8 --gpus-per-task=1 python3 -c SOURCE one-device
    srun --ntasks-per-node=1 --gres=gpu:8    python3 -c SOURCE many-devices

Each sums data of which the sum is known and checks every element of every device. The unique id goes from task 0 to
the others over a socket of its own. Libraries: libcuda.so.1 of the driver; libnccl.so.2 from the loader's path, from
NCCL_HOME, or from the python's nvidia-nccl package (torch brings it).

Each thing told is one line of JSON that starts with {"nccl_examples": . Exit codes: 0 done, 1 failed, 2 no libnccl,
4 deadline, 7 wrong data.
"""

import argparse
import array
import ctypes
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from pytest_gpucluster.kit.payloads.prelude import Watch, error_text, exit_now, node_name, own_port, say

EXIT_FAILED, EXIT_NO_LIBRARY, EXIT_DEADLINE, EXIT_WRONG = 1, 2, 4, 7
FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t
PERIOD = 31  # ranks so far apart hold the same data
POISON = -1.0
LONG_VERSION = 10000  # from 2.9 on 22809 is 2.28.9; before, 2804 was 2.8.4
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which goes by value."""

    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


class NoLibrary(Exception):  # a state
    """Neither the loader nor the python has libnccl."""


# -- telling ------------------------------------------------------------------------------------------------------


def task() -> int:
    """Return this process's number among all."""
    return int(os.environ.get("SLURM_PROCID") or 0)


def report(kind: str, **facts: Any) -> None:
    """Print what this task found."""
    say(nccl_examples=kind, rank=task(), node=node_name(), **facts)


def stuck(watch: Watch) -> None:
    """End this process: a phase has outlived its deadline."""
    report("stuck", phase=watch.phase, seconds=watch.seconds)
    exit_now(EXIT_DEADLINE)


# -- the libraries ------------------------------------------------------------------------------------------------


def candidates() -> List[str]:
    """Return where libnccl may be, best first."""
    home = os.environ.get("NCCL_HOME")
    found = [str(Path(home) / "lib" / "libnccl.so.2")] if home else []
    found.append("libnccl.so.2")
    for folder in sys.path:
        if folder.endswith("-packages"):
            found += [str(path) for path in sorted(Path(folder).glob("nvidia/*/lib/libnccl.so.2"))]
    return [*found, "libnccl.so"]


def load_nccl() -> Any:
    """Return libnccl; NoLibrary where there is none."""
    complaints = []
    for name in candidates():
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            complaints.append(str(error))
    raise NoLibrary(complaints[0])


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
        self.count = self.make("cuDeviceGetCount", ctypes.c_int).value
        self.contexts = {}  # type: Dict[int, ctypes.c_void_p]

    def text_of(self, code: int) -> str:
        """Return the driver's words."""
        text = ctypes.c_char_p()
        self.lib.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown").decode()

    def use(self, index: int) -> None:
        """Make a device's primary context current: the one that NCCL's CUDA runtime uses, too."""
        self.where = " on device %d" % index
        if index not in self.contexts:
            device = self.make("cuDeviceGet", ctypes.c_int, index)
            self.contexts[index] = self.make("cuDevicePrimaryCtxRetain", ctypes.c_void_p, device)
        self.call("cuCtxSetCurrent", self.contexts[index])

    def bus(self, index: int) -> str:
        """Return the PCI address, which no two devices of a host share."""
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, 32, self.make("cuDeviceGet", ctypes.c_int, index))
        return text.value.decode().lower()


class Nccl(Library):
    """NCCL's API."""

    def __init__(self) -> None:
        super().__init__(load_nccl())
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

    def rank_of(self, comm: ctypes.c_void_p) -> Dict[str, int]:
        """Return rank and size as the communicator has them."""
        rank, size = ctypes.c_int(), ctypes.c_int()
        self.call("ncclCommUserRank", comm, ctypes.byref(rank))
        self.call("ncclCommCount", comm, ctypes.byref(size))
        return {"rank": rank.value, "size": size.value}


# -- the data -----------------------------------------------------------------------------------------------------


def data(rank: int, count: int) -> bytes:
    """Return one rank's floats: element i is (7 i + 13 rank) mod 31, a pattern that repeats every 31 elements."""
    pattern = array.array("f", [(7 * i + 13 * rank) % PERIOD for i in range(PERIOD)]).tobytes()
    return (pattern * (count // PERIOD + 1))[: 4 * count]


def summed(size: int, count: int) -> bytes:
    """Return the sum over all ranks, in closed form; exact in float up to half a million ranks."""
    sums = []
    for i in range(PERIOD):
        alike = ((size - rank + PERIOD - 1) // PERIOD for rank in range(min(size, PERIOD)))
        sums.append(sum(n * ((7 * i + 13 * rank) % PERIOD) for rank, n in enumerate(alike)))
    return (array.array("f", sums).tobytes() * (count // PERIOD + 1))[: 4 * count]


def wrong_elements(got: bytes, expected: bytes) -> int:
    """Count the floats that differ."""
    if got == expected:
        return 0
    pairs = zip(memoryview(got).cast("f"), memoryview(expected).cast("f"))
    return sum(1 for one, other in pairs if one != other)


class Part:
    """One device of this process: buffers, stream, communicator, rank."""

    def __init__(self, cuda: Cuda, index: int, count: int, rank: int) -> None:
        self.cuda, self.index, self.rank, self.comm = cuda, index, rank, ctypes.c_void_p()
        self.bytes = ctypes.c_size_t(4 * count)
        cuda.use(index)
        self.source, self.target = (cuda.make("cuMemAlloc_v2", ctypes.c_uint64, self.bytes) for _ in range(2))
        self.stream = cuda.make("cuStreamCreate", ctypes.c_void_p, 0)
        cuda.call("cuMemcpyHtoD_v2", self.source, data(rank, count), self.bytes)
        cuda.call("cuMemcpyHtoD_v2", self.target, array.array("f", [POISON]).tobytes() * count, self.bytes)

    def result(self) -> bytes:
        """Wait for the stream and return what lies in the target."""
        self.cuda.use(self.index)
        self.cuda.call("cuStreamSynchronize", self.stream)
        content = ctypes.create_string_buffer(self.bytes.value)
        self.cuda.call("cuMemcpyDtoH_v2", content, self.target, self.bytes)
        return content.raw


# -- the unique id ------------------------------------------------------------------------------------------------


def share(address: str, port: int, unique: bytes, others: int, deadline: float) -> None:
    """Give the unique id to all other tasks."""
    until = time.monotonic() + deadline
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(min(others, 1024))
        for number in range(others):
            server.settimeout(max(0.1, until - time.monotonic()))
            try:
                peer, _ = server.accept()
            except socket.timeout:
                raise RuntimeError(
                    "only %d of %d other tasks asked for the unique id" % (number, others)
                ) from None
            with peer:
                peer.sendall(unique)


def fetch(address: str, port: int, deadline: float) -> bytes:
    """Get the unique id from task 0, which may come up later."""
    until = time.monotonic() + deadline
    while True:
        try:
            with socket.create_connection((address, port), timeout=5) as peer:
                peer.settimeout(max(0.1, until - time.monotonic()))
                got = peer.makefile("rb").read(ID_BYTES)
                if len(got) < ID_BYTES:
                    raise OSError("cut off")
                return got
        except OSError as error:
            if time.monotonic() > until:
                raise RuntimeError("no unique id from %s:%d: %s" % (address, port, error)) from error
            time.sleep(0.1)


# -- the programs -------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace, watch: Watch) -> int:
    """Run one of the three programs; return the exit code."""
    watch.enter("load the libraries")
    cuda, nccl = Cuda(), Nccl()
    if not cuda.count:
        raise RuntimeError("the driver shows no device")
    local = int(os.environ.get("SLURM_LOCALID") or 0)
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS") or 1)
    if args.program == "one-device":
        indices = [0 if cuda.count == 1 else local]  # with --gpus-per-task each task sees its own only
        if indices[0] >= cuda.count:
            raise RuntimeError("local task %d, but only %d devices are visible" % (local, cuda.count))
    else:
        indices = list(range(cuda.count))
    alone = args.program == "one-process"
    size = len(indices) if alone else tasks * len(indices)
    first = 0 if alone else task() * len(indices)
    report("loaded", nccl=nccl.version, devices=len(indices), buses=[cuda.bus(index) for index in indices])
    watch.enter("put the data on the devices")
    parts = [Part(cuda, index, args.elements, first + number) for number, index in enumerate(indices)]
    watch.enter("make the communicators")
    begin = time.monotonic()
    communicate(args, nccl, parts, size)
    made = time.monotonic() - begin
    watch.enter("all-reduce")
    begin = time.monotonic()
    nccl.call("ncclGroupStart")
    words = (ctypes.c_size_t(args.elements), FLOAT32, SUM)
    for part in parts:
        nccl.call("ncclAllReduce", part.source, part.target, *words, part.comm, part.stream)
    nccl.call("ncclGroupEnd")
    expected = summed(size, args.elements)
    wrong = {part.rank: wrong_elements(part.result(), expected) for part in parts}
    took = time.monotonic() - begin
    seen = [nccl.rank_of(part.comm) for part in parts]
    report("reduced", ranks=seen, wrong=list(wrong.values()), elements=args.elements, init=made, seconds=took)
    watch.enter("destroy the communicators")
    for part in parts:
        cuda.use(part.index)
        nccl.call("ncclCommDestroy", part.comm)
    report("done")
    return EXIT_WRONG if any(wrong.values()) else 0


def communicate(args: argparse.Namespace, nccl: Nccl, parts: Sequence[Part], size: int) -> None:
    """Make the communicators as the program does."""
    if args.program == "one-process":
        count = len(parts)
        comms = nccl.make(
            "ncclCommInitAll", ctypes.c_void_p * count, count, (ctypes.c_int * count)(*range(count))
        )
        for part, comm in zip(parts, comms):
            part.comm = ctypes.c_void_p(comm)
        return
    port = args.port or own_port(os.environ)
    if task() == 0:
        unique = bytes(nccl.make("ncclGetUniqueId", UniqueId))
        share("", port, unique, size // len(parts) - 1, args.deadline)
    else:
        unique = fetch(args.address, port, args.deadline)
    nccl.call("ncclGroupStart")
    for part in parts:
        part.cuda.use(part.index)
        nccl.call(
            "ncclCommInitRank", ctypes.byref(part.comm), size, UniqueId.from_buffer_copy(unique), part.rank
        )
    nccl.call("ncclGroupEnd")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the payload; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=("one-process", "one-device", "many-devices"))
    parser.add_argument("--address", default="127.0.0.1", help="of the first node, for the unique id")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--deadline", type=float, default=60, help="seconds a phase")
    args = parser.parse_args(argv)
    watch = Watch(args.deadline, stuck)
    try:
        return run(args, watch)
    except NoLibrary as error:
        report("failed", phase="load libnccl", reason=str(error), library=False)
        return EXIT_NO_LIBRARY
    except BaseException as error:
        report("failed", phase=watch.phase, reason=error_text(error))
        return EXIT_FAILED


if __name__ == "__main__":
    exit_now(main())
