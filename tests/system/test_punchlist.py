"""The punch list on a real Slurm: a fault is found, wrongly reported done, opened again, repaired, and proved by a run of the list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from plugin_helpers import run_pytest

from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox


def test_an_item_is_proved_by_a_run_of_the_list_and_a_wrong_done_opens_it_again(
    sandbox: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCLUSTER_HISTORY", str(tmp_path / "h.sqlite"))
    cluster = tmp_path / "prod.yaml"
    more = "location: {'gpu[01-04]': 'rack A07 unit {n}'}\nunits: {SU1: 'gpu[01-04]'}\n"
    cluster.write_text(sandbox.cluster_file.read_text() + more)

    def run(*words: str) -> Run:
        return run_pytest(tmp_path, f"--cluster={cluster}", "--history=h.sqlite", *words, where=())

    def punchlist(*words: str) -> str:
        assert cli.main(["punchlist", *words]) == 0
        return capsys.readouterr().out

    sandbox.fault("ecc_volatile", "gpu02")
    first = run("-m", "gpu or parts")
    everything = len(first.outcomes)
    assert "punch list: new: item 1\n" in first.out
    listed = punchlist(f"--cluster={cluster}", "--unit=SU1")
    assert "server vendor: 1 item\n    1  open, since " in listed
    assert "rack A07 unit 2; gpu02; GPU 0000:" in listed
    assert "not handed over: 1 item not proved" in listed
    nothing = run("--punchlist")
    assert nothing.rc == 4
    (told,) = nothing.errors
    assert (
        "no item of cluster sandbox is done on the selected nodes, so nothing is tested (1 item open or claimed" in told
    )
    assert "ERROR: --nodes: --punchlist chooses the nodes" in run("--punchlist", "--nodes=gpu01").err
    punchlist("claim", "1", "--by=anna")
    punchlist("done", "1", "--by=anna")

    wrong = run("--punchlist")
    assert wrong.rc == 1
    assert "punch list: item 1 on gpu02, and gpu[01,03] beside them\n" in wrong.out
    assert "punch list: failed again and open: item 1\n" in wrong.out
    assert {node for it in wrong.outcomes if (node := it.partition("[")[2])} == {"gpu01]", "gpu02]", "gpu03]"}
    assert "open (anna) (failed again: 1)" in punchlist(f"--cluster={cluster}")

    sandbox.heal()
    punchlist("done", "1", "--note=GPU reset")
    absent = run("--punchlist", "--set=not_applicable={gpu.ecc_volatile: none}")
    assert absent.rc == 1
    assert "ERROR: punch list: item 1 is not proved: gpu.ecc_volatile did not pass on gpu02\n" in absent.out
    proved = run("--punchlist", "-n2")
    assert proved.rc == 0, proved.out + proved.err
    assert "punch list: proved: item 1\n" in proved.out
    assert "\nPASSED: 3 of 3 nodes. All that was selected by --punchlist (item 1) is" in proved.out
    assert "ACCEPTED" not in proved.out
    verdict = json.loads((proved.reports / "record.json").read_text())["verdict"]
    assert (verdict["outcome"], verdict["title"]) == ("passed", "Passed")
    assert len(proved.outcomes) < everything / 3
    last = punchlist(f"--cluster={cluster}", "--unit=SU1").splitlines()[-1]
    assert last == "unit SU1 (gpu[01-04]): handed over: the list is empty, and each node is proved by gpu, parts"
