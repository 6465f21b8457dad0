"""What a handful of steps show of containers on every node, for many checks at once.

One step outside, then steps that re-use one imported container with different options; each task tells what it sees.
Nothing is written where a task is found to run outside of a container.
"""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.pyxis import NOT_SAVED, PyxisOptions, explain_exit
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.core.errors import StepError, StepTimeout
from pytest_gpucluster.kit import enroot
from pytest_gpucluster.kit.containers import ImageImport, NamedContainers, messages_of, why_failed
from pytest_gpucluster.kit.payload_step import source_of
from pytest_gpucluster.suites.container.facts import (
    HOST_VALUE,
    MOUNTED,
    MOUNTED_RO,
    PASSED,
    RANKS_PER_NODE,
    Found,
    Seen,
    read_facts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.suites.container.config import ContainerConfig

TORCH = "gpucluster"
# an image sets these for itself; what Slurm or Pyxis set is no rule of the image
_NO_EXAMPLE = (
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "PYTORCH_VERSION",
    "ENV",
    "BASH_ENV",
)


@dataclass
class ContainerExam:
    """Runs the steps on `nodes` of one allocation. `gpus`: GPUs a node that a step may ask for."""

    slurm: Slurm
    allocation: Allocation
    containers: NamedContainers
    config: ContainerConfig
    image: str
    nodes: tuple[str, ...]
    gpus: int = 0
    commands: list[str] = field(default_factory=list)
    nonce: str = field(default_factory=lambda: secrets.token_hex(6))

    @cached_property
    def found(self) -> dict[str, Found]:
        """Everything, by node; the steps run once."""
        imports = tuple(
            self.containers.ensure(image, self.nodes) for image in (self.image, *self.config.images)
        )
        self.commands += [imported.command for imported in imports if imported.command]
        self._seen: dict[str, dict[str, Seen]] = {node: {} for node in self.nodes}
        self._step("outside", self.nodes, None, "tell")
        try:
            self._prepare()
            override = self._look(imports[0])
            inside = self._inside()
            self._change(imports[0], inside, override)
            removed = self._save(imports[0], inside)
            self._ranks(imports[0], inside)
            back = self._read_back(inside)
        finally:
            self._tidy()
        return {
            node: Found(
                node,
                self.config,
                imports,
                self._seen[node],
                gpus=self.gpus,
                override=override.get(node, ""),
                token=self.nonce,
                token_back=back.get(node, False),
                saved_removed=removed.get(node, ""),
                nodes_of_job=self.allocation.nodes,
            )
            for node in self.nodes
        }

    # -- the steps ----------------------------------------------------------------------------------------------

    def _look(self, imported: ImageImport) -> dict[str, str]:
        """Look around with every default, then at the image's environment; return a variable of it for each node."""
        nodes = tuple(node for node in self.nodes if node in imported.nodes)
        self._step("plain", nodes, self._reuse(imported), "environment", {"GPUCLUSTER_PASSED": PASSED})
        override = {}
        for node in self._inside():
            names = [
                key.removeprefix("image.")
                for key in self._seen[node]["plain"].facts
                if key.startswith("image.")
            ]
            override[node] = next((name for name in names if name not in _NO_EXAMPLE), "")
        self._step("readonly", self._inside(), self._reuse(imported), "look", self._override(override))
        if self.gpus:
            outside = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
            self._step("gpus", self._inside(), self._reuse(imported), "look", outside)
        return override

    def _change(self, imported: ImageImport, nodes: tuple[str, ...], override: Mapping[str, str]) -> None:
        """Turn every option over: root, home, user and a variable of the image; the entrypoint; mounts and workdir."""
        names = tuple({name for name in override.values() if name})
        turned = self._reuse(imported, mount_home=True, remap_root=True, writable=True, env=names)
        # it empties /etc/rc.local, which a step without entrypoint leaves behind, and which keeps a later one from it
        self._step("turned", nodes, turned, "write", self._override(override))
        self._step("entrypoint", nodes, self._reuse(imported, entrypoint=True), "tell")
        own = (f"{self._folder}:{MOUNTED}", f"{self._folder}:{MOUNTED_RO}:ro")
        mounted = self._reuse(imported, mounts=(*own, *self.config.mounts), workdir=MOUNTED)
        self._step("mounts", nodes, mounted, "tell")

    def _save(self, imported: ImageImport, nodes: tuple[str, ...]) -> dict[str, str]:
        """Turn the options back and save the container; then start the saved image, and remove it."""
        name = f"{imported.name}-{self.nonce}"
        # Pyxis takes one path for all nodes: where they share the folder, each has its turn
        for group in [(node,) for node in nodes] if self._folder_is_shared(nodes) else [nodes]:
            saved = f"{self._folder}/saved-{'-'.join(group)[:100]}.sqsh" if self.config.save else None
            back = self._reuse(
                imported, mount_home=False, remap_root=False, entrypoint=False, writable=False, save=saved
            )
            self._step("back", group, back, "look")
            kept = tuple(
                node
                for node in group
                if not self._seen[node]["back"].problem and not self._seen[node]["back"].unsaved
            )
            if saved:
                self._step("saved", kept, PyxisOptions(image=saved, name=name), "look")
        if not self.config.save:
            return {}
        kept = tuple(
            node for node in nodes if "saved" in self._seen[node] and not self._seen[node]["saved"].problem
        )
        there = {
            node: None if names is None else enroot.enroot_names(names, name)
            for node, names in self.containers.listed(kept).items()
        }
        problems = self.containers.remove(name, kept)
        left = self.containers.listed(kept)
        removed = {}
        for node in kept:
            if there.get(node) is None:
                removed[node] = enroot.UNKNOWN
            elif not there[node]:
                removed[node] = "enroot list did not show it"
            elif problems.get(node) or enroot.enroot_names(left.get(node) or (), name):
                removed[node] = problems.get(node) or "enroot list shows it still"
        return removed

    def _ranks(self, imported: ImageImport, nodes: tuple[str, ...]) -> None:
        pyxis = self._reuse(imported, env=("PYTORCH_VERSION",), writable=True)
        self._step("ranks", nodes, pyxis, "forget", {"PYTORCH_VERSION": TORCH}, tasks=RANKS_PER_NODE)

    # -- how a step is run and read -----------------------------------------------------------------------------

    def _reuse(self, imported: ImageImport, **options: object) -> PyxisOptions:
        # no_exec: a step of a parallel run in the same container must not lend us its namespaces
        return PyxisOptions(name=f"{imported.name}:no_exec", **options)  # type: ignore[arg-type]

    def _override(self, override: Mapping[str, str]) -> dict[str, str]:
        return {name: HOST_VALUE for name in override.values() if name}

    def _step(  # private; the first four are in every call
        self,
        name: str,
        nodes: Sequence[str],
        pyxis: PyxisOptions | None,
        act: str,
        exports: Mapping[str, str] | None = None,
        tasks: int = 1,
    ) -> None:
        if not nodes:
            return
        homes = (
            self._seen[node]["outside"].facts.get("home", "")
            for node in nodes
            if "outside" in self._seen[node]
        )
        outside = {
            "GPUCLUSTER_HOME": next(homes, ""),
            "GPUCLUSTER_ASKED": " ".join([*(exports or ()), *filter(None, [self.config.entrypoint_sets])]),
            **(exports or {}),
        }
        words = ",".join(f"{key}={value}" for key, value in outside.items())
        script = source_of(__file__, "payload.sh")
        request = StepRequest(
            argv=("sh", "-c", script, "sh", act, self.nonce),
            nodes=tuple(nodes),
            ntasks_per_node=tasks,
            gpus_per_node=self.gpus or None,
            pyxis=pyxis,
            # not as `env` of the step: that would make Pyxis prefer them to the image's
            extra_args=(f"--export=ALL,{words}",),
            timeout=self.config.deadline,
        )
        result, problem = self._run(request)
        for node in nodes:
            self._seen[node][name] = _seen(result, node, problem, self.nonce)

    def _run(self, request: StepRequest) -> tuple[StepResult, str]:
        try:
            result, problem = run_step(self.slurm, self.allocation, request), ""
        except StepTimeout as error:
            if not isinstance(error.result, StepResult):
                raise
            result, problem = error.result, str(error)
        except StepError as error:
            result, problem = StepResult(error.rc or 1, (), error.stderr, 0.0, ""), str(error)
        if result.command:
            self.commands.append(result.command)
        return result, problem

    def _inside(self) -> tuple[str, ...]:
        """Return the nodes whose tasks were seen to run in a container: only there anything may be written."""
        return tuple(node for node in self.nodes if Found(node, self.config, (), self._seen[node]).contained)

    # -- what the nodes are asked besides -----------------------------------------------------------------------

    @property
    def _folder(self) -> str:
        return f"{self.config.scratch.rstrip('/')}/gpucluster-{self.nonce}"

    def _prepare(self) -> None:
        lines = (
            f"folder={shlex.quote(self._folder)}",
            'mkdir -p -m 700 "$folder"',
            f'echo {self.nonce} > "$folder/token"',
            ': > "$folder/node-$SLURMD_NODENAME"',
            f': > "$HOME/.gpucluster-{self.nonce}"',
        )
        self.containers.ask("\n".join(lines), self.nodes)

    def _folder_is_shared(self, nodes: Sequence[str]) -> bool:
        if not self.config.save or len(nodes) == 1:
            return False
        told = self.containers.ask(f"ls {shlex.quote(self._folder)}", nodes)
        return any(
            sum(name.startswith("node-") for name in answer.out.split()) > 1 for answer in told.values()
        )

    def _read_back(self, nodes: Sequence[str]) -> dict[str, bool]:
        path = f'{shlex.quote(self._folder)}/from-"$SLURMD_NODENAME"'
        answers = self.containers.ask(f"cat {path}", nodes)
        return {node: answer.out.strip() == self.nonce for node, answer in answers.items()}

    def _tidy(self) -> None:
        self.containers.ask(
            f'rm -rf {shlex.quote(self._folder)} "$HOME/.gpucluster-{self.nonce}"', self.nodes
        )


def _ended(rc: int) -> str:
    meaning = explain_exit(rc)
    return f"exit status {rc}" + (f": {meaning}" if meaning else "")


def _seen(result: StepResult, node: str, problem: str, nonce: str) -> Seen:
    tasks = result.of_node(node)
    told = tuple(facts for task in tasks if (facts := read_facts(task.stdout)).get("end") == nonce)
    if told and len(told) == len(tasks):
        # Pyxis saves when the task has ended: a failure shows in its words alone
        unsaved = why_failed(result, node) if NOT_SAVED in messages_of(result, node) else ""
        return Seen(told, seconds=result.seconds, unsaved=unsaved)
    ended = next((_ended(task.rc) for task in tasks if task.rc), "it told nothing")
    last = next((task.stderr.strip().splitlines()[-1] for task in tasks if task.stderr.strip()), "")
    return Seen((), why_failed(result, node) or problem or last or ended, result.seconds)
