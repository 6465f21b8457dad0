"""One SSH connection, by Fabric: with strict host keys, agent or key file, and errors in one line.

It never adds a key to a known_hosts file, and never prompts for or sends a password.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import math
import shlex
import signal
import socket
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko
from fabric import Config, Connection
from paramiko.common import MSG_CHANNEL_REQUEST

from pytest_gpucluster.cluster.transport import known_hosts
from pytest_gpucluster.core.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.config.models import SshConfig

_SYSTEM_FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
_WINDOW = 1 << 23  # bytes in transit: 160 MB/s at 50 ms
_PORT = 22

# paramiko logs tracebacks; without a handler Python prints them to the terminal
logging.getLogger("paramiko").addHandler(logging.NullHandler())
_parsing = threading.Lock()


class SshError(TransportError):
    """A connection failed. `transient`: a retry may succeed; `busy`: a server closed the connection."""

    def __init__(self, message: str, *, transient: bool = False, busy: bool = False) -> None:
        super().__init__(message)
        self.transient, self.busy = transient, busy


class _WrongKey(Exception):  # converted into an SshError
    def __init__(self, key: paramiko.PKey, verdict: str) -> None:
        super().__init__(verdict)
        self.key, self.verdict = key, verdict


class _Strict(paramiko.MissingHostKeyPolicy):
    """Checks every host key against the known_hosts files; paramiko's client itself has none."""

    def __init__(self, entries: tuple[known_hosts.Entry, ...]) -> None:
        self._entries = entries

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:  # paramiko's
        verdict = known_hosts.judge(self._entries, hostname, key.get_name(), key.get_base64())
        if verdict != "known":
            raise _WrongKey(key, verdict)


def _store_ending(channel: Any, message: Any) -> None:
    """Store how a process ended; paramiko ignores exit-signal (RFC 4254, 6.10)."""
    start = message.packet.tell()
    kind, _want_reply = message.get_text(), message.get_boolean()
    if kind == "exit-status":
        channel.ending = message.get_int()
    elif kind == "exit-signal":
        number = getattr(signal, f"SIG{message.get_text().partition('@')[0]}", signal.SIGTERM)
        channel.ending = -int(number)
    message.packet.seek(start)
    paramiko.Channel._handle_request(channel, message)  # noqa: SLF001 - the default handler
    if kind == "exit-signal":
        channel.status_event.set()


class _Wire(paramiko.Transport):
    """Paramiko's transport without delays, which ends when the peer no longer answers."""

    # paramiko has no documented access to exit-signal
    _channel_handler_table = {  # noqa: RUF012 - as in the parent
        **paramiko.Transport._channel_handler_table,  # noqa: SLF001 - the parent's own
        MSG_CHANNEL_REQUEST: _store_ending,
    }

    def __init__(self, sock: Any, *, alive: float, kinds: tuple[str, ...], **options: Any) -> None:
        if isinstance(sock, socket.socket):
            _tune(sock, alive)
        super().__init__(sock, default_window_size=_WINDOW, **options)
        security = self.get_security_options()
        # one pass over each packet instead of two
        security.ciphers = sorted(security.ciphers, key=lambda name: "-gcm@" not in name)
        first = [kind for kind in kinds if kind in security.key_types]
        security.key_types = [*first, *(kind for kind in security.key_types if kind not in first)]


def _tune(sock: socket.socket, alive: float) -> None:
    """Send small packets at once; let the kernel close a connection without acknowledgement for `alive` seconds."""
    quarter = max(1, int(alive / 4))
    wanted = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", quarter),
        ("TCP_KEEPINTVL", quarter),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(alive * 1000)),
    ):
        if hasattr(socket, name):  # Linux has them all
            wanted.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for level, option, value in wanted:
        with contextlib.suppress(OSError):  # a socket of another family
            sock.setsockopt(level, option, value)


def connect(host: str, settings: SshConfig, *, gateway: Connection | None = None) -> Connection:
    """Return an open connection; SshError in one line, ConfigError for invalid settings.

    `gateway` is an open connection to use as jump host; the caller closes it.
    """
    connection = _prepared(host, settings, gateway)
    try:
        connection.open()
    except BaseException as error:
        for hop in hops(connection, gateway):
            with contextlib.suppress(Exception):
                hop.client.close()  # also the connection to the SSH agent
        if not isinstance(error, Exception):
            raise
        raise _explained(error, connection, settings) from error
    return connection


def gateway_to(settings: SshConfig) -> Connection:
    """Return an open connection to the jump host of the settings."""
    jump = Connection(settings.jump or "", config=Config(ssh_config=_ssh_config(settings), lazy=True))
    own = settings.model_copy(update={"jump": None, "port": jump.port, "user": jump.user})
    return connect(jump.original_host, own)


def address_of(host: str, settings: SshConfig) -> str:
    """Return user@host:port, with user and port if they are set."""
    user = f"{settings.user}@" if settings.user else ""
    port = f":{settings.port}" if settings.port and settings.port != _PORT else ""
    return f"{user}{host}{port}"


def _prepared(host: str, settings: SshConfig, gateway: Connection | None) -> Connection:
    config = Config(ssh_config=_ssh_config(settings), lazy=True)  # lazy: without the user's fabric.yaml
    if settings.key_file and not Path(settings.key_file).expanduser().is_file():
        raise ConfigError(f"ssh to {host}: key_file {settings.key_file} is no file")
    try:
        jump = gateway or (Connection(settings.jump, config=config) if settings.jump else None)
        connection = Connection(
            host,
            user=settings.user,
            port=settings.port,
            config=config,
            gateway=jump,
            forward_agent=False,
            connect_timeout=math.ceil(settings.connect_timeout),
        )
    except (ValueError, paramiko.SSHException) as error:
        raise ConfigError(f"ssh to {host}: {' '.join(str(error).split())}") from error
    for hop in hops(connection, gateway):
        _prepare_hop(hop, settings)
    return connection


def _ssh_config(settings: SshConfig) -> paramiko.SSHConfig:
    found = paramiko.SSHConfig()
    files = (settings.config_file,) if settings.config_file else _SYSTEM_FILES
    for name in files:
        path = Path(name).expanduser()
        try:
            with path.open(encoding="utf-8", errors="surrogateescape") as stream, _parsing:
                found.parse(stream)
        except FileNotFoundError:
            if settings.config_file:
                raise ConfigError(f"ssh: config_file {name}: no such file") from None
        except (OSError, paramiko.SSHException) as error:
            raise ConfigError(f"ssh: {name}: cannot be read: {' '.join(str(error).split())}") from error
    return found


def hops(connection: Connection, end: Connection | None = None) -> Iterator[Connection]:
    """Yield a connection and those that it goes through, up to `end`."""
    hop = connection
    while isinstance(hop, Connection) and hop is not end:
        yield hop
        hop = hop.gateway


def _prepare_hop(hop: Connection, settings: SshConfig) -> None:
    """Set the host key policy, keys and timeouts; Fabric's own default accepts any unknown host key."""
    entries = known_hosts.read(known_hosts_files(hop, settings))
    hop.client.set_missing_host_key_policy(_Strict(entries))
    hop.connect_timeout = math.ceil(settings.connect_timeout)
    files = hop.ssh_config.get("identityfile", [])
    keys = [settings.key_file] if settings.key_file else [files] if isinstance(files, str) else list(files)
    paths = [Path(key).expanduser() for key in keys]
    hop.connect_kwargs = {
        "key_filename": [str(path) for path in paths if path.is_file()],
        "look_for_keys": not settings.key_file,
        "allow_agent": True,
        "banner_timeout": settings.connect_timeout,
        "auth_timeout": max(30.0, settings.connect_timeout),  # PAM may be slow
        "channel_timeout": max(30.0, settings.connect_timeout),
        "transport_factory": partial(_Wire, alive=settings.alive, kinds=known_hosts.kinds(entries, _known_name(hop))),
    }


def known_hosts_files(connection: Connection, settings: SshConfig) -> list[Path]:
    """Return the known_hosts files of a connection; the first is the user's own."""
    if settings.known_hosts:
        return [Path(settings.known_hosts).expanduser()]
    stated: list[str] = []
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        value = connection.ssh_config.get(key, "")
        stated += shlex.split(value) if isinstance(value, str) else value
    return [Path(name).expanduser() for name in (stated or _KNOWN_HOSTS)]


def _known_name(hop: Connection) -> str:
    return f"[{hop.host}]:{hop.port}" if hop.port != _PORT else str(hop.host)


def fingerprint(key: paramiko.PKey) -> str:
    """Return a host key's fingerprint as ssh-keygen -l prints it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def _explained(error: Exception, connection: Connection, settings: SshConfig) -> SshError:
    chain = [*hops(connection)]
    # the first hop that is not open
    hop = next((hop for hop in reversed(chain) if not hop.is_connected), connection)
    where = f"ssh to {hop.host}" + (f":{hop.port}" if hop.port != _PORT else "")
    known = {_WrongKey: _about_host_key, paramiko.AuthenticationException: _about_login, OSError: _about_network}
    for kind, explain in known.items():
        if isinstance(error, kind):
            return SshError(f"{where}: {explain(error, hop, settings)}", transient=_transient(error))
    if "imed out" in str(error):
        return SshError(f"{where}: {_about_network(TimeoutError(), hop, settings)}")
    return SshError(
        f"{where}: {_plain(error) or 'the server closed the connection'}: see sshd's log there",
        transient=_transient(error),
        busy=True,
    )


def _transient(error: Exception) -> bool:
    """Return whether a retry may succeed: a restarting server refuses, one with too many logins (MaxStartups) closes."""
    if isinstance(error, (paramiko.AuthenticationException, _WrongKey, socket.gaierror, TimeoutError)):
        return False
    return isinstance(error, (OSError, EOFError, paramiko.SSHException))


def _about_host_key(error: Any, hop: Connection, settings: SshConfig) -> str:
    file = shlex.quote(str(known_hosts_files(hop, settings)[0]))
    shown = fingerprint(error.key)
    if error.verdict == "unknown":
        port = f"-p {hop.port} " if hop.port != _PORT else ""
        return (
            f"its host key is not in {file}: have the fingerprint {shown} confirmed, "
            f"then: ssh-keyscan {port}{hop.host} >> {file}"
        )
    named = shlex.quote(_known_name(hop))
    return (
        f"its host key is not the one in {file} (shown: {shown}): this may be an attack; "
        f"only after a reinstallation: ssh-keygen -R {named} -f {file}"
    )


def _about_login(error: Any, hop: Connection, _settings: SshConfig) -> str:
    if isinstance(error, paramiko.PasswordRequiredException):
        return "the key needs its passphrase; load it into the agent with ssh-add"
    return (
        f"login of user {hop.user} failed with {_tried(hop)}: set another user or key_file, "
        "or load the key into the agent (ssh-add); passwords are not used"
    )


def _about_network(error: Any, hop: Connection, settings: SshConfig) -> str:
    if isinstance(error, socket.gaierror):
        return f"no such host name: check it with getent hosts {shlex.quote(hop.host)}"
    if isinstance(error, TimeoutError):
        return f"no answer within {settings.connect_timeout:g} s: is it up and reachable?"
    return f"no SSH server answers ({error.strerror or _plain(error)}): is sshd running there?"


def _tried(hop: Connection) -> str:
    what = [*(hop.connect_kwargs.get("key_filename") or [])]
    if hop.connect_kwargs.get("look_for_keys"):
        what.append("the keys of ~/.ssh")
    with contextlib.suppress(Exception):
        agent = paramiko.Agent()
        count = len(agent.get_keys())
        agent.close()
        what.append(f"{count} keys of the agent" if count else "no key in the agent")
    return ", ".join(what)


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
