"""Where cluster files are looked for, and what an Ansible inventory gives them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fuzz_readers import campaign, deadline
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.config.ansible import Inventory, read_inventory
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


def test_a_folder_that_may_not_be_entered_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    assert reported("secret/prod.yaml") == (
        "secret/prod.yaml: this user cannot enter a folder of the path (Permission denied)"
    )


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


def test_only_without_a_scheduler_localhost_is_here(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "a: ansible_port must be a port, not 65536" in refusal(here, "a ansible_port=65536\n")


def test_the_inventorys_group_slurm_node_is_taken_or_all_and_every_host_for_named_nodes(here: Path) -> None:
    assert set(of_inventory(here, INVENTORY).hosts) == {"gpu01", "gpu02"}
    assert set(of_inventory(here, INVENTORY, "nodes: login01\n").hosts) == {"gpu01", "gpu02", "login01"}
    assert set(of_inventory(here, "[gpu]\na\n[cpu]\nb\n").hosts) == {"a", "b"}
    assert set(of_inventory(here, "[gpu]\na\n[all]\nb\n").hosts) == {"b"}


def test_an_inventory_of_no_use_is_reported(here: Path) -> None:
    assert refusal(here, "[slurm-node]\n") == "site/prod.yaml:1: inventory: site/hosts has no hosts"
    (here / "site/prod.yaml").write_text("inventory: nowhere\n")
    assert reported("site/prod.yaml") == "site/prod.yaml:1: inventory: site/nowhere: there is no such file"
    assert refusal(here, "gpu_01/x\n").startswith("site/prod.yaml:1: inventory: names no nodes as Slurm does")


# --- changes for one run: --set

FILE = """
groups:
  - {nodes: "gpu[01-02]", partition: batch}
  - {nodes: "gpu[03-04]", partition: batch}
slurm: {partition: batch, reservation: maint, extra_args: [--qos=low, --nice]}
required: [gpu.count]
settings: {least: 200}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prod.yaml"
    path.write_text(FILE)
    return path


def changed(file: Path, *changes: str) -> Cluster:
    return load_cluster(file, changes=changes)


def refused(file: Path, *changes: str) -> str:
    with pytest.raises(ConfigError) as caught:
        changed(file, *changes)
    return str(caught.value)


def test_a_value_is_replaced_as_if_the_file_had_it(file: Path) -> None:
    slurm = changed(file, "slurm.partition=debug", "slurm.time=90m", "slurm.account=ops").slurm
    assert (slurm.partition, slurm.time, slurm.account, slurm.reservation) == ("debug", 5400, "ops", "maint")
    more = changed(file, "slurm.reservation=null", "drain.max=3", "reports.keep=4", "reports.keep=5", "required=[]")
    assert (more.slurm.reservation, more.drain.max, more.reports.keep) == (None, "3", 5)
    assert (more.required, more.warnings) == ((), ())  # the empty list of a change is meant
    typed = changed(file, "settings.least=300", "settings.name='300'", "settings.on=true")
    assert typed.settings == {"least": 300, "name": "300", "on": True}


def test_a_value_is_yaml_and_a_list_has_indices(file: Path) -> None:
    cluster = changed(
        file, "groups[1].partition=debug", "required=[os.time_sync, gpu.xid]", "slurm.extra_args[0]=--qos=a=b"
    )
    assert [group.partition for group in cluster.groups] == ["batch", "debug"]
    assert cluster.required == ("os.time_sync", "gpu.xid")
    assert cluster.slurm.extra_args == ("--qos=a=b", "--nice")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slurm.partitoin=debug", "slurm.partitoin: unknown key; did you mean 'partition'?"),
        ("slurm.time=soon", "slurm.time: "),
        ("reports.keep=0", "reports.keep: must be greater than or equal to 1, not '0'"),
        ("groups[1].partion=x", "groups[1].partion: unknown key; did you mean 'partition'?"),
        ("groups[2].partition=x", "has no groups[2] with keys"),
        ("slurm.extra_args[2]=x", "has no slurm.extra_args[2]"),
        ("slurm.extra_args=[--qos=a, --no-shell]", ": slurm.extra_args[1]: "),  # not a line of the file
        ("slurm.reservation=", "must be KEY=VALUE, like slurm.reservation=maint (null removes a value)"),
        ("=x", "must be KEY=VALUE"),
        ("required=[a", "not YAML"),
        ("required=!!python/object:a b", "is not supported; write the plain value"),
        ("slurm.reservation=# none", "has no value: write one, or null"),
        ("nodes=gpu01", "groups: 'nodes' at the top is for a single group; use one of the two"),
        ("os.sysctls={vm swappiness: 10}", "os.sysctls.vm swappiness: 'vm swappiness': invalid name"),
        ("known=[{pattern: '[', meaning: x, reason: y}]", "known[0].pattern: must be"),
        ("history=~no-such-user/x", "history: must be a path; this machine does not know the user of"),
    ],
)
def test_a_wrong_change_is_one_line_that_names_the_option(file: Path, text: str, said: str) -> None:
    line = refused(file, text)
    assert "\n" not in line
    assert said in line
    if "groups: " not in said:  # the key of the file, not that of the option, is wrong there
        assert line.startswith(f"--set {text}: ")


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("slurm.partition=debug", "access=ssh"),
        ("slurm.reservation=x", "slurm.scheduler=none"),
        ("ssh.user=me", "slurm.time=1h"),
    ],
)
def test_a_change_without_effect_is_refused(file: Path, text: str, more: str) -> None:
    assert "has no effect" in refused(file, text, more)
    assert changed(file, "access=ssh").warnings == ()  # what the file has for the other access is none
    file.write_text(f"{FILE}access: ssh\n")
    assert len(load_cluster(file).warnings) == 3
    file.write_text(FILE.replace("required:", "requird:"))
    line = refused(file, "slurm.partition=debug")
    assert line.startswith(f"{file}:6: requird: unknown key")  # errors of the file keep their lines


# --- whatever a file holds

CAMPAIGN = campaign(20)
GOOD = """\
name: lab
nodes: gpu[01-04]
profile: dgx-h100
sudo: true
slurm: {partition: batch, time: 01:30:00}
environments:
  pytorch: {container_image: /images/pytorch.sqsh, container_mounts: ['/data:/data:ro'], exports: {NCCL_DEBUG: INFO}}
not_applicable: {os.lsm: none here}
settings: {answer: 42}
"""
HOSTS = (
    "[slurm-node]\ngpu[01:04] ansible_host=10.0.0.1\n[slurm-node:vars]\nansible_user=root\n[all:children]\nslurm-node\n"
)
# beside those of test_models.py
HOSTILE: dict[str, bytes] = {
    "cyclic merge": b"nodes: gpu01\nslurm: &s {<<: *s}\n",
    "deep block": b"".join(b" " * n + b"a:\n" for n in range(300)),
    "UTF-16": "nodes: gpu01\n".encode("utf-16"),
    "huge number": b"nodes: gpu01\nslurm: {time: %s}\n" % (b"9" * 5000),
    "huge range": b"nodes: gpu[1-%s]\n" % (b"9" * 5000),
    "node with a command": b"nodes: 'gpu01;$(touch x)'\n",
    "directive": b"%YAML 9.9\n---\nnodes: gpu01\n",
}
HOSTILE_INVENTORIES: dict[str, bytes] = {
    "product of ranges": b"[g]\na[1:60000]b[1:60000]c[1:60000]\n",
    "huge number": b"[g]\ngpu[1:%s]\n" % (b"9" * 9),
    "empty word": b"[g]\n''\n",
    "NUL": b"[g]\ngpu\x0001\n",
    "cyclic children": b"[a:children]\nb\n[b:children]\na\n[b]\ngpu01\n",
    "binary": bytes(range(256)) * 20,
}


def load(path: Path, raw: bytes) -> object:
    path.write_bytes(raw)
    with deadline():
        try:
            return read_inventory(path) if path.suffix == ".ini" else load_cluster(path)
        except ConfigError as error:
            text = str(error)
            assert "\n" not in text
            assert text.isprintable(), ascii(text)
            assert len(text) < 1500
            return text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_the_good_file_is_read_whatever_its_line_ends(tmp_path: Path, newline: str, bom: str) -> None:
    read = load(tmp_path / "lab.yaml", (bom + GOOD.replace("\n", newline)).encode())
    assert not isinstance(read, str), read


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_line_with_its_name(tmp_path: Path, kind: str) -> None:
    printed = load(tmp_path / "lab.yaml", HOSTILE[kind])
    assert isinstance(printed, str), "it was accepted"
    assert str(tmp_path / "lab.yaml") in printed


@pytest.mark.parametrize("kind", HOSTILE_INVENTORIES)
def test_a_hostile_inventory_is_read_or_one_line_with_its_place(tmp_path: Path, kind: str) -> None:
    printed = load(tmp_path / "lab.ini", HOSTILE_INVENTORIES[kind])
    readable = kind in ("empty word", "NUL", "cyclic children")  # what their names are worth is judged later
    assert isinstance(printed, Inventory if readable else str), printed
    assert readable or str(printed).startswith(f"{tmp_path / 'lab.ini'}:2: ")


WORDS = "&a *a { } [ ] ' \" % .nan ~ gpu[01- # é null [1:99999]"
PIECES = [
    *("<<: *a", "!!int ", ": ", "- ", "? ", "|\n", ">\n", "---\n", "\t", "\0", "\r", "\ufeff", "\u2028"),
    *("9" * 400, "\n  ", "\x1b[0m", *WORDS.split()),
]


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 30)))
        text = text[:start] + draw(st.sampled_from(PIECES) | st.text(max_size=5)) + text[end:]
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(("name", "good"), [("lab.yaml", GOOD), ("lab.ini", HOSTS)])
def test_a_damaged_file_is_read_or_one_line(tmp_path: Path, name: str, good: str) -> None:
    @CAMPAIGN
    @given(damaged(good) | st.binary(max_size=200))
    def check(raw: bytes) -> None:
        load(tmp_path / name, raw)

    check()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted(set(re.findall(r"\b([a-z_]+):", GOOD)) | {"groups", "required", "nccl", "burnin", "transport", "ssh"})


def test_values_of_any_type_are_read_or_one_line(tmp_path: Path) -> None:
    @CAMPAIGN
    @given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
    def check(plain: dict[str, object]) -> None:
        load(tmp_path / "lab.yaml", json.dumps({"nodes": "gpu01", **plain}).encode())

    check()
