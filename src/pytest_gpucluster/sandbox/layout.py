"""Where a sandbox keeps its things: one state folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pytest_gpucluster.core.errors import SandboxError


def default_state_dir() -> Path:
    """Return $GPUCLUSTER_SANDBOX, else the user's XDG state folder."""
    named = os.environ.get("GPUCLUSTER_SANDBOX")
    if named:
        return Path(named).absolute()
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise SandboxError(f"{error}: name the sandbox's folder by GPUCLUSTER_SANDBOX=DIR") from error
    return Path(state).absolute() / "pytest-gpucluster" / "sandbox"


@dataclass(frozen=True)
class Layout:
    """The paths below one state folder."""

    root: Path

    @property
    def etc(self) -> Path:
        """slurm.conf and its companions, munge key, prolog scripts."""
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
        """One log a daemon."""
        return self.root / "log"

    @property
    def simbin(self) -> Path:
        """The simulated tools, first on the PATH of every task."""
        return self.root / "simbin"

    @property
    def enroot(self) -> Path:
        """The container plugin and what it calls; bin/NODE is first on the PATH of the node's slurmd."""
        return self.root / "enroot"

    @property
    def nodes(self) -> Path:
        """What each virtual node shows: one folder a node."""
        return self.root / "nodes"

    @property
    def munge_socket(self) -> Path:
        """The socket of our own munged."""
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
        """What runs: shape, ports, process ids."""
        return self.root / "sandbox.json"

    @property
    def lock(self) -> Path:
        """Held by up, down, fault and heal; beside the state folder, which down removes."""
        return self.root.with_name(self.root.name + ".lock")

    def node(self, name: str) -> Path:
        """Return the folder of one virtual node."""
        return self.nodes / name

    def disk(self, name: str) -> Path:
        """Return what a namespaced node has to itself: its tmp and run."""
        return self.root / "disk" / name

    def pid_file(self, daemon: str) -> Path:
        """Return the pid file of munged, slurmctld or slurmd-NODE."""
        return self.run / f"{daemon}.pid"

    def log_file(self, daemon: str) -> Path:
        """Return the log of munged, slurmctld or slurmd-NODE."""
        return self.log / f"{daemon}.log"
