"""The horovod suite with the real Horovod on virtual nodes, healthy and with faults."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import ends, framework_python, run_suite

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores

# --- the real thing

ONE = {"horovod": {"without_gpus": 1}}


@pytest.mark.parametrize("claim", [{"launchers": ["srun"]}], ids=["srun"])
def test_horovod_runs_over_two_nodes_of_two_tasks(
    sandbox: Sandbox, tmp_path: Path, claim: dict[str, Any]
) -> None:
    launchers = claim.get("launchers", ("srun", "localhost", "horovodrun"))
    claim = {"environment": "frameworks", "operations": ["gloo"], "interface": "lo", **claim}
    run = run_suite(sandbox, tmp_path, "test_horovod.py", "-m", "gloo", nodes="gpu[01-02]", horovod=claim)
    found = ends(run)
    good = {"test_build[gpu01]", "test_build[gpu02]", "test_versions[gpu01]", "test_versions[gpu02]"}
    good |= {"test_interface[gpu01]", "test_interface[gpu02]", "test_between[gpu01]", "test_between[gpu02]"}
    for judged in ("ranks", "all_reduce", "broadcast", "training"):
        good |= {
            f"test_{judged}[pytorch-gloo-{launcher}]" for launcher in launchers if launcher != "horovodrun"
        }
    assert {item for item, end in found.items() if end == "passed"} == good, run.out[-4000:]
    # plain virtual nodes have no sshd: their names do not even resolve
    rest = {item for item in found if item not in good and not item.startswith("test_transport")}
    assert rest == {
        f"test_{judged}[pytorch-gloo-horovodrun]"
        for judged in ("ranks", "all_reduce", "broadcast", "training")
        if "horovodrun" in launchers
    }
    assert {found[item] for item in rest} <= {"not checked"}
    assert not rest or "needs ssh between nodes; gpu01 to gpu02: ssh: Could not resolve" in run.out


def built() -> str:
    """Return what `horovodrun --check-build` says of the Horovod that the tests have."""
    argv = [str(framework_python()), "-m", "horovod.runner.launch", "--check-build"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_what_is_selected_without_its_section_is_not_proved(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_suite(sandbox, tmp_path, "test_horovod.py", nodes="gpu[01-02]")
    assert set(ends(run).values()) == {"error"}
    assert "add `horovod:`" in run.out
