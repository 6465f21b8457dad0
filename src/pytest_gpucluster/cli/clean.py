"""`gpucluster clean`: list jobs, folders and containers of killed runs, and remove them with --yes."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cli.command import JSON, Command, argument, cluster_option, one_of
from pytest_gpucluster.cli.node_survey import requests
from pytest_gpucluster.cli.output import print_json
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import AllocationRequest
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.leftovers import Leftover
    from pytest_gpucluster.config.models import Cluster


def clean(args: argparse.Namespace) -> int:
    """List or remove leftovers; return 1 if a check or a removal failed, else 0."""
    from pytest_gpucluster.cluster.slurm import leftovers  # the other commands need no Slurm

    cluster, slurm = _connect(args.cluster, args.nodes)
    results = _Results(yes=args.yes, json=args.json)
    if slurm is not None:
        where = "" if args.cluster else ": run it where squeue works, or name the cluster with --cluster"
        try:
            results.take(leftovers.jobs(slurm))
        except GpuClusterError as error:
            results.problem(f"{error}{where}")
    results.take(_files(cluster))
    if cluster is not None:
        _elsewhere(cluster, results)
    if args.nodes and slurm is not None and cluster is not None:
        _check_nodes(cluster, slurm, args.nodes, results)
    if slurm is not None:
        slurm.transport.close()
    return results.end()


class _Results:
    """Counts of leftovers and failures; each is printed at once, except in a JSON document."""

    def __init__(self, *, yes: bool, json: bool = False) -> None:
        self.yes, self.found, self.stays, self.failed = yes, 0, 0, False
        self.json = json
        self.listed: list[dict[str, Any]] = []

    def take(self, found: Sequence[Leftover]) -> None:
        """Print leftovers; with --yes remove them, and print the results."""
        from pytest_gpucluster.cluster.slurm import leftovers

        for one in found:
            if self.json:
                self.listed.append({"what": one.what, "removable": one.remove is not None, "why": one.stays})
            elif self.yes or one.remove is None:
                self.failed |= not leftovers.remove([one], print)
            else:
                print(one.what)
            self.found += one.remove is not None
            self.stays += one.remove is None

    def problem(self, text: str) -> None:
        """Print a failed check."""
        print(f"gpucluster: error: {one_line(text, 2000)}", file=sys.stderr)
        self.failed = True

    def end(self) -> int:
        """Print the last line, or the document, and return the exit status."""
        if self.json:
            print_json({"leftovers": self.listed})
        elif not self.found and not self.failed:
            print(f"No {'further ' if self.stays else ''}leftovers of killed runs")
        elif self.found and not self.yes:
            print(f"{self.found} found: `gpucluster clean --yes` with the same options removes them")
        return int(self.failed)


def _connect(name: str | None, nodes: str | None) -> tuple[Cluster | None, Slurm | None]:
    """Return the cluster and its Slurm, None if there is none; ConfigError for options that exclude each other."""
    from pytest_gpucluster import config  # slow to import
    from pytest_gpucluster.cluster.slurm.client import Slurm, make_slurm
    from pytest_gpucluster.cluster.transport import LocalTransport

    if name is None:
        if nodes is not None:
            raise ConfigError("--nodes needs --cluster: the cluster file states how to allocate nodes")
        return None, Slurm(LocalTransport(), retry_for=0)
    if name == "sandbox":
        from pytest_gpucluster.sandbox import Sandbox

        name = str(Sandbox().cluster_file)
    cluster = config.load_cluster(name)
    slurm = make_slurm(cluster)
    if slurm is None and nodes is not None:
        raise ConfigError(f"--nodes: {cluster.why_no_slurm}, and runs without jobs leave no containers")
    if slurm is not None:
        slurm.retry_for = 0
    return cluster, slurm


def _files(cluster: Cluster | None) -> list[Leftover]:
    from pytest_gpucluster.cluster.slurm import leftovers
    from pytest_gpucluster.core.registry import parts_of_suites

    shared = (
        [folder for found in parts_of_suites(lambda suite: suite.leftover_folders) for folder in found(cluster)]
        if cluster
        else []
    )
    local = [one for found in parts_of_suites(lambda suite: suite.local_leftovers) for one in found()]
    return [*leftovers.folders(*shared), *local]


def _elsewhere(cluster: Cluster, results: _Results) -> None:
    """Take what suites find outside of Slurm and of the folders."""
    from pytest_gpucluster.core.registry import parts_of_suites

    for found in parts_of_suites(lambda suite: suite.leftovers):
        try:
            results.take(found(cluster))
        except GpuClusterError as error:
            results.problem(str(error))


def _check_nodes(cluster: Cluster, slurm: Slurm, nodes: str, results: _Results) -> None:
    for request in requests(cluster, slurm, nodes, results.problem):
        try:
            for found in _on_nodes(slurm, request, results, cluster):
                results.take([found])
        except GpuClusterError as error:
            results.problem(f"{hostlist.fold(request.nodes)} was not checked: {error}")


def _on_nodes(slurm: Slurm, request: AllocationRequest, results: _Results, cluster: Cluster) -> Iterator[Leftover]:
    from pytest_gpucluster.cluster.channel.channel import Fleet
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.core.registry import parts_of_suites

    progress = partial(print, file=sys.stderr) if results.json else print
    with Allocation.request(slurm, request, progress=progress) as held, Fleet.over_slurm(slurm, held) as fleet:
        problems: list[str] = []
        for read in parts_of_suites(lambda suite: suite.node_leftovers):
            found, unread = read(slurm, fleet, cluster)
            problems += unread
            yield from found
        for problem in (*problems, *(f"{node} was not checked: {why}" for node, why in fleet.lost.items())):
            results.problem(problem)


COMMAND = Command(
    "clean",
    "list jobs, files and containers that killed runs left; with --yes remove them",
    clean,
    (
        cluster_option("cluster to query (default: the Slurm of this machine)"),
        argument(
            "--nodes",
            metavar="LIST",
            help="also list containers on these nodes of --cluster, like gpu[01-04], with one allocated task per node "
            "(default: no node)",
        ),
        one_of(argument("--yes", action="store_true", help="remove what was found (default: only list it)"), JSON),
    ),
)
