"""Settings of the kernel and resource limits."""

from __future__ import annotations

import functools
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Finding, Judgement, NotApplicable, check
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.units import format_size, parse_size
from pytest_gpucluster.kit.os_config import OsConfig
from pytest_gpucluster.suites.os.peers import Peers, alike

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.majority import Norm


@check(
    "os.security_modules",
    cause="SELinux or AppArmor was switched on or off on this node only",
    hint="cat /sys/kernel/security/lsm; getenforce; aa-status; set it on the kernel command line",
    action=Action.CONFIGURE,
)
def security_modules(lsm: str, usual_lsm: Norm[Any]) -> Judgement:
    """The active Linux security modules are as on the other nodes."""
    yield from alike("security modules", lsm, usual_lsm)


@check(
    "os.kernel_settings",
    cause="a sysctl was changed on this node only",
    hint="compare `sysctl -a` with a good node; put the value into /etc/sysctl.d of the image",
    action=Action.CONFIGURE,
)
def kernel_settings(settings: str, usual_settings: Norm[Any]) -> Judgement:
    """Common sysctls that the cluster file does not state are as on the other nodes."""
    yield from alike("sysctls", settings, usual_settings)


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
            raise ConfigError(f"os.limits: unknown limit {name!r}; use one of {', '.join(LIMITS)}")
        bare = text.strip().isdecimal()
        try:
            value = math.inf if text in ("unlimited", "infinity", "-1") else parse_size(text)
        except ValueError as error:
            raise ConfigError(f"os.limits: {name}: {error}, or unlimited") from error
        wanted[name] = value * LIMITS[name][1] if bare else value
    return wanted


@check(
    "os.limits",
    cause="Slurm passes on the limits of the submitting shell or of slurmd, not those of limits.conf",
    hint="LimitMEMLOCK=infinity in slurmd's unit; PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
    action=Action.CONFIGURE,
)
def limits(
    soft_limits: Mapping[str, float],
    wanted_limits: Mapping[str, float],
    usual_limits: Mapping[str, Norm[Any]] = MappingProxyType({}),
) -> Judgement:
    """The soft limits of a step are at least as stated, or as on most nodes."""
    compared = {
        name: most for name, most in usual_limits.items() if name not in wanted_limits and not most.absent
    }
    if not wanted_limits and not compared:
        yield NotApplicable("the cluster file states no os.limits, and the group has no majority")
    for name, least in wanted_limits.items():
        line, unit = LIMITS[name]
        if _lower(soft_limits.get(line), least):
            yield Finding(name, _limit(soft_limits.get(line), unit), f"at least {_limit(least, unit)}")
    for name, most in compared.items():
        shown = functools.partial(_limit, unit=LIMITS[name][1])
        yield from most.judge(name, soft_limits.get(LIMITS[name][0]), shown=shown, worse=_lower)


def limits_of_group(fleet: Mapping[str, Mapping[str, float]]) -> dict[str, Peers[float | None]]:
    """Return {limit: its values on all nodes} of COMPARED_LIMITS."""
    return {
        name: Peers({node: soft.get(LIMITS[name][0]) for node, soft in fleet.items()})
        for name in COMPARED_LIMITS
    }


def _lower(mine: float | None, theirs: float | None) -> bool:
    return theirs is not None and (mine is None or mine < theirs)


def _limit(value: float | None, unit: int) -> str:
    if value is None:
        return "not listed by the kernel"
    if math.isinf(value):
        return "unlimited"
    return format_size(value) if unit == 1024 else f"{value:g}"  # KiB: a size
