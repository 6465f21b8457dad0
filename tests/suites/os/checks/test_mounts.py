from __future__ import annotations

from dataclasses import replace

import pytest
from os_helpers import GIB, GROUP, HOME, MOST, NONE, ROOT, failed, not_applicable, passed, peers, split

from pytest_gpucluster.config.models import Group
from pytest_gpucluster.core.check import Action, Advisory, Finding, Outcome, Verdict
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.kit.node.file_systems import READ_ONLY
from pytest_gpucluster.kit.node.os_config import MountConfig
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import mounts as checks
from pytest_gpucluster.suites.os.facts import Mount
from pytest_gpucluster.suites.os.storage_facts import Disk


def test_mounts() -> None:
    found = {"/": ROOT, "/home": HOME}
    passed(
        checks.mounts(found, [MountConfig(path="/home/", fstype="nfs", source="fs1:/home", options=("rw",))])
    )
    passed(checks.mounts(found, [MountConfig(path="/home", source="fs1:/home/")]))
    gone = checks.mounts(found, [MountConfig(path="/scratch/"), MountConfig(path="/home", options=("hard",))])
    assert gone.findings == (Finding("/scratch/", "not mounted", "mounted"),)
    wrong = MountConfig(path="/home", fstype="lustre", source="fs2:/home", options=("rw", "noatime", "x"))
    assert checks.mounts(found, [wrong]).findings == (
        Finding("/home", "type nfs4", "type lustre"),
        Finding("/home", "source fs1:/home", "source fs2:/home"),
        Finding("/home", "options rw,hard", "with noatime,x"),
    )
    nfs3 = {"/home": replace(HOME, fstype="nfs")}
    assert "type nfs | type nfs4" in failed(
        checks.mounts(nfs3, [MountConfig(path="/home", fstype="nfs4")]), "/home"
    )
    ext4 = checks.mounts({"/": ROOT}, [MountConfig(path="/", fstype="nfs")])
    assert failed(ext4, "/") == "type ext4 | type nfs"
    assert not_applicable(checks.mounts(found, [])) == "the cluster file states no os.mounts"


def test_a_root_that_most_nodes_write_to() -> None:
    passed(checks.root_writable({"/": ROOT, "/home": HOME}))
    failed(checks.root_writable({"/": replace(ROOT, options=("ro", "relatime"))}), "/")


def test_a_disk_that_is_read_only_here_and_not_on_most_nodes_is_found() -> None:
    def node(options: str, fstype: str = "ext4") -> dict[str, Mount]:
        return {"/": ROOT, "/var": Mount("/dev/sda3", "/var", fstype, (options, "relatime"))}

    def judged(*fleet: dict[str, Mount]) -> Verdict:
        facts = {f"n{number}": found for number, found in enumerate(fleet, 1)}
        group = Group(nodes=f"n[1-{len(fleet)}]", profile=GROUP.profile)
        peers = {path: each.of(group) for path, each in checks.writable_of_all(facts).items()}
        return checks.root_writable(fleet[0], peers)

    assert "rw, as on 2 of 3 nodes" in failed(judged(node("ro"), node("rw"), node("rw")), "/var")
    passed(judged(node("rw"), node("ro"), node("rw")))
    passed(judged(node("ro"), node("ro"), node("rw")))  # meant to be so
    assert "ro on n1, rw on n2" in split(judged(node("ro"), node("rw")), "/var")
    passed(judged(node("rw"), node("ro")))  # it lacks nothing
    passed(judged(node("ro"), {"/": ROOT}, {"/": ROOT}))
    passed(judged(*(node(way, "squashfs") for way in ("ro", "rw", "rw"))))


@pytest.mark.parametrize("path", ["/tmp", "/dev/shm"])
def test_scratch_space_that_became_read_only_is_named(path: str) -> None:
    found = {"/": ROOT, path: Mount("tmpfs", path, "tmpfs", ("ro", "nosuid"))}
    problem = {path: f"mktemp: failed to create file via template '{path}/x': Read-only file system"}
    verdict = checks.root_writable(found, {}, problem)
    assert verdict.findings == (Finding(path, "mounted ro,nosuid", "rw"),)
    assert verdict.action is Action.CONFIGURE  # a mount option


@pytest.mark.parametrize(
    ("problem", "action"),
    [
        ("mktemp: failed to create file via template '/tmp/x': Read-only file system", Action.CONFIGURE),
        ("mktemp: failed to create file via template '/tmp/x': Input/output error", Action.DRAIN),
        ("timed out after 30 s", Action.CONFIGURE),
        ("mktemp: failed to create file via template '/tmp/x': Permission denied", Action.CONFIGURE),
        ("mktemp: failed to create file via template '/tmp/x': No such file or directory", Action.CONFIGURE),
    ],
)
def test_scratch_space_that_takes_no_file_is_named(problem: str, action: Action) -> None:
    verdict = checks.root_writable({"/": ROOT}, {}, {"/tmp": problem, "/dev/shm": ""})
    assert verdict.findings == (
        Finding("/tmp", problem, "a file can be written", verdict.findings[0].action),
    )
    assert verdict.action is action


def test_a_try_to_write_that_tells_nothing() -> None:
    missing = checks.root_writable({"/": ROOT}, {}, {"/tmp": "sh: 1: mktemp: not found"})
    assert (missing.outcome, missing.reason) == (Outcome.NOT_CHECKED, "/tmp: sh: 1: mktemp: not found")
    for full in ("printf: write error: No space left on device", "Disk quota exceeded", ""):
        passed(checks.root_writable({"/": ROOT}, {}, {"/tmp": full}))


def voted(*, most: bool, agree: int, nodes: int) -> Norm[bool]:
    """Return the vote of so many nodes on whether / may be written to."""
    votes = (
        (most, tuple(f"n{at}" for at in range(agree))),
        (not most, tuple(f"n{at}" for at in range(agree, nodes))),
    )
    return Norm(votes[: 1 + (agree < nodes)])


def of_root(*options: str, fstype: str = "ext4") -> dict[str, Mount]:
    return {"/": Mount("/dev/sda1", "/", fstype, options)}


@pytest.mark.parametrize(
    ("root", "most", "expected"),
    [
        (of_root("ro", "relatime"), None, "rw"),
        (of_root("rw", "emergency_ro"), None, "rw"),
        (of_root("rw", "shutdown"), voted(most=False, agree=3, nodes=4), "rw"),
        (of_root("ro", "errors=remount-ro"), voted(most=False, agree=3, nodes=4), "rw"),
        (of_root("ro"), voted(most=True, agree=3, nodes=4), "rw, as on 3 of 4 nodes"),
        (
            of_root("ro", fstype="nfs"),
            voted(most=True, agree=3, nodes=4),
            "rw, as on 3 of 4 nodes",
        ),
    ],
)
def test_a_root_that_became_read_only_is_named(
    root: dict[str, Mount], most: Norm[bool] | None, expected: str
) -> None:
    verdict = checks.root_writable(root, {"/": most} if most else {})
    assert verdict.findings == (
        Finding("/", f"mounted {','.join(root['/'].options)}", expected, verdict.findings[0].action),
    )
    by_kernel = {"emergency_ro", "shutdown"} & set(root["/"].options)
    assert verdict.action is (Action.DRAIN if by_kernel else Action.CONFIGURE)


def test_a_root_that_is_read_only_on_purpose_is_no_fault() -> None:
    most = voted(most=False, agree=3, nodes=4)
    for fstype in ("nfs", "squashfs", "btrfs"):
        verdict = checks.root_writable(of_root("ro", "noatime", fstype=fstype), {"/": most})
        passed(verdict)
        told = "mounted ro,noatime, as on 3 of 4 nodes"
        assert verdict.advisories == (Advisory("/", told, "rw, or read-only on purpose"),)
    alone = checks.root_writable(of_root("ro", fstype="squashfs"), {"/": voted(most=False, agree=1, nodes=1)})
    assert alone.outcome is Outcome.NOT_CHECKED
    assert alone.reason == (
        "/ is a read-only squashfs, which may be on purpose: "
        "not stated in the cluster file, and no other node to compare with"
    )


def test_a_read_only_root_on_half_of_the_nodes_drains_nobody() -> None:
    halves = Norm(((True, ("n0", "n1")), (False, ("n2", "n3"))))
    expected = "one value on all nodes; no majority: rw on n[0-1], ro on n[2-3]"
    verdict = checks.root_writable(of_root("ro"), {"/": halves})
    assert verdict.findings == (Finding("/", "mounted ro", expected, Action.CONFIGURE),)
    assert verdict.action is Action.CONFIGURE


def _scratch(*shm: str, tmp: tuple[str, ...] = ()) -> checks.ScratchMounts:
    mounts = {"/": ROOT, "/dev/shm": Mount("tmpfs", "/dev/shm", "tmpfs", ("rw", *shm))}
    return checks.ScratchMounts.of(
        mounts | ({"/tmp": Mount("t", "/tmp", "tmpfs", ("rw", *tmp))} if tmp else {})
    )


@pytest.mark.parametrize(
    ("bad", "named", "told"),
    [
        (_scratch("size=65536k"), "/dev/shm", "limit of 64 MiB | limit of 64 GiB, as on 3 of 4 nodes"),
        (_scratch("size=471859k"), "/dev/shm", "limit of 460.8 MiB | limit of 64 GiB, as on 3 of 4 nodes"),
    ],
)
def test_scratch_space_that_gives_less_than_on_most_nodes_is_named(
    bad: checks.ScratchMounts, named: str, told: str
) -> None:
    memory = 128 << 30
    fleet = {"n1": _scratch(), "n2": _scratch(), "n3": _scratch(), "n4": bad}
    tmp, shm = (norm({node: getattr(one, room) for node, one in fleet.items()}) for room in ("tmp", "shm"))
    assert told in failed(checks.scratch(bad, tmp, shm, memory), named)
    passed(checks.scratch(_scratch(), tmp, shm, memory))


@pytest.mark.parametrize(
    ("bad", "path"), [(_scratch("noexec"), "/dev/shm"), (_scratch(tmp=("noexec",)), "/tmp")]
)
def test_scratch_space_where_no_program_runs_is_a_warning(bad: checks.ScratchMounts, path: str) -> None:
    fleet = {"n1": _scratch(), "n2": _scratch(), "n3": _scratch(), "n4": bad}
    tmp, shm = (norm({node: getattr(one, room) for node, one in fleet.items()}) for room in ("tmp", "shm"))
    verdict = checks.scratch(bad, tmp, shm, 128 << 30)
    passed(verdict)
    expected = "programs may run there, as on 3 of 4 nodes of its group"
    assert verdict.advisories == (Advisory(path, "mounted noexec", expected),)


def test_scratch_space_that_gives_more_or_has_no_majority_accuses_nobody() -> None:
    small, large = (
        norm(dict.fromkeys("abc", _scratch("size=1024k").shm)),
        norm(dict.fromkeys("abc", _scratch().tmp)),
    )
    passed(checks.scratch(_scratch("size=2048k"), large, small, 1 << 40))
    passed(checks.scratch(_scratch("size=1000k"), large, small, 1 << 40))
    passed(checks.scratch(_scratch("size=50%"), large, small, 1 << 40))
    halves = norm({"a": _scratch("noexec").shm, "b": _scratch().shm})
    passed(checks.scratch(_scratch("noexec"), large, halves, 1 << 40))
    passed(checks.scratch(_scratch(), large, halves, 1 << 40))


def test_scratch_space_whose_sizes_differ_by_pages_is_alike() -> None:
    """The kernel writes a share of the memory in KiB: it differs on nodes alike."""

    def mounts(size: int) -> dict[str, Mount]:
        return {"/": ROOT, "/dev/shm": Mount("tmpfs", "/dev/shm", "tmpfs", ("rw", f"size={size}k"))}

    fleet = {f"n{n}": mounts(131906420 + 4 * n) for n in range(1, 5)}
    norm = checks.ScratchMounts.of_all(fleet).of(GROUP, "shm")
    assert (norm.agree, norm.total, norm.votes[0][0].size) == (4, 4, "131906432k")
    odd = checks.ScratchMounts.of_all({**fleet, "n4": mounts(115_000_000)}).of(GROUP, "shm")
    assert (odd.agree, odd.votes[0][0].size, odd.votes[1][0].size) == (3, "131906428k", "115000000k")


@pytest.mark.parametrize("fstype", ["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"])
def test_file_systems_of_disks(fstype: str) -> None:
    assert fstype in checks._ON_DISKS


def test_what_scratch_space_gives() -> None:
    def shm(*options: str, fstype: str = "tmpfs") -> checks.ScratchMount:
        return checks.ScratchMounts.of({"/": ROOT, "/dev/shm": Mount("s", "/dev/shm", fstype, options)}).shm

    assert shm("rw") == checks.ScratchMount(size="half of the memory")
    assert shm("rw", "noexec", "size=64k") == checks.ScratchMount(noexec=True, size="64k")
    assert shm("size=64k", fstype="ext4") == checks.ScratchMount()
    assert shm("size=50%", "xsize=64k") == checks.ScratchMount(size="half of the memory")
    mine = checks.ScratchMounts(checks.ScratchMount(), checks.ScratchMount(size="64k"))
    norm = peers(checks.ScratchMount(size="64k"), checks.ScratchMount(size="100k"))
    assert checks.scratch(mine, peers(checks.ScratchMount(), checks.ScratchMount()), norm, 1).findings == (
        Finding("/dev/shm", "limit of 64 KiB", f"limit of 100 KiB, {MOST}"),
    )
    for size, outcome in (("90k", Outcome.PASSED), ("89k", Outcome.FAILED), ("", Outcome.PASSED)):
        room = checks.ScratchMounts(checks.ScratchMount(), checks.ScratchMount(size=size))
        assert (
            checks.scratch(room, peers(checks.ScratchMount(), checks.ScratchMount()), norm, 1).outcome
            is outcome
        )
    disk = peers(checks.ScratchMount(size="64k"), checks.ScratchMount())
    assert (
        checks.scratch(mine, peers(checks.ScratchMount(), checks.ScratchMount()), disk, 1).outcome
        is Outcome.PASSED
    )
    everywhere = peers(checks.ScratchMount(noexec=True), checks.ScratchMount(noexec=True))
    assert (
        checks.scratch(
            checks.ScratchMounts(checks.ScratchMount(noexec=True), checks.ScratchMount()), everywhere, NONE, 1
        ).advisories
        == ()
    )


def test_a_read_only_root_alone_is_a_fault_on_a_disk_only() -> None:
    root = {"/": Mount("d", "/", "xfs", ("ro",))}
    assert checks.root_writable(root).findings == (Finding("/", "mounted ro", "rw"),)
    var = {"/": ROOT, "/var": Mount("d", "/var", "xfs", ("ro",))}
    assert checks.root_writable(var, {"/var": Norm()}).outcome is Outcome.PASSED
    broken = {"/": ROOT, "/var": Mount("d", "/var", "ext4", ("ro", "errors=remount-ro"))}
    assert checks.root_writable(broken, {"/var": Norm()}).outcome is Outcome.FAILED
    image = checks.root_writable({"/": Mount("d", "/", "nfs", ("ro",))}, {"/": peers(odd=False, usual=False)})
    assert image.advisories == (
        Advisory("/", "mounted ro, as on 4 of 4 nodes of its group", "rw, or read-only on purpose"),
    )
    assert sorted(READ_ONLY) == ["emergency_ro", "ro", "shutdown"]
    assert checks._ON_DISKS == ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")


def test_what_may_be_written_to_on_the_nodes_that_have_it() -> None:
    def mount(path: str, fstype: str = "ext4", *options: str) -> Mount:
        return Mount("d", path, fstype, options or ("rw",))

    fleet = {
        "n1": {"/": mount("/", "overlay"), "/var": mount("/var"), "/nfs": mount("/nfs", "nfs4", "ro")},
        "n2": {"/": mount("/", "overlay"), "/var": mount("/var", "xfs", "rw", "shutdown"), "/b": mount("/b")},
        "n3": {"/var": mount("/var", "nfs", "ro")},
    }
    assert {path: peers.facts for path, peers in checks.writable_of_all(fleet).items()} == {
        "/": {"n1": True, "n2": True},
        "/b": {"n2": True},
        "/var": {"n1": True, "n2": False, "n3": False},
    }
    assert list(checks.writable_of_all(fleet)) == ["/", "/b", "/var"]


def test_scratch_space_of_all_nodes_is_rounded_to_what_most_have() -> None:
    def node(tmp: str, shm: str) -> dict[str, Mount]:
        return {
            "/": ROOT,
            "/tmp": Mount("t", "/tmp", "tmpfs", ("rw", f"size={tmp}")),
            "/dev/shm": Mount("t", "/dev/shm", "tmpfs", ("rw", "noexec", shm)),
        }

    rooms = checks.ScratchMounts.of_all(
        {
            "n1": node("1000k", "size=91k"),
            "n2": node("999k", "size=100k"),
            "n3": node("500k", "x"),
            "n4": {"/": ROOT},
        }
    ).facts
    assert rooms == {
        "n1": checks.ScratchMounts(
            checks.ScratchMount(size="999k"), checks.ScratchMount(noexec=True, size="100k")
        ),
        "n2": checks.ScratchMounts(
            checks.ScratchMount(size="999k"), checks.ScratchMount(noexec=True, size="100k")
        ),
        "n3": checks.ScratchMounts(
            checks.ScratchMount(size="500k"), checks.ScratchMount(noexec=True, size="half of the memory")
        ),
        "n4": checks.ScratchMounts(checks.ScratchMount(), checks.ScratchMount()),
    }


def test_programs_that_may_not_run_in_scratch_space_are_a_warning() -> None:
    quiet = checks.ScratchMount()
    mine = checks.ScratchMounts(checks.ScratchMount(noexec=True), quiet)
    alike = peers(quiet, quiet)
    verdict = checks.scratch(mine, alike, alike, 1)
    assert verdict.advisories == (
        Advisory("/tmp", "mounted noexec", "programs may run there, as on 4 of 4 nodes of its group"),
    )
    assert verdict.outcome is Outcome.PASSED
    halves = norm({"n1": quiet, "n2": checks.ScratchMount(noexec=True)})
    assert checks.scratch(mine, halves, alike, 1).advisories == ()
    small = checks.ScratchMounts(quiet, checks.ScratchMount(size="half of the memory"))
    most = peers(quiet, checks.ScratchMount(size="2048k"))
    assert checks.scratch(small, alike, most, 2 * GIB).outcome is Outcome.PASSED
    assert checks.scratch(small, alike, most, 2 << 20).findings == (
        Finding("/dev/shm", "limit of 1 MiB", f"limit of 2 MiB, {MOST}"),
    )


def test_files_that_cannot_be_written() -> None:
    def told(problem: str, *options: str) -> Verdict:
        found = {"/": ROOT, "/tmp": Mount("t", "/tmp", "tmpfs", options or ("rw",))}
        return checks.root_writable(found, {}, {"/tmp": problem})

    words = "sh: 1: cannot create /tmp/x: "
    for end in ("Permission denied", "No such file or directory"):
        assert told(words + end).findings == (Finding("/tmp", words + end, "a file can be written"),)
    assert told(f"{words}Input/output error").findings == (
        Finding("/tmp", f"{words}Input/output error", "a file can be written", Action.DRAIN),
    )
    for full in ("No space left on device", "Disk quota exceeded", ""):
        assert told(words + full if full else "").outcome is Outcome.PASSED
    absent = told("sh: mktemp: not found")
    assert (absent.outcome, absent.reason) == (Outcome.NOT_CHECKED, "/tmp: sh: mktemp: not found")
    assert told(f"{words}Input/output error", "ro").findings == (Finding("/tmp", "mounted ro", "rw"),)
    assert checks.root_writable({"/": ROOT}, {}, {"/dev/shm": "x"}).findings[0].part == "/dev/shm"


def test_the_source_of_an_automount_may_end_with_a_slash() -> None:
    for source, wanted in (("fs:/home/", "fs:/home"), ("fs:/home", "fs:/home/"), ("fs:/", "fs:/")):
        disk = Disk(size=1, source=source)
        assert list(checks._automount(MountConfig(path="/home", source=wanted), disk)) == []
    (found,) = checks._automount(MountConfig(path="/home", source="fs:/a"), Disk(size=1, source="fs:/b"))
    assert found == Finding("/home", "source fs:/b", "source fs:/a")


def test_an_idle_automount_was_not_checked() -> None:
    (found,) = checks._automount(MountConfig(path="/home"), None)
    assert repr(found) == repr(
        NotAvailable("/home is an idle automount: list the folder, and repeat the check")
    )
