"""The paths of a sandbox's state folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from slurm_sandbox.errors import SandboxError


def default_state_dir(variable: str, folder: str) -> Path:
    """Return the folder that an environment variable names, else `folder` below the user's XDG state folder."""
    named = os.environ.get(variable)
    if named:
        return Path(named).absolute()
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise SandboxError(f"{error}: set the sandbox's folder with {variable}=DIR") from error
    return Path(state).absolute() / folder


@dataclass(frozen=True)
class Layout:
    """The paths below one state folder."""

    root: Path

    @property
    def etc(self) -> Path:
        """slurm.conf and the other configuration files, munge key, prolog scripts."""
        return self.root / "etc"

    @property
    def conf(self) -> Path:
        """The slurm.conf."""
        return self.etc / "slurm.conf"

    @property
    def run(self) -> Path:
        """Pid files and the munge socket."""
        return self.root / "run"

    @property
    def log(self) -> Path:
        """One log per daemon."""
        return self.root / "log"

    @property
    def simbin(self) -> Path:
        """The simulated tools, first on the PATH of every task."""
        return self.root / "simbin"

    @property
    def enroot(self) -> Path:
        """The container plugin and its programs; bin/NODE is first on the PATH of the node's slurmd."""
        return self.root / "enroot"

    @property
    def nodes(self) -> Path:
        """The files of the virtual nodes: one folder per node."""
        return self.root / "nodes"

    @property
    def shared(self) -> Path:
        """A real folder that all nodes share."""
        return self.root / "shared"

    @property
    def munge_socket(self) -> Path:
        """The socket of the sandbox's munged."""
        return self.run / "munge.socket"

    @property
    def bin(self) -> Path:
        """Slurm's commands for namespaced nodes: they enter the sandbox's network."""
        return self.root / "bin"

    @property
    def ssh(self) -> Path:
        """Keys and configuration of ssh between namespaced nodes."""
        return self.root / "ssh"

    @property
    def state(self) -> Path:
        """The state of the sandbox: nodes, ports, processes."""
        return self.root / "sandbox.json"

    @property
    def lock(self) -> Path:
        """The lock of up, down, fault and heal; outside the state folder, which down removes."""
        return self.root.with_name(self.root.name + ".lock")

    def node(self, name: str) -> Path:
        """Return the folder of one virtual node."""
        return self.nodes / name

    def disk(self, name: str) -> Path:
        """Return the folder of a namespaced node's own /tmp and /run."""
        return self.root / "disk" / name

    def pid_file(self, daemon: str) -> Path:
        """Return the pid file of munged, slurmctld or slurmd-NODE."""
        return self.run / f"{daemon}.pid"

    def log_file(self, daemon: str) -> Path:
        """Return the log of munged, slurmctld or slurmd-NODE."""
        return self.log / f"{daemon}.log"
