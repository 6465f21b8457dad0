"""The table of drained nodes: ours only, in order, each with who drained it and when."""

from __future__ import annotations

from drain_helpers import summed

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.drain.table import held, listed


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
    log, row = ("reports/r1/events.jsonl", ("gpu02", "DRAINING", "gpu.count,os.x,os.y", "drain", "7<8 GPUs", "r1"))
    edited = ("gpu03", "DRAINED", "(edited)", "", f"{ours} bob", "", "", since, "root")
    rows = [dict(zip(keys, values, strict=True)) for values in ((*row, log, since, "root"), edited)]
    assert listed(nodes, {"r1": log}) == rows
    assert listed(nodes, {})[0]["log"] == ""


def test_a_node_that_slurm_drained_for_a_script_is_a_row_and_the_job_that_it_held_is_listed() -> None:
    """As Slurm 22.05 does where a gate in a Prolog ends with 1."""
    nodes = [
        NodeInfo("gpu02", "IDLE", frozenset({"DRAIN"}), reason="Prolog error", reason_user="root"),
        NodeInfo("gpu01", "IDLE", frozenset({"DRAIN"}), reason="Epilog error : Not responding"),
        NodeInfo("gpu03", "IDLE", frozenset(), reason="Prolog error"),  # resumed
        NodeInfo("gpu04", "IDLE", frozenset({"DRAIN"}), reason="bob: Prolog error"),
    ]
    rows = listed(nodes, {})
    assert [(row["node"], row["checks"], row["found"], row["repair"]) for row in rows] == [
        ("gpu01", "(Epilog)", "Epilog error : Not responding", ""),
        ("gpu02", "(Prolog)", "Prolog error", ""),
    ]
    printed = "6|root|launch failed requeued held\n7_[1-3]|bob|JobHeldUser\n\n8|eve|Resources\n"
    assert held(printed) == [{"job": "6", "user": "root", "reason": "launch failed requeued held"}]
