"""Processes on the GPUs of an idle node. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.kit.gpu.nvidia_smi import GpuProcess, Gpus

# CUDA's own daemon, which keeps a context on every GPU where a site runs it.
EXPECTED_PROCESSES = ("nvidia-cuda-mps-server",)


def unexpected_processes(gpus: Gpus, apps: Sequence[GpuProcess]) -> Iterator[tuple[Part, str]]:
    """Yield (GPU, process with its memory) for each process that is unexpected on an idle node."""
    for app in apps:
        if app.name.rpartition("/")[2] not in EXPECTED_PROCESSES:
            size = "memory unknown" if app.memory is None else format_size(app.memory)
            pid = "?" if app.pid is None else app.pid
            yield gpus.with_uuid(app.uuid), f"process {pid} {app.name} ({size})"
