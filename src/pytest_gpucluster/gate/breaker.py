"""The circuit breaker: what fails on many nodes at once is a common cause, which takes no node out of service.

Each gate that would take its node out of service leaves an empty file FOLDER/CHECK/NODE. Where more than `most` of them
are younger than an hour, or the folder does not answer, nothing is taken out of service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.node.own_folder import OWN_SH

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.transport.base import Transport

MINUTES = 60
PATIENCE = 2.0  # seconds for a folder that may be on a file server
# a process of its own: a file server that is away must not hold the gate
_SCRIPT = f'{OWN_SH}{script(__package__, "breaker.sh")}\nbreaker "$@"'


@dataclass(frozen=True)
class Breaker:
    """The breaker of one node. `folder` None: the cluster file names none."""

    folder: str | None
    node: str
    most: int
    transport: Transport

    def why_open(self, check: str) -> str:
        """Return why a failure of this check takes no node out of service now; '' where it may."""
        if self.folder is None:
            return "the cluster file names no folder that all nodes share (gate.state)"
        argv = ["sh", "-c", _SCRIPT, "sh", self.folder.rstrip("/"), check, self.node, str(MINUTES)]
        try:
            done = self.transport.run(argv, timeout=PATIENCE)
        except TransportError:
            return f"{self.folder} does not answer within {PATIENCE:g} s"
        if done.rc != 0 or not done.stdout.strip().isdigit():
            return f"{self.folder} cannot be used: {one_line(done.stderr, 80) or 'no message'}"
        count = int(done.stdout)
        if count <= self.most:
            return ""
        return f"{count} nodes fail {check} within {MINUTES} min, gate.max_failing is {self.most}: a common cause"
