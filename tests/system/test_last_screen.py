"""What an operator sees, pastes and keeps: real runs of the installed package from a folder without a project."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import Run, cluster_file, on, run_pytest, write_bytecode, write_suites

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.sandbox import Sandbox

SITE = "def test_site(gpucluster_node):\n    assert gpucluster_node.name\n"
WIDE = """
import pytest

MADE = []


@pytest.fixture(scope="module")
def release(host):
    MADE.append(host.backend.hostname)
    return host.file("/etc/os-release").content_string


@pytest.fixture(scope="session")
def kernel(gpucluster_node, host):
    return gpucluster_node.name, host.check_output("uname -r")


def test_module(release, gpucluster_node):
    assert release
    assert MADE[-1] == gpucluster_node.name


def test_module_again(release, gpucluster_node):
    assert MADE.count(gpucluster_node.name) == 1


def test_session(kernel, gpucluster_node):
    assert kernel[0] == gpucluster_node.name
"""
SUBTESTS = """
def test_parts(gpucluster_node, subtests):
    for part in range(3):
        with subtests.test(part=part):
            assert part != 1
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the wheel into a folder of its own; return its PYTHONPATH."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder, ROOT], check=True, timeout=1200, capture_output=True)
    write_bytecode(folder)
    return str(folder)


def run_in(folder: Path, installed: str, *args: object, columns: int = 80) -> Run:
    """Run pytest as an operator types it, without paths of our own."""
    env = {"PYTHONPATH": installed, "COLUMNS": str(columns)}
    return run_pytest(folder, *args, env=env, where=())


def test_a_printed_id_works_from_any_folder_and_is_the_same_everywhere(
    sandbox: Sandbox, tmp_path: Path, installed: str
) -> None:
    sandbox.fault("gpu_missing", "gpu02")
    words = ("-m", "gpu", "-k", "test_count and gpu02", "--junitxml=own.xml")
    run = run_in(tmp_path, installed, on(sandbox), *words)
    (address,) = re.findall(r"^FAILED (\S+)", run.out, re.MULTILINE)
    assert address == "suites/gpu/test_gpu.py::test_count[gpu02]"
    assert set(run.outcomes) == {address}
    assert f"'{address}'" in (tmp_path / "reports" / "latest" / "report.html").read_text().replace("&#39;", "'")
    assert 'classname="suites.gpu.test_gpu"' in (tmp_path / "own.xml").read_text()
    assert f"rootdir: {tmp_path}" in run.out
    assert not list(Path(installed).rglob(".pytest_cache"))
    last = run_in(tmp_path, installed, on(sandbox), "--lf")
    assert set(last.outcomes) == {address}
    elsewhere = tmp_path / "project" / "below"
    elsewhere.mkdir(parents=True)
    (tmp_path / "project" / "pytest.ini").write_text("[pytest]\n")
    for folder in (elsewhere, ROOT / "docs"):
        pasted = run_in(folder, installed, on(sandbox), address, f"--report-dir={tmp_path / 'pasted'}")
        assert pasted.rc == 1, pasted.out + pasted.err
        assert f"{address.partition('[')[0]}" in pasted.out


def test_a_missing_cluster_is_explained(tmp_path: Path, installed: str) -> None:
    assert (
        "no --cluster: to test a cluster: pytest --cluster=NAME -m gpu" in run_in(tmp_path, installed, "-m", "gpu").out
    )
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "prod.yaml").write_text("nodes: gpu01\n")
    assert "pytest --cluster=prod -m 'gpu or os'" in run_in(tmp_path, installed, "-m", "gpu or os").out
    run = run_in(tmp_path, installed, "--pyargs", "pytest_gpucluster.suites")
    assert run.rc == 4
    assert "needs --cluster, the cluster to test: pytest --cluster=prod" in run.err


@pytest.mark.parametrize("ini", ["", "[pytest]\ntestpaths = own\n"])
def test_shipped_suites_and_own_tests_run_together(sandbox: Sandbox, tmp_path: Path, installed: str, ini: str) -> None:
    own = tmp_path / "own" if "own" in ini else tmp_path
    checks = tmp_path / "site" / "checks"
    for folder in (own, checks):
        folder.mkdir(parents=True, exist_ok=True)
    write_suites(own, {"test_site.py": SITE})
    write_suites(checks, {"test_more.py": SITE.replace("test_site", "test_more")})
    if ini:
        (tmp_path / "pytest.ini").write_text(ini)
    path = cluster_file(sandbox, tmp_path, suites=["site/checks"])
    chosen = "test_site or test_more or test_hostname"
    run = run_in(tmp_path, installed, f"--cluster={path}", "-k", chosen, "--nodes=gpu01")
    assert run.rc == 0, run.out + run.err
    checks_run = {event["check"] for event in run.events if event["event"] == "result"}
    assert checks_run == {"site.site", "more.more", "os.hostname"}


def test_fixtures_of_a_module_or_the_session_use_host(sandbox: Sandbox, tmp_path: Path, installed: str) -> None:
    write_suites(tmp_path, {"test_wide.py": WIDE})
    run = run_in(tmp_path, installed, on(sandbox), "test_wide.py", "-n2")
    assert run.rc == 0, run.out + run.err
    assert len(run.outcomes) == 12


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({"test_x.py": SITE}, ("--hosts=ssh://gpu01",), "--hosts: has no effect with --cluster"),
        ({"test_x.py": f"testinfra_hosts = ['gpu01']\n\n\n{SITE}"}, (), "testinfra_hosts of "),
    ],
)
def test_another_choice_of_hosts_is_refused(
    tmp_path: Path, installed: str, files: Mapping[str, str], words: tuple[str, ...], message: str
) -> None:
    write_suites(tmp_path, files)
    run = run_in(tmp_path, installed, "--cluster=local", *words, "test_x.py", columns=200)
    assert run.rc in (2, 4)
    assert message in run.out + run.err


@pytest.mark.skipif(not hasattr(pytest, "SubtestReport"), reason="pytest 9 has subtests")
def test_a_failing_subtest_is_the_failure_of_its_item(tmp_path: Path, installed: str) -> None:
    write_suites(tmp_path, {"test_sub.py": SUBTESTS})
    run = run_in(tmp_path, installed, "--cluster=local", "test_sub.py")
    assert run.rc == 1
    ((_, outcome),) = run.outcomes.items()
    assert outcome == "failed"
    assert run.event("finish")["failed"] == 1
    (case,) = run.cases.values()
    assert "assert 1 != 1" in case.result[0].message
