"""Real Prometheus and exporters as processes of a test."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def process(*argv: str, log: Path) -> Iterator[None]:
    tool = shutil.which(argv[0])
    if tool is None:
        pytest.fail(f"{argv[0]} is missing: make packages (prometheus, prometheus-node-exporter)")
    with log.open("wb") as out:
        started = subprocess.Popen([tool, *argv[1:]], stdout=out, stderr=out)
        try:
            yield
        finally:
            started.terminate()
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
