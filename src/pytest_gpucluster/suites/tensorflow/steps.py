"""TensorFlow as steps: its package, MirroredStrategy on every node, MultiWorkerMirroredStrategy over all nodes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.suites.tensorflow import TensorflowConfig, checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult


class Tensorflow(FrameworkStepRunner[TensorflowConfig]):
    """The steps of one allocation; the first access runs each."""

    section = key = "tensorflow"

    @cached_property
    def packages(self) -> PayloadResult:
        """Whether tensorflow is installed, without importing it."""
        return self.attempt(self._step(self.nodes, "find", ntasks_per_node=1))

    @cached_property
    def fit_nodes(self) -> tuple[str, ...]:
        """The nodes that have tensorflow."""
        return tuple(node for node in self.nodes if checks.framework(node, self.packages).outcome is not Outcome.FAILED)

    @cached_property
    def mirrored(self) -> PayloadResult:
        """The result of one process per node with all its devices, each node alone."""
        if not self.fit_nodes:
            return self.nothing()
        gpus = self.real_gpus or None
        return self.attempt(self._step(self.fit_nodes, "mirrored", ntasks_per_node=1, gpus_per_node=gpus))

    @cached_property
    def workers(self) -> PayloadResult:
        """The result of one worker per task, all nodes together."""
        if not self.fit_nodes:
            return self.nothing()
        hosts = ",".join(f"{node}={self.address(node)}" for node in self.fit_nodes)
        options = {"ntasks_per_node": self.ranks_per_node, "gpus_per_task": 1 if self.real_gpus else None}
        return self.until_port_is_free(self._step(self.fit_nodes, "workers", "--hosts", hosts, **options))

    def _step(self, nodes: Sequence[str], mode: str, *words: str, **options: Any) -> StepRequest:
        argv = self.payload(mode, "--deadline", str(self.phase), *words)
        return self.request(argv, nodes=tuple(nodes), **options)
