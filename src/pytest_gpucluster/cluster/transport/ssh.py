"""Control commands on a login node, over SSH.

All commands are channels of one connection; when the server allows no more of them (MaxSessions), another connection is
made. When the connection ends, also because this process died, the stdin of every spawned process ends: the holder of an
allocation releases its nodes, as it does on this machine when its pipe closes. A dead network ends the connection too:
at this end by the kernel, at the other end by the lifeline.
"""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import paramiko

from pytest_gpucluster.cluster.transport.base import Completed, shown
from pytest_gpucluster.cluster.transport.remote_process import LOST, ConnectionLost, SshProcess
from pytest_gpucluster.cluster.transport.ssh_connect import SshError, address_of, connect, hops
from pytest_gpucluster.core.command_end import LIMITED_SH
from pytest_gpucluster.core.errors import ConfigError, TransportError, in_vain
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpucluster.cluster.transport.base import Env
    from pytest_gpucluster.config.models import TransportConfig

FIRST_PATIENCE = 5.0  # seconds of retries for a server that is busy with other logins (MaxStartups)
AGAIN_PATIENCE = 20.0  # seconds of retries, once, after a connection that worked before
_BEGIN = 60.0  # seconds for a login shell to start the command; its scripts may wait for a network
_REPEATABLE = frozenset({"sinfo", "squeue", "sacct", "scancel", "env"})


class SshConnection:
    """One connection to the login node."""

    def __init__(self, host: str, settings: TransportConfig) -> None:
        self.where = address_of(host, settings)
        self._again = (host, settings)
        self._connection = connect(host, settings)
        self._wire = self._connection.transport
        self._alive = settings.alive
        self._timeout = max(_BEGIN, settings.connect_timeout)
        self._signals: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._life: threading.Thread | None = None
        self._no_lifeline = threading.Event()
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether the connection is open, as far as known."""
        return bool(self._wire.is_active())

    def begin(self, argv: Sequence[str], env: Env, *, path: str | None) -> SshProcess:
        """Start a process; paramiko.ChannelException if the server allows no more sessions on this connection."""
        try:
            channel = self._wire.open_session(timeout=self._timeout)
        except paramiko.ChannelException:
            raise
        except Exception as error:
            why = f"{argv[0]}: the SSH connection to {self.where} was lost"
            raise ConnectionLost(why, begun=False) from error
        process = SshProcess(channel, argv, self.where, self.signal)
        process.begin(env, timeout=self._timeout, path=path)
        with self._lock:
            if self._life is None:  # after the caller's channel
                self._life = threading.Thread(target=self._keep_alive, name="ssh-lifeline", daemon=True)
                self._life.start()
        return process

    def signal(self, number: int, pid: int) -> None:
        """Signal a process group of this connection."""
        self._signals.put(f"{number:d} {pid:d}\n".encode())
        if self._no_lifeline.is_set():
            self._signal_elsewhere()

    def _keep_alive(self) -> None:
        # MaxSessions, a slow login, or an end of the lifeline: the connection works without it too
        with contextlib.suppress(Exception):
            self._feed(self.lifeline())
        self._no_lifeline.set()
        self._signal_elsewhere()

    def lifeline(self) -> SshProcess:
        """Start the script at the other end that sends signals there; it ends with its input."""
        source, seconds = LIMITED_SH + script(__package__, "lifeline.sh"), max(2, round(self._alive))
        argv = ("sh", "-c", source, "gpucluster-lifeline", f"{seconds:d}")
        process = SshProcess(self._wire.open_session(timeout=self._timeout), argv, self.where)
        process.begin({}, timeout=self._timeout)
        return process

    def _feed(self, lifeline: SshProcess) -> None:
        """Send it heartbeats and signals; close the connection where it answers none of them."""
        answered = time.monotonic()
        while self.alive:
            try:
                line = self._signals.get(timeout=self._alive / 4)
            except queue.Empty:
                line = b"\n"
            if line is None:
                break
            if lifeline.discard_output():
                answered = time.monotonic()
            elif time.monotonic() - answered > self._alive:
                self.close()
                break
            lifeline.stdin.write(line)
            lifeline.stdin.flush()
        lifeline.close()

    def _signal_elsewhere(self) -> None:
        """Send the signals that wait over a connection of its own: this one has no session for them."""
        lines = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._signals.get_nowait() or b"")
        if not any(lines) or not self.alive:
            return
        with contextlib.suppress(Exception), contextlib.closing(SshConnection(*self._again)) as other:
            lifeline = other.lifeline()
            lifeline.stdin.write(b"".join(lines))
            lifeline.stdin.close()  # it ends when it has read them
            lifeline.wait(self._timeout)

    def close(self) -> None:
        """Close the connection, which ends the input of all its processes."""
        self._signals.put(None)
        for hop in hops(self._connection):
            with contextlib.suppress(Exception):
                hop.close()


class SshTransport:
    """Run commands on the login node of a cluster file's `transport:`, each in its own process group.

    `env` is added to the base environment (cluster/environment.py); None unsets a variable. `path` is prepended to PATH. The first command
    connects.
    """

    def __init__(self, settings: TransportConfig, env: Env | None = None, *, path: str | None = None) -> None:
        if not settings.host:
            raise ConfigError("transport: kind is ssh, but host is missing: name the login node")
        self.host, self.settings, self.env, self.path = settings.host, settings, dict(env or {}), path
        self.where = address_of(settings.host, settings)
        self.started: collections.Counter[str] = collections.Counter()
        self._links: list[SshConnection] = []
        self._patience = FIRST_PATIENCE
        self._was_there = False
        self._lock = threading.RLock()
        self._connecting = threading.Lock()

    def run(
        self, argv: Sequence[str], *, timeout: float, input: str | None = None, env: Env | None = None
    ) -> Completed:
        """Run a command to its end and return its output; undecodable bytes are replaced.

        Raise TransportError if the program is not found, does not end within `timeout` seconds (then its process group
        is killed), or if the connection was lost. After a lost connection a command that only reads is repeated; any
        other is not, since it may have run.
        """
        begin = time.monotonic()
        while True:
            process = self.spawn(argv, env=env)
            try:
                out, err = process.communicate((input or "").encode(), max(0.1, begin + timeout - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill_group()
                why = f"not finished after {timeout:g} s on {self.where}: does its server respond?"
                raise in_vain(TransportError(f"{argv[0]}: {why} ({shown(argv)})")) from None
            except BaseException:
                process.kill_group()
                raise
            lost, rc = process.lost, process.returncode
            process.close()
            if not lost:
                break
            if not repeatable(argv) or time.monotonic() - begin > timeout:
                why = f"{argv[0]}: the SSH connection to {self.where} was lost while the command ran"
                advice = "it may have completed: check before you repeat it"
                raise ConnectionLost(f"{why}; {advice} ({shown(argv)})", begun=True)
        texts = (out.decode(errors="replace"), err.decode(errors="replace"))
        return Completed(tuple(argv), LOST if rc is None else rc, *texts, time.monotonic() - begin)

    def spawn(self, argv: Sequence[str], *, env: Env | None = None) -> SshProcess:
        """Start a process on an open connection; a lost one is replaced first."""
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
        """Count one start of a program, by the last part of its path."""
        with self._lock:
            self.started[os.path.basename(program)] += 1  # a name, not a file

    def close(self) -> None:
        """Close the connections; a later command makes a new one."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()

    def _begin(self, argv: Sequence[str], env: Env) -> SshProcess:
        """Start a process on the first connection that allows another session, else on a new connection."""
        full: set[SshConnection] = set()
        while True:
            link, fresh = self._link(full)
            try:
                return link.begin(argv, env, path=self.path)
            except paramiko.ChannelException as error:
                if fresh:
                    raise TransportError(
                        f"{argv[0]}: {self.where} allows no session: {error.text}: check MaxSessions of its sshd"
                    ) from error
                full.add(link)

    def _link(self, full: Collection[SshConnection]) -> tuple[SshConnection, bool]:
        """Return a connection that is open and not full, and whether it is new."""
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

    def _connected(self) -> SshConnection:
        """Connect, with retries for a busy server, and more for one that was reachable before."""
        begin = time.monotonic()
        patience, pause = self._patience, 0.2
        while True:
            try:
                return SshConnection(self.host, self.settings)
            except SshError as error:
                hopeless = not error.transient or not (error.busy or self._was_there)
                if hopeless or time.monotonic() - begin + pause > patience:
                    self._patience = 0.0  # later commands fail at once
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 3.0)


def repeatable(argv: Sequence[str]) -> bool:
    """Return whether a command may run twice: it only reads, or is idempotent.

    >>> repeatable(["scontrol", "show", "node"]), repeatable(["sbatch", "job.sh"])
    (True, False)
    """
    name = os.path.basename(argv[0])  # a name, not a file
    if name == "scontrol":
        verb = next((word for word in argv[1:] if not word.startswith("-")), "")
        return verb in {"show", "ping"}
    return name in _REPEATABLE
