"""A testinfra backend on the fleet channel: any testinfra test runs on every node, with one round trip per command.

    host = host_of(fleet, "gpu03")
    assert host.file("/etc/slurm/slurm.conf").exists

A command for one node runs on all nodes at once, and the answers are cached: a later, equal command does not see changes
that a test makes. With `host.backend.fresh = True` each command runs again, on this node only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import testinfra.backend
from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.host import Host

from pytest_gpucluster.cluster.channel.channel import CAP, TIMEOUT
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.channel.channel import Channel

NAME = "gpucluster"


class FleetBackend(BaseBackend):
    """Runs testinfra's commands on one node of a channel.

    `timeout` in seconds and `cap` in bytes apply to each command. TransportError if the node is lost, the command did
    not end in time, or printed more than the cap: a test cannot judge these.
    """

    NAME = NAME

    def __init__(
        self,
        hostname: str,
        channel: Channel,
        *,
        timeout: float = TIMEOUT,
        cap: int = CAP,
        fresh: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(hostname, **options)
        self.channel, self.timeout, self.cap, self.fresh = channel, timeout, cap, fresh
        self._encoding = "utf-8"  # saves testinfra a command on each node
        self.last_command = ""  # that `run` was called with

    def run(self, command: str, *args: str, **_: Any) -> CommandResult:
        """Run a command; `args` are quoted into its %s."""
        text = self.last_command = self.get_command(command, *args)
        node = self.hostname
        answer = self.channel.ask_node(node, text, timeout=self.timeout, cap=self.cap, fresh=self.fresh)
        if answer.lost:
            raise TransportError(f"{node}: {answer.problem}")
        if answer.rc is None:
            raise TransportError(f"node {node}: {answer.problem}: {text!r}")
        if answer.truncated:
            raise TransportError(f"node {node}: more than {self.cap} bytes of output from {text!r}: cut")
        return self.result(answer.rc, text.encode(), answer.stdout, answer.stderr)

    def decode(self, data: bytes) -> str:
        """Return text; bytes that are not UTF-8 are replaced."""
        return data.decode("utf-8", "replace")

    def get_sudo_command(self, command: str, sudo_user: str | None) -> str:
        """Return the command under sudo, which fails instead of prompting for a password."""
        user = self.quote("-u %s ", sudo_user) if sudo_user else ""
        return f"sudo -n {user}{self.quote('/bin/sh -c %s', command)}"


def host_of(channel: Channel, node: str, *, sudo: bool = False, timeout: float = TIMEOUT, fresh: bool = False) -> Host:
    """Return the testinfra Host of a node. `sudo`: every command goes through `sudo -n`."""
    backend = FleetBackend(node, channel, sudo=sudo, timeout=timeout, fresh=fresh)
    host = Host(backend)
    backend.set_host(host)
    return host


testinfra.backend.BACKENDS[NAME] = f"{FleetBackend.__module__}.{FleetBackend.__qualname__}"
