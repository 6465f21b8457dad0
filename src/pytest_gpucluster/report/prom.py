"""Metrics of a run for Prometheus: a file for the textfile collector of node_exporter. Pure but for the writing.

Names follow https://prometheus.io/docs/practices/naming/: base units (bytes, seconds, ratios), the unit last. All are
gauges: each run replaces the file. There are no time stamps in it, which the collector would refuse; when the run was
is a metric. What a series means stands in its HELP line and in docs/metrics.md.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.report.atomic_write import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["read", "render", "write"]

OUTCOMES = ("passed", "failed", "error", "not checked", "not tested", "not applicable", "skipped")
RED = ("failed", "error")
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
_NOT_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
_GPU = re.compile(r"GPU (\d+)\b")
_NO_NAME = re.compile(r"[^a-z0-9_]+")
_CONTROL = re.compile(r"[^ -~\x80-\ud7ff\ue000-\U0010ffff\n]")


class _Page:
    """Families of gauges, in the order of their first sample; one value a name and set of labels."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._help: dict[str, str] = {}
        self._values: dict[str, dict[str, float]] = defaultdict(dict)

    def gauge(self, name: str, about: str, value: float, **labels: str) -> None:
        """Put one sample. The same series again replaces it: the collector refuses a file with two."""
        self._help.setdefault(name, about)
        self._values[name][_labels({"cluster": self.cluster, **labels})] = value

    def lines(self) -> Iterator[str]:
        for name, about in self._help.items():
            yield f"# HELP {name} {_escaped(about, quotes=False)}"
            yield f"# TYPE {name} gauge"
            for labels, value in self._values[name].items():
                yield f"{name}{labels} {_value(value)}"


def write(
    events: Iterable[Mapping[str, Any]],
    path: Path,
    before: str,
    *,
    group: int | None = None,
    mode: int | None = None,
) -> None:
    """Write the metrics of a run's events; the time of the last success is carried over from the page `before`.

    GpuClusterError where the file cannot be written.
    """
    lines = _lines(events, before)
    write_whole(path, (f"{line}\n".encode() for line in lines), group=group, mode=mode)


def read(path: Path) -> str:
    """Return the page of an earlier run, '' where there is none."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def render(events: Iterable[Mapping[str, Any]], *, before: str = "") -> str:
    """Return the metrics of a run in Prometheus' text format. `before` is the page of the run before."""
    return "\n".join(_lines(events, before)) + "\n"


def _lines(events: Iterable[Mapping[str, Any]], before: str) -> Iterator[str]:
    """Read the events in one pass, keeping no more of them than samples: they may be half a million."""
    known: dict[str, Mapping[str, Any]] = {}  # the first of a kind
    checks, lost = _Checks(), set()
    measured: _Page | None = None
    first = last = 0.0
    for event in events:
        kind = str(event["event"])
        first, last = first or event["time"], event["time"]
        if kind == "result":
            measured = measured or _Page(str(known.get("start", {}).get("cluster", "")))
            checks.count(event)
            _failures(measured, event)
            _warnings(measured, event)
            for metric in event["metrics"]:
                if not metric.get("detail"):
                    _measured(measured, event, metric)
        elif kind == "lost":
            lost.add(event["node"])
        elif kind == "finish":
            known[kind] = event  # the last one counts
        else:
            known.setdefault(kind, event)
    start = known.get("start", {})
    page = _Page(str(start.get("cluster", "")))
    _run(page, start, known.get("finish"), (first, last), before)
    _verdicts(page, checks, known.get("nodes", {}).get("selected", ()), lost)
    yield from page.lines()
    if measured is not None:
        yield from measured.lines()


class _Checks:
    """How the checks of a run ended: all of them, and those of each node."""

    def __init__(self) -> None:
        self.whole: Counter[str] = Counter()
        self.by_node: dict[str, Counter[str]] = defaultdict(Counter)

    def count(self, result: Mapping[str, Any]) -> None:
        """Take in a result."""
        self.whole[result["outcome"]] += 1
        if result["node"]:
            self.by_node[result["node"]][result["outcome"]] += 1


def _run(
    page: _Page,
    start: Mapping[str, Any],
    finish: Mapping[str, Any] | None,
    times: tuple[float, float],
    before: str,
) -> None:
    first, last = times
    good = finish is not None and finish["exit"] == 0
    simulated = "true" if start.get("simulated") else "false"
    page.gauge("gpucluster_run_info", "The run that this file is of.", 1, simulated=simulated)
    page.gauge("gpucluster_run_start_timestamp_seconds", "When the run began, Unix time.", first)
    page.gauge("gpucluster_run_duration_seconds", "How long the run took.", round(last - first, 3))
    page.gauge("gpucluster_run_success", "1 where the run ended with exit status 0.", float(good))
    if finish is not None:
        page.gauge("gpucluster_run_exit_status", "Exit status of the run.", finish["exit"])
    succeeded = last if good else _last_success(before, page.cluster)
    if succeeded is not None:
        page.gauge(LAST_SUCCESS, "When a run last ended with exit status 0, Unix time.", succeeded)


def _last_success(before: str, cluster: str) -> float | None:
    head = f"{LAST_SUCCESS}{_labels({'cluster': cluster})} "
    for line in before.splitlines():
        if line.startswith(head):
            with contextlib.suppress(ValueError):
                return float(line.removeprefix(head))
    return None


def _verdicts(page: _Page, checks: _Checks, nodes: Iterable[str], lost: set[str]) -> None:
    whole = checks.whole
    by_node: dict[str, Counter[str]] = {node: Counter() for node in nodes} | checks.by_node
    for outcome in OUTCOMES:
        page.gauge(
            "gpucluster_checks", "Checks of the run, by how they ended.", whole[outcome], outcome=outcome
        )
    for node, counter in by_node.items():
        for outcome in OUTCOMES:
            page.gauge(
                "gpucluster_node_checks",
                "Checks of a node, by how they ended.",
                counter[outcome],
                node=node,
                outcome=outcome,
            )
        fit = counter["passed"] and not any(counter[kind] for kind in RED) and node not in lost
        page.gauge(
            "gpucluster_node_fit",
            "1 where checks of the node passed and none failed or broke; 0 where it is not tested.",
            float(bool(fit)),
            node=node,
        )


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
        _plain(metric["value"]) * factor,
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
    inside = str(result["nodeid"]).partition("[")[2].removesuffix("]")
    return f"-{inside}-".replace(f"-{result['node']}-", "-", 1)[1:-1] if result["node"] else inside


def _gpu(part: str) -> str:
    found = _GPU.match(part)
    return found[1] if found else ""


def _plain(value: float | str) -> float:
    return float(value)  # the event log writes what is no number as 'NaN' and 'Infinity'


def _value(value: float) -> str:
    if not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)  # noqa: PLR2004 - exact so far


def _labels(labels: Mapping[str, str]) -> str:
    """Write labels; an empty one is the same as none to Prometheus."""
    told = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items() if value)
    return f"{{{told}}}" if told else ""


@lru_cache(1 << 15)
def _escaped(text: str, *, quotes: bool = True) -> str:
    """Escape as the text format asks: backslash and line feed, and quotes in label values."""
    text = _CONTROL.sub("?", text).replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
