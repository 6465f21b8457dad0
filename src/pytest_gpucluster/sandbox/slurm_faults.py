"""Faults of Slurm itself: real acts on the sandbox's daemons and nodes, and their undoing."""

from __future__ import annotations

import re
import shutil
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import SandboxError
from pytest_gpucluster.sandbox import clusterfile, processes, spank

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpucluster.sandbox.daemons import SlurmDaemons
    from pytest_gpucluster.sandbox.faults import InjectedFault
    from pytest_gpucluster.sandbox.layout import Layout

_PATIENCE = 90.0  # above SlurmdTimeout


@dataclass(frozen=True)
class FaultContext:
    """What an act may touch."""

    layout: Layout
    daemons: SlurmDaemons


@dataclass(frozen=True)
class FaultAction:
    """How a fault is put in and taken out."""

    put: Callable[[FaultContext, InjectedFault], None]
    heal: Callable[[FaultContext, InjectedFault], None]


def _drain(ground: FaultContext, injected: InjectedFault) -> None:
    _update(ground, injected.node, "State=DRAIN", f"Reason={injected.options['reason']}")


def _resume(ground: FaultContext, injected: InjectedFault) -> None:
    """Give the node back, whatever Slurm makes of the fault, also a moment later."""
    _wait(ground, injected.node, lambda now: _asked_back(ground, injected.node, now))


def _asked_back(ground: FaultContext, node: str, now: str) -> bool:
    """Return whether the node is in service; ask for it where it is not."""
    new = "UNDRAIN" if now.startswith(("drain", "drng")) else "RESUME"
    if new == "UNDRAIN" or now.startswith(("down", "fail", "inval")):
        # refused where the node has come back by itself since we looked
        ground.daemons.client("scontrol", "update", f"NodeName={node}", f"State={new}")
    return now in ("idle", "mix", "alloc")


def _kill_slurmd(ground: FaultContext, injected: InjectedFault) -> None:
    process = ground.daemons.find(f"slurmd-{injected.node}")
    if process is None:
        raise SandboxError(f"slurmd of {injected.node} does not run already")
    processes.stop([process], patience=2.0)
    # Slurm notices by itself after SlurmdTimeout; the fault is in when it has
    _wait(ground, injected.node, lambda now: now.startswith("down"))


def _start_slurmd(ground: FaultContext, injected: InjectedFault) -> None:
    if ground.daemons.find(f"slurmd-{injected.node}") is None:
        _start_again(ground, injected.node)
    _wait(ground, injected.node, lambda now: now in ("idle", "down", "drain"))
    _resume(ground, injected)


def _mark(name: str) -> Callable[[FaultContext, InjectedFault], None]:
    def put(ground: FaultContext, injected: InjectedFault) -> None:
        (ground.layout.node(injected.node) / name).touch()

    return put


def _unmark(name: str) -> Callable[[FaultContext, InjectedFault], None]:
    def heal(ground: FaultContext, injected: InjectedFault) -> None:
        (ground.layout.node(injected.node) / name).unlink(missing_ok=True)

    return heal


def _lose_mount_source(ground: FaultContext, injected: InjectedFault) -> None:
    mark = ground.layout.node(injected.node) / "fault.mount_source_missing"
    mark.write_text(str(injected.options["path"]))


def _without_plugin(ground: FaultContext, injected: InjectedFault) -> None:
    """Start the node's slurmd with a configuration folder of its own, whose plugstack.conf does not load Pyxis."""
    own = _own_etc(ground, injected.node, without=spank.PLUGINS)
    lines = (ground.layout.etc / spank.PLUGINS).read_text().splitlines()
    (own / spank.PLUGINS).write_text("".join(f"{line}\n" for line in lines if spank.TASKS in line))
    _restart(ground, injected.node)


def _with_plugin(ground: FaultContext, injected: InjectedFault) -> None:
    shutil.rmtree(ground.layout.root / f"etc.{injected.node}", ignore_errors=True)
    _restart(ground, injected.node)


def _restart(ground: FaultContext, node: str) -> None:
    own = ground.layout.root / f"etc.{node}" / "slurm.conf"
    _stop_slurmd(ground, node)
    _start_again(ground, node, own if own.exists() else None)
    _wait(ground, node, lambda now: now == "idle")


def _own_etc(ground: FaultContext, node: str, *, without: str) -> Path:
    """Make a configuration folder for one node that has all files but one."""
    own = ground.layout.root / f"etc.{node}"
    own.mkdir()
    for path in ground.layout.etc.iterdir():
        if path.name != without:
            (own / path.name).symlink_to(path)
    return own


def _leave_container(ground: FaultContext, injected: InjectedFault) -> None:
    _leftover(ground, injected).mkdir(parents=True, exist_ok=True)


def _remove_container(ground: FaultContext, injected: InjectedFault) -> None:
    shutil.rmtree(_leftover(ground, injected), ignore_errors=True)


def _leftover(ground: FaultContext, injected: InjectedFault) -> Path:
    return ground.layout.node(injected.node) / "enroot" / f"pyxis_{injected.options['job']}.0"


def _wake(ground: FaultContext, injected: InjectedFault) -> None:
    (ground.layout.node(injected.node) / "fault.hang").unlink(missing_ok=True)
    marks = f"SLURM_CONF={ground.layout.conf}", f"SLURMD_NODENAME={injected.node}"
    for process in processes.of_environment(*marks):
        if process.command == "sleep":  # never slurmstepd: Slurm would wait long for a step that has vanished
            process.send(signal.SIGKILL)
    _resume(ground, injected)


def _hang_epilog(ground: FaultContext, injected: InjectedFault) -> None:
    """Let a job end there; the fault is in when the cluster file's patience (`slurm.completing`) is over."""
    (ground.layout.node(injected.node) / "fault.epilog").touch()
    job = ("sbatch", "-w", injected.node, "-o", "/dev/null", "--wrap", "true")
    done = ground.daemons.client(*job)
    if done.rc != 0:
        raise SandboxError(f"{' '.join(job)}: {done.stderr.strip()}")
    _wait(ground, injected.node, lambda now: now.startswith("comp"))
    time.sleep(clusterfile.COMPLETING + 1)


def _epilog_ends(ground: FaultContext, injected: InjectedFault) -> None:
    (ground.layout.node(injected.node) / "fault.epilog").unlink(missing_ok=True)
    _wait(ground, injected.node, lambda now: not now.startswith("comp"))


def _works_again(name: str) -> Callable[[FaultContext, InjectedFault], None]:
    def heal(ground: FaultContext, injected: InjectedFault) -> None:
        (ground.layout.node(injected.node) / name).unlink(missing_ok=True)
        _resume(ground, injected)

    return heal


def _fewer_gres(ground: FaultContext, injected: InjectedFault) -> None:
    """Start the node's slurmd with a gres.conf of fewer devices, as after a GPU has vanished."""
    node, etc = injected.node, ground.layout.etc
    own = _own_etc(ground, node, without="gres.conf")
    (own / "gres.conf").write_text(
        _cut((etc / "gres.conf").read_text(), node, int(injected.options["count"]))
    )
    _stop_slurmd(ground, node)
    _start_again(ground, node, own / "slurm.conf")
    _wait(ground, node, lambda now: now.startswith(("inval", "drain")))


def _all_gres(ground: FaultContext, injected: InjectedFault) -> None:
    shutil.rmtree(ground.layout.root / f"etc.{injected.node}", ignore_errors=True)
    _stop_slurmd(ground, injected.node)
    _start_again(ground, injected.node)
    _wait(ground, injected.node, lambda now: not now.startswith("inval"))
    _resume(ground, injected)


def _cut(gres_conf: str, node: str, count: int) -> str:
    """Return gres.conf with `count` devices of one node: File=/dev/nvidia[8-15] becomes /dev/nvidia[8-11]."""

    def shorter(match: re.Match[str]) -> str:
        first = int(match[2])
        return f"{match[1]}[{first}-{first + count - 1}]"

    return re.sub(rf"(NodeName={node} .*)\[(\d+)-\d+\]", shorter, gres_conf)


def _stop_slurmd(ground: FaultContext, node: str) -> None:
    process = ground.daemons.find(f"slurmd-{node}")
    if process is not None:
        processes.stop([process], patience=2.0)


def _start_again(ground: FaultContext, node: str, conf: Path | None = None) -> None:
    """Start the node's slurmd and wait until it runs: Slurm may not even have noticed that the old one has gone."""
    ground.daemons.start_slurmd(node, conf)
    ground.daemons.wait_for([f"slurmd-{node}"])


def _update(ground: FaultContext, node: str, *settings: str) -> None:
    done = ground.daemons.client("scontrol", "update", f"NodeName={node}", *settings)
    if done.rc != 0:
        raise SandboxError(f"scontrol update NodeName={node} {' '.join(settings)}: {done.stderr.strip()}")


def _state(ground: FaultContext, node: str) -> str:
    return ground.daemons.states().get(node, "")


def _wait(ground: FaultContext, node: str, reached: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not ((state := _state(ground, node)) and reached(state)):  # none: slurmctld does not answer
        if time.monotonic() > deadline:
            raise SandboxError(
                f"{node} is still {state} after {_PATIENCE:.0f} s: {ground.daemons.last_log('slurmctld')}"
            )
        time.sleep(0.1)


ACTIONS = {
    "drained": FaultAction(_drain, _resume),
    "slurmd_dead": FaultAction(_kill_slurmd, _start_slurmd),
    "node_hanging": FaultAction(_mark("fault.hang"), _wake),
    "prolog_failing": FaultAction(_mark("fault.prolog"), _works_again("fault.prolog")),
    "epilog_failing": FaultAction(_mark("fault.epilog_failing"), _works_again("fault.epilog_failing")),
    "epilog_hanging": FaultAction(_hang_epilog, _epilog_ends),
    "image_missing": FaultAction(_mark("fault.image_missing"), _unmark("fault.image_missing")),
    "image_corrupt": FaultAction(_mark("fault.image_corrupt"), _unmark("fault.image_corrupt")),
    "mount_source_missing": FaultAction(_lose_mount_source, _unmark("fault.mount_source_missing")),
    "pyxis_missing": FaultAction(_without_plugin, _with_plugin),
    "container_left": FaultAction(_leave_container, _remove_container),
    "wrong_gres": FaultAction(_fewer_gres, _all_gres),
}
