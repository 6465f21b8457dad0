"""Stock testinfra on the fleet channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import testinfra.backend

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.channel.testinfra_backend import FleetBackend, host_of
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.local("here") as channel:
        yield channel


def test_run(fleet: Fleet) -> None:
    host = host_of(fleet, "here")
    result = host.run("echo %s; echo e >&2; exit 3", "it's %s")
    assert (result.stdout, result.stderr, result.rc) == ("it's %s\n", "e\n", 3)
    assert testinfra.backend.get_backend_class("gpucluster") is FleetBackend
    assert host.backend.get_hostname() == "here"
    assert host.backend.get_pytest_id() == "gpucluster://here"


def test_modules_of_testinfra_read_the_node(fleet: Fleet, tmp_path: Path) -> None:
    host, path = host_of(fleet, "here"), tmp_path / "ä file'"
    path.write_bytes(b"\xc3\xa4\xff\0")
    path.chmod(0o640)
    file = host.file(str(path))
    assert (file.exists, file.mode, file.size, file.content) == (True, 0o640, 4, b"\xc3\xa4\xff\0")
    assert not host.file("/no/such").exists
    assert host.run("cat %s", str(path)).stdout == "ä\N{REPLACEMENT CHARACTER}\0"
    assert host.sysctl("kernel.ostype") == "Linux"
    assert (host.exists("sh"), host.exists("no-such-tool")) == (True, False)


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
    with Fleet.local("gpu03") as closed:
        host = host_of(closed, "gpu03")
    with pytest.raises(TransportError, match=r"^gpu03: node lost: the channel is closed$"):
        host.file("/etc/passwd").exists  # a property that asks
