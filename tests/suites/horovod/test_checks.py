"""The reader of horovod, and its checks on plain facts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, framework_python, imported, rows_of, told
from paths import DATA

from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.common_cause import NO_MAJORITY
from pytest_gpucluster.core.errors import NotApplicable, ProbeError
from pytest_gpucluster.kit.framework.payload_result import read_facts
from pytest_gpucluster.kit.framework.payload_step import sent
from pytest_gpucluster.suites.horovod import checks
from pytest_gpucluster.suites.horovod import payload as world_payload
from pytest_gpucluster.suites.horovod import payload_build as build_payload
from pytest_gpucluster.suites.horovod.checks import Launch, NodeBuild, World
from pytest_gpucluster.suites.horovod.config import HorovodConfig
from pytest_gpucluster.suites.horovod.facts import read
from pytest_gpucluster.suites.horovod.steps import launches

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict
from dataclasses import replace

from framework_helpers import as_reported

from pytest_gpucluster.core.check import Finding, Metric, Verdict
from pytest_gpucluster.suites.horovod import checks as horovod

TABLE = (DATA / "horovod" / "check-build-0.28.1.txt").read_text()
WAY = Launch("pytorch", "gloo", "srun")
PLACES = ("gpu01", "gpu01", "gpu02", "gpu02")


def reported(verdict: Verdict) -> str:
    return "; ".join(f"{found.part}: {found.measured} / {found.expected}" for found in verdict.findings)


# --- the reader


def test_the_table_of_a_real_build_is_read() -> None:
    build = read(TABLE)
    assert build.version == "0.28.1"
    assert build.frameworks == {"pytorch"}
    assert build.controllers == {"mpi", "gloo"}
    assert build.operations == {"mpi", "gloo"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        TABLE.replace("Available Controllers:", "Controllers"),
        TABLE.partition("Available Tensor")[0],
        "[X] NCCL",
    ],
)
def test_a_table_that_is_not_whole_is_not_read(text: str) -> None:
    with pytest.raises(ProbeError):
        read(text)


# --- checks on facts


def rank(number: int, **change: Any) -> dict[str, Any]:
    return {
        "node": PLACES[number],
        "rank": number,
        "size": 4,
        "local_rank": number % 2,
        "local_size": 2,
        "cross_rank": number // 2,
        "cross_size": 2,
        "controller": "gloo",
        "interface": "eth0",
        "device": "cpu",
        "wrong": {"float32": 0, "int64": 0},
        "sent": {"0": 0, "3": 0},
        "trained": {"before": "aa", "after": "bb", "error": 1e-8},
        "seconds": 0.1,
        **change,
    }


def world(*changed: dict[str, Any], **change: Any) -> World:
    ranks = {number: rank(number) for number in range(4)} | {it["rank"]: it for it in changed}
    return World(**{"launch": WAY, "hosts": PLACES, "ranks": tuple(ranks.values()), **change})


def test_a_good_job_passes_all_checks() -> None:
    for judge in (checks.ranks, checks.all_reduce, checks.broadcast, checks.training):
        assert judge(world()).outcome is Outcome.PASSED, reported(judge(world()))
    assert [metric.unit for metric in checks.all_reduce(world()).metrics] == ["GB/s"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            world(ranks=tuple(rank(n, rank=0, size=1) for n in range(4))),
            "4 jobs of one rank each (singletons)",
        ),
        (world(ranks=tuple(rank(n) for n in (0, 1, 2))), "1 of 4 sent no report: 1 on gpu02"),
        (world(ranks=(*map(rank, range(4)), rank(2))), "more than once: 2"),
        (world(rank(3, node="gpu01")), "rank 3: on gpu01"),
        (world(rank(1, local_rank=0)), "local_rank 0 / local_rank 1"),
        (world(rank(1, size=2)), "size 2 / size 4"),
        (world(rank(2, controller="mpi")), "controller of rank 2 on gpu02: mpi / gloo"),
        (world(rank(0, interface="ib0")), "interface of rank 0 on gpu01: ib0 / eth0"),
        (world(problem="the step ended with 9"), "the step ended with 9"),
        (world(gpus=True), "computes on the CPU"),
        (
            world(*(rank(n, device="GPU-1") for n in range(4)), gpus=True),
            "GPU GPU-1 of gpu02: used by 2 ranks",
        ),
    ],
)
def test_each_fault_of_ranks_has_its_words(given: World, words: str) -> None:
    verdict = checks.ranks(given, "eth0")
    assert verdict.outcome is Outcome.FAILED
    assert words in reported(verdict)


def test_ranks_that_waited_name_the_node_that_did_not_come() -> None:
    late = {
        "node": "gpu01",
        "rank": "0",
        "what": "deadline",
        "stage": "init",
        "problem": "not done within 20 s",
    }
    verdict = checks.ranks(World(WAY, PLACES, problems=(late,)))
    assert "not done within 20 s (in init)" in reported(verdict)
    assert "gpu02: no rank of the node sent a report" in reported(verdict)


@pytest.mark.parametrize(
    ("judge", "changed", "words"),
    [
        (checks.all_reduce, rank(2, wrong={"float32": 3}), "rank 2 on gpu02: 3 wrong elements of float32"),
        (checks.broadcast, rank(1, sent={"3": 9}), "rank 1 on gpu01: 9 wrong elements from rank 3"),
        (
            checks.training,
            rank(3, trained={"before": "aa", "after": "cc", "error": 0.0}),
            "ranks 3 (gpu02) differ",
        ),
        (checks.training, rank(3, trained={"before": "aa", "after": "aa", "error": 0.0}), "changed nothing"),
        (
            checks.training,
            rank(3, trained={"before": "aa", "after": "bb", "error": 0.01}),
            "0.01 from the mean",
        ),
        (
            checks.training,
            rank(3, trained={"before": "aa", "after": "bb", "error": float("nan")}),
            "nan from",
        ),
    ],
)
def test_wrong_results_are_found(judge: Any, changed: dict[str, Any], words: str) -> None:
    assert words in reported(judge(world(changed)))


@pytest.mark.parametrize("judge", [checks.all_reduce, checks.broadcast, checks.training])
def test_the_results_of_a_job_that_is_not_believed_are_not_judged(judge: Any) -> None:
    assert judge(world(ranks=(rank(0),))).outcome is Outcome.NOT_CHECKED


def test_a_build_without_what_is_expected_fails() -> None:
    here = NodeBuild(read(TABLE))
    assert checks.build(here, ("pytorch",), ("gloo", "mpi"), ("gloo",)).outcome is Outcome.PASSED
    verdict = checks.build(here, ("pytorch", "tensorflow"), ("gloo",), ("nccl",))
    assert "frameworks: without tensorflow; with pytorch" in reported(verdict)
    assert "tensor operations: without nccl; with gloo, mpi" in reported(verdict)


def test_another_version_is_found() -> None:
    other = NodeBuild(read(TABLE.replace("0.28.1", "0.27.0")))
    builds = {"gpu01": NodeBuild(read(TABLE)), "gpu02": NodeBuild(read(TABLE)), "gpu03": other}
    assert checks.version("gpu01", builds).outcome is Outcome.PASSED
    assert reported(checks.version("gpu03", builds)) == "Horovod: 0.27.0 / 0.28.1, as on 2 of 3 nodes"


def test_versions_in_halves_drain_nobody() -> None:
    builds = {"gpu01": NodeBuild(read(TABLE)), "gpu02": NodeBuild(read(TABLE.replace("0.28.1", "0.27.0")))}
    verdict = checks.version("gpu01", builds)
    (found,) = verdict.findings
    assert (verdict.action, found.setting) == (Action.CONFIGURE, NO_MAJORITY)
    assert found.expected == "one value on all nodes; no majority: 0.28.1 on gpu01, 0.27.0 on gpu02"


def test_the_ways_are_those_that_the_cluster_file_claims() -> None:
    config = HorovodConfig(
        controllers=("gloo", "mpi"), launchers=("srun",), frameworks=("pytorch", "tensorflow")
    )
    assert [str(launch) for launch in launches(config)] == [
        "pytorch-gloo-srun",
        "pytorch-mpi-srun",
        "tensorflow-gloo-srun",
        "tensorflow-mpi-srun",
    ]
    assert {launch.launcher for launch in launches(HorovodConfig())} == {"srun", "horovodrun", "localhost"}
    assert [str(launch) for launch in launches(HorovodConfig(controllers=("mpi",)))] == ["pytorch-mpi-srun"]
    named = HorovodConfig(controllers=("mpi",), launchers=("horovodrun",))
    assert [str(launch) for launch in launches(named)] == ["pytorch-mpi-horovodrun", "pytorch-mpi-localhost"]


def test_what_ranks_tell_is_read_behind_the_label_of_horovodrun() -> None:
    text = '[1]<stdout>:{"kind": "rank", "rank": 1}\n[0]<stderr>:warning\n{"kind": "rank", "ra\n'
    assert read_facts(text, "kind") == ({"kind": "rank", "rank": 1},)


CASES: Table = {
    checks.build: [
        ("configure: Horovod", NodeBuild(problem="no module"), (), (), ()),
        ("configure: Horovod", NodeBuild(), (), (), ()),
        ("passed", NodeBuild(read(TABLE)), ("pytorch",), ("gloo", "mpi"), ("gloo",)),
        (
            "configure: frameworks; controllers; tensor operations",
            NodeBuild(read(TABLE)),
            ("tensorflow", "mxnet", "pytorch"),
            ("gloo", "x"),
            ("nccl",),
        ),
    ],
    checks.version: [
        ("not checked", "gpu03", {"gpu01": NodeBuild(read(TABLE))}),
        ("passed", "gpu01", {"gpu01": NodeBuild(read(TABLE)), "gpu02": NodeBuild()}),
        (
            "configure: Horovod [0.28, 0.28, 0.29]",
            "gpu01",
            {"gpu01": NodeBuild(read(TABLE)), "gpu02": NodeBuild(read(TABLE.replace("0.28.1", "0.29.0")))},
        ),
        (
            "configure: Horovod [0.29, 0.28, 0.29]",
            "gpu02",
            {"gpu01": NodeBuild(read(TABLE)), "gpu02": NodeBuild(read(TABLE.replace("0.28.1", "0.29.0")))},
        ),
        (
            "configure: Horovod [0.29, 0.28, 2, 3]",
            "gpu03",
            {
                "gpu01": NodeBuild(read(TABLE)),
                "gpu02": NodeBuild(read(TABLE)),
                "gpu03": NodeBuild(read(TABLE.replace("0.28.1", "0.29.0"))),
            },
        ),
    ],
    checks.interface: [
        ("not applicable", NodeBuild(), None),
        ("configure: interface ib0", NodeBuild(), "ib0"),
        (
            "configure: interface ib0 [10, 127]",
            NodeBuild(interfaces={"lo": "127.0.0.1", "eth0": "10.0.0.1"}),
            "ib0",
        ),
        ("passed", NodeBuild(interfaces={"ib0": "10.0.0.1"}), "ib0"),
    ],
    checks.ranks: [
        ("passed", world()),
        ("passed", world(), "eth0"),
        ("not applicable", world(obstacle=NotApplicable("no mpirun"))),
        ("configure: size [4, 4]", world(ranks=tuple(rank(n, rank=0, size=1) for n in range(4)))),
        ("passed", World(WAY, ("gpu01",), (rank(0, size=1, local_size=1, cross_size=1),))),
        ("configure: ranks; rank 0 on gpu01 [3, 4, 1, 2, 1, 4]", world(ranks=(rank(0, size=1),))),
        ("configure: ranks [1, 4, 1]", world(ranks=(rank(0), rank(1), rank(2)))),
        ("configure: ranks [3, 4, 1, 2]", world(ranks=(rank(1),))),
        ("configure: ranks [1, 2]", world(ranks=(*map(rank, range(4)), rank(2), rank(1)))),
        ("configure: rank 3", world(rank(3, node="gpu01"))),
        ("configure: rank 1 on gpu01 [0, 3, 1, 2]", world(rank(1, local_rank=0, cross_size=3))),
        ("configure: rank 1 on gpu01 [2, 4]", world(rank(1, size=2))),
        ("configure: rank 4 on gpu02 [4, 0, 3]", world(ranks=(*map(rank, range(4)), {**rank(3), "rank": 4}))),
        (
            "configure: rank -1 on gpu02 [-1, 0, 3]",
            world(ranks=(*map(rank, range(4)), {**rank(3), "rank": -1})),
        ),
        ("configure: controller of rank 2 on gpu02", world(rank(2, controller="mpi")), "eth0"),
        ("configure: interface of rank 0 on gpu01", world(rank(0, interface="")), "eth0"),
        (
            "passed",
            world(
                *(rank(n, interface="", controller="mpi") for n in range(4)),
                launch=Launch("pytorch", "mpi", "srun"),
            ),
            "eth0",
        ),
        ("configure: pytorch-gloo-srun [9]", world(problem="the step ended with 9")),
        ("configure: rank 0 on gpu01; rank 1 on gpu01; rank 2 on gpu02; rank 3 on gpu02", world(gpus=True)),
        (
            "configure: GPU GPU-0 of gpu01; GPU GPU-1 of gpu02 [2, 2]",
            world(*(rank(n, device=f"GPU-{n // 2}") for n in range(4)), gpus=True),
        ),
        ("passed", world(*(rank(n, device=f"GPU-{n}") for n in range(4)), gpus=True)),
        (
            "configure: rank 0 on gpu01; gpu02",
            World(
                WAY,
                PLACES,
                problems=(
                    {"node": "gpu01", "rank": "0", "what": "deadline", "stage": "init", "problem": "late"},
                ),
            ),
        ),
        (
            "configure: rank ? on gpu01; gpu02",
            World(
                WAY,
                PLACES,
                problems=({"node": "gpu01", "what": "rendezvous", "stage": "init", "problem": "late"},),
            ),
        ),
        (
            "configure: rank 0 on gpu01",
            World(
                WAY,
                PLACES,
                ranks=(rank(2),),
                problems=(
                    {"node": "gpu01", "rank": "0", "what": "deadline", "stage": "init", "problem": "late"},
                ),
            ),
        ),
        (
            "configure: rank 0 on gpu01",
            World(
                WAY,
                PLACES,
                problem="ended",
                problems=(
                    {"node": "gpu01", "rank": "0", "what": "import", "stage": "load", "problem": "no torch"},
                ),
            ),
        ),
    ],
    checks.all_reduce: [
        ("passed: pytorch-gloo-srun [0.167772]", world()),
        ("passed: pytorch-gloo-srun [0.0335544]", world(rank(2, seconds=0.5))),
        (
            "monitor: rank 2 on gpu02; rank 3 on gpu02; pytorch-gloo-srun [3, 1, 0.167772]",
            world(rank(2, wrong={"float32": 3, "int64": 0}), rank(3, wrong={"int64": 1})),
        ),
        ("not checked", world(ranks=(rank(0),))),
        ("not checked", world(problem="x")),
        ("not checked", world(problems=({"node": "gpu01"},))),
        ("not applicable", world(obstacle=NotApplicable("no mpirun"))),
    ],
    checks.broadcast: [
        ("passed", world()),
        ("monitor: rank 1 on gpu01; rank 1 on gpu01 [1, 0, 9, 3]", world(rank(1, sent={"0": 1, "3": 9}))),
        ("not applicable", world(obstacle=NotApplicable("no mpirun"))),
        ("not checked", world(problem="x")),
    ],
    checks.training: [
        ("passed", world()),
        ("not checked", world(problem="x")),
        (
            "monitor: parameters before the step [3]",
            world(rank(3, trained={"before": "xx", "after": "bb", "error": 0.0})),
        ),
        (
            "monitor: parameters after the step [0, 1, 2, 3]",
            world(
                rank(2, trained={"before": "aa", "after": "dd", "error": 0.0}),
                rank(3, trained={"before": "aa", "after": "cc", "error": 0.0}),
            ),
        ),
        (
            "monitor: parameters after the step; rank 3 on gpu02 [3]",
            world(rank(3, trained={"before": "aa", "after": "aa", "error": 0.5})),
        ),
        ("passed", world(rank(3, trained={"before": "aa", "after": "bb", "error": 1e-05}))),
        (
            "monitor: rank 3 on gpu02 [1.01e-05, 1e-05]",
            world(rank(3, trained={"before": "aa", "after": "bb", "error": 1.01e-05})),
        ),
        (
            "monitor: rank 3 on gpu02 [1e-05]",
            world(rank(3, trained={"before": "aa", "after": "bb", "error": float("nan")})),
        ),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


# --- payloads


@pytest.mark.parametrize("module", [build_payload, world_payload])
def test_payloads_are_python_3_6_and_need_only_what_they_test(module: Any) -> None:
    names = imported(Path(module.__file__))
    assert names <= sys.stdlib_module_names | {"horovod", "torch", "tensorflow"}
    assert "horovod" in names


def test_a_rendezvous_port_that_is_taken_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        words = [
            "--framework=pytorch",
            "--controller=gloo",
            "--launcher=srun",
            "--hosts=gpu01",
            "--per-node=1",
        ]
        words += ["--address=127.0.0.1", f"--port={port}", "--deadline=60"]
        done = subprocess.run(
            [str(framework_python()), "-c", sent(Path(world_payload.__file__)), *words],
            env={**os.environ, "SLURM_PROCID": "0", "SLURMD_NODENAME": "gpu01"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    printed = json.loads(done.stdout)
    assert done.returncode == 1
    assert (printed["what"], printed["node"]) == ("port", "gpu01")
    assert f"port {port} for the rendezvous is taken" in printed["problem"]


def test_what_a_node_is_started_with_by_default() -> None:
    assert horovod.NodeBuild() == horovod.NodeBuild(None, "", {}, "", "python3", "horovodrun")


def test_a_job_that_could_not_be_asked_for_is_not_judged_at_all() -> None:
    spoilt = [
        rank(n, controller="mpi", wrong={"int64": 3}, sent={"0": 2}, trained={
            "before": str(n), "after": str(n), "error": 1.0,
        })
        for n in range(4)
    ]  # fmt: skip
    job = world(*spoilt, obstacle=NotApplicable("no mpirun"))
    for judge in (horovod.ranks, horovod.all_reduce, horovod.broadcast, horovod.training):
        assert as_reported(judge(job)) == (Outcome.NOT_APPLICABLE, "no mpirun", (), ())
    unbelieved = world(*spoilt, problem="it hung")
    for judge in (horovod.all_reduce, horovod.broadcast, horovod.training):
        assert as_reported(judge(unbelieved)) == (
            Outcome.NOT_CHECKED, "the ranks of the job are not valid: see horovod.ranks", (), ()
        )  # fmt: skip


def test_the_all_reduce_has_a_rate_in_gigabytes() -> None:
    job = world(rank(1, seconds=0.5))
    assert horovod.all_reduce(job).metrics == (
        Metric("all_reduce_16MiB", 16 * 1024 * 1024 / 0.5 / 1e9, "GB/s", str(job.launch)),
    )


def problem(number: int, node: str, what: str) -> dict[str, Any]:
    return {"rank": number, "node": node, "problem": "no answer", "stage": "init", "what": what}


def test_nodes_without_a_report_are_named_where_one_rank_waited() -> None:
    waited, crashed = problem(0, "gpu01", "deadline"), problem(1, "gpu01", "import")
    job = world(ranks=(), problems=(waited, crashed))
    assert horovod.ranks(job).findings == (
        Finding("rank 0 on gpu01", "no answer (in init)", f"a job by {job.launch}"),
        Finding("rank 1 on gpu01", "no answer (in init)", f"a job by {job.launch}"),
        Finding("gpu02", "no rank of the node sent a report", "its ranks join"),
    )
    assert len(horovod.ranks(world(ranks=(), problems=(crashed, crashed))).findings) == 2


def test_two_jobs_of_one_are_singletons_and_one_rank_alone_is_a_job() -> None:
    two = world(
        hosts=("gpu01", "gpu01"), ranks=(rank(0, size=1), rank(0, size=1))
    )  # fmt: skip
    assert horovod.ranks(two).findings == (
        Finding("size", "2 jobs of one rank each (singletons)", "one job of 2"),
    )
    lone = rank(0, size=1, local_size=1, cross_size=1)
    assert horovod.ranks(world(hosts=("gpu01",), ranks=(lone,))).outcome is Outcome.PASSED
    twice = world(hosts=("gpu01",), ranks=(lone, lone))
    assert horovod.ranks(twice).findings == (Finding("ranks", "more than once: 0", "every rank once"),)


def test_each_place_of_a_rank_is_compared() -> None:
    wrong = rank(3, local_rank=5, local_size=6, cross_rank=7, cross_size=8)
    assert horovod.ranks(world(wrong)).findings == (
        Finding(
            "rank 3 on gpu02", "local_rank 5, local_size 6, cross_rank 7, cross_size 8",
            "local_rank 1, local_size 2, cross_rank 1, cross_size 2",
        ),
    )  # fmt: skip
    # its size is wrong, or it is beyond the job: its places are not compared as well
    assert horovod.ranks(world(rank(3, size=2, local_rank=5))).findings == (
        Finding("rank 3 on gpu02", "size 2", "size 4"),
    )
    beyond = world(ranks=(*map(rank, range(4)), rank(3, rank=4, local_rank=5)))
    assert horovod.ranks(beyond).findings == (Finding("rank 4 on gpu02", "rank 4", "a rank from 0 to 3"),)
    below = world(ranks=(*map(rank, range(4)), rank(0, rank=-1)))
    assert horovod.ranks(below).findings == (Finding("rank -1 on gpu01", "rank -1", "a rank from 0 to 3"),)


def test_a_build_that_can_do_nothing() -> None:
    from pytest_gpucluster.suites.horovod.facts import read  # needed here only

    whole = read(TABLE)
    here = horovod.NodeBuild(replace(whole, operations=frozenset()))
    assert horovod.build(here, (), (), ("nccl", "mpi")).findings == (
        Finding("tensor operations", "without mpi, nccl; with none", "mpi, nccl"),
    )
