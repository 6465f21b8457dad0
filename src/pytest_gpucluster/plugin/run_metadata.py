"""What the `start` event says of a run, so that its reports can be made from the log alone."""

from __future__ import annotations

import contextlib
import getpass
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import __version__
from pytest_gpucluster.core.registry import suites

if TYPE_CHECKING:
    from pytest_gpucluster.plugin.session import ClusterSession

DISTRIBUTIONS = (
    "pytest",
    "pytest-xdist",
    "pytest-testinfra",
    "pydantic",
    "ClusterShell",
)
NARROWING = ("nodes", "exclude_nodes", "partition", "reservation")
SCOPE = (*NARROWING, "account", "profile")


def about(config: pytest.Config, session: ClusterSession) -> dict[str, Any]:
    """Return who runs what from where, on which hardware, judged against what."""
    cluster = session.cluster
    return {
        "description": cluster.description,
        "versions": versions(),
        "host": platform.node(),
        "system": platform.platform(),
        "user": user(),
        "folder": str(config.invocation_params.dir),
        "groups": [
            {
                "nodes": group.nodes,
                "partition": group.partition or cluster.slurm.partition,
                "profile": group.profile.name,
                "description": group.profile.description,
                "source": group.profile.source,
                "simulated": group.profile.simulated,
            }
            for group in cluster.groups
        ],
        "slurmd": slurmds(session),
        "scope": scope(config),
        "shell": session.shell,
        "required": list(cluster.required),
        "not_applicable": dict(cluster.not_applicable),
        "waivers": [waiver.as_dict(date.today()) for waiver in cluster.waivers],  # noqa: DTZ011 - the site's day
        "full": is_full(config),
    }


def is_full(config: pytest.Config) -> bool:
    """Return whether a run has all suites and all nodes of the cluster file: no option and no path narrows it."""
    option = config.option
    pytests = (
        getattr(option, name, None)
        for name in (
            "lf",
            "deselect",
            "ignore",
            "ignore_glob",
            "stepwise",
            "maxfail",
        )  # of plugins that -p no: may leave out
    )
    narrowed = any(getattr(option, name, None) for name in (*NARROWING, "markexpr", "keyword"))
    return not narrowed and not any(pytests) and config.args_source is not pytest.Config.ArgsSource.ARGS


def versions() -> dict[str, str]:
    """Return the versions of what judges."""
    found = {"Python": platform.python_version(), "pytest-gpucluster": __version__}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def slurmds(session: ClusterSession) -> dict[str, list[str]]:
    """Return version of slurmd -> nodes, as Slurm's inventory has it."""
    found: dict[str, list[str]] = {}
    for node in session.plan.selected:
        info = session.inventory.get(node)
        if info is not None and info.version:
            found.setdefault(info.version, []).append(node)
    return found


def scope(config: pytest.Config) -> dict[str, str]:
    """Return the given options that decide what a run tests."""
    option = config.option
    given = {"-m": option.markexpr, "-k": option.keyword}
    given |= {f"--{name.replace('_', '-')}": getattr(option, name) for name in SCOPE}
    for suite in suites():
        given |= {name: getattr(option, name.strip("-").replace("-", "_")) for name in suite.options}
    given |= {"--slow": "yes" if option.slow else "", "--intrusive": "yes" if option.intrusive else ""}
    return {name: str(value) for name, value in given.items() if value}


def user() -> str:
    """Return the name of whoever runs this, '' where the system does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
