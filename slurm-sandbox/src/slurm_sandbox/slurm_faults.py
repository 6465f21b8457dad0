"""Faults of Slurm itself: real actions on the sandbox's daemons and nodes, and their repair."""

from __future__ import annotations

import re
import shutil
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_sandbox import processes, spank
from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slurm_sandbox.daemons import SlurmDaemons
    from slurm_sandbox.faults import InjectedFault
    from slurm_sandbox.layout import Layout

_PATIENCE = 90.0  # above SlurmdTimeout
COMPLETING = 20  # seconds after which a node that still releases a job is faulty: epilogs are short in a sandbox


@dataclass(frozen=True)
class FaultContext:
    """The sandbox on which an action works."""

    layout: Layout
    daemons: SlurmDaemons


@dataclass(frozen=True)
class FaultAction:
    """The functions that inject and heal a fault."""

    inject: Callable[[FaultContext, InjectedFault], None]
    heal: Callable[[FaultContext, InjectedFault], None]


def _drain(context: FaultContext, injected: InjectedFault) -> None:
    _update(context, injected.node, "State=DRAIN", f"Reason={injected.options['reason']}")


def _resume(context: FaultContext, injected: InjectedFault) -> None:
    """Return the node to service, also if Slurm reacts to the fault only later."""
    _wait(context, injected.node, lambda now: _return_to_service(context, injected.node, now))


def _return_to_service(context: FaultContext, node: str, now: str) -> bool:
    """Return whether the node is in service; resume it if it is not."""
    new = "UNDRAIN" if now.startswith(("drain", "drng")) else "RESUME"
    if new == "UNDRAIN" or now.startswith(("down", "fail", "inval")):
        # refused if the node has returned by itself meanwhile
        context.daemons.client("scontrol", "update", f"NodeName={node}", f"State={new}")
    return now in ("idle", "mix", "alloc")


def _kill_slurmd(context: FaultContext, injected: InjectedFault) -> None:
    process = context.daemons.find(f"slurmd-{injected.node}")
    if process is None:
        raise SandboxError(f"slurmd of {injected.node} does not run already")
    processes.stop([process], patience=2.0)
    # Slurm notices after SlurmdTimeout
    _wait(context, injected.node, lambda now: now.startswith("down"))


def _start_slurmd(context: FaultContext, injected: InjectedFault) -> None:
    if context.daemons.find(f"slurmd-{injected.node}") is None:
        _restart_slurmd(context, injected.node)
    _wait(context, injected.node, lambda now: now in ("idle", "down", "drain"))
    _resume(context, injected)


def _mark(name: str) -> Callable[[FaultContext, InjectedFault], None]:
    def inject(context: FaultContext, injected: InjectedFault) -> None:
        (context.layout.node(injected.node) / name).touch()

    return inject


def _unmark(name: str) -> Callable[[FaultContext, InjectedFault], None]:
    def heal(context: FaultContext, injected: InjectedFault) -> None:
        (context.layout.node(injected.node) / name).unlink(missing_ok=True)

    return heal


def _lose_mount_source(context: FaultContext, injected: InjectedFault) -> None:
    mark = context.layout.node(injected.node) / "fault.mount_source_missing"
    mark.write_text(str(injected.options["path"]))


def _without_plugin(context: FaultContext, injected: InjectedFault) -> None:
    """Start the node's slurmd with its own configuration folder, whose plugstack.conf does not load Pyxis."""
    own = own_etc(context, injected.node, without=spank.PLUGINS)
    lines = (context.layout.etc / spank.PLUGINS).read_text().splitlines()
    (own / spank.PLUGINS).write_text("".join(f"{line}\n" for line in lines if spank.TASKS in line))
    restart(context, injected.node)


def _with_plugin(context: FaultContext, injected: InjectedFault) -> None:
    shutil.rmtree(context.layout.root / f"etc.{injected.node}", ignore_errors=True)
    restart(context, injected.node)


def restart(context: FaultContext, node: str) -> None:
    """Restart the node's slurmd with its own configuration folder, if it has one, and wait until it is idle."""
    own = context.layout.root / f"etc.{node}" / "slurm.conf"
    _stop_slurmd(context, node)
    _restart_slurmd(context, node, own if own.exists() else None)
    _wait(context, node, lambda now: now == "idle")


def own_etc(context: FaultContext, node: str, *, without: str) -> Path:
    """Create a configuration folder for one node with all files but one."""
    own = context.layout.root / f"etc.{node}"
    own.mkdir()
    for path in context.layout.etc.iterdir():
        if path.name != without:
            (own / path.name).symlink_to(path)
    return own


def _leave_container(context: FaultContext, injected: InjectedFault) -> None:
    _leftover(context, injected).mkdir(parents=True, exist_ok=True)


def _remove_container(context: FaultContext, injected: InjectedFault) -> None:
    shutil.rmtree(_leftover(context, injected), ignore_errors=True)


def _leftover(context: FaultContext, injected: InjectedFault) -> Path:
    return context.layout.node(injected.node) / "enroot" / f"pyxis_{injected.options['job']}.0"


def _wake(context: FaultContext, injected: InjectedFault) -> None:
    (context.layout.node(injected.node) / "fault.hang").unlink(missing_ok=True)
    marks = f"SLURM_CONF={context.layout.conf}", f"SLURMD_NODENAME={injected.node}"
    for process in processes.of_environment(*marks):
        if process.command == "sleep":  # not slurmstepd: Slurm would wait long for a vanished step
            process.send(signal.SIGKILL)
    _resume(context, injected)


def _hang_epilog(context: FaultContext, injected: InjectedFault) -> None:
    """Let a job end on the node; return after COMPLETING seconds."""
    (context.layout.node(injected.node) / "fault.epilog").touch()
    job = ("sbatch", "-w", injected.node, "-o", "/dev/null", "--wrap", "true")
    done = context.daemons.client(*job)
    if done.rc != 0:
        raise SandboxError(f"{' '.join(job)}: {done.stderr.strip()}")
    _wait(context, injected.node, lambda now: now.startswith("comp"))
    time.sleep(COMPLETING + 1)


def _epilog_ends(context: FaultContext, injected: InjectedFault) -> None:
    (context.layout.node(injected.node) / "fault.epilog").unlink(missing_ok=True)
    _wait(context, injected.node, lambda now: not now.startswith("comp"))


def _remove_and_resume(name: str) -> Callable[[FaultContext, InjectedFault], None]:
    def heal(context: FaultContext, injected: InjectedFault) -> None:
        (context.layout.node(injected.node) / name).unlink(missing_ok=True)
        _resume(context, injected)

    return heal


def _fewer_gres(context: FaultContext, injected: InjectedFault) -> None:
    """Start the node's slurmd with fewer devices in gres.conf, as after the loss of a GPU."""
    node, etc = injected.node, context.layout.etc
    own = own_etc(context, node, without="gres.conf")
    (own / "gres.conf").write_text(_cut((etc / "gres.conf").read_text(), node, int(injected.options["count"])))
    _stop_slurmd(context, node)
    _restart_slurmd(context, node, own / "slurm.conf")
    _wait(context, node, lambda now: now.startswith(("inval", "drain")))


def _all_gres(context: FaultContext, injected: InjectedFault) -> None:
    shutil.rmtree(context.layout.root / f"etc.{injected.node}", ignore_errors=True)
    _stop_slurmd(context, injected.node)
    _restart_slurmd(context, injected.node)
    _wait(context, injected.node, lambda now: not now.startswith("inval"))
    _resume(context, injected)


def _cut(gres_conf: str, node: str, count: int) -> str:
    """Return gres.conf with `count` devices of one node: File=/dev/nvidia[8-15] becomes /dev/nvidia[8-11]."""

    def shorter(match: re.Match[str]) -> str:
        first = int(match[2])
        return f"{match[1]}[{first}-{first + count - 1}]"

    return re.sub(rf"(NodeName={node} .*)\[(\d+)-\d+\]", shorter, gres_conf)


def _stop_slurmd(context: FaultContext, node: str) -> None:
    process = context.daemons.find(f"slurmd-{node}")
    if process is not None:
        processes.stop([process], patience=2.0)


def _restart_slurmd(context: FaultContext, node: str, conf: Path | None = None) -> None:
    """Start the node's slurmd and wait until it runs: Slurm may not have noticed the end of the old one."""
    context.daemons.start_slurmd(node, conf)
    context.daemons.wait_for([f"slurmd-{node}"])


def _update(context: FaultContext, node: str, *settings: str) -> None:
    done = context.daemons.client("scontrol", "update", f"NodeName={node}", *settings)
    if done.rc != 0:
        raise SandboxError(f"scontrol update NodeName={node} {' '.join(settings)}: {done.stderr.strip()}")


def _state(context: FaultContext, node: str) -> str:
    return context.daemons.states().get(node, "")


def _wait(context: FaultContext, node: str, reached: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not ((state := _state(context, node)) and reached(state)):  # '': slurmctld does not answer
        if time.monotonic() > deadline:
            raise SandboxError(
                f"{node} is still {state} after {_PATIENCE:.0f} s: {context.daemons.last_log('slurmctld')}"
            )
        time.sleep(0.1)


ACTIONS = {
    "drained": FaultAction(_drain, _resume),
    "slurmd_dead": FaultAction(_kill_slurmd, _start_slurmd),
    "node_hanging": FaultAction(_mark("fault.hang"), _wake),
    "prolog_failing": FaultAction(_mark("fault.prolog"), _remove_and_resume("fault.prolog")),
    "epilog_failing": FaultAction(_mark("fault.epilog_failing"), _remove_and_resume("fault.epilog_failing")),
    "epilog_hanging": FaultAction(_hang_epilog, _epilog_ends),
    "image_missing": FaultAction(_mark("fault.image_missing"), _unmark("fault.image_missing")),
    "image_corrupt": FaultAction(_mark("fault.image_corrupt"), _unmark("fault.image_corrupt")),
    "mount_source_missing": FaultAction(_lose_mount_source, _unmark("fault.mount_source_missing")),
    "pyxis_missing": FaultAction(_without_plugin, _with_plugin),
    "container_left": FaultAction(_leave_container, _remove_container),
    "wrong_gres": FaultAction(_fewer_gres, _all_gres),
}
