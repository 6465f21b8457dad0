"""`gpucluster check --try`: one small step per group and environment, and what each suite would find there."""

from __future__ import annotations

import contextlib
import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cli.node_survey import held_node, idle_nodes
from pytest_gpucluster.config.models import DEFAULT_ENVIRONMENT, EnvironmentConfig
from pytest_gpucluster.config.yaml_loader import clip
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.kit.framework.between import ONE_NODE_RUN
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig
from pytest_gpucluster.kit.node import node_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster, Group
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.core.survey import Software
    from pytest_gpucluster.core.values import SuiteSection

STEP = 180.0  # seconds of one step, with the import of its image
SPARE = 120.0  # seconds of the job beside its steps
WIDTH = 80
OUTSIDE = "no environment"


@dataclass(frozen=True)
class Tried:
    """What one suite would find in one environment on one node. `missing` '': it would run."""

    nodes: str
    node: str
    suite: str
    environment: str
    runs: str
    missing: str = ""


@dataclass(frozen=True)
class Step:
    """What a step found in one environment, or why it did not run."""

    found: Software | None = None
    problem: str = ""


def try_suites(cluster: Cluster, progress: Callable[[str], None]) -> tuple[list[Tried], dict[str, str]]:
    """Return what each suite of the file would find, by group, and {nodes of a group: why it was not tried}."""
    from pytest_gpucluster.cluster.slurm.client import make_slurm  # slow to import

    slurm = make_slurm(cluster)
    if slurm is None or cluster.why_no_slurm:
        raise GpuClusterError(f"--try: there are no steps: {cluster.why_no_slurm}")
    slurm.retry_for = 0
    tried: list[Tried] = []
    left: dict[str, str] = {}
    with contextlib.closing(slurm.transport):
        for group in filter(cluster.reaches, cluster.groups):
            try:
                tried += _of_group(cluster, slurm, group, progress)
            except GpuClusterError as error:
                left[group.nodes] = str(error)
    return tried, left


def _of_group(cluster: Cluster, slurm: Slurm, group: Group, progress: Callable[[str], None]) -> Iterator[Tried]:
    node = idle_nodes(slurm, group.names)[0]
    wanted = [(suite, section) for suite in suites() if (section := _section(cluster, suite)) is not None]
    environments = {
        label: environment for _, section in wanted for label, environment in _environments(cluster, section)
    }
    seconds = min(SPARE + STEP * len(environments), cluster.slurm.time)  # the partition may allow no more
    with held_node(cluster, slurm, group, node, progress, seconds=seconds) as held:
        programs = [program for _, section in wanted if (program := _program(section))]
        steps = {label: _step(slurm, held, environment, programs) for label, environment in environments.items()}
        gpus = slurm.nodes()[node].gpus
    for suite, section in wanted:
        for label, _ in _environments(cluster, section):
            runs, missing = _judged(cluster, group, suite, section, steps[label], gpus)
            yield Tried(group.nodes, node, suite.name, label, runs, missing)


def _section(cluster: Cluster, suite: Suite) -> SuiteSection | None:
    """Return the section of a suite whose steps use an environment."""
    section = cluster.sections().get(suite.name)
    return section if section is not None and (section.environment_keys_used() or section.images_of_steps()) else None


def untried(cluster: Cluster, names: Iterable[str]) -> list[str]:
    """Return those of these suites whose sections name nothing that a small step could find."""
    return [suite.name for suite in suites() if suite.name in names and _section(cluster, suite) is None]


def _environments(cluster: Cluster, section: SuiteSection) -> list[tuple[str, EnvironmentConfig | None]]:
    """Return (label, environment) of the steps of a suite; an image that its section names goes first."""
    if images := section.images_of_steps():
        return [(f"image {image}", EnvironmentConfig(container_image=image)) for image in images]
    found: dict[str, EnvironmentConfig | None] = {}
    for key in section.environment_keys_used():
        name = getattr(section, key)
        environment = cluster.environment(name)
        found[f"environments.{name or DEFAULT_ENVIRONMENT}" if environment is not None else OUTSIDE] = environment
    return [*found.items()]


def _program(section: SuiteSection) -> str:
    """Return the program that a section's `command` names, '' if it names none."""
    return str(getattr(section, "command", "")).partition(" ")[0]


def _step(slurm: Slurm, held: Allocation, environment: EnvironmentConfig | None, programs: Iterable[str]) -> Step:
    from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step  # slow to import

    python = environment.python if environment is not None else "python3"
    script = node_facts.software_script(python, torch=True, paths=programs)
    request = StepRequest(
        ("sh", "-c", script), held.nodes, 1, environment=environment, mpi="none", timeout=STEP, reuse=False
    )
    try:
        result = run_step(slurm, held, request)
    except GpuClusterError as error:
        return Step(problem=error.brief or str(error))
    task = result.tasks[0]
    try:
        return Step(node_facts.SOFTWARE.parse(Answer(task.node, task.rc, task.stdout.encode(), task.stderr.encode())))
    except GpuClusterError as error:
        return Step(problem=result.hint or str(error))


def _judged(
    cluster: Cluster, group: Group, suite: Suite, section: SuiteSection, step: Step, gpus: int
) -> tuple[str, str]:
    """Return what a suite would run, and what is missing and what to do."""
    if step.found is None:
        return "", clip(step.problem, 300)
    found = step.found
    if group.profile.simulated and found.devices == 0:
        found = replace(found, devices=gpus)  # torch sees no simulated GPU
    judge = suite.tried or _by_needs
    # a sandbox runs a program of its own on simulated GPUs
    simulated = bool(suite.simulated_payload) and group.profile.simulated
    runs, missing = judge(suite, section, found, 0 if simulated else gpus)
    runs += "; the GPUs are simulated" * (simulated and bool(runs))
    if "2 nodes" in suite.needs:
        partition = group.partition or cluster.slurm.partition
        nodes = sum(len(one.names) for one in cluster.groups if (one.partition or cluster.slurm.partition) == partition)
        if sum(len(one.names) for one in cluster.groups) < 2:
            runs = f"{runs}; {ONE_NODE_RUN}"
        elif min(nodes, getattr(section, "nodes", None) or nodes) < 2:
            missing.append("it would have one node: nothing between nodes can be proved; add nodes of this partition")
    return runs, "; ".join(missing)


def _by_needs(suite: Suite, section: SuiteSection, found: Software, gpus: int) -> tuple[str, list[str]]:
    python = found.python.split()[0] if found.python else ""
    lacking = [
        f"{name} is not in {python}: install it, or name an environment that has it: {suite.name}.environment"
        if python
        else f"there is no python3 for {name}: name an environment that has it: {suite.name}.environment"
        for name in suite.frameworks
        if name not in found.packages
    ]
    lacking += [f"{name} is not on PATH" for name in suite.programs if name not in found.programs]
    if not python and not suite.frameworks and isinstance(section, FrameworkConfig):
        lacking.append(f"its python is not there: name an environment that has it: {suite.name}.environment")
    if "torch" in suite.frameworks and "torch" in found.packages:
        lacking += node_facts.torch_problems(found, gpus)
    runs = [
        node_facts.torch_words(found) if name == "torch" else f"{name} {found.packages[name]}".strip()
        for name in suite.frameworks
        if name in found.packages
    ]
    runs += [f"python {found.python}"] if found.python else []
    return ", ".join(runs), lacking


def lines(tried: list[Tried], left: Mapping[str, str], untried: Sequence[str]) -> Iterator[str]:
    """Yield the report, at most 80 columns wide: by group, then by suite."""
    for nodes in dict.fromkeys(one.nodes for one in tried):
        of_group = [one for one in tried if one.nodes == nodes]
        yield f"{clip(nodes, 40)}: tried on {of_group[0].node}"
        for one in of_group:
            text = f"CANNOT RUN: {one.missing}" if one.missing else one.runs or "runs"
            where = "" if one.environment == OUTSIDE else f" (in {one.environment})"
            yield from textwrap.wrap(
                f"{one.suite:<13} {text}{where}",
                WIDTH - 1,
                initial_indent="  ",
                subsequent_indent=" " * 16,
                break_on_hyphens=False,
            )
    for nodes, why in left.items():
        yield from textwrap.wrap(
            f"{clip(nodes, 40)}: not tried: {why}", WIDTH - 1, subsequent_indent="  ", break_on_hyphens=False
        )
    if untried:
        words = f"not tried, since only a run shows what they find: {', '.join(untried)}"
        yield from textwrap.wrap(words, WIDTH - 1, subsequent_indent="  ")


def document(tried: list[Tried], left: Mapping[str, str], untried: Sequence[str]) -> dict[str, Any]:
    """Return the same for --json."""
    return {
        "tried": [
            {"nodes": one.nodes, "node": one.node, "suite": one.suite, "environment": one.environment,
             "runs": one.runs, "missing": one.missing}
            for one in tried
        ],
        "not_tried": dict(left),
        "suites_not_tried": [*untried],
    }  # fmt: skip
