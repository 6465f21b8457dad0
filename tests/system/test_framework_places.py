"""The suites of frameworks with the real ones, where tasks do not run as stated: on the host, or each node alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import DEADLINE, ROOT, framework_python
from plugin_helpers import cluster_file, names, run_pytest
from sandbox_helpers import sandbox_folder, slurm

from pytest_gpucluster.kit.framework.between import NOTHING
from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from plugin_helpers import Run

pytestmark = pytest.mark.alone  # it loads all cores

# tests/kit/framework/test_between.py and tests/cluster/slurm/test_task_place.py prove the rules; this, that six suites follow them
SUITES = ("ddp", "horovod", "mpi", "ray", "tensorflow", "training")
SECTIONS: dict[str, dict[str, Any]] = {
    "ddp": {"deadline": "900s"},
    "horovod": {"deadline": "900s", "launchers": ["srun"]},
    "mpi": {"launchers": ["srun"], "languages": ["c"], "deadline": "900s"},
    "ray": {"cpus": 1},
    "tensorflow": {},
    "training": {},
}
CONSTANTS = {"ddp": {"lost_rank": 20}, "training": {"steps": 4, "warmup": 1}}


@pytest.fixture(scope="module")
def places() -> Iterator[Sandbox]:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, gpus_per_node=2)
        yield sandbox


def run(sandbox: Sandbox, folder: Path, *words: str, environment: dict[str, Any], **keys: Any) -> Run:
    """Run the suites in one environment."""
    environments = {
        "own": {"python": str(framework_python()), "exports": {"OMP_NUM_THREADS": "1"}, **environment}
    }
    sections = {name: {"environment": "own", **section} for name, section in SECTIONS.items()}
    path = cluster_file(sandbox, folder, environments=environments, **sections, **keys)
    args = (f"--cluster={path}", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", *words)
    where = [str(ROOT / "suites" / name / f"test_{name}.py") for name in SUITES]
    return run_pytest(folder, *args, where=where, env=sandbox.env, timeout=DEADLINE, constants=CONSTANTS)


def reasons(done: Run, item: str) -> dict[str, str]:
    """Return {suite: reason} of the skipped items of this name."""
    found = {}
    for event in done.events:
        if event["event"] == "result" and event["nodeid"].endswith(f"::{item}"):
            found[event["nodeid"].split("/")[-1].removeprefix("test_").partition(".")[0]] = str(event)
    return found


def test_nodes_that_are_alone_prove_nothing_between_nodes(places: Sandbox, tmp_path: Path) -> None:
    for node in places.nodes:
        slurm(places, "scontrol", "create", f"PartitionName=only-{node}", f"Nodes={node}", "MaxTime=60")
    groups = [{"nodes": node, "partition": f"only-{node}"} for node in places.nodes]
    done = run(places, tmp_path, "-k", "between or objects", environment={}, nodes=None, groups=groups)
    assert done.events, done.out
    items = {**reasons(done, "test_between[gpu01]"), "ray": reasons(done, "test_objects[gpu01]")["ray"]}
    assert set(items) == set(SUITES), done.out
    for suite, event in items.items():
        assert f"{NOTHING}: no other node of the run shares partition" in event, suite
    assert names(done.outcomes, "passed") == names(done.outcomes, "failed") == [], done.out


def test_a_task_on_the_host_is_in_no_image(places: Sandbox, tmp_path: Path) -> None:
    for node in places.nodes:
        places.fault("pyxis_missing", node)
    image = str(places.layout.root / "images" / "sandbox.sqsh")
    done = run(places, tmp_path, environment={"container_image": image}, nodes="gpu[01-02]")
    assert done.rc == 1, done.out
    printed = f"the task ran on the host, not in the image {image}: slurmd there does not load Pyxis (plugstack.conf)"
    for suite, item in {
        "ddp": "framework", "horovod": "build", "mpi": "installed", "ray": "alone", "tensorflow": "framework",
        "training": "framework",
    }.items():
        (event,) = (
            it
            for it in done.events
            if it["event"] == "result" and it["nodeid"].endswith(f"test_{suite}.py::test_{item}[gpu01]")
        )
        (verdict,) = event["verdicts"]
        assert [(it["measured"], verdict["action"]) for it in verdict["findings"]] == [
            (printed, "configure")
        ], suite
    assert {name.partition("[")[0] for name in names(done.outcomes, "passed")} == {"test_left"}, done.out
