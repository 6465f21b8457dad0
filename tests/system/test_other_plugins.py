"""Other people's pytest: nothing of ours is loaded and nothing changes for them before --cluster asks for it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from plugin_helpers import run_pytest

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN = """
import signal
import sys

import pytest


@pytest.fixture
def host():
    return "a host of mine"


@pytest.fixture
def node():
    return "a node of mine"


@pytest.fixture(params=["a", "b"])
def expect(request):
    return request.param


def test_fixtures(host, node, expect):
    assert (host, node) == ("a host of mine", "a node of mine")


@pytest.mark.parametrize("nodes", [1, 2])
def test_parameters(nodes):
    assert nodes


def test_signals():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_nothing_of_ours_is_there():
    ours = {name for name in sys.modules if name.startswith("pytest_gpucluster")}
    assert ours == {"pytest_gpucluster", "pytest_gpucluster.plugin"}
    assert not {"pydantic", "yaml", "ClusterShell", "tabulate", "junitparser"} & set(sys.modules)
"""


def test_foreign_suites_run_as_ever(tmp_path: Path) -> None:
    # its own process: a fork has our modules already
    started = (shutil.which("env") or "env", "--default-signal=HUP")  # nohup ignores it
    files = {"test_foreign.py": FOREIGN}
    run = run_pytest(tmp_path, "-p", "no:testinfra", "-n2", files=files, signals=started)
    assert run.rc == 0, run.out
    assert "6 passed" in run.out
    assert "cluster:" not in run.out
    assert not (tmp_path / "reports").exists()
