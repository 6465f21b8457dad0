"""`gpucluster examples`: what it copies, and where it refuses to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster import config
from pytest_gpucluster.cli import examples
from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path


def files(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Return content and whether a program of each file."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files, as a package manager may install them: read-only, with compiled modules."""
    folder = tmp_path / "shipped"
    (folder / "site_suite" / "__pycache__").mkdir(parents=True)
    (folder / "site_suite" / "__pycache__" / "test_site.pyc").touch()
    for name, mode in (("site_suite/test_site.py", 0o444), ("run.sh", 0o555)):
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    monkeypatch.setattr(examples, "SHIPPED", folder)
    return folder


def test_all_examples_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "above" / "new"
    assert cli.main(["examples", str(new)]) == 0
    copied = files(new)
    assert copied == files(examples.SHIPPED)
    assert capsys.readouterr().out == f"{new}: {len(copied)} files\n"
    assert copied["burnin-maintenance.sh"][1]
    assert not copied["Jenkinsfile"][1]
    assert config.load_cluster(new / "clusters" / "aws-g4dn.yaml").name == "aws-g4dn"


def test_copies_can_be_changed_and_have_no_compiled_modules(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.main(["examples", str(tmp_path / "empty")]) == 0
    assert files(tmp_path / "empty") == files(shipped)
    assert not list(tmp_path.glob("empty/**/*.pyc"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "empty").rglob("*.*")}
    assert modes == {"test_site.py": 0o644, "run.sh": 0o755}


def test_a_folder_with_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert cli.main(["examples", str(tmp_path)]) == 4
    assert capsys.readouterr().err == (
        f"gpucluster: error: {tmp_path}: has files already; name a new folder\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


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
