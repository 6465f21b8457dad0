"""Reports and history of a large run: 1,000 nodes x 100 checks. Prints seconds on one core, megabytes, and Chromium's time.

    python benchmarks/report_scale.py [--nodes 1000] [--checks 100] [--keep DIR]

The log is made up from the shape of real ones; 3 nodes in 100 fail something of their own, and one check fails on all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamp import stamp

from pytest_gpucluster.core.part import Part, gpu, named
from pytest_gpucluster.report.history.run_snapshot import recorded
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.report.page import html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.report.run_model import Run

SUITES = ("os", "slurm", "gpu", "fabric", "nccl", "container", "mpi", "ddp", "tensorflow", "ray")
SIZES = [2**power for power in range(3, 35)]
BOUND = 449.3
OWN, SLOW = 0.03, 0.01  # shares of the nodes
METRICS = ("temperature", "power", "pcie_width", "nvlinks_active", "memory_used", "clock_sm")


def events(nodes: int, checks: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a run; the same for the same numbers."""
    dice = random.Random(4711)
    names = [f"gpu{number:04}" for number in range(1, nodes + 1)]
    drained = {name: ["unavailable", 'DRAINED: "bad cable" by root since 2026-11-20T10:00:00'] for name in names[40:52]}
    yield event("start", cluster="large", simulated=True, arguments=["--cluster=large"], slurm="22.05.8")
    yield event("nodes", selected=names, not_tested=drained)
    own = {name: dice.randrange(checks) for name in names if dice.random() < OWN}
    slow = {name for name in names if dice.random() < SLOW}
    for number in range(checks):
        for name in names:
            yield result(number, name, dice, drained=name in drained, own=own.get(name) == number, slow=name in slow)
    yield event("finish", exit=1)


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """Return one event."""
    return {"time": 1795250370.0, "run": "20261121T020000-1", "event": kind, **fields}


def result(number: int, node: str, dice: random.Random, *, drained: bool, own: bool, slow: bool) -> dict[str, Any]:
    """Return the event of one item."""
    suite = SUITES[number % len(SUITES)]
    what = f"what_{number:02}"
    fields: dict[str, Any] = {
        "nodeid": f"suites/test_{suite}.py::test_{what}[{node}]",
        "phase": "call",
        "seconds": 0.0002,
        "message": "",
        "suite": suite,
        "check": f"{suite}.{what}",
        "node": node,
        "metrics": metrics(number, dice, slow=slow),
        "curves": [],
        "cells": [],
    }
    if drained:
        fields |= {"outcome": "not tested", "message": f"not tested: {node}: DRAINED", "verdicts": [], "metrics": []}
    elif own or number == 7:  # the check that fails everywhere
        fields |= failure(fields, node, dice)
    else:
        fields |= {"outcome": "passed", "verdicts": [{"check": fields["check"], "outcome": "passed", "findings": []}]}
    return event("result", **fields)


def metrics(number: int, dice: random.Random, *, slow: bool) -> list[dict[str, Any]]:
    """Return what the item of this number measured."""
    if number < len(METRICS):
        return [
            {
                "name": METRICS[number],
                "value": round(dice.gauss(60, 4), 2),
                "unit": "C",
                "part": gpu(index, uuid="GPU-x").as_dict(),
            }
            for index in range(8)
        ]
    if number == 14:  # a check of the nccl suite
        share = (0.6 if slow else 1) * dice.gauss(1, 0.006)
        curve = [round(480 * share * size / (size + 4e6), 2) for size in SIZES]
        found = [
            {
                "name": "busbw",
                "value": value,
                "unit": "GB/s",
                "part": Part("size", size, of=named("run", "all_reduce")).as_dict(),
                "detail": True,
            }
            for size, value in zip(SIZES, curve, strict=True)
        ]
        title = "all_reduce 16 GiB alone"
        return [
            *found,
            {"name": f"busbw {title}", "value": curve[-1], "unit": "GB/s", "part": {}},
            {"name": f"bound {title}", "value": BOUND, "unit": "GB/s", "part": {"name": "model"}},
        ]
    return []


def failure(fields: dict[str, Any], node: str, dice: random.Random) -> dict[str, Any]:
    """Return what makes an item a failure."""
    finding = {
        "part": gpu(dice.randrange(8), uuid=f"GPU-{dice.getrandbits(64):x}", address="0000:9d:00.0").as_dict(),
        "measured": "17 active links",
        "expected": "18",
    }
    message = f"{fields['check']} on {node}: {Part.read(finding['part'])}: measured 17 active links, expected 18"
    verdict = {
        "check": fields["check"],
        "outcome": "failed",
        "findings": [finding],
        "cause": "an NVLink is down: the GPU is badly seated, or its fabric was not set up",
        "hint": "nvidia-smi nvlink -s; reset all GPUs of the node; reseat the GPU",
        "action": "drain",
    }
    again = f"again:        pytest --cluster=large '{fields['nodeid']}'"
    return {
        "outcome": "failed",
        "message": message,
        "verdicts": [verdict],
        "annotation": ["Slurm state: IDLE", again],
        "text": "\n".join([message, *("a line of the failure's text" for _ in range(20))]),
    }


def remember(run: Run, path: Path) -> None:
    """Store the run in a new history."""
    with contextlib.closing(History(path, create=True)) as history:
        history.add(recorded(run))


def chromium(path: str) -> float:
    """Return the seconds from the start of a headless Chromium to the whole page in its hands."""
    with tempfile.TemporaryDirectory() as profile:
        argv = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        begin = time.monotonic()
        subprocess.run([*argv, "--dump-dom", path], capture_output=True, check=True, timeout=120)
        return time.monotonic() - begin


def main() -> None:
    """Measure, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--checks", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="leave log and reports in this folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "events.jsonl"
        with log.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in events(args.nodes, args.checks))
        print(f"{args.nodes} nodes x {args.checks} checks: log of {log.stat().st_size / 1e6:.0f} MB")
        begin = time.process_time()
        run = read_log(log)
        print(f"the model: {time.process_time() - begin:.1f} s of CPU")
        for name, write in (("report.html", html.write), ("junit.xml", junit.write), ("history.sqlite", remember)):
            path, begin = folder / name, time.process_time()
            write(run, path)
            print(f"{name}: {time.process_time() - begin:.1f} s of CPU, {path.stat().st_size / 1e6:.2f} MB")
        if shutil.which("chromium"):
            blank = chromium("about:blank")
            print(f"Chromium: {chromium((folder / 'report.html').as_uri()) - blank:.2f} s beyond its own {blank:.2f} s")
        else:
            print("Chromium is not installed: its time was not measured")
        print(stamp())


if __name__ == "__main__":
    main()
