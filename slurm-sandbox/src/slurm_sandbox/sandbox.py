"""The sandbox: up, down, status, faults."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pwd
import shlex
import shutil
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_sandbox import (
    container_faults,
    controller_faults,
    daemons,
    faults,
    gpu_assignment,
    hardware,
    hostlist,
    isolation_faults,
    models,
    namespaces,
    node_files,
    node_sshd,
    ports,
    processes,
    scripts,
    slurm_faults,
    slurmconf,
    slurmdbd,
    spank,
    storage_faults,
)
from slurm_sandbox.description import ContainerImage, Description, JobIsolation
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.isolation import Isolation
from slurm_sandbox.isolation import slurm_conf as isolation_settings
from slurm_sandbox.isolation import why_not as why_no_isolation
from slurm_sandbox.layout import Layout, default_state_dir
from slurm_sandbox.processes import DaemonProcess

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


MAX_NODES = 256
NODE_KINDS = ("plain", "namespaced", "auto")
_ACTIONS = {
    **slurm_faults.ACTIONS,
    **controller_faults.ACTIONS,
    **container_faults.ACTIONS,
    **isolation_faults.ACTIONS,
    **storage_faults.ACTIONS,
}
SLURMD_DEAD = "slurmd_dead"  # the kind of fault
_UMASK = 0o022  # every user of the machine may use root's sandbox, unless the folder's parents forbid it
_SUCCESSORS = 5  # generations of daemons that replace themselves while they are stopped
_PATIENCE = 60.0  # seconds for the daemons to start, in addition to the time of the nodes


@dataclasses.dataclass(frozen=True)
class SandboxState:
    """The properties of a running sandbox, stored as sandbox.json in its state folder."""

    nodes: tuple[str, ...]
    gpus_per_node: int
    model: str
    gpus: str  # 'real' or 'simulated'
    first_port: int
    boot_id: str
    since: float
    processes: dict[str, DaemonProcess] = dataclasses.field(default_factory=dict)
    faults: tuple[faults.InjectedFault, ...] = ()
    kind: str = "plain"  # or 'namespaced'
    accounting: bool = False
    backup: bool = False
    why_plain: str = ""  # why `auto` became plain
    pyxis: str = spank.AUTO  # or 'off', or the path of the site's spank_pyxis.so
    isolation: bool = False

    @classmethod
    def load(cls, path: Path) -> SandboxState | None:
        """Return the state in sandbox.json; None if it is missing or unreadable."""
        try:
            plain = json.loads(path.read_text())
            plain["nodes"] = tuple(plain["nodes"])
            plain["processes"] = {name: DaemonProcess(*pair) for name, pair in plain["processes"].items()}
            plain["faults"] = tuple(faults.InjectedFault(**fault) for fault in plain["faults"])
            return cls(**plain)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, path: Path) -> None:
        """Write sandbox.json atomically."""
        plain = dataclasses.asdict(self)
        plain["processes"] = {name: [p.pid, p.started] for name, p in self.processes.items()}
        new = path.with_suffix(".new")
        new.write_text(json.dumps(plain))
        new.replace(path)


class Sandbox:
    """A real Slurm of virtual nodes on this machine, in one state folder, reachable over loopback only.

    A subclass may add to it: `equip` is called by `up`, `command` is the name of the program in messages, and
    `variable` and `folder` state its default state folder (layout.default_state_dir).

    >>> sandbox = Sandbox(tmp_path)                                   # doctest: +SKIP
    >>> sandbox.up(nodes=4)                                           # doctest: +SKIP
    >>> sandbox.fault("gpu_missing", "gpu03", gpu=5)                  # doctest: +SKIP
    >>> sandbox.heal(); sandbox.down()                                # doctest: +SKIP
    """

    command = "slurm-sandbox"
    variable, folder = "SLURM_SANDBOX", "slurm-sandbox"

    def __init__(self, state_dir: Path | None = None) -> None:
        root = Path(state_dir).absolute() if state_dir else default_state_dir(self.variable, self.folder)
        self.layout = Layout(root)

    # -- properties ------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether its slurmctld runs."""
        state = self._state()
        return state is not None and self._controller_lives(state)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables with which Slurm's commands use this sandbox."""
        path = daemons.search_path()
        if self.layout.bin.exists():  # only with namespaces
            path = os.pathsep.join([str(self.layout.bin), path])
        return {"SLURM_CONF": str(self.layout.conf), "PATH": path}

    @property
    def next_step(self) -> str:
        """What a user types when the sandbox is up."""
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in self.env.items()) + " sinfo"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node names; () if the sandbox does not run."""
        state = self._state()
        return state.nodes if state else ()

    def status(self) -> dict[str, Any]:
        """Return running, nodes and their Slurm states, GPUs real or simulated, faults, as plain data."""
        state = self._state()
        if state is None or not self._controller_lives(state):
            return {"running": False, "state_dir": str(self.layout.root)}
        return {
            "running": True,
            "state_dir": str(self.layout.root),
            "slurm_conf": str(self.layout.conf),
            "since": datetime.fromtimestamp(state.since).astimezone().isoformat(timespec="seconds"),
            "kind": state.kind,
            "accounting": state.accounting,
            "isolation": state.isolation,
            "backup": state.backup,
            **({"why_plain": state.why_plain} if state.why_plain else {}),
            "model": state.model,
            "gpus_per_node": state.gpus_per_node,
            "gpus": state.gpus,
            "nodes": self._daemons(state).states(),
            "faults": [dataclasses.asdict(fault) for fault in state.faults],
        }

    # -- up and down -----------------------------------------------------------------------------------------

    def up(
        self,
        nodes: int = 4,
        gpus_per_node: int | None = None,
        model: str = "h200",
        gpus: str = "auto",
        *,
        kind: str = "plain",
        accounting: bool = False,
        backup: bool = False,
        share: Sequence[Path] = (),
        pyxis: str = spank.AUTO,
        isolation: bool = False,
    ) -> None:
        """Start the sandbox, and return when every node is idle in Slurm.

        `gpus_per_node`: None is the number of the model. `gpus`: real, simulated, or auto (real if the host has
        enough). `kind`: plain (all nodes on 127.0.0.1), namespaced (each with its own network, processes, /tmp and
        sshd), or auto (namespaced if this machine allows it). `accounting`: slurmdbd with its own MariaDB. `backup`: a second
        slurmctld in standby, which needs root and plain nodes. `share`:
        folders below /tmp or /run that stay visible on namespaced nodes. `pyxis`: the site's spank_pyxis.so (with its
        Enroot on PATH), auto (the sandbox's own plugin if it can be compiled), or off. `isolation`: cgroups, device files
        and a private /tmp for the jobs, as root; a node then has the CPUs of this machine, and at most as many GPUs. Does nothing if the sandbox already runs with these properties;
        SandboxError if it runs with others, if packages are missing, or if a daemon fails.
        """
        if not 1 <= nodes <= MAX_NODES:
            raise SandboxError(f"a sandbox has 1 to {MAX_NODES} nodes, not {nodes}")
        self._require_visible(share)
        if isolation:
            gpus = self._require_isolation(gpus, kind)
        if backup and (kind == "namespaced" or os.geteuid()):
            raise SandboxError("a backup controller needs root and plain nodes: --kind plain")
        kind, why_plain = self._kind(kind, nodes)
        spec = models.model(model)
        most = _cpus_of_host() if isolation else spec.gpus
        gpus_per_node = min(spec.gpus, most) if gpus_per_node is None else gpus_per_node
        if isolation and gpus_per_node > most:
            raise SandboxError(f"with isolation a node has the {most} CPUs of this machine: at most {most} GPUs")
        hardware.healthy_node("none", 0, gpus_per_node, spec, "")  # SandboxError for too many GPUs
        assignment = gpu_assignment.assign(gpus, nodes, gpus_per_node)
        wanted = SandboxState(
            nodes=node_names(nodes),
            gpus_per_node=gpus_per_node,
            model=spec.name,
            gpus=assignment.kind,
            first_port=0,
            boot_id=processes.boot_id(),
            since=time.time(),
            kind=kind,
            accounting=accounting,
            backup=backup,
            why_plain=why_plain,
            pyxis=pyxis,
            isolation=isolation,
        )
        with self._locked():
            present = self._state()
            if present is not None and self._controller_lives(present):
                self._require_same(present, wanted)
                return
            programs = daemons.find_programs()
            if accounting:
                slurmdbd.find_programs(daemons.search_path())
            self._clear()
            umask = os.umask(_UMASK)
            try:
                self._start(wanted, spec, assignment, programs, share)
            except BaseException:
                self._clear()
                raise
            finally:
                os.umask(umask)

    def down(self) -> None:
        """Stop all processes of the sandbox and remove the state folder, if there is one."""
        with self._locked():
            self._clear()

    def _require_visible(self, share: Sequence[Path]) -> None:
        root = self.layout.root.resolve()
        for folder in share:
            if root.is_relative_to(folder.resolve()):
                raise SandboxError(f"--share {folder} would hide the state folder {root}: use another folder")

    def _require_isolation(self, gpus: str, kind: str) -> str:
        """Return the kind of GPUs; SandboxError if jobs cannot be isolated here, or not with these GPUs."""
        if why := why_no_isolation(self.layout.root, kind):
            raise SandboxError(why)
        if gpus == "real":
            raise SandboxError("isolation needs simulated GPUs, whose device files no driver opens")
        return "simulated"

    def _kind(self, requested: str, nodes: int) -> tuple[str, str]:
        """Return the kind of nodes, and why `auto` became plain."""
        if requested not in NODE_KINDS:
            raise SandboxError(f"the kind of nodes is {', '.join(NODE_KINDS)}, not {requested!r}")
        if requested == "plain":
            return "plain", ""
        if nodes > namespaces.MAX_NODES:
            why = f"a sandbox has at most {namespaces.MAX_NODES} namespaced nodes, not {nodes}"
        else:
            why = namespaces.why_not(daemons.search_path())
        if why and requested == "namespaced":
            raise SandboxError(why)
        return ("plain", why) if why else ("namespaced", "")

    def _start(
        self,
        state: SandboxState,
        spec: models.NodeModel,
        assignment: gpu_assignment.GpuAssignment,
        programs: dict[str, Path],
        share: Sequence[Path],
    ) -> None:
        layout, names = self.layout, state.nodes
        daemon = self._daemons(state)
        daemon.refuse_long_paths(names)
        for folder in (layout.etc, layout.run, layout.log, layout.nodes, layout.root / "ctld"):
            folder.mkdir(parents=True, mode=0o755)
        own = self._namespaces(state)
        with contextlib.ExitStack() as stack:
            if own is None:
                first_port = stack.enter_context(ports.reserve(len(names) * (1 + state.isolation) + 2))
                state = dataclasses.replace(state, first_port=first_port)
            state.save(layout.state)
            self._configure(state, spec, assignment, daemon.version())
            if own is not None:
                own.prepare(names, share)
                own.start(names, patience=_PATIENCE + len(names))
                own.write_commands(daemons.client_programs(programs))
            daemon.start_munged()
            accounting = self._accounting(state)
            if accounting is not None:
                accounting.start(own.on_login() if own else namespaces.as_localhost())
            daemon.start_slurmctld()
            if state.backup:
                daemon.wait_for(["slurmctld"])  # it clears the state that both share
                daemon.start_backup()
            daemon.start_slurmds(names)
            further = ["mariadbd", "slurmdbd"] if state.accounting else []
            further += [daemons.BACKUP] if state.backup else []
            if sshd := self._sshd(state):
                sshd.start(names)
            running = daemon.wait_for(["munged", *further, "slurmctld", *(f"slurmd-{name}" for name in names)])
            dataclasses.replace(state, processes=running).save(layout.state)
            daemon.wait_idle(names, patience=_PATIENCE + len(names) / 4)

    def _configure(
        self,
        state: SandboxState,
        spec: models.NodeModel,
        assignment: gpu_assignment.GpuAssignment,
        version: tuple[int, int],
    ) -> None:
        layout, isolation = self.layout, self._isolation(state)
        cpus = assignment.cpus or (_cpus_of_host() if isolation else 0)  # cpusets have those of the host
        resources = slurmconf.NodeResources(
            nodes=state.nodes,
            gpus_per_node=state.gpus_per_node,
            gpu_type=assignment.gpu_type or spec.gres_type,
            cpus=cpus or spec.cpus.count,
            sockets=1 if cpus else spec.cpus.sockets,
            memory=assignment.memory_mib or spec.memory_mib,
            simulated=state.gpus == "simulated",
        )
        files = assignment.devices or (
            isolation.prepare(state.nodes, state.gpus_per_node, node_sshd.find_module())
            if isolation
            else gpu_assignment.null_devices(layout.root / "dev", state.gpus_per_node)
        )
        user = pwd.getpwuid(os.getuid()).pw_name
        containers = spank.install(
            layout, state.nodes, pyxis=state.pyxis, simulated_gpus=state.gpus == "simulated", gpus=state.gpus_per_node
        )
        task_prolog = not containers.prepares_tasks
        layout.conf.write_text(
            slurmconf.slurm_conf(
                layout,
                resources,
                self._addresses(state),
                user=user,
                task_prolog=task_prolog,
                isolation=isolation_settings(version) if isolation else None,
            )
        )
        (layout.etc / "gres.conf").write_text(slurmconf.gres_conf(resources, files))
        accounting = self._accounting(state)
        if accounting is not None:
            accounting.configure()
        (layout.etc / "topology.conf").write_text(slurmconf.topology_conf(state.nodes))
        for name, text in (
            isolation.configuration(state.nodes).items()
            if isolation
            else [("cgroup.conf", slurmconf.cgroup_conf(version))]
        ):
            (layout.etc / name).write_text(text)
        state_dir = {"STATE": shlex.quote(str(layout.root))}
        for source in (models.DATA / "slurm").iterdir():
            scripts.write(source, layout.etc / source.name, state_dir)
        for node in state.nodes:
            layout.node(node).mkdir()
            if isolation:
                isolation.write_pam(node, adopts=True)
            (layout.root / "spool" / node).mkdir(parents=True)
            _for_all(layout.root / "tmp", layout.root / "tmp" / node, layout.node(node) / "enroot")
            _for_all(layout.node(node) / "load", mode=0o777)  # each user replaces files of the others
        _for_all(layout.shared)
        if sshd := self._sshd(state):
            sshd.prepare(state.nodes)
        self._write_tools(state)
        spank.link_tool(layout)
        self.equip(self._describe(state, spec, assignment, containers))

    def _addresses(self, state: SandboxState) -> slurmconf.DaemonAddresses:
        if state.kind == "namespaced":
            addresses = [namespaces.address(number) for number in range(1, len(state.nodes) + 1)]
            daemon_addresses = slurmconf.own_hosts(_short_hostname(), namespaces.LOGIN_ADDRESS, addresses)
        else:
            _require_loopback(socket.gethostname())
            daemon_addresses = slurmconf.shared_host(self.layout, state.nodes, _short_hostname(), state.first_port)
        if state.backup:
            line = f"SlurmctldHost={slurmconf.BACKUP_HOST}({slurmconf.BACKUP_ADDRESS})\n"
            daemon_addresses = dataclasses.replace(daemon_addresses, backup=line)
        accounting = self._accounting(state)
        if accounting is None:
            return daemon_addresses
        lines = slurmdbd.slurm_conf(self.layout, accounting.address, accounting.port)
        return dataclasses.replace(daemon_addresses, accounting=lines)

    def _accounting(self, state: SandboxState) -> slurmdbd.Accounting | None:
        if not state.accounting:
            return None
        if state.kind == "namespaced":
            where = namespaces.LOGIN_ADDRESS, slurmconf.DBD_PORT
        else:
            where = slurmdbd.LOOPBACK, state.first_port + len(state.nodes) + 1
        return slurmdbd.Accounting(self.layout, daemons.search_path(), *where)

    def equip(self, description: Description) -> None:
        """Add files to a new sandbox before its daemons start: a hook for subclasses, which does nothing here.

        `down` removes them with the state folder. The sandbox is locked meanwhile.
        """

    def add_tools(self, tools: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Add simulated tools, {name: text of a script}, to the PATH of all tasks, and files that they read.

        In a script `@SHARED@` is replaced by shell functions and variables: `$B` is the folder of the files, `@NODES@`
        that of the nodes, `$PYTHON` and the like are programs of this machine (data/simbin has examples).
        """
        node_files.write_tools(self.layout, tools)
        for name, text in files.items():
            (self.layout.root / "base" / name).write_text(text)

    def _write_tools(self, state: SandboxState) -> None:
        """Write the nodes' tools and their files."""
        if state.gpus == "real":
            count = state.gpus_per_node
            slices = {node: tuple(range(i * count, (i + 1) * count)) for i, node in enumerate(state.nodes)}
            node_files.write_real_tools(self.layout, slices)
        else:
            node_files.write_simulated_tools(self.layout)
            self._write_nodes(state, state.nodes)

    def _describe(
        self,
        state: SandboxState,
        spec: models.NodeModel,
        assignment: gpu_assignment.GpuAssignment,
        containers: spank.ContainerSupport,
    ) -> Description:
        layout, simulated = self.layout, state.gpus != "real"
        image = containers.image
        return Description(
            nodes=state.nodes,
            gpus_per_node=state.gpus_per_node,
            partitions=(slurmconf.PARTITION, slurmconf.SMALL_PARTITION),
            shared=layout.shared,
            healthy=self._healthy_node("none", 0, state, spec) if simulated else None,
            gpu_name=assignment.gpu_name,
            commands=layout.bin if state.kind == "namespaced" else daemons.unusual_folder(),
            image=ContainerImage(image, spank.RELEASE) if image else None,
            isolation=JobIsolation(node_sshd.why_not()) if state.isolation else None,
            cables=tuple(
                cable
                for number, name in enumerate(state.nodes)
                if simulated
                for cable in self._healthy_node(name, number, state, spec).cables
            ),
        )

    def _healthy_node(
        self, name: str, number: int, state: SandboxState, spec: models.NodeModel
    ) -> hardware.SimulatedNode:
        return hardware.healthy_node(name, number, state.gpus_per_node, spec, str(self.layout.shared))

    def _write_nodes(self, state: SandboxState, names: Iterable[str]) -> None:
        """Write the files of these nodes, their faults included."""
        spec = models.model(state.model)
        base = node_files.files(self._healthy_node("none", 0, state, spec))
        node_files.write_base(self.layout, base)
        for name in names:
            node = self._healthy_node(name, state.nodes.index(name), state, spec)
            for injected in state.faults:
                if injected.node == name:
                    faults.apply(node, injected)
            node_files.write_node(self.layout, node, base)

    # -- faults ----------------------------------------------------------------------------------------------

    def fault(self, kind: str, nodes: str, **options: Any) -> tuple[str, ...]:
        """Inject a fault into each node of a hostlist, and return them; SandboxError if anything is unknown.

        `FAULTS` has all kinds with their options.
        """
        fault = faults.find(kind)
        with self._locked():
            state = self._running_state()
            spec = models.model(state.model) if state.gpus == "simulated" else None
            names, options = faults.placed(fault, _named(state, nodes), options, state.nodes)
            resolved = faults.resolve_options(fault, options, spec, state.gpus_per_node)
            if fault.change is not None and state.gpus == "real":
                raise SandboxError(f"fault {kind} needs simulated GPUs: start the sandbox without real ones")
            injected = [faults.InjectedFault(kind, name, resolved) for name in names]
            others = tuple(old for old in state.faults if old.kind != kind or old.node not in names)
            changed = dataclasses.replace(state, faults=(*others, *injected))
            if fault.change is not None:
                self._write_nodes(changed, names)
            else:
                changed = dataclasses.replace(state, faults=others)
                for one in injected:
                    _ACTIONS[fault.action].inject(self._fault_context(), one)
                    changed = dataclasses.replace(changed, faults=(*changed.faults, one))
                    changed = self._with_current_daemons(changed)
                    changed.save(self.layout.state)  # if the next node fails, this one can be healed
            changed.save(self.layout.state)
            return names

    def heal(self, nodes: str | None = None, kind: str | None = None) -> tuple[str, ...]:
        """Remove the faults of these nodes and this kind, and return the nodes.

        None means all, and also every slurmd that ended by itself.
        """
        with self._locked():
            state = self._running_state()
            names = state.nodes if nodes is None else _named(state, nodes)
            if kind is not None:
                faults.find(kind)
            removed = [old for old in state.faults if old.node in names and kind in (None, old.kind)]
            remaining = tuple(old for old in state.faults if old not in removed)
            if kind is None:
                removed += self._dead(state, {old.node for old in state.faults if old.kind == SLURMD_DEAD}, names)
            changed = dataclasses.replace(state, faults=remaining)
            if state.gpus != "real":
                shown = {old.node for old in removed if faults.find(old.kind).change is not None}
                if shown:
                    self._write_nodes(changed, sorted(shown))
            for old in removed:
                if faults.find(old.kind).change is None:
                    _ACTIONS[faults.find(old.kind).action].heal(self._fault_context(), old)
                    changed = self._with_current_daemons(changed)
            changed.save(self.layout.state)
            return tuple(names)

    def _dead(self, state: SandboxState, known: Collection[str], nodes: Collection[str]) -> list[faults.InjectedFault]:
        """Return a fault for each slurmd that has ended without a fault."""
        daemon = self._daemons(state)
        return [
            faults.InjectedFault(SLURMD_DEAD, name)
            for name in state.nodes
            if name in nodes and name not in known and daemon.find(f"slurmd-{name}") is None
        ]

    def _with_current_daemons(self, state: SandboxState) -> SandboxState:
        """Return the state with the processes of daemons that an action has restarted."""
        daemon = self._daemons(state)
        now = {name: daemon.find(name) or process for name, process in state.processes.items()}
        return dataclasses.replace(state, processes=now)

    def _fault_context(self) -> slurm_faults.FaultContext:
        return slurm_faults.FaultContext(self.layout, self._daemons(self._running_state()))

    def _clear(self) -> None:
        """Stop all processes and remove the state folder; also after a crash, a SIGKILL or a reboot."""
        layout = self.layout
        if not layout.root.exists():
            return
        known = layout.state.exists() or not any(layout.root.iterdir())
        if not known:
            raise SandboxError(f"{layout.root} is not the state folder of a sandbox: choose another, or remove it")
        self._require_here(self._state())
        self._stop_processes()
        storage_faults.unmount(layout)
        Isolation(layout).remove()
        shutil.rmtree(layout.root)

    def _stop_processes(self) -> None:
        state = self._state()
        root = str(self.layout.root)
        if state is not None and self._controller_lives(state):
            with contextlib.suppress(SandboxError):  # without the packages the processes must end all the same
                self._daemons(state).cancel_jobs(patience=5.0)
        namespaces.Namespaces(self.layout, daemons.search_path()).stop()
        known = dict(state.processes) if state is not None and state.boot_id == processes.boot_id() else {}
        for path in self.layout.run.glob("*.pid"):
            process = processes.from_pid_file(path, root)
            if process is not None:
                known[path.stem] = process
        # slurmds first: one with a job to report waits long for an ended controller
        processes.stop((p for name, p in known.items() if name.startswith("slurmd-")), patience=1.0)
        processes.stop(known.values(), patience=2.0)
        self._stop_successors()
        # slurmstepd overwrites its environment, and would try for hours to report the end of a step
        step_daemons = processes.of_folder(self.layout.root, "slurmstepd")
        steps = processes.of_environment(f"SLURM_CONF={self.layout.conf}", "SLURMD_NODENAME=")
        processes.stop([*step_daemons, *steps], patience=2.0)

    def _stop_successors(self) -> None:
        """Stop daemons that no pid file names: since 23.11 a daemon that reconfigures starts its successor first."""
        for _ in range(_SUCCESSORS):
            left = [*self._of_daemon("slurmctld"), *self._of_daemon("slurmd")]
            if not left:
                return
            processes.stop(left, patience=2.0)

    # -- helpers ---------------------------------------------------------------------------------------------

    def _state(self) -> SandboxState | None:
        return SandboxState.load(self.layout.state)

    def _controller_lives(self, state: SandboxState) -> bool:
        if state.boot_id != processes.boot_id() or "slurmctld" not in state.processes:
            return False
        # slurmctld locks its pid file; another PID namespace shows no process of it
        return self._controller_is_here(state) or processes.is_locked(self.layout.pid_file("slurmctld"))

    def _controller_is_here(self, state: SandboxState) -> bool:
        recorded = state.processes.get("slurmctld")
        # since 23.11 `scontrol reconfigure` replaces slurmctld by a new process
        return (recorded is not None and recorded.alive) or any(self._of_daemon("slurmctld", str(self.layout.conf)))

    def _require_here(self, state: SandboxState | None) -> None:
        """Raise SandboxError where the sandbox runs, and its processes cannot be seen."""
        if state is not None and self._controller_lives(state) and not self._controller_is_here(state):
            raise SandboxError(f"the sandbox in {self.layout.root} runs in another PID namespace: do this there")

    def _of_daemon(self, name: str, *words: str) -> Iterator[processes.DaemonProcess]:
        return processes.of_command(str(self.layout.root / "sbin" / name), *words)

    def _running_state(self) -> SandboxState:
        state = self._state()
        if state is None or not self._controller_lives(state):
            raise SandboxError(f"no sandbox runs in {self.layout.root}: {self.command} up")
        self._require_here(state)
        return state

    def _daemons(self, state: SandboxState) -> daemons.SlurmDaemons:
        programs = daemons.find_programs()
        return daemons.SlurmDaemons(self.layout, programs, self._namespaces(state))

    def _isolation(self, state: SandboxState) -> Isolation | None:
        return Isolation(self.layout) if state.isolation else None

    def _sshd(self, state: SandboxState) -> node_sshd.NodeSshd | None:
        if not state.isolation or node_sshd.why_not():
            return None
        first_port = state.first_port + len(state.nodes) + 2
        return node_sshd.NodeSshd(self.layout, first_port)

    def _namespaces(self, state: SandboxState) -> namespaces.Namespaces | None:
        if state.kind != "namespaced":
            return None
        return namespaces.Namespaces(self.layout, daemons.search_path())

    def _require_same(self, present: SandboxState, wanted: SandboxState) -> None:
        names = ("nodes", "gpus_per_node", "model", "gpus", "kind", "accounting", "backup", "isolation")
        if any(getattr(present, name) != getattr(wanted, name) for name in names):
            kind = f"{present.kind}, accounting" if present.accounting else present.kind
            raise SandboxError(
                f"a sandbox of {len(present.nodes)} nodes ({kind}) with {present.gpus_per_node} "
                f"{present.gpus} GPUs ({present.model}) already runs in {self.layout.root}: {self.command} down"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        handle = _take_lock(self.layout.lock)
        try:
            yield
        finally:
            if not self.layout.root.exists():
                self.layout.lock.unlink(missing_ok=True)  # while locked: waiting processes notice the removal
            os.close(handle)


def _for_all(*folders: Path, mode: int = 0o1777) -> None:
    """Create folders for all users of the machine, by default with protected files as in /tmp."""
    for folder in folders:
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)


def _named(state: SandboxState, nodes: str) -> tuple[str, ...]:
    """Return the nodes of a hostlist; SandboxError if the sandbox lacks one."""
    try:
        names = hostlist.expand(nodes)
    except ValueError as error:
        raise SandboxError(str(error)) from error
    unknown = [name for name in names if name not in state.nodes]
    if unknown or not names:
        raise SandboxError(f"the sandbox has no node {','.join(unknown)!r}: it has {hostlist.fold(state.nodes)}")
    return names


def _take_lock(path: Path) -> int:
    """Return a locked file; a holder may remove it, so the lock is valid only if the path still names it."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SandboxError(f"cannot write beside the state folder: {error}") from error
        fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(handle)):
                return handle
        os.close(handle)


def node_names(count: int) -> tuple[str, ...]:
    """Return gpu01, gpu02, ...; three digits from 100 nodes on."""
    width = max(2, len(str(count)))
    return tuple(f"gpu{number:0{width}}" for number in range(1, count + 1))


def _cpus_of_host() -> int:
    return len(os.sched_getaffinity(0))


def _short_hostname() -> str:
    return socket.gethostname().split(".")[0]


def _require_loopback(host: str) -> None:
    """Raise SandboxError if this machine's name is not 127.0.0.1: with NoInAddrAny Slurm listens on the address of that name."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        address = "no address"
    if address != "127.0.0.1":
        raise SandboxError(
            f"plain nodes need a host name that is 127.0.0.1, and {host} resolves to {address}: write the line "
            f"'127.0.0.1 {host}' before others with that name in /etc/hosts, or use --kind namespaced"
        )
