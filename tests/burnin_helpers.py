"""A burn-in of healthy nodes without a cluster: hellos, lines of loads, a fleet, and what a verdict says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

NAME = "NVIDIA H200"
CONFIG = BurninConfig()


def gpu_of(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def hello(node: str, gpus: int = 4, **more: Any) -> dict[str, Any]:
    about: list[dict[str, Any]] = [
        {"index": i, "uuid": gpu_of(node, i), "bus": f"0000:{i}0:00.0", "name": NAME, "pcie_gen": 5.0,
         "pcie_width": 16.0, "slow_celsius": None, "processes": []}
        for i in range(gpus)
    ]  # fmt: skip
    devices = [{"gpu": i, "uuid": gpu_of(node, i)} for i in range(gpus)]
    return {"gpus": about, "devices": devices, "counted": ["pcie_replay"], "kernel": True, "unread": {}, "broken": [],
            "cpus": 64, **more}  # fmt: skip


def load(node: str, kind: str, gpus: int = 4, **fields: Any) -> dict[str, Any]:
    """A line of kind `load`: healthy results of every GPU, changed by `fields` ({GPU index: {...}})."""
    healthy: dict[str, dict[str, Any]] = {
        "matmul": {
            "dtype": "bf16",
            "key": "bf16/8192/1/x",
            "hash": "aa",
            "wrong": 0,
            "checked": 9,
            "tflops": 700.0,
        },
        "hbm": {"gbs": 4200.0, "wrong": 0},
        "copies": {"h2d": 54.0, "d2h": 55.0, "wrong": 0},
        "peer": {"gbs": 380.0, "wrong": 0},
    }
    own = fields.pop("own", {})
    results = [
        {"load": kind, "gpu": i, "uuid": gpu_of(node, i), **healthy[kind], **own.get(i, {})}
        for i in range(gpus)
    ]
    return {"load": kind, "results": results, "sensors": {}, "deltas": {}, "unread": {}, **fields}


def fleet(nodes: int = 2, **lines: list[dict[str, Any]]) -> BurninResult:
    """A burn-in of healthy nodes a, b, ...; `lines` are further lines of a node in place of its healthy ones."""
    names = "abcdefgh"[:nodes]
    told = BurninResult(
        {name: NodeTotals(name, hello=hello(name)) for name in names}, 3600, 4, seconds=3600, rounds=1
    )
    for name in names:
        told.nodes[name].rounds = 1
        for line in lines.get(name) or [load(name, kind) for kind in ("matmul", "hbm", "copies")]:
            told.nodes[name].add(line)
    return told


def failed(verdict: Verdict) -> list[str]:
    return [f"{finding.part}: {finding.measured}" for finding in verdict.findings]
