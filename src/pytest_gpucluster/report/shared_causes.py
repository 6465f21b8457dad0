"""What explains the findings and metrics of a run, or of a history: values of factors (core/shared_causes.py). Pure.

It decides nothing: no verdict, no action and no drain reads it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.common_cause import likeness
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.safe_json import loads
from pytest_gpucluster.core.shared_causes import FactorValue, NodeSample, Question, SharedCause, shared_causes
from pytest_gpucluster.core.text import count
from pytest_gpucluster.report.describe import number
from pytest_gpucluster.report.run_model import WHOLE, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucluster.report.history.store import History
    from pytest_gpucluster.report.run_model import Run

MAX_LINES = 12
LEAST_P = 1e-99  # a smaller one says no more
PROFILE = "profile"
_JUDGED = ("passed", "failed", "waived")
_PLACES = {"group": "group", "partition": "partition", "switch": "leaf", "arch": "architecture", "image": "image"}


class Subject(NamedTuple):
    """What is asked: a finding by its check, code and part, or a metric by its suite, name and unit, on nodes of one profile."""

    check: str
    what: str
    unit: str = ""
    profile: str = ""
    like: object = None  # core.common_cause.Likeness: tells findings with the same words apart


@dataclass(frozen=True)
class SharedCauses:
    """What was found, among how many factors, values and questions."""

    causes: list[SharedCause]
    factors: int
    values: int
    questions: int

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """Yield a line for each cause; `verbose`: also what was compared, if nothing was found."""
        for cause in self.causes[:MAX_LINES]:
            yield f"shared: {sentence(cause)}"
        if self.causes[MAX_LINES:]:
            yield f"shared: {len(self.causes) - MAX_LINES} more: see report.html"
        if verbose and not self.causes:
            asked = f"{self.questions:,} findings and metrics, {count(self.values, 'value')}"
            yield f"shared: no value of a factor explains a finding or metric ({asked} of {count(self.factors, 'factor')})"


def of_run(run: Run) -> SharedCauses:
    """Return what explains the findings and metrics of a run; made once for all reports."""
    known = len(run.results)
    if run.shared is None or run.shared[0] != known:
        factors = [*factor_values(run)]
        run.shared = known, _explained(factors, [*_findings(run), *_metrics(run)])
    found: SharedCauses = run.shared[1]
    return found


def _explained(factors: list[FactorValue], questions: list[Question]) -> SharedCauses:
    causes = shared_causes(factors, questions)
    return SharedCauses(causes, len({it.factor for it in factors}), len(factors), len(questions))


def factor_values(run: Run) -> Iterator[FactorValue]:
    """Yield the factors that the cluster file states, then those that the run has read, each value with its nodes."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for factor, value, of_value in (*_stated(run), *_read(run)):
        if value:
            found[factor, value] += of_value
    for (factor, value), nodes in found.items():
        yield FactorValue(factor, value, frozenset(nodes))


def _stated(run: Run) -> Iterator[tuple[str, str, Iterable[str]]]:
    for factor, values in run.factors.items():
        yield from ((factor, value, nodes) for value, nodes in values.items())
    yield from ((PROFILE, profile, (node,)) for node, profile in run.profiles.items())


def _read(run: Run) -> Iterator[tuple[str, str, Iterable[str]]]:
    for node, place in run.places.items():
        yield from ((factor, getattr(place, key), (node,)) for key, factor in _PLACES.items())
    for what, versions in run.versions.items():
        yield from ((what, version, nodes) for version, nodes in versions.items())
    for node, parts in run.parts.items():
        for it in parts:
            firmware = it.firmware and f"{it.firmware} of {it.number or it.part.model}"
            yield f"{it.part.kind} part number", it.number, (node,)
            yield f"{it.part.kind} firmware", firmware, (node,)


def _findings(run: Run) -> Iterator[Question]:
    judged: dict[str, set[str]] = defaultdict(set)
    having: dict[Subject, set[str]] = defaultdict(set)
    for result in run.results:
        if not result.node or result.outcome not in _JUDGED:
            continue
        node, check = one_line(result.node), one_line(result.check)
        judged[check].add(node)
        found = [it for verdict in result.verdicts for it in verdict.findings]
        for it in found:
            having[_finding(check, it.code, it.part, likeness(it))].add(node)
        if not found and result.outcome == "failed":
            having[Subject(check, "")].add(node)
    yield from _counted(judged, having)


def _finding(check: str, code: str, part: Part, like: object) -> Subject:
    kind, name = part.likeness
    words = " ".join(filter(None, (one_line(name) or kind, code.replace("_", " "))))
    return Subject(check, words, like=like)


def _counted(judged: dict[str, set[str]], having: dict[Subject, set[str]]) -> Iterator[Question]:
    for subject, nodes in having.items():
        yield Question(subject, {node: float(node in nodes) for node in judged[subject.check] | nodes}, counted=True)


def _metrics(run: Run) -> Iterator[Question]:
    for (suite, profile, name, unit), spread in run.spreads.items():
        if profile != WHOLE:
            found = grouped((node, it.value) for node, it in zip(spread.nodes, spread.metrics, strict=True))
            yield _measured(Subject(suite, name, unit, profile), found)


def _measured(subject: Subject, found: dict[str, list[float]]) -> Question:
    return Question(subject, {node: statistics.median(values) for node, values in found.items()})


# --- the history


def of_history(history: History, cluster: str, runs: int) -> SharedCauses:
    """Return what explains the findings and metrics of a cluster's last runs.

    A node has a finding if any of these runs has it; its metric is the median over the runs and its parts. Each factor
    has the value that the newest run stored of the node.
    """
    newest = history.runs(cluster, 1)
    if not newest:
        return SharedCauses([], 0, 0, 0)
    kind = cluster, newest[0].simulated
    since = history.runs_of_kind(cluster, simulated=newest[0].simulated, count=runs)[-1].started
    values = history.factors(*kind)
    factors = [FactorValue(*key, frozenset(nodes)) for key, nodes in values.items()]
    profiles = {node: value for (factor, value), nodes in values.items() if factor == PROFILE for node in nodes}
    return _explained(
        factors, [*_stored_findings(history, kind, since), *_stored_metrics(history, kind, since, profiles)]
    )


def _stored_findings(history: History, kind: tuple[str, bool], since: float) -> Iterator[Question]:
    judged: dict[str, set[str]] = defaultdict(set)
    having: dict[Subject, set[str]] = defaultdict(set)
    rows = history.query(
        'SELECT DISTINCT n.name, i."check", v.outcome, f.code, f.kind, f.name FROM verdicts v JOIN items i ON i.id = v.item '
        "JOIN nodes n ON n.id = i.node LEFT JOIN findings f ON f.run = v.run AND f.item = v.item WHERE n.cluster = ? "
        "AND n.simulated = ? AND v.started >= ? AND v.outcome IN (?, ?, ?) AND n.name != ''",
        (*kind, since, *_JUDGED),
    )
    for node, check, outcome, code, part, name in rows:
        judged[check].add(node)
        if code is not None or outcome == "failed":
            of = Part(part or "", name=name or "")
            having[_finding(check, code or "", of, of.likeness)].add(node)
    yield from _counted(judged, having)


def _stored_metrics(
    history: History, kind: tuple[str, bool], since: float, profiles: dict[str, str]
) -> Iterator[Question]:
    found: dict[Subject, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows = history.query(
        'SELECT n.name, s."check", s.name, s.unit, s.part, m.value FROM metrics m JOIN series s ON s.id = m.series '
        "JOIN nodes n ON n.id = s.node WHERE n.cluster = ? AND n.simulated = ? AND m.started >= ? AND NOT s.detail "
        "AND m.value IS NOT NULL AND n.name != ''",
        (*kind, since),
    )
    for node, check, name, unit, plain, value in rows:
        part = Part.read(loads(plain))
        label = f"{name} {part.short}".rstrip() if part.is_named else name
        found[Subject(check, label, unit, profiles.get(node, ""))][node].append(value)
    for subject, values in found.items():
        yield _measured(subject, values)


# --- words


def names(cause: SharedCause) -> str:
    """Name the values of a cause: 'rack A07 or power feed P3 (they hold the same nodes)'."""
    words = " or ".join(dict.fromkeys(f"{it.factor} {it.value}" for it in cause.values))
    if not cause.values[1:]:
        return words
    return f"{words} ({'they hold the same nodes' if cause.same else 'the data cannot tell them apart'})"


def subject_of(cause: SharedCause) -> str:
    """Name the finding or metric: 'gpu.temperature: gpu too hot'."""
    question, subject = cause.question, cause.question.subject
    if not isinstance(subject, Subject):
        return str(subject)
    side = {">": "above", "<": "below"}.get(question.side, "")
    level = f"{side} {number(question.level)} {subject.unit}".rstrip() if side else ""
    words = ": ".join(filter(None, (subject.check, subject.what)))
    return " ".join(filter(None, (words, level)))


def sample(cause: SharedCause, found: NodeSample) -> str:
    """Write one side: '11 of 60 nodes', or 'median 71 C on 60 nodes'."""
    if cause.question.counted:
        return f"{found.having} of {count(found.nodes, 'node')}"
    unit = cause.question.subject.unit if isinstance(cause.question.subject, Subject) else ""
    return f"{' '.join(filter(None, ('median', number(found.median), unit)))} on {count(found.nodes, 'node')}"


def sentence(cause: SharedCause) -> str:
    """Write a cause in one line."""
    return (
        f"{names(cause)}: {subject_of(cause)}: {sample(cause, cause.inside)}; elsewhere {sample(cause, cause.outside)} "
        f"(by chance {max(cause.p, LEAST_P):.0e})"
    )
