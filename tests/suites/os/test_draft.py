"""The drafted section `os`: what most nodes have, in a file that loads again."""

from __future__ import annotations

import math
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pytest_gpucluster import config
from pytest_gpucluster.config.init_template import DraftNode
from pytest_gpucluster.config.init_template import draft as whole_draft
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.survey import Survey
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.suites.os import draft, facts, network_facts, software_facts
from pytest_gpucluster.suites.os.facts import Mount
from pytest_gpucluster.suites.os.network_facts import Network, NetworkInterface
from pytest_gpucluster.suites.os.software_facts import TimeSync

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.probe import Probe

NODES = ("gpu01", "gpu02", "gpu03")
SURVEY = Survey(groups=(NODES,))


def answer(text: str, rc: int = 0) -> Answer:
    return Answer("gpu01", rc, text.encode())


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
    mounts = {
        "/": Mount("/dev/sda2", "/", "ext4", ("rw",)),
        "/home": Mount("nas:/export/home", "/home", "nfs4", ("rw",)),
        "/proc": Mount("proc", "/proc", "proc", ("rw",)),
    }
    known |= {
        facts.RELEASE.name: ["ubuntu 24.04", "ubuntu 24.04", "ubuntu 22.04"],
        facts.KERNEL.name: "6.8.0-79-generic",
        facts.LIMITS.name: {
            "Max locked memory": math.inf,
            "Max open files": 1024.0,
            "Max stack size": 8192.0 * 1024,
        },
        facts.MOUNTS.name: mounts,
        software_facts.TIME_SYNC.name: TimeSync(synchronised=True, source="chronyc"),
        network_facts.NETWORK.name: Network(
            {
                "lo": NetworkInterface("", 65536),
                "eth0": NetworkInterface("ether", 9000),
                "veth1": NetworkInterface("", 9),
            }
        ),
        draft.SERVICES.name: [
            {"munge": "active", "slurmd": "active"},
            {"munge": "active"},
            {"munge": "active"},
        ],
        draft.PACKAGES.name: [{"munge": "0.5.15-4"}, {"munge": "0.5.15-4"}, {"munge": "0.5.16"}],
        draft.SYSCTLS.name: {
            "vm.swappiness": "10",
            "net.ipv4.tcp_rmem": "4096 131072 6291456",
            "kernel.absent": "",
        },
    }
    lines = draft.lines(SURVEY)
    assert '  release: "ubuntu 24.04"  # 2 of 3 nodes' in lines
    assert "  # shared_storage: [/shared/acceptance]" in lines
    found = load(lines, tmp_path)
    assert found.model_dump(exclude_defaults=True) == {
        "release": "ubuntu 24.04",
        "kernel": "6.8.0-79-generic",
        "limits": {"memlock": "unlimited", "nofile": "1024", "stack": "8192"},
        "sysctls": {"net.ipv4.tcp_rmem": "4096 131072 6291456", "vm.swappiness": "10"},
        "interfaces": {"eth0": 9000},
        "mounts": (
            {"path": "/", "fstype": "ext4"},
            {"path": "/home", "fstype": "nfs4", "source": "nas:/export/home"},
        ),
        "packages": {"munge": "0.5.15-4"},
        "services": ("munge",),
    }
    assert not any("limits:" in line for line in draft.lines(Survey(groups=(NODES,), in_step=False)))


def test_without_nodes_or_agreement_an_example_is_drafted(known: dict[str, Any]) -> None:
    assert draft.lines(Survey()) == draft.EXAMPLE
    known[facts.RELEASE.name] = ["a", "b", "c"]
    assert draft.lines(SURVEY) == draft.EXAMPLE


def test_nodes_without_a_time_service_are_drafted_as_a_comment(known: dict[str, Any]) -> None:
    known[software_facts.TIME_SYNC.name] = TimeSync(synchronised=False, source="timedatectl")
    (line,) = (line for line in draft.lines(SURVEY) if "time_sync" in line)
    assert line.startswith("  # 3 of 3 nodes are not synchronised")


@pytest.mark.parametrize(
    ("mount", "drafted"),
    [
        (
            Mount("a@tcp:/fs", "/scratch", "lustre", ()),
            {"path": "/scratch", "fstype": "lustre", "source": "a@tcp:/fs"},
        ),
        (
            Mount("nas:/a,b", "/x [1], {2}", "nfs", ()),
            {"path": "/x [1], {2}", "fstype": "nfs", "source": "nas:/a,b"},
        ),
        (Mount('nas:/"\\', '/a"b', "nfs", ()), {"path": '/a"b', "fstype": "nfs", "source": 'nas:/"\\'}),
        (Mount("nas:/export", "/a\nb", "nfs", ()), None),
        (Mount("nas:/u", "/auto/user1", "nfs4", ()), None),  # mounted on demand
        (Mount("tmpfs", "/scratch", "tmpfs", ()), None),
        (Mount("/dev/sda1", "/var/lib/docker/x", "ext4", ()), None),
        (Mount("gvfsd-fuse", "/home/a/.gvfs", "fuse.gvfsd-fuse", ()), None),
        (Mount("/dev/sda3", "/local/gpu02", "ext4", ()), None),
    ],
)
def test_mounts(known: dict[str, Any], tmp_path: Path, mount: Mount, drafted: dict[str, str] | None) -> None:
    known[facts.MOUNTS.name] = {"/auto": Mount("auto", "/auto", "autofs", ()), mount.path: mount}
    lines = draft.lines(SURVEY)
    if drafted is None:
        assert lines == draft.EXAMPLE
        return
    (found,) = load(lines, tmp_path).mounts
    assert found.model_dump(exclude_defaults=True) == drafted


def test_source_of_a_mount_is_left_out_where_nodes_differ(known: dict[str, Any], tmp_path: Path) -> None:
    known[facts.MOUNTS.name] = [{"/home": Mount(f"nas{n}:/home", "/home", "nfs4", ())} for n in range(3)]
    (found,) = load(draft.lines(SURVEY), tmp_path).mounts
    assert (found.path, found.fstype, found.source) == ("/home", "nfs4", None)


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


def parted(running: str, enabled: str, rc: int = 0) -> Answer:
    return answer(f"\x1erunning\n{running}\x1e={rc}\n\x1eenabled\n{enabled}\x1e={rc}\n")


def test_services_that_run_and_are_enabled() -> None:
    running = (
        "munge.service loaded active running MUNGE authentication service\n"
        "polkit.service loaded active running Authorization Manager\n"
        "getty@tty1.service loaded active running Getty on tty1\n"
        "nv.service loaded failed failed nv\n"
    )
    enabled = (
        "munge.service enabled enabled\ngetty@tty1.service enabled enabled\nnv.service enabled enabled\n"
    )
    assert draft.SERVICES.parse(parted(running, enabled)) == {"munge": "active"}
    with pytest.raises(NotAvailable):
        draft.SERVICES.parse(parted("Failed to connect to bus", "", rc=1))
    with pytest.raises(ProbeError):
        draft.SERVICES.parse(answer(""))


def test_packages_installed_in_one_version() -> None:
    text = (
        "munge\t0.5.15-4\tinstalled\nslurm-wlm\t23.11\tconfig-files\n"
        "libnccl2\t2.28\tinstalled\nlibnccl2\t2.27\tinstalled\nnfs-common\t1\tinstalled\nnfs-common\t1\tinstalled\n"
    )
    assert draft.PACKAGES.parse(answer(text)) == {"munge": "0.5.15-4", "nfs-common": "1"}
    assert draft.PACKAGES.parse(answer("")) == {}


@pytest.mark.thorough  # it lists all units and packages of the machine
def test_probes_run_on_this_machine() -> None:
    for probe in (draft.SERVICES, draft.PACKAGES):
        done = subprocess.run(["sh", "-c", probe.command], capture_output=True, check=False, timeout=60)
        found = Answer("here", done.returncode, done.stdout, done.stderr)
        try:
            values = probe.parse(found)
        except NotAvailable:  # a machine without systemd
            assert probe is draft.SERVICES
        else:
            assert all(values.values())
