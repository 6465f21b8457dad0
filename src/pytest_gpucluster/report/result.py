"""One `result` or `rerun` event as a compact value. Pure.

A run may have half a million results: what is the same in many of them is one object, and a verdict without deviations is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_gpucluster.core.finding import Action, Advisory, Finding, Metric, Remark, summed
from pytest_gpucluster.core.safe_json import as_dict, as_dicts, as_list, finite, shared_number, shared_text, text

RED = ("failed", "error")


@dataclass(frozen=True, slots=True)
class DeviatingVerdict:
    """A verdict that deviates, as the log holds it. `setting`: of all findings that name none; `repeated`: as of core.check.Verdict."""

    outcome: str
    action: Action
    cause: str
    hint: str
    findings: tuple[Finding, ...]
    advisories: tuple[Advisory, ...] = ()
    setting: str = ""
    remarks: tuple[Remark, ...] = ()
    explained_by: str = ""
    repeated: bool = False


class Waived(NamedTuple):
    """What waivers of the cluster file cover: where they are written, their words, and how the item ended without them."""

    at: tuple[str, ...]
    words: str
    outcome: str
    message: str
    text: str


class Annotation(NamedTuple):
    """What a failing item states: its node in Slurm, the commands that reproduce the failure and run the item again, a note.

    `alike`: the words of the rerun that hold for any node, after the name of the cluster.
    """

    state: str = ""
    reason: str = ""
    reproduce: tuple[str, ...] = ()
    rerun: str = ""
    note: str = ""
    alike: tuple[str, ...] = ()

    @classmethod
    def read(cls, value: Any) -> Annotation:
        """Return the annotation that an event holds."""
        if not (plain := as_dict(value)):
            return UNANNOTATED
        state, reason, rerun, note = (text(plain.get(key)) for key in ("state", "reason", "rerun", "note"))
        reproduce, alike = (tuple(map(text, as_list(plain.get(key)))) for key in ("reproduce", "alike"))
        return cls(state, reason, reproduce, rerun, note, alike)

    @property
    def lines(self) -> list[str]:
        """What people read below a failure."""
        slurm = ("Slurm state: ", self.state), ("reason: ", self.reason)
        reproduce = (("reproduce:    ", command) for command in self.reproduce)
        labelled = (*slurm, *reproduce, ("rerun:        ", self.rerun), ("note:         ", self.note))
        return [f"{label}{shown}" for label, shown in labelled if shown]


UNANNOTATED = Annotation()


@dataclass(frozen=True, slots=True)
class Result:
    """How an item ended, in the texts of the log; each report makes them fit for its own format.

    common: the item failed only by findings of the cluster (core/common_cause.py): its node is not at fault.
    """

    nodeid: str
    node: str
    suite: str
    check: str
    outcome: str
    phase: str
    seconds: float
    message: str
    verdicts: tuple[DeviatingVerdict, ...]
    metrics: tuple[Metric, ...]
    text: str = ""
    annotation: Annotation = UNANNOTATED
    properties: tuple[tuple[str, str], ...] = ()
    waiver: Waived | None = None
    common: bool = False

    @property
    def red(self) -> bool:
        """Whether the item failed or broke."""
        return self.outcome in RED

    @property
    def brief(self) -> str:
        """What failed, also where a waiver covers it; of findings without the names of check and node."""
        ended = self.waiver or self
        found = next((it.findings for it in self.verdicts if it.findings), ())
        return summed(found) if found and ended.outcome == "failed" else ended.message


def read_result(event: dict[str, Any]) -> Result:
    """Return what a `result` or `rerun` event holds."""
    return Result(
        nodeid=text(event.get("nodeid")),
        node=shared_text(event.get("node")),
        suite=shared_text(event.get("suite")),
        check=shared_text(event.get("check")),
        outcome=shared_text(event.get("outcome")),
        phase=shared_text(event.get("phase")),
        seconds=shared_number(finite(event.get("seconds")) or 0.0),
        message=shared_text(event.get("message")),
        verdicts=tuple(_verdict(it) for it in as_dicts(event.get("verdicts")) if _deviates(it)),
        metrics=tuple(map(Metric.from_dict, as_dicts(event.get("metrics")))),
        text=text(event.get("text")),
        annotation=Annotation.read(event.get("annotation")),
        properties=tuple((text(key), text(value)) for key, value in _pairs(event.get("properties"))),
        waiver=_waived(event["waiver"]) if isinstance(event.get("waiver"), dict) else None,
    )


def _waived(waiver: dict[str, Any]) -> Waived:
    at = tuple(map(shared_text, as_list(waiver.get("at"))))
    return Waived(at, *(shared_text(waiver.get(key)) for key in Waived._fields[1:]))


def _deviates(verdict: dict[str, Any]) -> bool:
    return any(verdict.get(key) for key in ("findings", "advisories", "remarks"))


def _verdict(verdict: dict[str, Any]) -> DeviatingVerdict:
    outcome, cause, hint, setting = (shared_text(verdict.get(key)) for key in ("outcome", "cause", "hint", "setting"))
    return DeviatingVerdict(
        outcome,
        Action.read(verdict.get("action")) or Action.MONITOR,
        cause,
        hint,
        tuple(map(Finding.from_dict, as_dicts(verdict.get("findings")))),
        tuple(map(Advisory.from_dict, as_dicts(verdict.get("advisories")))),
        setting,
        tuple(map(Remark.from_dict, as_dicts(verdict.get("remarks")))),
        shared_text(verdict.get("explained_by")),
        verdict.get("repeated") is True,
    )


def _pairs(value: Any) -> list[list[Any]]:
    return [pair for pair in as_list(value) if isinstance(pair, list) and len(pair) == 2]
