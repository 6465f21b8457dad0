"""NCCL's three classic programs as steps: one process many devices, one device a process, many devices a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.kit.framework_config import FrameworkConfig
from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.nccl_config import NcclConfig

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.framework_step import NodesUnderTest
    from pytest_gpucluster.kit.payload_result import PayloadResult

MAX_PHASE = 120.0


class NcclExamples(FrameworkStepRunner[FrameworkConfig]):
    """The programs on the nodes of one allocation that share a number of GPUs; each is run once."""

    section, key = "nccl", "nccl_examples"

    @classmethod
    def of_session(cls, session: NodesUnderTest) -> list[Self]:
        """Return the programs per allocation, as the section `nccl` of the cluster file says."""
        nccl = session.cluster.section(NcclConfig)
        asked = {"environment": nccl.environment, "nodes": nccl.nodes, "deadline": nccl.deadline}
        return cls.of_allocations(session, FrameworkConfig.model_validate(asked))

    def told(self, program: str) -> PayloadResult:
        """Return what the tasks of one program told."""
        return self.once(program, lambda: self.attempts(self._request(program), _port_taken))

    def _request(self, program: str) -> StepRequest:
        nccl = self.cluster.section(NcclConfig)
        gpus, phase = nccl.gpus_per_node or self.real_gpus, str(min(MAX_PHASE, nccl.deadline / 3))
        options: dict[str, Any] = {"ntasks_per_node": 1, "gpus_per_node": gpus}
        if program == "one-device":
            options = {"ntasks_per_node": gpus, "gpus_per_task": 1}
        return self.request(
            self.payload(program, "--address", self.address(self.nodes[0]), "--deadline", phase),
            env=nccl.exports,
            prelude='export NCCL_HOSTID="$SLURMD_NODENAME"' if nccl.hostid_from_slurm else "",
            mpi="none",
            extra_args=nccl.srun_args,
            **options,
        )


def _port_taken(told: PayloadResult) -> bool:
    return any("Address already in use" in fact["reason"] for fact in told.facts("failed"))
