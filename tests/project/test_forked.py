"""A fork does what a process of its own would do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from sandbox_helpers import environment, wait_for

SHOW = """
import json, os, sys

print(json.dumps([sys.argv[1:], __name__, os.getcwd(), sys.path[0], dict(os.environ)]))
print("on stderr", file=sys.stderr)
sys.exit(3)
"""


def test_a_fork_has_status_streams_folder_and_variables_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    argv = [sys.executable, "-m", "show", "a b", "--c"]
    env = environment(OF_THIS_RUN="1")
    fork = forked.run(argv, cwd=tmp_path, env=env, timeout=60)
    process = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (fork.returncode, fork.stderr) == (process.returncode, process.stderr) == (3, "on stderr\n")
    assert json.loads(fork.stdout) == json.loads(process.stdout)


@pytest.mark.thorough
def test_a_fork_that_does_not_end_is_killed(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(
        "import os, time, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([sys.executable, "-m", "waits"], cwd=tmp_path, timeout=3)
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the fork has ended", 10)
