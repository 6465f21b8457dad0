"""The table of drained nodes: ours only, in order, each with who drained it and when."""

from __future__ import annotations

from drain_helpers import summed

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.drain.table import listed


def test_nodes_that_we_drained_are_rows_and_what_somebody_has_edited_is_shown() -> None:
    ours = summed("gpucluster:gpu.count 7<8 GPUs repair=drain run=r1", "gpu02")
    since = "2026-11-21T08:53:55"
    nodes = [
        NodeInfo(name, "IDLE", frozenset({"DRAIN"}), reason=reason, reason_user="root", reason_time=since)
        for name, reason in (("gpu03", f"{ours} bob"), ("gpu02", ours), ("gpu01", "bob: cable"))
    ]
    common = {"state": "DRAINED", "since": since, "by": "root"}
    assert listed(nodes, {"r1": "reports/r1/events.jsonl"}) == [
        {
            "node": "gpu02",
            "checks": "gpu.count",
            "repair": "drain",
            "found": "7<8 GPUs",
            "run": "r1",
            "log": "reports/r1/events.jsonl",
            **common,
        },
        {
            "node": "gpu03",
            "checks": "(edited)",
            "repair": "",
            "found": f"{ours} bob",
            "run": "",
            "log": "",
            **common,
        },
    ]
