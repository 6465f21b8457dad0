"""Types of file systems that a server provides, and options of read-only ones, as /proc/mounts names them."""

from __future__ import annotations

NETWORKED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "ceph", "wekafs", "panfs"),
    *("fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs"),
)
# ext4 shows the last two after an error, beside rw (fs/ext4/super.c, _ext4_show_options, Linux 6.15)
READ_ONLY = frozenset({"ro", "emergency_ro", "shutdown"})
# what libc and sh print (strerror(3)): a code, and words of the text
_ERRORS = {
    "no_space": "No space left",
    "over_quota": "quota exceeded",
    "io_error": "Input/output error",
    "read_only": "Read-only",
    "corrupt": "Structure needs cleaning",
    "stale": "Stale",
    "not_connected": "not connected",
    "no_permission": "Permission denied",
    "no_such_file": "No such file",
    "not_installed": "not found",
}
NO_SPACE = ("no_space", "over_quota")
BROKEN = ("io_error", "corrupt")
GONE = ("stale", "not_connected")


def error_code(text: str) -> str:
    """Return the code of what a command printed about an error; '' of an empty text, 'other' of an unknown one."""
    return next((code for code, words in _ERRORS.items() if words in text), "other" if text else "")
