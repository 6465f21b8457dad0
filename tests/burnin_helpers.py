"""A burn-in of healthy nodes without a cluster: hellos, lines of loads, a fleet, and what a verdict says."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from counter_examples import CounterExample, result

from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, LoadFailure, NodeTotals

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Check, Verdict

NAME = "NVIDIA H200"
CONFIG = BurninConfig()
UUID, GPU_1 = "GPU-a-1", "GPU 1 (GPU-a-1, 0000:10:00.0)"  # of node a
NO_TORCH = "ModuleNotFoundError: No module named 'torch'"
NO_DEVICE = "RuntimeError: torch 2.11.0+cu130 finds no CUDA device"
NO_MEMORY = "AcceleratorError: CUDA error: out of memory"


def gpu_of(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def hello(node: str, gpus: int = 4, **more: Any) -> dict[str, Any]:
    about: list[dict[str, Any]] = [
        {
            "index": i, "uuid": gpu_of(node, i), "bus": f"0000:{i}0:00.0", "name": NAME, "pcie_gen": 5.0,
            "pcie_width": 16.0, "slow_celsius": None, "processes": [],
        }
        for i in range(gpus)
    ]  # fmt: skip
    devices = [{"gpu": i, "uuid": gpu_of(node, i)} for i in range(gpus)]
    return {
        "gpus": about, "devices": devices, "counted": ["pcie_replay"], "kernel": True, "unread": {}, "broken": [],
        "cpus": 64, **more,
    }  # fmt: skip


def load(node: str, kind: str, gpus: int = 4, **fields: Any) -> dict[str, Any]:
    """A line of kind `load`: healthy results of every GPU, changed by `fields` ({GPU index: {...}})."""
    product = {"dtype": "bf16", "key": "bf16/8192/1/x", "hash": "aa", "wrong": 0, "checked": 9, "tflops": 700.0}
    healthy: dict[str, dict[str, Any]] = {
        "matmul": product,
        "hbm": {"gbs": 4200.0, "wrong": 0},
        "copies": {"h2d": 54.0, "d2h": 55.0, "wrong": 0},
        "peer": {"gbs": 380.0, "wrong": 0},
        "gpu_memory": {"tested": 0.95, "wrong": 0, "first": ""},
    }
    own = fields.pop("own", {})
    results = [
        {"load": kind, "gpu": i, "uuid": gpu_of(node, i), **healthy[kind], **own.get(i, {})} for i in range(gpus)
    ]
    return {"load": kind, "results": results, "sensors": {}, "deltas": {}, "unread": {}, **fields}


def fleet(nodes: int = 2, **lines: list[dict[str, Any]]) -> BurninResult:
    """A burn-in of healthy nodes a, b, ...; `lines` are further lines of a node in place of its healthy ones."""
    names = "abcdefgh"[:nodes]
    totals = BurninResult({n: NodeTotals(n, hello=hello(n)) for n in names}, 3600, 4, seconds=3600, rounds=1)
    for name in names:
        totals.nodes[name].rounds = 1
        for line in lines.get(name) or [load(name, kind) for kind in ("matmul", "hbm", "copies")]:
            totals.nodes[name].add(line)
    return totals


def failed(verdict: Verdict) -> list[str]:
    return [f"{finding.part}: {finding.measured}" for finding in verdict.findings]


def nccl_line(node: str, **told: Any) -> dict[str, Any]:
    about = {"load": "nccl", "gpu": 0, "uuid": gpu_of(node, 0)}
    return {"load": "nccl", "results": [{**about, **told}]}


def idle_gpus(nodes: int, *reasons: str) -> BurninResult:
    """A fleet of nodes of one GPU; the first ones could start no worker, for these reasons."""
    whole = fleet(nodes)
    whole.gpus = 1
    for name, totals in whole.nodes.items():
        whole.nodes[name] = totals = NodeTotals(name, hello=hello(name, 1), rounds=1)
        totals.add({"load": "cpu", "results": [{"load": "cpu", "key": "cpu/1", "hashes": ["a"], "rate": 5.0}]})
    for totals, reason in zip(whole.nodes.values(), reasons, strict=False):
        assert totals.hello is not None
        totals.hello |= {"devices": [], "broken": [reason]}
        totals.add({"load": "hbm", "results": [{"load": "hbm", "skip": reason}]})
    return whole


def one_node(**lines: list[dict[str, Any]]) -> tuple[BurninResult, NodeTotals]:
    whole = fleet(1, **lines)
    return whole, whole.nodes["a"]


def reason(verdict: Verdict, expected: str, words: str = "") -> None:
    """Assert that nothing was judged: with this outcome, for a reason that has these words."""
    assert (result(verdict), words in verdict.reason, verdict.findings) == (expected, True, ()), verdict


def healthy(
    check: Check[...],
    machine: str,
    source: str,
    expected: str,
    *changes: Callable[[BurninResult], None],
    config: BurninConfig = CONFIG,
    sick: bool = False,
) -> CounterExample:
    """Return a machine: node a of a burn-in of three healthy nodes with these changes."""

    def judged() -> Verdict:
        whole = fleet(3)
        for change in changes:
            change(whole)
        facts = {"burnin": whole, "node_name": "a", "config": config, "peers": None}
        return check(*(facts[name] for name in check.facts))

    return CounterExample(check.name, machine, source, expected, judged, sick)


sick = functools.partial(healthy, sick=True)


def risen(seconds: float, part: str = UUID, **counters: int) -> Callable[[BurninResult], None]:
    """Return a change: these counters of a part of node a rose during a burn-in of this duration."""

    def change(whole: BurninResult) -> None:
        whole.seconds = seconds
        for counter, count in counters.items():
            whole.nodes["a"].add(load("a", "matmul", deltas={part: {counter: count}}))

    return change


def problem(load_: str, text: str, part: str = "", code: str = "") -> LoadFailure:
    """Return what a load reported: 'timed out (a b)' of the nodes a and b; `code`: that of the payload."""
    words, _, members = text.partition(" (")
    result = {"problem": words, "code": code, "members": members.rstrip(")").split()}
    return LoadFailure.read(load_, part, result)


def trouble(load_: str, text: str, *parts: str, node: str = "a", code: str = "") -> Callable[[BurninResult], None]:
    """Return a change: a load reports a problem on these parts of a node, the node itself without any."""
    found = [problem(load_, text, part, code) for part in parts or ("",)]
    return lambda whole: whole.nodes[node].problems.extend(found)


def added(*lines: dict[str, Any], node: str = "a") -> Callable[[BurninResult], None]:
    """Return a change: further lines of a node."""

    def change(whole: BurninResult) -> None:
        for line in lines:
            whole.nodes[node].add(line)

    return change
