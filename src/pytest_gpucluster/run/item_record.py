"""What is recorded of an item, its texts without secrets and control characters."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import redact
from pytest_gpucluster.report.machine.atomic_write import harmless

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.core.check import Metric, Verdict
    from pytest_gpucluster.core.part import InstalledPart, Part
    from pytest_gpucluster.core.probe import Probe


@dataclass
class Record:
    """Suite, check and node of an item; its metrics; its probes and commands."""

    suite: str
    check: str
    node: str
    verdicts: list[Verdict] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    probes: list[Probe[Any]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    fabric: dict[str, Any] = field(default_factory=dict)  # switches and links, for the picture of report.html
    logs: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    parts: Sequence[InstalledPart] = ()
    ended: str = ""  # NotJudged.outcome, where nothing could be judged
    reason: str = ""  # of NotJudged
    contradicted: str = ""  # the nodes of the group whose profile is of other hardware, where that is why

    def add(self, verdict: Verdict) -> None:
        """Keep a verdict and its metrics."""
        self.verdicts.append(verdict)
        self.metrics.extend(verdict.metrics)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types without control characters: suite, check, node, verdicts, metrics, curves, cells, logs, and how it ended."""
        return {
            "suite": clean(self.suite),
            "check": clean(self.check),
            "node": clean(self.node),
            "verdicts": [_clean_verdict(verdict) for verdict in self.verdicts],
            "metrics": [_clean_flat(it.as_dict()) | {"part": _clean_part(it.part)} for it in self.metrics],
            "curves": clean_all(self.curves) if self.curves else [],
            "cells": clean_all(self.cells) if self.cells else [],
            "logs": clean_all(self.logs) if self.logs else [],
            **({"fabric": clean_all(self.fabric)} if self.fabric else {}),
            **({"versions": clean_all(self.versions)} if self.versions else {}),
            **({"parts": [clean_all(part.as_dict()) for part in self.parts]} if self.parts else {}),
            **({"ended": self.ended, "reason": clean(self.reason)} if self.ended else {}),
            **({"contradicted": self.contradicted} if self.contradicted else {}),
        }


def _clean_verdict(verdict: Verdict) -> dict[str, Any]:
    """Clean a verdict as clean_all does, without its metrics: the record has them."""
    plain = verdict.as_dict()
    lists: dict[str, Any] = {
        key: clean_all(plain[key]) for key in ("findings", "advisories", "remarks") if key in plain
    }
    return {**_clean_flat({**plain, **dict.fromkeys(lists)}), **lists}


def _clean_flat(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Clean plain data without depth; keys that are names of fields are clean."""
    if all(value.__class__ is not str or is_clean(value) for value in plain.values()):
        return dict(plain)
    cleaned: dict[str, Any] = clean_all(dict(plain))
    return cleaned


@lru_cache(1 << 15)
def _clean_part(part: Part) -> dict[str, Any]:
    cleaned: dict[str, Any] = clean_all(part.as_dict())
    return cleaned


@lru_cache(1 << 17)  # names, units, parts of many nodes; long texts are rare
def is_clean(text: str) -> bool:
    """Return True for a text that `clean` leaves as it is."""
    return text.isprintable() and not redact.is_suspect(text)


def clean(text: str) -> str:
    """Take out secrets, and control characters: XML cannot hold them, and a terminal would obey them."""
    return text if is_clean(text) else harmless(text)


def clean_pair(name: str, value: str) -> str:
    """Clean a value that stands under a name of its own: a secret's name takes it out as a whole."""
    found: str = clean_all({name: value})[clean(name)]
    return found


def clean_all(data: Any) -> Any:
    """Return plain data with every text in it cleaned."""
    return redact.everything(data, clean)


def one_line(error: BaseException) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split())
