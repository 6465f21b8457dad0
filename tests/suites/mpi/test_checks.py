"""Thread levels of MPI, from the least to the most."""

from __future__ import annotations

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.mpi_facts import MpiRank, MpiRun, MpiWorld
from pytest_gpucluster.suites.mpi import checks as mpi

LEVELS = ("single", "funneled", "serialized", "multiple")


def test_each_level_holds_the_lower_ones() -> None:
    for given, level in enumerate(LEVELS):
        run = MpiRun("srun", "c", ("n1",), 1, MpiWorld((MpiRank(0, 1, "n1", "n1", level, 0, 1, "x"),)))
        for asked, wanted in enumerate(LEVELS):
            verdict = mpi.threads(run, wanted)
            assert (verdict.outcome is Outcome.PASSED) == (given >= asked)
            told = [(found.measured, found.expected) for found in verdict.findings]
            assert told == (
                [] if given >= asked else [(f"MPI_THREAD_{level.upper()}", f"MPI_THREAD_{wanted.upper()}")]
            )
