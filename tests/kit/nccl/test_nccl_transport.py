"""The transport of torch's ranks, from a recorded log of NCCL over sockets, against profiles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from framework_helpers import spelled
from paths import DATA

from pytest_gpucluster.cluster.slurm.result import TaskResult
from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.core.check import Action, Judgement, check
from pytest_gpucluster.kit.framework.between import Reach
from pytest_gpucluster.kit.framework.payload_result import PayloadResult
from pytest_gpucluster.kit.nccl.nccl_transport import Connections, connections, judge_transport
from pytest_gpucluster.suites.ddp import checks as ddp
from pytest_gpucluster.suites.horovod import checks as horovod
from pytest_gpucluster.suites.training import checks as training

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

TEXT = (DATA / "nccl" / "torch-net-socket-debug.txt").read_text()


@check("ddp.example", cause="c", hint="h", action=Action.MONITOR)
def transport(node: str, found: Connections | None, profile: Profile) -> Judgement:
    """Judge."""
    yield from judge_transport(node, found, profile, "ddp.group")


def recorded() -> Connections:
    """Return the connections of 8 ranks, two on each of four nodes, as their tasks printed them on stderr."""
    lines: dict[int, list[str]] = {rank: [] for rank in range(8)}
    for line in TEXT.splitlines():
        label, _, rest = line.partition(": ")
        lines[int(label)].append(rest)
    return connections(
        TaskResult(rank, f"n{rank // 2 + 1}", 0, stderr="\n".join(text)) for rank, text in lines.items()
    )


def profile(transport: str | None) -> Profile:
    return Profile(name="p", description="d", source="s", fabric=FabricProfile(transport=transport))


def test_sockets_instead_of_the_fabric_fail_the_nodes() -> None:
    outcome, reason, findings, _ = spelled(transport("n3", recorded(), profile("NET/IB/GDRDMA")))
    assert (outcome, reason) == ("failed", "")
    assert len(findings) == 1
    assert findings[0].startswith(
        "n[1-4]: ranks 0->4, 2->5, 3->4, 4->0 ...: NET/Socket between nodes / NET/IB/GDRDMA"
    )


def result(key: str) -> PayloadResult:
    return PayloadResult(key, ("n1", "n2", "n3", "n4"), 8, connections=recorded())


def by_srun() -> horovod.World:
    launch = horovod.Launch("pytorch", "gloo", "srun")
    return horovod.World(launch, gpus=True, connections=recorded())


@pytest.mark.parametrize(
    "judge",
    [
        lambda wanted: ddp.transport("n3", result("ddp"), wanted),
        lambda wanted: training.transport("n3", Reach("training", 4, 4), result("training"), wanted, 2),
        lambda wanted: horovod.transport("n3", [by_srun()], wanted),
    ],
    ids=["ddp", "training", "horovod"],
)
def test_each_suite_compares_its_ranks_with_the_profile(judge: Callable[[Profile], Verdict]) -> None:
    assert spelled(judge(profile("NET/IB/GDRDMA")))[0] == "failed"
    assert spelled(judge(profile("NET/Socket")))[0] == "passed"


def test_the_transport_of_the_profile_passes() -> None:
    assert spelled(transport("n3", recorded(), profile("NET/Socket"))) == ("passed", "", [], [])
    reason = "the profile names no transport between nodes (fabric.transport)"
    assert spelled(transport("n3", recorded(), profile(None))) == ("not applicable", reason, [], [])


def test_what_was_not_logged_is_not_checked() -> None:
    found = recorded()
    cut = replace(found, log=replace(found.log, channels=frozenset()))
    for known in (cut, connections([TaskResult(0, "n1", 1)]), None):
        assert spelled(transport("n3", known, profile("NET/IB")))[0] == "not checked"
