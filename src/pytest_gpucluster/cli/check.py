"""`gpucluster check`: validate a cluster file without a connection to any node."""

from __future__ import annotations

import os
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import config
from pytest_gpucluster.cli.command import JSON, Command, argument
from pytest_gpucluster.cli.output import print_json
from pytest_gpucluster.config.loader import changed_source
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.text import count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pytest_gpucluster.config import Cluster
    from pytest_gpucluster.config.yaml_loader import Loc, Source

WRONG, CANNOT_RUN = 4, 1


def check(args: argparse.Namespace) -> int:
    """Print every error of the file, or a summary; return WRONG for an error."""
    source = cluster = None
    try:
        path = find(args.file)
        source = changed_source(path, args.changes)
        cluster = config.load_cluster(path, changes=args.changes)
        errors = [str(error) for error in _errors(source, cluster)]
    except ConfigError as error:
        errors = [*(error.every or (str(error),))]
    summary = _summary(source, cluster) if source and cluster and not errors else {}
    if args.try_steps and cluster and not errors:
        return _try(cluster, summary, as_json=args.json)
    if args.json:
        print_json({"valid": not errors, "errors": errors, **summary})
    else:
        for line in errors or _lines(summary):
            print(line)
    return WRONG if errors else 0


def _try(cluster: Cluster, summary: dict[str, Any], *, as_json: bool) -> int:
    """Print the summary and what each suite would find; return CANNOT_RUN if one with a section could not run."""
    from pytest_gpucluster.cli import try_steps  # only here

    if not as_json:
        for line in _lines(summary):
            print(line, flush=True)
    tried, left = try_steps.try_suites(cluster, partial(print, file=sys.stderr))
    untried = try_steps.untried(cluster, summary["suites"])
    if as_json:
        print_json({"valid": True, "errors": [], **summary, **try_steps.document(tried, left, untried)})
    else:
        for line in ("", *try_steps.lines(tried, left, untried)):
            print(line)
    lacking = [one for one in tried if one.missing and one.suite in summary["suites"]]
    return CANNOT_RUN if lacking or not tried else 0


def find(name: str) -> Path:
    """Return the file of a cluster; that of the sandbox is in its state folder."""
    if name != "sandbox":
        return config.find_cluster(name)
    from pytest_gpucluster.sandbox import Sandbox  # slow to import

    return Sandbox().cluster_file


def _errors(source: Source, cluster: Cluster) -> Iterator[ConfigError]:
    """Yield the values that a run would refuse before it allocates nodes."""
    from pytest_gpucluster.plugin.options import (
        refused_values,
        unmatched_by,  # slow to import
    )

    for loc, error in refused_values(cluster):
        yield source.error(loc, str(error))
    for index, folder in enumerate(cluster.suites):
        if not Path(folder).is_dir():
            yield source.error(("suites", index), f"{folder} is not a folder")
    for index, waiver in enumerate(cluster.waivers):
        if waiver.expired(date.today()):  # noqa: DTZ011 - the site's day
            ticket = f" ({waiver.ticket})" if waiver.ticket else ""
            why = f"expired{ticket}: repair what the waiver accepts and remove it, or set another date"
            yield source.error(("waivers", index, "until"), f"{waiver.until.isoformat()} {why}")
    unmatched, wrong = unmatched_by(cluster, _own_files(cluster))
    for pattern in wrong:
        at, where = _written(cluster, pattern) or ((), unmatched.left[pattern])
        yield source.error(at, f"{where} {unmatched.why(pattern)}")


def _own_files(cluster: Cluster) -> list[Path]:
    return [path for folder in cluster.suites for path in Path(folder).rglob("test_*.py")]


def _written(cluster: Cluster, pattern: str) -> tuple[Loc, str] | None:
    """Return where the cluster file itself has a pattern."""
    if pattern in cluster.required:
        return ("required", cluster.required.index(pattern)), repr(pattern)
    return (("not_applicable", pattern), repr(pattern)) if pattern in cluster.not_applicable else None


def _summary(source: Source, cluster: Cluster) -> dict[str, Any]:
    from pytest_gpucluster.cluster import calling_shell
    from pytest_gpucluster.plugin.open_session import own_limits, shell_warning
    from pytest_gpucluster.plugin.options import unmatched_waivers  # slow to import

    groups = [
        {
            "nodes": group.nodes,
            "count": len(group.names),
            "profile": group.profile.name,
            "partition": group.partition or cluster.slurm.partition,
        }
        for group in cluster.groups
    ]
    return {
        "file": source.label,
        "cluster": cluster.name,
        "nodes": sum(len(group.names) for group in cluster.groups),
        "groups": groups,
        "suites": [suite.name for suite in suites() if suite.section and suite.name in source.data],
        "warnings": (
            *cluster.warnings,
            *unmatched_waivers(cluster, _own_files(cluster)),
            *filter(None, [calling_shell.sentence(calling_shell.unpassed(cluster, os.environ))]),
            *filter(None, [shell_warning(cluster, {}, own_limits()).get("text")]),
        ),
    }


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    groups = summary["groups"]
    counts = f"{count(summary['nodes'], 'node')} in {count(len(groups), 'group')}"
    yield f"{summary['file']}: valid; cluster {summary['cluster']}: {counts}"
    for group in groups:
        where = f", partition {group['partition']}" if group["partition"] else ""
        yield f"  {group['nodes']}: {count(group['count'], 'node')}, profile {group['profile']}{where}"
    yield f"suites with a section: {', '.join(summary['suites']) or 'none'}"
    yield from (f"warning: {line}" for line in summary["warnings"])


COMMAND = Command(
    "check",
    "validate a cluster file without running anything; exit status 4 if it has errors",
    check,
    (
        argument(
            "file", metavar="FILE|NAME", help="a cluster file, or the name of a cluster", completes=config.cluster_names
        ),
        argument(
            "--try",
            dest="try_steps",
            action="store_true",
            help="also run one small step per group and environment, and print what each suite would find there; exit status 1 "
            "if a suite with a section could not run",
        ),
        argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            dest="changes",
            help="validate the file with this value replaced, as pytest's --set does; may be repeated",
        ),
        JSON,
    ),
)
