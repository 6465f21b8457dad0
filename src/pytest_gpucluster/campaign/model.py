"""What a campaign consists of: kinds of groups, groups under test, results of nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.report.proof import FAILED, FIT

if TYPE_CHECKING:
    from collections.abc import Mapping

JUDGED = (FIT, FAILED)


@dataclass(frozen=True)
class Kind:
    """Suites whose groups have the same form. `size` nodes a group; each node with `partners` other nodes, one at a time.

    `expression` is -m of their runs. `larger`: groups of more than two nodes, each node in one that passes.
    """

    name: str
    expression: str
    suites: tuple[str, ...] = ()
    size: int = 1
    partners: int = 0
    larger: bool = False


@dataclass(frozen=True)
class Campaign:
    """`nodes`: all that must get a verdict, in their order. Times in seconds since the epoch; `closed` None: not ended."""

    number: int
    cluster: str
    name: str
    simulated: bool
    nodes: tuple[str, ...]
    kinds: tuple[Kind, ...]
    began: float
    closed: float | None = None


@dataclass(frozen=True)
class RunGroup:
    """Nodes that one run tests. `waits`: some of them were busy when it was started.

    `owner` and `child` are marks of processes (core/run_mark.py); the run lasts at most `until` - `began`: the clock is that of the
    machine that has started it, so that the difference alone counts elsewhere.
    """

    number: int
    campaign: int
    kind: str
    nodes: tuple[str, ...]
    waits: bool
    folder: str
    owner: str
    child: str
    began: float
    until: float
    ended: float | None = None
    run: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class NodeResult:
    """How one group ended for one node; node '': for the cluster. `outcome`: FIT, FAILED, NOT_PROVED or NOT_TESTED.

    `boot`: when the node was booted, as Slurm writes it. `left`: the node went out of service since, or was booted.
    """

    kind: str
    node: str
    group: int
    nodes: tuple[str, ...]
    ended: float
    outcome: str
    message: str = ""
    boot: str = ""
    left: bool = False

    @property
    def partners(self) -> tuple[str, ...]:
        """The other nodes of the group."""
        return tuple(node for node in self.nodes if node != self.node)


@dataclass(frozen=True)
class SlurmNode:
    """A node as Slurm shows it now. `share`: nodes of the same share can be in one group."""

    idle: bool
    in_service: bool
    share: object = None
    why: str = ""
    boot: str = ""


@dataclass(frozen=True)
class View:
    """All that the planner decides by.

    `limit`: how many nodes may be under test and waited for at once. `ages`: {node: when its oldest suite was last good};
    `bad`: {node: why}, of the pairs of the campaign; `wanted`: pairs to test first.
    """

    campaign: Campaign
    results: tuple[NodeResult, ...]
    nodes: Mapping[str, SlurmNode]
    limit: int
    ages: Mapping[str, float] = field(default_factory=dict)
    bad: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[tuple[str, str], ...] = ()
