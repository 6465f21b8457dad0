"""Draft a cluster file: valid as it is, commented, and meant to be edited."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.config.profile_files import load_profile, profile_names
from pytest_gpucluster.config.yaml_loader import clip, quoted
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.config.ansible import Inventory

UNSURVEYED = Survey()
_NOTES = """
# What else a site may configure; `gpucluster schema --markdown` lists every key.
#
# environments:
#   default:
#     container_image: nvcr.io#nvidia/pytorch:24.05-py3
#     container_mounts: [/shared:/shared]
#     modules: [cuda]
#     exports: {NCCL_SOCKET_IFNAME: eth0}
# thresholds:
#   - {collective: all_reduce, nodes: 2, size: 4G, busbw: 180 GB/s, source: "measured on the day of acceptance"}
# sudo: true  # probes that need root may use `sudo -n`
"""


@dataclass(frozen=True)
class DraftNode:
    """What is known of a node: its partition ('' where unknown), and Slurm's gres, like {'gpu:h200': 8}."""

    name: str
    partition: str = ""
    gres: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Login:
    """The login node of a cluster."""

    host: str
    user: str | None = None


def draft(
    name: str,
    nodes: Sequence[DraftNode],
    *,
    origin: str,
    login: Login | None = None,
    conf: str | None = None,
    survey: Survey = UNSURVEYED,
    simulated: bool = False,
    access: str = "slurm",
    inventory: str | None = None,
) -> str:
    """Return the text of a cluster file: nodes grouped by gres and partition, profiles proposed by gres type.

    `origin` names the source of the nodes, `conf` the path of slurm.conf if it is not the usual one; `simulated`: its
    GPUs are a sandbox's; `inventory`: the path of the Ansible inventory with the addresses for `access` ssh.
    ConfigError where there are no nodes.
    """
    if not nodes:
        raise ConfigError(f"{origin} names no nodes, so there is nothing to draft")
    groups: dict[tuple[str, int, str], list[str]] = {}
    for node in nodes:
        groups.setdefault((*gpus_of(node.gres), node.partition), []).append(node.name)
    partitions = {partition for *_gpus, partition in groups}
    lines = [
        f"# Drafted from {clip(origin)}. Check each line, above all the profiles.",
        f"name: {quoted(name)}",
    ]
    sections = [suite.load(suite.draft)(survey) for suite in suites() if suite.draft]
    lines += [
        *_access(access, inventory),
        *_transport(login),
        *_slurm(partitions, conf),
        *chain.from_iterable(sections),
        "",
        "groups:",
    ]
    for (kind, count, partition), names in sorted(groups.items()):
        lines += _group(partition if len(partitions) > 1 else "", names)
        lines += _profile(kind, count, simulated=simulated)
    return "\n".join(lines) + "\n" + _NOTES


def from_inventory(
    inventory: Inventory, *, name: str, origin: str, survey: Survey = UNSURVEYED, access: str = "slurm"
) -> str:
    """Return a draft from an Ansible inventory in the DeepOps form: groups slurm-node and slurm-master."""
    names = inventory.hosts("slurm-node")
    if not names:
        found = ", ".join(sorted(inventory.groups)) or "none"
        raise ConfigError(f"{origin}: no hosts in a group 'slurm-node' (groups found: {clip(found, 200)})")
    masters = inventory.hosts("slurm-master")
    login = None
    if masters:
        host = inventory.variable(masters[0], "ansible_host") or masters[0]
        login = Login(host, inventory.variable(masters[0], "ansible_user"))
    nodes = [DraftNode(node) for node in names]
    path = str(Path(origin).absolute()) if access == "ssh" else None
    return draft(name, nodes, origin=origin, login=login, survey=survey, access=access, inventory=path)


def gpus_of(gres: Mapping[str, int]) -> tuple[str, int]:
    """Return type and number of GPUs of Slurm's gres; several types (of MIG) in one node are joined by commas.

    >>> gpus_of({"gpu:h200": 8}), gpus_of({"shard": 4, "gpu": 2}), gpus_of({})
    (('h200', 8), ('', 2), ('', 0))
    """
    gpus = {name: count for name, count in gres.items() if name.partition(":")[0] == "gpu"}
    return ",".join(sorted(name.partition(":")[2] for name in gpus)), sum(gpus.values())


def proposals(kind: str, count: int) -> list[str]:
    """Return the shipped profiles that fit a gres type, best first: right count, plain hardware before clouds.

    A count that a profile lists as one that such nodes may have (h200-vm: 1, 2, 4) is right too.

    The type is a site's word (h100), or what AutoDetect=nvml makes of the GPU's name (nvidia_h100_80gb_hbm3).
    """
    word = re.compile(rf"(?<![a-z0-9]){re.escape(_spaced(kind))}(?![a-z0-9])")
    fitting = []
    for profile in map(load_profile, profile_names()):
        if kind and profile.gpu and not profile.simulated and word.search(_spaced(profile.gpu.name)):
            cloud = profile.name.startswith(("aws-", "azure-", "gcp-"))
            counts = (profile.gpu.count, *profile.gpu.counts)
            fitting.append((count not in counts, cloud, profile.name))
    return [name for *_order, name in sorted(fitting)]


def _spaced(name: str) -> str:
    return re.sub("[ _-]", " ", name.lower())


def _access(access: str, inventory: str | None) -> list[str]:
    if access == "slurm":
        return []
    lines = ["", "# each node over SSH, without an allocation", f"access: {access}"]
    return [*lines, f"inventory: {quoted(inventory)}"] if inventory else lines


def _transport(login: Login | None) -> list[str]:
    if login is None:
        return [
            "",
            "# Slurm's commands run on this machine; for a login node: {kind: ssh, host: login01}",
            "transport: {kind: local}",
        ]
    lines = [
        "",
        "# Slurm's commands run on the login node",
        "transport:",
        "  kind: ssh",
        f"  host: {quoted(login.host)}",
    ]
    return [*lines, f"  user: {quoted(login.user)}"] if login.user else lines


def _slurm(partitions: set[str], conf: str | None) -> list[str]:
    only = next(iter(partitions)) if len(partitions) == 1 else ""
    lines = ["", "slurm:"]
    lines.append(f"  partition: {quoted(only)}" if only else "  # partition: NAME")
    if conf:
        lines.append(f"  conf: {quoted(conf)}")
    return [
        *lines,
        "  # account, qos, reservation, comment, constraint: as for salloc",
        "  time: 01:00:00",
        "  queue_wait: 10m",
    ]


def _group(partition: str, names: list[str]) -> list[str]:
    lines = [f"  - nodes: {quoted(hostlist.fold(names))}  # {len(names)}"]
    return [*lines, f"    partition: {quoted(partition)}"] if partition else lines


def _profile(kind: str, count: int, *, simulated: bool) -> list[str]:
    fitting = proposals(kind, count) if count else []
    if fitting:
        others = f"; it may also be {', '.join(fitting[1:6])}" if fitting[1:] else ""
        comments = [f"proposed for gpu:{kind}:{count}{others}"]
    elif count:
        comments = [
            f"{count} GPUs of the type {clip(kind) or '(none in gres)'}: no shipped profile is known for it.",
            "Until one is named (gpucluster profiles) nothing is demanded of them; the least, as nvidia-smi -L says:",
            f'profile: {{extends: generic, gpu: {{count: {count}, name: "NVIDIA ..."}}}}',
        ]
    else:
        comments = [
            "no GPUs are known of these nodes; if they have some, name a profile: gpucluster profiles"
        ]
    profile = fitting[0] if fitting else "generic"
    changes = ["simulated: true"] if simulated else []
    if fitting:
        gpu = load_profile(profile).gpu
        number = f", count: {count}" if gpu and gpu.count != count else ""
        changes.append(f"gpu: {{gres_type: {quoted(kind)}{number}}}")
    shown = f"{{extends: {profile}, {', '.join(changes)}}}" if changes else profile
    return [*(f"    # {comment}" for comment in comments), f"    profile: {shown}"]
