"""What the suites os, slurm and gpu cost on N virtual nodes, as a ratio to the floor.

    python benchmarks/suites_cost.py [4 16 64] [--repeats 3]

The floor: a bare `srun -N true` plus an empty pytest run of as many items. Both sides are run in turn. Slurm's client
processes are counted by wrappers on PATH, those that jobs start too. Then `--collect-only` on 1000 recorded nodes.
Each sandbox lives in a temporary folder and is stopped; the rest of the machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from stamp import stamp
from tabulate import tabulate

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = ("sinfo", "scontrol", "squeue", "salloc", "srun", "sbatch", "scancel")
SUITES = Path(__file__).parent.parent / "suites"
PHASES = ("start", "launch", "answers", "judging", "reporting")
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")  # as in controller.py
RUN_LIMIT = 600  # seconds until a run counts as hung


def counting_folder(folder: Path) -> Path:
    """Make a folder of wrappers that note each start of a Slurm command in `log` and become the command."""
    folder.mkdir()
    for name in CLIENTS:
        real = shutil.which(name)
        if real is None:
            raise SystemExit(f"{name} is not on PATH: install Slurm's client tools")
        wrapper = folder / name
        log = shlex.quote(str(folder / "log"))
        wrapper.write_text(f'#!/bin/sh\necho {name} >>{log}\nexec {shlex.quote(real)} "$@"\n')
        wrapper.chmod(0o755)
    return folder


def started(folder: Path) -> Counter[str]:
    """Return how often each Slurm command was started since the last call."""
    log = folder / "log"
    names = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return Counter(names)


def forks() -> int:
    """Return how many processes this machine has started since it booted: proc(5), stat."""
    lines = Path("/proc/stat").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("processes ")).split()[1])


# --- the phases of a run: this file is also a plugin of the measured pytest -----------------------------------------


class Phases:
    """Seconds of one run by what they went into."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.begun = self.mark = float(os.environ["GPUCLUSTER_BENCH_BEGIN"])
        self.items = 0

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted under a phase."""

        def run(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **options)  # nobody waits for it
            begin = time.time()
            try:
                return function(*args, **options)
            finally:
                self.seconds[phase] += time.time() - begin

        return run

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Collection ends the start; from here on what waits for nodes is counted where it waits."""
        from pytest_gpucluster.cluster.channel.channel import Fleet  # only the measured pytest has it
        from pytest_gpucluster.plugin.controller import Controller
        from pytest_gpucluster.suites.slurm import diagnostic_step as diagnostic

        self.items = len(session.items)
        self.seconds["start"] = time.time() - self.begun
        for phase, owner, name in (
            ("launch", Controller, "allocate"),
            ("answers", Fleet, "ask"),
            ("answers", Fleet, "ask_node"),
            ("answers", futures.Future, "result"),
            ("answers", diagnostic, "read_jobs"),
        ):
            setattr(owner, name, self.timed(phase, getattr(owner, name)))
        self.mark = time.time()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """What is left of the loop was judging, and telling; hooks of ours between the two would slow both down."""
        loop = time.time() - self.mark
        self.seconds["judging"] = loop - self.seconds["launch"] - self.seconds["answers"]
        self.mark = time.time()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Write what was measured; summary and release count as reporting."""
        self.seconds["reporting"] += time.time() - self.mark
        Path(os.environ["GPUCLUSTER_BENCH_PHASES"]).write_text(json.dumps({"items": self.items, **self.seconds}))


def pytest_configure(config: pytest.Config) -> None:
    """Measure where the benchmark asks for it."""
    if "GPUCLUSTER_BENCH_PHASES" in os.environ:
        config.pluginmanager.register(Phases(config), "gpucluster-bench-phases")


# --- one side and the other -----------------------------------------------------------------------------------------


def run_suites(folder: Path, env: dict[str, str], cluster: Path) -> dict[str, Any]:
    """Run the three suites once: seconds, items, phases, client processes, processes of the whole machine."""
    bin_folder, phases = folder / "bin", folder / "phases.json"
    phases.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", *OPTIONS, "-p", Path(__file__).stem, f"--cluster={cluster}"]
    argv += ["-m", "os or slurm or gpu", f"--report-dir={folder / 'reports'}", str(SUITES)]
    own = {
        "PATH": f"{bin_folder}:{env['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))),
        "GPUCLUSTER_BENCH_PHASES": str(phases),
        "GPUCLUSTER_BENCH_BEGIN": str(time.time()),
    }
    started(bin_folder)
    before, begin = forks(), time.perf_counter()
    done = subprocess.run(
        argv, env={**env, **own}, cwd=SUITES.parent, capture_output=True, text=True, timeout=RUN_LIMIT, check=False
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"the suites ended with exit {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(phases.read_text())
    return {**found, "seconds": seconds, "clients": started(bin_folder), "forks": forks() - before}


def run_floor(folder: Path, env: dict[str, str], nodes: int, items: int) -> dict[str, float]:
    """Run a bare step on all nodes and an empty pytest of as many items; return seconds of each."""
    empty = folder / "test_empty.py"
    empty.write_text(
        f'import pytest\n\n\n@pytest.mark.parametrize("number", range({items}))\ndef test_nothing(number):\n    pass\n'
    )
    begin = time.perf_counter()
    subprocess.run(["srun", f"-N{nodes}", "true"], env=env, check=True, capture_output=True, timeout=RUN_LIMIT)
    step = time.perf_counter() - begin
    argv = [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={folder / 'empty.xml'}", str(empty)]
    subprocess.run(argv, env=env, cwd=folder, check=True, capture_output=True, timeout=RUN_LIMIT)
    return {"srun": step, "pytest": time.perf_counter() - begin - step}


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of both sides: compiled modules are kept, as on any machine that runs pytest twice."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "pyc")}


def measure(nodes: int, repeats: int) -> list[str]:
    """Return a row of the table: medians for one number of nodes."""
    from pytest_gpucluster.sandbox import Sandbox  # the measured pytest loads this file too

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        sandbox = Sandbox(folder / "s")
        try:
            sandbox.up(nodes=nodes)
            env = {**environment(folder), **sandbox.env}
            counting_folder(folder / "bin")
            warm = run_suites(folder, env, sandbox.cluster_file)  # writes the compiled modules
            floors, runs = [], []
            for _ in range(repeats):
                floors.append(run_floor(folder, env, nodes, warm["items"]))
                runs.append(run_suites(folder, env, sandbox.cluster_file))
        finally:
            sandbox.down()
    return row(nodes, runs, floors)


def row(nodes: int, runs: list[dict[str, Any]], floors: list[dict[str, float]]) -> list[str]:
    """Write the medians."""
    seconds = statistics.median(run["seconds"] for run in runs)
    floor = statistics.median(sum(one.values()) for one in floors)
    clients = max((run["clients"] for run in runs), key=lambda counter: counter.total())
    return [
        str(nodes),
        str(runs[0]["items"]),
        f"{clients.total()}: " + ", ".join(f"{count} {name}" for name, count in sorted(clients.items())),
        f"{statistics.median(run['forks'] for run in runs):.0f}",
        f"{seconds:.1f}",
        f"{floor:.1f}",
        f"{seconds / floor:.2f}",
        *(f"{statistics.median(run[phase] for run in runs):.1f}" for phase in PHASES),
    ]


# --- a thousand nodes ----------------------------------------------------------------------------------------------


def collect(nodes: int, repeats: int) -> list[tuple[float, float]]:
    """Run --collect-only with recorded answers in place of scontrol; return (seconds, MiB) of each run."""
    from pytest_gpucluster.sandbox import Sandbox  # the measured pytest loads this file too

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        sandbox = Sandbox(folder / "s")
        try:
            sandbox.up(nodes=1)
            cluster = record(folder, sandbox.cluster_file.read_text(), {**os.environ, **sandbox.env}, nodes)
            env = environment(folder)
            env["PATH"] = f"{folder / 'recorded'}:{env['PATH']}"
            return [collect_once(folder, env, cluster) for _ in range(repeats + 1)][1:]
        finally:
            sandbox.down()  # its cabling plan, which the cluster file names, goes with it


def record(folder: Path, cluster: str, env: dict[str, str], nodes: int) -> Path:
    """Record scontrol's answers about one node, multiply it, and return a cluster file of all of them."""
    stub = folder / "recorded"
    stub.mkdir()
    for what in ("node", "partition", "config"):
        done = subprocess.run(["scontrol", "-o", "show", what], env=env, check=True, capture_output=True, text=True)
        text = done.stdout
        if what == "node":
            text = "".join(text.replace("gpu01", f"gpu{number:04}") for number in range(1, nodes + 1))
        (stub / what).write_text(text)
    scontrol = stub / "scontrol"
    scontrol.write_text('#!/bin/sh\nexec cat "${0%/*}/$2"\n')
    scontrol.chmod(0o755)
    path = folder / "cluster.yaml"
    path.write_text(cluster.replace("nodes: gpu01\n", f"nodes: gpu[0001-{nodes:04}]\n"))
    return path


def collect_once(folder: Path, env: dict[str, str], cluster: Path) -> tuple[float, float]:
    """Return seconds and the greatest resident memory (MiB) of one --collect-only."""
    argv = [sys.executable, "-m", "pytest", *OPTIONS, "--collect-only", f"--cluster={cluster}", str(SUITES)]
    begin = time.perf_counter()
    with (folder / "collected").open("wb") as out:
        process = subprocess.Popen(argv, env=env, cwd=SUITES.parent, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"--collect-only failed:\n{(folder / 'collected').read_text()[-2000:]}")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("nodes", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--collect", type=int, default=1000, help="nodes of --collect-only; 0: leave it away")
    options = parser.parse_args()
    rows = [measure(nodes, options.repeats) for nodes in options.nodes]
    headers = ("nodes", "items", "client processes", "processes", "s", "floor s", "ratio", *PHASES)
    if rows:
        print(tabulate(rows, headers=headers, disable_numparse=True))
    if options.collect:
        found = collect(options.collect, options.repeats)
        seconds, memory = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"--collect-only, {options.collect} nodes: {seconds:.1f} s, {memory:.0f} MiB")
    print(stamp())


if __name__ == "__main__":
    main()
