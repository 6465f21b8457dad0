"""The error tree. Every message is one line: what, where, what to do.

GpuClusterError
├── ConfigError        a cluster or profile file is wrong (file, line and key are in the message)
├── TransportError     a command could not be started, or did not answer in time
├── SlurmError         a Slurm command failed (argv, rc, stderr)
│   ├── AllocationError    Slurm allocated no nodes
│   ├── StepError          a step could not run
│   │   ├── StepTimeout    a step exceeded its deadline
│   │   └── StepMisplaced  tasks ran outside of the stated container, or in other numbers per node
│   └── StepCancelled      another process or user ended a step: its nodes are not at fault
├── ProbeError         a probe cannot parse the output of its command
│   └── NotAvailable   the facts lack what a check needs: tool absent, no permission, no value
├── NotJudged          a check, or a part of it, cannot be judged; the message is the reason
│   ├── NotAvailable   "not checked": it is a ProbeError too
│   ├── NotApplicable  "not applicable" to this hardware or cluster
│   └── NotTested      "not tested": the node is out of service or was lost
└── SandboxError       the sandbox could not be started or stopped
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.result import StepResult

AnyError = TypeVar("AnyError", bound="GpuClusterError")


class GpuClusterError(Exception):
    """Everything that this package raises on purpose. `waited`: something else was busy or away, and may be back later.

    `brief`: the message without the command that repeats a step, '' where it holds none.
    """

    waited = False
    brief = ""


def has_waited(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, is a wait in vain."""
    return error is not None and (getattr(error, "waited", False) or has_waited(error.__cause__))


def in_vain(error: AnyError) -> AnyError:
    """Return an error, marked as a wait in vain."""
    error.waited = True
    return error


class ConfigError(GpuClusterError):
    """A cluster or profile file, or an option, is wrong.

    `every`: one line per error if the file has several; the message is the first one and the number of the others.
    """

    every: tuple[str, ...] = ()


class TransportError(GpuClusterError):
    """A control command could not be started or did not answer in time."""


class SlurmError(GpuClusterError):
    """A Slurm command failed.

    `argv` is the command, `rc` its exit status (None: it never ended), `stderr` its error output.
    """

    def __init__(self, message: str, *, argv: Sequence[str] = (), rc: int | None = None, stderr: str = "") -> None:
        super().__init__(message)
        self.argv = tuple(argv)
        self.rc = rc
        self.stderr = stderr


class AllocationError(SlurmError):
    """Slurm allocated no nodes, or revoked them.

    `nodes`: {node: reason} of those at fault, if Slurm may allocate the others.
    """

    nodes: Mapping[str, str] = MappingProxyType({})


class StepError(SlurmError):
    """A step could not run; `result` is the StepResult of the output until then."""

    result: StepResult | None = None


class StepTimeout(StepError):
    """A step exceeded its deadline and was cancelled.

    `unstarted`: nodes without a started task, if other nodes have one; `unended`: {rank: node} of running tasks.
    """

    unstarted: tuple[str, ...] = ()
    unended: Mapping[int, str] = MappingProxyType({})


class StepMisplaced(StepError):
    """Tasks ran elsewhere than the step states: what they printed is no result.

    `nodes`: {node: reason}: the task ran on the host instead of in the container, in a container of another image, or
    the node has another number of tasks. `result` has the output of all tasks; that of the other nodes is valid.
    """

    nodes: Mapping[str, str] = MappingProxyType({})


class StepCancelled(SlurmError):
    """A step was ended from outside (scancel, a signal to srun). No StepError, which may lead to a verdict.

    `result` is the StepResult of the output until then.
    """

    result: StepResult | None = None


class ProbeError(GpuClusterError):
    """A probe cannot parse the output of its command."""


NOT_STATED = "not_stated"  # NotJudged.code: the cluster file states no expectation


class NotJudged(GpuClusterError):
    """A check, or a part of it, cannot be judged; the message is the reason.

    A check raises one to end there, and yields one to continue with its other parts: what it yielded before counts.
    A fact, or a fixture of a test, raises one to end the item. `outcome`: how the check or item ends. `code`: a stable word for
    the reason, where a program decides by it.
    """

    outcome: ClassVar[str] = ""

    def __init__(self, reason: str = "", code: str = "") -> None:
        super().__init__(reason)
        self.code = code


class NotAvailable(NotJudged, ProbeError):  # a state of the node, not a mistake
    """The facts lack what the check needs, like a command that could not run. The check is "not checked", never passed."""

    outcome = "not checked"


class NotApplicable(NotJudged):
    """The check does not apply to this hardware or cluster."""

    outcome = "not applicable"


class NotTested(NotJudged):
    """The item's node cannot be tested; an entry of its own says so at the end of the run."""

    outcome = "not tested"


class SandboxError(GpuClusterError):
    """The sandbox could not be started or stopped."""
