"""HTTP with a deadline: GET from services of the cluster, POST to receivers of messages."""

from __future__ import annotations

import base64
import email.utils
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from pytest_gpucluster.core.errors import TransportError

CAP = 64 << 20  # bytes; the targets of 1000 nodes are 4 MB


@dataclass(frozen=True)
class Reply:
    """A response with status 200. `date` is the server's clock (Unix time), None without a Date header."""

    body: bytes
    date: float | None


def get(url: str, *, timeout: float, cap: int = CAP) -> Reply:
    """Fetch a URL. TransportError, in one line, unless a complete response with status 200 arrives in time.

    `http://user:password@host` sends these as basic authentication; no message shows them. Proxies of the
    environment are not used, since the services belong to the cluster.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    shown = urllib.parse.urlunsplit(parts._replace(netloc=host))
    request = urllib.request.Request(shown, headers={"Accept": "application/json"})  # noqa: S310 - http(s) by config
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return Reply(_read(answer, shown, timeout, cap), _date(answer.headers.get("Date")))
    except urllib.error.HTTPError as error:
        with error:
            text = " ".join(error.read(200).decode(errors="replace").split())
        raise TransportError(f"{shown}: HTTP status {error.code}{f' ({text})' if text else ''}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise TransportError(f"{shown}: {_plain(reason, timeout)}") from error


def _read(answer: http.client.HTTPResponse, shown: str, timeout: float, cap: int) -> bytes:
    """Read to the end; the deadline also applies to a service that sends a few bytes at a time."""
    deadline, parts, size = time.monotonic() + timeout, [], 0
    while chunk := answer.read1(1 << 16):
        size += len(chunk)
        if size > cap:
            raise TransportError(f"{shown}: the answer is larger than {cap} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
        parts.append(chunk)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts)


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
