"""Run `python -m MODULE` in a fork of a process that has imported pytest and the plugin already.

Each of some hundred runs of pytest would import them anew, which is three quarters of a short run. The process that forks is started by the
first run, with an environment of its own, and ends with us.
"""

from __future__ import annotations

import contextlib
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

    Key = tuple[tuple[str, str], ...]  # variables and values

# nohup and a shell's & let a process ignore some; children inherit that
DEFAULT_SIGNALS = (shutil.which("env") or "env", "--default-signal=HUP,INT,TERM")
AT_START = ("PYTHON", "LC_", "LANG")  # variables that Python reads when it starts

SERVER = Path(__file__).with_name("fork_server.py")
_lock = threading.Lock()
_servers: dict[Key, socket.socket] = {}
_seen: set[Key] = set()


def run(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Return exit status and output of a command; kill it after `timeout` seconds.

    `python -m MODULE` of this Python is a fork; any other command is started, and the first with other variables for Python.
    """
    env = environment() if env is None else env
    key = tuple(sorted((name, value) for name, value in env.items() if name.startswith(AT_START)))
    if list(argv[:2]) != [sys.executable, "-m"] or not _is_worth_it(key):
        return subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    with contextlib.ExitStack() as stack:
        request, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        request.write(json.dumps([*argv[2:], str(cwd), dict(env)]).encode(errors="surrogateescape"))
        request.flush()
        ours, reply = socket.socketpair()
        stack.enter_context(ours)
        with reply:
            socket.send_fds(_server(key), [b"1"], [file.fileno() for file in (request, out, err, reply)])
        ours.settimeout(timeout)
        answer = stack.enter_context(ours.makefile())
        pid = int(answer.readline())
        try:
            status = int(answer.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(argv, timeout, _text(out), _text(err)) from None
        return subprocess.CompletedProcess(argv, status, _text(out), _text(err))


def _others() -> dict[str, str]:
    return {name: value for name, value in environment().items() if not name.startswith(AT_START)}


def _is_worth_it(key: Key) -> bool:
    """Return whether a second run with these variables of Python will share what a first one has imported."""
    with _lock:
        before = key in _seen
        _seen.add(key)
        return before or dict(key) | _others() == environment()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _server(key: Key) -> socket.socket:
    with _lock:
        if key not in _servers:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                argv = [*DEFAULT_SIGNALS, sys.executable, str(SERVER), str(theirs.fileno())]
                process = subprocess.Popen(
                    argv, env=_others() | dict(key), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
                process.returncode = 0  # it ends when our end of the socket closes; nobody waits for it
            _servers[key] = ours
        return _servers[key]
