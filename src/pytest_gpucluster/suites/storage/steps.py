"""The step of the storage suite: all file systems, on all nodes of an allocation at the same time."""

from __future__ import annotations

import contextlib
import json
import secrets
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core import run_mark
from pytest_gpucluster.core.errors import SlurmError, StepError
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.payload import FOLDER

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

REMOVAL = 60.0  # seconds to remove the folders of a step that could not do so itself
ONE_MEASUREMENT = 15  # times its length, a step of the payload that does not end hangs


class Storage(FrameworkStepRunner[StorageConfig]):
    """The step of one allocation; the first access runs it."""

    section = key = "storage"

    @cached_property
    def result(self) -> PayloadResult:
        """The result of the step."""
        secret = {FOLDER: run_mark.name_of_run("storage", secrets.token_hex(16))}
        done = False
        try:
            result = self.until_port_is_free(self._request("run", secret))
            ends = [fact["removed"] for fact in result.facts("end")]
            done = all(ends) and len(result.facts("done")) == len(self.nodes)
        finally:
            if not done:  # a task died, or the run is stopped
                with contextlib.suppress(StepError, SlurmError):
                    self.run(self._request("remove", secret, timeout=REMOVAL))
        return result

    def _request(self, word: str, secret: dict[str, str], **options: float) -> StepRequest:
        """Return a step. Other users can read its command line, not its environment."""
        config = self.config
        # this user's in the queue, whose folders stay
        queue = self.slurm.run("squeue", "--me", "-h", "-a", "-o", "%A").split()
        jobs = [int(job) for job in queue if job.isdigit()]
        given = {
            "filesystems": [{"path": one.path, "kind": one.kind} for one in config.filesystems],
            "budget": config.budget, "files": config.files, "max_use": config.max_use, "imports": config.imports,
            "seconds": config.seconds, "phase": max(30.0, ONE_MEASUREMENT * config.seconds),
            "address": self.address(self.nodes[0]), "cluster": self.slurm.config().get("ClusterName", ""), "jobs": jobs,
        }  # fmt: skip
        return self.request(self.payload(word, json.dumps(given)), ntasks_per_node=1, env=secret, **options)
