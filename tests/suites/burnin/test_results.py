"""How a burn-in adds up what its nodes say: each sum by itself."""

from __future__ import annotations

import json
from typing import Any

from burnin_helpers import fleet, load
from judged import figures

from pytest_gpucluster.suites.burnin import load_checks
from pytest_gpucluster.suites.burnin.config import DTYPES, HOST_METRICS, BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, GpuInfo, NodeTotals, Peaks, unit_of


def test_units_of_rates() -> None:
    assert {unit_of(it) for it in DTYPES} == {"TFLOP/s"}
    others = {"power": "W", "checking": "of the time", "tested": "of the free memory", "cpu": "units/s"}
    assert {it: unit_of(it) for it in ("hbm", *HOST_METRICS, *others)} == {
        **dict.fromkeys(("hbm", *HOST_METRICS), "GB/s"), **others,
    }  # fmt: skip


def test_the_temperature_is_the_highest() -> None:
    peaks = Peaks()
    for celsius in (70, 60, None, 75):
        peaks.add(2, {"celsius": celsius})
    assert (peaks.samples, peaks.celsius) == (8, 75)


def test_a_power_limit_below_the_cards_own() -> None:
    for limit, default, said in (
        (692.9, 700.0, [692.9, 700]),
        (693.0, 700.0, []),
        (None, 700.0, []),
        (500.0, None, []),
    ):
        assert figures(GpuInfo(0, "U", power_limit=limit, power_default=default).capped) == said


def test_the_gpus_of_a_node() -> None:
    shown = {
        "index": 1,
        "uuid": "U1",
        "bus": "b",
        "name": "n",
        "pcie_gen": 5.0,
        "pcie_width": None,
        "slow_celsius": 90.0,
        "power_limit": 1.0,
        "power_default": 2.0,
        "processes": [{"name": "a", "pid": 7}, {"name": "/usr/bin/nvidia-cuda-mps-server", "pid": 8}],
    }
    devices = [{"gpu": 0, "uuid": "U1"}, {"gpu": 1, "bus": "c", "name": "m"}, {"gpu": 2, "uuid": "U3"}]
    told = NodeTotals("a", {"gpus": [shown, {"index": 9, "uuid": "U9"}], "devices": devices, "simulated": 1})
    assert told.gpus == {
        "U1": GpuInfo(1, "U1", "b", "n", 5, None, 90.0, ("a (pid 7)",), 1.0, 2.0),
        "U9": GpuInfo(9, "U9"),
        "device 1": GpuInfo(1, "device 1", "c", "m"),
        "U3": GpuInfo(2, "U3"),
    }
    assert (told.used, told.simulated) == (("U1", "device 1", "U3"), True)
    assert [told.part(it) for it in ("U1", "U3", "x", "")] == ["GPU 1 (U1, b)", "GPU 2 (U3)", "x", "node"]
    nobody = NodeTotals("a")
    assert (nobody.gpus, nobody.used, nobody.simulated) == ({}, (), False)


def line(load: str = "matmul", *results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"load": load, "results": results, **more}


def test_a_line_is_added_up() -> None:
    told = NodeTotals("a")
    product = {"uuid": "U", "dtype": "bf16", "tflops": 700, "wrong": 2, "checked": 9, "key": "k", "hash": "h"}
    results: list[dict[str, Any]] = [
        product,
        {"uuid": "V", "dtype": "bf16", "tflops": 600, "problem": "x" * 400},
        {"load": "cpu", "rate": 5, "key": "c", "hashes": ["1", "2", "1"]},
        {"load": "storage", "skip": "no room"},
    ]
    sensors = {"U": {"samples": 10, "celsius": 70, "slow": {"heat": 0.25}, "sm_mhz": 1500}}
    strangers, rose = {"U": ["b", "nvidia-cuda-mps-server"]}, {"U": {"xid_79": 1}}
    more: dict[str, Any] = {"deltas": rose, "sensors": sensors, "strangers": strangers}
    told.add(line("matmul", *results, **more, unread={"gpu": "hung"}))
    assert told.ran == {"matmul": 1, "cpu": 1}
    assert told.rates == {"bf16": {"U": [700.0]}, "cpu": {"": [5.0]}}
    assert told.wrong == {"matmul": {"U": 2}, "cpu": {"": 0}}
    assert told.checked == {"matmul": {"U": 9}, "cpu": {"": 1}}
    assert told.hashes == {"k": {"U": ["h"]}, "c": {"": ["1", "2"]}}
    assert told.problems == [("matmul", "V", f"{'x' * 300} (bf16)")]
    assert told.skips == {"storage": "no room"}
    assert (told.rose, told.rose_in) == ({"U": {"xid_79": 1}}, {"U xid_79": ["matmul"]})
    peaks = told.peaks["U"]
    assert (peaks.samples, peaks.celsius, peaks.sm_mhz, peaks.slow) == (10, 70, [1500], {"heat": 2})
    assert told.unread == {"gpu": "hung"}
    told.add(line("hbm", deltas={"U": {"xid_79": 2}}, sensors={"U": {"sm_mhz": 900}}, unread={"xid": "no"}))
    assert (told.rose, told.rose_in) == ({"U": {"xid_79": 3}}, {"U xid_79": ["matmul", "hbm"]})
    assert (told.unread, peaks.sm_mhz, told.ran["hbm"]) == ({"xid": "no"}, [1500], 0)
    told.add(line("hbm", strangers={"V": ["nvidia-cuda-mps-server (pid 8)"]}))
    assert (told.strangers, told.shared) == ({"U": ["b"]}, {"U": {"matmul": 1}})
    assert NodeTotals.from_dict(told.as_dict()) == told


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
    assert told.problems == [("nccl", "device 0", "timeout (a c)")]
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
    whole.dcgm, whole.rounds = {"rc": 0}, 2
    greetings: tuple[dict[str, Any] | None, ...] = ({"gpus": []}, None)
    for hello in greetings:
        told = NodeTotals("a", hello, rounds=1, out="why", lost="gone", dcgm={"rc": 0})
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


def test_no_more_than_four_reasons_are_shown() -> None:
    nodes = {}
    for name in "abc":
        hashes = {f"k{n}/x": {"": ["2" if name == "c" else "1"]} for n in range(5)}
        nodes[name] = NodeTotals(name, {"devices": []}, hashes=hashes)
    (found,) = load_checks.cpu(BurninResult(nodes, 60), "c", BurninConfig()).findings
    assert found.measured == "; ".join(f"k{n}: another result than 2 others" for n in range(4))


def test_a_rate_of_a_part_is_the_median_of_the_rounds() -> None:
    rates = {"bf16": {"U": [3.0, 1.0, 2.0], "V": []}}
    whole = BurninResult({"a": NodeTotals("a", rates=rates), "b": NodeTotals("b")}, 60)
    assert (whole.median("bf16", "a"), whole.median("bf16", "b")) == ({"U": 2.0}, {})
    assert whole.fleet("bf16") == {("a", "U"): 2.0}


def test_a_metric_of_each_result() -> None:
    for kind, key, metric in (
        ("matmul", "tflops", "fp8"),
        ("hbm", "gbs", "hbm"),
        ("copies", "h2d", "h2d"),
        ("copies", "d2h", "d2h"),
        ("peer", "gbs", "peer"),
        ("cpu", "rate", "cpu"),
        ("memory", "rate", "memory"),
        ("storage", "write", "storage_write"),
        ("storage", "read", "storage_read"),
        ("rdma", "rate", "rdma"),
        ("gpu_memory", "tested", "tested"),
    ):
        told = NodeTotals("a")
        told.add(line(kind, {"load": kind, "uuid": "U", "dtype": "fp8", key: 5.0, "other": 1}))
        assert {name: parts for name, parts in told.rates.items() if parts} == {metric: {"U": [5.0]}}


def test_what_a_problem_says() -> None:
    for found, said in (
        ({"problem": "x" * 301}, "x" * 300),
        ({"problem": "x", "dtype": "fp8", "members": ["a"]}, "x (fp8)"),
        ({"problem": "x", "members": []}, "x"),
        ({"problem": 7, "members": ["n" * 400]}, f"7 ({'n' * 298}"),
    ):
        told = NodeTotals("a")
        told.add(line("hbm", {"uuid": "U", **found}))
        assert [text for _, _, text in told.problems] == [said]


def test_a_sum_without_anything_is_short() -> None:
    assert NodeTotals("a").as_dict() == {"node": "a"}
    told = NodeTotals("a", lost="x")
    told.add({"load": "hbm", "deltas": {"U": {}}, "sensors": {"U": {"samples": "3", "slow": {"heat": 0.5}}}})
    plain = told.as_dict()
    assert plain.keys() == {"node", "lost", "peaks"}
    assert NodeTotals.from_dict({**plain, "of_a_later_release": 1}) == told


def test_results_of_unlike_hardware_are_not_compared() -> None:
    other = load("b", "matmul", own={i: {"hash": "bb", "key": "bf16/8192/1/y"} for i in range(4)})
    assert fleet(2, b=[other]).corrupt_gpus() == {}
