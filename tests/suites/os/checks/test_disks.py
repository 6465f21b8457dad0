from __future__ import annotations

from dataclasses import replace

import pytest
from os_helpers import DISK, DISKS, GIB, HOME, ROOT, failed, not_applicable, not_checked, passed

from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome
from pytest_gpucluster.kit.node.os_config import MountConfig, OsConfig
from pytest_gpucluster.suites.os.checks import disks as checks
from pytest_gpucluster.suites.os.facts import Mount
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

CONFIG = OsConfig()
HOME_ELSEWHERE = checks.Responses(answering={"/home": 3}, stuck={"/home": 1})
HUNG, STILL = (
    Disk(problem="no answer within 8 s", hung=True),
    Disk(problem="no answer within 30 s", hung=True),
)
LOCAL = Mount("/dev/nvme0n1p1", "/home", "xfs", ("rw",))
NBD = Mount("/dev/nbd0", "/home", "ext4", ("rw",))


@pytest.mark.parametrize(
    ("mount", "later", "elsewhere", "action"),
    [
        (HOME, DISK, HOME_ELSEWHERE, None),  # a slow server
        (HOME, STILL, HOME_ELSEWHERE, Action.REBOOT),
        (HOME, None, HOME_ELSEWHERE, Action.CONFIGURE),  # the second reading failed
        (HOME, STILL, checks.Responses({"/home": 90}, {"/home": 2}), Action.CONFIGURE),  # several nodes
        (HOME, STILL, checks.Responses({}, {"/home": 1}), Action.CONFIGURE),  # all nodes that mount it
        (HOME, Disk(problem="df: /home: Stale file handle"), HOME_ELSEWHERE, Action.REBOOT),
        (
            HOME,
            Disk(problem="df: /home: Stale file handle"),
            checks.Responses({"/home": 1}, {"/home": 2}),
            Action.CONFIGURE,
        ),
        (LOCAL, DISK, checks.Responses(), None),
        (LOCAL, STILL, checks.Responses({"/home": 1}, {"/home": 3}), Action.REBOOT),
        (LOCAL, STILL, checks.Responses(), Action.REBOOT),
        (NBD, STILL, checks.Responses(), Action.CONFIGURE),
    ],
)
def test_a_mount_that_hangs_takes_its_node_out_only_if_it_lasts_and_is_the_nodes_own(
    mount: Mount, later: Disk | None, elsewhere: checks.Responses, action: Action | None
) -> None:
    verdict = checks.mount_response(
        {"/home": HUNG}, {"/home": mount}, None, elsewhere, None, {"/home": later} if later else {}
    )
    if action is None:
        passed(verdict)
        assert [one.measured for one in verdict.advisories] == ["no answer within 8 s, and an answer later"]
    else:
        assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)


@pytest.mark.parametrize(
    ("disk", "fails"),
    [
        (Disk(problem="no answer within 8 s", hung=True), True),
        (Disk(problem="df: /home: Stale file handle"), True),
        (Disk(problem="df: /home: Permission denied"), False),
        (Disk(problem="df: /home: No such file or directory"), False),
    ],
)
def test_a_networked_mount_that_nobody_stated_fails_where_its_server_is_gone(
    disk: Disk, *, fails: bool
) -> None:
    found, disks = {"/": ROOT, "/home": HOME}, {**DISKS, "/home": disk}
    verdict = checks.mount_response(disks, found, ("/", "/tmp"))
    assert (verdict.outcome is Outcome.FAILED) is fails
    told = checks.mount_response(disks, found, ("/", "/tmp", "/home"), HOME_ELSEWHERE)
    failed(told, "/home (nfs4 from fs1:/home)")
    passed(checks.free_space(disks, found, OsConfig()))


def test_a_hung_mount_fails_one_check_and_names_the_server() -> None:
    found = {"/": ROOT, "/home": HOME}
    disks = {**DISKS, "/home": Disk(problem="no answer within 8 s", hung=True)}
    alone = checks.mount_response(disks, found)  # the server may be down: no node answers
    assert alone.action is Action.CONFIGURE
    again = {**DISKS, "/home": Disk(problem="no answer within 30 s", hung=True)}
    hung = checks.mount_response(disks, found, responses=HOME_ELSEWHERE, later_disks=again)
    assert failed(hung, "/home (nfs4 from fs1:/home)") == "no answer within 30 s | df answers"
    assert hung.action is Action.REBOOT
    failed(checks.mount_response({"/gone": disks["/home"]}, found, ("/gone",)), "/gone")
    config = OsConfig(mounts=(MountConfig(path="/home", min_free=2**40),))
    passed(checks.free_space(disks, found, config))
    passed(checks.mount_response({"/": DISK, "/tmp": DISK, "/gone": Disk(problem="No such file")}, found))


def test_free_space() -> None:
    found = {"/": ROOT, "/home": HOME}
    disks = {**DISKS, "/home": replace(DISK, free=2**30)}
    config = OsConfig(mounts=(MountConfig(path="/home", min_free_percent=5),))
    assert checks.disk_paths(config) == ("/", "/tmp", "/dev/shm", "/home")
    assert (
        failed(checks.free_space(disks, found, config), "/home")
        == "1 GiB free of 100 GiB | at least 5 GiB free"
    )
    passed(
        checks.free_space(disks, found, CONFIG.model_copy(update={"mounts": (MountConfig(path="/home"),)}))
    )
    silent = {**DISKS, "/tmp": Disk(problem="hung"), "/dev/shm": Disk(problem="gone")}
    assert (
        not_checked(checks.free_space(silent, found, CONFIG)) == "df has no result for /tmp, /dev/shm: hung"
    )


@pytest.mark.parametrize(
    ("path", "size", "free", "expected"),
    [
        ("/", 100 << 30, (1 << 30) - 1, "at least 1 GiB free"),
        ("/", 100 << 30, 1 << 30, ""),
        ("/", 9000 << 30, 1 << 30, ""),
        ("/tmp", 10 << 30, (1 << 30) - 1, "at least 1 GiB free"),
        ("/tmp", 1 << 30, (1 << 30) // 10, "at least 102.4 MiB free"),
        ("/tmp", 1 << 30, (1 << 30) // 10 + 1, ""),
        ("/dev/shm", 65960200 << 10, 0, "at least 1 GiB free"),
        ("/dev/shm", 100 << 30, (1 << 30) - 1, "at least 1 GiB free"),
        ("/dev/shm", 100 << 30, 1 << 30, ""),
        ("/dev/shm", 640 << 20, 64 << 20, ""),
        ("/dev/shm", 640 << 20, (64 << 20) - 1, "at least 64 MiB free"),
    ],
)
def test_scratch_space_that_is_full_is_named(path: str, size: int, free: int, expected: str) -> None:
    disks = {**DISKS, path: replace(DISK, size=size, free=free)}
    verdict = checks.free_space(disks, {"/": ROOT}, OsConfig())
    assert [(it.part, it.expected) for it in verdict.findings] == ([(path, expected)] if expected else [])
    assert Metric("free_space", free / 2**30, "GiB", path) in verdict.metrics


@pytest.mark.parametrize(
    ("mount", "free", "expected"),
    [
        (MountConfig(path="/tmp/", min_free=2 << 30), (2 << 30) - 1, "at least 2 GiB free"),
        (MountConfig(path="/tmp", min_free=1 << 20), 1 << 20, ""),
        (MountConfig(path="/tmp", min_free_percent=5), (5 << 30) - 1, "at least 5 GiB free"),
        (MountConfig(path="/tmp", min_free_percent=5), 5 << 30, ""),
        (MountConfig(path="/dev/shm", min_free=50 << 30), 50 << 30, ""),
        (MountConfig(path="/dev/shm", min_free=50 << 30), (50 << 30) - 1, "at least 50 GiB free"),
    ],
)
def test_a_mount_of_the_cluster_file_states_its_own_bound(
    mount: MountConfig, free: int, expected: str
) -> None:
    path = mount.path.rstrip("/")
    disks = {**DISKS, path: replace(DISK, free=free)}
    found = {"/": ROOT, path: Mount("tmpfs", path, "tmpfs", ("rw",))}
    verdict = checks.free_space(disks, found, OsConfig(mounts=(mount,)))
    assert [(it.part, it.expected) for it in verdict.findings] == ([(path, expected)] if expected else [])


def test_a_write_that_finds_no_room_is_named_once() -> None:
    problem = "sh: 1: printf: write error: Disk quota exceeded"
    verdict = checks.free_space(DISKS, {"/": ROOT}, OsConfig(), {"/tmp": problem, "/dev/shm": ""})
    assert verdict.findings == (Finding("/tmp", problem, "a file can be written"),)
    full = {**DISKS, "/dev/shm": replace(DISK, free=0)}
    verdict = checks.free_space(full, {"/": ROOT}, OsConfig(), {"/dev/shm": "No space left on device"})
    assert [it.expected for it in verdict.findings] == ["at least 1 GiB free"]
    passed(checks.free_space(DISKS, {"/": ROOT}, OsConfig(), {"/tmp": "mktemp: Read-only file system"}))


def test_inodes() -> None:
    image = replace(DISK, inodes=100, inodes_free=0, free=0)  # read-only: nothing of it is free
    passed(checks.inodes({**DISKS, "/": image}))
    failed(checks.inodes({**DISKS, "/": replace(image, free=1)}), "/")
    verdict = checks.inodes(DISKS)
    passed(verdict)
    assert verdict.metrics == tuple(Metric("free_inodes", 90.0, "%", path) for path in DISKS)
    for path in ("/", "/tmp", "/dev/shm"):
        passed(checks.inodes({**DISKS, path: replace(DISK, inodes=100, inodes_free=5)}))
        few = checks.inodes({**DISKS, path: replace(DISK, inodes=100, inodes_free=4)})
        assert failed(few, path) == "4 of 100 inodes free | at least 5% free"
    uncounted = dict.fromkeys(DISKS, replace(DISK, inodes=0))
    assert (
        not_applicable(checks.inodes(uncounted)) == "the file systems of /, /tmp and /dev/shm count no inodes"
    )
    passed(checks.inodes({**uncounted, "/dev/shm": DISK}))


def test_shared_storage_blames_the_node_that_does_not_see_it() -> None:
    passed(checks.shared_storage({"/s": SharedFolder("n1")}, "n2"))
    failed(checks.shared_storage({"/s": SharedFolder("n1", read_problem="No such file")}, "n2"), "/s")
    broken = {"/s": SharedFolder("n1", write_problem="Read-only file system", read_problem="No such file")}
    failed(checks.shared_storage(broken, "n1"), "/s")
    assert "n1" in not_checked(checks.shared_storage(broken, "n2"))
    assert not_applicable(checks.shared_storage({}, "n2"))


def test_what_our_user_may_not_touch_is_not_checked_and_no_fault_of_the_node() -> None:
    denied = {"/s": SharedFolder("n1", "sh: 1: cannot create /s/.gpucluster-x: Permission denied")}
    verdict = checks.shared_storage(denied, "n1")
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert "the user of the run may not write there" in verdict.reason
    disks = {**DISKS, "/home": Disk(problem="df: /home: Permission denied")}
    found = {"/": ROOT, "/home": HOME}
    config = OsConfig(mounts=(MountConfig(path="/home", min_free=2**30),))
    for verdict in (checks.mount_response(disks, found, ("/home",)), checks.free_space(disks, found, config)):
        assert verdict.outcome is Outcome.NOT_CHECKED
        assert verdict.reason == "df: /home: Permission denied: the user of the run has no permission there"
    on_another = checks.Responses.of_all({"n1": disks, "n2": {"/home": DISK}})
    failed(checks.mount_response(disks, found, ("/home",), on_another), "/home (nfs4 from fs1:/home)")


def test_a_mount_that_hangs_or_is_gone() -> None:
    found = {"/": ROOT, "/h": Mount("fs:/h", "/h", "nfs4", ("rw",))}
    gone = Disk(problem="df: /h: Transport endpoint is not connected")
    said = (Finding("/h (nfs4 from fs:/h)", gone.problem, "df answers"),)
    assert checks.mount_response({"/h": gone}, found, ()).findings == said
    assert checks.mount_response({"/h/": gone}, found).findings[0].part == "/h/ (nfs4 from fs:/h)"
    assert (
        checks.mount_response({"/x": gone}, found).outcome is Outcome.PASSED
    )  # os.mounts says that it is not there
    denied = Disk(problem="df: /h: Permission denied")
    assert checks.mount_response({"/h": denied}, found, ()).outcome is Outcome.PASSED
    assert (
        checks.mount_response({"/h": denied}, found, None, checks.Responses({"/h": 1})).outcome
        is Outcome.FAILED
    )
    stale = Disk(problem="df: /z: Stale file handle")
    assert checks.Responses.of_all(
        {
            "a": {"/x": Disk(1), "/y": denied},
            "b": {"/y": denied, "/z": Disk(1)},
            "c": {"/x": Disk(1), "/z": stale, "/y": HUNG},
        }
    ) == checks.Responses({"/x": 2, "/z": 1}, {"/z": 1, "/y": 1})


def test_inodes_in_numbers() -> None:
    disks = {"/": Disk(1, 1, 200, 10), "/tmp": Disk(problem="hung"), "/dev/shm": Disk(1, 1, 0, 0)}
    verdict = checks.inodes(disks)
    assert (verdict.outcome, verdict.metrics) == (Outcome.PASSED, (Metric("free_inodes", 5.0, "%", "/"),))


def test_space_of_a_mount_that_is_not_there_is_left_to_others() -> None:
    config = OsConfig(mounts=(MountConfig(path="/h/", min_free=2 * GIB),))
    disks = {"/": Disk(9 * GIB, 9 * GIB), "/tmp": Disk(9 * GIB, 9 * GIB), "/dev/shm": Disk(9 * GIB, 9 * GIB)}
    here = {**disks, "/h": Disk(9 * GIB, GIB), "/other": Disk(9 * GIB, 0)}
    assert checks.disk_paths(config) == ("/", "/tmp", "/dev/shm", "/h")
    assert checks.free_space(here, {"/": ROOT}, config).outcome is Outcome.PASSED
    found = {"/": ROOT, "/h": ROOT, "/other": ROOT}
    assert checks.free_space(here, found, config).findings == (
        Finding("/h", "1 GiB free of 9 GiB", "at least 2 GiB free"),
    )
    metrics = checks.free_space(here, found, config).metrics
    assert [(it.name, it.value, it.unit, it.device) for it in metrics] == [
        ("free_space", 9, "GiB", "/"), ("free_space", 9, "GiB", "/tmp"), ("free_space", 9, "GiB", "/dev/shm"),
        ("free_space", 1, "GiB", "/h"),
    ]  # fmt: skip


def test_a_path_that_is_for_others_is_not_checked() -> None:
    denied = Disk(problem="df: /h: Permission denied")
    verdict = checks.mount_response({"/h": denied}, {"/h": ROOT})
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED, "df: /h: Permission denied: the user of the run has no permission there"
    )  # fmt: skip
    hung = Disk(problem="no answer within 10 s", hung=True)
    assert checks.mount_response({"/x": hung}, {}, ()).findings == (
        Finding("/x", hung.problem, "df answers"),
    )
    stale = Disk(problem="df: /h: Stale file handle")
    assert checks.mount_response({"/h": stale}, {"/h": ROOT}, ()).findings == (
        Finding("/h (ext4 from /dev/sda1)", stale.problem, "df answers"),
    )
    config = OsConfig(mounts=(MountConfig(path="/h", min_free=1),))
    room = Disk(9 * GIB, 9 * GIB)
    disks = {"/h": denied, "/": room, "/tmp": room, "/dev/shm": room}
    verdict = checks.free_space(disks, {"/": ROOT, "/h": ROOT}, config)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED, "df: /h: Permission denied: the user of the run has no permission there"
    )  # fmt: skip
    assert [it.device for it in verdict.metrics] == ["/", "/tmp", "/dev/shm"]
