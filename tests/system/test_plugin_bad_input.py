"""Bad input is one line that begins with ERROR:, exit code 4, and nothing is started."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import forked
import pytest
from plugin_helpers import TINY, Run, cluster_file, jobs_so_far, run_pytest, write_suites

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = {"test_tiny.py": TINY}


def refused(run: Run, *words: str) -> None:
    """Check that a run was refused in one line with these words, and that it left nothing behind."""
    assert run.rc == 4, run.out + run.err
    assert len(run.errors) == 1, run.out + run.err
    assert (run.out + run.err).strip() == run.errors[0], "more than one line"
    for word in words:
        assert word in run.errors[0]
    assert not (run.folder / "reports").exists(), "reports of a run that never was"


# tests/config has the table of files, tests/cluster and tests/plugin those of options: here it ends before anything starts
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"nodes: gpu01\nslurm: {partitoin: batch}\n", ("bad.yaml:2", "partitoin", "'partition'")),
        (b"nodes: gpu01\ntransport: {host: no-such.invalid}\n", ("no-such.invalid", "no such host")),
    ],
    ids=["key", "host"],
)
def test_a_bad_cluster_file_is_one_line(tmp_path: Path, text: bytes, words: tuple[str, ...]) -> None:
    (tmp_path / "bad.yaml").write_bytes(text)
    refused(run_pytest(tmp_path, "--cluster=bad.yaml", files=SUITE), *words)


@pytest.mark.parametrize(
    ("option", "keys", "words"),
    [
        ("--time=30", {}, ("--time: '30' has no unit: write 30s, 30m, 30h or 30d",)),
        ("--nodes=gpu[03-09]", {}, ("gpu[05-09]", "gpu[01-04]")),
        ("--set=slurm.partition=fast", {}, ("'fast'", "batch", "debug")),
        ("-q", {"required": ["tiny.*", "gpu.nothing"]}, ("required", "'gpu.nothing'", "the nearest is")),
        ("-q", {"nodes": "old[1-2]"}, ("Slurm knows no node of old[1-2]", "gpu[01-04]")),
        ("-q", {"slurm": {"extra_args": ["--nosuch"]}}, ("slurm.extra_args", "'--nosuch'")),
    ],
)
def test_a_bad_option_or_setting_is_one_line(
    sandbox: Sandbox, tmp_path: Path, option: str, keys: dict[str, Any], words: tuple[str, ...]
) -> None:
    slurm = {"conf": sandbox.env["SLURM_CONF"], **keys.get("slurm", {})}
    before = jobs_so_far(sandbox)
    path = cluster_file(sandbox, tmp_path, **{**keys, "slurm": slurm})
    refused(run_pytest(tmp_path, f"--cluster={path}", option, files=SUITE), *words)
    assert jobs_so_far(sandbox) == before, "a job was started"


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (("--cluster=",), "no cluster is named"),
        (("--nodes=gpu01",), "--nodes"),
        (("--drain=apply",), "--drain: needs --cluster"),
        (("--cluster=local", "--drain=apply"), "has no scheduler"),
    ],
)
def test_a_forgotten_cluster_is_no_green_run_on_this_machine(
    tmp_path: Path, options: tuple[str, ...], printed: str
) -> None:
    stock = "def test_stock(host):\n    assert host.user('root').exists\n"
    refused(run_pytest(tmp_path, *options, files={"test_stock.py": stock}), printed)


OTHERS = """
def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", default="theirs")
    parser.addoption("--profile", dest="prof", action="store_true")


def test_theirs(pytestconfig):
    assert pytestconfig.getoption("slow") is True
    assert pytestconfig.getoption("prof") is True
"""


def test_options_of_another_project_are_left_to_it(tmp_path: Path) -> None:
    write_suites(tmp_path, {"conftest.py": OTHERS, "test_theirs.py": "from conftest import test_theirs\n"})
    argv = [sys.executable, "-m", "pytest", "-q", "--slow", "--profile"]
    done = forked.run(argv, cwd=tmp_path, timeout=1200)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    help_ = forked.run([*argv, "--help"], cwd=tmp_path, timeout=1200)
    assert (help_.returncode, "--resume-passing" in help_.stdout) == (0, True)


def test_an_option_that_another_has_too_is_one_line(tmp_path: Path) -> None:
    files = {"conftest.py": OTHERS, **SUITE}
    refused(run_pytest(tmp_path, "--cluster=local", files=files), "--slow", "another plugin or a conftest.py has it")


def test_an_unreachable_controller_is_one_line_and_soon(sandbox: Sandbox, tmp_path: Path) -> None:
    conf = (sandbox.layout.conf).read_text()
    port = next(line for line in conf.splitlines() if line.startswith("SlurmctldPort="))
    dead = tmp_path / "slurm.conf"
    dead.write_text(conf.replace(port, "SlurmctldPort=1"))
    path = cluster_file(sandbox, tmp_path, slurm={"conf": str(dead)})
    run = run_pytest(tmp_path, f"--cluster={path}", files=SUITE, timeout=1200)
    refused(run, "controller", "SLURM_CONF")
