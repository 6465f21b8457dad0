r"""A process at the far end of an SSH channel.

The login shell gets the same command line for every command, of characters that all shells read alike. It starts a sh
that reads one line from stdin: a script with words and variables quoted for sh. So the kind of the login shell does not
matter, the command does not appear in process lists and has no length limit except the system's. The command starts only
after that line was sent: until then it can be retried, and it never starts twice.
"""

from __future__ import annotations

import contextlib
import io
import queue
import re
import secrets
import shlex
import signal
import subprocess
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.environment import CLIENT, COMMANDS_ONLY, IDENTITY, LOCALE, SYSTEM_PATH
from pytest_gpucluster.cluster.transport.base import MAX_OUTPUT
from pytest_gpucluster.core import scripts
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucluster.cluster.transport.base import Env

# Nothing in here is special to sh, csh or fish within single quotes.
BOOT = """exec /bin/sh -c 'IFS= read -r h && eval "$(printf %b "$h")"'"""
# the same base environment as base_environment() and command_path(), at the other end
_BASE = scripts.script(
    __package__,
    "base_environment.sh",
    NAMES="|".join((*IDENTITY, *CLIENT, *COMMANDS_ONLY, "PATH")),
    PATH=SYSTEM_PATH,
    LOCALE=LOCALE,
)
LOST = 255  # exit status of ssh(1) after a lost connection
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOISE_LIMIT = 1 << 20  # bytes that a login shell may print before the command starts
_AFTER_KILL = 10.0  # seconds to wait for the end of a killed process


class ConnectionLost(TransportError):
    """The connection was lost. `begun`: the command may have run."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


def script(argv: Sequence[str], env: Env, nonce: str, *, path: str | None, base: str | None = None) -> str:
    """Return the sh script that executes the command; it prints `NONCE PID` on stdout and `NONCE` on stderr first.

    `base`: lines that make the environment; None: that of Slurm's commands.
    TransportError for an invalid variable name.
    """
    program = shlex.quote(argv[0])
    for name in env:
        if not _NAME.fullmatch(name):
            why = f"{name!r} is no name of a shell variable: it cannot be sent over SSH"
            raise TransportError(f"{argv[0]}: {why}")
    # commands are found on the session's PATH, but get that of command_path()
    lines = [f"PATH={shlex.quote(path)}${{PATH:+:$PATH}}"] if path else []
    if "/" in argv[0]:
        lines += [
            f"[ -e {program} ] || {{ echo {nonce} missing; exit 127; }}",
            f"[ -x {program} ] && [ ! -d {program} ] || {{ echo {nonce} mode; exit 126; }}",
        ]
    else:
        lines.append(f"far_program=$(command -v {program}) || {{ echo {nonce} missing; exit 127; }}")
        program = '"$far_program"'
    lines.append(_BASE if base is None else base)
    if path:
        lines.append(f"PATH={shlex.quote(path)}:$PATH")
    unset = [name for name, value in env.items() if value is None]
    lines += [f"unset {' '.join(unset)}"] if unset else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items() if value is not None]
    words = " ".join([program, *map(shlex.quote, argv[1:])])
    lines += [f"echo {nonce} >&2", f"echo {nonce} $$", f"exec {words}"]
    return "\n".join(lines)


def header(text: str) -> bytes:
    r"""Return a script as the single line that BOOT reads: printf %b restores \\ and \n."""
    if "\0" in text:
        raise TransportError("a command or a variable contains a NUL byte, which no process can receive")
    data = text.encode("utf-8", "surrogateescape")
    return data.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") + b"\n"


class _Reader(io.RawIOBase):
    """One direction of a channel, as a raw stream; `epilogue` is appended at its end."""

    def __init__(self, receive: Callable[[int], bytes], epilogue: Callable[[], bytes]) -> None:
        self._receive, self._epilogue = receive, epilogue
        self._rest: bytes | None = None
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b"" if self.ended else self._receive(len(buffer))
        if not data:
            self.ended = True
            if self._rest is None:
                self._rest = self._epilogue()
            data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class _Writer(io.RawIOBase):
    """The stdin of the remote process; closing it ends the input, but not the channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._channel.sendall(bytes(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(Exception):
                self._channel.shutdown_write()
        super().close()


class SshProcess:
    """A process of an SSH channel, with the methods of subprocess.Popen that the transport uses.

    `send_signal` sends (signal, pid) over the same connection: another one may lead to another login node.
    """

    def __init__(
        self,
        channel: Any,
        argv: Sequence[str],
        where: str,
        send_signal: Callable[[int, int], None] | None = None,
        *,
        merged: bool = False,
    ) -> None:
        self.args, self.where, self.pid = tuple(argv), where, 0
        self._channel, self._send_signal = channel, send_signal
        self._killed = False
        if merged:
            channel.set_combine_stderr(True)
        self._out = _Reader(channel.recv, lambda: b"")
        self._err = _Reader(channel.recv_stderr, self._lost_message)
        self.stdin: io.BufferedWriter = io.BufferedWriter(_Writer(channel), 1 << 15)
        self.stdout: io.BufferedReader = io.BufferedReader(self._out, 1 << 16)
        self.stderr: io.BufferedReader = io.BufferedReader(self._err, 1 << 16)
        self._merged = merged

    def begin(self, env: Env, *, timeout: float, path: str | None = None, base: str | None = None) -> None:
        """Start the command and read its pid; `base` as in script().

        Raise TransportError if it is not found, ConnectionLost if the connection was lost.
        """
        nonce = f"far-{secrets.token_hex(8)}"
        line = header(script(self.args, env, nonce, path=path, base=base))
        sent = False
        self._channel.settimeout(timeout)
        try:
            self._channel.exec_command(BOOT)
            sent = True  # the line may arrive even if sending fails
            self._send(line)
            words = self._skip_to(self.stdout, nonce, numbered=True)  # if merged, also the line of stderr
            if len(words) == 2 and words[1].isdigit():  # nonce and pid
                if not self._merged:
                    self._skip_to(self.stderr, nonce)
                self.pid = int(words[1])
                self._channel.settimeout(None)
                return
        except TransportError:
            self.close()
            raise
        except Exception as error:  # paramiko raises many kinds
            lost = self.lost
            self.close()
            if isinstance(error, TimeoutError) and not lost:
                raise TransportError(
                    f"{self.args[0]}: the login shell of {self.where} did not start it within {timeout:g} s"
                ) from error
            raise self._broken(begun=sent) from error
        self.close()
        why = f"not found on {self.where}: set slurm.bin to its folder, or add it to the PATH of SSH sessions"
        if words[1:2] == ["mode"]:
            why = f"permission denied on {self.where}: check the mode of the file and of its folder"
        raise TransportError(f"{self.args[0]}: {why}")

    def _send(self, line: bytes) -> None:
        """Send the line; a login shell that runs nothing may have ended before, and what it printed says so."""
        try:
            self._channel.sendall(line)
        except OSError as error:
            if isinstance(error, TimeoutError) or self.lost:
                raise

    def _broken(self, *, begun: bool) -> ConnectionLost:
        what = "before the command started; safe to retry"
        if begun:
            what = "while the command started; it may have run: check before you repeat it"
        why = f"{self.args[0]}: the SSH connection to {self.where} was lost {what}"
        return ConnectionLost(why, begun=begun)

    def _skip_to(self, stream: io.BufferedReader, nonce: str, *, numbered: bool = False) -> list[str]:
        """Return the words of the line with the nonce; output of the login shell before it is dropped."""
        seen, last = 0, ""
        while seen < _NOISE_LIMIT:
            text = stream.readline(_NOISE_LIMIT).decode(errors="replace")
            if not text:
                break
            if nonce in text:  # output of the shell without a newline may precede it
                words = text[text.index(nonce) :].split()
                if len(words) > 1 or not numbered:
                    return words
            seen, last = seen + len(text), text.strip() or last
        if self.lost:
            raise self._broken(begun=True)
        output = f": it printed {last[:120]!r}" if last else ""
        raise TransportError(f"{self.args[0]}: the login shell of {self.where} runs no commands{output}")

    # --- as subprocess.Popen

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal, 255 after a lost connection."""
        if not self._channel.status_event.is_set():
            return None
        ending: int | None = getattr(self._channel, "ending", None)
        if ending is not None:
            return ending
        return -signal.SIGKILL if self._killed else LOST

    @property
    def lost(self) -> bool:
        """Whether the connection was lost before the end of the process was reported."""
        if getattr(self._channel, "ending", None) is not None or self._killed:
            return False
        wire = self._channel.get_transport()
        # paramiko closes the channels of a lost connection a moment before is_active() returns False
        return wire is None or not wire.is_active() or wire.saved_exception is not None

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; subprocess.TimeoutExpired."""
        if not self._channel.status_event.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.returncode
        assert code is not None  # the event is set
        return code

    def communicate(self, data: bytes, timeout: float) -> tuple[bytes, bytes]:
        """Send the input and return the whole stdout and stderr; subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        ended: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        streams = {"out": self.stdout, "err": self.stderr}
        work: list[Callable[[], object]] = [lambda: self._feed(data)]
        work += [partial(_read_all, stream, name, ended) for name, stream in streams.items()]
        for one in work:
            threading.Thread(target=_quietly, args=(one,), daemon=True).start()
        got: dict[str, bytes] = {}
        while len(got) < len(streams):
            try:
                name, text = ended.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            if len(text) > MAX_OUTPUT:  # at once: the process does not end while its output is unread
                raise TransportError(f"{self.args[0]}: printed more than {MAX_OUTPUT >> 20} MiB")
            got[name] = text
        self.wait(max(0.0, deadline - time.monotonic()))
        return got["out"], got["err"]

    def _feed(self, data: bytes) -> None:
        if data:
            self.stdin.write(data)
        self.stdin.close()

    def discard_output(self) -> bool:
        """Discard available output without waiting; return whether there was any."""
        found = False
        while self._channel.recv_ready():
            found = bool(self._channel.recv(1 << 12)) or found
        return found

    def kill_group(self, sig: int = signal.SIGKILL) -> None:
        """Signal the remote process group; with SIGKILL also close the streams."""
        ended = self.returncode is not None
        if self._send_signal is not None and self.pid and not (ended and self._out.ended and self._err.ended):
            self._send_signal(sig, self.pid)
        if sig == signal.SIGKILL:
            self._channel.status_event.wait(_AFTER_KILL)
            self.close()

    def close(self) -> None:
        """Close the channel and the streams; their readers get the end of file."""
        self._killed = self._killed or (self.returncode is None and not self.lost)
        with contextlib.suppress(Exception):
            self._channel.close()
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(Exception):
                stream.close()

    def _lost_message(self) -> bytes:
        """Return an error message for the end of stderr if the connection was lost, else b''."""
        self._channel.status_event.wait(1.0)
        return f"\nerror: the SSH connection to {self.where} was lost\n".encode() if self.lost else b""


def _read_all(stream: io.BufferedReader, name: str, ended: queue.SimpleQueue[tuple[str, bytes]]) -> None:
    text = b""
    try:
        text = stream.read(MAX_OUTPUT + 1)
    finally:
        ended.put((name, text))


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(OSError, ValueError):
        work()
