"""A real sshd on loopback for tests: own keys, own configuration, a free port, one folder; stopped by its pid."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox_helpers import wait_for

from pytest_gpucluster.config.models import TransportConfig
from slurm_sandbox.daemons import search_path
from slurm_sandbox.ports import reserve

if TYPE_CHECKING:
    from collections.abc import Iterator

SSHD = shutil.which("sshd", path=search_path())
WHY_NOT = "" if SSHD and shutil.which("ssh-keygen") else "no sshd here: apt-get install openssh-server"
HOST = "127.0.0.1"


@dataclass
class Sshd:
    """One server. `set_env`: variables of every session, as a login node's profile would set them."""

    folder: Path
    set_env: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> Sshd:
        """Write keys and configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("host_key", "id_ed25519", "stranger"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(self.folder / name)]
            subprocess.run(argv, check=True)
        shutil.copy(self.folder / "id_ed25519.pub", self.folder / "authorized_keys")
        (self.folder / "ssh_config").write_text("")
        return self

    def start(self) -> Sshd:
        """Start the server and wait until it listens."""
        with contextlib.ExitStack() as stack:
            if not self.port:
                self.port = stack.enter_context(reserve(1))
            (self.folder / "sshd_config").write_text(self._config())
            (self.folder / "known_hosts").write_text(f"[{HOST}]:{self.port} {self.host_key}\n")
            if os.geteuid() == 0:
                Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
            argv = [str(SSHD), "-D", "-f", f"{self.folder}/sshd_config", "-E", f"{self.folder}/sshd.log"]
            started = self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
            wait_for(lambda: self._listens() or started.poll() is not None, "sshd listens")
            assert started.poll() is None, (self.folder / "sshd.log").read_text()
            wait_for(lambda: not self.sessions(), "the look at the port is no session any more")
        return self

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def _config(self) -> str:
        # SHLVL: bash reads no ~/.bashrc of this machine for a command
        values = " ".join(f'"{name}={value}"' for name, value in {"SHLVL": "1", **self.set_env}.items())
        lines = [
            f"Port {self.port}",
            f"ListenAddress {HOST}",
            f"HostKey {self.folder}/host_key",
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            f"AllowUsers {getpass.getuser()}",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "UseDNS no",
            "StrictModes no",
            "PidFile none",
            "PrintMotd no",
            "PrintLastLog no",
            "MaxStartups 100",
            f"SetEnv {values}",
            *self.options,
        ]
        return "\n".join(lines) + "\n"

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def settings(self, **keys: Any) -> TransportConfig:
        """Return the `transport:` of a cluster file that leads here."""
        return TransportConfig.model_validate(self.keys(**keys))

    def keys(self, **keys: Any) -> dict[str, Any]:
        """Return the keys of `transport:`; a user's own SSH configuration has no say."""
        return {
            "host": HOST,
            "port": self.port,
            "key_file": str(self.folder / "id_ed25519"),
            "known_hosts": str(self.folder / "known_hosts"),
            "config_file": str(self.folder / "ssh_config"),
            **keys,
        }

    def sessions(self) -> list[int]:
        """Return the pids of the server's processes for connections, one each."""
        assert self.process is not None
        return children(self.process.pid)

    def hang_up(self) -> None:
        """Kill every connection, as a crash of the login node's sshd would."""
        assert self.process is not None
        found = children(self.process.pid)
        # the inner ones alone will not do: one may be sshd on its way to becoming a command
        for pid in [*(inner for one in found for inner in children_named(one, "sshd")), *found]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Stop listening and end the connections."""
        if self.process is None:
            return
        self.hang_up()
        self.process.terminate()
        self.process.wait(30)
        self.process = None
        wait_for(lambda: not self._listens(), "its last child has closed the door too")


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    found = []
    with contextlib.suppress(OSError):  # it may end meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def children_named(pid: int, name: str) -> list[int]:
    """Return the children with this name."""
    named = []
    for child in children(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text().strip().startswith(name):
                named.append(child)
    return named


class Blackhole:
    """A way to a port that can fall silent, as a network does whose cable is out: nothing is refused or closed."""

    def __init__(self, port: int) -> None:
        self._to, self._silent = port, threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((HOST, self._to))
                self._open += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._silent.is_set():
                    return  # taken and never brought; the sockets stay open
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def silence(self) -> None:
        self._silent.set()

    def close(self) -> None:
        for one in (self._listener, *self._open):
            one.close()


@contextlib.contextmanager
def sshd(folder: Path, **options: Any) -> Iterator[Sshd]:
    """Run a server for a while."""
    server = Sshd(folder, **options).prepare().start()
    try:
        yield server
    finally:
        server.stop()
