"""Evidence on a real Slurm: read before a failed item is repeated and before its node is drained, by one process and under xdist."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import on, run_pytest
from sandbox_helpers import slurm

from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

CHOSEN = ("-m", "gpu or os", "-k", "remapped_pending or drive_health or test_count", "--set=drain.max=100%")


@pytest.fixture
def sick(sandbox: Sandbox) -> Iterator[Sandbox]:
    """A sandbox with two failed parts, and with a tool that needs root, and one that prints a secret and gigabytes."""
    whole = {}
    sandbox.fault("remap_pending", "gpu02")
    sandbox.fault("drive_failing", "gpu03")
    for name, text in (
        ("ipmitool", "echo 'must be root' >&2; exit 1"),
        ("dmidecode", "echo api_token=hunter2hunter2; exec yes 01234"),
    ):
        path = sandbox.layout.simbin / name
        whole[path] = path.read_text()
        path.write_text(f"#!/bin/sh\n{text}\n")
    yield sandbox
    for path, text in whole.items():
        path.write_text(text)


def test_the_evidence_of_each_failed_part_is_there_before_slurm_drains_its_node(
    sick: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_pytest(tmp_path, on(sick), *CHOSEN, "--drain=apply", where=())
    assert run.rc == 1, run.out + run.err
    slurm(sick, "scontrol", "update", "NodeName=gpu[02-03]", "State=RESUME")
    order = [
        (it["event"], it["node"]) for it in run.events if it["event"] in ("evidence", "drain_confirm", "node_intent")
    ]
    for node in ("gpu02", "gpu03"):
        assert [kind for kind, of in order if of == node] == ["evidence", "drain_confirm", "node_intent"]
    read = {it["node"]: it for it in run.events if it["event"] == "evidence"}
    drained = re.findall(
        r"^\[([^\]]+)\] update_node: node (gpu\d+) state set to DRAIN",
        sick.layout.log_file("slurmctld").read_text(),
        re.MULTILINE,
    )
    assert {
        node: datetime.fromisoformat(at).timestamp() > read[node]["time"] for at, node in drained if node in read
    } == {"gpu02": True, "gpu03": True}
    folder = run.folder / "reports/latest"
    for node, names in (
        ("gpu02", {"nvidia-bug-report.log.gz", "kernel-log.txt"}),
        ("gpu03", {"smartctl-nvme2.txt", "nvme-smart-log-nvme2.txt"}),
    ):
        assert names <= {it["name"] for it in read[node]["files"]}
        assert read[node]["missing"]["bmc-events"] == "must be root (exit 1)"
        assert read[node]["missing"]["system"] == "cut at 1 MiB"
        assert "hunter2" not in (folder / "evidence" / node / "system.txt").read_text()
        assert f'href="evidence/{node}/"' in (folder / "report.html").read_text()
        assert f'name="evidence" value="evidence/{node}"' in (folder / "junit.xml").read_text()
    assert {it["evidence"] for it in run.events if it["event"] == "drain_confirm"} == {
        "evidence/gpu02",
        "evidence/gpu03",
    }
    assert cli.main(["evidence", str(folder), "gpu02"]) == 0
    shown = capsys.readouterr().out
    assert "failed again in 1 new attempt" in shown
    assert re.search(r"serial number 1[0-9]{12}; part number 692-", shown)
    assert "passed on gpu[01,03-04]" in shown


def test_workers_of_xdist_read_it_and_off_reads_none(sick: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sick), *CHOSEN, "-n", "2", "--drain=dry-run", where=())
    read = [it for it in run.events if it["event"] == "evidence"]
    assert {it["node"] for it in read} == {"gpu02", "gpu03"}, run.out + run.err
    confirmed = [json.dumps(it) for it in run.events if it["event"] == "drain_confirm" and it["confirmed"]]
    assert len(confirmed) == 2
    run = run_pytest(tmp_path, on(sick), *CHOSEN, "--evidence=off", where=())
    assert not [it for it in run.events if it["event"] == "evidence"]
