"""The cells of the experiment matrix: one launcher with one workload, in one or two steps."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.cluster.slurm.task_place import MISPLACED
from pytest_gpucluster.config.models import DEFAULT_ENVIRONMENT, NO_ENVIRONMENT
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Finding, Outcome, Verdict
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, StepError
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit.mpi import mpi_world
from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi.mpi_step import MPIRUN, Mpi, attempt
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.kit.nccl.nccl_step import NcclStep, output_of
from pytest_gpucluster.kit.nccl.nccl_transport import log_of
from pytest_gpucluster.kit.nccl.nccl_validation import RunSpec, validate_run
from pytest_gpucluster.suites.matrix import checks, speed
from pytest_gpucluster.suites.matrix.checks import Cell, CellWork, State
from pytest_gpucluster.suites.matrix.speed import SpeedComparison

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import EnvironmentConfig
    from pytest_gpucluster.kit.framework.framework_step import NodesUnderTest
    from pytest_gpucluster.kit.nccl.nccl_log import NcclLog
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput
    from pytest_gpucluster.suites.matrix.config import MatrixConfig
    from pytest_gpucluster.suites.matrix.speed import Speed

    Measured = tuple[Verdict, Speed | None]

_MARK = re.compile(r"gpucluster-matrix (\S*) (.+)")
_SHARE = re.compile(r"gpucluster-matrix-share (\S*) (\d{1,9}) (\d{1,9}) (\S*)$", re.MULTILINE)
SUM = "500500"  # of 1 to 1000
_NVIDIA = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
_SIZES = "-b 8 -e 128M -f 16 -g 1"  # the largest is limited by bandwidth, not by latency
SHARED_HOST = "virtual nodes share a host"
STEP = Part("step", name="step")
OUTSIDE = "nccl.environment, without its container"
IMAGE_ONLY = "the MPI of mpi.environment is in an image only"


class _LeftOutError(Exception):
    """Why the cluster file leaves a cell out."""


def _failed(part: Part, measured: str, expected: str, code: str) -> Verdict:
    return Verdict("matrix.cell", Outcome.FAILED, (Finding(part, Quote(measured), expected, code=code),))


class Matrix:
    """The matrix on the nodes of one allocation."""

    _keys: ClassVar[Mapping[str, str]] = {"srun_pyxis": "matrix.container", "srun_framework": "matrix.framework"}

    def __init__(
        self,
        allocation: Allocation,
        session: NodesUnderTest,
        channel: Channel,
        config: MatrixConfig,
        nodes: tuple[str, ...],
    ) -> None:
        self.config, self.nodes = config, nodes
        self._allocation, self._channel = allocation, channel
        self._cluster, self._inventory = session.cluster, session.inventory
        usual = session.cluster.environments.get(DEFAULT_ENVIRONMENT)
        default = DEFAULT_ENVIRONMENT if usual and usual.container_image else None
        images = {"srun_pyxis": config.container, "srun_framework": config.framework}
        self._images = {row: name or default for row, name in images.items()}
        self._mpi: dict[str, Mpi] = {}
        self._done: dict[tuple[str, str], tuple[Cell, Speed | None]] = {}

    def cell(self, row: str, column: str) -> Cell:
        """Return one cell, run once; ConfigError if matrix.container or .framework is no environment with an image."""
        if (row, column) not in self._done:
            self._done[row, column] = self._run(row, column)
        return self._done[row, column][0]

    def compared(self, column: str) -> SpeedComparison:
        """Return the rates of all rows of a workload; a slow row and the fastest one are run again."""
        cells = {row: self.cell(row, column) for row in checks.ROWS}
        rates = {row: rate for row in cells if (rate := self._done[row, column][1]) is not None}
        hosts = {self._inventory[node].hostname for node in self.nodes}
        if column in ("cpu", "mpi") and len(hosts) < len(self.nodes):
            # tasks of other nodes use the same CPUs, and an MPI may use memory or TCP
            rates, cells = {}, {row: replace(cell, why=SHARED_HOST) for row, cell in cells.items()}
        absent = {
            row: cell.note or "no rate (a pair needs two nodes, a collective two ranks)"
            for row, cell in cells.items()
            if row not in rates
        }
        where = f" on {hostlist.fold(self.nodes)}"
        once = {row: (rate,) for row, rate in rates.items()}
        it = SpeedComparison(column, once, absent, self.config.min_ratio, where)
        for _ in checks.ROWS:  # a faster second run may make a further row slow
            again = {row: self._run(row, column)[1] for row in it.unrepeated}
            if not any(again.values()):
                break
            it = it.with_runs(again)
        return it

    def _run(self, row: str, column: str) -> tuple[Cell, Speed | None]:
        absent = self._absent(row, column)
        if absent:
            return Cell(row, column, State.NOT_APPLICABLE, absent), None
        rate = None
        try:
            run = {"cpu": self._cpu, "gpu": self._gpu, "mpi": self._mpi_world, "nccl": self._nccl}[column]
            verdict, rate = run(row)
        except _LeftOutError as error:
            return Cell(row, column, State.NOT_APPLICABLE, str(error)), None
        except NotAvailable as error:
            return Cell(row, column, State.LACKING, str(error)), None
        except StepError as error:
            verdict = _failed(STEP, str(error), "starts in the stated container", code="not_started")
        mpi = self._cluster.section(MpiConfig)
        pmi = mpi is None or any(launcher != MPIRUN for launcher in mpi.launchers)
        cell = checks.settle(row, column, verdict, self.config.expected, pmi_required=pmi)
        # a wrong transport is compared too, so that the difference is named
        if cell.state is not State.WORKS:
            return cell, rate if column == "nccl" else None
        return replace(cell, speed=str(rate or "")), rate

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

    def _environment(self, row: str) -> EnvironmentConfig | None:
        name = self._images.get(row)
        if name is None:
            usual = self._cluster.environment(None)
            return usual and usual.outside
        known = self._cluster.environments
        if name not in known or not known[name].container_image:
            images = listed(sorted(key for key, value in known.items() if value.container_image))
            raise ConfigError(
                f"{self._keys[row]} {name!r} is not an environment with a container_image; these have one: {images}"
            )
        return known[name]

    # --- workloads without messages between tasks

    def _cpu(self, row: str) -> Measured:
        verdict, result = self._work(row, script(__package__, "cpu.sh"), self.config.ntasks_per_node, SUM, "", None, {})
        return verdict, speed.of_shares(shares(result))

    def _gpu(self, row: str) -> Measured:
        work = script(__package__, "gpu.sh")
        return self._work(row, work, 1, str(self.gpus), "GPUs", self.gpus, _NVIDIA)[0], None

    def _work(
        self, row: str, work: str, tasks: int, expected: str, unit: str, gpus: int | None, env: Mapping[str, str]
    ) -> tuple[Verdict, StepResult]:
        argv = ("sh", "-c", work)
        if row == MPIRUN:
            request = self._runner(row).mpirun(self.nodes, argv, ntasks_per_node=tasks)
        else:
            where = self._environment(row)
            request = StepRequest(argv, self.nodes, tasks, environment=where, gpus_per_node=gpus)
        request = replace(request, timeout=self.config.deadline, env={**request.env, **env})
        result, problem = attempt(self._allocation.slurm, self._allocation, request)
        problem = problem or ("" if result.ok else result.hint or result.first_error)
        done = CellWork(self.nodes, tasks, reports(result), expected, unit, problem)
        return checks.work(done), result

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

    def _mpi_world(self, row: str) -> Measured:
        runner = self._runner(row)
        language = runner.config.languages[0]
        if row not in self._images and runner.in_container:
            raise _LeftOutError(IMAGE_ONLY)
        lacking = {node: it.problems[language] for node, it in runner.installed.items() if language in it.problems}
        if lacking and row == "srun_pyxis" and len(lacking) == len(self.nodes) and not runner.misplaced:
            raise NotAvailable(f"the image has no MPI: {next(iter(lacking.values())).text}")
        if lacking:
            found = tuple(why.finding(Part("node", name=node), "MPI") for node, why in lacking.items())
            return Verdict("matrix.cell", Outcome.FAILED, found), None
        srun = next((launcher for launcher in runner.config.launchers if launcher != MPIRUN), "srun")
        run = runner.start(MPIRUN if row == MPIRUN else srun, language)
        verdict = mpi_world.world(run)
        pmi = "that of mpirun" if row == MPIRUN else runner.pmi(srun) or "MpiDefault of slurm.conf"
        verdict = mpi_world.allreduce(run) if verdict.outcome is Outcome.PASSED else verdict
        return verdict, speed.of_world(run, pmi)

    # --- NCCL

    def _nccl(self, row: str) -> Measured:
        nccl = self._cluster.section(NcclConfig)
        program = (nccl.command.split() or ["all_reduce_perf"])[0]
        environments = dict(self._cluster.environments)
        update: dict[str, object] = {"command": f"{program} {_SIZES}"}
        if row == "srun_framework":
            update |= {"environment": self._images[row], "runner": "payload"}
        elif row == "srun_pyxis":
            own = self._cluster.environment(nccl.environment, "nccl.environment")
            if nccl.runner != "nccl-tests" or own is None or not own.container_image:
                key = "nccl: {runner: nccl-tests, environment: NAME}"
                raise _LeftOutError(f"the cluster file names no image with nccl-tests ({key})")
        else:
            update |= {"launcher": "srun", "environment": NO_ENVIRONMENT}
            if own := self._cluster.environment(nccl.environment, "nccl.environment"):
                update["environment"], environments[OUTSIDE] = OUTSIDE, own.outside
        cluster = self._cluster.model_copy(
            update={"nccl": nccl.model_copy(update=update), "environments": environments}
        )
        runner = NcclStep(
            *(self._allocation.slurm, self._allocation, cluster, self._channel, self._inventory),
            gpus_per_node=self.gpus,
            deadline=self.config.deadline,
        )
        if row == MPIRUN:
            return self._nccl_under_mpirun(runner)
        measured = runner.whole(self.nodes, "all_reduce")
        if measured.misplaced:
            node, why = next(iter(measured.misplaced.items()))
            stated = "tasks in the stated container, in the stated number"
            return _failed(Part("node", name=node), why, stated, code=MISPLACED), None
        verdict = self._validated(runner, measured.output, measured.log, measured.node_of_rank)
        if measured.problem and verdict.outcome is Outcome.PASSED:
            return _failed(STEP, measured.problem, "ends by itself", code="not_ended"), None
        return verdict, speed.of_collective(measured.output, measured.log, measured.node_of_rank)

    def _validated(
        self, runner: NcclStep, output: NcclOutput, log: NcclLog, node_of_rank: Mapping[int, str] | None
    ) -> Verdict:
        """Return the verdict on ranks, devices, transports and data, and whether the rate is plausible for the links."""
        profile = self._cluster.group_of(self.nodes[0]).profile
        logged = log if runner.logs_transports else None
        spec = RunSpec(self.nodes, runner.gpus, "all_reduce", node_of_rank=node_of_rank, log=logged)
        verdict = validate_run(output, spec, profile)
        row = output.runs[0].rows[-1] if verdict.outcome is Outcome.PASSED and output.runs[0].rows else None
        if row is None or row.out_of_place.busbw is None or len(self.nodes) * runner.gpus < 2:
            return verdict
        lowest = runner.floor("all_reduce", row.size, self.nodes, runner.route(profile, log, node_of_rank))
        if isinstance(lowest, str) or row.out_of_place.busbw >= lowest.bound:
            return verdict
        busbw = row.out_of_place.busbw
        slow = Finding(
            Part("message", name="bandwidth"),
            Quantity(busbw, "GB/s", f"{busbw:.3g} GB/s"),
            Quantity(lowest.bound, "GB/s", f"at least {lowest.bound:.3g} GB/s ({lowest})"),
            code="below_floor",
        )
        return replace(verdict, outcome=Outcome.FAILED, findings=(slow,), cause=log.summary(node_of_rank))

    def _nccl_under_mpirun(self, runner: NcclStep) -> Measured:
        if runner.runner != "nccl-tests":
            why = "no nccl-tests on the nodes; mpirun cannot start the payload on torch: install nccl-tests"
            raise NotAvailable(why)
        argv = (runner.sweep.program, *runner.sweep.words(), "-g", "1")
        request = self._runner(MPIRUN).mpirun(self.nodes, argv, ntasks_per_node=runner.gpus)
        # mpirun's daemons pass the environment of the step on
        request = replace(request, timeout=self.config.deadline, env={**runner.logging, **request.env})
        result, problem = attempt(self._allocation.slurm, self._allocation, request)
        if problem:
            return _failed(Part("run", name="mpirun"), problem, "ends by itself", code="not_ended"), None
        output, log = output_of(result.tasks, "all_reduce"), log_of(result.tasks)
        return self._validated(runner, output, log, None), speed.of_collective(output, log, None)


def reports(result: StepResult) -> tuple[tuple[str, str], ...]:
    """Return (node, value) of every task that printed one."""
    return tuple((match[1], match[2].strip()) for task in result.tasks for match in _MARK.finditer(task.stdout))


def shares(result: StepResult) -> tuple[tuple[str, float, str], ...]:
    """Return (node, share of a CPU, CPUs that it may use) of every task that measured its CPU time."""
    return tuple(
        (match[1], int(match[2]) / int(match[3]), match[4])
        for task in result.tasks
        for match in _SHARE.finditer(task.stdout)
        if int(match[3])
    )
