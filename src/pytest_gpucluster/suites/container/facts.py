"""Facts that tasks outside and inside of a container reported. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Explanation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.suites.container.config import ContainerConfig
    from pytest_gpucluster.suites.container.containers import ImageImport

HOST_VALUE, PASSED = "gpucluster-outside", "passed-through"
MOUNTED, MOUNTED_RO = "/gpucluster-rw", "/gpucluster-ro"
RANKS_PER_NODE = 2
NO_LIST = "no_list"  # the code of a node whose containers are not known


@dataclass(frozen=True)
class StepFacts:
    """Facts of the tasks of one step on one node; `problem`: why there are none.

    `unsaved`: why the container could not be saved after its tasks ended.
    """

    tasks: tuple[Mapping[str, str], ...] = ()
    problem: Explanation | None = None
    seconds: float = 0.0
    unsaved: Explanation | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """The facts of the first task."""
        return self.tasks[0] if self.tasks else {}


NOT_RUN = StepFacts(problem=Explanation("not_run", "the step was not run on this node"))


@dataclass(frozen=True)
class ContainerFacts:
    """Facts of one node. Steps that did not run there have no entry in `seen`."""

    node: str
    config: ContainerConfig
    imported: ImageImport
    seen: Mapping[str, StepFacts] = field(default_factory=dict)
    gpus: int = 0
    override: str = ""
    token: str = ""
    token_back: bool = False
    not_removed: Explanation | None = None  # why the saved container was not removed
    nodes_of_job: tuple[str, ...] = ()
    entrypoint_elsewhere: bool = False  # a step started through the image's entrypoint on another node

    @property
    def not_imported(self) -> Explanation | None:
        """Why the image was not imported on the node; None where it was."""
        return self.imported.failed.get(self.node)

    def step(self, name: str) -> StepFacts:
        """Return the facts of a step."""
        return self.seen.get(name, NOT_RUN)

    @property
    def contained(self) -> bool | None:
        """Whether the tasks ran in a container; None if a step reported nothing."""
        inside, outside = self.step("plain").facts, self.step("outside").facts
        if not inside or not outside:
            return None
        return inside.get("root") != outside.get("root") or inside.get("release") != outside.get("release")


def read_facts(text: str) -> dict[str, str]:
    """Read the lines `c|KEY|VALUE` of the payload."""
    facts = {}
    for line in text.splitlines():
        parts = line.split("|", 2)
        if len(parts) == 3 and parts[0] == "c":  # the three parts of a line
            facts[parts[1]] = parts[2]
    return facts
