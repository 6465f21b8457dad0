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

from pytest_gpucluster import config, suites_path
from pytest_gpucluster.cluster.channel.over_ssh import settings_of
from pytest_gpucluster.config.models import HostAddress, SshConfig
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox import namespaces
from slurm_sandbox.daemons import search_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_NODES = NO_SSHD or namespaces.why_not(search_path())
needs_nodes = pytest.mark.skipif(bool(NO_NODES), reason=NO_NODES)
ALTER = """
def test_fresh(host, gpucluster_node):
    host.backend.fresh = True
    assert host.run("echo $SLURMD_NODENAME").stdout == gpucluster_node.name + "\\n"
    assert host.run("exit 3").rc == 3
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Two nodes with an sshd each."""
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


@pytest.fixture(scope="module")
def drained(box: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, dict[str, int]]]:
    """All suites on two nodes of which Slurm gives away one, with a fault in the other."""
    box.fault("gpu_missing", "gpu02")
    before = {node: logins(box, node) for node in box.nodes}
    with out_of_service(box, "gpu02", "DRAIN", "bad cable"):
        run = over_ssh(box, tmp_path_factory.mktemp("drained"), "-m", "os or gpu or fabric or slurm")
    yield run, {node: logins(box, node) - before[node] for node in box.nodes}
    box.heal()


@needs_nodes
def test_a_drained_node_is_judged_as_the_others(drained: tuple[Run, dict[str, int]]) -> None:
    run, _ = drained
    assert run.rc == 1, run.out + run.err
    failed = names(run.outcomes, "failed")
    assert "test_count[gpu02]" in failed
    assert all("gpu02" in name for name in failed)
    assert "reproduce:    ssh gpu02 'sh -c " in run.out
    passed = names(run.outcomes, "passed")
    assert {f"test_{what}[gpu0{n}]" for what in ("kernel", "names", "hca_count") for n in (1, 2)} <= {*passed}
    assert not names(run.outcomes, "error")


@needs_nodes
def test_what_needs_slurm_is_not_applicable_and_says_why(drained: tuple[Run, dict[str, int]]) -> None:
    run, _ = drained
    ends = {n: end for n, end in run.outcomes.items() if "test_slurm.py" in n and "test_time_limit" not in n}
    assert ends
    assert set(ends.values()) == {"not applicable"}
    assert (
        run.outcomes[next(name for name in run.outcomes if "test_limits[gpu01]" in name)] == "not applicable"
    )
    case = next(case for name, case in run.cases.items() if "slurm" in name and case.result)
    assert "the nodes are reached over SSH, without Slurm (access: ssh)" in case.result[0].message
    assert run.event("finish")["processes"] == {}


@needs_nodes
def test_a_run_is_one_connection_a_node(drained: tuple[Run, dict[str, int]]) -> None:
    assert drained[1] == {"gpu01": 1, "gpu02": 1}


@needs_nodes
def test_workers_of_xdist_use_the_same_connections(box: Sandbox, tmp_path: Path) -> None:
    before = logins(box, "gpu01")
    run = over_ssh(box, tmp_path, "-n2", files={"test_tiny.py": TINY, "test_alter.py": ALTER})
    assert (run.rc, set(run.outcomes.values()), len(run.outcomes)) == (0, {"passed"}, 7), run.out
    assert logins(box, "gpu01") == before + 1


@needs_nodes
@pytest.mark.parametrize("options", [(), ("-k", "release"), ("-n2",)])
def test_an_inventory_names_the_nodes_and_one_that_is_away_is_not_available(
    box: Sandbox, tmp_path: Path, options: tuple[str, ...]
) -> None:
    hosts = "\n".join(f"gpu0{n} ansible_host={namespaces.address(n)}" for n in (1, 2))
    (tmp_path / "hosts.ini").write_text(
        f"[slurm-node]\n{hosts}\ngpu03 ansible_host={namespaces.address(77)}\n"
    )
    run = over_ssh(
        box,
        tmp_path,
        *options,
        files={"test_tiny.py": TINY},
        nodes=None,
        inventory="hosts.ini",
        ssh={"connect_timeout": "5s"},
    )
    assert run.rc == 1
    ends = {name.partition("::")[2]: end for name, end in run.outcomes.items()}
    assert ends["test_release[gpu01]"] == ends["test_release[gpu02]"] == "passed"
    assert ends["test_release[gpu03]"] == "not tested"
    assert [name for name, end in ends.items() if end == "error"] == ["test_available[gpu03]"]
    assert f"ssh to {namespaces.address(77)}: " in run.out


@needs_nodes
def test_an_unknown_host_key_loses_the_node(box: Sandbox, tmp_path: Path) -> None:
    run = over_ssh(box, tmp_path, files={"test_tiny.py": TINY}, ssh={"known_hosts": "/dev/null"})
    assert run.rc == 1
    assert "its host key is not in /dev/null" in run.out
    assert not [name for name in names(run.outcomes, "passed") if "release" in name]


# --- inventories

INI = """\
[all]
gpu[01:03] ansible_user=ops
login01:2222 ansible_host=10.0.0.9
[slurm-node]
gpu[01:03]
[slurm-node:vars]
ansible_port=2022
ansible_ssh_private_key_file=~/.ssh/ops
"""
YAML = """\
all:
  children:
    gpu:
      hosts:
        gpu[1:2]:
          ansible_host: 10.0.0.1
          ansible_port: 2222
"""


def load(folder: Path, text: str, name: str = "hosts.ini", **keys: Any) -> config.Cluster:
    (folder / name).write_text(text)
    path = folder / "c.yaml"
    path.write_text(json.dumps({"inventory": name, **keys}))
    return config.load_cluster(path)


def test_ini_inventory_gives_nodes_and_addresses(tmp_path: Path) -> None:
    cluster = load(tmp_path, INI)
    assert [group.nodes for group in cluster.groups] == ["gpu[01-03]"]
    assert cluster.hosts["gpu02"] == HostAddress(host="gpu02", port=2022, user="ops", key_file="~/.ssh/ops")


def test_yaml_inventory_gives_nodes_and_addresses(tmp_path: Path) -> None:
    cluster = load(tmp_path, YAML, "hosts.yaml")
    assert cluster.groups[0].names == ("gpu1", "gpu2")
    assert cluster.hosts["gpu1"] == HostAddress(host="10.0.0.1", port=2222)


def test_a_group_is_chosen_and_nodes_go_before_the_inventory(tmp_path: Path) -> None:
    assert "login01" in load(tmp_path, INI, inventory_group="all").groups[0].names
    assert load(tmp_path, INI, inventory_group="all").hosts["login01"].port == 2222
    cluster = load(tmp_path, INI, nodes="gpu[01-02]")
    assert cluster.groups[0].names == ("gpu01", "gpu02")
    assert cluster.hosts["gpu01"].user == "ops"


@pytest.mark.parametrize(
    ("text", "keys", "words"),
    [
        (INI, {"inventory_group": "nobody"}, "has no hosts in group nobody (there are: all, slurm-node)"),
        ("", {}, "has no hosts in group all"),
        ("gpu01 ansible_port=ssh\n", {}, "ansible_port must be a port, not ssh"),
        ("gpu01 ansible_port=99999\n", {}, "ansible_port must be a port"),
        ("a;reboot\n", {}, "inventory: names no nodes as Slurm does"),
    ],
)
def test_an_inventory_that_cannot_work_is_one_line(
    tmp_path: Path, text: str, keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **keys)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_inventory_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("inventory: none.ini\n")
    with pytest.raises(ConfigError, match=r"none\.ini: there is no such file"):
        config.load_cluster(tmp_path / "c.yaml")


def test_what_an_inventory_says_of_a_node_goes_before_the_cluster_file() -> None:
    general = SshConfig(user="root", port=22, key_file="general")
    host, own = settings_of("gpu01", general, {"gpu01": HostAddress(host="10.0.0.1", port=2222)})
    assert (host, own.port, own.user, own.key_file) == ("10.0.0.1", 2222, "root", "general")
    assert settings_of("gpu02", general, {}) == ("gpu02", general)
