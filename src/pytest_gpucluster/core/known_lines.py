"""Lines of logs whose meaning is known: `known` of the cluster file, and the data files that are shipped. Pure."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from pytest_gpucluster.core.check import Action
from pytest_gpucluster.core.values import Model, Text

if TYPE_CHECKING:
    from collections.abc import Iterable


# awk on the nodes and Python read these differently, or one of them has no such thing
_NOT_COMMON = re.compile(r"\\[A-Za-z0-9]|\(\?|(?<!\\)\{|[*+?][*+?]")


def regular_expression(text: str) -> str:
    """Return a regular expression of Python; ValueError for a wrong one, or one that occurs in every line."""
    try:
        everywhere = re.compile(text).search("")
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    if everywhere:
        raise ValueError(f"must not match the empty line, since it would match every line: {text!r}")
    return text


def extended_expression(text: str) -> str:
    """Return an extended regular expression, which awk and Python read alike; ValueError for another one."""
    if found := _NOT_COMMON.search(text):
        raise ValueError(
            f"must be an extended regular expression as for `grep -E`, without {found[0]!r}; write [0-9] for a digit"
        )
    return regular_expression(text)


_Short = Field(min_length=1, max_length=500)
Pattern = Annotated[str, _Short, AfterValidator(regular_expression)]
ExtendedPattern = Annotated[str, _Short, AfterValidator(extended_expression)]


class KnownLine(Model):
    """What the lines of a log that contain a pattern mean, and what they require."""

    pattern: ExtendedPattern = Field(
        description="extended regular expression as for `grep -E`, without {n}; a line that contains it is known"
    )
    meaning: Text = Field(description="what the line means, in a few words")
    action: Literal["ignore", "warn", "configure", "monitor", "reset gpu", "reboot", "drain", "return to vendor"] = (
        Field(
            "ignore",
            description="ignore: not reported; warn: a warning; else: a failure with this action, in Slurm's logs a warning",
        )
    )
    reason: Text = Field(description="why the action is right at this site, or the source of the statement")

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def matches(self, line: str) -> bool:
        """Return whether a line contains the pattern."""
        return bool(self._compiled.search(line))

    @property
    def failure(self) -> Action | None:
        """The action of the failure that the line is; None if it is ignored or a warning."""
        return None if self.action in ("ignore", "warn") else Action(self.action)

    @property
    def words(self) -> str:
        """What a report says beside the line."""
        return f"{self.meaning} (known: {self.reason})"


def known(lines: Iterable[KnownLine], text: str) -> KnownLine | None:
    """Return the first entry whose pattern occurs in a line, None without one."""
    return next((entry for entry in lines if entry.matches(text)), None)
