"""The section of a drafted cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucluster.core.survey import Survey


def lines(_survey: Survey) -> list[str]:
    """Return an example: whether nodes have MPI is the site's decision."""
    return [
        "",
        "# mpi:  # requires MPI: mpirun and mpicc on every node, or in an image",
        "#   launchers: [mpirun, srun --mpi=pmix]",
    ]
