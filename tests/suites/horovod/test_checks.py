"""The reader of horovod, and its checks on plain facts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counter_examples import MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED
from framework_helpers import Table, decided, framework_python
from paths import DATA
from payload_helpers import NCCL_LOG, NODES, connected, fabric
from suite_helpers import considered, machine

from pytest_gpucluster.core.errors import NotApplicable, ProbeError
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.kit.framework.payload_step import sent
from pytest_gpucluster.suites.horovod import checks
from pytest_gpucluster.suites.horovod import payload as world_payload
from pytest_gpucluster.suites.horovod.checks import Launch, NodeBuild, World
from pytest_gpucluster.suites.horovod.config import HorovodConfig
from pytest_gpucluster.suites.horovod.facts import read
from pytest_gpucluster.suites.horovod.steps import launches

TABLE = (DATA / "horovod" / "check-build-0.28.1.txt").read_text()
WAY = Launch("pytorch", "gloo", "srun")
PLACES = ("gpu01", "gpu01", "gpu02", "gpu02")


def test_the_table_of_a_real_build_is_read_and_one_that_is_not_whole_is_not() -> None:
    build = read(TABLE)
    assert build.version == "0.28.1"
    assert build.frameworks == {"pytorch"}
    assert build.controllers == build.operations == {"mpi", "gloo"}
    cut = TABLE.replace("Available Controllers:", "Controllers"), TABLE.partition("Available Tensor")[0]
    for text in ("", *cut, "[X] NCCL"):
        with pytest.raises(ProbeError):
            read(text)


def rank(number: int, **change: Any) -> dict[str, Any]:
    place = {"node": PLACES[number], "rank": number, "local_rank": number % 2, "cross_rank": number // 2}
    sizes = {"size": 4, "local_size": 2, "cross_size": 2}
    own = {"controller": "gloo", "interface": "eth0", "device": "cpu", "seconds": 0.1}
    results = {"wrong": {"float32": 0, "int64": 0}, "sent": {"0": 0, "3": 0}}
    trained = {"trained": {"before": "aa", "after": "bb", "error": 1e-8}}
    return {**place, **sizes, **own, **results, **trained, **change}


def world(*changed: dict[str, Any], **change: Any) -> World:
    ranks = {number: rank(number) for number in range(4)} | {it["rank"]: it for it in changed}
    return World(**{"launch": WAY, "hosts": PLACES, "ranks": tuple(ranks.values()), **change})


def test_the_ways_are_those_that_the_cluster_file_claims() -> None:
    both: tuple[Any, ...] = ("pytorch", "tensorflow")
    ways = [str(launch) for launch in launches(HorovodConfig(launchers=("srun",), frameworks=both))]
    assert ways == [f"{framework}-gloo-srun" for framework in both]
    assert {launch.launcher for launch in launches(HorovodConfig())} == {"srun", "horovodrun", "localhost"}
    named = HorovodConfig(launchers=("horovodrun",))
    assert [str(it) for it in launches(named)] == ["pytorch-gloo-horovodrun", "pytorch-gloo-localhost"]


LONE = rank(0, size=1, local_size=1, cross_size=1)
WRONG: dict[str, Any] = {"controller": "mpi", "wrong": {"int64": 3}, "sent": {"0": 2}}
BAD = {**WRONG, "trained": {"before": "x", "after": "x", "error": 1.0}}
SPOILT = [rank(number, **BAD) for number in range(4)]
NO_MPIRUN = world(*SPOILT, obstacle=NotApplicable("no mpirun"))
ENDED = Explanation("exit_status", "the step ended with 9")
HUNG, BROKEN = world(*SPOILT, problem=ENDED), NodeBuild(problem=Explanation("not_importable", "no module"))


def problem(what: str, stage: str = "init", **change: Any) -> dict[str, Any]:
    return {"node": "gpu01", "rank": "0", "what": what, "stage": stage, "problem": "late", **change}


def trained(number: int, before: str, after: str, error: float) -> dict[str, Any]:
    return rank(number, trained={"before": before, "after": after, "error": error})


def built(*versions: str) -> dict[str, NodeBuild]:
    """Return builds of these versions on gpu01, gpu02, ...; '' is a node without one."""
    texts = [TABLE.replace("0.28.1", version) if version else "" for version in versions]
    return {f"gpu0{n}": NodeBuild(read(text)) if text else NodeBuild() for n, text in enumerate(texts, 1)}


def each(**change: Any) -> list[dict[str, Any]]:
    """Return all ranks; of a text, {} is the number of the rank."""
    texts = [{key: it.format(n) for key, it in change.items()} for n in range(4)]
    return [rank(n, **own) for n, own in enumerate(texts)]


REAL = NodeBuild(read(TABLE))
NO_OPERATIONS = NodeBuild(replace(read(TABLE), operations=frozenset()))
OLD, NEW = "0.28.1", "0.29.0"
ALL = tuple(map(rank, range(4)))
MISPLACED = rank(3, local_rank=5, local_size=6, cross_rank=7, cross_size=8)
ONE_FAR = world(ranks=(*ALL, rank(3, rank=4, local_rank=5)))
SINGLE = world(hosts=("gpu01", "gpu01"), ranks=(rank(0, size=1), rank(0, size=1)))
PAIRS = [rank(n, device=f"GPU-{n // 2}") for n in range(4)]
SENT = world(rank(1, sent={"0": 1, "3": 9}))
RANKS = "; ".join(f"{node} rank {number}" for number, node in enumerate(PLACES))
LATE = (problem("deadline"),)
CASES: Table = {
    checks.build: [
        ("configure: tensor operations built_without", NO_OPERATIONS, (), (), ("nccl", "mpi")),
        ("configure: Horovod not_importable", BROKEN, (), (), ()),
        ("passed", REAL, ("pytorch",), ("gloo", "mpi"), ("gloo",)),
        (
            "configure: frameworks; controllers; tensor operations built_without",
            *(REAL, ("tensorflow", "mxnet", "pytorch"), ("gloo", "x"), ("nccl",)),
        ),
    ],
    checks.version: [
        ("not checked", "gpu03", built(OLD)),
        ("passed", "gpu01", built(OLD, "")),
        ("configure: Horovod no_majority [0.28, 0.28, 0.29]", "gpu01", built(OLD, NEW)),
        ("configure: Horovod differs_from_peers [0.29, 0.28, 2, 3]", "gpu03", built(OLD, OLD, NEW)),
    ],
    checks.ranks: [
        ("not applicable", NO_MPIRUN),
        ("configure: gpu02 rank 4 no_such_rank [4, 0, 3]", ONE_FAR),
        ("configure: gpu02 rank 3 other_place [5, 6, 7, 8, 1, 2, 1, 2]", world(MISPLACED)),
        ("configure: ranks several_reports [0]", world(hosts=("gpu01",), ranks=(LONE, LONE))),
        ("configure: ranks singletons [2, 2]", SINGLE),
        ("passed", world()),
        ("passed", World(WAY, ("gpu01",), (LONE,))),
        ("configure: ranks no_report [1, 4, 1]", world(ranks=ALL[:3])),
        ("configure: ranks several_reports [1, 2]", world(ranks=(*ALL, rank(2), rank(1)))),
        ("configure: rank 3 other_node", world(rank(3, node="gpu01"))),
        ("configure: gpu02 rank 2 other_controller", world(rank(2, controller="mpi"))),
        ("configure: pytorch-gloo-srun exit_status [9]", world(problem=ENDED)),
        (f"configure: {RANKS} no_gpu", world(gpus=True)),
        ("configure: gpu01 GPU-0; gpu02 GPU-1 shared_gpu [2, 2]", world(*PAIRS, gpus=True)),
        ("passed", world(*each(device="GPU-{}"), gpus=True)),
        ("configure: gpu01 rank 0 deadline; gpu02 no_report", World(WAY, PLACES, problems=LATE)),
    ],
    checks.all_reduce: [
        ("not checked", HUNG),
        ("passed: pytorch-gloo-srun [0.0335544]", world(rank(2, seconds=0.5))),
        (
            "monitor: gpu02 rank 2; gpu02 rank 3 wrong_data; pytorch-gloo-srun [3, 1, 0.167772]",
            world(rank(2, wrong={"float32": 3, "int64": 0}), rank(3, wrong={"int64": 1})),
        ),
        ("not checked", world(problem=ENDED)),
    ],
    checks.broadcast: [
        ("not applicable", NO_MPIRUN),
        ("monitor: gpu01 rank 1; gpu01 rank 1 wrong_data [1, 0, 9, 3]", SENT),
    ],
    checks.training: [
        ("not checked", HUNG),
        ("monitor: gpu02 rank 3 unequal_before", world(trained(3, "xx", "bb", 0.0))),
        (f"monitor: {RANKS} unequal_after", world(trained(2, "aa", "dd", 0.0), trained(3, "aa", "cc", 0.0))),
        ("monitor: gpu02 rank 3 unequal_after; gpu02 rank 3 unchanged", world(trained(3, "aa", "aa", 0.5))),
        ("passed", world(trained(3, "aa", "bb", 1e-05))),
        ("monitor: gpu02 rank 3 other_mean [1.01e-05, 1e-05]", world(trained(3, "aa", "bb", 1.01e-05))),
        ("monitor: gpu02 rank 3 other_mean [1e-05]", world(trained(3, "aa", "bb", float("nan")))),
    ],
}
test_each_case_has_its_verdict = decided(CASES)


def page(name: str) -> str:
    return f"https://horovod.readthedocs.io/en/stable/{name}.html"


def over(between: str, **change: Any) -> World:
    return world(gpus=True, nodes=NODES, **{"connections": connected(between), **change})


def errors(error: float) -> World:
    return world(*(trained(n, "aa", "bb", error) for n in range(4)))


SUMS = "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html"
PLUGIN = "https://github.com/Mellanox/nccl-rdma-sharp-plugins"
TROUBLE, RUNNING = page("troubleshooting_include"), page("running_include")
CONCEPTS, TORCH = page("concepts_include"), page("pytorch")
IB = fabric("NET/IB/GDRDMA")
FEW_TYPES = world(*(rank(n, wrong={"float32": 0}) for n in range(4)))
QUIET = (over("", launch=Launch("pytorch", "gloo", "horovodrun"), connections=None), over("NET/IB/0/GDRDMA"))
reduce, broadcast = checks.all_reduce, checks.broadcast
training, transport = checks.training, checks.transport
COUNTER_EXAMPLES = (
    machine(reduce, "one slow rank", page("timeline_include"), PASSED, world(rank(2, seconds=9.0))),
    machine(reduce, "the build lacks a type", page("install_include"), PASSED, FEW_TYPES),
    machine(reduce, "a rank is silent", TROUBLE, NOT_CHECKED, world(ranks=ALL[:3]), sick=True),
    machine(reduce, "one wrong element", TROUBLE, MONITOR, world(rank(1, wrong={"int64": 1})), sick=True),
    machine(broadcast, "all received", CONCEPTS, PASSED, world()),
    machine(broadcast, "a launcher that is not offered", RUNNING, NOT_APPLICABLE, NO_MPIRUN),
    machine(broadcast, "wrong data", CONCEPTS, MONITOR, world(rank(0, sent={"0": 0, "3": 12})), sick=True),
    machine(training, "the order of the sum", SUMS, PASSED, errors(2e-7)),
    machine(training, "all ranks step to the same parameters", TORCH, PASSED, world()),
    machine(training, "own gradients", TORCH, MONITOR, world(trained(1, "aa", "cc", 0.4)), sick=True),
    machine(training, "the error is no number on all ranks", TORCH, MONITOR, errors(float("nan")), sick=True),
    machine(transport, "no GPUs", page("gpus_include"), NOT_APPLICABLE, "gpu01", (world(),), IB),
    machine(transport, "plugin", PLUGIN, PASSED, "gpu01", (over("NET/IBext_v8/0/GDRDMA"),), IB),
    machine(transport, "horovodrun's job logs nothing, srun's does", RUNNING, PASSED, "gpu01", QUIET, IB),
    machine(transport, "sockets", NCCL_LOG, MONITOR, "gpu01", (over("NET/Socket/0"),), IB, sick=True),
)
test_runs_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)


@pytest.mark.thorough
def test_a_rendezvous_port_that_is_taken_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        words = ["--framework=pytorch", "--launcher=srun", "--hosts=gpu01", "--per-node=1"]
        words += ["--address=127.0.0.1", f"--port={port}", "--deadline=600"]
        done = subprocess.run(
            [str(framework_python()), "-c", sent(Path(world_payload.__file__)), *words],
            env={**os.environ, "SLURM_PROCID": "0", "SLURMD_NODENAME": "gpu01"},
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    printed = json.loads(done.stdout)
    assert done.returncode == 1
    assert (printed["what"], printed["node"]) == ("port_taken", "gpu01")
    assert f"port {port} for the rendezvous is taken" in printed["problem"]
