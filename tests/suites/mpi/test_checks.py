"""Readers of mpi on recordings, and its checks on plain facts: each wrong world has its own verdict."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from counter_examples import MONITOR, NOT_APPLICABLE, PASSED, CounterExample
from framework_helpers import Table, decided, told
from paths import DATA, ROOT
from suite_helpers import considered

from pytest_gpucluster.cluster.slurm.mpi_types import read_mpi_list
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.common_cause import Place, peer_groups
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.mpi import mpi_errors, mpi_world
from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi.mpi_facts import (
    InstalledMpi,
    MpiRank,
    MpiRun,
    MpirunPath,
    MpiVersion,
    MpiWorld,
    RankPair,
    hosts_of,
    read_installed,
    read_world,
    version_of,
    with_nodes,
)
from pytest_gpucluster.suites.mpi import checks

NODES = ("gpu01", "gpu02")
OPEN_MPI, MPICH = "Open MPI v4.1.4, package: Debian OpenMPI", "MPICH Version:      5.0.2"


# --- readers


def text_of(name: str) -> str:
    return (DATA / "mpi" / name).read_text()


def answer(out: str = "", err: str = "", rc: int = 0) -> Answer:
    return Answer("gpu01", rc, out.encode(), err.encode())


def test_the_types_of_srun_are_read() -> None:
    types = read_mpi_list(answer(text_of("mpi-list-22.05.txt")))
    assert types == ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4")
    old = "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: openmpi\n"
    assert read_mpi_list(answer(err=old)) == ("none", "pmi2", "openmpi")
    assert read_mpi_list(answer("warned\nMPI types are...\nnone", "pmix\npmix\n")) == ("none", "pmix")


def test_no_list_of_types_is_never_an_empty_list() -> None:
    with pytest.raises(NotAvailable):
        read_mpi_list(answer(err="sh: 1: srun: not found", rc=127))
    with pytest.raises(ProbeError, match="no list"):
        read_mpi_list(answer("hello"))
    with pytest.raises(ProbeError, match="no type"):
        read_mpi_list(answer("MPI plugin types are...\n"))


def test_what_a_node_has_is_read() -> None:
    openmpi = read_installed("gpu01", text_of("prepare-openmpi.txt"))
    assert (openmpi.mpirun, openmpi.launcher) == ("/usr/bin/mpirun", MpiVersion("Open MPI", "4.1.4"))
    assert (openmpi.srun_types, openmpi.program("c")) == (("pmix",), MpiVersion("Open MPI", "4.1.4"))
    assert openmpi.problems == {"python": Explanation("not_importable", "/usr/bin/python3: No module named 'mpi4py'")}
    mpich = read_installed("gpu01", text_of("prepare-mpich.txt"))
    paths = ["/opt/mpich/bin/mpirun", "/usr/bin/mpirun", "/bin/mpirun"]
    assert [found.path for found in mpich.mpiruns] == paths
    assert (mpich.launcher, mpich.host) == (MpiVersion("Hydra", "5.0.2"), "gpu01")
    assert (set(mpich.library), mpich.srun_types) == ({"c", "python"}, ("pmi2",))


LINE = (
    'gpucluster-mpi {"kind": "rank", "rank": 1, "size": 2, "host": "h2", "node": "gpu02", "pid": 7, '
    '"threads": "multiple", "wrong": 0, "of": 1024, "library": "MPICH"}'
)


def test_a_world_is_read_among_other_lines_and_behind_labels() -> None:
    pair = '[1,0]<stdout>:gpucluster-mpi {"kind": "pair", "ranks": [0, 1], "latency": 2e-6, "bandwidth": 1e9}'
    world = read_world(f"hello\n[1,1]<stdout>:{LINE}\n{pair}\n")
    assert world.ranks == (MpiRank(1, 2, "h2", "gpu02", "multiple", 0, 1024, "MPICH"),)
    assert world.pairs == (RankPair((0, 1), 2e-06, 1e9),)
    (rank,) = read_world(f'{LINE[:-1]}, "cpus": "0-3", "variables": "UCX_TLS=tcp FI_PROVIDER=tcp"}}').ranks
    assert (rank.cpus, rank.variables) == ("0-3", ("UCX_TLS=tcp", "FI_PROVIDER=tcp"))
    assert (world.ranks[0].cpus, world.ranks[0].variables) == ("", ())


def test_lines_of_a_world_end_with_their_bracket() -> None:
    inner = LINE.replace('"MPICH"', '"a } {b}"')
    assert [one.library for one in read_world(f"{inner}\r\n").ranks] == ["a } {b}"]
    for other in (f"{LINE} x\n", 'gpucluster-mpi {"kind": "other"}\n'):
        assert read_world(other) == MpiWorld((), ())


def test_a_rank_is_placed_by_its_host_where_hosts_differ() -> None:
    facts = [InstalledMpi("gpu01", host="h1.example.org"), InstalledMpi("gpu02", host="h2.example.org")]
    ranks = (rank(0, host="h2.example.org", node="gpu01"), rank(1, host="login", node="gpu01"))
    assert with_nodes(MpiWorld(ranks), hosts_of(facts)).nodes == {0: "gpu02", 1: "login"}
    assert hosts_of([InstalledMpi("gpu01", host="h"), InstalledMpi("gpu02", host="h")]) == {}


@pytest.mark.parametrize(
    ("text", "version", "family"),
    [
        ("mpirun (Open MPI) 5.1.0a1", "Open MPI 5.1.0a1", "Open MPI"),
        ("HYDRA build details:     Version:                  4.0.2", "Hydra 4.0.2", "MPICH"),
        ("HYDRA build details:\nVersion :4\nHwloc Version: 2", "Hydra 4", "MPICH"),
        ("MVAPICH2 Version      :	2.3.7", "MVAPICH 2.3.7", "MPICH"),
        ("MVAPICH Version:3.0", "MVAPICH 3.0", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build", "Intel MPI 2021.11", "MPICH"),
        ("Intel(R) MPI Library2021.6a.", "Intel MPI 2021.6a", "MPICH"),
    ],
)
def test_versions_are_read(text: str, version: str, family: str) -> None:
    found = version_of(text)
    assert (f"{found.name} {found.number}".strip(), found.family) == (version, family)


# --- checks


def rank(number: int, size: int = 4, **change: Any) -> MpiRank:
    return replace(MpiRank(number, size, "", NODES[number // 2 % 2], "multiple", 0, 1024, OPEN_MPI), **change)


def run(**change: Any) -> MpiRun:
    world = MpiWorld(tuple(map(rank, range(4))), (RankPair((0, 2), 2e-6, 10e9),))
    return replace(MpiRun("mpirun", "c", NODES, 2, world), **change)


def of(*ranks: MpiRank, **change: Any) -> MpiRun:
    """Return a run in which these ranks reported, and no pair."""
    return run(world=MpiWorld(ranks), **change)


def ring(*latencies: float, bandwidth: float = 1e9) -> MpiRun:
    """Return four nodes in a ring, with the latency of each pair of neighbours."""
    nodes = (*NODES, "gpu03", "gpu04")
    ranks = tuple(replace(rank(n), node=nodes[n]) for n in range(4))
    pairs = tuple(RankPair((n, (n + 1) % 4), latency, bandwidth) for n, latency in enumerate(latencies))
    return run(nodes=nodes, ntasks_per_node=1, world=MpiWorld(ranks, pairs))


def paired(latency: float, bandwidth: float = 1e9, ranks: tuple[int, int] = (0, 2)) -> MpiRun:
    return run(world=replace(run().world, pairs=(RankPair(ranks, latency, bandwidth),)))


GOOD = InstalledMpi(
    "gpu01",
    mpiruns=(MpirunPath("/usr/bin/mpirun", conda=False),),
    mpirun="/usr/bin/mpirun",
    launcher=MpiVersion("Open MPI", "4.1.4"),
    library={"c": OPEN_MPI},
    srun_types=("pmix",),
)
NO_MPIRUN = replace(GOOD, mpirun="")
HYDRA = replace(GOOD, launcher=MpiVersion("Hydra", "5.0.2"), library={"c": MPICH})
NEWER = MpiVersion("Open MPI", "5.0.1")
OLD = replace(GOOD, launcher=MpiVersion("Open MPI", "4.0.3"))
CONDA = replace(
    GOOD,
    mpiruns=(MpirunPath("/opt/conda/bin/mpirun", conda=True), *GOOD.mpiruns),
    mpirun="/opt/conda/bin/mpirun",
    launcher=MpiVersion("Hydra", "4.2"),
)
TWO_SITES = replace(CONDA, mpiruns=(*CONDA.mpiruns, MpirunPath("/two/bin/mpirun", conda=False)))


def usual(*others: InstalledMpi) -> Any:
    return checks.norms({f"gpu{at:02}": one for at, one in enumerate((GOOD, *others), 1)})


def failure(kind: str, host: str) -> mpi_errors.LaunchFailure:
    return mpi_errors.LaunchFailure(kind, host, "text of it", "hint of it")


LONELY = of(*(rank(0, 1, node=NODES[n // 2]) for n in range(4)))
TWO_LONELY = of(rank(0, 1, node="gpu01"), rank(0, 1, node="gpu02"), rc=1, ntasks_per_node=1)
FOUR_RANKS = [*map(rank, range(4))]
ON_ONE_NODE = [rank(n, node="gpu01") for n in range(4)]
FAILURES = (failure("orte_ess_init", "gpu02"), failure("x", ""))
LEVELS = (rank(0, threads="single"), rank(1, threads="funneled"), rank(2, threads="odd"))
PLAIN, BOTH_LANGUAGES = MpiConfig(), MpiConfig(languages=("c", "python"))
RING = [("gpu01", "gpu02"), ("gpu02", "gpu03"), ("gpu03", "gpu04"), ("gpu04", "gpu01")]
ALL_PAIRS = "; ".join(map("-".join, RING))
ALL_SLOW = "; ".join(f"link {one} - {other}" for one, other in RING) + " slow"
SLOW_PAIRS = "; ".join(f"link {one} - {other}" for one, other in RING[1:3]) + " slow_with_every_neighbour"

CASES: Table = {
    mpi_world.world: [
        ("passed: mpirun, c [1]", of(rank(0, 1), ntasks_per_node=1, nodes=("gpu01",))),
        ("monitor: size of the world world_size; mpirun, c [1, 4, 4]", of(rank(0), rank(1), rank(2), rank(3, 1))),
        ("monitor: mpirun exit_status; mpirun singletons; mpirun, c [1, 0, 2, 0, 1, 2, 2]", TWO_LONELY),
        ("monitor: mpirun singletons; mpirun, c [4, 0, 1, 4, 4]", LONELY),
        ("monitor: ranks 2 silent; mpirun, c [0, 3, 3]", of(rank(0), rank(1), rank(3))),
        ("monitor: rank 3 repeated; gpu02 rank_count; mpirun, c [2, 3, 2, 5]", of(*FOUR_RANKS, rank(3))),
        (
            "monitor: ranks 3 elsewhere; gpu02 rank_count; mpirun, c [1, 2, 1, 2, 4]",
            of(*map(rank, range(3)), rank(3, node="gpu09")),
        ),
        ("monitor: gpu01; gpu02 rank_count; mpirun, c [4, 2, 0, 2, 4]", of(*ON_ONE_NODE)),
        (
            "monitor: mpirun exit_status; ranks 0, 1, 2, 3 silent; mpirun, c [1, 0, 0, 3, 0]",
            of(rc=1, first_error="boom"),
        ),
        ("monitor: gpu02 orte_ess_init; mpirun x; mpirun, c [4, 4, 4]", run(rc=1, failures=FAILURES)),
        ("passed: mpirun, c [4]", run(failures=FAILURES)),  # the result decides
    ],
    mpi_world.allreduce: [
        (
            "monitor: gpu01 rank 0 no_data; gpu01 rank 1 wrong_data [0, 0, 2, 1024]",
            of(rank(0, elements=0), rank(1, wrong=2)),
        )
    ],
    checks.threads: [
        ("not checked", of(), "single"),
        ("configure: ranks 0; ranks 2 lower_level", of(*LEVELS), "funneled"),
    ],
    checks.latency: [
        ("passed: gpu01-gpu02 [2]", run(), 2.0),
        ("monitor: link gpu01 - gpu02 slow; gpu01-gpu02 [2, 1.99, 2]", run(), 1.99),
        ("not checked", of(), 5.0),
        ("monitor: link gpu01 - rank 9 no_value; gpu01-rank 9 [0, 5, 0]", paired(0.0, ranks=(0, 9)), 5.0),
        # gpu03 is slow with each neighbour, and then all are
        (f"monitor: {SLOW_PAIRS}; {ALL_PAIRS} [50, 10, 50, 10, 2, 50, 50, 2]", ring(2e-6, 5e-5, 5e-5, 2e-6), 10.0),
        (f"monitor: {ALL_SLOW}; {ALL_PAIRS} [{'50, 10, ' * 4}50, 50, 50, 50]", ring(*[5e-5] * 4), 10.0),
    ],
    checks.bandwidth: [
        ("passed: gpu01-gpu02 [10]", run(), 10.0),
        ("monitor: link gpu01 - gpu02 slow; gpu01-gpu02 [10, 10.01, 10]", run(), 10.01),
    ],
    checks.installed: [
        ("configure: mpirun not_on_path", NO_MPIRUN, PLAIN),
        ("passed", NO_MPIRUN, MpiConfig(launchers=("srun",))),
        (
            "configure: MPI of C programs no_compiler; mpi4py no_answer",
            replace(GOOD, problems={"c": Explanation("no_compiler", "mpicc: not found")}),
            BOTH_LANGUAGES,
        ),
    ],
    partial(checks.installed, in_container=True): [("passed", NO_MPIRUN, PLAIN)],
    partial(checks.path, conda_environment=False): [
        ("configure: mpirun of_conda [4.2]", TWO_SITES, PLAIN),
        ("passed", replace(GOOD, mpiruns=()), PLAIN),
        ("not checked", NO_MPIRUN, PLAIN),
        ("not applicable", NO_MPIRUN, MpiConfig(launchers=("srun",))),
    ],
    partial(checks.path, conda_environment=True): [("passed", CONDA, PLAIN)],
    checks.matches: [
        ("not checked", replace(GOOD, library={"c": "odd"}), PLAIN),
        ("not applicable", GOOD, MpiConfig(launchers=("srun",))),
        ("passed", GOOD, PLAIN),
        ("not checked", replace(GOOD, library={}), PLAIN),
        ("configure: MPI of C programs other_mpi [4.1, 5]", replace(GOOD, launcher=NEWER), PLAIN),
        ("configure: MPI of C programs other_mpi [5, 4.1]", replace(GOOD, library={"c": MPICH}), PLAIN),
    ],
    checks.pmi: [
        ("passed", ("none", "pmix", "pmix_v4"), ("pmix", "pmix_v4"), GOOD),
        ("configure: srun --mpi=pmi2 not_in_slurm", ("none", "pmix"), ("pmi2",), GOOD),
        ("configure: srun --mpi=pmi2 not_in_mpi [4.1]", ("none", "pmi2"), ("pmi2",), GOOD),
        ("configure: srun --mpi=pmi2 not_in_mpi", ("none", "pmi2"), ("pmi2",), replace(GOOD, library={})),
    ],
    checks.alike: [
        ("not applicable", replace(GOOD, mpirun="/b/mpirun"), usual()),
        ("configure: mpirun no_majority [4, 4.1, 4]", OLD, usual(OLD)),
        ("passed", GOOD, usual(GOOD)),
        ("configure: mpirun differs_from_peers [4.1, 2, 3]", NO_MPIRUN, usual(GOOD, NO_MPIRUN)),
        ("configure: mpirun; MPI of C programs differs_from_peers [5, 4.1, 2, 3, 5, 2, 3]", HYDRA, usual(GOOD, HYDRA)),
    ],
}
test_each_case_has_its_verdict = decided(CASES)


def test_each_thread_level_holds_the_lower_ones() -> None:
    levels = ("single", "funneled", "serialized", "multiple")
    for given, level in enumerate(levels):
        for asked, wanted in enumerate(levels):
            verdict = checks.threads(of(rank(0, threads=level)), wanted)
            names = [(f"MPI_THREAD_{level.upper()}", f"MPI_THREAD_{wanted.upper()}")]
            assert [(it.measured, it.expected) for it in verdict.findings] == names * (given < asked)


def test_an_mpi_that_the_cluster_file_does_not_use_is_not_compared() -> None:
    """Another mpirun, where srun is the launcher; another mpi4py, where only C programs run."""
    other = replace(OLD, library={**GOOD.library, "python": MPICH})
    fleet = {"gpu01": GOOD, "gpu02": GOOD, "gpu03": other}
    plain = MpiConfig(launchers=("srun",), languages=("c",))
    assert checks.alike(other, checks.norms(fleet, plain)).outcome is Outcome.PASSED
    assert checks.alike(other, checks.norms(fleet, PLAIN)).outcome is Outcome.FAILED


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
    norms = checks.norms_of_groups(fleet, config, set(peers.values()))
    ends = {node: told(checks.alike(fleet[node], norms[peers[node].nodes])) for node in places}
    assert ends == {"x1": "passed", "x2": "passed", "x3": "not applicable", "g1": "not applicable"}


@pytest.mark.parametrize(
    ("found", "cause", "hint"),
    [
        (run(rc=1), "the launcher did not start one world", ""),
        (run(rc=1, failures=(failure("MPI without PMI", "gpu02"),)), "no PMI support: mpirun", "hint of it"),
        (of(rank(0), failures=(failure("killed", ""), failure("orte_ess_init", ""))), "mpirun: killed", "hint of it"),
        (LONELY, "the programs found no PMI of this launcher", "mpirun belongs to another MPI"),
        (replace(LONELY, launcher="srun"), "the programs found no PMI of this launcher", "srun --mpi=pmi2"),
    ],
)
def test_the_first_failure_of_a_world_is_its_cause(found: MpiRun, cause: str, hint: str) -> None:
    verdict = mpi_world.world(found)
    assert verdict.cause.startswith(cause)
    assert hint in verdict.hint


# --- payloads


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ((), "--external-launcher --nodelist=gpu[03-04]"),
        (("-hosts", "gpu01,gpu02"), "--external-launcher"),  # it names them to srun itself
    ],
)
def test_srun_gets_the_hosts_that_mpirun_takes_from_slurm(words: tuple[str, ...], reported: str) -> None:
    """Slurm 23.11 and 25.11 put the daemons of MPICH's mpirun on any nodes of the job."""
    script = ROOT / "src/pytest_gpucluster/kit/payloads/mpi/as_batch.sh"
    echo = ("sh", "-c", "echo $HYDRA_LAUNCHER_EXTRA_ARGS")
    env = {"PATH": "/usr/bin:/bin", "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher"}
    text = subprocess.check_output(["sh", script, "gpu[03-04]", "2", "2", *echo, *words], env=env, text=True)
    assert text == reported + "\n"


# --- healthy runs that look broken, and broken ones that look well (docs/how-it-decides.md)

MPIRUN = "https://docs.open-mpi.org/en/v5.0.x/launching-apps/slurm.html"
UCX = "https://openucx.readthedocs.io/en/master/faq.html"
PMI = "https://slurm.schedmd.com/mpi_guide.html"
OSU = "https://mvapich.cse.ohio-state.edu/benchmarks/"
FAR = ring(1.9e-6, 2.6e-6, 2e-6, 2e-6)
TCP = ring(*[45e-6] * 4, bandwidth=2e9)
# machine, source, expected, check, its arguments
ROWS: list[tuple[Any, ...]] = [
    ("four ranks on two nodes", MPIRUN, PASSED, mpi_world.world, run()),
    ("each program is a world of its own, exit 0", PMI, MONITOR, mpi_world.world, LONELY),
    ("all ranks reported, and mpirun failed", MPIRUN, MONITOR, mpi_world.world, run(rc=139)),
    ("right on all ranks", MPIRUN, PASSED, mpi_world.allreduce, run()),
    ("three elements of one rank", UCX, MONITOR, mpi_world.allreduce, of(rank(0), rank(1, wrong=3))),
    ("within the limit, one pair over a further switch", OSU, PASSED, checks.latency, FAR, 3.0),
    ("no limit is stated", OSU, NOT_APPLICABLE, checks.latency, TCP, None),
    ("TCP instead of InfiniBand", UCX, MONITOR, checks.latency, TCP, 3.0),
    ("above the limit", OSU, PASSED, checks.bandwidth, ring(2e-6, bandwidth=24e9), 20.0),
    ("TCP instead of InfiniBand", UCX, MONITOR, checks.bandwidth, TCP, 20.0),
]
COUNTER_EXAMPLES = [
    CounterExample(check.name, machine, source, expected, partial(check, *given), sick=expected == MONITOR)
    for machine, source, expected, check, *given in ROWS
]
test_runs_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
