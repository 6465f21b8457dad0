"""What the lines of the kernel log mean: data/kernel-lines.yaml, for awk on the node and for Python on the controller."""

from __future__ import annotations

import re
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from pytest_gpucluster.core.check import Action
from pytest_gpucluster.core.known_lines import extended_expression
from pytest_gpucluster.core.values import Model, Text
from pytest_gpucluster.kit.node.known_lines import data_file

if TYPE_CHECKING:
    from collections.abc import Iterable

QUIET, DRIVER, RECOVERED = "quiet", "driver", "recovered"
LEFT, INJECTED, STALL = "left", "injected", "stall"


class LogRule(Model):
    """What a line that contains a pattern means, and what answers the question that it raises.

    `answered_by`: the part of the present state that decides; '' where the line is a warning at most. `action`: of the failure if
    the state confirms the line. `never_healthy`: why the line counts as long as the state does not contradict it. `gave_up`: what the
    kernel no longer uses until a person acts; the line fails, with MONITOR, where the state was not read.
    """

    pattern: Text
    kind: Text
    meaning: Text
    source: Text
    answered_by: Literal["", "mounts", "disks", "gpu", "pci", "tasks", "lasting", "rate"] = ""
    action: Action = Action.MONITOR
    never_healthy: str = ""
    gave_up: str = ""

    @model_validator(mode="after")
    def _is_complete(self) -> LogRule:
        extended_expression(self.expression)
        if self.action.is_repair and not (self.answered_by or self.never_healthy):
            raise ValueError(
                f"an action that takes a node out of service requires never_healthy: {self.pattern!r}"
            )
        return self

    @property
    def is_grave(self) -> bool:
        """Whether the line alone, without the present state, fails the node."""
        return bool(self.never_healthy or self.gave_up)

    @property
    def asks(self) -> tuple[str, ...]:
        """The parts of the state that the node reads for a line; a server's mount may be gone while processes wait for it."""
        return (self.answered_by, "tasks") if self.kind == STALL else (self.answered_by,)

    @cached_property
    def expression(self) -> str:
        """The pattern with its ends of words, for awk and for Python."""
        return self.pattern.replace("<", "(^|[^a-z0-9_])").replace(">", "([^a-z0-9_]|$)")

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern for lines in lower case."""
        return re.compile(self.expression)


@cache
def rules() -> tuple[LogRule, ...]:
    """Return the entries in the order in which they are tried; the file is read at the first use, not at the start of pytest."""
    found = data_file("kernel-lines.yaml", LogRule, __package__)
    return tuple(sorted(found, key=lambda rule: (not rule.is_grave, rule.kind != QUIET)))


def rule_of(text: str) -> LogRule | None:
    """Return the first entry that matches a line, None without one."""
    low = text.lower()
    return next((rule for rule in rules() if rule.compiled.search(low)), None)


def in_awk(expressions: Iterable[str]) -> str:
    """Return one expression for /.../ of an awk program."""
    return "|".join(expressions).replace("/", r"\/")


def joined(*, kind: str = "", asks: str = "", rest: bool = False, grave: bool = False) -> str:
    """Return one expression for awk: of a kind, of what asks for a part of the state, of what fails alone, or of all but `quiet` and `driver`."""
    chosen = (
        rule.expression
        for rule in rules()
        if (kind and rule.kind == kind)
        or (asks and asks in rule.asks)
        or (grave and rule.is_grave)
        or (rest and rule.kind not in (QUIET, DRIVER))
    )
    return in_awk(chosen)
