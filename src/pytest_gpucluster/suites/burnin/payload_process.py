"""Processes that a burn-in payload starts on a node. Python 3.6 and the standard library only."""

import contextlib
import ctypes
import signal
import subprocess
from typing import Any, Callable, Optional, Sequence, Tuple

from pytest_gpucluster.kit.payloads.prelude import first_line

MIB = 1 << 20
try:
    _PRCTL = ctypes.CDLL(None).prctl  # type: Any
except Exception:  # a libc without prctl: Slurm kills the processes when the step ends
    _PRCTL = None


def reason_of(error: BaseException) -> str:
    """Return an exception as one line of at most 300 characters."""
    return ("%s: %s" % (type(error).__name__, first_line(error) or "no message"))[:300]


def output_of(
    argv: Sequence[str], timeout: float, started: Optional[Callable[[Any], None]] = None
) -> Tuple[Optional[int], str, str]:
    """Return (exit status, stdout, stderr) of a command. 127: not found, None: no end within `timeout` seconds, -N: killed by signal N.

    `started` is called with the process, so that another thread can end it.
    """
    try:
        process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return 127, "", reason_of(error)
    if started is not None:
        started(process)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        # a process that hangs in the kernel dies when its system call returns
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=2)
        return None, "", "%s: no end after %g s" % (argv[0], timeout)
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def ending(rc: Optional[int]) -> str:
    """Return how a command of `output_of` ended, in words."""
    return "no end" if rc is None else "killed by signal %d" % -rc if rc < 0 else "exit %d" % rc


def signal_code(number: int) -> str:
    """Return the code for a process that a signal ended: `ended` and `killed` by a person, a program or Slurm, else `crashed`.

    Hardware causes other signals. Slurm kills the agents of a node that died.
    """
    if number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        return "ended"
    return "killed" if number == signal.SIGKILL else "crashed"


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies (PR_SET_PDEATHSIG): no orphan on a GPU."""
    if _PRCTL is not None:
        _PRCTL(1, signal.SIGKILL)
