"""Keys of a cluster file that nothing uses, and empty values: each is a warning with file and line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pytest_gpucluster.config.models import DEFAULT_ENVIRONMENT, SECTIONS, Cluster, ClusterFile
from pytest_gpucluster.config.validation_errors import model_at
from pytest_gpucluster.config.yaml_loader import clip
from pytest_gpucluster.core import hostlist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.config.models import BandwidthThreshold
    from pytest_gpucluster.config.yaml_loader import Loc

_UNTYPED = ("settings", "profile")  # keys whose values no model of the file describes
_ANY = (("os", "packages"),)  # mappings in which '' is a value: any version
_NO_EFFECT = "has no effect"


def without_effect(written: ClusterFile, cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    """Yield places of a valid file whose values change nothing, and why."""
    yield from _environments(cluster)
    yield from _access(written, cluster)
    yield from _profile(written)
    yield from _thresholds(written, cluster)
    yield from _waivers(cluster)


def _sources(cluster: Cluster) -> Iterator[str]:
    """Yield the sources of the site's own suites; a file that cannot be read is left out."""
    for folder in cluster.suites:
        for path in Path(folder).rglob("*.py"):
            with contextlib.suppress(OSError):
                yield path.read_text(errors="replace")


def _environments(cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    used = {DEFAULT_ENVIRONMENT} | {
        getattr(section, key, None) for section in cluster.sections().values() for key in section.environment_keys
    }
    own = [*_sources(cluster)] if cluster.environments.keys() - used else []
    for name, environment in cluster.environments.items():
        at: Loc = ("environments", name)
        in_own = any(f"{quote}{name}{quote}" in text for text in own for quote in "'\"")
        if name not in used and not in_own:
            how = f"name it in one (SECTION: {{environment: {clip(name)}}}), call it 'default'"
            why = f"no section uses this environment: {how}, which is used wherever none is named, or remove it"
            yield at, why
        if not environment.in_container:
            for key in sorted(environment.model_fields_set):
                if key.startswith("container_") and getattr(environment, key):
                    yield (*at, key), f"{_NO_EFFECT} without 'container_image' or 'container_name'"


def _access(written: ClusterFile, cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    """Yield options of allocations in a file that allocates nothing, and of SSH in one that uses none."""
    slurm = written.slurm
    if cluster.why_no_slurm:
        why = f": {cluster.why_no_slurm}"
        if written.access == "ssh" or slurm.scheduler == "none":
            cause = "access: ssh" if written.access == "ssh" else "scheduler: none"
            why = f" with '{cause}': nothing is allocated"
        for key in ("partition", "account", "qos", "reservation", "comment", "constraint", "extra_args"):
            if key in slurm.model_fields_set and getattr(slurm, key):
                yield ("slurm", key), f"{_NO_EFFECT}{why}"
    elif written.ssh.model_fields_set:
        # `--set access=ssh` of pytest uses the section
        yield ("ssh",), f"{_NO_EFFECT} without 'access: ssh' (or pytest --set access=ssh)"


def _profile(written: ClusterFile) -> Iterator[tuple[Loc, str]]:
    if written.profile is not None and written.groups and all(group.profile for group in written.groups):
        yield ("profile",), f"{_NO_EFFECT}: every group names its own profile"


def _waivers(cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    known = {node for group in cluster.groups for node in group.names}
    for index, waiver in enumerate(cluster.waivers):
        if unknown := waiver.names - known:
            why = f"{_NO_EFFECT} on {hostlist.fold(unknown)}: the cluster has no such node"
            yield ("waivers", index, "nodes"), why


def _thresholds(written: ClusterFile, cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    """Yield rows that no run can be compared with."""
    nodes = {index: len(group.names) for index, group in enumerate(cluster.groups)}
    rows: list[tuple[Loc, BandwidthThreshold, int]] = [
        (("thresholds", index), row, sum(nodes.values())) for index, row in enumerate(written.thresholds)
    ]
    for number, group in enumerate(written.groups):
        rows += [
            (("groups", number, "thresholds", index), row, nodes[number]) for index, row in enumerate(group.thresholds)
        ]
    for at, row, count in rows:
        if row.nodes > count:
            where = "group" if at[0] == "groups" else "cluster"
            why = f"the row is for {row.nodes} nodes, and the {where} has {count}"
            yield (*at, "nodes"), f"{_NO_EFFECT}: {why}"


def empty(value: Any, at: Loc = ()) -> Iterator[tuple[Loc, str]]:
    """Yield places of a file, as plain data, that are written and empty, unless they replace a default that is not, or mean something."""
    if (at and at[-1] in _UNTYPED) or (value == "" and at[:-1] in _ANY):
        return
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from empty(inner, (*at, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from empty(inner, (*at, index))
    elif value in (None, "", {}, []) and isinstance(at[-1], str):
        info = model_at(ClusterFile, at[:-1]).model_fields.get(at[-1])
        default = info.get_default(call_default_factory=True) if info else None
        if at in {(name,) for name in SECTIONS.values()}:
            return  # a section without keys enables its suite
        stated = value == [] and default is None  # none at all, where no key means: not stated
        if not stated and (not default or (value == {} and isinstance(default, BaseModel))):
            yield at, "is empty: write a value, or remove the key"
