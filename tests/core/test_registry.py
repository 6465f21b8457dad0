"""What suites register, and a suite in a wheel of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import forked
import pytest
from paths import ROOT
from plugin_helpers import cluster_file, run_pytest
from sandbox_helpers import environment, left_in_queue
from suite_wheel import install_suite

from pytest_gpucluster import SuiteError, plugin
from pytest_gpucluster.core.registry import Suite, suites
from pytest_gpucluster.plugin import LAST, MARKERS, marker_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

MADE_UP = {
    "__init__.py": """
from pytest_gpucluster.api import Suite, Work

SUITE = Suite(
    __name__,
    markers=("made_up: a suite of a test",),
    section="config:MadeUpConfig",
    options={"--made-up": {"metavar": "N", "help": "nothing"}},
    before_allocation=Work("early", "work:Early"),
    before_first_test=Work("beside", "work:beside"),
    hooks={"after_release": "work:LATE"},
    draft="work:draft",
    documentation="https://example.org/made_up.html",
)
""",
    "config.py": """
from pytest_gpucluster.api import OptionalSection, Text


class MadeUpConfig(OptionalSection):
    about = "requires fans"

    colour: Text
""",
    "work.py": """
from pytest_gpucluster.api import Action, Finding, LateCheck, Metric, Submission, check


class Early(Submission):
    def __init__(self, slurm, cluster):
        self.job = slurm.run("sbatch", "--parsable", "-p", "batch", "-o", "/dev/null", "--wrap=true").strip()

    def job_ids(self):
        return (self.job,)

    def outcome(self):
        return self.job


def beside(run):
    return {held.job_id for held in run.allocations}


def draft(survey):
    return ["made_up: {colour: red}"]


@check("made_up.late", cause="c", hint="look at the fans", action=Action.MONITOR, item=False)
def late(info):
    if info.name == "gpu02":
        yield Finding("fans", "off", "on")


@check("made_up.fans", cause="c", hint="look at the fans", action=Action.MONITOR)
def fans(hostname):
    '''Every node has fans.'''
    yield Metric("fans", len(hostname), "")


LATE = LateCheck("made_up.late", "judged later", lambda run, info: late(info))
""",
    "test_made_up.py": """
from gpucluster_made_up import SUITE
from gpucluster_made_up import work
from gpucluster_made_up.config import MadeUpConfig
from pytest_gpucluster.api import Outcome, Probe, Tests, Verdict, fact, probed, text_of

hostname = probed(Probe("hostname", "hostname", lambda answer: text_of(answer).strip()))
TESTS = Tests(work, marks=("made_up",))


@fact(once=True)
def early(gpucluster_session):
    return gpucluster_session.outcome(SUITE)


@fact(once=True)
def beside(allocation, gpucluster_session):
    return gpucluster_session.begin(SUITE).result()


def test_early(early, cluster):
    assert int(early) > 0
    assert cluster.section(MadeUpConfig).colour == "red"


def test_beside(beside, early, allocation):
    assert beside == {allocation.job_id}
    assert allocation.job_id > int(early)


LATE = Verdict("made_up.late", Outcome.NOT_CHECKED, reason="judged later")


def test_late(node):
    return LATE
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def with_made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed suite, for PYTHONPATH."""
    return install_suite(tmp_path_factory.mktemp("wheel"), "made_up", MADE_UP)


def parts(suite: Suite) -> Iterator[str]:
    """Yield the parts that a suite names."""
    works = (suite.before_allocation, suite.before_first_test)
    yield from (work.part for work in works if work is not None)
    yield from filter(
        None,
        (
            *suite.settings.values(),
            suite.section,
            suite.profile_rows,
            *suite.hooks.values(),
        ),
    )


def test_a_hook_that_nothing_calls_is_refused() -> None:
    with pytest.raises(SuiteError, match="no hook is called on_requests"):
        Suite("a", (), hooks={"on_requests": "options"})


@pytest.mark.parametrize("suite", suites(), ids=lambda suite: suite.name)
def test_what_a_suite_registers_is_there(suite: Suite) -> None:
    assert all(suite.load(part) is not None for part in parts(suite))
    assert suite.hook("no such hook") is None
    assert suite.markers[0].partition(":")[0] == suite.name
    assert (ROOT / suite.page).is_file()


def test_every_page_belongs_to_a_suite() -> None:
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "suites").glob("*.md")}
    assert pages == {suite.page for suite in suites()}


def test_markers_are_read_without_an_import_as_they_are_registered() -> None:
    assert marker_lines() == [*(line for suite in suites() for line in suite.markers), *MARKERS]
    assert Suite("", ()).order == LAST


def test_markers_that_are_no_literal_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("SUITE = Suite(__name__, markers=(*(), 'gone: x'))")
    monkeypatch.setattr(plugin, "suite_folders", lambda: {"gone": tmp_path})
    with pytest.raises(SuiteError, match="'gone': `markers` and `order` of its Suite must be literals"):
        marker_lines()


@pytest.mark.thorough
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_suite_of_another_wheel_is_a_suite_like_ours(
    sandbox: Sandbox, tmp_path: Path, with_made_up: Path, workers: str
) -> None:
    env = {"PYTHONPATH": str(with_made_up)}
    file = cluster_file(sandbox, tmp_path, made_up={"colour": "red"})
    options = (f"--cluster={file}", "--made-up=1", "-m", "made_up", "-n", workers)
    run = run_pytest(tmp_path, "--strict-markers", *options, env=env, where=())
    assert run.outcomes == {
        f"suites/made_up/test_made_up.py::{name}": outcome
        for name, outcome in {
            "test_early": "passed",
            "test_beside": "passed",
            **{f"test_late[gpu0{number}]": "passed" for number in (1, 3, 4)},
            "test_late[gpu02]": "failed",
            **{f"test_fans[gpu0{number}]": "passed" for number in range(1, 5)},
        }.items()
    }, run.out
    assert run.rc == 1
    assert not run.errors
    assert "made_up.late on gpu02: fans: measured off, expected on" in run.out
    assert "look at the fans" in (run.reports / "report.html").read_text()
    (failure,) = run.cases["gpucluster.made_up.gpu02 test_late"].result
    assert "measured off" in failure.message
    assert left_in_queue(sandbox) == []


@pytest.mark.thorough
def test_markers_and_options_of_a_suite_are_there_without_a_cluster(
    tmp_path: Path, with_made_up: Path
) -> None:
    env = {"PYTHONPATH": str(with_made_up)}
    assert "@pytest.mark.made_up: a suite of a test" in run_pytest(tmp_path, "--markers", env=env).out
    assert "--made-up=N" in run_pytest(tmp_path, "--help", env=env).out
    run = run_pytest(tmp_path, "--made-up=1", env=env)
    assert "--made-up: needs --cluster" in run.err


@pytest.mark.thorough
def test_its_id_section_and_page_are_like_those_of_ours(
    sandbox: Sandbox, tmp_path: Path, with_made_up: Path
) -> None:
    env = {"PYTHONPATH": str(with_made_up)}
    file = cluster_file(sandbox, tmp_path, made_up={"colour": "red"})
    alone = ("suites/made_up/test_made_up.py::test_early",)
    run = run_pytest(tmp_path, f"--cluster={file}", env=env, where=alone)
    assert run.outcomes == {alone[0]: "passed"}, run.out
    plain = cluster_file(sandbox, tmp_path)
    unasked = run_pytest(tmp_path, f"--cluster={plain}", "-m", "made_up or versions", env=env, where=())
    assert "made_up" in unasked.out.partition("no section")[2], unasked.out
    words = (sys.executable, "-m", "pytest_gpucluster.cli.main")
    shown = forked.run([*words, "schema", "--reference"], cwd=tmp_path, env=environment(**env), timeout=600)
    assert "[`made_up`](https://example.org/made_up.html)" in shown.stdout
    assert re.search(r"^\| `fans` \| \w+ \| Every node has fans\.", shown.stdout, re.MULTILINE)


def register_gone(folder: Path) -> None:
    """Register a suite `gone` of a package that is not there, for PYTHONPATH."""
    info = folder / "gpucluster_gone-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpucluster-gone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest_gpucluster.suites]\ngone = gpucluster_gone\n")


SUITE = "from pytest_gpucluster.api import Suite\nSUITE = Suite(__name__, markers=(), proofs=1)"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "No module named 'gpucluster_gone'"),
        ("SUITES = 1", "has no attribute 'SUITE'"),
        (SUITE, "unexpected keyword argument 'proofs' (/"),
        ("SUITE = 1", "must be a Suite; its SUITE is 1"),
    ],
)
def test_a_suite_that_cannot_be_imported_is_named(tmp_path: Path, source: str, words: str) -> None:
    register_gone(tmp_path)
    if source:
        (tmp_path / "gpucluster_gone").mkdir()
        (tmp_path / "gpucluster_gone" / "__init__.py").write_text(source)
    run = run_pytest(tmp_path, "--cluster=local", env={"PYTHONPATH": str(tmp_path)})
    assert run.rc == 4
    assert "the suite 'gone' of gpucluster_gone" in run.err
    assert words in run.err
    argv = (sys.executable, "-m", "pytest_gpucluster", "--help")
    # not forked: what the server imports first is broken here
    done = subprocess.run(
        argv,
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpucluster: error: the suite 'gone' ")


@pytest.mark.thorough
def test_without_a_cluster_a_suite_that_is_not_there_is_named_too(tmp_path: Path) -> None:
    register_gone(tmp_path)
    run = run_pytest(tmp_path, "--markers", env={"PYTHONPATH": str(tmp_path)})
    assert run.rc == 4
    assert "is registered as gpucluster_gone, which is no package that is installed" in run.err
    assert "Traceback" not in run.out + run.err
