"""The error tree. Every message is one line: what, where, what to do.

GpuClusterError
├── ConfigError        a cluster or profile file is wrong (file, line and key are in the message)
├── TransportError     a command could not be started, or did not answer in time
├── SlurmError         a Slurm command failed (argv, rc, stderr)
│   ├── AllocationError    no nodes were had
│   └── StepError          a step could not run
│       ├── StepTimeout    a step outlived its deadline
│       └── StepCancelled  somebody else ended a step: nothing is known against its nodes
├── ProbeError         a command answered something that its probe does not understand
│   └── NotAvailable   the command could not run at all: tool absent, no permission
└── SandboxError       the sandbox could not be started or stopped
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.result import StepResult


class GpuClusterError(Exception):
    """Everything that this package raises on purpose."""


class ConfigError(GpuClusterError):
    """A cluster or profile file, or an option, is wrong."""


class TransportError(GpuClusterError):
    """A control command could not be started or did not answer in time."""


class SlurmError(GpuClusterError):
    """A Slurm command failed.

    `argv` is the command, `rc` its exit status (None: it never ended), `stderr` what it said.
    """

    def __init__(
        self, message: str, *, argv: Sequence[str] = (), rc: int | None = None, stderr: str = ""
    ) -> None:
        super().__init__(message)
        self.argv = tuple(argv)
        self.rc = rc
        self.stderr = stderr


class AllocationError(SlurmError):
    """Slurm gave no nodes, or took them back. `nodes`: those at fault and why, where the others might be had."""

    nodes: Mapping[str, str] = MappingProxyType({})


class StepError(SlurmError):
    """A step could not be run; `result` is the StepResult of what had come by then."""

    result: StepResult | None = None


class StepTimeout(StepError):  # reads as what it is
    """A step outlived its deadline and was cancelled.

    `unstarted` are nodes where no task had begun while others had; `unended` the begun tasks (rank: node) without end.
    """

    unstarted: tuple[str, ...] = ()
    unended: Mapping[int, str] = MappingProxyType({})


class StepCancelled(SlurmError):  # reads as what it is
    """A step was ended from outside (scancel, a signal to srun): never a verdict, so no StepError, which may be one.

    `result` is the StepResult of what had come by then.
    """

    result: StepResult | None = None


class ProbeError(GpuClusterError):
    """A command answered something that its probe does not understand."""


class NotAvailable(ProbeError):  # a state of the node, not a mistake
    """The command of a probe could not run there: the tool is absent or permission is missing."""


class SandboxError(GpuClusterError):
    """The sandbox could not be started or stopped."""
