"""MPI on the nodes: a small program is prepared on each, then started by mpirun and by srun.

The source reaches the nodes through the step's stdin (C) or its command line (Python); there is no shared storage.
In a container the image's compiler compiles the program into a mounted folder of the node.
"""

from __future__ import annotations

import secrets
import shlex
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, environment_request, run_step
from pytest_gpucluster.cluster.slurm.task_place import MISPLACED
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import GpuClusterError, ProbeError, StepError, StepMisplaced, StepTimeout
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.framework.payload_step import command
from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.mpi import mpi_facts as reading
from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi.mpi_facts import InstalledMpi
from pytest_gpucluster.kit.node import own_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.kit.mpi.mpi_facts import MpiRun, MpiWorld

MPIRUN = "mpirun"
PROGRAMS = Path(__file__).parents[1] / "payloads" / "mpi"
IN_CONTAINER = "mpirun starts its daemons through srun, which is not in the image: there srun is the launcher"


class Mpi(FrameworkStepRunner[MpiConfig]):
    """Runs MPI programs in an allocation, as the cluster file's `mpi:` says."""

    section = "mpi"

    def __init__(self, *of_runner: Any, channel: Channel, ntasks_per_node: int = 0) -> None:
        super().__init__(*of_runner)
        gpus = self.inventory[self.nodes[0]].gpus
        self.ntasks_per_node = ntasks_per_node or gpus or self.config.without_gpus
        self._channel, self._made = channel, False
        self.misplaced: Mapping[str, str] = {}  # of `installed`: {node: where its task ran}
        self._folder = f"{self.config.scratch.rstrip('/')}/gpucluster-mpi.{secrets.token_hex(8)}"

    # --- the program

    @cached_property
    def installed(self) -> dict[str, InstalledMpi]:
        """The MPI of each node, {node: facts}; the step also prepares the program there.

        A node whose task failed has facts with the reason. StepError, StepTimeout: the step could not run.
        """
        self._make_folder()
        config = self.config
        words = (self._folder, config.mpirun, " ".join(config.languages))
        prepare = ("sh", "-c", payload_script("prepare.sh"), "sh", *words)
        argv = (*prepare, *command(self.python, PROGRAMS / "world.py", "where"))
        request = self._request(self.nodes, argv, mpi="none", ntasks_per_node=1)
        request = replace(request, input=(PROGRAMS / "world.c").read_bytes())
        try:
            result = run_step(self.slurm, self.allocation, request)
        except StepMisplaced as error:
            if error.result is None:
                raise
            result, self.misplaced = error.result, error.nodes
        return {node: self._read_installed(node, result) for node in self.nodes}

    def _read_installed(self, node: str, result: StepResult) -> InstalledMpi:
        tasks = result.of_node(node)
        if node in self.misplaced:
            why = Explanation(MISPLACED, self.misplaced[node])
        elif len(tasks) == 1 and tasks[0].rc == 0:
            return reading.read_installed(node, tasks[0].stdout)
        else:
            last_line = tasks[0].stderr.strip().splitlines()[-1:] if tasks else []
            why = Explanation("step_failed", result.hint or "".join(last_line) or result.first_error)
        return InstalledMpi(node, problems=dict.fromkeys(self.config.languages, why))

    def usable(self, language: str) -> tuple[str, ...]:
        """Return the nodes where programs of this language start; a run with the others would fail."""
        return tuple(node for node, facts in self.installed.items() if language in facts.library)

    def _make_folder(self) -> None:
        self._made = True
        for node, answer in self._channel.ask(own_folder.make_command(self._folder)).items():
            if node in self.nodes and answer.rc != 0:
                why = answer.problem or answer.err.strip() or f"exit {answer.rc}"
                raise GpuClusterError(f"{node}: {self._folder} cannot be created: {why}; set mpi.scratch")

    def clean_up(self) -> None:
        """Remove the program from the nodes."""
        if self._made:
            self._channel.ask(own_folder.remove_command(shlex.quote(self._folder)))

    # --- runs

    def started(self, launcher: str, language: str) -> MpiRun:
        """Return one run of the program on all usable nodes, started once. `launcher` is one of mpi.launchers."""
        return self.once((launcher, language), lambda: self.start(launcher, language))

    def start(self, launcher: str, language: str) -> MpiRun:
        """Return a further run of the program."""
        nodes = self.usable(language)
        compiled = (f"{self._folder}/world",)
        program = compiled if language == "c" else command(self.python, PROGRAMS / "world.py")
        if launcher == MPIRUN:
            request = self.mpirun(nodes, program)
        else:
            pmi = launcher.partition("--mpi=")[2] or None
            request = self._request(nodes, program, mpi=pmi, ntasks_per_node=self.ntasks_per_node)
        result, problem = attempt(self.slurm, self.allocation, request)
        try:
            world = self._world(launcher, result)
        except ProbeError as error:
            world, problem = reading.MpiWorld(), problem or str(error)
        text = "\n".join((result.stderr, *(f"{task.stderr}\n{task.stdout}" for task in result.tasks)))
        # srun may exit 0 after a failed launch
        failed = bool(problem) or result.rc != 0 or len(world.ranks) != len(nodes) * self.ntasks_per_node
        offered = None if launcher == MPIRUN else self.pmi(launcher)
        return reading.MpiRun(
            launcher=launcher,
            language=language,
            nodes=nodes,
            ntasks_per_node=self.ntasks_per_node,
            world=world,
            rc=result.rc,
            problem=problem,
            failures=mpi_errors.explain(text, mpi=offered),
            first_error=result.first_error if failed else "",
        )

    def pmi(self, launcher: str) -> str:
        """Return the type that a launcher passes to `srun --mpi`; '' for MpiDefault of slurm.conf."""
        return launcher.partition("--mpi=")[2] or (self.environment.mpi or "" if self.environment else "")

    def _world(self, launcher: str, result: StepResult) -> MpiWorld:
        under_srun = launcher != MPIRUN  # Slurm knows the node of each task
        worlds = (reading.read_world(it.stdout, it.node if under_srun else "") for it in result.tasks)
        world = reading.join_worlds(worlds)
        return world if under_srun else reading.with_nodes(world, reading.hosts_of(self.installed.values()))

    def mpirun(self, nodes: Sequence[str], program: Sequence[str], *, ntasks_per_node: int = 0) -> StepRequest:
        """Return the step that starts a program on these nodes with mpirun, as a batch script would."""
        tasks = ntasks_per_node or self.ntasks_per_node
        # -n: an mpirun that misreads Slurm's variables may start processes without end
        size = ("-n", str(len(nodes) * tasks))
        command = (*as_batch(nodes, tasks), self.config.mpirun, *size, *program)
        return self._request(tuple(nodes[:1]), command, mpi="none", ntasks_per_node=1)

    def _request(
        self, nodes: tuple[str, ...], argv: Sequence[str], *, mpi: str | None, ntasks_per_node: int
    ) -> StepRequest:
        request = StepRequest(
            argv=tuple(argv), nodes=nodes, mpi=mpi, ntasks_per_node=ntasks_per_node, timeout=self.config.deadline
        )
        if self.environment is not None:
            request = environment_request(self.environment, request)
        if request.pyxis is not None:
            mounts = (*request.pyxis.mounts, f"{self._folder}:{self._folder}")
            request = replace(request, pyxis=replace(request.pyxis, mounts=mounts))
        return request


def attempt(slurm: Slurm, allocation: Allocation, request: StepRequest) -> tuple[StepResult, str]:
    """Run a step; return its result, and the problem if it hung or did not start."""
    try:
        return run_step(slurm, allocation, request), ""
    except StepTimeout as error:
        result = error.result if isinstance(error.result, StepResult) else None
        return result or StepResult(-1, (), error.stderr, request.timeout, ""), f"hangs: {error}"
    except StepError as error:
        return StepResult(error.rc or -1, (), error.stderr, 0.0, ""), str(error)


def as_batch(nodes: Sequence[str], ntasks_per_node: int) -> tuple[str, ...]:
    """Return the start of a command of one task that sees these nodes as a batch script would."""
    sizes = (str(len(nodes)), str(ntasks_per_node))
    return ("sh", "-c", payload_script("as_batch.sh"), "sh", hostlist.fold(nodes), *sizes)


def payload_script(name: str) -> str:
    """Return a program of sh of payloads/mpi, as it is sent to the nodes."""
    return script("pytest_gpucluster.kit.payloads.mpi", name)
