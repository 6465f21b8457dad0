"""The training suite on virtual nodes: a real training over gloo, healthy and with ranks that are really disturbed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from framework_helpers import ends, framework_python, message, run_suite
from plugin_helpers import names

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores

# Before the payload: rank 1 repeats each product 100 times, rank 3 changes a value of one product.
DISTURBED = """
import os
import torch
_linear, _rank = torch.nn.functional.linear, os.environ["SLURM_PROCID"]
def _slow(*args):
    with torch.no_grad():
        for _ in range(100):
            _linear(*args)
    return _linear(*args)
def _wrong(*args):
    result = _linear(*args)
    if result.shape[-1] == 256 and result.ndim == 3:
        result.data[0, 0, 0] += 100
    return result
torch.nn.functional.linear = {"1": _slow, "3": _wrong}.get(_rank, _linear)
"""


def disturbed_python(folder: Path) -> Path:
    """Write an interpreter that disturbs torch in the ranks of `alone`."""
    (folder / "disturb.py").write_text(DISTURBED)
    path = folder / "python"
    change = f'alone) source="$(cat {folder}/disturb.py)\n$2"; shift 2; set -- -c "$source" "$@" ;;'
    path.write_text(f'#!/bin/sh\ncase "$3" in\n{change}\nesac\nexec {framework_python()} "$@"\n')
    path.chmod(0o755)
    return path


QUICK = {"steps": 4, "warmup": 1}


def test_healthy_nodes_pass_and_leave_no_checkpoint(sandbox: Sandbox, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    section = {"environment": "frameworks", "checkpoint": str(shared)}
    constants = {"training": {**QUICK, "checkpoint_size": 2 << 20}}
    run = run_suite(
        sandbox, tmp_path, "test_training.py", nodes="gpu[01-02]", training=section, constants=constants
    )
    outcomes = ends(run)
    assert names(run.outcomes, "failed") == names(run.outcomes, "error") == [], run.out
    assert {name for name, end in outcomes.items() if end == "not applicable"} == {
        "test_processes[gpu01]",
        "test_processes[gpu02]",
        "test_scaling",
        "test_start",
        "test_transport[gpu01]",
        "test_transport[gpu02]",
    }
    assert {outcomes[name] for name in ("test_together", "test_checkpoint", "test_replay[gpu02]")} == {
        "passed"
    }
    assert list(shared.iterdir()) == []
    text = json.dumps(run.events)
    assert all(
        name in text for name in ("training_fsdp_scaling", "training_checkpoint_read", "training_start")
    )


def test_slow_rank_and_rank_with_wrong_results_are_named(sandbox: Sandbox, tmp_path: Path) -> None:
    section = {"environment": "frameworks"}
    run = run_suite(
        sandbox,
        tmp_path,
        "test_training.py",
        "-k",
        "replay or loss or stragglers or together",
        nodes="gpu[01-02]",
        training=section,
        python=disturbed_python(tmp_path),
        constants={"training": QUICK},
    )
    outcomes = ends(run)
    assert outcomes["test_replay[gpu02]"] == outcomes["test_stragglers[gpu01]"] == "failed", run.out
    assert message(run, "test_replay[gpu02]").startswith("rank 3: parameters ")
    assert re.match(r"rank 1, (plain|ddp) \(alone\): ", message(run, "test_stragglers[gpu01]"))
    assert message(run, "test_loss[gpu02]").startswith("rank 3: losses of one rank by itself ")
    assert outcomes["test_replay[gpu01]"] == outcomes["test_stragglers[gpu02]"] == "passed"
    assert outcomes["test_together"] == "not checked", (
        "the node with wrong results must not train with others"
    )
