"""Horovod in an allocation: one step that reads the build of every node, then one job per required launch."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, ProbeError
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.nccl.nccl_transport import LOGGED
from pytest_gpucluster.suites.horovod import facts as horovod_build
from pytest_gpucluster.suites.horovod.checks import Launch, NodeBuild, World
from pytest_gpucluster.suites.horovod.config import HorovodConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

FIRST_PORT, PORT_SPREAD = 28000, 4000  # below 32768, where the ephemeral ports of Linux begin
RESERVE = 15.0  # seconds of the deadline in which a rank reports where it hangs
PATIENCE = 120.0  # seconds for horovodrun --check-build, which imports every framework


def launches(config: HorovodConfig) -> tuple[Launch, ...]:
    """Return every launch that the cluster file requires."""
    launchers = config.launchers or ("srun", "horovodrun")
    found = []
    for framework in config.frameworks:
        if "srun" in launchers:
            found.append(Launch(framework, config.controller, "srun"))
        if "horovodrun" in launchers:
            found += [Launch(framework, config.controller, launcher) for launcher in ("horovodrun", "localhost")]
    return tuple(found)


class Horovod(FrameworkStepRunner[HorovodConfig]):
    """The steps of Horovod in one allocation."""

    section = "horovod"

    @property
    def operations(self) -> tuple[str, ...]:
        """The tensor operations that the builds must have."""
        return ("nccl",) if self.real_gpus else (self.config.controller,)

    @cached_property
    def _checked(self) -> PayloadResult:
        others = ("--ssh", ",".join(self.nodes[1:])) if len(self.nodes) > 1 else ()
        argv = self.payload("--patience", str(PATIENCE), *others, name="payload_build.py")
        timeout = max(self.config.deadline, PATIENCE + 60)
        return self.run(self.request(argv, ntasks_per_node=1, mpi="none", timeout=timeout))

    @cached_property
    def builds(self) -> Mapping[str, NodeBuild]:
        """The build of every node."""
        return {node: self._build(node) for node in self.nodes}

    def _build(self, node: str) -> NodeBuild:
        fact = self._checked.last_facts(node).get("build")
        if fact is None:
            return NodeBuild(problem=self._checked.silent(node))
        known: dict[str, Any] = {key: fact[key] for key in ("interfaces", "host", "python")}
        if "problem" in fact:
            why = Explanation(fact["what"], f"{fact['problem']}; {self.where}")
            return NodeBuild(problem=why, **known)
        try:
            found = horovod_build.read(str(fact["text"]))
        except ProbeError as error:
            return NodeBuild(problem=Explanation("unreadable", str(error)), **known)
        return NodeBuild(found, program=str(fact["program"]), **known)

    def world(self, launch: Launch) -> World:
        """Return the job of this launch; the first call runs it."""
        return self.once(launch, lambda: self._run(launch))

    def _run(self, launch: Launch) -> World:
        nodes = self.nodes[:1] if launch.launcher == "localhost" else self.nodes
        per_node = self.tasks_per_node
        lacking = [node for node in nodes if self.builds[node].build is None]
        if lacking:  # the others would wait for its ranks until the deadline
            absent = tuple(self._absent(node, self.builds[node].problem) for node in lacking)
            return World(launch, problems=absent, hosts=self._hosts(launch, nodes, per_node))
        if launch.launcher == "horovodrun" and (skipped := self._without_ssh(launch)):
            return skipped
        world = World(launch, self._hosts(launch, nodes, per_node), gpus=self._on_gpus, nodes=nodes)
        result = self.run(self._request(launch, nodes, per_node))
        facts = [fact for task in result.tasks for fact in task.facts]
        ranks, problems = (tuple(one for one in facts if one["kind"] == kind) for kind in ("rank", "problem"))
        why = self._why(result)
        return replace(world, ranks=ranks, problems=problems, problem=why, connections=result.connections)

    @staticmethod
    def _absent(node: str, why: Explanation) -> Mapping[str, Any]:
        return {"node": node, "stage": "build", "problem": why.text, "what": why.code}

    @staticmethod
    def _why(result: PayloadResult) -> Explanation | None:
        """Return why a step failed, and the first node where a task failed."""
        node = min((task.node for task in result.tasks if task.rc not in (0, None)), default="")
        if not (failed := result.failed) or not node:
            return failed
        why = result.silent(node)
        return Explanation((result.stopped or why).code, f"{failed.text}; {why.text}")

    @property
    def _on_gpus(self) -> bool:
        return bool(self.gpus) and "nccl" in self.operations

    def _without_ssh(self, launch: Launch) -> World | None:
        """Return why horovodrun -H cannot be used; None if it can, or if the cluster file requires it."""
        if self.in_container:
            return World(
                launch,
                obstacle=NotApplicable("horovodrun starts its ranks by ssh, outside of the image; srun does not"),
            )
        if len(self.nodes) < 2:  # ssh needs another node
            return World(launch, obstacle=NotApplicable("there is only one node: see the launch on localhost"))
        refused = self._checked.last_facts(self.nodes[0]).get("build", {}).get("ssh", {})
        if not refused or self.config.launchers is not None:
            return None
        node, why = next(iter(refused.items()))
        more = f" (and {len(refused) - 1} more nodes)" if len(refused) > 1 else ""
        reason = f"horovodrun -H needs ssh between nodes; {self.nodes[0]} to {node}: {why}{more}"
        return World(launch, obstacle=NotAvailable(f"{reason}; without it set horovod.launchers: [srun]"))

    def _hosts(self, launch: Launch, nodes: Iterable[str], per_node: int) -> tuple[str, ...]:
        if launch.launcher == "srun":
            return tuple(node for node in nodes for _ in range(per_node))
        return tuple(self.builds[node].host or node for node in nodes for _ in range(per_node))

    def _request(self, launch: Launch, nodes: tuple[str, ...], per_node: int) -> StepRequest:
        deadline = max(RESERVE, self.config.deadline - RESERVE)
        words = [f"--framework={launch.framework}", f"--deadline={deadline:g}"]
        if launch.launcher != "srun":
            return self._horovodrun(launch, nodes, per_node, words)
        words += ["--launcher=srun", f"--hosts={','.join(nodes)}", f"--per-node={per_node}"]
        words += [f"--address={self.address(nodes[0])}", f"--port={self._port()}"]
        words += [f"--second={self.address(nodes[1])}"] if len(nodes) > 1 else []
        return self.request(
            self.payload(*words),
            nodes=nodes,
            ntasks_per_node=per_node,
            gpus_per_task=1 if self._on_gpus else None,
            distribution="block",
            mpi="none",
            kill_on_bad_exit=True,
            env={**self.one_thread, **(LOGGED if self._on_gpus else {})},
        )

    def _horovodrun(self, launch: Launch, nodes: tuple[str, ...], per_node: int, words: list[str]) -> StepRequest:
        here = self.builds[nodes[0]]
        local = launch.launcher == "localhost"
        hosts = f"localhost:{per_node}" if local else ",".join(f"{node}:{per_node}" for node in nodes)
        command = [here.program, f"--{launch.controller}", "-np", str(len(nodes) * per_node), "-H", hosts]
        interface = self._interface_between(nodes)
        command += ["--network-interfaces", interface] if not local and interface else []
        # the shell that ssh starts has another PATH: the interpreter needs its full path
        _python, *payload = self.payload(*words, "--launcher=horovodrun")
        # last: programs of the site come first
        prelude = f"export PATH=$PATH:{shlex.quote(here.program.rpartition('/')[0])}"
        return self.request(
            (*command, here.python, *payload),
            nodes=nodes[:1],
            ntasks_per_node=1,
            gpus_per_node=self.gpus if self._on_gpus else None,
            mpi="none",
            env=self.one_thread,
            prelude=prelude,
        )

    def _interface_between(self, nodes: tuple[str, ...]) -> str:
        """Return the first interface besides loopback whose name all these nodes have; '' if there is none."""
        shared = [set(self.builds[node].interfaces) - {"lo"} for node in nodes]
        return min(set.intersection(*shared), default="")

    def _port(self) -> int:
        return FIRST_PORT + secrets.randbelow(PORT_SPREAD)
