"""What the cluster file asks of all nodes and none has is one finding of the cluster; a sick node beside it is drained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from plugin_helpers import run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox


def changed(sandbox: Sandbox, folder: Path, **keys: Any) -> str:
    """Return the option that names the sandbox's cluster file with other keys."""
    known = yaml.safe_load(sandbox.cluster_file.read_text())
    for key, value in keys.items():
        known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
    path = folder / "prod.yaml"
    path.write_text(yaml.safe_dump(known))
    return f"--cluster={path}"


def results(run: Run, *outcomes: str) -> list[dict[str, Any]]:
    return [it for it in run.events if it["event"] == "result" and it["outcome"] in outcomes]


def test_a_requirement_that_no_node_meets_drains_none_and_the_sick_node_is_found(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """On the code before the rule: "would be drained: gpu01", for a package that no node has."""
    sandbox.fault("gpu_missing", "gpu02", gpu=5)
    option = changed(sandbox, tmp_path, os={"packages": {"libnoexec": ""}, "limits": {"nofile": 2**40}})
    chosen = ("-k", "test_drift or test_count", "-m", "os or gpu")
    run = run_pytest(tmp_path, option, *chosen, "--drain=dry-run", "--set=drain.max=100%", where=())
    assert run.rc == 1, run.out + run.err
    assert "would be drained: gpu02\n" in run.out
    assert "not drained: gpu[01-04] (os.drift): a finding of the cluster: all 4 nodes" in run.out
    assert "os.drift on 4 nodes: gpu[01-04]" in run.out
    assert {event["node"] for event in run.events if event["event"] == "drain_decision"} == {"gpu02"}
    common = [event for event in run.events if event["event"] == "drain_common"]
    assert {event["check"] for event in common} == {"os.drift"}
    assert run.out.count("action:       configure") == 1
    assert "NOT ACCEPTED" in run.out


def test_a_profile_of_other_hardware_is_reported_once(sandbox: Sandbox, tmp_path: Path) -> None:
    option = changed(sandbox, tmp_path, profile="sandbox-a100")
    words = ("-m", "gpu or os or fabric or slurm", "--drain=dry-run", "--set=drain.max=100%")
    run = run_pytest(tmp_path, option, *words, where=())
    (failed,) = results(run, "failed")
    assert (run.rc, failed["check"], failed["node"]) == (1, "run.profile", ""), run.out
    (finding,) = failed["verdicts"][0]["findings"]
    assert finding["part"] == {"kind": "node", "name": "gpu[01-04]"}
    assert finding["measured"].startswith("8 NVIDIA H200 of ")
    assert "profile sandbox-a100" in finding["expected"]
    assert "sandbox-h200" in failed["verdicts"][0]["hint"]
    assert "would be drained" not in run.out
    waiting = [it for it in results(run, "not checked") if "see run.profile" in it["message"]]
    assert "gpu.memory" in {it["check"] for it in waiting}
    assert run.events.index(failed) < min(run.events.index(it) for it in waiting)
