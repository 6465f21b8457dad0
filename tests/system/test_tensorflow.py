"""The tensorflow suite with the real TensorFlow on two virtual nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from framework_helpers import run_suite
from plugin_helpers import names

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores


def test_a_healthy_cluster_passes(sandbox: Sandbox, tmp_path: Path) -> None:
    claim = {"environment": "frameworks", "deadline": "900s"}
    run = run_suite(sandbox, tmp_path, "test_tensorflow.py", nodes="gpu[01-02]", tensorflow=claim)
    assert run.rc == 0, run.out
    assert set(run.outcomes.values()) == {"passed", "not applicable"}
    assert len(run.outcomes) == 11
    assert names(run.outcomes, "not applicable") == ["test_devices[gpu01]", "test_devices[gpu02]"]
