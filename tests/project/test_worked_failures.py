"""docs/failures.md: each section has its parts, and a failure that is made again prints what the page shows."""

from __future__ import annotations

import re
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import worked_failures
from compare_runs import masked
from worked_failures import Failure

PAGE = worked_failures.PAGE.read_text()
FAILURES = [Failure.read(section) for section in worked_failures.sections(PAGE)]
SHOWN = {found["check"]: found["text"] for found in worked_failures.OUTPUT.finditer(PAGE)}


def comparable(text: str) -> str:
    """Return an output without numbers, folders and the interfaces of the machine; how often a pair was measured is a number, too."""
    plain = masked(re.sub(r"\(the node has [^)]*\)|there are: [\w, ]+, expected", "", text))
    return re.sub(r"(\w+# with \w+#: [^;]*: slow)(?:; \1)+", r"\1", plain)


@pytest.mark.thorough
def test_a_failure_is_what_the_page_shows_and_can_be_repaired() -> None:
    """Three of them; `python tools/worked_failures.py` makes all."""
    made = worked_failures.outputs(FAILURES[:6:2])
    assert len(made) >= 3
    for check, text in made.items():
        assert comparable(text) == comparable(SHOWN[check]), f"python tools/worked_failures.py {check}"
