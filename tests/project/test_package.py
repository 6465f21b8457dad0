"""What the distributions contain and state, and how the README reads outside the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest
from docs_helpers import FENCE, HOME, LINK, ROOT
from packaging.metadata import Metadata

import slurm_sandbox
from pytest_gpucluster import __version__

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = ROOT / "src"
README = FENCE.sub("", (ROOT / "README.md").read_text())


def build(folder: Path, *words: str) -> dict[str, bytes]:
    """Build what `words` say; return the files of the wheel."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.thorough
def test_the_wheel_of_the_sandbox_has_every_file_of_its_package_and_nothing_else(tmp_path: Path) -> None:
    project = ROOT / "slurm-sandbox"
    wheel = build(tmp_path, "--wheel", str(project))
    assert {name for name in wheel if ".dist-info/" not in name} == source_files(project / "src")
    found = Metadata.from_email(in_dist_info(wheel, "METADATA"), validate=True)
    assert (found.name, str(found.version)) == ("slurm-sandbox", slurm_sandbox.__version__)
    assert found.requires_dist is None
    assert in_dist_info(wheel, "licenses/LICENSE").decode() == (ROOT / "LICENSE").read_text()


def in_dist_info(wheel: dict[str, bytes], name: str) -> bytes:
    (content,) = (content for path, content in wheel.items() if path.endswith(f".dist-info/{name}"))
    return content


def source_files(source: Path = SOURCE) -> set[str]:
    found = source.rglob("*")
    return {str(it.relative_to(source)) for it in found if it.is_file() and "__pycache__" not in it.parts}


@pytest.mark.thorough
def test_distributions_have_every_file_of_the_package_and_valid_metadata(tmp_path: Path) -> None:
    wheel = build(tmp_path, str(ROOT))  # from the sdist
    assert {name for name in wheel if ".dist-info/" not in name} == source_files()
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in source_files()} <= sdist
    tops = {name.partition("/")[0] for name in sdist}
    assert {"examples", "suites", "slurm-sandbox"}.isdisjoint(tops)  # links to the above; has its own sdist
    assert {"LICENSE", "README.md", "CHANGELOG.md", "docs/tutorial.md", "pyproject.toml"} <= sdist
    found = Metadata.from_email(in_dist_info(wheel, "METADATA"), validate=True)
    assert str(found.version) == __version__
    assert (found.license_expression, found.license_files) == ("Apache-2.0", ["LICENSE"])
    assert found.description_content_type == "text/markdown"
    assert (found.description or "").startswith("# pytest-gpucluster")
    urls = found.project_urls or {}
    assert {"Homepage", "Documentation", "Issues", "Changelog"} <= set(urls)
    assert [url for url in urls.values() if not url.startswith(HOME)] == []
    # PEP 639: the expression only
    assert [one for one in found.classifiers or ["License ::"] if one.startswith("License ::")] == []


def test_version_is_stated_once_and_has_its_changes() -> None:
    assert f'"{__version__}"' not in (ROOT / "pyproject.toml").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    unreleased, newest = re.findall(r"^## \[(.+)$", changelog, re.MULTILINE)[:2]
    assert unreleased == "Unreleased]"
    assert re.fullmatch(rf"{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d", newest)
    assert f"[Unreleased]: {HOME}/compare/v{__version__}...HEAD" in changelog
    assert f"[{__version__}]: {HOME}/" in changelog
    minor = __version__.rpartition(".")[0]
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text()


def test_each_link_of_readme_leads_to_a_file() -> None:
    """Relative before a release, since the pages are not on GitHub yet; absolute in one, for the package index."""
    targets = [target.removeprefix(f"{HOME}/blob/main/").partition("#")[0] for target in LINK.findall(README)]
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target).is_file()] == []
    assert len({target.startswith("https://") for target in LINK.findall(README)}) == 1
