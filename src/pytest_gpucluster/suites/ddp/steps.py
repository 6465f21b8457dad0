"""torch.distributed on the nodes: one cheap step that looks around, then steps that work.

`placed` needs no torch: every task tells its rank variables, what MASTER_ADDR resolves to, interfaces, whether torch
is there. The other steps run on the nodes that are fit by that, so that one bad node costs its own verdict and
not that of all others.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
from pytest_gpucluster.suites.ddp import checks
from pytest_gpucluster.suites.ddp.config import DdpConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.payload_result import PayloadResult

AGENTS = 4.0  # times what the same work took with srun, at least, until torchrun is taken for hung
# the port of a step, as the payload's own_port has it
_PORT = "$((20000 + (SLURM_JOB_ID * 131 + ${SLURM_STEP_ID:-$SLURM_STEPID} * 17) % 12000))"
_TORCHRUN = (
    'python=$1; nnodes=$2; nproc=$3; address=$4; shift 4; exec "$python" -m torch.distributed.run '
    '--nnodes="$nnodes" --nproc_per_node="$nproc" --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID.$SLURM_STEP_ID" '
    f'--rdzv_endpoint="$address:{_PORT}" --max_restarts=0 --no_python "$python" "$@"'
)


class Ddp(FrameworkStepRunner[DdpConfig]):
    """The steps of one allocation, each run when it is first asked for."""

    section = key = "ddp"

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """The process groups that can be formed."""
        return ("gloo", "nccl") if self.real_gpus else ("gloo",)

    @property
    def setters(self) -> checks.Setters:
        """Where rank variables may come from, as far as this side knows."""
        exports = self.environment.exports if self.environment else {}
        shell = {name: os.environ[name] for name in checks.VARIABLES if name in os.environ}
        return checks.Setters(exports, shell, contained=self.in_container)

    @cached_property
    def placed(self) -> PayloadResult:
        """What every task was given and finds."""
        request = self._step(self.nodes, "place", ntasks_per_node=self.ranks_per_node)
        return self.attempts(request, checks.own_port_taken)

    @cached_property
    def fit(self) -> tuple[str, ...]:
        """The nodes that can take part: the others have their own verdicts already."""
        if checks.master_port(self.placed).outcome is Outcome.FAILED:
            return ()
        judged = {
            node: (
                checks.framework(node, self.placed),
                checks.environment(node, self.placed, self.setters, self.config.provided),
                checks.master_addr(node, self.placed),
                checks.interface(node, self.placed),
            )
            for node in self.nodes
        }
        return tuple(
            node for node, all_of in judged.items() if all(v.outcome is not Outcome.FAILED for v in all_of)
        )

    def worked(self, backend: str) -> PayloadResult:
        """All phases with srun as the launcher."""
        return self.once(("work", backend), lambda: self._work("work", backend))

    def lost(self, backend: str) -> PayloadResult:
        """The last rank kills itself amid collectives."""
        notice = self.config.lost_rank
        options: dict[str, Any] = {"timeout": self.config.deadline + notice}
        return self.once(
            ("lose", backend), lambda: self._work("lose", backend, "--notice", str(notice), **options)
        )

    @cached_property
    def torchrun(self) -> PayloadResult:
        """All phases with torchrun (c10d) as the launcher: one agent a node."""
        if not self.fit:
            return self.nothing()
        address, per_node = self.address(self.fit[0]), str(self.ranks_per_node)
        words = ("sh", "-c", _TORCHRUN, "torchrun", self.python, str(len(self.fit)), per_node, address)
        # an agent beside each rank imports torch too, one after the other: a slow machine takes long over it
        worked = (self.done.get(("work", backend)) for backend in self.backends)
        took = (AGENTS * told.seconds for told in worked if told and not told.problem)
        patience = max(self.config.deadline, *took, 0.0)
        deadline = str(max(self.phase, patience / 3))
        inner = ("-c", self.source(), "work", "--backend", self.backends[-1], "--deadline", deadline)
        request = self.request(
            (*words, *inner),
            nodes=self.fit,
            ntasks_per_node=1,
            gpus_per_node=self.real_gpus or None,
            timeout=patience,
            env=self.one_thread,
        )
        return self.attempt(request)

    def _work(self, mode: str, backend: str, *words: str, **options: Any) -> PayloadResult:
        if not self.fit:
            return self.nothing()
        said = ("--backend", backend, "--deadline", str(self.phase), *words)
        gpus = 1 if backend == "nccl" else None
        request = self._step(
            self.fit, mode, *said, ntasks_per_node=self.ranks_per_node, gpus_per_task=gpus, **options
        )
        return self.attempts(request, checks.own_port_taken)

    def _step(self, nodes: Sequence[str], mode: str, *words: str, **options: Any) -> StepRequest:
        argv = self.payload(mode, "--address", self.address(nodes[0]), *words)
        return self.request(argv, nodes=tuple(nodes), env=self.one_thread, **options)
