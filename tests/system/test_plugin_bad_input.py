"""Bad input is one line that begins with ERROR:, exit code 4, and nothing is started."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import forked
import pytest
from plugin_helpers import TINY, Run, cluster_file, jobs_so_far, on, run_pytest, write_suites

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = {"test_tiny.py": TINY}
RUBBISH = random.Random(1).randbytes(4096)


def refused(run: Run, *words: str) -> None:
    """Check that a run was refused in one line with these words, and that it left nothing behind."""
    assert run.rc == 4, run.out + run.err
    assert len(run.errors) == 1, run.out + run.err
    assert (run.out + run.err).strip() == run.errors[0], "more than one line"
    for word in words:
        assert word in run.errors[0]
    assert not (run.folder / "reports").exists(), "reports of a run that never was"


FILES = {
    "unknown key": ("nodes: gpu01\nslurm: {partitoin: batch}\n", ("bad.yaml:2", "partitoin", "'partition'")),
    "wrong type": ("nodes: gpu01\nsudo: perhaps\n", ("bad.yaml:2", "sudo")),
    "duplicate key": ("nodes: gpu01\nname: a\nname: b\n", ("bad.yaml:3", "name")),
    "tabs": ("nodes: gpu01\nslurm:\n\tpartition: batch\n", ("bad.yaml:3", "tab")),
    "huge hostlist": ("nodes: gpu[000000000-999999999]\n", ("bad.yaml:1", "nodes")),
    "no hostlist": ("nodes: 'gpu[01-'\n", ("bad.yaml:1", "nodes")),
    "empty": ("", ("bad.yaml", "empty")),
    "no nodes": ("name: lab\n", ("bad.yaml", "nodes")),
    "unknown profile": ("nodes: gpu01\nprofile: dgx-h10\n", ("bad.yaml:2", "dgx-h100")),
    "a list": ("- nodes\n", ("bad.yaml:1",)),
    "python object": ("nodes: !!python/object/apply:os.system [true]\n", ("bad.yaml:1",)),
    "ssh": (
        "nodes: gpu01\ntransport: {kind: ssh, host: no-such.invalid}\n",
        ("no-such.invalid", "no such host"),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_cluster_file_is_one_line(tmp_path: Path, kind: str) -> None:
    text, words = FILES[kind]
    refused(run_pytest(tmp_path, "--cluster=bad.yaml", files={**SUITE, "bad.yaml": text}), *words)


def test_binary_rubbish_and_folders_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "rubbish.yaml").write_bytes(RUBBISH)
    (tmp_path / "folder.yaml").mkdir()
    refused(run_pytest(tmp_path, "--cluster=rubbish.yaml", files=SUITE), "rubbish.yaml")
    refused(run_pytest(tmp_path, "--cluster=folder.yaml"), "folder.yaml")


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_an_unknown_name_says_what_there_is(tmp_path: Path, workers: tuple[str, ...]) -> None:
    refused(run_pytest(tmp_path, "--cluster=locla", *workers, files=SUITE), "'local'", "sandbox")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--time=soon",), ("--time", "soon")),
        (("--time=30",), ("--time: '30' has no unit: write 30s, 30m, 30h or 30d",)),
        (("--nodes=gpu[01",), ("--nodes", "gpu[01")),
        (("--nodes=gpu[03-09]",), ("gpu[05-09]", "gpu[01-04]")),
        (("--exclude-nodes=gpu[01-04]",), ("--exclude-nodes", "gpu[01-04]")),
        (("--set=slurm.partition=fast",), ("'fast'", "batch", "debug")),
        (("--profile=h20",), ("h20",)),
        (("--report-dir=test_tiny.py",), ("test_tiny.py",)),
    ],
)
def test_a_bad_option_is_one_line(
    sandbox: Sandbox, tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    before = jobs_so_far(sandbox)
    refused(run_pytest(tmp_path, on(sandbox), *options, files=SUITE), *words)
    assert jobs_so_far(sandbox) == before, "a job was started"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"required": ["tiny.*", "gpu.nothing_like_this"]},
            ("required", "'gpu.nothing_like_this'", "'gpu.nvlink_state'"),
        ),
        ({"nodes": "old[1-2]"}, ("Slurm knows no node of old[1-2]", "gpu[01-04]")),
        ({"slurm": {"extra_args": ["--exclusive", "--nosuch"]}}, ("slurm.extra_args", "'--nosuch'")),
        ({"slurm": {"bin": "/nowhere"}}, ("slurm.bin", "/nowhere")),
    ],
)
def test_a_setting_that_means_nothing_is_one_line(
    sandbox: Sandbox, tmp_path: Path, keys: dict[str, Any], words: tuple[str, ...]
) -> None:
    if "slurm" in keys:
        keys = {"slurm": {"conf": sandbox.env["SLURM_CONF"], **keys["slurm"]}}
    before = jobs_so_far(sandbox)
    path = cluster_file(sandbox, tmp_path, **keys)
    refused(run_pytest(tmp_path, f"--cluster={path}", files=SUITE), *words)
    assert jobs_so_far(sandbox) == before, "a job was started"


def test_less_than_no_worker_is_one_line(tmp_path: Path) -> None:
    refused(run_pytest(tmp_path, "--cluster=local", "-n", "-3", files=SUITE), "-n -3")


def test_a_pattern_of_no_suite_ends_the_run_before_nodes_are_asked_for(tmp_path: Path) -> None:
    text = "nodes: localhost\nslurm: {scheduler: none}\nrequired: [tiny.*, tony.named]\n"
    run = run_pytest(tmp_path, "--cluster=lab.yaml", files={**SUITE, "lab.yaml": text})
    assert run.rc == 4, run.out + run.err
    assert run.errors == [
        "ERROR: cluster lab: required: 'tony.named' matches no check; the nearest is 'tiny.named'"
    ]
    assert run.outcomes == {}


@pytest.mark.parametrize(
    ("option", "printed"),
    [
        ("--cluster=", "no cluster is named"),
        ("--nodes=gpu01", "--nodes"),
        ("--time=3m", "--time: needs --cluster"),
        ("--slow", "--slow: needs --cluster"),
    ],
)
def test_a_forgotten_cluster_is_no_green_run_on_this_machine(
    tmp_path: Path, option: str, printed: str
) -> None:
    stock = "def test_stock(host):\n    assert host.user('root').exists\n"
    refused(run_pytest(tmp_path, option, files={"test_stock.py": stock}), printed)


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
    refused(
        run_pytest(tmp_path, "--cluster=local", files=files),
        "--slow",
        "another plugin or a conftest.py has it",
    )


def test_a_partition_of_the_file_that_is_not_there_is_one_line(sandbox: Sandbox, tmp_path: Path) -> None:
    path = cluster_file(
        sandbox,
        tmp_path,
        slurm={"conf": sandbox.env["SLURM_CONF"]},
        nodes=None,
        groups=[{"nodes": "gpu01"}, {"nodes": "gpu02", "partition": "fast"}],
    )
    before = jobs_so_far(sandbox)
    refused(run_pytest(tmp_path, f"--cluster={path}", files=SUITE), "'fast'", "does not exist", "batch")
    assert jobs_so_far(sandbox) == before


def test_an_unreachable_controller_is_one_line_and_soon(sandbox: Sandbox, tmp_path: Path) -> None:
    conf = (sandbox.layout.conf).read_text()
    port = next(line for line in conf.splitlines() if line.startswith("SlurmctldPort="))
    dead = tmp_path / "slurm.conf"
    dead.write_text(conf.replace(port, "SlurmctldPort=1"))
    path = cluster_file(sandbox, tmp_path, slurm={"conf": str(dead)})
    run = run_pytest(tmp_path, f"--cluster={path}", files=SUITE, timeout=1200)
    refused(run, "controller", "SLURM_CONF")


def test_no_slurm_commands_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("nodes: gpu01\n")
    run = run_pytest(tmp_path, "--cluster=lab.yaml", files=SUITE, env={"PATH": str(tmp_path)})
    refused(run, "scontrol", "install Slurm's client tools")


def test_a_slurm_command_that_fails_is_one_line(tmp_path: Path) -> None:
    tool = tmp_path / "scontrol"
    tool.write_text("#!/bin/sh\nprintf 'scontrol: error: \\033[31mno\\nway\\n' >&2; exit 1\n")
    tool.chmod(0o755)
    (tmp_path / "lab.yaml").write_text("nodes: gpu01\n")
    run = run_pytest(tmp_path, "--cluster=lab.yaml", files=SUITE, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    refused(run, "scontrol", "no")
    assert "\x1b" not in run.out + run.err


def test_an_account_that_slurm_refuses_ends_the_run_with_its_words(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), "--set=slurm.reservation=none-such", files=SUITE)
    assert run.rc == 4
    (error,) = run.errors
    assert error.startswith("ERROR: no nodes: salloc of gpu[01-04] in partition batch: ")
    assert run.out.count("Requested reservation is invalid") == 1
    assert "ACCEPTED" not in run.out
    assert run.outcomes == {}
