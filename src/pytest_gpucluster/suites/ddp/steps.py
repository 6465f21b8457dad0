"""torch.distributed on the nodes: one short step that examines all nodes, then steps that compute.

`placement` needs no torch: every task reports its rank variables, the addresses of MASTER_ADDR, its interfaces, and
whether torch is installed. The other steps run on the nodes that pass, so that one bad node does not fail them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.environment import variables
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.nccl.nccl_transport import LOGGED
from pytest_gpucluster.suites.ddp import checks
from pytest_gpucluster.suites.ddp.config import DdpConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

AGENTS = 4.0  # torchrun hangs only if it takes longer than this times the duration of the same work under srun
# the port of a step, as own_port in payloads/prelude.py
_PORT = "$((20000 + (SLURM_JOB_ID * 131 + ${SLURM_STEP_ID:-$SLURM_STEPID} * 17) % 12000))"
_TORCHRUN = (
    'nnodes=$1; nproc=$2; address=$3; shift 3; exec "$1" -m torch.distributed.run '
    '--nnodes="$nnodes" --nproc_per_node="$nproc" --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID.$SLURM_STEP_ID" '
    f'--rdzv_endpoint="$address:{_PORT}" --max_restarts=0 --no_python "$@"'
)


class Ddp(FrameworkStepRunner[DdpConfig]):
    """The steps of one allocation; the first access runs each."""

    section = key = "ddp"

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """The process groups that can be formed."""
        return ("gloo", "nccl") if self.real_gpus else ("gloo",)

    @property
    def setters(self) -> checks.Setters:
        """The possible origins of rank variables that are known here."""
        return checks.Setters(variables(self.environment), contained=self.in_container)

    @cached_property
    def placement(self) -> PayloadResult:
        """The variables, addresses and packages of every task."""
        request = self._step(self.nodes, "place", ntasks_per_node=self.ranks_per_node)
        return self.until_port_is_free(request, checks.own_port_taken)

    @cached_property
    def fit_nodes(self) -> tuple[str, ...]:
        """The nodes that can take part; the others have their own failures."""
        if checks.master_port(self.placement).outcome is Outcome.FAILED:
            return ()
        verdicts = {
            node: (
                checks.framework(node, self.placement),
                checks.environment(node, self.placement, self.setters),
                checks.master_addr(node, self.placement),
                checks.interface(node, self.placement),
            )
            for node in self.nodes
        }
        return tuple(
            node for node, found in verdicts.items() if all(verdict.outcome is not Outcome.FAILED for verdict in found)
        )

    def work(self, backend: str) -> PayloadResult:
        """Return the result of all phases with srun as the launcher."""
        return self.once(("work", backend), lambda: self._work("work", backend))

    def lose_rank(self, backend: str) -> PayloadResult:
        """Return the result of a step whose last rank kills itself during collectives."""
        notice = self.config.lost_rank
        options: dict[str, Any] = {"timeout": self.config.deadline + notice}
        return self.once(("lose", backend), lambda: self._work("lose", backend, "--notice", str(notice), **options))

    @cached_property
    def torchrun(self) -> PayloadResult:
        """The result of all phases with torchrun (c10d) as the launcher: one agent per node."""
        if not self.fit_nodes:
            return self.nothing()
        address, per_node = self.address(self.fit_nodes[0]), str(self.ranks_per_node)
        words = ("sh", "-c", _TORCHRUN, "torchrun", str(len(self.fit_nodes)), per_node, address)
        # the agent imports torch too, before its ranks: slow on a busy machine
        known = (self.done.get(("work", backend)) for backend in self.backends)
        durations = (AGENTS * result.seconds for result in known if result and not result.problem)
        timeout = max(self.config.deadline, *durations, 0.0)
        deadline = str(max(self.phase, timeout / 3))
        inner = self.payload("work", "--backend", self.backends[-1], "--deadline", deadline)
        request = self.request(
            (*words, *inner),
            nodes=self.fit_nodes,
            ntasks_per_node=1,
            gpus_per_node=self.real_gpus or None,
            timeout=timeout,
            env=self.one_thread,
        )
        return self.attempt(request)

    def _work(self, mode: str, backend: str, *words: str, **options: Any) -> PayloadResult:
        if not self.fit_nodes:
            return self.nothing()
        gpus = 1 if backend == "nccl" else None
        options |= {"ntasks_per_node": self.ranks_per_node, "gpus_per_task": gpus}
        request = self._step(
            self.fit_nodes, mode, "--backend", backend, "--deadline", str(self.phase), *words, **options
        )
        return self.until_port_is_free(request, checks.own_port_taken)

    def _step(self, nodes: Sequence[str], mode: str, *words: str, **options: Any) -> StepRequest:
        argv = self.payload(mode, "--address", self.address(nodes[0]), *words)
        env = {**self.one_thread, **(LOGGED if options.get("gpus_per_task") else {})}
        return self.request(argv, nodes=tuple(nodes), env=env, **options)
