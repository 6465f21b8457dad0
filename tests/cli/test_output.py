"""--json: one document per command, with the keys that docs/cli.md lists."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from docs_helpers import ROOT

from pytest_gpucluster.cli import clean as cli_clean
from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli.output import print_json
from pytest_gpucluster.cluster.slurm import leftovers
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.cluster.slurm.leftovers import Leftover
from pytest_gpucluster.core.finding import Finding, Metric
from pytest_gpucluster.core.part import InstalledPart, Part
from pytest_gpucluster.report.history.run_snapshot import ItemMetric, NodeAct, Recorded, RecordedItem
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.suites.container import containers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW = re.compile(r"^\| `gpucluster (.* --json)` \| (.*) \|$", re.MULTILINE)
DOCUMENTED = {
    command: set(re.findall(r"`(\w+)`", keys.partition("; with `--try`")[0]))  # that asks a cluster
    for command, keys in ROW.findall((ROOT / "docs" / "cli.md").read_text())
}


def night(number: int, speed: float, outcome: str) -> Recorded:
    good, start = outcome == "passed", 1_763_600_000.0 + number
    part = Part("disk", None, "nvme0", serial="S1")
    worn = () if good else (Finding(part, "200", "at most 8"),)
    loaded = RecordedItem("gpu02", "os.load", outcome, "measured 200, expected at most 8", findings=worn)
    drained = NodeAct("gpu02", start + 0.4, "drained", "gpucluster: os.load")
    return Recorded(
        f"night{number}",
        "lab",
        simulated=False,
        started=start,
        finished=start + 0.5,
        exit=int(not good),
        arguments="",
        items=(RecordedItem("gpu01", "nccl.alone", "passed"), loaded),
        metrics=(ItemMetric("gpu01", "nccl.alone", Metric("busbw", speed, "GB/s")),),
        fit=frozenset({"gpu01", "gpu02"} if good else {"gpu01"}),
        acts=() if good else (drained,),
        parts={"gpu02": [InstalledPart(part)]},
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster file, a history of two nights, a drained node, leftovers of a killed run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.yaml").write_text("nodes: 'gpu[01-02]'\nos: {}\n")
    monkeypatch.setenv("GPUCLUSTER_HISTORY", str(tmp_path / "history.sqlite"))
    with contextlib.closing(History(tmp_path / "history.sqlite", create=True)) as history:
        history.add(night(1, 478.0, "passed"))
        history.add(night(2, 300.0, "failed"))
    drained = NodeInfo("gpu02", "IDLE", frozenset({"DRAIN"}), reason="gpucluster: edited")
    monkeypatch.setattr(Slurm, "nodes", lambda _self: {"gpu02": drained})
    monkeypatch.setattr(Slurm, "run", lambda _self, *_: "6|ann|launch failed requeued held\n")
    left = [Leftover("job 1", print), Leftover("job 2", None, "it may live")]
    monkeypatch.setattr(leftovers, "jobs", lambda _slurm: left)
    monkeypatch.setattr(leftovers, "folders", lambda *_more: [])
    monkeypatch.setattr(containers, "stale_user_files", list)


def document(capsys: pytest.CaptureFixture[str], words: str, *, status: int = 0) -> dict[str, Any]:
    assert cli.main(shlex.split(words)) == status
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def keys(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from part
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from keys(one)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("command", DOCUMENTED)
def test_document_has_the_documented_keys(capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = command.replace("FILE", "lab.yaml").replace("NODE", "gpu01").replace("SERIAL", "S1")
    found = set(keys(document(capsys, words, status=3 if command.startswith("compare") else 0)))
    if command.startswith("history NODE"):  # gpu01 has a metric, gpu02 a failure
        found |= set(keys(document(capsys, "history gpu02 --json")))
    assert found == DOCUMENTED[command]


def test_listing_with_json_removes_nothing() -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["clean", "--json", "--yes"])


def test_progress_of_an_allocation_is_no_part_of_the_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def request(_slurm: object, _request: object, *, progress: Any) -> Any:
        progress("waits for nodes")
        raise KeyboardInterrupt

    monkeypatch.setattr(Allocation, "request", request)
    results = cli_clean._Results(yes=False, json=True)
    slurm: Any = None
    with pytest.raises(KeyboardInterrupt):
        list(cli_clean._on_nodes(slurm, AllocationRequest(count=1), results, slurm))
    assert capsys.readouterr() == ("", "waits for nodes\n")


def test_document_is_json_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": math.inf, "b": [math.nan, 1.5], "c": "\x1b[31m\u202e"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert json.loads(out) == {"a": None, "b": [None, 1.5], "c": "\x1b[31m\u202e"}
