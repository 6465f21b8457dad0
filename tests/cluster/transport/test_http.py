"""One deadline for the whole exchange, and no other host than the one that the cluster file names."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.transport.http import get
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def service(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a service that answers each connection so, and the requests that it gets."""
    requests: list[bytes] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                with connection, contextlib.suppress(OSError):
                    requests.append(connection.recv(1 << 16))
                    answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x", requests


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_service_that_drips_bytes_ends_at_the_deadline(head: bytes) -> None:
    gone = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(head)
        try:
            while True:
                connection.sendall(b"a")
                time.sleep(0.1)
        finally:
            gone.set()

    with service(drip) as (url, _), pytest.raises(TransportError, match=r"no whole answer within 1 s$"):
        get(url, timeout=1.0)  # it drips for ever
    assert gone.wait(600), "the connection ends too"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_and_reaches_no_other_host(status: int) -> None:
    with service(lambda it: it.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (other, reached):
        head = f"HTTP/1.1 {status} Moved\r\nLocation: {other}\r\nContent-Length: 0\r\n\r\n"
        with (
            service(lambda it: it.sendall(head.encode())) as (url, _),
            pytest.raises(TransportError, match=f"HTTP status {status}, a redirect, .*: {other}"),
        ):
            get(url, timeout=60.0)
    assert reached == []


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "is no whole HTTP answer"),
        (b"HTTP/1.1 503 x\r\n\r\nstarting\n up", r"HTTP status 503 \(starting up\)"),
    ],
)
def test_trouble_is_one_clean_line(sent: bytes, why: str) -> None:
    with service(lambda it: it.sendall(sent)) as (url, _):
        with pytest.raises(TransportError, match=why) as caught:
            get(url.replace("//", "//me:secret@"), timeout=60.0)
        assert (str(caught.value)[: len(url)], "\n" in str(caught.value)) == (url, False)
        assert "secret" not in str(caught.value)


def test_the_whole_answer_and_its_clock() -> None:
    head = b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:01:00 GMT\r\nContent-Length: 2\r\n\r\n"
    with service(lambda it: it.sendall(head + b"ok")) as (url, requests):
        found = get(url.replace("//", "//bob:a%20b@"), timeout=60.0)
        assert (found.body, found.date) == (b"ok", 60.0)
        assert b"Authorization: Basic Ym9iOmEgYg==" in requests[0]
        with pytest.raises(TransportError, match="larger than 1 bytes"):
            get(url, timeout=60.0, cap=1)
    with service(lambda it: it.sendall(head + b"o")) as (url, _), pytest.raises(TransportError, match="IncompleteRead"):
        get(url, timeout=60.0)
