"""The versions in the facts of a node. Pure."""

from __future__ import annotations

from typing import Any

from pytest_gpucluster.kit.fabric_manager import FabricManager
from pytest_gpucluster.kit.nvidia_smi import Gpus

_PLAIN = {"kernel": "kernel", "release": "operating system"}  # probes whose facts are a version


def versions_in(probe: str, facts: Any) -> dict[str, str]:
    """Return {component: version} from the facts of a probe; several versions of one component are joined."""
    if probe in _PLAIN and isinstance(facts, str):
        return {_PLAIN[probe]: facts}
    if isinstance(facts, Gpus):
        gpus = facts.devices
        found = {
            "GPUs": {gpu.name for gpu in gpus},
            "NVIDIA driver": {gpu.driver for gpu in gpus},
            "VBIOS": {gpu.vbios for gpu in gpus},
            "CUDA of the driver": {facts.cuda},
        }
        return {name: ", ".join(sorted(filter(None, known))) for name, known in found.items() if any(known)}
    if isinstance(facts, FabricManager) and facts.version:
        return {"fabric manager": facts.version}
    return {}
