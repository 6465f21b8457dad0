"""Facts of nodes are read from an answer once, as long as a test is left that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from plugin_helpers import made_suite, run_made

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.thorough
CHECKS = """
from pathlib import Path

from pytest_gpucluster.core.check import Action, Finding, check
from pytest_gpucluster.core.probe import Probe


def read(answer):
    with Path("read").open("a") as file:
        file.write(f"{answer.node}\\n")
    return answer.stdout.decode()


KERNEL = Probe("kernel", "uname -r", read)


@check("made.first", cause="c", hint="h", action=Action.MONITOR)
def first(kernel):
    if not kernel:
        yield Finding("kernel", "", "a name")


@check("made.second", cause="c", hint="h", action=Action.MONITOR)
def second(kernel):
    if not kernel:
        yield Finding("kernel", "", "a name")
"""
COUNTED = """
from gpucluster_made import checks
from pytest_gpucluster.suite import Tests, given, of_node

kernel = of_node(checks.KERNEL)
read_later = of_node(given.item)(lambda item: lambda: item.facts(checks.KERNEL))
TESTS = Tests(checks, marks=("made",))


def test_released(session):
    assert not any(session.facts._facts.values())


def test_read_again(node, read_later):
    assert read_later()
"""


def test_an_answer_is_read_once_and_released_after_its_last_reader(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_made(tmp_path, sandbox, made_suite(COUNTED, checks=CHECKS), "--nodes=gpu[01-02]", "-s")
    assert run.rc == 0, run.out
    assert (tmp_path / "read").read_text().split() == ["gpu01", "gpu02"] * 2
