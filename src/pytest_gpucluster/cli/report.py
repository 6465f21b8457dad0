"""`gpucluster report`: HTML and JUnit written again from the event log, also of a killed run."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cli.command import Command, argument, report_group, source
from pytest_gpucluster.cli.output import existing
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import group_id

if TYPE_CHECKING:
    import argparse

    from pytest_gpucluster.report.run_model import Run

HTML, JUNIT = "report.html", "junit.xml"


def report(args: argparse.Namespace) -> None:
    """Write report.html, record.json and junit.xml, and print the result."""
    from pytest_gpucluster.report.machine import acceptance_record as record  # the other commands need no templates
    from pytest_gpucluster.report.machine import junit
    from pytest_gpucluster.report.machine.atomic_write import write_whole
    from pytest_gpucluster.report.machine.events import read_log
    from pytest_gpucluster.report.machine.run_folder import log_in
    from pytest_gpucluster.report.page import html

    log = existing(log_in(args.source))
    run = read_log(log)
    if not run.start:
        raise GpuClusterError(f"{log}: is no event log of a run (it has no event `start`)")
    folder = args.output or log.parent
    group = group_id(args.report_group)
    page, cases = folder / HTML, folder / JUNIT
    _refuse_signed(folder, force=args.force)
    if args.history is not None:
        run.compared = _compared(args.history, run, log)
    stated = record.render(run)
    html.write(run, page, record=stated, group=group)
    write_whole(folder / record.RECORD, stated, group=group)
    print(f"{page}, {record.RECORD}: written")
    if run.finish is not None and cases.exists() and not args.force:
        print(f"{cases}: not changed: the run wrote it at its end; --force replaces it")
    else:
        junit.write(run, cases, group=group)
        unended = "" if run.finish is not None else "; the run did not end, which a testcase reports"
        print(f"{cases}: written{unended}")


def _refuse_signed(folder: Path, *, force: bool) -> None:
    """Refuse to write into a folder that is signed as one of a run, or lies in one of a campaign."""
    from pytest_gpucluster.report.machine.run_folder import SIGNATURE

    run = folder.resolve()
    signed = next((it for it in (run, *run.parents[:2]) if (it / SIGNATURE).exists()), None)
    if signed is not None and not force:
        raise GpuClusterError(
            f"{signed / SIGNATURE}: the folder is signed with its reports: --output=DIR writes them to another folder, --force "
            "replaces them, and the folder must be signed again"
        )


def _compared(history: Path, run: Run, log: Path) -> dict[str, Any]:
    from pytest_gpucluster.report.history.run_snapshot import recorded
    from pytest_gpucluster.report.history.store import History
    from pytest_gpucluster.report.machine.events import strict_json  # only with a history

    found = recorded(run, str(log))
    with contextlib.closing(History(history)) as stored:
        shown = stored.compare(stored.find(found.cluster, found.run)).for_html()
    event: dict[str, Any] = json.loads(strict_json(asdict(shown)))
    return event


COMMAND = Command(
    "report",
    "write HTML, record and JUnit again from the event log, also of a killed run",
    report,
    (
        source(),
        argument("--output", type=Path, metavar="DIR", help="folder for the reports (default: that of the log)"),
        argument("--history", type=Path, metavar="FILE", help="compare with earlier runs of this history"),
        report_group("the files"),
        argument(
            "--force",
            action="store_true",
            help=f"also replace the {JUNIT} of a run that was not killed, and reports in a signed folder",
        ),
    ),
)
