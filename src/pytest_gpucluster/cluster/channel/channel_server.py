"""The controller's fleet for xdist workers: one channel, whichever process asks.

A socket in a folder that only we may enter, and a key on top. Every worker is answered in a thread of its own: a
slow question delays nobody else, and a worker that dies takes only its own connection with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.channel.channel import CAP, TIMEOUT
from pytest_gpucluster.cluster.channel.node_lock import NodeLocks
from pytest_gpucluster.cluster.transport import LocalTransport, kill_group
from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.core.probe import Answer

_METHODS = ("ask", "ask_node", "prefetch", "lost", "cut", "nodes")
MAX_PATH = 107  # bytes of a socket's path: sun_path of unix(7), less its end
SOCKET = "s"
_GONE = (EOFError, OSError, AuthenticationError)


def _folder_of_run() -> Path:
    """Return our folder among the temporary files, or in /tmp where its socket's path would be too long."""
    name = runmark.name_of_run(suffix=secrets.token_hex(2))
    usual = Path(tempfile.gettempdir(), name)
    return usual if len(os.fsencode(usual / SOCKET)) <= MAX_PATH else Path("/tmp", name)  # of mode 0700


class FleetServer:
    """Answers workers from a channel, and gives turns on nodes.

    `address` is what a FleetClient needs: (path, key), plain text both. `also` are further functions that workers may
    call by name. `abandoned` is called with the nodes that a worker had for itself when it died.
    """

    def __init__(
        self,
        channel: Channel,
        also: Mapping[str, Callable[..., Any]] | None = None,
        abandoned: Callable[[frozenset[str]], None] = lambda _nodes: None,
    ) -> None:
        self._channel, self._also, self._abandoned = channel, dict(also or {}), abandoned
        self._turns = NodeLocks()
        self._folder = _folder_of_run()
        # first: it takes the folder away when our pipe closes, however we die
        self._reaper = LocalTransport().spawn(
            ("/bin/sh", "-c", 'read -r _; exec rm -rf -- "$0"', str(self._folder))
        )
        self._folder.mkdir(mode=0o700)
        key = secrets.token_bytes(32)
        path = str(self._folder / SOCKET)
        self._listener = Listener(path, "AF_UNIX", backlog=128, authkey=key)
        self.address = (path, key.hex())
        self._closing = threading.Event()
        self._open: set[Connection] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="fleet-relay", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection = self._listener.accept()
            except _GONE:  # a stranger without the key, or a worker that died in the middle
                continue
            if self._closing.is_set():
                connection.close()
                return
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        try:
            while True:
                name, args, options = connection.recv()
                connection.send(self._call(connection, name, args, options))
        except _GONE:
            pass  # the worker left
        finally:
            self._end_turn(connection)
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _end_turn(self, connection: Connection) -> None:
        """Free what a worker has left behind, once nothing of its runs there any more."""
        loaded = self._turns.loaded_by(connection)
        if loaded and not self._closing.is_set():
            with contextlib.suppress(Exception):  # others wait: whatever it is, their turn comes
                self._abandoned(loaded)
        self._turns.leave(connection)

    def _call(
        self, connection: Connection, name: str, args: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[bool, Any]:
        """Return (True, result) or (False, exception)."""
        functions: dict[str, Callable[..., None]] = {"take": self._turns.take, "leave": self._turns.leave}
        try:
            if name in functions:
                return True, functions[name](connection, *args, **options)
            if name in self._also:
                return True, self._also[name](*args, **options)
            if name not in _METHODS:
                known = ", ".join((*_METHODS, *functions, *self._also))
                return False, ValueError(f"the relay has no {name!r}: it has {known}")
            found = getattr(self._channel, name)
            return True, found(*args, **options) if callable(found) else found
        except Exception as error:  # noqa: BLE001 - raised again where it was asked
            return False, error

    def close(self) -> None:
        """Stop answering; leave no socket behind."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._turns.close()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:
            knock.connect(self.address[0])  # accept() has no other way out
            knock.close()
        self._thread.join(5)
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            _hang_up(connection)
        shutil.rmtree(self._folder, ignore_errors=True)
        kill_group(self._reaper)


def _hang_up(connection: Connection) -> None:
    """End a connection that another thread reads: that thread sees the end of file and closes it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


class FleetClient:
    """A worker's view of the controller's channel; satisfies Channel. Each thread has its own connection.

    TransportError where the controller is gone.
    """

    def __init__(self, path: str, key: str) -> None:
        self._path, self._key = path, bytes.fromhex(key)
        self._mine = threading.local()
        self._open: list[Connection] = []
        self._turn_lock = threading.Lock()
        self._turn: Connection | None = None
        self.nodes: tuple[str, ...] = self._call("nodes")

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = self._connect()
        return connection

    def _connect(self) -> Connection:
        connection = Client(self._path, "AF_UNIX", authkey=self._key)
        self._open.append(connection)
        return connection

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call one of the server's further functions."""
        return self._call(name, *args, **options)

    def take(self, nodes: frozenset[str], *, load: bool) -> None:
        """Wait for a turn on nodes, `load`: alone; what this worker had is given back first. For all its threads."""
        with self._turn_lock:
            self._turn_call("take", nodes, load=load)

    def leave(self) -> None:
        """Give the turn back."""
        with self._turn_lock:
            self._turn_call("leave")

    def _turn_call(self, name: str, *args: Any, **options: Any) -> None:
        # a connection of its own: with its end the server knows that the turn is over
        self._call(name, *args, over=self._turn_connection, **options)

    def _turn_connection(self) -> Connection:
        self._turn = self._turn or self._connect()
        return self._turn

    def _call(
        self, name: str, *args: Any, over: Callable[[], Connection] | None = None, **options: Any
    ) -> Any:
        try:
            connection = (over or self._connection)()
            connection.send((name, args, options))
            fine, result = connection.recv()
        except _GONE as error:
            raise TransportError(
                f"the controller's fleet channel at {self._path} is gone: {error}"
            ) from error
        if not fine:
            raise result
        return result

    @property
    def lost(self) -> Mapping[str, str]:
        """Nodes that no longer answer, and why."""
        lost: Mapping[str, str] = self._call("lost")
        return lost

    @property
    def cut(self) -> frozenset[str]:
        """The lost nodes that went with the channel as a whole."""
        cut: frozenset[str] = self._call("cut")
        return cut

    def ask(self, command: str, *, timeout: float = TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Ask all nodes at once; remembered in the controller, for all workers."""
        answers: dict[str, Answer] = self._call("ask", command, timeout=timeout, cap=cap)
        return answers

    def ask_node(
        self, node: str, command: str, *, timeout: float = TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return one node's answer, as Fleet.ask_node does."""
        answer: Answer = self._call("ask_node", node, command, timeout=timeout, cap=cap, fresh=fresh)
        return answer

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Send (command, timeout in seconds) pairs without waiting."""
        self._call("prefetch", list(commands))

    def close(self) -> None:
        """Leave; the controller's channel stays open."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.close()
        self._open.clear()
