"""A waiver of the cluster file covers a failure, a node that is out of service, and a missing proof; nothing else."""

from __future__ import annotations

from argparse import Namespace
from datetime import date
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from drain_helpers import summed
from plugin_helpers import FakeConfig, a_cluster, a_session

from pytest_gpucluster.cluster.plan import Problem, ProblemKind
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.config.models import Cluster
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.waivers import Waiver
from pytest_gpucluster.plugin.reporting import after_return, unproved, untested, waive, waivers_of_proof
from pytest_gpucluster.run.item_record import Record

if TYPE_CHECKING:
    from collections.abc import Collection

UNTIL = date(2999, 1, 1)
WAIVER = Waiver(nodes="gpu[01-03]", checks=("*",), reason="cable", ticket="OPS-7", until=UNTIL, at="prod.yaml:9")


class WithWaivers(Cluster):
    def waiver(self, check: str, node: str) -> Waiver | None:
        return WAIVER if [check, node] in self.settings["covered"] else None

    def waivers_of(self, check: str, node: str, parts: Collection[str]) -> tuple[Waiver, ...]:
        known = [self.waiver(name, node) for name in (check, *(f"{check}/{part}" for part in parts))]
        return tuple(filter(None, known))[:1]


def session(*covered: tuple[str, str]) -> Any:
    plain = dict(a_cluster("gpu[01-03]"))
    return a_session(WithWaivers(**{**plain, "settings": {"covered": [[*one] for one in covered]}}))


CONFIG: Any = FakeConfig(Namespace(cluster="prod", profile=None, set=[], baseline=None, until=None))
DRAINED = Problem(ProblemKind.UNAVAILABLE, 'DRAINED: "bad cable"')


def failure(check: str, node: str, **keywords: Any) -> Any:
    name, record = "test_count[gpu03]", Record(check.partition(".")[0], check, node).as_dict()
    where = (f"test_gpu.py::{name}", ("test_gpu.py", 1, name))
    return pytest.TestReport(*where, keywords, "failed", "7 of 8 GPUs", "call", gpucluster=record)


def test_a_waived_failure_fails_no_run_and_keeps_what_was_found() -> None:
    report = failure("gpu.count", "gpu03")
    assert waive(report, session(("gpu.count", "gpu03")))
    assert report.outcome == "skipped"
    assert report.longrepr[2].startswith(f"waived: {WAIVER.words}; ")
    assert report.gpucluster["waiver"]["at"] == ["prod.yaml:9"]
    assert report.gpucluster["waiver"]["text"] == "7 of 8 GPUs"
    for other in (("gpu.count", "gpu02"), ("gpu.memory", "gpu03"), ("run.available", "gpu03")):
        report = failure("gpu.count", "gpu03")
        assert not waive(report, session(other))
        assert report.outcome == "failed"
    drift = failure("os.drift", "gpu03")
    drift.gpucluster["verdicts"] = [{"findings": [{"part": {"kind": "setting", "name": "kernel"}}]}]
    assert waive(drift, session(("os.drift/kernel", "gpu03")))
    of_the_node = failure("slurm.schedulable", "gpu03", judges_node=1)
    assert waive(of_the_node, session(("run.available", "gpu03")))


@pytest.mark.parametrize(
    ("reason", "begin", "end"),
    [
        ("bad cable", "pytest ", "--nodes=gpu03  # first let who drained gpu03 resume it"),
        (
            summed("gpucluster:gpu.count 7<8 GPUs also=os.* run=old", "gpu03"),
            "scontrol create reservation ReservationName=retest-gpu03 Nodes=gpu03 Users=$(id -un) Flags=maint,ignore_jobs "
            "StartTime=now Duration=1-0 && pytest ",
            "-m 'gpu or os' --nodes=gpu03 --resume-passing --set slurm.reservation=retest-gpu03; "
            "scontrol delete ReservationName=retest-gpu03",
        ),
    ],
)
def test_rerun_of_a_drained_node_resumes_no_drain_of_somebody_else(reason: str, begin: str, end: str) -> None:
    info = NodeInfo("gpu03", "IDLE", flags=frozenset({"DRAIN"}), reason=reason)
    known = a_session(slurm=Mock(), inventory={"gpu03": info})
    assert after_return("gpu03", known, CONFIG) == f"{begin}--cluster=prod {end}"


def test_a_drained_node_is_an_error_unless_a_waiver_covers_it() -> None:
    broken, ended = untested("gpu03", DRAINED, session(), CONFIG)
    assert (broken.outcome, broken.when, ended.outcome) == ("failed", "setup", "passed")
    assert "gpu03 is not tested: DRAINED" in broken.longreprtext
    known = a_session(slurm=Mock(**{"nodes.return_value": {"gpu03": NodeInfo("gpu03", "DOWN")}}))
    known._lost_at_end = {"gpu03": Explanation("", "silent")}
    lost, _ = untested("gpu03", Problem(ProblemKind.LOST, "silent"), known, CONFIG)
    assert lost.longreprtext.startswith("gpu03 was lost: silent\nSlurm state: DOWN\n")
    covered, _ = untested("gpu03", DRAINED, session(("run.available", "gpu03")), CONFIG)
    assert covered.outcome == "skipped"


def test_a_missing_proof_is_an_error_unless_waivers_cover_all_of_it() -> None:
    checks = ("nccl.alone", "nccl.whole")
    for covered, complete in (
        ((("nccl.proved", "gpu01"),), True),
        ((("nccl.alone", "gpu01"), ("nccl.whole", "")), True),
        ((("nccl.alone", "gpu01"),), False),
        ((), False),
    ):
        known = session(*covered)
        found = waivers_of_proof("nccl", "gpu01", checks, known.cluster)
        assert bool(found) is complete, covered
        broken, _ = unproved("nccl", "gpu01", "nccl has not proved gpu01", found, known, CONFIG)
        assert broken.outcome == ("skipped" if complete else "failed")
