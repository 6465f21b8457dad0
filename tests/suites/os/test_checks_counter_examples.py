"""Machines that were considered for each check of the operating system, judged by a person first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    REBOOT,
    VENDOR,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from machine_helpers import Machines, examples
from os_helpers import ALONE, CPUS, GIB, NONE, PLAIN, peers

from pytest_gpucluster.config.models import Group, NodeProfile
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node.kernel_log import KernelLog
from pytest_gpucluster.kit.node.os_config import MountConfig, OsConfig
from pytest_gpucluster.kit.node.peers import Peers
from pytest_gpucluster.suites.os import facts, software_facts
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
from pytest_gpucluster.suites.os.checks.kernel_log import kernel_log_start
from pytest_gpucluster.suites.os.facts import Clock, Cpus, Load, MemoryInfo, read_cpus, read_mounts
from pytest_gpucluster.suites.os.network_facts import Naming, Network, NetworkInterface
from pytest_gpucluster.suites.os.software_facts import CommandOutput, read_processes, read_system_state
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder, read_disks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.check import Verdict

DAY = 86400.0
NOW = 1_795_500_000
INFINITE = float("inf")


# --- what a machine shows


def said(out: str, err: str = "", rc: int = 0) -> Answer:
    return Answer("n1", rc, out.encode(), err.encode())


def release(mine: str, usual: str, stated: str | None = None) -> Verdict:
    return system.release(mine, stated, peers(mine, usual))


def kernel(mine: str, usual: str, stated: str | None = None) -> Verdict:
    return system.kernel(mine, stated, peers(mine, usual))


def cmdline(mine: str, usual: str) -> Verdict:
    return system.cmdline(mine, peers(mine, usual))


def skew(mine: float, others: tuple[float, ...], took: float = 0.0) -> Verdict:
    clocks = {"n1": Clock(mine, 0.0, took), **{f"n{n}": Clock(t, 0.0, 0.0) for n, t in enumerate(others, 2)}}
    return system.clock(clocks["n1"], system.CommonTime.of(clocks, 1.0), 1.0)


def memory(
    mine: float,
    usual: float | None = None,
    stated: float | None = None,
    *,
    smaller: bool = False,
    cmdline: str = "",
    reserved: float = 0,
    without_cpus: tuple[float, float] = (0, 0),
    dimms: tuple[str, ...] = (),
    all_dimms: tuple[str, ...] = (),
) -> Verdict:
    """Judge MemTotal in GiB; `usual`: of three other nodes.

    reserved: for a crash kernel; without_cpus: on NUMA nodes without CPUs, here and on the others; dimms, all_dimms: what EDAC
    lists here and on the others, "NAME GiB".
    """

    def parts(extra: float, modules: tuple[str, ...], held: float = 0) -> facts.MemoryParts:
        listed = {one.rpartition(" ")[0]: int(one.rpartition(" ")[2]) * GIB for one in modules}
        return facts.MemoryParts(int(extra * GIB), int(held * GIB), listed)

    nodes = ["n1", "n2", "n3", "n4"] if usual else ["n1"]
    infos = {
        node: MemoryInfo(int((mine if node == "n1" else usual or 0) * GIB), 0, 0, 0, 0, 0) for node in nodes
    }
    own = parts(without_cpus[0], dimms, reserved)
    found = hardware.installed(
        Peers(infos), {**dict.fromkeys(nodes, parts(without_cpus[1], all_dimms)), "n1": own}
    )
    group = Group(nodes=f"n[1-{len(nodes)}]", profile=PLAIN)
    profile = NodeProfile(memory=None if stated is None else int(stated * GIB))
    most = found.of(group, "total", hardware.PEER_MEMORY_TOLERANCE)
    return hardware.memory(
        infos["n1"], profile, most, smaller, own, found.of(group, "dimms"), f"{cmdline} quiet"
    )


def lscpu(online: str, off: str = "", threads: int = 2, more: str = "NUMA node(s): 1\n") -> Cpus:
    text = f"Architecture: x86_64\nOn-line CPU(s) list: {online}\nThread(s) per core: {threads}\nModel name: Xeon\n"
    return read_cpus(text + (f"Off-line CPU(s) list: {off}\n" if off else "") + more)


def cpus(mine: Cpus, usual: Cpus | None = None, stated: int | None = None) -> Verdict:
    return hardware.cpus(mine, stated, peers(mine.online, usual.online) if usual else ALONE)


def numa(found: tuple[int, int], usual: tuple[int, int] | None = None, stated: int | None = None) -> Verdict:
    """Judge (NUMA nodes, those with CPUs) of lscpu."""

    def grace(total: int, own: int) -> Cpus:
        rows = "".join(f"NUMA node{n} CPU(s): {n if n < own else ''}\n" for n in range(total))
        return lscpu("0-71", more=f"NUMA node(s): {total}\n{rows}")

    mine = grace(*found)
    return hardware.numa(mine, stated, peers(mine.cpu_nodes, grace(*usual).cpu_nodes) if usual else ALONE)


def governor(mine: dict[str, int], usual: dict[str, int]) -> Verdict:
    return hardware.governor(mine, None, peers(mine, usual))


def hugepages(mine: int, usual: int) -> Verdict:
    return hardware.hugepages(MemoryInfo(0, 0, 0, 0, mine, 0), None, peers(mine, usual))


def swap(mine: int, usual: int) -> Verdict:
    return hardware.swap(MemoryInfo(0, 0, mine, mine, 0, 0), peers(mine, usual))


def tunables(mine: str, usual: str) -> Verdict:
    return settings.kernel_settings(mine, peers(mine, usual))


def locked(mine: float, usual: float) -> Verdict:
    return settings.limits({"Max locked memory": mine}, {}, {"memlock": peers(mine, usual)})


def mounted(text: str) -> Any:
    """Return /proc/mounts of a node with an ext4 root and these lines."""
    root = "" if " / " in text else "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n"
    return read_mounts(root + text)


def stated(line: str, disk: Disk | None = None, **wanted: Any) -> Verdict:
    """Judge a stated mount on /data."""
    wanted_mount = MountConfig(path="/data", **wanted)
    return mounts.mounts(mounted(line), [wanted_mount], {"/data": disk} if disk else {})


def writable(line: str, on_others: bool | None = None, path: str = "/") -> Verdict:
    usual = {} if on_others is None else {path: peers(not on_others, on_others)}
    return mounts.root_writable(mounted(line), usual)


def scratch(mine: mounts.ScratchMount, usual: mounts.ScratchMount) -> Verdict:
    """Judge /dev/shm; /tmp is on a disk."""
    disk = mounts.ScratchMount()
    return mounts.scratch(mounts.ScratchMounts(disk, mine), peers(disk, disk), peers(mine, usual), 64 * GIB)


def shm(size: str, *, noexec: bool = False) -> mounts.ScratchMount:
    return mounts.ScratchMount(noexec, size)


def load(one: float, cpus: int, uptime: float = DAY) -> Verdict:
    return state.load(Load(one, 0, 0), cpus, 1.0, uptime)


def ids(mine: str, usual: str) -> Verdict:
    return state.user(facts.read_user(mine), peers(facts.read_user(mine), facts.read_user(usual)))


def shared(on: str, write_problem: str, read_problem: str = "") -> Verdict:
    """Judge a folder in which n1 wrote, on a node."""
    return disks.shared_storage({"/s": SharedFolder("n1", write_problem, read_problem)}, on)


def lost(why: str) -> Verdict:
    return state.responds(Answer("n1", None, problem=why), why)


def timed(text: str, uptime: float = DAY) -> Verdict:
    answer = said(f"\x1enow\n{NOW}\n\x1e=0\n{text}")
    return state.time_sync(software_facts.read_time_sync(answer), uptime)


def chrony(
    reference: str = "0A000001,10.0.0.1,3",
    *,
    age: float = 300,
    interval: float = 1029.8,
    leap: str = "Normal",
    uptime: float = DAY,
) -> Verdict:
    """Judge `chronyc -c tracking`."""
    values = f"0.00002,-0.00004,0.00005,2.286,-0.000,0.012,0.0127,0.0004,{interval}"
    return timed(f"\x1echronyc\n{reference},{NOW - age:.6f},{values},{leap}\n\x1e=0\n", uptime)


def timedatectl(synchronised: str, uptime: float = DAY) -> Verdict:
    gone = "\x1echronyc\nsh: chronyc: not found\n\x1e=127\n\x1entpq\nsh: ntpq: not found\n\x1e=127\n"
    shown = f"Timezone=UTC\nNTP=yes\nNTPSynchronized={synchronised}"
    return timed(f"{gone}\x1etimedatectl\n{shown}\n\x1e=0\n", uptime)


def ntpq(dispersion: float) -> Verdict:
    """Judge `ntpq -c rv` with a dispersion in milliseconds."""
    text = f"status=0615 leap_none, sync_ntp, 1 event,\nstratum=3, rootdisp={dispersion}, offset=-0.21"
    return timed(f"\x1echronyc\n\x1e=127\n\x1entpq\n{text}\n\x1e=0\n")


def response(
    line: str,
    disk: Disk,
    *,
    elsewhere: bool,
    path: str = "/data",
    stated: bool = True,
    uptime: float = DAY,
    later: Disk | None = None,
    stuck: int = 1,
) -> Verdict:
    responses = disks.Responses({path: 3} if elsewhere else {}, {path: stuck})
    paths, again = (path,) if stated else (), {path: later or disk}
    return disks.mount_response({path: disk}, mounted(line), paths, responses, uptime, again)


def space(text: str = "", **free: tuple[float, float]) -> Verdict:
    """Judge (size, free) in GiB of root, tmp and shm; they have space by default."""
    found = {"root": (100.0, 50.0), "tmp": (100.0, 50.0), "shm": (500.0, 490.0), **free}
    paths = {"root": "/", "tmp": "/tmp", "shm": "/dev/shm"}
    shown = {
        paths[at]: Disk(int(size * GIB), int(left * GIB), 1000, 900) for at, (size, left) in found.items()
    }
    return disks.free_space(shown, mounted(text), OsConfig(), {})


def inodes(*rows: str) -> Verdict:
    """Judge /, /tmp, /dev/shm with rows of df: blocks that are free, inodes, inodes that are free."""
    found = [row.split() for row in rows]
    lines = [f"x 100 0 {free} - /" for free, *_ in found]
    lines += [f"x {total} 0 {left} - /" for _, total, left in found]
    return disks.inodes(read_disks(mounts.ALWAYS, "\n".join(lines)))


def ps(*samples: str) -> Verdict:
    """Judge samples of ps: lines `PID PPID STAT ETIMES USER COMM`; one line stands for three."""
    rows = samples if len(samples) > 1 else samples * 3
    return software.dstate(read_processes(said("".join(f"{one}\nprocesses 400\n" for one in rows))))


def zombies(text: str, most: int = 0, later: str | None = None) -> Verdict:
    samples = (text, *(2 * [text if later is None else later]))
    return software.zombies(read_processes(said("".join(f"{one}\nprocesses 400\n" for one in samples))), most)


def services(service: str, socket: str = "inactive", uptime: float = DAY) -> Verdict:
    """Judge `systemctl is-active ssh ssh.socket`."""
    found = software_facts.services(["ssh"]).parse(said(f"{service}\n{socket}\n", rc=3))
    return software.services(found, ("ssh",), uptime)


def units(text: str, stated: tuple[str, ...] = ()) -> Verdict:
    return software.failed_units(software_facts.read_failed_units(said(f"{text}\n")), stated)


def systemd(out: str, err: str = "", rc: int = 0, uptime: float = DAY) -> Verdict:
    mine = read_system_state(said(out, err, rc))
    return software.systemd(mine, peers(mine.answers, usual=True), uptime)


def drift(mine: str, usual: str) -> Verdict:
    own, most = CommandOutput(mine, 0), CommandOutput(usual, 0)
    return software.drift({"c": own}, {"c": peers(own, most)})


def log_start(since: float | None) -> Verdict:
    return kernel_log_start(KernelLog("dmesg", 900, since, None))


def named(mine: str, usual: str, *own: str) -> Verdict:
    """Judge the addresses of the name gpu09; `own`: those of that node."""
    networks = {"gpu09": Network({}, {"eno1": own})}
    return network.name_resolution({"gpu09": mine}, "n1", {"gpu09": peers(mine, usual)}, networks)


def name_time(seconds: float, usual: float) -> Verdict:
    return network.name_time(Naming(seconds), usual)


def reach(*silent: str) -> Verdict:
    """Judge n1 of five nodes, of which all reach each other but those that are silent."""
    own = {f"n{n}": frozenset({f"10.0.0.{n}"}) for n in range(1, 6)}
    results = {
        node: tuple(
            network.ReachabilityResult(
                to, f"10.0.0.{to[1]}", "no answer within 5 s" if {node, to} & set(silent) else "reached"
            )
            for to in own
            if to != node
        )
        for node in own
    }
    return network.reachable("n1", network.Reachability(results, own))


def mtu(mine: tuple[str, int], usual: tuple[str, int]) -> Verdict:
    link = NetworkInterface(*mine)
    return network.mtu(Network({"ib0": link}), {"ib0": peers(link, NetworkInterface(*usual))}, {})


def addresses(having: Mapping[str, Mapping[str, bool]]) -> Verdict:
    return network.addresses("n1", network.Owners(having, 10))


EL9, EL9_5 = "5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64"
NFS = "nas:/data /data nfs4 rw,relatime,vers=4.2,hard 0 0\n"
AUTOFS = "systemd-1 /data autofs rw,relatime,fd=58,pgrp=1,timeout=600,minproto=5,maxproto=5,direct 0 0\n"
SQUASHFS = "/dev/loop0 / squashfs ro,relatime 0 0\ntmpfs /tmp tmpfs rw,size=1048576k 0 0\n"
COMPOSEFS = "composefs / overlay ro,relatime,lowerdir+=/run/ostree/.private/cfsroot-lower 0 0\n"
REMOUNTED = "/dev/sdb1 /srv ext4 ro,relatime,errors=remount-ro 0 0\n"
SMALL_TMP = "tmpfs /tmp tmpfs rw,size=1048576k 0 0\n"
SSHFS = "x /home/ada/m fuse.sshfs rw 0 0\n"
HUNG = Disk(problem="no answer within 8 s", hung=True)
DENIED = Disk(problem="df: /data: Permission denied")
DATA = Disk(9 * GIB, GIB, source="nas:/data")
WHOLE = lscpu("0-223")
ID = "uid=1000(ada) gid=1000(ada) groups=1000(ada),44(video)"
DIMMS = ("mc0/dimm0 CPU0_DIMM_A1 64", "mc0/dimm1 CPU0_DIMM_B1 64")
RANKS = ("mc3/rank6 32", "mc3/rank7 32")
NO_SYSTEMD = "System has not been booted with systemd as init system (PID 1). Can't operate."
REFUSES = "Failed to connect to bus: Connection refused"
ENOSPC, EACCES = "No space left on device", "sh: cannot create: Permission denied"
USER_UNIT = "user@1001.service loaded failed failed User Manager for UID 1001"
AWS = "ip-10-0-1-7"
RMEM = "4096 131072 6291456"

MACHINES: Machines = {
    ("os.hostname", system.hostname): [
        ("uname -n is a FQDN (RHEL) | hostname(1)", PASSED, "GPU01.cluster.site", "gpu01", "gpu01"),
        ("NodeName is a FQDN | slurm.conf(5), NodeName", PASSED, "gpu01", "gpu01.cluster.site", ""),
        ("several slurmd on one host | slurm.conf(5), NodeHostname", PASSED, "host7", "gpu02", "host7.site"),
        ("an AWS node | ParallelCluster", PASSED, f"{AWS}.eu-west-1.compute.internal", "q1-st-p5-1", AWS),
        ("sick: cloned under another name | hostnamectl", CONFIGURE, "gpu02", "gpu01", "gpu01"),
        ("sick: neither of its two names | hostnamectl", CONFIGURE, "gpu02", "gpu01", "vm"),
    ],
    ("os.release", release): [
        ("first updated node: 9.5 among 9.4 | rolling upgrade", WARNING, "rhel 9.5", "rhel 9.4"),
        ("stated in other case | os-release(5)", PASSED, "ubuntu 22.04", "ubuntu 20.04", "Ubuntu 22.04"),
        ("a rolling release without a version | Arch Linux os-release", PASSED, "arch", "arch"),
        ("sick: missed the upgrade | reinstallation", CONFIGURE, "rhel 9.2", "rhel 9.4"),
        ("sick: another distribution | wrong image", CONFIGURE, "debian 12", "ubuntu 22.04"),
        ("sick: not what is stated | cluster file", CONFIGURE, "a 1", "a 1", "a 2"),
    ],
    ("os.kernel", kernel): [
        ("first updated node | rolling upgrade", WARNING, EL9_5, EL9),
        ("Ubuntu with a newer ABI | linux-image-6.8.0-60", WARNING, "6.8.0-60-generic", "6.8.0-45-generic"),
        ("a prefix is stated | os.kernel", PASSED, "6.8.0-1021-aws", "6.8.0-1018-aws", "6.8.*"),
        ("sick: not rebooted since the update | needs-restarting", CONFIGURE, EL9, EL9_5),
        ("sick: another flavour | image", CONFIGURE, "6.8.0-60-generic", "6.8.0-1015-nvidia"),
    ],
    ("os.cmdline", cmdline): [
        ("nosmt added on one node | kernel-parameters.txt", WARNING, "nosmt quiet ro", "quiet ro"),
        ("a debug word added | kernel-parameters.txt", WARNING, "debug quiet ro", "quiet ro"),
        ("alike | one image", PASSED, "quiet ro", "quiet ro"),
        ("sick: iommu=pt is missing | boot loader", CONFIGURE, "quiet", "iommu=pt quiet"),
        ("sick: a value differs | iommu=on instead of pt", CONFIGURE, "iommu=on quiet", "iommu=pt quiet"),
    ],
    ("os.architecture", system.architecture): [
        ("a mixed partition | core/common_cause.py", NOT_APPLICABLE, CPUS, NONE),
    ],
    ("os.uptime", system.uptime): [
        ("idle for 400 days, no bound stated | long-lived node", NOT_APPLICABLE, 400 * DAY, None, None),
        ("booted a minute ago, no bound stated | scontrol reboot", NOT_APPLICABLE, 60, None, None),
        ("at both bounds | os.min_uptime", PASSED, 600, 600, 600),
        ("sick: rebooted by its watchdog | os.min_uptime", MONITOR, 599, 600, None),
        ("sick: not rebooted for the update | os.max_uptime", MONITOR, 601, None, 600),
    ],
    ("os.clock", skew): [
        ("0.4 s off within 1 s | chrony after a step", PASSED, 100.4, (100.0, 100.0)),
        ("a slow answer: the clock was read within 5 s | load", PASSED, 103.0, (100.0, 100.0), 5.0),
        ("the only node | one node", NOT_APPLICABLE, 5.0, ()),
        ("sick: 90 s ahead | no time service", CONFIGURE, 190.0, (100.0, 100.0)),
    ],
    ("os.memory", memory): [
        ("more memory than the others | mixed order of DIMMs", PASSED, 2015, 1007),
        ("more memory than the profile states | twice the DIMMs", WARNING, 2015, None, 1007),
        ("crashkernel=1G on a VM | kdump.txt", PASSED, lambda: memory(61.5, 62.5, reserved=1)),
        ("crashkernel=4G on 256 GiB | debug kernel", PASSED, lambda: memory(246.9, 250.9, reserved=4)),
        (
            "GH200 in CDMM among NUMA mode | NVreg_CoherentGPUMemoryMode=driver, R580",
            PASSED,
            lambda: memory(473, 568, without_cpus=(0, 95)),
        ),
        (
            "GH200 in NUMA mode, profile of 480 GiB | HBM as a NUMA node",
            PASSED,
            lambda: memory(568, None, 480, without_cpus=(95, 0)),
        ),
        ("smaller on purpose | RealMemory", CONFIGURE, lambda: memory(500, 1000, smaller=True)),
        ("a test | kernel-parameters.txt", CONFIGURE, lambda: memory(503, 2015, cmdline="mem=512G")),
        ("page_owner=on takes 0.8%, all DIMMs there | mm/page_owner.rst", PASSED, 2000, 2016),
        (
            "sick: one rank of 32 GiB in 4 TiB missing, EDAC names it | 0.8%",
            VENDOR,
            lambda: memory(4001, 4033, dimms=RANKS[:1], all_dimms=RANKS),
        ),
        (
            "sick: one DIMM of 64 missing, EDAC names it | 1/64 = 1.6%",
            VENDOR,
            lambda: memory(3970, 4033, dimms=DIMMS[:1], all_dimms=DIMMS),
        ),
        ("sick: one DIMM of 64 missing, no EDAC driver | 1/64 = 1.6%", VENDOR, 3970, 4033),
        ("sick: one DIMM missing, below the profile too | reseat", VENDOR, 756, 1008, 1024),
        (
            "sick: less memory, but EDAC lists all DIMMs | hidden by the firmware or the kernel",
            CONFIGURE,
            lambda: memory(900, 1008, dimms=DIMMS, all_dimms=DIMMS),
        ),
    ],
    ("os.cpus", cpus): [
        ("nosmt: all cores online | l1tf.rst, nosmt", WARNING, lscpu("0-111", "112-223", 1), WHOLE),
        ("SMT off in the firmware | BIOS Logical Processor", WARNING, lscpu("0-111", "", 1), WHOLE),
        ("nosmt, the only node | echo off > smt/control", WARNING, lscpu("0-111", "112-223", 1)),
        ("more CPUs than the others | newer processors", PASSED, WHOLE, lscpu("0-191")),
        ("profile counts threads, SMT is off | site policy", WARNING, lscpu("0-111", "", 1), None, 224),
        ("sick: two cores offline | chcpu", CONFIGURE, lscpu("0-109,112-221", "110-111,222-223"), WHOLE),
        ("sick: a socket is missing | lscpu", CONFIGURE, lscpu("0-111"), WHOLE),
        ("sick: SMT off and a core missing | lscpu", CONFIGURE, lscpu("0-109", "110-223", 1), WHOLE),
    ],
    ("os.cpu_model", hardware.cpu_model): [
        ("a VM among VMs | kvm", PASSED, replace(CPUS, hypervisor="KVM"), peers("EPYC", "EPYC")),
    ],
    ("os.numa", numa): [
        ("GH200 in NUMA mode, stated with CPUs only | lscpu of a GH200", PASSED, (9, 1), None, 1),
        ("GH200 in CDMM among NUMA mode | NVreg_CoherentGPUMemoryMode=driver", PASSED, (1, 1), (9, 1)),
        ("a CXL expander as a node without CPUs | driver-api/cxl", PASSED, (3, 2), (2, 2)),
        ("GB200 with 34 nodes, as the profile states | lscpu of a GB200", PASSED, (34, 2), None, 34),
        ("sick: NPS1 among NPS4 | firmware", CONFIGURE, (2, 2), (8, 8)),
    ],
    ("os.governor", governor): [
        ("performance among schedutil | cpufreq", WARNING, {"performance": 8}, {"schedutil": 8}),
        ("fewer CPUs (nosmt) | cpufreq of online CPUs", PASSED, {"performance": 4}, {"performance": 8}),
        ("a VM without frequency scaling | kvm guest", NOT_APPLICABLE, {}, {}),
        ("ondemand among schedutil | kernel default changed", WARNING, {"ondemand": 8}, {"schedutil": 8}),
        ("sick: powersave among performance | tuned off", CONFIGURE, {"powersave": 8}, {"performance": 8}),
        ("sick: one CPU | hotplug", CONFIGURE, {"performance": 7, "powersave": 1}, {"performance": 8}),
    ],
    ("os.hugepages", hugepages): [
        ("surplus huge pages for a DPDK job | vm.nr_hugepages", WARNING, 1024, 0),
        ("sick: fewer than the others | fragmented memory", CONFIGURE, 100, 1024),
    ],
    ("os.transparent_hugepages", hardware.transparent_hugepages): [
        ("a kernel without huge pages | CONFIG_TRANSPARENT_HUGEPAGE", PASSED, "none", peers("none", "none")),
    ],
    ("os.swap", swap): [
        ("a swap partition of another size | disks of two orders", PASSED, 8 << 30, 4 << 30),
        ("zram of half the memory, DIMMs differ by pages | zram-generator", PASSED, 8589930496, 8589934592),
        ("no swap anywhere | cloud image", PASSED, 0, 0),
        ("sick: switched on here only | swapon", CONFIGURE, 8 << 30, 0),
        ("sick: none here only | swapoff", CONFIGURE, 0, 8 << 30),
    ],
    ("os.security_modules", settings.security_modules): [
        ("a container without securityfs | soperator", PASSED, "none", peers("none", "none")),
    ],
    ("os.kernel_settings", tunables): [
        (
            "a larger pid_max | systemd's 50-pid-max.conf",
            WARNING,
            *("kernel.pid_max=4194304 vm.swappiness=60", "kernel.pid_max=229376 vm.swappiness=60"),
        ),
        ("a larger bound | Ubuntu 24.04", WARNING, "vm.max_map_count=1048576", "vm.max_map_count=65530"),
        ("sick: overcommit off here | sysctl", CONFIGURE, "vm.overcommit_memory=2", "vm.overcommit_memory=0"),
        ("sick: a lower pid_max | sysctl", CONFIGURE, "kernel.pid_max=32768", "kernel.pid_max=4194304"),
    ],
    ("os.limits", locked): [
        ("higher limits than the others | limits.conf", PASSED, INFINITE, 65536.0),
        (
            "more open files than stated | LimitNOFILE",
            PASSED,
            lambda: settings.limits({"Max open files": 1048576.0}, {"nofile": 65536.0}),
        ),
        (
            "the only node, none stated | one node",
            NOT_APPLICABLE,
            lambda: settings.limits({"Max open files": 1024.0}, {}, {"nofile": ALONE}),
        ),
        ("sick: memlock of 64 KiB | slurmd without LimitMEMLOCK", CONFIGURE, 65536.0, INFINITE),
    ],
    ("os.mounts", stated): [
        (
            "an idle systemd automount | systemd.automount(5)",
            PASSED,
            lambda: stated(AUTOFS, DATA, fstype="nfs4", source="nas:/data/"),
        ),
        ("NFS over an automount | /proc/mounts", PASSED, lambda: stated(AUTOFS + NFS, source="nas:/data")),
        ("nfs stated, mounted as nfs4 | nfs(5)", PASSED, lambda: stated(NFS, fstype="nfs")),
        ("sick: not mounted | server down at boot", CONFIGURE, ""),
        (
            "sick: an automount that does not mount | server gone",
            CONFIGURE,
            lambda: stated(AUTOFS, Disk(problem="df: /data: No such device"), fstype="nfs4"),
        ),
        (
            "sick: an automount of another server | wrong map",
            CONFIGURE,
            lambda: stated(AUTOFS, Disk(9, 9, source="old:/data"), source="nas:/data"),
        ),
    ],
    ("os.root_writable", writable): [
        ("a squashfs image, the only node | Warewulf, live image", NOT_CHECKED, SQUASHFS),
        ("ostree with composefs as all nodes | RHEL image mode", WARNING, COMPOSEFS, False),
        ("root on tmpfs | Warewulf diskless", PASSED, "none / tmpfs rw,size=50% 0 0\n"),
        ("a data disk read-only by an operator | mount -o remount,ro", CONFIGURE, REMOUNTED, True, "/srv"),
        (
            "sick: ext4 went read-only after an error | emergency_ro",
            DRAIN,
            "/dev/sda2 / ext4 rw,relatime,emergency_ro 0 0\n",
        ),
        ("sick: root remounted read-only | errors=", DRAIN, REMOUNTED.replace("/srv", "/"), True),
    ],
    ("os.scratch", scratch): [
        ("a larger /dev/shm | tmpfs size=", PASSED, shm("1048576k"), shm("524288k")),
        ("it differs by some pages | half of the memory", PASSED, shm("1048000k"), shm("1048576k")),
        ("noexec, others exec | CIS benchmark", WARNING, shm("9k", noexec=True), shm("9k")),
        ("sick: 64 MiB among 500 GiB | tmpfs size=", CONFIGURE, shm("65536k"), shm("524288000k")),
    ],
    ("os.load", load): [
        ("idle | uptime(1)", PASSED, 0.3, 224),
        ("booted two minutes ago: services start | systemd-analyze", NOT_CHECKED, 19, 16, 120),
        ("as many runnable tasks as CPUs | proc_loadavg(5)", PASSED, 224, 224),
        ("sick: a runaway daemon | top", MONITOR, 500, 224),
    ],
    ("os.taint", state.taint): [
        ("NVIDIA's driver | tainted-kernels.rst: P, O, E", PASSED, 1 | 1 << 12 | 1 << 13),
        ("a VM whose host was busy: soft lockup | bit L", WARNING, 1 << 14),
        ("a warning of a driver and a live patch | bits W and K", PASSED, 1 << 9 | 1 << 15),
        ("sick: machine check | bit M", REBOOT, 1 << 4),
    ],
    ("os.user", ids): [
        ("another gid of a local group | render", WARNING, ID.replace("44(video)", "39(video)"), ID),
        ("a further group | docker installed on one node", WARNING, f"{ID},998(docker)", ID),
        ("SELinux context at the end | id(1)", WARNING, f"{ID} context=unconfined_u:unconfined_r:s0", ID),
        ("sick: no names | SSSD offline", CONFIGURE, "uid=1000 gid=1000 groups=1000", ID),
        ("sick: another uid | local account", CONFIGURE, ID.replace("uid=1000", "uid=1001"), ID),
        ("sick: a group is missing | LDAP", CONFIGURE, ID.replace(",44(video)", ""), ID),
    ],
    ("os.shared_storage", shared): [
        ("the user may not write there | EACCES", NOT_CHECKED, "n1", EACCES),
        ("none stated | cluster file", NOT_APPLICABLE, lambda: disks.shared_storage({}, "n1")),
        ("the writer is full, seen from another node | ENOSPC", NOT_CHECKED, "n2", ENOSPC, "gone"),
        ("mounted | nfs(5)", PASSED, "n2", ""),
        ("sick: full, seen by the writer | ENOSPC", CONFIGURE, "n1", ENOSPC, "gone"),
        ("sick: not mounted here | ENOENT", CONFIGURE, "n2", "", "cat: /s/.x: No such file or directory"),
    ],
    ("os.responds", lost): [
        ("its TaskProlog fails | slurm.conf(5)", CONFIGURE, "slurmstepd: error: TaskProlog failed status=1"),
        ("the agent was killed for memory | oom-killer", MONITOR, "its agent's task ended: signal 9"),
        ("a wrapper ends true with 1 | script", MONITOR, lambda: state.responds(Answer("n1", 1))),
        ("sick: dead | power", REBOOT, "no answer for 120 s"),
    ],
    ("os.time_sync", chrony): [
        ("polls every 4.5 hours | minpoll 14", PASSED, lambda: chrony(age=16000, interval=16384)),
        ("polls every 36 hours | maxpoll 17", PASSED, lambda: chrony(age=4 * 131072, interval=131072)),
        ("PTP clock | refclock PHC", PASSED, lambda: chrony("50485030,PHC0,1", age=2, interval=4.0)),
        ("timesyncd | timedatectl show", PASSED, lambda: timedatectl("yes")),
        ("timesyncd, booted 40 s ago | first poll", NOT_CHECKED, lambda: timedatectl("no", uptime=40)),
        (
            "chrony, booted 40 s ago | iburst",
            NOT_CHECKED,
            lambda: chrony("7F7F0101,,0", age=NOW, leap="Not synchronised", uptime=40),
        ),
        ("ntpd | ntpq -c rv", PASSED, lambda: ntpq(24.5)),
        ("sick: it lost its servers, and shows Normal | Ref time", CONFIGURE, lambda: chrony(age=DAY + 1)),
        ("sick: ntpd lost its servers: 15 ppm in ten days | rootdisp", CONFIGURE, lambda: ntpq(12960.5)),
    ],
    ("os.sysctls", state.sysctls): [
        ("other blanks | net.ipv4.tcp_rmem", PASSED, {"a": RMEM}, {"a": RMEM.replace(" ", "\t ")}),
        ("none stated | cluster file", NOT_APPLICABLE, {}, {}),
        ("as stated | sysctl.d", PASSED, {"vm.swappiness": "60"}, {"vm.swappiness": "60"}),
        ("sick: another value | sysctl", CONFIGURE, {"a": "1"}, {"a": "0"}),
        ("sick: unknown to the kernel | sysctl", CONFIGURE, {"a": ""}, {"a": "0"}),
    ],
    ("os.mount_response", response): [
        ("root_squash | exports(5)", NOT_CHECKED, lambda: response(NFS, DENIED, elsewhere=False)),
        (
            "a stated mount is not there | os.mounts judges it",
            PASSED,
            lambda: response("", Disk(problem="df: /data: No such file or directory"), elsewhere=True),
        ),
        (
            "a sshfs of a user, hidden by permission | fuse.sshfs",
            PASSED,
            lambda: response(SSHFS, DENIED, path="/home/ada/m", elsewhere=False, stated=False),
        ),
        (
            "a busy server answers at the second reading | backup window",
            WARNING,
            lambda: response(NFS, HUNG, elsewhere=True, later=Disk(9, 9)),
        ),
        (
            "one of two servers fails over, and two nodes wait | Lustre OST failover",
            CONFIGURE,
            lambda: response(NFS, HUNG, elsewhere=True, stuck=2),
        ),
        (
            "booted a minute ago: the mount still starts | remote-fs.target",
            NOT_CHECKED,
            lambda: response(NFS, HUNG, elsewhere=True, uptime=60),
        ),
        ("sick: its own client hangs | NFS", REBOOT, lambda: response(NFS, HUNG, elsewhere=True)),
    ],
    ("os.free_space", space): [
        ("an empty /tmp of 1 GiB | tmp.mount", PASSED, lambda: space(SMALL_TMP, tmp=(1, 0.999))),
        ("a squashfs root | df of an image", PASSED, lambda: space(SQUASHFS, root=(1.2, 0), tmp=(1, 0.999))),
        ("composefs root of 6 MiB | RHEL image mode", PASSED, lambda: space(COMPOSEFS, root=(0.006, 0))),
        (
            "a diskless root on tmpfs of 4 GiB, 0.9 free | Warewulf",
            PASSED,
            lambda: space("none / tmpfs rw 0 0\n", root=(4.0, 0.9), tmp=(4.0, 0.9)),
        ),
        ("/dev/shm of 64 MiB | docker run", PASSED, lambda: space(shm=(0.0625, 0.0625))),
        ("sick: root is full | df", CONFIGURE, lambda: space(root=(100.0, 0.2))),
        ("sick: a small /tmp is full | df", CONFIGURE, lambda: space(SMALL_TMP, tmp=(1.0, 0.05))),
    ],
    ("os.inodes", inodes): [
        ("a squashfs root: all are used | df -i", PASSED, "0 45210 0", "50 1000 900", "50 1000 900"),
        ("btrfs counts none | df -i shows 0", NOT_APPLICABLE, "50 0 0", "50 0 0", "50 0 0"),
        ("erofs and tmpfs | df -i of erofs", PASSED, "0 3100 0", "50 1000 900", "50 1000 900"),
        ("sick: none left | ext4", CONFIGURE, "50 6553600 100", "50 6553600 100", "50 1000 900"),
    ],
    ("os.zombies", zombies): [
        ("a child that is reaped between samples | ps", PASSED, "7 3 Z 0 root sh", 0, ""),
        ("two accepted | os.max_zombies", PASSED, "7 3 Z 900 root sh\n8 3 Z 900 root sh", 2),
        ("none | ps", PASSED, "9 3 D 900 root dd"),
        ("sick: a daemon does not reap | ps", MONITOR, "7 3 Z 900 root sh"),
    ],
    ("os.dstate", ps): [
        ("md resyncs an array | md_do_sync of md0_resync", PASSED, "812 2 D 7000 root md0_resync"),
        (
            "fstrim at work: it was woken between samples | FITRIM",
            PASSED,
            *("@100 77 1 D 900 root fstrim", "@180 77 1 D 901 root fstrim", "@260 77 1 D 902 root fstrim"),
        ),
        ("mkfs began a minute ago | hung_task_timeout_secs", PASSED, "@7 79 1 D 119 root mkfs.ext4"),
        ("a kernel thread that always waits so | txg_sync", PASSED, "1020 2 D< 900000 root txg_sync"),
        ("sick: it hangs in a dead mount | no switch between samples", MONITOR, "@40 80 1 D 7200 ada dd"),
        ("sick: its switch count is not readable | hidepid", MONITOR, "81 1 D 120 ada dd"),
    ],
    ("os.packages", software.packages): [
        ("an epoch | dpkg", PASSED, {"docker": "5:27.3.1-1"}, {"docker": "27.3"}),
        ("a longer version than stated | rpm", PASSED, {"kernel": "5.14.0-427.el9"}, {"kernel": "5.14.0"}),
        ("none stated | cluster file", NOT_APPLICABLE, {}, {}),
        ("sick: not installed | dpkg", CONFIGURE, {"a": ""}, {"a": ""}),
    ],
    ("os.services", services): [
        ("reloading | systemctl(1) is-active", PASSED, "reloading"),
        ("activating, booted a minute ago | systemd", NOT_CHECKED, "activating", "inactive", 60),
        ("ssh.service starts with its socket | Ubuntu 22.10: ssh.socket", PASSED, "inactive", "active"),
        ("sick: inactive, without a socket | systemctl", CONFIGURE, "inactive"),
        ("sick: failed, its socket listens | systemctl", CONFIGURE, "failed", "active"),
        ("sick: failed, booted a minute ago | systemctl", CONFIGURE, "failed", "inactive", 60),
    ],
    ("os.failed_units", units): [
        ("the session of a user failed | the oom-killer", PASSED, USER_UNIT),
        ("a transient unit of systemd-run | run-rbc3e.scope", PASSED, "run-rbc3e.scope loaded failed failed"),
        ("judged elsewhere | os.services", PASSED, "chrony.service loaded failed failed NTP", ("chrony",)),
        ("sick: kdump failed | systemctl --failed", MONITOR, "kdump.service loaded failed failed kdump"),
    ],
    ("os.systemd", systemd): [
        ("degraded | systemctl is-system-running", PASSED, "degraded\n", "", 1),
        ("a container without systemd | soperator", NOT_APPLICABLE, "", NO_SYSTEMD, 1),
        ("D-Bus was restarted; systemd itself works | systemctl as a user", MONITOR, "", REFUSES, 1),
        ("booted a minute ago and still starting units | systemd", PASSED, "starting\n", "", 1, 60),
        ("no answer yet, booted a minute ago | systemd", NOT_CHECKED, "", "", 124, 60),
        ("shutting down for scontrol reboot | systemd", NOT_CHECKED, "stopping\n", "", 1),
        ("sick: does not answer within 10 s | timeout(1)", REBOOT, "", "", 124),
        ("sick: rescue mode | maintenance", MONITOR, "maintenance\n", "", 1),
    ],
    ("os.drift", drift): [
        ("alike | cluster file", PASSED, "a", "a"),
        ("no command stated | cluster file", NOT_APPLICABLE, lambda: software.drift({}, {})),
        (
            "the only node | one node",
            NOT_APPLICABLE,
            lambda: software.drift({"c": CommandOutput("a", 0)}, {"c": ALONE}),
        ),
        ("sick: changed by hand | cluster file", CONFIGURE, "a", "b"),
    ],
    ("os.kernel_log_start", log_start): [
        ("a log since boot | dmesg", PASSED, 0.0),
        ("a virtual machine whose first line has a later time | kvm-clock", PASSED, 2.5),
        ("a kernel that writes no times | printk.time=0", NOT_CHECKED, None),
        ("sick: a flood of lines hid the boot | AER", NOT_CHECKED, 86_400.0),
    ],
    ("os.name_resolution", named): [
        ("hosts names its IB address, DNS another | nsswitch", PASSED, "10.1.0.9", "10.0.0.9", "10.1.0.9"),
        ("IPv6 first | getent hosts", PASSED, "2001:db8::9", "10.0.0.9", "10.0.0.9", "2001:db8::9"),
        ("no name resolves anywhere | Slurm uses NodeAddr", NOT_APPLICABLE, "", ""),
        ("sick: does not resolve here | DNS", CONFIGURE, "", "10.0.0.9", "10.0.0.9"),
    ],
    ("os.name_time", name_time): [
        ("files | /etc/hosts", PASSED, 0.01, 0.01),
        ("a loaded cluster: all are slow | SSSD", PASSED, 3.0, 2.0),
        ("a first LDAP query of 1.8 s | SSSD without a cache", PASSED, 1.8, 0.1),
        ("sick: the first server is dead | resolv.conf", CONFIGURE, 5.0, 0.01),
    ],
    ("os.reachable", reach): [
        ("the neighbours refuse the connection | no listener", PASSED),
        (
            "the only node under test | no neighbour",
            NOT_APPLICABLE,
            lambda: network.reachable("n1", network.Reachability({"n1": ()}, {})),
        ),
        ("one neighbour is down for all | n2 hangs", PASSED, "n2"),
        ("sick: its firewall drops | nftables", CONFIGURE, "n1"),
    ],
    ("os.mtu", mtu): [
        (
            "docker0 has another MTU | bridge",
            NOT_APPLICABLE,
            lambda: network.mtu(Network({"docker0": NetworkInterface("ether", 1450)}), {}, {}),
        ),
        ("ib0 in Ethernet mode | mlxconfig", NOT_APPLICABLE, ("ether", 9000), ("infiniband", 4092)),
        ("alike | netplan", PASSED, ("ether", 9000), ("ether", 9000)),
        ("sick: 1500 among 9000 | netplan", CONFIGURE, ("ether", 1500), ("ether", 9000)),
    ],
    ("os.addresses", addresses): [
        ("the same link-local address of each BMC | usb0", PASSED, {"169.254.3.1": {}}),
        (
            "a virtual address that most nodes have | kube-vip, usb0 with 192.168",
            PASSED,
            {"192.168.0.2": {f"n{n}": False for n in range(1, 8)}},
        ),
        ("own addresses | DHCP", PASSED, {"10.0.0.1": {"n1": True}, "10.0.0.2": {"n2": True}}),
        ("sick: cloned | two nodes, one address", CONFIGURE, {"10.0.0.1": {"n1": False, "n2": True}}),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_a_machine_gets_the_verdict_of_a_person(example: CounterExample) -> None:
    assert_as_expected(example)
