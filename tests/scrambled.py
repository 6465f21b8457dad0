"""A plugin for pytest (-p scrambled): every text for people is noise from its construction on; what decides stays."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import check, errors, finding

if TYPE_CHECKING:
    from collections.abc import Callable

_NOISE = random.Random(48)


def noise(text: str) -> str:
    """Return other letters for a text, never the same ones twice."""
    return "".join(_NOISE.choices("abcdefghijklmnopqrstuvwxyz ", k=max(3, len(text)))) if text else ""


def _afterwards(kind: type[Any], change: Callable[[Any], dict[str, Any]]) -> None:
    """Let objects of a class change these fields at the end of their construction."""
    made = kind.__init__

    @functools.wraps(made)
    def init(self: Any, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        for name, value in change(self).items():
            object.__setattr__(self, name, value)

    kind.__init__ = init


def _measures(found: Any) -> dict[str, Any]:
    return {name: _measure(getattr(found, name)) for name in ("measured", "expected")}


def _measure(value: Any) -> Any:
    if isinstance(value, str):
        return noise(value)
    if isinstance(value, finding.Quantity):
        return finding.Quantity(value.number, value.unit, noise(value.text or str(value)))
    return finding.Quote(noise(value.text))


for _kind in (finding.Finding, finding.Advisory):
    _afterwards(_kind, _measures)
_afterwards(check.Verdict, lambda it: {at: noise(getattr(it, at)) for at in ("cause", "hint", "reason")})
_afterwards(errors.NotJudged, lambda it: {"args": tuple(noise(str(one)) for one in it.args)})
