"""The messages of a suite's checks are one generated snapshot, `tests/suites/SUITE/messages.txt`, which a reviewer reads as a diff.

Each line is what a check says in some test (code | part | measured | expected), figures as #, or the name and unit of a metric. A test fails if a check says what is not in the snapshot; `make messages`
writes it anew. So tests state outcome, part, action and figures, and a better sentence changes one line.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core import check as core_check
from pytest_gpucluster.core.part import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.check import Verdict

SUITES = Path(__file__).parent
CHANGING = re.compile(r"/tmp/\S*|\b(?:0x)?[0-9a-f]*\d[0-9a-f]*\b|\d+")
LONGEST = 300  # characters of a line
_said: set[str] = set()
_without_data: set[str] = set()  # findings without a code or a registered kind of part
_written: dict[Path, set[str]] = {}


def _lines_of(verdict: Verdict) -> Iterator[str]:
    for kind, said in (("", verdict.findings), ("warning: ", verdict.advisories)):
        for one in said:
            if not one.code or one.part.kind not in KINDS:
                _without_data.add(f"{verdict.check}: {one.part}")
            yield f"{kind}{one.code} | {one.part} | {one.measured} | {one.expected}"
    if verdict.reason:
        yield f"{verdict.outcome.value}: {verdict.reason}"
    for metric in verdict.metrics:
        yield f"metric {metric.name}, {metric.unit or 'no unit'}"


def _recorded(conclude: Any) -> Any:
    @functools.wraps(conclude)
    def concluded(*args: Any, **kwargs: Any) -> Verdict:
        __tracebackhide__ = True
        verdict: Verdict = conclude(*args, **kwargs)
        for line in _lines_of(verdict):
            _said.add(f"{verdict.check}: {' '.join(CHANGING.sub('#', line).split())[:LONGEST]}")
        return verdict

    return concluded


core_check.conclude = _recorded(core_check.conclude)  # what @check calls


@functools.cache
def _snapshot(path: Path) -> frozenset[str]:
    return frozenset(path.read_text(encoding="utf-8").splitlines()) if path.exists() else frozenset()


@pytest.fixture(autouse=True)
def _messages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare what the checks say in this test with the snapshot of its suite; what random examples say is in no snapshot."""
    _said.clear()
    _without_data.clear()
    yield
    suite = request.path.relative_to(SUITES).parts[0]
    own = {line for line in _said if line.startswith(f"{suite}.")}
    assert not [line for line in _without_data if line.startswith(f"{suite}.")]
    if getattr(request.node.obj, "is_hypothesis_test", False) or not own:
        return
    path = SUITES / suite / "messages.txt"
    if request.config.getoption("--write-messages"):
        _written.setdefault(path, set()).update(own)
    elif unknown := sorted(own - _snapshot(path)):
        pytest.fail("not in the snapshot of messages (`make messages` writes it):\n" + "\n".join(unknown))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the snapshots of the suites whose tests ran."""
    if session.config.getoption("--write-messages", default=False):
        for path, lines in _written.items():
            path.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
