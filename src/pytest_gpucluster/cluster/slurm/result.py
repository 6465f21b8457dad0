"""Results of a step and of its tasks: plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.pyxis import explain
from pytest_gpucluster.core.complaint import first_complaint

if TYPE_CHECKING:
    from pytest_gpucluster.core.finding import Explanation

# from a slurmd that processed the end of the job before the launch of the step (slurm_errno.c, 22.05 to 25.11)
REVOKED = "Job credential revoked"
_TASKS = re.compile(r"\b(\d{1,7})(?:-(\d{1,7}))?\b")
MAX_TASK = 1 << 17  # far above any step; a damaged line must not fill the memory


@dataclass(frozen=True)
class TaskResult:
    """How one task ended. `rc` None: unknown. `signal`: also set for an exit status of 128 + signal.

    `root`, `image`: what a task of a step with a container reports of its root file system (see task_place.py).
    """

    rank: int
    node: str
    rc: int | None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    root: str = ""
    image: str = ""

    @property
    def ok(self) -> bool:
        """The task is known to have ended with 0."""
        return self.rc == 0


@dataclass(frozen=True)
class StepResult:
    """A step that ended. `stderr` is from srun, slurmstepd and Pyxis; `command` reproduces the step."""

    rc: int
    tasks: tuple[TaskResult, ...]
    stderr: str
    seconds: float
    command: str
    stdout: str = ""

    @property
    def ok(self) -> bool:
        """The step and every task of it ended with 0."""
        return self.rc == 0 and all(task.rc in (0, None) for task in self.tasks)

    @property
    def explanation(self) -> Explanation | None:
        """The meaning of the messages; None if unknown."""
        return explain(self.stderr + "\n" + "\n".join(task.stderr for task in self.tasks if not task.ok))

    @property
    def hint(self) -> str | None:
        """The meaning of the messages, in one line; None if unknown."""
        found = self.explanation
        return str(found) if found else None

    @property
    def first_error(self) -> str:
        """The first complaint on stderr of a failed task, or else of the step; its first line if none complains."""
        failed = (task.stderr for task in self.tasks if task.rc not in (0, None) and task.stderr.strip())
        text = next(failed, self.stderr).strip()
        nothing = f"the step exited {self.rc} and printed nothing about this group"
        return first_complaint(text) or text.partition("\n")[0][:300] or nothing

    def of_node(self, node: str) -> tuple[TaskResult, ...]:
        """Return the tasks of one node, in rank order."""
        return tuple(task for task in self.tasks if task.node == node)


def task_numbers(text: str) -> tuple[int, ...]:
    """Expand srun's task list: '0-2,5' is (0, 1, 2, 5)."""
    numbers: list[int] = []
    for match in _TASKS.finditer(text):
        numbers.extend(range(int(match[1]), min(int(match[2] or match[1]), MAX_TASK) + 1))
    return tuple(numbers)
