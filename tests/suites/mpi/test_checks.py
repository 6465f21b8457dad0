"""Readers of mpi on recordings, and its checks on plain facts: each wrong world has its own verdict."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, imported, rows_of, told
from paths import DATA, ROOT

from pytest_gpucluster.cluster.slurm.mpi_types import read_mpi_list
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.common_cause import Place, peer_groups
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.mpi import mpi_errors, mpi_world
from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi.mpi_facts import (
    InstalledMpi,
    MpiRank,
    MpiRun,
    MpirunPath,
    MpiWorld,
    RankPair,
    Version,
    hosts_of,
    read_installed,
    read_world,
    version_of,
    with_nodes,
)
from pytest_gpucluster.suites.mpi import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

from pytest_gpucluster.core.check import Verdict

LEVELS = ("single", "funneled", "serialized", "multiple")


def test_each_level_holds_the_lower_ones() -> None:
    for given, level in enumerate(LEVELS):
        run = MpiRun("srun", "c", ("n1",), 1, MpiWorld((MpiRank(0, 1, "n1", "n1", level, 0, 1, "x"),)))
        for asked, wanted in enumerate(LEVELS):
            verdict = checks.threads(run, wanted)
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
    norms = checks.norms_of_groups(fleet, config, set(peers.values()))
    ends = {node: checks.alike(fleet[node], norms[peers[node].nodes]).outcome for node in places}
    assert ends == {
        "x1": Outcome.PASSED,
        "x2": Outcome.PASSED,
        "x3": Outcome.NOT_APPLICABLE,
        "g1": Outcome.NOT_APPLICABLE,
    }


NODES = ("gpu01", "gpu02")
OPEN_MPI, MPICH = "Open MPI v4.1.4, package: Debian OpenMPI", "MPICH Version:      5.0.2"


def reported(verdict: Verdict) -> str:
    return "; ".join(f"{found.part}: {found.measured} / {found.expected}" for found in verdict.findings)


# --- readers


def text_of(name: str) -> str:
    return (DATA / "mpi" / name).read_text()


def answer(out: str = "", err: str = "", rc: int = 0) -> Answer:
    return Answer("gpu01", rc, out.encode(), err.encode())


def test_the_types_of_srun_are_read() -> None:
    types = read_mpi_list(answer(text_of("mpi-list-22.05.txt")))
    assert types == ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4")


def test_the_types_of_an_old_srun_are_read_from_stderr() -> None:
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
    assert openmpi.mpirun == "/usr/bin/mpirun"
    assert openmpi.launcher == Version("Open MPI", "4.1.4")
    assert openmpi.srun_types == ("pmix",)
    assert openmpi.program("c") == Version("Open MPI", "4.1.4")
    assert dict(openmpi.problems) == {"python": "/usr/bin/python3: No module named 'mpi4py'"}
    mpich = read_installed("gpu01", text_of("prepare-mpich.txt"))
    assert [found.path for found in mpich.mpiruns] == [
        "/opt/mpich/bin/mpirun",
        "/usr/bin/mpirun",
        "/bin/mpirun",
    ]
    assert mpich.launcher == Version("Hydra", "5.0.2")
    assert set(mpich.library) == {"c", "python"}
    assert mpich.srun_types == ("pmi2",)
    assert mpich.host == "gpu01"


LINE = (
    'gpucluster-mpi {"kind": "rank", "rank": 1, "size": 2, "host": "h2", "node": "gpu02", "pid": 7, '
    '"threads": "multiple", "wrong": 0, "of": 1024, "library": "MPICH"}'
)


def test_the_cpus_and_variables_of_a_rank_are_read_where_it_states_them() -> None:
    (rank,) = read_world(f'{LINE[:-1]}, "cpus": "0-3", "variables": "UCX_TLS=tcp FI_PROVIDER=tcp"}}').ranks
    assert (rank.cpus, rank.variables) == ("0-3", ("UCX_TLS=tcp", "FI_PROVIDER=tcp"))
    (rank,) = read_world(LINE).ranks
    assert (rank.cpus, rank.variables) == ("", ())


def test_a_world_is_read_among_other_lines_and_behind_labels() -> None:
    pair = (
        '[1,0]<stdout>:gpucluster-mpi {"kind": "pair", "ranks": [0, 1], "latency": 2e-06, "bandwidth": 1e9}'
    )
    world = read_world(f"hello\n[1,1]<stdout>:{LINE}\n{pair}\n")
    assert world.ranks == (MpiRank(1, 2, "h2", "gpu02", "multiple", 0, 1024, "MPICH"),)
    assert world.pairs == (RankPair((0, 1), 2e-06, 1e9),)


def test_facts_of_a_node_stand_at_the_begin_of_a_line() -> None:
    fact = "gpucluster-mpi-fact\t"
    text = (
        f"x {fact}mpirun\t/x\n{fact}mpirun\tplain /usr/bin/mpirun\n{fact}mpirun\tconda /opt/c/mpirun \n"
        f"{fact}mpirun-first\t/a\n{fact}mpirun-first\t/b\n{fact}mpirun-version\tmpirun (Open MPI) 4.1\n"
        f"{fact}mpich\t\n{fact}problem-python\tno\n"
        'gpucluster-mpi-c {"host": "h", "library": "MPICH Version: 4"}\r\nx gpucluster-mpi-python {"host": "i"}\n'
        'gpucluster-mpi-python {"host": "i"} x\n'
    )
    assert read_installed("gpu01", text) == InstalledMpi(
        "gpu01",
        "h",
        (MpirunPath("/usr/bin/mpirun", conda=False), MpirunPath("/opt/c/mpirun", conda=True)),
        "/a",
        Version("Open MPI", "4.1"),
        {"c": "MPICH Version: 4"},
        {"python": "no"},
        ("pmi2",),
    )
    bare = read_installed("gpu01", "gpucluster-mpi-c {}\n")
    assert bare == InstalledMpi("gpu01", library={"c": ""})
    assert vars(InstalledMpi("gpu01")) == {
        "node": "gpu01", "host": "", "mpiruns": (), "mpirun": "", "launcher": Version("", ""), "library": {},
        "problems": {}, "srun_types": (),
    }  # fmt: skip
    assert bare.program("python") == Version("", "")


def test_lines_of_a_world_end_with_their_bracket() -> None:
    without = LINE.replace('"of": 1024, ', "")
    inner = LINE.replace('"MPICH"', '"a } {b}"')
    assert [one.library for one in read_world(f"{inner}\r\n").ranks] == ["a } {b}"]
    assert read_world(LINE + " x\n") == MpiWorld((), ())
    assert read_world('gpucluster-mpi {"kind": "other"}\n') == MpiWorld((), ())
    for line, words in (
        ("gpucluster-mpi {}", "line of the MPI program not understood: {} ('kind')"),
        ("gpucluster-mpi {x}", "line of the MPI program not understood: {x} ("),
        (without, f"line of the MPI program not understood: {without[15:135]} ('of')"),
        (LINE.replace('"rank": 1,', '"rank": null,'), "line of the MPI program not understood: "),
        (LINE.replace('"rank": 1,', '"rank": 1e999,'), "line of the MPI program not understood: "),
    ):
        with pytest.raises(ProbeError) as caught:
            read_world(line)
        assert str(caught.value).startswith(words)


def test_ranks_are_in_order_and_of_the_node_that_is_known() -> None:
    text = LINE + "\n" + LINE.replace('"rank": 1', '"rank": 0') + "\n"
    assert [(one.rank, one.node) for one in read_world(text, "gpu09").ranks] == [(0, "gpu09"), (1, "gpu09")]
    assert read_world(text).nodes == {0: "gpu02", 1: "gpu02"}
    assert MpiRun("srun", "c", ("a", "b", "c"), 2, MpiWorld()).size == 6
    plain = MpiRun("srun", "c", (), 1, MpiWorld())
    assert (plain.rc, plain.problem, plain.failures, plain.first_error) == (0, "", (), "")


@pytest.mark.parametrize(
    "line", [LINE.replace("1,", '"x",', 1), LINE.replace('"size": 2, ', ""), LINE.replace(":", "", 1)]
)
def test_a_line_of_ours_that_is_not_understood_is_an_error(line: str) -> None:
    with pytest.raises(ProbeError):
        read_world(line + "\n")


def test_a_rank_is_placed_by_its_host_where_hosts_differ() -> None:
    facts = [InstalledMpi("gpu01", host="h1"), InstalledMpi("gpu02", host="h2")]
    world = with_nodes(
        MpiWorld((rank(0, host="h2", node="gpu01"), rank(1, host="login", node="gpu01"))), hosts_of(facts)
    )
    assert world.nodes == {0: "gpu02", 1: "login"}
    assert hosts_of([InstalledMpi("gpu01", host="h"), InstalledMpi("gpu02", host="h")]) == {}


# --- checks


def rank(number: int, size: int = 4, **change: Any) -> MpiRank:
    return replace(MpiRank(number, size, "", NODES[number // 2 % 2], "multiple", 0, 1024, OPEN_MPI), **change)


def run(**change: Any) -> MpiRun:
    world = MpiWorld(tuple(map(rank, range(4))), (RankPair((0, 2), 2e-6, 10e9),))
    return replace(MpiRun("mpirun", "c", NODES, 2, world), **change)


def world_of(*ranks: MpiRank) -> MpiWorld:
    return MpiWorld(ranks)


GOOD = InstalledMpi(
    "gpu01",
    mpiruns=(MpirunPath("/usr/bin/mpirun", conda=False),),
    mpirun="/usr/bin/mpirun",
    launcher=Version("Open MPI", "4.1.4"),
    library={"c": OPEN_MPI},
    srun_types=("pmix",),
)
CONDA = replace(
    GOOD,
    mpiruns=(MpirunPath("/opt/conda/bin/mpirun", conda=True), *GOOD.mpiruns),
    mpirun="/opt/conda/bin/mpirun",
    launcher=Version("Hydra", "4.2"),
)


def test_an_mpi_that_the_cluster_file_does_not_use_is_not_compared() -> None:
    """Another mpirun, where srun is the launcher; another mpi4py, where only C programs run."""
    other = replace(GOOD, launcher=Version("Open MPI", "4.0.3"), library={**GOOD.library, "python": MPICH})
    fleet = {"gpu01": GOOD, "gpu02": GOOD, "gpu03": other}
    plain = MpiConfig(launchers=("srun",), languages=("c",))
    assert checks.alike(other, checks.norms(fleet, plain)).outcome is Outcome.PASSED
    assert checks.alike(other, checks.norms(fleet, MpiConfig())).outcome is Outcome.FAILED


def failure(kind: str, host: str) -> mpi_errors.LaunchFailure:
    return mpi_errors.LaunchFailure(kind, host, "text of it", "hint of it")


def ring(*latencies: float) -> MpiRun:
    """Return four nodes in a ring, with the latency of each pair of neighbours."""
    nodes = ("gpu01", "gpu02", "gpu03", "gpu04")
    ranks = tuple(replace(rank(n), node=nodes[n]) for n in range(4))
    pairs = tuple(RankPair((n, (n + 1) % 4), latency, 1e9) for n, latency in enumerate(latencies))
    return run(nodes=nodes, ntasks_per_node=1, world=MpiWorld(ranks, pairs))


LONELY = world_of(*(rank(0, 1, node=NODES[n // 2]) for n in range(4)))

CASES: Table = {
    mpi_world.world: [
        (
            "monitor: size of the world; mpirun, c [1, 4, 4]",
            run(world=world_of(rank(0), rank(1), rank(2), rank(3, 1))),
        ),
        (
            "monitor: mpirun; singletons; mpirun, c [1, 0, 2, 0, 1, 2, 2]",
            run(rc=1, ntasks_per_node=1, world=world_of(rank(0, 1, node="gpu01"), rank(0, 1, node="gpu02"))),
        ),
        ("passed: mpirun, c [4]", run()),
        ("monitor: singletons; mpirun, c [4, 0, 1, 4, 4]", run(world=LONELY)),
        ("passed: mpirun, c [1]", run(ntasks_per_node=1, nodes=("gpu01",), world=world_of(rank(0, 1)))),
        ("monitor: ranks 2; mpirun, c [0, 3, 3]", run(world=world_of(rank(0), rank(1), rank(3)))),
        (
            "monitor: mpirun; ranks 2; mpirun, c [0, 3, 3]",
            run(world=world_of(rank(0), rank(1), rank(3)), problem="hangs"),
        ),
        ("monitor: mpirun; mpirun, c [0]", run(world=MpiWorld(), problem="hangs", rc=1)),
        (
            "monitor: rank 3; gpu02; mpirun, c [2, 3, 2, 5]",
            run(world=world_of(*map(rank, range(4)), rank(3))),
        ),
        (
            "monitor: rank 4; gpu02; mpirun, c [0, 3, 3, 2, 5]",
            run(world=world_of(*map(rank, range(4)), rank(4, node="gpu02"))),
        ),
        (
            "monitor: ranks 3; gpu02; mpirun, c [1, 2, 1, 2, 4]",
            run(world=world_of(rank(0), rank(1), rank(2), rank(3, node="gpu09"))),
        ),
        (
            "monitor: ranks 3; gpu02; mpirun, c [1, 2, 1, 2, 4]",
            run(world=world_of(rank(0), rank(1), rank(2), rank(3, node=""))),
        ),
        (
            "monitor: gpu01; gpu02; mpirun, c [4, 2, 0, 2, 4]",
            run(world=world_of(*(rank(n, node="gpu01") for n in range(4)))),
        ),
        (
            "monitor: ranks 3; gpu01; mpirun, c [0, 3, 3, 2, 3]",
            run(world=world_of(*(rank(n, node="gpu01") for n in range(3)))),
        ),
        (
            "monitor: mpirun; ranks 0, 1, 2, 3; mpirun, c [1, 0, 0, 3, 0]",
            run(world=MpiWorld(), rc=1, first_error="boom"),
        ),
        ("monitor: mpirun; mpirun, c [9, 0, 4]", run(rc=9)),
        (
            "monitor: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more; mpirun, c [0, 11, 0]",
            run(ntasks_per_node=6, world=MpiWorld()),
        ),
        (
            "monitor: ranks 0, 1, 2, 3, 4, 5, 6, 7; mpirun, c [0, 7, 0]",
            run(ntasks_per_node=4, world=MpiWorld()),
        ),
        (
            "monitor: orte_ess_init on gpu02; x; mpirun, c [4, 4, 4]",
            run(rc=1, failures=(failure("orte_ess_init", "gpu02"), failure("x", ""))),
        ),
    ],
    mpi_world.allreduce: [
        ("passed", run()),
        ("not checked", run(world=MpiWorld())),
        (
            "monitor: rank 0 on gpu01; rank 1 on gpu01 [0, 0, 2, 1024]",
            run(world=world_of(rank(0, elements=0), rank(1, wrong=2))),
        ),
    ],
    checks.threads: [
        ("not checked", run(world=MpiWorld()), "single"),
        (
            "configure: ranks 0; ranks 2",
            run(
                world=world_of(rank(0, threads="single"), rank(1, threads="funneled"), rank(2, threads="odd"))
            ),
            "funneled",
        ),
        (
            "configure: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more",
            run(world=world_of(*(rank(n, 9, threads="single") for n in range(9)))),
            "multiple",
        ),
        (
            "configure: ranks 0, 1, 2, 3, 4, 5, 6, 7",
            run(world=world_of(*(rank(n, 8, threads="single") for n in range(8)))),
            "multiple",
        ),
    ],
    checks.latency: [
        (
            "monitor: gpu01-gpu02; gpu01-gpu02; gpu02-gpu03 [9, 2, 9, 1]",
            run(
                nodes=("gpu01", "gpu02", "gpu03"),
                world=replace(ring().world, pairs=(RankPair((0, 1), 9e-6, 1), RankPair((1, 2), 1e-6, 1))),
            ),
            2.0,
        ),
        ("not applicable", run(nodes=NODES[:1], world=MpiWorld()), None),
        ("passed: gpu01-gpu02 [2]", run(), 2.0),
        ("monitor: gpu01-gpu02; gpu01-gpu02 [2, 1.99, 2]", run(), 1.99),
        ("not applicable: gpu01-gpu02 [2]", run(), None),
        ("not checked", run(world=replace(run().world, pairs=())), 5.0),
        ("not applicable", run(world=replace(run().world, pairs=()), nodes=NODES[:1]), 5.0),
        (
            "monitor: gpu01-rank 9; gpu01-rank 9 [0, 5, 0]",
            run(world=replace(run().world, pairs=(RankPair((0, 9), 0.0, 1000000000.0),))),
            5.0,
        ),
        (
            "monitor: gpu02-gpu03; gpu03-gpu04; gpu01-gpu02; gpu02-gpu03; gpu03-gpu04; gpu04-gpu01 [50, 10, 50, 10, 2, 50, 50, 2]",
            ring(2e-06, 5e-05, 5e-05, 2e-06),
            10.0,
        ),
        (
            "monitor: gpu01-gpu02; gpu02-gpu03; gpu03-gpu04; gpu04-gpu01; gpu01-gpu02; gpu02-gpu03; gpu03-gpu04; gpu04-gpu01 [50, 10, 50, 10, 50, 10, 50, 10, 50, 50, 50, 50]",
            ring(5e-05, 5e-05, 5e-05, 5e-05),
            10.0,
        ),
    ],
    checks.bandwidth: [
        ("not checked", run(world=MpiWorld()), None),
        ("passed: gpu01-gpu02 [10]", run(), 10.0),
        ("monitor: gpu01-gpu02; gpu01-gpu02 [10, 10.01, 10]", run(), 10.01),
        ("not applicable: gpu01-gpu02 [10]", run(), None),
    ],
    checks.installed: [
        ("passed", GOOD, MpiConfig()),
        ("configure: mpirun", replace(GOOD, mpirun=""), MpiConfig()),
        ("passed", replace(GOOD, mpirun=""), MpiConfig(launchers=("srun",))),
        (
            "configure: MPI of C programs; mpi4py",
            replace(GOOD, problems={"c": "mpicc: not found"}),
            MpiConfig(languages=("c", "python")),
        ),
        ("passed", GOOD, MpiConfig(implementation="Open MPI v4.1")),
        ("configure: MPI of C programs", GOOD, MpiConfig(implementation="Open MPI v5")),
    ],
    partial(checks.installed, in_container=True): [("passed", replace(GOOD, mpirun=""), MpiConfig())],
    partial(checks.path, conda_environment=False): [
        (
            "configure: mpirun [4.2]",
            replace(CONDA, mpiruns=(*CONDA.mpiruns, MpirunPath("/two/bin/mpirun", conda=False))),
            MpiConfig(),
        ),
        ("not checked", replace(GOOD, mpirun=""), MpiConfig()),
        ("configure: mpirun [4.2]", replace(CONDA, mpiruns=CONDA.mpiruns[:1]), MpiConfig()),
        ("configure: mpirun [4.1]", GOOD, MpiConfig(prefix="/opt/site/")),
        ("passed", GOOD, MpiConfig(prefix="/usr/")),
        ("passed", replace(GOOD, mpiruns=()), MpiConfig()),
    ],
    partial(checks.path, conda_environment=True): [("passed", CONDA, MpiConfig())],
    checks.matches: [
        ("passed", replace(GOOD, launcher=Version("Hydra", "5.0.2"), library={"c": MPICH}), MpiConfig()),
        ("not applicable", GOOD, MpiConfig(launchers=("srun",))),
        ("passed", GOOD, MpiConfig()),
        ("not checked", replace(GOOD, launcher=Version("", "")), MpiConfig()),
        ("not checked", replace(GOOD, library={}), MpiConfig()),
        (
            "configure: MPI of C programs [4.1, 5]",
            replace(GOOD, launcher=Version("Open MPI", "5.0.1")),
            MpiConfig(),
        ),
        ("not checked", replace(GOOD, library={"c": "odd"}), MpiConfig()),
    ],
    checks.pmi: [
        ("not applicable", ("none", "pmix"), (), GOOD),
        ("passed", ("none", "pmix", "pmix_v4"), ("pmix", "pmix_v4"), GOOD),
        ("configure: srun --mpi=pmi2", ("none", "pmix"), ("pmi2",), GOOD),
        ("configure: srun --mpi=pmi2 [4.1]", ("none", "pmi2"), ("pmi2",), GOOD),
        ("passed", ("none", "pmi2"), ("pmi2",), None),
        ("passed", ("none", "pmi2"), ("pmi2",), replace(GOOD, srun_types=())),
        ("configure: srun --mpi=pmi2", ("none", "pmi2"), ("pmi2",), replace(GOOD, library={})),
    ],
    checks.alike: [
        ("not applicable", replace(GOOD, mpirun="/b/mpirun"), checks.norms({"gpu01": GOOD})),
        (
            "configure: mpirun [4, 4.1, 4]",
            replace(GOOD, launcher=Version("Open MPI", "4.0.3")),
            checks.norms({"gpu01": GOOD, "gpu02": replace(GOOD, launcher=Version("Open MPI", "4.0.3"))}),
        ),
        ("passed", GOOD, checks.norms({"gpu01": GOOD, "gpu02": GOOD})),
        (
            "configure: mpirun [4.1, 2, 3]",
            replace(GOOD, mpirun=""),
            checks.norms({"gpu01": GOOD, "gpu02": GOOD, "gpu03": replace(GOOD, mpirun="")}),
        ),
        (
            "configure: MPI of C programs [5, 2, 3]",
            replace(GOOD, library={"c": MPICH}),
            checks.norms({"gpu01": GOOD, "gpu02": GOOD, "gpu03": replace(GOOD, library={"c": MPICH})}),
        ),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


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
    done = subprocess.run(
        ["sh", str(script), "gpu[03-04]", "2", "2", "sh", "-c", "echo $HYDRA_LAUNCHER_EXTRA_ARGS", *words],
        env={"PATH": "/usr/bin:/bin", "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == reported + "\n"


def test_payload_is_python_3_6_and_needs_only_what_it_tests() -> None:
    world = ROOT / "src" / "pytest_gpucluster" / "kit" / "payloads" / "mpi" / "world.py"
    assert imported(world) <= sys.stdlib_module_names | {"mpi4py"}


def test_a_library_of_unknown_version_is_quoted_in_80_characters() -> None:
    def reason(count: int) -> str:
        facts = InstalledMpi("n", launcher=Version("Open MPI", "4"), library={"c": "y" * count})
        return checks.matches(facts, MpiConfig()).reason

    assert reason(80).endswith(f"{'y' * 80}'")
    assert len(reason(79)) + 1 == len(reason(80)) == len(reason(90))


@pytest.mark.parametrize(
    ("change", "cause", "hint"),
    [
        ({"rc": 1}, "the launcher did not start one world", ""),
        ({"failures": (failure("orte_ess_init", "gpu02"), failure("x", ""))}, "no PMI support", "hint of it"),
        ({"failures": (failure("MPI without PMI", "gpu02"),)}, "no PMI support: mpirun", "hint of it"),
        ({"failures": (failure("plugin missing", "gpu02"),)}, "no PMI support: mpirun", "hint of it"),
        ({"failures": (failure("killed", ""), failure("orte_ess_init", ""))}, "mpirun: killed", "hint of it"),
        ({"world": LONELY}, "the programs found no PMI of this launcher", "mpirun belongs to another MPI"),
        (
            {"world": LONELY, "launcher": "srun"},
            "the programs found no PMI of this launcher",
            "srun --mpi=pmi2",
        ),
    ],
)
def test_the_first_failure_of_a_world_is_its_cause(change: dict[str, Any], cause: str, hint: str) -> None:
    verdict = mpi_world.world(run(**change))
    assert verdict.cause.startswith(cause)
    assert hint in verdict.hint


@pytest.mark.parametrize(
    ("recording", "launcher", "cause", "hint"),
    [
        ("mpi-none.txt", "srun", "no PMI support: srun offers no PMI", "srun --mpi=pmix"),
        ("mpi-pmi2.txt", "srun --mpi=pmi2", "no PMI support", "srun --mpi=pmix"),
        ("mpi-pmix.txt", "srun --mpi=pmix", "step launch failed", "srun --mpi=list"),
    ],
)
def test_recorded_failures_are_explained(recording: str, launcher: str, cause: str, hint: str) -> None:
    failures = mpi_errors.explain((DATA / "nccl" / recording).read_text(), mpi=launcher.partition("=")[2])
    verdict = mpi_world.world(run(launcher=launcher, world=MpiWorld(), rc=1, failures=failures))
    assert cause in verdict.cause
    assert hint in verdict.hint


@pytest.mark.parametrize(
    ("text", "version", "family"),
    [
        ("mpirun (Open MPI) 4.1.4", "Open MPI 4.1.4", "Open MPI"),
        ("Open MPI v5.0.3, package: Open MPI", "Open MPI 5.0.3", "Open MPI"),
        ("HYDRA build details:     Version:                  4.0.2", "Hydra 4.0.2", "MPICH"),
        (MPICH, "MPICH 5.0.2", "MPICH"),
        ("MVAPICH2 Version      :	2.3.7", "MVAPICH 2.3.7", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build", "Intel MPI 2021.11", "MPICH"),
        ("Intel(R) MPI Library, 2019", "Intel MPI 2019", "MPICH"),
        ("Intel(R) MPI Library2021.6a.", "Intel MPI 2021.6a", "MPICH"),
        ("Intel(R) MPI Library v5.1", "Intel MPI 5.1", "MPICH"),
        ("Intel(R) MPI Library x.y, 20.", "", ""),
        ("Intel(R) MPI Library 5.x", "", ""),
        ("Open MPI 5", "Open MPI 5", "Open MPI"),
        ("MVAPICH2-GDR Version: 2,", "MVAPICH 2", "MPICH"),
        ("MVAPICH2- Version: 2", "", ""),
        ("MVAPICH Version:3.0", "MVAPICH 3.0", "MPICH"),
        ("MPICH Version : 4.2", "MPICH 4.2", "MPICH"),
        ("MPICH Version:", "", ""),
        ("HYDRA build details:\nVersion :4\nHwloc Version: 2", "Hydra 4", "MPICH"),
        ("HYDRA build details: Version:", "", ""),
        ("HYDRA build detailsVersion:4", "Hydra 4", "MPICH"),
        ("mpirun (Open MPI) 5.1.0a1", "Open MPI 5.1.0a1", "Open MPI"),
        ("prterun: command not found", "", ""),
    ],
)
def test_versions_are_read(text: str, version: str, family: str) -> None:
    found = version_of(text)
    assert (f"{found.name} {found.number}".strip(), found.family) == (version, family)
