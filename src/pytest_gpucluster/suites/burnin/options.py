"""The options of the burn-in: how long it lasts, and the earlier one that it goes on with."""

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

AROUND = 600.0  # seconds of the allocation beside the burn-in: start, collectives that end, judging


def requested(option: Any) -> bool:
    """Tell whether this run has a burn-in: hours of load never come unasked."""
    return bool(option.burnin_time or option.burnin_resume or "burnin" in (option.markexpr or ""))


def prepare(option: Any, read_log: Callable[..., object]) -> None:
    """Read the log of --burnin-resume; ConfigError where it holds no burn-in. This run may replace the log."""
    refuse_workers(option)
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
    if not found.asked:
        raise ConfigError(f"--burnin-resume: {path}: no burn-in is in this event log")
    option.burnin_before = found


def configure(option: Any, cluster: Cluster) -> tuple[Cluster, float]:
    """Return the cluster with the time of this burn-in, and how long the allocation must last."""
    config = cluster.section(BurninConfig)
    total = seconds(option, config)
    burnin = config.model_copy(update={"time": total})
    return cluster.model_copy(update={"burnin": burnin}), total + AROUND


def seconds(option: Any, config: BurninConfig) -> float:
    """Return how long the burn-in is to last: --burnin-time, the log's that is resumed, or the cluster file's."""
    resumed: ResumeState | None = getattr(option, "burnin_before", None)
    if option.burnin_time:
        try:
            total = parse_option_time(option.burnin_time)
        except ValueError as error:
            raise ConfigError(f"--burnin-time: {error}") from error
    else:
        total = resumed.asked if resumed else config.time
    if total <= 0:
        raise ConfigError("--burnin-time: nothing is left to do in no time")
    if resumed and resumed.seconds >= total:
        raise ConfigError(
            f"--burnin-resume: that burn-in is over: {resumed.seconds:.0f} s of {total:.0f} s; "
            "ask for more with --burnin-time"
        )
    return total


def refuse_workers(option: Any) -> None:
    """A burn-in is one measurement: xdist's workers would each run one."""
    if getattr(option, "numprocesses", None) or getattr(option, "tx", None):
        raise ConfigError("a burn-in loads all nodes at once: leave -n away")
