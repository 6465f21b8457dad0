"""A data file of the package is read whole, or names what is wrong in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.kit.node.known_lines import data_file

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "about: lines\ndate: 2026-11-24\n"
GOOD = HEAD + "entries:\n- {pattern: x, meaning: m, reason: r}\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a folder for its data."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / tmp_path.name / "data").mkdir(parents=True)
    (tmp_path / tmp_path.name / "__init__.py").touch()
    return tmp_path / tmp_path.name / "data"


def read(package: Path, text: str) -> tuple[KnownLine, ...]:
    (package / "lines.yaml").write_text(text)
    return data_file("lines.yaml", KnownLine, package.parent.name)


def test_the_entries_of_a_data_file(package: Path) -> None:
    (line,) = read(package, GOOD)
    assert (line.pattern, line.meaning, line.action) == ("x", "m", "ignore")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("pattern: x", "pattern: ("), "lines.yaml: [^x]*pattern"),
        (GOOD.replace("date: 2026-11-24\n", ""), "lines.yaml: .*\ndate"),
        (GOOD.replace("2026-11-24", "soon"), "lines.yaml: .*\ndate"),
        (HEAD, "lines.yaml: 'entries'"),
        (HEAD + "entries: []\n", "lines.yaml: no entries"),
        ("[", "lines.yaml: "),
        ("- x", "lines.yaml: "),
    ],
)
def test_a_wrong_data_file_is_named(package: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(package, text)
