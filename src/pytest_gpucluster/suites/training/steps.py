"""The training as steps: torch's version, each node alone, all nodes together."""

from __future__ import annotations

import contextlib
import secrets
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import run_mark
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import SlurmError, StepError
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.nccl.nccl_transport import LOGGED
from pytest_gpucluster.suites.training import checks
from pytest_gpucluster.suites.training.config import TrainingConfig
from pytest_gpucluster.suites.training.payload import FOLDER

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

REMOVAL = 60.0  # seconds to remove the folder of a step that could not do so itself


def folders(cluster: Cluster) -> list[Path]:
    """Return the folder in which a killed run may have left a checkpoint."""
    config = cluster.section(TrainingConfig)
    return [Path(config.checkpoint)] if config and config.checkpoint else []


class Training(FrameworkStepRunner[TrainingConfig]):
    """The steps of one allocation; the first access runs each."""

    section = key = "training"

    @cached_property
    def packages(self) -> PayloadResult:
        """Whether torch is installed, without importing it."""
        return self.attempt(self.request(self.payload("find"), ntasks_per_node=1))

    @cached_property
    def fit_nodes(self) -> tuple[str, ...]:
        """The nodes that have torch."""
        judged = {node: checks.framework(node, self.packages) for node in self.nodes}
        return tuple(node for node, verdict in judged.items() if verdict.outcome is not Outcome.FAILED)

    @cached_property
    def alone(self) -> PayloadResult:
        """The result of one group per node; with a checkpoint if no other node can take part."""
        return self._step(self.fit_nodes, "alone", write=len(self.fit_nodes) == 1)

    @cached_property
    def sound_nodes(self) -> tuple[str, ...]:
        """The nodes that trained alone with right results; one bad node must not fail the others."""
        return tuple(
            node
            for node in self.fit_nodes
            if all(it(node, self.alone).outcome is not Outcome.FAILED for it in (checks.alone, checks.replay))
        )

    @cached_property
    def together(self) -> PayloadResult:
        """The result of one group of all nodes that trained alone."""
        if len(self.sound_nodes) < 2:
            return self.nothing()
        address = self.address(self.sound_nodes[0])
        return self._step(self.sound_nodes, "together", "--address", address, write=True)

    @property
    def widest(self) -> PayloadResult:
        """The result of the step with the most nodes."""
        return self.together if len(self.fit_nodes) > 1 else self.alone

    def _step(self, nodes: tuple[str, ...], mode: str, *words: str, write: bool) -> PayloadResult:
        if not nodes:
            return self.nothing()
        config = self.config
        numbers = {
            "--per-node": self.ranks_per_node, "--steps": config.steps,
            "--warmup": config.warmup, "--replay-steps": config.replay_steps, "--deadline": self.phase,
            "--checkpoint-size": config.checkpoint_size,
        }  # fmt: skip
        argv = [mode, *(str(word) for pair in numbers.items() for word in pair), *words]
        gpus = self.real_gpus
        argv += ["--gpus"] if gpus else []
        folder = self._folder() if write else ""
        options: dict[str, Any] = {
            "nodes": nodes, "ntasks_per_node": self.ranks_per_node, "gpus_per_node": gpus or None,
            "env": {
                **self.one_thread, **(LOGGED if gpus and mode == "together" else {}), **_environment(folder)
            },
        }  # fmt: skip
        removed = not folder
        try:
            result = self.until_port_is_free(self.request(self.payload(*argv), **options))
            facts = result.by_rank("checkpoint")
            removed = removed or (len(facts) == result.ntasks and all(it["removed"] for it in facts.values()))
        finally:
            if not removed:  # a rank died, or the run is stopped
                with contextlib.suppress(StepError, SlurmError):
                    one: dict[str, Any] = {"nodes": nodes[:1], "timeout": REMOVAL, "env": _environment(folder)}
                    self.run(self.request(self.payload("remove"), ntasks_per_node=1, **one))
        return result

    def _folder(self) -> str:
        """Return a new folder of this run, which `gpucluster clean` recognises; '' without a checkpoint.

        It is random, and no command line has it before it exists: others may write to the same place.
        """
        if self.config.checkpoint is None:
            return ""
        return str(Path(self.config.checkpoint) / run_mark.name_of_run("training", secrets.token_hex(16)))


def _environment(folder: str) -> dict[str, str]:
    """Return the variable that names the folder: other users can read a command line, not an environment."""
    return {FOLDER: folder} if folder else {}
