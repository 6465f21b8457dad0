"""Draft a cluster file: valid as it is, commented, and meant to be edited."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yaml import safe_load

from pytest_gpucluster import SuiteError
from pytest_gpucluster.config.profile_files import CLOUDS, load_profile, profile_names
from pytest_gpucluster.config.yaml_loader import clip, quoted
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.registry import import_checks, suites
from pytest_gpucluster.core.survey import Survey
from pytest_gpucluster.core.values import OptionalSection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.config.ansible import Inventory
    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.core.survey import Hardware

UNSURVEYED = Survey()
_NOT_READ = (
    "# NO NODE WAS READ: its GPUs fail run.profile until `gpucluster init --force` has read one, or a profile is named."
)
TIME = 3600.0  # seconds of a job, where the partition allows them
_NOTES = """
# What else a site may configure; `gpucluster schema --markdown` lists every key. `default` is the environment of every
# suite that names none: `gpucluster check FILE --try` shows what would run in it.
#
# environments:
#   default:
#     container_image: IMAGE
#     container_mounts: [/shared:/shared]
#     modules: [cuda]
#     exports: {NCCL_SOCKET_IFNAME: eth0}
# thresholds:
#   - {collective: all_reduce, nodes: 2, size: 4G, busbw: 180 GB/s, source: "measured on the day of acceptance"}
# sudo: true  # probes that need root may use `sudo -n`
"""


@dataclass(frozen=True)
class DraftNode:
    """What is known of a node: its partition ('' where unknown) with MaxTime (seconds), and Slurm's gres, like {'gpu:h200': 8}."""

    name: str
    partition: str = ""
    gres: Mapping[str, int] = field(default_factory=dict)
    max_time: float | None = None


@dataclass(frozen=True)
class LoginNode:
    """The login node of a cluster."""

    host: str
    user: str | None = None


def draft(
    name: str,
    nodes: Sequence[DraftNode],
    *,
    origin: str,
    login: LoginNode | None = None,
    conf: str | None = None,
    survey: Survey = UNSURVEYED,
    simulated: bool = False,
    access: str = "slurm",
    inventory: str | None = None,
) -> str:
    """Return the text of a cluster file: nodes grouped by gres and partition, with the profile that fits what was read.

    `origin` names the source of the nodes, `conf` the path of slurm.conf if it is not the usual one; `simulated`: its
    GPUs are a sandbox's; `inventory`: the path of the Ansible inventory with the addresses for `access` ssh. A group of
    which the survey has no node gets no profile but `generic`. ConfigError where there are no nodes.
    """
    if not nodes:
        raise ConfigError(f"{origin} names no nodes, so there is nothing to draft")
    groups: dict[tuple[str, int, str], list[str]] = {}
    for node in nodes:
        groups.setdefault((*gpus_of(node.gres), node.partition), []).append(node.name)
    partitions = {partition for *_gpus, partition in groups}
    lines = [
        *([] if survey.hardware else [_NOT_READ]),
        f"# Drafted from {clip(origin)}. Check each line, above all the profiles.",
        f"name: {quoted(name)}",
    ]
    survey = replace(survey, sizes=Counter(node.partition for node in nodes))
    sections = [_drafted(suite, survey) for suite in suites() if suite.draft]
    others = [_section(suite, survey) for suite in suites() if not suite.draft]
    lines += [
        *_access(access, inventory),
        *_transport(login),
        *_slurm(partitions, conf, nodes),
        *chain.from_iterable(sections),
        *[line for line in others if line and not line.startswith("#")],
        "",
        "# Suites that stay off, and what each needs",
        *[line for line in others if line.startswith("#")],
        "",
        "groups:",
    ]
    for (gpu_type, count, partition), names in sorted(groups.items()):
        lines.append(f"  - nodes: {quoted(hostlist.fold(names))}  # {len(names)}")
        lines += [f"    partition: {quoted(partition)}"] if partition and len(partitions) > 1 else []
        read = next(((name, survey.hardware[name]) for name in names if name in survey.hardware), None)
        why = next((survey.unread[name] for name in names if name in survey.unread), "")
        lines += _profile(gpu_type, count, read, why, simulated=simulated)
    text = "\n".join(lines) + "\n"
    return text + _NOTES + "\n".join(["", *blind_spots(safe_load(text)), ""])


def blind_spots(stated: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a run with this file cannot find: the lists of settings that it leaves empty, each with what its check proves."""
    yield "# What a run with this file cannot find, since these keys are not stated:"
    import_checks()
    models = {suite.name: suite.section for suite in suites() if suite.section}
    seen = set()
    for check in CHECKS.values():
        section, _, key = check.setting.partition(".")
        field = models[section].model_fields.get(key) if section in models else None
        unstated = field is not None and field.default in ((), {}) and not (stated.get(section) or {}).get(key)
        if unstated and check.setting not in seen:
            seen.add(check.setting)
            yield f"#   {check.setting}: {check.holds}"


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
        login = LoginNode(host, inventory.variable(masters[0], "ansible_user"))
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


def proposals(gpu_type: str, count: int) -> list[str]:
    """Return the shipped profiles that fit a gres type, best first: right count, plain hardware before clouds.

    A count that a profile lists as one that such nodes may have (h200-vm: 1, 2, 4) is right too.

    The type is a site's word (h100), or what AutoDetect=nvml makes of the GPU's name (nvidia_h100_80gb_hbm3).
    """
    word = re.compile(rf"(?<![a-z0-9]){re.escape(_spaced(gpu_type))}(?![a-z0-9])")
    fitting = []
    for profile in map(load_profile, profile_names()):
        if gpu_type and profile.gpu and not profile.simulated and word.search(_spaced(profile.gpu.name)):
            cloud = profile.name.startswith((*CLOUDS,))
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


def _transport(login: LoginNode | None) -> list[str]:
    if login is None:
        here = "# Slurm's commands run on this machine; for a login node:"
        return ["", here, "# transport: {host: login01}"]
    lines = ["", "# Slurm's commands run on the login node", "transport:", f"  host: {quoted(login.host)}"]
    return [*lines, f"  user: {quoted(login.user)}"] if login.user else lines


def _slurm(partitions: set[str], conf: str | None, nodes: Sequence[DraftNode]) -> list[str]:
    only = next(iter(partitions)) if len(partitions) == 1 else ""
    lines = ["", "slurm:"]
    lines.append(f"  partition: {quoted(only)}" if only else "  # partition: NAME")
    if conf:
        lines.append(f"  conf: {quoted(conf)}")
    least = min(nodes, key=lambda node: node.max_time or TIME)
    time = "01:00:00"
    if least.max_time and least.max_time < TIME:
        time = f"{least.max_time / 60:g}m  # MaxTime of partition {clip(least.partition)}"
    more = "  # account, qos, reservation, comment, constraint: as for salloc"
    return [*lines, more, f"  time: {time}", "  queue_wait: 10m"]


def _drafted(suite: Suite, survey: Survey) -> Sequence[str]:
    """Return what a suite drafts; SuiteError for a text instead of lines, which would become a line for each letter."""
    lines = suite.draft(survey) if suite.draft else ()
    if isinstance(lines, str):
        raise SuiteError(f"the suite {suite.name}: its draft is a text; it must be a list of lines")
    return lines


def _section(suite: Suite, survey: Survey) -> str:
    """Return the section of a suite that is enabled by one: itself if it can run as it is, else a comment with what lacks."""
    if not suite.section or not issubclass(suite.section, OptionalSection):
        return ""
    packages = [word for word in suite.needs if word in suite.frameworks]
    missing = [f"needs {suite.stated}"] if suite.stated else []
    if survey.software:
        without = {word: survey.without(package=word) for word in packages}
        missing += [f"{word} is not in python3 of {nodes}" for word, nodes in without.items() if nodes]
        missing += [f"{word} is not on {nodes}" for word in suite.programs if (nodes := survey.without(word))]
    elif packages or suite.programs:
        missing.append(f"needs {' and '.join((*packages, *suite.programs))}")
    if "2 nodes" in suite.needs and (small := survey.small_partitions()):
        missing.append(f"needs two nodes; partition {small} has one")
    section = f"{suite.name}: {{}}"
    return f"# {section}  # {clip('; '.join(missing), 100)}" if missing else section


def _profile(gpu_type: str, count: int, read: tuple[str, Hardware] | None, why: str, *, simulated: bool) -> list[str]:
    """Return the profile of a group: a shipped one that fits the node that was read, else `generic` with what was read."""
    changes = {"simulated": "true"} if simulated else {}
    if read is None:
        return _shown(_unread(gpu_type, count, why), "generic", changes)
    node, hardware = read
    comments = [f"read on {node}: {_words(hardware)}"]
    unread = [one for one in hardware.unread if count or not one.startswith("GPUs")]
    comments += [f"not read on {node}: {clip(one, 140)}" for one in unread]
    if not hardware.gpus:
        return _shown(comments, "generic", changes)
    found, mig = len(hardware.gpus), hardware.mig
    if not count:
        comments.append("Slurm allocates no GPUs there (no Gres=gpu)")
    elif count != found and not mig:
        both = f"Slurm has {count} GPUs there (Gres), and {node} shows {found}"
        comments.append(f"{both}: one of the two is wrong")
    wanted = found if mig else max(count, found)
    fits = fitting(hardware, wanted)
    plain = gpu_type and "," not in gpu_type and not mig
    stated = {"gres_type": quoted(gpu_type, in_flow=True)} if plain else {}
    if fits:
        gpu = load_profile(fits[0]).gpu
        if gpu and gpu.count != wanted:
            stated["count"] = str(wanted)
        stated |= _mig(hardware)
        comments.append(f"all of it fits {', '.join(fits[:5])}")
        return _shown(comments, fits[0], {**changes, **({"gpu": _flow(stated)} if stated else {})})
    for name in proposals(gpu_type, wanted)[:1]:
        differs = "; ".join(misfits(load_profile(name), hardware, wanted))
        comments.append(f"no shipped profile fits; {name}: {clip(differs, 120)}")
    changes["gpu"] = _flow(_expected(hardware, wanted) | stated)
    rates = Counter(rate for layer, rate in hardware.ports if layer == "InfiniBand")
    if len(rates) == 1:
        ((rate, ports),) = rates.items()
        changes["fabric"] = f"{{hcas: {ports}, link_layer: InfiniBand, rate: {rate * 8:g} Gb/s}}"
    elif hardware.ports:
        unknown = "which adapters carry the traffic of GPUs is not known"
        comments.append(f"{unknown}: fabric: {{hcas: N, link_layer: ...}}")
    return _shown(comments, "generic", changes)


def _unread(gpu_type: str, count: int, why: str) -> list[str]:
    """Return the comments of a group of which no node was read."""
    comments = [f"not read: {clip(why or 'run init without --offline', 160)}"]
    if count:
        near = proposals(gpu_type, count)
        named = f"; by this name it may be {', '.join(near[:5])}" if near else ""
        comments.append(f"Slurm: {count} GPUs of the type {clip(gpu_type) or '(none)'}{named}")
        comments.append("They fail run.profile until a profile is named: gpucluster profiles")
    return comments


def _shown(comments: Sequence[str], profile: str, changes: Mapping[str, str]) -> list[str]:
    lines = [f"    # {comment}" for comment in comments]
    if not changes:
        return [*lines, f"    profile: {profile}"]
    keys = {"extends": profile, **changes}
    return [*lines, "    profile:", *(f"      {key}: {text}" for key, text in keys.items())]


def _flow(keys: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{key}: {text}' for key, text in keys.items())}}}"


def _expected(hardware: Hardware, count: int) -> dict[str, str]:
    """Return the keys of a profile's `gpu` that state what was read; a setting that is not the usual one is not demanded."""
    names = {name for name, _ in hardware.gpus}
    memory = {size for _, size in hardware.gpus}
    found = {"count": str(count), "name": quoted(min(names), in_flow=True)}
    if len(memory) == 1 and (size := memory.pop()):
        found["memory"] = f"{size // 2**20}MiB"
    if len(hardware.gpus) > 1 and len({*hardware.nvlinks}) == 1 and hardware.nvlinks[0]:
        found["nvlinks"] = str(hardware.nvlinks[0])
    if len(hardware.links) == 1 and min(hardware.links).startswith("NV"):
        found["topology"] = min(hardware.links)
    found |= _mig(hardware)
    for key, usual in (("ecc", True), ("persistence", True), ("compute_mode", "Default")):
        if hardware.settings.get(key) != usual:
            found[key] = "null"
    return found


def _mig(hardware: Hardware) -> dict[str, str]:
    """Return the key of a profile's `gpu` for MIG mode: what was read is what the site has set up."""
    if not hardware.mig:
        return {}
    return {"mig": "true" if hardware.settings.get("mig") else "null"}


def _words(hardware: Hardware) -> str:
    """Return what was read, in a line of a comment."""
    gpus = Counter(clip(name) + (f" ({size // 2**20} MiB)" if size else "") for name, size in hardware.gpus)
    words = [f"{number} x {name}" for name, number in gpus.items()] or ["no GPU"]
    words += [", ".join(sorted(hardware.links))] if hardware.links else []
    words += ["MIG"] if hardware.mig else []
    ports = Counter(hardware.ports)
    adapters = [f"{number} {clip(layer)} at {rate * 8:g} Gb/s" for (layer, rate), number in ports.items()]
    words += adapters or ["no adapter"]
    words += ["virtual machine"] if hardware.virtual else []
    words += [clip(hardware.vendor)] if hardware.vendor and hardware.virtual else []
    return "; ".join(words)


# --- which shipped profiles fit a node: all that a profile states of the hardware must be what was read

GUEST = "-vm"  # end of the name of a profile of virtual machines


def fitting(hardware: Hardware, count: int) -> list[str]:
    """Return the shipped profiles that fit, best first. `count`: the GPUs that the node must have."""
    profiles = [load_profile(name) for name in profile_names()]
    found = [one for one in profiles if one.gpu and not one.simulated and not misfits(one, hardware, count)]
    found.sort(key=lambda one: (one.gpu is None or one.gpu.count != count, one.name))
    return [one.name for one in found]


def misfits(profile: Profile, hardware: Hardware, count: int) -> list[str]:
    """Return what the profile states and the node does not have, or what could not be read; [] if the profile fits."""
    gpu, fabric = profile.gpu, profile.fabric
    assert gpu is not None
    names = {name for name, _ in hardware.gpus}
    found = [f"GPUs are {', '.join(sorted(names)) or 'unknown'}, not {gpu.name}"] if names != {gpu.name} else []
    if count not in (gpu.count, *gpu.counts):
        found.append(f"{count} GPUs, not {gpu.count}")
    if gpu.memory is not None and {memory for _, memory in hardware.gpus} != {gpu.memory}:
        found.append("another memory of the GPUs")
    if gpu.nvlinks is not None and count > 1 and {*hardware.nvlinks} != {gpu.nvlinks}:
        found.append(f"not {gpu.nvlinks} active NVLinks on each GPU")
    if gpu.topology is not None and count > 1 and hardware.links != {gpu.topology}:
        found.append(f"not {gpu.topology} between all GPUs")
    if fabric.link_layer == "none":
        if any(layer == "InfiniBand" for layer, _ in hardware.ports):
            found.append("the node has InfiniBand")
    else:
        ports = [rate for layer, rate in hardware.ports if layer == fabric.link_layer]
        fast = [rate for rate in ports if fabric.rate is None or abs(rate - fabric.rate) < 0.01 * fabric.rate]
        if len(fast) != fabric.hcas:
            found.append(f"{len(fast)} ports as the profile states, not {fabric.hcas}")
    return found + _machine(profile, hardware)


def _machine(profile: Profile, hardware: Hardware) -> list[str]:
    vendor = next((vendor for prefix, vendor in CLOUDS.items() if profile.name.startswith(prefix)), "")
    if vendor:
        return [] if vendor in hardware.vendor else [f"the machine is not of {vendor}"]
    if profile.name.endswith(GUEST):
        return [] if hardware.virtual else ["the node is no virtual machine"]
    if hardware.virtual and profile.gpu and profile.gpu.nvswitch:
        return ["the node is a virtual machine, whose NVSwitch belongs to the hypervisor"]
    return []
