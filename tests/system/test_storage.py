"""The storage suite on virtual nodes: a real file system, healthy and with the real faults of a FUSE file system."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import ends, message, run_suite
from plugin_helpers import names
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from slurm_sandbox.storage_faults import why_no_fuse

if TYPE_CHECKING:
    from plugin_helpers import Run

QUICK = {"storage": {"seconds": 0.3, "min_relative": 0.6, "files": 200}}
FAULTS = (
    "mount_version",
    "quota_used",
    "storage_full",
    "storage_error",
    "storage_corrupt",
    "storage_stale",
    "storage_locks",
)
HEALTHY = 3


def run_storage(sandbox: Sandbox, folder: Path, nodes: str, *words: str, **section: Any) -> Run:
    keys: dict[str, Any] = {"nodes": nodes, "storage": section, "python": Path(sys.executable), "constants": QUICK}
    return run_suite(sandbox, folder, "test_storage.py", *words, **keys)


def test_healthy_nodes_pass_and_leave_no_folder(sandbox: Sandbox, tmp_path: Path) -> None:
    shared, local = tmp_path / "shared", tmp_path / "local"
    for folder in (shared, local):
        folder.mkdir()
    reached = {"read": "1 MB/s", "write": "1 MB/s", "read_iops": 1, "creates": 1}
    systems = [{"path": str(shared), "expect": reached}, {"path": str(local), "kind": "local", "expect": reached}]
    run = run_storage(sandbox, tmp_path, "gpu[01-02]", filesystems=systems, budget="64M", imports=["json"])
    assert names(run.outcomes, "failed") == names(run.outcomes, "error") == [], run.out
    assert {name for name, end in ends(run).items() if end == "not applicable"} == {
        "test_lustre[gpu01]",
        "test_lustre[gpu02]",
    }
    assert set(ends(run).values()) == {"passed", "not applicable"}
    assert list(shared.iterdir()) == list(local.iterdir()) == []


@pytest.mark.skipif(why_no_fuse() != "", reason=why_no_fuse() or "FUSE works here")
def test_each_fault_is_found_by_its_own_check_on_its_own_node(tmp_path: Path) -> None:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=len(FAULTS) + HEALTHY)
        node_of = dict(zip(FAULTS, sandbox.nodes, strict=False))
        for kind, node in node_of.items():
            sandbox.fault(kind, node)
        systems = [{"path": str(sandbox.layout.shared), "expect": {"write": "500 GB/s"}}]
        run = run_storage(sandbox, tmp_path, f"gpu[01-{len(sandbox.nodes):02}]", filesystems=systems, budget="1G")
        sandbox.heal()
        failed = {name for name, end in ends(run).items() if end == "failed"}
        expected = {
            f"test_{check.partition('.')[2]}[{node}]" for kind, node in node_of.items() for check in FOUND_BY[kind]
        }
        assert failed == {*expected, "test_aggregate"}, run.out


@pytest.mark.skipif(why_no_fuse() != "", reason=why_no_fuse() or "FUSE works here")
@pytest.mark.parametrize(
    ("kind", "limits"),
    [("storage_server_slow", "the server or a shared link limits"), ("storage_client_slow", "each client limits")],
)
def test_what_is_slow_on_all_nodes_is_found_by_the_sum_alone_and_server_and_clients_are_told_apart(
    kind: str, limits: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.fault(kind, "gpu[01-04]")
    try:
        rates = {"read": "400 MB/s", "write": "400 MB/s"}
        systems = [{"path": str(sandbox.layout.shared), "expect": rates}]
        run = run_storage(sandbox, tmp_path, "gpu[01-04]", filesystems=systems, budget="512M")
    finally:
        sandbox.heal()
    failed = {name for name, end in ends(run).items() if end == "failed"}
    assert {f"storage.{name.removeprefix('test_')}" for name in failed} == set(FOUND_BY[kind]), run.out
    shown = message(run, "test_aggregate")
    assert shown.count(limits) == 2, shown
