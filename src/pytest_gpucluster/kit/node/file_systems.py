"""Types of file systems that a server provides, and options of read-only ones, as /proc/mounts names them."""

from __future__ import annotations

NETWORKED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "ceph", "wekafs", "panfs"),
    *("fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs"),
)
# ext4 shows the last two after an error, beside rw (fs/ext4/super.c, _ext4_show_options, Linux 6.15)
READ_ONLY = frozenset({"ro", "emergency_ro", "shutdown"})
