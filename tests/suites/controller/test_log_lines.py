"""Lines of public threads, each with its verdict: tests/data/controller/log-lines.yaml."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml
from paths import ROOT

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.suites.controller import checks
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import LogLine
from pytest_gpucluster.suites.controller.known_errors import SLURMCTLD, SLURMD, Daemon, sorted_errors

LINES: list[tuple[Daemon, str, str, dict[str, Any]]] = [
    (daemon, expected, text, facts[0] if facts else {})
    for thread in yaml.safe_load((ROOT / "tests" / "data" / "controller" / "log-lines.yaml").read_text())
    for daemon in (SLURMCTLD, SLURMD)
    for expected, text, *facts in thread.get(daemon, [])
]


@pytest.mark.parametrize(("daemon", "expected", "text", "facts"), LINES)
def test_a_line_of_a_public_thread(daemon: Daemon, expected: str, text: str, facts: dict[str, Any]) -> None:
    line = LogLine(float(facts.get("age", 1800)), text)
    node = NodeInfo("gpu01", "IDLE", frozenset({"DRAIN"} if facts.get("drained") else ()))
    found = tuple(sorted_errors([line], daemon, window=86_400.0))
    verdict = checks.node_errors(found, 5.0, node, ControllerConfig())
    seen = "fail" if verdict.outcome is Outcome.FAILED else "warn" if verdict.advisories else "silent"
    assert seen == expected


def test_the_threads_hold_lines_of_every_verdict() -> None:
    assert len(LINES) >= 80
    assert set(Counter(expected for _, expected, *_ in LINES)) == {"silent", "warn", "fail"}
