"""NCCL's three classic programs: do the communicators form, and is the data right? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Finding, Metric, NotChecked, check

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.payload_result import Fact, PayloadResult


def judge(told: PayloadResult, node: str = "") -> Judgement:
    """Judge one program on a node ('': on all): every rank once, every element right, every process ends with 0."""
    tasks = [task for task in told.tasks if not node or task.node == node]
    facts = [fact for task in tasks for fact in task.facts]
    lacking = [fact for fact in facts if fact.get("library") is False]
    if lacking:
        yield NotChecked(
            f"no libnccl.so.2 on {lacking[0]['node']}: {lacking[0]['reason']} (NCCL_HOME names its folder)"
        )
        return
    if not tasks:
        yield Finding(
            "tasks", told.silence(node) if node else told.problem or "none started", "every task starts"
        )
        return
    loaded = [fact for fact in facts if fact[told.key] == "loaded"]
    size = sum(int(fact["devices"]) for fact in loaded)
    if loaded:
        yield Metric("nccl_examples_devices", size, "GPUs")
    for task in tasks:
        if not any(fact[told.key] == "done" for fact in task.facts) or task.rc != 0:
            wrong = _wrong(task.facts, told.key)
            said = f"{wrong} elements wrong" if wrong else _why(task.facts, told.key) or task.ending()
            yield Finding(f"task {task.task} ({task.node})", said, "right sums on every device")
    reduced = [fact for fact in facts if fact[told.key] == "reduced"]
    if len(reduced) < len(tasks):
        return
    seen = sorted((int(rank["rank"]), int(rank["size"])) for fact in reduced for rank in fact["ranks"])
    if seen != [(rank, size) for rank in range(size)]:
        ranks = ", ".join(f"{rank} of {of}" for rank, of in seen[:8])
        yield Finding("ranks", ranks or "none", f"0 to {size - 1} of {size}, once each")
    buses = [f"{fact['node']} {bus}" for fact in loaded for bus in fact["buses"]]
    for bus in sorted({bus for bus in buses if buses.count(bus) > 1}):
        yield Finding(f"GPU {bus}", f"{buses.count(bus)} ranks", "one rank")
    yield Metric("nccl_examples_init", max(float(fact["init"]) for fact in reduced), "s")


def _wrong(facts: tuple[Fact, ...], key: str) -> int:
    return sum(sum(fact["wrong"]) for fact in facts if fact[key] == "reduced")


def _why(facts: tuple[Fact, ...], key: str) -> str:
    for fact in facts:
        if fact[key] == "failed":
            return f"{fact['phase']}: {fact['reason']}"
        if fact[key] == "stuck":
            return f"{fact['phase']}: no end after {fact['seconds']:g} s"
    return ""


_CAUSE = "a GPU, an NVLink or the way between nodes is broken, ranks share a GPU, or the driver does not fit libnccl"
_HINT = "`Duplicate GPU`: see slurm.gpu_binding; else NCCL_DEBUG=INFO, and each node alone, then pairs: the nccl suite"


@check("nccl_examples.one_process", cause=_CAUSE, hint=_HINT)
def one_process(node_name: str, within: PayloadResult) -> Judgement:
    """Judge one process that drives all GPUs of the node."""
    yield from judge(within, node_name)


@check("nccl_examples.one_device", cause=_CAUSE, hint=_HINT, each="one_each")
def one_device(told: PayloadResult) -> Judgement:
    """Judge one process a GPU, on all nodes."""
    yield from judge(told)


@check("nccl_examples.many_devices", cause=_CAUSE, hint=_HINT, each="many_each")
def many_devices(told: PayloadResult) -> Judgement:
    """Judge one process a node that drives all its GPUs, all nodes together."""
    yield from judge(told)
