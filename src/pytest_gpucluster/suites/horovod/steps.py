"""Horovod in an allocation: one step that reads every node's build, then one job for each way that is claimed."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ProbeError, StepError
from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
from pytest_gpucluster.suites.horovod import facts as horovod_build
from pytest_gpucluster.suites.horovod.checks import Launch, NodeBuild, World
from pytest_gpucluster.suites.horovod.config import HorovodConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.payload_result import PayloadResult

FIRST_PORT, PORT_SPREAD = 28000, 4000  # below 32768, where Linux hands out ports by itself
RESERVE = 15.0  # seconds that a rank keeps of the deadline to tell where it hangs
PATIENCE = 120.0  # for horovodrun --check-build, which imports every framework


def ways(config: HorovodConfig) -> tuple[Launch, ...]:
    """Return every way that the cluster file claims."""
    asked = config.launchers or ("srun", "horovodrun")
    found = []
    for framework in config.frameworks:
        for controller in config.controllers:
            # horovodrun --mpi is mpirun, which is the mpi suite's; the MPI controller is run by srun
            if "srun" in asked or controller == "mpi":
                found.append(Launch(framework, controller, "srun"))
            if "horovodrun" in asked and controller == "gloo":
                found += [Launch(framework, controller, launcher) for launcher in ("horovodrun", "localhost")]
    return tuple(found)


class Horovod(FrameworkStepRunner[HorovodConfig]):
    """Runs Horovod on the claim's nodes, as the cluster file's `horovod:` says."""

    section = "horovod"

    @property
    def operations(self) -> tuple[str, ...]:
        """The tensor operations that the builds must have."""
        if self.config.operations is not None:
            return self.config.operations
        return ("nccl",) if self.gpus else self.config.controllers

    @cached_property
    def _checked(self) -> PayloadResult:
        others = ("--ssh", ",".join(self.nodes[1:])) if self._asks_horovodrun and len(self.nodes) > 1 else ()
        argv = self.payload("--patience", str(PATIENCE), *others, name="payload_build.py")
        patience = max(self.config.deadline, PATIENCE + 60)
        return self.run(self.request(argv, ntasks_per_node=1, mpi="none", timeout=patience))

    @cached_property
    def builds(self) -> Mapping[str, NodeBuild]:
        """What every node told of its build."""
        return {node: self._build(node) for node in self.nodes}

    def _build(self, node: str) -> NodeBuild:
        told = self._checked.last_facts(node).get("build")
        if told is None:
            return NodeBuild(problem=self._checked.silence(node))
        known: dict[str, Any] = {key: told[key] for key in ("interfaces", "host", "python")}
        if "problem" in told:
            return NodeBuild(problem=str(told["problem"]), **known)
        try:
            found = horovod_build.read(str(told["text"]))
        except ProbeError as error:
            return NodeBuild(problem=str(error), **known)
        return NodeBuild(found, program=str(told["program"]), **known)

    def world(self, way: Launch) -> World:
        """Return what became of the job of this way; it is run once."""
        return self.once(way, lambda: self._run(way))

    @property
    def _asks_horovodrun(self) -> bool:
        return self.config.launchers is None or "horovodrun" in self.config.launchers

    def _run(self, way: Launch) -> World:
        nodes = self.nodes[:1] if way.launcher == "localhost" else self.nodes
        per_node = self.tasks_per_node
        lacking = [node for node in nodes if self.builds[node].build is None]
        if lacking:  # the others would wait for its ranks until the deadline
            told = tuple(self._absent(node) for node in lacking)
            return World(way, problems=told, places=self._places(way, nodes, per_node))
        if way.launcher == "horovodrun" and (reason := self._without_ssh()):
            return World(way, not_applicable=reason)
        world = World(way, self._places(way, nodes, per_node), gpus=self._on_gpus)
        try:
            ended = self.run(self._request(way, nodes, per_node))
        except StepError as error:
            if way.controller != "mpi":
                raise
            return replace(
                world, problem=str(error)
            )  # Slurm lacks the PMI that the controller is claimed with
        facts = [fact for task in ended.tasks for fact in task.facts]
        ranks, problems = (tuple(one for one in facts if one["kind"] == kind) for kind in ("rank", "problem"))
        return replace(world, ranks=ranks, problems=problems, problem=self._why(ended))

    def _absent(self, node: str) -> Mapping[str, Any]:
        return {"node": node, "stage": "build", "problem": self.builds[node].problem, "what": "framework"}

    def _why(self, ended: PayloadResult) -> str:
        silent = min((task.node for task in ended.tasks if task.rc not in (0, None)), default="")
        return f"{ended.failure}; {ended.silence(silent)}" if ended.failure and silent else ended.failure

    @property
    def _on_gpus(self) -> bool:
        return bool(self.gpus) and "nccl" in self.operations

    def _without_ssh(self) -> str:
        """Return why horovodrun -H cannot be used; '' where it can, or is claimed and has to."""
        if len(self.nodes) < 2:  # ssh needs another node
            return "one node alone: see the way over localhost"
        refused = self._checked.last_facts(self.nodes[0]).get("build", {}).get("ssh", {})
        if not refused or self.config.launchers is not None:
            return ""
        node, why = next(iter(refused.items()))
        more = f" (and {len(refused) - 1} more nodes)" if len(refused) > 1 else ""
        return f"horovodrun -H needs ssh between nodes; {self.nodes[0]} to {node}: {why}{more}"

    def _places(self, way: Launch, nodes: Iterable[str], per_node: int) -> tuple[str, ...]:
        if way.launcher == "srun":
            return tuple(node for node in nodes for _ in range(per_node))
        return tuple(self.builds[node].host or node for node in nodes for _ in range(per_node))

    def _request(self, way: Launch, nodes: tuple[str, ...], per_node: int) -> StepRequest:
        deadline = max(RESERVE, self.config.deadline - RESERVE)
        words = [f"--framework={way.framework}", f"--controller={way.controller}", f"--deadline={deadline:g}"]
        if self.config.interface and way.launcher != "localhost":
            words.append(f"--interface={self.config.interface}")
        if way.launcher != "srun":
            return self._horovodrun(way, nodes, per_node, words)
        words += ["--launcher=srun", f"--hosts={','.join(nodes)}", f"--per-node={per_node}"]
        words += [f"--address={self.address(nodes[0])}", f"--port={self._port()}"]
        words += [f"--second={self.address(nodes[1])}"] if len(nodes) > 1 else []
        return self.request(
            self.payload(*words),
            nodes=nodes,
            ntasks_per_node=per_node,
            gpus_per_task=1 if self._on_gpus else None,
            distribution="block",
            mpi=self.config.mpi if way.controller == "mpi" else "none",
            kill_on_bad_exit=True,
            env=self.one_thread,
        )

    def _horovodrun(
        self, way: Launch, nodes: tuple[str, ...], per_node: int, words: list[str]
    ) -> StepRequest:
        here = self.builds[nodes[0]]
        local = way.launcher == "localhost"
        hosts = f"localhost:{per_node}" if local else ",".join(f"{node}:{per_node}" for node in nodes)
        launch = [here.program, f"--{way.controller}", "-np", str(len(nodes) * per_node), "-H", hosts]
        interface = self.config.interface or self._interface_between(nodes)
        launch += ["--network-interfaces", interface] if not local and interface else []
        # ssh starts a shell that knows nothing of our PATH: the interpreter goes by its full name
        _python, *payload = self.payload(*words, "--launcher=horovodrun")
        # last: the folder may hold an mpirun that is not that of the build
        prelude = f"export PATH=$PATH:{shlex.quote(here.program.rpartition('/')[0])}"
        return self.request(
            (*launch, here.python, *payload),
            nodes=nodes[:1],
            ntasks_per_node=1,
            gpus_per_node=self.gpus if self._on_gpus else None,
            mpi="none",
            env=self.one_thread,
            prelude=prelude,
        )

    def _interface_between(self, nodes: tuple[str, ...]) -> str:
        """Return the first interface, beside loopback, that all these nodes have by name; '' where there is none."""
        shared = [set(self.builds[node].interfaces) - {"lo"} for node in nodes]
        return min(set.intersection(*shared), default="")

    def _port(self) -> int:
        return FIRST_PORT + secrets.randbelow(PORT_SPREAD)
