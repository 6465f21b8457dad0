"""Judges the pairs of nodes of a campaign by the slowest rail of each. Pure."""

from __future__ import annotations

from functools import partial

from pytest_gpucluster.kit.nccl.pair_results import judge_pairs

SLOWEST_RAIL = "slowest_rail"  # metric of a pair: the bandwidth of its slowest rail
judge_rail_pairs = partial(judge_pairs, metric=SLOWEST_RAIL)
