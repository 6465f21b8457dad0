"""Metrics of a run for Prometheus: a file for the textfile collector of node_exporter. Pure but for the writing.

Names follow https://prometheus.io/docs/practices/naming/: base units (bytes, seconds, ratios), the unit last. All are
gauges: each run replaces the file. There are no time stamps in it, which the collector would refuse; when the run was
is a metric. What a series means stands in its HELP line and in docs/reports.md.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Sample
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.machine.atomic_write import write_whole
from pytest_gpucluster.report.proof import CLUSTER, FIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pytest_gpucluster.core.finding import Metric
    from pytest_gpucluster.report.result import Result
    from pytest_gpucluster.report.run_model import Run

__all__ = ["read", "render", "write"]

OUTCOMES = ("passed", "failed", "error", "waived", "not checked", "not tested", "not applicable", "skipped")
LAST_SUCCESS = "gpucluster_last_success_timestamp_seconds"
# unit of a Metric -> suffix of the name, and what makes the base unit of it
UNITS = {
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "us": ("seconds", 1e-6),
    "s after boot": ("seconds", 1.0),
    "B": ("bytes", 1.0),
    "KiB": ("bytes", 2.0**10),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "MB/s": ("bytes_per_second", 1e6),
    "GB/s": ("bytes_per_second", 1e9),
    "Gb/s": ("bytes_per_second", 1e9 / 8),
    "MHz": ("hertz", 1e6),
    "W": ("watts", 1.0),
    "C": ("celsius", 1.0),
    "%": ("ratio", 0.01),
}
RESERVED = ("_count", "_sum", "_bucket", "_total", "_info")  # mean something else to Prometheus
_NO_NAME = re.compile(r"[^a-z0-9_]+")
_CONTROL = re.compile(r"[^ -~\x80-\ud7ff\ue000-\U0010ffff\n]")


_Labels = tuple[tuple[str, str], ...]


class _Family(Collector):
    """The gauges of one name. Samples are made while they are written, so those of one family at a time are objects.

    `sample` makes value and labels of two `sources`: pairs would be a million more objects.
    """

    def __init__(self, name: str, about: str, sample: Callable[..., tuple[float, dict[str, str]]]) -> None:
        self.name, self._about, self._sample = name, about, sample
        self.sources: list[Any] = []
        self._cluster = ""

    def text(self, cluster: str) -> bytes:
        """Return the text of the family."""
        self._cluster = cluster
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the samples. The same series again replaces the first: node_exporter refuses a file with two."""
        family = GaugeMetricFamily(self.name, _shown(self._about))
        values: dict[_Labels, float] = {}
        for source in zip(*[iter(self.sources)] * 2, strict=True):
            value, labels = self._sample(*source)
            values[tuple(labels.items())] = value
        for pairs, value in values.items():
            family.samples.append(Sample(self.name, _labels((("cluster", self._cluster), *pairs)), value))
        return [family]


class _Page:
    """Families in the order of their first samples."""

    def __init__(self) -> None:
        self.families: dict[str, _Family] = {}

    def add(
        self,
        name: str,
        about: str,
        *source: Any,
        sample: Callable[..., tuple[float, dict[str, str]]] = lambda value, labels: (value, labels),
    ) -> None:
        """Put one sample: `source` is what `sample` makes it of, else its value and labels."""
        if name not in self.families:
            self.families[name] = _Family(name, about, sample)
        self.families[name].sources += source

    def gauge(self, name: str, about: str, value: float, **labels: str) -> None:
        """Put one sample."""
        self.add(name, about, value, labels)


def _labels(pairs: _Labels) -> dict[str, str]:
    """Return labels as Prometheus takes them; an empty one is the same as none to it."""
    return {key: _shown(text) for key, text in pairs if text}


@lru_cache(1 << 15)
def _shown(text: str) -> str:
    return _CONTROL.sub("?", text)


def write(run: Run, path: Path, before: str, *, group: int | None = None, mode: int | None = None) -> None:
    """Write the metrics of a run; the time of the last success is carried over from the page `before`.

    GpuClusterError where the file cannot be written.
    """
    write_whole(path, _pieces(run, before), group=group, mode=mode)


def read(path: Path) -> str:
    """Return the page of an earlier run, '' where there is none."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def render(run: Run, *, before: str = "") -> str:
    """Return the metrics of a run in Prometheus' text format. `before` is the page of the run before."""
    return b"".join(_pieces(run, before)).decode()


def _pieces(run: Run, before: str) -> Iterator[bytes]:
    page, results = _Page(), _Page()
    cluster = str(run.start.get("cluster", ""))
    _about_run(page, run, _last_success(before, cluster))
    _verdicts(page, run)
    for result in run.results:
        _failures(results, result)
        _warnings(results, result)
        for metric in result.metrics:
            if not metric.detail:
                results.add(*_series(metric.name, metric.unit)[:2], result, metric, sample=_measured)
    for family in (*page.families.values(), *results.families.values()):
        yield family.text(cluster)


def _about_run(page: _Page, run: Run, last_success: float | None) -> None:
    good = run.exit == 0
    simulated = "true" if run.simulated else "false"
    page.gauge("gpucluster_run_info", "The run that this file is of.", 1, simulated=simulated)
    page.gauge("gpucluster_run_start_timestamp_seconds", "When the run began, Unix time.", run.began or 0.0)
    page.gauge("gpucluster_run_duration_seconds", "How long the run took.", round(run.seconds, 3))
    page.gauge("gpucluster_run_success", "1 where the run ended with exit status 0.", float(good))
    if run.exit is not None:
        page.gauge("gpucluster_run_exit_status", "Exit status of the run.", run.exit)
    succeeded = run.ended if good else last_success
    if succeeded is not None:
        page.gauge(LAST_SUCCESS, "When a run last ended with exit status 0, Unix time.", succeeded)


def _last_success(before: str, cluster: str) -> float | None:
    """Return the time of the last success of a cluster from the page of the run before."""
    lines = [line for line in before.splitlines() if line.startswith(LAST_SUCCESS)]
    with contextlib.suppress(ValueError):
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                if sample.labels == _labels((("cluster", cluster),)):
                    return float(sample.value)
    return None


def _verdicts(page: _Page, run: Run) -> None:
    for outcome in OUTCOMES:
        about = "Checks of the run, by how they ended."
        page.gauge("gpucluster_checks", about, run.totals[outcome], outcome=outcome)
    for node in dict.fromkeys((*run.selected, *run.counts)):
        if node == CLUSTER:
            continue
        counter = sum(run.counts.get(node, {}).values(), Counter())
        about = "Checks of a node, by how they ended."
        for outcome in OUTCOMES:
            page.gauge("gpucluster_node_checks", about, counter[outcome], node=node, outcome=outcome)
    for node, state in run.proofs.nodes.items():
        about = "1 where all that was selected of the node is proved and nothing failed; 0 otherwise."
        page.gauge("gpucluster_node_fit", about, float(state == FIT), node=node)
    for state, number in run.proofs.counts.items():
        page.gauge("gpucluster_nodes", "Selected nodes, each counted once.", number, state=state)


def _failures(page: _Page, result: Result) -> None:
    if not result.red:
        return
    name = f"gpucluster_check_{'failed' if result.outcome == 'failed' else 'broken'}"
    about = {
        "gpucluster_check_failed": "1 for a check that failed; code says what is wrong, gpu is the index of the GPU at fault, if it is one.",
        "gpucluster_check_broken": "1 for a check that could not be made: the infrastructure broke.",
    }[name]
    found = [(it.code, it.part.gpu) for verdict in result.verdicts for it in verdict.findings]
    for code, index in dict.fromkeys(found) or [("", None)]:
        gpu = "" if index is None else str(index)
        page.gauge(name, about, 1, node=result.node, check=result.check, code=code, gpu=gpu)


def _warnings(page: _Page, result: Result) -> None:
    count = sum(len(verdict.advisories) for verdict in result.verdicts)
    if count:
        about = "Warnings of a check: they fail no check and drain no node."
        labels = {"check": result.check, "parameters": _parameters(result)}
        page.gauge("gpucluster_check_warnings", about, count, node=result.node, **labels)


def _measured(result: Result, metric: Metric) -> tuple[float, dict[str, str]]:
    _, _, of, factor = _series(metric.name, metric.unit)
    gpu = metric.part.gpu
    labels = {
        "node": result.node,
        "check": result.check,
        "of": of,
        "gpu": "" if gpu is None else str(gpu),
        "device": "" if metric.part.kind == "gpu" else metric.device,
        "parameters": _parameters(result),
    }
    return metric.value * factor, labels


@lru_cache(4096)
def _series(metric: str, unit: str) -> tuple[str, str, str, float]:
    """Return the name of a metric's series, what it is about, its label `of`, and the factor of its unit."""
    word, _, of = metric.partition(" ")  # 'busbw all_reduce 4 nodes, 4 GiB': the rest is a label
    suffix, factor = UNITS.get(unit, ("", 1.0))
    name = "_".join(filter(None, ("gpucluster_measured", _NO_NAME.sub("_", word.lower()).strip("_"), suffix)))
    if name.endswith(RESERVED):
        name += "_value"
    in_what = f", in {suffix.replace('_', ' ')}." if suffix else f" ({unit})."
    return name, f"{word} as the last run measured it{in_what}", of, factor


def _parameters(result: Result) -> str:
    return junit.name(result.nodeid, result.node).partition("[")[2].removesuffix("]")
