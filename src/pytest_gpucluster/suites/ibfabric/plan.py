"""Cabling plans: which port must be connected to which, read from the forms that sites have. Pure, but for `plan_of`.

The content of a file decides its form:

- a point-to-point sheet as CSV: NVIDIA UFM Cable Validation Tool, "P2P File", 1.4 to 1.6 (`A-Node Name`, `A-Port`, `Z-Node Name`,
  `Z-Port`; the header names decide) and 1.7 (`A-Node`, `Z-Node`)
- the output of ibnetdiscover, saved as built: what `ibnetdiscover --diff` compares with
- Slurm's topology.conf(5) and topology.yaml(5): the leaf of each node, without ports
- a node name map of opensm(8): names for GUIDs, no cables
- the HCA mapping file of the Cable Validation Tool ("Optional Files", `port,hca-name`): adapters for the numbers of a sheet, no cables
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
from pytest_gpucluster.suites.ibfabric.subnet import padded, read_ibnetdiscover, short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.suites.ibfabric.subnet import Kind, Link, Subnet, SubnetPort

MAX_BYTES = 2**26  # ibnetdiscover prints 10 MiB of 10,000 hosts


class Cable(NamedTuple):
    """A planned cable by both ends, as the plan writes them; an empty port is any port. where: FILE:LINE."""

    a_node: str
    a_port: str
    z_node: str
    z_port: str
    where: str = ""

    @property
    def label(self) -> str:
        """The cable for people: `gpu01 mlx5_0 - leaf01 1/1`."""
        return f"{self.a_node} {self.a_port}".rstrip() + " - " + f"{self.z_node} {self.z_port}".rstrip()


@dataclass(frozen=True)
class Cabling:
    """Cables, each once, names of devices by GUID (16 hex digits), and adapters of hosts by the name that a sheet has.

    recorded: node descriptions by GUID, as a record of ibnetdiscover has them.
    """

    cables: tuple[Cable, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    recorded: Mapping[str, str] = field(default_factory=dict)


class _File:
    """The text of a plan and its name in errors."""

    def __init__(self, label: str, text: str) -> None:
        self.label, self.text = label, text

    def where(self, line: int) -> str:
        return f"{self.label}:{line}"

    def error(self, line: int, problem: str) -> ConfigError:
        return ConfigError(f"{self.where(line)}: {problem}")

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield number and text of each line that is neither blank nor a comment."""
        for number, line in enumerate(self.text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith(("#", "//")):
                yield number, line.rstrip()


def plan_of(cluster: Cluster) -> Cabling:
    """Return the planned cables; the files stand beside the cluster file. ConfigError names file and line."""
    section = cluster.section(IbFabricConfig)
    stated = section.plan if section is not None else ()
    return read_plan(Path(cluster.file).parent / Path(path).expanduser() for path in stated)


def cables_of_adapters(cluster: Cluster) -> dict[tuple[str, str], str]:
    """Return {(host, adapter): its planned cable}; ports are written `mlx5_0`, `mlx5_0/P1`, or as the HCA mapping has them."""
    plan = plan_of(cluster)
    ends = ((node, port, it) for it in plan.cables for node, port in (it[:2], it[2:4]))
    return {(node, plan.adapters.get(port.lower(), port.partition("/")[0])): it.label for node, port, it in ends}


def read_plan(paths: Iterable[Path]) -> Cabling:
    """Read the files of a plan; ConfigError names file and line."""
    found = [parse_plan(str(path), _text(path)) for path in paths]
    names, adapters, recorded = (
        {key: value for one in found for key, value in getattr(one, what).items()}
        for what in ("names", "adapters", "recorded")
    )
    return Cabling(_each_once(cable for one in found for cable in one.cables), names, adapters, recorded)


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; ibfabric.plan must name the files of a cabling plan")
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: the file exceeds the limit of {MAX_BYTES >> 20} MiB")
    if raw.startswith(b"PK"):
        raise ConfigError(f"{path}: is a workbook; save the sheet with the cables as CSV")
    # Excel's Unicode text is UTF-16
    encoding = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    return raw.decode(encoding, errors="replace")


def parse_plan(label: str, text: str) -> Cabling:
    """Return the plan in a text of any form; ConfigError names `label` and the line."""
    file = _File(label, text)
    for form, read in _FORMS.items():
        if re.search(form, text, re.MULTILINE | re.IGNORECASE):
            found = read(file)
            if not (found.cables or found.names or found.adapters):
                raise ConfigError(f"{label}: the plan has no cables")
            return replace(found, cables=_each_once(found.cables))
    raise ConfigError(
        f"{label}: no known form of a cabling plan: a CSV sheet with the columns A-Node Name, A-Port, Z-Node Name, Z-Port; the "
        "output of ibnetdiscover; topology.conf or topology.yaml of Slurm; a node name map; an HCA mapping"
    )


def _each_once(cables: Iterable[Cable]) -> tuple[Cable, ...]:
    """Return cables that both ends list once; ConfigError for a port with two cables."""
    ends: dict[tuple[str, str], tuple[str, str, str]] = {}
    found = []
    for cable in cables:
        a, z = (cable.a_node, cable.a_port), (cable.z_node, cable.z_port)
        if ends.get(a, ())[:2] == z:
            continue
        for one, other in ((a, z), (z, a)):
            if one in ends and one[1]:
                raise ConfigError(
                    f"{cable.where}: the port {one[1]} of {one[0]} is already connected to {' '.join(ends[one][:2])} "
                    f"at {ends[one][2]}; a port has one cable"
                )
            ends[one] = (*other, cable.where)
        found.append(cable)
    return tuple(found)


# --- a point-to-point sheet --------------------------------------------------------------------------------------

_COLUMNS = {"anode": 0, "anodename": 0, "aport": 1, "znode": 2, "znodename": 2, "zport": 3}


def _sheet(file: _File) -> Cabling:
    """Read CSV separated by comma, semicolon or tab; rows without one end are ports without a cable.

    So are rows with a remark instead of a device, as SPARE or TBD: it has no number, and no port in any row.
    """
    columns: dict[int, int] = {}
    found: list[tuple[int, list[str]]] = []
    head = next((line for _, line in file.lines() if re.search(_SHEET, line, re.IGNORECASE)), "")
    rows = csv.reader(file.text.splitlines(), delimiter=max(",;\t", key=head.count))
    try:
        for row in rows:
            cells = [_cell(cell) for cell in row]
            if len(columns) < 4:
                names = [re.sub(r"[^a-z]", "", cell.lower()) for cell in cells]
                columns = {_COLUMNS[name]: at for at, name in enumerate(names) if name in _COLUMNS}
                continue
            ends = [cells[columns[at]] if columns[at] < len(cells) else "" for at in range(4)]
            if all((ends[0] or ends[1], ends[2] or ends[3])):
                found.append((rows.line_num, ends))
    except csv.Error as error:
        raise file.error(rows.line_num, f"not CSV: {error}") from error
    if len(columns) < 4:
        raise ConfigError(f"{file.label}: no row has all of the columns A-Node Name, A-Port, Z-Node Name, Z-Port")
    devices = {end[0].lower() for _, ends in found for end in (ends[:2], ends[2:]) if all(end)} | {""}
    cables = []
    for line, ends in found:
        if any(not re.search(r"\d", end) and end.lower() not in devices for end in (ends[0], ends[2])):
            continue
        for name, value in zip(("A-Node Name", "A-Port", "Z-Node Name", "Z-Port"), ends, strict=True):
            if not value:
                raise file.error(line, f"{name} is empty; a cable needs node and port of both ends")
        cables.append(Cable._make((*ends, file.where(line))))
    return Cabling(tuple(cables))


def _cell(text: str) -> str:
    """Return the text of a cell; one of dashes alone is empty."""
    return " ".join(text.split()) if re.search(r"\w", text) else ""


# --- others ------------------------------------------------------------------------------------------------------


def _as_built(file: _File) -> Cabling:
    """Cables between the devices as the subnet has named them."""
    subnet = read_ibnetdiscover(file.text)
    names = device_names(subnet, {})
    cables = (
        Cable(*port_words(names, link.a), *port_words(names, link.z), where=file.label)
        for link in subnet.links
        if not is_internal(link)
    )
    return Cabling(tuple(cables), recorded={it.guid: it.description for it in subnet.devices})


def is_internal(link: Link) -> bool:
    """Return whether a link is no cable: that of a switch to its own aggregation node (SHARP)."""
    return "Aggregation Node" in link.a.description


def device_names(subnet: Subnet, names: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return {GUID: name of the switch or host, adapter or ''} of a subnet; `names` are those of a node name map.

    Devices with one name, as switches without a name of their own, have their GUID as name.
    """
    found = {it.guid: _device_name(it.kind, names.get(it.guid, it.description)) for it in subnet.devices}
    count = Counter(found.values())
    return {guid: name if count[name] == 1 else (f"0x{guid}", name[1]) for guid, name in found.items()}


def _device_name(kind: Kind, description: str) -> tuple[str, str]:
    adapter = description.split()[1:2] if kind == "HCA" else []
    return short_name(kind, description), "".join(adapter)


def port_words(names: Mapping[str, tuple[str, str]], port: SubnetPort) -> tuple[str, str]:
    """Return node and port of a subnet as a plan writes them: `leaf01`, `7`; `gpu01`, `mlx5_0/P1`."""
    known = names.get(port.node_guid)  # a device that did not answer has no section of its own
    node, adapter = known or _device_name(port.kind, port.description)
    if port.kind != "HCA":
        return node, str(port.number)
    return node, f"{adapter or 'mlx5_0'}/P{port.number}"  # a host with one adapter may not name it


def _slurm_conf(file: _File) -> Cabling:
    leaves, text = [], ""
    for number, line in enumerate([*file.text.splitlines(), ""], 1):
        text += line.partition("#")[0].rstrip()
        if text.endswith("\\"):  # continued in the next line
            text = text[:-1]
            continue
        fields = {name.lower(): value for name, value in re.findall(r"(\w{1,40})\s*=\s*(\S+)", text)}
        text = ""
        if "switchname" in fields and "nodes" in fields:
            leaves.append((number, fields["switchname"], fields["nodes"]))
    return _leaves(file, leaves)


def _slurm_yaml(file: _File) -> Cabling:
    """Read the switches with nodes of each `tree`."""
    try:
        root = yaml.compose(file.text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise file.error(mark.line + 1 if mark else 1, "not YAML") from error
    leaves = []
    for topology in _items(root):
        for switch in _items(_of(_of(topology, "tree"), "switches")):
            name, nodes = _of(switch, "switch"), _of(switch, "nodes")
            if isinstance(name, yaml.ScalarNode) and isinstance(nodes, yaml.ScalarNode):
                leaves.append((nodes.start_mark.line + 1, name.value, nodes.value))
    return _leaves(file, leaves)


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _of(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _leaves(file: _File, leaves: Iterable[tuple[int, str, str]]) -> Cabling:
    cables = []
    for line, switch, nodes in leaves:
        try:
            names = hostlist.expand(nodes)
        except ValueError as error:
            raise file.error(line, str(error)) from error
        cables += [Cable(node, "", switch, "", file.where(line)) for node in names]
    return Cabling(tuple(cables))


# the name ends at a quote or # (rdma-core, util/node_name_map.c)
_NAME = re.compile(r'\s*0x([0-9a-fA-F]{1,16})\s+"?([^"#]*)')


def _name_map(file: _File) -> Cabling:
    names = {}
    for number, line in file.lines():
        found = _NAME.match(line)
        if not found:
            raise file.error(number, 'must be 0xGUID "NAME" (opensm(8), node name map)')
        names[padded(found[1])] = found[2].strip()
    return Cabling((), names)


_ADAPTER = re.compile(r"\s*([^,]{1,64}?)\s*,\s*([\w.-]{1,64})\s*$")


def _hca_mapping(file: _File) -> Cabling:
    adapters = {}
    for number, line in list(file.lines())[1:]:
        found = _ADAPTER.match(line)
        if not found:
            raise file.error(number, "must be PORT,HCA-NAME like 2,mlx5_3")
        adapters[found[1].lower()] = found[2]
    return Cabling(adapters=adapters)


_SHEET = r"^(?=.*\ba[ _-]?node)(?=.*\bz[ _-]?node)"
_FORMS: dict[str, Callable[[_File], Cabling]] = {
    r'^(Switch|Ca|Rt)\s+\d+\s+"[SHR]-': _as_built,
    r"^[ \t]*(Switch|Block|Ring)Name[ \t]*=": _slurm_conf,
    r"^[ \t]*-[ \t]+topology[ \t]*:": _slurm_yaml,
    _SHEET: _sheet,
    r"^[ \t]*0x[0-9a-f]{1,16}[ \t]+(?!.*==\()\S": _name_map,  # iblinkinfo has ==( ... )==>
    r"^[ \t]*port[ \t]*,[ \t]*hca-name[ \t]*$": _hca_mapping,
}
