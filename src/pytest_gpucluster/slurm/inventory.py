"""What `scontrol show node|partition|config` say, on Slurm 22.05 and later without --json.

`scontrol show node -o` prints one line a node, KEY=VALUE separated by blanks, free text (OS, Reason, Comment,
Extra) unquoted. Reason comes late, as `Reason=FIRST LINE [USER@TIME] FURTHER LINES`, more keys behind it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucluster import hostlist, units

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_REASON = re.compile(r" Reason=(.*)$")
_WHO_WHEN = re.compile(r" \[([^\s@\[\]]+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\]")
# ReservationName since 23.02, Topology and the certificate since 25.05, Parameters since 25.11 (src/api/node_info.c)
_AFTER_REASON = re.compile(
    r" (?:Comment|Extra|InstanceId|InstanceType|NextState|ResumeAfterTime"
    r"|ReservationName|TLSCert\w+|Topology|Parameters)="
)
_SOME_KEY = re.compile(r" [A-Z][A-Za-z]*=")  # of versions to come
_SILENT = re.compile(
    r"^Not responding| : Not responding$"
)  # since 23.02 it goes behind a reason that is there
_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=")
_GRES = re.compile(r"(?P<name>\w+)(?::(?P<type>[^:(),\d][^:(),]*))?(?::(?P<count>\d+)(?P<unit>[KMG]?))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

# sinfo's suffixes, man sinfo "NODE STATE CODES", as the flags that scontrol prints
SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_BAD_STATES = frozenset({"DOWN", "ERROR", "FUTURE", "UNKNOWN", "INVAL", "BLOCKED"})
_BAD_FLAGS = frozenset(
    {"DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG", "POWERING_DOWN", "POWER_DOWN"}
    | {"REBOOT_ISSUED", "REBOOT_REQUESTED", "MAINTENANCE", "RESERVED", "BLOCKED"}
)
_RESERVATION_FLAGS = frozenset({"MAINTENANCE", "RESERVED"})
_FLAG_NAMES = {"REBOOT": "REBOOT_REQUESTED", "MAINT": "MAINTENANCE", "NO_RESPOND": "NOT_RESPONDING"}


_ENDING = "a job has ended there, its epilog or its processes have not (squeue -t CG; slurmd's log there)"


@dataclass(frozen=True)
class Stuck:
    """A job has ended `seconds` ago and the node still holds it, which it may for `most` seconds."""

    job: str
    user: str
    seconds: float
    most: float

    def __str__(self) -> str:
        took, most = units.format_duration(self.seconds), units.format_duration(self.most)
        return (
            f"COMPLETING for {took} (at most {most}): job {self.job} of {self.user} has ended there, its epilog or its "
            "processes have not (slurmd's log there)"
        )


@dataclass(frozen=True)
class NodeInfo:
    """One node as slurmctld knows it. `memory` is bytes; `gres` maps 'gpu:h200' or 'gpu' to a count."""

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    gres: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    reason_user: str = ""
    reason_time: str = ""
    cpus: int = 0
    memory: int = 0
    features: frozenset[str] = frozenset()
    partitions: tuple[str, ...] = ()
    boot_time: str = ""
    version: str = ""
    cpus_allocated: int = 0
    address: str = ""
    hostname: str = ""
    stuck: Stuck | None = None  # slurm/completing.py finds out
    ending_unseen: bool = False  # COMPLETING, but Slurm shows us no job of it

    @property
    def base_state(self) -> str:
        """The state without its flags: IDLE, ALLOCATED, MIXED, DOWN, ..."""
        return self.state

    @property
    def full_state(self) -> str:
        """The state with its flags, as scontrol writes it: IDLE+DRAIN."""
        return "+".join((self.state, *sorted(self.flags)))

    @property
    def gpus(self) -> int:
        """GPUs of any type that Slurm counts on the node."""
        return sum(count for name, count in self.gres.items() if name.split(":")[0] == "gpu")

    @property
    def busy(self) -> bool:
        """A job runs there, or ends just now."""
        return self.state in {"ALLOCATED", "MIXED"} or "COMPLETING" in self.flags or self.cpus_allocated > 0

    @property
    def responding(self) -> bool:
        """The controller hears the node's slurmd."""
        # an administrator's DOWN says nothing of slurmd; slurmctld's own has this reason
        silent = self.state == "DOWN" and bool(_SILENT.search(self.reason))
        return "NOT_RESPONDING" not in self.flags and self.state not in {"UNKNOWN", "FUTURE"} and not silent

    @property
    def schedulable(self) -> bool:
        """Jobs may start there once it is idle."""
        return self.in_service and self.stuck is None

    @property
    def in_service(self) -> bool:
        """Nobody has taken it out of service or reserved it."""
        return self.state not in _BAD_STATES and not (self.flags & _BAD_FLAGS)

    @property
    def available(self) -> bool:
        """The node may be allocated as a whole now."""
        return self.schedulable and not self.busy

    @property
    def label(self) -> str:
        """One word for people, as sinfo would say it: DRAINED, DRAINING, DOWN, IDLE."""
        if "DRAIN" in self.flags and self.state not in _BAD_STATES:
            return "DRAINING" if self.busy else "DRAINED"
        extra = sorted(self.flags & _BAD_FLAGS)
        return "+".join((self.state, *extra))

    def why_unavailable(self) -> str:
        """Return state, reason, who and when: 'DRAINED: "bad cable" by root since TIME'; '' where available."""
        if self.available:
            return ""
        if self.in_service and self.stuck:
            return str(self.stuck)
        if self.schedulable:
            ending = self.state == "IDLE" and "COMPLETING" in self.flags
            return "COMPLETING: " + _ENDING if ending else f"{self.state}: in use by other jobs"
        return self._with_reason(self.label)

    def annotation(self) -> tuple[str, ...]:
        """Return the lines that a failing item shows for its node."""
        lines = [f"Slurm state: {self.full_state}"]
        if self.reason:
            lines.append(f'reason: "{self.reason}"{self._by()}')
        return tuple(lines)

    def _with_reason(self, label: str) -> str:
        if self.reason:
            return f'{label}: "{self.reason}"{self._by()}'
        if self.state == "UNKNOWN":
            return f"{label}: slurmctld has not heard of it since it was started: wait a moment, or look at its slurmd"
        if self.flags & {"RESERVED", "MAINTENANCE", "MAINT"}:
            return f"{label}: held by a reservation (scontrol show reservation); --reservation=NAME runs within it"
        return f"{label}: no reason given"

    def _by(self) -> str:
        by = f" by {self.reason_user}" if self.reason_user else ""
        return by + (f" since {self.reason_time}" if self.reason_time else "")


@dataclass(frozen=True)
class PartitionInfo:
    """One partition. Times are seconds, None: unlimited or not set."""

    name: str
    state: str
    nodes: tuple[str, ...] = ()
    default: bool = False
    max_time: float | None = None
    default_time: float | None = None
    max_nodes: int | None = None
    over_subscribe: str = ""
    allow_groups: tuple[str, ...] = ()  # none: all may
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReservationInfo:
    """One reservation: its state (ACTIVE, INACTIVE), nodes, flags, and start as Slurm writes a time."""

    name: str
    state: str
    nodes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    start: str = ""


@dataclass(frozen=True)
class StepInfo:
    """One step that runs: '12.3' or '12.extern', its name and nodes."""

    id: str
    name: str
    nodes: tuple[str, ...] = ()


def seen_from_inside(nodes: Mapping[str, NodeInfo], members: Collection[str]) -> dict[str, NodeInfo]:
    """Return the inventory as a job of a reservation sees it: its own members are not reserved for others."""
    return {
        name: replace(info, flags=info.flags - _RESERVATION_FLAGS) if name in members else info
        for name, info in nodes.items()
    }


def parse_nodes(text: str) -> dict[str, NodeInfo]:
    """Read `scontrol show node -o` (or without -o). Raise ValueError for text that names no node but is not empty."""
    nodes = {}
    for record in _records(text, "NodeName="):
        node = _node(record)
        if not hostlist.is_name(node.name):
            raise ValueError(f"no name of a node: {node.name[:60]!r}")
        nodes[node.name] = node
    if not nodes and text.strip() and "No nodes" not in text:
        raise ValueError(f"no node in scontrol's answer: {text.strip()[:80]!r}")
    return nodes


def parse_partitions(text: str) -> dict[str, PartitionInfo]:
    """Read `scontrol show partition -o`."""
    partitions = {}
    for record in _records(text, "PartitionName="):
        values = _values(record)
        name = values["PartitionName"]
        partitions[name] = PartitionInfo(
            name=name,
            state=values.get("State", ""),
            nodes=hostlist.expand(_unset(values.get("Nodes", ""))),
            default=values.get("Default") == "YES",
            max_time=_time(values.get("MaxTime", "")),
            default_time=_time(values.get("DefaultTime", "")),
            max_nodes=_number(values.get("MaxNodes", "")),
            over_subscribe=values.get("OverSubscribe", ""),
            allow_groups=_list(values, "AllowGroups"),
            allow_accounts=_list(values, "AllowAccounts"),
            deny_accounts=_list(values, "DenyAccounts"),
            allow_qos=_list(values, "AllowQos"),
            deny_qos=_list(values, "DenyQos"),
        )
    return partitions


def parse_reservations(text: str) -> dict[str, ReservationInfo]:
    """Read `scontrol show reservation -o`; 'No reservations in the system' is none."""
    found = {}
    for record in _records(text, "ReservationName="):
        values = _values(record)
        name = values["ReservationName"]
        found[name] = ReservationInfo(
            name=name,
            state=values.get("State", ""),
            nodes=hostlist.expand(_unset(values.get("Nodes", ""))),
            flags=frozenset(filter(None, _unset(values.get("Flags", "")).split(","))),
            start=values.get("StartTime", ""),
        )
    return found


def parse_steps(text: str) -> tuple[StepInfo, ...]:
    """Read `scontrol show step -o JOB`."""
    records = (_values(record) for record in _records(text, "StepId="))
    return tuple(
        StepInfo(
            values["StepId"],
            values.get("Name", ""),
            hostlist.expand(_unset(values.get("NodeList", ""))),
        )
        for values in records
    )


def parse_config(text: str) -> dict[str, str]:
    """Read `scontrol show config`: 'Key = value' lines; '(null)' becomes ''."""
    config: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][\w\[\]]*", key.strip()):
            config.setdefault(key.strip(), _unset(value.strip()))
    return config


def parse_state(text: str) -> tuple[str, frozenset[str]]:
    """Split 'IDLE+DRAIN*' or sinfo's 'drained*' into the base state and its flags."""
    base, *flags = text.strip().upper().split("+")
    found = set()
    parts = []
    for part in (base, *flags):
        word = part
        while word and word[-1] in SUFFIXES:
            found.add(SUFFIXES[word[-1]])
            word = word[:-1]
        parts.append(word)
    found |= {_FLAG_NAMES.get(word, word) for word in parts[1:] if word}
    return parts[0], frozenset(found)


def parse_gres(text: str) -> dict[str, int]:
    """Read 'gpu:h200:8(S:0-1),shard:32' as {'gpu:h200': 8, 'shard': 32}."""
    counts: dict[str, int] = {}
    for part in re.split(r",(?![^(]*\))", _unset(text)):
        match = _GRES.match(part.strip())
        if not match or not part.strip():
            continue
        name = match["name"] + (f":{match['type']}" if match["type"] else "")
        factor = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match["unit"] or ""]
        counts[name] = counts.get(name, 0) + int(match["count"] or 1) * factor
    return counts


def _records(text: str, start: str) -> list[str]:
    # a control character in a reason may break the line: a record goes on until the next one starts
    pieces = re.split(rf"(?m)^(?={start})", text)
    return [" ".join(piece.split("\n")).rstrip() for piece in pieces if piece.startswith(start)]


def _node(record: str) -> NodeInfo:
    reason, user, when = "", "", ""
    match = _REASON.search(record)
    head = record
    if match:
        head = record[: match.start()]
        reason, user, when = _reason(match[1])
    values = _values(head)
    state, flags = parse_state(values.get("State", "UNKNOWN"))
    return NodeInfo(
        name=values["NodeName"],
        state=state,
        flags=flags,
        gres=parse_gres(values.get("Gres", "")),
        reason=reason,
        reason_user=user,
        reason_time=when,
        cpus=_number(values.get("CPUTot", "")) or 0,
        memory=(_number(values.get("RealMemory", "")) or 0) * 2**20,
        features=frozenset(filter(None, _unset(values.get("ActiveFeatures", "")).split(","))),
        partitions=tuple(filter(None, _unset(values.get("Partitions", "")).split(","))),
        boot_time=values.get("BootTime", ""),
        version=values.get("Version", ""),
        cpus_allocated=_number(values.get("CPUAlloc", "")) or 0,
        address=values.get("NodeAddr", ""),
        hostname=values.get("NodeHostName", ""),
    )


def _reason(text: str) -> tuple[str, str, str]:
    # Slurm's own mark is the first that is followed by the end, further lines (8 blanks) or a key that is known
    marks = list(_WHO_WHEN.finditer(text))
    for mark in marks:
        rest = text[mark.end() :]
        if not rest or rest.startswith("        ") or _AFTER_REASON.match(rest):
            more = _AFTER_REASON.split(rest, maxsplit=1)[0]
            return _clean(text[: mark.start()] + " " + more), mark[1], mark[2]
    for mark in marks:
        if _SOME_KEY.match(text, mark.end()):
            return _clean(text[: mark.start()]), mark[1], mark[2]
    return _clean(_AFTER_REASON.split(text, maxsplit=1)[0]), "", ""


def _clean(text: str) -> str:
    return re.sub(r"  +", " ", _CONTROL.sub(" ", text)).strip()


def _values(record: str) -> dict[str, str]:
    values: dict[str, str] = {}
    keys = list(_KEY.finditer(record))
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        end = following.start() if following else len(record)
        values.setdefault(key[1], record[key.end() : end].strip())
    return values


def _list(values: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = _unset(values.get(key, ""))
    return () if text == "ALL" else tuple(filter(None, text.split(",")))


def _unset(value: str) -> str:
    return "" if value in {"(null)", "N/A", "None", "NONE", "none"} else value


def _number(value: str) -> int | None:
    return int(value) if re.fullmatch(r"\d+", value) else None


def _time(value: str) -> float | None:
    try:
        return units.parse_duration(value)
    except ValueError:
        return None  # UNLIMITED, NONE
