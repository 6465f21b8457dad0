"""Limits of processes: names, units, and how the cluster file writes them. Pure."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.units import format_size, parse_size
from pytest_gpucluster.kit.node.os_config import OsConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.config.models import Cluster

# name in limits.conf and ulimit: line of /proc/PID/limits, and unit of a number without a unit (ulimit(1))
LIMITS: dict[str, tuple[str, int]] = {
    "as": ("Max address space", 1024),
    "core": ("Max core file size", 1024),
    "cpu": ("Max cpu time", 1),
    "data": ("Max data size", 1024),
    "fsize": ("Max file size", 1024),
    "locks": ("Max file locks", 1),
    "memlock": ("Max locked memory", 1024),
    "msgqueue": ("Max msgqueue size", 1),
    "nofile": ("Max open files", 1),
    "nproc": ("Max processes", 1),
    "rss": ("Max resident set", 1024),
    "rtprio": ("Max realtime priority", 1),
    "sigpending": ("Max pending signals", 1),
    "stack": ("Max stack size", 1024),
}

# others depend on the node's memory, or hardly limit programs
COMPARED_LIMITS = ("memlock", "nofile", "stack", "as")


def refuse_limits(cluster: Cluster) -> None:
    """Raise ConfigError for an invalid limit of os.limits."""
    wanted_limits(cluster.section(OsConfig).limits)


def wanted_limits(stated: Mapping[str, str]) -> dict[str, float]:
    """Read os.limits: 'unlimited', a number in ulimit's unit (KiB for memory), or a size like 64G."""
    wanted: dict[str, float] = {}
    for name, text in stated.items():
        if name not in LIMITS:
            raise ConfigError(f"unknown limit {name!r}; use one of {', '.join(LIMITS)}")
        bare = text.strip().isdecimal()
        try:
            value = math.inf if text in ("unlimited", "infinity", "-1") else parse_size(text)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}, or unlimited") from error
        wanted[name] = value * LIMITS[name][1] if bare else value
    return wanted


def shown_limit(value: float | None, unit: int) -> str:
    """Write a limit of /proc/PID/limits in words."""
    if value is None:
        return "not listed by the kernel"
    if math.isinf(value):
        return "unlimited"
    return format_size(value) if unit == 1024 else f"{value:g}"  # KiB: a size


def least_limits(cluster: Cluster) -> dict[str, tuple[float, Callable[[float], str]]]:
    """Return what os.limits asks of nodes, {limit: (least value, function that shows a value)}."""
    return {
        name: (least, partial(shown_limit, unit=LIMITS[name][1]))
        for name, least in wanted_limits(cluster.section(OsConfig).limits).items()
    }
