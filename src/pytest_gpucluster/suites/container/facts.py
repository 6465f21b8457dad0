"""What tasks outside and inside of a container have told of a node. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.kit.containers import ImageImport
    from pytest_gpucluster.suites.container.config import ContainerConfig

HOST_VALUE, PASSED = "gpucluster-outside", "passed-through"
MOUNTED, MOUNTED_RO = "/gpucluster-rw", "/gpucluster-ro"
RANKS_PER_NODE = 2


@dataclass(frozen=True)
class Seen:
    """What the tasks of one step told on one node; `problem` says why they told nothing.

    `unsaved`: why the container could not be saved when its tasks had ended.
    """

    tasks: tuple[Mapping[str, str], ...] = ()
    problem: str = ""
    seconds: float = 0.0
    unsaved: str = ""

    @property
    def facts(self) -> Mapping[str, str]:
        """What the first task told."""
        return self.tasks[0] if self.tasks else {}


@dataclass(frozen=True)
class Found:
    """Everything about one node. Steps that never ran there have no entry in `seen`."""

    node: str
    config: ContainerConfig
    imports: tuple[ImageImport, ...]
    seen: Mapping[str, Seen] = field(default_factory=dict)
    gpus: int = 0
    override: str = ""
    token: str = ""
    token_back: bool = False
    saved_removed: str = ""
    nodes_of_job: tuple[str, ...] = ()

    def step(self, name: str) -> Seen:
        """Return what a step told."""
        return self.seen.get(name, Seen(problem="the step was not run on this node"))

    @property
    def main(self) -> ImageImport:
        """The import that the steps re-use."""
        return self.imports[0]

    @property
    def contained(self) -> bool | None:
        """Whether the tasks ran in a container; None where there is nothing to tell it from."""
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
