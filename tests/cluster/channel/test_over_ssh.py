"""Nodes over SSH, without Slurm: also those that Slurm gives to nobody; one connection a node; inventories."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plugin_helpers import TINY, Run, names, out_of_service, write_suites
from sandbox_helpers import DEADLINE, environment, sandbox_folder
from ssh_helpers import WHY_NOT as NO_SSHD

from pytest_gpucluster import suites_path
from pytest_gpucluster.cluster.channel.over_ssh import settings_of
from pytest_gpucluster.config.models import HostAddress, SshConfig
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox import namespaces
from slurm_sandbox.daemons import search_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_NODES = NO_SSHD or namespaces.why_not(search_path())


def needs_nodes(test: Any) -> Any:
    return pytest.mark.thorough(pytest.mark.skipif(bool(NO_NODES), reason=NO_NODES)(test))


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, kind="namespaced")
        yield sandbox


def over_ssh(box: Sandbox, folder: Path, *args: str, files: dict[str, str] | None = None, **keys: Any) -> Run:
    """Run pytest in the network of the login node, from where the nodes are reached, without Slurm."""
    data = yaml.safe_load(box.cluster_file.read_text())
    ssh = {"config_file": str(box.layout.ssh / "config.login"), **keys.pop("ssh", {})}
    (folder / "nodes.yaml").write_text(json.dumps({**data, "ssh": ssh, "sandbox": True, **keys}))
    write_suites(folder, files or {})
    where = ["."] if files else [str(suites_path())]
    argv = [str(box.layout.bin / "sandbox-login"), sys.executable, "-m", "pytest", "--cluster=nodes.yaml"]
    done = subprocess.run(
        [*argv, "--set=access=ssh", *args, *where],
        cwd=folder,
        env=environment(SLURM_CONF="/no/such/slurm.conf"),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr, folder)


def logins(box: Sandbox, node: str) -> int:
    return box.layout.log_file(f"sshd-{node}").read_text().count("Accepted publickey")


@needs_nodes
def test_a_drained_node_is_judged_as_the_others_over_one_connection(box: Sandbox, tmp_path: Path) -> None:
    box.fault("gpu_missing", "gpu02")
    before = {node: logins(box, node) for node in box.nodes}
    with out_of_service(box, "gpu02", "DRAIN", "bad cable"):
        run = over_ssh(box, tmp_path, "-m", "os or gpu or fabric or slurm")
    box.heal()
    assert run.rc == 1, run.out + run.err
    assert {node: logins(box, node) - before[node] for node in box.nodes} == {"gpu01": 1, "gpu02": 1}
    failed = names(run.outcomes, "failed")
    assert "test_count[gpu02]" in failed
    assert all("gpu02" in name for name in failed)
    assert "reproduce:    ssh gpu02 'sh -c " in run.out
    passed = names(run.outcomes, "passed")
    assert {f"test_{what}[gpu0{n}]" for what in ("drift", "names", "hca_count") for n in (1, 2)} <= {*passed}
    assert not names(run.outcomes, "error")
    # what needs Slurm is not applicable, and says why
    ends = {n: end for n, end in run.outcomes.items() if "test_slurm.py" in n and "test_time_limit" not in n}
    assert set(ends.values()) == {"not applicable"}
    case = next(case for name, case in run.cases.items() if "slurm" in name and case.result)
    assert "without Slurm (access: ssh)" in case.result[0].message
    assert run.event("finish")["processes"] == {}


@needs_nodes
def test_a_node_of_an_inventory_that_is_away_is_not_available(box: Sandbox, tmp_path: Path) -> None:
    """Workers of xdist use the connections of the controller."""
    before = logins(box, "gpu01")
    hosts = "\n".join(f"gpu0{n} ansible_host={namespaces.address(n)}" for n in (1, 2))
    away = f"gpu03 ansible_host={namespaces.address(77)}"
    (tmp_path / "hosts.ini").write_text(f"[slurm-node]\n{hosts}\n{away}\n")
    keys = {"nodes": None, "inventory": "hosts.ini"}
    run = over_ssh(box, tmp_path, "-n2", files={"test_tiny.py": TINY}, **keys)
    assert run.rc == 1
    ends = {name.partition("::")[2]: end for name, end in run.outcomes.items()}
    assert ends["test_release[gpu01]"] == ends["test_release[gpu02]"] == "passed"
    assert ends["test_release[gpu03]"] == "not tested"
    assert [name for name, end in ends.items() if end == "error"] == ["test_available[gpu03]"]
    assert f"ssh to {namespaces.address(77)}: " in run.out
    assert logins(box, "gpu01") == before + 1


# --- addresses; what an inventory holds: tests/config/test_loader.py


def test_what_an_inventory_says_of_a_node_goes_before_the_cluster_file() -> None:
    general = SshConfig(user="root", port=22, key_file="general")
    host, own = settings_of("gpu01", general, {"gpu01": HostAddress(host="10.0.0.1", port=2222)})
    assert (host, own.port, own.user, own.key_file) == ("10.0.0.1", 2222, "root", "general")
    assert settings_of("gpu02", general, {}) == ("gpu02", general)
