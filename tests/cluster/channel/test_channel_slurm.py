"""The fleet channel over a real srun on the sandbox's virtual nodes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sandbox_helpers import slurm, wait_for

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.thorough


@dataclass
class Job:
    job_id: str
    nodes: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@pytest.fixture
def held(sandbox: Sandbox) -> Iterator[Allocation]:
    request = AllocationRequest(nodes=tuple(sandbox.nodes), gpus_per_node=8)
    with Allocation.request(Slurm(LocalTransport(sandbox.env)), request) as allocation:
        yield allocation


@pytest.fixture
def fleet(held: Allocation) -> Iterator[Fleet]:
    with Fleet.over_slurm(held.slurm, held, ping_timeout=6.0, grace=1.0) as channel:
        yield channel


def agents(fleet: Fleet) -> dict[str, int]:
    """The agents' pids: they lead the process groups of what they run; the nodes share this machine."""
    found = fleet.ask("set -- $(cat /proc/$PPID/stat); set -- $(cat /proc/$4/stat); echo $5")
    return {node: int(answer.out) for node, answer in found.items()}


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_every_node_answers_for_itself_over_one_srun(fleet: Fleet, held: Allocation) -> None:
    answers = fleet.ask('echo "$SLURMD_NODENAME $SLURM_PROCID"; echo e >&2; exit 5')
    assert tuple(answers) == held.nodes
    for task, node in enumerate(held.nodes):
        assert (answers[node].out, answers[node].err, answers[node].rc) == (f"{node} {task}\n", "e\n", 5)
    commands = [f"echo {number}; seq 200" for number in range(40)]
    fleet.prefetch([(command, 60.0) for command in commands])
    for number, command in enumerate(commands):
        assert {answer.out.split()[0] for answer in fleet.ask(command).values()} == {str(number)}
    alone = fleet.ask_node(held.nodes[2], "echo $SLURMD_NODENAME", fresh=True)
    assert alone.out == f"{held.nodes[2]}\n"
    assert held.slurm.transport.started["srun"] == 1
    assert not fleet.lost


def test_big_binary_output_of_all(fleet: Fleet) -> None:
    answers = fleet.ask("head -c 700000 /dev/urandom | tee /dev/stderr | cksum >&2; :")
    assert all(answer.rc == 0 and len(answer.stderr) > 700_000 for answer in answers.values())
    both = fleet.ask("head -c 300000 /dev/zero | tr '\\0' '\\377'")
    assert {answer.stdout for answer in both.values()} == {b"\xff" * 300_000}


def test_steps_run_beside_the_channel(fleet: Fleet, held: Allocation, sandbox: Sandbox) -> None:
    fleet.ask("true")
    script = 'test "$(echo $CUDA_VISIBLE_DEVICES | tr , "\\n" | wc -l)" = 1 && echo $SLURMD_NODENAME'
    step = ["srun", "--overlap", f"--jobid={held.job_id}", f"--nodes={len(held.nodes)}", "--mem=0"]
    out = slurm(sandbox, *step, "--ntasks-per-node=8", "--gpus-per-task=1", "sh", "-c", script)
    assert sorted(out.split()) == sorted(held.nodes * 8)


def test_a_slow_node_answers_late_and_alone(fleet: Fleet, held: Allocation) -> None:
    slow = held.nodes[1]
    answers = fleet.ask(f"[ $SLURMD_NODENAME = {slow} ] && sleep 60; echo done", timeout=4)
    assert answers[slow].problem == "timed out after 4 s"
    assert {answer.out for node, answer in answers.items() if node != slow} == {"done\n"}
    assert not fleet.lost
    assert fleet.ask("echo again")[slow].out == "again\n"


def test_a_dead_agent_is_named_and_the_others_go_on(fleet: Fleet, held: Allocation) -> None:
    dead = held.nodes[1]
    os.kill(agents(fleet)[dead], signal.SIGKILL)
    answers = fleet.ask("echo after")
    assert "task ended: Killed" in answers[dead].problem
    assert {answer.out for node, answer in answers.items() if node != dead} == {"after\n"}
    assert list(fleet.lost) == [dead]
    assert not fleet.disconnected


def test_a_hung_agent_costs_one_deadline(fleet: Fleet, held: Allocation) -> None:
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
    wait_for(lambda: ended(pid), "the hung agent ends")


def test_an_srun_that_is_killed_is_the_fault_of_no_node(fleet: Fleet, held: Allocation) -> None:
    fleet.ask("true")
    os.killpg(fleet._popen.pid, signal.SIGKILL)
    answers = fleet.ask("echo after")
    assert {answer.rc for answer in answers.values()} == {None}
    assert all("srun ended (exit -9)" in why for why in fleet.lost.values())
    assert fleet.disconnected == set(fleet.lost) == set(held.nodes)


def test_a_job_that_is_cancelled_is_the_fault_of_no_node(fleet: Fleet, held: Allocation) -> None:
    fleet.ask("true")
    held.slurm.run("scancel", str(held.job_id))
    wait_for(lambda: set(fleet.lost) == set(held.nodes), "all are lost")
    assert fleet.ask("echo after")[held.nodes[0]].problem.startswith("node lost: ")
    assert fleet.disconnected == set(held.nodes), fleet.lost


def test_a_job_that_is_not_there(sandbox: Sandbox) -> None:
    client = Slurm(LocalTransport(sandbox.env))
    with Fleet.over_slurm(client, Job("999999", tuple(sandbox.nodes))) as fleet:
        assert "Invalid job id" in fleet.ask("true")[sandbox.nodes[0]].problem


def test_agents_end_with_the_channel(held: Allocation) -> None:
    with Fleet.over_slurm(held.slurm, held) as fleet:
        pids = agents(fleet).values()
        fleet.prefetch([("sleep 600", 600.0)])
    wait_for(lambda: all(map(ended, pids)), "the agents end")
    steps = ("squeue", "--noheader", "--steps", f"--jobs={held.job_id}", "--format=%j")
    # slurmctld hears of the end a moment later
    wait_for(lambda: "gpucluster-fleet" not in held.slurm.run(*steps), "the step ends")
