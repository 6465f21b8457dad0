"""Missing GPUs as the cause of failures: which GPUs are missing on a node, and which findings they explain. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.part import Part, gpu
from pytest_gpucluster.kit.gpu.nvidia_smi import REQUIRES_RESET
from pytest_gpucluster.kit.gpu.too_few import TOO_FEW

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Finding, Verdict
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpus

HINT = "dmesg | grep -i -e xid -e nvrm; lspci -d 10de:; power the node off and on; reseat the GPU"
RESET_HINT = "dmesg | grep Xid; end what uses the GPU; nvidia-smi -r (with NVSwitch: of all GPUs), or reboot"
UsualBuses = Mapping[tuple[str | None, int], tuple[str, ...]]  # (model, GPUs per node) -> their bus ids

_GONE = ("lost", "requires_reset", "absent")  # codes of findings on a GPU that does not answer
_COUNTED = ("GPUs", "devices", "replicas")  # units of what there is one of for each GPU


def usual_buses(fleet: Mapping[str, Gpus]) -> UsualBuses:
    """Return the bus ids that most nodes have, by model and number of GPUs."""
    seen: dict[tuple[str | None, int], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for gpus in fleet.values():
        buses = tuple(gpu.bus for gpu in gpus if gpu.bus and not gpu.lost)
        if buses:
            seen[gpus.devices[0].name, len(buses)][buses] += 1
    return {hardware: found.most_common(1)[0][0] for hardware, found in seen.items()}


@dataclass(frozen=True)
class MissingGpus:
    """How many of the expected GPUs of a node answer, the names of the others, and what to do."""

    present: int
    expected: int
    cause: str
    hint: str = HINT

    def explains(self, finding: Finding) -> bool:
        """Return whether they are the cause of a finding."""
        if finding.code in TOO_FEW or (finding.part.kind == "gpu" and finding.code in _GONE):
            return True
        found, wanted = finding.measured, finding.expected
        if not isinstance(found, Quantity) or not isinstance(wanted, Quantity) or found.unit not in _COUNTED:
            return False
        return (found.number, wanted.number) == (self.present, self.expected)


def absent_gpus(gpus: Gpus, expected: int, usual: UsualBuses) -> list[Part]:
    """Return the GPUs that nvidia-smi does not list, by the bus ids that most nodes have; [] if these do not show all of them."""
    listed = {it.bus for it in gpus}
    buses = usual.get((gpus.devices[0].name if gpus.devices else None, expected), ())
    found = [gpu(index, address=bus) for index, bus in enumerate(buses) if bus not in listed]
    return found if len(found) == expected - len(gpus) else []


def missing_gpus(gpus: Gpus, expected: int, usual: UsualBuses) -> MissingGpus | None:
    """Return the GPUs that a node lacks: those that do not answer, else those at the bus ids that the others have."""
    lost = [it for it in gpus if it.lost]
    present = len(gpus) - len(lost)
    if gpus.driver_problem or present >= expected:
        return None
    if len(gpus) >= expected:
        cause = ", ".join(f"GPU {it.index} ({it.bus or 'no bus id'}): {it.lost}" for it in lost)
        reset = any(REQUIRES_RESET in it.lost for it in lost)
        return MissingGpus(present, expected, cause, RESET_HINT if reset else HINT)
    absent = absent_gpus(gpus, expected, usual)
    parts = sorted((*(it.part for it in lost), *absent), key=lambda part: part.index or 0)
    names = ", ".join(part.brief for part in parts) if absent else f"{expected - present} of {expected} GPUs"
    return MissingGpus(present, expected, f"{names} missing: fell off the bus, or not found at boot")


def with_missing(verdict: Verdict, found: MissingGpus) -> Verdict:
    """Return a failure with the cause that GPUs are missing, before its own cause if it has other findings too."""
    explained = [finding for finding in verdict.findings if found.explains(finding)]
    if not explained:
        return verdict
    if len(explained) == len(verdict.findings):
        return replace(verdict, cause=found.cause, hint=found.hint)
    cause, hint = filter(None, (found.cause, verdict.cause)), filter(None, (found.hint, verdict.hint))
    return replace(verdict, cause="; ".join(cause), hint="; ".join(hint))
