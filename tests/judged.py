"""What a test states of a verdict: outcome or action, parts and figures. The words are in the suite's messages.txt."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from counter_examples import result

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Advisory, Finding, Verdict

FIGURE = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def figures(text: object) -> list[float]:
    """Return the numbers of a text, in their order; those inside a name like gpu01 are none.

    >>> figures("17 of 18 links on gpu01, 26.5 GB/s")
    [17.0, 18.0, 26.5]
    """
    return [float(number) for number in FIGURE.findall(str(text))]


def parts(verdict: Verdict) -> list[str]:
    """Return what the findings are about; of a verdict without findings, what its warnings are about."""
    found: tuple[Finding | Advisory, ...] = verdict.findings or verdict.advisories
    return [str(one.part) for one in found]


def judged(verdict: Verdict) -> tuple[str, list[str]]:
    """Return the outcome (of a failure its action, of a pass with warnings 'warning') and the parts."""
    return result(verdict), parts(verdict)
