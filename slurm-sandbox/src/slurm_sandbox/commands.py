"""Commands on this machine: each in a session of its own, never through a shell."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from slurm_sandbox.errors import CommandError, SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# the caller's settings for Slurm, Python or the shell must not affect what the sandbox starts
_INHERITED = ("HOME", "LOGNAME", "SHELL", "USER", "TZ")


class Completed(NamedTuple):
    """A command that ended: `rc` is negative for a signal."""

    rc: int
    stdout: str
    stderr: str


def run(argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None) -> Completed:
    """Run a command to its end, with no input and a clean environment to which `env` is added.

    CommandError if it is not found, or does not end within `timeout` seconds: then its process group is killed.
    """
    path = os.pathsep.join([*SYSTEM_PATH, os.environ.get("PATH", "")])
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment = {**inherited, "LANG": "C.UTF-8", "PATH": path, **(env or {})}
    program = shutil.which(argv[0], path=environment["PATH"]) or shutil.which(argv[0], path=path)
    if program is None:
        raise CommandError(f"{argv[0]}: not found on this machine: install it or put it on the PATH")
    try:
        process = subprocess.Popen(
            list(argv),
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            umask=0o022,
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CommandError(f"{argv[0]}: could not be started on this machine: {error}") from error
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise CommandError(f"{argv[0]}: not finished after {timeout:g} s: {' '.join(argv)[:120]}") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
    return Completed(process.returncode, out, err)


def find_programs(packages: Mapping[str, str], path: str, needed_by: str) -> dict[str, str]:
    """Return {program: its path} for {program: Debian's package}; SandboxError names the packages of absent programs.

    `needed_by`: the first words of the message, like `accounting needs`.
    """
    found = {name: where for name in packages if (where := shutil.which(name, path=path))}
    if absent := [name for name in packages if name not in found]:
        names = " ".join(sorted({packages[name] for name in absent}))
        raise SandboxError(f"{needed_by} {', '.join(absent)}: apt-get install --no-install-recommends {names}")
    return found
