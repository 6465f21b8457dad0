"""`gpucluster watch`: a running run from its event log, in a second terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from typing import TYPE_CHECKING

from pytest_gpucluster.cli.command import Command, argument, source
from pytest_gpucluster.cli.output import existing

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from pytest_gpucluster.report.run_model import Run


def watch(args: argparse.Namespace) -> None:
    """Print the progress of a run until it ends, then its verdict."""
    from pytest_gpucluster.report.machine.events import GrowingLog, read_run  # the other commands need no reports
    from pytest_gpucluster.report.machine.run_folder import newest_log
    from pytest_gpucluster.report.terminal.last_screen import closing
    from pytest_gpucluster.report.terminal.progress import progress

    path = existing(newest_log(args.source))
    columns, rewrites = shutil.get_terminal_size().columns, sys.stdout.isatty()
    with contextlib.closing(GrowingLog(path)) as log:
        run = read_run(log.new())
        name = run.start.get("run", path.parent.name)
        if not _is_running(run, path):
            print(f"no run is being written; the newest is {name}:")
        while _is_running(run, path):
            text = progress(run, time.time())[: columns - 1 if rewrites else None]
            print(f"\r{text:{columns - 1}}" if rewrites else text, end="" if rewrites else "\n", flush=True)
            if args.once:
                print(end="\n" if rewrites else "")
                return
            time.sleep(max(0.1, args.interval))
            for event in log.new():
                run.take(event)
        for event in log.new():  # what came with its end
            run.take(event)
    print(*(closing(run, columns) if run.results else [f"{name} has executed no item"]), sep="\n")


def _is_running(run: Run, path: Path) -> bool:
    """Return whether a run still writes its log, or is about to write its first line, before which its lock is not tested."""
    from pytest_gpucluster.report.machine.run_folder import is_written

    return is_written(path) if run.start else path.exists()


COMMAND = Command(
    "watch",
    "show how far a running run is",
    watch,
    (
        source(),
        argument("--once", action="store_true", help="print one line and end"),
        argument(
            "--interval",
            type=float,
            default=1.0,
            metavar="SECONDS",
            help="time between two lines (%(default)s; 60 is good for the log of a CI job)",
        ),
    ),
)
