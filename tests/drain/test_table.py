"""The table of drained nodes: ours only, in order, each with who drained it and when."""

from __future__ import annotations

from drain_helpers import summed

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.drain.table import listed


def test_nodes_that_we_drained_are_rows_and_what_somebody_has_edited_is_shown() -> None:
    ours = summed("gpucluster:gpu.count 7<8 GPUs also=os.x,os.y repair=drain run=r1", "gpu02")
    since = "2026-11-21T08:53:55"
    nodes = [
        NodeInfo(name, state, frozenset(flags), reason=reason, reason_user="root", reason_time=since)
        for name, state, reason, *flags in (
            ("gpu03", "IDLE", f"{ours} bob", "DRAIN"),
            ("gpu02", "ALLOCATED", ours, "DRAIN"),
            ("gpu01", "IDLE", "bob: cable", "DRAIN"),
            ("gpu05", "IDLE", ours),  # it is back in service
        )
    ]
    keys = ("node", "state", "checks", "repair", "found", "run", "log", "since", "by")
    log, row = (
        "reports/r1/events.jsonl",
        ("gpu02", "DRAINING", "gpu.count,os.x,os.y", "drain", "7<8 GPUs", "r1"),
    )
    edited = ("gpu03", "DRAINED", "(edited)", "", f"{ours} bob", "", "", since, "root")
    rows = [dict(zip(keys, values, strict=True)) for values in ((*row, log, since, "root"), edited)]
    assert listed(nodes, {"r1": log}) == rows
    assert listed(nodes, {})[0]["log"] == ""
