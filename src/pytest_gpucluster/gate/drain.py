"""Drain and resume of the own node, as HealthCheckProgram may do it: only with --drain, and only what a gate set itself.

What it set is in a file of this machine: a gate that finds the node healthy queries slurmctld only if that file is there.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.core.former_names import of_check, present_name
from pytest_gpucluster.drain.policy import drain_command, undrain_command, why_not_drain, why_not_resume
from pytest_gpucluster.drain.reason import read_reason, write_reason
from pytest_gpucluster.gate.files import content
from pytest_gpucluster.report.machine.atomic_write import take_away, write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.gate.gate import GateResult

RUN = "gate-"  # how the run of its reasons begins
DRAINED = "{}.drained"  # the file of a node
LONGEST = 1000  # characters of it


def drain(found: GateResult, slurm: Slurm, folder: Path) -> str:
    """Drain the node for what requires a repair; return what happened. A node that is out of service stays as it is."""
    if why := why_not_drain(_state(slurm, found.node)):
        return f"not drained: {why}"
    judged, finding = found.repairs[0]
    checks = [one.check for one, _ in found.repairs]
    run = f"{RUN}{time.strftime('%Y%m%dT%H%M%S')}"
    repair = finding.action.value if finding.action else ""
    reason = write_reason(found.node, [judged.check, *checks], finding, run, repair=repair)
    # first: a drain without the file would stay for ever
    write_whole(folder / DRAINED.format(found.node), reason.encode())
    slurm.run(*drain_command(found.node, reason))
    now = _state(slurm, found.node)
    if now is None or "DRAIN" not in now.flags or now.reason != reason:
        shown = f"{now.full_state} ({now.reason})" if now else "unknown"
        return f"not drained: after scontrol update Slurm has the node as {shown}"
    return f"drained: {reason}"


def resume(found: GateResult, slurm: Slurm, folder: Path) -> str:
    """Take back the drain of an earlier gate if all its checks passed now; return what happened, '' for nothing."""
    with contextlib.suppress(OSError):
        text = content(folder / DRAINED.format(found.node), own=True).decode()[:LONGEST]
        return _resume(found, slurm, folder, text)
    return ""


def _resume(found: GateResult, slurm: Slurm, folder: Path, text: str) -> str:
    info = _state(slurm, found.node)
    reason = read_reason(found.node, text)
    if why_not_resume(info, text) or reason is None or not reason.run.startswith(RUN):
        take_away(folder / DRAINED.format(found.node))  # somebody else has decided since
        return ""
    passed = {one.check for one in found.results if one.outcome == "passed"}
    if missing := [check for check in reason.checks if present_name(check) not in passed]:
        former = "".join(f"; {text}" for check in missing if (text := of_check(check)))
        return f"stays drained: {', '.join(missing)} did not pass{former}"
    slurm.run(*undrain_command(found.node))
    now = _state(slurm, found.node)
    if now is None or "DRAIN" in now.flags:
        return f"stays drained: after scontrol update Slurm has the node as {now.full_state if now else 'unknown'}"
    take_away(folder / DRAINED.format(found.node))
    return f"resumed: {', '.join(reason.checks)} passed"


def _state(slurm: Slurm, node: str) -> NodeInfo | None:
    return parse_nodes(slurm.run("scontrol", "show", "node", "-o", node)).get(node)
