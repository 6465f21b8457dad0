"""The cells of the experiment matrix: one launcher with one workload, in one or two steps."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.core.check import Finding, Outcome, Verdict
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, StepError
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit import mpi_world
from pytest_gpucluster.kit.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi_step import MPIRUN, Mpi, attempt
from pytest_gpucluster.kit.nccl_config import NcclConfig
from pytest_gpucluster.kit.nccl_step import NcclStep, output_of
from pytest_gpucluster.kit.nccl_validation import RunSpec, validate_run
from pytest_gpucluster.suites.matrix import checks
from pytest_gpucluster.suites.matrix.checks import Cell, CellWork, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import EnvironmentConfig
    from pytest_gpucluster.kit.framework_step import NodesUnderTest
    from pytest_gpucluster.suites.matrix.config import MatrixConfig

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
IMAGE_ONLY = "the MPI of mpi.environment is in an image only"


class Matrix:
    """The matrix on the nodes of one allocation."""

    _keys: ClassVar[Mapping[str, str]] = {
        "srun_pyxis": "matrix.container",
        "srun_framework": "matrix.framework",
    }

    def __init__(
        self,
        allocation: Allocation,
        session: NodesUnderTest,
        channel: Channel,
        config: MatrixConfig,
        nodes: tuple[str, ...],
    ) -> None:
        self.config, self.nodes = config, nodes[: config.nodes]
        self._allocation, self._channel = allocation, channel
        self._cluster, self._inventory = session.cluster, session.inventory
        self._images = {"srun_pyxis": config.container, "srun_framework": config.framework}
        self._mpi: dict[str, Mpi] = {}

    def cell(self, row: str, column: str) -> Cell:
        """Run one cell; ConfigError if matrix.container or matrix.framework is not an environment with an image."""
        absent = self._absent(row, column)
        if absent:
            return Cell(row, column, State.NOT_APPLICABLE, absent)
        try:
            run = {"cpu": self._cpu, "gpu": self._gpu, "mpi": self._mpi_world, "nccl": self._nccl}[column]
            verdict = run(row)
        except NotAvailable as error:
            return Cell(row, column, State.NOT_APPLICABLE, str(error))
        except StepError as error:
            verdict = Verdict("matrix.cell", Outcome.FAILED, (Finding("step", str(error), "starts"),))
        return checks.settle(row, column, verdict, self.config.expected, pmi_required=self._srun_required)

    def clean_up(self) -> None:
        """Remove the programs from the nodes."""
        for runner in self._mpi.values():
            runner.clean_up()

    # --- cells that do not apply

    def _absent(self, row: str, column: str) -> str:
        if row in self._images and self._images[row] is None:
            return f"the cluster file names no image ({self._keys[row]})"
        if self._cluster.section(MpiConfig) is None and (row == MPIRUN or column == "mpi"):
            return "the cluster file has no section `mpi` (add `mpi:`)"
        if row == MPIRUN and self._runner(row).in_container:
            return IMAGE_ONLY
        if column in {"gpu", "nccl"} and not self.gpus:
            return "the profile has no GPUs"
        if column == "nccl" and self._cluster.simulated and row == "srun_framework":
            return "a framework cannot compute on simulated GPUs"
        return ""

    @cached_property
    def gpus(self) -> int:
        """GPUs per node: the fewest in the profiles and in Slurm."""
        profiles = [self._cluster.group_of(node).profile.gpu for node in self.nodes]
        counts = [profile.count if profile else 0 for profile in profiles]
        return min([*counts, *(self._inventory[node].gpus for node in self.nodes)], default=0)

    @property
    def _srun_required(self) -> bool:
        mpi = self._cluster.section(MpiConfig)
        return mpi is None or any(launcher != MPIRUN for launcher in mpi.launchers)

    def _environment(self, row: str) -> EnvironmentConfig | None:
        name = self._images.get(row)
        if name is None:
            return None
        known = self._cluster.environments
        if name not in known or not known[name].container_image:
            images = listed(sorted(key for key, value in known.items() if value.container_image))
            raise ConfigError(
                f"{self._keys[row]} {name!r} is not an environment with a container_image; these have one: {images}"
            )
        return known[name]

    # --- workloads without messages between tasks

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
            CellWork(self.nodes, tasks, reports(result), expected, unit, problem or _failure(result)),
        )

    def _step(self, request: StepRequest) -> tuple[StepResult, str]:
        return attempt(self._allocation.slurm, self._allocation, request)

    # --- MPI

    def _runner(self, row: str) -> Mpi:
        if row not in self._mpi:
            self._environment(row)  # raises ConfigError
            mpi = self._cluster.section(MpiConfig)
            assert mpi is not None  # the cell does not apply otherwise
            mpi = mpi.model_copy(update={"environment": self._images.get(row) or mpi.environment})
            self._mpi[row] = Mpi(
                *(self._allocation, self._cluster, self._inventory, mpi, self.nodes),
                channel=self._channel,
                ntasks_per_node=self.config.ntasks_per_node,
            )
        return self._mpi[row]

    def _mpi_world(self, row: str) -> Verdict:
        runner = self._runner(row)
        language = runner.config.languages[0]
        if row not in self._images and runner.in_container:
            raise NotAvailable(IMAGE_ONLY)
        lacking = {node: facts for node, facts in runner.installed.items() if language in facts.problems}
        if lacking and row == "srun_pyxis" and len(lacking) == len(self.nodes):
            raise NotAvailable(f"the image has no MPI: {next(iter(lacking.values())).problems[language]}")
        if lacking:
            found = tuple(Finding(node, facts.problems[language], "MPI") for node, facts in lacking.items())
            return Verdict("matrix.cell", Outcome.FAILED, found)
        srun = next((launcher for launcher in runner.config.launchers if launcher != MPIRUN), "srun")
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
            *(self._allocation.slurm, self._allocation, cluster, self._channel, self._inventory),
            gpus_per_node=self.gpus,
        )
        if row == MPIRUN:
            return self._nccl_under_mpirun(runner)
        measured = runner.whole(self.nodes, "all_reduce")
        spec = RunSpec(self.nodes, runner.gpus, collective="all_reduce", node_of_rank=measured.node_of_rank)
        verdict = validate_run(measured.output, spec)
        if measured.problem and verdict.outcome is Outcome.PASSED:
            finding = Finding("step", measured.problem, "ends by itself")
            return replace(verdict, outcome=Outcome.FAILED, findings=(finding,))
        return verdict

    def _nccl_under_mpirun(self, runner: NcclStep) -> Verdict:
        if runner.runner != "nccl-tests":
            raise NotAvailable("no nccl-tests on the nodes; mpirun cannot start the payload on torch")
        argv = (runner.sweep.program, *runner.sweep.words(), "-g", "1")
        request = self._runner(MPIRUN).mpirun(self.nodes, argv, ntasks_per_node=runner.gpus)
        result, problem = self._step(replace(request, timeout=self.config.deadline))
        if problem:
            return Verdict("matrix.cell", Outcome.FAILED, (Finding("mpirun", problem, "ends by itself"),))
        spec = RunSpec(self.nodes, runner.gpus, collective="all_reduce")
        return validate_run(output_of(result.tasks, "all_reduce"), spec)


def reports(result: StepResult) -> tuple[tuple[str, str], ...]:
    """Return (node, value) of every task that printed one."""
    return tuple(
        (match[1], match[2].strip()) for task in result.tasks for match in _MARK.finditer(task.stdout)
    )


def _failure(result: StepResult) -> str:
    return "" if result.ok else result.hint or result.first_error
