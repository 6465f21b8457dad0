"""Which nodes leave a burn-in, and which the progress line counts as suspect."""

from __future__ import annotations

from typing import Any

import pytest
from burnin_helpers import GPU_1, UUID, fleet, gpu_of, hello, load, one_node

from pytest_gpucluster.suites.burnin import removal
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import NodeTotals, Peaks

LEAVES = (
    *("gone", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "remapped_uncorrectable"),
    *("remapped_failure", "xid_79"),
)


def test_a_counter_after_which_a_node_leaves() -> None:
    for counter in (*LEAVES, "remapped_pending", "pcie_replay", "xid_31", "link_downed"):
        rose = {"": {"pcie_replay": 1}, UUID: {"xid_31": 1, counter: 2}}
        said = f"{GPU_1}: {counter} rose by 2" if counter in LEAVES else ""
        assert removal.fatal(NodeTotals("a", hello("a"), rose=rose)) == said


def test_wrong_data_after_which_a_node_leaves() -> None:
    def leaves(load: str, partners: Any = None, **counts: int) -> str:
        totals = NodeTotals("a", hello("a"), wrong={load: {gpu_of("a", 0): 0, **counts}})
        totals.partners = partners or {}
        return removal.fatal(totals)

    assert leaves("hbm", **{UUID: 1}) == f"wrong data: hbm, {GPU_1}"
    assert leaves("nccl", **{UUID: 1}) == f"wrong data: nccl, {GPU_1}"
    assert leaves("nccl", {"b": [1.0]}, **{UUID: 1}) == ""
    assert leaves("cpu", {"b": [1.0]}, **{UUID: 1}) == f"wrong data: cpu, {GPU_1}"
    assert leaves("cpu") == ""


def test_deaths_after_which_a_node_leaves() -> None:
    totals = NodeTotals("a", problems=[("hbm", "", "the load ended")] * 2 + [("hbm", "", "no CUDA")])
    totals.problems.append(("nccl", "", "the load ended"))  # another node may be the cause
    assert removal.fatal(totals) == ""
    totals.problems.append(("cpu", "", "the load did not answer in time"))
    assert removal.fatal(totals) == "3 processes of its loads died: cpu: the load did not answer in time"


def test_who_leaves_for_another_result() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"hash": "bb"}})])
    assert removal.corrupt_nodes(whole) == {"a": f"wrong data: {GPU_1}: bf16: another result than 7 others"}
    halves = fleet(2, a=[load("a", "matmul", own={at: {"hash": "bb"} for at in range(4)})])
    assert removal.corrupt_nodes(halves) == {}


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({}, False),
        ({"out": "x"}, True),
        ({"lost": "x"}, True),
        ({"rose": {UUID: {"nvlink_crc_errors": 12_000}}}, False),
        ({"rose": {UUID: {"nvlink_crc_errors": 12_001}}}, True),
        ({"unread": {"gpu": "Failed"}}, True),
        ({"unread": {"xid": "no answer"}}, False),
        ({"wrong": {"hbm": {UUID: 1}}}, True),
        ({"peaks": {UUID: Peaks(10, 81.0)}}, True),
        ({"peaks": {UUID: Peaks(10, 80.0)}}, False),
        ({"rates": {"h2d": {UUID: [9.0]}}}, True),
        ({"rates": {"d2h": {UUID: [9.0]}}}, True),
        ({"rates": {"peer": {UUID: [9.0]}}}, False),
        ({"rates": {"hbm": {UUID: [9.0]}}}, True),
    ],
)
def test_what_the_progress_line_takes_for_a_failure(change: dict[str, Any], *, seen: bool) -> None:
    whole, totals = one_node()
    for name, value in change.items():
        setattr(totals, name, value)
    strict = BurninConfig(max_temperature=80, expect={"peer": 10.0})
    assert removal.suspicious(whole, "a", strict, 120.0) is seen
