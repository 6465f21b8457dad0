"""Shell functions for folders on the nodes that other users can write to, like /tmp. POSIX sh."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

# safe FOLDER: fails if another user can replace files there or in a folder above it. A folder that cannot be entered
# passes: the command that uses it states why. In a user namespace, root may be shown as the overflow user.
# own FOLDER: creates a folder with an unpredictable name in it, and prints its path.
OWN_SH = (
    'safe() ( cd -P -- "$1" 2>/dev/null || exit 0; u=$(id -u); v=0; p=$PWD; set --; '
    'while [ "${p:-/}" != / ]; do set -- "$@" "$p"; p=${p%/*}; done; '
    'read -r _ _ n </proc/self/uid_map; [ "$n" = 4294967295 ] || read -r v </proc/sys/kernel/overflowuid; '
    'LC_ALL=C ls -ldn -- "$@" | while read -r m _ o _; do '
    'case $o in (0|"$u"|"$v");; (*) echo "a folder of $PWD belongs to another user ($o)" >&2; exit 1;; esac; '
    'case $m in (????????w[!tT]*) echo "all users may replace files in $PWD ($m)" >&2; exit 1;; esac; done ); '
    'own() { safe "$1" && mktemp -d "$1/gpucluster.XXXXXXXXXX"; }; '
)


def make_command(path: str) -> str:
    """Return the command that creates this folder, or accepts that of this user: nodes may share the file system."""
    place, folder = shlex.quote(str(PurePosixPath(path).parent)), shlex.quote(path)
    return (
        f"{OWN_SH}safe {place} || exit; mkdir -m 700 {folder} 2>/dev/null && exit; "
        f"[ ! -L {folder} ] && [ -d {folder} ] && [ -O {folder} ] || mkdir -m 700 {folder}"
    )


def remove_command(*folders: str) -> str:
    """Return the command that removes these folders of this user; a link, or a folder of another user, stays.

    A word may be a pattern of sh.
    """
    return f'for f in {" ".join(folders)}; do [ -L "$f" ] || [ ! -O "$f" ] || rm -rf -- "$f"; done'
