"""The rarer verdicts of MPI, Horovod, Ray, torch.distributed and submitit, compared exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from system import test_ddp as test_ddp_suite
from system import test_horovod as test_horovod_suite
from system import test_mpi as test_mpi_suite
from system import test_ray as test_ray_suite
from system import test_submitit as test_submitit_suite
from system import test_tensorflow as test_tensorflow_suite

from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.kit.mpi import mpi_world
from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi.mpi_errors import LaunchFailure
from pytest_gpucluster.kit.mpi.mpi_facts import InstalledMpi, MpirunPath, MpiWorld, RankPair, Version
from pytest_gpucluster.suites.ddp import checks as ddp
from pytest_gpucluster.suites.horovod import checks as horovod
from pytest_gpucluster.suites.mpi import checks as mpi
from pytest_gpucluster.suites.ray import checks as ray
from pytest_gpucluster.suites.submitit import checks as submitit
from pytest_gpucluster.suites.tensorflow import checks as tensorflow


def reported(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.outcome, verdict.reason, verdict.findings, verdict.metrics


# --- MPI


def mpi_run(*ranks: Any, pairs: tuple[RankPair, ...] = (), **change: Any) -> Any:
    return test_mpi_suite.run(world=MpiWorld(ranks, pairs), **change)


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
    assert reported(mpi.path(InstalledMpi("n"), MpiConfig(prefix="/opt/mpi"), conda_environment=False)) == (
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
    assert reported(mpi.alike(InstalledMpi("a", mpirun="/b/mpirun"), norms)) == (
        Outcome.NOT_APPLICABLE,
        "there is no other node of its group, partition and architecture to compare with", (), (),
    )  # fmt: skip


def test_worlds_of_one_are_singletons_only_where_all_are() -> None:
    rank = test_mpi_suite.rank
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
    run = mpi_run(test_mpi_suite.rank(0, threads=level))
    finding = Finding("ranks 0", f"MPI_THREAD_{level.upper()}", f"MPI_THREAD_{wanted.upper()}")
    assert mpi.threads(run, wanted).findings == (() if enough else (finding,))


@pytest.mark.parametrize(
    ("count", "shown"),
    [(8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"), (1, "0")],
)
def test_many_ranks_are_reported_as_eight_and_more(count: int, shown: str) -> None:
    ranks = [test_mpi_suite.rank(n, 12, node="gpu01", threads="single") for n in range(count)]
    assert mpi.threads(mpi_run(*ranks), "multiple").findings == (
        Finding(f"ranks {shown}", "MPI_THREAD_SINGLE", "MPI_THREAD_MULTIPLE"),
    )


def test_figures_between_nodes() -> None:
    run = test_mpi_suite.run(
        world=MpiWorld(test_mpi_suite.run().world.ranks, (RankPair((0, 2), 0.5e-6, 0.5e9),))
    )
    latency = Metric("mpi_latency", 0.5, "us", "gpu01-gpu02")
    assert reported(mpi.latency(run, 2.0)) == (Outcome.PASSED, "", (), (latency,))
    assert reported(mpi.latency(run, None)) == (
        Outcome.NOT_APPLICABLE, "the cluster file does not set mpi.max_latency; the figures are recorded", (), (latency,)
    )  # fmt: skip
    bandwidth = Metric("mpi_bandwidth", 0.5, "GB/s", "gpu01-gpu02")
    assert reported(mpi.bandwidth(run, 0.5)) == (Outcome.PASSED, "", (), (bandwidth,))
    assert reported(mpi.bandwidth(run, None)) == (
        Outcome.NOT_APPLICABLE, "the cluster file does not set mpi.min_bandwidth; the figures are recorded", (),
        (bandwidth,),
    )  # fmt: skip


def test_without_a_pair_there_is_no_speed() -> None:
    alone = mpi_run(nodes=("gpu01",))
    assert reported(mpi.latency(alone, None)) == (Outcome.NOT_APPLICABLE, "a pair needs two nodes", (), ())
    assert reported(mpi.bandwidth(mpi_run(), None)) == (
        Outcome.NOT_CHECKED,
        "no pair of nodes was measured",
        (),
        (),
    )


def test_only_a_node_with_two_bad_neighbours_is_blamed() -> None:
    ranks = [test_mpi_suite.rank(n, 4, node=f"gpu0{n}") for n in range(4)]
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


# --- Horovod


def test_what_a_node_is_started_with_by_default() -> None:
    assert horovod.NodeBuild() == horovod.NodeBuild(None, "", {}, "", "python3", "horovodrun")


def test_a_job_that_could_not_be_asked_for_is_not_judged_at_all() -> None:
    spoilt = [
        test_horovod_suite.rank(n, controller="mpi", wrong={"int64": 3}, sent={"0": 2}, trained={
            "before": str(n), "after": str(n), "error": 1.0,
        })
        for n in range(4)
    ]  # fmt: skip
    job = test_horovod_suite.world(*spoilt, obstacle=NotApplicable("no mpirun"))
    for judge in (horovod.ranks, horovod.all_reduce, horovod.broadcast, horovod.training):
        assert reported(judge(job)) == (Outcome.NOT_APPLICABLE, "no mpirun", (), ())
    unbelieved = test_horovod_suite.world(*spoilt, problem="it hung")
    for judge in (horovod.all_reduce, horovod.broadcast, horovod.training):
        assert reported(judge(unbelieved)) == (
            Outcome.NOT_CHECKED, "the ranks of the job are not valid: see horovod.ranks", (), ()
        )  # fmt: skip


def test_the_all_reduce_has_a_rate_in_gigabytes() -> None:
    job = test_horovod_suite.world(test_horovod_suite.rank(1, seconds=0.5))
    assert horovod.all_reduce(job).metrics == (
        Metric("all_reduce_16MiB", 16 * 1024 * 1024 / 0.5 / 1e9, "GB/s", str(job.launch)),
    )


def problem(number: int, node: str, what: str) -> dict[str, Any]:
    return {"rank": number, "node": node, "problem": "no answer", "stage": "init", "what": what}


def test_nodes_without_a_report_are_named_where_one_rank_waited() -> None:
    waited, crashed = problem(0, "gpu01", "deadline"), problem(1, "gpu01", "import")
    job = test_horovod_suite.world(ranks=(), problems=(waited, crashed))
    assert horovod.ranks(job).findings == (
        Finding("rank 0 on gpu01", "no answer (in init)", f"a job by {job.launch}"),
        Finding("rank 1 on gpu01", "no answer (in init)", f"a job by {job.launch}"),
        Finding("gpu02", "no rank of the node sent a report", "its ranks join"),
    )
    assert len(horovod.ranks(test_horovod_suite.world(ranks=(), problems=(crashed, crashed))).findings) == 2


def test_two_jobs_of_one_are_singletons_and_one_rank_alone_is_a_job() -> None:
    rank = test_horovod_suite.rank
    two = test_horovod_suite.world(
        hosts=("gpu01", "gpu01"), ranks=(rank(0, size=1), rank(0, size=1))
    )  # fmt: skip
    assert horovod.ranks(two).findings == (
        Finding("size", "2 jobs of one rank each (singletons)", "one job of 2"),
    )
    lone = rank(0, size=1, local_size=1, cross_size=1)
    assert horovod.ranks(test_horovod_suite.world(hosts=("gpu01",), ranks=(lone,))).outcome is Outcome.PASSED
    twice = test_horovod_suite.world(hosts=("gpu01",), ranks=(lone, lone))
    assert horovod.ranks(twice).findings == (Finding("ranks", "more than once: 0", "every rank once"),)


def test_each_place_of_a_rank_is_compared() -> None:
    rank = test_horovod_suite.rank
    wrong = rank(3, local_rank=5, local_size=6, cross_rank=7, cross_size=8)
    assert horovod.ranks(test_horovod_suite.world(wrong)).findings == (
        Finding(
            "rank 3 on gpu02", "local_rank 5, local_size 6, cross_rank 7, cross_size 8",
            "local_rank 1, local_size 2, cross_rank 1, cross_size 2",
        ),
    )  # fmt: skip
    # its size is wrong, or it is beyond the job: its places are not compared as well
    assert horovod.ranks(test_horovod_suite.world(rank(3, size=2, local_rank=5))).findings == (
        Finding("rank 3 on gpu02", "size 2", "size 4"),
    )
    beyond = test_horovod_suite.world(ranks=(*map(rank, range(4)), rank(3, rank=4, local_rank=5)))
    assert horovod.ranks(beyond).findings == (Finding("rank 4 on gpu02", "rank 4", "a rank from 0 to 3"),)
    below = test_horovod_suite.world(ranks=(*map(rank, range(4)), rank(0, rank=-1)))
    assert horovod.ranks(below).findings == (Finding("rank -1 on gpu01", "rank -1", "a rank from 0 to 3"),)


def test_a_build_that_can_do_nothing() -> None:
    from pytest_gpucluster.suites.horovod.facts import read  # needed here only

    whole = read(test_horovod_suite.TABLE)
    here = horovod.NodeBuild(replace(whole, operations=frozenset()))
    assert horovod.build(here, (), (), ("nccl", "mpi")).findings == (
        Finding("tensor operations", "without mpi, nccl; with none", "mpi, nccl"),
    )


# --- Ray


def test_what_a_node_of_ray_reported_and_what_is_absent() -> None:
    assert (ray.NodeFacts().what, ray.NodeFacts().problem) == ("", "")
    silent = ray.NodeFacts(silent="killed")
    assert (silent.what, silent.problem) == ("step", "killed")
    failed = ray.NodeFacts({"problem": {"what": "port", "problem": "port 1 (x) is taken"}}, silent="killed")
    assert (failed.what, failed.problem) == ("port", "port 1 (x) is taken")
    facts = ray.ClusterFacts({}, "a")
    assert (facts.nodes, facts.driver, facts.version, facts.token, facts.alive) == ({}, {}, "", True, {})


SHARE = ray.Share(2, 1)
UP = {"cpu": 2.0, "gpu": 1.0}


def cluster(nodes: dict[str, ray.NodeFacts], *alive: str, **driver: Any) -> ray.ClusterFacts:
    known = {"alive": dict.fromkeys(alive, UP)}
    return ray.ClusterFacts({"a": SHARE, "b": SHARE}, "a", nodes, {"nodes": known, **driver}, "2.60.0")


def test_a_cluster_that_was_never_started() -> None:
    never = Finding("head on a", "was not started", "a head that the workers can join")
    assert reported(ray.nodes(cluster({}))) == (Outcome.FAILED, "", (never,), ())
    fine = {"a": ray.NodeFacts({"ended": {}})}
    assert ray.nodes(cluster(fine, "a")).findings == (Finding("b", "missing: was not started", "alive"),)
    joined = {**fine, "b": ray.NodeFacts({"ended": {}})}
    assert ray.nodes(cluster(joined, "a")).findings == (
        Finding("b", "missing: its worker started but did not join", "alive"),
    )
    assert ray.nodes(cluster(joined, "a", "b")).outcome is Outcome.PASSED


@pytest.mark.parametrize(("what", "named"), [("head", 0), ("step", 0), ("", 0), ("ray", 1), ("port", 1)])
def test_of_a_dead_head_only_faults_of_their_own_are_the_workers(what: str, named: int) -> None:
    worker = ray.NodeFacts({"problem": {"what": what, "problem": "words"}} if what else {})
    found = ray.nodes(cluster({"a": ray.NodeFacts(silent="killed"), "b": worker})).findings
    own = (Finding("b", "missing: words", "alive"),) * named
    assert found == (Finding("head on a", "killed", "a head that the workers can join"), *own)


def test_two_nodes_are_a_cluster_and_one_is_none() -> None:
    two = cluster({}, "a", "b", tasks={"ran": {"a": "a", "b": "c"}})
    assert ray.tasks("a", two).outcome is Outcome.PASSED
    assert ray.tasks("b", two).findings == (Finding("task", "c", "runs on b"),)
    one = replace(two, requested={"b": SHARE})
    lone = (Outcome.NOT_APPLICABLE, "a cluster needs two nodes: see ray.alone", (), ())
    assert reported(ray.tasks("b", one)) == lone
    assert reported(ray.nodes(one)) == lone


@pytest.mark.parametrize(
    ("version", "judged"),
    [
        ("2.51.9", False),
        ("2.52", True),
        ("2.52.0", True),
        ("2.9.1", False),
        ("3.0.0", True),
        ("2.52.dev1", True),
        ("", True),
    ],
)
def test_the_token_is_of_ray_2_52(version: str, *, judged: bool) -> None:
    facts = replace(
        test_ray_suite.formed(no_token={"refused": False, "rc": 0, "output": "hello"}), version=version
    )
    verdict = ray.token(facts, True)
    if judged:
        assert verdict.findings == (
            Finding("a client without token", "was accepted (exit 0): hello", "refused"),
        )
    else:
        reason = f"Ray {version} has no token authentication: install 2.52 or later, or set ray.token: false"
        assert reported(verdict) == (Outcome.NOT_CHECKED, reason, (), ())
    assert reported(ray.token(facts, False)) == (
        Outcome.NOT_APPLICABLE, "the cluster file disables Ray's token (ray.token)", (), ()
    )  # fmt: skip


# --- torch.distributed


def test_constants_that_programs_of_others_set() -> None:
    # Enroot's 50-slurm-pytorch.sh: MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536))
    assert (ddp.HOOK_FIRST_PORT, ddp.HOOK_PORTS, ddp.MAX_PORT) == (61000, 4536, 65535)


@pytest.mark.parametrize(
    ("name", "given", "version", "job", "by"),
    [
        ("RANK", "1", "2.1", "7", "Pyxis"),
        ("LOCAL_RANK", "1", "2.1", "7", "Pyxis"),
        ("LOCAL_RANK", "1", "", "7", "the image or a hook of Enroot"),
        ("MASTER_PORT", "61007", "2.1", "7", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "61007", "", "7", "the image or a hook of Enroot"),
        ("MASTER_PORT", "61000", "2.1", "4536", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "65535", "2.1", "4535", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "61000", "2.1", "", "Enroot's hook 50-slurm-pytorch.sh"),
        ("MASTER_PORT", "61001", "2.1", None, "the image or a hook of Enroot"),
        ("MASTER_ADDR", None, "2.1", "7", "this suite, from Slurm's variables"),
    ],
)
def test_who_set_a_variable(name: str, given: str | None, version: str, job: str | None, by: str) -> None:
    fact = {"given": {} if given is None else {name: given}, "pytorch_version": version, "job": job}
    assert ddp.who_set(name, fact, ddp.Setters(contained=True)) == by


def placed(node: str = "gpu02", **change: Any) -> Verdict:
    return ddp.master_addr(node, test_ddp_suite.placed(**change))


def test_the_address_of_the_leader() -> None:
    loop = {"master": {"addresses": ["127.0.1.1"], "error": ""}}
    assert placed("gpu01", task0=loop, task1=loop).outcome is Outcome.PASSED  # its own name
    assert placed(task2=loop, task3=loop).findings == (
        (Finding("MASTER_ADDR gpu01", "127.0.1.1: this node itself", "an address of gpu01"),) * 2
    )
    assert placed("gpu01", task2=loop, task3=loop).outcome is Outcome.PASSED
    silent = PayloadResult("ddp", ("gpu01", "gpu02"), 4, problem="it hung")
    assert reported(ddp.master_addr("gpu01", silent)) == (
        Outcome.NOT_CHECKED, "the tasks of the node reported nothing: it hung", (), ()
    )  # fmt: skip


def test_a_leader_that_is_elsewhere_has_all_its_addresses_named() -> None:
    leader = {"port": "not local", "master": {"addresses": ["10.0.0.8", "fe80::8"], "error": ""}}
    assert ddp.master_port(test_ddp_suite.placed(task0=leader)).findings == (
        Finding("MASTER_ADDR gpu01", "10.0.0.8, fe80::8: not of gpu01", "an address of the node"),
    )


@pytest.mark.parametrize(
    ("facts", "taken"),
    [
        ([{"ddp": "place", "port": "taken", "given": {}}], True),
        ([{"ddp": "place", "port": "taken", "given": {"MASTER_PORT": "1"}}], False),
        ([{"ddp": "place", "port": "", "given": {}}], False),
        ([{"ddp": "place", "port": "", "given": {}}, {"ddp": "failed", "port": 1}], True),
        ([{"ddp": "place", "port": "", "given": {"MASTER_PORT": "1"}}, {"ddp": "failed", "port": 1}], False),
        ([{"ddp": "place", "port": "", "given": {"RANK": "1"}}, {"ddp": "failed", "port": 1}], True),
        ([{"ddp": "place", "port": "", "given": {}}, {"ddp": "failed"}], False),
        ([{"ddp": "failed", "port": 1}], True),
    ],
)
def test_a_port_that_was_drawn_and_is_taken(facts: list[dict[str, Any]], *, taken: bool) -> None:
    step = PayloadResult("ddp", ("n",), 1, (PayloadTask(0, "n", 3, None, tuple(facts)),))
    assert ddp.own_port_taken(step) is taken


def test_the_site_that_sets_the_variables_is_named() -> None:
    verdict = ddp.environment("gpu01", test_ddp_suite.placed(), ddp.Setters(), ddp.VARIABLES)
    hook, pyxis = "set by the site (Enroot's hook 50-slurm-pytorch.sh)", "set by the site (Pyxis)"
    expected = {
        "WORLD_SIZE": hook, "RANK": pyxis, "LOCAL_RANK": pyxis, "MASTER_ADDR": hook, "MASTER_PORT": hook,
    }  # fmt: skip
    assert verdict.findings == tuple(
        Finding(f"{name} of task {task}", "not set", words)
        for task in (0, 1)
        for name, words in expected.items()
    )


def failed(number: int, reason: str = "", **change: Any) -> PayloadTask:
    fact = {"ddp": "failed", "rank": number, "phase": "init", "reason": reason}
    return PayloadTask(number, "n", 1, None, (fact,) if reason else (), **change)


def test_causes_come_before_what_follows_from_them() -> None:
    stuck = {"ddp": "stuck", "rank": 0, "phase": "init", "seconds": 60.0}
    follows = [
        "timeout", "Timeout", "timed out", "time out", "Timedout", "connection closed", "Connection reset",
        "Connection refused", "connection was", "broken pipe", "Broken pipe", "3 of 4 clients joined",
    ]  # fmt: skip
    tasks = [
        PayloadTask(0, "n", 1, None, (stuck,)),
        *(failed(n + 1, printed) for n, printed in enumerate(follows)),
    ]
    tasks += [failed(40, "no CUDA"), PayloadTask(41, "n", None, 9, ())]
    order = [task.task for task in ddp._causes_first(tasks, PayloadResult("ddp", ("n",), 42, tuple(tasks)))]
    assert order == [40, 41, *range(1, 13), 0]


def test_the_last_to_notice_a_lost_rank_counts() -> None:
    facts: list[dict[str, Any]] = [
        {"ddp": "lost", "rank": 3},
        *({"ddp": "noticed", "rank": n, "seconds": n + 1.0} for n in range(3)),
    ]
    tasks = tuple(PayloadTask(int(fact["rank"]), "n", 1, None, (fact,)) for fact in facts)
    assert reported(ddp.lost_rank(PayloadResult("ddp", ("n",), 4, tasks, rc=1), 60.0)) == (
        Outcome.PASSED, "", (), (Metric("ddp_lost_rank", 3.0, "s"),)
    )  # fmt: skip


# --- TensorFlow and submitit


def test_the_first_word_on_tensorflow_counts() -> None:
    tasks = [
        test_tensorflow_suite.installed("a", error="first"),
        test_tensorflow_suite.installed("a", error="last"),
    ]
    step = PayloadResult("tensorflow", ("a",), 2, tuple(tasks))
    assert tensorflow.framework("a", step).findings == (
        Finding("package tensorflow", "first", "installed", Action.CONFIGURE),  # no node has it
    )


def test_submitit_tells_ranks_and_exceptions_exactly() -> None:
    places = [{"rank": rank, "tasks": 3, "slurm": rank, "node": "a"} for rank in (0, 2)]
    facts = test_submitit_suite.reported(multitask={"value": places})
    assert submitit.multitask(facts).findings == (Finding("ranks", "0, 2", "0 to 2, once each"),)
    silent = test_submitit_suite.reported(failure={"error": "FailedJobError"})
    assert submitit.failure(silent).findings == (
        Finding("job", "FailedJobError", "FailedJobError: gpucluster: expected failure"),
    )
    unsaid = test_submitit_suite.reported(accounting=False, add={"value": [12], "state": "FAILED"})
    assert reported(submitit.accounting(unsaid)) == (
        Outcome.NOT_CHECKED,
        "Slurm stores no job records, so submitit uses its result files: set AccountingStorageType of slurm.conf, or list "
        "submitit.accounting under `not_applicable`", (), (),
    )  # fmt: skip
