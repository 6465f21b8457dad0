"""Short rows of the event log: results that differ only in node, time and measured values. Pure.

A result whose form has been in the log before is a row, a JSON list. The lines before it state what it leaves out:

    {"time": 8.5, "run": "ID", "event": "shape", "name": "gpu.memory", "of": {...}}        once per form
    {"event": "parts", "number": 3, "of": [{"kind": "gpu", "index": 0, "name": "GPU-5e"}]} once per list of parts
    ["gpu.memory", "gpu01", 0.25, 0.0001, 3, 143771.0]

A row has the name of its shape, the node, the time after that of the shape, the item's seconds, the number of its parts,
and the value of each metric. A later shape or list of parts replaces the one of the same name or number.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pytest_gpucluster.core.safe_json import as_dict, as_dicts, as_list, finite, strict

PLAIN = ("failed", "error", "waived")  # outcomes of results that have lines of their own
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class RowWriter:
    """Makes rows of the results of one log. It holds what the log has stated."""

    def __init__(self) -> None:
        self._seen: set[int] = set()  # hashes of forms
        self._shapes: dict[str, tuple[str, float]] = {}  # form -> name and time of its shape
        self._names: dict[str, int] = {}  # check -> its number of shapes
        self._parts: dict[str, int] = {}

    def lines(self, event: dict[str, Any]) -> list[str]:
        """Return a `result` event as a row behind the lines that it needs; [] where it must be a line of its own."""
        if event.get("outcome") in PLAIN or not _is_regular(event):
            return []
        try:
            form, parts = _form(event)
        except ValueError:  # a bound that is no number
            return []
        lines = []
        if form not in self._shapes:
            if hash(form) not in self._seen:  # most forms of one result stay the only ones
                self._seen.add(hash(form))
                return []
            lines.append(self._shape(form, event))
        name, began = self._shapes[form]
        if (number := self._parts.get(parts)) is None:
            number = self._parts[parts] = len(self._parts)
            lines.append(f'{{"event":"parts","number":{number},"of":[{parts}]}}')
        after = round(event["time"] - began, 3)
        head = [name, event["node"], after, event["seconds"], number]
        return [*lines, _encode(head + [_plain(it["value"]) for it in event["metrics"]])]

    def _shape(self, form: str, event: dict[str, Any]) -> str:
        """Name a form and return its line."""
        check, time = event["check"], event["time"]
        number = self._names[check] = self._names.get(check, 0) + 1
        name = check if number == 1 else f"{check} {number}"
        self._shapes[form] = name, time
        head = _encode({"time": time, "run": event["run"], "event": "shape", "name": name})
        return f'{head[:-1]},"of":{form}}}'


def _is_regular(event: dict[str, Any]) -> bool:
    """Return whether an event has what a row states, as reports of items write it."""
    texts = all(event.get(key).__class__ is str for key in ("nodeid", "node", "check", "run"))
    numbers = all(finite(event.get(key)) is not None for key in ("time", "seconds"))
    metrics = event.get("metrics")
    return texts and numbers and metrics.__class__ is list and all("value" in it and "part" in it for it in metrics)


def _form(event: dict[str, Any]) -> tuple[str, str]:
    """Return as JSON what a result has in common with others, and the list of the parts that it measures."""
    parts: dict[str, int] = {}
    metrics = [
        {**metric, "value": None, "part": parts.setdefault(_encode(metric["part"]), len(parts))}
        for metric in event["metrics"]
    ]
    node = event["node"]
    own = {"nodeid": event["nodeid"].split(node) if node else [event["nodeid"]], "node": None, "seconds": None}
    common = {key: value for key, value in event.items() if key not in ("time", "run", "event")}
    return _encode({**common, **own, "metrics": metrics}), ",".join(parts)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a number that it has not is a text."""
    return value if value.__class__ is int or finite(value) is not None else strict(value)


@dataclass(frozen=True, slots=True)
class _Shape:
    time: float
    run: str
    fields: dict[str, Any]
    nodeid: list[str]
    metrics: list[dict[str, Any]]


class RowReader:
    """Makes the events of a log of its lines. It holds the shapes and parts of the lines before."""

    def __init__(self) -> None:
        self._shapes: dict[str, _Shape] = {}
        self._parts: dict[int, list[dict[str, Any]]] = {}

    def event(self, line: Any) -> dict[str, Any] | None:
        """Return the event of a decoded line; None: it states what later rows leave out. ValueError where it is no event."""
        if not isinstance(line, dict):
            return self._expanded(line)
        if line.get("event") == "shape":
            fields, time = as_dict(line.get("of")), finite(line.get("time"))
            nodeid, metrics = [str(it) for it in as_list(fields.get("nodeid"))], as_dicts(fields.get("metrics"))
            self._shapes[str(line.get("name"))] = _Shape(time or 0.0, str(line.get("run")), fields, nodeid, metrics)
        elif line.get("event") == "parts":
            self._parts[int(finite(line.get("number")) or 0)] = as_dicts(line.get("of"))
        else:
            return line
        return None

    def _expanded(self, row: Any) -> dict[str, Any]:
        try:
            name, node, after, seconds, number, *values = row
            shape, parts = self._shapes[name], self._parts[number]
            metrics = [
                {**metric, "value": value, "part": parts[metric["part"]]}
                for metric, value in zip(shape.metrics, values, strict=True)
            ]
            time, nodeid = round(shape.time + after, 3), node.join(shape.nodeid)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError):
            raise ValueError("a row without its shape") from None
        head = {"time": time, "run": shape.run, "event": "result"}
        return head | shape.fields | {"nodeid": nodeid, "node": node, "seconds": seconds, "metrics": metrics}
