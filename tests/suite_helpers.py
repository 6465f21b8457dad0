"""What a suite gets from its run: a cluster file, an allocation, a Slurm that knows some jobs; and machines that were considered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CounterExample, assert_as_expected, name

from pytest_gpucluster.cluster.slurm.allocation import Allocation
from pytest_gpucluster.config.models import Cluster, Group, Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucluster.core.check import Check

NODES = ("gpu01", "gpu02")


def cluster_of(*, simulated: bool = False, **sections: Any) -> Cluster:
    """Return a cluster; `sections` are those of suites."""
    profile = Profile(name="x", description="", source="", simulated=simulated)
    cluster = Cluster(name="lab", groups=(Group(nodes="gpu[01-02]", profile=profile),))
    return cluster.model_copy(update=sections)


class Jobs:
    """A Slurm with two jobs in its queue."""

    def run(self, *_argv: str) -> str:
        return "7\n8_1\n"

    def config(self) -> dict[str, str]:
        return {"ClusterName": "lab"}


def allocation_of(slurm: Any = None, nodes: Sequence[str] = NODES) -> Allocation:
    known: Any = slurm or Jobs()
    return Allocation(known, 10, nodes)


def machine(
    check: Check[...], words: str, source: str, expected: str, *facts: Any, sick: bool = False
) -> CounterExample:
    """Return a machine that a check judges by these facts (docs/how-it-decides.md)."""
    return CounterExample(check.name, words, source, expected, lambda: check(*facts), sick)


def considered(examples: Sequence[CounterExample]) -> Callable[[CounterExample], None]:
    """Return the test that each of these machines gets the verdict that a person gave before."""

    @pytest.mark.parametrize("example", examples, ids=name)
    def judged(example: CounterExample) -> None:
        assert_as_expected(example)

    return judged
