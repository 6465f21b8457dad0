"""Former names: each row names what exists, none of them exists any more, and every place that takes a name says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from plugin_helpers import run_pytest

from pytest_gpucluster import config
from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core import former_names
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.former_names import FIXED, KEYS, OPTIONS, Former, present_name
from pytest_gpucluster.drain import policy
from pytest_gpucluster.drain.reason import DrainReason

if TYPE_CHECKING:
    from pathlib import Path

REMOVED = Former(why="nobody needs it; remove it")


@pytest.fixture
def former(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have two former checks: one is called otherwise, one went."""
    monkeypatch.setitem(former_names.CHECKS, "os.kernal", Former("os.drift/kernel"))
    monkeypatch.setitem(former_names.CHECKS, "old.gone", REMOVED)


@pytest.mark.parametrize(
    "name", [name for name in KEYS if not name.startswith(("os.mounts.", "profile.", "storage.filesystems."))]
)
def test_a_former_key_is_refused_with_what_to_write(tmp_path: Path, name: str) -> None:
    path, words = tmp_path / "lab.yaml", name.replace("*", "x").split(".")
    path.write_text("nodes: gpu01\n" + ": {".join(words) + ": 1" + "}" * (len(words) - 1) + "\n")
    with pytest.raises(ConfigError) as caught:
        config.load_cluster(path)
    start = f"{path}:2: {'.'.join(words)}: unknown key; it "
    told = [text for text in map(str, caught.value.every) if text.startswith(start)]
    assert len(told) == 1, caught.value.every
    assert told[0].endswith(("remove the key", KEYS[name].text)), told
    assert KEYS[name] is FIXED or not told[0].endswith("remove the key")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("waivers: [{checks: [old.gone], reason: r, until: 2999-01-31}]", [f"'old.gone' {REMOVED.text}"]),
        ("waivers: [{checks: [os.drift/kernel], reason: r, until: 2999-01-31}]", []),
        ("not_applicable: {os.drift/kernel: WHY}", []),
        ("required: [os.drift/kernel]", ["is a part of a check", "write os.drift"]),
        ("gate: {checks: [os.drift/kernel]}", ["is a part of a check", "write os.drift"]),
    ],
)
@pytest.mark.usefixtures("former")
def test_a_part_is_named_where_it_has_an_effect_and_each_error_stands_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, told: list[str]
) -> None:
    (tmp_path / "lab.yaml").write_text(f"nodes: gpu01\n{line}\n")
    assert cli.main(["check", str(tmp_path / "lab.yaml")]) == (4 if told else 0)
    if told:
        (error,) = capsys.readouterr().out.splitlines()
        assert all(words in error for words in told), error


@pytest.mark.usefixtures("former")
def test_a_gate_and_the_command_refuse_former_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gate", "--checks", "gpu.*,os.kernal"]) == 4
    assert "--checks: 'os.kernal' is now os.drift\n" in capsys.readouterr().err
    assert cli.main(["man"]) == 4
    assert f"gpucluster man {OPTIONS['man'].text}" in capsys.readouterr().err


@pytest.mark.usefixtures("former")
def test_a_node_that_was_drained_for_a_former_check_is_judged_by_the_present_one() -> None:
    reason, ends = (DrainReason(("os.kernal", "gpu.*"), "x", "r1"), {"os.drift": ["passed"], "gpu.count": ["passed"]})
    assert policy.why_not_passed(reason, ends, ()) == ""
    renamed = ": 'os.kernal' is now os.drift/kernel"
    assert policy.why_not_passed(reason, {**ends, "os.drift": ["failed"]}, ()) == f"os.drift ended as failed{renamed}"
    assert policy.why_not_passed(reason, {"gpu.count": ["passed"]}, ()) == f"os.drift did not run{renamed}"
    gone = DrainReason(("old.gone",), "x", "r1")
    assert policy.why_not_passed(gone, ends, ()) == f"old.gone did not run: 'old.gone' {REMOVED.text}"
    assert (present_name("old.gone"), present_name("gpu.count")) == ("old.gone", "gpu.count")


OWN = "def pytest_addoption(parser):\n    parser.addoption('--partition')\n"


def test_former_options_are_refused_with_what_to_write_unless_another_plugin_has_them(tmp_path: Path) -> None:
    words = ("--cluster=local", "--partition=debug", "--min-nodes", "3", "--partition", "x", "--collect-only")
    run = run_pytest(tmp_path, *words)
    told = [f"{name} {OPTIONS[name].text}" for name in ("--partition", "--min-nodes")]
    assert (run.rc, "; ".join(told) in run.err) == (4, True)
    run = run_pytest(tmp_path, *words, files={"conftest.py": OWN})
    assert (run.rc, told[1] in run.err, told[0] in run.err) == (4, True, False)
    assert "--partition is now" not in run_pytest(tmp_path, "--partition=x").err  # without --cluster it is not ours
