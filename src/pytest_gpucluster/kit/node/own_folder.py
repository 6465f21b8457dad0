"""Shell functions for folders on the nodes that other users can write to, like /tmp. POSIX sh."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from pytest_gpucluster.core.scripts import script

# `safe FOLDER` and `own FOLDER`
OWN_SH = script(__package__, "own_folder.sh") + "\n"


def make_command(path: str) -> str:
    """Return the command that creates this folder, or accepts that of this user: nodes may share the file system."""
    parent, folder = shlex.quote(str(PurePosixPath(path).parent)), shlex.quote(path)
    return (
        f"{OWN_SH}safe {parent} || exit; mkdir -m 700 {folder} 2>/dev/null && exit; "
        f"[ ! -L {folder} ] && [ -d {folder} ] && [ -O {folder} ] || mkdir -m 700 {folder}"
    )


def remove_command(*folders: str) -> str:
    """Return the command that removes these folders of this user; a link, or a folder of another user, stays.

    A word may be a pattern of sh.
    """
    return f'for f in {" ".join(folders)}; do [ -L "$f" ] || [ ! -O "$f" ] || rm -rf -- "$f"; done'
