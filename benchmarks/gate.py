"""What `gpucluster gate` costs on a node of a sandbox, beside an empty Python, and beside NHC where its folder is given.

    python benchmarks/gate.py [--repeats 5] [--nhc FOLDER [--faults 30]]

Each runs as a task of the node. CPU: of the program itself, and of the commands that it calls, in seconds; the least of the
repetitions. Processes: those below it with their threads, counted in a PID namespace, which needs root; processes.py counts those of
the simulated tools apart. NHC (https://github.com/mej/nhc) has the lines that its nhc-genconf writes on the healthy node, of
which those that fail there are left out, and its check of nvidia-smi: its checks are others, so that the times are no ranking.

--faults: how many of so many faults of a node each finds, chosen by a hash of their names among all that a node can show.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from slurm_sandbox.api import FAULTS

MEASURED = """
import json, os, resource, subprocess, sys, time
def forks():
    with open("/proc/sys/kernel/ns_last_pid") as file:
        return int(file.read())
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
NHC_NVIDIA = "* || check_nvsmi_healthmon"
NHC_OPTIONS = ("-l", "-", "DETACHED_MODE=0", "MARK_OFFLINE=0", "FORCE_SETSID=0")
OF_NODES = ("gpu.", "os.", "fabric.")


def as_task(sandbox: Sandbox, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command as a task of the first node, with all its GPUs."""
    srun = ["srun", "-N1", "-w", sandbox.nodes[0], "--gres=gpu:8", "--exclusive"]
    return subprocess.run([*srun, *argv], env=sandbox.env, capture_output=True, text=True, timeout=120, check=False)


def best(sandbox: Sandbox, argv: list[str], repeats: int) -> dict[str, float]:
    """Return the run with the least CPU, of the process and of all that it waited for."""
    measured = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", MEASURED, *argv]
    found = [json.loads(as_task(sandbox, measured).stdout) for _ in range(repeats)]
    return min(found, key=lambda one: one["cpu"])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nhc", type=Path, metavar="FOLDER", help="a checkout of github.com/mej/nhc")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="also count the faults found of N")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        sandbox = Sandbox(Path(folder) / "s")
        sandbox.up(nodes=1)
        try:
            nhc = nhc_on(sandbox, Path(folder), chosen.nhc) if chosen.nhc else []
            print(measured(sandbox, Path(folder), chosen.repeats, nhc))
            if chosen.faults:
                print(faults_found(sandbox, Path(folder), chosen.faults, nhc))
        finally:
            sandbox.down()
    print(stamp())
    return 0


def nhc_on(sandbox: Sandbox, folder: Path, nhc: Path) -> list[str]:
    """Configure NHC as its users do, on the healthy node; return its command."""
    written, conf = folder / "genconf", folder / "nhc.conf"
    options = ["-D", str(nhc), *NHC_OPTIONS]
    as_task(sandbox, ["bash", str(nhc / "nhc-genconf"), "-D", str(nhc), "-c", str(written)])
    lines = [line for line in written.read_text().splitlines() if "||" in line and not line.startswith("#")]
    kept = []
    for line in (*lines, NHC_NVIDIA):
        conf.write_text(f"{line}\n")
        if as_task(sandbox, ["bash", str(nhc / "nhc"), "-c", str(conf), *options]).returncode == 0:
            kept.append(line)
    conf.write_text("\n".join(kept) + "\n")
    print(f"NHC: {len(kept)} of {len(lines) + 1} lines of nhc-genconf pass on the healthy node")
    return ["bash", str(nhc / "nhc"), "-c", str(conf), *options]


def faults_found(sandbox: Sandbox, folder: Path, number: int, nhc: list[str]) -> str:
    """Put faults into the node one after the other; return which side found which."""
    kinds = [
        kind
        for kind, fault in FAULTS.items()
        if fault.change and not fault.harmless and FOUND_BY[kind][0].startswith(OF_NODES)
    ]
    chosen = sorted(kinds, key=lambda kind: hashlib.sha256(kind.encode()).digest())[:number]
    gate = ["gate", "--cluster", str(sandbox.cluster_file), "--budget", "60s", f"--folder={folder}/share"]
    argv = [sys.executable, "-m", "pytest_gpucluster", *gate, "--fresh", "0", "--json"]
    found: dict[str, list[str]] = {"gate": [], "nhc": []}
    for kind in chosen:
        sandbox.fault(kind, sandbox.nodes[0])
        checks = json.loads(as_task(sandbox, argv).stdout)["checks"]
        if FOUND_BY[kind][0].partition("/")[0] in {one["check"] for one in checks if one["outcome"] == "failed"}:
            found["gate"].append(kind)
        if nhc and as_task(sandbox, nhc).returncode != 0:
            found["nhc"].append(kind)
        sandbox.heal()
    lines = [f"faults found of {len(chosen)}: " + ", ".join(f"{side} {len(one)}" for side, one in found.items())]
    for side, one in found.items():
        lines.append(f"  not by {side}: {', '.join(kind for kind in chosen if kind not in one) or 'none'}")
    return "\n".join(lines)


def measured(sandbox: Sandbox, folder: Path, repeats: int, nhc: list[str]) -> str:
    """Return the table."""
    gate = ["gate", "--cluster", str(sandbox.cluster_file), "--budget", "60s", f"--folder={folder}/share"]
    sides = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "gate": [sys.executable, "-m", "pytest_gpucluster", *gate, "--fresh", "0"],
        "gate, answers of another one": [sys.executable, "-m", "pytest_gpucluster", *gate],
    }
    if nhc:
        sides["nhc"] = nhc
    rows = []
    for name, argv in sides.items():
        one = best(sandbox, argv, repeats)
        rows.append((name, f"{one['seconds']:.2f}", f"{one['cpu']:.2f}", f"{one['processes']:.0f}", f"{one['rc']:.0f}"))
    own = [as_task(sandbox, [sys.executable, "-c", OWN, *gate, "--fresh", "0"]).stderr for _ in range(repeats)]
    alone = min(
        (line.split()[1:] for text in own for line in text.splitlines() if line.startswith("OWN")), default=["?", "?"]
    )
    table = tabulate(
        rows, headers=("", "seconds", "CPU, with its commands", "processes", "status"), disable_numparse=True
    )
    return (
        f"{table}\nthe gate itself: {alone[0]} s of CPU, {alone[1]} MiB; goal: 0.5 s, 100 MiB; requests to slurmctld: 0"
    )


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
