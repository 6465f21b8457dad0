# A broken library may do anything (BLE001), Python 3.6 has no strict zip (B905).
"""NCCL's three example programs, through ctypes on libnccl and the driver: no torch, no compiler, no MPI.

Words: one-process|one-device|many-devices ADDRESS DEADLINE: one-process makes its communicators by
ncclCommInitAll, the others by ncclCommInitRank, for which task 0 sends the unique id over a socket at ADDRESS.
libnccl.so.2 is searched in NCCL_HOME, on the loader's path, and in the python's nvidia-nccl package, which torch
installs. DEADLINE: seconds per phase. Exit codes: 0 done, 1 failed or no libnccl, 4 deadline, 7 wrong data.
"""

import array
import ctypes
import glob
import os
import sys
import time
from multiprocessing.connection import Client, Listener
from typing import Any, Sequence

from pytest_gpucluster.kit.payloads.c_library import Library, cuda_driver
from pytest_gpucluster.kit.payloads.prelude import Failure, Watch, exit_now, number_of, own_port, reporter, run_phases

PROPERTIES = ("ncclCommUserRank", "ncclCommCount")
ELEMENTS = 1 << 20
BYTES = ctypes.c_size_t(4 * ELEMENTS)
REDUCTION = ctypes.c_size_t(ELEMENTS), 7, 0  # count, ncclFloat32, ncclSum
PERIOD = 31  # elements at this distance are equal
POISON = array.array("f", [-1.0]).tobytes() * ELEMENTS
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES

report = reporter("nccl_examples")


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


def load_nccl() -> Any:
    """Return libnccl; Failure if there is none."""
    home, errors = os.environ.get("NCCL_HOME"), []
    packages = (folder for folder in sys.path if folder.endswith("-packages"))
    found = [path for folder in packages for path in sorted(glob.glob(folder + "/nvidia/*/lib/libnccl.so.2"))]
    for name in [*(["%s/lib/libnccl.so.2" % home] if home else []), "libnccl.so.2", *found, "libnccl.so"]:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            errors.append(str(error))
    raise Failure("no_library", errors[0])


def nccl_message(lib: Any, code: int) -> str:
    """Return NCCL's text of an error and, from NCCL 2.13 on, its last message."""
    lib.ncclGetErrorString.restype = ctypes.c_char_p
    texts = [lib.ncclGetErrorString(code) or b"unknown"]
    if hasattr(lib, "ncclGetLastError"):
        lib.ncclGetLastError.restype = ctypes.c_char_p
        texts += (lib.ncclGetLastError(None) or b"").strip().splitlines()[:1]
    return b": ".join(texts).decode()


def summed(ranks: Sequence[int], count: int) -> bytes:
    """Return the sum of the ranks' floats, of which element i is (7 i + 13 rank) mod 31; exact for 500,000 ranks."""
    period = [sum((7 * i + 13 * rank) % PERIOD for rank in ranks) for i in range(PERIOD)]
    return (array.array("f", period).tobytes() * (count // PERIOD + 1))[: 4 * count]


def wrong_elements(got: bytes, expected: bytes) -> int:
    """Return how many floats differ."""
    pairs = zip(memoryview(got).cast("f"), memoryview(expected).cast("f"))
    return 0 if got == expected else sum(one != other for one, other in pairs)


class Rank:
    """One device of this process: context, buffers, stream, communicator."""

    def __init__(self, cuda: Library, index: int, number: int) -> None:
        self.cuda, self.index, self.number, self.comm = cuda, index, number, ctypes.c_void_p()
        self.device = cuda.make("cuDeviceGet", ctypes.c_int, index)
        bus = cuda.make("cuDeviceGetPCIBusId", ctypes.c_char * 32, 32, self.device)
        self.bus = bus.value.decode().lower()

    def use(self) -> None:
        """Make the device's primary context current, which NCCL's CUDA runtime uses too."""
        self.cuda.where = " on device %d" % self.index
        context = self.cuda.make("cuDevicePrimaryCtxRetain", ctypes.c_void_p, self.device)
        self.cuda.call("cuCtxSetCurrent", context)

    def fill(self) -> None:
        """Put the data on the device."""
        self.use()
        self.source, self.target = (self.cuda.make("cuMemAlloc_v2", ctypes.c_uint64, BYTES) for _ in range(2))
        self.stream = self.cuda.make("cuStreamCreate", ctypes.c_void_p, 0)
        self.cuda.call("cuMemcpyHtoD_v2", self.source, summed([self.number], ELEMENTS), BYTES)
        self.cuda.call("cuMemcpyHtoD_v2", self.target, POISON, BYTES)

    def result(self) -> bytes:
        """Wait for the stream and return the content of the target."""
        self.use()
        self.cuda.call("cuStreamSynchronize", self.stream)
        return bytes(self.cuda.make("cuMemcpyDtoH_v2", ctypes.c_char * BYTES.value, self.target, BYTES))


def share(port: int, unique: bytes, others: int) -> None:
    """Send the unique id to all other tasks."""
    with Listener(("", port), backlog=min(max(others, 1), 1024)) as server:
        for _ in range(others):
            with server.accept() as peer:
                peer.send_bytes(unique)


def fetch(address: str, port: int) -> bytes:
    """Return the unique id of task 0, which may start later; the deadline of the phase ends the wait."""
    while True:
        try:
            with Client((address, port)) as peer:
                return peer.recv_bytes(ID_BYTES)
        except (OSError, EOFError):
            time.sleep(0.1)


def init_ranks(nccl: Library, ranks: Sequence[Rank], tasks: int, address: str, watch: Watch) -> None:
    """Make the communicators of this task, one of several."""
    if ranks[0].number == 0:
        watch.enter("send the unique id to %d tasks" % (tasks - 1))
        unique = bytes(nccl.make("ncclGetUniqueId", UniqueId))
        share(own_port(os.environ), unique, tasks - 1)
    else:
        watch.enter("get the unique id of task 0")
        unique = fetch(address, own_port(os.environ))
    watch.enter("make the communicators")
    nccl.lib.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.call("ncclGroupStart")
    for rank in ranks:
        rank.use()
        size, own = tasks * len(ranks), UniqueId.from_buffer_copy(unique)
        nccl.call("ncclCommInitRank", ctypes.byref(rank.comm), size, own, rank.number)
    nccl.call("ncclGroupEnd")


def run(program: str, address: str, watch: Watch) -> int:
    """Run one of the three programs; return the exit code."""
    watch.enter("load the libraries")
    cuda, nccl = cuda_driver(), Library(load_nccl(), nccl_message)
    visible = cuda.make("cuDeviceGetCount", ctypes.c_int).value
    task, local = (number_of(os.environ, name, default="0") for name in ("SLURM_PROCID", "SLURM_LOCALID"))
    tasks = number_of(os.environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", default="1")
    if program == "one-process":
        task, tasks = 0, 1
    # with --gpus-per-task only one device is visible
    indices = [local] if program == "one-device" and visible > 1 else range(visible)
    if not indices or max(indices) >= visible:
        raise RuntimeError("local task %d, but only %d devices are visible" % (local, visible))
    count, size = len(indices), tasks * len(indices)
    ranks = [Rank(cuda, index, task * count + number) for number, index in enumerate(indices)]
    report("loaded", devices=count, buses=[rank.bus for rank in ranks])
    watch.enter("put the data on the devices")
    for rank in ranks:
        rank.fill()
    watch.enter("make the communicators")
    begin = time.monotonic()
    if program == "one-process":
        for rank, comm in zip(ranks, nccl.make("ncclCommInitAll", ctypes.c_void_p * count, count, None)):
            rank.comm = ctypes.c_void_p(comm)
    else:
        init_ranks(nccl, ranks, tasks, address, watch)
    init = time.monotonic() - begin
    watch.enter("all-reduce")
    nccl.call("ncclGroupStart")
    for rank in ranks:
        nccl.call("ncclAllReduce", rank.source, rank.target, *REDUCTION, rank.comm, rank.stream)
    nccl.call("ncclGroupEnd")
    expected = summed(range(size), ELEMENTS)
    wrong = [wrong_elements(rank.result(), expected) for rank in ranks]
    seen = [[nccl.make(it, ctypes.c_int, before=(rank.comm,)).value for it in PROPERTIES] for rank in ranks]
    report("reduced", ranks=seen, wrong=wrong, init=init)
    watch.enter("destroy the communicators")
    for rank in ranks:
        nccl.call("ncclCommDestroy", rank.comm)
    report("done")
    return 7 if any(wrong) else 0


if __name__ == "__main__":
    watch = Watch(float(sys.argv[3]), report)
    exit_now(run_phases(report, watch, lambda: run(sys.argv[1], sys.argv[2], watch)))
