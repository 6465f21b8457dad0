"""The section of a drafted cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.config.yaml_loader import clip, quoted
from pytest_gpucluster.kit.node import node_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.core.survey import Software, Survey
    from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig

PREFERRED = ("pmix", "pmi2", "cray_shasta")  # what Open MPI understands before what MPICH does
PROGRAM, SIZES = "all_reduce_perf", "-b 1M -e 4G -f 2 -g 1"


def lines(survey: Survey) -> list[str]:
    """Say what measures NCCL, and how the ranks of nccl-tests find each other."""
    comments, keys = _launcher(survey)
    command = {found.programs[PROGRAM] for found in survey.software.values() if PROGRAM in found.programs}
    built = sorted(path for path in command if path.rpartition("/")[0].endswith("build"))
    if built:
        keys["command"] = quoted(f"{built[0]} {SIZES}", in_flow=True)
    section = f"nccl: {{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}"
    return ["", *comments, *_measured(survey), section if keys else "# nccl: {mpi: TYPE}  # another type"]


def tried(_suite: Suite, section: NcclConfig, found: Software, gpus: int) -> tuple[str, list[str]]:
    """Return the program that would measure, and what is missing."""
    program = (section.command.split() or [PROGRAM])[0]
    tests = found.programs.get(program, "")
    built = tests != program and tests.rpartition("/")[0].endswith("build")  # found there, and not on PATH
    if tests and section.runner != "payload" and not built:
        launched = "mpirun" if section.launcher == "mpirun" else f"srun --mpi={section.mpi or 'default'}"
        return f"nccl-tests: {tests}, started by {launched}", []
    if section.payload and section.runner != "nccl-tests":
        return f"payload: {section.payload[0]}", []
    if "torch" in found.packages and section.runner != "nccl-tests":
        words = f"the payload on {node_facts.torch_words(found)}, python {found.python}"
        return words, node_facts.torch_problems(found, gpus)
    if not gpus:
        return "nothing: no GPUs", []
    named = "nccl-tests" if program == PROGRAM else program
    wanted = {"nccl-tests": f"{named} was", "payload": "torch was"}.get(
        section.runner, f"neither {named} nor torch was"
    )
    named_by = f" (built in {tests}: nccl.command may name it)" if tests else ""
    where = f"python {found.python}" if found.python else "no python3"
    return "", [
        f"{wanted} {'not ' if section.runner != 'auto' else ''}found ({where}){named_by}: name an environment with torch "
        "or an image with nccl-tests (nccl.environment, environments.default), or install them"
    ]


def _launcher(survey: Survey) -> tuple[list[str], dict[str, str]]:
    pmi = survey.pmi
    if pmi is None:
        return ["# how srun starts the ranks of nccl-tests: srun --mpi=list, like nccl: {mpi: pmix}"], {}
    found = f"# srun --mpi=list: {clip(', '.join(pmi.types) or 'none', 200)}; MpiDefault={clip(pmi.default or 'none')}"
    if pmi.default:
        return [f"{found}, which starts the ranks of nccl-tests"], {}
    best = next((pmi_type for pmi_type in PREFERRED if pmi_type in pmi.types), "")
    if best:
        hint = "# pmix is for Open MPI, pmi2 for MPICH and its kin: use the one that nccl-tests is built with"
        return [found, hint], {"mpi": best}
    return [f"{found}: srun starts no MPI program here"], {"launcher": "mpirun"}


def _measured(survey: Survey) -> Iterator[str]:
    """Say for each read node with GPUs what would measure there."""
    for node, hardware in survey.hardware.items():
        found = survey.software.get(node)
        if not hardware.gpus or found is None:
            continue
        if PROGRAM in found.programs:
            yield f"# {node}: nccl-tests in {clip(found.programs[PROGRAM], 80)}"
        elif "torch" in found.packages:
            yield f"# {node}: no nccl-tests; torch {found.packages['torch']} of {clip(found.python, 60)} measures"
        else:
            yield f"# {node}: neither nccl-tests nor torch, so that NCCL and the GPU loads of burnin are not proved:"
            yield "#   name an environment with them (environments: {default: ...}), or install them"
