"""The record of a campaign: written at its end, signed, and what `gpucluster record verify` finds changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from report_helpers import a_run, failing, passing, write_run
from signature_helpers import allow, make_key

from pytest_gpucluster.campaign import record
from pytest_gpucluster.campaign.child import outcome_of
from pytest_gpucluster.campaign.model import FAILED, FIT, Campaign, Group, Kind, Result
from pytest_gpucluster.campaign.summary import NodeRow, Summary
from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.report.record import encode

if TYPE_CHECKING:
    from pathlib import Path

NODES = ("gpu01", "gpu02", "gpu03")
ALONE = Kind("alone", "gpu", ("gpu",))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The record of a campaign of three nodes, of which one failed; a fourth run was killed before it wrote a log."""
    folder = tmp_path / "reports" / "campaign-july"
    folder.mkdir(parents=True)
    groups, results = [], list[Result]()
    for number, node in enumerate(NODES, 1):
        bad, own = node == "gpu03", folder / f"{number:06d}"
        write_run(own, *a_run([failing(node) if bad else passing(node)], nodes=[node], finish=int(bad)))
        group = Group(number, 1, "alone", (node,), False, str(own), "", "", 1.0, 9.0, 2.0)
        found = outcome_of(group, ALONE, {})
        groups.append(replace(group, run=found.run, sha256=found.sha256))
        results += [Result("alone", name, number, (node,), 2.0, *end) for name, end in found.nodes.items()]
    groups.append(Group(4, 1, "alone", ("gpu03",), False, "", "", "", 1.0, 9.0))
    campaign = Campaign(1, "prod", "july", False, NODES, (ALONE,), 1.0, 3.0)
    rows = tuple(NodeRow(node, FAILED if node == "gpu03" else FIT, "", 0) for node in NODES)
    summary = Summary(campaign, 4.0, rows, (), (), tuple(groups), tuple(results))
    return record.write(summary, folder, group=None)


def verified(path: Path) -> list[str]:
    return [outcome.text for outcome in record.verify(path) if outcome.failed]


def changed(path: Path, change: Any) -> Path:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(encode(document))
    return path


@pytest.mark.thorough  # by ssh-keygen
def test_a_record_is_signed_and_verified_also_where_its_folder_was_moved(
    tmp_path: Path, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_key(tmp_path / "key")
    allow(tmp_path / "key")
    assert cli.main(["record", "sign", str(written), "--key", str(tmp_path / "key")]) == 0
    assert "signed: cluster prod, campaign july: REJECTED, 2 of 3 nodes fit" in capsys.readouterr().out
    moved = tmp_path / "elsewhere"
    shutil.move(written.parent, moved)
    argv = ["record", "verify", str(moved / written.name), "--signers", str(tmp_path / "signers")]
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["ok", "ok", "ok", "verified"]
    assert "3 of 3 groups have the logs" in lines[0]
    assert lines[-1] == "verified: REJECTED, 2 of 3 nodes fit"


@pytest.mark.parametrize("name", ["events.jsonl", "record.json", "report.html"])
def test_a_changed_file_of_a_group_is_found(written: Path, name: str) -> None:
    file = written.parent / "000002" / name
    file.write_bytes(file.read_bytes().replace(b"gpu02", b"gpu01", 1))
    assert any(str(file) in text or "record.json" in text for text in verified(written))


def test_a_node_that_is_called_fit_without_proof(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(written, lambda it: it["nodes"][2].update(state=FIT))
    assert any("its groups do not prove that gpu03 is fit, as it says" in text for text in verified(written))
    assert any("its verdict REJECTED is not that of its nodes" in text for text in verified(written))
    assert cli.main(["record", "sign", str(written), "--key", "x"]) != 0
    assert "not signed, because it does not fit the files beside it" in capsys.readouterr().err
