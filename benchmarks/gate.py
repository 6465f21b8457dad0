"""What `gpucluster gate` costs on a node of a sandbox, beside an empty Python, and beside NHC where its folder is given.

    python benchmarks/gate.py [--repeats 5] [--nhc FOLDER]

Each runs as a task of the node. CPU: of the program itself, and of the commands that it calls, in seconds; the least of the
repetitions. Processes: those that were started below it (perf's tracepoints are not needed: /proc/stat counts them on a machine
that does nothing else). NHC (https://github.com/mej/nhc) has the checks of its own sample file that this machine can answer: its
checks are others, so that the times are no ranking.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.sandbox import Sandbox

MEASURED = """
import json, os, resource, subprocess, sys, time
def forks():
    with open("/proc/stat") as file:
        return int(next(line for line in file if line.startswith("processes")).split()[1])
before, begun = forks(), time.monotonic()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
pid, status, used = os.wait4(process.pid, 0)
print(json.dumps({"seconds": time.monotonic() - begun, "cpu": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024,
                  "processes": forks() - before, "rc": os.waitstatus_to_exitcode(status)}))
"""
# the CPU of the gate alone: that of its commands is what it waits for
OWN = """
import resource, sys
from pytest_gpucluster.cli import command
sys.argv[0] = "gpucluster"
try:
    command()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"OWN {used.ru_utime + used.ru_stime:.3f} {used.ru_maxrss / 1024:.0f}", file=sys.stderr)
"""
NHC_CONF = """
* || check_fs_mount_rw -f /
* || check_fs_free / 3%
* || check_hw_physmem_free 1MB
* || check_hw_swap_free 0
* || check_ps_loadavg 1000
* || check_cmd_status -t 5 -r 0 nvidia-smi -L
"""


def as_task(sandbox: Sandbox, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command as a task of the first node, with all its GPUs."""
    srun = ["srun", "-N1", "-w", sandbox.nodes[0], "--gres=gpu:8", "--exclusive"]
    return subprocess.run(
        [*srun, *argv], env=sandbox.env, capture_output=True, text=True, timeout=120, check=False
    )


def best(sandbox: Sandbox, argv: list[str], repeats: int) -> dict[str, float]:
    """Return the run with the least CPU, of the process and of all that it waited for."""
    found = [
        json.loads(as_task(sandbox, [sys.executable, "-c", MEASURED, *argv]).stdout) for _ in range(repeats)
    ]
    return min(found, key=lambda one: one["cpu"])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nhc", type=Path, metavar="FOLDER", help="a checkout of github.com/mej/nhc")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        sandbox = Sandbox(Path(folder) / "s")
        sandbox.up(nodes=1)
        try:
            print(measured(sandbox, Path(folder), chosen.repeats, chosen.nhc))
        finally:
            sandbox.down()
    print(stamp())
    return 0


def measured(sandbox: Sandbox, folder: Path, repeats: int, nhc: Path | None) -> str:
    """Return the table."""
    gate = ["gate", "--cluster", str(sandbox.cluster_file), "--budget", "60s", f"--folder={folder}/share"]
    sides = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "gate": [sys.executable, "-m", "pytest_gpucluster", *gate, "--fresh", "0"],
        "gate, answers of another one": [sys.executable, "-m", "pytest_gpucluster", *gate],
    }
    if nhc is not None:
        conf = folder / "nhc.conf"
        conf.write_text(NHC_CONF)
        options = [
            "-D",
            str(nhc),
            "-c",
            str(conf),
            "-l",
            "-",
            "DETACHED_MODE=0",
            "MARK_OFFLINE=0",
            "FORCE_SETSID=0",
        ]
        sides["nhc, 6 checks"] = ["bash", str(nhc / "nhc"), *options]
    rows = []
    for name, argv in sides.items():
        one = best(sandbox, argv, repeats)
        rows.append(
            (
                name,
                f"{one['seconds']:.2f}",
                f"{one['cpu']:.2f}",
                f"{one['processes']:.0f}",
                f"{one['rc']:.0f}",
            )
        )
    own = [
        as_task(sandbox, [sys.executable, "-c", OWN, *gate, "--fresh", "0"]).stderr for _ in range(repeats)
    ]
    alone = min(
        (line.split()[1:] for text in own for line in text.splitlines() if line.startswith("OWN")),
        default=["?", "?"],
    )
    table = tabulate(
        rows, headers=("", "seconds", "CPU, with its commands", "processes", "status"), disable_numparse=True
    )
    return f"{table}\nthe gate itself: {alone[0]} s of CPU, {alone[1]} MiB; goal: 0.5 s, 100 MiB; requests to slurmctld: 0"


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
