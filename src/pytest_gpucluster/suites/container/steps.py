"""Steps whose tasks report facts about containers on every node, for many checks.

One step outside, then steps that re-use one imported container with different options. Nothing is written if a task
runs outside of a container.
"""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.pyxis import NOT_SAVED, PyxisOptions, explain_exit, unexplained
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.core.errors import StepError, StepMisplaced, StepTimeout
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.container import enroot
from pytest_gpucluster.kit.node import own_folder
from pytest_gpucluster.suites.container.containers import messages_of, why_failed
from pytest_gpucluster.suites.container.facts import (
    HOST_VALUE,
    MOUNTED,
    MOUNTED_RO,
    NO_LIST,
    PASSED,
    RANKS_PER_NODE,
    ContainerFacts,
    StepFacts,
    read_facts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.suites.container.config import ContainerConfig
    from pytest_gpucluster.suites.container.containers import ImageImport, NamedContainers

TORCH = "gpucluster"
# variables that a step cannot override for a test: the image, Slurm or Pyxis need their values
_NOT_OVERRIDDEN = {"PATH", "HOME", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "PYTORCH_VERSION", "ENV", "BASH_ENV"}


@dataclass
class ContainerSteps:
    """Runs the steps on `nodes` of one allocation. `gpus`: GPUs per node that a step may request."""

    slurm: Slurm
    allocation: Allocation
    containers: NamedContainers
    config: ContainerConfig
    image: str
    nodes: tuple[str, ...]
    gpus: int = 0
    commands: list[str] = field(default_factory=list)
    nonce: str = field(default_factory=lambda: secrets.token_hex(6))
    # on no command line before the folder exists
    secret: str = field(default_factory=lambda: secrets.token_hex(8))

    @cached_property
    def found(self) -> dict[str, ContainerFacts]:
        """{node: facts}; the steps run once."""
        self._imported = imported = self.containers.ensure(self.image, self.nodes)
        self.commands += [imported.command] if imported.command else []
        self._seen: dict[str, dict[str, StepFacts]] = {node: {} for node in self.nodes}
        self._step("outside", self.nodes, None, "none")
        try:
            self._prepare()
            override = self._run_defaults(imported)
            inside = self._inside()
            self._run_with_options(imported, inside, override)
            removed = self._save(imported, inside)
            self._ranks(imported, inside)
            back = self._read_back(inside)
        finally:
            self._clean_up()
        entered = set(self._started(self.nodes, "entrypoint"))
        return {
            node: ContainerFacts(
                node,
                self.config,
                imported,
                self._seen[node],
                gpus=self.gpus,
                override=override.get(node, ""),
                token=self.nonce,
                token_back=back.get(node, False),
                not_removed=removed.get(node),
                nodes_of_job=self.allocation.nodes,
                entrypoint_elsewhere=bool(entered - {node}),
            )
            for node in self.nodes
        }

    # -- the steps ----------------------------------------------------------------------------------------------

    def _run_defaults(self, imported: ImageImport) -> dict[str, str]:
        """Run the steps with default options; return {node: a variable of the image's environment}."""
        nodes = tuple(node for node in self.nodes if node in imported.nodes)
        self._step("plain", nodes, self._reuse(imported), "environment", {"GPUCLUSTER_PASSED": PASSED})
        override = {}
        for node in self._inside():
            facts = self._seen[node]["plain"].facts
            names = (key.removeprefix("image.") for key in facts if key.startswith("image."))
            override[node] = next((name for name in names if name not in _NOT_OVERRIDDEN), "")
        self._step("readonly", self._inside(), self._reuse(imported), "try_write", self._override(override))
        if self.gpus:
            outside = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
            self._step("gpus", self._inside(), self._reuse(imported), "try_write", outside)
        return override

    def _run_with_options(self, imported: ImageImport, nodes: tuple[str, ...], override: Mapping[str, str]) -> None:
        """Run with the opposite of each default: root, home, user, a variable; then with entrypoint, mounts, workdir."""
        names = tuple({name for name in override.values() if name})
        turned = self._reuse(imported, mount_home=True, remap_root=True, writable=True, env=names)
        # it empties /etc/rc.local, which a step without entrypoint leaves and which disables the entrypoint of later steps
        self._step("turned", nodes, turned, "write", self._override(override))
        self._step("entrypoint", nodes, self._reuse(imported, entrypoint=True), "none")
        mounts = (f"{self._folder}:{MOUNTED}", f"{self._folder}:{MOUNTED_RO}:ro", *self.config.mounts)
        mounted = self._reuse(imported, mounts=mounts, workdir=MOUNTED)
        self._step("mounts", nodes, mounted, "none")

    def _save(self, imported: ImageImport, nodes: tuple[str, ...]) -> dict[str, Explanation]:
        """Save the container with the defaults, start the saved image, and remove it; return {node: why not}."""
        name = f"{imported.name}-{self.nonce}"
        # Pyxis has one path for all nodes: if they share the folder, they save one after the other
        for group in [(node,) for node in nodes] if self._folder_is_shared(nodes) else [nodes]:
            saved = f"{self._folder}/saved-{'-'.join(group)[:100]}.sqsh"
            back = self._reuse(
                imported, mount_home=False, remap_root=False, entrypoint=False, writable=False, save=saved
            )
            self._step("back", group, back, "try_write")
            whole = self._started(group, "back")
            saved_on = tuple(node for node in whole if not self._seen[node]["back"].unsaved)
            self._step("saved", saved_on, PyxisOptions(image=saved, name=name), "try_write")
        started = self._started(nodes, "saved")
        listed = {
            node: None if names is None else enroot.enroot_names(names, name)
            for node, names in self.containers.listed(started).items()
        }
        problems = self.containers.remove(name, started)
        left = self.containers.listed(started)
        removed = {}
        for node in started:
            if listed.get(node) is None:
                removed[node] = Explanation(NO_LIST, enroot.UNKNOWN)
            elif not listed[node]:
                removed[node] = Explanation("not_listed", "enroot list did not show it")
            elif node in problems:
                removed[node] = Explanation("not_removed", problems[node])
            elif enroot.enroot_names(left.get(node) or (), name):
                removed[node] = Explanation("still_listed", "enroot list still shows it")
        return removed

    def _ranks(self, imported: ImageImport, nodes: tuple[str, ...]) -> None:
        pyxis = self._reuse(imported, env=("PYTORCH_VERSION",), writable=True)
        self._step("ranks", nodes, pyxis, "remove", {"PYTORCH_VERSION": TORCH}, tasks=RANKS_PER_NODE)

    # -- one step -----------------------------------------------------------------------------------------------

    def _reuse(self, imported: ImageImport, **options: Any) -> PyxisOptions:
        # no_exec: do not join the namespaces of a parallel run in the same container
        return PyxisOptions(name=f"{imported.name}:no_exec", **options)

    def _override(self, override: Mapping[str, str]) -> dict[str, str]:
        return {name: HOST_VALUE for name in override.values() if name}

    def _step(
        self,
        name: str,
        nodes: Sequence[str],
        pyxis: PyxisOptions | None,
        action: str,
        exports: Mapping[str, str] | None = None,
        tasks: int = 1,
    ) -> None:
        if not nodes:
            return
        known = (self._seen[node]["outside"] for node in nodes if "outside" in self._seen[node])
        home, exports = next((it.facts.get("home", "") for it in known), ""), exports or {}
        outside = {"GPUCLUSTER_HOME": home, "GPUCLUSTER_VARIABLES": " ".join(exports), **exports}
        words = ",".join(f"{key}={value}" for key, value in outside.items())
        request = StepRequest(
            argv=("sh", "-c", script(__package__, "payload.sh"), "sh", action, self.nonce),
            nodes=tuple(nodes),
            ntasks_per_node=tasks,
            gpus_per_node=self.gpus or None,
            pyxis=pyxis,
            # not as `env` of the step, which overrides the image's variables
            extra_args=(f"--export=ALL,{words}",),
            timeout=self.config.deadline,
        )
        result, problem = self._run(request)
        for node in nodes:
            self._seen[node][name] = _facts_of(result, node, problem, self.nonce)

    def _run(self, request: StepRequest) -> tuple[StepResult, Explanation | None]:
        try:
            result, problem = run_step(self.slurm, self.allocation, request), None
        except (StepMisplaced, StepTimeout) as error:
            if not isinstance(error.result, StepResult):
                raise
            # container.plugin judges where the tasks ran
            late = isinstance(error, StepTimeout)
            result, problem = error.result, Explanation("timed_out", str(error)) if late else None
        except StepError as error:
            result, problem = StepResult(error.rc or 1, (), error.stderr, 0.0, ""), unexplained(str(error))
        if result.command:
            self.commands.append(result.command)
        return result, problem

    def _started(self, nodes: Sequence[str], step: str) -> tuple[str, ...]:
        return tuple(it for it in nodes if step in self._seen[it] and not self._seen[it][step].problem)

    def _inside(self) -> tuple[str, ...]:
        """Return the nodes whose tasks ran in a container: only there a step may write."""
        return tuple(
            node for node in self.nodes if ContainerFacts(node, self.config, self._imported, self._seen[node]).contained
        )

    # -- commands outside of steps ------------------------------------------------------------------------------

    @property
    def _folder(self) -> str:
        return f"{self.config.scratch}/gpucluster-{self.secret}"

    def _prepare(self) -> None:
        lines = (
            f"folder={shlex.quote(self._folder)}",
            f"( {own_folder.make_command(self._folder)}; ) || exit",
            f'echo {self.nonce} > "$folder/token"',
            ': > "$folder/node-$SLURMD_NODENAME"',
            f'set -C; : > "$HOME/.gpucluster-{self.nonce}"',  # follows no link
        )
        self.containers.ask("\n".join(lines), self.nodes)

    def _folder_is_shared(self, nodes: Sequence[str]) -> bool:
        if len(nodes) == 1:
            return False
        answers = self.containers.ask(f"ls {shlex.quote(self._folder)}", nodes).values()
        return any(sum(name.startswith("node-") for name in answer.out.split()) > 1 for answer in answers)

    def _read_back(self, nodes: Sequence[str]) -> dict[str, bool]:
        path = f'{shlex.quote(self._folder)}/from-"$SLURMD_NODENAME"'
        answers = self.containers.ask(f"cat {path}", nodes)
        return {node: answer.out.strip() == self.nonce for node, answer in answers.items()}

    def _clean_up(self) -> None:
        self.containers.ask(
            f'rm -f "$HOME/.gpucluster-{self.nonce}"; {own_folder.remove_command(shlex.quote(self._folder))}',
            self.nodes,
        )


def _facts_of(result: StepResult, node: str, problem: Explanation | None, nonce: str) -> StepFacts:
    tasks = result.of_node(node)
    complete = tuple(facts for task in tasks if (facts := read_facts(task.stdout)).get("end") == nonce)
    if complete and len(complete) == len(tasks):
        # Pyxis saves after the end of the task: only its messages show a failure
        unsaved = why_failed(result, node) if NOT_SAVED in messages_of(result, node) else None
        return StepFacts(complete, seconds=result.seconds, unsaved=unsaved)
    last = Explanation("no_facts", "its tasks printed no facts")
    if rc := next((task.rc for task in tasks if task.rc), None):
        meaning = explain_exit(rc)
        last = Explanation("exit_status", f"exit status {rc}" + (f": {meaning}" if meaning else ""))
    if said := next((it for task in tasks if (it := task.stderr.strip())), ""):
        last = unexplained(said.splitlines()[-1])
    return StepFacts((), why_failed(result, node) or problem or last, result.seconds)
