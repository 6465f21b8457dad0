"""Nodes that cannot be tested are named with the reason, who set it and when; never dropped in silence."""

from __future__ import annotations

import getpass
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import TINY, Run, cluster_file, names, on, out_of_service, run_pytest
from sandbox_helpers import left_in_queue, queue, slurm, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = {"test_tiny.py": TINY}
RESPONDS = f"{ROOT / 'suites/os/test_os.py'}::test_responds"
SLURM_SUITE = ROOT / "suites/slurm/test_slurm.py"


@pytest.fixture
def drained(sandbox: Sandbox) -> Iterator[None]:
    """gpu02 is drained by hand, gpu03 is set failing: states that Slurm does not leave by itself."""
    with (
        out_of_service(sandbox, "gpu02", "DRAIN", "bad cable, ticket 4711"),
        out_of_service(sandbox, "gpu03", "FAIL", "smells"),
    ):
        yield


@pytest.fixture
def busy(sandbox: Sandbox) -> Iterator[str]:
    """A job of somebody else on gpu04; its number."""
    job = slurm(sandbox, "sbatch", "--parsable", "-w", "gpu04", "-o", "/dev/null", "--wrap", "sleep 1200").strip()
    wait_for(lambda: any("RUNNING" in line for line in queue(sandbox)), "the job runs")
    yield job
    slurm(sandbox, "scancel", job)
    wait_for(lambda: not queue(sandbox), "the queue is empty")


@pytest.mark.usefixtures("drained")
def test_drained_failing_and_unknown_nodes_are_an_error_each_and_then_not_tested(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    path = cluster_file(sandbox, tmp_path, nodes="gpu[01-04,77]")
    run = run_pytest(tmp_path, f"--cluster={path}", "-n0", files=SUITE)
    assert run.rc == 1
    outcomes = run.outcomes
    lost = ("gpu02", "gpu03", "gpu77")
    assert names(outcomes, "error") == [f"test_available[{node}]" for node in lost]
    of_them = [f"{test}[{node}]" for test in ("test_named", "test_release") for node in lost]
    assert names(outcomes, "not tested") == of_them
    assert "gpu77: Slurm does not know this node" in run.out
    assert len(names(outcomes, "passed")) == 5
    assert run.out.count("[100%]") == 1  # the entries at the end are no part of the progress
    assert "ERROR at setup of test_available[gpu02]" in run.out
    reported = re.compile(r'gpu02: DRAINED: "bad cable, ticket 4711" by root since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d')
    header, _, rest = run.out.partition("collected")
    assert reported.search(header)
    assert reported.search(rest)
    assert "2 of 5 nodes" in header
    assert "5 nodes: 2 fit, 0 failed, 0 not proved, 3 not tested" in run.out
    assert run.event("allocation")["nodes"] == ["gpu01", "gpu04"]
    kind, text = run.event("nodes")["not_tested"]["gpu03"]
    assert kind == "unavailable"
    assert "smells" in text
    case = run.cases["gpucluster.run.gpu02 test_available"]  # one name every night, whatever is selected
    (error,) = case.result
    assert type(error).__name__ == "Error"
    assert reported.search(error.message.replace(" is not tested", ""))
    properties = {(prop.get("name"), prop.get("value")) for prop in case._elem.iter("property")}
    assert {("slurm_reason", "bad cable, ticket 4711"), ("slurm_state", "IDLE+DRAIN")} <= properties
    (skipped,) = run.cases["gpucluster.tiny.gpu02 test_release"].result
    assert skipped.message.startswith("not tested: gpu02: DRAINED")


@pytest.mark.usefixtures("drained")
def test_no_node_at_all_is_an_error_and_starts_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), "--nodes=gpu[02-03]", files=SUITE)
    assert run.rc == 1
    assert "2 nodes: 0 fit, 0 failed, 0 not proved, 2 not tested" in run.out
    assert not [event for event in run.events if event["event"] == "allocation"]
    assert len(names(run.outcomes, "error")) == 2


def test_busy_nodes_are_left_out_and_named_and_too_few_are_no_success(
    sandbox: Sandbox, tmp_path: Path, busy: str
) -> None:
    path = cluster_file(sandbox, tmp_path, min_nodes="90%")
    run = run_pytest(tmp_path, f"--cluster={path}", files=SUITE)
    assert run.rc == 1
    why = "gpu04: (MIXED|ALLOCATED): in use by other jobs.*"
    few = f"ERROR: 3 of 4 nodes were tested; min_nodes requires 90%; not tested: {why}"
    assert re.fullmatch(few, run.errors[0])
    (error,) = run.cases["gpucluster.run.cluster test_finished"].result
    assert "3 of 4 nodes were tested" in error.message
    assert run.event("finish")["complaints"] == [run.errors[0].removeprefix("ERROR: ")]
    # of the whole cluster: two that are chosen are two
    assert run_pytest(tmp_path, f"--cluster={path}", "--set=min_nodes=4", "--nodes=gpu[01-02]").rc == 0
    # the command line goes before the file
    run = run_pytest(tmp_path, f"--cluster={path}", "--set=min_nodes=3")
    assert run.rc == 0, run.out
    assert names(run.outcomes, "not tested") == ["test_named[gpu04]", "test_release[gpu04]"]
    assert run.out.count("not tested: gpu04: ") >= 2  # in the header and at the end
    assert "ACCEPTED: 3 of 4 nodes (1 busy)." in run.out
    # only busy nodes are no success, even where the inventory is fine
    path = cluster_file(sandbox, tmp_path, nodes="gpu04")
    where = [str(SLURM_SUITE), "test_tiny.py"]
    run = run_pytest(tmp_path, f"--cluster={path}", "-k", "known or named", where=where)
    assert names(run.outcomes, "passed") == ["test_known[gpu04]"]
    assert run.errors == ["ERROR: no node was tested: this run says nothing about the cluster's nodes"]
    assert run.rc == 1


# from the task down: whoever is left would end this very command
KILL_AGENT = """
[ $SLURMD_NODENAME = {node} ] || exit 0
p=$PPID
while read -r _ name _ up _ </proc/$p/stat; case $name in *slurmstep*) false ;; esac; do all="$p $all"; p=$up; done
kill -9 $all
"""
LOSING = f"""
import time


def test_before(host):
    assert host.run("true").rc == 0


def test_kill(gpucluster_node, host, gpucluster_fleet):
    if gpucluster_node.name == "gpu01":
        gpucluster_fleet.ask({KILL_AGENT.format(node="gpu01")!r})
        deadline = time.time() + 300
        while not gpucluster_fleet.lost:  # srun tells it a moment after the agent has gone
            assert time.time() < deadline
            time.sleep(0.05)


def test_after(host):
    assert host.run("echo after").stdout == "after\\n"


def test_more(host):
    assert host.run("echo more").stdout == "more\\n"
"""


def test_a_node_lost_in_the_middle_is_named_and_the_others_go_on(sandbox: Sandbox, tmp_path: Path) -> None:
    words = ("--nodes=gpu[01-02]", "-n0", "--dist=loadfile")
    run = run_pytest(tmp_path, on(sandbox), *words, files={"test_losing.py": LOSING})
    assert run.rc == 1, run.out
    passed = {f"test_{name}[gpu02]" for name in ("before", "kill", "after", "more")}
    assert set(names(run.outcomes, "passed")) == {*passed, "test_before[gpu01]", "test_kill[gpu01]"}
    assert names(run.outcomes, "failed") == []  # a lost node is broken infrastructure, no verdict
    (error,) = names(run.outcomes, "error")
    assert error.endswith("[gpu01]")
    assert "2 of 2" not in run.out.rpartition("coverage:")[2]
    lost = run.event("lost")
    assert lost["node"] == "gpu01"
    assert lost["why"]
    assert "\nlost: gpu01: " in run.out
    assert left_in_queue(sandbox) == []


def passing(run: Run) -> set[str]:
    return {name[-6:-1] for name in names(run.outcomes, "passed") if name.endswith("]")}


def test_a_slurmd_that_died_unnoticed_costs_its_own_node_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    """Slurm still takes the node for idle: srun then ends the agents of all nodes."""
    os.kill(int(sandbox.layout.pid_file("slurmd-gpu03").read_text()), signal.SIGKILL)
    try:
        run = run_pytest(tmp_path, on(sandbox), files=SUITE, where=("test_tiny.py", RESPONDS))
    finally:
        sandbox.heal()
    assert run.rc == 1
    assert passing(run) == {"gpu01", "gpu02", "gpu04"}
    # by our own look, or by Slurm's where that came first
    by_us = "gpu03 is left out: its slurmd starts no task (" in run.out
    assert by_us or re.search(r"gpu03 is (not tested|left out): \w+\+NOT_RESPONDING", run.out), run.out
    printed = ("failed", "test_responds[gpu03]") if by_us else ("error", "test_available[gpu03]")
    assert printed[1] in names(run.outcomes, printed[0])


# the inventory is read before items are collected, nodes are asked for afterwards
BETWEEN = """
import os, subprocess


def pytest_collection_finish():
    subprocess.run({argv!r}, env=os.environ | {env!r}, check=True)
"""


def test_a_node_that_is_drained_as_we_ask_for_it_costs_its_own_tests_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    argv = ["scontrol", "update", "NodeName=gpu03", "State=DRAIN", "Reason=nhc"]
    files = {**SUITE, "conftest.py": BETWEEN.format(argv=argv, env=sandbox.env)}
    try:
        run = run_pytest(tmp_path, on(sandbox), files=files)
    finally:
        slurm(sandbox, "scontrol", "update", "NodeName=gpu03", "State=RESUME")
    assert passing(run) == {"gpu01", "gpu02", "gpu04"}
    assert 'not tested: gpu03: DRAINED: "nhc" by ' in run.out
    assert left_in_queue(sandbox) == []


def test_a_node_with_a_reservation_to_come_is_left_out_and_the_reservation_named(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """One further away than our job is long says nothing."""
    user = getpass.getuser()
    for name, node, start in (("soon", "gpu03", "now+20minutes"), ("later", "gpu02", "now+5hours")):
        what = f"ReservationName={name} StartTime={start} Duration=60 Nodes={node} Users={user} Flags=MAINT"
        slurm(sandbox, "scontrol", "create", "reservation", *what.split())
    try:
        run = run_pytest(tmp_path, on(sandbox), "--time=30m", files=SUITE)
    finally:
        for name in ("soon", "later"):
            slurm(sandbox, "scontrol", "delete", f"ReservationName={name}")
    assert run.rc == 1
    assert passing(run) == {"gpu01", "gpu02", "gpu04"}
    assert "not tested: gpu03: reservation soon begins " in run.out
    assert "use a shorter --time, or --set slurm.reservation=soon" in run.out
    assert left_in_queue(sandbox) == []
