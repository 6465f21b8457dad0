"""NCCL's three example programs: the communicators form, and the sums are right. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.task_place import MISPLACED
from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Explanation, Quantity
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.kit.framework.payload_result import NOT_STARTED, wrong_data
from pytest_gpucluster.kit.mpi.mpi_errors import code_of

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
        why = f"{fact['reason']} (NCCL_HOME names its folder)"
        raise NotAvailable(f"no libnccl.so.2 on {fact['node']}: {why}")
    for where, why in result.misplaced.items():
        if not node or where == node:
            stated = "tasks in the stated container, in the stated number"
            yield Explanation(MISPLACED, why).finding(Part("node", name=where), stated, Action.CONFIGURE)
    size = sum(int(fact["devices"]) for fact in loaded)
    if loaded:
        yield Metric("nccl_examples_devices", size, "GPUs")
    if not result.tasks:
        silent = result.silent(node) if node else result.stopped or NOT_STARTED
        yield silent.finding(Part("run", name="tasks"), "every task starts")
    for task in result.tasks:
        kinds = {fact[result.key]: fact for fact in task.facts}
        wrong = sum(kinds.get("reduced", {"wrong": ()})["wrong"])
        if "done" not in kinds or task.rc != 0 or wrong:
            part = Part("task", task.task, of=Part("node", name=task.node))
            if wrong:
                yield wrong_data(part, wrong, f"{wrong} elements wrong")
            else:
                yield result.why(task).finding(part, "right sums on every device")
    if reduced and len(reduced) == len(result.tasks):
        yield from _ranks(loaded, reduced, size)


def _ranks(loaded: Sequence[Fact], reduced: Sequence[Fact], size: int) -> Judgement:
    ranks = sorted((int(rank), int(of)) for fact in reduced for rank, of in fact["ranks"])
    if ranks != [(rank, size) for rank in range(size)]:
        shown = ", ".join(f"{rank} of {of}" for rank, of in ranks[:8])
        expected = f"0 to {size - 1} of {size}, once each"
        yield Finding(Part("run", name="ranks"), shown or "none", expected, code="other_ranks")
    gpus = Counter((str(fact["node"]), bus) for fact in loaded for bus in fact["buses"])
    for (node, bus), count in sorted(gpus.items()):
        if count > 1:
            gpu = Part("gpu", address=bus, of=Part("node", name=node))
            yield Finding(gpu, Quantity(count, "ranks"), Quantity(1, "ranks"), code="shared")
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
            yield built.silent(node_name).finding(named("software", tool), "compiles the example")
        elif error := facts[tool]["error"]:
            failed = Explanation(facts[tool]["what"], error)
            yield failed.finding(named("software", tool), "compiles the example")
        else:
            yield Metric("nccl_examples_compile", float(facts[tool]["seconds"]), "s", tool)


@check(
    "nccl_examples.compiled_run",
    cause="the driver is too old for the toolkit, or nvcc compiled for another GPU; else as for one_process",
    hint="nvidia-smi (CUDA Version) and nvcc --version; nccl_examples.one_process runs without the toolkit",
    action=Action.MONITOR,
)
def compiled_run(node_name: str, built: PayloadResult, toolchain: NcclExamplesConfig, devices: int) -> Judgement:
    """What was compiled on the node sums right on all its GPUs."""
    if not devices:
        raise NotApplicable("simulated GPUs run no NCCL")
    ran = {fact["tool"]: fact for fact in built.of_node(node_name, "ran")}
    for tool in toolchain.toolchain:
        if tool not in ran:
            yield NotAvailable(f"{tool}: the example did not run: see nccl_examples.compiled")
            continue
        part = named("software", f"program of {tool}")
        count, wrong = int(ran[tool].get("devices", 0)), ran[tool].get("wrong")
        if error := ran[tool]["error"]:
            failed = Explanation(code_of(error, ran[tool]["what"]), error)
            yield failed.finding(part, "right sums on every device")
        elif wrong:
            yield wrong_data(part, wrong, f"{wrong} elements wrong on {count} devices")
        elif count != devices:
            expected = Quantity(devices, "devices")
            yield Finding(part, Quantity(count, "devices"), expected, code="other_devices")
