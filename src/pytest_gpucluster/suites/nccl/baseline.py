"""A cluster's own NCCL thresholds, recorded from its own runs: --baseline=record, --baseline=FILE.

The file holds the rows of `BandwidthThreshold` and where they come from:

    baseline:
      cluster: prod
      date: '2026-11-21T06:00:00+00:00'
      run: 2026-11-21-1
      mads: 3.0            # a bound is the median minus this number of MADs over the repeats,
      least_drop: 0.02     # and at least this share below the median, for a quiet machine has a MAD near 0
      versions: {nccl: 2.28.9}
    nccl:
    - {collective: all_reduce, nodes: 1, gpus_per_node: 8, size: 4294967296, busbw: 358.1, tolerance: 0.0, ...}
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from pytest_gpucluster.config.models import BandwidthThreshold
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.suites.nccl.stages import NcclStages

MADS = 3.0
LEAST_DROP = 0.02
MIN_REPEATS = 3
REPEATS = 5


@dataclass(frozen=True)
class Key:
    """What a threshold row is for. `conditions` are variables that must hold, as (name, value) pairs."""

    collective: str
    nodes: int
    gpus_per_node: int
    size: int
    conditions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Provenance:
    """Where a baseline comes from; it is written into the file."""

    cluster: str
    when: datetime
    run: str
    versions: Mapping[str, str] = field(default_factory=dict)


def record(
    measured: Mapping[Key, Iterable[float]], provenance: Provenance
) -> tuple[tuple[BandwidthThreshold, ...], tuple[str, ...]]:
    """Make rows of repeated measurements (GB/s), and say for which keys there are none, and why.

    A bound is the median less MADS times the MAD, and at least LEAST_DROP of the median below it; fewer than 3 repeats
    make no row, and neither do repeats so far apart that the bound would be below half of their median.
    """
    rows: list[BandwidthThreshold] = []
    refused: list[str] = []
    for key, repeats in measured.items():
        values = list(repeats)
        name = f"{key.collective}, {key.nodes} nodes x {key.gpus_per_node} GPUs, {key.size} B"
        if len(values) < MIN_REPEATS:
            refused.append(f"{name}: {len(values)} repeats, at least {MIN_REPEATS} are needed for a baseline")
        elif min(values) <= 0:
            refused.append(f"{name}: a repeat measured {min(values):g} GB/s, which is no bandwidth")
        elif _bound(values) < statistics.median(values) / 2:
            refused.append(f"{name}: the repeats spread too far for a baseline: {_spread(values)}; find out why first")
        else:
            rows.append(_row(key, values, provenance))
    return tuple(rows), tuple(refused)


def _mad(values: list[float]) -> float:
    median = statistics.median(values)
    return statistics.median(abs(value - median) for value in values)


def _bound(values: list[float]) -> float:
    median = statistics.median(values)
    return min(median - MADS * _mad(values), median * (1 - LEAST_DROP))


def _spread(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} GB/s of {len(values)} repeats, MAD {_mad(values):.3g}"


def _row(key: Key, values: list[float], provenance: Provenance) -> BandwidthThreshold:
    source = (
        f"baseline of {provenance.cluster}, {provenance.when.date()}, run {provenance.run}: "
        f"{_spread(values)}, less {MADS:g} MADs and at least {LEAST_DROP:.0%}"
    )
    return BandwidthThreshold(
        collective=key.collective, nodes=key.nodes, gpus_per_node=key.gpus_per_node, size=key.size,
        busbw=round(_bound(values), 3), tolerance=0.0, conditions=dict(key.conditions), source=source,
    )  # fmt: skip


def write(path: Path, rows: Iterable[BandwidthThreshold], provenance: Provenance) -> None:
    """Write the rows atomically: the file is there whole, or as it was. ConfigError where it cannot be written."""
    document = {
        "baseline": {
            "cluster": provenance.cluster, "date": provenance.when.isoformat(), "run": provenance.run,
            "mads": MADS, "least_drop": LEAST_DROP, "versions": dict(provenance.versions),
        },
        "nccl": [row.model_dump() for row in rows],
    }  # fmt: skip
    if not document["nccl"]:
        raise ConfigError(
            f"{path}: no baseline was written: there are no rows; repeat the runs at least {MIN_REPEATS} times"
        )
    try:
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
        with contextlib.closing(Folder(path.parent, create=True)) as folder:
            folder.replace(path.name, [text.encode()], mode=0o644)  # others judge by it
    except OSError as error:
        raise ConfigError(f"{path}: baseline cannot be written: {error.strerror or error}") from error


def load(path: Path) -> tuple[BandwidthThreshold, ...]:
    """Return the rows of a baseline file; ConfigError with file and key where it is none."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: baseline cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split())
        raise ConfigError(f"{path}: not a baseline: {where}") from error
    known = isinstance(document, dict) and "baseline" in document
    if not known or not isinstance(document.get("nccl"), list):
        raise ConfigError(
            f"{path}: not a baseline: the keys 'baseline' and 'nccl' are missing (write it with --baseline=record)"
        )
    if not document["nccl"]:
        raise ConfigError(f"{path}: key 'nccl' has no rows, so nothing could be judged; record the baseline again")
    return tuple(_load_row(path, index, entry) for index, entry in enumerate(document["nccl"]))


def _load_row(path: Path, index: int, entry: Any) -> BandwidthThreshold:
    try:
        return BandwidthThreshold.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: nccl[{index}]{'.' + key if key else ''}: {first['msg']}") from error


def check_option(given: str | None) -> None:
    """Raise ConfigError for a --baseline that is no baseline file, or that could not be written."""
    if given == "record":
        try:
            Folder(Path()).close()
        except OSError as error:
            raise ConfigError(f"--baseline=record: {Path().absolute()}: {error.strerror}") from error
    elif given:
        load(Path(given))


def file_of(cluster: str) -> Path:
    """Return the file that --baseline=record writes into the current folder."""
    return Path(f"{cluster}.baseline.yaml")


def describe(cluster: str) -> str:
    """Return what --baseline=record writes, in words."""
    return (
        f"{file_of(cluster)} here: for these numbers of nodes and GPUs, the median of {REPEATS} runs at each size less "
        f"{MADS:g} MADs, at least {LEAST_DROP:.0%}"
    )


def record_all(all_stages: Sequence[NcclStages], cluster: Cluster, run: str) -> str:
    """Repeat the measurements and write NAME.baseline.yaml into the current folder; return a text about its rows.

    ConfigError if nothing could be recorded.
    """
    runs = [run for stages in all_stages if stages.runner.gpus > 1 for run in stages.alone.runs.values()]
    versions = {"nccl": runs[0].nccl_version, "nccl-tests": runs[0].version} if runs else {}
    provenance = Provenance(cluster.name, datetime.now(timezone.utc), run, versions)
    collectives = cluster.section(NcclConfig).collectives
    repeats = {key: values for stages in all_stages for key, values in repeated(stages, collectives).items()}
    rows, refused = record(repeats, provenance)
    path = file_of(cluster.name)
    write(path, rows, provenance)
    return "\n".join((f"{len(rows)} thresholds written to {path}: judge with --baseline={path}", *refused))


def repeated(stages: NcclStages, collectives: Sequence[str]) -> dict[Key, list[float]]:
    """Measure everything REPEATS times; return all figures (GB/s), with those that the run has already."""
    figures = stages.figures()
    for _ in range(REPEATS):
        again = stages.unmeasured()
        if again.runner.gpus > 1:
            _ = again.alone
        for collective in collectives if len(again.nodes) > 1 else ():
            again.whole(collective)
        for key, values in again.figures().items():
            figures.setdefault(key, []).extend(values)
    return figures
