"""The mark of a run: only a process that is gone from this very place counts as dead."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core import run_mark as runmark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(("kind", "suffix"), [("", ""), ("diagnostic", "1a2b3c4d"), ("", "1a2b3c4d"), ("submitit", "")])
def test_a_name_holds_the_mark_of_its_run(kind: str, suffix: str) -> None:
    name = runmark.name_of_run(kind, suffix)
    assert name == "-".join(filter(None, ("gpucluster", kind, runmark.mark_of(os.getpid()), suffix)))
    assert runmark.mark_in(name) == runmark.mark_of(os.getpid())
    assert runmark.process_of(runmark.mark_in(name)) == os.getpid()
    assert runmark.is_running(runmark.mark_in(name)) is True
    foreign = (*FOREIGN.split(), "gpucluster-1a2b3c4d-12-34-5678\n", "")
    assert [one for one in foreign if runmark.mark_in(one)] == []


FOREIGN = """
gpucluster gpucluster-diagnostic-1a2b3c4d gpucluster-12-1a2b3c4d gpucluster-kept-1a2b3c4d-1a2b3c4d
gpucluster-1a2b3c4d-12-34x gpucluster-1a2b3c4d-12-34- gpucluster-1a2b3c4d-12 my-gpucluster-1a2b3c4d-12-34
gpucluster-a-b-1a2b3c4d-12-34 gpucluster-1a2b3c4-12-34 gpucluster-1a2b3c4d--34
"""


def test_a_run_is_dead_once_its_process_is(other: subprocess.Popen[bytes]) -> None:
    mark = runmark.mark_of(other.pid)
    assert runmark.is_running(mark) is True
    other.send_signal(signal.SIGSTOP)
    assert runmark.is_running(mark) is True
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert runmark.is_running(mark) is False  # nobody has taken note of its end yet
    other.wait()
    assert runmark.is_running(mark) is False


def test_what_cannot_be_seen_from_here_is_unknown(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, pid, start = runmark.mark_of(other.pid).split("-")
    elsewhere = f"{int(place, 16) ^ 1:08x}"
    assert runmark.is_running(f"{elsewhere}-{pid}-{start}") is None
    assert runmark.is_running(f"{place}-{pid}-{int(start) - 1}") is False  # the number was given away again
    assert runmark.is_running(f"{place}-{'9' * 30}-{start}") is None

    def refused(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert runmark.is_running(f"{place}-{pid}-{start}") is None


def proc(folder: Path, *, boot: str = "b", space: str = "pid:[1]", pid: int | None = None) -> Path:
    number = str(pid or os.getpid())
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(boot)
    (folder / number / "ns").mkdir(parents=True)
    (folder / number / "ns/pid").symlink_to(space)
    (folder / number / "stat").write_text(f"{number} (a) b) S {' '.join(map(str, range(4, 40)))}")
    (folder / "self").symlink_to(number)
    return folder


def test_a_place_is_one_boot_and_one_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for number, (boot, space) in enumerate((("b", "pid:[1]"), ("b", "pid:[1]"), ("c", "pid:[1]"), ("b", "pid:[2]"))):
        monkeypatch.setattr(runmark, "PROC", proc(tmp_path / str(number), boot=boot, space=space))
        places.append(runmark.mark_of(os.getpid()).partition("-")[0])
    assert places[0] == places[1]
    assert len(set(places)) == 3
    assert runmark.name_of_run() == f"gpucluster-{places[3]}-{os.getpid()}-22"
    assert runmark.is_running(f"{places[3]}-{os.getpid()}-22") is True
    assert runmark.is_running(f"{places[0]}-{os.getpid()}-22") is None
    assert runmark.is_running(f"{places[3]}-{os.getppid()}-22") is None  # hidden (hidepid, proc(5))


def test_without_its_own_proc_a_name_has_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getpid() + 1
    for folder in (tmp_path / "none", proc(tmp_path / "foreign", pid=other)):
        mark = runmark.mark_of(os.getpid()) or "1a2b3c4d-1-2"
        monkeypatch.setattr(runmark, "PROC", folder)
        assert runmark.name_of_run("diagnostic", "1a2b3c4d") == "gpucluster-diagnostic-1a2b3c4d"
        assert runmark.is_running(mark) is None
