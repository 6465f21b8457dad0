"""The experiment matrix with real launchers and workloads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from paths import ROOT
from plugin_helpers import Run, names, run_pytest

from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.suites.matrix import checks, speed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.alone  # it loads all cores

SUITE = ROOT / "suites" / "matrix" / "test_matrix.py"
HOST = ("/usr", "/lib", "/lib64", "/etc/alternatives")  # makes an image with a compiler
FRAMEWORKS = ROOT / ".cache" / "frameworks"
RATE = re.compile(r", \d[\d.e+-]* (?:CPUs/task|GB/s)")


def rates_of(run: Run) -> dict[str, tuple[float, str]]:
    """Return {ROW-COLUMN: (rate, unit)} of the metrics."""
    return {
        metric["part"]["name"]: (metric["value"], metric["unit"])
        for event in run.events
        if event["event"] == "result"
        for metric in event["metrics"]
        if metric["name"] == "matrix_rate"
    }


def accept(
    sandbox: Sandbox,
    folder: Path,
    matrix: dict[str, Any],
    *options: str,
    mpi: dict[str, Any] | None = None,
    **environments: Any,
) -> Run:
    keys: dict[str, Any] = yaml.safe_load(sandbox.cluster_file.read_text())
    keys |= {"environments": environments, "matrix": matrix}
    keys |= {"mpi": mpi} if mpi is not None else {}
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump(keys))
    constants = {"matrix": {"ntasks_per_node": 2}, "mpi": {"deadline": 900}}
    return run_pytest(
        folder, f"--cluster={file}", "--nodes=gpu[01-02]", *options, where=[str(SUITE)], constants=constants
    )


def table_of(run: Run) -> dict[str, str]:
    """Return {ROW-COLUMN: text [note]} of what the summary shows; RATE stands for a rate, whose number varies."""
    rows = {name: key for key, name in checks.ROWS.items()}
    columns = {name: key for key, name in checks.COLUMNS.items()}
    found = {}
    for event in run.events:
        for cell in event.get("cells", ()):
            found[f"{rows[cell['row']]}-{columns[cell['column']]}"] = RATE.sub(
                ", RATE", f"{cell['text']} {cell['note']}".strip()
            )
    return found


@pytest.fixture(scope="module")
def frameworks() -> Path:
    if not (FRAMEWORKS / "bin" / "mpirun").exists():
        pytest.fail(f"{FRAMEWORKS} has no MPICH; make .cache/frameworks/.ready installs it")
    return FRAMEWORKS


def image_of(sandbox: Sandbox) -> str:
    claim = yaml.safe_load(sandbox.cluster_file.read_text()).get("container")
    if not claim:
        pytest.fail("the sandbox has no containers: apt-get install libslurm-dev squashfs-tools gcc")
    return str(claim["image"])


def test_launchers_by_workloads(sandbox: Sandbox, frameworks: Path, tmp_path: Path) -> None:
    image = image_of(sandbox)
    host = [f"{folder}:{folder}:ro" for folder in HOST]
    where, expected = frameworks.resolve(), {"srun_framework-gpu": "nvidia-smi: not found"}
    run = accept(
        sandbox,
        tmp_path,
        {"container": "plain", "framework": "with-mpi", "expected": expected},
        "-k",
        "not (mpirun and nccl)",
        mpi={"environment": "bare", "launchers": ["mpirun", "srun --mpi=pmi2"], "mpirun": f"{where}/bin/mpirun"},
        bare={},
        plain={"container_image": image},
        **{"with-mpi": {"container_image": image, "container_mounts": [*host, f"{where}:{where}:ro"]}},
    )
    assert table_of(run) == {
        "mpirun-cpu": "works, RATE",
        "mpirun-gpu": "works",
        "mpirun-mpi": "works, RATE",
        "srun-cpu": "works, RATE",
        "srun-gpu": "works",
        "srun-mpi": "works, RATE",
        "srun-nccl": "works, RATE",
        "srun_pyxis-cpu": "works, RATE",
        "srun_pyxis-gpu": "works",
        "srun_pyxis-mpi": "not checked the image has no MPI: mpicc: not found",
        "srun_pyxis-nccl": "n/a the cluster file names no image with nccl-tests (nccl: {runner: nccl-tests, environment: NAME})",
        "srun_framework-cpu": "works, RATE",
        "srun_framework-gpu": "fails as expected nvidia-smi: not found",
        "srun_framework-mpi": "works, RATE",
        "srun_framework-nccl": "n/a a framework cannot compute on simulated GPUs",
    }
    assert run.rc == 0, run.out
    lines = [" ".join(line.split()) for line in run.out.splitlines()]
    assert lines.index("experiment matrix") < lines.index("CPU GPU MPI NCCL")
    assert any(RATE.sub(", RATE", line) == "mpirun works, RATE works works, RATE" for line in lines), lines
    # one launcher alone can run NCCL here; virtual nodes share the CPUs, and MPI may use memory between them
    assert rates_of(run) == {}
    assert {f"test_speed[{column}]" for column in speed.MEASURED} <= {*names(run.outcomes, "not applicable")}
