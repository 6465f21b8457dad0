"""Collect for many command lines of pytest in one process: a JSON list of lists in, [[status, last lines], ...] out.

A process for each would cost a second a command.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest


def collect(words: list[str]) -> tuple[int, str]:
    """Return pytest's exit status for these words, collecting only, and the end of what it said."""
    said = io.StringIO()
    only = [] if "--fixtures" in words else ["--collect-only", "-q"]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main([*words, *only, "-p", "no:cacheprovider"])
    return int(status), said.getvalue()[-2000:]


if __name__ == "__main__":
    json.dump([collect(words) for words in json.load(sys.stdin)], sys.stdout)
