"""Metrics of a run for Prometheus: a file for the textfile collector of node_exporter. Pure but for the writing.

Names follow https://prometheus.io/docs/practices/naming/: base units (bytes, seconds, ratios), the unit last. All are
gauges: each run replaces the file. There are no time stamps in it, which the collector would refuse; when the run was
is a metric. What a series means stands in its HELP line and in docs/metrics.md.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Sample
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pytest_gpucluster.report import junit
from pytest_gpucluster.report.atomic_write import write_whole
from pytest_gpucluster.report.run_model import RED, read_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pytest_gpucluster.report.run_model import Run

__all__ = ["read", "render", "write"]

OUTCOMES = ("passed", "failed", "error", "not checked", "not tested", "not applicable", "skipped")
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
_GPU = re.compile(r"GPU (\d+)\b")
_NO_NAME = re.compile(r"[^a-z0-9_]+")
_CONTROL = re.compile(r"[^ -~\x80-\ud7ff\ue000-\U0010ffff\n]")


_Labels = tuple[tuple[str, str], ...]


class _Page:
    """Families of gauges, in the order of their first sample; one value per name and set of labels."""

    def __init__(self) -> None:
        self._help: dict[str, str] = {}
        self._values: dict[str, dict[_Labels, float]] = defaultdict(dict)

    def gauge(self, name: str, about: str, value: float, **labels: str) -> None:
        """Put one sample. The same series again replaces it: the collector refuses a file with two."""
        self._help.setdefault(name, about)
        self._values[name][tuple(labels.items())] = value

    def pieces(self, cluster: str) -> Iterator[bytes]:
        """Yield the text of one family after the other, so that the samples of one at a time are objects."""
        for name, about in self._help.items():
            family = GaugeMetricFamily(name, _shown(about))
            for labels, value in self._values[name].items():
                family.samples.append(Sample(name, _labels((("cluster", cluster), *labels)), value))
            registry = CollectorRegistry()
            registry.register(_Family(family))
            yield generate_latest(registry)


class _Family(Collector):
    """Satisfies the registry as the source of one family."""

    def __init__(self, family: GaugeMetricFamily) -> None:
        self._family = family

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the family."""
        return [self._family]


def _labels(pairs: _Labels) -> dict[str, str]:
    """Return labels as Prometheus takes them; an empty one is the same as none to it."""
    return {key: _shown(text) for key, text in pairs if text}


@lru_cache(1 << 15)
def _shown(text: str) -> str:
    return _CONTROL.sub("?", text)


def write(
    events: Iterable[dict[str, Any]],
    path: Path,
    before: str,
    *,
    group: int | None = None,
    mode: int | None = None,
) -> None:
    """Write the metrics of a run's events; the time of the last success is carried over from the page `before`.

    GpuClusterError where the file cannot be written.
    """
    write_whole(path, _pieces(events, before), group=group, mode=mode)


def read(path: Path) -> str:
    """Return the page of an earlier run, '' where there is none."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def render(events: Iterable[dict[str, Any]], *, before: str = "") -> str:
    """Return the metrics of a run in Prometheus' text format. `before` is the page of the run before."""
    return b"".join(_pieces(events, before)).decode()


def _pieces(events: Iterable[dict[str, Any]], before: str) -> Iterator[bytes]:
    """Read the events in one pass, keeping no more of their results than samples: they may be half a million."""
    head, results = _Page(), _Results()
    run = read_run(events, result=results.take)
    cluster = str(run.start.get("cluster", ""))
    _about_run(head, run, _last_success(before, cluster))
    _verdicts(head, run, results)
    yield from head.pieces(cluster)
    yield from results.page.pieces(cluster)


class _Results:
    """How the checks of a run ended, all of them and those of each node, and the samples of each result."""

    def __init__(self) -> None:
        self.whole: Counter[str] = Counter()
        self.by_node: dict[str, Counter[str]] = defaultdict(Counter)
        self.page = _Page()

    def take(self, result: dict[str, Any]) -> None:
        """Take in a result."""
        self.whole[result["outcome"]] += 1
        if result["node"]:
            self.by_node[result["node"]][result["outcome"]] += 1
        _failures(self.page, result)
        _warnings(self.page, result)
        for metric in result["metrics"]:
            if not metric.get("detail"):
                _measured(self.page, result, metric)


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


def _verdicts(page: _Page, run: Run, results: _Results) -> None:
    for outcome in OUTCOMES:
        about = "Checks of the run, by how they ended."
        page.gauge("gpucluster_checks", about, results.whole[outcome], outcome=outcome)
    nodes: dict[str, Counter[str]] = {node: Counter() for node in run.selected} | results.by_node
    for node, counter in nodes.items():
        about = "Checks of a node, by how they ended."
        for outcome in OUTCOMES:
            page.gauge("gpucluster_node_checks", about, counter[outcome], node=node, outcome=outcome)
        fit = counter["passed"] and not any(counter[kind] for kind in RED) and node not in run.lost
        about = "1 where checks of the node passed and none failed or broke; 0 where it is not tested."
        page.gauge("gpucluster_node_fit", about, float(bool(fit)), node=node)


def _failures(page: _Page, result: Mapping[str, Any]) -> None:
    if result["outcome"] not in RED:
        return
    name = f"gpucluster_check_{'failed' if result['outcome'] == 'failed' else 'broken'}"
    about = {
        "gpucluster_check_failed": "1 for a check that failed; gpu is the index of the GPU at fault, if it is one.",
        "gpucluster_check_broken": "1 for a check that could not be made: the infrastructure broke.",
    }[name]
    parts = [finding["part"] for verdict in result["verdicts"] for finding in verdict["findings"]]
    for gpu in dict.fromkeys(map(_gpu, parts)) or [""]:
        page.gauge(name, about, 1, node=result["node"], check=result["check"], gpu=gpu)


def _warnings(page: _Page, result: Mapping[str, Any]) -> None:
    count = sum(len(verdict.get("advisories", ())) for verdict in result["verdicts"])
    if count:
        about = "Warnings of a check: they fail no check and drain no node."
        labels = {"check": result["check"], "parameters": _parameters(result)}
        page.gauge("gpucluster_check_warnings", about, count, node=result["node"], **labels)


def _measured(page: _Page, result: Mapping[str, Any], metric: Mapping[str, Any]) -> None:
    name, about, of, factor = _series(str(metric["name"]), str(metric["unit"]))
    device = str(metric["device"])
    gpu = _gpu(device)
    page.gauge(
        name,
        about,
        float(metric["value"]) * factor,  # the event log writes what is no number as 'NaN' and 'Infinity'
        node=result["node"],
        check=result["check"],
        of=of,
        gpu=gpu,
        device="" if gpu else device,
        parameters=_parameters(result),
    )


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


def _parameters(result: Mapping[str, Any]) -> str:
    return junit.name(str(result["nodeid"]), str(result["node"])).partition("[")[2].removesuffix("]")


def _gpu(part: str) -> str:
    found = _GPU.match(part)
    return found[1] if found else ""
