"""Releases are made of a checkout without changes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from docs_helpers import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_a_checkout_with_changes_is_not_released(tmp_path: Path) -> None:
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\n[ \"$*\" = 'status --porcelain' ] && echo '?? stray.txt'\n")
    git.chmod(0o755)
    (tmp_path / "checkout").mkdir()
    argv, env = [str(ROOT / "tools/release"), sys.executable], {"PATH": f"{git.parent}:{os.environ['PATH']}"}
    place = tmp_path / "checkout"
    done = subprocess.run(argv, cwd=place, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "?? stray.txt" in done.stderr
    assert not list((tmp_path / "checkout").iterdir())
