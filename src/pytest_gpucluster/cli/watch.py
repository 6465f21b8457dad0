"""`gpucluster watch`: a running run from its event log, in a second terminal."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pytest_gpucluster.report.run_model import Run

FIRST = 5  # results before a time left is stated


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpucluster watch`."""
    parser.add_argument(
        "source",
        nargs="?",
        type=Path,
        default=Path("reports"),
        metavar="DIR|FILE",
        help="the folder of a run, an events.jsonl, or a --report-dir for its newest run (default: reports)",
    )
    parser.add_argument("--once", action="store_true", help="print one line and end")
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two lines (%(default)s; 60 is good for the log of a CI job)",
    )


def watch(args: argparse.Namespace) -> None:
    """Print the progress of a run until it ends, then its verdict."""
    from pytest_gpucluster.report.last_screen import closing  # the other commands need no reports
    from pytest_gpucluster.report.run_folder import is_written, newest_log
    from pytest_gpucluster.report.run_model import read_run

    log = newest_log(args.source)
    if not log.is_file():
        raise GpuClusterError(
            f"{log}: does not exist; name a --report-dir, the folder of a run or its events.jsonl"
        )
    columns, rewrites = shutil.get_terminal_size().columns, sys.stdout.isatty()
    run = read_run([])
    lines = _lines(log)
    _take(run, lines)
    name = run.start.get("run", log.parent.name)
    begun = not run.start or is_written(log)
    if not begun:
        print(f"no run is being written; the newest is {name}:")
    while begun and (not run.start or is_written(log)):
        text = progress(run, time.time())[: columns - 1 if rewrites else None]
        print(f"\r{text:{columns - 1}}" if rewrites else text, end="" if rewrites else "\n", flush=True)
        if args.once:
            break
        time.sleep(max(0.1, args.interval))
        _take(run, lines)
    if rewrites and begun:
        print()
    if not args.once or not begun:
        _take(run, lines)
        print("\n".join(closing(run, columns)) if run.results else f"{name} has executed no item")


def progress(run: Run, now: float) -> str:
    """Write how far a run is: its time, its items, what is left at its pace so far, and what has failed."""
    from pytest_gpucluster.core.units import format_duration
    from pytest_gpucluster.report.verdict import ordered
    from pytest_gpucluster.report.words import folded

    done, of = len(run.results), run.items
    seconds = max(0.0, now - (run.began or now))
    share = f"{done:,} of {of:,} items ({done / of:.0%})" if of else f"{done:,} items"
    words = [
        f"{run.start.get('run', 'run')}: {len(run.selected)} nodes, for {format_duration(round(seconds))}",
        share,
    ]
    if of and FIRST <= done < of:
        words.append(f"about {format_duration(round(seconds / done * (of - done)))} left")
    failures = [f"{group.check} on {folded(group.nodes)}" for group in ordered(run)]
    words.append(f"failed: {'; '.join(failures)}" if failures else "no failure")
    return ", ".join(words)


def _take(run: Run, lines: Iterator[str]) -> None:
    """Read the events that have come; a line that is no event is left out, as everywhere."""
    from pytest_gpucluster.core.safe_json import loads

    for line in lines:
        if not line:
            return
        try:
            event = loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            run.take(event)


def _lines(log: Path) -> Iterator[str]:
    """Yield each whole line, and '' where there is none yet."""
    begun = ""
    with log.open(encoding="utf-8", errors="replace") as file:
        while True:
            begun += file.readline()
            whole = begun.endswith("\n")
            yield begun if whole else ""
            begun = "" if whole else begun
