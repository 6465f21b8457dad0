"""The section of a drafted cluster file."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.config.yaml_loader import quoted
from pytest_gpucluster.core.probe import Answer, Probe, text_of
from pytest_gpucluster.suites.os import facts, network_facts, software_facts
from pytest_gpucluster.suites.os.checks.network import VIRTUAL
from pytest_gpucluster.suites.os.limits import COMPARED_LIMITS, LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.core.survey import Agreed, Survey
    from pytest_gpucluster.suites.os.facts import Mount

EXAMPLE = [
    "",
    "# os:",
    "#   release: ubuntu 22.04",
    "#   mounts:",
    "#     - {path: /home, fstype: nfs4}",
    "#   shared_storage: [/shared/acceptance]",
]
# of a cluster: its drivers, containers, MPI, file systems and services
_PACKAGES = (
    "(nvidia-(driver|dkms|open|kernel|utils|fabricmanager|imex|persistenced|container|peermem)|cuda-drivers|"
    "datacenter-gpu-manager|libnccl|libnvidia-nscq|libnvsdm|nvlsm|gdrcopy|doca|mlnx|ofed|rdma-core|infiniband-diags|opensm|"
    "perftest|ucx|openmpi|pmix|slurm|munge|enroot|apptainer|singularity|lustre-client|beegfs|ceph-common|"
    "gpfs|nfs-common|nfs-utils|autofs|chrony|ntp|sssd|docker-ce|containerd|kmod-)"
)
# what clusters tune for MPI, NCCL, large memory and storage; names that the kernel lacks are left out
_SYSCTLS = (
    *(name.replace("/", ".") for name in facts.TUNABLES),
    "fs.nr_open",
    "kernel.numa_balancing",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "vm.dirty_ratio",
    "vm.zone_reclaim_mode",
)
# of the kernel, of containers, and in memory
_NO_STORAGE = re.compile(
    r"(proc|sysfs|devtmpfs|devpts|tmpfs|ramfs|securityfs|cgroup2?|pstore|efivarfs|bpf|autofs|mqueue|hugetlbfs|debugfs|"
    r"tracefs|configfs|fusectl|nsfs|overlay|squashfs|rpc_pipefs|binfmt_misc|nfsd|selinuxfs|fuse\..*)"
)
_NO_PLACE = re.compile(r"/(proc|sys|dev|run|snap|tmp|var/lib/(docker|containers|kubelet|enroot))(/|$)")


def _read_services(answer: Answer) -> dict[str, str]:
    """Return the services that run and are enabled; others were started for a while, or by a socket."""
    found = facts.sections(answer)
    for name in ("running", "enabled"):
        text_of(Answer("", found[name].rc, found[name].text.encode()))
    rows = [line.split() for line in found["running"].text.splitlines()]
    running = {row[0] for row in rows if row[2:4] == ["active", "running"]}
    enabled = {line.split()[0] for line in found["enabled"].text.splitlines() if line.strip()}
    units = (unit.removesuffix(".service") for unit in running & enabled)
    return {unit: "active" for unit in units if "@" not in unit}  # instances are those of terminals and users


def _read_packages(answer: Answer) -> dict[str, str]:
    """Return {package: version}, without packages that are installed in several versions."""
    versions: dict[str, set[str]] = {}
    for line in text_of(answer).splitlines():
        name, version, state = line.split("\t")
        if state == "installed":
            versions.setdefault(name, set()).add(version)
    return {name: min(found) for name, found in versions.items() if len(found) == 1}


SERVICES: Probe[dict[str, str]] = Probe(
    "running services",
    facts.SECTIONS_SH
    + "o='--type=service --plain --no-legend --no-pager'; s running systemctl list-units --state=running $o; "
    "s enabled systemctl list-unit-files --state=enabled $o",
    _read_services,
)
PACKAGES: Probe[dict[str, str]] = Probe(
    "installed packages",
    "export LC_ALL=C; { if command -v dpkg-query >/dev/null 2>&1; then "
    "dpkg-query -W -f='${Package}\\t${Version}\\t${db:Status-Status}\\n'; "
    f"else rpm -qa --qf '%{{NAME}}\\t%{{VERSION}}-%{{RELEASE}}\\tinstalled\\n'; fi; }} | grep -E '^{_PACKAGES}' || true",
    _read_packages,
)
SYSCTLS = software_facts.sysctls(_SYSCTLS)
PROBES: tuple[Probe[Any], ...] = (
    facts.RELEASE,
    facts.KERNEL,
    facts.LIMITS,
    facts.MOUNTS,
    software_facts.TIME_SYNC,
    network_facts.NETWORK,
    SERVICES,
    PACKAGES,
    SYSCTLS,
)


def lines(survey: Survey) -> list[str]:
    """Return what most nodes of every group have; an example if no node was queried, or they agree on nothing."""
    found = [
        *_single(survey),
        *_mapping("limits", _limits(survey) if survey.in_step else {}),
        *_mapping("sysctls", _texts(survey, SYSCTLS)),
        *_mapping("interfaces", _interfaces(survey)),
        *_mounts(survey),
        *_mapping("packages", _texts(survey, PACKAGES)),
        *_services(survey),
    ]
    if not found:
        return EXAMPLE
    about = "# What at least two thirds of the nodes of every group have. Delete the lines that need not stay so."
    return ["", about, "os:", *found, "  # shared_storage: [/shared/acceptance]"]


def _single(survey: Survey) -> Iterator[str]:
    for key, probe in (("release", facts.RELEASE), ("kernel", facts.KERNEL)):
        values = {node: {key: value} for node, value in survey.facts(probe).items()}
        for agreed in survey.each_agreed(values).values():
            yield f"  {key}: {_commented(agreed)}"
    synchronised = survey.agreed(
        {node: sync.synchronised for node, sync in survey.facts(software_facts.TIME_SYNC).items()}
    )
    if synchronised and not synchronised.value:
        yield f"  # {synchronised.count} are not synchronised: repair them, or add `not_applicable: {{os.time_sync: REASON}}`"


def _texts(survey: Survey, probe: Probe[dict[str, str]]) -> dict[str, Agreed[str]]:
    found = survey.facts(probe)
    return survey.each_agreed(
        {node: {name: text for name, text in values.items() if text} for node, values in found.items()}
    )


def _limits(survey: Survey) -> dict[str, Agreed[str]]:
    return survey.each_agreed(
        {
            node: {name: _limit(name, soft[LIMITS[name][0]]) for name in COMPARED_LIMITS if LIMITS[name][0] in soft}
            for node, soft in survey.facts(facts.LIMITS).items()
        }
    )


def _limit(name: str, value: float) -> str:
    return "unlimited" if math.isinf(value) else str(int(value) // LIMITS[name][1])


def _interfaces(survey: Survey) -> dict[str, Agreed[int]]:
    return survey.each_agreed(
        {
            node: {name: link.mtu for name, link in network.links.items() if not VIRTUAL.match(name)}
            for node, network in survey.facts(network_facts.NETWORK).items()
        }
    )


def _mounts(survey: Survey) -> Iterator[str]:
    mounts = {node: _stored(found) for node, found in survey.facts(facts.MOUNTS).items()}
    types = {node: {path: one.fstype for path, one in found.items()} for node, found in mounts.items()}
    remote = {
        node: {path: one.source for path, one in found.items() if not one.source.startswith("/dev/")}
        for node, found in mounts.items()
    }
    sources = survey.each_agreed(remote)
    found = survey.each_agreed(types)
    if found:
        yield "  mounts:"
    for path, fstype in found.items():
        source = sources.get(path)
        same = source is not None and source.count == fstype.count
        stated = {"path": path, "fstype": fstype.value, **({"source": source.value} if source and same else {})}
        keys = ", ".join(f"{key}: {quoted(value, in_flow=True)}" for key, value in stated.items())
        yield f"    - {{{keys}}}  # {fstype.count}"


def _stored(mounts: Mapping[str, Mount]) -> dict[str, Mount]:
    """Return the file systems on disks and servers, without those that an automounter mounts on demand."""
    automounted = tuple(f"{path}/" for path, mount in mounts.items() if mount.fstype == "autofs")
    return {
        path: mount
        for path, mount in mounts.items()
        if not _NO_STORAGE.fullmatch(mount.fstype) and not _NO_PLACE.match(path) and not path.startswith(automounted)
    }


def _services(survey: Survey) -> Iterator[str]:
    found = _texts(survey, SERVICES)
    if found:
        yield "  services:"
    for unit, agreed in found.items():
        yield f"    - {quoted(unit)}  # {agreed.count}"


def _mapping(key: str, found: Mapping[str, Agreed[Any]]) -> Iterator[str]:
    if found:
        yield f"  {key}:"
    for name, agreed in found.items():
        yield f"    {quoted(name)}: {_commented(agreed)}"


def _commented(agreed: Agreed[Any]) -> str:
    value = agreed.value
    return f"{value if isinstance(value, int) else quoted(value)}  # {agreed.count}"
