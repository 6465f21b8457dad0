"""Mounts of the tested paths: the longest mount point holds a path; what is escaped and what is no mount."""

from __future__ import annotations

import shlex

import pytest
from suite_helpers import cluster_of

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.storage import facts
from pytest_gpucluster.suites.storage.config import StorageConfig

TEXT = r"""/dev/sda2 / ext4 rw,relatime,errors=remount-ro 0 0
/dev/md0 /data xfs rw,nosuid,noquota 0 0
server:/a\040b /with\040blank nfs rw,vers=3,addr=10.0.0.9,clientaddr=10.0.0.1,mountport=20048 0 0
tmpfs /data2 tmpfs rw 0 0
not a mount
"""


def read(*paths: str, text: str = TEXT) -> dict[str, facts.PathMount]:
    return facts.read_mounts(Answer("gpu01", 0, text.encode()), paths)


def test_the_longest_mount_point_holds_a_path() -> None:
    found = read("/data/run", "/data2", "/home", "/with blank/x")
    assert [found[path].point for path in found] == ["/data", "/data2", "/", "/with blank"]
    assert found["/data/run"].kind() == "xfs noquota,nosuid,rw"
    assert found["/with blank/x"].source == "server:/a b"
    assert found["/with blank/x"].kind() == "nfs rw,vers=3"


@pytest.mark.parametrize(
    "line",
    [
        # the ends of the connection: VAST's NFS client, CephFS by msgr2 and with a key for each node, Weka
        "172.25.1.1:/ /data nfs rw,vers=3,proto=rdma,nconnect=4,localports=172.25.1.{n}-172.25.1.{n},remoteports=172.25.1.1-172.25.1.8",
        "fs:/x /data nfs rw,vers=3,nolock,proto=tcp6,remoteaddrs=fd00::1~fd00::8,localaddrs=fd00::1{n}~fd01::1{n}",
        "a@f.fs=/ /data ceph rw,relatime,ms_mode=secure,acl,mon_addr=10.0.0.{n}:3300/10.0.0.1:3300",
        "10.0.0.1:6789:/ /data ceph rw,relatime,name=gpu0{n},secret=<hidden>,acl",
        "10.108.97.{n}/default /data wekafs rw,writecache,container_name=client-{n}f",
        "overlay / overlay rw,relatime,lowerdir=/var/lib/{n}:/var/lib/b,upperdir=/run/u{n},workdir=/run/w",
        "overlay / overlay rw,relatime,lowerdir+=/var/lib/{n},upperdir=/run/u{n},workdir=/run/w",
        # numbers that the node has: a journal, a snapshot; shares of its memory; labels, with and without a comma
        "/dev/vg/lv /data gfs2 rw,relatime,hostdata=jid={n}",
        "/dev/vda2 /data btrfs rw,ssd,subvolid=26{n},subvol=/@/.snapshots/{n}/snapshot",
        "tmpfs /data tmpfs rw,nosuid,size=2468365{n}k,nr_inodes=81920{n},inode64",
        'tmpfs /data tmpfs rw,context="system_u:object_r:container_file_t:s0:c184,c37{n}"',
        "fs /data wekafs rw,context=system_u:object_r:wekafs_t:s{n},writecache",
    ],
)
def test_nodes_with_one_mount_have_one_kind_whatever_their_addresses_names_and_places(line: str) -> None:
    kinds = {read("/data", text=f"{line} 0 0\n".format(n=n))["/data"].kind() for n in (1, 2)}
    assert len(kinds) == 1


AUTOFS = "/etc/auto.home /home autofs rw,relatime,fd=6,pgrp=1738,timeout=300,minproto=5,maxproto=5,indirect,pipe_ino=25202 0 0\n"
HOME = "srv:/home/ops /home/ops nfs4 rw,vers=4.2,addr=10.0.0.1 0 0\n"


@pytest.mark.parametrize(
    ("before", "text", "point"),
    [
        ("", AUTOFS + HOME, "/home/ops"),
        ("", AUTOFS, None),  # only the automounter's own line, with numbers of its process
        ("at /home/ops\n", AUTOFS, None),  # the path cannot be entered
        ("at /home/ops\nto /data/real\n", AUTOFS + HOME, "/data"),  # a link
    ],
)
def test_a_path_is_on_what_is_mounted_where_it_leads(before: str, text: str, point: str | None) -> None:
    found = read("/home/ops", text=before + TEXT + text)
    assert (found["/home/ops"].point if found else None) == point


def test_a_list_of_targets_without_its_end_names_the_last_one() -> None:
    """Seen where an object storage server hung: lfs df waits for it."""
    targets = "fs-MDT0000_UUID 9 1 8 11% /data[MDT:0]\nfs-OST003c_UUID 9 1 8 11% /data[OST:60]\n"
    text = f"fs /data lustre rw 0 0\nlfs df /data\n{targets}"
    (cut,) = read("/data", text=text).values()
    assert cut.absent == (("the target after fs-OST003c_UUID", "`lfs df` did not end"),)
    for last in ("filesystem_summary:  9 1 8 11% /data\n", "filesystem summary:  9 1 8 11% /data\n"):
        (whole,) = read("/data", text=text + last).values()
        assert (whole.present, whole.absent) == (2, ())


def test_a_node_without_proc_is_not_available() -> None:
    with pytest.raises(NotAvailable):
        facts.read_mounts(Answer("gpu01", 1, b"", b"cat: /proc/mounts: Permission denied"), ("/",))


@pytest.mark.parametrize("path", ["/shared", "/a 'b'"])
def test_paths_are_quoted_for_the_shell_and_without_a_section_there_are_none(path: str) -> None:
    section = StorageConfig.model_validate({"filesystems": [{"path": path}]})
    for probe in (facts.mounts, facts.quotas):
        assert f"set -- {shlex.quote(path)}" in probe(cluster_of(storage=section)).command
        assert "set -- ''" in probe(cluster_of()).command


def test_the_type_of_a_path_is_that_of_the_first_node_that_has_it() -> None:
    assert facts.types_of({"gpu01": {}, "gpu02": read("/data"), "gpu03": read("/data")}) == {"/data": "xfs"}
