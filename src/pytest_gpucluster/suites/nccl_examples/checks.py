"""NCCL's three example programs: the communicators form, and the sums are right. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.framework.payload_result import Fact, PayloadResult
    from pytest_gpucluster.suites.nccl_examples.config import NcclExamplesConfig


def _judge(whole: PayloadResult, node: str = "") -> Judgement:
    """Judge one program on a node ('': on all): every rank once, every element right, every process ends with 0."""
    result = replace(whole, tasks=tuple(task for task in whole.tasks if not node or task.node == node))
    loaded, reduced = result.facts("loaded"), result.facts("reduced")
    for fact in result.facts("no_library"):
        raise NotAvailable(
            f"no libnccl.so.2 on {fact['node']}: {fact['reason']} (NCCL_HOME names its folder)"
        )
    for where, why in result.misplaced.items():
        if not node or where == node:
            yield Finding(where, why, "tasks in the stated container, in the stated number", Action.CONFIGURE)
    size = sum(int(fact["devices"]) for fact in loaded)
    if loaded:
        yield Metric("nccl_examples_devices", size, "GPUs")
    if not result.tasks:
        why = result.silence(node) if node else result.problem or "none started"
        yield Finding("tasks", why, "every task starts")
    for task in result.tasks:
        kinds = {fact[result.key]: fact for fact in task.facts}
        wrong = sum(kinds.get("reduced", {"wrong": ()})["wrong"])
        if "done" not in kinds or task.rc != 0 or wrong:
            why = f"{wrong} elements wrong" if wrong else result.failure_of(task) or task.ending()
            yield Finding(f"task {task.task} ({task.node})", why, "right sums on every device")
    if reduced and len(reduced) == len(result.tasks):
        yield from _ranks(loaded, reduced, size)


def _ranks(loaded: Sequence[Fact], reduced: Sequence[Fact], size: int) -> Judgement:
    ranks = sorted((int(rank), int(of)) for fact in reduced for rank, of in fact["ranks"])
    if ranks != [(rank, size) for rank in range(size)]:
        shown = ", ".join(f"{rank} of {of}" for rank, of in ranks[:8])
        yield Finding("ranks", shown or "none", f"0 to {size - 1} of {size}, once each")
    gpus = Counter(f"{fact['node']} {bus}" for fact in loaded for bus in fact["buses"])
    for gpu, count in sorted(gpus.items()):
        if count > 1:
            yield Finding(f"GPU {gpu}", f"{count} ranks", "one rank")
    yield Metric("nccl_examples_init", max(float(fact["init"]) for fact in reduced), "s")


_CAUSE = "a GPU, an NVLink or the network is broken, ranks share a GPU, or the driver does not fit libnccl"
_HINT = "`Duplicate GPU`: see slurm.gpu_binding; else NCCL_DEBUG=INFO, and each node alone, then pairs: the nccl suite"


@check("nccl_examples.one_process", cause=_CAUSE, hint=_HINT, action=Action.MONITOR)
def one_process(node_name: str, within: PayloadResult) -> Judgement:
    """Judge one process that drives all GPUs of the node."""
    yield from _judge(within, node_name)


@check("nccl_examples.one_device", cause=_CAUSE, hint=_HINT, action=Action.MONITOR, each="one_each")
def one_device(result: PayloadResult) -> Judgement:
    """Judge one process per GPU, on all nodes."""
    yield from _judge(result)


@check("nccl_examples.many_devices", cause=_CAUSE, hint=_HINT, action=Action.MONITOR, each="many_each")
def many_devices(result: PayloadResult) -> Judgement:
    """Judge one process per node that drives all its GPUs, all nodes together."""
    yield from _judge(result)


@check(
    "nccl_examples.compiled",
    cause="the toolkit, CMake, the host compiler or NCCL's header is missing on the node, or they do not fit each other",
    hint="nvcc --version; cmake --version; NCCL_HOME in exports, or modules, of the environment of nccl",
    action=Action.CONFIGURE,
)
def compiled(node_name: str, built: PayloadResult, toolchain: NcclExamplesConfig) -> Judgement:
    """Each claimed tool compiles an example for NCCL on the node."""
    facts = {fact["tool"]: fact for fact in built.of_node(node_name, "built")}
    for tool in toolchain.toolchain:
        if tool not in facts:
            yield Finding(tool, built.silence(node_name), "compiles the example")
        elif facts[tool]["error"]:
            yield Finding(tool, facts[tool]["error"], "compiles the example")
        else:
            yield Metric("nccl_examples_compile", float(facts[tool]["seconds"]), "s", tool)


@check(
    "nccl_examples.compiled_run",
    cause="the driver is too old for the toolkit, or nvcc compiled for another GPU; else as for one_process",
    hint="nvidia-smi (CUDA Version) and nvcc --version; nccl_examples.one_process runs without the toolkit",
    action=Action.MONITOR,
)
def compiled_run(
    node_name: str, built: PayloadResult, toolchain: NcclExamplesConfig, devices: int
) -> Judgement:
    """What was compiled on the node sums right on all its GPUs."""
    if not devices:
        raise NotApplicable("simulated GPUs run no NCCL")
    ran = {fact["tool"]: fact for fact in built.of_node(node_name, "ran")}
    for tool in toolchain.toolchain:
        if tool not in ran:
            yield NotAvailable(f"{tool}: the example did not run: see nccl_examples.compiled")
        elif ran[tool]["error"]:
            yield Finding(f"program of {tool}", ran[tool]["error"], "right sums on every device")
        elif ran[tool]["devices"] != devices or ran[tool]["wrong"]:
            measured = f"{ran[tool]['wrong']} elements wrong on {ran[tool]['devices']} devices"
            yield Finding(f"program of {tool}", measured, f"0 wrong on {devices}")
