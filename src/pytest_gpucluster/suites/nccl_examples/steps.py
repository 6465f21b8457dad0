"""NCCL's three example programs as steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework_config import FrameworkConfig
from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.nccl_config import NcclConfig

if TYPE_CHECKING:
    from pytest_gpucluster.kit.payload_result import PayloadResult


class NcclExamples(FrameworkStepRunner[FrameworkConfig]):
    """The programs on the nodes of one allocation; each is run once."""

    section, key = "nccl", "nccl_examples"

    def result(self, program: str) -> PayloadResult:
        """Return the result of one program."""
        nccl, single = self.cluster.section(NcclConfig), program == "one-device"
        gpus, phase = nccl.gpus_per_node or self.real_gpus, min(120.0, nccl.deadline / 3)
        request = self.request(
            self.payload(program, self.address(self.nodes[0]), str(phase)),
            ntasks_per_node=gpus if single else 1,
            gpus_per_task=1 if single else None,
            gpus_per_node=None if single else gpus,
            env=nccl.exports,
            prelude='export NCCL_HOSTID="$SLURMD_NODENAME"' if nccl.hostid_from_slurm else "",
            mpi="none",
            extra_args=nccl.srun_args,
        )
        return self.once(program, lambda: self.attempts(request))
