"""Drafts of cluster files, from Slurm's words and from Ansible inventories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml

from pytest_gpucluster import SuiteError, config
from pytest_gpucluster.config import init_template, json_schema
from pytest_gpucluster.config.ansible import read_inventory
from pytest_gpucluster.config.init_template import DraftNode, LoginNode, blind_spots, draft, from_inventory
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.registry import Suite
from pytest_gpucluster.core.survey import Hardware, Software, Survey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.config import Cluster

MIB = 2**20
USUAL: dict[str, Any] = {"mig": False, "ecc": True, "persistence": True, "compute_mode": "Default"}


def machine(gpu: str, memory: int, count: int, nvlinks: int, *links: str, **more: Any) -> Hardware:
    gpus, settings = ((gpu, memory * MIB),) * count, more.pop("settings", USUAL)
    return Hardware(gpus, (nvlinks,) * count, frozenset(links), settings=settings, **more)


INFINIBAND, METAL = (("InfiniBand", 50.0),) * 8, {"virtual": False, "vendor": "NVIDIA"}
H200 = machine("NVIDIA H200", 143771, 8, 18, "NV18", ports=INFINIBAND, **METAL)
PORTS = (*(("InfiniBand", 25.0),) * 8, ("Ethernet", 12.5))
A100 = machine("NVIDIA A100-SXM4-80GB", 81920, 8, 12, "NV12", ports=PORTS, **METAL)
H100_SXM = machine("NVIDIA H100 80GB HBM3", 81559, 1, 0, virtual=True, vendor="QEMU")
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
    jsonschema.Draft202012Validator(json_schema.schema()).validate(yaml.safe_load(text))
    return config.load_cluster(path)


def drafted(
    folder: Path, nodes: Sequence[DraftNode], hardware: Mapping[str, Hardware] | None = None, **more: Any
) -> tuple[str, Cluster]:
    """Return the draft of a file for these nodes, of which some were read, and its cluster."""
    known = hardware or {}
    more.setdefault("survey", Survey(hardware=known, software={name: Software() for name in known}))
    text = draft("p", nodes, origin="sinfo", **more)
    return text, loaded(text, folder)


def profiles(cluster: Cluster) -> dict[str, Any]:
    return {group.nodes: (group.partition, group.profile.name, group.profile.gpu) for group in cluster.groups}


def test_each_group_has_the_profile_of_its_node(tmp_path: Path) -> None:
    """Several partitions, several kinds of hardware, CPU nodes, untyped gres."""
    nodes = [DraftNode(f"gpu{number:02}", "batch", {"gpu:h200": 8}) for number in (3, 1, 2)]
    nodes += [DraftNode("old1", "lab", {"gpu": 8}), DraftNode("cpu1", "batch", {})]
    nodes += [DraftNode("far1", "lab", {"gpu:h200": 8})]
    hardware = {"gpu01": H200, "old1": A100, "cpu1": Hardware(), "far1": replace(H200, ports=())}
    text, cluster = drafted(tmp_path, nodes, hardware)
    assert cluster.warnings == ()
    found = profiles(cluster)
    assert {nodes: row[:2] for nodes, row in found.items()} == {
        "gpu[01-03]": ("batch", "h200-8"),
        "old1": ("lab", "dgx-a100"),
        "cpu1": ("batch", "generic"),
        "far1": ("lab", "generic"),
    }
    assert (found["gpu[01-03]"][2].gres_type, found["cpu1"][2]) == ("h200", None)
    far = found["far1"][2]
    shown = (far.count, far.name, far.memory, far.nvlinks, far.topology)
    assert shown == (8, "NVIDIA H200", 143771 * MIB, 18, "NV18")
    assert "h200-8: 0 ports as the profile states, not 8" in text


def test_a_single_sxm_gpu_is_no_pcie_card(tmp_path: Path) -> None:
    """A node of gpu:h100:1 with NVIDIA H100 80GB HBM3, as recorded."""
    text, cluster = drafted(tmp_path, [DraftNode("a", "b", {"gpu:h100": 1})], {"a": H100_SXM})
    _, name, gpu = profiles(cluster)["a"]
    shown = (name, gpu.count, gpu.name, gpu.memory, gpu.nvlinks, gpu.topology)
    assert shown == ("generic", 1, "NVIDIA H100 80GB HBM3", 81559 * MIB, None, None)
    assert "h100-pcie: GPUs are NVIDIA H100 80GB HBM3, not NVIDIA H100 PCIe" in text


def test_mig_is_stated_and_slurms_instances_are_not_counted(tmp_path: Path) -> None:
    settings = {**USUAL, "mig": True}
    mig = replace(A100, nvlinks=(0,) * 8, links=frozenset({"SYS"}), mig=True, settings=settings)
    text, cluster = drafted(tmp_path, [DraftNode("a", "b", {"gpu:1g.10gb": 56})], {"a": mig})
    _, name, gpu = profiles(cluster)["a"]
    assert (name, gpu.count, gpu.mig, gpu.gres_type) == ("generic", 8, True, None)
    assert "one of the two is wrong" not in text


@pytest.mark.parametrize(("read", "stated"), [(True, True), (None, None), (False, False)])
def test_mig_is_stated_beside_a_profile(tmp_path: Path, *, read: bool | None, stated: bool | None) -> None:
    """None: some GPUs of the node are divided, so no mode is demanded of all."""
    settings = {**USUAL, "mig": read}
    card = machine("NVIDIA H100 PCIe", 81559, 1, 0, mig=read is not False, settings=settings)
    _, cluster = drafted(tmp_path, [DraftNode("a", "b", {"gpu": 1})], {"a": card})
    _, name, gpu = profiles(cluster)["a"]
    assert (name, gpu.count, gpu.mig) == ("h100-pcie", 1, stated)


def test_a_job_is_no_longer_than_its_partition_allows(tmp_path: Path) -> None:
    limits = {"batch": 86400.0, "free": None, "short": 600.0, "medium": 1800.0}
    nodes = [DraftNode(name, name, max_time=limit) for name, limit in limits.items()]
    text, cluster = drafted(tmp_path, nodes)
    assert cluster.slurm.time == 600
    assert "time: 10m  # MaxTime of partition short\n" in text
    assert drafted(tmp_path, nodes[:2])[1].slurm.time == 3600


@pytest.mark.parametrize(
    ("second", "words"), [(3.125, "1 Ethernet at 100 Gb/s; 1 Ethernet at 25 Gb/s"), (12.5, "2 Ethernet at 100 Gb/s")]
)
def test_ethernet_and_unusual_settings_are_not_demanded(tmp_path: Path, second: float, words: str) -> None:
    ports, settings = (("Ethernet", 12.5), ("Ethernet", second)), {"ecc": False, "mig": None}
    card = machine("NVIDIA L40", 46068, 2, 0, "SYS", mig=False, settings=settings, ports=ports, virtual=False)
    text, cluster = drafted(tmp_path, [DraftNode("a", "b", {"gpu": 2})], {"a": card})
    profile = cluster.groups[0].profile
    assert profile.gpu
    assert (profile.gpu.name, profile.gpu.ecc, profile.gpu.persistence) == ("NVIDIA L40", None, None)
    assert (profile.fabric.link_layer, profile.fabric.hcas) == ("none", 0)
    assert words in text
    assert "which adapters carry the traffic of GPUs is not known" in text


def test_a_gpu_that_the_read_node_lacks_is_still_expected(tmp_path: Path) -> None:
    sick = replace(H200, gpus=H200.gpus[:7], nvlinks=(18,) * 7)
    nodes = [DraftNode("a", "b", {"gpu:h200": 8}), DraftNode("b", "b", {"gpu:h200": 8})]
    text, cluster = drafted(tmp_path, nodes, {"a": sick})
    assert profiles(cluster)["a,b"][1] == "h200-8"
    assert "Slurm has 8 GPUs there (Gres), and a shows 7: one of the two is wrong" in text


def test_nodes_that_were_not_read_get_no_profile(tmp_path: Path) -> None:
    nodes = [DraftNode("a", "b", {"gpu:h200": 8}), DraftNode("c", "b", {"gpu:1g.5gb": 14, "gpu:a100": 6})]
    unread = Survey(unread={"a": "no node of it is idle (a: allocated)"})
    text, cluster = drafted(tmp_path, [*nodes, DraftNode("d", "b", {"gpufs": 2})], survey=unread)
    assert {row[1] for row in profiles(cluster).values()} == {"generic"}
    assert "# not read: no node of it is idle (a: allocated)" in text
    assert "8 GPUs of the type h200; by this name it may be h200-8" in text
    assert "20 GPUs of the type 1g.5gb,a100" in text
    assert "# not read: run init without --offline" in text
    assert text.startswith("# NO NODE WAS READ: its GPUs fail run.profile until `gpucluster init --force`")


def test_sections_that_can_run_are_written_and_the_others_say_what_they_lack(tmp_path: Path) -> None:
    tests = "/opt/nccl-tests/build/all_reduce_perf"
    programs = {"mpirun": "/m", "mpicc": "/c", "enroot": "/e", "all_reduce_perf": tests}
    image = "/shared/pt.sqsh"
    full = Software("/usr/bin/python3 3.11", programs, {"torch": "2.5"}, images=(image,), pyxis=True)
    nodes = [DraftNode("a1", "b"), DraftNode("a2", "b")]
    known = Survey(hardware={"a1": H200}, software={"a1": full})
    _, cluster = drafted(tmp_path, nodes, survey=known)
    sections: Any = cluster
    assert (sections.ddp, sections.training) != (None, None)
    assert sections.mpi.launchers == ("mpirun",)
    assert sections.container.image == image
    assert sections.nccl.command == f"{tests} -b 1M -e 4G -f 2 -g 1"
    assert (sections.ray, sections.tensorflow, sections.submitit, cluster.warnings) == (None, None, None, ())
    lacking = replace(known, software={"a1": Software()})
    bare, cluster = drafted(tmp_path, [*nodes, DraftNode("c", "alone")], survey=lacking)
    assert cluster.warnings == ()
    for line in (
        "# ddp: {}  # torch is not in python3 of a1; needs two nodes; partition alone has one",
        "# mpi: {launchers: [mpirun, srun --mpi=pmix]}  # not found: mpirun on a1; mpicc on a1",
        "# container: {image: REGISTRY#IMAGE:TAG}  # no Pyxis on a1; no enroot on a1; no .sqsh file was found",
        "# a1: neither nccl-tests nor torch, so that NCCL and the GPU loads of burnin are not proved:",
        "# kubernetes: {}  # needs kubectl and a context",
        "#   ibfabric.plan: Every InfiniBand cable of the node is where the cabling plan has it.",
    ):
        assert line in bare
    listed = [len([*blind_spots({"os": {"shared_storage": folders}})]) for folders in ([], ["/shared"])]
    assert listed[0] == listed[1] + 1
    perftest = replace(full, programs={**programs, "ib_write_bw": "/usr/bin/ib_write_bw"})
    with_rdma, cluster = drafted(tmp_path, nodes, survey=replace(known, software={"a1": perftest}))
    sections = cluster
    assert sections.rdma is not None
    assert "# ibfabric: {}  # needs access to /dev/infiniband/umad* (sudo: true); ibnetdiscover is not on" in with_rdma
    assert "needs two nodes; partition b has one" in drafted(tmp_path, [nodes[0]], survey=known)[0]
    shared, _ = drafted(tmp_path, nodes, survey=replace(known, share_host=True))
    assert "several nodes of Slurm are one machine" in shared


def test_a_draft_that_is_a_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_template, "suites", lambda: (Suite("site.cooling", (), draft=lambda _: "x"),))
    with pytest.raises(SuiteError, match="cooling: its draft is a text; it must be a list of lines"):
        draft("p", [DraftNode("a")], origin="sinfo")


def test_notes_are_valid_themselves_odd_names_stay_and_simulated_gpus_are_called_so(tmp_path: Path) -> None:
    login = LoginNode("no", 'log"in: #1')
    nodes = [DraftNode("a", "my part: #1", {"gpu:h200": 8})]
    cluster = loaded(draft("no", nodes, origin="a\nb: c", login=login, simulated=True), tmp_path)
    assert (cluster.name, cluster.slurm.partition) == ("no", "my part: #1")
    assert (cluster.transport.host, cluster.transport.user) == ("no", 'log"in: #1')
    assert cluster.simulated
    text = draft("p", [DraftNode("a")], origin="sinfo")
    start = text.index("# environments:")
    notes = "\n".join(
        line.removeprefix("# ").removeprefix("#") for line in text[start : text.index("# What a run")].splitlines()
    )
    assert loaded(text[:start] + notes, tmp_path).environments["default"].modules == ("cuda",)


@pytest.mark.parametrize(("name", "text"), [("inventory", DEEPOPS), ("hosts.yml", YAML)])
def test_an_inventory_in_the_deepops_form(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    inventory = read_inventory(tmp_path / name)
    assert inventory.hosts("slurm-node") == ("gpu01", "gpu02", "gpu03", "gpu04")
    cluster = loaded(from_inventory(inventory, name="deepops", origin=name), tmp_path)
    assert cluster.groups[0].nodes == "gpu[01-04]"
    login = cluster.transport
    assert (login.kind, login.host, login.user) == ("ssh", "10.0.0.1", "ubuntu")
    assert [inventory.variable("gpu04", name) for name in ("ansible_user", "nothing")] == [
        *("ubuntu" if name == "inventory" else "root", None)
    ]


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
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
        ("inventory", "[slurm-node]\nn1 a='b\n", r"inventory:2: not an inventory line"),
        ("inventory", "[kube-node]\nn1\n", r"no hosts in a group 'slurm-node' .*: kube-node, ungrouped\)"),
        ("inventory", "[slurm-node:children]\na\n[a:children]\nslurm-node\n", r"no hosts in a group"),
        ("hosts.yml", "all: [a]\n", r"all: must be a mapping"),
        ("hosts.yml", "all: {vars: {x: !vault y}}\n", r"hosts.yml:1: all.vars.x: the tag !vault is not"),
    ],
)
def test_a_bad_inventory_gives_one_line(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        from_inventory(read_inventory(tmp_path / name), name="x", origin=name)
    assert "\n" not in str(caught.value)
