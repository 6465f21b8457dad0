"""Stock testinfra on the fleet channel."""

from __future__ import annotations

import getpass
import platform
import shutil
from typing import TYPE_CHECKING

import pytest
import testinfra.backend

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.channel.testinfra_backend import FleetBackend, host_of
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testinfra.host import Host


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.local("here") as channel:
        yield channel


@pytest.fixture
def host(fleet: Fleet) -> Host:
    return host_of(fleet, "here")


def test_registered() -> None:
    assert testinfra.backend.get_backend_class("gpucluster") is FleetBackend


def test_run(host: Host) -> None:
    result = host.run("echo %s; echo e >&2; exit 3", "it's %s")
    assert (result.stdout, result.stderr, result.rc) == ("it's %s\n", "e\n", 3)
    assert host.check_output("uname -r") == platform.release()
    assert host.backend.get_hostname() == "here"
    assert host.backend.get_pytest_id() == "gpucluster://here"


def test_bytes(host: Host) -> None:
    result = host.run(r"printf '\303\244\377\0'")
    assert result.stdout_bytes == b"\xc3\xa4\xff\0"
    assert result.stdout == "ä\N{REPLACEMENT CHARACTER}\0"


def test_file(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "ä file'"
    path.write_text("some text\n")
    path.chmod(0o640)
    file = host.file(str(path))
    assert file.exists
    assert file.is_file
    assert file.mode == 0o640
    assert file.size == 10
    assert file.contains("some")
    assert file.content_string == "some text\n"
    assert not host.file("/no/such").exists
    assert host.file("/tmp").is_directory


def test_modules(host: Host) -> None:
    assert host.user(getpass.getuser()).exists
    assert host.mount_point("/proc").filesystem == "proc"
    assert host.sysctl("kernel.ostype") == "Linux"
    assert host.system_info.type == "linux"
    assert host.process.filter(comm="sh")
    assert host.exists("sh")
    assert not host.exists("no-such-tool")


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="not applicable: no dpkg on this machine")
def test_package(host: Host) -> None:
    assert host.package("dpkg").is_installed
    assert not host.package("no-such-package").is_installed


@pytest.mark.skipif(not shutil.which("ip"), reason="not applicable: no ip(8) on this machine")
def test_interface(host: Host) -> None:
    assert host.interface("lo").exists
    assert "127.0.0.1" in host.interface("lo").addresses


def test_remembered_unless_fresh(fleet: Fleet, tmp_path: Path) -> None:
    command = f"echo x >>{tmp_path}/n; wc -l <{tmp_path}/n"
    assert [host_of(fleet, "here").check_output(command).strip() for _ in range(2)] == ["1", "1"]
    assert host_of(fleet, "here", fresh=True).check_output(command).strip() == "2"


def test_sudo_never_asks(fleet: Fleet) -> None:
    backend = host_of(fleet, "here", sudo=True).backend
    assert backend.get_command("cat %s", "/a b") == "sudo -n /bin/sh -c 'cat '\"'\"'/a b'\"'\"''"
    assert backend.get_sudo_command("id", "slurm") == "sudo -n -u slurm /bin/sh -c id"


def test_what_is_no_answer_is_an_error(fleet: Fleet) -> None:
    with pytest.raises(TransportError, match=r"^node here: timed out after 1 s: 'sleep 30'$"):
        host_of(fleet, "here", timeout=1.0).run("sleep 30")
    host = host_of(fleet, "here")
    host.backend.cap = 100
    with pytest.raises(TransportError, match="more than 100 bytes"):
        host.run("seq 1000")


def test_lost_node_is_an_error() -> None:
    with Fleet.local("gpu03") as fleet:
        host = host_of(fleet, "gpu03")
    with pytest.raises(TransportError, match=r"^node gpu03 lost: the channel is closed$"):
        host.file("/etc/passwd").exists  # a property that asks
