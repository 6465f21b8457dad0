"""Which nodes may be drained or resumed, and why others are spared. Pure.

Grounds are failed checks whose action is at least `drain.min_action`, and that failed again on a fresh attempt. A node
is changed only in a state and with a reason that gpucluster wrote last or slurmctld sets by itself: Slurm's DRAIN and UNDRAIN
replace the state FAIL and the reason of another user (tested on 22.05.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Action
from pytest_gpucluster.core.former_names import of_check, present_name
from pytest_gpucluster.drain.reason import PREFIX, SILENT, DrainReason, read_reason, write_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.core.finding import Finding

_RANKS = {action: rank for rank, action in enumerate(Action)}  # from mild to hard
IN_SERVICE = frozenset({"IDLE", "ALLOCATED", "MIXED"})
# flags that slurmctld sets by itself, and those of reservations; unlike FAIL, reboots and the steps to power down
FLAGS_OF_SLURM = frozenset(
    {"MAINTENANCE", "RESERVED", "PLANNED", "COMPLETING", "BLOCKED", "PERFCTRS", "NOT_RESPONDING", "INVALID_REG"}
    | {"CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "POWERED_DOWN", "POWERING_UP"}
)
NAMES = {action.value.replace(" ", "-"): action for action in Action if action.is_repair}


@dataclass(frozen=True)
class Grounds:
    """One failed check of one node, and its finding that requires the action.

    `unconfirmed`: why it may not drain; '' if a fresh attempt failed too.
    """

    node: str
    check: str
    action: Action
    finding: Finding
    unconfirmed: str = ""


def reaches(action: Action, least: Action) -> bool:
    """Return whether an action is at least as severe as `least`; configure and monitor never are."""
    return action.is_repair and _RANKS[action] >= _RANKS[least]


def ranked(grounds: Iterable[Grounds]) -> list[tuple[str, tuple[Grounds, ...]]]:
    """Group the confirmed grounds by node, the worst first: most severe action, then most checks, then name."""
    found: dict[str, list[Grounds]] = {}
    for one in grounds:
        if not one.unconfirmed:
            found.setdefault(one.node, []).append(one)
    rows = [(node, tuple(sorted(mine, key=lambda g: (-_RANKS[g.action], g.check)))) for node, mine in found.items()]
    return sorted(rows, key=lambda row: (-_RANKS[row[1][0].action], -len(row[1]), row[0]))


def reason_for(grounds: Sequence[Grounds], run: str) -> str:
    """Return the reason for one node from all its grounds, the most severe first."""
    first, checks = grounds[0], [one.check for one in grounds]
    return write_reason(first.node, checks, first.finding, run, repair=first.action.value)


def drain_command(node: str, reason: str) -> tuple[str, ...]:
    """Return the command that drains a node."""
    return ("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")


def undrain_command(node: str) -> tuple[str, ...]:
    """Return the command that takes back a drain."""
    return ("scontrol", "update", f"NodeName={node}", "State=UNDRAIN")


def own_reason(info: NodeInfo) -> DrainReason | None:
    """Return the reason if gpucluster drained the node, else None."""
    return read_reason(info.name, info.reason) if "DRAIN" in info.flags else None


def counts(info: NodeInfo) -> bool:
    """Return whether the budget counts a node: drained by gpucluster, also with an edited reason."""
    return "DRAIN" in info.flags and info.reason.startswith(PREFIX)


def why_not_drain(info: NodeInfo | None) -> str:
    """Return why a node must not be drained; '' if it may be."""
    if info is None:
        return "Slurm does not know this node"
    mine = own_reason(info)
    if mine is not None:
        return f"drained by gpucluster already, in run {mine.run}"
    if info.reason:
        return f'it has another reason: "{info.reason}"{_by(info)}'
    if "DRAIN" in info.flags:
        return "another user drained it without a reason"
    return _foreign_state(info)


def why_not_resume(info: NodeInfo | None, reason: str) -> str:
    """Return why a drained node may not be resumed; '' if its reason still is `reason`, from gpucluster."""
    if info is None:
        return "Slurm does not know this node"
    if "DRAIN" not in info.flags:
        return "it is not drained any more"
    if info.reason != reason:
        return f'its reason has changed: "{info.reason}"{_by(info)}'
    return _foreign_state(info, flags=frozenset({"DRAIN"}))


def why_not_drain_again(info: NodeInfo | None, reason: str) -> str:
    """Return why a node that was undrained for a test must be left; '' if it is as UNDRAIN left it.

    `reason`: the former one, which old versions of Slurm keep. A node that slurmctld set DOWN since its slurmd does not
    respond goes back into service by itself (ReturnToService), and one is UNKNOWN while slurmctld starts.
    """
    if info is None:
        return "Slurm does not know this node"
    if info.reason not in {"", reason, SILENT, f"{reason} : {SILENT}"}:
        return f'its reason has changed: "{info.reason}"{_by(info)}'
    return _foreign_state(info, states=frozenset({"UNKNOWN", "DOWN"} if info.reason.endswith(SILENT) else {"UNKNOWN"}))


def _foreign_state(info: NodeInfo, *, flags: frozenset[str] = frozenset(), states: frozenset[str] = frozenset()) -> str:
    """Return a message unless slurmctld alone made the state; `flags` and `states` are allowed as well."""
    if info.state in IN_SERVICE | states and info.flags <= FLAGS_OF_SLURM | flags:
        return ""
    return f"its state is {info.full_state}: an administrator must check it"


def takes_jobs(info: NodeInfo) -> bool:
    """Return whether Slurm may start jobs on the node, now or once its reboot or power saving ends."""
    return info.state in IN_SERVICE and not info.flags & {"DRAIN", "FAIL"}


def why_not_passed(reason: DrainReason, outcomes: Mapping[str, Sequence[str]], worse: Iterable[str]) -> str:
    """Return why a node must stay drained; '' if it passed every check that drained it.

    `outcomes`: check -> outcome of each of its items on this node; `worse`: further checks with a failure or an error.
    """
    for named in reason.checks:
        pattern = present_name(named)
        ends = [end for check, all_ends in outcomes.items() if fnmatchcase(check, pattern) for end in all_ends]
        if "*" in pattern:  # several checks, of which some may not apply to this node
            ends = [end for end in ends if end != "not applicable"]
        bad = next((end for end in ends if end != "passed"), None)
        if bad is not None or not ends:
            former = of_check(named)
            return f"{pattern} {f'ended as {bad}' if bad else 'did not run'}{former and f': {former}'}"
    for check in worse:
        return f"{check} did not pass either"
    return ""


def _by(info: NodeInfo) -> str:
    return f" by {info.reason_user}" if info.reason_user else ""
