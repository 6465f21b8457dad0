"""Refuses values of the options of the nccl suite before nodes are allocated."""

from __future__ import annotations

from typing import Any

from pytest_gpucluster.suites.nccl import at_times, baseline


def check_options(option: Any) -> None:
    """Raise ConfigError for a --baseline that is no baseline file or could not be written, and for an --until that is no confidence."""
    baseline.check_option(option.baseline)
    if option.until is not None:
        at_times.confidence_of(option.until)
