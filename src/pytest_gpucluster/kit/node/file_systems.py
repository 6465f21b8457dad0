"""Types of file systems that a server provides, as /proc/mounts names them."""

from __future__ import annotations

NETWORKED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "ceph", "wekafs", "panfs"),
    *("fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs"),
)
