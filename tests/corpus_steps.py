"""Judge checks that need a step from one recorded output of it: `dcgmi diag -j`, nccl-tests on all ranks, perftest of one pair.

The section is that of the command: `>>> dcgmi *`, `>>> all_reduce_perf *`, `>>> mpirun ... alltoall_perf ...`. What the
run of nccl-tests was to be is the case's `cluster: {settings: {asked: {nodes: ..., gpus: ..., validation: ...}}}`; what
is not said is what the output's own Rank lines say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import rdma_helpers

from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.kit.nccl import nccl_tests
from pytest_gpucluster.kit.nccl import nccl_validation as nccl
from pytest_gpucluster.kit.payloads.perftest_output import error_of, read_perftest
from pytest_gpucluster.suites.burnin import dcgm
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals
from pytest_gpucluster.suites.nccl import bandwidth as nccl_bandwidth
from pytest_gpucluster.suites.rdma import checks as rdma
from pytest_gpucluster.suites.rdma.steps import bound_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpus_cases import Section

CHECKS = ("burnin.dcgm", "nccl.alone", "nccl.alone_bandwidth", "nccl.whole", "nccl.whole_bandwidth", "rdma.bandwidth")


def judge(check: str, node: str, sections: Iterable[Section], cluster: Any) -> Verdict:
    """Return the verdict of a check on a recorded step; AssertionError where the case holds no such step."""
    if check == "rdma.bandwidth":
        return _of_perftest(node, sections, cluster)
    program = "dcgmi" if check == "burnin.dcgm" else "_perf"
    (section,) = [it for it in sections if program in it.what and it.node in ("", node)]
    if check == "burnin.dcgm":
        text = ("", section.text) if section.stderr else (section.text, "")
        said = {"rc": section.rc, "out": text[0], "err": text[1]}
        return dcgm.dcgm(
            BurninResult({node: NodeTotals(node, hello={}, dcgm=said)}, 60), node, cluster.section(BurninConfig)
        )
    return _of_nccl(check, node, section, cluster)


def _of_perftest(node: str, sections: Iterable[Section], cluster: Any) -> Verdict:
    """Judge one pair's output as that of every pair of three nodes on one rail."""
    known = [it for it in sections if it.what.startswith("ib_")]
    found = read_perftest("".join(it.text for it in known if not it.stderr))
    problem = error_of("".join(it.text for it in known if it.stderr))
    value = found.get("bandwidth", f"{node}: {problem}")
    nodes = rdma_helpers.names(3)
    rails = rdma_helpers.rails_of(nodes, rdma_helpers.RAILS[:1])
    bound = bound_of(cluster.group_of(node).profile)
    result = rdma_helpers.measured(nodes, lambda *_: value, bound=bound, rails=rails)
    return rdma.bandwidth(node, result, rdma_helpers.reach(3))


def _of_nccl(check: str, node: str, section: Section, cluster: Any) -> Verdict:
    profile, settings = cluster.group_of(node).profile, cluster.settings.get("asked", {})
    program = re.search(r"(\w+)_perf", section.what)
    assert program is not None
    output = nccl_tests.read(section.text, rc=section.rc, collective=program[1])
    hosts = list(dict.fromkeys(line.host for run in output.runs for line in run.ranks))
    names = tuple(hosts) + tuple(f"absent{at}" for at in range(len(hosts), settings.get("nodes", 1)))
    ranks = max((run.world for run in output.runs), default=0)
    gpus = settings.get("gpus") or ranks // len(names) or 1
    asked = nccl.RunSpec(names, gpus, collective=program[1], data_checked=settings.get("validation", True))
    belief = nccl.validate_run(output, asked, profile)
    if not check.endswith("_bandwidth"):
        return belief
    if belief.outcome is not Outcome.PASSED:
        return Verdict(check, Outcome.NOT_APPLICABLE, reason="the run is not valid")
    rows = (*cluster.group_of(node).thresholds, *profile.nccl)
    env = {name: value for it in cluster.environments.values() for name, value in it.exports.items()}
    return nccl_bandwidth.bandwidth(output.runs[0], rows, nodes=len(names), gpus_per_node=gpus, env=env)
