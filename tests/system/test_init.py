"""`gpucluster init --from-nodes`: a file drafted from running nodes, which these nodes pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml
from framework_helpers import message
from plugin_helpers import jobs_so_far, out_of_service, run_pytest
from sandbox_helpers import slurm, wait_for

from pytest_gpucluster import config
from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pytest_gpucluster.sandbox import Sandbox

# fault: its check
DIFFERENT = {
    "os_drift": "drift",
    "kernel_drift": "drift",
    "sysctl": "drift",
    "interface_mtu": "drift",
    "missing_mount": "mounts",
    "package_missing": "drift",
    "service_dead": "services",
}


def test_nodes_pass_what_was_drafted_from_them_except_the_different_one(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for fault in DIFFERENT:
        sandbox.fault(fault, "gpu04")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "--from-nodes", "--name", "lab"]) == 0
    text = (tmp_path / "clusters" / "lab.yaml").read_text()
    for line in (
        "    eno1: 1500  # 3 of 4 nodes",
        "    - {path: /raid, fstype: ext4}  # 3 of 4 nodes",
        "    - nvidia-persistenced  # 3 of 4 nodes",
        "    - slurmd  # 4 of 4 nodes",
    ):
        assert f"{line}\n" in text
    section = text.partition("\nos:\n")[2].partition("\n\n")[0]
    assert not any(node in section for node in ("gpu01", "gpu02", "gpu03", "gpu04"))
    assert cli.main(["check", "lab"]) == 0
    run = run_pytest(tmp_path, "--cluster=lab", "-m", "os", where=())
    assert run.rc == 1, run.out
    bad = ("failed", "error", "not checked")
    failed = {name.rpartition("::")[2] for name, outcome in run.outcomes.items() if outcome in bad}
    assert failed == {f"test_{check}[gpu04]" for check in DIFFERENT.values()}
    drift = message(run, "test_drift[gpu04]")
    parts = {finding.partition(":")[0].partition(" ")[0] for finding in drift.split("; ")}
    assert {"release", "kernel", "sysctls", "mtu", "packages"} <= parts, drift
    sandbox.heal()
    run = run_pytest(tmp_path, "--cluster=lab", "-m", "os", where=())
    assert run.rc == 0, run.out
    capsys.readouterr()
    with out_of_service(sandbox, "gpu02", "DRAIN", "bad cable"):
        assert cli.main(["init", "--from-nodes", "--output", "-"]) == 0
    out, err = capsys.readouterr()
    assert "  kernel: 6.8.0-79-generic  # 3 of 3 nodes\n" in out, "a node out of service has no vote"
    assert "gpu02 was not checked: " in err


def test_one_node_is_read_by_one_short_job_and_suites_are_tried_in_the_environments_of_the_draft(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """gpu01 is drained: the next node is read. The draft has no warning, no limit of this shell, and fits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    before = jobs_so_far(sandbox)
    with out_of_service(sandbox, "gpu01", "DRAIN", "bad cable"):
        assert cli.main(["init", "--name", "lab"]) == 0
    assert jobs_so_far(sandbox) == before + 1
    wait_for(lambda: not slurm(sandbox, "squeue", "-h").strip(), "the job that read the node has ended")
    cluster = config.load_cluster("lab")
    assert (cluster.groups[0].profile.name, cluster.warnings) == ("h200-8", ())
    path = tmp_path / "clusters" / "lab.yaml"
    text = path.read_text()
    assert "# read on gpu02: 8 x NVIDIA H200 (143771 MiB); NV18; 8 InfiniBand at 400 Gb/s\n" in text
    assert "limits" not in text
    capsys.readouterr()
    assert cli.main(["check", "lab"]) == 0
    assert "warning" not in capsys.readouterr().out
    # one job for all steps; an image is started and proved; what is missing is the exit status
    before = jobs_so_far(sandbox)
    assert cli.main(["check", "lab", "--try"]) == 0
    assert jobs_so_far(sandbox) == before + 1
    out = capsys.readouterr().out
    assert re.search(r"\n  nccl +nccl-tests: /\S+/all_reduce_perf,\s+started\s+by\s+srun --mpi=", out)
    image = yaml.safe_load(sandbox.cluster_file.read_text())["container"]["image"]
    more = f"environments: {{default: {{container_image: {image}}}, gone: {{modules: [gone]}}}}\n"
    more += f"container: {{image: {image}}}\nddp: {{}}\nray: {{environment: gone}}\n"
    path.write_text(text + more)
    assert cli.main(["check", "lab", "--try"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "container starts: image of the sandbox" in out
    assert "ddp CANNOT RUN: " in out
    assert "ray CANNOT RUN: module load gone: failed on gpu01" in out
    assert (
        list((sandbox.layout.node("gpu01") / "enroot").glob("pyxis*")) == []
    )  # else container.leftovers fails the node
