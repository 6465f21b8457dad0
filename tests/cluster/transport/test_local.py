"""The local transport: deadlines, process groups, counts, and one-line errors."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import is_alive
from sandbox_helpers import wait_for

from pytest_gpucluster.cluster.transport import LocalTransport, kill_group, local
from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from pathlib import Path


def test_run_returns_what_came_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "7")
    script = 'cat; echo "$GIVEN $MORE ${SLURM_NTASKS-gone}"; printf "%s|" "$@"; echo bad >&2; exit 3'
    done = LocalTransport({"GIVEN": "a b"}).run(
        ["sh", "-c", script, "sh", "$HOME", "a;b", "* 'q'"],
        timeout=60,
        input="in\n",
        env={"MORE": "x,y", "SLURM_NTASKS": None},
    )
    assert (done.rc, done.stdout, done.stderr) == (3, "in\na b x,y gone\n$HOME|a;b|* 'q'|", "bad\n")


def test_a_path_for_the_tasks_does_not_choose_another_srun(tmp_path: Path) -> None:
    """`exports: {PATH: ...}` of an environment started the system's srun, or none, where Slurm has its own folder."""
    for name in ("site/srun", "tasks/srun", "tasks/python"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "{name} $PATH"\n')
        program.chmod(0o755)
    transport = LocalTransport({"PATH": f"{tmp_path}/site:/usr/bin:/bin"})
    for path in (f"{tmp_path}/tasks:/bin", "/bin"):
        assert transport.run(["srun"], timeout=60, env={"PATH": path}).stdout == f"site/srun {path}\n"
    reported = transport.run(["python"], timeout=60, env={"PATH": f"{tmp_path}/tasks:/bin"}).stdout
    assert reported.startswith("tasks/python "), "other programs are chosen by it"


def test_a_missing_slurm_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TransportError, match="install Slurm's client tools"):
        LocalTransport().run(["srun", "true"], timeout=60)
    (tmp_path / "sinfo").write_text("no program")
    with pytest.raises(TransportError, match="permission denied"):
        LocalTransport().spawn([str(tmp_path / "sinfo")])


def test_the_whole_group_dies_at_the_deadline_and_starts_are_counted(tmp_path: Path) -> None:
    pid_file, transport = tmp_path / "pid", LocalTransport()
    with pytest.raises(TransportError, match="not finished after"):
        transport.run(["/bin/sh", "-c", f"sleep 300 & echo $! > {pid_file}; wait"], timeout=1)
    pid = int(pid_file.read_text())
    wait_for(lambda: not is_alive(pid), "the grandchild has ended too")
    process = transport.spawn(["sh", "-c", "true"])
    process.wait(60)
    kill_group(process)
    assert transport.started == {"sh": 2}


def test_a_command_of_a_daemon_thread_ends_with_the_process(tmp_path: Path) -> None:
    """A squeue that hung while the nodes were given back outlived a run that SIGTERM ended."""
    note = tmp_path / "pid"
    script = f'''
import threading, time
from pathlib import Path
from pytest_gpucluster.cluster.transport import LocalTransport

class Slow(LocalTransport):
    """The process ends between the start of the command and all that follows it."""

    def spawn(self, argv, *, env=None):
        process = super().spawn(argv, env=env)
        time.sleep(0.1)
        return process

command = ["sh", "-c", "echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000"]
threading.Thread(target=Slow().run, args=(command,), kwargs={{"timeout": 900}}, daemon=True).start()
while not Path({str(note)!r}).exists():
    time.sleep(0.01)
'''
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert not is_alive(int(note.read_text()))


MIB = 1 << 20


@pytest.mark.parametrize("endless", ["cat /dev/zero", "yes >&2"])
def test_endless_output_of_a_command_is_an_error(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_OUTPUT", 4 * MIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TransportError, match="printed more than 4 MiB"):
        LocalTransport().run(["sh", "-c", endless], timeout=1200)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_much_input_and_much_output_go_together() -> None:
    text = "0123456789abcdef" * (MIB // 8)
    assert LocalTransport().run(["cat"], timeout=1200, input=text).stdout == text
    assert LocalTransport().run(["true"], timeout=1200, input=text).rc == 0, "nobody read it"
