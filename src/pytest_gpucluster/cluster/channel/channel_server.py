"""The controller's channel for xdist workers, over a socket.

The socket is in a folder of mode 0700, and a key protects it too. Each worker has a thread: a slow request delays no
other worker, and the death of a worker ends only its own connection.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.channel.channel import CAP, TIMEOUT
from pytest_gpucluster.cluster.transport import LocalTransport, kill_group
from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.core.secure_tempfile import Folder, temporary_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.core.finding import Explanation
    from pytest_gpucluster.core.probe import Answer

_METHODS = ("ask", "ask_node", "prefetch", "lost", "disconnected", "nodes")
MAX_PATH = 107  # bytes of a socket's path: sun_path of unix(7), less its end
SOCKET = "s"
_GONE = (EOFError, OSError, AuthenticationError)


def _folder_of_run() -> tuple[Folder, str]:
    """Return a checked folder and the new name of this run in it: in /tmp if the path of its socket would be too long."""
    folder, name = temporary_folder(), runmark.name_of_run(suffix=secrets.token_hex(8))
    if len(os.fsencode(folder.path / name / SOCKET)) <= MAX_PATH:
        return folder, name
    folder.close()
    return Folder(Path("/tmp")), name


class NodeLocks:
    """Reader-writer locks on nodes: shared use, or exclusive use for load. Thread-safe.

    A set of nodes is locked at once, after the release of the owner's former nodes: no owner waits while it holds nodes,
    so there is no deadlock.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[frozenset[str], bool]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def take(self, owner: Hashable, nodes: frozenset[str], *, load: bool) -> None:
        """Wait for the nodes and lock them; `load`: exclusively. TransportError if the run ends first."""

        def is_free() -> bool:
            return not any((load or loaded) and nodes & theirs for theirs, loaded in self._held.values())

        self.leave(owner)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or is_free())
            if self._closed:
                raise TransportError("the run ends: no more nodes are locked")
            self._held[owner] = (nodes, load)

    def loaded_by(self, owner: Hashable) -> frozenset[str]:
        """Return the nodes that an owner holds exclusively."""
        with self._changed:
            nodes, load = self._held.get(owner, (frozenset(), False))
        return nodes if load else frozenset()

    def leave(self, owner: Hashable) -> None:
        """Release the nodes of an owner, if it has any."""
        with self._changed:
            if self._held.pop(owner, None) is not None:
                self._changed.notify_all()

    def close(self) -> None:
        """Wake all waiters with a TransportError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class FleetServer:
    """Answers requests of workers from a channel, and locks nodes for them.

    `address` is (path, key) for a FleetClient, both plain text. `also`: further functions that workers may call by
    name. `abandoned` is called with the nodes that a worker held alone when it died.
    """

    def __init__(
        self,
        channel: Channel,
        also: Mapping[str, Callable[..., Any]] | None = None,
        abandoned: Callable[[frozenset[str]], None] = lambda _nodes: None,
    ) -> None:
        self._channel, self._also, self._abandoned = channel, dict(also or {}), abandoned
        self._locks = NodeLocks()
        self._folder, self._name = _folder_of_run()
        # before mkdir: it removes the folder when the pipe closes, at any end of this process
        remove = 'cd -P -- "$0" || exit; read -r _; exec rm -rf -- "$1"'
        self._reaper = LocalTransport().spawn(("/bin/sh", "-c", remove, str(self._folder.path), self._name))
        try:
            os.mkdir(self._folder.reach(self._name), 0o700)  # noqa: PTH102 - fails if the name exists
        except BaseException:
            kill_group(self._reaper)  # which must not remove what another process created
            self._folder.close()
            raise
        key = secrets.token_bytes(32)
        path = str(self._folder.path / self._name / SOCKET)
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
            except _GONE:  # a process without the key, or a worker that died meanwhile
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
            pass  # the worker has ended
        finally:
            self._release(connection)
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _release(self, connection: Connection) -> None:
        """Release the nodes of a worker that ended, after the end of its processes on them."""
        loaded = self._locks.loaded_by(connection)
        if loaded and not self._closing.is_set():
            with contextlib.suppress(Exception):  # other workers wait for the nodes
                self._abandoned(loaded)
        self._locks.leave(connection)

    def _call(
        self, connection: Connection, name: str, args: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[bool, Any]:
        """Return (True, result) or (False, exception)."""
        functions: dict[str, Callable[..., None]] = {"take": self._locks.take, "leave": self._locks.leave}
        try:
            if name in functions:
                return True, functions[name](connection, *args, **options)
            if name in self._also:
                return True, self._also[name](*args, **options)
            if name not in _METHODS:
                known = ", ".join((*_METHODS, *functions, *self._also))
                return False, ValueError(f"the channel server has no {name!r}: it has {known}")
            found = getattr(self._channel, name)
            return True, found(*args, **options) if callable(found) else found
        except Exception as error:  # noqa: BLE001 - raised again in the worker
            return False, error

    def close(self) -> None:
        """Stop answering and remove the socket."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._locks.close()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:
            knock.connect(self.address[0])  # the only means to end accept()
            knock.close()
        self._thread.join(5)
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            _hang_up(connection)
        shutil.rmtree(self._folder.reach(self._name), ignore_errors=True)
        self._folder.close()
        kill_group(self._reaper)


def _hang_up(connection: Connection) -> None:
    """Shut down a connection that another thread reads: that thread gets the end of file and closes it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


class FleetClient:
    """The controller's channel in a worker; satisfies Channel. Each thread has its own connection.

    TransportError if the controller has ended.
    """

    def __init__(self, path: str, key: str) -> None:
        self._path, self._key = path, bytes.fromhex(key)
        self._mine = threading.local()
        self._open: list[Connection] = []
        self._turn_lock = threading.Lock()
        self._turn: Connection | None = None
        self.nodes: tuple[str, ...] = self.call("nodes")

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = self._connect()
        return connection

    def _connect(self) -> Connection:
        connection = Client(self._path, "AF_UNIX", authkey=self._key)
        self._open.append(connection)
        return connection

    def take(self, nodes: frozenset[str], *, load: bool) -> None:
        """Lock nodes for this worker and all its threads, after the release of its former ones; `load`: exclusively."""
        with self._turn_lock:
            self.call("take", nodes, load=load, over=self._lock_connection)

    def leave(self) -> None:
        """Release the nodes of this worker."""
        with self._turn_lock:
            self.call("leave", over=self._lock_connection)

    def _lock_connection(self) -> Connection:
        """Return a connection for the locks alone: when it ends, the server releases the nodes."""
        self._turn = self._turn or self._connect()
        return self._turn

    def call(self, name: str, *args: Any, over: Callable[[], Connection] | None = None, **options: Any) -> Any:
        """Call a function of the server, over the connection of this thread or that of `over`."""
        try:
            connection = (over or self._connection)()
            connection.send((name, args, options))
            fine, result = connection.recv()
        except _GONE as error:
            raise TransportError(f"the controller's fleet channel at {self._path} has ended: {error}") from error
        if not fine:
            raise result
        return result

    @property
    def lost(self) -> Mapping[str, Explanation]:
        """{node: why it no longer answers}."""
        lost: Mapping[str, Explanation] = self.call("lost")
        return lost

    @property
    def disconnected(self) -> frozenset[str]:
        """The nodes that were lost with the whole channel."""
        disconnected: frozenset[str] = self.call("disconnected")
        return disconnected

    def ask(self, command: str, *, timeout: float = TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Run a command on all nodes at once; the controller caches the answers for all workers."""
        answers: dict[str, Answer] = self.call("ask", command, timeout=timeout, cap=cap)
        return answers

    def ask_node(
        self, node: str, command: str, *, timeout: float = TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return one node's answer, as Fleet.ask_node does."""
        answer: Answer = self.call("ask_node", node, command, timeout=timeout, cap=cap, fresh=fresh)
        return answer

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Send (command, timeout in seconds) pairs without waiting."""
        self.call("prefetch", list(commands))

    def close(self) -> None:
        """Close the connections; the controller's channel stays open."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.close()
        self._open.clear()
