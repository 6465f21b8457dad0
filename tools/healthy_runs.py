"""Run the suites again and again on healthy sandboxes of all hardware models; any failure is a false alarm.

python tools/healthy_runs.py [RUNS] [--models t4,h100] [--nodes 2] [--marks EXPRESSION]

RUNS (default: 12) are dealt out to the models in turn. Each model's sandbox is started once. The first run of a model
has the burn-in too. In each run the kernel log of each node has the lines of another healthy machine of tests/corpus. Prints a
line for each run, and the sum; exit status 1 where a check failed or a run broke.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "slurm-sandbox/tests")]

import corpus_cases  # found by the path above
from sandbox_helpers import sandbox_folder  # found by the path above

from pytest_gpucluster.report.machine.events import read_events
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKS = "os or slurm or gpu or fabric or nccl or container"
BURNIN = "30s"  # a round of loads needs 5 to 10 s of a quiet machine


def main() -> int:
    """Run, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=int, nargs="?", default=2 * len(MODELS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--marks", default=MARKS)
    args = parser.parse_args()
    models = args.models.split(",")
    noise = itertools.cycle(_quiet_logs())
    total: Counter[str] = Counter()
    false = broken = done = 0
    for position, model in enumerate(models):
        share = len(range(position, args.runs, len(models)))
        for ends, alarms, rc in _runs(model, share, args.nodes, args.marks, noise):
            total += ends
            done, false, broken = done + 1, false + bool(alarms), broken + (rc != 0)
    ends_text = ", ".join(f"{count} {end}" for end, count in total.most_common())
    print(f"{done} runs of healthy clusters: {false} with a false alarm, {broken} with an exit status; {ends_text}")
    return int(bool(false or broken or done != args.runs))


def _runs(
    model: str, runs: int, nodes: int, marks: str, noise: Iterator[str]
) -> Iterator[tuple[Counter[str], list[str], int]]:
    """Yield outcomes, false alarms and exit status of each run on one sandbox of the model."""
    if not runs:
        return
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=nodes, model=model, gpus="simulated")
        own = (sandbox.layout.root / "base/dmesg").read_text()
        for number in range(runs):
            start = time.monotonic()
            for node in sandbox.nodes:
                sandbox.layout.node(node).mkdir(exist_ok=True)
                (sandbox.layout.node(node) / "dmesg").write_text(own + next(noise))
            chosen = f"{marks} or burnin" if number == 0 else marks
            ends, alarms, rc, text = _run(sandbox, folder / f"run{number}", chosen)
            ends_text = ", ".join(f"{count} {end}" for end, count in ends.most_common())
            print(f"{model:6} run {number + 1:2}: {ends_text}; exit {rc}; {time.monotonic() - start:.1f} s", flush=True)
            for alarm in alarms:
                print(f"  FALSE ALARM {alarm}")
            if rc and not alarms:
                print("  " + "\n  ".join(text.splitlines()[-20:]))
            yield ends, alarms, rc


def _quiet_logs() -> list[str]:
    """Return the kernel logs of healthy machines that need no state of their parts."""
    return [
        section.text
        for case in corpus_cases.all_cases()
        if case.path.parent.name == "kernel_log"
        and {section.what for section in case.sections} == {"dmesg"}
        and all(wanted == {"outcome": "passed"} for _, _, wanted in case.expected)
        for section in case.sections
        if section.what == "dmesg"
    ]


def _run(sandbox: Sandbox, reports: Path, marks: str) -> tuple[Counter[str], list[str], int, str]:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "suites", "-m", marks]
    argv += [f"--cluster={sandbox.cluster_file}", f"--report-dir={reports}", f"--burnin-time={BURNIN}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    events = reports / "latest" / "events.jsonl"
    results = [event for event in read_events(events) if event["event"] == "result"] if events.exists() else []
    alarms = [event["message"] for event in results if event["outcome"] in ("failed", "error", "not tested")]
    return Counter(event["outcome"] for event in results), alarms, done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
