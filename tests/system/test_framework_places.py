"""The suites of frameworks with the real ones, where tasks run on the host and not in the stated image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import DEADLINE, ROOT, framework_python
from plugin_helpers import cluster_file, names, run_pytest

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.alone  # it loads all cores

# tests/cluster/slurm/test_task_place.py proves the rules; this, that six suites follow them
# the item of each suite that looks where its task runs
FIRST = {
    "ddp": "framework",
    "horovod": "build",
    "mpi": "installed",
    "ray": "alone",
    "tensorflow": "framework",
    "training": "framework",
}
SECTIONS: dict[str, dict[str, Any]] = {
    "ddp": {"deadline": "900s"},
    "horovod": {"deadline": "900s", "launchers": ["srun"]},
    "mpi": {"launchers": ["srun"], "languages": ["c"], "deadline": "900s"},
    "ray": {"cpus": 1},
    "tensorflow": {},
    "training": {},
}
CONSTANTS = {"ddp": {"lost_rank": 20}, "training": {"steps": 4, "warmup": 1}}


def test_a_task_on_the_host_is_in_no_image(sandbox: Sandbox, tmp_path: Path) -> None:
    for node in ("gpu01", "gpu02"):
        sandbox.fault("pyxis_missing", node)
    image = str(sandbox.layout.root / "images" / "sandbox.sqsh")
    own = {"python": str(framework_python()), "exports": {"OMP_NUM_THREADS": "1"}, "container_image": image}
    sections = {name: {"environment": "own", **section} for name, section in SECTIONS.items()}
    path = cluster_file(sandbox, tmp_path, nodes="gpu[01-02]", environments={"own": own}, **sections)
    args = (f"--cluster={path}", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider")
    where = [str(ROOT / "suites" / name / f"test_{name}.py") for name in SECTIONS]
    run = run_pytest(tmp_path, *args, where=where, timeout=DEADLINE, constants=CONSTANTS)
    assert run.rc == 1, run.out
    on_host = f"the task ran on the host, not in the image {image}: slurmd there does not load Pyxis"
    results = {
        (it["suite"], it["nodeid"].rpartition("::")[2]): it for it in run.events if it["event"] == "result"
    }
    for suite, item in FIRST.items():
        (verdict,) = results[suite, f"test_{item}[gpu01]"]["verdicts"]
        (finding,) = verdict["findings"]
        assert finding["measured"].startswith(on_host), suite
        assert verdict["action"] == "configure"
    assert {name.partition("[")[0] for name in names(run.outcomes, "passed")} == {"test_left"}, run.out
