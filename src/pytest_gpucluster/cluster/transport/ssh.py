"""Control commands on a login node, over SSH.

All commands are channels of one connection; where the server allows no more of them (MaxSessions), a further
connection is made. When the connection goes, however we died, the stdin of everything that was spawned ends: the
holder of an allocation gives its nodes back then, as it does on this machine when our pipe closes. A network that
merely falls silent ends the connection too: at our end the kernel gives it up, at the far end the lifeline does.
"""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import shlex
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import paramiko

from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.cluster.transport.remote_process import LOST, ConnectionLost, RemoteProcess
from pytest_gpucluster.cluster.transport.ssh_connect import SshError, connect, place
from pytest_gpucluster.core import redact
from pytest_gpucluster.core.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpucluster.config.models import TransportConfig

FIRST_PATIENCE = 5.0  # seconds; a server that is busy with other logins (MaxStartups) takes us a moment later
AGAIN_PATIENCE = 20.0  # seconds, once, for a server that we were connected to before
_BEGIN = 60.0  # seconds for a login shell to come to our command; its scripts may wait for a network
_READING = frozenset({"sinfo", "squeue", "sacct", "scancel", "env"})  # doing it twice is doing it once
# Lines of the input: '' is a sign of life, 'SIGNAL PID' is for a process group of this connection; each is answered.
# Without any for $1 seconds whoever sent them is gone though the connection seems to stand: then the server's process
# for it, the parent, has to end, which closes the pipes of all that runs through it.
_LIFELINE = """
parent=$PPID
case $(cat /proc/$parent/comm 2>/dev/null) in sshd*) ;; *) parent= ;; esac
while :; do
  line=$(timeout "$1" sh -c 'IFS= read -r x && printf %s "$x"') || { rc=$?; break; }
  set -- "$1" $line
  if [ $# = 3 ]; then
    kill "-$2" "-$3" 2>/dev/null || kill "-$2" "$3" 2>/dev/null
  fi
  echo
done
[ $rc = 124 ] && [ -n "$parent" ] && kill "$parent"
"""


class Link:
    """One connection to the login node."""

    def __init__(self, host: str, settings: TransportConfig) -> None:
        self.where = place(host, settings)
        self._connection = connect(host, settings)
        self._wire = self._connection.transport
        self._alive = settings.alive
        self._timeout = max(_BEGIN, settings.connect_timeout)
        self._signals: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._life: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """The connection stands, as far as is known."""
        return bool(self._wire.is_active())

    def begin(
        self, argv: Sequence[str], env: Mapping[str, str | None], *, path: str | None, workdir: str | None
    ) -> RemoteProcess:
        """Start a process; paramiko.ChannelException where the server allows no more of them here."""
        try:
            channel = self._wire.open_session(timeout=self._timeout)
        except paramiko.ChannelException:
            raise
        except Exception as error:
            raise ConnectionLost(
                f"{argv[0]}: the SSH connection to {self.where} is broken", begun=False
            ) from error
        process = RemoteProcess(channel, argv, self.where, self.signal)
        process.begin(env, timeout=self._timeout, path=path, workdir=workdir)
        with self._lock:
            if self._life is None:  # the caller's own channel goes first
                self._life = threading.Thread(target=self._keep_alive, name="ssh-lifeline", daemon=True)
                self._life.start()
        return process

    def signal(self, number: int, pid: int) -> None:
        """Signal a process group of this connection."""
        self._signals.put(f"{number:d} {pid:d}\n".encode())

    def _keep_alive(self) -> None:
        """Feed the lifeline, with signals as they come and with a sign of life every now and then."""
        argv = ("sh", "-c", _LIFELINE, "gpucluster-lifeline", f"{max(2, round(self._alive)):d}")
        with contextlib.suppress(Exception):  # MaxSessions: without it the connection serves too
            process = RemoteProcess(self._wire.open_session(timeout=self._timeout), argv, self.where)
            process.begin({}, timeout=self._timeout)
            heard = time.monotonic()
            while self.alive:
                try:
                    line = self._signals.get(timeout=self._alive / 4)
                except queue.Empty:
                    line = b"\n"
                if line is None:
                    break
                if process.drained():
                    heard = time.monotonic()
                elif time.monotonic() - heard > self._alive:
                    self.close()
                    break
                process.stdin.write(line)
                process.stdin.flush()
            process.close()

    def close(self) -> None:
        """End the connection, and with it the input of all that runs through it."""
        self._signals.put(None)
        with contextlib.suppress(Exception):
            self._connection.close()
        gateway = self._connection.gateway
        while gateway is not None and not isinstance(gateway, str):
            with contextlib.suppress(Exception):
                gateway.close()
            gateway = gateway.gateway


class SshTransport:
    """Run commands on the login node of a cluster file's `transport:`, each in a process group of its own.

    `env` is added to the environment there; None takes a variable away. `path` goes before its PATH. Nothing is
    connected before the first command.
    """

    def __init__(
        self,
        settings: TransportConfig,
        env: Mapping[str, str | None] | None = None,
        *,
        path: str | None = None,
    ) -> None:
        if not settings.host:
            raise ConfigError("transport: kind is ssh, but no host is named: which login node?")
        self.host, self.settings, self.env, self.path = settings.host, settings, dict(env or {}), path
        self.where = place(settings.host, settings)
        self.started: collections.Counter[str] = collections.Counter()
        self._links: list[Link] = []
        self._names: frozenset[str] | None = None
        self._patience = FIRST_PATIENCE
        self._was_there = False
        self._lock = threading.RLock()
        self._connecting = threading.Lock()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        input: str | None = None,  # subprocess's own word
        env: Mapping[str, str | None] | None = None,
    ) -> Completed:
        """Run to the end and return what came out; undecodable bytes are replaced.

        Raise TransportError where the program is not found, where it does not end within `timeout` seconds (its
        process group is killed then), and where the connection broke. A command that only reads is repeated after
        that, any other is not: it may have done its work.
        """
        begin = time.monotonic()
        while True:
            process = self.spawn(argv, env=env)
            try:
                out, err = process.communicate(
                    (input or "").encode(), max(0.1, begin + timeout - time.monotonic())
                )
            except subprocess.TimeoutExpired:
                process.kill_group()
                raise TransportError(
                    f"{argv[0]}: no end after {timeout:g} s on {self.where}: is what it talks to alive? "
                    f"({_short(argv)})"
                ) from None
            except BaseException:
                process.kill_group()
                raise
            lost, rc = process.lost, process.returncode
            process.close()
            if not lost:
                break
            if not repeatable(argv) or time.monotonic() - begin > timeout:
                raise ConnectionLost(
                    f"{argv[0]}: the SSH connection to {self.where} broke while it ran; whether it did its work is not "
                    f"known: look before it is repeated ({_short(argv)})",
                    begun=True,
                )
        return Completed(
            tuple(argv),
            LOST if rc is None else rc,
            out.decode(errors="replace"),
            err.decode(errors="replace"),
            time.monotonic() - begin,
        )

    def spawn(self, argv: Sequence[str], *, env: Mapping[str, str | None] | None = None) -> RemoteProcess:
        """Start a process; its streams are the channel's. A connection that broke is made anew first."""
        merged = {**self.env, **(env or {})}
        deadline = time.monotonic() + AGAIN_PATIENCE
        while True:
            try:
                process = self._begin(argv, merged)
            except ConnectionLost as error:
                if (error.begun and not repeatable(argv)) or time.monotonic() > deadline:
                    raise
                continue
            self.count(argv[0])
            return process

    def count(self, program: str) -> None:
        """Count one start of a program, by its last path part."""
        with self._lock:
            self.started[os.path.basename(program)] += 1  # a name, not a file

    def names(self) -> Collection[str]:
        """Return the names of the variables of an SSH session there; asked once."""
        if self._names is None:
            done = self.run(["/usr/bin/env"], timeout=_BEGIN)
            self._names = frozenset(
                line.partition("=")[0] for line in done.stdout.splitlines() if "=" in line
            )
        return self._names

    def close(self) -> None:
        """End the connections; a later command makes one anew."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()

    def _begin(self, argv: Sequence[str], env: Mapping[str, str | None]) -> RemoteProcess:
        """Start a process on the first connection that has room, on a new one where none has."""
        full: set[Link] = set()
        while True:
            link, fresh = self._link(full)
            try:
                return link.begin(argv, env, path=self.path, workdir=self.settings.workdir)
            except paramiko.ChannelException as error:
                if fresh:
                    raise TransportError(
                        f"{argv[0]}: {self.where} allows no session: {error.text}: look at MaxSessions of its sshd"
                    ) from error
                full.add(link)

    def _link(self, full: Collection[Link]) -> tuple[Link, bool]:
        """Return a connection that stands and is not full, and whether it was made for this."""
        with self._connecting:
            with self._lock:
                self._links = [link for link in self._links if link.alive]
                usable = [link for link in self._links if link not in full]
            if usable:
                return usable[0], False
            link = self._connected()
            with self._lock:
                self._links.append(link)
            self._patience, self._was_there = AGAIN_PATIENCE, True
            return link, True

    def _connected(self) -> Link:
        """Connect, with patience for a server that is busy, and more for one that was there before."""
        begin = time.monotonic()
        patience, pause = self._patience, 0.2
        while True:
            try:
                return Link(self.host, self.settings)
            except SshError as error:
                hopeless = not error.transient or not (error.busy or self._was_there)
                if hopeless or time.monotonic() - begin + pause > patience:
                    self._patience = 0.0  # gone for good: what asks next is not to wait again
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 3.0)


def repeatable(argv: Sequence[str]) -> bool:
    """Say whether a command only reads, or does the same when it is done twice.

    >>> repeatable(["scontrol", "show", "node"]), repeatable(["sbatch", "job.sh"])
    (True, False)
    """
    name = os.path.basename(argv[0])  # a name, not a file
    if name == "scontrol":
        verb = next((word for word in argv[1:] if not word.startswith("-")), "")
        return verb in {"show", "ping"}
    return name in _READING


def _short(argv: Sequence[str]) -> str:
    text = shlex.join(redact.words(argv))
    return text if len(text) <= 120 else text[:117] + "..."  # one terminal line
