"""Find a cluster file, read it, put the profiles in place."""

from __future__ import annotations

import os
import socket
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pytest_gpucluster.config.ansible import Inventory, read_inventory
from pytest_gpucluster.config.factors import read_factors
from pytest_gpucluster.config.models import (
    NO_ENVIRONMENT,
    SECTIONS,
    Cluster,
    ClusterFile,
    ClusterSettings,
    GroupFile,
    HostAddress,
    Profile,
)
from pytest_gpucluster.config.profile_files import load_profile, profile_of
from pytest_gpucluster.config.unused import empty, without_effect
from pytest_gpucluster.config.validation_errors import nearest, problems, strange_file, together
from pytest_gpucluster.config.yaml_loader import Loc, Source, clip, read_source
from pytest_gpucluster.core import hostlist, units
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.values import named_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

BUILT_IN = Path(__file__).parent / "clusters"
# The sandbox writes this cluster's file itself when it starts; the plugin knows where.
GENERATED = "sandbox"
GENERIC = {"extends": "generic"}


def _user_folder() -> tuple[Path, ...]:
    named = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(named) if named else Path.home() / ".config",)
    except RuntimeError:  # a user without a home, as in many a CI container
        return ()


def search_path() -> tuple[Path, ...]:
    """Return the folders that are searched for cluster files, first match wins."""
    own = (folder / "pytest-gpucluster" / "clusters" for folder in _user_folder())
    return (Path("clusters"), *own, Path("/etc/pytest-gpucluster/clusters"), BUILT_IN)


def cluster_names() -> tuple[str, ...]:
    """Return the names that `load_cluster` can find, and the generated one, sorted."""
    return tuple(sorted({*_names_in(search_path()), GENERATED}))


def own_cluster_names() -> tuple[str, ...]:
    """Return the names of the site's cluster files, sorted."""
    return tuple(sorted(_names_in(search_path()[:-1])))


def _names_in(folders: Iterable[Path]) -> set[str]:
    return {path.stem for folder in folders for end in ("yaml", "yml") for path in folder.glob(f"*.{end}")}


def find_cluster(name_or_path: str | Path) -> Path:
    """Return the file of a cluster, by name or path; ConfigError lists the known names and the searched folders."""
    name = str(name_or_path)
    if not name.strip():
        raise ConfigError(f"no cluster is named; there are: {', '.join(cluster_names())}")
    if "/" in name or name.endswith((".yaml", ".yml")):
        return _existing(Path(name).expanduser())
    for folder in search_path():
        for path in (folder / f"{name}.yaml", folder / f"{name}.yml"):
            if _exists(path):
                return path
    if name == GENERATED:
        raise ConfigError("the cluster 'sandbox' has no file of its own: it is made by `gpucluster sandbox up`")
    known, folders = ", ".join(cluster_names()), ", ".join(map(str, search_path()[:-1]))
    raise ConfigError(
        f"no cluster is called '{clip(name)}'{nearest(name, cluster_names())} (there are: {known};"
        f" searched {folders} and the built-in ones; a path works too)"
    )


TYPED = ("settings",)  # sections whose scalars YAML types


def load_cluster(name_or_path: str | Path, *, profile: str | None = None, changes: Iterable[str] = ()) -> Cluster:
    """Return the cluster of a name or path; `profile` (a name, NAME:COUNT or path) replaces every group's.

    `changes`: texts KEY=VALUE, as the option --set has them, which replace values of the file.
    ConfigError is one line, `FILE:LINE: key.path: what is wrong; did you mean 'nearest'?`, that ends with the number
    of further errors of the file; its `every` has all of them.
    """
    source = changed_source(find_cluster(name_or_path), changes)
    forced = load_profile(profile) if profile else None
    written = _validated(source)
    hosts = _inventory_hosts(source, written)
    if hosts and written.nodes is None and not written.groups:
        written = written.model_copy(update={"nodes": _folded(source, hosts)})
    errors: list[ConfigError] = []
    groups = [
        {
            "nodes": _this_host(group.nodes, written),
            "profile": forced or _profile(source, *_part(written, group, at), errors),
            "partition": group.partition,
            "thresholds": (*group.thresholds, *written.thresholds),
        }
        for at, group in _groups(source, written)
    ]
    groups += _section_groups(source, written, groups, forced, errors)
    if not groups:
        raise source.error((), "names no nodes: write `nodes: gpu[01-16]` and `profile: NAME`, or `groups`")
    shared = {name: getattr(written, name) for name in ClusterSettings.model_fields}
    known = {node for group in groups for node in hostlist.expand(str(group["nodes"]))}
    shared["factors"] = read_factors(source, written.factors, known, errors)
    shared["suites"] = tuple(str(Path(source.label).parent / folder) for folder in written.suites)
    name = written.name or Path(source.label).stem
    cluster = Cluster(
        name=name,
        groups=tuple(groups),
        hosts=hosts,
        waivers=_waivers(source, written),
        file=source.label,
        file_sha256=source.sha256,
        **shared,
    )
    misplaced = chain(
        _shared_nodes(cluster),
        _unread(written),
        _unknown_environments(cluster),
        _too_many_nodes(cluster),
        _unknown_nodes(cluster),
    )
    errors += [source.error(loc, problem) for loc, problem in misplaced]
    if errors:
        raise together(errors)
    return _with_warnings(cluster, written, source)


def changed_source(path: Path, changes: Iterable[str]) -> Source:
    """Return the data of a cluster file after changes, texts KEY=VALUE."""
    source = read_source(path, typed=TYPED)
    for text in changes:
        source.put(text, typed=TYPED)
    return source


def _with_warnings(cluster: Cluster, written: ClusterFile, source: Source) -> Cluster:
    """Return a cluster with one warning per value of its file that nothing uses; ConfigError for one that an option gives."""
    idle = [*without_effect(written, cluster)]
    if refused := [source.error(*one) for one in idle if source.is_given(one[0])]:
        raise together(refused)
    if source.is_given(("access",)):  # the file is written for the other kind of access
        idle = [one for one in idle if one[0][0] not in ("slurm", "ssh")]
    idle += [one for one in empty(source.data) if not source.is_given(one[0])]
    found = sorted(idle, key=lambda one: source.line(one[0]))
    return cluster.model_copy(update={"warnings": tuple(str(source.error(*one)) for one in found)})


def _waivers(source: Source, written: ClusterFile) -> tuple[dict[str, Any], ...]:
    """Return the waivers, each with the place where it is written: an expired one is reported with it."""
    places = (source.where(("waivers", index)) for index in range(len(written.waivers)))
    return tuple({**it.model_dump(), "at": at} for it, at in zip(written.waivers, places, strict=True))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file system takes
        return False


def _existing(path: Path) -> Path:
    try:
        path.stat()
    except PermissionError as error:
        why = f"this user cannot enter a folder of the path ({error.strerror})"
        raise ConfigError(f"{clip(path, 200)}: {why}") from error
    except (OSError, ValueError):
        raise ConfigError(f"{clip(path, 200)}: there is no such file") from None
    return path


def _validated(source: Source) -> ClusterFile:
    if why := strange_file(source.data, ClusterFile, "cluster file"):
        raise ConfigError(f"{source.label} {why}")
    try:
        return ClusterFile.model_validate(source.data)
    except ValidationError as error:
        found = sorted(problems(error, ClusterFile), key=lambda one: source.line(one[0]))
        errors = [source.error(loc, problem) for loc, problem in found]
        for at, part in _profile_parts(source.data):
            _profile(source, part, at, errors)
        raise together(errors) from None


def _profile_parts(data: Mapping[str, Any]) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """Yield the profiles of a file that has other errors."""
    groups = data.get("groups")
    holders: dict[Loc, Any] = {(): data}
    holders |= {("groups", index): it for index, it in enumerate(groups if isinstance(groups, list) else ())}
    for at, keys in holders.items():
        part = keys.get("profile") if isinstance(keys, dict) else None
        if isinstance(part, (str, dict)) and part:
            yield (*at, "profile"), {"extends": part} if isinstance(part, str) else part


def _inventory_hosts(source: Source, written: ClusterFile) -> dict[str, HostAddress]:
    """Return the addresses of the inventory's nodes; {} where the cluster file names no inventory."""
    if written.inventory is None:
        return {}
    path = Path(source.label).parent / Path(written.inventory).expanduser()
    if path.is_dir():
        raise source.error(("inventory",), f"{clip(path, 200)}: is a directory, not a file")
    try:
        _existing(path)
    except ConfigError as error:
        raise source.error(("inventory",), str(error)) from None
    inventory = read_inventory(path)
    named = written.nodes is not None or written.groups  # of which the file has no group
    hosts = () if named else inventory.hosts("slurm-node") or inventory.hosts("all")
    hosts = hosts or inventory.every_host()
    if not hosts:
        raise source.error(("inventory",), f"{path} has no hosts")
    return {host: _address(inventory, host, path) for host in hosts}


def _folded(source: Source, names: Iterable[str]) -> str:
    try:
        return named_nodes(hostlist.fold(names))
    except ValueError as error:
        raise source.error(("inventory",), f"names no nodes as Slurm does: {clip(error, 200)}") from error


def _address(inventory: Inventory, host: str, path: Path) -> HostAddress:
    """Return where a host is reached, by Ansible's variables for connections."""

    def stated(*names: str) -> str | None:
        return next(filter(None, (inventory.variable(host, f"ansible_{name}") for name in names)), None)

    port, user = stated("port", "ssh_port"), stated("user", "ssh_user")
    if port is not None and not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ConfigError(f"{path}: {clip(host)}: ansible_port must be a port, not {clip(port)}")
    found = {"port": port, "user": user, "key_file": stated("ssh_private_key_file")}
    return HostAddress.model_validate({"host": stated("host", "ssh_host") or host, **found})


def _groups(source: Source, written: ClusterFile) -> list[tuple[Loc, GroupFile]]:
    """Return each group and where it stands; `nodes` at the top is the short form of one group."""
    if written.nodes is not None:
        if written.groups:
            raise source.error(("groups",), "'nodes' at the top is for a single group; use one of the two")
        return [((), GroupFile(nodes=written.nodes, profile=written.profile))]
    return [(("groups", index), group) for index, group in enumerate(written.groups)]


def _section_groups(
    source: Source,
    written: ClusterFile,
    groups: list[dict[str, Any]],
    forced: Profile | None,
    errors: list[ConfigError],
) -> list[dict[str, Any]]:
    """Return a group of the nodes that a section names, and that no group of the file has."""
    known = {node for group in groups for node in hostlist.expand(group["nodes"])}
    found: list[dict[str, Any]] = []
    for key, section in written.sections().items():
        named, part = section.own_nodes()
        own = [node for node in named if node not in known]
        at: Loc = (key, "profile")
        if own:
            extends = {"extends": part} if isinstance(part, str) else part or written.profile or GENERIC
            profile = forced or _profile(source, extends, at if part else ("profile",), errors)
            found.append({"nodes": hostlist.fold(own), "profile": profile, "section": key})
            known.update(own)
        elif part is not None:
            errors.append(source.error(at, "has no effect: `nodes` or `groups` give every node its profile"))
    return found


def _part(written: ClusterFile, group: GroupFile, at: Loc) -> tuple[dict[str, Any], Loc]:
    """Return the profile of a group as it is written, and where."""
    if group.profile is not None:
        return group.profile, (*at, "profile")
    return GENERIC if written.profile is None else written.profile, ("profile",)


def _profile(source: Source, part: dict[str, Any], at: Loc, errors: list[ConfigError]) -> Profile:
    """Return a profile; of a wrong one the generic one, so that the rest of the file can be read for `errors`."""
    try:
        return profile_of(part, source, at)
    except ConfigError as error:
        errors.append(error)
        return load_profile("generic")


def _this_host(nodes: str, written: ClusterFile) -> str:
    """Return the nodes; without a scheduler 'localhost' is this machine under its own name."""
    if written.slurm.scheduler == "none" and nodes == "localhost":
        return socket.gethostname().partition(".")[0] or nodes
    return nodes


def _shared_nodes(cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    """Yield one node of each group that has nodes of groups before it."""
    seen: dict[str, int] = {}
    for index, group in enumerate(cluster.groups):
        shared = next((node for node in group.names if node in seen), None)
        if shared is not None:
            yield ("groups", index, "nodes"), f"{shared} is in groups[{seen[shared]}] already"
        seen |= dict.fromkeys(group.names, index)


def _unknown_nodes(cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    """Yield the keys that name nodes which the cluster does not have."""
    known = {node for group in cluster.groups for node in group.names}
    named = [(("location", nodes), nodes) for nodes in cluster.location]
    named += [(("units", unit), nodes) for unit, nodes in cluster.units.items()]
    for loc, nodes in named:
        if unknown := [node for node in hostlist.expand(nodes) if node not in known]:
            yield loc, f"the cluster has no node {hostlist.fold(unknown)}"


def _unread(written: ClusterFile) -> Iterator[tuple[Loc, str]]:
    """Yield keys that have no effect without another one, and suites that an empty section does not enable."""
    transport = written.transport
    for name in SECTIONS.values():
        if name in written.model_fields_set and getattr(written, name) is None:
            yield (name,), f"has no value, so the suite stays off: write `{name}: {{}}`, or remove the key"
    if "host" not in transport.model_fields_set:  # where it is null, the others wait for it
        for key in sorted(transport.model_fields_set):
            yield ("transport", key), "has no effect without 'host'"
    for name, section in written.sections().items():
        for key, problem in section.without_effect():
            yield (name, key), problem


def _unknown_environments(cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    known = cluster.environments
    for where, section in cluster.sections().items():
        for key in section.environment_keys:
            name = getattr(section, key, None)
            if name is not None and name not in (NO_ENVIRONMENT, *known):
                guess = nearest(name, known) or f"; there are: {', '.join(known) or 'none'}"
                yield (where, key), f"no environment is called '{clip(name)}'{guess}"


def _too_many_nodes(cluster: Cluster) -> Iterator[tuple[Loc, str]]:
    count = sum(len(group.names) for group in cluster.groups)
    for where, section in cluster.sections().items():
        nodes = getattr(section, "nodes", None)
        if isinstance(nodes, int) and nodes > count:
            yield (where, "nodes"), f"asks for {nodes} nodes; the cluster has {count}"
    if cluster.min_nodes is not None and units.share_of(cluster.min_nodes, count) > count:
        yield ("min_nodes",), f"asks for {cluster.min_nodes} nodes; the cluster has {count}"
