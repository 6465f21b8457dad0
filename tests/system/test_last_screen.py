"""What an operator sees, pastes and keeps: real runs of the installed package from a folder without a project."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import forked
import pytest
from paths import ROOT
from plugin_helpers import Run, cluster_file, completion_request, on, run_pytest, write_bytecode, write_suites
from sandbox_helpers import environment

from pytest_gpucluster.report.last_screen import HEIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.sandbox import Sandbox

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SITE = "def test_site(gpucluster_node):\n    assert gpucluster_node.name\n"
EQUAL = "def test_release(host):\n    assert host.run('nproc').rc == 7\n"
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
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        folder,
        ROOT,
    ]
    subprocess.run(list(map(str, argv)), check=True, timeout=300, capture_output=True)
    write_bytecode(folder)
    return str(folder)


@pytest.fixture
def missing_gpus(sandbox: Sandbox) -> Iterator[None]:
    for node in sandbox.nodes:
        sandbox.fault("gpu_missing", node)
    yield
    for node in sandbox.nodes:
        sandbox.heal(node)


def run_in(folder: Path, installed: str, *args: object, columns: int = 80) -> Run:
    """Run pytest as an operator types it, without paths of our own."""
    env = {"PYTHONPATH": installed, "COLUMNS": str(columns)}
    return run_pytest(folder, *args, env=env, where=())


def state_of(folder: Path) -> dict[str, tuple[float, str]]:
    """Return time and content of all below a folder."""
    return {
        str(path): (path.lstat().st_mtime, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    } | {"latest": (0.0, str((folder / "latest").readlink()))}


@pytest.mark.usefixtures("missing_gpus")
def test_equal_failures_are_one_block_and_one_line(sandbox: Sandbox, tmp_path: Path, installed: str) -> None:
    run = run_in(tmp_path, installed, on(sandbox), "-m", "gpu", "-k", "test_count")
    assert run.rc == 1, run.out + run.err
    assert run.out.count("likely cause:") == 1
    assert len(re.findall(r"^FAILED ", run.out, re.MULTILINE)) == 1
    assert re.search(r"^_+ gpu.count on 4 nodes: gpu\[01-04\] _+$", run.out, re.MULTILINE)
    assert re.search(
        r"^gpu.count on 4 nodes: gpu\[01-04\]: GPUs: measured \d, expected \d$", run.out, re.MULTILINE
    )
    assert re.search(r"1 failed, .*3 failed alike", run.out)
    screen = run.out[run.out.rindex(" in ", 0, run.out.index("NOT ACCEPTED")) :].splitlines()[1:]
    # what all nodes fail alike is a finding of the cluster
    assert screen[0].startswith("NOT ACCEPTED: 0 of 4 nodes (4 not proved)")
    assert any(re.match(r"  gpu\[01-04\]  gpu.count  GPUs: \d, expected \d", line) for line in screen)
    assert "configure:" in screen
    assert screen[-1].startswith("reports: reports/")
    assert len(screen) <= HEIGHT + 1
    again = next(line for line in run.out.splitlines() if line.startswith("rerun:")).partition("pytest ")[2]
    pasted = run_in(tmp_path, installed, *shlex.split(again))
    assert "1 failed, 3 failed alike" in pasted.out
    verbose = run_in(tmp_path, installed, on(sandbox), "-m", "gpu", "-k", "test_count", "-v")
    assert verbose.out.count("likely cause:") == 4
    assert "metric" in verbose.out


@pytest.mark.usefixtures("missing_gpus")
def test_a_printed_id_works_from_any_folder_and_is_the_same_everywhere(
    sandbox: Sandbox, tmp_path: Path, installed: str
) -> None:
    run = run_in(
        tmp_path, installed, on(sandbox), "-m", "gpu", "-k", "test_count and gpu02", "--junitxml=own.xml"
    )
    (address,) = re.findall(r"^FAILED (\S+)", run.out, re.MULTILINE)
    assert address == "suites/gpu/test_gpu.py::test_count[gpu02]"
    assert set(run.outcomes) == {address}
    assert f"'{address}'" in (tmp_path / "reports" / "latest" / "report.html").read_text().replace(
        "&#39;", "'"
    )
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


def test_a_run_without_items_leaves_the_reports_as_they_were(
    sandbox: Sandbox, tmp_path: Path, installed: str
) -> None:
    first = run_in(tmp_path, installed, on(sandbox), "-k", "test_hostname", "--nodes=gpu01")
    assert first.rc == 0, first.out + first.err
    before = state_of(tmp_path / "reports")
    for words in (
        ("-m", "gpuu"),
        ("no-such-file.py",),
        ("-k", "nothing_like_this"),
        ("--cache-show",),
        ("--setup-plan", "-k", "test_hostname"),
        ("--fixtures-per-test", "-k", "test_hostname"),
        ("--set=slurm.reservation=none", "-k", "test_hostname"),
        ("--set=reports.keep=0",),
    ):
        run = run_in(tmp_path, installed, on(sandbox), *words)
        assert "Traceback" not in run.out + run.err
        assert state_of(tmp_path / "reports") == before, words
    names = {path.name for path in (tmp_path / "reports").iterdir()}
    last = run_in(
        tmp_path, installed, on(sandbox), "-k", "test_hostname", "--nodes=gpu01", "--set=reports.keep=1"
    )
    gone, *links = sorted(names)
    assert f"reports of 1 old run removed (reports.keep: 1): {gone}" in last.out
    assert {path.name for path in (tmp_path / "reports").iterdir()} > set(links)
    assert len(list((tmp_path / "reports").iterdir())) == 3
    assert (tmp_path / "reports" / "latest").readlink().name not in names


def test_a_missing_cluster_is_explained(tmp_path: Path, installed: str) -> None:
    assert (
        "no --cluster: to test a cluster: pytest --cluster=NAME -m gpu"
        in run_in(tmp_path, installed, "-m", "gpu").out
    )
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "prod.yaml").write_text("nodes: gpu01\n")
    assert "pytest --cluster=prod -m 'gpu or os'" in run_in(tmp_path, installed, "-m", "gpu or os").out
    for words in (
        ("--pyargs", "pytest_gpucluster.suites"),
        (str(Path(installed) / "pytest_gpucluster" / "suites"),),
    ):
        run = run_in(tmp_path, installed, *words)
        assert run.rc == 4
        assert "needs --cluster, the cluster to test: pytest --cluster=prod" in run.err


def test_a_project_without_clusters_has_none_of_our_markers(tmp_path: Path, installed: str) -> None:
    write_suites(tmp_path, {"test_x.py": "import pytest\n\n@pytest.mark.gpu\ndef test_x():\n    pass\n"})
    run = run_in(tmp_path, installed, "--strict-markers")
    assert "'gpu' not found in `markers`" in run.out
    (tmp_path / "clusters").mkdir()
    assert run_in(tmp_path, installed, "--strict-markers").rc == 0


@pytest.mark.parametrize("ini", ["", "[pytest]\n", "[pytest]\ntestpaths = own\n"])
def test_shipped_suites_and_own_tests_run_together(
    sandbox: Sandbox, tmp_path: Path, installed: str, ini: str
) -> None:
    own = tmp_path / "own" if "own" in ini else tmp_path
    checks = tmp_path / "site" / "checks"
    for folder in (own, checks):
        folder.mkdir(parents=True, exist_ok=True)
    write_suites(own, {"test_site.py": SITE})
    write_suites(checks, {"test_more.py": SITE.replace("test_site", "test_more")})
    if ini:
        (tmp_path / "pytest.ini").write_text(ini)
    path = cluster_file(sandbox, tmp_path, suites=["site/checks"])
    run = run_in(
        tmp_path,
        installed,
        f"--cluster={path}",
        "-k",
        "test_site or test_more or test_hostname",
        "--nodes=gpu01",
    )
    assert run.rc == 0, run.out + run.err
    checks_run = {event["check"] for event in run.events if event["event"] == "result"}
    assert checks_run == {"site.site", "more.more", "os.hostname"}
    missing = cluster_file(sandbox, tmp_path, suites=["nowhere"])
    run = run_in(tmp_path, installed, f"--cluster={missing}", "-k", "test_site")
    assert run.rc == 4
    assert "nowhere is not a folder" in run.err


def test_own_tests_with_equal_assertions_are_grouped(
    sandbox: Sandbox, tmp_path: Path, installed: str
) -> None:
    write_suites(tmp_path, {"test_equal.py": EQUAL})
    run = run_in(tmp_path, installed, on(sandbox), "test_equal.py")
    assert len(re.findall(r"^FAILED ", run.out, re.MULTILINE)) == 1
    assert "equal.release on 4 nodes: gpu[01-04]" in run.out
    assert "def test_release(host):" in run.out  # with the traceback of one
    assert re.search(r"^reproduce: .*srun -N1 -w gpu01 .*nproc", run.out, re.MULTILINE)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_fixtures_of_a_module_or_the_session_use_host(
    sandbox: Sandbox, tmp_path: Path, installed: str, workers: tuple[str, ...]
) -> None:
    write_suites(tmp_path, {"test_wide.py": WIDE})
    run = run_in(tmp_path, installed, on(sandbox), "test_wide.py", *workers)
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


def gpucluster(
    sandbox: Sandbox, folder: Path, installed: str, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the installed command as an operator of this Slurm."""
    env = environment(PYTHONPATH=installed, SLURM_CONF=sandbox.env["SLURM_CONF"], COLUMNS="80", **more)
    argv = [sys.executable, "-m", "pytest_gpucluster", *words]
    return forked.run(argv, cwd=folder, env=env, timeout=120)


def test_the_installed_command_drafts_checks_and_validates(
    sandbox: Sandbox, tmp_path: Path, installed: str
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return gpucluster(sandbox, tmp_path, installed, *words)

    state = f"--state-dir={sandbox.layout.root}"
    fault = run("sandbox", "fault", "time_not_synchronised", "gpu[03-04]", state)
    assert fault.stdout.startswith("gpu[03-04]: "), fault.stderr
    sandbox.heal("gpu[03-04]")
    draft = run("init", "--from-nodes", "--name", "drafted")
    assert draft.returncode == 0, draft.stderr
    text = (tmp_path / "clusters" / "drafted.yaml").read_text()
    assert re.search(r"^  release: .*# 4 of 4 nodes$", text, re.MULTILINE), text
    assert run("check", "drafted").returncode == 0
    (tmp_path / "wrong.yaml").write_text("nodes: gpu01\nslurm: {time: 0}\nsudo: maybe\n")
    wrong = run("check", "wrong.yaml")
    assert wrong.returncode == 4
    assert {
        line.split(": ")[0] for line in (wrong.stdout + wrong.stderr).splitlines() if "wrong.yaml:" in line
    } >= {
        "wrong.yaml:2",
        "wrong.yaml:3",
    }
    assert json.loads(run("profiles", "--json").stdout)
    assert run("man").stdout.startswith(".TH ")
    assert run("examples", "copied").returncode == 0
    assert (tmp_path / "copied" / "Jenkinsfile").is_file()
    words = tmp_path / "words"
    gpucluster(sandbox, tmp_path, installed, **completion_request("gpucluster check dr", words))
    assert words.read_text().split() == ["drafted"]
    accepted = run_in(tmp_path, installed, "--cluster=drafted", "-m", "os")
    assert "no expectation in the cluster file" in accepted.out


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: `make packages` installs it")
@pytest.mark.usefixtures("missing_gpus")
def test_the_page_of_a_run_is_printed_on_few_pages(sandbox: Sandbox, tmp_path: Path, installed: str) -> None:
    run_in(tmp_path, installed, on(sandbox), "-m", "gpu or os or slurm")
    page = tmp_path / "reports" / "latest" / "report.html"
    argv = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--print-to-pdf={tmp_path / 'x.pdf'}",
        str(page),
    ]
    subprocess.run(list(map(str, argv)), check=True, timeout=120, capture_output=True)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "x.pdf").read_bytes())) <= 4
