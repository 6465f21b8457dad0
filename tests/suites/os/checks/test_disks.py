from __future__ import annotations

from dataclasses import replace

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, REBOOT, WARNING, result
from judged import figures, judged
from os_helpers import DISK, DISKS, GIB, HOME, ROOT

from pytest_gpucluster.kit.node.os_config import MountConfig, OsConfig
from pytest_gpucluster.suites.os.checks import disks as checks
from pytest_gpucluster.suites.os.checks.disks import Responses
from pytest_gpucluster.suites.os.facts import Mount
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

MIB = 1 << 20
HOME_ELSEWHERE = Responses(answering={"/home": 3}, stuck={"/home": 1})
HUNG = Disk(problem="no answer within 8 s", hung=True)
STILL = Disk(problem="no answer within 30 s", hung=True)
STALE = Disk(problem="df: /home: Stale file handle")
CLOSED = Disk(problem="df: /home: Transport endpoint is not connected")
DENIED = Disk(problem="df: /home: Permission denied")
GONE = Disk(problem="df: /home: No such file or directory")
LOCAL = Mount("/dev/nvme0n1p1", "/home", "xfs", ("rw",))
MEMORY = Mount("tmpfs", "/home", "tmpfs", ("rw",))
NBD = Mount("/dev/nbd0", "/home", "ext4", ("rw",))


@pytest.mark.parametrize(
    ("mount", "later", "elsewhere", "expected"),
    [
        (HOME, DISK, HOME_ELSEWHERE, WARNING),  # a slow server
        (HOME, STILL, HOME_ELSEWHERE, REBOOT),
        (HOME, None, HOME_ELSEWHERE, CONFIGURE),  # the second reading failed
        (HOME, STILL, Responses({"/home": 90}, {"/home": 2}), CONFIGURE),  # several nodes
        (HOME, STILL, Responses({}, {"/home": 1}), CONFIGURE),  # all nodes that mount it
        (HOME, STALE, HOME_ELSEWHERE, REBOOT),
        (LOCAL, DISK, Responses(), WARNING),
        (LOCAL, STILL, Responses({"/home": 1}, {"/home": 3}), REBOOT),
        (MEMORY, STILL, Responses(), REBOOT),
        (NBD, STILL, Responses(), CONFIGURE),
    ],
)
def test_a_mount_that_hangs_takes_its_node_out_only_if_it_lasts_and_is_the_nodes_own(
    mount: Mount, later: Disk | None, elsewhere: Responses, expected: str
) -> None:
    again = {"/home": later} if later else {}
    verdict = checks.mount_response({"/home": HUNG}, {"/home": mount}, None, elsewhere, None, again)
    assert result(verdict) == expected


@pytest.mark.parametrize(
    ("disk", "stated", "elsewhere", "expected"),
    [
        (HUNG, (), Responses(), CONFIGURE),
        (STALE, (), Responses(), CONFIGURE),
        (CLOSED, (), Responses(), CONFIGURE),
        (DENIED, (), Responses(), PASSED),
        (GONE, ("/home",), HOME_ELSEWHERE, CONFIGURE),
        (DENIED, ("/home",), HOME_ELSEWHERE, CONFIGURE),
        (DENIED, None, Responses(), NOT_CHECKED),
        (DENIED, None, Responses({"/home": 1}), CONFIGURE),
    ],
)
def test_a_networked_mount_fails_where_its_server_is_gone(
    disk: Disk, stated: tuple[str, ...] | None, elsewhere: Responses, expected: str
) -> None:
    found, disks = {"/": ROOT, "/home": HOME}, {**DISKS, "/home": disk}
    verdict = checks.mount_response(disks, found, stated, elsewhere)
    failed = expected == CONFIGURE
    assert judged(verdict) == (expected, ["/home (nfs4 from fs1:/home)"] if failed else [])
    assert result(checks.free_space(disks, found, OsConfig())) == PASSED


def test_a_path_that_is_no_mount() -> None:
    assert judged(checks.mount_response({"/gone": HUNG}, {}, ("/gone",))) == (CONFIGURE, ["/gone"])
    assert result(checks.mount_response({"/gone": STALE}, {"/": ROOT})) == PASSED  # os.mounts says it
    slash = checks.mount_response({"/home/": STALE}, {"/home": HOME})
    assert judged(slash) == (CONFIGURE, ["/home/ (nfs4 from fs1:/home)"])


def test_who_answers_and_who_is_stuck() -> None:
    fleet = {
        "a": {"/x": Disk(1), "/y": DENIED},
        "b": {"/y": CLOSED, "/z": Disk(1)},
        "c": {"/x": Disk(1), "/z": STALE, "/y": HUNG},
    }
    assert Responses.of_all(fleet) == Responses({"/x": 2, "/z": 1}, {"/z": 1, "/y": 2})


def test_only_the_writer_learns_that_it_may_not_write() -> None:
    denied = {"/s": SharedFolder("n1", "Permission denied")}
    assert [result(checks.shared_storage(denied, node)) for node in ("n1", "n2")] == [NOT_CHECKED] * 2


# --- room


@pytest.mark.parametrize(
    ("path", "size", "free", "least"),
    [
        ("/", 100 * GIB, GIB - 1, 1),
        ("/", 9000 * GIB, GIB, None),
        ("/tmp", GIB, GIB // 10, 102.4),
        ("/tmp", GIB, GIB // 10 + 1, None),
        ("/dev/shm", 100 * GIB, GIB - 1, 1),
        ("/dev/shm", 640 * MIB, 64 * MIB, None),
        ("/dev/shm", 640 * MIB, 64 * MIB - 1, 64),
    ],
)
def test_scratch_space_that_is_full_is_named(path: str, size: int, free: int, least: float | None) -> None:
    disks = {**DISKS, path: replace(DISK, size=size, free=free)}
    verdict = checks.free_space(disks, {"/": ROOT}, OsConfig())
    assert judged(verdict) == ((CONFIGURE, [path]) if least else (PASSED, []))
    assert [figures(it.expected) for it in verdict.findings] == ([[least]] if least else [])
    measured = [it for it in verdict.metrics if it.device == path]
    assert [(it.name, it.value, it.unit) for it in measured] == [("free_space", free / GIB, "GiB")]


@pytest.mark.parametrize(
    ("mount", "free", "expected"),
    [
        (MountConfig(path="/tmp/", min_free=2 * GIB), 2 * GIB - 1, CONFIGURE),
        (MountConfig(path="/tmp", min_free=MIB), MIB, PASSED),
        (MountConfig(path="/tmp", min_free_percent=5), 5 * GIB - 1, CONFIGURE),
        (MountConfig(path="/tmp", min_free_percent=5), 5 * GIB, PASSED),
        (MountConfig(path="/dev/shm", min_free=50 * GIB), 50 * GIB - 1, CONFIGURE),
        (MountConfig(path="/home/", min_free=2 * GIB), GIB, CONFIGURE),
        (MountConfig(path="/home"), 0, PASSED),
    ],
)
def test_a_mount_of_the_cluster_file_states_its_own_bound(
    mount: MountConfig, free: int, expected: str
) -> None:
    path, config = mount.path.rstrip("/"), OsConfig(mounts=(mount,))
    disks = {**DISKS, path: replace(DISK, free=free), "/other": replace(DISK, free=0)}
    verdict = checks.free_space(disks, {"/": ROOT, "/home": HOME, "/other": ROOT}, config)
    assert judged(verdict) == (expected, [path] if expected == CONFIGURE else [])
    assert set(checks.disk_paths(config)) == {"/", "/tmp", "/dev/shm", path}


def test_room_that_df_does_not_tell() -> None:
    config = OsConfig(mounts=(MountConfig(path="/home", min_free=GIB),))
    silent = {**DISKS, "/tmp": Disk(problem="hung"), "/dev/shm": Disk(problem="gone")}
    assert result(checks.free_space(silent, {"/": ROOT}, OsConfig())) == NOT_CHECKED
    found = {"/": ROOT, "/home": HOME}
    assert result(checks.free_space({**DISKS, "/home": HUNG}, found, config)) == PASSED
    assert result(checks.free_space({**DISKS, "/home": DENIED}, found, config)) == NOT_CHECKED
    # a mount that is not there is left to os.mounts
    assert result(checks.free_space({**DISKS, "/home": replace(DISK, free=0)}, {"/": ROOT}, config)) == PASSED


def test_a_write_that_finds_no_room_is_named_once() -> None:
    def told(disks: dict[str, Disk], problem: str) -> list[list[float]]:
        verdict = checks.free_space(disks, {"/": ROOT}, OsConfig(), {"/tmp": problem, "/dev/shm": ""})
        return [figures(it.expected) for it in verdict.findings]

    assert told(DISKS, "sh: 1: printf: write error: Disk quota exceeded") == [[]]
    assert told({**DISKS, "/tmp": replace(DISK, free=0)}, "No space left on device") == [[1]]
    assert told(DISKS, "mktemp: Read-only file system") == []


@pytest.mark.parametrize("path", ["/", "/tmp", "/dev/shm"])
def test_inodes_at_their_bound(path: str) -> None:
    for free, expected in ((5, PASSED), (4, CONFIGURE)):
        verdict = checks.inodes({**DISKS, path: replace(DISK, inodes=100, inodes_free=free)})
        assert judged(verdict) == (expected, [path] if expected == CONFIGURE else [])
        assert {(it.name, it.device): it.value for it in verdict.metrics}["free_inodes", path] == free


def test_file_systems_that_count_no_inodes_are_left_out() -> None:
    image = replace(DISK, inodes=100, inodes_free=0, free=0)  # read-only: nothing of it is free
    assert result(checks.inodes({**DISKS, "/": image})) == PASSED
    assert judged(checks.inodes({**DISKS, "/": replace(image, free=1)})) == (CONFIGURE, ["/"])
    uncounted = dict.fromkeys(DISKS, replace(DISK, inodes=0))
    assert result(checks.inodes(uncounted)) == NOT_APPLICABLE
    assert result(checks.inodes({**uncounted, "/tmp": HUNG, "/dev/shm": DISK})) == PASSED
