from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.config.models import Group, NodeProfile, Profile
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.os_config import MountConfig, OsConfig
from pytest_gpucluster.suites.os import checks as os
from pytest_gpucluster.suites.os.facts import Clock, Cpus, Load, MemoryInfo, Mount
from pytest_gpucluster.suites.os.software_facts import CommandOutput, Processes, ProcessRow, TimeSync
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

if TYPE_CHECKING:
    from collections.abc import Mapping


GROUP = Group(nodes="n[1-4]", profile=Profile(name="p", description="", source="test"))
ALONE = os.norm({"n1": "x"})
CPUS = Cpus(8, "", 2, "2", "2", "EPYC", "x86_64")
MEMORY = MemoryInfo(64 * 2**30, 60 * 2**30, 0, 0, 0, 2**21)
DISK = Disk(100 * 2**30, 50 * 2**30, 1000, 900)
ROOT = Mount("/dev/sda1", "/", "ext4", ("rw", "relatime"))
DISKS = dict.fromkeys(("/", "/tmp", "/dev/shm"), DISK)
HOME = Mount("fs1:/home", "/home", "nfs4", ("rw", "hard"))
CONFIG = OsConfig()


def peers(odd: object, usual: object) -> Norm[Any]:
    return os.norm({"n1": odd, "n2": usual, "n3": usual, "n4": usual})


def failed(verdict: Verdict, *parts: str) -> str:
    assert verdict.outcome is Outcome.FAILED
    assert [finding.part for finding in verdict.findings] == list(parts)
    assert verdict.cause
    assert verdict.hint
    return f"{verdict.findings[0].measured} | {verdict.findings[0].expected}"


def passed(verdict: Verdict) -> None:
    assert (verdict.outcome, verdict.findings, verdict.reason) == (Outcome.PASSED, (), "")


def not_applicable(verdict: Verdict) -> str:
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    return verdict.reason


def test_a_node_that_answers_not_fails_with_why() -> None:
    passed(os.responds(Answer("n1", 0)))
    assert "timed out" in failed(os.responds(Answer("n1", None, problem="timed out after 30 s")), "node")
    assert "slurmd died" in failed(os.responds(Answer("n1", 0), "slurmd died"), "node")
    failed(os.responds(Answer("n1", 137)), "node")


def test_hostname_is_compared_short() -> None:
    passed(os.hostname("gpu01.cluster.example.com", "gpu01"))
    failed(os.hostname("localhost", "gpu01"), "host name")


def split(verdict: Verdict, *parts: str) -> str:
    """Return what a check says of a group in halves, which drains nobody."""
    said = failed(verdict, *parts)
    assert verdict.action is Action.MONITOR
    return said.partition(" | ")[2]


def test_a_group_of_one_has_nothing_to_compare_with() -> None:
    assert not_applicable(os.swap(MEMORY, ALONE)) == (
        "not stated in the cluster file, and no other node to compare with"
    )


def test_a_group_in_halves_drains_nobody_and_names_both() -> None:
    halves = os.norm({"n1": "5.15.0", "n2": "5.15.0", "n3": "6.8.0", "n4": "6.8.0"})
    for kernel in ("5.15.0", "6.8.0"):
        assert split(os.kernel(kernel, None, halves), "kernel") == (
            "one value on all nodes of its group; no majority: 5.15.0 on n[1-2], 6.8.0 on n[3-4]"
        )
    words = os.norm({"n1": "quiet", "n2": "quiet nosmt"})
    assert "quiet on n1, quiet nosmt on n2" in split(os.cmdline("quiet", words), "kernel command line")
    mtu = os.norm({"n1": CommandOutput("1500", 0), "n2": CommandOutput("1500", 1)})
    assert "1500 on n1, 1500 (exit 1) on n2" in split(
        os.drift({"c": CommandOutput("1500", 0)}, {"c": mtu}), "c"
    )
    two = os.norm({"n1": math.inf, "n2": 65536.0})
    assert "unlimited on n1, 64 KiB on n2" in split(
        os.limits({"Max locked memory": 65536.0}, {}, {"memlock": two}), "memlock"
    )
    passed(os.limits({"Max locked memory": math.inf}, {}, {"memlock": two}))  # it lacks nothing
    online = os.norm({"n1": 8, "n2": 6})
    assert "8 on n1, 6 on n2" in split(os.cpus(CPUS, None, online), "CPUs")
    off = os.cpus(replace(CPUS, online=6, offline="6-7"), None, online)
    assert (off.action, off.findings[0].expected) == (Action.DRAIN, "no CPU offline")


def test_peers_are_those_of_the_group() -> None:
    facts = {"n1": CPUS, "n2": replace(CPUS, online=4), "n3": CPUS, "other": replace(CPUS, online=1)}
    norm = os.Peers(facts).of(GROUP, "online")
    assert (norm.value, norm.agree, norm.total) == (8, 2, 3)


def test_release_as_stated_or_alike() -> None:
    passed(os.release("ubuntu 22.04", "Ubuntu 22.04", ALONE))
    failed(os.release("ubuntu 20.04", "ubuntu 22.04", ALONE), "release")
    odd = peers("ubuntu 20.04", "ubuntu 22.04")
    assert "3 of 4" in failed(os.release("ubuntu 20.04", None, odd), "release")
    passed(os.release("ubuntu 22.04", None, odd))


def test_kernel_takes_a_prefix() -> None:
    passed(os.kernel("6.8.0-51-generic", "6.8.0-*", ALONE))
    failed(os.kernel("6.8.0-51-generic", "6.8.0", ALONE), "kernel")
    failed(os.kernel("5.15.0", None, peers("5.15.0", "6.8.0")), "kernel")


def test_cmdline_names_the_words() -> None:
    said = failed(os.cmdline("quiet nosmt", peers("quiet nosmt", "quiet iommu=pt")), "kernel command line")
    assert "nosmt more and iommu=pt less" in said
    passed(os.cmdline("quiet", peers("x", "quiet")))


def test_uptime_bounds() -> None:
    passed(os.uptime(7200, 3600, 86400))
    failed(os.uptime(60, 3600, None), "uptime")
    failed(os.uptime(90000, None, 86400), "uptime")
    verdict = os.uptime(60, None, None)
    assert not_applicable(verdict)
    assert verdict.metrics[0].value == 60


def clocks(**seconds: float) -> Mapping[str, Clock]:
    return {name: Clock(1000 + value, 1000.0, 1000.5) for name, value in seconds.items()}


def test_clock_skew_is_what_the_window_of_the_answer_can_not_explain() -> None:
    fleet = clocks(n1=0.1, n2=0.3, n3=120, n4=0.2)
    common = os.CommonTime.of(fleet, 1.0)
    for name in ("n1", "n2", "n4"):
        passed(os.clock(fleet[name], common, 1.0))
    assert "ahead" in failed(os.clock(fleet["n3"], common, 1.0), "clock")
    late = Clock(1009.0, 1000.0, 1009.5)  # an answer that took long is no skew
    passed(os.clock(late, common, 1.0))
    assert os.clock(fleet["n3"], common, 1.0).action is Action.DRAIN
    few = replace(common, agreeing=3)  # of 5, with the controller's
    assert split(os.clock(fleet["n3"], few, 1.0), "clock") == "within 1 s"
    behind = Clock(900, 1000.0, 1000.5)
    assert "behind" in failed(os.clock(behind, common, 1.0), "clock")


def test_answers_of_very_different_length_make_no_skew() -> None:
    """A wide fleet starts over seconds: the windows differ, and all of them hold the one time."""
    ends = [
        (0.0, 9.0),
        (0.1, 8.0),
        (5.0, 5.1),
        (6.0, 6.1),
        (7.9, 9.5),
        (8.9, 9.0),
    ]  # asked at 0, answered at 9 and so on
    fleet = {f"n{place}": Clock(read, 0.0, received) for place, (read, received) in enumerate(ends)}
    for clock in fleet.values():
        passed(os.clock(clock, os.CommonTime.of(fleet, 1.0), 1.0))
    fleet["n0"] = Clock(60.0, 0.0, 9.0)
    assert "at least 51.000 s ahead of the time that 6 of 7 clocks share" in failed(
        os.clock(fleet["n0"], os.CommonTime.of(fleet, 1.0), 1.0), "clock"
    )


def test_between_two_clocks_the_controller_decides() -> None:
    fleet = clocks(n1=0.2, n2=-300)
    common = os.CommonTime.of(fleet, 1.0)
    passed(os.clock(fleet["n1"], common, 1.0))
    failed(os.clock(fleet["n2"], common, 1.0), "clock")


def test_two_halves_of_a_fleet_accuse_nobody() -> None:
    bare = {"n1": Clock(100.0), "n2": Clock(100.3), "n3": Clock(160.0), "n4": Clock(160.2)}
    for clock in bare.values():
        passed(os.clock(clock, os.CommonTime.of(bare, 1.0), 1.0))


def test_a_fleet_that_differs_from_the_controller_is_no_skew() -> None:
    fleet = clocks(n1=50, n2=50.2, n3=50.1)
    for clock in fleet.values():
        passed(os.clock(clock, os.CommonTime.of(fleet, 1.0), 1.0))


def test_clocks_without_windows_and_alone() -> None:
    bare = {"n1": Clock(100.0), "n2": Clock(100.3), "n3": Clock(160.0)}
    passed(os.clock(bare["n1"], os.CommonTime.of(bare, 1.0), 1.0))
    failed(os.clock(bare["n3"], os.CommonTime.of(bare, 1.0), 1.0), "clock")
    one = {"n1": Clock(100.0, 1.0, 2.0)}
    assert not_applicable(os.clock(one["n1"], os.CommonTime.of(one, 1.0), 1.0))


def test_time_sync() -> None:
    passed(os.time_sync(TimeSync(synchronised=True, source="chronyc", offset=0.001)))
    failed(os.time_sync(TimeSync(synchronised=False, source="timedatectl")), "time service")
    failed(os.time_sync(TimeSync(synchronised=True, source="ntpq", offset=-3.0)), "time service")
    failed(os.time_sync(TimeSync(synchronised=True, source="ntpq", offset=math.nan)), "time service")


def test_memory_against_profile_and_peers() -> None:
    many = os.Peers({"n1": MEMORY, "n2": MEMORY, "n3": replace(MEMORY, total=60 * 2**30)})
    norm = many.of(GROUP, "total", os.PEER_MEMORY_TOLERANCE)
    passed(os.memory(MEMORY, NodeProfile(memory=66 * 2**30), norm))
    failed(os.memory(MEMORY, NodeProfile(memory=128 * 2**30), norm), "memory")
    failed(os.memory(many.facts["n3"], NodeProfile(), norm), "memory")
    passed(os.memory(MEMORY, NodeProfile(), norm))
    single = os.Peers({"n1": MEMORY}).of(GROUP, "total", os.PEER_MEMORY_TOLERANCE)
    assert not_applicable(os.memory(MEMORY, NodeProfile(), single))
    passed(os.memory(MEMORY, NodeProfile(memory=64 * 2**30), single))


def test_memory_of_a_group_in_halves_is_not_returned_to_its_vendor() -> None:
    half = replace(MEMORY, total=60 * 2**30)
    pages = [replace(one, total=one.total - 4096 * n) for n, one in enumerate((MEMORY, MEMORY, half, half))]
    fleet = os.Peers({f"n{n}": one for n, one in enumerate(pages, 1)})
    norm = fleet.of(GROUP, "total", os.PEER_MEMORY_TOLERANCE)
    assert "64 GiB on n[1-2], 60 GiB on n[3-4]" in split(os.memory(MEMORY, NodeProfile(), norm), "memory")
    assert split(os.memory(half, NodeProfile(), norm), "memory")
    most = os.Peers({"n1": MEMORY, "n2": MEMORY, "n3": half}).of(GROUP, "total", os.PEER_MEMORY_TOLERANCE)
    verdict = os.memory(half, NodeProfile(), most)
    assert failed(verdict, "memory") == "60 GiB | 64 GiB, as on 2 of 3 nodes of its group"
    assert verdict.action is Action.VENDOR


def test_cpus_and_numa() -> None:
    off = replace(CPUS, online=6, offline="6-7")
    passed(os.cpus(CPUS, 8, ALONE))
    assert "offline: 6-7" in failed(os.cpus(off, 8, ALONE), "CPUs")
    failed(os.cpus(off, None, peers(6, 8)), "CPUs")
    failed(os.cpus(off, None, ALONE), "CPUs")
    passed(os.cpus(off, None, peers(8, 6)))  # SMT is off everywhere
    passed(os.cpus(CPUS, None, ALONE))
    failed(os.numa(CPUS, 8, ALONE), "NUMA nodes")
    passed(os.numa(CPUS, None, peers(1, 2)))
    failed(os.cpu_model(CPUS, peers("EPYC", "Xeon")), "CPU model")
    failed(os.architecture(CPUS, peers("x86_64", "aarch64")), "architecture")


def test_governor() -> None:
    passed(os.governor({"performance": 8}, "performance", ALONE))
    failed(os.governor({"performance": 7, "powersave": 1}, "performance", ALONE), "governor")
    failed(os.governor({}, "performance", ALONE), "governor")
    assert "no CPU frequency scaling" in not_applicable(os.governor({}, None, peers({}, {})))
    failed(os.governor({"powersave": 8}, None, peers({"powersave": 8}, {"performance": 8})), "governor")
    failed(os.governor({}, None, peers({}, {"performance": 8})), "governor")


def test_what_is_alike() -> None:
    failed(os.hugepages(MEMORY, 1024, ALONE), "HugePages_Total")
    passed(os.hugepages(MEMORY, 0, ALONE))
    failed(os.hugepages(MEMORY, None, peers(0, 512)), "HugePages_Total")
    failed(os.swap(MEMORY, peers(0, 2**30)), "swap")
    failed(os.transparent_hugepages("never", peers("never", "always")), "transparent huge pages")
    failed(os.security_modules("none", peers("none", "apparmor")), "security modules")
    failed(os.kernel_settings("a=1", peers("a=1", "a=2")), "sysctls")
    failed(os.user("uid=1000", peers("uid=1000", "uid=1000(ada)")), "id")


def test_long_values_are_shown_from_where_they_part() -> None:
    common = "x" * 500
    said = failed(os.user(common + "mine", peers(common + "mine", common + "theirs")), "id")
    assert "mine" in said
    assert "theirs" in said
    assert len(said) < 500


def test_sysctls() -> None:
    passed(os.sysctls({"a.b": "1 2"}, {"a.b": "1\t2"}))
    failed(os.sysctls({"a.b": "1", "c.d": ""}, {"a.b": "2", "c.d": "1"}), "a.b", "c.d")
    assert not_applicable(os.sysctls({}, {}))


def test_limits_are_read_in_ulimits_units() -> None:
    wanted = os.wanted_limits({"memlock": "65536", "nofile": "4096", "stack": "unlimited", "as": "1G"})
    assert wanted == {"memlock": 65536 * 1024, "nofile": 4096, "stack": math.inf, "as": 2**30}
    soft = {"Max locked memory": 65536.0, "Max open files": 8192.0, "Max stack size": math.inf}
    assert "64 KiB | at least 64 MiB" in failed(os.limits(soft, wanted), "memlock", "as")
    passed(os.limits({"Max locked memory": math.inf}, {"memlock": math.inf}))
    for bad in ({"memlokc": "1"}, {"memlock": "much"}):
        with pytest.raises(ConfigError):
            os.wanted_limits(bad)


def test_limits_that_nobody_stated_are_those_of_most_nodes() -> None:
    good = {"Max locked memory": math.inf, "Max open files": 65536.0, "Max processes": 96365.0}
    hand = {"Max locked memory": 65536.0, "Max open files": 131072.0, "Max processes": 96364.0}
    group = Group(nodes="n[1-4]", profile=Profile(name="p", description="d", source="s"))
    fleet = os.limits_of_group({"n1": good, "n2": good, "n3": good, "n4": hand})
    peers = {name: values.of(group) for name, values in fleet.items()}
    told = failed(os.limits(hand, {}, peers), "memlock")
    assert told == "64 KiB | unlimited, as on 3 of 4 nodes of its group"
    passed(os.limits(good, {}, peers))
    passed(os.limits(hand, {"memlock": 65536.0}, peers))
    assert not_applicable(os.limits(hand, {}, {}))


def test_mounts() -> None:
    found = {"/": ROOT, "/home": HOME}
    passed(os.mounts(found, [MountConfig(path="/home/", fstype="nfs", source="fs1:/home", options=("rw",))]))
    passed(os.mounts(found, [MountConfig(path="/home", source="fs1:/home/")]))
    gone = os.mounts(found, [MountConfig(path="/scratch/"), MountConfig(path="/home", options=("hard",))])
    assert gone.findings == (Finding("/scratch/", "not mounted", "mounted"),)
    wrong = MountConfig(path="/home", fstype="lustre", source="fs2:/home", options=("rw", "noatime", "x"))
    assert os.mounts(found, [wrong]).findings == (
        Finding("/home", "type nfs4", "type lustre"),
        Finding("/home", "source fs1:/home", "source fs2:/home"),
        Finding("/home", "options rw,hard", "with noatime,x"),
    )
    nfs3 = {"/home": replace(HOME, fstype="nfs")}
    assert "type nfs | type nfs4" in failed(
        os.mounts(nfs3, [MountConfig(path="/home", fstype="nfs4")]), "/home"
    )
    ext4 = os.mounts({"/": ROOT}, [MountConfig(path="/", fstype="nfs")])
    assert failed(ext4, "/") == "type ext4 | type nfs"
    assert not_applicable(os.mounts(found, [])) == "the cluster file states no os.mounts"


def test_a_root_that_most_nodes_write_to() -> None:
    passed(os.root_writable({"/": ROOT, "/home": HOME}))
    failed(os.root_writable({"/": replace(ROOT, options=("ro", "relatime"))}), "/")


def test_a_disk_that_is_read_only_here_and_not_on_most_nodes_is_found() -> None:
    def node(options: str, fstype: str = "ext4") -> dict[str, Mount]:
        return {"/": ROOT, "/var": Mount("/dev/sda3", "/var", fstype, (options, "relatime"))}

    def judged(*fleet: dict[str, Mount]) -> Verdict:
        facts = {f"n{number}": found for number, found in enumerate(fleet, 1)}
        group = Group(nodes=f"n[1-{len(fleet)}]", profile=GROUP.profile)
        peers = {path: each.of(group) for path, each in os.writable_of_all(facts).items()}
        return os.root_writable(fleet[0], peers)

    assert "rw, as on 2 of 3 nodes" in failed(judged(node("ro"), node("rw"), node("rw")), "/var")
    passed(judged(node("rw"), node("ro"), node("rw")))
    passed(judged(node("ro"), node("ro"), node("rw")))  # meant to be so
    assert "ro on n1, rw on n2" in split(judged(node("ro"), node("rw")), "/var")
    passed(judged(node("rw"), node("ro")))  # it lacks nothing
    passed(judged(node("ro"), {"/": ROOT}, {"/": ROOT}))
    passed(judged(*(node(way, "squashfs") for way in ("ro", "rw", "rw"))))


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
    verdict = os.mount_response(disks, found, ("/", "/tmp"))
    assert (verdict.outcome is Outcome.FAILED) is fails
    told = os.mount_response(disks, found, ("/", "/tmp", "/home"), {"/home"})
    failed(told, "/home (nfs4 from fs1:/home)")
    passed(os.free_space(disks, found, OsConfig()))


@pytest.mark.parametrize("path", ["/tmp", "/dev/shm"])
def test_scratch_space_that_became_read_only_is_named(path: str) -> None:
    found = {"/": ROOT, path: Mount("tmpfs", path, "tmpfs", ("ro", "nosuid"))}
    problem = {path: f"mktemp: failed to create file via template '{path}/x': Read-only file system"}
    verdict = os.root_writable(found, {}, problem)
    assert verdict.findings == (Finding(path, "mounted ro,nosuid", "rw"),)
    assert verdict.action is Action.DRAIN


@pytest.mark.parametrize(
    ("problem", "action"),
    [
        ("mktemp: failed to create file via template '/tmp/x': Read-only file system", Action.DRAIN),
        ("mktemp: failed to create file via template '/tmp/x': Input/output error", Action.DRAIN),
        ("timed out after 30 s", Action.DRAIN),
        ("mktemp: failed to create file via template '/tmp/x': Permission denied", Action.MONITOR),
        ("mktemp: failed to create file via template '/tmp/x': No such file or directory", Action.MONITOR),
    ],
)
def test_scratch_space_that_takes_no_file_is_named(problem: str, action: Action) -> None:
    verdict = os.root_writable({"/": ROOT}, {}, {"/tmp": problem, "/dev/shm": ""})
    assert verdict.findings == (
        Finding("/tmp", problem, "a file can be written", verdict.findings[0].action),
    )
    assert verdict.action is action


def test_a_try_to_write_that_tells_nothing() -> None:
    missing = os.root_writable({"/": ROOT}, {}, {"/tmp": "sh: 1: mktemp: not found"})
    assert (missing.outcome, missing.reason) == (Outcome.NOT_CHECKED, "/tmp: sh: 1: mktemp: not found")
    for full in ("printf: write error: No space left on device", "Disk quota exceeded", ""):
        passed(os.root_writable({"/": ROOT}, {}, {"/tmp": full}))


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
    verdict = os.root_writable(root, {"/": most} if most else {})
    assert verdict.findings == (Finding("/", f"mounted {','.join(root['/'].options)}", expected),)


def test_a_root_that_is_read_only_on_purpose_is_no_fault() -> None:
    most = voted(most=False, agree=3, nodes=4)
    for fstype in ("nfs", "squashfs", "btrfs"):
        verdict = os.root_writable(of_root("ro", "noatime", fstype=fstype), {"/": most})
        passed(verdict)
        told = "mounted ro,noatime, as on 3 of 4 nodes"
        assert verdict.advisories == (Advisory("/", told, "rw, or read-only on purpose"),)
    alone = os.root_writable(of_root("ro", fstype="squashfs"), {"/": voted(most=False, agree=1, nodes=1)})
    assert alone.outcome is Outcome.NOT_CHECKED
    assert alone.reason == (
        "/ is a read-only squashfs, which may be on purpose: "
        "not stated in the cluster file, and no other node to compare with"
    )


def test_a_read_only_root_on_half_of_the_nodes_drains_nobody() -> None:
    halves = Norm(((True, ("n0", "n1")), (False, ("n2", "n3"))))
    expected = "one value on all nodes; no majority: rw on n[0-1], ro on n[2-3]"
    verdict = os.root_writable(of_root("ro"), {"/": halves})
    assert verdict.findings == (Finding("/", "mounted ro", expected, Action.MONITOR),)
    assert verdict.action is Action.MONITOR


def _scratch(*shm: str, tmp: tuple[str, ...] = ()) -> os.Scratch:
    mounts = {"/": ROOT, "/dev/shm": Mount("tmpfs", "/dev/shm", "tmpfs", ("rw", *shm))}
    return os.Scratch.of(mounts | ({"/tmp": Mount("t", "/tmp", "tmpfs", ("rw", *tmp))} if tmp else {}))


@pytest.mark.parametrize(
    ("bad", "named", "told"),
    [
        (_scratch("size=65536k"), "/dev/shm", "limit of 64 MiB | limit of 64 GiB, as on 3 of 4 nodes"),
        (_scratch("size=471859k"), "/dev/shm", "limit of 460.8 MiB | limit of 64 GiB, as on 3 of 4 nodes"),
    ],
)
def test_scratch_space_that_gives_less_than_on_most_nodes_is_named(
    bad: os.Scratch, named: str, told: str
) -> None:
    memory = 128 << 30
    fleet = {"n1": _scratch(), "n2": _scratch(), "n3": _scratch(), "n4": bad}
    tmp, shm = (os.norm({node: getattr(one, room) for node, one in fleet.items()}) for room in ("tmp", "shm"))
    assert told in failed(os.scratch(bad, tmp, shm, memory), named)
    passed(os.scratch(_scratch(), tmp, shm, memory))


@pytest.mark.parametrize(
    ("bad", "path"), [(_scratch("noexec"), "/dev/shm"), (_scratch(tmp=("noexec",)), "/tmp")]
)
def test_scratch_space_where_no_program_runs_is_a_warning(bad: os.Scratch, path: str) -> None:
    fleet = {"n1": _scratch(), "n2": _scratch(), "n3": _scratch(), "n4": bad}
    tmp, shm = (os.norm({node: getattr(one, room) for node, one in fleet.items()}) for room in ("tmp", "shm"))
    verdict = os.scratch(bad, tmp, shm, 128 << 30)
    passed(verdict)
    expected = "programs may run there, as on 3 of 4 nodes of its group"
    assert verdict.advisories == (Advisory(path, "mounted noexec", expected),)


def test_scratch_space_that_gives_more_or_has_no_majority_accuses_nobody() -> None:
    small, large = (
        os.norm(dict.fromkeys("abc", _scratch("size=1024k").shm)),
        os.norm(dict.fromkeys("abc", _scratch().tmp)),
    )
    passed(os.scratch(_scratch("size=2048k"), large, small, 1 << 40))
    passed(os.scratch(_scratch("size=1000k"), large, small, 1 << 40))
    passed(os.scratch(_scratch("size=50%"), large, small, 1 << 40))
    halves = os.norm({"a": _scratch("noexec").shm, "b": _scratch().shm})
    passed(os.scratch(_scratch("noexec"), large, halves, 1 << 40))
    passed(os.scratch(_scratch(), large, halves, 1 << 40))


def test_scratch_space_whose_sizes_differ_by_pages_is_alike() -> None:
    """The kernel writes a share of the memory in KiB: it differs on nodes alike."""

    def mounts(size: int) -> dict[str, Mount]:
        return {"/": ROOT, "/dev/shm": Mount("tmpfs", "/dev/shm", "tmpfs", ("rw", f"size={size}k"))}

    fleet = {f"n{n}": mounts(131906420 + 4 * n) for n in range(1, 5)}
    norm = os.Scratch.of_all(fleet).of(GROUP, "shm")
    assert (norm.agree, norm.total, norm.votes[0][0].size) == (4, 4, "131906432k")
    odd = os.Scratch.of_all({**fleet, "n4": mounts(115_000_000)}).of(GROUP, "shm")
    assert (odd.agree, odd.votes[0][0].size, odd.votes[1][0].size) == (3, "131906428k", "115000000k")


def test_a_hung_mount_fails_one_check_and_names_the_server() -> None:
    found = {"/": ROOT, "/home": HOME}
    disks = {**DISKS, "/home": Disk(problem="no answer within 8 s", hung=True)}
    hung = os.mount_response(disks, found)
    assert failed(hung, "/home (nfs4 from fs1:/home)") == "no answer within 8 s | df answers"
    assert hung.action is Action.REBOOT
    failed(os.mount_response({"/gone": disks["/home"]}, found, ("/gone",)), "/gone")
    config = OsConfig(mounts=(MountConfig(path="/home", min_free=2**40),))
    passed(os.free_space(disks, found, config))
    passed(os.mount_response({"/": DISK, "/tmp": DISK, "/gone": Disk(problem="No such file")}, found))


def test_free_space() -> None:
    found = {"/": ROOT, "/home": HOME}
    disks = {**DISKS, "/home": replace(DISK, free=2**30)}
    config = OsConfig(mounts=(MountConfig(path="/home", min_free_percent=5),))
    assert os.disk_paths(config) == ("/", "/tmp", "/dev/shm", "/home")
    assert (
        failed(os.free_space(disks, found, config), "/home") == "1 GiB free of 100 GiB | at least 5 GiB free"
    )
    passed(os.free_space(disks, found, CONFIG.model_copy(update={"mounts": (MountConfig(path="/home"),)})))
    silent = {**DISKS, "/tmp": Disk(problem="hung"), "/dev/shm": Disk(problem="gone")}
    assert not_applicable(os.free_space(silent, found, CONFIG)) == "df says nothing of /tmp, /dev/shm: hung"


@pytest.mark.parametrize(
    ("path", "size", "free", "expected"),
    [
        ("/", 100 << 30, (1 << 30) - 1, "at least 1 GiB free"),
        ("/", 100 << 30, 1 << 30, ""),
        ("/", 9000 << 30, 1 << 30, ""),
        ("/tmp", 2 << 30, (1 << 30) - 1, "at least 1 GiB free"),
        ("/dev/shm", 65960200 << 10, 0, "at least 1 GiB free"),
        ("/dev/shm", 100 << 30, (1 << 30) - 1, "at least 1 GiB free"),
        ("/dev/shm", 100 << 30, 1 << 30, ""),
        ("/dev/shm", 640 << 20, 64 << 20, ""),
        ("/dev/shm", 640 << 20, (64 << 20) - 1, "at least 64 MiB free"),
    ],
)
def test_scratch_space_that_is_full_is_named(path: str, size: int, free: int, expected: str) -> None:
    disks = {**DISKS, path: replace(DISK, size=size, free=free)}
    verdict = os.free_space(disks, {"/": ROOT}, OsConfig())
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
    verdict = os.free_space(disks, found, OsConfig(mounts=(mount,)))
    assert [(it.part, it.expected) for it in verdict.findings] == ([(path, expected)] if expected else [])


def test_a_write_that_finds_no_room_is_named_once() -> None:
    problem = "sh: 1: printf: write error: Disk quota exceeded"
    verdict = os.free_space(DISKS, {"/": ROOT}, OsConfig(), {"/tmp": problem, "/dev/shm": ""})
    assert verdict.findings == (Finding("/tmp", problem, "a file can be written"),)
    full = {**DISKS, "/dev/shm": replace(DISK, free=0)}
    verdict = os.free_space(full, {"/": ROOT}, OsConfig(), {"/dev/shm": "No space left on device"})
    assert [it.expected for it in verdict.findings] == ["at least 1 GiB free"]
    passed(os.free_space(DISKS, {"/": ROOT}, OsConfig(), {"/tmp": "mktemp: Read-only file system"}))


def test_inodes() -> None:
    verdict = os.inodes(DISKS)
    passed(verdict)
    assert verdict.metrics == tuple(Metric("free_inodes", 90.0, "%", path) for path in DISKS)
    for path in ("/", "/tmp", "/dev/shm"):
        passed(os.inodes({**DISKS, path: replace(DISK, inodes=100, inodes_free=5)}))
        few = os.inodes({**DISKS, path: replace(DISK, inodes=100, inodes_free=4)})
        assert failed(few, path) == "4 of 100 inodes free | at least 5% free"
    uncounted = dict.fromkeys(DISKS, replace(DISK, inodes=0))
    assert not_applicable(os.inodes(uncounted)) == "the file systems of /, /tmp and /dev/shm count no inodes"
    passed(os.inodes({**uncounted, "/dev/shm": DISK}))


def test_shared_storage_blames_the_node_that_does_not_see_it() -> None:
    passed(os.shared_storage({"/s": SharedFolder("n1")}, "n2"))
    failed(os.shared_storage({"/s": SharedFolder("n1", read_problem="No such file")}, "n2"), "/s")
    broken = {"/s": SharedFolder("n1", write_problem="Read-only file system", read_problem="No such file")}
    failed(os.shared_storage(broken, "n1"), "/s")
    assert "n1" in not_applicable(os.shared_storage(broken, "n2"))
    assert not_applicable(os.shared_storage({}, "n2"))


def test_what_our_user_may_not_touch_is_not_checked_and_no_fault_of_the_node() -> None:
    denied = {"/s": SharedFolder("n1", "sh: 1: cannot create /s/.gpucluster-x: Permission denied")}
    verdict = os.shared_storage(denied, "n1")
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert "the user of the run may not write there" in verdict.reason
    disks = {**DISKS, "/home": Disk(problem="df: /home: Permission denied")}
    found = {"/": ROOT, "/home": HOME}
    config = OsConfig(mounts=(MountConfig(path="/home", min_free=2**30),))
    for verdict in (os.mount_response(disks, found, ("/home",)), os.free_space(disks, found, config)):
        assert verdict.outcome is Outcome.NOT_CHECKED
        assert verdict.reason == "df: /home: Permission denied: the user of the run may not go there"
    on_another = os.answering({"n1": disks, "n2": {"/home": DISK}})
    failed(os.mount_response(disks, found, ("/home",), on_another), "/home (nfs4 from fs1:/home)")


def test_processes() -> None:
    zombie, stuck = ProcessRow(7, 1, "Z", 9, "root", "sh"), ProcessRow(9, 1, "D", 400, "ada", "dd")
    both = Processes(90, (zombie, stuck))
    assert "parent 1" in failed(os.zombies(both, 0), "processes")
    passed(os.zombies(both, 1))
    assert "dd of ada" in failed(os.dstate(both), "pid 9")
    passed(os.dstate(Processes(90, (zombie,))))
    failed(os.load(Load(9, 1, 1), 8, 1.0), "load")
    passed(os.load(Load(7, 9, 9), 8, 1.0))


@pytest.mark.parametrize(
    ("bits", "word"), [(1 << 4, "machine check"), (1 << 5, "page"), (1 << 7, "oops"), (1 << 14, "lockup")]
)
def test_a_kernel_that_is_damaged_says_so(bits: int, word: str) -> None:
    assert word in failed(os.taint(12_289 | bits), "kernel")
    passed(os.taint(12_289))  # NVIDIA's driver
    passed(os.taint(512))  # a warning


def test_packages() -> None:
    found = {"slurm": "22.05.8-4", "munge": "", "docker": "5:27.1"}
    passed(os.packages(found, {"slurm": "22.05", "docker": "27"}))
    failed(os.packages(found, {"slurm": "22.05.80", "munge": "", "docker": "4:"}), "slurm", "munge", "docker")
    failed(os.packages({"bash": "5.20"}, {"bash": "5.2"}), "bash")
    passed(os.packages({"bash": "5.2.1"}, {"bash": "5.2*"}))
    assert not_applicable(os.packages({}, {}))


def test_services_and_failed_units_do_not_both_fail() -> None:
    failed(os.services({"munge": "failed", "sssd": "active"}, ("munge", "sssd")), "munge")
    passed(os.failed_units(("munge.service",), ("munge",)))
    failed(os.failed_units(("x.mount",), ("munge",)), "x.mount")
    assert not_applicable(os.services({}, ()))


def test_drift_of_further_commands() -> None:
    mine, theirs = CommandOutput("a", 0), CommandOutput("b", 0)
    failed(os.drift({"cmd": mine}, {"cmd": peers(mine, theirs)}), "cmd")
    assert "exit 1" in failed(
        os.drift({"cmd": CommandOutput("b", 1)}, {"cmd": peers(CommandOutput("b", 1), theirs)}), "cmd"
    )
    passed(os.drift({"cmd": theirs}, {"cmd": peers(mine, theirs)}))
    assert not_applicable(os.drift({"cmd": mine}, {"cmd": os.norm({"n1": mine})}))
    assert not_applicable(os.drift({}, {}))


def test_name_resolution_leaves_out_the_own_name() -> None:
    good = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    fleet = {"n1": {**good, "n1": "127.0.1.1"}, "n2": {**good, "n2": "127.0.1.1"}, "n3": good, "n4": good}

    def judged(node: str, fleet: dict[str, dict[str, str]]) -> Verdict:
        return os.name_resolution(fleet[node], node, os.resolved(fleet))

    passed(judged("n1", fleet))
    odd = {**fleet, "n4": {"n1": "10.0.0.9", "n2": ""}}
    said = failed(judged("n4", odd), "n1", "n2")
    assert said == "10.0.0.9 | 10.0.0.1, as on 2 of 3 nodes"
    passed(judged("n3", odd))
    halves = {"n2": {"n1": "10.0.0.1"}, "n3": {"n1": ""}}
    assert "10.0.0.1 on n2, does not resolve on n3" in split(judged("n3", halves), "n1")
    nothing = {name: {"n1": "", "n2": ""} for name in fleet}
    assert not_applicable(judged("n1", nothing))


def test_each_limit_has_its_line_and_unit() -> None:
    """Lines of /proc/PID/limits as the kernel writes them (fs/proc/base.c), units of ulimit(1)."""
    assert os.LIMITS == {
        "as": ("Max address space", 1024), "core": ("Max core file size", 1024), "cpu": ("Max cpu time", 1),
        "data": ("Max data size", 1024), "fsize": ("Max file size", 1024), "locks": ("Max file locks", 1),
        "memlock": ("Max locked memory", 1024), "msgqueue": ("Max msgqueue size", 1), "nofile": ("Max open files", 1),
        "nproc": ("Max processes", 1), "rss": ("Max resident set", 1024), "rtprio": ("Max realtime priority", 1),
        "sigpending": ("Max pending signals", 1), "stack": ("Max stack size", 1024),
    }  # fmt: skip
    assert os.COMPARED_LIMITS == ("memlock", "nofile", "stack", "as")
    for text in ("unlimited", "infinity", "-1"):
        assert os.wanted_limits({"nofile": text}) == {"nofile": math.inf}
    assert os.wanted_limits({"memlock": " 64 ", "nofile": "64", "stack": "1M"}) == {
        "memlock": 65536, "nofile": 64, "stack": 2**20,
    }  # fmt: skip


def test_a_limit_that_is_not_there_is_lower_than_any() -> None:
    verdict = os.limits({"Max open files": 1024.0}, {"nofile": 4096.0, "memlock": math.inf})
    assert verdict.findings == (
        Finding("nofile", "1024", "at least 4096"),
        Finding("memlock", "not listed by the kernel", "at least unlimited"),
    )
    passed(os.limits({"Max open files": 4096.0}, {"nofile": 4096.0}))


@pytest.mark.parametrize("fstype", ["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"])
def test_file_systems_of_disks(fstype: str) -> None:
    assert fstype in os._ON_DISKS


def test_zombies_and_stuck_processes_are_named() -> None:
    dead = tuple(ProcessRow(n, 1, "Z", 90, "root", f"p{n}") for n in range(6))
    passed(os.zombies(Processes(9, dead), 6))
    verdict = os.zombies(Processes(9, dead), 5)
    named = ", ".join(f"p{n} (pid {n}, parent 1)" for n in range(5))
    assert verdict.findings == (Finding("processes", f"6 zombies: {named}", "at most 5"),)
    assert verdict.metrics == (Metric("zombies", 6, "processes"),)
    stuck = tuple(ProcessRow(n, 1, "D", None if n else 90, "root", "cat") for n in range(6))
    verdict = os.dstate(Processes(9, stuck))
    assert verdict.findings[:2] == (
        Finding("pid 0", "cat of root in D state, 1 min 30 s old", "not in D state"),
        Finding("pid 1", "cat of root in D state", "not in D state"),
    )
    assert (len(verdict.findings), verdict.metrics[0].value, verdict.action) == (5, 6, Action.REBOOT)


def test_load_is_judged_by_cpu() -> None:
    passed(os.load(Load(4.0, 0, 0), 8, 0.5))
    verdict = os.load(Load(4.1, 0, 0), 8, 0.5)
    assert verdict.findings == (Finding("load", "4.1 over 1 minute on 8 CPUs", "at most 4"),)
    assert verdict.metrics == (Metric("load_per_cpu", 4.1 / 8, ""),)
    assert verdict.action is Action.MONITOR


def test_sysctls_are_compared_with_blanks_folded() -> None:
    assert os.sysctls({}, {}).reason == "the cluster file states no os.sysctls"
    stated = {"vm.a": "1  2", "vm.b": "3", "vm.c": "4"}
    verdict = os.sysctls({"vm.a": "1 2", "vm.b": "", "vm.c": "5"}, stated)
    assert verdict.findings == (Finding("vm.b", "unknown to this kernel", "3"), Finding("vm.c", "5", "4"))
