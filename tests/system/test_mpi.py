"""The mpi suite with real Open MPI and MPICH on virtual nodes."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import message
from paths import ROOT
from plugin_helpers import Run, cluster_file, names, run_pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = ROOT / "suites" / "mpi" / "test_mpi.py"
FRAMEWORKS = ROOT / ".cache" / "frameworks" / "bin"
OPEN_MPI_LIBRARY = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"


@pytest.fixture(scope="module")
def frameworks() -> Path:
    lacking = [name for name in ("python", "mpicc", "mpirun") if not (FRAMEWORKS / name).exists()]
    lacking += [name for name in ("mpicc.openmpi", "mpirun.openmpi") if not shutil.which(name)]
    if lacking:
        pytest.fail(f"{', '.join(lacking)}: missing; make .cache/frameworks/.ready installs them")
    return FRAMEWORKS


ENVIRONMENTS: Mapping[str, Any] = {
    # plain virtual nodes share a host: Open MPI would take them for one machine, and its shared memory crashes
    "openmpi": {
        "python": str(FRAMEWORKS / "python"),
        "exports": {"OMPI_MCA_btl": "self,tcp", "MPI4PY_LIBMPI": OPEN_MPI_LIBRARY, "PATH": "/usr/bin:/bin"},
    },
    "mpich": {"python": str(FRAMEWORKS / "python"), "exports": {"PATH": f"{FRAMEWORKS}:/usr/bin:/bin"}},
}


def accept(
    sandbox: Sandbox,
    folder: Path,
    environment: str,
    *options: str,
    environments: Mapping[str, Any] = ENVIRONMENTS,
    **mpi: Any,
) -> Run:
    """Run the suite on two nodes with a task for each of their 8 GPUs."""
    claim = {"environment": environment, "nodes": 2, "scratch": str(folder), **mpi}
    file = cluster_file(sandbox, folder, environments=dict(environments), mpi=claim)
    constants = {"mpi": {"deadline": 900, "threads": "multiple"}}
    return run_pytest(folder, f"--cluster={file}", *options, where=[str(SUITE)], constants=constants)


def test_real_mpi_in_c_and_python(sandbox: Sandbox, frameworks: Path, tmp_path: Path) -> None:
    launchers = ["mpirun", "srun --mpi=pmix"]
    bounds: dict[str, Any] = {"max_latency": 1e7, "min_bandwidth": "0.000001 GB/s"}
    claim: dict[str, Any] = {"launchers": launchers, "languages": ["c", "python"]}
    run = accept(sandbox, tmp_path, "openmpi", **claim, **bounds)
    assert run.rc == 0, run.out
    passed = names(run.outcomes, "passed")
    for way in (launcher.replace(" --mpi=", "_") for launcher in launchers):
        for test in ("world", "allreduce", "threads"):
            assert {f"test_{test}[{way}-c]", f"test_{test}[{way}-python]"} <= set(passed)
        assert {f"test_latency[{way}-c]", f"test_bandwidth[{way}-c]"} <= set(passed)
    metrics = {
        (metric["name"], metric["part"]["name"]): metric["value"]
        for event in run.events
        if event["event"] == "result"
        for metric in event["metrics"]
    }
    assert metrics["mpi_ranks", "mpirun, c"] == 16
    assert metrics["mpi_latency", "gpu01-gpu02"] > 0
    assert metrics["mpi_bandwidth", "gpu01-gpu02"] > 0
    assert not list(tmp_path.glob("gpucluster-mpi.*")), "the program is left on the nodes"


def test_one_node_without_mpi_is_named_and_the_others_go_on(sandbox: Sandbox, frameworks: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "mpicc"
    compiler.write_text(
        '#!/bin/sh\n[ "$SLURMD_NODENAME" != gpu02 ] || { echo "cc1: fatal error: mpi.h: No such file" >&2; exit 1; }\n'
        f'exec {FRAMEWORKS}/mpicc "$@"\n'
    )
    compiler.chmod(0o755)
    mpirun = tmp_path / "mpirun"
    mpirun.symlink_to(FRAMEWORKS / "mpirun")
    claim: dict[str, Any] = {"nodes": 3, "mpirun": str(mpirun), "launchers": ["srun --mpi=pmi2"]}
    run = accept(sandbox, tmp_path, "mpich", "-k", "installed or world", **claim)
    assert names(run.outcomes, "failed") == ["test_installed[gpu02]"]
    assert "MPI of C programs: " in message(run, "test_installed[gpu02]")
    assert "mpi.h: No such file" in message(run, "test_installed[gpu02]")
    assert "test_world[srun_pmi2-c]" in names(run.outcomes, "passed")
    (world,) = (event for event in run.events if "test_world" in event.get("nodeid", ""))
    assert [metric["value"] for metric in world["metrics"]] == [16]  # two of three nodes


def test_condas_mpirun_first_on_path(sandbox: Sandbox, frameworks: Path, tmp_path: Path) -> None:
    conda = tmp_path / "conda"
    (conda / "bin").mkdir(parents=True)
    (conda / "conda-meta").mkdir()
    (conda / "bin" / "mpirun").symlink_to(FRAMEWORKS / "mpirun")
    environment = {"first": {"exports": {"PATH": f"{conda}/bin:/usr/bin:/bin"}}}
    chosen = ("-k", "path or matches")
    run = accept(sandbox, tmp_path, "first", *chosen, environments=environment, launchers=["mpirun"])
    printed = message(run, "test_path[gpu01]")
    assert f"{conda}/bin/mpirun of conda (Hydra " in printed
    assert "in front of /usr/bin/mpirun" in printed
    assert "Open MPI 4" in message(run, "test_matches[gpu01]")  # and it is of another MPI than the compiler


def test_the_payload_compiles_without_warnings(frameworks: Path, tmp_path: Path) -> None:
    source = ROOT / "src" / "pytest_gpucluster" / "kit" / "payloads" / "mpi" / "world.c"
    for compiler in ("mpicc.openmpi", f"{FRAMEWORKS}/mpicc"):
        words = ["-std=c99", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2"]
        program = [compiler, *words, "-o", str(tmp_path / "world"), str(source)]
        subprocess.run(program, check=True, timeout=1200)
