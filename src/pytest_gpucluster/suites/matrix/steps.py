"""Fills the cells of the experiment matrix: each is one launcher with one workload, in one or two steps."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.core.check import Finding, Outcome, Verdict
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, StepError
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit import mpi_world
from pytest_gpucluster.kit import nccl_validation as nccl_checks
from pytest_gpucluster.kit.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi_step import MPIRUN, Mpi, attempt
from pytest_gpucluster.kit.nccl_config import NcclConfig
from pytest_gpucluster.kit.nccl_step import NcclStep, output_of
from pytest_gpucluster.suites.matrix import checks
from pytest_gpucluster.suites.matrix.checks import Cell, CellWork, State
from pytest_gpucluster.suites.matrix.config import MatrixConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig

_MARK = re.compile(r"gpucluster-matrix (\S*) (.+)")
_CPU = (
    "i=0 s=0; while [ $i -lt 1000 ]; do i=$((i+1)); s=$((s+i)); done; "
    "printf 'gpucluster-matrix %s %s\\n' \"$SLURMD_NODENAME\" $s"
)
SUM = "500500"  # of 1 to 1000
_GPU = (
    'n=$(nvidia-smi -L 2>&1) || { printf \'gpucluster-matrix %s %s\\n\' "$SLURMD_NODENAME" "'
    "$(printf %s \"nvidia-smi: $n\" | tr '\\n' ' ')\"; exit 0; }; "
    "printf 'gpucluster-matrix %s %s\\n' \"$SLURMD_NODENAME\" $(printf '%s\\n' \"$n\" | grep -c '^GPU ')"
)
_NVIDIA = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
_SIZES = "-b 8 -e 1M -f 16 -g 1"


class Matrix:
    """The matrix of one allocation, as the cluster file's `matrix:` says."""

    def __init__(
        self,
        allocation: Allocation,
        cluster: Cluster,
        channel: Channel,
        inventory: Mapping[str, NodeInfo],
        *,
        nodes: tuple[str, ...],
    ) -> None:
        claim = cluster.section(MatrixConfig)
        if claim is None:
            raise ConfigError(f"cluster {cluster.name} does not ask for the matrix: add `matrix:`")
        self.config = claim
        self.nodes = nodes[: self.config.nodes]
        self._slurm, self._allocation, self._cluster = allocation.slurm, allocation, cluster
        self._channel, self._inventory = channel, inventory
        self._mpi: dict[str, Mpi] = {}

    def cell(self, row: str, column: str) -> Cell:
        """Try one cell; ConfigError where matrix.container or matrix.framework is no environment with an image."""
        absent = self._absent(row, column)
        if absent:
            return Cell(row, column, State.NOT_APPLICABLE, absent)
        try:
            verdict = {"cpu": self._cpu, "gpu": self._gpu, "mpi": self._mpi_world, "nccl": self._nccl}[
                column
            ](row)
        except NotAvailable as error:
            return Cell(row, column, State.NOT_APPLICABLE, str(error))
        except StepError as error:
            verdict = Verdict("matrix.cell", Outcome.FAILED, (Finding("step", str(error), "starts"),))
        return checks.settle(row, column, verdict, self.config.expected, pmi_claimed=self._srun_claimed)

    def clean_up(self) -> None:
        """Remove what was put on the nodes."""
        for runner in self._mpi.values():
            runner.clean_up()

    # --- what does not apply

    def _absent(self, row: str, column: str) -> str:
        if row in self._images and self._images[row] is None:
            return f"the cluster file names no image ({self._keys[row]})"
        if self._cluster.section(MpiConfig) is None and (row == MPIRUN or column == "mpi"):
            return "the cluster file does not claim MPI (add `mpi:`)"
        if row == MPIRUN and self._runner(row).in_container:
            return "the cluster file claims MPI in an image only (mpi.environment)"
        if column in {"gpu", "nccl"} and not self.gpus:
            return "the profile has no GPUs"
        if column == "nccl" and self._cluster.simulated and row == "srun_framework":
            return "a framework cannot compute on simulated GPUs"
        return ""

    @property
    def _images(self) -> dict[str, str | None]:
        return {"srun_pyxis": self.config.container, "srun_framework": self.config.framework}

    _keys: Mapping[str, str] = {"srun_pyxis": "matrix.container", "srun_framework": "matrix.framework"}

    @cached_property
    def gpus(self) -> int:
        """GPUs a node: the fewest that the profile and Slurm give."""
        profiles = [self._cluster.group_of(node).profile.gpu for node in self.nodes]
        counts = [profile.count if profile else 0 for profile in profiles]
        return min([*counts, *(self._inventory[node].gpus for node in self.nodes)], default=0)

    @property
    def _srun_claimed(self) -> bool:
        claim = self._cluster.section(MpiConfig)
        return claim is None or any(launcher != MPIRUN for launcher in claim.launchers)

    def _environment(self, row: str) -> EnvironmentConfig | None:
        name = self._images.get(row)
        if name is None:
            return None
        known = self._cluster.environments
        if name not in known or not known[name].container_image:
            images = listed(sorted(key for key, value in known.items() if value.container_image))
            raise ConfigError(
                f"{self._keys[row]} {name!r} is no environment with a container_image; there is {images}"
            )
        return known[name]

    # --- workloads without messages

    def _cpu(self, row: str) -> Verdict:
        return self._work(row, _CPU, self.config.ntasks_per_node, SUM, "")

    def _gpu(self, row: str) -> Verdict:
        return self._work(row, _GPU, 1, str(self.gpus), "GPUs", gpus=self.gpus, env=_NVIDIA)

    def _work(
        self,
        row: str,
        script: str,
        tasks: int,
        expected: str,
        unit: str,
        *,
        gpus: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Verdict:
        argv = ("sh", "-c", script)
        if row == MPIRUN:
            request = self._runner(row).mpirun(self.nodes, argv, ntasks_per_node=tasks)
        else:
            request = StepRequest(
                argv, self.nodes, tasks, environment=self._environment(row), gpus_per_node=gpus
            )
        request = replace(request, timeout=self.config.deadline, env={**request.env, **(env or {})})
        result, problem = self._step(request)
        return checks.work(
            CellWork(self.nodes, tasks, told(result), expected, unit, problem or _failure(result)),
        )

    def _step(self, request: StepRequest) -> tuple[StepResult, str]:
        return attempt(self._slurm, self._allocation, request)

    # --- MPI

    def _runner(self, row: str) -> Mpi:
        if row not in self._mpi:
            self._environment(row)  # ConfigError for a name that is none
            claim = self._cluster.section(MpiConfig)
            assert claim is not None  # the cell does not apply otherwise
            claim = claim.model_copy(update={"environment": self._images.get(row) or claim.environment})
            self._mpi[row] = Mpi(
                *(self._allocation, self._cluster, self._inventory, claim, self.nodes),
                channel=self._channel,
                ntasks_per_node=self.config.ntasks_per_node,
            )
        return self._mpi[row]

    def _mpi_world(self, row: str) -> Verdict:
        runner = self._runner(row)
        claim = runner.config
        language = claim.languages[0]
        if row not in self._images and runner.in_container:
            raise NotAvailable("the cluster file claims MPI in an image only (mpi.environment)")
        lacking = {node: facts for node, facts in runner.installed.items() if language in facts.problems}
        if lacking and row == "srun_pyxis" and len(lacking) == len(self.nodes):
            raise NotAvailable(f"the image has no MPI: {next(iter(lacking.values())).problems[language]}")
        if lacking:
            found = tuple(Finding(node, facts.problems[language], "MPI") for node, facts in lacking.items())
            return Verdict("matrix.cell", Outcome.FAILED, found)
        srun = next((launcher for launcher in claim.launchers if launcher != MPIRUN), "srun")
        run = runner.started(MPIRUN if row == MPIRUN else srun, language)
        verdict = mpi_world.world(run)
        return verdict if verdict.outcome is not Outcome.PASSED else mpi_world.allreduce(run)

    # --- NCCL

    def _nccl(self, row: str) -> Verdict:
        nccl = self._cluster.section(NcclConfig)
        program = (nccl.command.split() or ["all_reduce_perf"])[0]
        update: dict[str, object] = {"command": f"{program} {_SIZES}", "deadline": self.config.deadline}
        if row == "srun_framework":
            update |= {"environment": self.config.framework, "container": None, "runner": "payload"}
        elif row == "srun_pyxis":
            if not nccl.container:
                raise NotAvailable("the cluster file names no image with nccl-tests (nccl.container)")
            update |= {"environment": self.config.container, "runner": "nccl-tests"}
        else:
            update |= {"container": None, "launcher": "srun"}
        cluster = self._cluster.model_copy(update={"nccl": nccl.model_copy(update=update)})
        runner = NcclStep(
            self._slurm, self._allocation, cluster, self._channel, self._inventory, gpus_per_node=self.gpus
        )
        if row == MPIRUN:
            return self._nccl_under_mpirun(runner)
        measured = runner.whole(self.nodes, "all_reduce")
        asked = nccl_checks.RunSpec(
            self.nodes, runner.gpus, collective="all_reduce", node_of_rank=measured.node_of_rank
        )
        verdict = nccl_checks.validate_run(measured.output, asked)
        if measured.problem and verdict.outcome is Outcome.PASSED:
            return replace(
                verdict,
                outcome=Outcome.FAILED,
                findings=(Finding("step", measured.problem, "ends by itself"),),
            )
        return verdict

    def _nccl_under_mpirun(self, runner: NcclStep) -> Verdict:
        if runner.runner != "nccl-tests":
            raise NotAvailable("no nccl-tests on the nodes; our payload on torch is started by srun")
        argv = (runner.sweep.program, *runner.sweep.words(), "-g", "1")
        result, problem = self._step(
            replace(
                self._runner(MPIRUN).mpirun(self.nodes, argv, ntasks_per_node=runner.gpus),
                timeout=self.config.deadline,
            )
        )
        if problem:
            return Verdict("matrix.cell", Outcome.FAILED, (Finding("mpirun", problem, "ends by itself"),))
        asked = nccl_checks.RunSpec(self.nodes, runner.gpus, collective="all_reduce")
        return nccl_checks.validate_run(output_of(result.tasks, "all_reduce"), asked)


def told(result: StepResult) -> tuple[tuple[str, str], ...]:
    """Return (node, word) of every task that told one."""
    return tuple(
        (match[1], match[2].strip()) for task in result.tasks for match in _MARK.finditer(task.stdout)
    )


def _failure(result: StepResult) -> str:
    return "" if result.ok else result.hint or result.first_error
