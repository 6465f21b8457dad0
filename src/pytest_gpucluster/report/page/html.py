"""The HTML report: one file, no network, made from the events of a run alone, so also of one that was killed.

    write(read_log(path), Path("report.html"))

What nodes say is escaped by jinja2, freed of control characters and cut; the page's policy lets nothing but its own
script run. A thousand nodes that fail alike are one section with a folded node list.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pytest_gpucluster.core.safe_json import as_dict, as_list
from pytest_gpucluster.core.sanitize import printable, shorten
from pytest_gpucluster.core.text import count
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.report.describe import clock, folded, remark_lines
from pytest_gpucluster.report.history.regression import ShownComparison
from pytest_gpucluster.report.machine.acceptance_record import (
    MAX_OPTIONS,
    not_tested,
    parts_by_kind,
    parts_not_read,
    parts_table,
    untested_nodes,
)
from pytest_gpucluster.report.machine.acceptance_record import render as record_json
from pytest_gpucluster.report.machine.atomic_write import write_whole
from pytest_gpucluster.report.machine.junit import shell_property
from pytest_gpucluster.report.page import html_page
from pytest_gpucluster.report.page.html_fabric import fabric
from pytest_gpucluster.report.page.html_figures import bandwidth, numbers
from pytest_gpucluster.report.page.html_map import fleet_map
from pytest_gpucluster.report.page.html_subnet import legend, subnet
from pytest_gpucluster.report.page.html_work import trend, work
from pytest_gpucluster.report.proof import CLUSTER, FAILED, FIT, NOT_PROVED
from pytest_gpucluster.report.shared_causes import of_run, sentence
from pytest_gpucluster.report.verdict import NARROWING, judge, judged_suites, narrowing, ordered
from pytest_gpucluster.report.waivers import all_waivers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_gpucluster.report.history.regression import Compared
    from pytest_gpucluster.report.run_model import FailureGroup, FindingRow, Run

__all__ = ["render", "write"]

MAX_GROUPS = 250  # sections of failures; the others become one line each
MAX_LINES = 1000  # of those lines
MAX_ROWS = 2_000  # findings in all sections together
OPEN_ROWS = 12  # findings of a section that are seen at once
MAX_ACTS = 1_000
MAX_NOTE = 4_000  # characters of a text of the history
_SHOWN = ("time", "run", "event", "node", "nodes")  # have columns of their own


def write(run: Run, path: Path, *, record: bytes | None = None, group: int | None = None) -> None:
    """Write the report of one run to `path`, whole or not at all. GpuClusterError where that cannot be."""
    write_whole(path, render(run, record).encode(), group=group)


def render(run: Run, record: bytes | None = None) -> str:
    """Return the report as text: the same one wherever it is made. `record`: that of the run, if it is rendered already."""
    comparison = ShownComparison.read(run.compared) if run.compared else None
    anchors = {id(group): f"g{number}" for number, group in enumerate(ordered(run), 1)}
    script = html_page.resource("report.js")
    judged = judge(run)
    page = html_page.template("report.html.j2").render(
        run=run,
        verdict=judged,
        counts=run.proofs.counts,
        fit=run.proofs.of(FIT),
        unfit=run.proofs.of(FAILED),
        unproved=run.proofs.of(NOT_PROVED),
        record=_record(run),
        work=work(run, anchors, comparison),
        fabric=fabric(run, anchors),
        subnet=subnet(run.fabric),
        subnet_legend=legend(run.fabric),
        map=fleet_map(run, anchors),
        **_failures(run, anchors),
        warnings=_warnings(run),
        waivers=all_waivers(run),
        bandwidth=bandwidth(run),
        numbers=numbers(run),
        shared=[(it, sentence(it)) for it in of_run(run).causes],
        comparison=_comparison(comparison),
        acts=_acts(run)[:MAX_ACTS],
        gaps=_gaps(run),
        same_versions=_same_versions(run),
        parts=list(parts_table(run)),
        parts_by_kind=parts_by_kind(run),
        parts_not_read=parts_not_read(run),
        record_sha256=hashlib.sha256(record or record_json(run)).hexdigest(),
        tables=[_suite_table(title, cells) for title, cells in run.cells.items()],
        environment=_environment(run),
        style=html_page.style(),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return str(page.encode(errors="replace").decode())


def prepare() -> None:
    """Compile the template, for whoever renders later."""
    html_page.template("report.html.j2")


# --- the record


def _record(run: Run) -> dict[str, Any]:
    start = run.start
    groups = [group for group in as_list(start.get("groups")) if isinstance(group, dict)]
    seconds = run.seconds
    return {
        "cluster": _text(start.get("cluster")) or "unknown cluster",
        "description": _text(start.get("description")),
        "date": clock(run.began, run),
        "duration": format_duration(round(seconds)) if seconds >= 1 else "under 1 s",
        "run": run.run,
        "by": "@".join(part for part in (_text(start.get("user")), _text(start.get("host"))) if part),
        "nodes": run.selected,
        "suites": judged_suites(run),
        "narrowed_by": narrowing(run, MAX_OPTIONS),
        "options": shlex.join(
            word
            for name, value in as_dict(start.get("scope")).items()
            if name not in NARROWING
            for one in (value if isinstance(value, list) else [value])
            for word in (_text(name), _text(one))
        ),
        "not_tested": not_tested(run),
        "criteria": [
            {key: _text(group.get(key)) for key in ("nodes", "profile", "description", "source")} for group in groups
        ],
        "not_applicable": {_text(key): _text(why) for key, why in as_dict(start.get("not_applicable")).items()},
        "version": _text(as_dict(start.get("versions")).get("pytest-gpucluster")),
    }


def _environment(run: Run) -> list[tuple[str, str]]:
    start = run.start
    rows = [("Slurm", _text(start.get("slurm")) or "none")]
    rows += [(_text(name), _text(version)) for name, version in as_dict(start.get("versions")).items()]
    rows += [("system", _text(start.get("system"))), ("started on", _text(start.get("host")))]
    file = as_dict(start.get("cluster_file"))
    if file.get("sha256"):
        rows.append(("cluster file", f"{_text(file.get('file'))}, sha256 {_text(file['sha256'])}"))
    rows += [("in folder", _text(start.get("folder")))]
    rows.append(("arguments", shlex.join(_text(one) for one in as_list(start.get("arguments")))))
    rows += [
        (f"allocation {_text(job.get('job'))}", folded(_text(node) for node in as_list(job.get("nodes"))))
        for job in run.jobs
    ]
    finish = run.finish or {}
    processes = ", ".join(f"{_text(k)} {_text(v)}" for k, v in as_dict(finish.get("processes")).items())
    rows += [("processes started", processes), ("exit status", _text(finish.get("exit", "the run did not end")))]
    return [(name, value) for name, value in rows if value]


# --- failures


def _failures(run: Run, anchors: Mapping[int, str]) -> dict[str, Any]:
    groups, room = ordered(run), MAX_ROWS
    sections = []
    for group in groups[:MAX_GROUPS]:
        rows = sorted(group.rows.values(), key=lambda row: -len(row.nodes))
        shown = rows[: max(OPEN_ROWS, room)]
        room -= len(shown)
        sections.append(_section(run, group, anchors[id(group)], shown, len(rows) - len(shown)))
    retried: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in run.retried.values():
        like = one["message"].replace(one["node"], "NODE") if one["node"] else one["message"]
        retried[one["check"], one["outcome"], like].append(one["node"] or CLUSTER)
    rest = groups[MAX_GROUPS:]
    tried = sorted(retried.items())[:MAX_LINES]
    return {"failures": sections, "retried": tried, "brief": rest[:MAX_LINES], "dropped": max(0, len(rest) - MAX_LINES)}


def _section(run: Run, group: FailureGroup, anchor: str, rows: list[FindingRow], left_out: int) -> dict[str, Any]:
    slurm = sorted(group.slurm.items(), key=lambda pair: -len(pair[1]))
    return {
        "group": group,
        "anchor": anchor,
        "rows": rows[:OPEN_ROWS],
        "more": rows[OPEN_ROWS:],
        "left_out": left_out,
        "slurm": slurm[:OPEN_ROWS],
        "slurm_more": len(slurm) - OPEN_ROWS,
        "logs": _logs(run, group)[:OPEN_ROWS],
        "plain": all(not str(row.found.part) and not row.found.expected for row in rows),
        "actions": len({row.action for row in group.rows.values()}) > 1,
    }


def _warnings(run: Run) -> dict[str, Any]:
    ordered = sorted(run.warnings.items(), key=lambda one: (one[0][0], -len(one[1].nodes)))
    nodes = {node for _, row in ordered for node in row.nodes} - {CLUSTER}
    return {
        "of_run": "".join(text for _, text in shell_property(run)),
        "rows": [(check, row) for (check, *_), row in ordered[:MAX_ROWS]],
        "on": count(len(nodes), "node") if nodes else "the cluster",
        "left_out": max(0, len(ordered) - MAX_ROWS),
        "notes": remark_lines(run),
    }


def _logs(run: Run, group: FailureGroup) -> list[str]:
    """Return the group's own step logs, else those of its check on other nodes, else those of its suite."""
    suite = run.logs.get(group.suite, {})
    return list(group.logs) or [log for log, check in suite.items() if check == group.check] or list(suite)


# --- history, acts, gaps


def _comparison(comparison: ShownComparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    worse = [row for row in comparison.rows if row.worse]
    others = [row for row in comparison.rows if not row.worse]
    return {
        "of": {key: _note(one) if isinstance(one, str) else one for key, one in vars(comparison).items()},
        "worse": [_compared(row) for row in worse],
        "others": [_compared(row) for row in others],
    }


def _compared(row: Compared) -> dict[str, Any]:
    metric, base = row.metric, row.last_good if row.last_good is not None else row.previous
    return {
        "row": row,
        "change": f"{(metric.value - base) / abs(base):+.1%}" if base else "",
        "where": f"{_note(row.node)} {_note(metric.device)}".strip(),
        "metric": _note(metric.name),
        "unit": _note(metric.unit),
        "note": _note(row.note),
        "trend": (trend(row) or {}).get("picture", ""),
    }


def _note(text: str) -> str:
    """Return a text of the history, which another user may have written, as it may be shown."""
    return shorten(printable(text), MAX_NOTE)


def _acts(run: Run) -> list[dict[str, Any]]:
    """Return what drain and resume did; the same act on many nodes is one row, at the time of the first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for event in run.acts:
        named = event.get("nodes") if isinstance(event.get("nodes"), list) else [event.get("node")]
        nodes = [_text(node) for node in named or () if node]
        fields = [f"{_text(k)}: {_joined(v)}" for k, v in event.items() if k not in _SHOWN and v not in ("", None, [])]
        details = "; ".join(fields)
        name, like = _text(event.get("event")), details
        for node in nodes:
            like = re.sub(rf"\b{re.escape(node)}\b", "NODE", like)
        row = rows.setdefault(
            (name, like), {"time": clock(event.get("time"), run), "act": name, "details": details, "nodes": []}
        )
        if row["nodes"]:
            row["details"] = like
        row["nodes"] += nodes
    return list(rows.values())


def _joined(value: Any) -> str:
    return ", ".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _gaps(run: Run) -> dict[str, Any]:
    order = dict.fromkeys(("not checked", "skipped", "not applicable", *run.unjudged))
    checks = {
        outcome: [
            (why, sorted(found), sorted(set().union(*found.values())))
            for why, found in sorted(run.unjudged[outcome].items())
        ]
        for outcome in order
        if outcome in run.unjudged
    }
    return {"nodes": sorted(untested_nodes(run).items()), "checks": checks}


def _suite_table(title: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    def order(at: int) -> Callable[[dict[str, Any]], Any]:
        return lambda put: (*as_list(put.get("place")), 0, 0)[at]

    rows = list(dict.fromkeys(_text(put.get("row")) for put in sorted(cells, key=order(0))))
    columns = list(dict.fromkeys(_text(put.get("column")) for put in sorted(cells, key=order(1))))
    texts = {
        (_text(put.get("row")), _text(put.get("column"))): (_text(put.get("text")), _text(put.get("note")))
        for put in cells
    }
    return {"title": title, "rows": rows, "columns": columns, "texts": texts}


def _same_versions(run: Run) -> dict[str, str]:
    """Return what has one version on all nodes of the run that state one."""
    fit = {node for found in run.versions.values() for nodes in found.values() for node in nodes}
    return {
        what: version
        for what, found in run.versions.items()
        for version, nodes in found.items()
        if len(found) == 1 and set(nodes) == fit
    }


def _text(value: Any) -> str:
    return shorten(printable(value), 600)
