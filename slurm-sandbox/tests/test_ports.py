"""Free ports, reserved by a lock that no other user can take the place of."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from slurm_sandbox import ports
from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"slurm-sandbox-ports-{os.getuid()}.lock"


def test_reserved_ports_are_free_and_consecutive(lock: Path) -> None:
    with ports.reserve(5) as first:
        assert ports.FIRST <= first <= ports.LAST - 5
        assert lock.stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_place_of_the_lock_is_refused(lock: Path) -> None:
    target = lock.with_name("target")
    lock.symlink_to(target)
    with pytest.raises(SandboxError, match="remove it, or set TMPDIR"), ports.reserve(1):
        pass
    assert not target.exists()


def test_a_lock_of_another_user_is_refused(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.touch()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    lock.rename(lock.with_name(f"slurm-sandbox-ports-{other}.lock"))
    with pytest.raises(SandboxError, match="not a plain file of this user's own"), ports.reserve(1):
        pass
