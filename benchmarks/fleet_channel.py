"""What the fleet channel costs: 30 commands on N virtual nodes, as a ratio to one bare `srun -N true`.

    python benchmarks/fleet_channel.py [--nodes 64] [--commands 30]

Starts a sandbox of its own and stops it. Prints the median of `--repeats` runs; the rest of the machine should be idle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stamp import stamp

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def answered(fleet: Fleet, commands: Sequence[str]) -> None:
    """Ask every command; stop if any node did not answer it."""
    for command in commands:
        bad = [answer for answer in fleet.ask(command, timeout=120).values() if answer.rc != 0]
        if bad:
            raise SystemExit(f"{len(bad)} nodes failed at {command!r}, the first: {bad[0]}")


def measure(job: str, nodes: tuple[str, ...], count: int) -> dict[str, float]:
    """Return seconds: bare step, open the channel, `count` commands prefetched and one by one, close."""
    step = ["srun", "--overlap", f"--jobid={job}", f"--nodes={len(nodes)}", "true"]
    found = {"bare srun": seconds(lambda: subprocess.run(step, check=True))}
    transport = LocalTransport()
    slurm: Any = SimpleNamespace(transport=transport)
    held: Any = SimpleNamespace(job_id=job, nodes=nodes, env={})
    start = time.perf_counter()
    fleet = Fleet.over_slurm(slurm, held)
    answered(fleet, ["true"])
    found["open, first answer"] = time.perf_counter() - start
    ahead = [f"echo {number}" for number in range(count)]
    single = [f"echo one by one {number}" for number in range(count)]

    def prefetched() -> None:
        fleet.prefetch([(command, 120.0) for command in ahead])
        answered(fleet, ahead)

    found[f"{count} commands, prefetched"] = seconds(prefetched)
    found[f"{count} commands, one by one"] = seconds(lambda: answered(fleet, single))
    found["60 kB from each node"] = seconds(lambda: answered(fleet, ["head -c 60000 /dev/urandom"]))
    found["close"] = seconds(fleet.close)
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--commands", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        sandbox = Sandbox(Path(folder) / "s")
        try:
            sandbox.up(nodes=options.nodes)
            os.environ.update(sandbox.env)
            runs = campaign(options)
        finally:
            sandbox.down()
    bare = statistics.median(run["bare srun"] for run in runs)
    print(f"{options.nodes} nodes, median of {options.repeats}; {stamp()}")
    for name in runs[0]:
        value = statistics.median(run[name] for run in runs)
        print(f"{name:30} {value:8.3f} s {value / bare:8.2f} x bare srun")


def campaign(options: argparse.Namespace) -> list[dict[str, float]]:
    """Hold all nodes in one allocation and measure there."""
    script = "echo $SLURM_JOB_ID; scontrol show hostnames | tr '\\n' ' '; echo; cat"
    argv = ["salloc", "--quiet", "--exclusive", f"--nodes={options.nodes}", "sh", "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as salloc:
        assert salloc.stdout is not None
        assert salloc.stdin is not None
        job, nodes = salloc.stdout.readline().strip(), tuple(salloc.stdout.readline().split())
        runs = [measure(job, nodes, options.commands) for _ in range(options.repeats)]
        salloc.stdin.close()
    return runs


if __name__ == "__main__":
    main()
