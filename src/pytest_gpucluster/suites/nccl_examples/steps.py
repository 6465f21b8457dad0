"""NCCL's three classic programs as steps: one process many devices, one device a process, many devices a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.kit.nccl_config import NcclConfig
from pytest_gpucluster.kit.payload_step import environment_named, run_payload, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.kit.payload_result import PayloadResult

KEY = "nccl_examples"
TRIES = 3  # with a port of our own that happens to be taken: each step has another
MAX_PHASE = 120.0


class NcclExamples:
    """The programs on the nodes of one allocation that share a number of GPUs; each is run once."""

    def __init__(
        self,
        slurm: Slurm,
        allocation: Allocation,
        cluster: Cluster,
        inventory: Mapping[str, NodeInfo],
        *,
        nodes: Sequence[str],
        gpus: int,
    ) -> None:
        self._slurm, self._allocation, self._inventory = slurm, allocation, inventory
        self._config = cluster.section(NcclConfig)
        self.nodes, self.gpus = tuple(nodes)[: self._config.nodes], self._config.gpus_per_node or gpus
        self._environment = environment_named(cluster, self._config.environment, "nccl")
        self._told: dict[str, PayloadResult] = {}

    def told(self, program: str) -> PayloadResult:
        """Return what the tasks of one program told."""
        if program not in self._told:
            for _ in range(TRIES):
                self._told[program] = self._run(program)
                if not _port_taken(self._told[program]):
                    break
        return self._told[program]

    def _run(self, program: str) -> PayloadResult:
        config, first = self._config, self._inventory.get(self.nodes[0])
        address = (first.address if first is not None else "") or self.nodes[0]
        python = self._environment.python if self._environment else "python3"
        phase = str(min(MAX_PHASE, config.deadline / 3))
        options: dict[str, Any] = {"ntasks_per_node": 1, "gpus_per_node": self.gpus}
        if program == "one-device":
            options = {"ntasks_per_node": self.gpus, "gpus_per_task": 1}
        source = source_of(__file__)
        request = StepRequest(
            argv=(python, "-c", source, program, "--address", address, "--deadline", phase),
            nodes=self.nodes,
            env=config.exports,
            prelude='export NCCL_HOSTID="$SLURMD_NODENAME"' if config.hostid_from_slurm else "",
            environment=self._environment,
            mpi="none",
            timeout=config.deadline,
            extra_args=config.srun_args,
            **options,
        )
        return run_payload(self._slurm, self._allocation, request, KEY)


def _port_taken(told: PayloadResult) -> bool:
    return any("Address already in use" in fact["reason"] for fact in told.facts("failed"))
