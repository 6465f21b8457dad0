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
from pytest_gpucluster.core.check import Action, Outcome
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
from pytest_gpucluster.suites.mpi import checks as mpi

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict
from framework_helpers import as_reported

from pytest_gpucluster.core.check import Finding, Metric, Verdict
from pytest_gpucluster.kit.mpi.mpi_errors import LaunchFailure

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


@pytest.mark.parametrize(
    ("text", "name", "number", "family"),
    [
        ("mpirun (Open MPI) 4.1.4", "Open MPI", "4.1.4", "Open MPI"),
        ("Open MPI v5.0.3, package: Open MPI", "Open MPI", "5.0.3", "Open MPI"),
        ("HYDRA build details:     Version:                  4.0.2", "Hydra", "4.0.2", "MPICH"),
        (MPICH, "MPICH", "5.0.2", "MPICH"),
        ("MVAPICH2 Version      :	2.3.7", "MVAPICH", "2.3.7", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build", "Intel MPI", "2021.11", "MPICH"),
        ("Intel(R) MPI Library 5.1", "Intel MPI", "5.1", "MPICH"),
        ("Intel(R) MPI Library, 2019", "Intel MPI", "2019", "MPICH"),
        ("Intel(R) MPI Library2021.6a.", "Intel MPI", "2021.6a", "MPICH"),
        ("Intel(R) MPI Library x.y, 20.", "", "", ""),
        ("Open MPI 5", "Open MPI", "5", "Open MPI"),
        ("MVAPICH2-GDR Version: 2,", "MVAPICH", "2", "MPICH"),
        ("MVAPICH2- Version: 2", "", "", ""),
        ("MVAPICH Version:3.0", "MVAPICH", "3.0", "MPICH"),
        ("MPICH Version:4.2", "MPICH", "4.2", "MPICH"),
        ("MPICH Version : 4.2", "MPICH", "4.2", "MPICH"),
        ("MPICH Version:", "", "", ""),
        ("MVAPICH Version:", "", "", ""),
        ("HYDRA build details:\nVersion :4\nHwloc Version: 2", "Hydra", "4", "MPICH"),
        ("HYDRA build details: Version:", "", "", ""),
        ("Open MPI is here", "", "", ""),
        ("mpirun (Open MPI) 5.1.0a1", "Open MPI", "5.1.0a1", "Open MPI"),
        ("Intel(R) MPI Library v5.1", "Intel MPI", "5.1", "MPICH"),
        ("Intel(R) MPI Library 5.x", "", "", ""),
        ("HYDRA build detailsVersion:4", "Hydra", "4", "MPICH"),
        ("prterun: command not found", "", "", ""),
    ],
)
def test_versions_are_read(text: str, name: str, number: str, family: str) -> None:
    found = version_of(text)
    assert (found, found.family) == (Version(name, number), family)


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


def test_a_good_world_passes() -> None:
    assert mpi_world.world(run()).outcome is Outcome.PASSED
    assert mpi_world.allreduce(run()).outcome is Outcome.PASSED
    assert checks.threads(run(), "multiple").outcome is Outcome.PASSED
    assert checks.latency(run(), 5.0).outcome is Outcome.PASSED
    assert checks.bandwidth(run(), 5.0).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("change", "printed"),
    [
        ({"world": world_of(*(rank(0, 1, node=NODES[n // 2]) for n in range(4)))}, "singletons: 4 programs"),
        ({"world": world_of(rank(0), rank(1), rank(3))}, "ranks 2: sent no report"),
        ({"world": world_of(rank(0), rank(1), rank(2), rank(3), rank(3))}, "rank 3: 2 times"),
        ({"world": world_of(rank(0), rank(1), rank(2), rank(3), rank(4))}, "rank 4: unexpected"),
        ({"world": world_of(*(rank(n, 8) for n in range(4)))}, "size of the world: 8 / 4"),
        ({"world": world_of(rank(0), rank(1), rank(2), rank(3, node="gpu09"))}, "ranks 3: on gpu09, which was not"),
        ({"world": world_of(rank(0), rank(1), rank(2), rank(3, node=""))}, "on an unknown host"),
        ({"world": world_of(*(rank(n, node="gpu01") for n in range(4)))}, "gpu01: 4 ranks / 2 ranks; gpu02: 0 ranks"),
        ({"world": MpiWorld(), "problem": "hangs: 4 tasks"}, "mpirun: hangs: 4 tasks"),
        ({"world": MpiWorld(), "rc": 1, "first_error": "boom"}, "mpirun: exit status 1: boom"),
        ({"world": MpiWorld()}, "ranks 0, 1, 2, 3: sent no report"),
        ({"rc": 9}, "mpirun: exit status 9: no message"),
    ],
)  # fmt: skip
def test_each_bad_world_has_its_verdict(change: dict[str, Any], printed: str) -> None:
    verdict = mpi_world.world(run(**change))
    assert verdict.outcome is Outcome.FAILED
    assert printed in reported(verdict)


@pytest.mark.parametrize(
    ("recording", "launcher", "printed", "cause", "hint"),
    [
        (
            "mpi-none.txt",
            "srun",
            "MPI without PMI on gpu",
            "no PMI support: srun offers no PMI",
            "srun --mpi=pmix",
        ),
        ("mpi-pmi2.txt", "srun --mpi=pmi2", "MPI without PMI", "no PMI support", "srun --mpi=pmix"),
        ("mpi-pmix.txt", "srun --mpi=pmix", "step launch failed", "step launch failed", "srun --mpi=list"),
    ],
)
def test_recorded_failures_are_explained(
    recording: str, launcher: str, printed: str, cause: str, hint: str
) -> None:
    failures = mpi_errors.explain((DATA / "nccl" / recording).read_text(), mpi=launcher.partition("=")[2])
    verdict = mpi_world.world(run(launcher=launcher, world=MpiWorld(), rc=1, failures=failures))
    assert printed in reported(verdict)
    assert cause in verdict.cause
    assert hint in verdict.hint


def test_singletons_say_which_pmi_is_wanting() -> None:
    lonely = world_of(*(rank(0, 1) for _ in range(4)))
    assert "--mpi=pmi2" in mpi_world.world(run(launcher="srun", world=lonely)).hint
    assert "mpi.matches" in mpi_world.world(run(world=lonely)).hint


def test_a_wrong_sum_names_rank_and_node() -> None:
    verdict = mpi_world.allreduce(run(world=world_of(rank(0), rank(2, wrong=3))))
    assert reported(verdict) == "rank 2 on gpu02: 3 of 1024 elements wrong / the closed form of the sum"
    assert mpi_world.allreduce(run(world=MpiWorld())).outcome is Outcome.NOT_CHECKED
    assert mpi_world.allreduce(run(world=world_of(rank(0, elements=0)))).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("level", "wanted", "outcome"),
    [
        ("single", "funneled", Outcome.FAILED),
        ("serialized", "multiple", Outcome.FAILED),
        ("multiple", "multiple", Outcome.PASSED),
        ("funneled", "single", Outcome.PASSED),
        ("unknown", "single", Outcome.FAILED),
    ],
)
def test_thread_levels_are_ordered(level: str, wanted: str, outcome: Outcome) -> None:
    verdict = checks.threads(run(world=world_of(rank(0, threads=level))), wanted)
    assert verdict.outcome is outcome


def test_speed_is_recorded_and_judged_where_a_bound_is_stated() -> None:
    assert reported(checks.latency(run(), 1.5)) == "gpu01-gpu02: 2 us / at most 1.5 us (mpi.max_latency)"
    assert (
        reported(checks.bandwidth(run(), 12)) == "gpu01-gpu02: 10 GB/s / at least 12 GB/s (mpi.min_bandwidth)"
    )
    unbound = checks.latency(run(), None)
    assert unbound.outcome is Outcome.NOT_APPLICABLE
    assert [(metric.value, metric.device) for metric in unbound.metrics] == [(2.0, "gpu01-gpu02")]
    nothing = replace(run().world, pairs=())
    assert checks.latency(run(world=nothing), 5.0).outcome is Outcome.NOT_CHECKED
    assert checks.latency(run(world=nothing, nodes=NODES[:1]), 5.0).outcome is Outcome.NOT_APPLICABLE
    zero = replace(run().world, pairs=(RankPair((0, 2), 0.0, 0.0),))
    assert checks.latency(run(world=zero), 5.0).outcome is Outcome.FAILED


def test_a_node_that_is_slow_with_every_neighbour_is_named() -> None:
    nodes = ("gpu01", "gpu02", "gpu03", "gpu04")
    ranks = tuple(replace(rank(n), node=nodes[n]) for n in range(4))
    speeds = {(0, 1): 2e-6, (1, 2): 50e-6, (2, 3): 50e-6, (3, 0): 2e-6}
    world = MpiWorld(ranks, tuple(RankPair(ends, latency, 1e9) for ends, latency in speeds.items()))
    verdict = checks.latency(run(nodes=nodes, ntasks_per_node=1, world=world), 10.0)
    assert [found.part for found in verdict.findings] == ["gpu02-gpu03", "gpu03-gpu04"]
    assert all("(gpu03 with every neighbour)" in found.measured for found in verdict.findings)


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


def test_what_a_node_lacks_is_named() -> None:
    config = MpiConfig(languages=("c", "python"))
    bare = replace(GOOD, mpirun="", library={}, problems={"c": "mpicc: not found"})
    assert reported(checks.installed(bare, config)) == (
        "mpirun: not on PATH / on PATH; MPI of C programs: mpicc: not found / a program that compiles and starts; "
        "mpi4py: no answer / a program that compiles and starts"
    )
    assert checks.installed(GOOD, MpiConfig()).outcome is Outcome.PASSED
    assert checks.installed(bare, MpiConfig(launchers=("srun",))).findings[0].part == "MPI of C programs"
    other = checks.installed(GOOD, MpiConfig(implementation="Open MPI v5"))
    assert "expected" not in reported(other)
    assert "Open MPI v5 (mpi.implementation)" in reported(other)


def test_condas_mpirun_in_front_of_the_sites_is_named() -> None:
    verdict = checks.path(CONDA, MpiConfig(), conda_environment=False)
    assert reported(verdict) == (
        "mpirun: /opt/conda/bin/mpirun of conda (Hydra 4.2) in front of /usr/bin/mpirun / /usr/bin/mpirun"
    )
    assert checks.path(CONDA, MpiConfig(), conda_environment=True).outcome is Outcome.PASSED
    assert checks.path(GOOD, MpiConfig(), conda_environment=False).outcome is Outcome.PASSED
    assert (
        checks.path(GOOD, MpiConfig(prefix="/opt/site/"), conda_environment=False).outcome is Outcome.FAILED
    )
    assert checks.path(GOOD, MpiConfig(prefix="/usr"), conda_environment=False).outcome is Outcome.PASSED
    gone = replace(GOOD, mpirun="")
    assert checks.path(gone, MpiConfig(), conda_environment=False).outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize(
    ("launcher", "library", "outcome"),
    [
        (Version("Open MPI", "4.1.4"), OPEN_MPI, Outcome.PASSED),
        (Version("Open MPI", "5.0.1"), OPEN_MPI, Outcome.FAILED),
        (Version("Hydra", "5.0.2"), OPEN_MPI, Outcome.FAILED),
        (Version("Hydra", "5.0.2"), MPICH, Outcome.PASSED),
        (Version("", ""), MPICH, Outcome.NOT_CHECKED),
    ],
)
def test_mpirun_and_programs_are_of_one_mpi(launcher: Version, library: str, outcome: Outcome) -> None:
    facts = replace(GOOD, launcher=launcher, library={"c": library})
    assert checks.matches(facts, MpiConfig()).outcome is outcome
    assert checks.matches(facts, MpiConfig(launchers=("srun",))).outcome is Outcome.NOT_APPLICABLE


def test_a_node_unlike_its_fleet_is_named() -> None:
    old = replace(GOOD, launcher=Version("Open MPI", "4.0.3"), library={"c": "Open MPI v4.0.3"})
    fleet = {"gpu01": GOOD, "gpu02": GOOD, "gpu03": old}
    norms = checks.norms(fleet)
    assert checks.alike(GOOD, norms).outcome is Outcome.PASSED
    assert [(found.part, found.expected) for found in checks.alike(old, norms).findings] == [
        ("mpirun", "/usr/bin/mpirun (Open MPI 4.1.4), as on 2 of 3 nodes"),
        ("MPI of C programs", f"{GOOD.library['c']}, as on 2 of 3 nodes"),
    ]
    assert checks.alike(GOOD, checks.norms({"gpu01": GOOD})).outcome is Outcome.NOT_APPLICABLE


def test_an_mpi_that_the_cluster_file_does_not_use_is_not_compared() -> None:
    """Another mpirun, where srun is the launcher; another mpi4py, where only C programs run."""
    other = replace(GOOD, launcher=Version("Open MPI", "4.0.3"), library={**GOOD.library, "python": MPICH})
    fleet = {"gpu01": GOOD, "gpu02": GOOD, "gpu03": other}
    plain = MpiConfig(launchers=("srun",), languages=("c",))
    assert checks.alike(other, checks.norms(fleet, plain)).outcome is Outcome.PASSED
    assert checks.alike(other, checks.norms(fleet, MpiConfig())).outcome is Outcome.FAILED


def test_two_nodes_with_two_mpis_drain_nobody() -> None:
    old = replace(GOOD, launcher=Version("Open MPI", "4.0.3"))
    verdict = checks.alike(old, checks.norms({"gpu01": GOOD, "gpu02": old}))
    assert verdict.action is Action.CONFIGURE
    (found,) = verdict.findings
    assert found.expected.endswith(
        "no majority: /usr/bin/mpirun (Open MPI 4.1.4) on gpu01, /usr/bin/mpirun (Open MPI 4.0.3) on gpu02"
    )


def test_a_type_that_slurm_or_the_mpi_lacks_is_named() -> None:
    types = ("none", "pmi2", "pmix")
    assert checks.pmi(types, ["pmix"], GOOD).outcome is Outcome.PASSED
    assert (
        reported(checks.pmi(("none", "pmi2"), ["pmix"], GOOD))
        == "srun --mpi=pmix: Slurm has none, pmi2 / pmix"
    )
    assert (
        reported(checks.pmi(types, ["pmi2"], GOOD)) == "srun --mpi=pmi2: Open MPI 4.1.4 supports pmix / pmi2"
    )
    assert checks.pmi(types, [], GOOD).outcome is Outcome.NOT_APPLICABLE


def failure(kind: str, host: str) -> mpi_errors.LaunchFailure:
    return mpi_errors.LaunchFailure(kind, host, "text of it", "hint of it")


def ring(*latencies: float) -> MpiRun:
    """Return four nodes in a ring, with the latency of each pair of neighbours."""
    nodes = ("gpu01", "gpu02", "gpu03", "gpu04")
    ranks = tuple(replace(rank(n), node=nodes[n]) for n in range(4))
    pairs = tuple(RankPair((n, (n + 1) % 4), latency, 1e9) for n, latency in enumerate(latencies))
    return run(nodes=nodes, ntasks_per_node=1, world=MpiWorld(ranks, pairs))


CASES: Table = {
    mpi_world.world: [
        ("passed: mpirun, c [4]", run()),
        (
            "monitor: singletons; mpirun, c [4, 0, 1, 4, 4]",
            run(world=world_of(*(rank(0, 1, node=NODES[n // 2]) for n in range(4)))),
        ),
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
            "monitor: size of the world; mpirun, c [6, 8, 4, 4]",
            run(world=world_of(*(rank(n, 8) for n in range(3)), rank(3, 6))),
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
            "configure: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more",
            run(world=world_of(*(rank(n, 10, threads="single") for n in range(10)))),
            "multiple",
        ),
        (
            "configure: ranks 0, 1, 2, 3, 4, 5, 6, 7",
            run(world=world_of(*(rank(n, 8, threads="single") for n in range(8)))),
            "multiple",
        ),
    ],
    checks.latency: [
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
        (
            "monitor: gpu02-gpu03; gpu01-gpu02; gpu02-gpu03; gpu03-gpu04; gpu04-gpu01 [50, 10, 2, 50, 2, 2]",
            ring(2e-06, 5e-05, 2e-06, 2e-06),
            10.0,
        ),
    ],
    checks.bandwidth: [
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
        ("not checked", replace(GOOD, mpirun=""), MpiConfig()),
        ("configure: mpirun [4.2]", CONDA, MpiConfig()),
        ("configure: mpirun [4.2]", replace(CONDA, mpiruns=CONDA.mpiruns[:1]), MpiConfig()),
        ("configure: mpirun [4.1]", GOOD, MpiConfig(prefix="/opt/site/")),
        ("passed", GOOD, MpiConfig(prefix="/usr/")),
        ("passed", replace(GOOD, mpiruns=()), MpiConfig()),
    ],
    partial(checks.path, conda_environment=True): [("passed", CONDA, MpiConfig())],
    checks.matches: [
        ("not applicable", GOOD, MpiConfig(launchers=("srun",))),
        ("passed", GOOD, MpiConfig()),
        ("not checked", replace(GOOD, launcher=Version("", "")), MpiConfig()),
        ("not checked", replace(GOOD, library={}), MpiConfig()),
        (
            "configure: MPI of C programs [4.1, 5]",
            replace(GOOD, launcher=Version("Open MPI", "5.0.1")),
            MpiConfig(),
        ),
        (
            "configure: MPI of C programs [4.1, 5]",
            replace(GOOD, launcher=Version("Hydra", "5.0.2")),
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
        ("not applicable", GOOD, checks.norms({"gpu01": GOOD})),
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


def test_a_world_that_failed_says_the_cause_of_its_messages() -> None:
    known = mpi_world.world(run(rc=1, failures=(failure("orte_ess_init", "gpu02"), failure("x", ""))))
    assert known.cause == "no PMI support: mpirun offers no PMI that this MPI was built for"
    assert known.hint == "hint of it"
    other = mpi_world.world(run(rc=1, failures=(failure("x", ""),)))
    assert other.cause == "mpirun: x"
    silent = mpi_world.world(run(rc=1))
    assert silent.cause == "the launcher did not start one world on the requested nodes"


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


def mpi_run(*ranks: Any, pairs: tuple[RankPair, ...] = (), **change: Any) -> Any:
    return run(world=MpiWorld(ranks, pairs), **change)


def test_mpirun_of_conda_goes_before_several_others() -> None:
    conda, one, two = (
        MpirunPath("/conda/bin/mpirun", conda=True),
        MpirunPath("/one/bin/mpirun", conda=False),
        MpirunPath("/two/bin/mpirun", conda=False),
    )
    facts = InstalledMpi("n", mpiruns=(conda, one, two), mpirun=conda.path, launcher=Version("Open MPI", "4"))
    assert mpi.path(facts, MpiConfig(), conda_environment=False).findings == (
        Finding(
            "mpirun", "/conda/bin/mpirun of conda (Open MPI 4) in front of /one/bin/mpirun", "/one/bin/mpirun"
        ),
    )
    assert as_reported(mpi.path(InstalledMpi("n"), MpiConfig(prefix="/opt/mpi"), conda_environment=False)) == (
        Outcome.NOT_CHECKED, "no mpirun on PATH, which mpi.installed judges", (), ()
    )  # fmt: skip


def test_a_library_of_unknown_version_is_quoted_in_80_characters() -> None:
    facts = InstalledMpi("n", launcher=Version("Open MPI", "4"), library={"c": "x" * 90})
    quoted = "x" * 79 + "…"
    reason = mpi.matches(facts, MpiConfig()).reason
    assert reason.startswith("MPI of C programs: the version is not known from 'xxx")
    assert len(reason) == len(f"MPI of C programs: the version is not known from {quoted!r}")
    short = replace(facts, library={"c": "y" * 80})
    assert mpi.matches(short, MpiConfig()).reason == (
        f"MPI of C programs: the version is not known from {'y' * 80!r}"
    )


def test_one_node_has_no_fleet_even_if_it_differs_from_itself() -> None:
    norms = mpi.norms({"a": InstalledMpi("a", mpirun="/a/mpirun")})
    assert as_reported(mpi.alike(InstalledMpi("a", mpirun="/b/mpirun"), norms)) == (
        Outcome.NOT_APPLICABLE,
        "there is no other node of its group, partition and architecture to compare with", (), (),
    )  # fmt: skip


def test_worlds_of_one_are_singletons_only_where_all_are() -> None:
    two = mpi_run(
        rank(0, 1, node="gpu01"), rank(0, 1, node="gpu02"), nodes=("gpu01", "gpu02"), ntasks_per_node=1
    )
    verdict = mpi_world.world(replace(two, rc=1))
    assert verdict.findings == (
        Finding("mpirun", "exit status 1: no message", "exit status 0"),
        Finding("singletons", "2 programs, each rank 0 of 1", "one world of 2 ranks"),
    )
    assert verdict.cause == (
        "the programs found no PMI of this launcher, and each ran as a world of its own: "
        "exit status 0, wrong result"
    )
    assert (
        verdict.hint
        == "mpirun belongs to another MPI than the program (see mpi.matches): load one module only"
    )
    mixed = mpi_world.world(mpi_run(rank(0), rank(1), rank(2), rank(3, 1)))
    assert mixed.findings == (Finding("size of the world", "1", "4"),)
    alone = mpi_run(rank(0, 1, node="gpu01"), nodes=("gpu01",), ntasks_per_node=1)
    assert mpi_world.world(alone).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("MPI without PMI", "no PMI support: mpirun offers no PMI that this MPI was built for"),
        ("orte_ess_init", "no PMI support: mpirun offers no PMI that this MPI was built for"),
        ("plugin missing", "no PMI support: mpirun offers no PMI that this MPI was built for"),
        ("killed", "mpirun: killed"),
    ],
)
def test_the_first_failure_is_the_cause(kind: str, cause: str) -> None:
    failures = (
        LaunchFailure(kind, "gpu01", "words", "do this"),
        LaunchFailure("other", "", "more", "do that"),
    )
    verdict = mpi_world.world(mpi_run(failures=failures))
    assert (verdict.cause, verdict.hint) == (cause, "do this")
    assert verdict.findings == (
        Finding(f"{kind} on gpu01", "words", "a world of 4 ranks by mpirun"),
        Finding("other", "more", "a world of 4 ranks by mpirun"),
    )


@pytest.mark.parametrize(
    ("level", "wanted", "enough"),
    [
        ("single", "single", True), ("single", "funneled", False), ("funneled", "serialized", False),
        ("serialized", "serialized", True), ("serialized", "multiple", False), ("multiple", "serialized", True),
        ("unknown", "single", False),
    ],
)  # fmt: skip
def test_levels_of_threads(level: str, wanted: str, *, enough: bool) -> None:
    run = mpi_run(rank(0, threads=level))
    finding = Finding("ranks 0", f"MPI_THREAD_{level.upper()}", f"MPI_THREAD_{wanted.upper()}")
    assert mpi.threads(run, wanted).findings == (() if enough else (finding,))


@pytest.mark.parametrize(
    ("count", "shown"), [(8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"), (1, "0")]
)
def test_many_ranks_are_reported_as_eight_and_more(count: int, shown: str) -> None:
    ranks = [rank(n, 12, node="gpu01", threads="single") for n in range(count)]
    assert mpi.threads(mpi_run(*ranks), "multiple").findings == (
        Finding(f"ranks {shown}", "MPI_THREAD_SINGLE", "MPI_THREAD_MULTIPLE"),
    )


def test_figures_between_nodes() -> None:
    figures = run(world=MpiWorld(run().world.ranks, (RankPair((0, 2), 0.5e-6, 0.5e9),)))
    latency = Metric("mpi_latency", 0.5, "us", "gpu01-gpu02")
    assert as_reported(mpi.latency(figures, 2.0)) == (Outcome.PASSED, "", (), (latency,))
    assert as_reported(mpi.latency(figures, None)) == (
        Outcome.NOT_APPLICABLE, "the cluster file does not set mpi.max_latency; the figures are recorded", (), (latency,)
    )  # fmt: skip
    bandwidth = Metric("mpi_bandwidth", 0.5, "GB/s", "gpu01-gpu02")
    assert as_reported(mpi.bandwidth(figures, 0.5)) == (Outcome.PASSED, "", (), (bandwidth,))
    assert as_reported(mpi.bandwidth(figures, None)) == (
        Outcome.NOT_APPLICABLE, "the cluster file does not set mpi.min_bandwidth; the figures are recorded", (),
        (bandwidth,),
    )  # fmt: skip


def test_without_a_pair_there_is_no_speed() -> None:
    alone = mpi_run(nodes=("gpu01",))
    assert as_reported(mpi.latency(alone, None)) == (Outcome.NOT_APPLICABLE, "a pair needs two nodes", (), ())
    assert as_reported(mpi.bandwidth(mpi_run(), None)) == (
        Outcome.NOT_CHECKED,
        "no pair of nodes was measured",
        (),
        (),
    )


def test_only_a_node_with_two_bad_neighbours_is_blamed() -> None:
    ranks = [rank(n, 4, node=f"gpu0{n}") for n in range(4)]
    slow, fine = 9e-6, 1e-6
    line = mpi_run(*ranks, pairs=(RankPair((0, 1), slow, 1), RankPair((1, 2), fine, 1)))
    assert mpi.latency(line, 2.0).findings == (
        Finding("gpu00-gpu01", "9 us", "at most 2 us (mpi.max_latency)"),
    )
    ring = (
        RankPair((0, 1), slow, 1),
        RankPair((1, 2), slow, 1),
        RankPair((2, 3), fine, 1),
        RankPair((3, 0), fine, 1),
    )
    assert [it.measured for it in mpi.latency(mpi_run(*ranks, pairs=ring), 2.0).findings] == [
        "9 us (gpu01 with every neighbour)", "9 us (gpu01 with every neighbour)",
    ]  # fmt: skip
