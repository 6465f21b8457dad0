"""Ray in an allocation: every node alone in one step, then head and workers as two steps that end together.

The head runs the driver and is then killed; the workers report how they ended. Afterwards one command lists the
leftovers on all nodes, and they are removed.
"""

from __future__ import annotations

import contextlib
import copy
import json
import secrets
import shlex
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import SlurmError
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.node import own_folder
from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts, Share
from pytest_gpucluster.suites.ray.config import RayConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

OBJECT_BYTES = 8 << 20  # not sent inline (up to 100 KB), and more than one chunk of 5 MiB
FIRST_PORT, PORT_SPREAD = 20000, 2000
PORT_BLOCKS = 5  # blocks of ports that a node tries if the suite chose the first port
ALONE_SHIFT = 4000  # distance of the ports of the cluster from those of the nodes alone


class Ray(FrameworkStepRunner[RayConfig]):
    """The steps of Ray in one allocation."""

    section = "ray"

    def __init__(self, *of_runner: Any, channel: Channel) -> None:
        super().__init__(*of_runner)
        self._channel, self.marker = channel, secrets.token_hex(6)
        self.first_port = FIRST_PORT + secrets.randbelow(PORT_SPREAD)
        self._stem = f"{self.config.temp}/r{self.marker[:6]}"
        # in the environment of srun: argv is public, and reports contain it
        self.slurm = copy.copy(self.slurm)
        self.slurm.env = {**self.slurm.env, "RAY_AUTH_TOKEN": secrets.token_hex(16)}

    @cached_property
    def shares(self) -> dict[str, Share]:
        """The CPUs and GPUs that each node must provide."""
        inventory, config = self.inventory, self.config
        gpus = self.gpus if config.gpus is None else config.gpus
        cpus = min((inventory[node].job_cpus for node in self.nodes if node in inventory), default=1)
        return {node: Share(config.cpus or max(1, cpus), gpus) for node in self.nodes}

    @cached_property
    def alone(self) -> dict[str, NodeFacts]:
        """The facts of Ray on every node alone, all at once in one step."""
        plan = self._plan(self.nodes, self._port(0), work=())
        result = self.run(self._request(self.nodes, "alone", plan))
        return {node: _facts(result, node) for node in self.nodes}

    @cached_property
    def cluster_facts(self) -> ClusterFacts:
        """The facts of head and workers, on the nodes on which Ray works alone; the others keep their problem."""
        alone = self.alone
        fit = tuple(node for node in self.nodes if not alone[node].problem)
        nodes = {node: facts for node, facts in alone.items() if node not in fit}
        if len(fit) < 2:
            obstacle = self.reach.obstacle(self.nodes[0])
            return ClusterFacts(self.shares, self.nodes[0], nodes, obstacle=obstacle)
        head, workers = fit[0], fit[1:]
        plan = self._plan(fit, self._port(ALONE_SHIFT), work=self._work())
        head_facts = alone[head].facts["place"]
        plan["head"] = [head_facts["address"], head_facts["later"]]
        with ThreadPoolExecutor(2) as threads:
            futures = (
                threads.submit(self._run_head, head, plan),
                threads.submit(self.run, self._request(workers, "worker", plan)),
            )
            of_head, of_workers = (future.result() for future in futures)
        nodes |= {head: _facts(of_head, head)} | {node: _facts(of_workers, node) for node in workers}
        return ClusterFacts(self.shares, head, nodes, of_head.last_facts(), version=str(head_facts.get("version", "")))

    @cached_property
    def leftovers(self) -> Mapping[str, str]:
        """The removed leftovers of each node, one per line, without nodes that did not answer."""
        found = {}
        command = leftovers_command(self.marker, self._stem)
        for node, answer in self._channel.ask(command, timeout=60).items():
            if answer.rc is not None and node in self.nodes:
                found[node] = answer.out.strip()
        for node, text in found.items():
            if text:
                pids = [int(line.split()[1]) for line in text.splitlines() if line.startswith("process ")]
                self._channel.ask_node(node, remove_command(pids, self._stem), fresh=True)
        return found

    def _run_head(self, head: str, plan: Mapping[str, Any]) -> PayloadResult:
        result = self.run(self._request((head,), "head", plan))
        if "killed" not in result.last_facts():
            # the workers would wait for a head that does not start; their step may have ended by itself
            with contextlib.suppress(SlurmError):
                for step in self.slurm.steps(self.allocation.job_id):
                    if step.name == self._step_name("worker"):
                        self.slurm.run("scancel", "--signal=TERM", step.id)
        return result

    def _work(self) -> tuple[str, ...]:
        gpus = any(share.gpus for share in self.shares.values())
        tune = self.cluster.stated("ray.tune") is not False
        further = {"gpus": gpus, "tune": tune, "tune_gpus": gpus and tune}
        return ("nodes", "tasks", "actors", "objects", *(it for it in further if further[it]), "token")

    def _port(self, shift: int) -> int:
        return self.first_port + shift

    def _plan(self, nodes: tuple[str, ...], port: int, *, work: tuple[str, ...]) -> dict[str, Any]:
        config = self.config
        reserve = 2 * config.join + config.leave + 40
        return {
            "marker": self.marker,
            "temp": config.temp,
            "interface": config.interface,
            "nodes": {node: {"address": self.address(node), **vars(self.shares[node])} for node in nodes},
            "port": port,
            "later": self._port(ALONE_SHIFT),
            "blocks": PORT_BLOCKS,
            "join": config.join,
            "leave": config.leave,
            "work": work,
            "work_deadline": max(60.0, config.deadline - reserve),
            "elements": OBJECT_BYTES,
        }

    def _step_name(self, role: str) -> str:
        return f"ray-{role}-{self.marker}"

    def _request(self, nodes: tuple[str, ...], role: str, plan: Mapping[str, Any]) -> StepRequest:
        argv = self.payload(role, json.dumps(plan), name="payload_node.py")
        share = self.shares[nodes[0]]
        return self.request(
            argv,
            nodes=nodes,
            ntasks_per_node=1,
            gpus_per_node=share.gpus or None,
            cpus_per_task=share.cpus,
            mpi="none",
            extra_args=(f"--job-name={self._step_name(role)}",),
        )


def leftovers_command(marker: str, stem: str) -> str:
    """Return the command that lists the processes with this marker or with files under `stem`, and the folders."""
    mark = f"GPUCLUSTER_RAY_TASK={marker}"
    return script(__package__, "leftovers.sh", MARK=mark, STEM=shlex.quote(stem))


def remove_command(pids: Iterable[int], stem: str) -> str:
    """Return the command that ends these processes and removes the folders."""
    kill = "".join(f"kill -9 {pid} 2>/dev/null; " for pid in pids)
    return kill + own_folder.remove_command(f"{shlex.quote(stem)}*")


def _facts(result: PayloadResult, node: str) -> NodeFacts:
    facts = result.last_facts(node)
    if facts.get("problem", {}).get("what") == "not_importable":
        facts["problem"] = {**facts["problem"], "problem": f"{facts['problem']['problem']}; {result.where}"}
    return NodeFacts(facts, None if "ended" in facts else result.silent(node))
