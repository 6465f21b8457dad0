"""Which way of a metric is worse, and how far it has to go before it is more than noise. Pure.

A metric says its direction itself (`Metric.better`) or has that of its unit. A unit that is not in `KINDS`, and
`better="neither"`, has no direction: such a metric is shown, and never named as worse.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.outliers import FEWEST, beyond_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HIGHER", "KINDS", "LOWER", "NEITHER", "Judged", "Kind", "judge", "kind_of"]

HIGHER, LOWER, NEITHER = "higher", "lower", "neither"

# Three runs in turn of all_reduce on real H200, 256 MiB to 4 GiB, two nodes, two programs: no two of three differ by
# more than 1.6% (tests/data/h200x4-slurm/payload-by-nccl-tests.txt). The nccl suite's own tolerance is 5% too.
BANDWIDTH_STEP = 0.05
# Start-up times, small latencies and what goes through file systems: one run says little of their spread, so they
# are judged by spread, and only from FEWEST runs on; a fifth is what an operator would look into.
COARSE_STEP = 0.2


@dataclass(frozen=True)
class Kind:
    """How values of a unit are compared.

    `better` is the good direction; `step` the least relative distance; `fewest` the earlier runs that are needed.
    `counted`: a count of parts or errors: every change is real, and the last value is what it is held against.
    """

    better: str
    step: float = COARSE_STEP
    fewest: int = FEWEST
    counted: bool = False


_BANDWIDTH = Kind(HIGHER, BANDWIDTH_STEP, fewest=1)
_PARTS = Kind(HIGHER, 0.0, fewest=1, counted=True)
_ERRORS = Kind(LOWER, 0.0, fewest=1, counted=True)
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("GB/s", "TFLOP/s"), _BANDWIDTH),
    **dict.fromkeys(("MB/s", "units/s"), Kind(HIGHER)),
    **dict.fromkeys(("s", "ms", "us"), Kind(LOWER)),
    **dict.fromkeys(("GPUs", "CPUs", "ports", "links", "lanes", "generation", "targets"), _PARTS),
    **dict.fromkeys(("errors", "events", "rows", "alerts"), _ERRORS),
}


def kind_of(unit: str, better: str = "") -> Kind:
    """Return how a metric is compared; `better` goes before the unit's direction."""
    kind = KINDS.get(unit, Kind(NEITHER))
    if not better or better == kind.better:
        return kind
    return replace(kind if kind.better != NEITHER else Kind(better), better=better)


@dataclass(frozen=True)
class Judged:
    """One value against earlier ones, oldest first.

    `trend` is worse, better, same, new (nothing earlier), 'too few' (earlier runs to judge it by) or 'no direction'.
    `level` is the median of the earlier values (of a count: the last one), `mad` their median absolute deviation,
    `distance` the share of the level by which the value is above it (None: the level is 0, or nothing was measured).
    """

    trend: str
    level: float | None = None
    mad: float = 0.0
    distance: float | None = None
    runs: int = 0


def judge(value: float | None, earlier: Sequence[float], kind: Kind) -> Judged:
    """Hold a value against earlier ones. None is a value that was no number: worse, where there is a direction."""
    if not earlier:
        return Judged("new")
    level = earlier[-1] if kind.counted else statistics.median(earlier)
    mad = statistics.median(abs(one - level) for one in earlier)
    distance = (value - level) / abs(level) if value is not None and level else None
    return Judged(_trend(value, level, mad, len(earlier), kind), level, mad, distance, len(earlier))


def _trend(value: float | None, level: float, mad: float, runs: int, kind: Kind) -> str:
    if kind.better == NEITHER:
        return "no direction"
    if value is None:
        return "worse"
    if runs < kind.fewest:
        return "too few"
    far = abs(value - level)
    noise = not kind.counted and runs >= FEWEST and not beyond_spread(far, mad)
    if not far > kind.step * abs(level) or noise:
        return "same"
    return "better" if (value > level) == (kind.better == HIGHER) else "worse"
