"""Workers reach the controller's channel over a socket."""

from __future__ import annotations

import multiprocessing.connection
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.channel.channel import Channel, Fleet
from pytest_gpucluster.cluster.channel.channel_server import FleetClient, FleetServer
from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet.local("here") as channel:
        yield channel


@pytest.fixture
def server(fleet: Fleet) -> Iterator[FleetServer]:
    relay = FleetServer(fleet)
    yield relay
    relay.close()


def test_a_client_is_a_channel(fleet: Fleet, server: FleetServer, tmp_path: Path) -> None:
    client: Channel = FleetClient(*server.address)
    assert client.nodes == ("here",)
    assert client.lost == {}
    command = f"echo x >>{tmp_path}/n; wc -l <{tmp_path}/n; echo e >&2; exit 3"
    client.prefetch([(command, 60.0)])
    answer = client.ask(command)["here"]
    assert (answer.out.strip(), answer.err, answer.rc) == ("1", "e\n", 3)
    assert fleet.ask(command)["here"] == answer
    assert client.ask_node("here", command) == answer
    assert client.ask_node("here", command, fresh=True).out.strip() == "2"
    client.close()


def test_errors_cross_the_socket_and_only_methods_of_the_channel_can_be_called(server: FleetServer) -> None:
    client = FleetClient(*server.address)
    with pytest.raises(ValueError, match="gpu99 is no node of this channel"):
        client.ask_node("gpu99", "true")
    with pytest.raises(ValueError, match="NUL"):
        client.ask("\0")
    with pytest.raises(ValueError, match="the channel server has no '__class__'"):
        client.call("__class__")
    assert client.ask("echo on")["here"].out == "on\n"


WORKER = """
import sys
from pytest_gpucluster.cluster.channel.channel_server import FleetClient
client = FleetClient(*sys.argv[1:3])
print("up", flush=True)
print(client.ask(sys.argv[3])["here"].out, flush=True)
"""


def test_a_killed_worker_hurts_nobody(server: FleetServer, tmp_path: Path) -> None:
    command = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo slow"
    argv = [sys.executable, "-c", WORKER, *server.address, command]
    workers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
    workers[0].kill()
    workers[0].communicate()
    (tmp_path / "go").touch()
    assert workers[1].communicate()[0] == "slow\n\n"
    assert FleetClient(*server.address).ask("echo on")["here"].out == "on\n"


def test_threads_do_not_wait_and_strangers_are_turned_away(server: FleetServer, tmp_path: Path) -> None:
    client = FleetClient(*server.address)
    slow = threading.Thread(target=client.ask, args=(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done",))
    slow.start()
    assert client.ask("echo quick")["here"].out == "quick\n"
    assert slow.is_alive()
    (tmp_path / "go").touch()
    slow.join()
    with pytest.raises(multiprocessing.AuthenticationError):
        multiprocessing.connection.Client(server.address[0], "AF_UNIX", authkey=b"guess")
    assert FleetClient(*server.address).nodes == ("here",)


def test_private_and_nothing_left(fleet: Fleet) -> None:
    server = FleetServer(fleet)
    folder = Path(server.address[0]).parent
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())
    client = FleetClient(*server.address)
    server.close()
    server.close()
    assert not folder.exists()
    for ask in (lambda: client.ask("true"), lambda: FleetClient(*server.address)):
        with pytest.raises(TransportError, match="has ended"):
            ask()


@pytest.mark.parametrize("longer", [0, 1])
def test_a_long_folder_for_temporary_files_leaves_room_for_the_socket(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, longer: int
) -> None:
    monkeypatch.setattr(runmark, "name_of_run", lambda suffix: f"gpucluster-{suffix}")
    room = 107 - len("/gpucluster-0123456789abcdef/s")
    usual = Path(f"{tmp_path.resolve()}/x".ljust(room + longer, "x"))
    usual.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    server = FleetServer(fleet)
    chosen = Path(server.address[0]).parent.parent
    server.close()
    assert chosen == (Path("/tmp") if longer else usual)
