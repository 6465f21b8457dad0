"""The transport of torch's ranks, from a recorded log of NCCL over sockets, against profiles."""

from __future__ import annotations

from dataclasses import replace

from framework_helpers import spelled
from paths import DATA

from pytest_gpucluster.cluster.slurm.result import TaskResult
from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.core.check import Action, Judgement, check
from pytest_gpucluster.kit.nccl.nccl_transport import Connections, connections, judge_transport

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
    return connections(TaskResult(rank, f"n{rank // 2 + 1}", 0, stderr="\n".join(text)) for rank, text in lines.items())


def profile(transport: str | None) -> Profile:
    return Profile(name="p", description="d", source="s", fabric=FabricProfile(transport=transport))


def test_sockets_instead_of_the_fabric_fail_the_nodes() -> None:
    outcome, reason, findings, _ = spelled(transport("n3", recorded(), profile("NET/IB/GDRDMA")))
    assert (outcome, reason) == ("failed", "")
    assert len(findings) == 1
    assert findings[0].startswith("n[1-4]: ranks 0->4, 2->5, 3->4, 4->0 ...: NET/Socket between nodes / NET/IB/GDRDMA")


def test_the_transport_of_the_profile_passes() -> None:
    assert spelled(transport("n3", recorded(), profile("NET/Socket"))) == ("passed", "", [], [])
    reason = "the profile names no transport between nodes (fabric.transport)"
    assert spelled(transport("n3", recorded(), profile(None))) == ("not applicable", reason, [], [])


def test_what_was_not_logged_is_not_checked() -> None:
    found = recorded()
    cut = replace(found, log=replace(found.log, channels=frozenset()))
    for known in (cut, connections([TaskResult(0, "n1", 1)]), None):
        assert spelled(transport("n3", known, profile("NET/IB")))[0] == "not checked"
