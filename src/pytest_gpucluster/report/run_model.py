"""One run, read from its events in one pass: what terminal, HTML, JUnit, metrics, history and drain are made of. Pure.

`Run.take` reads one event. A run takes its own events as it logs them (machine.events.EventLog); a log is read by
machine.events.read_log.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import inapplicable
from pytest_gpucluster.core.common_cause import Place, likeness
from pytest_gpucluster.core.errors import NOT_STATED
from pytest_gpucluster.core.finding import Action, Advisory, Finding, mapped
from pytest_gpucluster.core.part import InstalledPart
from pytest_gpucluster.core.safe_json import as_dict, as_dicts, as_list, finite, text
from pytest_gpucluster.core.sanitize import printable, shorten
from pytest_gpucluster.report.describe import on_request_line
from pytest_gpucluster.report.proof import CLUSTER, FIT, NOT_PROVED, NOT_TESTED, prove, read_required
from pytest_gpucluster.report.result import RED, DeviatingVerdict, Result, read_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.common_cause import CommonFinding
    from pytest_gpucluster.core.finding import Metric
    from pytest_gpucluster.report.proof import Proofs, Required

_Found = TypeVar("_Found", bound=Finding | Advisory)

# worst first: a cell of nodes x suites shows the first of these that it holds
STATES = (
    "failed", "error", NOT_PROVED, NOT_TESTED, "waived", "not checked", "skipped", "passed", "not applicable",
)  # fmt: skip
ACTIONS = tuple(action.value for action in reversed(Action))  # from hard to mild
WHOLE = "whole cluster"
_MAX_FIELD = 600  # characters of a measured value, a reason, a hint
_SHORT = 200
_MAX_TEXT = 8_000  # characters of a failure's log
_MAX_COMMAND = 1000
_ACTS = ("drain_", "resume_", "trial_", "node_")  # what plugin/drain.py writes
EVIDENCE = "evidence"  # folder of a run
_EVIDENCE = re.compile(rf"{EVIDENCE}/[\w-][\w.-]*")
_STEP_LOG = re.compile(r"steps/[\w-][\w.-]*\.log")


@dataclass
class FindingRow:
    """Nodes with the same finding or advisory, whose texts are clean."""

    found: Finding | Advisory
    nodes: list[str] = field(default_factory=list)

    @property
    def action(self) -> str:
        """What the finding requires, '' for nothing."""
        return self.found.action.value if isinstance(self.found, Finding) and self.found.action else ""


@dataclass
class FailureGroup:
    """Nodes that fail one check alike. `example` is of the first: node, text, output, by_hand, again.

    common: what the nodes share, if it is a finding of the cluster (cluster_findings.py). split: groups of such findings that
    were first a part of this one.
    """

    outcome: str
    check: str
    suite: str
    action: str
    cause: str
    hint: str
    nodes: dict[str, None] = field(default_factory=dict)  # in the order of the run, each once
    rows: dict[tuple[str, ...], FindingRow] = field(default_factory=dict)
    slurm: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    logs: dict[str, None] = field(default_factory=dict)
    example: dict[str, Any] = field(default_factory=dict)
    common: str = ""
    split: list[FailureGroup] = field(default_factory=list)


@dataclass
class MetricSpread:
    """One metric of a suite over nodes of one kind and their parts.

    `kind`: the profile of the nodes, or WHOLE. `bounds`: what it was judged by, with the words for it.
    """

    suite: str
    kind: str
    name: str
    unit: str
    metrics: list[Metric] = field(default_factory=list)
    # of each metric; pairs would be as many more objects to collect
    nodes: list[str] = field(default_factory=list)
    bounds: dict[float, str] = field(default_factory=dict)


@dataclass
class RemarkCount:
    """How often a remark was made, and where."""

    count: int = 0
    nodes: set[str] = field(default_factory=set)


# `end` of events: nodes were busy or Slurm was away; Slurm refused the request; an option or file is wrong; the job was
# preempted or cancelled
WAITED, NO_NODES, REFUSED, TAKEN_BACK = "waited", "no nodes", "refused", "taken back"


@dataclass
class Run:
    """What the events hold: of several `start` and `nodes` the first counts, of several `finish` the last."""

    start: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)
    finish: dict[str, Any] | None = None
    began: float | None = None  # the earliest time of any event
    ended: float | None = None  # the latest
    run: str = ""
    end: str = (
        ""  # why it tested nothing, or not to its end: one of WAITED, NO_NODES, REFUSED, TAKEN_BACK; '' otherwise
    )
    selected: list[str] = field(default_factory=list)
    required: list[Required] | None = None  # what the run must prove; None: its log does not state it
    # suite, check, node -> outcome and message of each result that is part of a proof
    of_proof: dict[tuple[str, str, str], list[tuple[str, str]]] = field(default_factory=dict)
    waived: set[tuple[str, str]] = field(default_factory=set)  # check, node
    problems: dict[str, tuple[str, str]] = field(default_factory=dict)  # node -> (kind, why) before the start
    lost: dict[str, str] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    items: int = 0  # selected ones; 0 is unknown
    on_request: str = ""  # what was left out since it runs on request only
    burnin: dict[str, float] = field(default_factory=dict)  # requested and done seconds, rounds
    acts: list[dict[str, Any]] = field(default_factory=list)  # what drain and resume did
    counts: dict[str, dict[str, Counter[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Counter))
    )
    groups: dict[tuple[str, ...], FailureGroup] = field(default_factory=dict)
    spreads: dict[tuple[str, str, str, str], MetricSpread] = field(default_factory=dict)
    profiles: dict[str, str] = field(default_factory=dict)  # of a node
    curves: list[dict[str, Any]] = field(default_factory=list)
    # collective -> node -> size -> GB/s
    node_curves: dict[str, dict[str, dict[int, float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    bounds: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    cells: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    # switches and links, as the suite ibfabric found them
    fabric: dict[str, Any] = field(default_factory=dict)
    # history.regression.ShownComparison, as plain types
    compared: dict[str, Any] = field(default_factory=dict)
    # outcome -> why -> check -> nodes
    unjudged: dict[str, dict[str, dict[str, set[str]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
    )
    unstated: set[str] = field(default_factory=set)  # checks that the cluster file states nothing for
    # the first of a key is the check
    warnings: dict[tuple[str, ...], FindingRow] = field(default_factory=dict)
    # check -> text
    remarks: dict[str, dict[str, RemarkCount]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(RemarkCount))
    )
    # item -> check, node, message, outcome at last
    retried: dict[str, dict[str, str]] = field(default_factory=dict)
    # what -> version -> nodes
    versions: dict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    # factor -> value -> nodes, as the cluster file states them
    factors: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    # results by then, and what report.shared_causes.of_run made of them
    shared: tuple[int, Any] | None = None
    # of a node, as the suite parts read them
    parts: dict[str, list[InstalledPart]] = field(default_factory=dict)
    evidence: dict[str, dict[str, Any]] = field(default_factory=dict)  # of a node, the event of its case file
    # suite -> log of a step -> the check that ran it
    logs: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    totals: Counter[str] = field(default_factory=Counter)
    results: list[Result] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    common: list[CommonFinding] = field(default_factory=list)  # after cluster_findings.settle
    settled: set[str] = field(default_factory=set)  # checks whose failures it has read
    reruns: dict[str, list[Result]] = field(default_factory=lambda: defaultdict(list))  # item -> its attempts
    _proofs: Proofs | None = None  # until the next event

    def take(self, event: dict[str, Any]) -> None:
        """Read the next event of the run."""
        name, self._proofs = str(event.get("event", "")), None
        time = finite(event.get("time"))
        if time is not None:
            self.began = time if self.began is None else min(self.began, time)
            self.ended = time if self.ended is None else max(self.ended, time)
        if name in _READERS:
            _READERS[name](self, event)
        elif name.startswith(_ACTS):
            self.acts.append(event)

    @property
    def seconds(self) -> float:
        """How long the run took, as far as its log reaches."""
        return (self.ended or 0.0) - (self.began or 0.0)

    @property
    def exit(self) -> int | None:
        """The exit status of pytest; None where the run was killed."""
        code = (self.finish or {}).get("exit")
        return code if isinstance(code, int) and not isinstance(code, bool) else None

    @property
    def suites(self) -> list[str]:
        """The suites with results, by name."""
        return sorted({suite for row in self.counts.values() for suite in row})

    @property
    def aside(self) -> list[str]:
        """The suites of which nothing applied anywhere."""
        rows = (row.items() for row in self.counts.values())
        ends = ((suite, end) for row in rows for suite, found in row for end, number in found.items() if number)
        return sorted(inapplicable(ends))

    @property
    def simulated(self) -> bool:
        """Whether any hardware was simulated."""
        return bool(self.start.get("simulated"))

    def changed(self) -> None:
        """Judge again what is proved: counts were changed without an event."""
        self._proofs = None

    @property
    def proofs(self) -> Proofs:
        """What is proved by now, and what each selected node is; made once for all reports."""
        if self._proofs is None:
            self._proofs = prove(self)
        return self._proofs

    def state(self, node: str, suite: str | None = None) -> str:
        """Return the state of a node in one suite, or in all; '' where it has no result.

        What could not be judged and is part of no proof leaves a suite that has proved the node as it is.
        """
        rows = self.counts.get(node, {})
        counters = rows.values() if suite is None else [rows[suite]] if suite in rows else []
        worst = next((state for state in STATES if any(counter[state] for counter in counters)), "")
        of_node = self.proofs.nodes.get(node, "") if worst or node in self.untested else ""
        shown = {(NOT_PROVED, "error"), (NOT_TESTED, "not applicable")}  # say more
        if suite is None and of_node and (of_node, worst) not in shown:
            return "passed" if of_node == FIT else of_node
        if suite is None or worst in (*RED, NOT_PROVED):
            return worst
        if (suite, node) in self.proofs.unproved:
            return NOT_PROVED
        return "passed" if (suite, node) in self.proofs.proved and worst not in ("", "waived") else worst

    @property
    def untested(self) -> dict[str, str]:
        """Selected node -> why it was not tested, or not to the end."""
        known = {node: why for node, (_, why) in self.problems.items()} | self.lost
        return {node: known[node] for node in self.selected if node in known}

    @property
    def silent(self) -> list[str]:
        """Nodes of which the log holds no result and no reason: the run ended before."""
        without = self.proofs.of(NOT_TESTED)
        return [node for node in without if node not in self.counts and node not in self.untested]

    @property
    def executed(self) -> int:
        """How many checks came to a verdict or an error."""
        return sum(self.totals[outcome] for outcome in ("passed", "failed", "error"))


def _start(run: Run, event: dict[str, Any]) -> None:
    if run.start:
        return
    run.start, run.run = event, printable(event.get("run"))
    for group in as_dicts(event.get("groups")):
        with contextlib.suppress(ValueError):  # a foreign log
            nodes = hostlist.expand(text(group.get("nodes")))
            run.profiles |= dict.fromkeys(map(one_line, nodes), one_line(group.get("profile")))
    for version, nodes in as_dict(event.get("slurmd")).items():
        run.versions["slurmd"][one_line(version)] += [one_line(node) for node in as_list(nodes)]


def _nodes(run: Run, event: dict[str, Any]) -> None:
    if run.nodes:
        return
    run.nodes, run.selected = event, [one_line(node) for node in as_list(event.get("selected"))]
    _problems(run, event.get("not_tested"))
    _factors(run, event.get("factors"))
    for shared in as_dicts(event.get("places")):
        place = Place(*(one_line(shared.get(key.name)) for key in fields(Place)))
        run.places |= dict.fromkeys(map(one_line, as_list(shared.get("nodes"))), place)


def _factors(run: Run, found: Any) -> None:
    for factor, values in as_dict(found).items():
        of_factor = run.factors.setdefault(one_line(factor), {})
        for value, nodes in as_dict(values).items():
            with contextlib.suppress(ValueError):  # a foreign log
                of_factor[one_line(value)] = hostlist.expand(text(nodes))


def _problems(run: Run, found: Any) -> None:
    for node, problem in as_dict(found).items():
        kind, why = (*as_list(problem), "", "")[:2]
        run.problems[one_line(node)] = (one_line(kind), one_line(why))


def _selection(run: Run, event: dict[str, Any]) -> None:
    """Take what the run must prove. Nodes that no selected item concerns are no part of the run."""
    run.required = read_required(event)
    run.items = int(finite(event.get("items")) or 0)
    run.on_request = one_line(on_request_line(event))
    run.of_proof = {(row.suite, row.check, "" if row.whole else node): [] for row in run.required for node in row.nodes}
    concerned = set(map(one_line, as_list(event.get("nodes"))))
    run.selected = [node for node in run.selected if node in concerned]


def _burnin(run: Run, event: dict[str, Any]) -> None:
    found = {key: finite(event.get(key)) for key in ("requested", "seconds", "rounds")}
    run.burnin |= {key: value for key, value in found.items() if value is not None}


def _lost(run: Run, event: dict[str, Any]) -> None:
    run.lost[one_line(event.get("node"))] = one_line(event.get("why"))


def _evidence(run: Run, event: dict[str, Any]) -> None:
    node = one_line(event.get("node"))
    run.evidence[node] = event
    if node not in run.parts and (parts := as_dicts(event.get("parts"))):
        run.parts[node] = [InstalledPart.read(part).mapped(one_line) for part in parts]


def evidence_folder(run: Run, node: str) -> str:
    """Return the folder of a node's evidence that may be linked to: no other paths, no addresses; '' where there is none."""
    folder = text(run.evidence.get(node, {}).get("folder"))
    return folder if _EVIDENCE.fullmatch(folder) else ""


def _compared(run: Run, event: dict[str, Any]) -> None:
    run.compared = event


def _error(run: Run, event: dict[str, Any]) -> None:
    run.errors.append(one_line(event.get("message")))
    run.end = one_line(event.get("end")) or run.end


def _finish(run: Run, event: dict[str, Any]) -> None:
    run.finish = event
    run.end = one_line(event.get("end"))
    run.errors += [one_line(complaint) for complaint in as_list(event.get("complaints"))]


def _rerun(run: Run, event: dict[str, Any]) -> None:
    """Store the first failure of a repeated item: a later pass must not hide it."""
    attempt = read_result(event)
    run.reruns[attempt.nodeid].append(attempt)
    first = {key: one_line(event.get(key)) for key in ("check", "node", "message")}
    run.retried.setdefault(one_line(event.get("nodeid")), first | {"outcome": "not ended"})


def _result(run: Run, event: dict[str, Any]) -> None:
    found = read_result(event)
    run.results.append(found)
    node, suite, outcome = (one_line(found.node) or CLUSTER, one_line(found.suite) or "other", one_line(found.outcome))
    if run.retried:
        run.retried.get(one_line(event.get("nodeid")), {})["outcome"] = outcome
    run.counts[node][suite][outcome] += 1
    run.totals[outcome] += 1
    check = one_line(found.check)
    why = one_line((outcome not in RED and event.get("reason")) or found.message)
    for part in {check, ""}:
        run.of_proof.get((suite, part, one_line(found.node)), []).append((outcome, why))
    if outcome in RED:
        _red(run, found, event, node)
    elif outcome == "waived":
        run.waived.add((check, node))
    elif outcome not in ("passed", "not tested"):
        run.unjudged[outcome][why][check].add(node)
        run.unstated |= {check for it in as_dicts(event.get("verdicts")) if it.get("reason_code") == NOT_STATED}
    for verdict in found.verdicts:
        _deviating(run, verdict, check, node)
    for log in _logs(event):
        run.logs[suite].setdefault(log, check)
    for metric in found.metrics:
        _metric(run, metric, node, suite)
    _figures(run, event, node)


def _deviating(run: Run, verdict: DeviatingVerdict, check: str, node: str) -> None:
    for advisory in verdict.advisories:
        add_found(run.warnings, advisory, node, check=check)
    for remark in verdict.remarks:
        noted = run.remarks[check][one_line(remark.text)]
        noted.count += remark.count
        noted.nodes.add(node)


def _figures(run: Run, event: dict[str, Any], node: str) -> None:
    for what, version in as_dict(event.get("versions")).items():
        run.versions[one_line(what)][one_line(version)].append(node)
    if parts := as_dicts(event.get("parts")):
        run.parts[node] = [InstalledPart.read(part).mapped(one_line) for part in parts]
    for curve in as_dicts(event.get("curves")):
        points = [_point(point) for point in as_list(curve.get("points"))]
        run.curves.append(
            {
                "title": one_line(curve.get("title")),
                "run": one_line(curve.get("run")),
                "node": node,
                "points": [point for point in points if point],
            }
        )
    for put in as_dicts(event.get("cells")):
        run.cells[one_line(put.get("title"))].append(put)
    run.fabric = as_dict(event.get("fabric")) or run.fabric


# --- failures


def failure_key(result: Result) -> tuple[str, ...]:
    """Return the key of a red result in Run.groups: outcome, check, action, what its findings have in common, cause, hint.

    Failures without findings are one group where their messages are equal but for the name of the node.
    """
    outcome, check = one_line(result.outcome), one_line(result.check)
    first = next(iter(_failed_verdicts(result)), None)
    if first is None:
        message, node = one_line(result.message), one_line(result.node)
        return outcome, check, "", message.replace(node, "NODE") if node else message, "", ""
    like = " ".join(sorted({str(likeness(finding)) for finding in first.findings}))
    check = one_line(first.explained_by) or check
    return outcome, check, first.action.value, like, one_line(first.cause), one_line(first.hint)


def _failed_verdicts(result: Result) -> list[DeviatingVerdict]:
    return [it for it in result.verdicts if it.findings] if one_line(result.outcome) == "failed" else []


def _red(run: Run, result: Result, event: dict[str, Any], node: str) -> None:
    verdicts = _failed_verdicts(result)
    key = failure_key(result)
    group = run.groups.get(key)
    if group is None:
        outcome, check, action, _, _, hint = key
        cause = one_line(verdicts[0].cause) if verdicts else ""
        suite = one_line(result.suite) if check == one_line(result.check) else check.partition(".")[0]
        group = run.groups[key] = FailureGroup(outcome, check, suite, action, cause, hint)
        group.example = example_of(result, event.get("output"))
    group.nodes[node] = None
    group.logs |= dict.fromkeys(_logs(event))
    for verdict in verdicts:
        for finding in verdict.findings:
            add_found(group.rows, replace(finding, action=finding.action or verdict.action), node)
    if not verdicts:
        add_found(group.rows, Finding("", one_line(result.message).replace(node, "NODE"), ""), node)
    if result.annotation.state:
        group.slurm[_slurm(result)].append(node)


def add_found(
    rows: dict[tuple[str, ...], FindingRow], found: Finding | Advisory, node: str, *, check: str = ""
) -> None:
    """Put a node into the row of nodes that deviate alike; the UUID and bus id of a part differ per node."""
    row = FindingRow(cleaned(found))
    like = check, row.found.part.short, str(row.found.measured), str(row.found.expected), row.action
    row = rows.setdefault(like, row)
    if row.nodes[-1:] != [node]:
        if len(row.nodes) == 1:
            row.found = replace(row.found, part=row.found.part.shared)
        row.nodes.append(node)


def cleaned(found: _Found) -> _Found:
    """Return a finding or an advisory in texts as the model holds them."""
    return mapped(found, one_line)


def example_of(result: Result, output: Any = "") -> dict[str, Any]:
    """Return the example of a group whose first failure this is. `output`: what the item printed, which the log alone holds."""
    return {
        "node": one_line(result.node) or CLUSTER,
        "text": shorten(printable(result.text), _MAX_TEXT),
        "output": shorten(printable(output), _MAX_TEXT),
        "by_hand": [shorten(printable(command), _MAX_COMMAND) for command in result.annotation.reproduce],
        "again": shorten(printable(result.annotation.rerun), _MAX_COMMAND),
    }


def _slurm(result: Result) -> str:
    told = result.annotation
    shown = (told.state, told.reason and f"reason: {told.reason}")
    return "; ".join(shorten(printable(it), _MAX_COMMAND) for it in shown if it)


def _logs(event: dict[str, Any]) -> list[str]:
    """Return the step logs of an item that may be linked to: no other paths, no addresses."""
    return [log for log in as_list(event.get("logs")) if isinstance(log, str) and _STEP_LOG.fullmatch(log)]


# --- numbers


def _metric(run: Run, metric: Metric, node: str, suite: str) -> None:
    value, name, device = metric.number, one_line(metric.name), one_line(metric.device)
    size = metric.part.index if metric.part.kind == "size" else None
    if value is None:
        return
    if name in ("busbw", "busbw_bound"):
        if size is not None and metric.part.of is not None:
            _curve_point(run, metric, one_line(metric.part.of.name), size, value, node)
    elif not metric.detail:
        label = f"{name} {device}".rstrip() if metric.part.is_named else name
        key = suite, WHOLE if node == CLUSTER else run.profiles.get(node, ""), label, one_line(metric.unit)
        spread = run.spreads.get(key) or run.spreads.setdefault(key, MetricSpread(*key))
        spread.metrics.append(metric)
        spread.nodes.append(node)
        if metric.bound is not None and math.isfinite(metric.bound.number):
            spread.bounds.setdefault(metric.bound.number, one_line(str(metric.bound)))


def part_of(metric: Metric) -> str:
    """Return the part of the node that was measured; '' where the device is what was measured: a path, a size."""
    return "" if metric.part.is_named else one_line(metric.device)


def _curve_point(run: Run, metric: Metric, of_run: str, octets: int, value: float, node: str) -> None:
    if one_line(metric.name) == "busbw_bound":
        run.bounds[of_run][octets] = value
    elif node != CLUSTER:  # that of the whole comes as a curve
        run.node_curves[of_run][node][octets] = value


def _point(point: Any) -> tuple[int, float] | None:
    size, value = (*as_list(point), None, None)[:2]
    if isinstance(size, int) and isinstance(value, (int, float)):
        return size, float(value)
    return None


# --- whatever a log may hold


def one_line(value: Any) -> str:
    """Return a text of the log as the model holds it: one line of limited length."""
    if value.__class__ is str and len(value) < _SHORT:
        return _short_line(value)
    return shorten(" ".join(printable(value).split()), _MAX_FIELD)


@lru_cache(1 << 17)  # names and devices of all nodes are in thousands of results
def _short_line(value: str) -> str:
    return shorten(" ".join(printable(value).split()), _MAX_FIELD)


_READERS: dict[str, Callable[[Run, dict[str, Any]], None]] = {
    "start": _start,
    "nodes": _nodes,
    # nodes that went out of service, or to others, before they were allocated
    "not_tested": lambda run, event: _problems(run, event.get("nodes")),
    "selection": _selection,
    "result": _result,
    "rerun": _rerun,
    "burnin": _burnin,
    "evidence": _evidence,
    "lost": _lost,
    "allocation": lambda run, event: run.jobs.append(event),
    "error": _error,
    "finish": _finish,
    "compared": _compared,
}
