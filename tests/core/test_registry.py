"""What suites register, and a suite in a wheel of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

import forked
import pytest
from paths import ROOT
from plugin_helpers import cluster_file, run_pytest
from sandbox_helpers import environment
from suite_wheel import install_suite

from pytest_gpucluster.core.registry import Suite, SuitePart, parts_of_suites, suites

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

MADE_UP = {
    "__init__.py": """
from pytest_gpucluster.api import Suite

SUITE = Suite(
    __name__,
    markers=("made_up: a suite of a test",),
    section="config:MadeUpConfig",
    options={"--made-up": {"metavar": "N", "help": "nothing"}},
    documentation="https://example.org/made_up.html",
)
""",
    "config.py": """
from pytest_gpucluster.api import OptionalSection, Text


class MadeUpConfig(OptionalSection):
    about = "requires fans"

    colour: Text
""",
    "checks.py": """
from pytest_gpucluster.api import Action, Metric, check


@check("made_up.fans", cause="c", hint="h", action=Action.MONITOR)
def fans(hostname):
    '''Every node has fans.'''
    yield Metric("fans", len(hostname), "")
""",
    "test_made_up.py": """
from gpucluster_made_up import checks
from pytest_gpucluster.api import Probe, Tests, of_node, text_of

hostname = of_node(Probe("hostname", "hostname", lambda answer: text_of(answer).strip()))
TESTS = Tests(checks, marks=("made_up",))
""",
}


@pytest.fixture(scope="module")
def with_made_up(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"PYTHONPATH": str(install_suite(tmp_path_factory.mktemp("wheel"), "made_up", MADE_UP))}


PARTS = [name for name, part in vars(Suite).items() if isinstance(part, SuitePart)]


def parts(suite: Suite) -> list[object]:
    works = [work.part for work in (suite.before_allocation, suite.before_first_test) if work is not None]
    named = [vars(suite)[name] for name in PARTS]
    return [*works, *suite.settings.values(), *filter(None, named)]


def test_what_a_suite_registers_is_there() -> None:
    for suite in suites():
        assert all(suite.load(part) is not None for part in parts(suite)), suite.name
        assert suite.markers[0].partition(":")[0] == suite.name
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "suites").glob("*.md")}
    assert pages == {suite.page for suite in suites()}
    assert {name for suite in suites() for name in PARTS if vars(suite)[name]} > {"section", "on_request"}


def test_a_part_is_imported_where_it_is_read() -> None:
    suite = Suite("pytest_gpucluster.suites.mpi", (), tried="draft:gone", draft=lambda _: ["mpi: {}"])
    assert suite.idle is None
    assert suite.draft is not None
    with pytest.raises(AttributeError, match="gone"):
        _ = suite.tried
    of_all = next(parts_of_suites(lambda one: one.on_request))
    assert of_all.requested(Namespace(burnin_time="1h", burnin_resume=None, markexpr=""))


@pytest.mark.thorough
def test_markers_options_section_and_page_of_a_suite_are_like_those_of_ours(
    sandbox: Sandbox, tmp_path: Path, with_made_up: dict[str, str]
) -> None:
    assert "@pytest.mark.made_up: a suite of a test" in run_pytest(tmp_path, "--markers", env=with_made_up).out
    run = run_pytest(tmp_path, "--made-up=1", env=with_made_up)
    assert "--made-up: needs --cluster" in run.err
    plain = cluster_file(sandbox, tmp_path)
    run = run_pytest(tmp_path, f"--cluster={plain}", "-m", "made_up or versions", env=with_made_up, where=())
    assert "made_up" in run.out.partition("no section")[2], run.out
    words = (sys.executable, "-m", "pytest_gpucluster.cli.main", "schema", "--reference")
    shown = forked.run(words, cwd=tmp_path, env=environment(**with_made_up), timeout=600)
    assert "[`made_up`](https://example.org/made_up.html)" in shown.stdout
    assert re.search(r"^\| `fans` \| \w+ \| Every node has fans\.", shown.stdout, re.MULTILINE)


SUITE = "from pytest_gpucluster.api import Suite\nSUITE = Suite(__name__, markers=(), proofs=1)"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "No module named 'gpucluster_gone'"),
        (SUITE, "unexpected keyword argument 'proofs' (/"),
        ("SUITE = 1", "must be a Suite; its SUITE is 1"),
        ("raise SystemExit(0)", "cannot be imported: 0 (/"),
        ("raise ValueError('\\x1b[2J token=ghp_0123456789abcdefghijABCDEFGHIJ012345')", "cannot be imported: "),
    ],
)
def test_a_suite_that_cannot_be_imported_is_named(tmp_path: Path, source: str | None, words: str) -> None:
    about = tmp_path / "gpucluster_gone-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gpucluster-gone\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[pytest_gpucluster.suites]\ngone = gpucluster_gone\n")
    if source:
        (tmp_path / "gpucluster_gone").mkdir()
        (tmp_path / "gpucluster_gone" / "__init__.py").write_text(source)
    env = {"PYTHONPATH": str(tmp_path)}
    run = run_pytest(tmp_path, "--cluster=local", env=env)
    assert run.rc == 4
    assert "the suite 'gone' of gpucluster_gone" in run.err
    assert words in run.err
    assert [secret for secret in ("\x1b", "ghp_0123456789") if secret in run.err] == []
    # not forked: what the server imports first is broken here
    for words_of_help in (("pytest", "--markers"), ("pytest_gpucluster", "--help")):
        argv, every = [sys.executable, "-m", *words_of_help], environment(**env)
        done = subprocess.run(argv, cwd=tmp_path, env=every, capture_output=True, text=True, check=False)
        if source is None or words_of_help[0] != "pytest":  # pytest imports no suite for its markers
            assert done.returncode == 4
            assert "the suite 'gone' " in done.stderr
            assert "Traceback" not in done.stdout + done.stderr
