"""Workers reach the controller's channel over a socket."""

from __future__ import annotations

import multiprocessing.connection
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.channel import channel_server as relay
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
    client.prefetch([(command, 9.0)])
    answer = client.ask(command)["here"]
    assert (answer.out.strip(), answer.err, answer.rc) == ("1", "e\n", 3)
    assert fleet.ask(command)["here"] == answer
    assert client.ask_node("here", command) == answer
    assert client.ask_node("here", command, fresh=True).out.strip() == "2"
    client.close()


def test_errors_cross_the_socket(server: FleetServer) -> None:
    client = FleetClient(*server.address)
    with pytest.raises(ValueError, match="gpu99 is no node of this channel"):
        client.ask_node("gpu99", "true")
    with pytest.raises(ValueError, match="NUL"):
        client.ask("\0")
    assert client.ask("echo on")["here"].out == "on\n"


def test_only_the_channels_methods(server: FleetServer) -> None:
    client = FleetClient(*server.address)
    with pytest.raises(ValueError, match="the channel server has no '__class__'"):
        client._call("__class__")


WORKER = """
import sys
from pytest_gpucluster.cluster.channel.channel_server import FleetClient
client = FleetClient(*sys.argv[1:3])
print("up", flush=True)
print(client.ask(sys.argv[3])["here"].out, flush=True)
"""


def worker(server: FleetServer, command: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WORKER, *server.address, command]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def test_a_killed_worker_hurts_nobody(server: FleetServer) -> None:
    with worker(server, "sleep 2; echo slow") as doomed, worker(server, "sleep 2; echo slow") as other:
        assert doomed.stdout is not None
        assert other.stdout is not None
        assert doomed.stdout.readline() == "up\n"
        doomed.send_signal(signal.SIGKILL)
        assert other.stdout.read() == "up\nslow\n\n"
    assert FleetClient(*server.address).ask("echo on")["here"].out == "on\n"


def test_threads_of_a_worker_do_not_wait_for_each_other(server: FleetServer) -> None:
    client = FleetClient(*server.address)
    slow = threading.Thread(target=client.ask, args=("sleep 3",))
    slow.start()
    assert client.ask("echo quick")["here"].out == "quick\n"
    assert slow.is_alive()
    slow.join()


def test_a_stranger_is_turned_away(server: FleetServer) -> None:
    path, _ = server.address
    with pytest.raises(multiprocessing.AuthenticationError):
        multiprocessing.connection.Client(path, "AF_UNIX", authkey=b"guess")
    assert FleetClient(*server.address).nodes == ("here",)


def test_private_and_nothing_left(fleet: Fleet) -> None:
    server = FleetServer(fleet)
    folder = Path(server.address[0]).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == os.getuid()
    client = FleetClient(*server.address)
    server.close()
    server.close()
    assert not folder.exists()
    with pytest.raises(TransportError, match="has ended"):
        client.ask("true")
    with pytest.raises(TransportError, match="has ended"):
        FleetClient(*server.address)


def test_a_long_folder_for_temporary_files_leaves_room_for_the_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runmark, "name_of_run", lambda suffix: f"gpucluster-{suffix}")
    room = 107 - len("/gpucluster-0123456789abcdef/s")
    tmp_path = tmp_path.resolve()
    longest, too_long = (str(tmp_path / "x").ljust(size, "x") for size in (room, room + 1))
    for path in (longest, too_long):
        Path(path).mkdir()
    for usual, chosen in ((longest, longest), (too_long, "/tmp")):
        monkeypatch.setattr(tempfile, "tempdir", usual)
        place, name = relay._folder_of_run()
        place.close()
        assert str(place.path) == chosen
        assert re.fullmatch("gpucluster-[0-9a-f]{16}", name)
