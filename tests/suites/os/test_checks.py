"""What each check of the operating system reports, word for word."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from os_helpers import ALONE, CPUS, MEMORY, MOST, NO_OTHER, NONE, ROOT, failed, passed, peers, split

from pytest_gpucluster.config.models import NodeProfile
from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node.os_config import MountConfig
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import (
    disks,
    hardware,
    mounts,
    network,
    settings,
    software,
    state,
    system,
)
from pytest_gpucluster.suites.os.facts import Clock, Load
from pytest_gpucluster.suites.os.software_facts import (
    CommandOutput,
    Processes,
    ProcessRow,
    SystemState,
    TimeSync,
)
from pytest_gpucluster.suites.os.storage_facts import SharedFolder

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_group_in_halves_drains_nobody_and_names_both() -> None:
    halves = norm({"n1": "5.15.0", "n2": "5.15.0", "n3": "6.8.0", "n4": "6.8.0"})
    assert split(system.kernel("5.15.0", None, halves), "kernel") == (
        "one value on all nodes of its group; no majority: 5.15.0 on n[1-2], 6.8.0 on n[3-4]"
    )
    passed(system.kernel("6.8.0", None, halves))  # it is ahead
    words = norm({"n1": "quiet", "n2": "quiet nosmt"})
    assert "quiet on n1, quiet nosmt on n2" in split(system.cmdline("quiet", words), "kernel command line")
    mtu = norm({"n1": CommandOutput("1500", 0), "n2": CommandOutput("1500", 1)})
    assert "1500 on n1, 1500 (exit 1) on n2" in split(
        software.drift({"c": CommandOutput("1500", 0)}, {"c": mtu}), "c"
    )
    two = norm({"n1": math.inf, "n2": 65536.0})
    assert "unlimited on n1, 64 KiB on n2" in split(
        settings.limits({"Max locked memory": 65536.0}, {}, {"memlock": two}), "memlock"
    )
    passed(settings.limits({"Max locked memory": math.inf}, {}, {"memlock": two}))  # it lacks nothing
    online = norm({"n1": 8, "n2": 6})
    assert "8 on n1, 6 on n2" in split(hardware.cpus(replace(CPUS, online=6), None, online), "CPUs")
    passed(hardware.cpus(CPUS, None, online))  # it lacks none
    off = hardware.cpus(replace(CPUS, online=6, offline="6-7"), None, online)
    assert (off.action, off.findings[0].expected) == (Action.CONFIGURE, "no CPU offline")


def test_cpus_and_numa() -> None:
    off = replace(CPUS, online=6, offline="6-7")
    passed(hardware.cpus(CPUS, 8, ALONE))
    assert "offline: 6-7" in failed(hardware.cpus(off, 8, ALONE), "CPUs")
    failed(hardware.cpus(off, None, peers(6, 8)), "CPUs")
    failed(hardware.cpus(off, None, ALONE), "CPUs")
    passed(hardware.cpus(off, None, peers(8, 6)))  # SMT is off everywhere
    passed(hardware.cpus(CPUS, None, ALONE))
    failed(hardware.numa(CPUS, 8, ALONE), "NUMA nodes")
    passed(hardware.numa(CPUS, None, peers(1, 2)))
    failed(hardware.cpu_model(CPUS, peers("EPYC", "Xeon")), "CPU model")
    failed(system.architecture(CPUS, peers("x86_64", "aarch64")), "architecture")


def test_what_is_alike() -> None:
    failed(hardware.hugepages(MEMORY, 1024, ALONE), "HugePages_Total")
    passed(hardware.hugepages(MEMORY, 4, ALONE))
    failed(hardware.hugepages(MEMORY, None, peers(4, 512)), "HugePages_Total")
    failed(hardware.swap(replace(MEMORY, swap_total=0), peers(0, 2**30)), "swap")
    failed(hardware.transparent_hugepages("never", peers("never", "always")), "transparent huge pages")
    failed(settings.security_modules("none", peers("none", "apparmor")), "security modules")
    failed(settings.kernel_settings("a=1", peers("a=1", "a=2")), "sysctls")
    failed(state.user("uid=1000", peers("uid=1000", "uid=1000(ada)")), "id")


def test_processes() -> None:
    zombie, stuck = ProcessRow(7, 1, "Z", 9, "root", "sh"), ProcessRow(9, 1, "D", 400, "ada", "dd")
    both = Processes(90, (zombie, stuck))
    assert "parent 1" in failed(software.zombies(both, 0), "processes")
    passed(software.zombies(both, 1))
    assert "dd of ada" in failed(software.dstate(both), "pid 9")
    passed(software.dstate(Processes(90, (zombie,))))
    failed(state.load(Load(9, 1, 1), 8, 1.0), "load")
    passed(state.load(Load(7, 9, 9), 8, 1.0))


ANSWERS = (False, True)


ALIKE: list[tuple[str, Callable[[Norm[Any]], Verdict], object, object, str, str, Action]] = [
    ("release", lambda p: system.release("a 1", None, p), "a 1", "a 2", "a 1", "a 2", Action.CONFIGURE),
    ("kernel", lambda p: system.kernel(p.votes[-1][0], None, p), "6.1", "6.8", "6.1", "6.8", Action.CONFIGURE),
    ("architecture", lambda p: system.architecture(CPUS, p), "x86_64", "aarch64", "x86_64", "aarch64", Action.CONFIGURE),
    ("CPUs", lambda p: hardware.cpus(CPUS, None, p), 8, 16, "8 online", "16", Action.CONFIGURE),
    ("CPU model", lambda p: hardware.cpu_model(CPUS, p), "EPYC", "Xeon", "EPYC", "Xeon", Action.CONFIGURE),
    ("NUMA nodes", lambda p: hardware.numa(CPUS, None, p), 2, 8, "2", "8", Action.CONFIGURE),
    ("governor", lambda p: hardware.governor(p.votes[-1][0] if len(p.votes) > 1 else p.votes[0][0], None, p), {"a": 8}, {"performance": 8}, "{'a': 8}", "{'performance': 8}", Action.CONFIGURE),
    ("HugePages_Total", lambda p: hardware.hugepages(MEMORY, None, p), 4, 512, "4", "512", Action.CONFIGURE),
    ("transparent huge pages", lambda p: hardware.transparent_hugepages("a", p), "a", "b", "a", "b", Action.CONFIGURE),
    ("swap", lambda p: hardware.swap(MEMORY, p), 3 << 20, 0, "3145728", "0", Action.CONFIGURE),
    ("security modules", lambda p: settings.security_modules("a", p), "a", "b", "a", "b", Action.CONFIGURE),
    ("sysctls", lambda p: settings.kernel_settings("a", p), "a", "b", "a", "b", Action.CONFIGURE),
    ("id", lambda p: state.user("a", p), "a", "b", "a", "b", Action.CONFIGURE),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(ALIKE)))
def test_what_has_to_be_alike(at: int) -> None:
    part, judged, mine, theirs, measured, expected, action = ALIKE[at]
    odd = judged(peers(mine, theirs))
    assert odd.findings == (Finding(part, measured, f"{expected}, {MOST}"),)
    assert (odd.outcome, odd.action, odd.reason) == (Outcome.FAILED, action, "")
    same = judged(peers(theirs, mine))
    assert (same.outcome, same.findings, same.reason) == (Outcome.PASSED, (), "")
    alone = judged(norm({"n1": mine}))
    if part == "CPUs":  # none is offline
        assert (alone.outcome, alone.reason) == (Outcome.PASSED, "")
    else:
        assert (alone.outcome, alone.reason) == (Outcome.NOT_APPLICABLE, NO_OTHER)


STATED: list[tuple[Callable[[], Verdict], Finding | None]] = [
    (lambda: system.release("a 1", "A 1", NONE), None),
    (lambda: system.release("a 1", "A 2", NONE), Finding("release", "a 1", "a 2")),
    (lambda: system.kernel("6.8.0", "6.8*", NONE), None),
    (lambda: system.kernel("6.8.0", "6.1*", NONE), Finding("kernel", "6.8.0", "6.1*")),
    (lambda: system.kernel("6.8.0", "6.8.0", NONE), None),
    (lambda: system.kernel("6.8.0", "6.8", NONE), Finding("kernel", "6.8.0", "6.8")),
    (lambda: system.kernel("6.8.0", "*", NONE), None),
    (lambda: hardware.numa(CPUS, 2, NONE), None),
    (lambda: hardware.numa(CPUS, 4, NONE), Finding("NUMA nodes", "2", "4")),
    (lambda: hardware.hugepages(MEMORY, 4, NONE), None),
    (lambda: hardware.hugepages(MEMORY, 5, NONE), Finding("HugePages_Total", "4", "5")),
    (lambda: hardware.cpus(CPUS, 8, NONE), None),
    (lambda: hardware.cpus(CPUS, 9, NONE), Finding("CPUs", "8 online", "9")),
    (
        lambda: hardware.cpus(replace(CPUS, offline="7"), None, NONE),
        Finding("CPUs", "8 online (offline: 7)", "no CPU offline"),
    ),
    (lambda: hardware.cpus(replace(CPUS, online=7, offline="7"), 8, NONE), Finding("CPUs", "7 online (offline: 7)", "8")),
    (
        lambda: hardware.cpus(replace(CPUS, offline="7"), None, norm({"n1": 8, "n2": 9})),
        Finding("CPUs", "8 online (offline: 7)", "no CPU offline"),
    ),
    (lambda: hardware.cpus(replace(CPUS, offline="7"), None, peers(8, 8)), None),
    (lambda: hardware.cpus(replace(CPUS, offline="7"), None, peers(8, 9)),
     Finding("CPUs", "8 online (offline: 7)", f"9, {MOST}")),
    (lambda: hardware.cpus(replace(CPUS, offline="7"), 8, peers(8, 9)), None),
    (lambda: hardware.governor({}, None, peers({}, {"performance": 8})), Finding("governor", "{}", f"{{'performance': 8}}, {MOST}")),
    (lambda: hardware.governor({"performance": 8}, None, peers({"performance": 8}, {})), None),
    (lambda: hardware.governor({"a": 8}, "a", NONE), None),
    (lambda: hardware.governor({"b": 1, "a": 7}, "a", NONE), Finding("governor", "a on 7 CPUs, b on 1 CPUs", "a on all CPUs")),  # one case
    (lambda: hardware.governor({}, "a", NONE), Finding("governor", "no frequency scaling", "a on all CPUs")),
    (lambda: system.hostname("GPU01.site", "gpu01.x", ""), None),
    (lambda: system.hostname("vm", "gpu01", "vm.site"), None),  # NodeHostname in slurm.conf
    (lambda: system.hostname("gpu02", "gpu01", "gpu01"), Finding("host name", "gpu02", "gpu01")),
    (lambda: system.hostname("gpu02", "gpu01", "vm"), Finding("host name", "gpu02", "gpu01 or vm")),
    (lambda: state.responds(Answer("n", 0), None), None),
    (lambda: state.responds(Answer("n", 0), "dead"), Finding("node", "dead", "executes the command 'true'")),
    (lambda: state.responds(Answer("n", None), None), Finding("node", "no answer", "executes the command 'true'")),
    (
        lambda: state.responds(Answer("n", None, problem="hung"), None),
        Finding("node", "hung", "executes the command 'true'"),
    ),
    (lambda: state.responds(Answer("n", 1), None), Finding("node", "'true' ended with exit status 1", "exit status 0", Action.MONITOR)),
    (lambda: state.load(Load(8, 0, 0), 8, 1), None),
    (lambda: software.systemd(SystemState("running"), peers(*ANSWERS)), None),
    (lambda: software.systemd(SystemState("degraded"), NONE), None),
    (lambda: disks.shared_storage({"/s": SharedFolder("n1")}, "n2"), None),
    (lambda: software.drift({"c": CommandOutput("a", 0)}, {"c": peers(CommandOutput("a", 0), CommandOutput("a", 0))}), None),
    (lambda: network.name_resolution({"x": "1"}, "n1", {"x": peers("1", "1")}), None),
    (lambda: state.sysctls({"a": "1 2"}, {"a": " 1  2"}), None),
    (lambda: software.services({"a": "active"}, ["a"]), None),
    (lambda: software.services({"a": "inactive"}, ["a"]), Finding("a", "inactive", "active")),
    (lambda: software.failed_units(["a.service", "b.timer"], ["a", "b.timer"]), None),
    (lambda: software.failed_units(["a.timer"], ["a"]), Finding("a.timer", "failed", "no failed unit")),
    (lambda: software.packages({"a": "1"}, {"a": ""}), None),
    (lambda: software.packages({"a": ""}, {"a": ""}), Finding("a", "not installed", "installed")),
    (lambda: software.packages({"a": ""}, {"a": "2"}), Finding("a", "not installed", "2")),
    (lambda: software.packages({"a": "1:3"}, {"a": "2*"}), Finding("a", "1:3", "2*")),
    (lambda: software.packages({"a": "1:3"}, {"a": "3"}), None),
    (lambda: software.packages({"a": "1:3"}, {"a": "1:3"}), None),
    (lambda: software.packages({"a": "3a"}, {"a": "3"}), None),
    (lambda: software.packages({"a": "3.b1"}, {"a": "3.b"}), None),
    (lambda: software.packages({"a": "31"}, {"a": "3"}), Finding("a", "31", "3*")),
    (lambda: mounts.mounts({"/": ROOT}, [MountConfig(path="/", source="/dev/sda1/")]), None),
    (
        lambda: disks.shared_storage({"/s": SharedFolder("n1", read_problem="gone")}, "n2"),
        Finding("/s", "gone", "the file that n1 wrote there"),
    ),
    (
        lambda: disks.shared_storage({"/s": SharedFolder("n1", "full")}, "n1"),
        Finding("/s", "not writable: full", "writable"),
    ),
    (lambda: software.systemd(SystemState("maintenance"), NONE), Finding("systemd", "maintenance", "running")),
    (lambda: software.systemd(SystemState(""), peers(*ANSWERS)), Finding("systemd", "no answer", f"answers, {MOST}")),
    (lambda: software.systemd(SystemState("", "no bus"), peers(*ANSWERS)), Finding("systemd", "no bus", f"answers, {MOST}")),
    (
        lambda: software.drift({"c": CommandOutput("a", 1)}, {"c": peers(CommandOutput("a", 1), CommandOutput("b", 0))}),
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
    (lambda: hardware.governor({}, None, peers({}, {})), Outcome.NOT_APPLICABLE,
     "the kernel offers no CPU frequency scaling here"),
    (lambda: system.uptime(5, None, None), Outcome.NOT_APPLICABLE,
     "the cluster file states neither os.min_uptime nor os.max_uptime"),
    (lambda: system.clock(Clock(1), system.CommonTime(0, 0, 1, 1), 1), Outcome.NOT_APPLICABLE,
     "no other node to compare the clock with"),
    (lambda: hardware.memory(MEMORY, NodeProfile(), NONE), Outcome.NOT_APPLICABLE,
     "the profile states no memory, and there is no other node to compare with"),
    (lambda: settings.limits({}, {}, {"memlock": ALONE}), Outcome.NOT_APPLICABLE,
     "the cluster file states no os.limits, and the group has no majority"),
    (lambda: disks.shared_storage({}, "n1"), Outcome.NOT_APPLICABLE, "the cluster file states no os.shared_storage"),
    (lambda: disks.shared_storage({"/s": SharedFolder("n1", "full")}, "n2"), Outcome.NOT_CHECKED,
     "/s: n1 could not write there: full"),
    (lambda: disks.shared_storage({"/s": SharedFolder("n1", "sh: Permission denied")}, "n1"), Outcome.NOT_CHECKED,
     "/s: the user of the run may not write there: sh: Permission denied"),
    (lambda: software.packages({}, {}), Outcome.NOT_APPLICABLE, "the cluster file states no os.packages"),
    (lambda: software.services({}, []), Outcome.NOT_APPLICABLE, "the cluster file states no os.services"),
    (lambda: software.drift({}, {}), Outcome.NOT_APPLICABLE, "os.drift of the cluster file lists no command"),
    (lambda: software.drift({"c": CommandOutput("a", 0)}, {"c": ALONE}), Outcome.NOT_APPLICABLE,
     "c: no other node to compare with"),
    (lambda: software.systemd(SystemState("offline"), NONE), Outcome.NOT_APPLICABLE, "systemd does not run on the node"),
    (lambda: software.systemd(SystemState("stopping"), NONE), Outcome.NOT_CHECKED, "the node shuts down: repeat the check after its boot"),
    (lambda: software.systemd(SystemState(""), NONE), Outcome.NOT_CHECKED, "systemctl is-system-running: no answer"),
    (lambda: software.systemd(SystemState("", "no bus"), NONE), Outcome.NOT_CHECKED, "systemctl is-system-running: no bus"),
    (lambda: network.name_resolution({"n1": "10.0.0.1"}, "n1", {}), Outcome.NOT_APPLICABLE,
     "no name of another node resolves alike on most nodes (Slurm uses NodeAddr then)"),
    (lambda: mounts.scratch(mounts.ScratchMounts(mounts.ScratchMount(), mounts.ScratchMount()), NONE, peers(mounts.ScratchMount(), mounts.ScratchMount()), 1),
     Outcome.NOT_APPLICABLE, f"/tmp: {NO_OTHER}"),
    (lambda: mounts.scratch(mounts.ScratchMounts(mounts.ScratchMount(), mounts.ScratchMount()), peers(mounts.ScratchMount(), mounts.ScratchMount()), NONE, 1),
     Outcome.NOT_APPLICABLE, f"/dev/shm: {NO_OTHER}"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(REASONS)))
def test_why_something_is_not_judged(at: int) -> None:
    judged, outcome, reason = REASONS[at]
    verdict = judged()
    assert (verdict.outcome, verdict.reason, verdict.findings) == (outcome, reason, ())


METRICS: list[tuple[Callable[[], Verdict], Metric]] = [
    (lambda: system.uptime(90, 1, None), Metric("uptime", 90, "s", better="neither")),
    (lambda: state.time_sync(TimeSync(synchronised=True, source="x", offset=-0.5)),
     Metric("time_offset", -0.5, "s", better="neither")),
    (lambda: system.clock(Clock(7), system.CommonTime(2, 3, 2, 2), 9), Metric("clock_skew", 4, "s", better="neither")),
    (lambda: system.clock(Clock(1), system.CommonTime(2, 3, 2, 2), 9), Metric("clock_skew", -1, "s", better="neither")),
    (lambda: hardware.memory(MEMORY, NodeProfile(), NONE), Metric("memory_total", 64, "GiB")),
    (lambda: hardware.cpus(CPUS, 8, NONE), Metric("cpus_online", 8, "CPUs")),
    (lambda: hardware.swap(MEMORY, NONE), Metric("swap_used", 2, "MiB")),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(METRICS)))
def test_what_is_measured(at: int) -> None:
    judged, metric = METRICS[at]
    assert judged().metrics == (metric,)
