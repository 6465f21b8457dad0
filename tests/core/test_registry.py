"""What suites register, and a suite that is only dropped into the folder of the suites."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import cluster_file, run_pytest
from sandbox_helpers import left_in_queue

import pytest_gpucluster
from pytest_gpucluster.core.registry import Suite, suites
from pytest_gpucluster.plugin import LAST, MARKERS, marker_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.sandbox import Sandbox

MADE_UP = {
    "__init__.py": """
from pytest_gpucluster.core.registry import Suite, Work

SUITE = Suite(
    __name__,
    markers=("made_up: a suite of a test",),
    section="config:MadeUpConfig",
    options={"--made-up": {"metavar": "N", "help": "nothing"}},
    before_allocation=Work("early", "work:Early"),
    before_first_test=Work("beside", "work:beside"),
    after_release="work:LATE",
)
""",
    "config.py": """
from pytest_gpucluster.core.values import OptionalSection, Text


class MadeUpConfig(OptionalSection):
    about = "requires fans"

    colour: Text
""",
    "work.py": """
from pytest_gpucluster.core.check import Action, Finding, check
from pytest_gpucluster.kit.suite_work import LateCheck, Submission


class Early(Submission):
    def __init__(self, slurm, cluster):
        self.job = slurm.run("sbatch", "--parsable", "-p", "batch", "-o", "/dev/null", "--wrap=true").strip()

    def job_ids(self):
        return (self.job,)

    def outcome(self):
        return self.job


def beside(run):
    return {held.job_id for held in run.allocations}


@check("made_up.late", cause="c", hint="look at the fans", action=Action.MONITOR)
def late(info):
    if info.name == "gpu02":
        yield Finding("fans", "off", "on")


LATE = LateCheck("made_up.late", "judged later", lambda run, info: late(info))
""",
    "test_made_up.py": """
import pytest

from pytest_gpucluster.suites.made_up import SUITE
from pytest_gpucluster.suites.made_up.config import MadeUpConfig

pytestmark = [pytest.mark.made_up]


@pytest.fixture(scope="session")
def early(gpucluster_session):
    return gpucluster_session.outcome(SUITE)


@pytest.fixture(scope="session")
def beside(allocation, gpucluster_session):
    return gpucluster_session.begin(SUITE).result()


def test_early(early, cluster):
    assert int(early) > 0
    assert cluster.section(MadeUpConfig).colour == "red"


def test_beside(beside, early, allocation):
    assert beside == {allocation.job_id}
    assert allocation.job_id > int(early)


def test_late(node, expect):
    expect.not_checked("judged later")
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def with_made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one folder more."""
    root = tmp_path_factory.mktemp("copy")
    copy = root / "pytest_gpucluster"
    shutil.copytree(Path(pytest_gpucluster.__file__).parent, copy)
    folder = copy / "suites" / "made_up"
    folder.mkdir()
    for name, text in MADE_UP.items():
        (folder / name).write_text(text)
    return root


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
            suite.on_request,
            suite.after_release,
            suite.leftover_folders,
            suite.leftovers,
        ),
    )


@pytest.mark.parametrize("suite", suites(), ids=lambda suite: suite.name)
def test_what_a_suite_registers_is_there(suite: Suite) -> None:
    assert all(suite.load(part) is not None for part in parts(suite))
    assert suite.markers[0].partition(":")[0] == suite.name
    assert (ROOT / suite.page).is_file()


def test_every_page_belongs_to_a_suite() -> None:
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "suites").glob("*.md")}
    assert pages == {suite.page for suite in suites()}


def test_markers_are_read_without_an_import_as_they_are_registered() -> None:
    assert marker_lines() == [*(line for suite in suites() for line in suite.markers), *MARKERS]
    assert Suite("", ()).order == LAST


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_suite_needs_no_more_than_its_folder(
    sandbox: Sandbox, tmp_path: Path, with_made_up: Path, workers: str
) -> None:
    env = {"PYTHONPATH": str(with_made_up)}
    file = cluster_file(sandbox, tmp_path, made_up={"colour": "red"})
    options = (f"--cluster={file}", "--made-up=1", "-m", "made_up", "-n", workers)
    where = (str(with_made_up / "pytest_gpucluster" / "suites"),)
    run = run_pytest(tmp_path, "--strict-markers", *options, env=env, where=where)
    assert {name.rpartition("::")[2]: outcome for name, outcome in run.outcomes.items()} == {
        "test_early": "passed",
        "test_beside": "passed",
        **{f"test_late[gpu0{number}]": "passed" for number in (1, 3, 4)},
        "test_late[gpu02]": "failed",
    }, run.out
    assert run.rc == 1
    assert not run.errors
    assert "made_up.late on gpu02: fans: measured off, expected on" in run.out
    assert "look at the fans" in (run.reports / "report.html").read_text()
    (failure,) = run.cases["gpucluster.made_up.gpu02 test_late"].result
    assert "measured off" in failure.message
    assert left_in_queue(sandbox) == []


def test_markers_and_options_of_a_suite_are_there_without_a_cluster(
    tmp_path: Path, with_made_up: Path
) -> None:
    env = {"PYTHONPATH": str(with_made_up)}
    assert "@pytest.mark.made_up: a suite of a test" in run_pytest(tmp_path, "--markers", env=env).out
    assert "--made-up=N" in run_pytest(tmp_path, "--help", env=env).out
    run = run_pytest(tmp_path, "--made-up=1", env=env)
    assert "--made-up: needs --cluster" in run.err
