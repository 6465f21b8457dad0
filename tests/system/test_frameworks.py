"""The suites of frameworks with the real ones on two virtual nodes: healthy, with faults, and where tasks run elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import DEADLINE, ROOT, ends, framework_python, message, run_suite
from plugin_helpers import Run, cluster_file, names, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.alone  # it loads all cores
NODES = "gpu[01-02]"
OF_TRAINING = {"steps": 4, "warmup": 1}
# time limits for a machine whose cores all nodes share
SLOW: dict[str, dict[str, Any]] = {name: {"deadline": 900} for name in ("tensorflow", "horovod", "mpi")}
SLOW |= {"ddp": {"deadline": 900, "lost_rank": 20}, "ray": {"deadline": 600, "join": 120, "cpus": 2, "gpus": 2}}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Two nodes without GPUs: on a node that has some, frameworks on its processors would prove nothing."""
    with sandbox_folder() as folder:
        box = Sandbox(folder / "s")
        box.up(nodes=2, gpus_per_node=0)
        yield box


def accept(sandbox: Sandbox, folder: Path, suite: str, *words: str, **keys: Any) -> Run:
    """Run a suite on two nodes; its section is the key of its name."""
    section = {"environment": "frameworks", **keys.pop(suite, {})}
    keys["constants"] = SLOW | keys.pop("constants", {})
    return run_suite(sandbox, folder, f"test_{suite}.py", *words, **{"nodes": NODES, suite: section, **keys})


def test_tensorflow(sandbox: Sandbox, tmp_path: Path) -> None:
    run = accept(sandbox, tmp_path, "tensorflow")
    assert run.rc == 0, run.out
    assert len(names(run.outcomes, "passed")) == 9
    assert names(run.outcomes, "not applicable") == ["test_devices[gpu01]", "test_devices[gpu02]"]


def test_horovod_of_two_tasks_a_node(sandbox: Sandbox, tmp_path: Path) -> None:
    claim = {"launchers": ["srun"]}
    run = accept(sandbox, tmp_path, "horovod", "-m", "gloo", horovod=claim)
    nodes = [f"[gpu0{n}]" for n in (1, 2)]
    good = {f"test_{name}{node}" for name in ("build", "versions", "between") for node in nodes}
    good |= {f"test_{name}[pytorch-gloo-srun]" for name in ("ranks", "all_reduce", "broadcast", "training")}
    found = ends(run)
    assert {item for item, end in found.items() if end == "passed"} == good, run.out[-4000:]
    assert all(item.startswith("test_transport") for item in found.keys() - good)


# --- Ray


def leftovers() -> list[str]:
    """Return the processes and folders that any run of ours has left."""
    ask = "grep -la GPUCLUSTER_RAY_TASK /proc/[0-9]*/environ 2>/dev/null; ls -d /tmp/r??????[ahw]gpu* 2>/dev/null"
    return subprocess.run(["sh", "-c", ask], capture_output=True, text=True, check=False).stdout.splitlines()


def test_ray_runs_over_two_nodes_and_leaves_nothing(_session_sandbox: Sandbox, tmp_path: Path) -> None:  # noqa: PT019
    run = accept(_session_sandbox, tmp_path, "ray")  # Ray's GPUs are those that Slurm gives
    found = ends(run)
    apart = {"test_head_lost[gpu01]": "not applicable"}  # the head
    assert {item: end for item, end in found.items() if end != "passed"} == apart, run.out[-4000:]
    assert len(found) == 18
    metrics = {metric["name"]: metric["value"] for event in run.events for metric in event.get("metrics", ())}
    assert metrics["gpus"] == 4
    assert leftovers() == []
    reports = "".join(path.read_text() for path in (tmp_path / "reports").rglob("*") if path.is_file())
    assert not re.search(r"RAY_AUTH_TOKEN=\S", reports)


# --- DDP


def run_ddp(sandbox: Sandbox, folder: Path, **exports: str) -> Run:
    exports = {"GLOO_SOCKET_IFNAME": "lo", **exports}
    return accept(sandbox, folder, "ddp", exports=exports)


def test_ddp(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_ddp(sandbox, tmp_path)
    assert run.rc == 0, run.out
    assert len(names(run.outcomes, "passed")) == 16
    assert set(run.outcomes.values()) == {"passed", "not applicable"}
    absent = names(run.outcomes, "not applicable")
    assert all("nccl" in name or "devices" in name or "transport" in name for name in absent)


@pytest.mark.parametrize(
    ("exports", "failing", "measured"),
    [
        ({"RANK": "1"}, "environment", "task 0 RANK: 1"),
        ({"MASTER_ADDR": "nosuchhost.invalid"}, "master_addr", "does not resolve"),
        ({"GLOO_SOCKET_IFNAME": "ib7"}, "interface", "no such interface"),
    ],
)
def test_ddp_where_the_environment_is_wrong(
    sandbox: Sandbox, tmp_path: Path, exports: dict[str, str], failing: str, measured: str
) -> None:
    run = run_ddp(sandbox, tmp_path, **exports)
    assert names(run.outcomes, "failed") == [f"test_{failing}[gpu01]", f"test_{failing}[gpu02]"], run.out
    assert measured in message(run, f"test_{failing}[gpu01]"), run.out
    assert "test_group[gloo]" in names(run.outcomes, "not checked")


# --- training

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


def test_training_leaves_no_checkpoint(sandbox: Sandbox, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    constants = {"training": {**OF_TRAINING, "checkpoint_size": 2 << 20}}
    run = accept(sandbox, tmp_path, "training", training={"checkpoint": str(shared)}, constants=constants)
    outcomes = ends(run)
    assert names(run.outcomes, "failed") == names(run.outcomes, "error") == [], run.out
    absent = {name.partition("[")[0] for name, end in outcomes.items() if end == "not applicable"}
    assert absent == {"test_processes", "test_transport"}
    for name in ("test_together", "test_checkpoint", "test_replay[gpu02]"):
        assert outcomes[name] == "passed"
    assert list(shared.iterdir()) == []
    text = json.dumps(run.events)
    for name in ("training_fsdp_scaling", "training_checkpoint_read", "training_start"):
        assert name in text


def test_training_names_a_slow_rank_and_a_rank_with_wrong_results(sandbox: Sandbox, tmp_path: Path) -> None:
    chosen = ("-k", "replay or loss or stragglers or together")
    python, constants = disturbed_python(tmp_path), {"training": OF_TRAINING}
    run = accept(sandbox, tmp_path, "training", *chosen, python=python, constants=constants)
    outcomes = ends(run)
    assert outcomes["test_replay[gpu02]"] == outcomes["test_stragglers[gpu01]"] == "failed", run.out
    assert message(run, "test_replay[gpu02]").startswith("rank 3: parameters ")
    assert re.match(r"rank 1: .* per step, (plain|ddp) \(alone\)", message(run, "test_stragglers[gpu01]"))
    assert message(run, "test_loss[gpu02]").startswith("rank 3: losses of one rank by itself ")
    assert outcomes["test_replay[gpu01]"] == outcomes["test_stragglers[gpu02]"] == "passed"
    assert outcomes["test_together"] == "not checked", "a node with wrong results must not train with others"


# --- tasks that run elsewhere

# tests/cluster/slurm/test_task_place.py proves the rules; this, that six suites follow them: the item that looks, a section
SUITES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("framework", {}),
    "horovod": ("build", {"launchers": ["srun"]}),
    "mpi": ("installed", {"launchers": ["srun"], "languages": ["c"]}),
    "ray": ("alone", {}),
    "tensorflow": ("framework", {}),
    "training": ("framework", {}),
}


def test_a_task_on_the_host_is_in_no_image(sandbox: Sandbox, tmp_path: Path) -> None:
    for node in ("gpu01", "gpu02"):
        sandbox.fault("pyxis_missing", node)
    image = str(sandbox.layout.root / "images" / "sandbox.sqsh")
    own = {"python": str(framework_python()), "exports": {"OMP_NUM_THREADS": "1"}, "container_image": image}
    sections = {name: {"environment": "own", **section} for name, (_, section) in SUITES.items()}
    path = cluster_file(sandbox, tmp_path, nodes=NODES, environments={"own": own}, **sections)
    args = (f"--cluster={path}", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider")
    where = [str(ROOT / "suites" / name / f"test_{name}.py") for name in SUITES]
    constants = {**SLOW, "training": OF_TRAINING, "ray": {**SLOW["ray"], "gpus": 0}}
    run = run_pytest(tmp_path, *args, where=where, timeout=DEADLINE, constants=constants, env=sandbox.env)
    assert run.rc == 1, run.out
    results = [event for event in run.events if event["event"] == "result"]
    found = {(it["suite"], it["nodeid"].rpartition("::")[2]): it["verdicts"] for it in results}
    for suite, (item, _) in SUITES.items():
        (verdict,) = found[suite, f"test_{item}[gpu01]"]
        (finding,) = verdict["findings"]
        assert finding["code"] == "misplaced", (suite, finding)
        assert verdict["action"] == "configure"
    assert {name.partition("[")[0] for name in names(run.outcomes, "passed")} == {"test_left"}, run.out
