"""Thread levels of MPI, from the least to the most, and which nodes are compared with one another."""

from __future__ import annotations

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.common_cause import Place, peer_groups
from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi.mpi_facts import InstalledMpi, MpiRank, MpiRun, MpiWorld
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


def test_nodes_of_another_partition_or_architecture_have_their_own_mpi() -> None:
    places = {
        "x1": Place("x[1-3]", "batch", "x86_64"),
        "x2": Place("x[1-3]", "batch", "x86_64"),
        "x3": Place("x[1-3]", "debug", "x86_64"),
        "g1": Place("g1", "batch", "aarch64"),
    }
    peers = peer_groups(places, image=False)
    versions = {"x1": "4.1", "x2": "4.1", "x3": "5.0", "g1": "5.0"}
    fleet = {node: InstalledMpi(node, library={"c": version}) for node, version in versions.items()}
    config = MpiConfig(launchers=("srun",), languages=("c",))
    norms = mpi.norms_of_groups(fleet, config, set(peers.values()))
    ends = {node: mpi.alike(fleet[node], norms[peers[node].nodes]).outcome for node in places}
    assert ends == {
        "x1": Outcome.PASSED,
        "x2": Outcome.PASSED,
        "x3": Outcome.NOT_APPLICABLE,
        "g1": Outcome.NOT_APPLICABLE,
    }
