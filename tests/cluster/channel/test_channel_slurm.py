"""The fleet channel over a real srun on the sandbox's virtual nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.transport import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_gpucluster.sandbox import Sandbox

PATIENCE = 30.0


@dataclass
class Cluster:
    transport: LocalTransport = field(default_factory=LocalTransport)


@dataclass
class Held:
    job_id: str
    nodes: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


@pytest.fixture
def held(sandbox: Sandbox) -> Iterator[Held]:
    count = len(sandbox.nodes)
    script = "echo $SLURM_JOB_ID; scontrol show hostnames | tr '\\n' ' '; echo; cat"
    argv = [
        "salloc",
        "--quiet",
        "--exclusive",
        f"--nodes={count}",
        "--gres=gpu:8",
        "--no-kill",
        "sh",
        "-c",
        script,
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as salloc:
        assert salloc.stdout is not None
        assert salloc.stdin is not None
        yield Held(salloc.stdout.readline().strip(), tuple(salloc.stdout.readline().split()))
        salloc.stdin.close()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def fleet(cluster: Cluster, held: Held) -> Iterator[Fleet]:
    with Fleet.over_slurm(cluster, held, ping_timeout=6.0, grace=1.0) as channel:
        yield channel


def agents(fleet: Fleet) -> dict[str, int]:
    """The agents' pids: they lead the process groups of what they run; the nodes share this machine."""
    found = fleet.ask("set -- $(cat /proc/$PPID/stat); set -- $(cat /proc/$4/stat); echo $5")
    return {node: int(answer.out) for node, answer in found.items()}


def test_every_node_answers_for_itself(fleet: Fleet, held: Held) -> None:
    answers = fleet.ask('echo "$SLURMD_NODENAME $SLURM_PROCID"; echo e >&2; exit 5')
    assert tuple(answers) == held.nodes
    for task, node in enumerate(held.nodes):
        assert (answers[node].out, answers[node].err, answers[node].rc) == (f"{node} {task}\n", "e\n", 5)
    assert not fleet.lost


def test_many_commands_one_srun(fleet: Fleet, cluster: Cluster) -> None:
    commands = [f"echo {number}; seq 200" for number in range(40)]
    fleet.prefetch([(command, PATIENCE) for command in commands])
    for number, command in enumerate(commands):
        assert {answer.out.split()[0] for answer in fleet.ask(command).values()} == {str(number)}
    assert cluster.transport.started["srun"] == 1


def test_big_binary_output_of_all(fleet: Fleet) -> None:
    answers = fleet.ask("head -c 700000 /dev/urandom | tee /dev/stderr | cksum >&2; :")
    assert all(answer.rc == 0 and len(answer.stderr) > 700_000 for answer in answers.values())
    both = fleet.ask("head -c 300000 /dev/zero | tr '\\0' '\\377'")
    assert {answer.stdout for answer in both.values()} == {b"\xff" * 300_000}


def test_one_node_alone(fleet: Fleet, held: Held) -> None:
    answer = fleet.ask_node(held.nodes[2], "echo $SLURMD_NODENAME", fresh=True)
    assert answer.out == f"{held.nodes[2]}\n"


def test_steps_run_beside_the_channel(fleet: Fleet, held: Held) -> None:
    fleet.ask("true")
    script = 'test "$(echo $CUDA_VISIBLE_DEVICES | tr , "\\n" | wc -l)" = 1 && echo $SLURMD_NODENAME'
    step = ["srun", "--overlap", f"--jobid={held.job_id}", f"--nodes={len(held.nodes)}", "--mem=0"]
    out = run(*step, "--ntasks-per-node=8", "--gpus-per-task=1", "sh", "-c", script)
    assert sorted(out.split()) == sorted(held.nodes * 8)


def test_a_slow_node_answers_late_and_alone(fleet: Fleet, held: Held) -> None:
    slow = held.nodes[1]
    answers = fleet.ask(f"[ $SLURMD_NODENAME = {slow} ] && sleep 60; echo done", timeout=4)
    assert answers[slow].problem == "timed out after 4 s"
    assert {answer.out for node, answer in answers.items() if node != slow} == {"done\n"}
    assert not fleet.lost
    assert fleet.ask("echo again")[slow].out == "again\n"


def test_a_dead_agent_is_named_and_the_others_go_on(fleet: Fleet, held: Held) -> None:
    dead = held.nodes[1]
    os.kill(agents(fleet)[dead], signal.SIGKILL)
    answers = fleet.ask("echo after")
    assert "task ended: Killed" in answers[dead].problem
    assert {answer.out for node, answer in answers.items() if node != dead} == {"after\n"}
    assert list(fleet.lost) == [dead]
    assert not fleet.disconnected


def test_a_hung_agent_costs_one_deadline(fleet: Fleet, held: Held) -> None:
    hung = held.nodes[3]
    pid = agents(fleet)[hung]
    os.kill(pid, signal.SIGSTOP)
    answers = fleet.ask("echo one", timeout=600)
    assert answers[hung].problem.startswith("node lost: silent for 6 s")
    assert not fleet.disconnected
    assert {answer.out for node, answer in answers.items() if node != hung} == {"one\n"}
    for number in range(20):
        assert fleet.ask(f"echo {number}", timeout=600)[hung].rc is None
    fleet.close()
    wait_for(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_srun_killed(fleet: Fleet, held: Held) -> None:
    fleet.ask("true")
    os.killpg(fleet._popen.pid, signal.SIGKILL)
    answers = fleet.ask("echo after")
    assert {answer.rc for answer in answers.values()} == {None}
    assert all("srun ended (exit -9)" in why for why in fleet.lost.values())
    assert tuple(fleet.lost) == held.nodes
    assert fleet.disconnected == set(held.nodes), "no node is to blame"


def test_job_cancelled(fleet: Fleet, held: Held) -> None:
    fleet.ask("true")
    run("scancel", held.job_id)
    wait_for(lambda: tuple(sorted(fleet.lost)) == tuple(sorted(held.nodes)))
    assert fleet.ask("echo after")[held.nodes[0]].problem.startswith("node lost: ")
    assert fleet.disconnected == set(held.nodes), fleet.lost


def test_a_job_that_is_not_there(sandbox: Sandbox, cluster: Cluster) -> None:
    with Fleet.over_slurm(cluster, Held("999999", sandbox.nodes)) as fleet:
        assert "Invalid job id" in fleet.ask("true")[sandbox.nodes[0]].problem


def test_agents_end_with_the_channel(cluster: Cluster, held: Held) -> None:
    with Fleet.over_slurm(cluster, held) as fleet:
        pids = agents(fleet).values()
        fleet.prefetch([("sleep 600", 600.0)])
    wait_for(lambda: not any(alive(pid) for pid in pids))
    steps = ("squeue", "--noheader", "--steps", f"--jobs={held.job_id}", "--format=%j")
    wait_for(lambda: "gpucluster-fleet" not in run(*steps))  # slurmctld hears of the end a moment later
