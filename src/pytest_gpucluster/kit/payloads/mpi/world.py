"""MPI program of mpi4py: each rank prints a line with its host and whether the sum of all ranks is right.

The lines are those of world.c. `where` initialises no MPI, so it runs on one node without a launcher.
"""

import json
import os
import socket
import sys
from typing import Any, Dict

from pytest_gpucluster.kit.payloads.prelude import node_name, write_line

MARK = "gpucluster-mpi "
COUNT = 1024  # elements of the sum
SINGLE, FUNNELED, SERIALIZED, MULTIPLE = "single", "funneled", "serialized", "multiple"


def report(**fields: Any) -> None:
    """Print one line with the mark of world.c."""
    write_line(MARK + json.dumps(fields))


def host_and_node() -> Dict[str, str]:
    """Return host and node."""
    return {"host": socket.gethostname(), "node": node_name() if os.environ.get("SLURMD_NODENAME") else ""}


def allowed_cpus() -> str:
    """Return the CPUs that this rank may use, as the kernel lists them; '' if unknown."""
    try:
        with open("/proc/self/status") as status:
            lines = [line.split() for line in status]
    except OSError:
        return ""
    return next((words[1] for words in lines if words[:1] == ["Cpus_allowed_list:"] and words[1:]), "")


def library(mpi: Any) -> str:
    """Return the first line of the library's version text."""
    return str(mpi.Get_library_version()).splitlines()[0].rstrip("\0")


def wrong_sums(mpi: Any, rank: int, size: int) -> int:
    """Return how many elements of an all-reduce differ from size * (size + 1) / 2 * (i + 1)."""
    got = mpi.COMM_WORLD.allreduce((rank + 1) * COUNT)
    wrong = int(got != size * (size + 1) // 2 * COUNT)
    from array import array  # not needed by `where`

    mine = array("q", [(rank + 1) * (i + 1) for i in range(COUNT)])
    total = array("q", [0] * COUNT)
    mpi.COMM_WORLD.Allreduce([mine, mpi.INT64_T], [total, mpi.INT64_T], mpi.SUM)
    return wrong + sum(total[i] != size * (size + 1) // 2 * (i + 1) for i in range(COUNT))


def main() -> int:
    """Print the line of this rank."""
    import mpi4py  # if it is absent, the caller prints one line

    mpi4py.rc.initialize = False
    from mpi4py import MPI  # after rc.initialize is set

    if sys.argv[1:] == ["where"]:
        report(kind="where", library=library(MPI), **host_and_node())
        return 0
    level = MPI.Init_thread(MPI.THREAD_MULTIPLE)
    names = {
        MPI.THREAD_SINGLE: SINGLE,
        MPI.THREAD_FUNNELED: FUNNELED,
        MPI.THREAD_SERIALIZED: SERIALIZED,
        MPI.THREAD_MULTIPLE: MULTIPLE,
    }
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    wrong = wrong_sums(MPI, rank, size)
    report(
        kind="rank",
        rank=rank,
        size=size,
        pid=os.getpid(),
        threads=names.get(level, "unknown"),
        wrong=wrong,
        of=COUNT,
        library=library(MPI),
        cpus=allowed_cpus(),
        **host_and_node(),
    )
    MPI.Finalize()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ImportError as error:  # one line instead of a traceback from every rank
        print("%s: %s" % (sys.executable, error), file=sys.stderr)
        sys.exit(1)
