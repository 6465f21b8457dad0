"""The assignment of this host's GPUs, if it has any, to the virtual nodes."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from slurm_sandbox import commands
from slurm_sandbox.errors import CommandError, SandboxError

GPU_KINDS = ("auto", "real", "simulated")
_DEV = Path("/dev")


@dataclass(frozen=True)
class GpuAssignment:
    """The GPUs of the nodes. Simulated: no devices; the hardware model has the other values."""

    kind: str
    devices: tuple[Path, ...] = ()
    gpu_name: str = ""
    gpu_type: str = ""
    cpus: int = 0
    memory_mib: int = 0


def assign(kind: str, nodes: int, gpus_per_node: int) -> GpuAssignment:
    """Return real or simulated GPUs; SandboxError if real ones are requested and too few."""
    if kind not in GPU_KINDS:
        raise SandboxError(f"GPUs are {', '.join(GPU_KINDS)}, not {kind!r}")
    if kind == "simulated":
        return GpuAssignment("simulated")
    names = _names()
    present = tuple(sorted((p for p in _DEV.glob("nvidia[0-9]*")), key=lambda p: int(p.name[6:])))
    needed = nodes * gpus_per_node
    if names and len(present) >= needed > 0 and len(names) >= needed:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        cpus = max(1, (os.cpu_count() or 1) // nodes)
        return GpuAssignment("real", present[:needed], names[0], _type(names[0]), cpus, memory // nodes)
    if kind == "real":
        raise SandboxError(
            f"{needed} real GPUs are needed for {nodes} nodes of {gpus_per_node}, this host has "
            f"{min(len(present), len(names))}: request fewer, or simulated ones"
        )
    return GpuAssignment("simulated")


def null_devices(folder: Path, count: int) -> tuple[Path, ...]:
    """Create device files for Slurm without a driver: Slurm only requires character devices."""
    folder.mkdir()
    paths = tuple(folder / f"nvidia{number}" for number in range(count))
    for path in paths:
        path.symlink_to("/dev/null")
    return paths


def _names() -> list[str]:
    """Return the names of this host's working GPUs."""
    if not shutil.which("nvidia-smi"):
        return []
    try:
        done = commands.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout=60.0)
    except CommandError:
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.rc == 0 else []


def _type(name: str) -> str:
    """Return the gres type: h200 for 'NVIDIA H200'."""
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in {"nvidia", "tesla"}]
    return words[0] if words else "gpu"
