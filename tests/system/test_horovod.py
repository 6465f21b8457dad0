"""The horovod suite with the real Horovod on virtual nodes, healthy and with faults."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import deviant_python, ends, framework_python, message, run_suite
from paths import ROOT
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.suites.horovod.facts import read
from slurm_sandbox.api import SandboxError

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox


# --- the real thing

ONE = {"horovod": {"without_gpus": 1}}


@pytest.mark.parametrize("claim", [{"launchers": ["srun"]}, {}], ids=["srun", "all"])
def test_horovod_runs_over_two_nodes_of_two_tasks(
    sandbox: Sandbox, tmp_path: Path, claim: dict[str, Any]
) -> None:
    launchers = claim.get("launchers", ("srun", "localhost", "horovodrun"))
    claim = {"environment": "frameworks", "operations": ["gloo"], "interface": "lo", **claim}
    run = run_suite(sandbox, tmp_path, "test_horovod.py", "-m", "gloo", nodes="gpu[01-02]", horovod=claim)
    found = ends(run)
    good = {"test_build[gpu01]", "test_build[gpu02]", "test_versions[gpu01]", "test_versions[gpu02]"}
    good |= {"test_interface[gpu01]", "test_interface[gpu02]", "test_between[gpu01]", "test_between[gpu02]"}
    for judged in ("ranks", "all_reduce", "broadcast", "training"):
        good |= {
            f"test_{judged}[pytorch-gloo-{launcher}]" for launcher in launchers if launcher != "horovodrun"
        }
    assert {item for item, end in found.items() if end == "passed"} == good, run.out[-4000:]
    # plain virtual nodes have no sshd: their names do not even resolve
    rest = {item for item in found if item not in good and not item.startswith("test_transport")}
    assert rest == {
        f"test_{judged}[pytorch-gloo-horovodrun]"
        for judged in ("ranks", "all_reduce", "broadcast", "training")
        if "horovodrun" in launchers
    }
    assert {found[item] for item in rest} <= {"not checked"}
    assert not rest or "needs ssh between nodes; gpu01 to gpu02: ssh: Could not resolve" in run.out


def test_horovod_runs_for_tensorflow(sandbox: Sandbox, tmp_path: Path) -> None:
    if "tensorflow" not in read(built()).frameworks:
        pytest.skip(
            "Horovod is built for PyTorch alone: HOROVOD_WITH_TENSORFLOW=1 make .cache/frameworks/.ready"
        )
    claim = {"environment": "frameworks", "frameworks": ["tensorflow"]}
    claim |= {"controllers": ["gloo"], "launchers": ["srun"]}
    run = run_suite(sandbox, tmp_path, "test_horovod.py", nodes="gpu[01-02]", horovod=claim)
    good = {
        f"test_{judged}[tensorflow-gloo-srun]" for judged in ("ranks", "all_reduce", "broadcast", "training")
    }
    assert good <= {item for item, end in ends(run).items() if end == "passed"}, run.out[-4000:]


def built() -> str:
    """Return what `horovodrun --check-build` says of the Horovod that the tests have."""
    argv = [str(framework_python()), "-m", "horovod.runner.launch", "--check-build"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_horovodrun_over_ssh_and_the_mpi_controller_on_nodes_like_real_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_gpucluster.sandbox import Sandbox  # pure tests need no sandbox

    with sandbox_folder() as folder:
        nodes = Sandbox(folder / "s")
        try:
            nodes.up(nodes=2, gpus_per_node=0, kind="namespaced", share=[ROOT])
        except SandboxError as error:
            pytest.skip(f"this machine makes no namespaced nodes: {error}")
        for name, value in nodes.env.items():
            monkeypatch.setenv(name, value)
        # one rank per node: those of Open MPI wait for each other at full speed
        claim = {"environment": "frameworks", "controllers": ["gloo", "mpi"]}
        claim["launchers"] = ["srun", "horovodrun"]
        chosen = ("-k", "build or gloo-horovodrun or pytorch-mpi")
        run = run_suite(
            nodes, tmp_path, "test_horovod.py", *chosen, nodes="gpu[01-02]", horovod=claim, constants=ONE
        )
    found = ends(run)
    assert set(found.values()) == {"passed"}, run.out[-4000:]
    assert {"test_ranks[pytorch-gloo-horovodrun]", "test_training[pytorch-mpi-srun]"} <= set(found)
    assert {"test_ranks[pytorch-mpi-horovodrun]", "test_training[pytorch-mpi-localhost]"} <= set(found)


def test_an_mpirun_of_another_mpi_is_found(sandbox: Sandbox, tmp_path: Path) -> None:
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    # it starts every rank without the variables by which the MPI of the build finds the others
    mpirun.write_text(
        '#!/bin/sh\n[ "$1" != --version ] || { echo "mpirun (Open MPI) 4.1.4"; exit 0; }\n'
        'while [ "${1#*/python}" = "$1" ]; do shift; done\n"$@" & "$@"; wait\n'
    )
    mpirun.chmod(0o755)
    claim = {
        "environment": "frameworks",
        "controllers": ["mpi"],
        "operations": ["gloo"],
    }
    claim["launchers"] = ["horovodrun"]
    chosen = ("-k", "mpi-localhost")
    exports = {"PATH": f"{mpirun.parent}:/usr/bin:/bin"}
    run = run_suite(
        sandbox, tmp_path, "test_horovod.py", *chosen, exports=exports, nodes="gpu01", horovod=claim
    )
    found = ends(run)
    assert found["test_ranks[pytorch-mpi-localhost]"] == "failed", run.out[-3000:]
    assert "2 jobs of one rank each (singletons)" in message(run, "test_ranks[pytorch-mpi-localhost]")
    assert found["test_training[pytorch-mpi-localhost]"] == "not checked"


def test_a_node_without_horovod_is_named_and_nobody_waits_for_it(sandbox: Sandbox, tmp_path: Path) -> None:
    python = deviant_python(tmp_path, f'"gpu02 "*) exec {sys.executable} "$@";;')
    claim = {"environment": "frameworks", "operations": ["gloo"], "launchers": ["srun"]}
    run = run_suite(
        sandbox, tmp_path, "test_horovod.py", python=python, nodes="gpu[01-02]", horovod=claim, constants=ONE
    )
    found = ends(run)
    assert found["test_build[gpu01]"] == "passed", run.out[-3000:]
    assert found["test_build[gpu02]"] == "failed"
    assert "Horovod cannot be imported by" in message(run, "test_build[gpu02]")
    assert "on gpu02: Horovod cannot be imported" in message(run, "test_ranks[pytorch-gloo-srun]")
    assert found["test_training[pytorch-gloo-srun]"] == "not checked"


def test_a_late_node_and_a_wrong_interface_have_their_own_verdicts(sandbox: Sandbox, tmp_path: Path) -> None:
    python = deviant_python(tmp_path, '"gpu02 --framework"*) exec sleep 60;;')
    claim = {"environment": "frameworks", "operations": ["gloo"], "launchers": ["srun"]}
    late = {**claim, "deadline": "32s"}
    run = run_suite(
        sandbox, tmp_path, "test_horovod.py", python=python, nodes="gpu[01-02]", horovod=late, constants=ONE
    )
    printed = message(run, "test_ranks[pytorch-gloo-srun]")
    assert "rank 0 on gpu01: not done within 17 s" in printed, run.out[-3000:]
    assert "gpu02: no rank of the node sent a report" in printed
    wrong = {**claim, "interface": "ib9"}
    run = run_suite(sandbox, tmp_path, "test_horovod.py", nodes="gpu[01-02]", horovod=wrong, constants=ONE)
    assert "interface ib9: missing; the node has " in message(run, "test_interface[gpu02]")
    assert "interface ib9 has no IPv4 address here" in message(run, "test_ranks[pytorch-gloo-srun]")


def test_what_is_selected_without_its_section_is_not_proved(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_suite(sandbox, tmp_path, "test_horovod.py", nodes="gpu[01-02]")
    assert set(ends(run).values()) == {"error"}
    assert "add `horovod:`" in run.out
