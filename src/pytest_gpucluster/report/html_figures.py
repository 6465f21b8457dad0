"""The figures of the HTML report: curves of bandwidth, and the spread of what was measured. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.outliers import outliers
from pytest_gpucluster.report import svg
from pytest_gpucluster.report.run_model import CLUSTER
from pytest_gpucluster.report.words import count, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.report.run_model import Run, Series

SMALL_FLEET = 40  # nodes up to here get a row each, and a line each in the curves
MAX_SERIES = 150
MAX_MARKED = 8  # curves of nodes that stand apart
FEW_BINS = 8  # values from here on get a histogram
_LARGE = 1 << 20  # a bandwidth below this size says little about a link


def bandwidth(run: Run) -> list[dict[str, Any]]:
    """Return the curves of bandwidth by size, each with its picture: of nodes alone, then of whole runs."""
    found = [_fleet_curves(run, collective, nodes) for collective, nodes in sorted(run.node_curves.items())]
    by_title: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for curve in run.curves:
        by_title[curve["title"]].append(curve)
    for title, drawn in by_title.items():
        bounds = _bounds_of(run, title)
        shown = [
            svg.Curve("" if len(drawn) == 1 else curve["node"], curve["points"])
            for curve in drawn[:SMALL_FLEET]
        ]
        picture = svg.curves(shown, title=f"{title}: bus bandwidth by size", bounds=bounds)
        low = [size for curve in drawn for size, value in curve["points"] if value < bounds.get(size, value)]
        note = "" if not low else f"{count(len(low), 'point')} below its bound."
        found.append({"title": title, "svg": picture, "note": note, "apart": [], "bounds": bool(bounds)})
    return [one for one in found if one["svg"]]


def _bounds_of(run: Run, title: str) -> dict[int, float]:
    """Return the bounds of a whole run: 'all_reduce, 3 nodes x 8 GPUs' is judged by 'all_reduce SIZE 3 nodes'."""
    collective, _, shape = title.partition(", ")
    scope = shape.partition(" x ")[0]
    return run.bounds.get((collective, scope)) or run.bounds.get((collective, "")) or {}


def _fleet_curves(run: Run, collective: str, nodes: dict[str, dict[int, float]]) -> dict[str, Any]:
    by_size: dict[int, list[float]] = defaultdict(list)
    for points in nodes.values():
        for size, value in points.items():
            by_size[size].append(value)
    middle = {size: statistics.median(values) for size, values in by_size.items()}
    share = _shares(nodes, middle)
    found = outliers(share) if share else None
    apart = {} if found is None else {**found.low, **found.high}
    marked = sorted(apart, key=lambda node: share[node])[:MAX_MARKED]
    shown = [svg.Curve(node, sorted(nodes[node].items()), mark=True) for node in marked]
    band: list[tuple[int, float, float]] = []
    if len(nodes) <= MAX_MARKED:
        shown += [
            svg.Curve(node, sorted(points.items())) for node, points in nodes.items() if node not in marked
        ]
    else:
        usual = [points for node, points in nodes.items() if node not in apart]
        band = [(size, *_ends([p[size] for p in usual if size in p])) for size in sorted(by_size)]
        shown.append(svg.Curve(f"median of {len(nodes):,}", sorted(middle.items())))
    bounds = run.bounds.get((collective, "alone"), {})
    title = f"{collective}, each of {count(len(nodes), 'node')} alone"
    picture = svg.curves(shown, title=f"{title}: bus bandwidth by size", bounds=bounds, band=band)
    note = (
        ""
        if found is None or not found.note
        else "Too few nodes to name one that stands apart from the others."
    )
    named = [
        (node, f"{share[node]:.0%} of the median") for node in sorted(apart, key=lambda node: share[node])
    ]
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
    for series in sorted(_parted(run.series.values()), key=lambda one: (not one.bounds, one.name)):
        values = [value for value, *_ in series.values]
        if not values:
            continue
        if len(values) == 1 and not series.bounds:
            single.append(
                (series.name, f"{number(values[0])} {series.unit}".strip(), _place(series.values[0]))
            )
        elif min(values) == max(values) and not series.bounds:
            same.append((series.name, f"{number(values[0])} {series.unit}".strip(), len(values)))
        else:
            varying.append(_distribution(series))
    rest = max(0, len(varying) - MAX_SERIES)
    return {"rows": varying[:MAX_SERIES], "same": same, "single": single, "left_out": rest}


def _parted(found: Iterable[Series]) -> Iterable[Series]:
    """Keep what was measured of the whole cluster away from what was measured of nodes."""
    for series in found:
        whole = [value for value in series.values if value[1] == CLUSTER]
        if 0 < len(whole) < len(series.values):
            yield replace(series, name=f"{series.name}, whole cluster", values=whole)
            yield replace(series, values=[value for value in series.values if value[1] != CLUSTER])
        else:
            yield series


def _place(one: tuple[float, str, str]) -> str:
    return f"{one[1]} {one[2]}".strip()


def _distribution(series: Series) -> dict[str, Any]:
    places = {_place(one): one[0] for one in series.values}
    values = list(places.values())
    low, high = min(places, key=places.__getitem__), max(places, key=places.__getitem__)
    found = outliers(places)
    apart = {**found.low, **found.high}
    far = [places[place] for place in apart]
    # a judged figure of many nodes is worth a picture of its own
    large = bool(series.bounds) and len(values) >= FEW_BINS
    title = f"{series.name}: {len(values)} values"
    named = sorted(apart, key=lambda place: places[place])
    return {
        "name": series.name,
        "unit": series.unit,
        "n": len(values),
        "low": (number(places[low]), low),
        "median": number(statistics.median(values)),
        "high": (number(places[high]), high),
        "bounds": [number(bound) for bound in series.bounds],
        "strip": svg.strip(values, far, series.bounds, title=title)
        if len(values) > 1 or series.bounds
        else "",
        "histogram": svg.histogram(values, far, series.bounds, unit=series.unit, title=title)
        if large
        else "",
        "apart": [f"{place} ({number(places[place])})" for place in named[:MAX_MARKED]],
        "apart_more": max(0, len(named) - MAX_MARKED),
    }
