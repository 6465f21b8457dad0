"""docs/failures.md: every failure is made again, prints what the page shows, and is repaired as the page says."""

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
    for failure in FAILURES:
        for part in (
            r"_+ ",
            rf"{failure.check}[ :]",
            "likely cause: ",
            "what to do:   ",
            "action:  ",
            "rerun:  ",
        ):
            assert re.search(f"^{part}", SHOWN[failure.check], re.MULTILINE), (failure.check, part)


def test_each_check_is_the_one_that_finds_the_fault() -> None:
    for failure in FAILURES:
        for kind, *_ in failure.faults:
            assert failure.check in FOUND_BY[kind]


def test_a_section_without_a_repair_is_refused() -> None:
    with pytest.raises(ValueError, match="A title: needs"):
        Failure.read("A title\n```sh\npytest -m gpu\n```\n<!-- output: gpu.count -->\n```\n```\n")


def test_a_block_of_output_ends_at_the_next_one() -> None:
    text = "___ a ___\ngpu.count on n: x\nmore\n___ b ___\ngpu.counts: y\n====== cluster ====\n"
    assert list(worked_failures.blocks_of(text, "gpu.count")) == ["___ a ___\ngpu.count on n: x\nmore\n"]


@pytest.mark.thorough
def test_each_failure_is_what_the_page_shows_and_can_be_repaired() -> None:
    made = worked_failures.outputs(FAILURES)
    for check, text in made.items():
        assert comparable(text) == comparable(SHOWN[check]), f"python tools/worked_failures.py {check}"
