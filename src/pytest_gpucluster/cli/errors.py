"""Errors of the command: one line on stderr; none of them takes a node out of service where Slurm started the gate."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

OF_SLURM = ("prolog", "epilog", "health")  # contexts in which a status other than 0 can drain the node
_SCRIPTS = {"prolog_slurmd", "epilog_slurmd"}  # SLURM_SCRIPT_CONTEXT of Slurm's prep/script plugin


def complain(error: object, status: int) -> int:
    """Print the error in one line on stderr; return the status."""
    from pytest_gpucluster.core import redact
    from pytest_gpucluster.core.sanitize import one_line

    with contextlib.suppress(OSError):  # a full disk under stderr
        print(f"gpucluster: error: {one_line(redact.text(str(error)), 2000)}", file=sys.stderr)
    return status


def of_slurm(words: Sequence[str]) -> bool:
    """Return whether Slurm started the gate, by its options (which may be wrong) or by the environment of a Prolog."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--context", action="append", default=[])
    stated: list[str] = []
    with contextlib.suppress(argparse.ArgumentError, SystemExit):
        stated = parser.parse_known_args(words)[0].context
    return any(context in OF_SLURM for context in stated) or os.environ.get("SLURM_SCRIPT_CONTEXT") in _SCRIPTS


def no_harm(error: BaseException) -> int:
    """Print an error of a gate that Slurm started; return 0."""
    complain(str(error) or repr(error), 0)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # else Python fails again at its exit, with status 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 0
