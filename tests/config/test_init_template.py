"""Drafts of cluster files, from Slurm's words and from Ansible inventories."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING

import jsonschema
import pytest
import yaml

from pytest_gpucluster import config
from pytest_gpucluster.config import init_template as drafts
from pytest_gpucluster.config.ansible import read_inventory
from pytest_gpucluster.config.init_template import DraftNode, Login, draft, from_inventory, proposals
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.config import Cluster

DEEPOPS = """\
# Ansible inventory
[all]
mgmt01     ansible_host=10.0.0.1
gpu[01:03] ansible_user="root"
gpu04      ansible_host=10.0.0.14  # the new one

[slurm-master]
mgmt01

[rack-a]
gpu[01:02]

[slurm-node:children]
rack-a
rack-b

[rack-b]
gpu03
gpu04
; login01

[slurm-cluster:children]
slurm-master
slurm-node

[all:vars]
ansible_user = ubuntu
banner = don't touch
"""

YAML = """\
all:
  vars: {ansible_user: ubuntu}
  children:
    slurm-master:
      hosts:
        mgmt01: {ansible_host: 10.0.0.1}
    slurm-node:
      children:
        rack-a: {hosts: {'gpu[01:02]': }}
        rack-b: {hosts: {gpu03: , gpu04: {ansible_user: root}}}
"""


def loaded(text: str, folder: Path) -> Cluster:
    path = folder / "drafted.yaml"
    path.write_text(text)
    jsonschema.Draft202012Validator(config.schema()).validate(yaml.safe_load(text))
    return config.load_cluster(path)


def test_nodes_are_grouped_by_gres_and_partition(tmp_path: Path) -> None:
    nodes = [DraftNode(f"gpu{number:02}", "batch", {"gpu:h200": 8}) for number in (3, 1, 2)]
    nodes += [DraftNode("half1", "batch", {"gpu:h200": 4}), DraftNode("odd1", "lab", {"gpu:xyz": 2})]
    nodes += [DraftNode("cpu1", "batch", {}), DraftNode("bare1", "batch", {"gpu": 4})]
    text = draft("prod", nodes, origin="sinfo")
    cluster = loaded(text, tmp_path)
    found = {
        group.nodes: (group.partition, group.profile.name, group.profile.gpu and group.profile.gpu.count)
        for group in cluster.groups
    }
    assert found == {
        "gpu[01-03]": ("batch", "h200-8", 8),
        "half1": ("batch", "h200-vm", 4),
        "odd1": ("lab", "generic", None),
        "cpu1": ("batch", "generic", None),
        "bare1": ("batch", "generic", None),
    }
    assert "2 GPUs of the type xyz" in text
    assert "it may also be h200-8-nonvls" in text


def test_types_that_begin_with_a_digit_and_mig_are_proposed_as_they_are(tmp_path: Path) -> None:
    mixed = {"gpu:a100": 6, "gpu:1g.5gb": 14}
    nodes = [
        DraftNode("a", "b", {"gpu:2080ti": 4}),
        DraftNode("c", "b", mixed),
        DraftNode("d", "b", {"gpufs": 2}),
    ]
    text = draft("p", nodes, origin="sinfo")
    loaded(text, tmp_path)
    assert "4 GPUs of the type 2080ti" in text
    assert "20 GPUs of the type 1g.5gb,a100" in text
    assert "no GPUs are known of these nodes" in text


def test_a_single_partition_stands_with_slurm(tmp_path: Path) -> None:
    cluster = loaded(draft("p", [DraftNode("a", "batch", {"gpu:t4": 1})], origin="sinfo"), tmp_path)
    assert (cluster.slurm.partition, cluster.groups[0].partition) == ("batch", None)
    gpu = cluster.groups[0].profile.gpu
    assert gpu
    assert (gpu.name, gpu.gres_type) == ("Tesla T4", "t4")


def test_simulated_gpus_are_called_so(tmp_path: Path) -> None:
    nodes = [DraftNode("a", "batch", {"gpu:h200": 8}), DraftNode("b", "batch")]
    assert not loaded(draft("p", nodes, origin="sinfo"), tmp_path).simulated
    cluster = loaded(draft("p", nodes, origin="sinfo", simulated=True), tmp_path)
    assert [group.profile.simulated for group in cluster.groups] == [True, True]


def test_odd_names_stay_what_they_are(tmp_path: Path) -> None:
    login = Login('log"in: #1', "no")
    cluster = loaded(draft("no", [DraftNode("a", "my part: #1")], origin="a\nb: c", login=login), tmp_path)
    assert (cluster.name, cluster.slurm.partition) == ("no", "my part: #1")
    assert (cluster.transport.host, cluster.transport.user) == ('log"in: #1', "no")


def test_the_notes_of_a_draft_are_valid_themselves(tmp_path: Path) -> None:
    text = draft("p", [DraftNode("a")], origin="sinfo")
    start = text.index("# environments:")
    notes = "\n".join(line.removeprefix("# ").removeprefix("#") for line in text[start:].splitlines())
    assert loaded(text[:start] + notes, tmp_path).environments["default"].modules == ("cuda",)


@pytest.mark.parametrize(
    ("kind", "count", "first"),
    [
        ("a100", 8, "dgx-a100"),
        ("h100", 8, "dgx-h100"),
        ("H200", 8, "h200-8"),
        ("h200", 2, "h200-vm"),  # 8 adapters and an NVSwitch are not looked for where two GPUs are
        ("v100", 8, "dgx-1-v100"),
        ("nvidia_h100_80gb_hbm3", 8, "dgx-h100"),  # AutoDetect=nvml
        ("nvidia_a100-sxm4-40gb", 8, "dgx-a100-40gb"),
    ],
)
def test_proposals(kind: str, count: int, first: str) -> None:
    assert proposals(kind, count)[0] == first


def test_nothing_is_proposed_without_a_type_or_for_a_part_of_a_name() -> None:
    assert proposals("", 8) == proposals("nvidia-h", 8) == proposals("00", 8) == []


@pytest.mark.parametrize(("name", "text"), [("inventory", DEEPOPS), ("hosts.yml", YAML)])
def test_an_inventory_in_the_deepops_form(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    inventory = read_inventory(tmp_path / name)
    assert inventory.hosts("slurm-node") == ("gpu01", "gpu02", "gpu03", "gpu04")
    cluster = loaded(from_inventory(inventory, name="deepops", origin=name), tmp_path)
    assert cluster.groups[0].nodes == "gpu[01-04]"
    assert (cluster.transport.kind, cluster.transport.host, cluster.transport.user) == (
        "ssh",
        "10.0.0.1",
        "ubuntu",
    )


def test_a_hosts_own_variable_goes_before_its_groups(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text(DEEPOPS)
    inventory = read_inventory(tmp_path / "inventory")
    assert inventory.variable("gpu01", "ansible_user") == "root"
    assert inventory.variable("gpu04", "ansible_user") == "ubuntu"
    assert inventory.variable("gpu04", "nothing") is None


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
        ("n[1:3]", ("n1", "n2", "n3")),
        ("n[08:10]x", ("n08x", "n09x", "n10x")),
        ("n[a:b][1:2]", ("na1", "na2", "nb1", "nb2")),
        ("n[0:6:3]", ("n0", "n3", "n6")),
    ],
)
def test_host_ranges(tmp_path: Path, pattern: str, hosts: tuple[str, ...]) -> None:
    (tmp_path / "inventory").write_text(f"[slurm-node]\n{pattern}\n")
    assert read_inventory(tmp_path / "inventory").hosts("slurm-node") == hosts


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("inventory", "[slurm-node]\nn[1:99999999]\n", r"inventory:2: the host range .* more than"),
        ("inventory", "[slurm-node]\nn[1:b]\n", r"inventory:2: not a host range"),
        ("inventory", "[slurm-node]\nn[1:3:0]\n", r"inventory:2: not a host range"),
        ("inventory", "[slurm-node]\nn1 a='b\n", r"inventory:2: not an inventory line"),
        (
            "inventory",
            "[kube-node]\nn1\n",
            r"no hosts in a group 'slurm-node' \(groups found: kube-node, ungrouped\)",
        ),
        ("inventory", "", r"no hosts in a group 'slurm-node'"),
        (
            "inventory",
            "[slurm-node:children]\na\n[a:children]\nslurm-node\n",
            r"no hosts in a group 'slurm-node'",
        ),
        ("hosts.yml", "all: [a]\n", r"all: must be a mapping"),
        (
            "hosts.yml",
            "all: {vars: {x: !vault y}}\n",
            r"hosts.yml:1: all.vars.x: the tag !vault is not supported",
        ),
    ],
)
def test_a_bad_inventory_gives_one_line(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        from_inventory(read_inventory(tmp_path / name), name="x", origin=name)
    assert "\n" not in str(caught.value)


def test_no_nodes_no_draft() -> None:
    with pytest.raises(ConfigError, match="sinfo names no nodes"):
        draft("x", [], origin="sinfo")


def test_examples_of_the_docstrings() -> None:
    outcome = doctest.testmod(drafts)
    assert outcome.attempted
    assert not outcome.failed
