"""A missing GPU is the cause of failures in every suite."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_helpers import devices

from pytest_gpucluster.core.check import Finding, Outcome, Verdict
from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.run.facts import MadeFacts
from pytest_gpucluster.suites.gpu.known_cause import with_known_cause
from pytest_gpucluster.suites.gpu.missing_gpus import HINT

ALL = devices()
FEW = replace(ALL, devices=(*ALL.devices[:5], *ALL.devices[6:]))
CAUSE = f"GPU 5 ({ALL.devices[5].bus}) missing: fell off the bus, or not found at boot"
TOO_FEW = Finding("run", "8 requested but only 7 were found", "no failure")


class Facts:
    """Facts of nodes; it counts how often those of all nodes are read."""

    def __init__(self, fleet: dict[str, Any], *, requested: bool) -> None:
        self.fleet, self.requested, self.reads = fleet, requested, 0

    def is_requested(self, probe: object) -> bool:
        return self.requested

    def __call__(self, node: str, probe: object) -> Any:
        if node not in self.fleet:
            raise ProbeError("no answer")
        return self.fleet[node]

    def of_fleet(self, probe: object) -> dict[str, Any]:
        self.reads += 1
        return self.fleet


def an_item(node: str, *, requested: bool = True, gpus: int | None = 8) -> Any:
    facts = Facts({"gpu01": ALL, "gpu02": FEW, "gpu03": ALL}, requested=requested)
    profile = SimpleNamespace(gpu=gpus and SimpleNamespace(count=gpus))
    nodes = {name: SimpleNamespace(profile=profile) for name in ("gpu01", "gpu02", "gpu03", "gpu04")}
    session = SimpleNamespace(facts=facts, nodes=nodes, made=MadeFacts())
    return SimpleNamespace(session=session, record=SimpleNamespace(node=node))


def failed(*findings: Finding) -> Verdict:
    return Verdict("nccl.alone", Outcome.FAILED, findings, cause="too few GPUs", hint="request them")


def explained(verdict: Verdict, item: Any) -> Verdict:
    return with_known_cause(verdict, item.session, item.record.node)


def test_a_failure_of_a_node_has_the_missing_gpu_as_its_cause() -> None:
    item = an_item("gpu02")
    changed = explained(failed(TOO_FEW), item)
    assert (changed.cause, changed.hint) == (CAUSE, HINT)
    explained(failed(TOO_FEW), item)
    assert item.session.facts.reads == 1  # for all items of the run


@pytest.mark.parametrize(
    ("node", "gpus", "finding"),
    [
        ("gpu01", 8, TOO_FEW),  # has all
        ("gpu04", 8, TOO_FEW),  # did not answer
        ("gpu02", None, TOO_FEW),  # should have none
        ("gpu02", 8, Finding("/raid", "full", "5 GiB free")),
    ],
)
def test_other_failures_keep_their_cause(node: str, gpus: int | None, finding: Finding) -> None:
    verdict = failed(finding)
    assert explained(verdict, an_item(node, gpus=gpus)) is verdict


def test_a_failure_of_the_cluster_names_the_node() -> None:
    changed = explained(failed(Finding("gpu02", TOO_FEW.measured, "no failure")), an_item(""))
    assert changed.cause == f"gpu02: {CAUSE}"
    assert explained(failed(TOO_FEW), an_item("")).cause == f"gpu02: {CAUSE}"
    verdict = failed(Finding("gpu01", TOO_FEW.measured, "no failure"))
    assert explained(verdict, an_item("")) is verdict


def test_a_check_that_was_not_made_for_it_names_it_too() -> None:
    verdict = Verdict(
        "ray.gpus", Outcome.NOT_CHECKED, reason="no UUID on gpu02: the devices cannot be distinguished"
    )
    assert explained(verdict, an_item("")).reason == f"{verdict.reason}; gpu02: {CAUSE}"
    other = replace(verdict, reason="no UUID on gpu01")
    assert explained(other, an_item("")) is other
    for item in (an_item("gpu02"), an_item("")):
        absent = replace(verdict, reason="the cluster file has no section")
        assert explained(absent, item) is absent


@pytest.mark.parametrize("found", [TOO_FEW, Finding("GPU 0 of gpu02", "used by 2 ranks", "one rank")])
def test_without_facts_the_nodes_are_asked_only_where_a_program_finds_too_few_gpus(found: Finding) -> None:
    item = an_item("gpu02", requested=False)
    verdict = failed(Finding("GPUs", "7", "8"))
    assert explained(verdict, item) is verdict
    assert item.session.facts.reads == 0
    changed = explained(failed(found), item)
    assert (changed.cause, changed.hint) == (CAUSE, HINT)


def test_a_pass_is_unchanged() -> None:
    verdict = Verdict("nccl.alone", Outcome.PASSED)
    assert explained(verdict, an_item("gpu02")) is verdict
