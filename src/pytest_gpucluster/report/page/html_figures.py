"""The figures of the HTML report: curves of bandwidth, and the spread of what was measured. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.metric_direction import NEITHER, rule_of
from pytest_gpucluster.core.outliers import outliers
from pytest_gpucluster.core.text import count
from pytest_gpucluster.report.describe import number
from pytest_gpucluster.report.page import svg
from pytest_gpucluster.report.run_model import part_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.finding import Metric
    from pytest_gpucluster.report.run_model import MetricSpread, Run

SMALL_FLEET = 40  # nodes up to here get a row each, and a line each in the curves
MAX_SERIES = 150
MAX_MARKED = 8  # curves of nodes that stand apart
FEW_BINS = 8  # values from here on get a histogram
_LARGE = 1 << 20  # a bandwidth below this size says little about a link


def bandwidth(run: Run) -> list[dict[str, Any]]:
    """Return the curves of bandwidth by size, each with its picture: of nodes alone, then of whole runs."""
    found = [_fleet_curves(run, collective, nodes) for collective, nodes in sorted(run.node_curves.items())]
    by_title = grouped((curve["title"], curve) for curve in run.curves)
    for title, drawn in by_title.items():
        bounds = run.bounds.get(drawn[0]["run"], {})
        shown = [svg.Curve("" if len(drawn) == 1 else curve["node"], curve["points"]) for curve in drawn[:SMALL_FLEET]]
        picture = svg.curves(shown, title=f"{title}: bus bandwidth by size", bounds=bounds)
        low = [size for curve in drawn for size, value in curve["points"] if value < bounds.get(size, value)]
        note = "" if not low else f"{count(len(low), 'point')} below its bound."
        found.append({"title": title, "svg": picture, "note": note, "apart": [], "bounds": bool(bounds)})
    return [one for one in found if one["svg"]]


def _fleet_curves(run: Run, collective: str, nodes: dict[str, dict[int, float]]) -> dict[str, Any]:
    by_size = grouped((size, value) for points in nodes.values() for size, value in points.items())
    middle = {size: statistics.median(values) for size, values in by_size.items()}
    share = _shares(nodes, middle)
    found = outliers(share) if share else None
    apart = {} if found is None else {**found.low, **found.high}
    marked = sorted(apart, key=lambda node: share[node])[:MAX_MARKED]
    shown = [svg.Curve(node, sorted(nodes[node].items()), mark=True) for node in marked]
    band: list[tuple[int, float, float]] = []
    if len(nodes) <= MAX_MARKED:
        shown += [svg.Curve(node, sorted(points.items())) for node, points in nodes.items() if node not in marked]
    else:
        usual = [points for node, points in nodes.items() if node not in apart]
        band = [(size, *_ends([p[size] for p in usual if size in p])) for size in sorted(by_size)]
        shown.append(svg.Curve(f"median of {len(nodes):,}", sorted(middle.items())))
    bounds = run.bounds.get(f"{collective} alone", {})
    title = f"{collective}, each of {count(len(nodes), 'node')} alone"
    picture = svg.curves(shown, title=f"{title}: bus bandwidth by size", bounds=bounds, band=band)
    note = "" if found is None or not found.note else "Too few nodes to name one that stands apart from the others."
    named = [(node, f"{share[node]:.0%} of the median") for node in sorted(apart, key=lambda node: share[node])]
    return {"title": title, "svg": picture, "note": note, "apart": named, "bounds": bool(bounds)}


def _ends(values: list[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (0.0, 0.0)


def _shares(nodes: Mapping[str, Mapping[int, float]], middle: Mapping[int, float]) -> dict[str, float]:
    """Return node -> its bandwidth as a share of the fleet's median, at the median of its large sizes."""
    found = {}
    for node, points in nodes.items():
        ratios = [value / middle[size] for size, value in points.items() if size >= _LARGE and middle[size]]
        if ratios:
            found[node] = statistics.median(ratios)
    return found


# --- numbers


def numbers(run: Run) -> dict[str, Any]:
    """Return the measured series: those that vary with a picture each, those that are alike, single values."""
    varying, same, single = [], [], []
    for spread in ordered_spreads(run):
        values = [metric.value for metric in spread.metrics]
        first = f"{number(values[0])} {spread.unit}".strip()
        if len(values) == 1 and not is_signed(spread):
            single.append((_titled(spread), first, where_measured(spread.nodes[0], spread.metrics[0])))
        elif min(values) == max(values) and not is_signed(spread):
            same.append((_titled(spread), first, len(values)))
        else:
            varying.append(_distribution(spread))
    rest = max(0, len(varying) - MAX_SERIES)
    return {"rows": varying[:MAX_SERIES], "same": same, "single": single, "left_out": rest}


def ordered_spreads(run: Run) -> list[MetricSpread]:
    """Return the series of a run: by suite, the judged ones first."""
    return sorted(run.spreads.values(), key=lambda it: (it.suite, not it.bounds, it.name, it.kind))


def _titled(spread: MetricSpread) -> str:
    return f"{spread.suite}: {spread.name}" + (f", {spread.kind}" if spread.kind else "")


def is_signed(spread: MetricSpread) -> bool:
    """Return whether the printed record has a series: it was judged, or is a rate or a time."""
    rule = rule_of(spread.unit, spread.metrics[0].better)
    return bool(spread.bounds) or (rule.better != NEITHER and not rule.counted)


def where_measured(node: str, metric: Metric) -> str:
    """Write the node and the part of it that was measured."""
    return f"{node} {part_of(metric)}".strip()


def _distribution(spread: MetricSpread) -> dict[str, Any]:
    values_of = {
        where_measured(node, metric): metric.value for node, metric in zip(spread.nodes, spread.metrics, strict=True)
    }
    values = list(values_of.values())
    low, high = min(values_of, key=values_of.__getitem__), max(values_of, key=values_of.__getitem__)
    found = outliers(values_of)
    apart = {**found.low, **found.high}
    far = [values_of[part] for part in apart]
    # a judged figure of many nodes is worth a picture of its own
    large = bool(spread.bounds) and len(values) >= FEW_BINS
    title = f"{spread.name}: {len(values)} values"
    named = sorted(apart, key=lambda part: values_of[part])
    return {
        "suite": spread.suite,
        "kind": spread.kind,
        "signed": is_signed(spread),
        "name": spread.name,
        "unit": spread.unit,
        "n": len(values),
        "low": (number(values_of[low]), low),
        "median": number(statistics.median(values)),
        "high": (number(values_of[high]), high),
        "bounds": list(spread.bounds.values()),
        "strip": svg.strip(values, far, [*spread.bounds], title=title) if len(values) > 1 or spread.bounds else "",
        "histogram": svg.histogram(values, far, [*spread.bounds], unit=spread.unit, title=title) if large else "",
        "apart": [f"{part} ({number(values_of[part])})" for part in named[:MAX_MARKED]],
        "apart_more": max(0, len(named) - MAX_MARKED),
    }
