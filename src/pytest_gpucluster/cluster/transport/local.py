"""Control commands on this machine."""

from __future__ import annotations

import atexit
import collections
import contextlib
import fcntl
import os
import select
import selectors
import shutil
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.environment import UMASK, base_environment
from pytest_gpucluster.cluster.transport.base import MAX_OUTPUT, Completed, shown
from pytest_gpucluster.core.errors import TransportError, in_vain
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.transport.base import Env, RemoteProcess

_CHUNK = 1 << 16
_PIPE_SIZE = 1 << 20  # few large pieces: a reader next to a busy thread waits 5 ms for each
_SLURM = frozenset({"salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"})
_RUNNING: set[subprocess.Popen[bytes]] = set()  # commands that some thread waits for
REAP = 1.0  # seconds for a killed process to end
_STARTING = threading.RLock()  # held from the start of a command until _RUNNING has it


class LocalTransport:
    """Run commands on this machine, each in its own session, never through a shell.

    `env` is added to their base environment (cluster/environment.py); a value None unsets a variable. `inherit`: programs
    of an operator, as kubectl, which get the environment of this process instead.
    """

    def __init__(self, env: Env | None = None, *, inherit: bool = False) -> None:
        self.env, self.inherit = dict(env or {}), inherit
        self.started: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def run(
        self, argv: Sequence[str], *, timeout: float, input: str | None = None, env: Env | None = None
    ) -> Completed:
        """Run a command to its end and return its output; undecodable bytes are replaced.

        Raise TransportError if the program is not found, or does not end within `timeout` seconds: then its whole
        process group is killed.
        """
        begin = time.monotonic()
        with _STARTING:
            process = self.spawn(argv, env=env)
            _RUNNING.add(process)
        try:
            out, err = _communicate(process, b"" if input is None else input.encode(), timeout)
        except subprocess.TimeoutExpired:
            kill_group(process)
            why = f"not finished after {timeout:g} s: does its server respond? ({shown(argv)})"
            raise in_vain(TransportError(f"{argv[0]}: {why}")) from None
        except _TooMuch as much:
            kill_group(process)
            raise TransportError(
                f"{argv[0]}: printed more than {MAX_OUTPUT >> 20} MiB, beginning with "
                f"{one_line(much, 60)!r} ({shown(argv)})"
            ) from None
        except BaseException:
            kill_group(process)
            raise
        finally:
            _RUNNING.discard(process)
        texts = (out.decode(errors="replace"), err.decode(errors="replace"))
        return Completed(tuple(argv), process.returncode, *texts, time.monotonic() - begin)

    def spawn(self, argv: Sequence[str], *, env: Env | None = None) -> subprocess.Popen[bytes]:
        """Start a process with three pipes, in its own session, so that Ctrl-C does not reach it."""
        base = os.environ if self.inherit else base_environment(os.environ)
        merged = {**base, **self.env, **(env or {})}
        environment = {name: value for name, value in merged.items() if value is not None}
        try:
            process = subprocess.Popen(
                list(argv),
                executable=self._program(argv[0], environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=_PIPE_SIZE,
                env=environment,
                umask=UMASK,
                start_new_session=True,
            )
        except (FileNotFoundError, NotADirectoryError):
            raise TransportError(_not_found(argv[0])) from None
        except PermissionError:
            why = "permission denied on this machine: check the mode of the file and of its folder"
            raise TransportError(f"{argv[0]}: {why}") from None
        except (OSError, ValueError) as error:
            raise TransportError(f"{argv[0]}: could not be started on this machine: {error}") from error
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # the user's limit of pipe buffers is reached
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        self.count(argv[0])
        return process

    def count(self, program: str) -> None:
        """Count one start of a program, by the last part of its path."""
        with self._lock:
            self.started[os.path.basename(program)] += 1  # a name, not a file

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _program(self, name: str, env: Mapping[str, str]) -> str:
        """Return the path of a program: Slurm's commands and what else the system's folders lack, on this process's PATH.

        FileNotFoundError if there is none.
        """
        if "/" in name:
            return name
        own = self.env.get("PATH") or os.environ.get("PATH", os.defpath)
        found = None if name in _SLURM else shutil.which(name, path=env.get("PATH", os.defpath))
        if (found := found or shutil.which(name, path=own)) is None:
            raise FileNotFoundError(name)
        return found


class _TooMuch(Exception):  # converted into a TransportError
    """More output than any control command can have."""


def _communicate(process: subprocess.Popen[bytes], data: bytes, timeout: float) -> tuple[bytes, bytes]:
    """Like Popen.communicate, with bounded memory: _TooMuch with the beginning of an output that is too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    deadline, left = time.monotonic() + timeout, memoryview(data)
    pipes = {pipe.fileno(): pipe for pipe in (process.stdin, process.stdout, process.stderr)}
    outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    out, err = outputs.values()
    with selectors.DefaultSelector() as ready:
        for number in pipes:
            ready.register(number, selectors.EVENT_READ if number in outputs else selectors.EVENT_WRITE)
        while ready.get_map():
            events = ready.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, timeout)
            for key, _ in events:
                if key.fd in outputs:
                    open_still = _read_some(key.fd, outputs[key.fd])
                else:
                    left = _write_some(key.fd, left)
                    open_still = bool(left)
                if not open_still:
                    ready.unregister(key.fd)
                    with contextlib.suppress(OSError):
                        pipes[key.fd].close()
    process.wait(max(0.0, deadline - time.monotonic()))
    return bytes(out), bytes(err)


def _read_some(number: int, output: bytearray) -> bool:
    """Append available output; False at the end."""
    more = os.read(number, _CHUNK)
    output += more
    if len(output) > MAX_OUTPUT:
        raise _TooMuch(bytes(output[:200]).decode(errors="replace"))
    return bool(more)


def _write_some(number: int, left: memoryview) -> memoryview:
    """Write what the pipe takes without waiting, and return the rest; nothing if the reader has ended."""
    try:
        return left[os.write(number, left[: select.PIPE_BUF]) :] if left else left
    except BrokenPipeError:
        return memoryview(b"")


def kill_group(process: subprocess.Popen[Any] | RemoteProcess, sig: int = signal.SIGKILL) -> None:
    """Signal the process and its children; with SIGKILL also reap it within REAP seconds and close its pipes."""
    if not isinstance(process, subprocess.Popen):
        process.kill_group(sig)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, sig)
    if sig == signal.SIGKILL:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits in the kernel for a file server
            process.wait(REAP)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@atexit.register
def _end_commands() -> None:
    """Kill the commands of daemon threads: a daemon thread ends with this process, its command does not.

    From here on only this thread, which ends the process, starts any.
    """
    _STARTING.acquire()
    for process in tuple(_RUNNING):
        if process.poll() is None:
            kill_group(process)


def _not_found(program: str) -> str:
    if os.path.basename(program) in _SLURM:  # a name, not a file
        return (
            f"{program}: not found on this machine: install Slurm's client tools, "
            "or name a login node under transport in the cluster file"
        )
    return f"{program}: not found on this machine: install it or put it on the PATH"
