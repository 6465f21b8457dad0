"""`gpucluster evidence`: the cases of failed parts of a run, and an archive of one for its vendor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cli.command import Command, argument
from pytest_gpucluster.cli.output import existing, print_clean
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.core.sanitize import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_gpucluster.evidence.case_file import Case
    from pytest_gpucluster.report.run_model import Run


def evidence(args: argparse.Namespace) -> None:
    """Print the cases of a run, one case, or write its archive."""
    from pytest_gpucluster.evidence import archive, case_file
    from pytest_gpucluster.report.machine.events import read_log
    from pytest_gpucluster.report.machine.run_folder import newest_log

    import_checks()
    log = existing(newest_log(args.source))
    run = read_log(log)
    cases = _chosen(case_file.cases_of(run, every=_is_every(run)), args.node, args.part)
    change = archive.anonymous(run) if args.anonymous else str
    if args.output is None and args.node is None:
        _table(run, cases)
        return
    if args.output is None:
        for case in cases:
            record = json.loads(change(json.dumps(case_file.record_of(run, case))))
            if args.form == "dcgm-json":
                print(json.dumps(case_file.dcgm_of(record), indent=1))
            else:
                print(clean(case_file.text_of(record)))
        return
    if len(cases) != 1:
        names = ", ".join(repr(case.name) for case in cases) or "none"
        raise ConfigError(f"--output takes the case of one part: name NODE and PART; PART is one of {names}")
    _write(args, archive, archive.members(case_file.record_of(run, cases[0]), log.parent.resolve(), change))


def _write(args: argparse.Namespace, archive: Any, members: Sequence[Any]) -> None:
    """Print what leaves the site, then write the archive."""
    from pytest_gpucluster.report.machine.atomic_write import write_whole

    print_clean(("file", "bytes", "sha256"), [(it.name, len(it.data), it.sha256) for it in members])
    name = args.output.name.removesuffix(".tar.gz").removesuffix(".tgz")
    write_whole(args.output, archive.packed(members, name))
    print(f"{args.output} holds these files and nothing else")


def _is_every(run: Run) -> bool:
    return run.start.get("evidence") == "all"


def _chosen(cases: Sequence[Case], node: str | None, part: str | None) -> list[Case]:
    """Return the cases of a node, and of a part that is named by its words, address, UUID or serial number."""
    found = [case for case in cases if node in (None, case.node)]
    if node is not None and not found:
        nodes = ", ".join(dict.fromkeys(case.node for case in cases)) or "none"
        raise ConfigError(f"the run has no case of node {node!r}; nodes with a case: {nodes}")
    named = [case for case in found if part is None or part.lower() in map(str.lower, _names(case))]
    if not named and part is not None:
        raise ConfigError(
            f"no case of {part!r} on {node}: its cases are {', '.join(repr(case.name) for case in found)}"
        )
    return named


def _names(case: Case) -> list[str]:
    known = [case.part, *(it.part for it in case.installed)]
    return [case.name, case.part.short, *(key for it in known for key in (it.address, it.name, it.serial) if key)]


def _table(run: Run, cases: Sequence[Case]) -> None:
    from pytest_gpucluster.evidence.case_file import not_captured

    if not cases:
        print("the run has no failed part that requires a repair")
        return
    rows = []
    for case in cases:
        event = run.evidence.get(case.node)
        state = (
            event.get("problem") or f"{len(event.get('files', []))} files" if event else not_captured(run, case.node)
        )
        serials = [it.part.serial for it in case.installed if it.part.serial]
        rows.append((case.node, case.name, ", ".join(serials), ", ".join(case.checks), state))
    print_clean(("node", "part", "serial number", "failed", "evidence"), rows)


EVIDENCE = Command(
    "evidence",
    "the case of each failed part of a run: finding, control, what is excluded, and what was read before a repair",
    evidence,
    (
        argument(
            "source",
            type=Path,
            metavar="DIR|FILE",
            help="the folder of a run, an events.jsonl, or a --report-dir for its newest run",
        ),
        argument("node", nargs="?", metavar="NODE", help="a node of the table (default: print the table)"),
        argument(
            "part", nargs="?", metavar="PART", help="its part, by the table's words, address, UUID or serial number"
        ),
        argument("--form", choices=("text", "dcgm-json"), default="text", help="how a case is printed (%(default)s)"),
        argument(
            "--anonymous",
            action="store_true",
            help="replace the names of nodes, cluster, host and user; addresses and serial numbers stay",
        ),
        argument(
            "--output",
            type=Path,
            metavar="FILE",
            help="write the archive of one part, FILE.tar.gz, and print what it holds: that leaves the site",
        ),
    ),
)
