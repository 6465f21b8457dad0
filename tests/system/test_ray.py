"""The ray suite with the real Ray on virtual nodes, healthy and with faults."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from framework_helpers import deviant_python, ends, message, run_suite

from pytest_gpucluster.suites.ray import payload_node as ray_node

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox


# --- the real thing


def leftovers() -> list[str]:
    """Return the processes and folders that any run of ours has left."""
    ask = "grep -la GPUCLUSTER_RAY_TASK /proc/[0-9]*/environ 2>/dev/null; ls -d /tmp/r??????[ahw]gpu* 2>/dev/null"
    return subprocess.run(["sh", "-c", ask], capture_output=True, text=True, check=False).stdout.splitlines()


def test_ray_runs_over_two_nodes_and_leaves_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    claim = {
        "environment": "frameworks",
        "cpus": 2,
        "gpus": 2,
        "deadline": "600s",
        "join": "120s",
    }  # the driver has what two joins leave
    run = run_suite(sandbox, tmp_path, "test_ray.py", nodes="gpu[01-02]", ray=claim)
    found = ends(run)
    apart = {"test_head_lost[gpu01]": "not applicable"}  # the head
    assert {item: end for item, end in found.items() if end != "passed"} == apart, run.out[-4000:]
    assert len(found) == 18
    metrics = {metric["name"]: metric["value"] for event in run.events for metric in event.get("metrics", ())}
    assert metrics["gpus"] == 4
    assert leftovers() == []
    reports = "".join(path.read_text() for path in (tmp_path / "reports").rglob("*") if path.is_file())
    assert not re.search(r"RAY_AUTH_TOKEN=\S", reports)


def test_a_node_works_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    claim = {"environment": "frameworks", "cpus": 1, "gpus": 1, "join": "120s"}
    run = run_suite(sandbox, tmp_path, "test_ray.py", "-k", "framework or alone", nodes="gpu01", ray=claim)
    assert set(ends(run).values()) == {"passed"}, run.out[-4000:]
    assert leftovers() == []


def test_faults_of_single_nodes_have_their_own_verdicts(sandbox: Sandbox, tmp_path: Path) -> None:
    """Of four nodes: one shows its trial all GPUs, one lacks Ray, one starts its worker late, one has a port taken."""
    late = '"gpu03 worker"*) exec sleep 32;;'
    # a variable that users copy from workarounds: Ray then leaves CUDA_VISIBLE_DEVICES as Slurm has set it
    workaround = '"gpu01 head"*) export RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1;;'
    python = deviant_python(tmp_path, f'"gpu02 "*) exec {sys.executable} "$@";;\n{late}\n{workaround}')
    claim: dict[str, Any] = {"environment": "frameworks", "cpus": 1, "gpus": 2, "token": False}
    claim |= {"join": "20s", "port": 23000, "deadline": "500s"}
    width = ray_node.width_of({"nodes": {"gpu01": {"cpus": 1, "gpus": 2}}})
    with socket.create_server(("127.0.0.1", 23000 + 3 * width)):
        run = run_suite(sandbox, tmp_path, "test_ray.py", python=python, ray=claim)
    found = ends(run)
    assert found["test_alone[gpu01]"] == found["test_alone[gpu03]"] == "passed", run.out[-4000:]
    assert "Ray: Ray cannot be imported by" in message(run, "test_alone[gpu02]")
    assert f"port: port {23000 + 3 * width} (port) is taken" in message(run, "test_alone[gpu04]")
    printed = message(run, "test_nodes")
    assert "gpu02: missing: Ray cannot be imported" in printed
    assert "gpu03: missing: sent no result" in printed
    assert "gpu04: missing: port" in printed
    assert found["test_tasks[gpu01]"] == "passed"
    assert found["test_tasks[gpu03]"] == "not checked"
    assert message(run, "test_tune_gpus[gpu01]") == "CUDA_VISIBLE_DEVICES of the trial: 0,1"
    assert leftovers() == []


def test_a_dead_head_and_what_it_leaves_are_found(sandbox: Sandbox, tmp_path: Path) -> None:
    """The head's task is killed in the middle of its work, so that it cannot tidy up."""
    python = deviant_python(tmp_path, f'"gpu01 head"*) exec timeout -s KILL 9 {deviant(tmp_path)} "$@";;')
    claim = {"environment": "frameworks", "cpus": 1, "gpus": 0, "join": "40s"}
    chosen = ("-k", "test_nodes or test_left")  # without the step of each node alone
    run = run_suite(sandbox, tmp_path, "test_ray.py", *chosen, python=python, nodes="gpu[01-02]", ray=claim)
    printed = message(run, "test_nodes")
    assert "head on gpu01: task 0: ended by signal 9 (SIGKILL)" in printed, run.out[-4000:]
    assert ends(run)["test_left[gpu01]"] == "failed", run.out[-4000:]
    assert "left behind: folder /tmp/r" in message(run, "test_left[gpu01]")
    assert leftovers() == []


def deviant(folder: Path) -> str:
    """Return an interpreter without deviations."""
    inner = folder / "inner"
    inner.mkdir(exist_ok=True)
    return str(deviant_python(inner, "none) ;;"))


def test_a_wrong_interface_has_its_own_verdict(sandbox: Sandbox, tmp_path: Path) -> None:
    claim = {"environment": "frameworks", "cpus": 1, "gpus": 0, "interface": "ib9"}
    run = run_suite(sandbox, tmp_path, "test_ray.py", nodes="gpu[01-02]", ray=claim)
    for node in ("gpu01", "gpu02"):
        assert "network interface: interface ib9 has no IPv4 address here" in message(
            run, f"test_alone[{node}]"
        )
    assert ends(run)["test_nodes"] == "failed"


def test_what_is_selected_without_its_section_is_not_proved(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_suite(sandbox, tmp_path, "test_ray.py", nodes="gpu[01-02]")
    assert set(ends(run).values()) == {"error"}
    assert "add `ray:`" in run.out
