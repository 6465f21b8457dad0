from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, REBOOT, WARNING, result
from judged import judged
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import CPUS, GROUP, MEMORY, PLAIN
from paths import ROOT

from pytest_gpucluster.config.models import Cluster, Group, NodeProfile
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.suites.os.checks import drift as checks
from pytest_gpucluster.suites.os.facts import read_cpus
from pytest_gpucluster.suites.os.network_facts import Network, NetworkInterface
from pytest_gpucluster.suites.os.software_facts import CommandOutput

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

ABSENT = object()  # a node that is not there
ETHER, SMALL = NetworkInterface("ether", 9000), NetworkInterface("ether", 1500)
IB = NetworkInterface("infiniband", 2044)
FAST, SLOW = {"performance": 8}, {"powersave": 8}
EL9, EL9_5 = "5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64"
A, B, FAILING = CommandOutput("a", 0), CommandOutput("b", 0), CommandOutput("b", 1)
OPEN = "Max open files"
LOCKED = "Max locked memory"
RMEM = "4096 131072 6291456"
PID = "kernel.pid_max"


def group(
    names: str,
    *found: Any,
    numa: int | None = None,
    top: dict[str, Any] | None = None,
    without_twins: bool = False,
    **stated: Any,
) -> Verdict:
    """Judge settings of the first node; `found`: what their probe finds on it and on the others.

    numa: of the profile. top: keys of the cluster file; `stated`: of its section `os`.
    """
    groups = (Group(nodes=GROUP.nodes, profile=PLAIN),)
    keys: dict[str, Any] = {"os": stated, **(top or {})}
    cluster = Cluster(name="c", groups=groups, **keys)
    profile = SimpleNamespace(node=NodeProfile(numa_nodes=numa), absent={})
    alone = Group(nodes="n1", profile=PLAIN)  # the twins: no other node has its operating system
    node: Any = SimpleNamespace(name="n1", profile=profile, peers=GROUP, twins=alone if without_twins else GROUP)
    nodes = {f"n{number}": it for number, it in enumerate(found, 1) if it is not ABSENT}

    def of_node(_source: object) -> Any:
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    usual = checks.UsualValues(lambda _: {n: of for n, of in nodes.items() if not isinstance(of, Exception)})
    rows = [it for it in checks.settings_of(cluster) if it.name in names.split()]
    return checks.drift(list(checks.read(rows, node, cluster, of_node, usual)))


def drift(name: str, mine: Any, usual: Any = ABSENT, stated: Any = None, **more: Any) -> Verdict:
    """Judge one setting beside three other nodes that are alike; `stated`: by keys of the section `os`."""
    return group(name, mine, *[usual] * 3, **(stated or {}), **more)


def numa(found: tuple[int, int], usual: tuple[int, int] | None = None, stated: int | None = None) -> Verdict:
    """Judge (NUMA nodes, those with CPUs) of lscpu."""

    def lscpu(total: int, own: int) -> Any:
        rows = "".join(f"NUMA node{n} CPU(s): {n if n < own else ''}\n" for n in range(total))
        return read_cpus(f"On-line CPU(s) list: 0-71\nNUMA node(s): {total}\n{rows}")

    return drift("numa", lscpu(*found), lscpu(*usual) if usual else ABSENT, numa=stated)


def memory(name: str, key: str, mine: int, usual: int) -> Verdict:
    return drift(name, replace(MEMORY, **{key: mine}), replace(MEMORY, **{key: usual}))


def mtu(*links: NetworkInterface | None, **stated: int) -> Verdict:
    """Judge eno1 of the first node beside those of others."""
    found = [Network({"eno1": link} if link else {}) for link in links]
    return group("mtu", *found, interfaces=stated)


def package(version: str, prefix: str) -> Verdict:
    return drift("packages", {"a": version}, ABSENT, {"packages": {"a": prefix}})


def sysctl(mine: str | None, usual: str | None = None, stated: str | None = None, name: str = PID) -> Verdict:
    """Judge a sysctl that is common to all nodes, or another one."""
    here, others = ({name: value, "vm.b": "1"} for value in (mine, usual))
    return drift("sysctls", here, others if usual else ABSENT, {"sysctls": {name: stated}} if stated else {})


def kernel(mine: str, *others: str, **stated: Any) -> Verdict:
    return group("kernel", mine, *others, **stated)


def command(mine: CommandOutput, *others: CommandOutput) -> Verdict:
    return group("commands", mine, *others, drift=["c"])


swap = partial(memory, "swap", "swap_total")
HALVES = ("5.15.0", "6.8.0", "6.8.0")
UNREAD = NotAvailable("permission denied")
MACHINES: Machines = {
    ("os.drift", partial(drift, "release")): [
        ("first updated node: 9.5 among 9.4 | rolling upgrade", WARNING, "rhel 9.5", "rhel 9.4"),
        ("in other case | os-release(5)", PASSED, "a 1", "a 2", {"release": "A 1"}),
        ("a rolling release without a version | Arch Linux os-release", PASSED, "arch", "arch"),
        ("sick: missed the upgrade | reinstallation", CONFIGURE, "rhel 9.2", "rhel 9.4"),
        ("sick: another distribution | wrong image", CONFIGURE, "debian 12", "ubuntu 22.04"),
        ("sick: not as stated | os.release", CONFIGURE, "a 1", "a 1", {"release": "a 2"}),
    ],
    ("os.drift", kernel): [
        ("first updated node | rolling upgrade", WARNING, EL9_5, EL9, EL9),
        ("a prefix | os.kernel", PASSED, lambda: kernel("6.8.0-1021-aws", "6.8.0-1-aws", kernel="6.8.*")),
        ("ahead, the group in halves | upgrade", PASSED, "6.8.0", "5.15.0", "5.15.0", "6.8.0"),
        ("behind, in halves | upgrade", CONFIGURE, "5.15.0", *HALVES),
        ("sick: not rebooted since the update | needs-restarting", CONFIGURE, EL9, EL9_5, EL9_5),
        ("sick: another flavour | image", CONFIGURE, "6.8.0-60-generic", *["6.8.0-1015-nvidia"] * 3),
        ("sick: longer than stated | os.kernel", CONFIGURE, lambda: kernel("6.8.0-51", kernel="6.8.0")),
    ],
    ("os.drift", partial(group, "cmdline")): [
        ("nosmt added on one node | kernel-parameters.txt", WARNING, "nosmt quiet ro", *["quiet ro"] * 3),
        ("alike | one image", PASSED, "quiet ro", "quiet ro"),
        ("one of two | image", CONFIGURE, "a", "b"),
        ("sick: a value differs | iommu=on, not pt", CONFIGURE, "iommu=on quiet", *["iommu=pt quiet"] * 2),
    ],
    ("os.drift", numa): [
        ("GH200 in NUMA mode, stated with CPUs only | lscpu of a GH200", PASSED, (9, 1), None, 1),
        ("a CXL expander as a node without CPUs | driver-api/cxl", PASSED, (3, 2), (2, 2)),
        ("GB200 with 34 nodes, as the profile states | lscpu of a GB200", PASSED, (34, 2), None, 34),
        ("sick: NPS1 among NPS4 | firmware", CONFIGURE, (2, 2), (8, 8)),
        ("sick: not as stated | firmware", CONFIGURE, (2, 2), None, 4),
    ],
    ("os.drift", partial(drift, "governor")): [
        ("performance among schedutil | cpufreq", WARNING, FAST, {"schedutil": 8}),
        ("fewer CPUs (nosmt) | cpufreq of online CPUs", PASSED, {"performance": 4}, FAST),
        ("a VM without frequency scaling | kvm guest", NOT_APPLICABLE, {}, {}),
        ("as stated | os.governor", PASSED, SLOW, FAST, {"governor": "powersave"}),
        ("sick: one CPU | hotplug", CONFIGURE, {"performance": 7, "powersave": 1}, FAST),
        ("sick: none here | cpufreq", CONFIGURE, {}, FAST),
        ("sick: stated, and none | kvm guest", CONFIGURE, {}, {}, {"governor": "a"}),
    ],
    ("os.drift", partial(memory, "hugepages", "hugepages")): [
        ("surplus huge pages for a DPDK job | vm.nr_hugepages", WARNING, 1024, 0),
        ("sick: fewer than on the peers | fragmented memory", CONFIGURE, 4, 5),
    ],
    ("os.drift", swap): [
        ("a swap partition of another size | disks of two orders", PASSED, 8 << 30, 4 << 30),
        ("no swap anywhere | cloud image", PASSED, 0, 0),
        ("sick: none here only | swapoff", CONFIGURE, 0, 8 << 30),
    ],
    ("os.drift", partial(drift, "security_modules transparent_hugepages")): [
        ("a container without securityfs, a kernel without huge pages | soperator", PASSED, "none", "none")
    ],
    ("os.drift", sysctl): [
        ("a larger bound | systemd's 50-pid-max.conf", WARNING, "4194304", "32768"),
        ("other blanks | net.ipv4.tcp_rmem", PASSED, RMEM, None, RMEM.replace(" ", "\t "), "a"),
        ("a common one as stated | os.sysctls", PASSED, "7", "9", "7"),
        ("none stated, and not common | sysctl", NOT_APPLICABLE, lambda: drift("sysctls", {"a": "1"})),
        ("sick: a lower bound | sysctl", CONFIGURE, "32768", "4194304"),
        ("sick: no bound | sysctl", CONFIGURE, "61", "60", None, "vm.swappiness"),
        ("sick: no number | sysctl", CONFIGURE, "", "8"),
        ("sick: a common one not as stated | os.sysctls", CONFIGURE, "7", "7", "9"),
        ("sick: another value | sysctl", CONFIGURE, "1", None, "0", "a"),
        ("sick: unknown to the kernel | sysctl", CONFIGURE, None, None, "0", "a"),
    ],
    ("os.drift", partial(drift, "limits")): [
        ("higher limits than the others | limits.conf", PASSED, {LOCKED: math.inf}, {LOCKED: 65536.0}),
        ("more than stated | LimitNOFILE", PASSED, {OPEN: 1e6}, ABSENT, {"limits": {"nofile": "65536"}}),
        ("the only node | one node", NOT_APPLICABLE, {OPEN: 1e6}),
        ("no step over SSH | ssh.md", NOT_APPLICABLE, lambda: drift("limits", {}, {}, top={"access": "ssh"})),
        ("sick: 64 KiB | slurmd without LimitMEMLOCK", CONFIGURE, {LOCKED: 65536.0}, {LOCKED: math.inf}),
    ],
    ("os.drift", mtu): [
        ("alike | netplan", PASSED, ETHER, ETHER, SMALL),
        ("one in InfiniBand mode | mlxconfig", PASSED, ETHER, IB, ETHER),
        ("as stated | os.interfaces", PASSED, lambda: mtu(SMALL, ETHER, ETHER, eno1=1500)),
        # without a majority of its kind nobody is accused
        ("down here | ip link", NOT_APPLICABLE, None, ETHER, ETHER),
        ("others in InfiniBand mode | mlxconfig", NOT_APPLICABLE, SMALL, IB, IB),
        ("half of them in InfiniBand mode | mlxconfig", NOT_APPLICABLE, ETHER, ETHER, IB, IB),
        ("the only node | ip link", NOT_APPLICABLE, ETHER),
        ("halves | netplan", CONFIGURE, SMALL, SMALL, ETHER, None),
        ("sick: 1500 among 9000 | netplan", CONFIGURE, SMALL, ETHER, ETHER, ETHER),
        ("sick: not as stated | netplan", CONFIGURE, lambda: mtu(ETHER, ETHER, ETHER, eno1=1500)),
        ("sick: stated, and down | netplan", CONFIGURE, lambda: mtu(ETHER, eno1=9000, ib0=2044)),
    ],
    ("os.drift", package): [
        ("an epoch | dpkg", PASSED, "5:27.3.1-1", "27.3"),
        ("a longer version than stated | rpm", PASSED, "5.14.0-427.el9", "5.14.0*"),
        ("a letter follows | dpkg", PASSED, "3a", "3"),
        ("any version | cluster file", PASSED, "1", ""),
        ("sick: not installed | dpkg", CONFIGURE, "", ""),
        ("sick: another epoch | dpkg", CONFIGURE, "5:27.1", "4:"),
        ("sick: another number with the same digit | dpkg", CONFIGURE, "31", "3"),
    ],
    ("os.drift", partial(drift, "taint")): [
        ("NVIDIA's driver | P, O, E", PASSED, 1 | 1 << 12 | 1 << 13),
        ("any other bit | bits W, K, I, S", PASSED, sum(1 << n for n in range(20) if n not in (4, 5, 7, 14))),
        ("a VM whose host was busy: soft lockup | bit L", WARNING, 1 << 14),
        *((f"sick: damaged | bit {bit}", REBOOT, 1 << bit | 1 << 12) for bit in (4, 5, 7)),
    ],
    ("os.drift", command): [
        ("alike | cluster file", PASSED, A, A),
        ("one of two | one node", CONFIGURE, A, B),
        ("sick: changed by hand | cluster file", CONFIGURE, A, B, B),
        ("sick: another exit status | cluster file", CONFIGURE, FAILING, B, B),
    ],
    ("os.drift", partial(drift, "kernel swap")): [("a tool is absent | PATH", NOT_CHECKED, UNREAD, "6.8")],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)
# setting, what its probe finds here, and on the others, and the part
DIFFERENT: list[tuple[str, Any, Any, str]] = [
    ("architecture", CPUS, replace(CPUS, architecture="aarch64"), "architecture"),
    ("cpu_model", CPUS, replace(CPUS, model="Xeon"), "cpu_model"),
    ("transparent_hugepages", "a", "b", "transparent_hugepages"),
    ("security_modules", "a", "b", "security_modules"),
    ("limits", {OPEN: 1024.0, LOCKED: 9.0}, {OPEN: 4096.0, LOCKED: 9.0}, "limits nofile"),
]


@pytest.mark.parametrize("setting", DIFFERENT, ids=lambda row: row[0])
def test_what_has_to_be_alike_is_named(setting: tuple[str, Any, Any, str]) -> None:
    name, mine, theirs, part = setting
    verdict = drift(name, mine, theirs, {"drift": ["uname -v"]})
    assert judged(verdict) == (CONFIGURE, [part])
    (found,) = verdict.findings
    assert str(found.expected).endswith("as on 3 of 4 nodes of its group")
    assert result(drift(name, theirs, mine, {"drift": ["uname -v"]})) != NOT_APPLICABLE
    assert judged(drift(name, mine, ABSENT, {"drift": ["uname -v"]})) == (NOT_APPLICABLE, [])
    assert judged(drift(name, mine, mine, {"drift": ["uname -v"]})) == (PASSED, [])


def test_limits_that_are_stated_or_those_of_most_nodes() -> None:
    soft = {LOCKED: 65536.0, OPEN: 4096.0, "Max stack size": math.inf}
    stated = {"memlock": "64M", "nofile": "4096", "stack": "unlimited", "as": "unlimited"}
    verdict = drift("limits", soft, ABSENT, {"limits": stated})
    assert judged(verdict) == (CONFIGURE, ["limits memlock", "limits as"])
    least = Quantity(64 << 20, "B", "at least 64 MiB, as os.limits states")
    assert (verdict.findings[0].measured, verdict.findings[0].expected) == (Quantity(65536, "B", "64 KiB"), least)
    good = {LOCKED: math.inf, OPEN: 65536.0, "Max processes": 96365.0}
    hand = {LOCKED: 65536.0, OPEN: 131072.0, "Max processes": 96364.0}  # processes depend on the memory
    assert judged(drift("limits", hand, good)) == (CONFIGURE, ["limits memlock"])
    assert judged(drift("limits", hand, good, {"limits": {"memlock": "64K"}})) == (PASSED, [])
    for halves, expected in (((1.0, 2.0), (CONFIGURE, ["limits memlock"])), ((2.0, 1.0), (PASSED, []))):
        assert judged(group("limits", *({LOCKED: size} for size in halves))) == expected


OF_CONTAINERS = (
    "lo veth0 docker0 br-1 virbr0 vnet1 tap0 tun0 wg0 cali1 cilium_x cni0 flannel.1 weave podman0 lxc1 lxdbr0 "
    "kube-ipvs0 nodelocaldns dummy0 vxlan1"
)


def test_interfaces_of_containers_are_judged_where_they_are_stated() -> None:
    names = [*OF_CONTAINERS.split(), "lox", "eno1", "br0"]
    mine, theirs = (Network(dict.fromkeys(names, link)) for link in (SMALL, ETHER))
    assert judged(drift("mtu", mine, theirs)) == (CONFIGURE, ["mtu lox", "mtu eno1", "mtu br0"])
    assert judged(drift("mtu", mine, mine, {"interfaces": {"veth0": 9000}})) == (CONFIGURE, ["mtu veth0"])


def test_a_setting_that_cannot_be_read_hides_no_other() -> None:
    broken = ProbeError("not understood")
    row = {it.name: it for it in checks.SETTINGS}
    sick = checks.SettingReading(row["taint"], "", 1 << 4, 0, Norm())
    sound = replace(sick, value=0)
    for unread, outcome in ((UNREAD, NOT_CHECKED), (broken, None)):
        bad = checks.Unread(row["kernel"], unread)
        assert judged(checks.drift([bad, sick])) == (REBOOT, ["taint"])
        if outcome:
            assert result(checks.drift([sound, bad])) == outcome
            assert checks.drift([sound, bad]).reason == "kernel: permission denied"
        else:
            with pytest.raises(ProbeError, match="not understood"):
                checks.drift([sound, bad])
    assert result(checks.drift([sound, replace(sick, setting=row["kernel"], stated=None)])) == PASSED


def test_settings_that_do_not_apply_are_left_out() -> None:
    mine = {"vm.a": "1", "vm.b": "1"}
    stated = {"sysctls": {"vm.a": "2", "vm.b": "2"}}
    for pattern, parts in (
        ("os.drift/sysctls vm.a", ["sysctls vm.b"]),
        ("os.drift/sysctls", []),
        ("os.drift/sys*", []),
        ("os.drift/kernel", ["sysctls vm.a", "sysctls vm.b"]),
    ):
        verdict = drift("sysctls", mine, ABSENT, stated, top={"not_applicable": {pattern: "x"}})
        assert judged(verdict) == ((CONFIGURE if parts else NOT_APPLICABLE), parts)


def test_what_makes_the_image_is_compared_with_nodes_of_other_images_too() -> None:
    for name, mine, theirs, outcome in (
        *((name, "a 1", "b 1", CONFIGURE) for name in ("release", "kernel", "cmdline")),
        ("architecture", CPUS, replace(CPUS, architecture="aarch64"), CONFIGURE),
        ("security_modules", "a", "b", NOT_APPLICABLE),
        ("cpu_model", CPUS, replace(CPUS, model="Xeon"), NOT_APPLICABLE),
    ):
        assert result(drift(name, mine, theirs, without_twins=True)) == outcome


def test_the_commands_of_all_settings_are_sent_and_those_that_are_compared_are_in_a_baseline() -> None:
    keys: dict[str, Any] = {"os": {"drift": ["uname -v"], "packages": {"slurm": ""}}}
    cluster = Cluster(name="c", groups=(Group(nodes="n1", profile=PLAIN),), **keys)
    sent, compared = ({it.name for it in checks.probes(cluster, compared=only)} for only in (False, True))
    assert sent - compared == {"taint", "packages", "sysctls"}
    assert {"kernel", "limits", "network", "drift: uname -v"} < compared


def test_the_page_lists_each_setting() -> None:
    page = (ROOT / "docs/suites/os.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `os.drift/")]
    names = dict.fromkeys(it.name for it in checks.SETTINGS)
    assert rows == [f"os.drift/{name}" for name in (*names, "commands")]
