"""The circuit breaker: what fails on many nodes at once is a common cause, which takes no node out of service.

Each gate that would take its node out of service leaves an empty file FOLDER/CHECK/NODE. Where more than `most` of them
are younger than an hour, or the own one cannot be left and counted, nothing is taken out of service.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.gate.files import PATIENCE, count_marks

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.transport.base import Transport

MINUTES = 60


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
        try:
            count = count_marks(Path(self.folder), self.transport, check, self.node, 60 * MINUTES)
        except TransportError:
            return f"{self.folder} does not answer within {PATIENCE:g} s"
        except (OSError, ValueError) as error:
            return f"{self.folder} cannot be used: {error}"
        if count <= self.most:
            return ""
        return f"{count} nodes fail {check} within {MINUTES} min, gate.max_failing is {self.most}: a common cause"
