"""Real Prometheus and exporters as processes of a test, and a server of fixed pages."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import subprocess
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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


class Pages(http.server.ThreadingHTTPServer):
    """Serves fixed pages: path -> (status, body)."""

    daemon_threads = True

    def __init__(self, fixed: Mapping[str, tuple[int, bytes]], at: tuple[str, int]) -> None:
        super().__init__(at, Handler)
        self.fixed, self.asked = fixed, list[tuple[str, str]]()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        status, body = self.server.fixed.get(self.path, (404, b"no such page"))
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(fixed: Mapping[str, tuple[int, bytes]], at: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[Pages]:
    with Pages(fixed, at) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
