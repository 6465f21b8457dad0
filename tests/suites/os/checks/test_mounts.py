from __future__ import annotations

from typing import Any

import pytest
from counter_examples import CONFIGURE, DRAIN, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, result
from judged import figures, judged
from os_helpers import GIB, GROUP, HOME, NONE, ROOT, peers

from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.kit.node.file_systems import READ_ONLY
from pytest_gpucluster.kit.node.os_config import MountConfig
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import mounts as checks
from pytest_gpucluster.suites.os.checks.mounts import ScratchMount, ScratchMounts
from pytest_gpucluster.suites.os.facts import Mount
from pytest_gpucluster.suites.os.storage_facts import Disk


@pytest.mark.parametrize(
    ("stated", "wrong"),
    [
        ({"path": "/home/", "fstype": "nfs", "source": "fs1:/home/", "options": ("rw",)}, 0),
        ({"path": "/", "source": "/dev/sda1/"}, 0),
        ({"path": "/slash", "source": "fs1:/home"}, 0),
        ({"path": "/scratch/"}, 1),
        ({"path": "/", "fstype": "nfs"}, 1),
        ({"path": "/old", "fstype": "nfs4"}, 1),  # nfs includes nfs4, not the other way round
        ({"path": "/home", "fstype": "lustre", "source": "fs2:/home", "options": ("rw", "noatime", "x")}, 3),
    ],
)
def test_stated_mounts(stated: dict[str, Any], wrong: int) -> None:
    found = {"/": ROOT, "/home": HOME, "/old": Mount("fs1:/old", "/old", "nfs", ("rw",))}
    found["/slash"] = Mount("fs1:/home/", "/slash", "nfs4", ("rw",))
    verdict = checks.mounts(found, [MountConfig(**stated)])
    assert judged(verdict) == (CONFIGURE if wrong else PASSED, [stated["path"]] * wrong)
    if wrong == 3:  # only the missing options are named
        assert verdict.findings[2].expected == "with noatime,x"
    assert result(checks.mounts(found, [])) == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("source", "wanted", "expected"),
    [
        ("fs:/home/", "fs:/home", PASSED),
        ("fs:/home", "fs:/home/", PASSED),
        ("fs:/b", "fs:/a", CONFIGURE),
        ("", "fs:/a", NOT_CHECKED),  # idle: nobody asked df about it
    ],
)
def test_the_source_of_an_automount_may_end_with_a_slash(source: str, wanted: str, expected: str) -> None:
    found = {"/": ROOT, "/home": Mount("auto", "/home", "autofs", ("rw",))}
    disks = {"/home": Disk(size=1, source=source)} if source else {}
    assert result(checks.mounts(found, [MountConfig(path="/home", source=wanted)], disks)) == expected


# --- what may be written to


def of_root(*options: str, fstype: str = "ext4") -> dict[str, Mount]:
    return {"/": Mount("/dev/sda1", "/", fstype, options)}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("mktemp: failed to create file via template '/tmp/x': Read-only file system", CONFIGURE),
        ("mktemp: failed to create file via template '/tmp/x': Input/output error", DRAIN),
        ("mktemp: Structure needs cleaning", DRAIN),
        ("timed out after 30 s", CONFIGURE),
        ("sh: 1: mktemp: not found", NOT_CHECKED),
        ("printf: write error: No space left on device", PASSED),
        ("Disk quota exceeded", PASSED),
        ("", PASSED),
    ],
)
def test_scratch_space_that_takes_no_file_is_named(problem: str, expected: str) -> None:
    verdict = checks.root_writable({"/": ROOT}, {}, {"/tmp": problem, "/dev/shm": ""})
    assert judged(verdict) == (expected, ["/tmp"] if verdict.findings else [])


def test_scratch_space_that_became_read_only_is_a_mount_option() -> None:
    found = {"/": ROOT, "/dev/shm": Mount("tmpfs", "/dev/shm", "tmpfs", ("ro", "nosuid"))}
    verdict = checks.root_writable(found, {}, {"/dev/shm": "mktemp: Input/output error"})
    assert judged(verdict) == (CONFIGURE, ["/dev/shm"])


@pytest.mark.parametrize(
    ("root", "usual", "expected"),
    [
        (of_root("rw", "relatime"), None, PASSED),
        (of_root("rw", "shutdown"), False, DRAIN),
        (of_root("ro", "errors=remount-ro"), False, CONFIGURE),
        (of_root("ro"), True, CONFIGURE),
        (of_root("ro", fstype="nfs"), True, CONFIGURE),
        *(
            (of_root("ro", fstype=it), None, CONFIGURE)
            for it in ("ext2", "ext3", "ext4", "xfs", "zfs", "f2fs")
        ),
        *((of_root("ro", fstype=it), False, WARNING) for it in ("nfs", "btrfs")),  # on purpose
    ],
)
def test_a_root_that_became_read_only_is_named(
    root: dict[str, Mount], usual: bool | None, expected: str
) -> None:
    most = {} if usual is None else {"/": peers(usual, usual)}
    assert judged(checks.root_writable(root, most)) == ((expected, [] if expected == PASSED else ["/"]))


@pytest.mark.parametrize(
    ("fleet", "fstype", "expected"),
    [
        (("ro", "rw", "rw"), "ext4", CONFIGURE),
        (("rw", "ro", "rw"), "ext4", PASSED),
        (("ro", "ro", "rw"), "ext4", PASSED),  # meant to be so
        (("ro", "rw"), "ext4", CONFIGURE),  # halves: no node may be drained
        (("rw", "ro"), "ext4", PASSED),  # it lacks nothing
        (("ro",), "xfs", PASSED),
        (("ro", "rw", "rw"), "squashfs", PASSED),
    ],
)
def test_a_disk_that_is_read_only_here_and_not_on_most_nodes_is_found(
    fleet: tuple[str, ...], fstype: str, expected: str
) -> None:
    facts = {
        f"n{n}": {"/": ROOT, "/var": Mount("/dev/sda3", "/var", fstype, (way, "relatime"))}
        for n, way in enumerate(fleet, 1)
    }
    most = {path: each.of(GROUP) for path, each in checks.writable_of_all(facts).items()}
    verdict = checks.root_writable(facts["n1"], most)
    assert judged(verdict) == (expected, ["/var"] if expected != PASSED else [])


def test_a_disk_that_the_kernel_remounted_fails_on_a_node_alone() -> None:
    broken = {"/": ROOT, "/var": Mount("d", "/var", "ext4", ("ro", "errors=remount-ro"))}
    assert judged(checks.root_writable(broken, {"/var": Norm()})) == (CONFIGURE, ["/var"])
    assert sorted(READ_ONLY) == ["emergency_ro", "ro", "shutdown"]


def test_what_may_be_written_to_on_the_nodes_that_have_it() -> None:
    def mount(path: str, fstype: str, *options: str) -> Mount:
        return Mount("d", path, fstype, options or ("rw",))

    fleet = {
        "n1": {"/": mount("/", "overlay"), "/var": mount("/var", "ext4"), "/nfs": mount("/nfs", "nfs4")},
        "n2": {"/": mount("/", "overlay"), "/var": mount("/var", "xfs", "rw", "shutdown")},
        "n3": {"/var": mount("/var", "nfs", "ro")},
    }
    assert {path: peers.facts for path, peers in checks.writable_of_all(fleet).items()} == {
        "/": {"n1": True, "n2": True},
        "/var": {"n1": True, "n2": False, "n3": False},
    }


# --- scratch space


DISK, HALF = ScratchMount(), "half of the memory"


@pytest.mark.parametrize(
    ("options", "fstype", "expected"),
    [
        ((), "tmpfs", ScratchMount(size=HALF)),
        (("noexec", "size=64k"), "tmpfs", ScratchMount(noexec=True, size="64k")),
        (("size=64k",), "ext4", DISK),
        (("size=50%", "xsize=64k"), "tmpfs", ScratchMount(size=HALF)),
    ],
)
def test_what_scratch_space_gives(options: tuple[str, ...], fstype: str, expected: ScratchMount) -> None:
    shm = Mount("tmpfs", "/dev/shm", fstype, ("rw", *options))
    assert ScratchMounts.of({"/": ROOT, "/dev/shm": shm}) == ScratchMounts(DISK, expected)


@pytest.mark.parametrize(
    ("mine", "usual", "memory", "expected"),
    [
        ("90k", "100k", 1, []),
        ("89k", "100k", 1, [89, 100, 3, 4]),
        ("110k", "100k", 1, []),
        ("", "100k", 1, []),
        ("64k", "", 1, []),  # a disk
        (HALF, "2048k", 2 * GIB, []),
        (HALF, "2048k", 2 << 20, [1, 2, 3, 4]),
        ("65536k", HALF, 128 * GIB, [64, 64, 3, 4]),
    ],
)
def test_scratch_space_that_gives_less_than_on_most_nodes_is_named(
    mine: str, usual: str, memory: int, expected: list[float]
) -> None:
    room = ScratchMounts(DISK, ScratchMount(size=mine))
    most = peers(ScratchMount(size=mine), ScratchMount(size=usual))
    verdict = checks.scratch(room, peers(DISK, DISK), most, memory)
    assert judged(verdict) == ((CONFIGURE, ["/dev/shm"]) if expected else (PASSED, []))
    shown = [figures(f"{it.measured} | {it.expected}") for it in verdict.findings]
    assert shown == ([expected] if expected else [])
    for absent in ((NONE, most), (most, NONE)):
        assert result(checks.scratch(ScratchMounts(DISK, DISK), *absent, 1)) == NOT_APPLICABLE


def test_scratch_space_where_no_program_runs_is_a_warning_where_most_nodes_run_some() -> None:
    noexec, like = ScratchMount(noexec=True), peers(DISK, DISK)
    for mine, usual, expected in (
        (noexec, like, WARNING),
        (noexec, peers(noexec, noexec), PASSED),
        (noexec, norm({"n1": DISK, "n2": noexec}), PASSED),  # halves
        (DISK, norm({"n1": DISK, "n2": noexec}), PASSED),
    ):
        for path, verdict in (
            ("/tmp", checks.scratch(ScratchMounts(mine, DISK), usual, like, 1)),
            ("/dev/shm", checks.scratch(ScratchMounts(DISK, mine), like, usual, 1)),
        ):
            assert judged(verdict) == (expected, [path] if expected == WARNING else [])


def test_scratch_space_of_all_nodes_is_rounded_to_what_most_have() -> None:
    """The kernel writes a share of the memory in KiB: it differs by pages on nodes alike."""
    fleet = {"n1": ("1000k", "size=91k"), "n2": ("999k", "size=100k"), "n3": ("500k", "x")}
    mounts = {
        node: {
            "/": ROOT,
            "/tmp": Mount("t", "/tmp", "tmpfs", ("rw", f"size={tmp}")),
            "/dev/shm": Mount("t", "/dev/shm", "tmpfs", ("rw", "noexec", shm)),
        }
        for node, (tmp, shm) in fleet.items()
    }
    rooms = ScratchMounts.of_all({**mounts, "n4": {"/": ROOT}}).facts
    assert [(it.tmp.size, it.shm.size, it.shm.noexec) for it in rooms.values()] == [
        ("999k", "100k", True),
        ("999k", "100k", True),
        ("500k", HALF, True),
        ("", "", False),
    ]
