"""Settings of a node that the site states, or that are compared with the node's peers: one check, one table of settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from operator import eq
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Verdict, check, revised
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, ProbeError
from pytest_gpucluster.core.finding import Quantity, Quote, in_words, measure
from pytest_gpucluster.core.majority import Norm, differs, less, older
from pytest_gpucluster.core.part import named
from pytest_gpucluster.core.part_commands import for_parts
from pytest_gpucluster.core.probe import Probe
from pytest_gpucluster.core.text import count, matches
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.kit.node.peers import Peers, alike
from pytest_gpucluster.suites.os import facts, network_facts, software_facts
from pytest_gpucluster.suites.os.checks.network import VIRTUAL
from pytest_gpucluster.suites.os.limits import COMPARED_LIMITS, LIMITS, shown_limit, wanted_limits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pytest_gpucluster.config.models import Cluster, NodeProfile
    from pytest_gpucluster.core.fact import AnyProbe
    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.run.session import Node
    from pytest_gpucluster.suites.os.facts import Cpus
    from pytest_gpucluster.suites.os.network_facts import NetworkInterface
    from pytest_gpucluster.suites.os.software_facts import CommandOutput

    Stated = Callable[[Cluster, NodeProfile, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class SettingReading:
    """A setting of a node. `name`: which of several, like a sysctl; '' of a single one.

    value: what the node has, None for nothing. stated: what the site states, None for nothing. usual: what its peers have.
    """

    setting: SettingRow
    name: str
    value: Any
    stated: Any
    usual: Norm[Any]

    @property
    def part(self) -> Part:
        """What findings name: `kernel`, `sysctls vm.swappiness`."""
        return named("setting", _part(self.setting, self.name))

    def deviations(self) -> Judgement:
        """Yield what differs, with the key that states the value."""
        for found in self.setting.judge(self):
            if isinstance(found, Finding) and not found.setting:
                yield replace(found, setting=self.setting.key)
            else:
                yield found


@dataclass(frozen=True)
class Unread:
    """A setting that the node could not report, and why."""

    setting: SettingRow
    error: ProbeError


def stated_or_usual(
    one: SettingReading,
    *,
    fits: Callable[[Any, Any], bool] = eq,
    worse: Callable[[Any, Any], bool] = differs,
    shown: Callable[[Any], Measure] = measure,
    wanted: Callable[[Any], Measure] = measure,
    harmless: str = "",
) -> Judgement:
    """Judge that a value fits what the site states; where it states nothing, that it is not worse than that of most peers.

    `wanted` shows what is stated. `harmless`: what a warning states of a value that differs and is not worse.
    """
    if one.stated is not None:
        if not fits(one.value, one.stated):
            found, expected = shown(one.value), wanted(one.stated)
            expected = in_words(expected, f"{expected}, as {one.setting.key} states")
            yield Finding(one.part, in_words(found, str(found)), expected, code="not_as_stated")
    else:
        yield from alike(one.part, one.value, one.usual, worse=worse, shown=shown, harmless=harmless)


@dataclass(frozen=True, eq=False)
class SettingRow:
    """A row of the table.

    name: findings, waivers and `not_applicable` name it. source: its probe. values: {name of one of several, or '': value} of
    the probe's facts. key: where the site states a value. stated: {name: stated value}. compared: whether a name that is not
    stated is compared with the node's peers. same_image: only with those of the same operating system.
    cause, hint: as of a check. show: the command that shows it, with PART for the name.
    """

    name: str
    source: AnyProbe[Any]
    cause: str
    hint: str
    show: str
    values: Callable[[Any], Mapping[str, Any]] = lambda value: {"": value}
    key: str = ""
    stated: Stated = lambda _cluster, _profile, _facts: {}
    compared: Callable[[str], bool] = lambda _name: True
    same_image: bool = True
    judge: Callable[[SettingReading], Judgement] = stated_or_usual
    applies: Callable[[Cluster], bool] = lambda _cluster: True


def _part(setting: SettingRow, name: str) -> str:
    return f"{setting.name} {name}".rstrip()


def _never(_name: str) -> bool:
    return False


def _of_site(key: str) -> Stated:
    """Return what a key of the section `os` states: a value, or {name: value}."""

    def stated(cluster: Cluster, _profile: NodeProfile, _facts: Any) -> Mapping[str, Any]:
        value = getattr(cluster.section(OsConfig), key)
        return value if isinstance(value, Mapping) else {} if value is None else {"": value}

    return stated


# --- rules of single settings


def _release(cluster: Cluster, _profile: NodeProfile, _facts: Any) -> Mapping[str, str]:
    release = cluster.section(OsConfig).release
    return {} if release is None else {"": release.lower()}


def _cmdline(one: SettingReading) -> Judgement:
    """Words that most peers have must be there; further ones are a warning."""
    if not one.usual.clear or one.usual.absent or one.value == one.usual.value:
        yield from stated_or_usual(one)
        return
    mine, theirs = set(one.value.split()), set(str(one.usual.value).split())
    extra, missing = " ".join(sorted(mine - theirs)), " ".join(sorted(theirs - mine))
    measured = f"additional: {extra or 'none'}; missing: {missing or 'none'}"
    deviation, code = (Finding, "missing_words") if missing else (Advisory, "additional_words")
    yield deviation(one.part, Quote(measured), one.usual.most, code=code)


def _numa(_cluster: Cluster, profile: NodeProfile, cpus: Cpus) -> Mapping[str, int]:
    """The profile may count all NUMA nodes, or those with CPUs."""
    if profile.numa_nodes is None:
        return {}
    return {"": cpus.cpu_nodes if profile.numa_nodes == cpus.numa_nodes else profile.numa_nodes}


def _governor(one: SettingReading) -> Judgement:
    """All CPUs have the stated governor; as many have `performance` as on most peers."""
    if one.stated is None and not one.value and not any(value for value, _ in one.usual.votes):
        yield NotApplicable("the kernel offers no CPU frequency scaling here")
        return
    same = set(one.value) == set(one.usual.value or ())  # with fewer CPUs, as without SMT
    yield from stated_or_usual(
        one,
        fits=lambda mine, governor: set(mine) == {governor},
        worse=lambda mine, theirs: _fast_share(mine) < _fast_share(theirs),
        shown=_governors,
        wanted=lambda governor: f"{governor} on all CPUs",
        harmless="" if same else "no CPU is slower",
    )


def _governors(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} on {count(cpus, 'CPU')}" for name, cpus in sorted(found.items())) or "no scaling"


def _fast_share(governors: Mapping[str, int]) -> float:
    """Return the share of the CPUs whose governor saves no power."""
    return governors.get("performance", 0) / max(sum(governors.values()), 1)


_BOUNDS = ("kernel.pid_max", "vm.max_map_count")  # more is no fault: systemd and Ubuntu 24.04 raise them


def _sysctl(one: SettingReading) -> Judgement:
    def worse(mine: str | None, theirs: str | None) -> bool:
        if one.name in _BOUNDS and mine and theirs and mine.isdecimal() and theirs.isdecimal():
            return int(mine) < int(theirs)
        return mine != theirs

    yield from stated_or_usual(
        one,
        fits=lambda mine, stated: mine == " ".join(stated.split()),
        worse=worse,
        shown=lambda value: value or "unknown to this kernel",
        harmless="a larger bound",
    )


_TUNABLES = tuple(name.replace("/", ".") for name in facts.TUNABLES)


def _sysctls(*, common: bool) -> Stated:
    """Return the stated sysctls that every node reports anyway, or the others."""

    def stated(cluster: Cluster, _profile: NodeProfile, _facts: Any) -> Mapping[str, str]:
        named = cluster.section(OsConfig).sysctls
        return {name: value for name, value in named.items() if (name in _TUNABLES) is common}

    return stated


def _all_limits(soft: Mapping[str, float]) -> Mapping[str, float | None]:
    return {name: soft.get(line) for name, (line, _) in LIMITS.items()}


def _limit(one: SettingReading) -> Judgement:
    unit = LIMITS[one.name][1]

    def shown(value: float | None, least: str = "") -> Measure:
        text = least + shown_limit(value, unit)
        if value is None or math.isinf(value):
            return Quote(text)
        return Quantity(value, "B" * (unit == 1024), text)  # KiB: a size

    yield from stated_or_usual(
        one,
        fits=lambda mine, least: not _lower(mine, least),
        worse=_lower,
        shown=shown,
        wanted=partial(shown, least="at least "),
    )


def _lower(mine: float | None, theirs: float | None) -> bool:
    return theirs is not None and (mine is None or mine < theirs)


def _mtu(one: SettingReading) -> Judgement:
    """A stated interface is up with its MTU; that of another is as on most peers, where it is of the same kind on most."""
    mine = one.value
    alike = sum(len(nodes) for link, nodes in one.usual.votes if link and mine and link.link_type == mine.link_type)
    if one.stated is None and 2 * alike <= one.usual.total:
        yield NotApplicable("no interface of this name and kind is up on most nodes of the group")
        return
    yield from stated_or_usual(
        one,
        fits=lambda link, size: link is not None and link.mtu == size,
        worse=_other_mtu,
        shown=lambda link: Quantity(link.mtu) if link else "absent or down",
        wanted=lambda size: Quantity(size, text="" if mine else f"up, MTU {size}"),
    )


def _other_mtu(mine: NetworkInterface | None, theirs: NetworkInterface | None) -> bool:
    return bool(mine and theirs and mine.link_type == theirs.link_type and mine.mtu != theirs.mtu)


def _package(one: SettingReading) -> Judgement:
    yield from stated_or_usual(
        one,
        fits=lambda version, prefix: bool(version) and _version_matches(version, prefix),
        shown=lambda version: version or "not installed",
        wanted=lambda prefix: f"{prefix.removesuffix('*')}*" if prefix else "installed",
    )


def _version_matches(version: str, prefix: str) -> bool:
    """Compare whole numbers: 5.2 fits 5.2.15, not 5.20. An epoch counts only if the prefix has one."""
    wanted = prefix.removesuffix("*")
    compared = version if ":" in wanted else version.rpartition(":")[2]
    rest = compared.removeprefix(wanted)
    return compared.startswith(wanted) and not (wanted[-1:].isdigit() and rest[:1].isdigit())


# Bits of /proc/sys/kernel/tainted that stand for a fault (Documentation/admin-guide/tainted-kernels.rst). NVIDIA's
# driver sets others: proprietary, out of tree, unsigned.
_LOCKUP = 14
_TAINTS = {
    4: ("machine_check", "M: the processor reported a machine check exception"),
    5: ("bad_page", "B: a page of memory was in a bad state"),
    7: ("kernel_died", "D: the kernel has died before (oops or BUG)"),
    _LOCKUP: ("soft_lockup", "L: a soft lockup occurred"),
}


def _taint(one: SettingReading) -> Judgement:
    for bit, (code, meaning) in _TAINTS.items():
        if not one.value & 1 << bit:
            continue
        if bit == _LOCKUP:  # the kernel recovered from it
            yield Advisory(one.part, Quote(f"tainted {meaning}"), "no such taint", code=code)
        else:
            yield Finding(one.part, Quote(f"tainted {meaning}"), "no such taint", Action.REBOOT, code=code)


def _with_status(output: CommandOutput) -> str:
    return f"{output.text} (exit {output.rc})" if output.rc else output.text


# --- the table

_COMMON_SYSCTLS = SettingRow(
    "sysctls",
    facts.KERNEL_SETTINGS,
    cause="the setting is missing in /etc/sysctl.d, or something changed it after boot, on this node only",
    hint="compare `sysctl -a` with a good node; put the value into /etc/sysctl.d of the image; sysctl --system",
    show="sysctl PART",
    values=lambda found: found,
    key="os.sysctls",
    stated=_sysctls(common=True),
    judge=_sysctl,
)
SETTINGS = (
    SettingRow(
        "release",
        facts.RELEASE,
        cause="the node was missed by, or is ahead of, an upgrade of the system image",
        hint="cat /etc/os-release; reinstall the node from the current image",
        show="cat /etc/os-release",
        key="os.release",
        stated=_release,
        same_image=False,
        judge=partial(stated_or_usual, worse=older, harmless="ahead of an upgrade"),
    ),
    SettingRow(
        "kernel",
        facts.KERNEL,
        cause="the node has not been rebooted since a kernel update, or was updated alone",
        hint="uname -r; install the kernel of the image and reboot",
        show="uname -r",
        key="os.kernel",
        stated=_of_site("kernel"),
        same_image=False,
        judge=partial(stated_or_usual, fits=matches, worse=older, harmless="ahead of an update"),
    ),
    SettingRow(
        "cmdline",
        facts.CMDLINE,
        cause="boot parameters were changed on this node only",
        hint="compare /proc/cmdline; correct the boot loader's configuration and reboot",
        show="cat /proc/cmdline",
        same_image=False,
        judge=_cmdline,
    ),
    SettingRow(
        "architecture",
        facts.CPUS,
        cause="the node is of another kind than its group",
        hint="lscpu; move the node to a group of its own in the cluster file",
        show="lscpu",
        values=lambda cpus: {"": cpus.architecture},
        same_image=False,
    ),
    SettingRow(
        "cpu_model",
        facts.CPUS,
        cause="the node has other processors than the rest of its group",
        hint="lscpu; move the node to a group of its own in the cluster file",
        show="lscpu",
        values=lambda cpus: {"": cpus.model},
    ),
    SettingRow(
        "numa",
        facts.CPUS,
        cause="the firmware's NUMA setting (NPS, SNC, node interleaving) differs, or a socket is missing",
        hint="numactl --hardware; compare the firmware settings",
        show="lscpu",
        values=lambda cpus: {"": cpus.cpu_nodes},
        key="node.numa_nodes",
        stated=_numa,
    ),
    SettingRow(
        "governor",
        facts.GOVERNORS,
        cause="a CPU frequency governor that saves power slows down launches and collectives",
        hint="cpupower frequency-set -g performance; tuned-adm profile throughput-performance",
        show=facts.GOVERNORS.by_hand,
        key="os.governor",
        stated=_of_site("governor"),
        judge=_governor,
    ),
    SettingRow(
        "hugepages",
        facts.MEMORY,
        cause="huge pages were reserved on some nodes only, or the memory was too fragmented to reserve them",
        hint="grep Huge /proc/meminfo; sysctl vm.nr_hugepages; reserve them at boot (hugepages= of the kernel)",
        show="grep Huge /proc/meminfo",
        values=lambda memory: {"": memory.hugepages},
        judge=partial(stated_or_usual, worse=less, harmless="reserved from the memory of jobs"),
    ),
    SettingRow(
        "transparent_hugepages",
        facts.THP,
        cause="the setting was changed on this node only",
        hint="cat /sys/kernel/mm/transparent_hugepage/enabled; set it in the image or on the kernel command line",
        show=facts.THP.by_hand,
    ),
    SettingRow(
        "swap",
        facts.MEMORY,
        cause="swap was switched on or off on this node only",
        hint="swapon --show; swapoff -a; check /etc/fstab and systemctl list-units '*.swap'",
        show="swapon --show",
        values=lambda memory: {"": memory.swap_total},
        judge=partial(
            stated_or_usual,
            worse=lambda mine, theirs: bool(mine) != bool(theirs),
            shown=lambda size: Quantity(size, "B", format_size(size)),
        ),
    ),
    SettingRow(
        "security_modules",
        facts.LSM,
        cause="SELinux or AppArmor was switched on or off on this node only",
        hint="cat /sys/kernel/security/lsm; getenforce; aa-status; set it on the kernel command line",
        show=facts.LSM.by_hand,
    ),
    _COMMON_SYSCTLS,
    replace(
        _COMMON_SYSCTLS,
        source=lambda cluster: software_facts.sysctls(cluster.section(OsConfig).sysctls),
        stated=_sysctls(common=False),
        compared=_never,
    ),
    SettingRow(
        "limits",
        facts.LIMITS,
        cause="Slurm passes on the limits of the submitting shell or of slurmd, not those of limits.conf",
        hint="LimitMEMLOCK=infinity in slurmd's unit; PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        show="cat /proc/self/limits",
        values=_all_limits,
        key="os.limits",
        stated=lambda cluster, _profile, _facts: wanted_limits(cluster.section(OsConfig).limits),
        compared=COMPARED_LIMITS.__contains__,
        judge=_limit,
        applies=lambda cluster: cluster.access != "ssh",  # the limits are those of a step
    ),
    SettingRow(
        "mtu",
        network_facts.NETWORK,
        cause="the interface was configured by hand or by another image: large packets between the node and others are lost",
        hint="ip link; compare netplan, NetworkManager or ifcfg with a good node; correct the MTU with ip link set",
        show="ip link show PART",
        values=lambda network: network.links,
        key="os.interfaces",
        stated=_of_site("interfaces"),
        compared=lambda name: not VIRTUAL.match(name),
        judge=_mtu,
    ),
    SettingRow(
        "packages",
        lambda cluster: software_facts.packages(cluster.section(OsConfig).packages),
        cause="the package was not installed, or this node missed or ran ahead of an update",
        hint="dpkg -l or rpm -qa; install the package in this version with apt or dnf",
        show="dpkg -l PART || rpm -q PART",
        values=lambda found: found,
        key="os.packages",
        stated=_of_site("packages"),
        compared=_never,
        judge=_package,
    ),
    SettingRow(
        "taint",
        facts.TAINT,
        cause="a fault since boot damaged the kernel; the taint shows it even if the kernel log is not readable",
        hint="cat /proc/sys/kernel/tainted; dmesg -T; journalctl -k -b; ipmitool sel list; reboot, and watch the node",
        show="cat /proc/sys/kernel/tainted",
        stated=lambda *_: {"": 0},  # the same on every site
        compared=_never,
        judge=_taint,
    ),
)


def settings_of(cluster: Cluster) -> tuple[SettingRow, ...]:
    """Return the table, with a row for each command of `os.drift`."""
    commands = cluster.section(OsConfig).drift
    return (*SETTINGS, *(_command(command) for command in commands))


def _command(command: str) -> SettingRow:
    return SettingRow(
        "commands",
        software_facts.command_output(command),
        cause="the node was changed by hand, or missed a change of the image",
        hint="run the command on this node and on a good one; reinstall, or repeat the configuration run",
        show=command,
        values=lambda output: {command: output},
        judge=partial(stated_or_usual, shown=_with_status),
    )


# --- readings


class UsualValues:
    """The values of all nodes, and what is usual among the peers of one; each is made when first needed."""

    def __init__(self, fleet_facts: Callable[[AnyProbe[Any]], Mapping[str, Any]]) -> None:
        self._fleet_facts = fleet_facts
        self._values: dict[SettingRow, dict[str, Mapping[str, Any]]] = {}
        self._peers: dict[tuple[SettingRow, str], Peers[Any]] = {}

    def of(self, setting: SettingRow, name: str, node: Node) -> Norm[Any]:
        """Return what is usual among the peers of a node."""
        if setting not in self._values:
            found = self._fleet_facts(setting.source)
            self._values[setting] = {peer: setting.values(it) for peer, it in found.items()}
        if (setting, name) not in self._peers:
            values = {peer: it.get(name) for peer, it in self._values[setting].items()}
            self._peers[setting, name] = Peers(values)
        return self._peers[setting, name].of(node.twins if setting.same_image else node.peers)


def read(
    settings: Iterable[SettingRow],
    node: Node,
    cluster: Cluster,
    facts_of_node: Callable[[AnyProbe[Any]], Any],
    usual: UsualValues,
) -> Iterator[SettingReading | Unread]:
    """Yield the settings of a node, without those that `not_applicable` or the profile's `absent` names."""
    absent = (*cluster.not_applicable, *node.profile.absent)
    for setting in settings:
        if not setting.applies(cluster) or _named(setting.name, absent):
            continue
        try:
            found = facts_of_node(setting.source)
        except ProbeError as error:
            yield Unread(setting, error)
            continue
        values, stated = setting.values(found), setting.stated(cluster, node.profile.node, found)
        for name in dict.fromkeys((*stated, *values)):
            if _named(_part(setting, name), absent) or not (name in stated or setting.compared(name)):
                continue
            norm = Norm[Any]() if name in stated else usual.of(setting, name, node)
            yield SettingReading(setting, name, values.get(name), stated.get(name), norm)


def _named(part: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(f"os.drift/{part}", pattern) for pattern in patterns)


def probes(cluster: Cluster, *, compared: bool = False) -> list[Probe[Any]]:
    """Return the probes of the settings; `compared`: of those that may be compared with peers."""
    chosen = [it for it in settings_of(cluster) if not compared or it.compared is not _never]
    return [it.source if isinstance(it.source, Probe) else it.source(cluster) for it in chosen]


def _words(verdict: Verdict, readings: Sequence[SettingReading | Unread]) -> Verdict:
    """Return the verdict with cause, hint and commands of the settings that deviate."""
    known = {one.part: one for one in readings if isinstance(one, SettingReading)}
    failed = [known[found.part] for found in verdict.findings]
    rows = list({one.setting.name: one.setting for one in failed}.values())
    if not rows:
        return verdict
    cause, hint = (
        "; ".join(f"{row.name}: {text}" if rows[1:] else text for row, text in pairs)
        for pairs in ([(row, row.cause) for row in rows], [(row, row.hint) for row in rows])
    )
    shell = tuple(dict.fromkeys(for_parts(one.setting.show, [named("setting", one.name)]) for one in failed))
    return replace(verdict, cause=cause, hint=hint, shell=shell)


@revised(_words)
@check(
    "os.drift",
    cause="a setting was changed on this node only, or the node missed a change of the image",
    hint="compare the named setting with a good node; correct the image, or state the value in the cluster file",
    action=Action.CONFIGURE,
    never_healthy="the setting `taint`: only a machine check exception, a corrupt page or a crash of the kernel sets these bits, and "
    "only a boot clears them; soft lockups, which a virtual machine shows when its host is busy, are a warning",
)
def drift(readings: Sequence[SettingReading | Unread]) -> Judgement:
    """Each setting of the node (the table below) is as the site states it, or else as on most nodes of its group."""
    unjudged, broken, failed = [], [], False
    for one in readings:
        if isinstance(one, Unread):
            broken.append(one)
            continue
        for found in one.deviations():
            if isinstance(found, NotApplicable):
                unjudged.append(found)
            else:
                failed = failed or isinstance(found, Finding)
                yield found
    for it in broken:
        if isinstance(it.error, NotAvailable):
            yield NotAvailable(f"{it.setting.name}: {it.error}")
        elif not failed:
            raise it.error
    if len(unjudged) == len(readings):
        yield unjudged[0] if unjudged else NotApplicable("no setting is stated, or usual among other nodes")
