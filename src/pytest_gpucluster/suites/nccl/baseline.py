"""--baseline: write the measured bandwidths as thresholds of the cluster, or read them."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.config import baseline
from pytest_gpucluster.kit.nccl_config import NcclConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.suites.nccl.stages import NcclStages


def record(all_stages: Sequence[NcclStages], cluster: Cluster) -> str:
    """Repeat the measurements and write NAME.baseline.yaml into the current folder; return a text about its rows.

    ConfigError if nothing could be recorded.
    """
    now = datetime.now(timezone.utc)
    runs = [run for stages in all_stages if stages.runner.gpus > 1 for run in stages.alone.runs.values()]
    versions = {"nccl": runs[0].nccl_version, "nccl-tests": runs[0].version} if runs else {}
    provenance = baseline.Provenance(cluster.name, now, f"{now:%Y%m%dT%H%M%S}-{os.getpid()}", versions)
    repeats = {
        key: values
        for stages in all_stages
        for key, values in stages.repeat(cluster.section(NcclConfig).collectives).items()
    }
    rows, refused = baseline.record(repeats, provenance)
    path = Path(f"{cluster.name}.baseline.yaml")
    baseline.write(path, rows, provenance)
    return "\n".join((f"{len(rows)} thresholds written to {path}: judge with --baseline={path}", *refused))
