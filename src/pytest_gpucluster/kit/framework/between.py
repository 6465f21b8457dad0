"""What a distributed suite proves between nodes: the verdict of each node, the same rule in all suites. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, NotJudged

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpucluster.core.check import Judgement

ONE_NODE_RUN = "the run has one node: it proves the node alone, and nothing between nodes"
NOTHING = "nothing between nodes was proved"


@dataclass(frozen=True)
class Reach:
    """The nodes with which a node can exchange data: those of its allocation, up to the suite's key `nodes`.

    selected: how many nodes the run has in all. allocated: those of the allocation that can be tested.
    """

    section: str
    selected: int
    allocated: int
    limit: int | None = None

    def obstacle(self, node: str) -> NotJudged | None:
        """Return why the node has no other to exchange data with; None if it has one.

        A run of one node makes nothing between nodes possible. Partitions and `nodes: 1` leave unproved what is possible.
        """
        if self.selected < 2:
            return NotApplicable(ONE_NODE_RUN)
        if self.allocated < 2:
            return NotAvailable(
                f"{NOTHING}: no other node of the run shares partition and GPU count with {node}; test it with "
                "another node of its kind, or waive the check"
            )
        if self.limit is not None and self.limit < 2:
            return NotAvailable(f"{NOTHING}: {self.section}.nodes is 1; set it to 2 or more, or remove it")
        return None


def judge_between(node: str, reach: Reach, exchanged: Collection[str], see: str) -> Judgement:
    """Judge that a node is among the nodes whose ranks exchanged right data, and not alone where the run has others.

    see: the checks that judge why it is not.
    """
    obstacle = reach.obstacle(node)
    if isinstance(obstacle, NotAvailable):
        yield obstacle
    elif node not in exchanged:
        yield NotAvailable(f"the ranks of {node} exchanged no data: see {see}")
    elif obstacle:
        yield obstacle
    elif len(exchanged) < 2:
        yield NotAvailable(f"{NOTHING} with {node}: see {see}")
