"""The drafted section `os`: what most nodes have, in a file that loads again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from os_helpers import answer, of, run

from pytest_gpucluster import config
from pytest_gpucluster.config.init_template import DraftNode
from pytest_gpucluster.config.init_template import draft as whole_draft
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Probe
from pytest_gpucluster.core.survey import Survey
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.suites.os import draft, facts, network_facts, software_facts
from pytest_gpucluster.suites.os.facts import Mount
from pytest_gpucluster.suites.os.network_facts import Network, NetworkInterface
from pytest_gpucluster.suites.os.software_facts import TimeSync

if TYPE_CHECKING:
    from pathlib import Path

NODES = ("gpu01", "gpu02", "gpu03")
SURVEY = Survey(groups=(NODES,))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """{name of a probe: its facts on every node}; a list has the facts of each node."""
    found: dict[str, Any] = {}

    def of_nodes(_survey: Survey, probe: Probe[Any]) -> dict[str, Any]:
        if probe.name not in found:
            return {}
        facts = found[probe.name]
        return dict(zip(NODES, facts if isinstance(facts, list) else [facts] * 3, strict=True))

    monkeypatch.setattr(Survey, "facts", of_nodes)
    return found


def load(lines: list[str], folder: Path) -> OsConfig:
    path = folder / "lab.yaml"
    path.write_text("\n".join([*lines, "nodes: gpu[01-03]", ""]))
    return config.load_cluster(path).section(OsConfig)


def test_everything_that_most_nodes_have(known: dict[str, Any], tmp_path: Path) -> None:
    links = {
        "lo": NetworkInterface("", 65536),
        "eth0": NetworkInterface("ether", 9000),
        "veth1": NetworkInterface("", 9),
    }
    known |= {
        facts.RELEASE.name: ["ubuntu 24.04", "ubuntu 24.04", "ubuntu 22.04"],
        facts.KERNEL.name: "6.8.0-79-generic",
        facts.LIMITS.name: {"Max locked memory": math.inf, "Max open files": 1024.0, "Max stack size": 8192.0 * 1024},
        facts.MOUNTS.name: {
            "/": Mount("/dev/sda2", "/", "ext4", ("rw",)),
            "/home": Mount("nas:/export/home", "/home", "nfs4", ("rw",)),
            "/proc": Mount("proc", "/proc", "proc", ("rw",)),
        },
        software_facts.TIME_SYNC.name: TimeSync(synchronised=True, source="chronyc"),
        network_facts.NETWORK.name: Network(links),
        draft.SERVICES.name: [{"munge": "active", "slurmd": "active"}, *[{"munge": "active"}] * 2],
        draft.PACKAGES.name: [{"munge": "0.5.15-4"}, {"munge": "0.5.15-4"}, {"munge": "0.5.16"}],
        draft.SYSCTLS.name: {"vm.swappiness": "10", "net.ipv4.tcp_rmem": "4096 131072", "kernel.absent": ""},
    }
    lines = draft.lines(SURVEY)
    assert '  release: "ubuntu 24.04"  # 2 of 3 nodes' in lines
    assert "  # shared_storage: [/shared/acceptance]" in lines
    assert load(lines, tmp_path).model_dump(exclude_defaults=True) == {
        "release": "ubuntu 24.04",
        "kernel": "6.8.0-79-generic",
        "limits": {"memlock": "unlimited", "nofile": "1024", "stack": "8192"},
        "sysctls": {"net.ipv4.tcp_rmem": "4096 131072", "vm.swappiness": "10"},
        "interfaces": {"eth0": 9000},
        "mounts": ({"path": "/", "fstype": "ext4"}, {"path": "/home", "fstype": "nfs4", "source": "nas:/export/home"}),
        "packages": {"munge": "0.5.15-4"},
        "services": ("munge",),
    }
    assert not any("limits:" in line for line in draft.lines(Survey(groups=(NODES,), in_step=False)))


def test_without_nodes_agreement_or_a_time_service_there_are_comments_only(known: dict[str, Any]) -> None:
    assert draft.lines(Survey()) == draft.EXAMPLE
    known[facts.RELEASE.name] = ["a", "b", "c"]
    assert draft.lines(SURVEY) == draft.EXAMPLE
    known[software_facts.TIME_SYNC.name] = TimeSync(synchronised=False, source="timedatectl")
    (line,) = (line for line in draft.lines(SURVEY) if "time_sync" in line)
    assert line.startswith("  # 3 of 3 nodes are not synchronised")


def test_mounts_are_drafted_whatever_their_names(known: dict[str, Any], tmp_path: Path) -> None:
    for mount in (
        Mount("a@tcp:/fs", "/scratch", "lustre", ()),
        Mount("nas:/a,b", "/x [1], {2}", "nfs", ()),
        Mount('nas:/"\\', '/a"b', "nfs", ()),
    ):
        known[facts.MOUNTS.name] = {mount.path: mount}
        (found,) = load(draft.lines(SURVEY), tmp_path).mounts
        assert (found.path, found.fstype, found.source) == (mount.path, mount.fstype, mount.source)
    known[facts.MOUNTS.name] = [{"/home": Mount(f"nas{n}:/home", "/home", "nfs4", ())} for n in range(3)]
    (found,) = load(draft.lines(SURVEY), tmp_path).mounts
    assert (found.path, found.fstype, found.source) == ("/home", "nfs4", None)  # nodes differ


def test_mounts_of_one_node_or_of_a_while_are_left_out(known: dict[str, Any]) -> None:
    for mount in (
        Mount("nas:/export", "/a\nb", "nfs", ()),
        Mount("nas:/u", "/auto/user1", "nfs4", ()),  # mounted on demand
        Mount("tmpfs", "/scratch", "tmpfs", ()),
        Mount("/dev/sda1", "/var/lib/docker/x", "ext4", ()),
        Mount("gvfsd-fuse", "/home/a/.gvfs", "fuse.gvfsd-fuse", ()),
        Mount("/dev/sda3", "/local/gpu02", "ext4", ()),
    ):
        known[facts.MOUNTS.name] = {"/auto": Mount("auto", "/auto", "autofs", ()), mount.path: mount}
        assert draft.lines(SURVEY) == draft.EXAMPLE


def test_whole_draft_with_odd_values_loads(known: dict[str, Any], tmp_path: Path) -> None:
    odd = {"munge": "1:0.5~rc1+b2", "yes": "no", "libc6:i386": "a: b # c", "n": "null"}
    known |= {draft.PACKAGES.name: odd, draft.SYSCTLS.name: {"kernel.core_pattern": "|/bin/x -p%p '\"\\"}}
    text = whole_draft("lab", [DraftNode(node) for node in NODES], origin="sinfo", survey=SURVEY)
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    found = config.load_cluster(path).section(OsConfig)
    assert found.packages == odd
    assert found.sysctls == {"kernel.core_pattern": "|/bin/x -p%p '\"\\"}
    assert yaml.safe_load(text)["os"]["packages"] == odd


def test_services_that_run_and_are_enabled_and_packages_in_one_version() -> None:
    names = ("munge", "getty@tty1", "nv")
    running = "".join(f"{name}.service loaded active running x\n" for name in (*names[:2], "polkit"))
    enabled = "".join(f"{name}.service enabled enabled\n" for name in names)
    running += "nv.service loaded failed failed nv\n"
    assert draft.SERVICES.parse(of(running=running, enabled=enabled)) == {"munge": "active"}
    with pytest.raises(NotAvailable):
        draft.SERVICES.parse(of(running=("Failed to connect to bus", 1), enabled=("", 1)))
    with pytest.raises(ProbeError):
        draft.SERVICES.parse(answer(""))
    text = (
        "munge\t0.5.15-4\tinstalled\nslurm-wlm\t23.11\tconfig-files\n"
        "libnccl2\t2.28\tinstalled\nlibnccl2\t2.27\tinstalled\nnfs-common\t1\tinstalled\nnfs-common\t1\tinstalled\n"
    )
    assert draft.PACKAGES.parse(answer(text)) == {"munge": "0.5.15-4", "nfs-common": "1"}
    assert draft.PACKAGES.parse(answer("")) == {}
    found = draft.PACKAGES.parse(run(draft.PACKAGES.command))  # of this machine
    assert found
    assert all(found.values())
