"""What each check of the operating system says, word for word, and where its bounds are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.config.models import Cluster, Group, NodeProfile, Profile
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.os_config import MountConfig, OsConfig
from pytest_gpucluster.suites.os import checks as os
from pytest_gpucluster.suites.os.facts import Clock, Cpus, Load, MemoryInfo, Mount
from pytest_gpucluster.suites.os.software_facts import (
    CommandOutput,
    Processes,
    ProcessRow,
    SystemState,
    TimeSync,
)
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = Profile(name="p", description="", source="test")
GROUP = Group(nodes="n[1-4]", profile=PLAIN)
NOBODY = "not stated in the cluster file, and no other node to compare with"
CPUS = Cpus(8, "", 2, "2", "2", "EPYC", "x86_64")
GIB = 1 << 30
MEMORY = MemoryInfo(64 * GIB, 60 * GIB, 3 << 20, 1 << 20, 4, 2 << 20)
ANSWERS, WRITABLE = (False, True), (False, False)
MOST = "as on 3 of 4 nodes of its group"
ALONE: Norm[Any] = os.norm({"n1": "x"})
NONE: Norm[Any] = Norm()
ROOT = Mount("/dev/sda1", "/", "ext4", ("rw", "relatime"))


def peers(odd: object, usual: object) -> Norm[Any]:
    return os.norm({"n1": odd, "n2": usual, "n3": usual, "n4": usual})


ALIKE: list[tuple[str, Callable[[Norm[Any]], Verdict], object, object, str, str, Action]] = [
    ("release", lambda p: os.release("a 1", None, p), "a 1", "a 2", "a 1", "a 2", Action.DRAIN),
    ("kernel", lambda p: os.kernel("6.8", None, p), "6.8", "6.1", "6.8", "6.1", Action.REBOOT),
    ("architecture", lambda p: os.architecture(CPUS, p), "x86_64", "aarch64", "x86_64", "aarch64", Action.DRAIN),
    ("CPUs", lambda p: os.cpus(CPUS, None, p), 8, 16, "8 online", "16", Action.DRAIN),
    ("CPU model", lambda p: os.cpu_model(CPUS, p), "EPYC", "Xeon", "EPYC", "Xeon", Action.MONITOR),
    ("NUMA nodes", lambda p: os.numa(CPUS, None, p), 2, 8, "2", "8", Action.DRAIN),
    ("governor", lambda p: os.governor({"a": 8}, None, p), {"a": 8}, {"b": 8}, "{'a': 8}", "{'b': 8}", Action.MONITOR),
    ("HugePages_Total", lambda p: os.hugepages(MEMORY, None, p), 4, 512, "4", "512", Action.REBOOT),
    ("transparent huge pages", lambda p: os.transparent_hugepages("a", p), "a", "b", "a", "b", Action.MONITOR),
    ("swap", lambda p: os.swap(MEMORY, p), 3 << 20, 0, "3145728", "0", Action.MONITOR),
    ("security modules", lambda p: os.security_modules("a", p), "a", "b", "a", "b", Action.MONITOR),
    ("sysctls", lambda p: os.kernel_settings("a", p), "a", "b", "a", "b", Action.MONITOR),
    ("id", lambda p: os.user("a", p), "a", "b", "a", "b", Action.DRAIN),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(ALIKE)))
def test_what_has_to_be_alike(at: int) -> None:
    part, judged, mine, theirs, measured, expected, action = ALIKE[at]
    odd = judged(peers(mine, theirs))
    assert odd.findings == (Finding(part, measured, f"{expected}, {MOST}"),)
    assert (odd.outcome, odd.action, odd.reason) == (Outcome.FAILED, action, "")
    same = judged(peers(theirs, mine))
    assert (same.outcome, same.findings, same.reason) == (Outcome.PASSED, (), "")
    alone = judged(os.norm({"n1": mine}))
    if part == "CPUs":  # none is offline
        assert (alone.outcome, alone.reason) == (Outcome.PASSED, "")
    else:
        assert (alone.outcome, alone.reason) == (Outcome.NOT_APPLICABLE, NOBODY)


ROOT = Mount("/dev/sda1", "/", "ext4", ("rw", "relatime"))
STATED: list[tuple[Callable[[], Verdict], Finding | None]] = [
    (lambda: os.release("a 1", "A 1", NONE), None),
    (lambda: os.release("a 1", "A 2", NONE), Finding("release", "a 1", "a 2")),
    (lambda: os.kernel("6.8.0", "6.8*", NONE), None),
    (lambda: os.kernel("6.8.0", "6.1*", NONE), Finding("kernel", "6.8.0", "6.1*")),
    (lambda: os.kernel("6.8.0", "6.8.0", NONE), None),
    (lambda: os.kernel("6.8.0", "6.8", NONE), Finding("kernel", "6.8.0", "6.8")),
    (lambda: os.kernel("6.8.0", "*", NONE), None),
    (lambda: os.numa(CPUS, 2, NONE), None),
    (lambda: os.numa(CPUS, 4, NONE), Finding("NUMA nodes", "2", "4")),
    (lambda: os.hugepages(MEMORY, 4, NONE), None),
    (lambda: os.hugepages(MEMORY, 5, NONE), Finding("HugePages_Total", "4", "5")),
    (lambda: os.cpus(CPUS, 8, NONE), None),
    (lambda: os.cpus(CPUS, 9, NONE), Finding("CPUs", "8 online", "9")),
    (
        lambda: os.cpus(replace(CPUS, offline="7"), None, NONE),
        Finding("CPUs", "8 online (offline: 7)", "no CPU offline"),
    ),
    (lambda: os.cpus(replace(CPUS, online=7, offline="7"), 8, NONE), Finding("CPUs", "7 online (offline: 7)", "8")),
    (
        lambda: os.cpus(replace(CPUS, offline="7"), None, os.norm({"n1": 8, "n2": 9})),
        Finding("CPUs", "8 online (offline: 7)", "no CPU offline"),
    ),
    (lambda: os.cpus(replace(CPUS, offline="7"), None, peers(8, 8)), None),
    (lambda: os.cpus(replace(CPUS, offline="7"), None, peers(8, 9)),
     Finding("CPUs", "8 online (offline: 7)", f"9, {MOST}")),
    (lambda: os.cpus(replace(CPUS, offline="7"), 8, peers(8, 9)), None),
    (lambda: os.governor({}, None, peers({}, {"a": 8})), Finding("governor", "{}", f"{{'a': 8}}, {MOST}")),
    (lambda: os.governor({"a": 8}, None, peers({"a": 8}, {})), Finding("governor", "{'a': 8}", f"{{}}, {MOST}")),
    (lambda: os.governor({"a": 8}, "a", NONE), None),
    (lambda: os.governor({"b": 1, "a": 7}, "a", NONE), Finding("governor", "a on 7 CPUs, b on 1 CPUs", "a on all CPUs")),  # one case
    (lambda: os.governor({}, "a", NONE), Finding("governor", "no frequency scaling", "a on all CPUs")),
    (lambda: os.hostname("GPU01.site", "gpu01.x"), None),
    (lambda: os.hostname("gpu02", "gpu01"), Finding("host name", "gpu02", "gpu01")),
    (lambda: os.responds(Answer("n", 0), None), None),
    (lambda: os.responds(Answer("n", 0), "dead"), Finding("node", "dead", "carries out the command 'true'")),
    (lambda: os.responds(Answer("n", None), None), Finding("node", "no answer", "carries out the command 'true'")),
    (
        lambda: os.responds(Answer("n", None, problem="hung"), None),
        Finding("node", "hung", "carries out the command 'true'"),
    ),
    (lambda: os.responds(Answer("n", 1), None), Finding("node", "'true' ended with exit status 1", "exit status 0")),
    (lambda: os.load(Load(8, 0, 0), 8, 1), None),
    (lambda: os.systemd(SystemState("running"), peers(*ANSWERS)), None),
    (lambda: os.systemd(SystemState("degraded"), NONE), None),
    (lambda: os.shared_storage({"/s": SharedFolder("n1")}, "n2"), None),
    (lambda: os.drift({"c": CommandOutput("a", 0)}, {"c": peers(CommandOutput("a", 0), CommandOutput("a", 0))}), None),
    (lambda: os.name_resolution({"x": "1"}, "n1", {"x": peers("1", "1")}), None),
    (lambda: os.sysctls({"a": "1 2"}, {"a": " 1  2"}), None),
    (lambda: os.services({"a": "active"}, ["a"]), None),
    (lambda: os.services({"a": "inactive"}, ["a"]), Finding("a", "inactive", "active")),
    (lambda: os.failed_units(["a.service", "b.timer"], ["a", "b.timer"]), None),
    (lambda: os.failed_units(["a.timer"], ["a"]), Finding("a.timer", "failed", "no failed unit")),
    (lambda: os.packages({"a": "1"}, {"a": ""}), None),
    (lambda: os.packages({"a": ""}, {"a": ""}), Finding("a", "not installed", "installed")),
    (lambda: os.packages({"a": ""}, {"a": "2"}), Finding("a", "not installed", "2")),
    (lambda: os.packages({"a": "1:3"}, {"a": "2*"}), Finding("a", "1:3", "2*")),
    (lambda: os.packages({"a": "1:3"}, {"a": "3"}), None),
    (lambda: os.packages({"a": "1:3"}, {"a": "1:3"}), None),
    (lambda: os.packages({"a": "3a"}, {"a": "3"}), None),
    (lambda: os.packages({"a": "3.b1"}, {"a": "3.b"}), None),
    (lambda: os.packages({"a": "31"}, {"a": "3"}), Finding("a", "31", "3*")),
    (lambda: os.mounts({"/": ROOT}, [MountConfig(path="/", source="/dev/sda1/")]), None),
    (
        lambda: os.shared_storage({"/s": SharedFolder("n1", read_problem="gone")}, "n2"),
        Finding("/s", "gone", "the file that n1 wrote there"),
    ),
    (
        lambda: os.shared_storage({"/s": SharedFolder("n1", "full")}, "n1"),
        Finding("/s", "not writable: full", "writable"),
    ),
    (lambda: os.systemd(SystemState("maintenance"), NONE), Finding("systemd", "maintenance", "running")),
    (lambda: os.systemd(SystemState("stopping"), NONE), Finding("systemd", "stopping", "running")),
    (lambda: os.systemd(SystemState(""), peers(*ANSWERS)), Finding("systemd", "no answer", f"answers, {MOST}")),
    (lambda: os.systemd(SystemState("", "no bus"), peers(*ANSWERS)), Finding("systemd", "no bus", f"answers, {MOST}")),
    (
        lambda: os.drift({"c": CommandOutput("a", 1)}, {"c": peers(CommandOutput("a", 1), CommandOutput("b", 0))}),
        Finding("c", "a (exit 1)", f"b, {MOST}"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(STATED)))
def test_what_is_stated(at: int) -> None:
    judged, finding = STATED[at]
    verdict = judged()
    assert verdict.findings == ((finding,) if finding else ())
    assert verdict.outcome is (Outcome.FAILED if finding else Outcome.PASSED)


REASONS: list[tuple[Callable[[], Verdict], Outcome, str]] = [
    (lambda: os.governor({}, None, peers({}, {})), Outcome.NOT_APPLICABLE,
     "the kernel offers no CPU frequency scaling here"),
    (lambda: os.uptime(5, None, None), Outcome.NOT_APPLICABLE,
     "the cluster file states neither os.min_uptime nor os.max_uptime"),
    (lambda: os.clock(Clock(1), os.CommonTime(0, 0, 1, 1), 1), Outcome.NOT_APPLICABLE,
     "no other node to compare the clock with"),
    (lambda: os.memory(MEMORY, NodeProfile(), NONE), Outcome.NOT_APPLICABLE,
     "the profile states no memory, and there is no other node to compare with"),
    (lambda: os.limits({}, {}, {"memlock": ALONE}), Outcome.NOT_APPLICABLE,
     "the cluster file states no os.limits, and no majority of the group to compare with"),
    (lambda: os.shared_storage({}, "n1"), Outcome.NOT_APPLICABLE, "the cluster file states no os.shared_storage"),
    (lambda: os.shared_storage({"/s": SharedFolder("n1", "full")}, "n2"), Outcome.NOT_APPLICABLE,
     "/s: n1 could not write there: full"),
    (lambda: os.shared_storage({"/s": SharedFolder("n1", "sh: Permission denied")}, "n1"), Outcome.NOT_CHECKED,
     "/s: the user of the run may not write there: sh: Permission denied"),
    (lambda: os.packages({}, {}), Outcome.NOT_APPLICABLE, "the cluster file states no os.packages"),
    (lambda: os.services({}, []), Outcome.NOT_APPLICABLE, "the cluster file states no os.services"),
    (lambda: os.drift({}, {}), Outcome.NOT_APPLICABLE, "the cluster file states no os.drift"),
    (lambda: os.drift({"c": CommandOutput("a", 0)}, {"c": ALONE}), Outcome.NOT_APPLICABLE,
     "c: no other node to compare with"),
    (lambda: os.systemd(SystemState("offline"), NONE), Outcome.NOT_APPLICABLE, "systemd does not run on the node"),
    (lambda: os.systemd(SystemState(""), NONE), Outcome.NOT_CHECKED, "systemctl is-system-running: no answer"),
    (lambda: os.systemd(SystemState("", "no bus"), NONE), Outcome.NOT_CHECKED, "systemctl is-system-running: no bus"),
    (lambda: os.name_resolution({"n1": "10.0.0.1"}, "n1", {}), Outcome.NOT_APPLICABLE,
     "no name of another node resolves alike on most nodes (Slurm uses NodeAddr then)"),
    (lambda: os.scratch(os.Scratch(os.Room(), os.Room()), NONE, peers(os.Room(), os.Room()), 1),
     Outcome.NOT_APPLICABLE, f"/tmp: {NOBODY}"),
    (lambda: os.scratch(os.Scratch(os.Room(), os.Room()), peers(os.Room(), os.Room()), NONE, 1),
     Outcome.NOT_APPLICABLE, f"/dev/shm: {NOBODY}"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(REASONS)))
def test_why_something_is_not_judged(at: int) -> None:
    judged, outcome, reason = REASONS[at]
    verdict = judged()
    assert (verdict.outcome, verdict.reason, verdict.findings) == (outcome, reason, ())


METRICS: list[tuple[Callable[[], Verdict], Metric]] = [
    (lambda: os.uptime(90, 1, None), Metric("uptime", 90, "s", better="neither")),
    (lambda: os.time_sync(TimeSync(synchronised=True, source="x", offset=-0.5)),
     Metric("time_offset", -0.5, "s", better="neither")),
    (lambda: os.clock(Clock(7), os.CommonTime(2, 3, 2, 2), 9), Metric("clock_skew", 4, "s", better="neither")),
    (lambda: os.clock(Clock(1), os.CommonTime(2, 3, 2, 2), 9), Metric("clock_skew", -1, "s", better="neither")),
    (lambda: os.memory(MEMORY, NodeProfile(), NONE), Metric("memory_total", 64, "GiB")),
    (lambda: os.cpus(CPUS, 8, NONE), Metric("cpus_online", 8, "CPUs")),
    (lambda: os.swap(MEMORY, NONE), Metric("swap_used", 2, "MiB")),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(METRICS)))
def test_what_is_measured(at: int) -> None:
    judged, metric = METRICS[at]
    assert judged().metrics == (metric,)


def test_bounds_of_uptime() -> None:
    assert os.uptime(60, 60, 60).outcome is Outcome.PASSED
    assert os.uptime(59, 60, None).findings == (Finding("uptime", "59 s", "at least 1 min"),)
    assert os.uptime(61, None, 60).findings == (Finding("uptime", "1 min 1 s", "at most 1 min"),)
    for verdict in (os.uptime(60, 60, None), os.uptime(60, None, 60)):
        assert (verdict.outcome, verdict.reason) == (Outcome.PASSED, "")
    assert os.uptime(59, 60, None).reason == os.uptime(61, None, 60).reason == ""


def test_words_of_the_command_line() -> None:
    verdict = os.cmdline("b a", peers("b a", "a"))
    assert verdict.findings == (Finding("kernel command line", "has b more and nothing less", MOST),)
    verdict = os.cmdline("a", peers("a", "a d c"))
    assert verdict.findings == (Finding("kernel command line", "has nothing more and c d less", MOST),)
    halves = os.norm({"n1": "a", "n2": "b"})
    assert os.cmdline("a", halves).findings == (
        Finding(
            "kernel command line",
            "a",
            "one value on all nodes of its group; no majority: a on n1, b on n2",
            Action.MONITOR,
        ),
    )
    assert os.cmdline("a", halves).reason == ""
    assert os.cmdline("a", peers("a", "a")).outcome is Outcome.PASSED
    assert (os.cmdline("x", ALONE).reason, os.cmdline("x", ALONE).outcome) == (NOBODY, Outcome.NOT_APPLICABLE)


def test_a_clock_at_its_bound() -> None:
    assert os.clock(Clock(99), os.CommonTime(0, 0, 1, 1), 1).metrics == ()
    assert os.clock(Clock(99), os.CommonTime(0, 0, 1, 1), 1).findings == ()
    common = os.CommonTime(10, 20, 2, 3)
    for time in (9.0, 21.0):
        assert os.clock(Clock(time), common, 1).outcome is Outcome.PASSED
    assert os.clock(Clock(21.5), common, 1).findings == (
        Finding("clock", "at least 1.500 s ahead of the time that 2 of 3 clocks share", "within 1 s"),
    )
    assert os.clock(Clock(8.5), os.CommonTime(10, 20, 1, 2), 1).findings == (
        Finding(
            "clock", "at least 1.500 s behind the time that 1 of 2 clocks share", "within 1 s", Action.MONITOR
        ),
    )


def test_the_time_that_most_clocks_share() -> None:
    assert os.CommonTime.of({}, 1.0) == os.CommonTime(0.0, 0.0, 1, 0)
    assert os.CommonTime.of({"a": Clock(5.0)}, 1.0) == os.CommonTime(5.0, 5.0, 1, 1)
    timed = {"a": Clock(5.0, 4.0, 4.5)}
    assert os.CommonTime.of(timed, 1.0) == os.CommonTime(
        0.5, 1.0, 1, 1
    )  # one node: the controller has no voice
    assert os.CommonTime.of({**timed, "b": Clock(4.25, 4.0, 4.5)}, 1.0) == os.CommonTime(0.25, 0.25, 3, 3)
    assert os.CommonTime.of({**timed, "b": Clock(9.0)}, 1.0).nodes == 2  # its window is not known
    assert os._shared([(0.0, 2.0), (1.0, 3.0)], 0.0) == (1.0, 2.0, 2)
    assert os._shared([(0.0, 1.0), (5.0, 6.0)], 0.0) == (0.0, 6.0, 1)
    assert os._shared([(0.0, 0.0), (1.0, 1.0)], 0.5) == (0.5, 0.5, 2)


def test_the_time_service_at_its_bound() -> None:
    def sync(offset: float | None, *, synchronised: bool = True) -> Verdict:
        return os.time_sync(TimeSync(synchronised, "chronyc", offset, "leap status x"))

    assert sync(1.0).outcome is sync(-1.0).outcome is sync(None).outcome is Outcome.PASSED
    assert sync(None).metrics == ()
    assert sync(1.5).findings == (Finding("time service", "offset 1.5 s (chronyc)", "within 1 s"),)
    assert sync(9.0, synchronised=False).findings == (
        Finding("time service", "not synchronised (chronyc: leap status x)", "synchronised"),
    )


def test_memory_at_its_bounds() -> None:
    def memory(total: int, profile: int | None, theirs: int | None) -> Verdict:
        norm = peers(total, theirs) if theirs else NONE
        return os.memory(replace(MEMORY, total=total), NodeProfile(memory=profile), norm)

    assert memory(95 << 20, 100 << 20, None).outcome is Outcome.PASSED
    assert memory(105 << 20, 100 << 20, None).outcome is Outcome.PASSED
    low = memory((95 << 20) - 1, 100 << 20, 1 << 30)
    assert low.findings == (Finding("memory", "95 MiB", "100 MiB within 5%"),)
    assert low.action is Action.VENDOR
    assert memory((105 << 20) + 1, 100 << 20, None).outcome is Outcome.FAILED
    assert memory(98 << 20, None, 100 << 20).outcome is Outcome.PASSED
    assert memory(97 << 20, None, 100 << 20).findings == (Finding("memory", "97 MiB", f"100 MiB, {MOST}"),)
    assert memory(103 << 20, 103 << 20, 100 << 20).findings == (
        Finding("memory", "103 MiB", f"100 MiB, {MOST}"),
    )


@pytest.mark.parametrize("at", range(4))
def test_each_taint_in_full(at: int) -> None:
    bit, text = (
        (4, "M: the processor reported a machine check exception"),
        (5, "B: a page of memory was in a bad state"),
        (7, "D: the kernel has died before (oops or BUG)"),
        (14, "L: a soft lockup occurred"),
    )[at]
    verdict = os.taint(1 << bit | 1 << 12)
    assert verdict.findings == (Finding("kernel", f"tainted {text}", "not tainted so"),)
    assert verdict.action is Action.REBOOT


def test_no_other_taint_is_a_fault() -> None:
    assert os.taint(sum(1 << bit for bit in range(20) if bit not in (4, 5, 7, 14))).outcome is Outcome.PASSED


def test_losses_in_full() -> None:
    def told(lost: str) -> tuple[str, str, Action]:
        verdict = os.responds(Answer("n1", None), lost)
        return verdict.cause, verdict.hint, verdict.action

    assert told("TaskProlog failed") == os._LOSSES[0][1:]
    assert told("its slurmd starts no task") == os._LOSSES[1][1:]
    assert told("its agent's task ended") == os._LOSSES[2][1:]
    assert [loss[3] for loss in os._LOSSES] == [Action.DRAIN, Action.DRAIN, Action.MONITOR]
    assert told("other")[2] is Action.REBOOT
    words = "its agent's task ended"
    assert os.responds(Answer("n1", None, problem=words)).action is Action.MONITOR
    assert (
        os.responds(Answer("n1", None, problem=words), "gone").action is Action.REBOOT
    )  # the channel's word
    healthy = os.responds(Answer("n1", 0))
    assert (healthy.outcome, healthy.action) == (Outcome.PASSED, Action.REBOOT)


def test_limits_in_words() -> None:
    assert [os._limit(value, 1) for value in (None, math.inf, 5.0)] == [
        "not listed by the kernel",
        "unlimited",
        "5",
    ]
    assert os._limit(2048.0, 1024) == "2 KiB"
    with pytest.raises(ConfigError) as caught:
        os.wanted_limits({"memlokc": "1"})
    assert str(caught.value) == f"os.limits: no limit 'memlokc'; there are {', '.join(os.LIMITS)}"
    with pytest.raises(ConfigError, match=r"^os\.limits: memlock: .*much.*, or unlimited$"):
        os.wanted_limits({"memlock": "much"})


def test_a_mount_that_hangs_or_is_gone() -> None:
    found = {"/": ROOT, "/h": Mount("fs:/h", "/h", "nfs4", ("rw",))}
    gone = Disk(problem="df: /h: Transport endpoint is not connected")
    said = (Finding("/h (nfs4 from fs:/h)", gone.problem, "df answers"),)
    assert os.mount_response({"/h": gone}, found, ()).findings == said
    assert os.mount_response({"/h/": gone}, found).findings[0].part == "/h/ (nfs4 from fs:/h)"
    assert (
        os.mount_response({"/x": gone}, found).outcome is Outcome.PASSED
    )  # os.mounts says that it is not there
    denied = Disk(problem="df: /h: Permission denied")
    assert os.mount_response({"/h": denied}, found, ()).outcome is Outcome.PASSED
    assert os.mount_response({"/h": denied}, found, None, {"/h"}).outcome is Outcome.FAILED
    assert os.answering({"a": {"/x": Disk(1), "/y": denied}, "b": {"/y": denied, "/z": Disk(1)}}) == {
        "/x",
        "/z",
    }


def test_inodes_in_numbers() -> None:
    disks = {"/": Disk(1, 1, 200, 10), "/tmp": Disk(problem="hung"), "/dev/shm": Disk(1, 1, 0, 0)}
    verdict = os.inodes(disks)
    assert (verdict.outcome, verdict.metrics) == (Outcome.PASSED, (Metric("free_inodes", 5.0, "%", "/"),))


def test_space_of_a_mount_that_is_not_there_is_left_to_others() -> None:
    config = OsConfig(mounts=(MountConfig(path="/h/", min_free=2 * GIB),))
    disks = {"/": Disk(9 * GIB, 9 * GIB), "/tmp": Disk(9 * GIB, 9 * GIB), "/dev/shm": Disk(9 * GIB, 9 * GIB)}
    here = {**disks, "/h": Disk(9 * GIB, GIB), "/other": Disk(9 * GIB, 0)}
    assert os.disk_paths(config) == ("/", "/tmp", "/dev/shm", "/h")
    assert os.free_space(here, {"/": ROOT}, config).outcome is Outcome.PASSED
    found = {"/": ROOT, "/h": ROOT, "/other": ROOT}
    assert os.free_space(here, found, config).findings == (
        Finding("/h", "1 GiB free of 9 GiB", "at least 2 GiB free"),
    )
    metrics = os.free_space(here, found, config).metrics
    assert [(it.name, it.value, it.unit, it.device) for it in metrics] == [
        ("free_space", 9, "GiB", "/"), ("free_space", 9, "GiB", "/tmp"), ("free_space", 9, "GiB", "/dev/shm"),
        ("free_space", 1, "GiB", "/h"),
    ]  # fmt: skip


def test_what_scratch_space_gives() -> None:
    def shm(*options: str, fstype: str = "tmpfs") -> os.Room:
        return os.Scratch.of({"/": ROOT, "/dev/shm": Mount("s", "/dev/shm", fstype, options)}).shm

    assert shm("rw") == os.Room(size="half of the memory")
    assert shm("rw", "noexec", "size=64k") == os.Room(noexec=True, size="64k")
    assert shm("size=64k", fstype="ext4") == os.Room()
    assert shm("size=50%", "xsize=64k") == os.Room(size="half of the memory")
    mine = os.Scratch(os.Room(), os.Room(size="64k"))
    norm = peers(os.Room(size="64k"), os.Room(size="100k"))
    assert os.scratch(mine, peers(os.Room(), os.Room()), norm, 1).findings == (
        Finding("/dev/shm", "limit of 64 KiB", f"limit of 100 KiB, {MOST}"),
    )
    for size, outcome in (("90k", Outcome.PASSED), ("89k", Outcome.FAILED), ("", Outcome.PASSED)):
        room = os.Scratch(os.Room(), os.Room(size=size))
        assert os.scratch(room, peers(os.Room(), os.Room()), norm, 1).outcome is outcome
    disk = peers(os.Room(size="64k"), os.Room())
    assert os.scratch(mine, peers(os.Room(), os.Room()), disk, 1).outcome is Outcome.PASSED
    everywhere = peers(os.Room(noexec=True), os.Room(noexec=True))
    assert os.scratch(os.Scratch(os.Room(noexec=True), os.Room()), everywhere, NONE, 1).advisories == ()


def test_a_read_only_root_alone_is_a_fault_on_a_disk_only() -> None:
    root = {"/": Mount("d", "/", "xfs", ("ro",))}
    assert os.root_writable(root).findings == (Finding("/", "mounted ro", "rw"),)
    var = {"/": ROOT, "/var": Mount("d", "/var", "xfs", ("ro",))}
    assert os.root_writable(var, {"/var": Norm()}).outcome is Outcome.PASSED
    broken = {"/": ROOT, "/var": Mount("d", "/var", "ext4", ("ro", "errors=remount-ro"))}
    assert os.root_writable(broken, {"/var": Norm()}).outcome is Outcome.FAILED
    image = os.root_writable({"/": Mount("d", "/", "nfs", ("ro",))}, {"/": peers(*WRITABLE)})
    assert image.advisories == (
        Advisory("/", "mounted ro, as on 4 of 4 nodes of its group", "rw, or read-only on purpose"),
    )
    assert sorted(os._READ_ONLY) == ["emergency_ro", "ro", "shutdown"]
    assert os._ON_DISKS == ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")


def test_a_handful_of_names_is_spread_over_the_cluster() -> None:
    def names(*hosts: str, **most: int) -> tuple[str, ...]:
        return os.some_names(
            Cluster(name="c", groups=tuple(Group(nodes=one, profile=PLAIN) for one in hosts)), **most
        )

    assert names("a[1-4]", "b[1-4]") == ("a1", "a3", "b1", "b3")
    assert names("a[1-9]") == ("a1", "a4", "a7")
    assert names("a[1-4]", most=2) == ("a1", "a3")
    assert names("a1") == ("a1",)


def test_a_name_that_does_not_resolve_is_said() -> None:
    fleet = {f"n{n}": {"x": "10.0.0.1"} for n in range(1, 4)} | {"n4": {"x": ""}}
    norms = os.resolved(fleet)
    assert os.name_resolution({"x": ""}, "n4", norms).findings == (
        Finding("x", "does not resolve", "10.0.0.1, as on 3 of 4 nodes"),
    )
    assert os.name_resolution({"x": "10.0.0.1", "n1": "127.0.1.1"}, "n1", norms).outcome is Outcome.PASSED
    assert os.resolved({"n1": {"n1": "127.0.1.1"}, "n2": {"n1": "10.0.0.1"}})["n1"].votes == (
        ("10.0.0.1", ("n2",)),
    )


def test_processes_in_words() -> None:
    old = Processes(9, (ProcessRow(7, 1, "Ds", 90, "ada", "dd"), ProcessRow(8, 2, "Z", None, "ada", "sh")))
    assert os.zombies(old, 0).findings == (
        Finding("processes", "1 zombies: sh (pid 8, parent 2)", "at most 0"),
    )
    verdict = os.dstate(old)
    assert verdict.findings == (Finding("pid 7", "dd of ada in D state, 1 min 30 s old", "not in D state"),)
    assert verdict.metrics == (Metric("dstate", 1, "processes"),)


def test_peers_are_worked_out_once_for_each_question() -> None:
    one = os.Peers({"n1": MEMORY, "n2": MEMORY, "other": MEMORY})
    first = one.of(GROUP, "total", 0.1)
    assert one.of(GROUP, "total", 0.1) is first
    assert (first.total, one.of(GROUP, "swap_total").value, one.of(GROUP).value) == (2, 3 << 20, MEMORY)
    assert one == os.Peers(dict(one.facts))
    sizes = os.Peers({"n1": replace(MEMORY, total=100), "n2": replace(MEMORY, total=99), "n3": MEMORY})
    assert sizes.of(GROUP, "total").votes == ((100, ("n1",)), (99, ("n2",)), (64 * GIB, ("n3",)))
    assert sizes.of(GROUP, "total", 0.02).votes == ((100, ("n1", "n2")), (64 * GIB, ("n3",)))
    assert sizes.of(GROUP, "total").voters == "nodes of its group"


def test_a_name_that_is_alike_nowhere_or_means_nothing_is_not_compared() -> None:
    halves = os.norm({"n1": "1", "n2": "2"})
    verdict = os.name_resolution({"x": "1"}, "n1", {"x": halves})
    assert [it.action for it in verdict.findings] == [Action.MONITOR]
    for most in (peers("1", ""), ALONE):
        verdict = os.name_resolution({"x": "1"}, "n1", {"x": most})
        assert (verdict.outcome, verdict.findings) == (Outcome.NOT_APPLICABLE, ())
    both = os.name_resolution({"x": "1", "y": "3"}, "n1", {"x": peers("1", ""), "y": peers("3", "4")})
    assert both.findings == (Finding("y", "3", f"4, {MOST}"),)


def test_what_may_be_written_to_on_the_nodes_that_have_it() -> None:
    def mount(path: str, fstype: str = "ext4", *options: str) -> Mount:
        return Mount("d", path, fstype, options or ("rw",))

    fleet = {
        "n1": {"/": mount("/", "overlay"), "/var": mount("/var"), "/nfs": mount("/nfs", "nfs4", "ro")},
        "n2": {"/": mount("/", "overlay"), "/var": mount("/var", "xfs", "rw", "shutdown"), "/b": mount("/b")},
        "n3": {"/var": mount("/var", "nfs", "ro")},
    }
    assert {path: peers.facts for path, peers in os.writable_of_all(fleet).items()} == {
        "/": {"n1": True, "n2": True},
        "/b": {"n2": True},
        "/var": {"n1": True, "n2": False, "n3": False},
    }
    assert list(os.writable_of_all(fleet)) == ["/", "/b", "/var"]


def test_scratch_space_of_all_nodes_is_rounded_to_what_most_have() -> None:
    def node(tmp: str, shm: str) -> dict[str, Mount]:
        return {
            "/": ROOT,
            "/tmp": Mount("t", "/tmp", "tmpfs", ("rw", f"size={tmp}")),
            "/dev/shm": Mount("t", "/dev/shm", "tmpfs", ("rw", "noexec", shm)),
        }

    rooms = os.Scratch.of_all(
        {
            "n1": node("1000k", "size=91k"),
            "n2": node("999k", "size=100k"),
            "n3": node("500k", "x"),
            "n4": {"/": ROOT},
        }
    ).facts
    assert rooms == {
        "n1": os.Scratch(os.Room(size="999k"), os.Room(noexec=True, size="100k")),
        "n2": os.Scratch(os.Room(size="999k"), os.Room(noexec=True, size="100k")),
        "n3": os.Scratch(os.Room(size="500k"), os.Room(noexec=True, size="half of the memory")),
        "n4": os.Scratch(os.Room(), os.Room()),
    }


def test_programs_that_may_not_run_in_scratch_space_are_a_warning() -> None:
    quiet = os.Room()
    mine = os.Scratch(os.Room(noexec=True), quiet)
    alike = peers(quiet, quiet)
    verdict = os.scratch(mine, alike, alike, 1)
    assert verdict.advisories == (
        Advisory("/tmp", "mounted noexec", "programs may run there, as on 4 of 4 nodes of its group"),
    )
    assert verdict.outcome is Outcome.PASSED
    halves = os.norm({"n1": quiet, "n2": os.Room(noexec=True)})
    assert os.scratch(mine, halves, alike, 1).advisories == ()
    small = os.Scratch(quiet, os.Room(size="half of the memory"))
    most = peers(quiet, os.Room(size="2048k"))
    assert os.scratch(small, alike, most, 2 * GIB).outcome is Outcome.PASSED
    assert os.scratch(small, alike, most, 2 << 20).findings == (
        Finding("/dev/shm", "limit of 1 MiB", f"limit of 2 MiB, {MOST}"),
    )


def test_files_that_cannot_be_written() -> None:
    def told(problem: str, *options: str) -> Verdict:
        found = {"/": ROOT, "/tmp": Mount("t", "/tmp", "tmpfs", options or ("rw",))}
        return os.root_writable(found, {}, {"/tmp": problem})

    words = "sh: 1: cannot create /tmp/x: "
    for end in ("Permission denied", "No such file or directory"):
        assert told(words + end).findings == (
            Finding("/tmp", words + end, "a file can be written", Action.MONITOR),
        )
    assert told(f"{words}Input/output error").findings == (
        Finding("/tmp", f"{words}Input/output error", "a file can be written"),
    )
    for full in ("No space left on device", "Disk quota exceeded", ""):
        assert told(words + full if full else "").outcome is Outcome.PASSED
    absent = told("sh: mktemp: not found")
    assert (absent.outcome, absent.reason) == (Outcome.NOT_CHECKED, "/tmp: sh: mktemp: not found")
    assert told(f"{words}Input/output error", "ro").findings == (Finding("/tmp", "mounted ro", "rw"),)
    assert os.root_writable({"/": ROOT}, {}, {"/dev/shm": "x"}).findings[0].part == "/dev/shm"


def test_a_path_that_is_for_others_is_not_checked() -> None:
    denied = Disk(problem="df: /h: Permission denied")
    verdict = os.mount_response({"/h": denied}, {"/h": ROOT})
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED, "df: /h: Permission denied: the user of the run may not go there"
    )  # fmt: skip
    hung = Disk(problem="no answer within 10 s", hung=True)
    assert os.mount_response({"/x": hung}, {}, ()).findings == (Finding("/x", hung.problem, "df answers"),)
    stale = Disk(problem="df: /h: Stale file handle")
    assert os.mount_response({"/h": stale}, {"/h": ROOT}, ()).findings == (
        Finding("/h (ext4 from /dev/sda1)", stale.problem, "df answers"),
    )
    config = OsConfig(mounts=(MountConfig(path="/h", min_free=1),))
    room = Disk(9 * GIB, 9 * GIB)
    disks = {"/h": denied, "/": room, "/tmp": room, "/dev/shm": room}
    verdict = os.free_space(disks, {"/": ROOT, "/h": ROOT}, config)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED, "df: /h: Permission denied: the user of the run may not go there"
    )  # fmt: skip
    assert [it.device for it in verdict.metrics] == ["/", "/tmp", "/dev/shm"]
