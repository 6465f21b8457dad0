"""`gpucluster report`: HTML and JUnit written again from the event log, also of a killed run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cli.command import Command, argument, report_group, source
from pytest_gpucluster.cli.output import existing
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import group_id

if TYPE_CHECKING:
    import argparse

    from pytest_gpucluster.report.regression import ShownComparison
    from pytest_gpucluster.report.run_model import Run

HTML, JUNIT = "report.html", "junit.xml"


def report(args: argparse.Namespace) -> None:
    """Write report.html and junit.xml, and print the result."""
    from pytest_gpucluster.report import html, junit  # the other commands need no templates
    from pytest_gpucluster.report.events import read_log
    from pytest_gpucluster.report.run_folder import log_in

    log = existing(log_in(args.source))
    run = read_log(log)
    if not run.start:
        raise GpuClusterError(f"{log}: is no event log of a run (it has no event `start`)")
    folder = args.output or log.parent
    group = group_id(args.report_group)
    page, cases = folder / HTML, folder / JUNIT
    _refuse_signed(log, folder, force=args.force)
    html.write(run, page, comparison=_comparison(args.history, run, log), group=group)
    print(f"{page}: written")
    if run.finish is not None and cases.exists() and not args.force:
        print(f"{cases}: not changed: the run wrote it at its end; --force replaces it")
    else:
        junit.write(run, cases, group=group)
        unended = "" if run.finish is not None else "; the run did not end, which a testcase reports"
        print(f"{cases}: written{unended}")
    if folder.resolve() == log.parent.resolve():
        _record(run, log, group)


def _refuse_signed(log: Path, folder: Path, *, force: bool) -> None:
    """Refuse to write reports that a signed record names."""
    from pytest_gpucluster.report.run_folder import SIGNATURE

    signed = log.with_name(SIGNATURE)
    if signed.exists() and folder.resolve() == log.parent.resolve() and not force:
        raise GpuClusterError(
            f"{signed}: the record of this run is signed and names its reports: --output=DIR writes them to another "
            "folder, --force replaces them, and the record must be signed again"
        )


def _record(run: Run, log: Path, group: int | None) -> None:
    """Write the record of a run that has ended, and whose log is chained."""
    from pytest_gpucluster.report import chain, record
    from pytest_gpucluster.report.run_folder import is_written

    path = log.with_name(record.RECORD)
    if is_written(log):
        print(f"{path}: not written: the run still writes its log")
    elif not chain.check(log).is_chained:
        print(f"{path}: not written: an earlier version of pytest-gpucluster wrote the log, without a chain")
    else:
        record.write(run, log, group=group)
        print(f"{path}: written")


def _comparison(history: Path | None, run: Run, log: Path) -> ShownComparison | None:
    if history is None:
        return None
    from pytest_gpucluster.report.history import History  # only with a history
    from pytest_gpucluster.report.run_snapshot import recorded

    found = recorded(run, str(log))
    with contextlib.closing(History(history)) as stored:
        return stored.compare(stored.find(found.cluster, found.run)).for_html()


COMMAND = Command(
    "report",
    "write HTML and JUnit again from the event log, also of a killed run",
    report,
    (
        source(),
        argument(
            "--output", type=Path, metavar="DIR", help="folder for the reports (default: that of the log)"
        ),
        argument("--history", type=Path, metavar="FILE", help="compare with earlier runs of this history"),
        report_group("the files"),
        argument(
            "--force",
            action="store_true",
            help=f"also replace the {JUNIT} of a run that was not killed, and reports of a signed record",
        ),
    ),
)
