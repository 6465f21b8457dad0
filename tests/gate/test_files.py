"""What another user can have written, and what does not come in time, takes no node out of service."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import is_alive
from sandbox_helpers import wait_for

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import ConfigError, TransportError
from pytest_gpucluster.gate import files
from pytest_gpucluster.gate.baseline import Baseline, encode, read

if TYPE_CHECKING:
    from pathlib import Path

OTHER = 4711
root = pytest.mark.skipif(os.geteuid() != 0, reason="root gives files to other users")


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """A baseline of root's in a folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    path = folder / "prod.baseline"
    path.write_text(encode(Baseline("prod", "run", 1.0)))
    return path


def refused(path: Path, *, own: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, LocalTransport(), own=own)
    return str(caught.value)


def test_a_baseline_of_this_user_is_used_and_a_missing_one_is_empty(baseline: Path) -> None:
    assert read(baseline, LocalTransport(), own=True).cluster == "prod"
    assert read(baseline.with_name("none"), LocalTransport(), own=True) == Baseline()


@root
def test_a_baseline_that_another_user_can_have_written_is_not_used(baseline: Path) -> None:
    baseline.chmod(0o664)
    assert refused(baseline) == f"{baseline} is not used: other users may write to it (mode 0664)"
    baseline.chmod(0o644)
    os.chown(baseline, OTHER, OTHER)
    assert refused(baseline) == f"{baseline} is not used: belongs to another user ({OTHER})"
    assert read(baseline, LocalTransport(), own=False).cluster == "prod", "a job decides for itself alone"
    link = baseline.with_name("link")
    link.symlink_to("/etc/passwd")
    assert "is not used: " in refused(link)
    baseline.parent.chmod(stat.S_IRWXU | stat.S_IRWXO)
    assert "all users may replace files in this folder" in refused(link)


@pytest.mark.parametrize("own", [True, False])
def test_a_pipe_or_a_file_server_that_is_away_holds_no_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    assert refused(pipe, own=own) == f"{pipe} is not used: is no regular file"
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hangs))
    assert refused(pipe, own=own) == f"{pipe} is not used: no answer within 2 s"


@pytest.mark.filterwarnings("ignore")  # nobody waits for it
def test_a_process_that_no_signal_ends_holds_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in the kernel (D) for a file server: SIGKILL has no effect until the server answers."""
    started: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: started.append(pid))
    with pytest.raises(TransportError, match=r"not finished after 0\.1 s"):
        LocalTransport().run(["sleep", "600"], timeout=0.1)
    monkeypatch.undo()
    os.killpg(started[0], signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_gate_ends_with_what_it_has_started(tmp_path: Path, number: int) -> None:
    """Ctrl-C, and SIGTERM as timeout(1) sends it: no shell of a tool that hangs is left."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/pids\nexec sleep 600\n")
    tool.chmod(0o755)
    cluster = tmp_path / "prod.yaml"
    cluster.write_text("nodes: gpu01\nprofile: dgx-a100\nslurm: {partition: batch}\n")
    words = ("--node", "gpu01", "--checks", "gpu.driver", "--budget", "10m", "--folder", f"{tmp_path}/share")
    argv = [sys.executable, "-m", "pytest_gpucluster", "gate", "--cluster", str(cluster), *words]
    (tmp_path / "pids").touch()
    env = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    gate = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (tmp_path / "pids").read_text(), "the tool runs")
    pids = (tmp_path / "pids").read_text().split()
    gate.send_signal(number)
    assert "interrupted" in gate.communicate(timeout=60)[1]
    wait_for(lambda: not any(is_alive(int(pid)) for pid in pids), "nothing of it is left")


assert files.PATIENCE == 2, "the messages above"
