"""Words and settings that mean nothing for the cluster: each is refused before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.plugin import text_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster


def refuse_words(option: Any) -> None:
    """Raise UsageError for words of the command line that mean nothing for a cluster, whatever it is."""
    if getattr(option, "dist", None) == "each":
        raise pytest.UsageError(
            "--dist=each: runs every test in every worker, on the same nodes: leave it out"
        )
    for name, word in (("-n", "numprocesses"), ("--maxprocesses", "maxprocesses")):
        value = getattr(option, word, None)
        if isinstance(value, int) and value < 0:
            raise pytest.UsageError(f"{name} {value}: must be a number of processes from 0 on")
    if getattr(option, "hosts", None):  # of testinfra
        raise pytest.UsageError(
            "--hosts: has no effect with --cluster, whose file names the nodes: use --nodes=HOSTLIST"
        )
    for name, word in text_options():
        if getattr(option, word) == "":
            raise pytest.UsageError(f"{name}: has no value: write one, or leave the option out")


def refuse_slurms_options(option: Any, cluster: Cluster) -> None:
    """Raise ConfigError for an option that chooses in Slurm where there is no Slurm."""
    for word in ("partition", "reservation", "account"):
        if getattr(option, word) is not None and cluster.why_no_slurm:
            raise ConfigError(f"--{word}: has no effect: {cluster.why_no_slurm}")


def refuse_names(cluster: Cluster) -> None:
    """Raise ConfigError for a value of the cluster file that a suite refuses, like a limit that no system has."""
    for _loc, error in refused_values(cluster):
        raise error


def refused_values(cluster: Cluster) -> Iterator[tuple[tuple[str, str], ConfigError]]:
    """Yield the section and key of each value that a suite refuses, and the suite's error."""
    for suite in suites():
        section = getattr(cluster, suite.name, None)
        for key in section.model_fields_set & suite.settings.keys() if section is not None else ():
            try:
                suite.load(suite.settings[key])(cluster)
            except ConfigError as error:
                yield (suite.name, key), error


def check_nodes(cluster: Cluster, inventory: Mapping[str, NodeInfo]) -> None:
    """Raise ConfigError where Slurm has no node of the cluster file; one that is missing is its own problem."""
    expected = [node for group in cluster.groups for node in group.names]
    if not inventory.keys() & set(expected):
        known = hostlist.fold(inventory) if inventory else "none that this user sees"
        raise ConfigError(
            f"cluster {cluster.name}: Slurm knows no node of {hostlist.fold(expected)}; it has {known}: correct the "
            "nodes in the cluster file, or name this cluster's slurm.conf as slurm.conf there"
        )
