"""The ddp suite with the real torch over gloo on virtual nodes, healthy and with faults."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import Run, cluster_file, names, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores

SUITE = ROOT / "suites" / "ddp" / "test_ddp.py"
PATIENCE = 1200  # seconds; a run takes a tenth of it at most
PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"


# -- the real torch on virtual nodes ------------------------------------------------------------------------------


def claimed(
    sandbox: Sandbox, folder: Path, exports: dict[str, str] | None = None, *, python: Path = PYTHON
) -> Path:
    """Write a cluster file that claims ddp on two nodes."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: make .cache/frameworks (torch for the CPU)")
    environment = {"python": str(python), "exports": {"GLOO_SOCKET_IFNAME": "lo", **(exports or {})}}
    return cluster_file(
        sandbox,
        folder,
        nodes="gpu[01-02]",
        environments={"torch": environment},
        ddp={"environment": "torch", "deadline": "900s"},
    )


def run_suite(path: Path, *args: str) -> Run:
    return run_pytest(
        path.parent,
        f"--cluster={path}",
        "-p",
        "no:cacheprovider",
        *args,
        timeout=PATIENCE,
        where=(str(SUITE),),
        constants={"ddp": {"lost_rank": 20}},
    )


def wrapper(folder: Path, body: str) -> Path:
    """Write an interpreter that does something of its own on one node or rank first."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\n{body}\nexec {PYTHON} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_healthy_cluster_passes(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_suite(claimed(sandbox, tmp_path))
    assert done.rc == 0, done.out
    assert len(names(done.outcomes, "passed")) == 16
    assert set(done.outcomes.values()) == {"passed", "not applicable"}
    assert all(
        "nccl" in name or "devices" in name or "transport" in name
        for name in names(done.outcomes, "not applicable")
    )


def test_what_is_selected_without_its_section_is_not_proved(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        f"--cluster={cluster_file(sandbox, tmp_path, nodes='gpu01')}",
        "-p",
        "no:cacheprovider",
        "-v",
        where=(str(SUITE),),
    )
    assert set(done.outcomes.values()) == {"error"}
    assert "add `ddp:`" in done.out


@pytest.mark.parametrize(
    ("exports", "failing", "printed"),
    [
        (
            {"RANK": "1"},
            "test_environment",
            "RANK of task 0: measured 1 (set by exports or pass_env of the environment in the cluster file), expected 0",
        ),
        ({"LOCAL_RANK": "0"}, "test_environment", "LOCAL_RANK 0"),
        ({"MASTER_ADDR": "nosuchhost.invalid"}, "test_master_addr", "does not resolve"),
        ({"GLOO_SOCKET_IFNAME": "ib7"}, "test_interface", "ib7: no such interface"),
    ],
)
def test_faults_of_the_environment(
    sandbox: Sandbox, tmp_path: Path, exports: dict[str, str], failing: str, printed: str
) -> None:
    path = claimed(sandbox, tmp_path, exports)
    done = run_suite(path)
    failed = names(done.outcomes, "failed")
    assert [f"{failing}[gpu01]", f"{failing}[gpu02]"] == failed, done.out
    assert printed in done.out
    assert "test_group[gloo]" in names(done.outcomes, "not checked")


def test_a_port_that_is_taken(sandbox: Sandbox, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        done = run_suite(claimed(sandbox, tmp_path, {"MASTER_PORT": str(port)}))
    assert names(done.outcomes, "failed") == ["test_master_port"], done.out
    assert f"MASTER_PORT {port} on gpu01: measured taken by another process" in done.out
