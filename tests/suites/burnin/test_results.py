"""How a burn-in adds up what its nodes say: each sum by itself."""

from __future__ import annotations

import json
from typing import Any

from burnin_helpers import fleet, load
from judged import figures

from pytest_gpucluster.suites.burnin.results import GpuInfo, NodeTotals


def test_a_power_limit_below_the_cards_own() -> None:
    cases: Any = ((692.9, 700.0, [692.9, 700]), (693.0, 700.0, []), (None, 700.0, []), (500.0, None, []))
    for limit, default, said in cases:
        assert figures(GpuInfo(0, "U", power_limit=limit, power_default=default).capped) == said


def test_a_gpu_that_its_node_did_not_list_is_named_by_its_uuid() -> None:
    assert (str(NodeTotals("a").part("GPU-x")), str(NodeTotals("a").part("mlx5_0/1"))) == ("GPU-x", "mlx5_0 port 1")


def line(load: str = "matmul", *results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"load": load, "results": results, **more}


def test_collectives_and_the_diagnostic() -> None:
    told = NodeTotals("a")
    pair = {"gpu": 0, "members": ["a", "b"], "busbw": 40}
    told.add(line("nccl", pair, {**pair, "gpu": 1, "busbw": 41}))
    told.add(line("nccl", {"gpu": 0, "members": ["a"], "busbw": 90}))
    told.add(line("nccl", {"gpu": 0, "members": ["a", "c"], "problem": "timeout"}))
    told.add(line("nccl", {"gpu": 0, "members": ["a", "d"], "wrong": 2}))  # beside products: no rate
    told.add(line("dcgm", {"load": "dcgm", "rc": 0}))
    assert told.partners == {"b": [40.0]}
    assert told.wrong["nccl"]["device 0"] == 2
    both = {"device 0": [40.0], "device 1": [41.0]}
    assert told.rates == {"nccl_pairs": both, "nccl_alone": {"device 0": [90.0]}}
    assert told.problems == [("nccl", "device 0", "timeout (a c)", "waited", ("a", "c"))]
    assert (told.dcgm, told.ran["dcgm"], told.ran["nccl"]) == ({"load": "dcgm", "rc": 0}, 1, 3)


def test_rounds_that_are_merged_are_as_if_their_lines_were_added_in_one() -> None:
    """Only the first round has the agent's hello; a resumed burn-in adds them up."""
    product = {"uuid": "U", "dtype": "bf16", "tflops": 700, "wrong": 1, "key": "k", "hash": "h"}
    results: list[dict[str, Any]] = [product, {"uuid": "U", "problem": "p"}, {"load": "peer", "skip": "s"}]
    seen = {"samples": 4, "celsius": 70, "slow": {"heat": 0.5}, "sm_mhz": 9, "watts": {"690": 4}}
    sensors = {"U": {**seen, "slowed": {"cap": 8.0}}}
    more: dict[str, Any] = {"deltas": {"U": {"gone": 1}}, "sensors": sensors, "strangers": {"U": ["b"]}}
    lines = [
        line("matmul", *results, **more, unread={"gpu": "hung"}),
        line("nccl", {"gpu": 0, "members": ["a", "b"], "busbw": 40, "lacks": ""}),
        line("memory", {"load": "memory", "lacks": "room"}),
        line("gpu_memory", {"uuid": "U", "first": "at 1", "wrong": 1}),
    ]
    whole, both = NodeTotals("a", {"gpus": []}, out="why", lost="first"), NodeTotals("a", lost="first")
    whole.lost_code = both.lost_code = "late"
    whole.dcgm, whole.rounds = {"rc": 0}, 2
    greetings: tuple[dict[str, Any] | None, ...] = ({"gpus": []}, None)
    for hello in greetings:
        told = NodeTotals("a", hello, rounds=1, out="why", lost="gone", lost_code="silent", dcgm={"rc": 0})
        for it in lines:
            whole.add(it)
            told.add(it)
        both.merge(NodeTotals.from_dict(json.loads(json.dumps(told.as_dict()))))
    assert both == whole


def test_no_more_than_50_problems_and_8_strangers() -> None:
    told = NodeTotals("a")
    told.add(line("matmul", *({"uuid": f"{n}", "problem": "p"} for n in range(60))))
    told.add(line("hbm", strangers={"U": [f"p{n}" for n in range(20)]}))
    assert (len(told.problems), len(told.strangers["U"])) == (50, 8)
    told.merge(told)
    assert len(told.problems) == 50


def test_who_else_was_at_work() -> None:
    for ran, shared, seen in ((0, 0, False), (2, 1, True), (3, 1, False), (1, 1, True)):
        told = NodeTotals("a", strangers={"U": ["b"]}, shared={"U": {"hbm": shared}})
        told.ran["hbm"] = ran
        assert told.others("U", "hbm") == (("b",) if seen else ())
        told.hello = {"gpus": [{"index": 0, "uuid": "U", "processes": [{"name": "c", "pid": 1}]}]}
        assert told.others("U", "hbm") == ("c (pid 1)",)


def test_results_of_unlike_hardware_are_not_compared() -> None:
    other = load("b", "matmul", own={i: {"hash": "bb", "key": "bf16/8192/1/y"} for i in range(4)})
    assert fleet(2, b=[other]).corrupt_gpus() == {}
