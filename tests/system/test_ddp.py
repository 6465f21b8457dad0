"""The ddp suite with the real torch over gloo on virtual nodes, healthy and with faults."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from framework_helpers import message, run_suite
from plugin_helpers import Run, names

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores


def run_ddp(sandbox: Sandbox, folder: Path, **exports: str) -> Run:
    """Run the suite on two nodes whose tasks have these variables."""
    claim = {"environment": "frameworks", "deadline": "900s"}
    exports = {"GLOO_SOCKET_IFNAME": "lo", **exports}
    constants = {"ddp": {"lost_rank": 20}}
    return run_suite(
        sandbox, folder, "test_ddp.py", nodes="gpu[01-02]", ddp=claim, exports=exports, constants=constants
    )


def test_a_healthy_cluster_passes(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_ddp(sandbox, tmp_path)
    assert done.rc == 0, done.out
    assert len(names(done.outcomes, "passed")) == 16
    assert set(done.outcomes.values()) == {"passed", "not applicable"}
    assert all(
        "nccl" in name or "devices" in name or "transport" in name
        for name in names(done.outcomes, "not applicable")
    )


@pytest.mark.parametrize(
    ("exports", "failing", "measured"),
    [
        ({"RANK": "1"}, "environment", "RANK of task 0: 1"),
        ({"MASTER_ADDR": "nosuchhost.invalid"}, "master_addr", "does not resolve"),
        ({"GLOO_SOCKET_IFNAME": "ib7"}, "interface", "no such interface"),
    ],
)
def test_faults_of_the_environment(
    sandbox: Sandbox, tmp_path: Path, exports: dict[str, str], failing: str, measured: str
) -> None:
    done = run_ddp(sandbox, tmp_path, **exports)
    assert names(done.outcomes, "failed") == [f"test_{failing}[gpu01]", f"test_{failing}[gpu02]"], done.out
    assert measured in message(done, f"test_{failing}[gpu01]")
    assert "test_group[gloo]" in names(done.outcomes, "not checked")


def test_a_port_that_is_taken(sandbox: Sandbox, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        done = run_ddp(sandbox, tmp_path, MASTER_PORT=str(port))
    assert names(done.outcomes, "failed") == ["test_master_port"], done.out
    assert f"MASTER_PORT {port} on gpu01: measured taken by another process" in done.out
