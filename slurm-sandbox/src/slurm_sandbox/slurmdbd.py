"""Accounting: a real slurmdbd with its own MariaDB in the state folder, which listens only on a socket file."""

from __future__ import annotations

import getpass
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_sandbox import commands
from slurm_sandbox.errors import CommandError, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slurm_sandbox.layout import Layout

_PACKAGES = {
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
    "slurmdbd": "slurmdbd",
    "sacct": "slurm-client",
    "sacctmgr": "slurm-client",
}
LOOPBACK = "127.0.0.1"
_DATABASE = "slurm_acct_db"
_PATIENCE = 60.0


@dataclass(frozen=True)
class Accounting:
    """The database and slurmdbd of one sandbox; slurmdbd listens at `address` and `port`."""

    layout: Layout
    path: str
    address: str
    port: int

    def configure(self) -> None:
        """Write slurmdbd.conf beside slurm.conf, readable only by its owner as slurmdbd requires."""
        conf = self.layout.etc / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text(slurmdbd_conf(self.layout, self.address, self.port, getpass.getuser()))

    def start(self, where: Sequence[str]) -> None:
        """Start MariaDB, then slurmdbd with the command prefix `where`; return when slurmdbd answers."""
        programs = find_programs(self.path)
        data, log = self.layout.root / "db", self.layout.log_file("mariadbd")
        user = getpass.getuser()
        self._run(
            [
                *(programs["mariadb-install-db"], "--no-defaults", f"--datadir={data}", f"--user={user}"),
                *("--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}"),
                *("--skip-test-db", "--skip-name-resolve"),
            ],
            "MariaDB",
        )
        server = shlex.join(
            [
                *(programs["mariadbd"], "--no-defaults", f"--datadir={data}", f"--user={user}"),
                *(f"--socket={self.socket}", "--skip-networking", f"--tmpdir={data}"),
                *(f"--pid-file={self.layout.pid_file('mariadbd')}", f"--log-error={log}"),
                # a sandbox's database is temporary: no flush to the disk
                *(
                    "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-buffer-pool-size=128M",
                    "--innodb-lock-wait-timeout=900",
                ),
            ]
        )
        self._run(["sh", "-c", f"setsid {server} </dev/null >/dev/null 2>&1 &"], "MariaDB")
        self._until(self.socket.exists, "MariaDB", "mariadbd")
        # a path in the state folder identifies the sandbox's slurmdbd
        slurmdbd = self.layout.root / "sbin" / "slurmdbd"
        slurmdbd.parent.mkdir(exist_ok=True)
        slurmdbd.symlink_to(programs["slurmdbd"])
        # libmariadb takes the path of the socket only from the environment
        clean = ["env", "-i", f"PATH={self.path}", f"SLURM_CONF={self.layout.conf}"]
        self._run([*where, *clean, f"MYSQL_UNIX_PORT={self.socket}", str(slurmdbd)], "slurmdbd")
        self._until(lambda: self._register_cluster(where, clean, programs["sacctmgr"]), "slurmdbd", "slurmdbd")

    @property
    def socket(self) -> Path:
        """The socket of the database."""
        return self.layout.run / "mariadb.sock"

    def _register_cluster(self, where: Sequence[str], clean: Sequence[str], sacctmgr: str) -> bool:
        """Add the cluster to slurmdbd, which otherwise records no job; return whether it answered."""
        argv = [*where, *clean, sacctmgr, "-i", "add", "cluster", "sandbox"]
        try:
            done = commands.run(argv, timeout=30.0)
        except CommandError:
            return False
        return done.rc == 0 or "already exists" in done.stdout + done.stderr

    def _until(self, reached: Callable[[], bool], what: str, daemon: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                path = self.layout.log_file(daemon)
                lines = path.read_text(errors="replace").splitlines() if path.exists() else []
                output = " | ".join(lines[-3:]) or f"no log at {path}"
                raise SandboxError(f"{what} does not answer after {_PATIENCE:.0f} s: {output}")
            time.sleep(0.05)

    def _run(self, argv: Sequence[str], what: str) -> None:
        try:
            done = commands.run(argv, timeout=_PATIENCE, env={"PATH": self.path})
        except CommandError as error:
            raise SandboxError(f"{what} could not be started: {error}") from error
        if done.rc != 0:
            output = (done.stderr.strip() or done.stdout.strip()).splitlines()
            why = " | ".join(output[-3:]) or "no message"
            raise SandboxError(f"{what} could not be started (exit {done.rc}): {why}")


def find_programs(path: str) -> dict[str, str]:
    """Return what accounting needs; SandboxError names the packages that are absent."""
    return commands.find_programs(_PACKAGES, path, "accounting needs")


def slurmdbd_conf(layout: Layout, address: str, port: int, user: str) -> str:
    """Return slurmdbd.conf."""
    communication = "NoInAddrAny" if address == LOOPBACK else "DisableIPv6"
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost=localhost
DbdAddr={address}
DbdPort={port}
CommunicationParameters={communication}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc={_DATABASE}
LogFile={layout.log_file("slurmdbd")}
PidFile={layout.pid_file("slurmdbd")}
"""


def slurm_conf(layout: Layout, address: str, port: int) -> str:
    """Return the lines of slurm.conf that send accounting there."""
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={address}
AccountingStoragePort={port}
AccountingStoragePass={layout.munge_socket}
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
"""
