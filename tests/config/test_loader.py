"""Where cluster files are looked for, and what an Ansible inventory gives them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.config.loader import BUILT_IN, search_path
from pytest_gpucluster.config.models import HostAddress
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pytest_gpucluster.config import Cluster


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def reported(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_cluster(name)
    return str(caught.value)


def test_where_cluster_files_are_looked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etc = Path("/etc/pytest-gpucluster/clusters")
    assert search_path() == (Path("clusters"), here / "config/pytest-gpucluster/clusters", etc, BUILT_IN)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(here / "ada"))
    assert search_path()[1] == here / "ada/.config/pytest-gpucluster/clusters"

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    assert search_path() == (Path("clusters"), etc, BUILT_IN)


def test_a_cluster_that_is_not_there_is_reported_in_full(here: Path) -> None:
    assert reported(" ") == "no cluster is named; there are: local, sandbox"
    assert reported("sandbox") == (
        "the cluster 'sandbox' has no file of its own: it is made by `gpucluster sandbox up`"
    )
    assert "did you mean 'local'?" in reported("lokal")
    assert f"{here}/config/pytest-gpucluster/clusters, /etc/pytest-gpucluster/clusters" in reported("lokal")
    for path in ("x/prod", "prod.yaml", "prod.yml"):
        assert reported(path) == f"{path}: there is no such file"
    assert reported("a/" + "x" * 300) == f"a/{'x' * 195}...: there is no such file"


def test_localhost_is_this_machine_only_without_a_scheduler(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"this": "gpu07.site"}
    monkeypatch.setattr("socket.gethostname", lambda: name["this"])

    def nodes(text: str) -> str:
        (here / "one.yaml").write_text(text)
        return load_cluster("one.yaml").groups[0].nodes

    assert nodes("nodes: localhost\nslurm: {scheduler: none}\n") == "gpu07"
    assert nodes("nodes: localhost\n") == "localhost"
    assert nodes("nodes: other\nslurm: {scheduler: none}\n") == "other"
    name["this"] = ""
    assert nodes("nodes: localhost\nslurm: {scheduler: none}\n") == "localhost"


# the inventory

INVENTORY = """[slurm-node]
gpu02 ansible_host=10.0.0.2 ansible_port=2222 ansible_user=ada ansible_ssh_private_key_file=/k
gpu01 ansible_ssh_host=10.0.0.1 ansible_ssh_port=65535 ansible_ssh_user=eve
[login]
login01
[empty]
"""


def of_inventory(here: Path, inventory: str, text: str = "") -> Cluster:
    (here / "site").mkdir(exist_ok=True)
    (here / "site/hosts").write_text(inventory)
    (here / "site/prod.yaml").write_text("inventory: hosts\n" + text)
    return load_cluster("site/prod.yaml")


def refusal(here: Path, inventory: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        of_inventory(here, inventory, text)
    return str(caught.value)


def test_hosts_of_an_inventory_are_the_nodes_with_their_addresses(here: Path) -> None:
    cluster = of_inventory(here, INVENTORY)
    assert cluster.groups[0].names == ("gpu01", "gpu02")
    assert cluster.hosts == {
        "gpu02": HostAddress(host="10.0.0.2", port=2222, user="ada", key_file="/k"),
        "gpu01": HostAddress(host="10.0.0.1", port=65535, user="eve"),
    }
    both = "a ansible_host=1.1.1.1 ansible_ssh_host=2.2.2.2 ansible_port=1 ansible_ssh_port=2"
    hosts = of_inventory(here, f"{both} ansible_user=x ansible_ssh_user=y\nb\n").hosts  # the newer variables
    assert hosts == {"a": HostAddress(host="1.1.1.1", port=1, user="x"), "b": HostAddress(host="b")}


def test_the_group_slurm_node_of_the_inventory_is_taken_or_all_and_every_host_for_named_nodes(
    here: Path,
) -> None:
    assert set(of_inventory(here, INVENTORY).hosts) == {"gpu01", "gpu02"}
    assert set(of_inventory(here, INVENTORY, "nodes: login01\n").hosts) == {"gpu01", "gpu02", "login01"}
    assert set(of_inventory(here, "[gpu]\na\n[cpu]\nb\n").hosts) == {"a", "b"}
    assert set(of_inventory(here, "[gpu]\na\n[all]\nb\n").hosts) == {"b"}


def test_an_inventory_of_no_use_is_reported(here: Path) -> None:
    assert refusal(here, "[slurm-node]\n") == "site/prod.yaml:1: inventory: site/hosts has no hosts"
    (here / "site/prod.yaml").write_text("inventory: nowhere\n")
    assert reported("site/prod.yaml") == "site/prod.yaml:1: inventory: site/nowhere: there is no such file"
    assert refusal(here, "gpu_01/x\n").startswith(
        "site/prod.yaml:1: inventory: names no nodes as Slurm does: "
    )
