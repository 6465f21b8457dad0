"""A missing GPU is the cause of failures in every suite."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from gpu_helpers import devices

from pytest_gpucluster.config.models import GpuProfile, Group, Profile
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict, conclude
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpus
from pytest_gpucluster.kit.gpu.too_few import FEW_GPUS
from pytest_gpucluster.run.facts import MadeFacts
from pytest_gpucluster.suites.gpu.known_cause import with_known_cause
from pytest_gpucluster.suites.gpu.missing_gpus import HINT

ALL = devices()
FEW = replace(ALL, devices=(*ALL.devices[:5], *ALL.devices[6:]))
CAUSE = f"GPU 5 ({ALL.devices[5].bus}) missing: fell off the bus, or not found at boot"
TOO_FEW = Finding("run", "8 requested but only 7 were found", "no failure", code=FEW_GPUS)


class Facts:
    """Facts of nodes; it counts how often those of all nodes are read."""

    def __init__(self, *, requested: bool) -> None:
        self.fleet, self.requested, self.reads = {"gpu01": ALL, "gpu02": FEW, "gpu03": ALL}, requested, 0

    def is_requested(self, _probe: object) -> bool:
        return self.requested

    def __call__(self, node: str, _probe: object) -> Gpus:
        if node not in self.fleet:
            raise ProbeError("no answer")
        return self.fleet[node]

    def of_fleet(self, _probe: object) -> dict[str, Gpus]:
        self.reads += 1
        return self.fleet


@dataclass
class Session:
    """A run as far as causes look at it; gpu04 does not answer."""

    facts: Facts = field(default_factory=lambda: Facts(requested=True))
    gpus: int | None = 8
    made: MadeFacts = field(default_factory=MadeFacts)

    @property
    def nodes(self) -> dict[str, Group]:
        gpu = GpuProfile(count=self.gpus, name="NVIDIA H200") if self.gpus else None
        profile = Profile(name="p", description="", source="", gpu=gpu)
        return {name: Group(nodes=name, profile=profile) for name in ("gpu01", "gpu02", "gpu03", "gpu04")}


def failed(*findings: Finding) -> Verdict:
    return Verdict("nccl.alone", Outcome.FAILED, findings, cause="too few GPUs", hint="request them")


def explained(verdict: Verdict, node: str = "", session: Any = None) -> Verdict:
    run: Any = session or Session()
    return with_known_cause(verdict, run, node)


def test_a_failure_of_a_node_has_the_missing_gpu_as_its_cause() -> None:
    session = Session()
    for _ in range(2):
        changed = explained(failed(TOO_FEW), "gpu02", session)
        assert (changed.cause, changed.hint) == (CAUSE, HINT)
    assert session.facts.reads == 1  # for all items of the run


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
    assert explained(verdict, node, Session(gpus=gpus)) is verdict


def test_a_failure_of_the_cluster_names_the_node() -> None:
    for part in (Part("node", name="gpu02"), Part("run")):
        assert explained(failed(replace(TOO_FEW, part=part))).cause == f"gpu02: {CAUSE}"
    for part in (Part("rank", 3, nodes=("gpu01",)), Part("rank", 3, of=Part("node", name="gpu01"))):
        verdict = failed(replace(TOO_FEW, part=part))
        assert explained(verdict) is verdict


def test_a_check_that_was_not_made_for_it_names_it_too() -> None:
    for code, node, named in (
        (FEW_GPUS, "", "gpu02: "),
        (FEW_GPUS, "gpu02", ""),
        (FEW_GPUS, "gpu01", None),
        ("", "gpu02", None),
        ("", "", None),
    ):
        verdict = conclude("ray.gpus", [NotAvailable("no", code)], cause="c", hint="h", action=Action.MONITOR)
        shown = "no" if named is None else f"no; {named}{CAUSE}"
        assert explained(verdict, node).reason == shown
