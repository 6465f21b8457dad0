"""The picture of a node for the HTML report: its GPUs, NVLinks and ports, with those marked that findings name. Pure.

How many there are is what the profile of the node states in the event log; which of them is bad is what findings name. A part
whose place no finding states stands at the end of its row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from markupsafe import Markup, escape

from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.part import GPUS
from pytest_gpucluster.core.safe_json import as_dicts, finite
from pytest_gpucluster.core.text import count, some
from pytest_gpucluster.report.page import svg
from pytest_gpucluster.report.run_model import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucluster.core.finding import Advisory, Finding
    from pytest_gpucluster.report.run_model import Run

_Part = TypeVar("_Part")
MOST = 72  # parts of a kind; no node that is known has more GPUs or links
IN_ROW = 8
PITCH, BOX, LEFT = 46, 38, 52  # pixels: column to column, a box, the names of the rows
NODE = "the whole node"
ABSENT = "absent"  # the code of a finding that names a GPU which is missing
ROOM = 48  # characters of the parts that are none of these


@dataclass(frozen=True)
class PartCounts:
    """How many parts a node has by its profile; 0 where that states none."""

    gpus: int = 0
    nvlinks: int = 0  # of each GPU
    ports: int = 0


@dataclass
class _Marks:
    """The findings of each part. A port without a known GPU has its name as key."""

    gpus: dict[int, list[str]] = field(default_factory=dict)
    nvlinks: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    ports: dict[int | str, list[str]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # GPU -> the name of its port
    others: dict[str, list[str]] = field(default_factory=dict)
    missing: int = 0  # GPUs
    lost: set[int] = field(default_factory=set)  # those of them that a finding names


def hardware(run: Run, node: str) -> PartCounts:
    """Return what the profile of a node's group states, by the event log."""
    group = run.places[node].group if node in run.places else ""
    for stated in as_dicts(run.start.get("groups")):
        if group and one_line(stated.get("nodes")) == group:
            return PartCounts(*(_count(stated.get(key)) for key in ("gpus", "nvlinks", "ports")))
    return PartCounts()


def picture(run: Run, nodes: Sequence[str], failures: Iterable[tuple[str, Finding | Advisory]]) -> Markup:
    """Draw a node, or equal ones, with the parts of (suite, finding) marked; '' if its parts are not known."""
    known = {hardware(run, node) for node in nodes}
    if len(known) != 1 or not (parts := known.pop()).gpus:
        return Markup()
    marks = _Marks()
    for suite, found in failures:
        _mark(marks, parts, nodes, suite, found)
    drawn: list[str] = []
    y = 2
    for columns in _lines(range(parts.gpus)):
        drawn += _gpus(columns, y, parts, marks)
        y += 28
        if parts.nvlinks:
            drawn += _nvlinks(columns, y, parts, marks)
            y += 26
    for keys in _lines(_port_row(parts, marks)):
        drawn += _ports(keys, y, marks)
        y += 32
    if marks.others:
        drawn += _others(marks, y)
        y += 26
    return svg.picture(LEFT + IN_ROW * PITCH, y, _words(parts, marks), drawn)


def _lines(row: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    return (row[first : first + IN_ROW] for first in range(0, len(row), IN_ROW))


def _port_row(parts: PartCounts, marks: _Marks) -> list[int | str]:
    """Return a port for each GPU, by its index, where that is known of all that are bad; else the bad ones last, by name."""
    bad = list(marks.ports)
    if parts.ports == parts.gpus and all(isinstance(key, int) for key in bad):
        return list(range(parts.gpus))
    return [""] * max(0, parts.ports - len(bad)) + bad


def _count(value: object) -> int:
    return max(0, min(MOST, int(finite(value) or 0)))


def _mark(marks: _Marks, parts: PartCounts, nodes: Sequence[str], suite: str, found: Finding | Advisory) -> None:
    part, text = (
        found.part,
        f"{found.part}: {found.measured}" + f", expected {found.expected}" * bool(str(found.expected)),
    )
    if part.kind == "module" and part.of:
        part = part.of
    index = part.gpu if part.gpu is not None and part.gpu < parts.gpus else None
    if part.kind == "port" and parts.ports:
        key: int | str = replace(part, of=None).short if index is None else index
        marks.ports.setdefault(key, []).append(text)
        if index is not None:
            marks.names[index] = replace(part, of=None).short
    elif index is not None and suite == "fabric" and parts.ports:  # the adapter of this GPU
        marks.ports.setdefault(index, []).append(text)
    elif index is not None and part.kind == "nvlink" and part.index is not None and part.index < parts.nvlinks:
        marks.nvlinks.setdefault((index, part.index), []).append(text)
    elif index is not None:
        marks.gpus.setdefault(index, []).append(text)
        if found.code == ABSENT:
            marks.lost.add(index)
    elif part == GPUS and isinstance(found.measured, Quantity):
        marks.missing = max(marks.missing, parts.gpus - int(found.measured.number))
    else:
        name = part.shared.short
        marks.others.setdefault(NODE if name in ("", *nodes) else name, []).append(text)


def _gpus(columns: Sequence[int], y: int, parts: PartCounts, marks: _Marks) -> Iterator[str]:
    yield _label("GPU", y + 15)
    # the driver numbers the remaining GPUs from 0, so a missing one has a number only where a finding states it
    unnamed = max(0, min(marks.missing, parts.gpus) - len(marks.lost))
    for at, column in enumerate(columns):
        unknown = column >= parts.gpus - unnamed
        absent = unknown or column in marks.lost
        texts = [f"{marks.missing or len(marks.lost)} of {parts.gpus} GPUs missing"] if absent else []
        texts += marks.gpus.get(column, [])
        yield _box(at, y, 22, texts, "?" if unknown else str(column), absent=absent)


def _nvlinks(columns: Sequence[int], y: int, parts: PartCounts, marks: _Marks) -> Iterator[str]:
    yield _label("NVLink", y + 10)
    step = BOX / parts.nvlinks
    for at, column in enumerate(columns):
        x = LEFT + at * PITCH
        bad = {link: texts for (gpu, link), texts in marks.nvlinks.items() if gpu == column}
        ticks = "".join(f"M{x + (link + 0.5) * step:.1f} {y}v10" for link in range(parts.nvlinks) if link not in bad)
        yield f'<path class="tick" d="{ticks}"/>'
        for link, texts in bad.items():
            middle = x + (link + 0.5) * step
            yield (
                f'<path class="tick bad" d="M{middle:.1f} {y - 3}v16M{middle - 3:.1f} {y + 2}l6 6m0 -6l-6 6">'
                f"{_title(texts)}</path>"
            )
        if bad:
            named = ", ".join(map(str, sorted(bad))) if len(bad) <= 2 else f"{len(bad)} links"
            yield f'<text x="{x + BOX / 2:.0f}" y="{y + 22}" class="t mid mark">{named}</text>'


def _ports(keys: Sequence[int | str], y: int, marks: _Marks) -> Iterator[str]:
    yield _label("port", y + 12)
    for at, key in enumerate(keys):
        texts = marks.ports.get(key, [])
        yield _box(at, y, 16, texts, "")
        device = (marks.names.get(key, "") if isinstance(key, int) else key).partition(" ")[0]
        if texts and len(device) <= PITCH // 6:  # a longer name is in the title alone
            yield f'<text x="{LEFT + at * PITCH + BOX / 2:.0f}" y="{y + 27}" class="t mid mark">{escape(device)}</text>'


def _others(marks: _Marks, y: int) -> Iterator[str]:
    names = list(marks.others)
    texts_of = (some(names, many) for many in range(len(names), 0, -1))
    text = next((text for text in texts_of if len(text) <= ROOM), count(len(names), "other part"))
    texts = [text for found in marks.others.values() for text in found]
    yield _label("other", y + 15)
    width = min(IN_ROW * PITCH - (PITCH - BOX), 26 + 7.4 * len(text))
    yield (
        f'<g>{_title(texts)}<rect class="part bad" x="{LEFT}" y="{y}" width="{width:.0f}" height="20"/>'
        f'{_cross(LEFT + 6, y + 6)}<text x="{LEFT + 19}" y="{y + 14}" class="t mark">{escape(text)}</text></g>'
    )


def _box(at: int, y: int, height: int, texts: Sequence[str], label: str, *, absent: bool = False) -> str:
    x = LEFT + at * PITCH
    kind = "part" + " bad" * bool(texts) + " absent" * absent
    parts = [f'<rect class="{kind}" x="{x}" y="{y}" width="{BOX}" height="{height}"/>']
    if texts:
        parts.insert(0, _title(texts))
        parts.append(_cross(x + 5, y + height // 2 - 4))
    if label:
        place = x + BOX / 2 + 5 * bool(texts)
        parts.append(f'<text x="{place:.0f}" y="{y + 15}" class="t mid{" mark" * bool(texts)}">{escape(label)}</text>')
    return f"<g>{''.join(parts)}</g>" if len(parts) > 1 else parts[0]


def _cross(x: float, y: float) -> str:
    return f'<path class="cross" d="M{x} {y}l8 8m0 -8l-8 8"/>'


def _title(texts: Sequence[str]) -> str:
    return f"<title>{escape('; '.join(texts))}</title>"


def _label(text: str, y: int) -> str:
    return f'<text x="{LEFT - 8}" y="{y}" class="t end">{text}</text>'


def _words(parts: PartCounts, marks: _Marks) -> str:
    """Describe the picture for readers who do not see it."""
    bad = [f"GPU {index}" for index in sorted(marks.gpus)]
    bad += [f"GPU {gpu} NVLink {link}" for gpu, link in sorted(marks.nvlinks)]
    bad += [marks.names.get(key, f"adapter of GPU {key}") if isinstance(key, int) else key for key in marks.ports]
    bad += [f"GPU {index}, missing" for index in sorted(marks.lost)]
    bad += [f"{marks.missing} of the GPUs, missing"] if marks.missing and not marks.lost else []
    bad += list(marks.others)
    known = [f"{parts.gpus} GPUs"]
    known += [f"{parts.nvlinks} NVLinks each"] if parts.nvlinks else []
    known += [f"{parts.ports} ports"] if parts.ports else []
    return f"{', '.join(known)}; bad: {', '.join(bad)}"
