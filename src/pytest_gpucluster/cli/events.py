"""`gpucluster events`: the event log as whole events, for grep and other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.cli.command import Command, source
from pytest_gpucluster.cli.output import existing

if TYPE_CHECKING:
    import argparse


def events(args: argparse.Namespace) -> None:
    """Print each event as JSON on a line."""
    from pytest_gpucluster.report.machine.events import read_events, strict_json  # the other commands need no reports
    from pytest_gpucluster.report.machine.run_folder import log_in

    for event in read_events(existing(log_in(args.source))):
        print(strict_json(event))


COMMAND = Command("events", "print the events of a run as JSON, one per line and whole", events, (source(),))
