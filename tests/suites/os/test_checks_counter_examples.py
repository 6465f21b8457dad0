"""Machines that were considered for each check of the operating system, judged by a person first."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
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
from os_helpers import ALONE, CPUS, GIB, NONE, peers

from pytest_gpucluster.config.models import NodeProfile
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node.kernel_log import KernelLog
from pytest_gpucluster.kit.node.os_config import MountConfig, OsConfig
from pytest_gpucluster.kit.node.peers import Peers, norm
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
from pytest_gpucluster.suites.os.network_facts import Naming, Network, NetworkInterface, ReachabilityResult
from pytest_gpucluster.suites.os.software_facts import (
    CommandOutput,
    read_failed_units,
    read_processes,
    read_system_state,
    read_time_sync,
)
from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder, read_disks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.core.check import Verdict

Row = tuple[str, str, str, str, "Callable[[], Verdict]"]
DAY = 86400.0
NOW = 1_795_500_000


# --- what a machine shows


def said(out: str, err: str = "", rc: int = 0) -> Answer:
    """Return a node's answer."""
    return Answer("n1", rc, out.encode(), err.encode())


def alone(value: object) -> Any:
    """Return the norm of the only node of a group."""
    return norm({"n1": value})


def memory(
    mine: float,
    usual: float | None = None,
    stated: float | None = None,
    *,
    smaller: bool = False,
    **parts: Any,
) -> Verdict:
    """Judge MemTotal in GiB; `usual`: of three other nodes.

    reserved: for a crash kernel; other, usual_other: on NUMA nodes without CPUs. missing: a module (name, GiB) that EDAC
    lists on the others only; complete: it lists the same modules on all.
    """
    module, size = parts.get("missing", ("mc0/dimm0 CPU0_DIMM_A1", 64))
    listed = {"mc0/dimm1 CPU0_DIMM_B1": 64 * GIB}
    whole = {**listed, module: size * GIB}
    edac = "missing" in parts or "complete" in parts
    own = facts.MemoryParts(
        int(parts.get("other", 0) * GIB),
        int(parts.get("reserved", 0) * GIB),
        (whole if "complete" in parts else listed) if edac else {},
    )
    theirs = facts.MemoryParts(int(parts.get("usual_other", 0) * GIB), 0, whole if edac else {})
    info = MemoryInfo(int(mine * GIB), 0, 0, 0, 0, 0)
    profile = NodeProfile(memory=None if stated is None else int(stated * GIB))
    others = {f"n{n}": MemoryInfo(int(usual * GIB), 0, 0, 0, 0, 0) for n in (2, 3, 4)} if usual else {}
    found = hardware.installed(Peers({"n1": info, **others}), {**dict.fromkeys(others, theirs), "n1": own})
    group: Any = SimpleNamespace(nodes="n[1-4]", names=("n1", *others))
    most = found.of(group, "total", hardware.PEER_MEMORY_TOLERANCE)
    return hardware.memory(
        info, profile, most, smaller, own, found.of(group, "dimms"), parts.get("cmdline", "")
    )


def log_start(since: float | None) -> Verdict:
    return kernel_log_start(KernelLog("dmesg", 900, since, None))


def lscpu(online: str, off: str = "", threads: int = 2, numa: str = "0-111", more: str = "") -> Cpus:
    text = f"Architecture: x86_64\nOn-line CPU(s) list: {online}\nThread(s) per core: {threads}\nModel name: Xeon\n"
    return read_cpus(
        text
        + (f"Off-line CPU(s) list: {off}\n" if off else "")
        + (more or f"NUMA node(s): 1\nNUMA node0 CPU(s): {numa}\n")
    )


def cpus(mine: Cpus, usual: Cpus | None = None, stated: int | None = None) -> Verdict:
    return hardware.cpus(mine, stated, peers(mine.online, usual.online) if usual else ALONE)


def numa(
    nodes: int, with_cpus: int, usual: tuple[int, int] | None = None, stated: int | None = None
) -> Verdict:
    """Judge the NUMA nodes of lscpu, of which the last ones have no CPU."""

    def grace(total: int, own: int) -> Cpus:
        rows = "".join(f"NUMA node{n} CPU(s): {f'{n}-{n}' if n < own else ''}\n" for n in range(total))
        return lscpu("0-71", more=f"NUMA node(s): {total}\n{rows}")

    mine = grace(nodes, with_cpus)
    return hardware.numa(mine, stated, peers(mine.cpu_nodes, grace(*usual).cpu_nodes) if usual else ALONE)


def mounted(text: str) -> Any:
    """Return /proc/mounts of a node with an ext4 root and these lines."""
    root = "" if " / " in text else "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n"
    return read_mounts(root + text)


def df(**free: tuple[float, float]) -> dict[str, Disk]:
    """Return {path: (size, free) in GiB} as disks; /, /tmp and /dev/shm have space by default."""
    found = {"/": (100.0, 50.0), "/tmp": (100.0, 50.0), "/dev/shm": (500.0, 490.0)}
    found |= {path.replace("_", "/"): of for path, of in free.items()}
    return {path: Disk(int(size * GIB), int(of * GIB), 1000, 900) for path, (size, of) in found.items()}


def space(
    text: str = "", config: OsConfig | None = None, writes: Mapping[str, str] | None = None, **free: Any
) -> Verdict:
    return disks.free_space(df(**free), mounted(text), config or OsConfig(), writes or {})


def inodes(rows: str) -> Verdict:
    """Judge /, /tmp, /dev/shm with rows of df: blocks that are free, inodes, inodes that are free."""
    found = [row.split() for row in rows.split(",")]
    lines = [f"x 100 0 {free} - /" for free, *_ in found] + [
        f"x {total} 0 {left} - /" for _, total, left in found
    ]
    return disks.inodes(read_disks(mounts.ALWAYS, "\n".join(lines)))


def ps(*samples: str) -> Verdict:
    """Judge samples of ps: lines `PID PPID STAT ETIMES USER COMM`."""
    return software.dstate(read_processes(said("".join(f"{one}\nprocesses 400\n" for one in samples))))


def zombies(text: str, most: int = 0) -> Verdict:
    return software.zombies(read_processes(said(f"{text}\nprocesses 400\n" * 3)), most)


def chrony(
    reference: str = "0A000001,10.0.0.1,3",
    age: float = 300,
    offset: float = 2e-5,
    dispersion: float = 4e-4,
    interval: float = 1029.8,
    leap: str = "Normal",
    uptime: float = DAY,
) -> Verdict:
    """Judge `chronyc -c tracking`."""
    line = f"{reference},{NOW - age:.6f},{offset:.9f},-0.00004,0.00005,2.286,-0.000,0.012,0.0127,{dispersion},{interval},{leap}\n"
    return timed(f"\x1echronyc\n{line}\x1e=0\n", uptime)


def timed(text: str, uptime: float = DAY) -> Verdict:
    answer = said(f"\x1enow\n{NOW}\n\x1e=0\n{text}")
    return state.time_sync(read_time_sync(answer), uptime)


GONE = "\x1echronyc\nsh: chronyc: not found\n\x1e=127\n\x1entpq\nsh: ntpq: not found\n\x1e=127\n"


def timedatectl(synchronised: str, uptime: float = DAY) -> Verdict:
    return timed(
        f"{GONE}\x1etimedatectl\nTimezone=UTC\nNTP=yes\nNTPSynchronized={synchronised}\n\x1e=0\n", uptime
    )


def ntpq(text: str) -> Verdict:
    return timed(f"\x1echronyc\n\x1e=127\n\x1entpq\n{text}\n\x1e=0\n")


HUNG = Disk(problem="no answer within 8 s", hung=True)


def response(
    path: str,
    line: str,
    disk: Disk,
    *,
    elsewhere: bool,
    stated: bool = True,
    uptime: float = DAY,
    later: Disk | None = None,
    stuck: int = 1,
) -> Verdict:
    responses = disks.Responses({path: 3} if elsewhere else {}, {path: stuck})
    again = {path: later or disk}
    return disks.mount_response(
        {path: disk}, mounted(line), (path,) if stated else (), responses, uptime, again
    )


def stated(line: str, disk: Disk | None = None, **wanted: Any) -> Verdict:
    """Judge a stated mount on /data."""
    return mounts.mounts(
        mounted(line), [MountConfig(path="/data", **wanted)], {"/data": disk} if disk else {}
    )


def writable(
    line: str, peers_writable: Any = None, writes: Mapping[str, str] | None = None, path: str = "/"
) -> Verdict:
    usual = {} if peers_writable is None else {path: peers(not peers_writable, peers_writable)}
    return mounts.root_writable(mounted(line), usual, writes or {})


def ids(mine: str, usual: str) -> Verdict:
    return state.user(facts.read_user(mine), peers(facts.read_user(mine), facts.read_user(usual)))


def units(text: str, stated: tuple[str, ...] = ()) -> Verdict:
    return software.failed_units(read_failed_units(said(text)), stated)


def systemd(out: str, err: str = "", rc: int = 0, *, usual: bool = True, uptime: float = DAY) -> Verdict:
    mine = read_system_state(said(out, err, rc))
    return software.systemd(mine, peers(mine.answers, usual), uptime)


def named(mine: str, usual: str, own: tuple[str, ...] = ()) -> Verdict:
    """Judge the addresses of the name gpu09; `own`: those of that node."""
    return network.name_resolution(
        {"gpu09": mine}, "n1", {"gpu09": peers(mine, usual)}, {"gpu09": Network({}, {"eno1": own})}
    )


def reach(**outcomes: str) -> Verdict:
    """Judge the attempts of n1 to n2 and n3."""
    own = {n: frozenset({f"10.0.0.{n[1]}"}) for n in ("n1", "n2", "n3", "n4")}
    good = {n: (ReachabilityResult(to, f"10.0.0.{to[1]}", "reached") for to in set(own) - {n}) for n in own}
    results = {n: tuple(of) for n, of in good.items()}
    results["n1"] = tuple(
        ReachabilityResult(to, f"10.0.0.{to[1]}", outcomes.get(to, "reached")) for to in ("n2", "n3")
    )
    return network.reachable("n1", network.Reachability(results, own))


def mtu(
    mine: tuple[str, int] | None,
    usual: tuple[str, int],
    stated: Mapping[str, int] | None = None,
    on: str = "eno1",
) -> Verdict:
    link = NetworkInterface(*mine) if mine else None
    return network.mtu(
        Network({on: link} if link else {}), {on: peers(link, NetworkInterface(*usual))}, stated or {}
    )


def addresses(having: Mapping[str, Mapping[str, bool]], nodes: int = 10) -> Verdict:
    return network.addresses("n1", network.Owners(having, nodes))


def skew(mine: float, others: tuple[float, ...], took: float = 0.0) -> Verdict:
    clocks = {"n1": Clock(mine, 0.0, took), **{f"n{n}": Clock(t, 0.0, 0.0) for n, t in enumerate(others, 2)}}
    return system.clock(clocks["n1"], system.CommonTime.of(clocks, 1.0), 1.0)


def tunables(mine: str, usual: str) -> Verdict:
    return settings.kernel_settings(mine, peers(mine, usual))


def lost(why: str, rc: int | None = None) -> Verdict:
    return state.responds(Answer("n1", rc, problem=why), why or None)


def load(one: float, cpus: int, uptime: float = DAY) -> Verdict:
    return state.load(Load(one, 0, 0), cpus, 1.0, uptime)


def read_services(service: str, socket: str) -> dict[str, str]:
    """Read `systemctl is-active ssh ssh.socket`."""
    return software_facts.services(["ssh"]).parse(said(f"{service}\n{socket}\n", rc=3))


def services(found: Mapping[str, str], uptime: float = DAY) -> Verdict:
    return software.services(found, tuple(found), uptime)


EL9 = "5.14.0-427.13.1.el9_4.x86_64"
NFS = "nas:/data /data nfs4 rw,relatime,vers=4.2,hard 0 0\n"
AUTOFS = "systemd-1 /data autofs rw,relatime,fd=58,pgrp=1,timeout=600,minproto=5,maxproto=5,direct 0 0\n"
SQUASHFS = "/dev/loop0 / squashfs ro,relatime 0 0\ntmpfs /tmp tmpfs rw,size=1048576k 0 0\n"
COMPOSEFS = "composefs / overlay ro,relatime,lowerdir+=/run/ostree/.private/cfsroot-lower 0 0\n"
WHOLE = lscpu("0-223")
ID = "uid=1000(ada) gid=1000(ada) groups=1000(ada),44(video)"

HEALTHY: tuple[Row, ...] = (
    # --- system
    ("os.hostname", "uname -n is a FQDN (RHEL)", "hostname(1)", PASSED, lambda: system.hostname("gpu01.cluster.site", "gpu01", "gpu01")),
    ("os.hostname", "NodeName is a FQDN, the host name is short", "slurm.conf(5), NodeName", PASSED, lambda: system.hostname("gpu01", "gpu01.cluster.site", "")),
    ("os.hostname", "several slurmd on one host, NodeHostname stated", "slurm.conf(5), --enable-multiple-slurmd", PASSED, lambda: system.hostname("host7", "gpu02", "host7")),
    ("os.hostname", "an AWS node: ip-10-0-1-7 with NodeHostName", "ParallelCluster", PASSED, lambda: system.hostname("ip-10-0-1-7.eu-west-1.compute.internal", "q1-st-p5-1", "ip-10-0-1-7")),
    ("os.release", "first updated node: 9.5 among 9.4", "rolling upgrade", WARNING, lambda: system.release("rhel 9.5", None, peers("rhel 9.5", "rhel 9.4"))),
    ("os.release", "stated in other case", "os-release(5)", PASSED, lambda: system.release("ubuntu 22.04", "Ubuntu 22.04", peers("ubuntu 22.04", "ubuntu 20.04"))),
    ("os.release", "a rolling release without a version", "Arch Linux os-release", PASSED, lambda: system.release("arch", None, peers("arch", "arch"))),
    ("os.release", "SLES 15.6 ahead of 15.5", "os-release of SLES", WARNING, lambda: system.release("sles 15.6", None, peers("sles 15.6", "sles 15.5"))),
    ("os.kernel", "first updated node", "rolling upgrade", WARNING, lambda: system.kernel("5.14.0-503.11.1.el9_5.x86_64", None, peers("5.14.0-503.11.1.el9_5.x86_64", EL9))),
    ("os.kernel", "Ubuntu with a newer ABI", "linux-image-6.8.0-60-generic", WARNING, lambda: system.kernel("6.8.0-60-generic", None, peers("6.8.0-60-generic", "6.8.0-45-generic"))),
    ("os.kernel", "a prefix is stated", "os.kernel", PASSED, lambda: system.kernel("6.8.0-1021-aws", "6.8.*", peers("6.8.0-1021-aws", "6.8.0-1018-aws"))),
    ("os.kernel", "NixOS, one node newer", "nixpkgs linux_6_6", WARNING, lambda: system.kernel("6.6.54", None, peers("6.6.54", "6.6.52"))),
    ("os.cmdline", "nosmt added on one node", "kernel-parameters.txt", WARNING, lambda: system.cmdline("nosmt quiet ro", peers("nosmt quiet ro", "quiet ro"))),
    ("os.cmdline", "a debug word added", "kernel-parameters.txt", WARNING, lambda: system.cmdline("debug quiet ro", peers("debug quiet ro", "quiet ro"))),
    ("os.cmdline", "the only node", "one node", NOT_APPLICABLE, lambda: system.cmdline("quiet ro", alone("quiet ro"))),
    ("os.architecture", "a Grace node among Grace nodes", "GH200", PASSED, lambda: system.architecture(replace(CPUS, architecture="aarch64"), peers("aarch64", "aarch64"))),
    ("os.architecture", "the only x86 login node of its group", "one node", NOT_APPLICABLE, lambda: system.architecture(CPUS, ALONE)),
    ("os.architecture", "a mixed partition: peers are of one architecture", "core/common_cause.py", NOT_APPLICABLE, lambda: system.architecture(CPUS, NONE)),
    ("os.uptime", "idle for 400 days, no bound stated", "long-lived node", NOT_APPLICABLE, lambda: system.uptime(400 * DAY, None, None)),
    ("os.uptime", "booted a minute ago, no bound stated", "scontrol reboot", NOT_APPLICABLE, lambda: system.uptime(60, None, None)),
    ("os.uptime", "at the lower bound", "os.min_uptime", PASSED, lambda: system.uptime(600, 600, None)),
    ("os.clock", "0.4 s off within 1 s", "chrony after a step", PASSED, lambda: skew(100.4, (100.0, 100.0))),
    ("os.clock", "a slow answer: the clock was read within 5 s", "loaded node", PASSED, lambda: skew(103.0, (100.0, 100.0), took=5.0)),
    ("os.clock", "the only node", "one node", NOT_APPLICABLE, lambda: system.clock(Clock(5.0), system.CommonTime.of({"n1": Clock(5.0)}, 1.0), 1.0)),
    # --- hardware
    ("os.memory", "more memory than the others", "mixed order of DIMMs", PASSED, lambda: memory(2015, 1007)),
    ("os.memory", "more memory than the profile states", "node with twice the DIMMs", WARNING, lambda: memory(2015, None, 1007)),
    ("os.memory", "crashkernel=1G on a VM of 64 GiB", "kdump.txt", PASSED, lambda: memory(61.5, 62.5, reserved=1)),
    ("os.memory", "crashkernel=4G on a node of 256 GiB", "kdump of a debug kernel", PASSED, lambda: memory(246.9, 250.9, reserved=4)),
    ("os.memory", "GH200 in CDMM among NUMA mode", "NVreg_CoherentGPUMemoryMode=driver, R580", PASSED, lambda: memory(473, 568, usual_other=95)),
    ("os.memory", "GH200 in NUMA mode, profile of 480 GiB", "GH200: HBM as a NUMA node", PASSED, lambda: memory(568, None, 480, other=95)),
    ("os.memory", "smaller on purpose, as slurm.conf states", "RealMemory", CONFIGURE, lambda: memory(500, 1000, smaller=True)),
    ("os.memory", "mem=512G for a test, others 2 TiB", "kernel-parameters.txt", CONFIGURE, lambda: memory(503, 2015, cmdline="mem=512G quiet")),
    ("os.memory", "page_owner=on takes 0.8%, all DIMMs there", "mm/page_owner.rst", PASSED, lambda: memory(2000, 2016)),
    ("os.cpus", "nosmt on one node: all cores online", "l1tf.rst, nosmt", WARNING, lambda: cpus(lscpu("0-111", "112-223", 1), WHOLE)),
    ("os.cpus", "SMT off in the firmware of one node", "BIOS Logical Processor", WARNING, lambda: cpus(lscpu("0-111", "", 1), WHOLE)),
    ("os.cpus", "nosmt, the only node", "echo off > smt/control", WARNING, lambda: cpus(lscpu("0-111", "112-223", 1))),
    ("os.cpus", "more CPUs than the others", "newer processors", PASSED, lambda: cpus(WHOLE, lscpu("0-191"))),
    ("os.cpus", "profile counts threads, SMT is off", "site policy", WARNING, lambda: cpus(lscpu("0-111", "", 1), None, 224)),
    ("os.cpu_model", "alike", "one order", PASSED, lambda: hardware.cpu_model(CPUS, peers("EPYC", "EPYC"))),
    ("os.cpu_model", "a VM whose twins are VMs", "kvm", PASSED, lambda: hardware.cpu_model(Cpus(8, "", 1, "1", "1", "EPYC", "x86_64"), peers("EPYC", "EPYC"))),
    ("os.cpu_model", "the only node", "one node", NOT_APPLICABLE, lambda: hardware.cpu_model(CPUS, ALONE)),
    ("os.numa", "GH200 in NUMA mode, stated with CPUs only", "lscpu of a GH200: 9 nodes, 1 with CPUs", PASSED, lambda: numa(9, 1, None, 1)),
    ("os.numa", "GH200 in CDMM among NUMA mode", "NVreg_CoherentGPUMemoryMode=driver", PASSED, lambda: numa(1, 1, (9, 1))),
    ("os.numa", "a CXL expander as a node without CPUs", "Documentation/driver-api/cxl", PASSED, lambda: numa(3, 2, (2, 2))),
    ("os.numa", "GB200 with 34 nodes, as the profile states", "lscpu of a GB200", PASSED, lambda: numa(34, 2, None, 34)),
    ("os.governor", "performance among schedutil", "cpufreq", WARNING, lambda: hardware.governor({"performance": 8}, None, peers({"performance": 8}, {"schedutil": 8}))),
    ("os.governor", "performance on all of fewer CPUs (nosmt)", "cpufreq of online CPUs", PASSED, lambda: hardware.governor({"performance": 4}, None, peers({"performance": 4}, {"performance": 8}))),
    ("os.governor", "VM without frequency scaling", "kvm guest", NOT_APPLICABLE, lambda: hardware.governor({}, None, peers({}, {}))),
    ("os.governor", "ondemand among schedutil", "kernel default changed", WARNING, lambda: hardware.governor({"ondemand": 8}, None, peers({"ondemand": 8}, {"schedutil": 8}))),
    ("os.hugepages", "surplus huge pages for a DPDK job", "vm.nr_hugepages", WARNING, lambda: hardware.hugepages(MemoryInfo(0, 0, 0, 0, 1024, 0), None, peers(1024, 0))),
    ("os.hugepages", "more than the others", "vm.nr_hugepages", WARNING, lambda: hardware.hugepages(MemoryInfo(0, 0, 0, 0, 4096, 0), None, peers(4096, 2048))),
    ("os.hugepages", "the only node", "one node", NOT_APPLICABLE, lambda: hardware.hugepages(MemoryInfo(0, 0, 0, 0, 0, 0), None, ALONE)),
    ("os.transparent_hugepages", "alike", "image", PASSED, lambda: hardware.transparent_hugepages("madvise", peers("madvise", "madvise"))),
    ("os.transparent_hugepages", "kernel without huge pages everywhere", "CONFIG_TRANSPARENT_HUGEPAGE", PASSED, lambda: hardware.transparent_hugepages("none", peers("none", "none"))),
    ("os.transparent_hugepages", "the only node", "one node", NOT_APPLICABLE, lambda: hardware.transparent_hugepages("always", ALONE)),
    ("os.swap", "a swap partition of another size", "disks of two orders", PASSED, lambda: hardware.swap(MemoryInfo(0, 0, 8 << 30, 8 << 30, 0, 0), peers(8 << 30, 4 << 30))),
    ("os.swap", "zram of half the memory, DIMMs differ by pages", "zram-generator", PASSED, lambda: hardware.swap(MemoryInfo(0, 0, 8589930496, 0, 0, 0), peers(8589930496, 8589934592))),
    ("os.swap", "no swap anywhere", "cloud image", PASSED, lambda: hardware.swap(MemoryInfo(0, 0, 0, 0, 0, 0), peers(0, 0))),
    # --- settings
    ("os.security_modules", "alike", "image", PASSED, lambda: settings.security_modules("lockdown,capability,yama", peers("lockdown,capability,yama", "lockdown,capability,yama"))),
    ("os.security_modules", "a container without securityfs everywhere", "soperator", PASSED, lambda: settings.security_modules("none", peers("none", "none"))),
    ("os.security_modules", "first updated node has no twin", "landlock since 5.13", NOT_APPLICABLE, lambda: settings.security_modules("lockdown,capability,landlock,yama", ALONE)),
    ("os.kernel_settings", "a larger pid_max", "systemd's 50-pid-max.conf", WARNING, lambda: tunables("kernel.pid_max=4194304 vm.swappiness=60", "kernel.pid_max=229376 vm.swappiness=60")),
    ("os.kernel_settings", "a larger max_map_count", "Ubuntu 24.04: 1048576", WARNING, lambda: tunables("vm.max_map_count=1048576", "vm.max_map_count=65530")),
    ("os.kernel_settings", "alike", "image", PASSED, lambda: tunables("vm.swappiness=10", "vm.swappiness=10")),
    ("os.limits", "higher limits than the others", "limits.conf", PASSED, lambda: settings.limits({"Max locked memory": float("inf")}, {}, {"memlock": peers(float("inf"), 65536.0)})),
    ("os.limits", "more open files than stated", "LimitNOFILE", PASSED, lambda: settings.limits({"Max open files": 1048576.0}, {"nofile": 65536.0})),
    ("os.limits", "the only node, none stated", "one node", NOT_APPLICABLE, lambda: settings.limits({"Max open files": 1024.0}, {}, {"nofile": ALONE})),
    # --- mounts
    ("os.mounts", "an idle systemd automount", "systemd.automount(5)", PASSED, lambda: stated(AUTOFS, Disk(9 * GIB, GIB, source="nas:/data"), fstype="nfs4", source="nas:/data")),
    ("os.mounts", "NFS over an automount", "/proc/mounts has both", PASSED, lambda: stated(AUTOFS + NFS, fstype="nfs4", source="nas:/data")),
    ("os.mounts", "nfs stated, mounted as nfs4", "nfs(5)", PASSED, lambda: stated(NFS, fstype="nfs")),
    ("os.mounts", "autofs of automount(8), mounted by df", "autofs(5)", PASSED, lambda: stated("/etc/auto.data /data autofs rw,fd=7,direct 0 0\n", Disk(9 * GIB, GIB, source="nas:/data"), source="nas:/data/")),
    ("os.mounts", "a source with a slash at its end", "fstab", PASSED, lambda: stated("nas:/data/ /data nfs4 rw 0 0\n", source="nas:/data")),
    ("os.root_writable", "a squashfs image, the only node", "Warewulf, live image", NOT_CHECKED, lambda: writable(SQUASHFS)),
    ("os.root_writable", "ostree with composefs as all nodes", "RHEL image mode", WARNING, lambda: writable(COMPOSEFS, False)),
    ("os.root_writable", "root on tmpfs", "Warewulf diskless", PASSED, lambda: writable("none / tmpfs rw,size=50% 0 0\n")),
    ("os.root_writable", "an ext4 data disk read-only by an operator, others rw", "mount -o remount,ro; Ubuntu's errors=remount-ro", CONFIGURE, lambda: writable("/dev/sdb1 /srv ext4 ro,relatime,errors=remount-ro 0 0\n", True, path="/srv")),
    ("os.root_writable", "/tmp is full", "ENOSPC", PASSED, lambda: writable("", None, {"/tmp": "head: write error: No space left on device"})),
    ("os.scratch", "a larger /tmp", "tmpfs size=", PASSED, lambda: scratch(("", "1048576k"), ("", "524288k"))),
    ("os.scratch", "/dev/shm differs by some pages", "half of the memory", PASSED, lambda: scratch(("", "1048000k"), ("", "1048576k"))),
    ("os.scratch", "noexec on /dev/shm, others exec", "CIS benchmark", WARNING, lambda: scratch(("noexec", "1048576k"), ("", "1048576k"))),
    # --- state
    ("os.load", "idle", "uptime(1)", PASSED, lambda: load(0.3, 224)),
    ("os.load", "booted two minutes ago: services start", "systemd-analyze", NOT_CHECKED, lambda: load(19, 16, uptime=120)),
    ("os.load", "as many runnable tasks as CPUs", "proc_loadavg(5)", PASSED, lambda: load(224, 224)),
    ("os.taint", "NVIDIA's driver", "tainted-kernels.rst: P, O, E", PASSED, lambda: state.taint(1 | 1 << 12 | 1 << 13)),
    ("os.taint", "a VM whose host was busy: soft lockup", "bit L", WARNING, lambda: state.taint(1 << 14)),
    ("os.taint", "a warning of a driver and a live patch", "bits W and K", PASSED, lambda: state.taint(1 << 9 | 1 << 15)),
    ("os.taint", "firmware bug worked around, out of spec", "bits I and S", PASSED, lambda: state.taint(1 << 11 | 1 << 2)),
    ("os.user", "another gid of a local system group", "render 109 or 992, allocated at installation", WARNING, lambda: ids(ID.replace("44(video)", "39(video)"), ID)),
    ("os.user", "a further group", "docker installed on one node", WARNING, lambda: ids(f"{ID},998(docker)", ID)),
    ("os.user", "SELinux context at the end", "id(1)", WARNING, lambda: ids(f"{ID} context=unconfined_u:unconfined_r:unconfined_t:s0", ID)),
    ("os.shared_storage", "the user may not write there", "EACCES", NOT_CHECKED, lambda: disks.shared_storage({"/s": SharedFolder("n1", "sh: cannot create: Permission denied")}, "n1")),
    ("os.shared_storage", "none stated", "cluster file", NOT_APPLICABLE, lambda: disks.shared_storage({}, "n1")),
    ("os.shared_storage", "the writer is full, seen from another node", "ENOSPC", NOT_CHECKED, lambda: disks.shared_storage({"/s": SharedFolder("n1", "No space left on device")}, "n2")),
    ("os.responds", "the site's TaskProlog fails", "slurm.conf(5)", CONFIGURE, lambda: lost("slurmstepd: error: TaskProlog failed status=1")),
    ("os.responds", "the agent was killed for memory", "oom-killer", MONITOR, lambda: lost("its agent's task ended: signal 9")),
    ("os.responds", "a wrapper ends true with 1", "profile script", MONITOR, lambda: state.responds(Answer("n1", 1))),
    ("os.time_sync", "chrony polls every 4.5 hours", "balenaOS: minpoll 14", PASSED, lambda: chrony(age=16000, interval=16384)),
    ("os.time_sync", "PTP clock through chrony", "refclock PHC", PASSED, lambda: chrony("50485030,PHC0,1", age=2, interval=4.0)),
    ("os.time_sync", "timesyncd", "timedatectl show", PASSED, lambda: timedatectl("yes")),
    ("os.time_sync", "timesyncd, booted 40 s ago", "first poll", NOT_CHECKED, lambda: timedatectl("no", uptime=40)),
    ("os.time_sync", "chrony, booted 40 s ago", "iburst", NOT_CHECKED, lambda: chrony("7F7F0101,,0", age=NOW, leap="Not synchronised", uptime=40)),
    ("os.time_sync", "ntpd", "ntpq -c rv", PASSED, lambda: ntpq("associd=0 status=0615 leap_none, sync_ntp, 1 event, clock_sync,\nstratum=3, rootdelay=1.2, rootdisp=24.5, offset=-0.21")),
    ("os.sysctls", "as stated, other blanks", "net.ipv4.tcp_rmem", PASSED, lambda: state.sysctls({"a": "4096 131072 6291456"}, {"a": "4096\t131072\t6291456"})),
    ("os.sysctls", "none stated", "cluster file", NOT_APPLICABLE, lambda: state.sysctls({}, {})),
    ("os.sysctls", "the value of the distribution is stated", "sysctl.d", PASSED, lambda: state.sysctls({"vm.swappiness": "60"}, {"vm.swappiness": "60"})),
    # --- disks
    ("os.mount_response", "root_squash: no permission for the user anywhere", "exports(5)", NOT_CHECKED, lambda: response("/data", NFS, Disk(problem="df: /data: Permission denied"), elsewhere=False)),
    ("os.mount_response", "an unmounted path of a stated mount is not there", "os.mounts judges it", PASSED, lambda: response("/data", "", Disk(problem="df: /data: No such file or directory"), elsewhere=True)),
    ("os.mount_response", "a sshfs of a user, hidden by permission", "fuse.sshfs", PASSED, lambda: response("/home/ada/m", "x /home/ada/m fuse.sshfs rw 0 0\n", Disk(problem="df: Permission denied"), elsewhere=False, stated=False)),
    ("os.mount_response", "the file server is down for all nodes", "server reboots", CONFIGURE, lambda: response("/data", NFS, Disk(problem="no answer within 8 s", hung=True), elsewhere=False)),
    ("os.mount_response", "a busy server answers at the second reading", "backup window", WARNING, lambda: response("/data", NFS, HUNG, elsewhere=True, later=Disk(9, 9))),
    ("os.mount_response", "one of two servers fails over, and two nodes of many wait", "Lustre OST failover", CONFIGURE, lambda: response("/data", NFS, HUNG, elsewhere=True, stuck=2)),
    ("os.mount_response", "booted a minute ago: the mount still starts", "remote-fs.target", NOT_CHECKED, lambda: response("/data", NFS, Disk(problem="no answer within 8 s", hung=True), elsewhere=True, uptime=60)),
    ("os.free_space", "an empty /tmp of 1 GiB", "tmp.mount size=1G", PASSED, lambda: space("tmpfs /tmp tmpfs rw,size=1048576k 0 0\n", _tmp=(1.0, 0.999))),
    ("os.free_space", "a squashfs root has no free space", "df of a read-only image", PASSED, lambda: space(SQUASHFS, _=(1.2, 0.0), _tmp=(1.0, 0.999))),
    ("os.free_space", "composefs root of 6 MiB", "df of RHEL image mode", PASSED, lambda: space(COMPOSEFS, _=(0.006, 0.0), _tmp=(60.0, 50.0))),
    ("os.free_space", "a diskless root on tmpfs of 4 GiB, 0.9 free", "Warewulf", PASSED, lambda: space("none / tmpfs rw 0 0\n", _=(4.0, 0.9), _tmp=(4.0, 0.9))),
    ("os.free_space", "/dev/shm of 64 MiB", "docker run", PASSED, lambda: space("", _dev_shm=(0.0625, 0.0625))),
    ("os.inodes", "a squashfs root: all inodes are used", "df -i", PASSED, lambda: inodes("0 45210 0,50 1000 900,50 1000 900")),
    ("os.inodes", "btrfs counts none", "df -i shows 0", NOT_APPLICABLE, lambda: inodes("50 0 0,50 0 0,50 0 0")),
    ("os.inodes", "erofs and tmpfs", "df -i of erofs", PASSED, lambda: inodes("0 3100 0,50 1000 900,50 1000 900")),
    # --- software
    ("os.zombies", "a child that its parent reaps between samples", "ps", PASSED, lambda: software.zombies(read_processes(said("7 3 Z 0 root sh\nprocesses 400\nprocesses 400\nprocesses 400\n")), 0)),
    ("os.zombies", "a container without an init, two accepted", "os.max_zombies", PASSED, lambda: zombies("7 3 Z 900 root sh\n8 3 Z 900 root sh", 2)),
    ("os.zombies", "none", "ps", PASSED, lambda: zombies("9 3 D 900 root dd")),
    ("os.dstate", "md resyncs an array", "md_do_sync of md0_resync", PASSED, lambda: ps(*["812 2 D 7000 root md0_resync"] * 3)),
    ("os.dstate", "ZFS autotrim at work", "vdev_autotrim", PASSED, lambda: ps(*["913 2 D 7000 root vdev_autotrim"] * 3)),
    ("os.dstate", "fstrim at work: it was woken between samples", "FITRIM", PASSED, lambda: ps("@100 77 1 D 900 root fstrim", "@180 77 1 D 901 root fstrim", "@260 77 1 D 902 root fstrim")),
    ("os.dstate", "a process writes a checkpoint and gets on", "check_hung_task: switch count", PASSED, lambda: ps("@5000 78 1 D 900 ada dd", "@5200 78 1 D 901 ada dd", "@5300 78 1 D 902 ada dd")),
    ("os.dstate", "mkfs of a large disk began a minute ago", "hung_task_timeout_secs=120", PASSED, lambda: ps(*["@7 79 1 D 60 root mkfs.ext4"] * 3)),
    ("os.dstate", "a kernel thread of a driver that always waits so", "jbd2, txg_sync, kworker", PASSED, lambda: ps(*["1020 2 D< 900000 root txg_sync"] * 3)),
    ("os.packages", "an epoch before the version", "dpkg", PASSED, lambda: software.packages({"docker": "5:27.3.1-1"}, {"docker": "27.3"})),
    ("os.packages", "a longer version than stated", "rpm", PASSED, lambda: software.packages({"kernel": "5.14.0-427.el9"}, {"kernel": "5.14.0"})),
    ("os.packages", "none stated", "cluster file", NOT_APPLICABLE, lambda: software.packages({}, {})),
    ("os.services", "reloading", "systemctl(1) is-active", PASSED, lambda: services({"chrony": "reloading"})),
    ("os.services", "activating, booted a minute ago", "systemd", NOT_CHECKED, lambda: services({"slurmd": "activating"}, uptime=60)),
    ("os.services", "ssh.service starts with its socket", "Ubuntu 22.10: ssh.socket", PASSED, lambda: services(read_services("inactive", "active"))),
    ("os.failed_units", "the session of a user failed", "user@1001.service after the oom-killer", PASSED, lambda: units("user@1001.service loaded failed failed User Manager for UID 1001\n")),
    ("os.failed_units", "a transient unit of systemd-run", "run-rbc3e.scope", PASSED, lambda: units("run-rbc3e.scope loaded failed failed /usr/bin/python3\n")),
    ("os.failed_units", "a stated service is judged elsewhere", "os.services", PASSED, lambda: units("chrony.service loaded failed failed NTP\n", ("chrony",))),
    ("os.systemd", "degraded", "systemctl is-system-running", PASSED, lambda: systemd("degraded\n", rc=1)),
    ("os.systemd", "a container without systemd", "soperator", NOT_APPLICABLE, lambda: systemd("", "System has not been booted with systemd as init system (PID 1). Can't operate.", 1)),
    ("os.systemd", "D-Bus was restarted and refuses; systemd itself works", "systemctl as a user", MONITOR, lambda: systemd("", "Failed to connect to bus: Connection refused", 1)),
    ("os.systemd", "booted a minute ago and still starting units", "systemd", PASSED, lambda: systemd("starting\n", rc=1, uptime=60)),
    ("os.systemd", "no answer yet, booted a minute ago", "systemd", NOT_CHECKED, lambda: systemd("", "", 124, uptime=60)),
    ("os.systemd", "shutting down for scontrol reboot", "systemd", NOT_CHECKED, lambda: systemd("stopping\n", rc=1)),
    ("os.drift", "alike", "cluster file", PASSED, lambda: software.drift({"c": CommandOutput("a", 0)}, {"c": peers(CommandOutput("a", 0), CommandOutput("a", 0))})),
    ("os.drift", "no command stated", "cluster file", NOT_APPLICABLE, lambda: software.drift({}, {})),
    ("os.drift", "the only node", "one node", NOT_APPLICABLE, lambda: software.drift({"c": CommandOutput("a", 0)}, {"c": ALONE})),
    ("os.kernel_log_start", "a log since boot", "dmesg", PASSED, lambda: log_start(0.0)),
    ("os.kernel_log_start", "a virtual machine whose first line has a later time", "kvm-clock", PASSED, lambda: log_start(2.5)),
    ("os.kernel_log_start", "up for a year: the ring buffer is full", "CONFIG_LOG_BUF_SHIFT", NOT_CHECKED, lambda: log_start(31_000_000.0)),
    ("os.kernel_log_start", "a kernel that writes no times", "printk.time=0", NOT_CHECKED, lambda: log_start(None)),
    # --- network
    ("os.name_resolution", "/etc/hosts names its InfiniBand address, DNS its Ethernet", "nsswitch: files dns", PASSED, lambda: named("10.1.0.9", "10.0.0.9", ("10.0.0.9", "10.1.0.9"))),
    ("os.name_resolution", "IPv6 first", "getent hosts", PASSED, lambda: named("2001:db8::9", "10.0.0.9", ("10.0.0.9", "2001:db8::9"))),
    ("os.name_resolution", "no name resolves anywhere", "Slurm uses NodeAddr", NOT_APPLICABLE, lambda: named("", "")),
    ("os.name_time", "files", "/etc/hosts", PASSED, lambda: network.name_time(Naming(0.01), 0.01)),
    ("os.name_time", "a loaded cluster: all are slow", "SSSD", PASSED, lambda: network.name_time(Naming(3.0), 2.0)),
    ("os.name_time", "a first LDAP query of 1.8 s", "SSSD without a cache", PASSED, lambda: network.name_time(Naming(1.8), 0.1)),
    ("os.reachable", "both neighbours refuse the connection", "no listener", PASSED, reach),
    ("os.reachable", "the only node under test", "no neighbour", NOT_APPLICABLE, lambda: network.reachable("n1", network.Reachability({"n1": ()}, {}))),
    ("os.reachable", "one neighbour is down for all", "n2 hangs", PASSED, lambda: dead_neighbour()),
    ("os.mtu", "docker0 has another MTU", "bridge", NOT_APPLICABLE, lambda: network.mtu(Network({"docker0": NetworkInterface("ether", 1450)}), {}, {})),
    ("os.mtu", "another kind of link with this name", "ib0 in Ethernet mode", NOT_APPLICABLE, lambda: mtu(("ether", 9000), ("infiniband", 4092), on="ib0")),
    ("os.mtu", "alike", "netplan", PASSED, lambda: mtu(("ether", 9000), ("ether", 9000))),
    ("os.addresses", "the same link-local address of each BMC", "169.254.3.1 of usb0", PASSED, lambda: addresses({"169.254.3.1": {}})),
    ("os.addresses", "a virtual address that most nodes have", "kube-vip, usb0 with 192.168", PASSED, lambda: addresses({"192.168.0.2": {f"n{n}": False for n in range(1, 8)}})),
    ("os.addresses", "own addresses", "DHCP", PASSED, lambda: addresses({"10.0.0.1": {"n1": True}, "10.0.0.2": {"n2": True}})),
)  # fmt: skip

SICK: tuple[Row, ...] = (
    ("os.hostname", "cloned under another name", "hostnamectl", CONFIGURE, lambda: system.hostname("gpu02", "gpu01", "gpu01")),
    ("os.release", "missed the upgrade", "reinstallation", CONFIGURE, lambda: system.release("rhel 9.2", None, peers("rhel 9.2", "rhel 9.4"))),
    ("os.release", "another distribution", "wrong image", CONFIGURE, lambda: system.release("debian 12", None, peers("debian 12", "ubuntu 22.04"))),
    ("os.kernel", "not rebooted since the update", "needs-restarting", CONFIGURE, lambda: system.kernel(EL9, None, peers(EL9, "5.14.0-503.11.1.el9_5.x86_64"))),
    ("os.kernel", "another flavour", "linux-image-generic instead of -nvidia", CONFIGURE, lambda: system.kernel("6.8.0-60-generic", None, peers("6.8.0-60-generic", "6.8.0-1015-nvidia"))),
    ("os.cmdline", "iommu=pt is missing", "boot loader", CONFIGURE, lambda: system.cmdline("quiet", peers("quiet", "iommu=pt quiet"))),
    ("os.cmdline", "a value differs", "iommu=on instead of pt", CONFIGURE, lambda: system.cmdline("iommu=on quiet", peers("iommu=on quiet", "iommu=pt quiet"))),
    ("os.architecture", "in the wrong group", "cluster file", CONFIGURE, lambda: system.architecture(CPUS, peers("x86_64", "aarch64"))),
    ("os.uptime", "rebooted by its watchdog", "os.min_uptime", MONITOR, lambda: system.uptime(95, 600, None)),
    ("os.clock", "90 s ahead", "no time service", CONFIGURE, lambda: skew(190.0, (100.0, 100.0))),
    ("os.memory", "one rank of 32 GiB in 4 TiB missing, EDAC names it", "0.8%", VENDOR, lambda: memory(4001, 4033, missing=("mc3/rank7", 32))),
    ("os.memory", "one DIMM of 64 missing, EDAC names it", "1/64 = 1.6%", VENDOR, lambda: memory(3970, 4033, missing=("CPU1_DIMM_A1", 64))),
    ("os.memory", "one DIMM of 64 missing, no EDAC driver", "1/64 = 1.6%", VENDOR, lambda: memory(3970, 4033)),
    ("os.memory", "one DIMM of 16 missing", "reseat", VENDOR, lambda: memory(945, 1008)),
    ("os.memory", "one DIMM missing, below the profile too", "reseat", VENDOR, lambda: memory(756, 1008, 1024)),
    ("os.memory", "less memory, but EDAC lists all DIMMs", "hidden by the firmware or the kernel", CONFIGURE, lambda: memory(900, 1008, complete=True)),
    ("os.cpus", "two cores offline", "chcpu", CONFIGURE, lambda: cpus(lscpu("0-109,112-221", "110-111,222-223"), WHOLE)),
    ("os.cpus", "a socket is missing", "lscpu", CONFIGURE, lambda: cpus(lscpu("0-111"), WHOLE)),
    ("os.cpus", "SMT off and a core missing", "lscpu", CONFIGURE, lambda: cpus(lscpu("0-109", "110-223", 1), WHOLE)),
    ("os.cpu_model", "other processors", "wrong node", CONFIGURE, lambda: hardware.cpu_model(CPUS, peers("EPYC", "Xeon"))),
    ("os.numa", "NPS1 among NPS4", "firmware", CONFIGURE, lambda: numa(2, 2, (8, 8))),
    ("os.governor", "powersave among performance", "tuned off", CONFIGURE, lambda: hardware.governor({"powersave": 8}, None, peers({"powersave": 8}, {"performance": 8}))),
    ("os.governor", "one CPU in powersave", "hotplug", CONFIGURE, lambda: hardware.governor({"performance": 7, "powersave": 1}, None, peers({"performance": 7, "powersave": 1}, {"performance": 8}))),
    ("os.hugepages", "fewer than the others", "fragmented memory", CONFIGURE, lambda: hardware.hugepages(MemoryInfo(0, 0, 0, 0, 100, 0), None, peers(100, 1024))),
    ("os.transparent_hugepages", "never among always", "set by hand", CONFIGURE, lambda: hardware.transparent_hugepages("never", peers("never", "always"))),
    ("os.swap", "switched on here only", "swapon", CONFIGURE, lambda: hardware.swap(MemoryInfo(0, 0, 8 << 30, 8 << 30, 0, 0), peers(8 << 30, 0))),
    ("os.security_modules", "SELinux off here only", "selinux=0", CONFIGURE, lambda: settings.security_modules("capability", peers("capability", "capability,selinux"))),
    ("os.kernel_settings", "overcommit switched off here", "vm.overcommit_memory=2", CONFIGURE, lambda: tunables("vm.overcommit_memory=2", "vm.overcommit_memory=0")),
    ("os.kernel_settings", "a lower pid_max", "sysctl", CONFIGURE, lambda: tunables("kernel.pid_max=32768", "kernel.pid_max=4194304")),
    ("os.limits", "memlock of 64 KiB", "slurmd without LimitMEMLOCK", CONFIGURE, lambda: settings.limits({"Max locked memory": 65536.0}, {}, {"memlock": peers(65536.0, float("inf"))})),
    ("os.mounts", "not mounted", "server down at boot", CONFIGURE, lambda: stated("")),
    ("os.mounts", "an automount that does not mount", "server gone", CONFIGURE, lambda: stated(AUTOFS, Disk(problem="df: /data: No such device"), fstype="nfs4")),
    ("os.mounts", "an automount of another server", "wrong map", CONFIGURE, lambda: stated(AUTOFS, Disk(9, 9, source="old:/data"), source="nas:/data")),
    ("os.root_writable", "ext4 went read-only after an error", "emergency_ro", DRAIN, lambda: writable("/dev/sda2 / ext4 rw,relatime,emergency_ro 0 0\n")),
    ("os.root_writable", "root remounted read-only, others rw", "errors=remount-ro", DRAIN, lambda: writable("/dev/sda2 / ext4 ro,relatime,errors=remount-ro 0 0\n", True)),
    ("os.root_writable", "/tmp gives I/O errors", "EIO", DRAIN, lambda: writable("", None, {"/tmp": "mktemp: Input/output error"})),
    ("os.scratch", "/dev/shm of 64 MiB among 500 GiB", "tmpfs size=", CONFIGURE, lambda: scratch(("", "65536k"), ("", "524288000k"))),
    ("os.load", "a runaway daemon", "top", MONITOR, lambda: load(500, 224)),
    ("os.taint", "machine check", "bit M", REBOOT, lambda: state.taint(1 << 4)),
    ("os.taint", "oops", "bit D", REBOOT, lambda: state.taint(1 << 7)),
    ("os.user", "the directory does not answer: no names", "SSSD offline", CONFIGURE, lambda: ids("uid=1000 gid=1000 groups=1000", ID)),
    ("os.user", "another uid", "local account", CONFIGURE, lambda: ids(ID.replace("uid=1000", "uid=1001"), ID)),
    ("os.user", "a group is missing", "LDAP", CONFIGURE, lambda: ids(ID.replace(",44(video)", ""), ID)),
    ("os.shared_storage", "not mounted here", "cat: No such file", CONFIGURE, lambda: disks.shared_storage({"/s": SharedFolder("n1", "", "cat: /s/.x: No such file or directory")}, "n2")),
    ("os.responds", "dead", "power", REBOOT, lambda: lost("no answer for 120 s")),
    ("os.time_sync", "chrony lost its servers ten days ago and shows Normal", "Ref time", CONFIGURE, lambda: chrony(age=10 * DAY)),
    ("os.time_sync", "not synchronised", "chronyc", CONFIGURE, lambda: chrony("7F7F0101,,0", age=NOW, leap="Not synchronised")),
    ("os.time_sync", "2 s off", "offset", CONFIGURE, lambda: chrony(offset=2.0)),
    ("os.time_sync", "ntpd lost its servers: 15 ppm in ten days", "rootdisp in ms", CONFIGURE, lambda: ntpq("associd=0 status=0615 leap_none, sync_ntp,\nstratum=3, rootdelay=1.2, rootdisp=12960.5, offset=-0.21")),
    ("os.sysctls", "another value", "sysctl", CONFIGURE, lambda: state.sysctls({"a": "1"}, {"a": "0"})),
    ("os.mount_response", "its own client hangs", "another node answers", REBOOT, lambda: response("/data", NFS, Disk(problem="no answer within 8 s", hung=True), elsewhere=True)),
    ("os.mount_response", "its own disk hangs", "a path inside the node", REBOOT, lambda: response("/data", "/dev/sdb1 /data xfs rw 0 0\n", HUNG, elsewhere=False)),
    ("os.mount_response", "a stale handle", "ESTALE", REBOOT, lambda: response("/data", NFS, Disk(problem="df: /data: Stale file handle"), elsewhere=True)),
    ("os.free_space", "root is full", "df", CONFIGURE, lambda: space(_=(100.0, 0.2))),
    ("os.free_space", "a small /tmp is full", "df", CONFIGURE, lambda: space("tmpfs /tmp tmpfs rw,size=1048576k 0 0\n", _tmp=(1.0, 0.05))),
    ("os.inodes", "no inodes left on ext4", "df -i", CONFIGURE, lambda: inodes("50 6553600 100,50 6553600 100,50 1000 900")),
    ("os.zombies", "a daemon does not reap", "ps", MONITOR, lambda: zombies("7 3 Z 900 root sh")),
    ("os.dstate", "a process hangs in a dead mount for two hours", "no switch between samples", MONITOR, lambda: ps(*["@40 80 1 D 7200 ada dd"] * 3)),
    ("os.dstate", "its switch count is not readable", "hidepid", MONITOR, lambda: ps(*["81 1 D 7200 ada dd"] * 3)),
    ("os.kernel_log_start", "a flood of lines hid the boot", "AER", NOT_CHECKED, lambda: log_start(86_400.0)),
    ("os.packages", "not installed", "dpkg", CONFIGURE, lambda: software.packages({"a": ""}, {"a": ""})),
    ("os.services", "inactive, without a socket", "systemctl", CONFIGURE, lambda: services(read_services("inactive", "inactive"))),
    ("os.services", "failed, its socket listens", "systemctl", CONFIGURE, lambda: services(read_services("failed", "active"))),
    ("os.services", "dead", "systemctl", CONFIGURE, lambda: services({"munge": "failed"})),
    ("os.services", "failed, booted a minute ago", "systemctl", CONFIGURE, lambda: services({"munge": "failed"}, uptime=60)),
    ("os.failed_units", "kdump failed", "systemctl --failed", MONITOR, lambda: units("kdump.service loaded failed failed Crash recovery\n")),
    ("os.systemd", "does not answer within 10 s", "timeout(1)", REBOOT, lambda: systemd("", "", 124)),
    ("os.systemd", "rescue mode", "maintenance", MONITOR, lambda: systemd("maintenance\n", rc=1)),
    ("os.drift", "changed by hand", "cluster file", CONFIGURE, lambda: software.drift({"c": CommandOutput("a", 0)}, {"c": peers(CommandOutput("a", 0), CommandOutput("b", 0))})),
    ("os.name_resolution", "does not resolve here", "DNS", CONFIGURE, lambda: named("", "10.0.0.9", ("10.0.0.9",))),
    ("os.name_resolution", "an address of nobody", "old /etc/hosts", CONFIGURE, lambda: named("10.9.9.9", "10.0.0.9", ("10.0.0.9",))),
    ("os.name_time", "the first server is dead", "resolv.conf", CONFIGURE, lambda: network.name_time(Naming(5.0), 0.01)),
    ("os.reachable", "its firewall drops", "nftables", CONFIGURE, lambda: reach(n2="no answer within 5 s", n3="no answer within 5 s")),
    ("os.mtu", "1500 among 9000", "netplan", CONFIGURE, lambda: mtu(("ether", 1500), ("ether", 9000))),
    ("os.addresses", "cloned", "two nodes, one address", CONFIGURE, lambda: addresses({"10.0.0.1": {"n1": False, "n2": True}})),
)  # fmt: skip


def scratch(mine: tuple[str, str], usual: tuple[str, str]) -> Verdict:
    """Judge (noexec or '', size) of /dev/shm; /tmp is on a disk."""

    def of(words: tuple[str, str]) -> mounts.ScratchMounts:
        return mounts.ScratchMounts(mounts.ScratchMount(), mounts.ScratchMount(bool(words[0]), words[1]))

    same = peers(mounts.ScratchMount(), mounts.ScratchMount())
    return mounts.scratch(of(mine), same, peers(of(mine).shm, of(usual).shm), 64 * GIB)


def dead_neighbour() -> Verdict:
    """Judge n1 where n2 answers nobody."""
    own = {f"n{n}": frozenset({f"10.0.0.{n}"}) for n in range(1, 6)}
    results = {
        n: tuple(
            ReachabilityResult(
                to, f"10.0.0.{to[1]}", "no answer within 5 s" if "n2" in (n, to) else "reached"
            )
            for to in own
            if to != n
        )
        for n in own
    }
    return network.reachable("n1", network.Reachability(results, own))


COUNTER_EXAMPLES = tuple(
    CounterExample(*row, sick=sick) for rows, sick in ((HEALTHY, False), (SICK, True)) for row in rows
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_a_machine_gets_the_verdict_of_a_person(example: CounterExample) -> None:
    assert_as_expected(example)
