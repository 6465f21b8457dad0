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

from pytest_gpucluster.core.errors import NotApplicable, ProbeError
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

from pytest_gpucluster.core.check import Verdict

TABLE = (DATA / "horovod" / "check-build-0.28.1.txt").read_text()
WAY = Launch("pytorch", "gloo", "srun")
PLACES = ("gpu01", "gpu01", "gpu02", "gpu02")


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


LONE = rank(0, size=1, local_size=1, cross_size=1)
BAD = {
    "controller": "mpi",
    "wrong": {"int64": 3},
    "sent": {"0": 2},
    "trained": {"before": "x", "after": "x", "error": 1.0},
}
SPOILT = [rank(number, **BAD) for number in range(4)]


def problem(what: str, stage: str = "init", **change: Any) -> dict[str, Any]:
    return {"node": "gpu01", "rank": "0", "what": what, "stage": stage, "problem": "late", **change}


def trained(number: int, before: str, after: str, error: float) -> dict[str, Any]:
    return rank(number, trained={"before": before, "after": after, "error": error})


CASES: Table = {
    checks.build: [
        (
            "configure: tensor operations",
            NodeBuild(replace(read(TABLE), operations=frozenset())),
            (),
            (),
            ("nccl", "mpi"),
        ),
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
        ("not applicable", world(*SPOILT, obstacle=NotApplicable("no mpirun"))),
        (
            "configure: rank 0 on gpu01; rank 0 on gpu01",
            world(ranks=(), problems=(problem("import"), problem("import"))),
        ),
        (
            "configure: rank 4 on gpu02 [4, 0, 3]",
            world(ranks=(*map(rank, range(4)), rank(3, rank=4, local_rank=5))),
        ),
        ("configure: rank 3 on gpu02 [2, 4]", world(rank(3, size=2, local_rank=5))),
        (
            "configure: rank 3 on gpu02 [5, 6, 7, 8, 1, 2, 1, 2]",
            world(rank(3, local_rank=5, local_size=6, cross_rank=7, cross_size=8)),
        ),
        ("configure: ranks [0]", world(hosts=("gpu01",), ranks=(LONE, LONE))),
        ("configure: size [2, 2]", world(hosts=("gpu01", "gpu01"), ranks=(rank(0, size=1), rank(0, size=1)))),
        ("passed", world()),
        ("passed", world(), "eth0"),
        ("passed", World(WAY, ("gpu01",), (rank(0, size=1, local_size=1, cross_size=1),))),
        ("configure: ranks; rank 0 on gpu01 [3, 4, 1, 2, 1, 4]", world(ranks=(rank(0, size=1),))),
        ("configure: ranks [1, 4, 1]", world(ranks=(rank(0), rank(1), rank(2)))),
        ("configure: ranks [1, 2]", world(ranks=(*map(rank, range(4)), rank(2), rank(1)))),
        ("configure: rank 3", world(rank(3, node="gpu01"))),
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
        ("configure: rank 0 on gpu01; gpu02", World(WAY, PLACES, problems=(problem("deadline"),))),
        (
            "configure: rank ? on gpu01; gpu02",
            World(
                WAY,
                PLACES,
                problems=({"node": "gpu01", "what": "rendezvous", "stage": "init", "problem": "late"},),
            ),
        ),
        ("configure: rank 0 on gpu01", World(WAY, PLACES, ranks=(rank(2),), problems=(problem("deadline"),))),
        (
            "configure: rank 0 on gpu01",
            World(WAY, PLACES, problem="ended", problems=(problem("import", "load"),)),
        ),
    ],
    checks.all_reduce: [
        ("not checked", world(*SPOILT, problem="it hung")),
        ("not applicable", world(*SPOILT, obstacle=NotApplicable("no mpirun"))),
        ("passed: pytorch-gloo-srun [0.167772]", world()),
        ("passed: pytorch-gloo-srun [0.0335544]", world(rank(2, seconds=0.5))),
        (
            "monitor: rank 2 on gpu02; rank 3 on gpu02; pytorch-gloo-srun [3, 1, 0.167772]",
            world(rank(2, wrong={"float32": 3, "int64": 0}), rank(3, wrong={"int64": 1})),
        ),
        ("not checked", world(ranks=(rank(0),))),
        ("not checked", world(problem="x")),
        ("not checked", world(problems=({"node": "gpu01"},))),
    ],
    checks.broadcast: [
        ("not checked", world(*SPOILT, problem="it hung")),
        ("not applicable", world(*SPOILT, obstacle=NotApplicable("no mpirun"))),
        ("passed", world()),
        ("monitor: rank 1 on gpu01; rank 1 on gpu01 [1, 0, 9, 3]", world(rank(1, sent={"0": 1, "3": 9}))),
    ],
    checks.training: [
        ("not checked", world(*SPOILT, problem="it hung")),
        ("not applicable", world(*SPOILT, obstacle=NotApplicable("no mpirun"))),
        ("passed", world()),
        ("monitor: parameters before the step [3]", world(trained(3, "xx", "bb", 0.0))),
        (
            "monitor: parameters after the step [0, 1, 2, 3]",
            world(trained(2, "aa", "dd", 0.0), trained(3, "aa", "cc", 0.0)),
        ),
        ("monitor: parameters after the step; rank 3 on gpu02 [3]", world(trained(3, "aa", "aa", 0.5))),
        ("passed", world(trained(3, "aa", "bb", 1e-05))),
        ("monitor: rank 3 on gpu02 [1.01e-05, 1e-05]", world(trained(3, "aa", "bb", 1.01e-05))),
        ("monitor: rank 3 on gpu02 [1e-05]", world(trained(3, "aa", "bb", float("nan")))),
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


@pytest.mark.thorough
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
