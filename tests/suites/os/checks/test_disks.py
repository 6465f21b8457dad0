from __future__ import annotations

from dataclasses import replace
from typing import Any

from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, REBOOT, WARNING
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import DISK, DISKS, GIB, HOME, ROOT

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.kit.node.os_config import MountConfig, OsConfig
from pytest_gpucluster.suites.os.checks import disks as checks
from pytest_gpucluster.suites.os.checks.disks import Responses
from pytest_gpucluster.suites.os.facts import Mount
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

MIB = 1 << 20
DAY = 86400.0
# {number of nodes} where df answers, and where it does not
ELSEWHERE, NOBODY, ALL_HANG = Responses({"/home": 3}, {"/home": 1}), Responses(), Responses({}, {"/home": 1})
TWO_HANG = Responses({"/home": 90}, {"/home": 2})
HUNG, STILL = (Disk(problem=f"no answer within {seconds} s", hung=True) for seconds in (8, 30))
STALE = Disk(problem="df: /home: Stale file handle")
CLOSED = Disk(problem="df: /home: Transport endpoint is not connected")
DENIED = Disk(problem="df: /home: Permission denied")
GONE = Disk(problem="df: /home: No such file or directory")
LOCAL = Mount("/dev/nvme0n1p1", "/home", "xfs", ("rw",))
MEMORY = Mount("tmpfs", "/home", "tmpfs", ("rw",))
NBD = Mount("/dev/nbd0", "/home", "ext4", ("rw",))


def hangs(mount: Mount, later: Disk | None, responses: Responses = ELSEWHERE, uptime: float = DAY) -> Verdict:
    """Judge a mount that hung at the first reading."""
    again = {"/home": later} if later else {}
    return checks.mount_response({"/home": HUNG}, {"/home": mount}, None, responses, uptime, again)


def answers(disk: Disk, responses: Responses = NOBODY, *, stated: bool = True, mount: Mount | None = HOME) -> Verdict:
    """Judge what df says of a mount."""
    disks, mounts = {**DISKS, "/home": disk}, {"/": ROOT, **({"/home": mount} if mount else {})}
    return checks.mount_response(disks, mounts, ("/home",) if stated else (), responses)


def shared(on: str, write_problem: str, read_problem: str = "") -> Verdict:
    """Judge a folder in which n1 wrote, on a node."""
    return checks.shared_storage({"/s": SharedFolder("n1", write_problem, read_problem)}, on)


def space(path: str, size: float, free: float, *options: str, **stated: Any) -> Verdict:
    """Judge bytes of a path with these options of its mount; stated: bounds of the cluster file."""
    config = OsConfig(mounts=(MountConfig(path=f"{path.rstrip('/')}/", **stated),) if stated else ())
    mount = Mount("d", path, "ext4", options or ("rw",))
    disks = {**DISKS, path: Disk(int(size), int(free), 1000, 900), "/other": replace(DISK, free=0)}
    return checks.free_space(disks, {"/": ROOT, "/other": ROOT, path: mount}, config)


def told(disk: Disk, *, there: bool = True) -> Verdict:
    """Judge the room of a stated mount that df does not tell."""
    config = OsConfig(mounts=(MountConfig(path="/home", min_free=GIB),))
    return checks.free_space({**DISKS, "/home": disk}, {"/": ROOT, **({"/home": HOME} if there else {})}, config)


def written(free: int, problem: str) -> Verdict:
    """Judge why no file could be written in /tmp."""
    disks = {**DISKS, "/tmp": replace(DISK, free=free)}
    return checks.free_space(disks, {"/": ROOT}, OsConfig(), {"/tmp": problem, "/dev/shm": ""})


def inodes(path: str, total: int, free: int, blocks: int = GIB) -> Verdict:
    return checks.inodes({**DISKS, path: replace(DISK, inodes=total, inodes_free=free, free=blocks)})


NONE_COUNTED = dict.fromkeys(DISKS, replace(DISK, inodes=0))
MACHINES: Machines = {
    ("os.mount_response", hangs): [
        ("a busy server answers at the second reading | backup window", WARNING, HOME, DISK),
        ("a busy disk answers at the second reading | resync", WARNING, LOCAL, DISK),
        ("the second reading failed | agent", CONFIGURE, HOME, None),
        ("two nodes wait for one of two servers | Lustre OST failover", CONFIGURE, HOME, STILL, TWO_HANG),
        ("the server is down for all nodes | server reboots", CONFIGURE, HOME, STILL, ALL_HANG),
        ("a disk of another machine | nbd", CONFIGURE, NBD, STILL, NOBODY),
        ("booted a minute ago: it still starts | remote-fs.target", NOT_CHECKED, HOME, STILL, ELSEWHERE, 60),
        ("root_squash | exports(5)", NOT_CHECKED, lambda: answers(DENIED)),
        ("a stated mount is not there | os.mounts", PASSED, lambda: answers(GONE, ELSEWHERE, mount=None)),
        ("a sshfs of a user | fuse.sshfs", PASSED, lambda: answers(DENIED, stated=False)),
        ("another mount hides it | mount(8)", PASSED, lambda: answers(GONE, stated=False)),
        ("no permission here only | exports(5)", CONFIGURE, lambda: answers(DENIED, ELSEWHERE)),
        ("a file system is gone | NFS", CONFIGURE, lambda: answers(GONE, ELSEWHERE)),
        ("a hung mount that is not stated | NFS", CONFIGURE, lambda: answers(HUNG, stated=False)),
        ("a stale one that is not stated | ESTALE", CONFIGURE, lambda: answers(STALE, stated=False)),
        ("a closed one that is not stated | ENOTCONN", CONFIGURE, lambda: answers(CLOSED, stated=False)),
        ("sick: its own client hangs | another node answers", REBOOT, HOME, STILL),
        ("sick: a stale handle | ESTALE", REBOOT, HOME, STALE),
        ("sick: its own disk hangs | a path inside the node", REBOOT, LOCAL, STILL, TWO_HANG),
        ("sick: its own memory hangs | tmpfs", REBOOT, MEMORY, STILL, NOBODY),
    ],
    ("os.shared_storage", shared): [
        ("the user may not write there | EACCES", NOT_CHECKED, "n1", "sh: cannot create: Permission denied"),
        ("nor may another node | EACCES", NOT_CHECKED, "n2", "sh: cannot create: Permission denied"),
        ("none stated | cluster file", NOT_APPLICABLE, lambda: checks.shared_storage({}, "n1")),
        ("the writer is full, seen from another node | ENOSPC", NOT_CHECKED, "n2", "No space left", "gone"),
        ("mounted | nfs(5)", PASSED, "n2", ""),
        ("sick: full, seen by the writer | ENOSPC", CONFIGURE, "n1", "No space left", "gone"),
        ("sick: not mounted here | ENOENT", CONFIGURE, "n2", "", "cat: /s/.x: No such file or directory"),
    ],
    ("os.free_space", space): [
        ("an empty /tmp of 1 GiB | tmp.mount", PASSED, "/tmp", GIB, 0.999 * GIB),
        ("a tenth of a small /tmp | tmp.mount", PASSED, "/tmp", GIB, GIB // 10 + 1),
        ("a squashfs root | df of an image", PASSED, "/", 1.2 * GIB, 0, "ro"),
        ("a large root with 1 GiB | ext4", PASSED, "/", 9000 * GIB, GIB),
        ("/dev/shm of 64 MiB | docker run", PASSED, "/dev/shm", 64 * MIB, 64 * MIB),
        ("a lower bound is stated | os.mounts", PASSED, lambda: space("/tmp", 9 * GIB, MIB, min_free=MIB)),
        ("more than stated | os.mounts", PASSED, lambda: space("/tmp", 99 * GIB, 5 * GIB, min_free=5 * GIB)),
        ("no bound is stated | os.mounts", PASSED, lambda: space("/home", 9, 0, fstype="ext4")),
        ("a hung mount | os.mount_response", PASSED, lambda: told(HUNG)),
        ("no mount | os.mounts", PASSED, lambda: told(replace(DISK, free=0), there=False)),
        ("no permission | exports(5)", NOT_CHECKED, lambda: told(DENIED)),
        ("a read-only /tmp | os.root_writable", PASSED, lambda: written(GIB, "Read-only file system")),
        ("sick: root is full | df", CONFIGURE, "/", 100 * GIB, GIB - 1),
        ("sick: a small /tmp is full | df", CONFIGURE, "/tmp", GIB, GIB // 10),
        ("sick: /dev/shm is full | df", CONFIGURE, "/dev/shm", 640 * MIB, 64 * MIB - 1),
        ("sick: less than stated | df", CONFIGURE, lambda: space("/home", 9 * GIB, GIB, min_free=2 * GIB)),
        ("sick: a small /tmp, stated | df", CONFIGURE, lambda: space("/tmp", 2 * GIB, GIB - 1, min_free=GIB)),
        ("sick: row without bound | df", CONFIGURE, lambda: space("/tmp", 99 * GIB, GIB - 1, fstype="ext4")),
        ("sick: a quota | EDQUOT", CONFIGURE, lambda: written(9 * GIB, "write error: Disk quota exceeded")),
    ],
    ("os.inodes", inodes): [
        *((f"5% of {path} | df -i", PASSED, path, 100, 5) for path in ("/", "/tmp", "/dev/shm")),
        ("a squashfs root: all are used | df -i", PASSED, "/", 45210, 0, 0),
        ("btrfs counts none | df -i shows 0", NOT_APPLICABLE, lambda: checks.inodes(NONE_COUNTED)),
        ("one that counts | df -i", PASSED, lambda: checks.inodes({**NONE_COUNTED, "/tmp": HUNG, "/": DISK})),
        *((f"sick: less in {path} | df -i", CONFIGURE, path, 100, 4) for path in ("/", "/tmp", "/dev/shm")),
        ("sick: none left, and blocks are free | ext4", CONFIGURE, "/", 100, 0, 1),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


def test_who_answers_and_who_is_stuck() -> None:
    fleet = {
        "a": {"/x": Disk(1), "/y": DENIED},
        "b": {"/y": CLOSED, "/z": Disk(1)},
        "c": {"/x": Disk(1), "/z": STALE, "/y": HUNG},
    }
    assert Responses.of_all(fleet) == Responses({"/x": 2, "/z": 1}, {"/z": 1, "/y": 2})
