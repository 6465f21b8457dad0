"""GET from services of the cluster, with one deadline for the whole exchange."""

from __future__ import annotations

import base64
import email.utils
import http.client
import queue
import socket
import threading
import urllib.parse
from contextlib import suppress
from dataclasses import dataclass

from pytest_gpucluster.core.errors import TransportError

CAP = 64 << 20  # bytes; the targets of 1000 nodes are 4 MB
_GOOD, _REDIRECTS = range(200, 300), range(300, 400)


@dataclass(frozen=True)
class Reply:
    """A response with a status of success. `date` is the server's clock (Unix time), None without a Date header."""

    body: bytes
    date: float | None


def get(url: str, *, timeout: float, cap: int = CAP) -> Reply:
    """Fetch a URL. TransportError, in one line, unless a complete response of success arrives in time.

    `http://user:password@host` sends these as basic authentication; no message shows them. Redirects are not followed, and
    proxies of the environment are not used, since the services belong to the cluster.
    """
    parts = urllib.parse.urlsplit(url)
    shown = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    ended: queue.SimpleQueue[Reply | BaseException] = queue.SimpleQueue()
    try:
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    except (http.client.HTTPException, ValueError) as error:
        raise TransportError(f"{shown}: {_plain(error, timeout)}") from error

    # the connection forgets its socket while an answer without a length is read
    opened: list[socket.socket] = []

    def exchange() -> None:
        try:
            ended.put(_exchange(connection, opened, parts, cap))
        except Exception as error:  # noqa: BLE001 - raised below
            ended.put(error)

    threading.Thread(target=exchange, name="http-get", daemon=True).start()
    try:
        found = ended.get(timeout=timeout)
    except queue.Empty:
        found = TimeoutError()
    finally:
        for sock in opened:
            with suppress(OSError):  # ends the thread where the service sends a byte at a time
                sock.shutdown(socket.SHUT_RDWR)
    if isinstance(found, Reply):
        return found
    raise TransportError(f"{shown}: {_plain(found, timeout)}") from found


def _exchange(
    connection: http.client.HTTPConnection, opened: list[socket.socket], parts: urllib.parse.SplitResult, cap: int
) -> Reply:
    """Return the reply; `opened` gets the socket, so that another thread can end the exchange."""
    headers = {"Accept": "application/json"}
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    try:
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        connection.connect()
        opened.append(connection.sock)
        connection.request("GET", target, headers=headers)
        with connection.getresponse() as answer:
            if answer.status in _REDIRECTS:
                where = answer.getheader("Location")
                why = f"HTTP status {answer.status}, a redirect, which is not followed: {where}"
                raise ValueError(why[:200])
            if answer.status not in _GOOD:
                text = " ".join(answer.read(200).decode(errors="replace").split())
                raise ValueError(f"HTTP status {answer.status}{f' ({text})' if text else ''}")
            body = answer.read(cap + 1)
            if len(body) > cap:
                raise ValueError(f"the answer is larger than {cap} bytes")
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            return Reply(body, _date(answer.getheader("Date")))
    finally:
        connection.close()


def _date(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None


def _plain(reason: object, timeout: float) -> str:
    if isinstance(reason, TimeoutError):
        return f"no whole answer within {timeout:g} s"
    if isinstance(reason, http.client.HTTPException):
        return f"is no whole HTTP answer ({type(reason).__name__})"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return " ".join(str(reason).split()) or type(reason).__name__
