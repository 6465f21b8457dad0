"""What fails on many nodes, or cannot be counted, takes no node out of service."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.gate.breaker import Breaker

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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
    for node in ("gpu01", "gpu02"):
        breaker(tmp_path, node).why_open("os.mounts")
        old = time.time() - 3700
        os.utime(tmp_path / "os.mounts" / node, (old, old))
    assert breaker(tmp_path, "gpu03").why_open("os.mounts") == ""


def test_without_a_folder_nothing_is_taken_out_of_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "gate.state" in breaker(None, "gpu01").why_open("os.mounts")
    (tmp_path / "file").write_text("")
    assert "cannot be used" in breaker(tmp_path / "file", "gpu01").why_open("os.mounts")

    def away(*_: Any, **__: Any) -> None:
        raise TransportError("no end within 2 s")

    one = breaker(tmp_path, "gpu01")
    monkeypatch.setattr(one.transport, "run", away)
    assert one.why_open("os.mounts") == f"{tmp_path} does not answer within 2 s"


def test_a_folder_where_every_user_can_put_a_link_is_not_used(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    open_to_all = tmp_path / "state"
    (open_to_all / "os.mounts").mkdir(parents=True)
    (open_to_all / "os.mounts" / "gpu01").symlink_to(victim)
    open_to_all.chmod(0o777)
    assert "all users may" in breaker(open_to_all, "gpu01").why_open("os.mounts")
    (tmp_path / "link").symlink_to(tmp_path)
    assert "cannot be used: it is a link" in breaker(tmp_path / "link", "gpu01").why_open("os.mounts")
    assert victim.read_text() == "precious"
