"""Run `python -m MODULE` in a fork of a process that has imported pytest and the plugin already; or `python -c PROGRAM`, with torch.

Each of some hundred runs would import them anew, which is three quarters of a short one. The process that forks is started by the
first run, with an environment of its own, and ends with us.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sandbox_helpers import environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Key = tuple[str, tuple[tuple[str, str], ...]]  # an interpreter, variables and values

# nohup and a shell's & let a process ignore some; children inherit that
DEFAULT_SIGNALS = (shutil.which("env") or "env", "--default-signal=HUP,INT,TERM")
AT_START = ("PYTHON", "LC_", "LANG", "OMP_")  # variables that Python and libraries read when they start

SERVER = Path(__file__).with_name("fork_server.py")
_lock = threading.Lock()
_servers: dict[Key, socket.socket] = {}
_seen: set[Key] = set()


class Fork:
    """A process with `argv[1:]` as its command line; it reads nothing, and what it writes is here after its end."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._ours, reply = socket.socketpair()
        with tempfile.TemporaryFile() as request, reply:
            request.write(json.dumps([*argv[1:], str(cwd), dict(env)]).encode(errors="surrogateescape"))
            request.flush()
            fds = [file.fileno() for file in (request, self._out, self._err, reply)]
            socket.send_fds(_server(_key(argv[0], env)), [b"1"], fds)
        self._answer = self._ours.makefile()
        self.pid = int(self._answer.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Return the exit status; kill the process where it does not end."""
        if self.returncode is None:
            self._ours.settimeout(timeout)
            try:
                self.returncode = int(self._answer.readline())
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(self.pid), timeout, *self.texts()) from None
            finally:
                self._answer.close()
                self._ours.close()
        return self.returncode

    def texts(self) -> tuple[str, str]:
        """Return what the process has written to its streams."""
        return _text(self._out), _text(self._err)


def _text(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")


def run(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Return exit status and output of a command; kill it after `timeout` seconds.

    `python -m MODULE` of this Python is a fork; any other command is started, and the first with other variables for Python.
    """
    env = environment() if env is None else env
    if list(argv[:2]) != [sys.executable, "-m"] or not _is_worth_it(_key(argv[0], env)):
        return subprocess.run(
            argv, cwd=cwd, env=env, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    fork = Fork(argv, cwd, env)
    status = fork.wait(timeout)
    return subprocess.CompletedProcess(argv, status, *fork.texts())


def _key(python: str, env: Mapping[str, str]) -> Key:
    return python, tuple(sorted((name, value) for name, value in env.items() if name.startswith(AT_START)))


def _others() -> dict[str, str]:
    return {name: value for name, value in environment().items() if not name.startswith(AT_START)}


def _is_worth_it(key: Key) -> bool:
    """Return whether a second run with these variables of Python will share what a first one has imported."""
    with _lock:
        before = key in _seen
        _seen.add(key)
        return before or dict(key[1]) | _others() == environment()


def _server(key: Key) -> socket.socket:
    python, variables = key
    with _lock:
        if key not in _servers:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                argv = [*DEFAULT_SIGNALS, python, str(SERVER), str(theirs.fileno())]
                process = subprocess.Popen(
                    argv, env=_others() | dict(variables), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
                process.returncode = 0  # it ends when our end of the socket closes; nobody waits for it
            _servers[key] = ours
        return _servers[key]
