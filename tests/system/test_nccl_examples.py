"""The nccl_examples suite on virtual nodes: no GPUs, no toolchain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from framework_helpers import ends, message, run_suite
from nccl_examples_helpers import toolchain
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = ROOT / "suites" / "nccl_examples" / "test_nccl_examples.py"


def test_a_node_without_its_toolchain_is_found(sandbox: Sandbox, tmp_path: Path) -> None:
    case = '[ "$SLURMD_NODENAME" != gpu02 ] || { echo "nvcc fatal: error: no host compiler"; exit 1; }'
    env = toolchain(tmp_path, case)
    run = run_suite(
        sandbox,
        tmp_path,
        "test_nccl_examples.py",
        "-k",
        "compiled",
        nodes="gpu[01-03]",
        profile=yaml.safe_load(sandbox.cluster_file.read_text())["profile"],
        nccl={"exports": env},
        nccl_examples={"nodes": "gpu[01-02]"},
    )
    found = {item: end for item, end in ends(run).items() if "compiled[" in item}
    assert found == {
        "test_compiled[gpu01]": "passed",
        "test_compiled[gpu02]": "failed",
        "test_compiled[gpu03]": "not applicable",
    }, run.out
    printed = message(run, "test_compiled[gpu02]")
    assert printed == "nvcc: exit 1: nvcc fatal: error: no host compiler"
    runs = {end for item, end in ends(run).items() if "compiled_run[" in item}
    assert runs == {"not applicable"}
