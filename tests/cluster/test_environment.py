"""What a step, an agent and Slurm's commands get of the calling shell, of pytest's interpreter and of the node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpucluster.cluster import environment
from pytest_gpucluster.cluster.environment import (
    SYSTEM_PATH,
    base_environment,
    command_path,
    login_lines,
    session_lines,
    variables,
    without_tool,
)
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config.models import EnvironmentConfig

VENV = "/home/me/venv"
SHELL = {
    "HOME": "/root",
    "USER": "me",
    "PATH": f"{VENV}/bin:/usr/bin:/bin",
    "VIRTUAL_ENV": VENV,
    "PYTHONPATH": "/home/me/tool",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "de_DE.UTF-8",
    "RANK": "3",
    "MASTER_ADDR": "127.0.0.1",
    "http_proxy": "http://proxy:3128",
    "NCCL_DEBUG": "INFO",
    "LD_PRELOAD": "/x.so",
    "SLURM_JOB_ID": "17",
    "SBATCH_PARTITION": "other",
    "SRUN_CPUS_PER_TASK": "4",
    "SLURM_CONF": "/etc/site/slurm.conf",
    "TZ": "UTC",
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "tool_folders", lambda: (f"{VENV}/bin",))


def test_commands_get_identity_locale_and_slurm_conf_only() -> None:
    found = base_environment(SHELL)
    assert set(found) == {*environment.IDENTITY, "LANG", "PATH", "SLURM_CONF", "TZ"}
    assert (found["LANG"], found["SLURM_CONF"]) == ("C.UTF-8", "/etc/site/slurm.conf")
    assert found["PATH"] == SYSTEM_PATH
    assert environment.OF_STEPS["TZ"] is None


@pytest.mark.usefixtures("tool")
def test_the_folder_of_slurm_commands_follows_the_system_folders(tmp_path: Path) -> None:
    empty, slurm, system = (str(tmp_path / name) for name in ("", "slurm/bin", "usr/bin"))
    for folder in (slurm, system):
        Path(folder).mkdir(parents=True)
        Path(folder, "srun").write_text("#!/bin/sh\n")
        Path(folder, "srun").chmod(0o755)
    assert command_path(f"{slurm}:/bin", empty) == f"{empty}:{slurm}"
    assert command_path(f"{slurm}:{system}", system) == f"{slurm}:{system}", "the same srun within a shell"
    assert command_path(f"{system}:{slurm}", system) == system
    assert command_path("", empty) == empty


@pytest.mark.usefixtures("tool")
def test_pass_env_names_what_the_shell_gives_a_step_and_never_passes_the_tool() -> None:
    named = EnvironmentConfig(pass_env=("http_proxy", "NCCL_*", "ABSENT"), exports={"NCCL_DEBUG": "WARN"})
    assert variables(named, SHELL) == {"http_proxy": "http://proxy:3128", "NCCL_DEBUG": "WARN"}
    assert variables(EnvironmentConfig(), SHELL) == variables(None, SHELL) == {}
    passed = EnvironmentConfig(pass_env=("PATH", "VIRTUAL_ENV", "PYTHONPATH"))
    shell = {**SHELL, "PYTHONPATH": f"{VENV}/lib/python3.12/site-packages:/site"}
    assert variables(passed, shell) == {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/site"}


PYENV = "/home/me/.pyenv/versions/3.12.1"


@pytest.mark.parametrize(
    ("prefix", "base", "folders"), [("/opt/venv", "/usr", ("/opt/venv/bin",)), ("/usr", "/usr", ())]
)
def test_a_venv_is_the_tools_and_the_system_is_not(
    monkeypatch: pytest.MonkeyPatch, prefix: str, base: str, folders: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(sys, "base_prefix", base)
    environment.tool_folders.cache_clear()
    assert environment.tool_folders() == folders
    environment.tool_folders.cache_clear()


def test_shims_of_the_tools_interpreter_are_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", PYENV)
    monkeypatch.setattr(sys, "base_prefix", PYENV)
    assert without_tool("PATH", "/home/me/.pyenv/shims:/opt/pyenv/shims:/bin") == "/opt/pyenv/shims:/bin"


def test_a_command_starts_with_the_fixed_umask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    before = os.umask(0o077)
    try:
        answer = LocalTransport().run(["sh", "-c", "umask; echo ${RANK-none}"], timeout=20)
    finally:
        os.umask(before)
    assert answer.stdout == "0022\nnone\n"


@pytest.mark.usefixtures("tool")
def test_a_session_over_ssh_has_a_login_without_the_tool() -> None:
    shown = 'echo "$PATH"; echo "$LANG ${LC_ALL-none} ${VIRTUAL_ENV-none} ${PYTHONPATH-none} $SITE $(umask)"'
    path = f"{VENV}/bin:/opt/site/bin:{VENV}/bin:/usr/bin:/bin"
    given = {**SHELL, "PATH": path, "SITE": "kept", "LD_PRELOAD": ""}
    assert task(f"umask 077\n{session_lines()}", shown, **given).splitlines() == [
        f"/opt/site/bin:/usr/bin:/bin:{SYSTEM_PATH}",
        "C.UTF-8 none none none kept 0022",
    ]


# --- login.sh, with files of this test in place of /etc/profile and /etc/environment

PROFILE = """
echo a greeting; echo >&2 an error
PATH=/opt/site/bin:$PATH:/home/me/venv/bin
export PATH MODULEPATH=/opt/modules NCCL_IB_HCA=mlx5 VIRTUAL_ENV=/home/me/venv LC_ALL=de_DE.UTF-8
export TWO="a
b'c"
readonly TMOUT=900; export TMOUT
"""


@pytest.fixture
def login(tmp_path: Path, tool: None) -> str:
    (tmp_path / "profile").write_text(PROFILE)
    (tmp_path / "environment").write_text('# of PAM\nSITE_PROXY="http://site:3128"\nexport B=2\n0bad=1\n')
    lines = login_lines().replace("/etc/profile", f"{tmp_path}/profile")
    return lines.replace("/etc/environment", f"{tmp_path}/environment")


def task(lines: str, command: str, shell: str = "sh", **given: str) -> str:
    env = {"PATH": f"/prolog:{SYSTEM_PATH}:/slurm/bin", "LANG": "C.UTF-8", **given}
    argv = [shell, "-c", f"{lines}\n{command}"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_task_has_what_a_login_sets_on_its_node(login: str, shell: str) -> None:
    shown = 'echo "$PATH"; echo "$MODULEPATH $SITE_PROXY $B $TMOUT ${VIRTUAL_ENV-none} ${LC_ALL-none}"; echo "$TWO"'
    assert task(login, shown, shell).splitlines() == [
        f"/prolog:/opt/site/bin:{SYSTEM_PATH}:/slurm/bin",
        "/opt/modules http://site:3128 2 900 none none",
        "a",
        "b'c",
    ]


def test_exports_and_the_prolog_take_precedence_over_the_profile(login: str) -> None:
    given = {"PATH": "/mine:/bin", "NCCL_IB_HCA": "mlx5_1", "LC_ALL": "C"}
    assert task(login, 'echo "$PATH $NCCL_IB_HCA $LC_ALL"', **given) == "/mine:/bin mlx5_1 C\n"


@pytest.mark.parametrize("profile", ["exit 3", "sleep 600 &", "if", "exec true", "set -eu; false"])
def test_a_profile_that_fails_neither_changes_nor_delays(login: str, tmp_path: Path, profile: str) -> None:
    (tmp_path / "profile").write_text(f"{profile}\n")
    patient = login.replace("-k 2 30", "-k 2 600")  # above the time that a task has here
    assert task(patient, 'echo "$PATH"; umask') == f"/prolog:{SYSTEM_PATH}:/slurm/bin\n0022\n"


def test_a_profile_that_hangs_is_ended(login: str, tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("sleep 86400\n")
    assert task(login.replace("-k 2 30", "-k 1 1"), "echo here") == "here\n"
