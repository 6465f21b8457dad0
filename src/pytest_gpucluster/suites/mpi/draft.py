"""The section of a drafted cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.config.yaml_loader import clip

if TYPE_CHECKING:
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.core.survey import Software, Survey
    from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig

EXAMPLE = "# mpi: {launchers: [mpirun, srun --mpi=pmix]}"


def tried(_suite: Suite, section: MpiConfig, found: Software, _gpus: int) -> tuple[str, list[str]]:
    """Return the MPI that would be used, and what is missing."""
    wanted = {"mpirun": "mpirun" in section.launchers, "mpicc": "c" in section.languages}
    needed = [name for name, used in wanted.items() if used and section.mpirun == "mpirun"]
    lacking = [f"{name} is not on PATH" for name in needed if name not in found.programs]
    if "python" in section.languages and "mpi4py" not in found.packages:
        lacking.append(f"mpi4py is not in {found.python or 'python3'}")
    advice = "load its module in an environment (environments: NAME: {modules: [...]}, mpi: {environment: NAME})"
    paths = [found.programs[name] for name in needed if name in found.programs]
    return ", ".join([*found.versions.values(), *paths]), lacking and ["; ".join(lacking) + ": " + advice]


def lines(survey: Survey) -> list[str]:
    """Return the section where each node that was read has MPI, and each partition has two nodes."""
    if not survey.software:
        return ["", f"{EXAMPLE}  # requires MPI: mpirun and mpicc on every node, or in an image"]
    lacking = [f"{program} on {nodes}" for program in ("mpirun", "mpicc") if (nodes := survey.without(program))]
    if lacking:
        return ["", f"{EXAMPLE}  # not found: {clip('; '.join(lacking), 60)}"]
    if survey.share_host:
        return ["", f"{EXAMPLE}  # several nodes of Slurm are one machine, which mpirun counts once"]
    if small := survey.small_partitions():
        return ["", f"{EXAMPLE}  # needs two nodes; partition {small} has one"]
    version = next((found.versions.get("mpirun", "") for found in survey.software.values()), "")
    return [
        "",
        f"# {clip(version, 60)}; add the types of srun --mpi=list that the site's programs use: srun --mpi=pmix",
        "mpi: {launchers: [mpirun]}",
    ]
