"""The text of equal failures, whatever shows the first of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.core.finding import Action, Finding
from pytest_gpucluster.plugin.equal_failures import GroupedFailure
from pytest_gpucluster.plugin.reporting import Crash, FailureText, under_conditions
from pytest_gpucluster.report.run_model import FailureGroup, FindingRow


def group(*nodes: str, cause: str = "") -> FailureGroup:
    found = FailureGroup("failed", "gpu.count", "gpu", "drain", cause, "")
    found.nodes = dict.fromkeys(nodes)
    found.rows["x",] = FindingRow(Finding("GPUs", "7", "8", Action.DRAIN), list(nodes))
    found.example = {"node": nodes[0], "by_hand": ["nvidia-smi"]}
    return found


def shown(failure: GroupedFailure) -> list[str]:
    lines: list[str] = []
    out: Any = SimpleNamespace(line=lines.append, sep=lambda *_words: None)
    failure.toterminal(out)
    return lines


@pytest.mark.parametrize("first", ["worker 'gw0' crashed", FailureText("worker 'gw0' crashed", Crash("x.py", 1, "m"))])
def test_one_failure_is_shown_as_it_is(first: Any) -> None:
    failure = GroupedFailure(first, group("gpu01"), "pytest --cluster=x", ["t.py::t"])
    assert shown(failure) == ["worker 'gw0' crashed"]
    assert str(failure) == str(first)
    assert failure.reprcrash == getattr(first, "reprcrash", None)


def test_several_have_one_block() -> None:
    first = FailureText("gpu01 alone", Crash("x.py", 1, "m"))
    failure = GroupedFailure(first, group("gpu01", "gpu02", cause="cable"), "pytest --cluster=x", ["t.py::t"])
    lines = shown(failure)
    assert lines[0] == "gpu.count on 2 nodes: gpu[01-02]: GPUs: measured 7, expected 8"
    assert lines[-1] == "rerun:        pytest --cluster=x '--nodes=gpu[01-02]' t.py::t"
    assert "gpu01 alone" not in lines
    assert failure.reprcrash.message == "gpu.count on 2 nodes: gpu[01-02]: GPUs: measured 7, expected 8"
    # without a cause the first is shown too
    lines = shown(GroupedFailure("a traceback", group("gpu01", "gpu02"), "pytest", []))
    assert lines[0] == "a traceback"
    assert lines[1].startswith("gpu.count on 2 nodes")


def test_a_command_that_repeats_a_check_keeps_what_its_suite_needs() -> None:
    given = {"cluster": "x", "set": ["required=[os.*]"], "profile": None, "burnin_time": "4h", "burnin_resume": "e"}
    config: Any = SimpleNamespace(option=SimpleNamespace(**given))
    words = ["pytest", "--cluster=x", "--set", "required=[os.*]"]
    assert under_conditions(config, "gpu") == words
    assert under_conditions(config, "burnin") == [*words, "--burnin-time=4h"]
