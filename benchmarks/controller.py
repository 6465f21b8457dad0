"""Seconds and memory of the controller where 1,000 or 10,000 nodes are judged: recorded answers in place of Slurm.

    python benchmarks/controller.py [1000] [--checks 50] [--floor]

scontrol, salloc and srun are stubs that give recorded answers for all nodes (sides/recorded_srun.py); every
hundredth node has a fault that has to be found. All else is what runs on a cluster: inventory, channel, probes, checks,
reports. `CPU s` and `MiB` are of pytest alone; the stubs run beside it. `--floor`: an empty pytest of as many items.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.report.machine.events import read_events
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.suites.gpu import test_gpu

ROOT = Path(__file__).parent.parent
SIDES = Path(__file__).parent / "sides"
FAULT, FOUND_BY, BAD_EVERY = "nvlink_down", "gpu.nvlink_state", 100
OS_CHECKS = (
    *("memory", "cpus", "pci_devices", "pci_links", "drift", "mounts", "root_writable", "load", "user", "inodes"),
    *("zombies", "dstate", "services", "systemd"),
)
# Hypothesis takes part in reports: items would run by pytest's own protocol, and who runs a cluster does not have it
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
PYTEST = (sys.executable, "-m", "pytest", "-q", *WITHOUT, "-c", os.devnull)


@dataclass(frozen=True)
class Cost:
    """What one process took: seconds, of these on a CPU, and the greatest resident memory in MiB."""

    seconds: float
    cpu: float
    memory: float


def checks() -> list[str]:
    """Return the node ids of the checks: all of the gpu suite, then those of the os suite."""
    what = [check.name.partition(".")[2] for check in test_gpu.TESTS.checks()]
    what.remove("libraries")  # no answer of its command is recorded
    files = [(ROOT / "suites/gpu/test_gpu.py", f"test_{name}") for name in what]
    files += [(ROOT / "suites/os/test_os.py", f"test_{name}") for name in OS_CHECKS]
    return [f"{file}::{name}" for file, name in files]


def run(argv: list[str], env: dict[str, str], folder: Path) -> tuple[int, Cost, str]:
    """Run a process to its end; its cost is without its children's memory."""
    out = folder / "output"
    begin = time.perf_counter()
    with out.open("wb") as file:
        process = subprocess.Popen(
            argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    cost = Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
    return process.returncode, cost, out.read_text(errors="replace")


def stub(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)


def record(folder: Path, sandbox: Sandbox, nodes: int) -> tuple[dict[str, str], Path]:
    """Write the stubs; return the environment that has them on PATH, and a cluster file of all nodes."""
    place = folder / "stubs"
    place.mkdir()
    env = {**os.environ, **sandbox.env}
    names = [f"gpu{number:05}" for number in range(1, nodes + 1)]
    for what in ("node", "partition", "config"):
        argv = ["scontrol", "-o", "show", what]
        text = subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
        if what == "node":
            one = next(line for line in text.splitlines(keepends=True) if "NodeName=gpu01 " in line)
            text = "".join(one.replace("gpu01", name) for name in names)
        (place / what).write_text(text)
    (place / "hostnames").write_text("".join(f"{name}\n" for name in names))
    stub(place / "scontrol", 'exec cat "${0%/*}/$2"\n')
    stub(place / "scancel", "exit 0\n")
    salloc = """\
while [ "${1#-}" != "$1" ]; do shift; done
echo 'salloc: Granted job allocation 1' >&2
export SLURM_JOB_ID=1 SLURM_JOB_PARTITION=batch
exec "$@"
"""
    stub(place / "salloc", salloc)
    # a step gets no variable of the shell
    recorded = {
        "RECORDED_PATH": os.environ["PATH"],
        "RECORDED_NODES": str(place / "hostnames"),
        "RECORDED_STATE": str(folder / "s"),
    }
    told = shlex.join(["env", *(f"{name}={value}" for name, value in recorded.items())])
    replay = f'exec {told} {shlex.quote(sys.executable)} {shlex.quote(str(SIDES / "recorded_srun.py"))} "$@"\n'
    stub(place / "srun", replay)
    cluster = folder / "cluster.yaml"
    text = sandbox.cluster_file.read_text()
    cluster.write_text(text.replace("nodes: gpu[01-02]\n", f"nodes: gpu[00001-{nodes:05}]\n"))
    kept = {key: value for key, value in env.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PATH": f"{place}:{os.environ['PATH']}", "PYTHONPYCACHEPREFIX": str(folder / "pyc")}, cluster


def outcomes(events: Path) -> dict[str, int]:
    """Count the results of an event log by outcome; SystemExit where another check fails than has to."""
    found: dict[str, int] = {}
    for event in read_events(events):
        if event["event"] != "result":
            continue
        found[event["outcome"]] = found.get(event["outcome"], 0) + 1
        if event["outcome"] in ("failed", "error") and event["check"] != FOUND_BY:
            raise SystemExit(f"{event['nodeid']} {event['outcome']}: {event['message']}")
    return found


def judge(nodes: int, count: int, options: argparse.Namespace) -> list[str]:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        sandbox = Sandbox(folder / "s")
        try:
            sandbox.up(nodes=2)
            sandbox.fault(FAULT, "gpu02")
            env, cluster = record(folder, sandbox, nodes)
            reports = f"--report-dir={folder / 'reports'}"
            argv = [*PYTEST, f"--rootdir={ROOT}", f"--cluster={cluster}", reports, *options.pytest, *checks()[:count]]
            status, cost, output = run(argv, env, folder)
        finally:
            sandbox.down()
        if status not in (0, 1):
            raise SystemExit(f"pytest ended with exit {status}:\n{output[-3000:]}")
        found = outcomes(folder / "reports/latest/events.jsonl")
        wanted = nodes // BAD_EVERY * (FOUND_BY in told(count))
        if sum(found.values()) != nodes * count or found.get("failed", 0) != wanted:
            raise SystemExit(f"{found} are not {nodes * count} results with {wanted} failed:\n{output[-3000:]}")
        files = sum(file.stat().st_size for file in (folder / "reports").rglob("*") if file.is_file()) / 2**20
        empty = bare(folder, nodes * count) if options.floor else None
    return [
        *(f"{nodes:,}", str(count), f"{nodes * count:,}", f"{found.get('failed', 0)}"),
        *(f"{cost.seconds:.0f}", f"{cost.cpu:.0f}", f"{cost.memory:.0f}", f"{files:.0f}"),
        *((f"{empty.seconds:.0f}", f"{empty.cpu:.0f}", f"{empty.memory:.0f}") if empty else ()),
    ]


def told(count: int) -> list[str]:
    """Return the names of the checks, as events have them."""
    return [
        f"{Path(file).stem.removeprefix('test_')}.{test.removeprefix('test_')}"
        for file, _, test in (one.partition("::") for one in checks()[:count])
    ]


def bare(folder: Path, items: int) -> Cost:
    """Measure an empty pytest of as many items, with JUnit."""
    empty = folder / "test_empty.py"
    empty.write_text(
        f'import pytest\n\n\n@pytest.mark.parametrize("number", range({items}))\ndef test_nothing(number):\n    pass\n'
    )
    argv = [*PYTEST, f"--rootdir={folder}", "-p", "no:gpucluster", f"--junitxml={folder / 'x.xml'}", str(empty)]
    status, cost, output = run(argv, dict(os.environ), folder)
    if status:
        raise SystemExit(output[-2000:])
    return cost


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("nodes", type=int, nargs="*", default=[1000])
    parser.add_argument("--checks", type=int, default=50, choices=range(1, len(checks()) + 1), metavar="1-50")
    parser.add_argument("--floor", action="store_true", help="also an empty pytest of as many items")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="further options of pytest, last")
    options = parser.parse_args()
    head = ["nodes", "checks", "items", "failed", "s", "CPU s", "MiB", "MiB of reports"]
    head += ["empty pytest s", "CPU s", "MiB"] if options.floor else []
    rows = [judge(nodes, options.checks, options) for nodes in options.nodes]
    print(tabulate(rows, headers=head, disable_numparse=True))
    print(stamp())


if __name__ == "__main__":
    main()
