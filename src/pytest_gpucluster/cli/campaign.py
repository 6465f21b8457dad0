"""`gpucluster campaign status|report NAME`: what a campaign has found so far."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster import config
from pytest_gpucluster.cli.command import JSON, Command, argument, cluster_option
from pytest_gpucluster.cli.history import history_file
from pytest_gpucluster.cli.output import print_json
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.sanitize import clean
from pytest_gpucluster.report.machine.atomic_write import write_whole

if TYPE_CHECKING:
    import argparse

    from pytest_gpucluster.campaign.model import Campaign
    from pytest_gpucluster.campaign.store import CampaignStore
    from pytest_gpucluster.campaign.summary import Summary


def campaign(args: argparse.Namespace) -> int:
    """Show a campaign; return 0 if all its nodes are fit, else 1 for `report`."""
    from pytest_gpucluster.campaign.store import CampaignStore
    from pytest_gpucluster.campaign.summary import summarize

    with contextlib.closing(CampaignStore(history_file(args))) as store:
        found = summarize(store, _find(store, args), now=time.time())
    if args.html:
        write_whole(args.html, found.html().encode(errors="replace"))
    if args.metrics:
        write_whole(args.metrics, found.metrics(), mode=0o644)
    if args.json:
        print_json(found.as_dict())
    else:
        _print(found, whole=args.action == "report")
    return int(args.action == "report" and not found.accepted)


def _print(found: Summary, *, whole: bool) -> None:
    for line in found.lines():
        print(clean(line))
    for row in found.rows if whole else ():
        verdicts = ", ".join(
            f"{suite} {it.outcome} {round((found.now - it.started) / 3600, 1)} h ago"
            for suite, it in row.verdicts.items()
        )
        print(clean(f"{row.node}  {row.state}  partners {row.partners}  {verdicts or 'no verdict yet'}"))
    for group in found.groups if whole else ():
        print(
            clean(
                f"group {group.number}  {' '.join(group.nodes)}  {group.kind}  {group.run or 'no run'}  {group.folder}"
            )
        )


def _find(store: CampaignStore, args: argparse.Namespace) -> Campaign:
    known = store.names()
    clusters = [cluster for cluster, name in known if name == args.name]
    wanted = args.cluster
    if wanted is not None and wanted not in clusters:
        wanted = config.load_cluster(wanted).name
    chosen = [cluster for cluster in clusters if wanted in (None, cluster)]
    if len(chosen) != 1:
        listed = ", ".join(f"{name} of {cluster}" for cluster, name in known) or "none"
        what = (
            f"several clusters have a campaign {args.name}: name one with --cluster"
            if chosen
            else f"no campaign {args.name!r}"
        )
        raise ConfigError(f"history {store.path}: {what}; it has: {listed}")
    found = store.campaign(chosen[0], args.name)
    assert found is not None
    return found


COMMAND = Command(
    "campaign",
    "show what a campaign (pytest --campaign) has found: nodes tested, waiting and failing, ages of verdicts",
    campaign,
    (
        argument(
            "action", choices=("status", "report"), help="status: a few lines; report: also each node and each group"
        ),
        argument("name", help="name of the campaign"),
        argument("--history", type=Path, metavar="FILE", help="the file of pytest's --history"),
        cluster_option("cluster of the campaign (default: the only one with a campaign of this name)"),
        JSON,
        argument("--html", type=Path, metavar="FILE", help="write one HTML page"),
        argument(
            "--metrics", type=Path, metavar="FILE", help="write metrics for the textfile collector of node_exporter"
        ),
    ),
)
