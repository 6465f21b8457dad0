"""The three measurements of the nccl suite, each one Slurm step.

`alone` (every node by itself, all at the same time), `whole` (one collective over all nodes), `rounds` (disjoint groups
of nodes, round by round; the payload forms new groups without a restart). With nccl-tests `rounds` needs one step per
pair, since its binaries cannot form new communicators.
"""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import GpuClusterError, NotAvailable
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.framework.payload_step import environment_named
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.nccl.measurement import Measurement
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.kit.nccl.nccl_step import NcclCommand, NcclMeasurement, NcclStep, all_sweeps_over
from pytest_gpucluster.suites.nccl.environment_facts import SCRIPT, read_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucluster.cluster.slurm.result import TaskResult
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.suites.nccl.environment_facts import NcclEnvironment

PARALLEL_STEPS = 8  # steps of single pairs with nccl-tests

NO_WORLD = "each process ran alone: MPI was started without PMI or PMIx: set nccl.mpi to one of `srun --mpi=list`"


def refuse_command(cluster: Cluster) -> None:
    """Raise ConfigError if nccl.command is no command of nccl-tests."""
    NcclCommand.parse(cluster.section(NcclConfig).command)


class NcclRunner(NcclStep):
    """Runs the collectives in an allocation, as set in the section `nccl` of the cluster file."""

    paired: tuple[TaskResult, ...] = ()  # the tasks of the last rounds of pairs

    @cached_property
    def can_re_form(self) -> bool:
        """Whether the bundled payload runs there: then all rounds of pairs fit into one step."""
        return bool(self.config.payload) or self.runner == "payload" or not self._without_torch

    def survey(self, node: str) -> Answer:
        """Run nvidia-smi on a node, not from the cache."""
        return self._channel.ask_node(node, nvidia_smi.SURVEY, timeout=nvidia_smi.GPUS.timeout, fresh=True)

    def alone(self, nodes: Sequence[str], sizes: Iterable[int] = ()) -> NcclMeasurement:
        """Measure all-reduce within every node, all nodes in one step; one table per node."""
        sweep = self.sweep.reaching(sizes).with_latency("all_reduce")
        if self.runner == "nccl-tests":
            singleton = ("sh", "-c", script(__package__, "singleton.sh"), "sh")
            argv = (*singleton, sweep.program, *sweep.words(), "-g", str(self.gpus), *sweep.rest)
            request = self._request(nodes, argv, ntasks_per_node=1, gpus_per_node=self.gpus)
            request = replace(request, mpi="none")
        else:
            alone = script(__package__, "alone.sh", GPUS=self.gpus)
            inner = self._payload("sweep", "-c", "all_reduce", *sweep.words(), *self._deadlines())
            argv = ("sh", "-c", alone, "sh", *inner)
            request = self._request(nodes, argv, ntasks_per_node=self.gpus, gpus_per_task=1)
            request = replace(request, enough=all_sweeps_over(len(nodes)))
        return self._measure(request, "all_reduce", apart=True)

    def rounds(self, nodes: Sequence[str], batch: Sequence[Sequence[Sequence[str]]]) -> list[Measurement]:
        """Measure disjoint groups, round by round; return a measurement, or its problem, for every group.

        The groups of nodes that are lost meanwhile have this as their problem.
        """
        if self.can_re_form:
            before = len(self.lost_nodes)
            found = self._rounds_in_one_step(nodes, batch)
            failed = any(it.problem and not self._lost_of(it.members) for it in found)
            repeat = failed and len(self.lost_nodes) > before
            return self._rounds_in_one_step(nodes, batch) if repeat else found
        with ThreadPoolExecutor(PARALLEL_STEPS) as threads:
            return [found for groups in batch for found in threads.map(self._measure_group, groups)]

    def _rounds_in_one_step(self, nodes: Sequence[str], batch: Sequence[Sequence[Sequence[str]]]) -> list[Measurement]:
        lost = {(n, tuple(it)): self._lost_of(it) for n, groups in enumerate(batch) for it in groups}
        whole = [[it for it in groups if not lost[n, tuple(it)]] for n, groups in enumerate(batch)]
        used = {member.partition(":")[0] for groups in whole for group in groups for member in group}
        present = tuple(node for node in nodes if node in used)
        if not present:
            return [Measurement(group, problem=why) for (_, group), why in lost.items()]
        size = ("-s", str(self.config.pair_size), "--deadline", str(self.round_deadline))
        argv = self._payload("rounds", *size, "--schedule", "-", *self._rendezvous(present))
        request = self._request(present, argv, ntasks_per_node=self.gpus, gpus_per_task=1)
        wanted = {key for key, why in lost.items() if not why}
        request = replace(
            request,
            input=json.dumps(whole).encode(),
            timeout=self.deadline + len(batch) * self.round_deadline,
            enough=lambda text: wanted <= dict(read_rounds(text)).keys(),
        )
        result, problem = self._run(request)
        self.paired = result.tasks
        found = dict(read_rounds("\n".join(task.stdout for task in result.tasks)))
        why = problem or result.first_error
        for n, group in lost:
            if gone := self._lost_of(group):
                found[n, group] = Measurement(group, problem=gone)
        return [found.get(key, Measurement(key[1], problem=why)) for key in lost]

    def _lost_of(self, group: Iterable[str]) -> str:
        hosts = (member.partition(":")[0] for member in group)
        return "; ".join(f"{node} is lost: {self.lost_nodes[node]}" for node in hosts if node in self.lost_nodes)

    def _measure_group(self, group: Sequence[str]) -> Measurement:
        members = tuple(group)
        if any(":" in member for member in members):
            return Measurement(members, skipped=True)  # nccl-tests cannot select single GPUs
        if lost := self._lost_of(members):
            return Measurement(members, problem=lost)
        size = self.config.pair_size
        argv = (self.sweep.program, "-b", str(size), "-e", str(size), "-f", "2", "-g", "1", *self.sweep.rest)
        request = self._request(members, argv, ntasks_per_node=self.gpus, gpus_per_task=1)
        found = self._measure(replace(request, timeout=self.round_deadline), "all_reduce")
        if found.output.singletons and not found.problem:
            return Measurement(members, problem=NO_WORLD, skipped=True)  # no data were sent between nodes
        runs = found.output.runs
        wrong = [row.out_of_place.wrong for run in runs for row in run.rows if row.out_of_place.wrong]
        if found.problem or found.output.problems or wrong or len(runs) != 1 or not runs[0].rows:
            why = found.problem or "; ".join(found.output.problems[:2])
            why = why or f"wrong data: {sum(wrong)} elements"
            return Measurement(members, problem=why, wrong=bool(wrong))
        return Measurement(members, runs[0].rows[-1].out_of_place.busbw)

    @property
    def round_deadline(self) -> float:
        """Seconds for one round: a tenth of a step's deadline, so that a hang costs no more."""
        return max(20.0, self.deadline / 10)

    @cached_property
    def _image_tasks(self) -> tuple[dict[str, TaskResult], str]:
        """The task of each node in the image of the steps, and why a node has none; one step."""
        request = self._request(self._allocation.nodes, ("sh", "-c", SCRIPT), ntasks_per_node=1)
        # without the variables that make NCCL log
        request = replace(request, env={}, prelude="", mpi="none")
        result, problem = self._run(request)
        why = problem or result.hint or result.first_error or "no task reported"
        return {task.node: task for task in result.tasks}, why

    def image_environment(self, node: str) -> NcclEnvironment:
        """Return what a task in the image of the steps sees on a node; NotAvailable if it is unknown."""
        tasks, why = self._image_tasks
        unknown = "the environment in the image is unknown"
        if node not in tasks:
            raise NotAvailable(f"{unknown}: {why}")
        try:
            return read_task(Answer(node, tasks[node].rc, tasks[node].stdout.encode()))
        except GpuClusterError as error:
            raise NotAvailable(f"{unknown}: {error}") from error


def image_of(cluster: Cluster) -> str:
    """Return the image or container that the cluster file runs NCCL in; '' for none."""
    config = cluster.section(NcclConfig)
    own = environment_named(cluster, config.environment, "nccl")
    return (own and (own.container_image or own.container_name)) or ""


def read_rounds(text: str) -> Iterable[tuple[tuple[int, tuple[str, ...]], Measurement]]:
    """Yield ((round, members), measurement) of the payload's JSON lines; other lines are skipped."""
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                fields = safe_json.loads(line)
                measurement = Measurement.from_dict(fields)
                yield (int(fields["round"]), measurement.members), measurement
