"""The options --burnin-time and --burnin-resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.units import parse_option_time
from pytest_gpucluster.suites.burnin.config import BurninConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.suites.burnin.steps import ResumeState

OVERHEAD = 600.0  # seconds of the allocation before and after the burn-in


def requested(option: Any) -> bool:
    """Return whether the options request a burn-in."""
    return bool(option.burnin_time or option.burnin_resume or "burnin" in (option.markexpr or ""))


def prepare(option: Any, read_log: Callable[..., object]) -> None:
    """Read the log of --burnin-resume, which this run may overwrite; ConfigError if it holds no burn-in, or under xdist."""
    # each worker would run a burn-in
    if getattr(option, "numprocesses", None) or getattr(option, "tx", None):
        raise ConfigError("a burn-in loads all nodes at once: run pytest without -n")
    if not option.burnin_resume:
        return
    from pytest_gpucluster.suites.burnin.steps import ResumeState  # a tenth of the start of every other run

    path = Path(option.burnin_resume)
    try:
        found = ResumeState()
        read_log(path, burnin=found.add)
    except OSError as error:
        raise ConfigError(f"--burnin-resume: {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--burnin-resume: {path}: not an event log of this release: {error!r}") from error
    if not found.requested:
        raise ConfigError(f"--burnin-resume: {path}: this event log holds no burn-in")
    option.burnin_before = found


def configure(option: Any, cluster: Cluster) -> tuple[Cluster, float]:
    """Return the cluster with the time of this burn-in, and the minimum duration of the allocation in seconds."""
    config = cluster.section(BurninConfig)
    total = seconds(option, config)
    burnin = config.model_copy(update={"time": total})
    return cluster.model_copy(update={"burnin": burnin}), total + OVERHEAD


def seconds(option: Any, config: BurninConfig) -> float:
    """Return the duration of the burn-in: of --burnin-time, the resumed log or the cluster file."""
    resumed: ResumeState | None = getattr(option, "burnin_before", None)
    if option.burnin_time:
        try:
            total = parse_option_time(option.burnin_time)
        except ValueError as error:
            raise ConfigError(f"--burnin-time: {error}") from error
    else:
        total = resumed.requested if resumed else config.time
    if total <= 0:
        raise ConfigError("--burnin-time: must be greater than 0")
    if resumed and resumed.seconds >= total:
        raise ConfigError(
            f"--burnin-resume: that burn-in is complete: {resumed.seconds:.0f} s of {total:.0f} s; "
            "set a longer --burnin-time to continue it"
        )
    return total
