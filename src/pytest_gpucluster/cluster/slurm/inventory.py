"""Parsers of `scontrol show node|partition|config`, for Slurm 20.11 and later, without --json.

`scontrol show node -o` prints one line per node, KEY=VALUE separated by blanks, free text (OS, Reason, Comment,
Extra) unquoted. Reason is near the end, as `Reason=FIRST LINE [USER@TIME] FURTHER LINES`, followed by more keys.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist, units

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_REASON = re.compile(r" Reason=(.*)")
# a user may have a realm: [jane.doe@EXAMPLE.COM@2024-01-02T03:04:05]
_WHO_WHEN = re.compile(r" \[([^\s\[\]]+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|Unknown)\]")
# ReservationName since 23.02, Topology and the certificate since 25.05, Parameters since 25.11 (src/api/node_info.c)
# one blank before them, or four where scontrol writes several lines
_AFTER_REASON = re.compile(
    r" {1,4}(?:Comment|Extra|InstanceId|InstanceType|ReservationName|TLSCert\w+|Topology|Parameters)="
)
_FREE_TEXT = re.compile(r" {1,4}(?:Comment|Extra)=")
_SOME_KEY = re.compile(r" {1,4}[A-Z][A-Za-z]*=")  # of versions to come
# since 23.02 it is appended to an existing reason
_SILENT = re.compile(r"^Not responding| : Not responding$")
_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=")
_COUNT = re.compile(r"(\d+)([KMGTP]?)")  # _get_suffix() of src/interfaces/gres.c
_MIG = re.compile(r"(?<!\d)\d+g\.\d+gb", re.IGNORECASE)  # nvidia_a100_1g.5gb, 1g.10gb, 1c.3g.20gb
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
_GOOD_STATES = frozenset({"IDLE", "ALLOCATED", "MIXED"})  # others: DOWN, ERROR, FUTURE, UNKNOWN
# flags that exclude jobs, and the meaning of each without a reason; '' if the flag needs a reason
_BAD_FLAGS = {
    "DRAIN": "",
    "FAIL": "",
    "NOT_RESPONDING": "",
    "INVALID_REG": "slurmd registered with less than slurm.conf states: see slurmctld's log",
    "POWERING_DOWN": "Slurm switches it off to save power (SuspendProgram)",
    "POWER_DOWN": "Slurm is about to switch it off (scontrol power down, SuspendTime)",
    "REBOOT_ISSUED": "it reboots (scontrol reboot)",
    "REBOOT_REQUESTED": "it will reboot when its jobs have ended (scontrol reboot)",
    "MAINTENANCE": "held by a reservation (scontrol show reservation); --set slurm.reservation=NAME runs within it",
    "RESERVED": "held by a reservation (scontrol show reservation); --set slurm.reservation=NAME runs within it",
    "EXTERNAL": "slurm.conf has State=EXTERNAL: Slurm runs no slurmd and no step there",
}
_STATE_WORDS = {
    "UNKNOWN": "it has not registered since the start of slurmctld: wait a moment, or check its slurmd",
    "FUTURE": "slurm.conf reserves it for later (State=FUTURE): slurmctld does not contact its slurmd yet",
}
_RESERVATION_FLAGS = frozenset({"MAINTENANCE", "RESERVED"})
_OCCUPIED = frozenset({"COMPLETING", "BLOCKED", "PERFCTRS"})  # by other jobs: no fault
# slurmd is not running, by intention: the node is off, or changes its power state
_AWAY = frozenset({"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "REBOOT_ISSUED"})
# older and shorter names of flags; as a base state (Slurm 20.11, and sinfo) they mean an idle node with the flag:
# node_state_string() of src/common/slurm_protocol_defs.c
_FLAG_NAMES = {
    "REBOOT": "REBOOT_REQUESTED",
    "MAINT": "MAINTENANCE",
    "NO_RESPOND": "NOT_RESPONDING",
    "POWER": "POWERED_DOWN",  # 20.11
    "DRAINED": "DRAIN",
    "INVAL": "INVALID_REG",
    "RESV": "RESERVED",
}
_FLAGS_AS_STATE = frozenset({"PLANNED", *_OCCUPIED, *_AWAY, *_BAD_FLAGS})
_STATE_NAMES = {"ALLOC": "ALLOCATED", "MIX": "MIXED", "UNK": "UNKNOWN", "FUTR": "FUTURE", "ERR": "ERROR"}


_ENDING = "a job has ended there, its epilog or its processes have not (squeue -t CG; slurmd's log there)"


@dataclass(frozen=True)
class StuckJob:
    """A job that ended `seconds` ago and that a node still holds; `most` seconds are allowed."""

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
    """One node as slurmctld reports it. `state`: without flags, like IDLE. `memory` is bytes; `gres` maps 'gpu:h200' or 'gpu' to a count.

    cpus: CPUTot. cpus_effective: CPUEfctv, which Slurm prints since 22.05: without those of CoreSpecCount and CpuSpecList.
    """

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
    cpus_effective: int = 0
    address: str = ""
    hostname: str = ""
    arch: str = ""  # x86_64; '' where slurmd has not registered
    system: str = ""  # kernel and its build: 'Linux 6.8.0-1045-aws #47~22.04.1-Ubuntu SMP ...'
    stuck: StuckJob | None = None  # set by cluster/slurm/completing.py
    ending_unseen: bool = False  # COMPLETING, but Slurm hides the job from this user

    @property
    def booted(self) -> float:
        """When the node was booted, in seconds since the epoch; 0 if Slurm does not know it."""
        try:
            return datetime.fromisoformat(self.boot_time).astimezone().timestamp()
        except ValueError:
            return 0.0

    @property
    def simulated(self) -> bool:
        """Whether it is a node of slurm-sandbox, which says so by a feature."""
        return "simulated_hardware" in self.features

    @property
    def full_state(self) -> str:
        """The state with its flags, as scontrol writes it: IDLE+DRAIN."""
        return "+".join((self.state, *sorted(self.flags)))

    @property
    def gpus(self) -> int:
        """The number of GPUs in the gres of the node."""
        return sum(count for name, count in self.gres.items() if name.split(":")[0] == "gpu")

    @property
    def job_cpus(self) -> int:
        """The number of CPUs that a job can request."""
        return self.cpus_effective or self.cpus

    @property
    def allocates_mig(self) -> bool:
        """Slurm allocates MIG instances, whose number is not that of the GPUs."""
        return any(_MIG.search(name) for name in self.gres if name.split(":")[0] == "gpu")

    @property
    def busy(self) -> bool:
        """A job runs or ends on the node."""
        works = self.state in _GOOD_STATES - {"IDLE"} or self.cpus_allocated > 0
        return works or bool(self.flags & _OCCUPIED)

    @property
    def away(self) -> bool:
        """The node is powered down, boots or reboots: its slurmd cannot answer yet."""
        # 20.11 shows a node that boots as REBOOT* (NHC's pull request 84)
        boots = self.flags >= {"REBOOT_REQUESTED", "NOT_RESPONDING"}
        return self.state in _GOOD_STATES and (boots or bool(self.flags & _AWAY))

    @property
    def responding(self) -> bool:
        """The node's slurmd responds to the controller."""
        states = {"UNKNOWN", "FUTURE"}
        return "NOT_RESPONDING" not in self.flags and self.state not in states and not self._set_down

    @property
    def silenced(self) -> bool:
        """Slurmctld set the node DOWN since its slurmd did not respond for SlurmdTimeout; no person drained it."""
        return self._set_down and not self.flags & {"DRAIN", "POWERED_DOWN"}

    @property
    def _set_down(self) -> bool:
        # DOWN by an administrator does not concern slurmd; DOWN by slurmctld has this reason
        return self.state == "DOWN" and bool(_SILENT.search(self.reason))

    @property
    def schedulable(self) -> bool:
        """Jobs may start there once it is idle."""
        return self.in_service and self.stuck is None

    @property
    def in_service(self) -> bool:
        """The node is neither out of service nor reserved."""
        return self.state in _GOOD_STATES and not self._obstacles

    @property
    def why_out(self) -> str:
        """The reason of its state; '' in service, where scontrol may show that of an earlier drain (cloud nodes)."""
        return "" if self.in_service else self.reason

    @property
    def reserved(self) -> bool:
        """A reservation holds the node, and no other flag excludes jobs."""
        return self.state in _GOOD_STATES and bool(self._obstacles) and self._obstacles <= _RESERVATION_FLAGS

    @property
    def _obstacles(self) -> frozenset[str]:
        # a node that boots does not respond yet; one that is off cannot be powered down
        moot = {"NOT_RESPONDING"} if "POWERING_UP" in self.flags else set()
        moot |= {"POWER_DOWN"} if "POWERED_DOWN" in self.flags else set()
        return self.flags & _BAD_FLAGS.keys() - moot

    @property
    def available(self) -> bool:
        """The node may be allocated as a whole now."""
        return self.schedulable and not self.busy

    @property
    def label(self) -> str:
        """The state in one word, as in sinfo: DRAINED, DRAINING, DOWN, IDLE."""
        if "DRAIN" in self.flags and self.state in _GOOD_STATES:
            return "DRAINING" if self.busy else "DRAINED"
        return "+".join((self.state, *sorted(self._obstacles)))

    def why_unavailable(self) -> str:
        """Return state, reason, who and when: 'DRAINED: "bad cable" by root since TIME'; '' where available."""
        if self.available:
            return ""
        if self.in_service and self.stuck:
            return str(self.stuck)
        if self.schedulable:
            ending = self.state == "IDLE" and "COMPLETING" in self.flags
            occupied = "+".join((self.state, *sorted(self.flags & {"BLOCKED", "PERFCTRS"})))
            return "COMPLETING: " + _ENDING if ending else f"{occupied}: in use by other jobs"
        return self._with_reason(self.label)

    def annotation(self) -> tuple[str, str]:
        """Return what a failing item shows of its node: state and reason, '' where there is none."""
        return self.full_state, f'"{self.reason}"{self._by()}' if self.reason else ""

    def _with_reason(self, label: str) -> str:
        # on old versions the reason of an earlier drain remains after RESUME: it does not explain a reservation
        if self.reason and not self.reserved:
            return f'{label}: "{self.reason}"{self._by()}'
        words = [_STATE_WORDS.get(self.state, ""), *(_BAD_FLAGS[flag] for flag in sorted(self._obstacles))]
        return f"{label}: {next(filter(None, words), 'no reason given')}"

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
    max_nodes: int | None = None
    allow_groups: tuple[str, ...] = ()  # (): all groups
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
    """One running step: id ('12.3' or '12.extern'), name and nodes."""

    id: str
    name: str
    nodes: tuple[str, ...] = ()


def seen_from_inside(nodes: Mapping[str, NodeInfo], members: Collection[str]) -> dict[str, NodeInfo]:
    """Return the inventory for a job of a reservation: its members do not count as reserved."""
    return {
        name: replace(info, flags=info.flags - _RESERVATION_FLAGS) if name in members else info
        for name, info in nodes.items()
    }


def names_of(nodes: Iterable[str], inventory: Mapping[str, NodeInfo]) -> dict[str, str]:
    """Return {name, address or host name in Slurm: node}, without those that several nodes share."""
    wanted = list(nodes)
    also = [
        (word, node)
        for node in wanted
        if (info := inventory.get(node)) is not None
        for word in {info.address, info.hostname} - {"", node}
    ]
    count = Counter(word for word, _ in also)
    return {**{word: node for word, node in also if count[word] == 1}, **{node: node for node in wanted}}


def parse_nodes(text: str) -> dict[str, NodeInfo]:
    """Read `scontrol show node -o` (or without -o). Raise ValueError for a text without a node that is not empty."""
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
            name,
            state=values["State"],
            nodes=hostlist.expand(_unset(values["Nodes"])),
            default=values["Default"] == "YES",
            max_time=_time(values["MaxTime"]),
            max_nodes=_number(values["MaxNodes"]),
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
            state=values["State"],
            nodes=hostlist.expand(_unset(values["Nodes"])),
            flags=frozenset(filter(None, _unset(values["Flags"]).split(","))),
            start=values["StartTime"],
        )
    return found


def parse_steps(text: str) -> tuple[StepInfo, ...]:
    """Read `scontrol show step -o JOB`."""
    records = (_values(record) for record in _records(text, "StepId="))
    return tuple(StepInfo(it["StepId"], it["Name"], hostlist.expand(_unset(it["NodeList"]))) for it in records)


def parse_config(text: str) -> dict[str, str]:
    """Read `scontrol show config`: 'Key = value' lines; '(null)' becomes ''."""
    config: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][\w\[\]]*", key.strip()):
            config.setdefault(key.strip(), _unset(value.strip()))
    return config


def parse_state(text: str) -> tuple[str, frozenset[str]]:
    """Split 'IDLE+DRAIN', 20.11's 'RESERVED+CLOUD' and 'IDLE*+DRAIN', or sinfo's 'mix~', into base state and flags."""
    found = set()
    words = []
    for part in text.strip().upper().split("+"):
        word = part.rstrip("".join(SUFFIXES))
        found |= {SUFFIXES[suffix] for suffix in part[len(word) :]}
        words.append(_FLAG_NAMES.get(word, word))
    base = _STATE_NAMES.get(words[0], words[0])
    if base == "DRAINING":  # sinfo: jobs still run there
        base, words = "ALLOCATED", [*words, "DRAIN"]
    if base in _FLAGS_AS_STATE:
        base, words = "IDLE", [base, *words]
    return base, frozenset(found.union(filter(None, words[1:])))


def names_of_flags(flags: Collection[str]) -> set[str]:
    """Return all names of flags, also the older and shorter ones."""
    return {*flags, *(short for short, name in _FLAG_NAMES.items() if name in flags)}


def parse_gres(text: str) -> dict[str, int]:
    """Read 'gpu:h200:8(S:0-1),shard:32' as {'gpu:h200': 8, 'shard': 32}.

    NAME[:TYPE][:no_consume][:COUNT[K|M|G|T|P]][(...)], where a type may begin with a digit (2080ti, 1g.10gb) and is
    '(null)' in GresUsed where there is none (src/interfaces/gres.c; src/common/gres.c until 20.11).
    """
    counts: dict[str, int] = {}
    for part in filter(None, re.split(r",(?![^(]*\))", _unset(text.strip()))):
        words = re.sub(r"(?<!:)\([^()]*\)", "", part.strip()).split(":")
        count = _COUNT.fullmatch(words[-1]) if len(words) > 1 else None
        named = words[:-1] if count else words
        name = ":".join(word for word in named if word not in {"(null)", "no_consume"})
        number = int(count[1]) * 1024 ** " KMGTP".index(count[2]) if count else 1
        counts[name] = counts.get(name, 0) + number
    return counts


def _records(text: str, start: str) -> list[str]:
    # a control character in a reason may break the line: a record ends where the next one starts
    pieces = re.split(rf"(?m)^(?={start})", text)
    return [" ".join(piece.split("\n")).rstrip() for piece in pieces if piece.startswith(start)]


def _node(record: str) -> NodeInfo:
    reason, user, when = "", "", ""
    match, comment = _REASON.search(record), _FREE_TEXT.search(record)
    head = record
    if match and not (comment and comment.start() < match.start()):  # else a comment contains "Reason="
        head = record[: match.start()]
        reason, user, when = _reason(match[1])
    values = _values(head)
    state, flags = parse_state(values["State"] or "UNKNOWN")
    return NodeInfo(
        name=values["NodeName"],
        state=state,
        flags=flags,
        gres=parse_gres(values["Gres"]),
        reason=reason,
        reason_user=user,
        reason_time=when,
        cpus=_number(values["CPUTot"]) or 0,
        cpus_effective=_number(values["CPUEfctv"]) or _not_reserved(values),
        memory=(_number(values["RealMemory"]) or 0) * 2**20,
        features=frozenset(filter(None, _unset(values["ActiveFeatures"]).split(","))),
        partitions=tuple(filter(None, _unset(values["Partitions"]).split(","))),
        boot_time=values["BootTime"],
        version=values["Version"],
        cpus_allocated=_number(values["CPUAlloc"]) or 0,
        address=values["NodeAddr"],
        hostname=values["NodeHostName"],
        arch=values["Arch"],
        system=values["OS"],
    )


def _not_reserved(values: Mapping[str, str]) -> int:
    """Return the CPUs of Slurm before 22.05 without those of CPUSpecList, like '0-1,16'; 0 if none is reserved."""
    spans = [part.partition("-") for part in _unset(values["CPUSpecList"]).split(",") if part]
    reserved = sum((_number(end) or 0) - (_number(start) or 0) + 1 if end else 1 for start, _, end in spans)
    return max(0, (_number(values["CPUTot"]) or 0) - reserved) if reserved else 0


def _reason(text: str) -> tuple[str, str, str]:
    # Slurm's own mark is the first before the end, further lines (8 blanks) or a known key
    marks = list(_WHO_WHEN.finditer(text))
    for mark in marks:
        rest = text[mark.end() :]
        if not rest or rest.startswith("        ") or _AFTER_REASON.match(rest):
            more = _AFTER_REASON.split(rest)[0]
            return _clean(text[: mark.start()] + more), mark[1], mark[2]
    for mark in marks:
        if _SOME_KEY.match(text, mark.end()):
            return _clean(text[: mark.start()]), mark[1], mark[2]
    return _clean(_AFTER_REASON.split(text)[0]), "", ""


def _clean(text: str) -> str:
    return re.sub(r" +", " ", _CONTROL.sub(" ", text)).strip()


def _values(record: str) -> Mapping[str, str]:
    """Return KEY -> VALUE, '' for a missing key."""
    values: dict[str, str] = defaultdict(str)
    keys = list(_KEY.finditer(record))
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        end = following.start() if following else len(record)
        values.setdefault(key[1], record[key.end() : end].strip())
    return values


def _list(values: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = _unset(values[key])
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
