"""Keys of ssh-keygen, and files of allowed signers."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_key(path: Path, passphrase: str = "") -> Path:
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path), check=True)
    return path


def allow(key: Path, who: str = "ops@site", options: str = "") -> Path:
    """Write a file of allowed signers."""
    kind, body, *_ = key.with_suffix(".pub").read_text().split()
    path = key.with_name("signers")
    path.write_text(f"{who} {options} {kind} {body}\n")
    return path
