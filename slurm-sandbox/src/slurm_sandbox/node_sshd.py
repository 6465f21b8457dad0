"""A real sshd for each plain node of a sandbox with isolated jobs: its PAM stack has the distribution's pam_slurm_adopt.

An sshd listens on loopback, and reads /etc/pam.d of its node. It admits only users whose public key is in
STATE/ssh/authorized/USER, which only root can write.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_sandbox import commands, daemons
from slurm_sandbox.errors import CommandError, SandboxError
from slurm_sandbox.isolation import MODULE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurm_sandbox.layout import Layout

PACKAGES = "libpam-slurm-adopt openssh-server openssh-client"
_FOLDERS = ("lib*/security", "lib/*/security", "usr/lib*/security", "usr/lib/*/security")
_PROGRAMS = ("sshd", "ssh", "ssh-keygen")
_ENTER = Path(__file__).parent / "data" / "enter-pam.sh"


def find_module() -> Path | None:
    """Return the distribution's pam_slurm_adopt.so; None if there is none, or Slurm is not the distribution's."""
    if daemons.unusual_folder() is not None:  # another version would not understand slurmstepd
        return None
    found = (path for folder in _FOLDERS for path in sorted(Path("/").glob(f"{folder}/{MODULE}")))
    return next(found, None)


def why_not() -> str:
    """Return why the nodes have no sshd with pam_slurm_adopt, '' if they have."""
    if daemons.unusual_folder() is not None:
        return "Slurm is not that of the distribution, whose pam_slurm_adopt would not understand it"
    absent = [name for name in _PROGRAMS if not _program(name)] + ([] if find_module() else [MODULE])
    return f"no {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}" if absent else ""


def _program(name: str) -> str:
    return shutil.which(name, path=daemons.search_path()) or ""


@dataclass(frozen=True)
class NodeSshd:
    """The sshd of every node of one sandbox. `first_port`: the port of the first node."""

    layout: Layout
    first_port: int

    @property
    def config(self) -> Path:
        """The configuration of ssh with the addresses of the nodes."""
        return self.layout.ssh / "config"

    def prepare(self, nodes: Sequence[str]) -> None:
        """Write keys and configurations."""
        folder = self.layout.ssh
        (folder / "authorized").mkdir(parents=True)
        for name in ("host_key", "id_root"):
            self._run(
                [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", str(folder / name)]
            )
        shutil.copy(folder / "id_root.pub", folder / "authorized" / "root")
        key = " ".join((folder / "host_key.pub").read_text().split()[:2])
        hosts = ""
        known = ""
        for port, node in enumerate(nodes, self.first_port):
            (folder / f"sshd_config.{node}").write_text(self._sshd_config(node, port))
            hosts += f"Host {node}\n  Port {port}\n"
            known += f"[127.0.0.1]:{port} {key}\n"
        (folder / "known_hosts").write_text(known)
        self.config.write_text(
            f"{hosts}Host *\n  HostName 127.0.0.1\n  IdentityFile {folder}/id_root\n"
            f"  GlobalKnownHostsFile {folder}/known_hosts\n  UserKnownHostsFile /dev/null\n"
        )

    def _sshd_config(self, node: str, port: int) -> str:
        folder = self.layout.ssh
        return f"""\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized/%u
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM yes
UseDNS no
StrictModes no
PidFile {self.layout.pid_file(f"sshd-{node}")}
PrintMotd no
PrintLastLog no
SetEnv SHLVL=1
"""

    def start(self, nodes: Sequence[str]) -> None:
        """Start the sshd of every node; each listens when this returns."""
        for node in nodes:
            pam = self.layout.node(node) / "root/etc/pam.d"
            options = [
                "-f",
                str(self.layout.ssh / f"sshd_config.{node}"),
                "-E",
                str(self.layout.log_file(f"sshd-{node}")),
            ]
            self._run(
                [
                    *("unshare", "--mount", "sh", str(_ENTER), str(pam), str(self.layout.ssh / "passwd")),
                    *("env", "-i", f"SLURM_CONF={self.layout.conf}", f"PATH={daemons.search_path()}"),
                    *(_program("sshd"), *options),
                ]
            )

    def _run(self, argv: Sequence[str]) -> None:
        try:
            done = commands.run(argv, timeout=60.0)
        except CommandError as error:
            raise SandboxError(f"sshd could not be started: {error}") from error
        if done.rc != 0:
            raise SandboxError(f"sshd could not be started (exit {done.rc}): {' '.join(done.stderr.split())}")
