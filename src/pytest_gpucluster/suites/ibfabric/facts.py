"""What the tools show of the subnet from one host, and what each node shows of its own ports. Pure.

Formats: infiniband-diags of rdma-core (sminfo.c, saquery.c, ibqueryerrors.c) in the outputs of subnet.sh; opensm's log and
options (osm_ucast_mgr.c); ibdiagnet2.db_csv and ibdiagnet2.net_dump_ext of ibdiagnet 2, whose columns their header lines name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.part import port as port_part
from pytest_gpucluster.core.probe import Probe, last_line
from pytest_gpucluster.core.safe_json import finite
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.gpu.node_links import ENTRIES_SH
from pytest_gpucluster.kit.gpu.pcie import pci_path
from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
from pytest_gpucluster.suites.ibfabric.subnet import (
    PortState,
    Subnet,
    padded,
    read_iblinkinfo,
    read_ibnetdiscover,
    with_states,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.core.probe import Answer

T = TypeVar("T")
Key = tuple[str, int]  # GUID of a port, of a switch that of port 0, and its number

# the names of ibqueryerrors, and those of sysfs, which kit/node/port_errors.py has limits for
COUNTERS = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped",
}
_COUNT = re.compile(r"\d{1,18}")
SUBNET_SH = script(__package__, "subnet.sh", SECONDS=IbFabricConfig.counted, DIAGNET=IbFabricConfig.diagnet)


@dataclass(frozen=True)
class Manager:
    """A subnet manager as sminfo shows it; state: SMINFO_MASTER, SMINFO_STANDBY, ..."""

    lid: int
    guid: str
    state: str


@dataclass(frozen=True)
class PortRecord:
    """What the subnet manager has of a port. mtu: in use; max_mtu: what the port is able to; manager: LID of its master.

    filters: it drops packets of partitions that are not in its own table (PartEnforceInb, PartEnforceOutb).
    """

    mtu: int
    max_mtu: int
    manager: int
    filters: bool = False


@dataclass(frozen=True)
class BitErrors:
    """Bit error ratios of ibdiagnet after forward error correction, and the number of symbol errors that they come from."""

    fec: str
    effective: float
    symbol: float
    errors: int


@dataclass(frozen=True)
class Readings:
    """The error counters of all ports that have any, at one time in seconds since the epoch."""

    time: float
    counters: Mapping[Key, Mapping[str, int]]


@dataclass(frozen=True)
class NodePort:
    """An InfiniBand port of a node, by sysfs. address: of its adapter on PCI, '' if unknown."""

    device: str
    number: int
    guid: str
    state: str
    address: str = ""

    @property
    def part(self) -> Part:
        """The port as the part of a finding: mlx5_0 port 1 (0000:5e:00.0)."""
        return port_part(self.device, self.number, address=self.address)

    @property
    def place(self) -> str:
        """What is the same port on other nodes."""
        return f"{self.address or self.device} port {self.number}"


@dataclass(frozen=True)
class NodePorts:
    """The InfiniBand ports of a node, and whether it has infiniband-diags."""

    ports: tuple[NodePort, ...]
    tools: bool = False


@dataclass(frozen=True)
class FabricFacts:
    """All that the tools show. `missing`: {part of subnet.sh: why it shows nothing}.

    pkeys: the partition keys of each port, sorted. firmware: {GUID of a switch: (PSID, version)}. engine: what routes are made by, as
    the log of opensm on this host has it; configured: the first engine of its options; '' where they are not on this host. parts: of a
    host in several subnets what the tools show of each; LIDs and managers are those of a subnet. unread: {port, or a device as port 0:
    what ibdiagnet shows of it that is no value}.
    """

    host: str
    subnet: Subnet
    ports: tuple[PortState, ...] = ()
    managers: tuple[Manager, ...] = ()
    records: Mapping[Key, PortRecord] = field(default_factory=dict)
    pkeys: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)
    before: Readings | None = None
    after: Readings | None = None
    engine: str = ""
    configured: str = ""
    firmware: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    bit_errors: Mapping[Key, BitErrors] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[FabricFacts, ...] = ()
    unread: Mapping[Key, str] = field(default_factory=dict)

    @property
    def each(self) -> tuple[FabricFacts, ...]:
        """The facts of each subnet."""
        return self.parts or (self,)

    def need(self, part: str) -> None:
        """Raise NotAvailable if a tool showed nothing."""
        if part in self.missing:
            raise NotAvailable(f"{self.missing[part]} (on {self.host})")

    @property
    def seconds(self) -> float:
        """The time between both readings of the counters; NotAvailable without two."""
        self.need("before")
        self.need("after")
        if not self.before or not self.after:
            raise NotAvailable("ibqueryerrors: the counters were not read twice")
        return max(1.0, self.after.time - self.before.time)

    def rises(self, key: Key) -> dict[str, int]:
        """Return {counter: increase} of a port between both readings, without those that were cleared meanwhile."""
        before = self.before.counters.get(key, {}) if self.before else {}
        after = self.after.counters.get(key, {}) if self.after else {}
        risen = {name: value - before.get(name, 0) for name, value in after.items()}
        return {name: rise for name, rise in risen.items() if rise > 0}


NOT_INSTALLED = (
    "install infiniband-diags there, or name a host that has it: `ibfabric: {host: HOST}` in the cluster file"
)
NOT_PERMITTED = (
    "/dev/infiniband/umad* needs root: `sudo: true` in the cluster file, a udev rule that gives a group access, or a host where "
    "this is so (`ibfabric.host`)"
)
NOT_INFINIBAND = (
    "no InfiniBand port is up there, and one of Ethernet was opened: name a host in the subnet (`ibfabric.host`)"
)
_TOOLS = {
    "before": "ibqueryerrors",
    "subnet": "ibnetdiscover",
    "links": "iblinkinfo",
    "managers": "sminfo",
    "ports": "saquery",
    "pkeys": "saquery PKTR",
    "after": "ibqueryerrors",
}


def read_fabric(host: str, out: str, err: str) -> FabricFacts:
    """Return what subnet.sh printed, of all subnets; NotAvailable with what to do where ibnetdiscover found nothing."""
    shown, failures = [], []
    texts = [re.split(r"^= port .*$", text, flags=re.MULTILINE) for text in (out, err)]
    for one, its_err in zip_longest(*texts, fillvalue=""):
        if one.strip() or out == one:
            try:
                shown.append(_read_subnet(host, one, its_err))
            except NotAvailable as error:
                failures.append(error)
    if not shown:
        raise failures[0]
    return _joined(shown)


def _joined(parts: list[FabricFacts]) -> FabricFacts:
    """Return the facts of a host in several subnets as one; the counters have the longest time between both readings."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    missing = {part: why for it in reversed(parts) for part, why in it.missing.items()}
    times = [it.after.time - it.before.time for it in parts if it.before and it.after]
    before, after = (
        Readings(time, {key: its for it in readings if it for key, its in it.counters.items()})
        for time, readings in (
            (0.0, [it.before for it in parts]),
            (max(times, default=0.0), [it.after for it in parts]),
        )
    )
    return replace(
        first,
        subnet=Subnet(
            tuple(device for it in parts for device in it.subnet.devices),
            tuple(link for it in parts for link in it.subnet.links),
        ),
        ports=tuple(port for it in parts for port in it.ports),
        managers=tuple(manager for it in parts for manager in it.managers),
        records={key: its for it in parts for key, its in it.records.items()},
        pkeys={key: its for it in parts for key, its in it.pkeys.items()},
        before=before,
        after=after,
        missing=missing,
        parts=tuple(parts),
    )


def _read_subnet(host: str, out: str, err: str) -> FabricFacts:
    parts, printed = _parts(out), re.split(r"^= (\w+)$", err, flags=re.MULTILINE)
    errors = dict(zip(printed[1::2], printed[2::2], strict=False))
    missing = {
        part: _why(tool, host, parts.get(part), errors.get(part, ""))
        for part, tool in _TOOLS.items()
        if part not in parts or not _is_whole(part, *parts[part])
    }
    if "subnet" in missing:
        raise NotAvailable(missing["subnet"])
    text = {part: "" if part in missing else body for part, (body, _) in parts.items()}
    ports = () if "links" in missing else read_iblinkinfo(text["links"])
    subnet = with_states(read_ibnetdiscover(text["subnet"]), ports)
    if not subnet.links:
        raise NotAvailable(
            f"ibnetdiscover on {host}: its port has no link: name a host in the subnet (`ibfabric.host`)"
        )
    # saquery has a port by its LID; those of two subnets may be the same
    guids = {end.lid: end.guid for link in subnet.links for end in link.ends}
    unread: dict[Key, str] = {}
    engines = re.findall(r"(\S+) tables configured on all switches", text.get("routing", ""))
    stated = re.search(r"^routing_engine\s+([\w-]+)", text.get("routing", ""), re.MULTILINE)
    return FabricFacts(
        host,
        subnet,
        ports,
        read_managers(text.get("managers", "")),
        _by_guid(guids, dict(_records(text.get("ports", "")))),
        _by_guid(guids, read_pkeys(text.get("pkeys", ""))),
        read_errors(text.get("before", "")) if "before" not in missing else None,
        read_errors(text.get("after", "")) if "after" not in missing else None,
        engines[-1] if engines else "",
        stated[1] if stated and stated[1] != "null" else "",
        read_firmware(text.get("ibdiagnet", ""), unread),
        read_bit_errors(text.get("ibdiagnet", ""), unread),
        missing,
        unread=unread,
    )


def _by_guid(guids: Mapping[int, str], found: Mapping[tuple[int, int], T]) -> dict[Key, T]:
    return {(guids[lid], number): its for (lid, number), its in found.items() if lid in guids}


def _parts(text: str) -> dict[str, tuple[str, int]]:
    """Return {part: (what it printed, its exit status)} of the parts that ended."""
    found = re.findall(r"^= (\w+)\n(.*?)^= exit (\d{1,3})$", text, re.MULTILINE | re.DOTALL)
    return {name: (body, int(status)) for name, body, status in found}


def _is_whole(part: str, text: str, status: int) -> bool:
    """Return whether a tool has printed its answer.

    ibqueryerrors ends with 1 where it shows a counter, and without a subnet manager with 0 and no summary.
    """
    return "## Summary:" in text if part in ("before", "after") else status == 0 and bool(text.strip())


def _why(tool: str, host: str, part: tuple[str, int] | None, stderr: str) -> str:
    if part is None:
        return f"{tool} did not run on {host}: the host was lost, or the time is over"
    if part[1] == 127:
        return f"{tool} is not on {host}: {NOT_INSTALLED}"
    # ibexit() prints to stdout what failed, and libibmad to stderr why
    error = re.search(r"^\S+: iberror: .*", part[0], re.MULTILINE)
    words = ": ".join(dict.fromkeys(filter(None, (error and error[0], last_line(stderr)))))
    words = words or f"exit status {part[1]}"
    if re.search(r"permission denied|can't open UMAD|open_port failed|Failed to open", stderr, re.IGNORECASE):
        return f"{tool} on {host}: {words}: {NOT_PERMITTED}"
    # the last resort of umad_open_port is any port that is not disabled
    if "client_register for mgmt" in stderr:
        return f"{tool} on {host}: {words}: {NOT_INFINIBAND}"
    return f"{tool} on {host}: {words}"


def read_managers(text: str) -> tuple[Manager, ...]:
    """Return the subnet managers of the lines of sminfo, each once."""
    found = re.findall(
        r"sm lid (\d{1,9}) sm guid 0x([0-9a-fA-F]{1,16}), activity count \d+ priority \d+ state \d+ (\w+)", text
    )
    named = {guid: Manager(int(lid), padded(guid), state) for lid, guid, state in found}
    return tuple(named.values())


def _records(text: str) -> Iterator[tuple[tuple[int, int], PortRecord]]:
    """Yield the ports that subnet.sh takes out of `saquery PIR`: LID, port, state, MTU, highest MTU, LID of the manager, filter."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 7 and all(_COUNT.fullmatch(word) for word in (*words[:2], *words[3:])):
            mtu, most, manager, filters = map(int, words[3:])
            yield (int(words[0]), int(words[1])), PortRecord(mtu, most, manager, bool(filters))


def read_pkeys(text: str) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return {LID and number of a port: its partition keys} of what subnet.sh takes out of `saquery PKTR`, a line per 8 keys."""
    found: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for lid, port, keys in re.findall(r"^(\d{1,6}) (\d{1,3})((?: 0x[0-9a-f]{4})+)$", text, re.MULTILINE):
        found[int(lid), int(port)].update(int(key, 16) for key in keys.split())
    return {port: tuple(sorted(keys)) for port, keys in found.items()}


def read_errors(text: str) -> Readings:
    """Return the counters of ibqueryerrors with all thresholds at 0; ProbeError if its summary is missing."""
    if "## Summary:" not in text:
        raise ProbeError("ibqueryerrors: the output ends before its summary")
    counters: dict[Key, dict[str, int]] = {}
    for guid, port, rest in re.findall(r"^\s+GUID 0x([0-9a-fA-F]{1,16}) port (\d{1,3}):(.*)$", text, re.MULTILINE):
        values = {name: int(value) for name, value in re.findall(r"\[(\w+) == (\d{1,20})(?!\d)", rest)}
        if known := {usual: values[name] for name, usual in COUNTERS.items() if name in values}:
            counters[padded(guid), int(port)] = known
    time = re.search(r"^time (\d{1,12})", text, re.MULTILINE)
    return Readings(float(time[1]) if time else 0.0, counters)


_NO_VALUE = ("", "N/A", "NA")  # of a device or a port that does not have it


def read_firmware(text: str, unread: dict[Key, str]) -> dict[str, tuple[str, str]]:
    """Return {GUID of a device: (PSID, firmware)} of the table NODES_INFO of ibdiagnet2.db_csv; {} without it.

    What is no version is added to `unread`.
    """
    table = re.search(r"^START_NODES_INFO\n(.*?)^END_NODES_INFO", text, re.MULTILINE | re.DOTALL)
    names = ("FWInfo_Extended_Major", "FWInfo_Extended_Minor", "FWInfo_Extended_SubMinor")
    found = {}
    rows = [line.split(",") for line in table[1].splitlines()] if table else []
    for values in rows[1:]:
        row = dict(zip(rows[0], values, strict=False))
        guid, parts = padded(row.get("NodeGUID", "")), [row.get(name, "").strip() for name in names]
        if all(re.fullmatch("(0x)?[0-9a-fA-F]{1,8}", it) for it in parts):
            version = ".".join(str(int(it, 16)) for it in parts)
            found[guid] = (row.get("FWInfo_PSID", ""), version)
        elif not all(it in _NO_VALUE for it in parts):
            unread[guid, 0] = f"firmware {'.'.join(parts)!r}"
    return found


def read_bit_errors(text: str, unread: dict[Key, str]) -> dict[Key, BitErrors]:
    """Return the bit errors of the ports in ibdiagnet2.net_dump_ext; {} without it. The name of a device may contain colons.

    What is neither a ratio nor a count is added to `unread`.
    """
    found: dict[Key, BitErrors] = {}
    columns: list[str] = []
    for line in text.splitlines():
        if re.match(r"^\s*Ty\s*:", line):
            columns = [word.strip() for word in line.split(":")]
        elif columns and line.count(":") >= len(columns) - 1:
            row = dict(zip(columns, (word.strip() for word in line.split(":")), strict=False))
            number = row.get("#IB", row.get("IB#", ""))
            if not _COUNT.fullmatch(number):
                continue
            key = padded(row.get("GUID", "")), int(number)
            shown = {name: row.get(name, "") for name in ("Effective BER", "Symbol BER", "Symbol Err")}
            odd = [f"{name} {it!r}" for name, it in shown.items() if it not in _NO_VALUE and _number(it) is None]
            effective, symbol, errors = map(_number, shown.values())
            if odd:
                unread[key] = ", ".join(odd)
            elif effective is not None and symbol is not None:
                found[key] = BitErrors(row.get("FEC mode", ""), effective, symbol, int(errors or 0))
    return found


def _number(text: str) -> float | None:
    """Return a number like 1.5e-254 or 812; None for another text, and below 0."""
    try:
        value = finite(float(text))
    except ValueError:
        return None
    return value if value is not None and value >= 0 else None


def parse_node_ports(answer: Answer) -> NodePorts:
    """Return the InfiniBand ports of a node, also none; ProbeError if the end of the answer is missing."""
    lines = answer.out.splitlines()
    if "end" not in lines or answer.truncated:
        raise ProbeError("/sys/class/infiniband: the answer ended early")
    values: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for device, port, name, text in re.findall(
        r"infiniband/([^/\s]+)/ports/(\d{1,3})/(link_layer|state|gids/0):(.*)$", answer.out, re.MULTILINE
    ):
        values[device, port][name] = text.strip()
    paths = {words[1]: pci_path(words[2]) for line in lines if len(words := line.split()) == 3 and words[0] == "path"}
    ports = tuple(
        NodePort(
            device,
            int(port),
            "".join(row.get("gids/0", "").split(":")[4:]).lower(),
            row.get("state", "").partition(":")[2].strip(),
            (paths.get(device) or ("",))[-1],
        )
        for (device, port), row in values.items()
        if row.get("link_layer") == "InfiniBand"
    )
    return NodePorts(ports, "tools" in lines)


NODE_PORTS = Probe(
    "InfiniBand ports",
    f"{ENTRIES_SH}\n{script(__package__, 'ports.sh')}",
    parse_node_ports,
    by_hand="grep . /sys/class/infiniband/*/ports/*/gids/0; command -v ibnetdiscover",
    alone=True,  # its answer starts the reading of the subnet
)
