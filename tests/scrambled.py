"""Every text for people is noise from its construction on; what decides stays. A plugin for pytest too (-p scrambled)."""

from __future__ import annotations

import functools
import random
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pytest_gpucluster.core import check, errors, finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NOISE = random.Random(48)


def noise(text: str) -> str:
    """Return other letters for a text, never the same ones twice."""
    return "".join(_NOISE.choices("abcdefghijklmnopqrstuvwxyz ", k=max(3, len(text)))) if text else ""


def _afterwards(kind: type[Any], change: Callable[[Any], dict[str, Any]]) -> Any:
    """Return the patch that lets objects of a class change these fields at the end of their construction."""
    made = kind.__init__

    @functools.wraps(made)
    def init(self: Any, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        for name, value in change(self).items():
            object.__setattr__(self, name, value)

    return patch.object(kind, "__init__", init)


def _measures(found: Any) -> dict[str, Any]:
    return {name: _measure(getattr(found, name)) for name in ("measured", "expected")}


def _measure(value: Any) -> Any:
    if isinstance(value, str):
        return noise(value)
    if isinstance(value, finding.Quantity):
        return finding.Quantity(value.number, value.unit, noise(value.text or str(value)))
    return finding.Quote(noise(value.text))


_TEXTS = {
    finding.Finding: _measures,
    finding.Advisory: _measures,
    check.Verdict: lambda it: {at: noise(getattr(it, at)) for at in ("cause", "hint", "reason")},
    errors.NotJudged: lambda it: {"args": tuple(noise(str(one)) for one in it.args)},
}


@contextmanager
def scrambled() -> Iterator[None]:
    """Scramble every text that is made meanwhile."""
    with ExitStack() as patches:
        for kind, change in _TEXTS.items():
            patches.enter_context(_afterwards(kind, change))
        yield


def pytest_configure(config: Any) -> None:
    """Scramble every text of the run."""
    texts = scrambled()
    texts.__enter__()
    config.add_cleanup(lambda: texts.__exit__(None, None, None))
