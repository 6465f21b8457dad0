r"""A process at the far end of an SSH channel.

The command line that sshd gives to the login shell is the same for every command, and made of characters that each
shell reads alike. It starts a sh that takes one line from its stdin: a script, in which words and variables are
quoted for sh. So no login shell, whatever its kind, reads a word of ours; nothing of it stands in a list of processes;
there is no limit but that of the system; and nothing has begun before that line was sent, which is why a command can
be tried again until then, and never begins twice.
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

from pytest_gpucluster.cluster.transport.base import MAX_OUTPUT
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Nothing in here is special to sh, csh or fish within single quotes.
BOOT = """exec /bin/sh -c 'IFS= read -r h && eval "$(printf %b "$h")"'"""
LOST = 255  # as ssh(1) ends when its connection breaks
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOISE_LIMIT = 1 << 20  # bytes that a login shell may print before our command begins
_AFTER_KILL = 10.0  # seconds until a process that was killed is given up


class ConnectionLost(TransportError):  # what happened
    """The connection broke. `begun`: the command may have done its work."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


def script(
    argv: Sequence[str], env: Mapping[str, str | None], nonce: str, *, path: str | None, workdir: str | None
) -> str:
    """Return the sh that becomes the command; it says `NONCE PID` on stdout and `NONCE` on stderr first.

    TransportError for what no shell can hold.
    """
    program = shlex.quote(argv[0])
    unset = [name for name, value in env.items() if value is None and _NAME.fullmatch(name)]
    lines = [f"unset {' '.join(unset)}"] if unset else []
    for name, value in env.items():
        if value is not None:
            if not _NAME.fullmatch(name):
                raise TransportError(
                    f"{argv[0]}: {name!r} is no name of a variable: it cannot be sent over SSH"
                )
            lines.append(f"export {name}={shlex.quote(value)}")
    if path:
        lines.append(f"PATH={shlex.quote(path)}${{PATH:+:$PATH}}; export PATH")
    if workdir:
        lines.append(f"cd {shlex.quote(workdir)} || {{ echo {nonce} folder; exit 1; }}")
    if "/" in argv[0]:
        lines += [
            f"[ -e {program} ] || {{ echo {nonce} missing; exit 127; }}",
            f"[ -x {program} ] && [ ! -d {program} ] || {{ echo {nonce} mode; exit 126; }}",
        ]
    else:
        lines.append(f"command -v {program} >/dev/null 2>&1 || {{ echo {nonce} missing; exit 127; }}")
    lines += [f"echo {nonce} >&2", f"echo {nonce} $$", f"exec {' '.join(map(shlex.quote, argv))}"]
    return "\n".join(lines)


def header(text: str) -> bytes:
    r"""Write a script as the one line that BOOT reads: printf %b makes \\ and \n what they were."""
    if "\0" in text:
        raise TransportError("a command or a variable holds a NUL byte, which no process can be given")
    data = text.encode("utf-8", "surrogateescape")
    return data.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") + b"\n"


class _Reader(io.RawIOBase):
    """One direction of a channel, as a raw stream; `last_words` are read after its end."""

    def __init__(self, receive: Callable[[int], bytes], last_words: Callable[[], bytes]) -> None:
        self._receive, self._last_words = receive, last_words
        self._words: bytes | None = None
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b"" if self.ended else self._receive(len(buffer))
        if not data:
            self.ended = True
            if self._words is None:
                self._words = self._last_words()
            data, self._words = self._words[: len(buffer)], self._words[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class _Writer(io.RawIOBase):
    """The stdin of the far process; closing it is the end of its input, the channel stays."""

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


class RemoteProcess:
    """A process on the far side, in the surface of subprocess.Popen that is used here.

    `signal_far` sends (signal, pid) over the same connection: another one may lead to another login node.
    """

    def __init__(
        self,
        channel: Any,
        argv: Sequence[str],
        where: str,
        signal_far: Callable[[int, int], None] | None = None,
        *,
        merged: bool = False,
    ) -> None:
        self.args, self.where, self.pid = tuple(argv), where, 0
        self._channel, self._signal_far = channel, signal_far
        self._killed = False
        if merged:
            channel.set_combine_stderr(True)
        self._out = _Reader(channel.recv, lambda: b"")
        self._err = _Reader(channel.recv_stderr, self._last_words)
        self.stdin: io.BufferedWriter = io.BufferedWriter(_Writer(channel), 1 << 15)
        self.stdout: io.BufferedReader = io.BufferedReader(self._out, 1 << 16)
        self.stderr: io.BufferedReader = io.BufferedReader(self._err, 1 << 16)
        self._merged = merged

    def begin(
        self,
        env: Mapping[str, str | None],
        *,
        timeout: float,
        path: str | None = None,
        workdir: str | None = None,
    ) -> None:
        """Start the command and learn its pid.

        Raise TransportError where it is not found, ConnectionLost where the connection broke (`begun` tells whether
        the command may have started).
        """
        nonce = f"far-{secrets.token_hex(8)}"
        line = header(script(self.args, env, nonce, path=path, workdir=workdir))
        sent = False
        self._channel.settimeout(timeout)
        try:
            self._channel.exec_command(BOOT)
            sent = True  # what is sent may arrive, though sending failed
            self._channel.sendall(line)
            words = self._skip_to(self.stdout, nonce, numbered=True)  # where merged, stderr's comes too
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
                    f"{self.args[0]}: the login shell of {self.where} did not begin it within {timeout:g} s"
                ) from error
            raise self._broken(begun=sent) from error
        self.close()
        raise TransportError(_why_not(self.args[0], self.where, words[1:], workdir))

    def _broken(self, *, begun: bool) -> ConnectionLost:
        what = (
            "broke as it began; whether it did its work is not known: look before it is repeated"
            if begun
            else "broke as it was to begin"
        )
        return ConnectionLost(f"{self.args[0]}: the SSH connection to {self.where} {what}", begun=begun)

    def _skip_to(self, stream: io.BufferedReader, nonce: str, *, numbered: bool = False) -> list[str]:
        """Return the words of the line with the nonce; what login shells print before it is dropped."""
        seen, last = 0, ""
        while seen < _NOISE_LIMIT:
            text = stream.readline(_NOISE_LIMIT).decode(errors="replace")
            if not text:
                break
            if nonce in text:  # a line of the shell's without an end may stand before it
                words = text[text.index(nonce) :].split()
                if len(words) > 1 or not numbered:
                    return words
            seen, last = seen + len(text), text.strip() or last
        if self.lost:
            raise self._broken(begun=True)
        said = f": it says {last[:120]!r}" if last else ""
        raise TransportError(f"{self.args[0]}: the login shell of {self.where} runs no commands{said}")

    # --- as subprocess.Popen

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal, 255 where the connection broke."""
        if not self._channel.status_event.is_set():
            return None
        ending: int | None = getattr(self._channel, "ending", None)
        if ending is not None:
            return ending
        return -signal.SIGKILL if self._killed else LOST

    @property
    def lost(self) -> bool:
        """The connection broke before the process was known to have ended."""
        if getattr(self._channel, "ending", None) is not None or self._killed:
            return False
        wire = self._channel.get_transport()
        # paramiko ends the channels of a broken connection a moment before it calls itself inactive
        return wire is None or not wire.is_active() or wire.saved_exception is not None

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; subprocess.TimeoutExpired where it does not come in time."""
        if not self._channel.status_event.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.returncode
        assert code is not None  # the event is set
        return code

    def communicate(self, data: bytes, timeout: float) -> tuple[bytes, bytes]:
        """Send the input, return stdout and stderr to their ends; subprocess.TimeoutExpired."""
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
            if len(text) > MAX_OUTPUT:  # at once: it will not end while nobody reads the rest
                raise TransportError(f"{self.args[0]}: printed more than {MAX_OUTPUT >> 20} MiB")
            got[name] = text
        self.wait(max(0.0, deadline - time.monotonic()))
        return got["out"], got["err"]

    def _feed(self, data: bytes) -> None:
        if data:
            self.stdin.write(data)
        self.stdin.close()

    def drained(self) -> bool:
        """Drop what has come on stdout, without waiting; say whether anything had."""
        came = False
        while self._channel.recv_ready():
            came = bool(self._channel.recv(1 << 12)) or came
        return came

    def kill_group(self, sig: int = signal.SIGKILL) -> None:
        """Signal the far process group by its number; with SIGKILL also let go of the streams."""
        ended = self.returncode is not None
        if self._signal_far is not None and self.pid and not (ended and self._out.ended and self._err.ended):
            self._signal_far(sig, self.pid)
        if sig == signal.SIGKILL:
            self._channel.status_event.wait(_AFTER_KILL)
            self.close()

    def close(self) -> None:
        """Close the channel and the streams: what still reads them sees their end."""
        self._killed = self._killed or (self.returncode is None and not self.lost)
        with contextlib.suppress(Exception):
            self._channel.close()
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(Exception):
                stream.close()

    def _last_words(self) -> bytes:
        """Say at the end of stderr that the connection broke; whoever looks for a reason finds it there."""
        self._channel.status_event.wait(1.0)
        return f"\nerror: the SSH connection to {self.where} was lost\n".encode() if self.lost else b""


def _read_all(stream: io.BufferedReader, name: str, ended: queue.SimpleQueue[tuple[str, bytes]]) -> None:
    """Read to the end, or a little further than is allowed."""
    text = b""
    try:
        text = stream.read(MAX_OUTPUT + 1)
    finally:
        ended.put((name, text))


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(OSError, ValueError):
        work()


def _why_not(program: str, where: str, words: Sequence[str], workdir: str | None) -> str:
    why = words[0] if words else ""
    if why == "folder":
        return f"{program}: {where} has no folder {workdir}: correct workdir in the cluster file"
    if why == "mode":
        return f"{program}: may not be executed on {where}: check its mode and its folder's"
    return f"{program}: not found on {where}: name its folder as slurm.bin, or put it on the PATH of SSH sessions"
