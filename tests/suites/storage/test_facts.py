"""Mounts of the tested paths: the longest mount point holds a path; what is escaped and what is no mount."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import pytest

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


def read(*paths: str) -> dict[str, facts.Mount]:
    return facts.read_mounts(Answer("gpu01", 0, TEXT.encode()), paths)


def test_the_longest_mount_point_holds_a_path() -> None:
    found = read("/data/run", "/data2", "/home", "/with blank/x")
    assert [found[path].point for path in found] == ["/data", "/data2", "/", "/with blank"]
    assert found["/data/run"].kind == "xfs noquota,nosuid,rw"
    assert found["/with blank/x"].source == "server:/a b"
    assert found["/with blank/x"].kind == "nfs rw,vers=3"


def test_a_node_without_proc_is_not_available() -> None:
    with pytest.raises(NotAvailable):
        facts.read_mounts(Answer("gpu01", 1, b"", b"cat: /proc/mounts: Permission denied"), ("/",))


@pytest.mark.parametrize("path", ["/shared", "/a 'b'"])
def test_paths_are_quoted_for_the_shell_and_without_a_section_there_are_none(path: str) -> None:
    section = StorageConfig.model_validate({"filesystems": [{"path": path}]})
    cluster: Any = SimpleNamespace(section=lambda _: section)
    assert f"set -- {shlex.quote(path)}" in facts.mounts(cluster).command
    empty: Any = SimpleNamespace(section=lambda _: None)
    assert "set -- ''" in facts.mounts(empty).command


def test_the_type_of_a_path_is_that_of_the_first_node_that_has_it() -> None:
    assert facts.types_of({"gpu01": {}, "gpu02": read("/data"), "gpu03": read("/data")}) == {"/data": "xfs"}
