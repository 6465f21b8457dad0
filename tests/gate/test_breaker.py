"""What fails on many nodes, or cannot be counted, takes no node out of service."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.gate import files
from pytest_gpucluster.gate.breaker import Breaker


def breaker(folder: Path | None, node: str, most: int = 2) -> Breaker:
    return Breaker(str(folder) if folder else None, node, most, LocalTransport())


def test_the_third_node_with_the_same_failure_stays_in_service(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "state"
    assert [breaker(folder, f"gpu0{n}").why_open("os.mounts") for n in (1, 2, 1, 2)] == [""] * 4
    assert breaker(folder, "gpu03").why_open("os.mounts") == (
        "3 nodes fail os.mounts within 60 min, gate.max_failing is 2: a common cause"
    )
    assert breaker(folder, "gpu01").why_open("os.mounts"), "now it is known to be a common cause"
    assert breaker(folder, "gpu03").why_open("gpu.count") == "", "another check"


def test_what_failed_long_ago_does_not_count(tmp_path: Path) -> None:
    tmp_path /= "state"
    for node in ("gpu01", "gpu02"):
        breaker(tmp_path, node).why_open("os.mounts")
        old = time.time() - 3700
        os.utime(tmp_path / "os.mounts" / node, (old, old))
    assert breaker(tmp_path, "gpu03").why_open("os.mounts") == ""


@pytest.mark.parametrize("ahead", [7200, -7200])
def test_file_servers_clock_is_unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """The marks of a server have its times, two hours beside those of the nodes."""
    plain = os.lstat

    def lstat(path: str) -> SimpleNamespace:
        found = plain(path)
        return SimpleNamespace(st_mode=found.st_mode, st_uid=found.st_uid, st_mtime=found.st_mtime + ahead)

    monkeypatch.setattr(os, "lstat", lstat)
    assert [files.mark(tmp_path / "state", "os.mounts", f"gpu0{n}", 3600) for n in (1, 2, 3)] == [1, 2, 3]


def test_an_uncountable_mark_leaves_all_in_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = breaker(tmp_path / "state", "gpu01")
    for rc, out in ((files.MISSING, ""), (0, "0\n"), (0, ""), (0, "x"), (1, "1\n"), (-9, "1\n")):
        monkeypatch.setattr(one.transport, "run", lambda *_, rc=rc, out=out, **__: Completed((), rc, out, "", 0.0))
        assert "cannot be used" in one.why_open("os.mounts")


OTHER = 4711
Change = Callable[[Path], object]


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives files to other users")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.chmod(0o770), "other users may write to it (mode 0770)"),
        (lambda state: (state / "os.mounts").chmod(0o777), "all users may replace files"),
        (lambda state: (state / "os.mounts").chmod(0o1777), "other users may write to it (mode 1777)"),
        (lambda state: os.chown(state, OTHER, 0), f"belongs to another user ({OTHER})"),
        (lambda state: os.chown(state / "os.mounts" / "gpu02", OTHER, 0), f"belongs to another user ({OTHER})"),
        (lambda state: (state / "os.mounts" / "gpu03").symlink_to("/etc/passwd"), "mode 0777"),
        (
            lambda state: (state / "os.mounts").rename(state / "a") and (state / "os.mounts").symlink_to("a"),
            "is a link",
        ),
    ],
)
def test_a_folder_of_others_leaves_all_in_service(tmp_path: Path, change: Change, words: str) -> None:
    state = tmp_path / "state"
    assert breaker(state, "gpu02").why_open("os.mounts") == ""
    change(state)
    assert words in breaker(state, "gpu01").why_open("os.mounts")


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives files to other users")
def test_a_path_through_a_link_of_another_user_takes_nothing_out_of_service(tmp_path: Path) -> None:
    (tmp_path / "there" / "state").mkdir(parents=True, mode=0o700)
    link = tmp_path / "shared"
    link.symlink_to("there")
    assert breaker(link / "state", "gpu01").why_open("os.mounts") == ""
    os.chown(link, OTHER, 0, follow_symlinks=False)
    assert "is a link of another user" in breaker(link / "state", "gpu01").why_open("os.mounts")


def test_without_a_folder_nothing_leaves_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gate.state" in breaker(None, "gpu01").why_open("os.mounts")
    (tmp_path / "file").write_text("")
    assert "cannot be used" in breaker(tmp_path / "file", "gpu01").why_open("os.mounts")

    def away(*_: Any, **__: Any) -> None:
        raise TransportError("no end within 2 s")

    one = breaker(tmp_path, "gpu01")
    monkeypatch.setattr(one.transport, "run", away)
    assert one.why_open("os.mounts") == f"{tmp_path} does not answer within 2 s"
