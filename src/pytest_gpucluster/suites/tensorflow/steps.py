"""TensorFlow as steps: what is there, MirroredStrategy on every node, MultiWorkerMirroredStrategy over all."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.framework_step import WITHOUT_GPUS
from pytest_gpucluster.kit.payload_result import PayloadResult
from pytest_gpucluster.kit.payload_step import run_payload, source_of
from pytest_gpucluster.suites.tensorflow import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
    from pytest_gpucluster.suites.tensorflow.config import TensorflowConfig

KEY = "tensorflow"
TRIES = 3  # with ports of our own that happen to be taken: each step has others


class Tensorflow:
    """The steps of one allocation, each run when it is first asked for."""

    def __init__(self, steps: FrameworkStepRunner, claim: TensorflowConfig) -> None:
        self._steps, self.claim = steps, claim
        self.nodes, self.gpus, self.environment = steps.nodes, steps.real_gpus, steps.environment
        self.ntasks_per_node = claim.ntasks_per_node or self.gpus or WITHOUT_GPUS

    @cached_property
    def found(self) -> PayloadResult:
        """Whether tensorflow is there, without importing it."""
        return self._run(self.nodes, "find", ntasks_per_node=1)

    @cached_property
    def fit(self) -> tuple[str, ...]:
        """The nodes that have it."""
        return tuple(
            node for node in self.nodes if checks.framework(node, self.found).outcome is not Outcome.FAILED
        )

    @cached_property
    def mirrored(self) -> PayloadResult:
        """One process a node with all its devices; every node by itself."""
        if not self.fit:
            return PayloadResult(KEY, (), 0)
        options: dict[str, Any] = {"gpus_per_node": self.gpus} if self.gpus else {}
        return self._run(self.fit, "mirrored", ntasks_per_node=1, **options)

    @cached_property
    def workers(self) -> PayloadResult:
        """A worker a task, all nodes together."""
        if not self.fit:
            return PayloadResult(KEY, (), 0)
        hosts = ",".join(f"{node}={self._steps.address(node)}" for node in self.fit)
        options: dict[str, Any] = {"gpus_per_task": 1} if self.gpus else {}
        for _ in range(TRIES):
            told = self._run(
                self.fit, "workers", "--hosts", hosts, ntasks_per_node=self.ntasks_per_node, **options
            )
            if not any("already in use" in fact["reason"] for fact in told.facts("failed")):
                break
        return told

    def _run(self, nodes: Sequence[str], mode: str, *words: str, **options: Any) -> PayloadResult:
        phase = str(max(10.0, self.claim.deadline / 3))
        argv = self._steps.payload(source_of(__file__), mode, "--deadline", phase, *words)
        request = self._steps.request(argv, nodes=tuple(nodes), **options)
        return run_payload(self._steps.slurm, self._steps.allocation, request, KEY)
