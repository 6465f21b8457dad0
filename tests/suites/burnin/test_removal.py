"""Which nodes leave a burn-in, and which the progress line counts as suspect."""

from __future__ import annotations

from typing import Any

import pytest
from burnin_helpers import GPU_1, UUID, fleet, gpu_of, hello, load, one_node

from pytest_gpucluster.suites.burnin import removal
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import NodeTotals, Peaks


@pytest.mark.parametrize(
    ("counter", "said"),
    [
        ("gone", "gone rose by 2"), ("ecc_uncorrected_volatile", "ecc_uncorrected_volatile rose by 2"),
        ("ecc_uncorrected_aggregate", "ecc_uncorrected_aggregate rose by 2"),
        ("remapped_uncorrectable", "remapped_uncorrectable rose by 2"),
        ("remapped_failure", "remapped_failure rose by 2"), ("xid_79", "xid_79 rose by 2"),
        ("remapped_pending", ""), ("pcie_replay", ""), ("xid_31", ""), ("link_downed", ""),
    ],
)  # fmt: skip
def test_a_counter_after_which_a_node_leaves(counter: str, said: str) -> None:
    totals = NodeTotals("a", hello("a"), rose={"": {"pcie_replay": 1}, UUID: {"xid_31": 1, counter: 2}})
    assert removal.fatal(totals) == (f"{GPU_1}: {said}" if said else "")


def test_wrong_data_after_which_a_node_leaves() -> None:
    assert removal.fatal(NodeTotals("a", hello("a"), wrong={"hbm": {gpu_of("a", 0): 0, UUID: 1}})) == (
        f"wrong data: hbm, {GPU_1}"
    )
    assert removal.fatal(NodeTotals("a", wrong={"nccl": {"": 1}})) == "wrong data: nccl, node"
    assert removal.fatal(NodeTotals("a", wrong={"nccl": {"": 1}}, partners={"b": [1.0]})) == ""
    assert (
        removal.fatal(NodeTotals("a", wrong={"cpu": {"": 1}}, partners={"b": [1.0]}))
        == "wrong data: cpu, node"
    )
    assert removal.fatal(NodeTotals("a", wrong={"cpu": {"": 0}})) == ""


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
        ({}, False), ({"out": "x"}, True), ({"lost": "x"}, True), ({"rose": {UUID: {"nvlink_crc_errors": 12_000}}}, False),
        ({"rose": {UUID: {"nvlink_crc_errors": 12_001}}}, True), ({"rose": {UUID: {"pcie_replay": 16}}}, False),
        ({"rose": {UUID: {"pcie_replay": 17}}}, True), ({"unread": {"gpu": "Failed"}}, True),
        ({"unread": {"xid": "no answer"}}, False), ({"wrong": {"hbm": {UUID: 1}}}, True),
        ({"peaks": {UUID: Peaks(10, 81.0)}}, True), ({"peaks": {UUID: Peaks(10, 80.0)}}, False),
        ({"rates": {"h2d": {UUID: [9.0]}}}, True), ({"rates": {"peer": {UUID: [9.0]}}}, False),
        ({"rates": {"hbm": {UUID: [9.0]}}}, True), ({"rates": {"fp8": {UUID: [9.0]}}}, True),
    ],
)  # fmt: skip
def test_what_the_progress_line_takes_for_a_failure(change: dict[str, Any], *, seen: bool) -> None:
    whole, totals = one_node()
    for name, value in change.items():
        setattr(totals, name, value)
    strict = BurninConfig(max_temperature=80, expect={"peer": 10.0})
    assert removal.suspicious(whole, "a", strict, 120.0) is seen
