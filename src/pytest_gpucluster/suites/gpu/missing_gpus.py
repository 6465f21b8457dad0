"""Missing GPUs as the cause of failures: which GPUs are missing on a node, and which findings they explain. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.gpu.nvidia_smi import REQUIRES_RESET

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Finding, Verdict
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpus

HINT = "dmesg | grep -i -e xid -e nvrm; lspci -d 10de:; power the node off and on; reseat the GPU"
RESET_HINT = "dmesg | grep Xid; end what uses the GPU; nvidia-smi -r (with NVSwitch: of all GPUs), or reboot"
UsualBuses = Mapping[tuple[str | None, int], tuple[str, ...]]  # (model, GPUs per node) -> their bus ids

# of nccl-tests, of the payloads, of CUDA and of nvidia-container-cli
_TOO_FEW = re.compile(
    r"\d+ requested but only \d+ were found|only \d+ (?:GPUs|devices) are visible|finds no CUDA device|sees no GPU|"
    r"no CUDA-capable device|invalid device ordinal|nvidia-container-cli: (?:device|detection) error"
)
_SHARED = re.compile(r"(?:used by )?(?:\d+ ranks|(?:ranks|tasks) \d.*)|computes on the CPU|no GPU named")
_OF_GPUS = re.compile(r"GPU|device|replica", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def too_few(finding: Finding) -> bool:
    """Return whether a program reports too few GPUs in a finding, or its ranks share them or use the CPU."""
    return bool(_TOO_FEW.search(finding.measured) or _SHARED.fullmatch(finding.measured))


def lacks_gpus(reason: str) -> bool:
    """Return whether a check was not made since a program found too few GPUs."""
    return bool(_TOO_FEW.search(reason) or "no UUID on " in reason)


def usual_buses(fleet: Iterable[Gpus]) -> UsualBuses:
    """Return the bus ids that most nodes have, by model and number of GPUs."""
    seen: dict[tuple[str | None, int], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for gpus in fleet:
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
        if too_few(finding):
            return True
        measured, wanted = _NUMBER.search(finding.measured), _NUMBER.search(finding.expected)
        counted = measured and wanted and (int(measured[0]), int(wanted[0])) == (self.present, self.expected)
        return bool(counted and _OF_GPUS.search(f"{finding.part} {finding.measured} {finding.expected}"))


def missing_gpus(gpus: Gpus, expected: int, usual: UsualBuses) -> MissingGpus | None:
    """Return the GPUs that a node lacks: those that do not answer, else those at the bus ids that the others have."""
    lost = [gpu for gpu in gpus if gpu.lost]
    present = len(gpus) - len(lost)
    if gpus.driver_problem or present >= expected:
        return None
    if len(gpus) >= expected:
        cause = ", ".join(f"GPU {gpu.index} ({gpu.bus or 'no bus id'}): {gpu.lost}" for gpu in lost)
        return MissingGpus(present, expected, cause, RESET_HINT if REQUIRES_RESET in cause else HINT)
    answering = {gpu.bus for gpu in gpus if not gpu.lost}
    buses = usual.get((gpus.devices[0].name if gpus.devices else None, expected), ())
    names = [f"GPU {index} ({bus})" for index, bus in enumerate(buses) if bus not in answering]
    if len(names) != expected - present:
        names = [f"{expected - present} of {expected} GPUs"]
    cause = f"{', '.join(names)} missing: fell off the bus, or not found at boot"
    return MissingGpus(present, expected, cause)


def with_missing(verdict: Verdict, found: MissingGpus) -> Verdict:
    """Return a failure with the cause that GPUs are missing, before its own cause if it has other findings too."""
    explained = [finding for finding in verdict.findings if found.explains(finding)]
    if not explained:
        return verdict
    if len(explained) == len(verdict.findings):
        return replace(verdict, cause=found.cause, hint=found.hint)
    cause, hint = filter(None, (found.cause, verdict.cause)), filter(None, (found.hint, verdict.hint))
    return replace(verdict, cause="; ".join(cause), hint="; ".join(hint))
