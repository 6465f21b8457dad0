"""NCCL's three example programs as steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig

if TYPE_CHECKING:
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult
    from pytest_gpucluster.suites.nccl_examples.config import NcclExamplesConfig


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
        return self.once(program, lambda: self.until_port_is_free(request))

    def with_toolchain(self, config: NcclExamplesConfig) -> tuple[str, ...]:
        """Return the nodes that have GPUs and, by the cluster file, the toolchain."""
        named = hostlist.expand(config.nodes or "")
        return tuple(node for node in self.nodes if (not named or node in named) and self._has_gpus(node))

    def _has_gpus(self, node: str) -> bool:
        info = self.inventory.get(node)
        return bool(info and info.gpus) or self.cluster.group_of(node).profile.gpu is not None

    @property
    def devices(self) -> int:
        """GPUs per node on which a program runs; 0 without real ones."""
        return (self.cluster.section(NcclConfig).gpus_per_node or self.real_gpus) if self.real_gpus else 0

    def compiled(self, config: NcclExamplesConfig) -> PayloadResult:
        """Return the result of compiling the example on the nodes with the toolchain; real GPUs run it too."""
        nccl, limit = self.cluster.section(NcclConfig), config.compile_time
        words = (",".join(config.toolchain or ()), f"{limit:g}", str(int(bool(self.real_gpus))))
        request = self.request(
            self.payload(*words, name="payload_compile.py"),
            nodes=self.with_toolchain(config),
            ntasks_per_node=1,
            gpus_per_node=nccl.gpus_per_node or self.gpus or None,
            env=nccl.exports,
            mpi="none",
            extra_args=nccl.srun_args,
            # each tool: version, GPU, configure, build, run
            timeout=len(config.toolchain or ()) * 3 * limit + 60,
        )
        return self.once("compiled", lambda: self.attempt(request))
