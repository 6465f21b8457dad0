"""Ansible inventories, as far as drafting a cluster file needs them: hosts, groups, variables.

Reads the INI form that DeepOps uses, and the YAML form. Source of the formats: Ansible's documentation,
"How to build your inventory".
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.config.yaml_loader import clip, read_source, read_text
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.hostlist import MAX_NODES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RANGE = re.compile(r"\[([0-9]{1,9}|[a-z]):([0-9]{1,9}|[a-z])(?::([0-9]{1,6}))?\]")
_SECTION = re.compile(r"\[([^\]:]+)(?::(vars|children|hosts))?\]")


@dataclass
class InventoryGroup:
    """One group: its own hosts with their variables, the names of its child groups, its variables."""

    hosts: dict[str, dict[str, str]] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Inventory:
    """All groups of an inventory."""

    groups: dict[str, InventoryGroup] = field(default_factory=dict)

    def group(self, name: str) -> InventoryGroup:
        """Return a group, made where it is not there yet."""
        return self.groups.setdefault(name, InventoryGroup())

    def hosts(self, name: str) -> tuple[str, ...]:
        """Return the hosts of a group and of its children, each once, in the order of the file."""
        found: dict[str, None] = {}
        for group in self._family(name):
            found |= dict.fromkeys(self.groups[group].hosts)
        return tuple(found)

    def every_host(self) -> tuple[str, ...]:
        """Return the hosts of all groups, each once, in the order of the file."""
        return tuple(dict.fromkeys(host for group in self.groups.values() for host in group.hosts))

    def variable(self, host: str, name: str) -> str | None:
        """Return a variable of a host: its own, else that of its groups, else that of `all`."""
        for group in self.groups.values():
            if name in group.hosts.get(host, {}):
                return group.hosts[host][name]
        holders = [key for key in self.groups if key != "all" and host in self.hosts(key)]
        holders.sort(key=lambda key: len(self.hosts(key)))  # the narrower group knows better
        for key in (*holders, "all"):
            if key in self.groups and name in self.groups[key].variables:
                return self.groups[key].variables[name]
        return None

    def _family(self, name: str) -> list[str]:
        """Return a group and its descendants; groups that contain each other are no trap."""
        family: list[str] = []
        waiting = [name]
        while waiting:
            group = waiting.pop(0)
            if group in self.groups and group not in family:
                family.append(group)
                waiting += self.groups[group].children
        return family


def read_inventory(path: Path) -> Inventory:
    """Read an Ansible inventory file, INI or (by its ending) YAML; ConfigError names file and line."""
    inventory = Inventory()
    if path.suffix in (".yaml", ".yml"):
        for name, body in read_source(path).data.items():
            _yaml_group(inventory, name, body, path)
        return inventory
    _read_ini(inventory, path)
    return inventory


def _read_ini(inventory: Inventory, path: Path) -> None:
    group, section_type = inventory.group("ungrouped"), "hosts"
    for number, line in enumerate(read_text(path).splitlines(), 1):
        section = _SECTION.fullmatch(line.partition("#")[0].strip())
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        if section:
            group, section_type = inventory.group(section[1].strip()), section[2] or "hosts"
        elif section_type == "vars":
            key, _, value = line.partition("=")
            group.variables[key.strip()] = value.strip().strip("'\"")
        elif section_type == "children":
            group.children.append(line.split()[0])
        else:
            _add_hosts(group, _words(line, path, number), path, number)


def _words(line: str, path: Path, number: int) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError(f"{path}:{number}: not an inventory line ({error}): {clip(line)}") from None


def _add_hosts(group: InventoryGroup, words: list[str], path: Path, number: int) -> None:
    variables = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    name, colon, port = words[0].rpartition(":")
    # gpu01:2222; the colon of a range is followed by a bracket
    if colon and port.isascii() and port.isdecimal():
        variables = {"ansible_port": port, **variables}
    else:
        name = words[0]
    for host in _unrolled(name, f"{path}:{number}"):
        group.hosts.setdefault(host, {}).update(variables)
    if len(group.hosts) > MAX_NODES:
        raise ConfigError(f"{path}:{number}: a group of more than {MAX_NODES} hosts")


def _yaml_group(inventory: Inventory, name: str, body: Any, path: Path) -> None:
    group = inventory.group(name)
    for key, value in _mapping(body, name, path).items():
        if key == "hosts":
            for pattern, variables in _mapping(value, name, path).items():
                for host in _unrolled(pattern, str(path)):
                    group.hosts.setdefault(host, {}).update(_texts(_mapping(variables, pattern, path)))
        elif key == "children":
            for child, inner in _mapping(value, name, path).items():
                group.children.append(child)
                _yaml_group(inventory, child, inner, path)
        elif key == "vars":
            group.variables.update(_texts(_mapping(value, name, path)))


def _mapping(value: Any, name: str, path: Path) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {clip(name)}: must be a mapping, as in an Ansible inventory")
    return value


def _texts(variables: dict[str, Any]) -> dict[str, str]:
    return {key: value for key, value in variables.items() if isinstance(value, str)}


def _unrolled(pattern: str, where: str) -> Iterator[str]:
    """Unroll a host pattern; ConfigError beyond what any cluster has: ranges multiply."""
    for number, host in enumerate(_hosts(pattern, where)):
        if number >= MAX_NODES:
            raise ConfigError(f"{where}: the host range {clip(pattern)} names more than {MAX_NODES} hosts")
        yield host


def _hosts(pattern: str, where: str) -> Iterator[str]:
    """Unroll Ansible's host ranges: gpu[01:16], rack[a:c], both ends included, with an optional step."""
    match = _RANGE.search(pattern)
    if not match:
        yield pattern
        return
    for middle in _range(match, where):
        yield from _hosts(f"{pattern[: match.start()]}{middle}{pattern[match.end() :]}", where)


def _range(match: re.Match[str], where: str) -> list[str]:
    first, last, step = match[1], match[2], int(match[3] or 1)
    if first.isdigit() != last.isdigit() or step == 0:
        raise ConfigError(f"{where}: not a host range: {match[0]}")
    if not first.isdigit():
        return [chr(code) for code in range(ord(first), ord(last) + 1, step)]
    if int(last) - int(first) > MAX_NODES:
        raise ConfigError(f"{where}: the host range {match[0]} names more than {MAX_NODES} hosts")
    return [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1, step)]
