"""Settings of the kernel and resource limits."""

from __future__ import annotations

import functools
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Finding, Judgement, check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.kit.node.peers import Peers, alike
from pytest_gpucluster.suites.os.limits import LIMITS, shown_limit, wanted_limits

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
    """Common sysctls that the cluster file does not state are as on the other nodes; bounds may be larger."""
    yield from alike("sysctls", settings, usual_settings, worse=_worse_settings, harmless="a larger bound")


_BOUNDS = ("kernel.pid_max", "vm.max_map_count")  # more is no fault: systemd and Ubuntu 24.04 raise them
_NAME = re.compile(r"(?:^| )((?:kernel|vm)\.\w+)=")


def _worse_settings(mine: str, theirs: str) -> bool:
    """Compare lines of 'name=value', whose values may contain blanks."""
    own, usual = (dict(zip(*2 * (iter(_NAME.split(text)[1:]),), strict=True)) for text in (mine, theirs))
    if own.keys() != usual.keys() or not own:
        return mine != theirs
    return any(
        int(own[name]) < int(value)
        if name in _BOUNDS and own[name].isdecimal() and value.isdecimal()
        else own[name] != value
        for name, value in usual.items()
    )


# others depend on the node's memory, or hardly limit programs
COMPARED_LIMITS = ("memlock", "nofile", "stack", "as")


def refuse_limits(cluster: Cluster) -> None:
    """Raise ConfigError for an invalid limit of os.limits."""
    wanted_limits(cluster.section(OsConfig).limits)


@check(
    "os.limits",
    cause="Slurm passes on the limits of the submitting shell or of slurmd, not those of limits.conf",
    hint="LimitMEMLOCK=infinity in slurmd's unit; PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
    action=Action.CONFIGURE,
    setting="os.limits",
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
        raise NotApplicable("the cluster file states no os.limits, and the group has no majority")
    for name, least in wanted_limits.items():
        line, unit = LIMITS[name]
        if _lower(soft_limits.get(line), least):
            yield Finding(
                name, shown_limit(soft_limits.get(line), unit), f"at least {shown_limit(least, unit)}"
            )
    for name, most in compared.items():
        shown = functools.partial(shown_limit, unit=LIMITS[name][1])
        yield from most.judge(name, soft_limits.get(LIMITS[name][0]), shown=shown, worse=_lower)


def limits_of_group(fleet: Mapping[str, Mapping[str, float]]) -> dict[str, Peers[float | None]]:
    """Return {limit: its values on all nodes} of COMPARED_LIMITS."""
    return {
        name: Peers({node: soft.get(LIMITS[name][0]) for node, soft in fleet.items()})
        for name in COMPARED_LIMITS
    }


def _lower(mine: float | None, theirs: float | None) -> bool:
    return theirs is not None and (mine is None or mine < theirs)
