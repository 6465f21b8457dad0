"""docs/failures.md: each section has its parts, and a failure that is made again prints what the page shows."""

from __future__ import annotations

import re
import sys

import pytest
from paths import ROOT

from pytest_gpucluster.sandbox.found_by import FOUND_BY

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


def test_each_section_shows_one_failure_with_its_own_parts() -> None:
    assert len({failure.check for failure in FAILURES}) == len(FAILURES) >= 12
    assert len(FAILURES) == PAGE.count("\n## ")
    assert len({failure.check.partition(".")[0] for failure in FAILURES}) >= 9
    parts = (r"_+ ", "likely cause: ", "what to do:   ", "action:  ", "rerun:  ")
    for failure in FAILURES:
        for part in (*parts, rf"{failure.check}[ :]"):
            assert re.search(f"^{part}", SHOWN[failure.check], re.MULTILINE), (failure.check, part)
        for kind, *_ in failure.faults:
            assert failure.check in FOUND_BY[kind]


@pytest.mark.thorough
def test_a_failure_is_what_the_page_shows_and_can_be_repaired() -> None:
    """One of five; `python tools/worked_failures.py` makes all of them."""
    made = worked_failures.outputs(FAILURES[::5])
    assert len(made) >= 3
    for check, text in made.items():
        assert comparable(text) == comparable(SHOWN[check]), f"python tools/worked_failures.py {check}"
