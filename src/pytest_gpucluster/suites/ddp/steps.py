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
from pytest_gpucluster.kit.framework_step import WITHOUT_GPUS
from pytest_gpucluster.kit.payload_result import PayloadResult
from pytest_gpucluster.kit.payload_step import run_payload, source_of
from pytest_gpucluster.suites.ddp import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
    from pytest_gpucluster.suites.ddp.config import DdpConfig

KEY = "ddp"
AGENTS = 4.0  # times what the same work took with srun, at least, until torchrun is taken for hung
TRIES = 3  # with a port of our own that happens to be taken: each step has another
# the port of a step, as the payload's own_port has it
_PORT = "$((20000 + (SLURM_JOB_ID * 131 + ${SLURM_STEP_ID:-$SLURM_STEPID} * 17) % 12000))"
_TORCHRUN = (
    'python=$1; nnodes=$2; nproc=$3; address=$4; shift 4; exec "$python" -m torch.distributed.run '
    '--nnodes="$nnodes" --nproc_per_node="$nproc" --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID.$SLURM_STEP_ID" '
    f'--rdzv_endpoint="$address:{_PORT}" --max_restarts=0 --no_python "$python" "$@"'
)


class Ddp:
    """The steps of one allocation, each run when it is first asked for."""

    def __init__(self, steps: FrameworkStepRunner, claim: DdpConfig) -> None:
        self._steps, self.claim = steps, claim
        self.nodes, self.gpus, self.environment = steps.nodes, steps.real_gpus, steps.environment
        self.ntasks_per_node = claim.ntasks_per_node or self.gpus or WITHOUT_GPUS
        self._worked: dict[str, PayloadResult] = {}
        self._lost: dict[str, PayloadResult] = {}

    @property
    def backends(self) -> tuple[str, ...]:
        """The process groups that can be formed."""
        return ("gloo", "nccl") if self.gpus else ("gloo",)

    @property
    def setters(self) -> checks.Setters:
        """Where rank variables may come from, as far as this side knows."""
        environment = self.environment
        exports = environment.exports if environment else {}
        contained = bool(environment and (environment.container_image or environment.container_name))
        shell = {name: os.environ[name] for name in checks.VARIABLES if name in os.environ}
        return checks.Setters(exports, shell, contained=contained)

    @cached_property
    def placed(self) -> PayloadResult:
        """What every task was given and finds."""
        for _ in range(TRIES):
            told = self._step(self.nodes, "place", ntasks_per_node=self.ntasks_per_node)
            if not checks.own_port_taken(told):
                break
        return told

    @cached_property
    def fit(self) -> tuple[str, ...]:
        """The nodes that can take part: the others have their own verdicts already."""
        if checks.master_port(self.placed).outcome is Outcome.FAILED:
            return ()
        judged = {
            node: (
                checks.framework(node, self.placed),
                checks.environment(node, self.placed, self.setters, self.claim.provided),
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
        if backend not in self._worked:
            self._worked[backend] = self._work("work", backend)
        return self._worked[backend]

    def lost(self, backend: str) -> PayloadResult:
        """The last rank kills itself amid collectives."""
        if backend not in self._lost:
            self._lost[backend] = self._work("lose", backend, "--notice", str(self.claim.lost_rank))
        return self._lost[backend]

    @cached_property
    def torchrun(self) -> PayloadResult:
        """All phases with torchrun (c10d) as the launcher: one agent a node."""
        if not self.fit:
            return PayloadResult(KEY, (), 0)
        address, per_node = self._steps.address(self.fit[0]), str(self.ntasks_per_node)
        words = ("sh", "-c", _TORCHRUN, "torchrun", self._steps.python, str(len(self.fit)), per_node, address)
        backend = self.backends[-1]
        options: dict[str, Any] = {"gpus_per_node": self.gpus} if self.gpus else {}
        # an agent beside each rank imports torch too, one after the other: a slow machine takes long over it
        took = (AGENTS * told.seconds for told in self._worked.values() if not told.problem)
        patience = max(self.claim.deadline, *took, 0.0)
        deadline = str(max(self.phase, patience / 3))
        inner = ("-c", source_of(__file__), "work", "--backend", backend, "--deadline", deadline)
        return self._run(self.fit, (*words, *inner), ntasks_per_node=1, timeout=patience, **options)

    @property
    def phase(self) -> float:
        """Seconds for one phase of the payload: what hangs is named before the step is cancelled."""
        return max(10.0, self.claim.deadline / 3)

    def _work(self, mode: str, backend: str, *words: str) -> PayloadResult:
        if not self.fit:
            return PayloadResult(KEY, (), 0)
        options: dict[str, Any] = {"ntasks_per_node": self.ntasks_per_node}
        if backend == "nccl":
            options["gpus_per_task"] = 1
        if mode == "lose":
            options["timeout"] = self.claim.deadline + self.claim.lost_rank
        for _ in range(TRIES):
            said = ("--backend", backend, "--deadline", str(self.phase), *words)
            told = self._step(self.fit, mode, *said, **options)
            if not checks.own_port_taken(told):
                break
        return told

    def _step(self, nodes: Sequence[str], mode: str, *words: str, **options: Any) -> PayloadResult:
        address = ("--address", self._steps.address(nodes[0]))
        argv = (self._steps.python, "-c", source_of(__file__), mode, *address, *words)
        return self._run(nodes, argv, **options)

    def _run(self, nodes: Sequence[str], argv: Sequence[str], **options: Any) -> PayloadResult:
        exports = self.environment.exports if self.environment else {}
        # ranks that share a node's cores: the same that torchrun sets
        env = {} if "OMP_NUM_THREADS" in exports else {"OMP_NUM_THREADS": "1"}
        request = self._steps.request(argv, nodes=tuple(nodes), env=env, **options)
        return run_payload(self._steps.slurm, self._steps.allocation, request, KEY)
