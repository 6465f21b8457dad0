"""The ways to install: what the recipes of images and for conda name, and how the files for machines without internet start."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

tomllib: Any = pytest.importorskip("tomllib", reason="of Python 3.11 and later")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HERE = "%d.%d" % sys.version_info[:2]


def requirements(texts: list[str]) -> dict[str, str]:
    """Return {name: its versions}."""
    return {canonicalize_name(one.name): str(one.specifier) for one in map(Requirement, texts)}


def filled(tmp_path: Path, name: str, python: str, file: str) -> Path:
    """A script of tools/ as `make release` puts it into a file for this Python."""
    text = (ROOT / "tools" / name).read_text()
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    for word, value in {"PYTHON": python, "MACHINE": machine, "PLATFORM": f"manylinux_{machine}"}.items():
        text = text.replace(f"@{word}@", value)
    assert not re.search(r"@[A-Z]+@", text)
    path = tmp_path / file
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_conda_recipe_has_the_requirements_of_the_project() -> None:
    stated = PROJECT["project"]
    recipe = yaml.safe_load((ROOT / "install" / "recipe.yaml").read_text())
    needs = recipe["requirements"]
    own = {**requirements(stated["dependencies"]), "python": stated["requires-python"]}
    minimum = recipe["context"]["python_min"]
    assert requirements([one.replace("${{ python_min }}", minimum) for one in needs["run"]]) == own
    assert set(PROJECT["build-system"]["requires"]) <= {one.replace(" ", "") for one in needs["host"]}


@pytest.mark.parametrize("name", ["Dockerfile", "gpucluster.def"])
def test_an_image_has_what_both_builds_read(name: str) -> None:
    text = (ROOT / "install" / name).read_text()
    lines = re.findall(r"^(?:COPY|   ) ((?:[\w.-]+ )+)/source/", text, re.MULTILINE)
    copied = [word for line in lines for word in line.split()]
    read = {"pyproject.toml", "README.md", "LICENSE", "src", "slurm-sandbox"}
    assert set(copied) == read
    assert PROJECT["project"]["readme"] in read
    assert "pip install --no-cache-dir /source /source/slurm-sandbox" in text


def test_a_file_for_another_python_says_so_and_installs_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, str(filled(tmp_path, "pyz_start.py", "3.99", "gpucluster.pyz")), "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": "/nowhere"})
    assert (done.returncode, done.stdout) == (4, "")
    assert f"this is Python {HERE}" in done.stderr
    script = filled(tmp_path, "wheels_install", "3.99", "install")
    sums = subprocess.run(["sha256sum", "install"], capture_output=True, check=True, cwd=tmp_path).stdout
    (tmp_path / "SHA256SUMS").write_bytes(sums)
    argv, env = [str(script), "there"], {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"this machine has Python {HERE}" in done.stderr
    assert not (tmp_path / "there").exists()


def test_a_damaged_archive_of_wheels_is_not_installed(tmp_path: Path) -> None:
    script = filled(tmp_path, "wheels_install", HERE, "install")
    (tmp_path / "one.whl").write_text("changed")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  one.whl\n")
    done = subprocess.run([str(script), "there"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 4
    assert "install: error: the archive was damaged: copy it again" in done.stderr
    assert not (tmp_path / "there").exists()
