"""NCCL's three example programs as steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner

if TYPE_CHECKING:
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult
    from pytest_gpucluster.suites.nccl_examples.config import NcclExamplesConfig

PHASE = 120.0  # seconds of one phase of a program


class NcclExamples(FrameworkStepRunner[FrameworkConfig]):
    """The programs on the nodes of one allocation; each is run once."""

    section, key = "nccl", "nccl_examples"

    def result(self, program: str) -> PayloadResult:
        """Return the result of one program."""
        gpus, single = self.real_gpus, program == "one-device"
        request = self.request(
            self.payload(program, self.address(self.nodes[0]), str(PHASE)),
            ntasks_per_node=gpus if single else 1,
            gpus_per_task=1 if single else None,
            gpus_per_node=None if single else gpus,
            mpi="none",
        )
        return self.once(program, lambda: self.until_port_is_free(request))

    @property
    def with_gpus(self) -> tuple[str, ...]:
        """The nodes that have GPUs, which need the toolchain."""
        counted = {node for node, info in self.inventory.items() if info.gpus}
        stated = {node for node in self.nodes if self.cluster.group_of(node).profile.gpu is not None}
        return tuple(node for node in self.nodes if node in counted | stated)

    def compiled(self, config: NcclExamplesConfig) -> PayloadResult:
        """Return the result of compiling the example on the nodes with the toolchain; real GPUs run it too."""
        limit = config.compile_time
        words = (",".join(config.toolchain), f"{limit:g}", str(int(bool(self.real_gpus))))
        request = self.request(
            self.payload(*words, name="payload_compile.py"),
            nodes=self.with_gpus,
            ntasks_per_node=1,
            gpus_per_node=self.gpus or None,
            mpi="none",
            # each tool: version, GPU, configure, build, run
            timeout=len(config.toolchain) * 3 * limit + 60,
        )
        return self.once("compiled", lambda: self.attempt(request))
