"""Draft a cluster file for people to go on from: valid as it is, and commented."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.config.profile_files import load_profile, profile_names
from pytest_gpucluster.config.yaml_loader import clip
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.config.ansible import Inventory

_PMI = ("pmix", "pmi2", "cray_shasta")
_BARE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./,\[\]-]*")

_NOTES = """
# What else a site may say; `gpucluster schema --markdown` lists every key.
#
# environments:
#   default:
#     container_image: nvcr.io#nvidia/pytorch:24.05-py3
#     container_mounts: [/shared:/shared]
#     modules: [cuda]
#     exports: {NCCL_SOCKET_IFNAME: eth0}
# mpi:  # requires MPI: mpirun and mpicc on every node, or in an image
#   launchers: [mpirun, srun --mpi=pmix]
# os:
#   release: ubuntu 22.04
#   mounts:
#     - {path: /home, fstype: nfs4}
#   shared_storage: [/shared/acceptance]
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


@dataclass(frozen=True)
class Pmi:
    """How srun may start MPI programs: the types of `srun --mpi=list`, and slurm.conf's MpiDefault ('' for none)."""

    types: tuple[str, ...]
    default: str = ""

    @property
    def best(self) -> str:
        """The type to begin with, '' where there is none: what Open MPI understands before what MPICH does."""
        return next((kind for kind in _PMI if kind in self.types), "")


def draft(
    name: str,
    nodes: Sequence[DraftNode],
    *,
    origin: str,
    login: Login | None = None,
    conf: str | None = None,
    pmi: Pmi | None = None,
    simulated: bool = False,
) -> str:
    """Return the text of a cluster file: nodes grouped by gres and partition, profiles proposed by gres type.

    `origin` is a word on where the nodes are known from, `conf` the path of slurm.conf
    if it is not the usual one, `pmi` what srun was asked (None: it was not); `simulated`: its GPUs are a sandbox's.
    ConfigError where there are no nodes.
    """
    if not nodes:
        raise ConfigError(f"{origin} names no nodes, so there is nothing to draft")
    groups: dict[tuple[str, int, str], list[str]] = {}
    for node in nodes:
        groups.setdefault((*gpus_of(node.gres), node.partition), []).append(node.name)
    partitions = {partition for *_gpus, partition in groups}
    lines = [
        f"# Drafted from {clip(origin)}. Look it through, above all the profiles.",
        f"name: {_quoted(name)}",
    ]
    lines += [*_transport(login), *_slurm(partitions, conf), *_nccl(pmi), "", "groups:"]
    for (kind, count, partition), names in sorted(groups.items()):
        lines += _group(partition if len(partitions) > 1 else "", names)
        lines += _profile(kind, count, simulated=simulated)
    return "\n".join(lines) + "\n" + _NOTES


def from_inventory(inventory: Inventory, *, name: str, origin: str) -> str:
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
    return draft(name, [DraftNode(node) for node in names], origin=origin, login=login)


def gpus_of(gres: Mapping[str, int]) -> tuple[str, int]:
    """Return type and number of GPUs of Slurm's gres; several types (of MIG) in one node are joined by commas.

    >>> gpus_of({"gpu:h200": 8}), gpus_of({"shard": 4, "gpu": 2}), gpus_of({})
    (('h200', 8), ('', 2), ('', 0))
    """
    gpus = {name: count for name, count in gres.items() if name.partition(":")[0] == "gpu"}
    return ",".join(sorted(name.partition(":")[2] for name in gpus)), sum(gpus.values())


def proposals(kind: str, count: int) -> list[str]:
    """Return the shipped profiles that fit a gres type, best first: right count, plain hardware before clouds.

    A count that a profile names as one that such nodes are dealt (h200-vm: 1, 2, 4) is right too.

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
        f"  host: {_quoted(login.host)}",
    ]
    return [*lines, f"  user: {_quoted(login.user)}"] if login.user else lines


def _slurm(partitions: set[str], conf: str | None) -> list[str]:
    only = next(iter(partitions)) if len(partitions) == 1 else ""
    lines = ["", "slurm:"]
    lines.append(f"  partition: {_quoted(only)}" if only else "  # partition: NAME")
    if conf:
        lines.append(f"  conf: {_quoted(conf)}")
    return [
        *lines,
        "  # account, qos, reservation, comment, constraint: as for salloc",
        "  time: 01:00:00",
        "  queue_wait: 10m",
    ]


def _nccl(pmi: Pmi | None) -> list[str]:
    """Say how the ranks of nccl-tests find each other."""
    if pmi is None:
        return ["", "# how srun starts the ranks of nccl-tests: srun --mpi=list", "# nccl: {mpi: pmix}"]
    found = f"# srun --mpi=list: {clip(', '.join(pmi.types) or 'none', 200)}; MpiDefault={clip(pmi.default or 'none')}"
    if pmi.default:
        return [
            "",
            f"{found}, which starts the ranks of nccl-tests",
            "# nccl: {mpi: TYPE}  # another than that",
        ]
    if pmi.best:
        what = "pmix is for Open MPI, pmi2 for MPICH and its kin: take what nccl-tests is built with"
        return ["", found, f"# {what}", f"nccl: {{mpi: {pmi.best}}}"]
    return ["", f"{found}: srun starts no MPI program here", "nccl: {launcher: mpirun}"]


def _group(partition: str, names: list[str]) -> list[str]:
    lines = [f"  - nodes: {_quoted(hostlist.fold(names))}  # {len(names)}"]
    return [*lines, f"    partition: {_quoted(partition)}"] if partition else lines


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
        changes.append(f"gpu: {{gres_type: {_quoted(kind)}{number}}}")
    shown = f"{{extends: {profile}, {', '.join(changes)}}}" if changes else profile
    return [*(f"    # {comment}" for comment in comments), f"    profile: {shown}"]


def _quoted(text: str) -> str:
    """Write a text for YAML, in quotes where it could be read as something else."""
    if _BARE.fullmatch(text) and not re.fullmatch(r"[0-9.]+|true|false|null|yes|no|on|off", text.lower()):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
