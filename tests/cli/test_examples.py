"""`gpucluster examples`: what it copies, and where it refuses to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster import config
from pytest_gpucluster.cli import examples
from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def files(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Return content and whether a program of each file."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def test_all_examples_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "above" / "new"
    assert cli.main(["examples", str(new)]) == 0
    copied = files(new)
    assert copied == files(examples.SHIPPED)
    assert capsys.readouterr().out == f"{new}: {len(copied)} files\n"
    assert not [*new.rglob("*.pyc")]
    assert (new / "Jenkinsfile").stat().st_mode & 0o200  # copies can be changed
    assert copied["burnin-maintenance.sh"][1]
    assert not copied["Jenkinsfile"][1]
    assert config.load_cluster(new / "clusters" / "aws-g4dn.yaml").name == "aws-g4dn"


def test_a_file_a_broken_link_and_a_folder_that_all_users_may_change_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("file", "lost"):
        assert cli.main(["examples", str(tmp_path / name)]) == 4
        assert f"{tmp_path / name}: cannot be written (" in capsys.readouterr().err
    assert cli.main(["examples", str(tmp_path / "open")]) != 0
    assert "all users may replace files in this folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "lost", "open"]
    assert cli.main(["examples", str(tmp_path)]) == 4
    assert "has files already; name a new folder" in capsys.readouterr().err
