"""Results of a burn-in: sums per node over the lines of its payload. Pure.

The sums of each round go into the event log as plain types; a resumed burn-in adds them up again. GPUs are identified
by UUID.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.part import Part, port
from pytest_gpucluster.core.part import gpu as gpu_part
from pytest_gpucluster.kit.gpu.gpu_processes import EXPECTED_PROCESSES
from pytest_gpucluster.kit.mpi.mpi_errors import code_of
from pytest_gpucluster.suites.burnin.config import DTYPES, HOST_METRICS, BurninLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpucluster.config.models import Profile

    Line = Mapping[str, Any]

HOST = ""  # the part that is the node itself
MAX_PROBLEMS = 50
MAX_STRANGERS = 8
_ALL_DIFFER = "the usual result on another GPU of this node: its libraries may change bits on all of them"
UNDECIDED = "no majority decides which is right"
# load -> {key of its result: metric}
_RATES = {
    "hbm": {"gbs": "hbm"},
    "copies": {"h2d": "h2d", "d2h": "d2h"},
    "peer": {"gbs": "peer"},
    "cpu": {"rate": "cpu"},
    "memory": {"rate": "memory"},
    "storage": {"write": "storage_write", "read": "storage_read"},
    "rdma": {"rate": "rdma"},
    "matmul": {"checking": "checking"},
    "gpu_memory": {"tested": "tested"},
}
UNITS: dict[str, str] = {
    **dict.fromkeys(("hbm", *HOST_METRICS), "GB/s"),
    "cpu": "units/s",
    "power": "W",
    "checking": "of the time",
    "tested": "of the free memory",
}
# loads that need a quiet GPU, or leave it alone for a time: the record of power is without them
_COOL = ("dcgm", "hbm", "copies", "idle", "bursts")
_FEW = 3  # samples of power from which on it is compared


# the codes of a load whose process died or hangs, from the payload
ENDS = ("ended", "killed", "crashed", "starved", "exited", "stopped", "hangs_in_kernel", "hangs")
# errors of a rank that only waited for a failed rank: a timeout or a closed connection
WAITED = "waited"
_BY_OTHERS = re.compile(
    r"[Tt]imed? ?out|[Cc]onnection (?:closed|reset|refused|was)|[Bb]roken pipe|[Rr]emote ?(?:[Ee]rror|process)"
)


class LoadFailure(NamedTuple):
    """How a load failed on a part. `members`: the nodes of its group. An older log has the first three values."""

    load: str
    part: str
    text: str
    code: str = "failed"
    members: tuple[str, ...] = ()

    @classmethod
    def read(cls, load: str, part: str, result: Line) -> LoadFailure:
        """Read a result with a problem: its code is that of the payload, else that of what torch or NCCL printed."""
        members = tuple(map(str, result.get("members", ())))
        about = f" ({result['dtype']})" if "dtype" in result else f" ({' '.join(members)})" if members else ""
        text = str(result["problem"])[:300]
        code = str(result.get("code") or "") or code_of(text, "failed")
        if load == "nccl" and (code == "hangs" or _BY_OTHERS.search(text)):
            code = WAITED
        return cls(load, part, f"{text}{about[:300]}", code, members)

    @property
    def process_ended(self) -> bool:
        """Whether the load's process died or hung, so that its result is unknown. Of collectives another node may be the cause."""
        return self.code in ENDS and self.load != "nccl"


@dataclass(frozen=True)
class Mismatch:
    """A result that differs from others; `disputed` states who has which result if no majority decides."""

    text: str
    disputed: str = ""


@dataclass(frozen=True)
class GpuInfo:
    """One GPU of a node: index of nvidia-smi, names, limits."""

    index: int
    uuid: str
    bus: str = ""
    name: str = ""
    pcie_gen: int | None = None
    pcie_width: int | None = None
    slow_celsius: float | None = None
    foreign: tuple[str, ...] = ()  # processes that were on it before the burn-in
    power_limit: float | None = None  # watts
    power_default: float | None = None  # watts

    @property
    def capped(self) -> str:
        """The power limit, if it is set below the card's default; else, or if unknown, ''."""
        if not self.power_limit or not self.power_default or self.power_limit >= 0.99 * self.power_default:
            return ""
        return f"power limit set to {self.power_limit:g} of {self.power_default:g} W"

    @property
    def part(self) -> Part:
        """The part of a finding."""
        return gpu_part(self.index, uuid=self.uuid, address=self.bus)


@dataclass
class Peaks:
    """Readings of the sensors of one GPU under load."""

    samples: int = 0
    celsius: float | None = None
    sm_mhz: list[float] = field(default_factory=list)  # median of each matmul load
    slow: Counter[str] = field(default_factory=Counter)  # reason -> samples

    def add(self, samples: int, seen: Line) -> None:
        """Add the summary of one load, or the sums of a round."""
        self.samples += samples
        known = [value for value in (self.celsius, seen.get("celsius")) if value is not None]
        self.celsius = max(known, default=None)


@dataclass
class NodeTotals:
    """The sums of one node. `hello` is the first line of its agent, None if there was none."""

    node: str
    hello: dict[str, Any] | None = None
    rounds: int = 0
    # metric -> part -> value of each round
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    wrong: dict[str, dict[str, int]] = field(default_factory=dict)  # load -> part -> wrong results
    first_wrong: dict[str, str] = field(default_factory=dict)  # part -> its first wrong word of GPU memory
    checked: dict[str, dict[str, int]] = field(default_factory=dict)  # load -> part -> results compared
    hashes: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # key -> part -> distinct hashes
    rose: dict[str, dict[str, int]] = field(default_factory=dict)  # part -> counter -> increase
    rose_in: dict[str, list[str]] = field(default_factory=dict)  # 'part counter' -> loads
    peaks: dict[str, Peaks] = field(default_factory=dict)
    watts: dict[str, dict[str, int]] = field(default_factory=dict)  # part -> power -> hot samples
    slowed: dict[str, dict[str, float]] = field(default_factory=dict)  # part -> reason -> seconds
    # load -> why the hardware or the cluster file leaves it out
    skips: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)  # load -> what it needs and lacks
    problems: list[LoadFailure] = field(default_factory=list)
    partners: dict[str, list[float]] = field(default_factory=dict)  # other node -> bus bandwidths
    ran: Counter[str] = field(default_factory=Counter)  # load -> number of runs
    # part -> processes of others during the loads
    strangers: dict[str, list[str]] = field(default_factory=dict)
    # part -> load -> runs beside processes of others
    shared: dict[str, dict[str, int]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)  # source of counters -> why it could not be read
    dcgm: dict[str, Any] | None = None
    out: str = ""  # why the node could not take part
    lost: str = ""  # how the node was lost
    lost_code: str = ""

    def absent(self) -> NotAvailable:
        """Return why there is no hello."""
        return NotAvailable(f"the node never took part: {self.lost or self.out or 'its agent sent nothing'}")

    # --- names

    @property
    def gpus(self) -> dict[str, GpuInfo]:
        """{UUID: GPU} of nvidia-smi and of the workers."""
        if self.hello is None:
            return {}
        found = {}
        for gpu in self.hello.get("gpus", ()):
            found[gpu["uuid"]] = GpuInfo(
                gpu["index"],
                gpu["uuid"],
                gpu.get("bus", ""),
                gpu.get("name", ""),
                _int(gpu.get("pcie_gen")),
                _int(gpu.get("pcie_width")),
                gpu.get("slow_celsius"),
                _foreign(f"{entry['name']} (pid {entry['pid']})" for entry in gpu.get("processes", ())),
                gpu.get("power_limit"),
                gpu.get("power_default"),
            )
        for about in self.hello.get("devices", ()):
            uuid = about.get("uuid") or f"device {about['gpu']}"
            found.setdefault(uuid, GpuInfo(about["gpu"], uuid, about.get("bus", ""), about.get("name", "")))
        return found

    @property
    def used(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs under load."""
        devices = (self.hello or {}).get("devices", ())
        return tuple(about.get("uuid") or f"device {about['gpu']}" for about in devices)

    def part(self, uuid: str) -> Part:
        """Return a part: a GPU by its UUID, a port like mlx5_0/1, '' the node."""
        if known := self.gpus.get(uuid):
            return known.part
        adapter, _, number = uuid.partition("/")
        if number.isdigit():
            return port(adapter, int(number))
        return Part("device" if uuid else "node", name=uuid)

    def others(self, uuid: str, load: str) -> tuple[str, ...]:
        """Return the processes of others on a GPU: before the burn-in, or during at least half of the runs of a load."""
        if (gpu := self.gpus.get(uuid)) and gpu.foreign:
            return gpu.foreign
        often = 2 * self.shared.get(uuid, {}).get(load, 0) >= max(1, self.ran[load])
        return tuple(self.strangers.get(uuid, ())) if often else ()

    @property
    def simulated(self) -> bool:
        """Whether the GPUs of this node are simulated."""
        return bool((self.hello or {}).get("simulated"))

    # --- adding up

    def add(self, line: Line) -> None:
        """Add one line of kind `load`."""
        load = str(line["load"])
        ran = [self._add_result(load, result) for result in line.get("results", ())]
        if any(ran):
            self.ran[load] += 1
        for part, counters in line.get("deltas", {}).items():
            for counter, count in counters.items():
                self._add_increase(part, counter, count, [load])
        self._add_sensors(load, line.get("sensors", {}))
        for uuid, names in line.get("strangers", {}).items():
            if foreign := _foreign(names):
                self._add_strangers(uuid, foreign)
                _count(self.shared, uuid, load, 1)
        if "unread" in line:
            self._add_unread(line["unread"])

    def _add_sensors(self, load: str, sensors: Mapping[str, Line]) -> None:
        for uuid, seen in sensors.items():
            if load not in _COOL:
                self._add_power(uuid, seen.get("watts", {}), seen.get("slowed", {}))
            peaks = self.peaks.setdefault(uuid, Peaks())
            samples = int(seen.get("samples", 0))
            peaks.add(samples, seen)
            peaks.slow.update({name: round(share * samples) for name, share in seen.get("slow", {}).items()})
            if load == "matmul" and seen.get("sm_mhz") is not None:
                peaks.sm_mhz.append(seen["sm_mhz"])

    def _add_power(self, part: str, watts: Mapping[str, int], slowed: Mapping[str, float]) -> None:
        for value, count in watts.items():
            _count(self.watts, part, value, count)
        reasons = self.slowed.setdefault(part, {}) if slowed else {}
        for reason, seconds in slowed.items():
            reasons[reason] = reasons.get(reason, 0.0) + seconds

    def _add_unread(self, unread: Mapping[str, str]) -> None:
        """Add the sources that could not be read; if nvidia-smi answers again, the driver does not hang."""
        for source in ("gpu", "hung", "killed"):  # what nvidia-smi did last
            self.unread.pop(source, None)
        self.unread.update(unread)

    def _add_strangers(self, uuid: str, names: Iterable[str]) -> None:
        known = self.strangers.setdefault(uuid, [])
        known.extend(name for name in names if name not in known and len(known) < MAX_STRANGERS)

    def _add_result(self, line_load: str, result: Line) -> bool:
        """Add one result; return whether it is a complete result of the load itself."""
        load = str(result.get("load", line_load))
        part = str(result.get("uuid") or (f"device {result['gpu']}" if "gpu" in result else HOST))
        if result.get("problem"):
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append(LoadFailure.read(load, part, result))
        elif result.get("lacks"):
            self.lacks[load] = str(result["lacks"])
        elif result.get("skip"):
            self.skips[load] = str(result["skip"])
        elif load == "dcgm":
            self.dcgm = dict(result)
            return True
        else:
            self.ran[load] += load != line_load  # beside another load
            self._add_measured(load, part, result)
            return load == line_load
        return False

    def _add_measured(self, load: str, part: str, result: Line) -> None:
        _count(self.wrong, load, part, int(result.get("wrong", 0)))
        _count(self.checked, load, part, int(result.get("checked", 1)))
        if result.get("first") and load == "gpu_memory":
            self.first_wrong.setdefault(part, str(result["first"]))
        for hash_ in [result["hash"]] if "hash" in result else result.get("hashes", ()):
            known = self.hashes.setdefault(str(result["key"]), {}).setdefault(part, [])
            if hash_ not in known and len(known) < MAX_PROBLEMS:
                known.append(hash_)
        for metric, value in _rates_of(load, result):
            self.rates.setdefault(metric, {}).setdefault(part, []).append(float(value))
        if "busbw" in result and result.get("gpu") == 0:  # all GPUs of the node have the same value
            for member in result["members"]:
                if member != self.node:
                    self.partners.setdefault(member, []).append(float(result["busbw"]))

    def _add_increase(self, part: str, counter: str, count: int, loads: list[str]) -> None:
        counters = self.rose.setdefault(part, {})
        counters[counter] = counters.get(counter, 0) + count
        known = self.rose_in.setdefault(f"{part} {counter}", [])
        known.extend(load for load in loads if load not in known)

    def merge(self, other: NodeTotals) -> None:
        """Add the sums of further rounds."""
        self.hello, self.dcgm = other.hello or self.hello, other.dcgm or self.dcgm
        self.out, self.lost = self.out or other.out, self.lost or other.lost
        self.lost_code = self.lost_code or other.lost_code
        self.rounds += other.rounds
        self._merge_results(other)
        for part, rises in other.rose.items():
            for counter, count in rises.items():
                self._add_increase(part, counter, count, other.rose_in.get(f"{part} {counter}", []))
        for uuid, seen in other.peaks.items():
            peaks = self.peaks.setdefault(uuid, Peaks())
            peaks.add(seen.samples, vars(seen))
            peaks.sm_mhz.extend(seen.sm_mhz)
            peaks.slow.update(seen.slow)
        for part in other.watts.keys() | other.slowed.keys():
            self._add_power(part, other.watts.get(part, {}), other.slowed.get(part, {}))
        self.first_wrong = {**other.first_wrong, **self.first_wrong}
        for uuid, names in other.strangers.items():
            self._add_strangers(uuid, names)
        self.skips.update(other.skips)
        self.lacks.update(other.lacks)
        self.problems.extend(other.problems[: MAX_PROBLEMS - len(self.problems)])
        self.ran.update(other.ran)
        self._add_unread(other.unread)

    def _merge_results(self, other: NodeTotals) -> None:
        for metric, parts in other.rates.items():
            for part, values in parts.items():
                self.rates.setdefault(metric, {}).setdefault(part, []).extend(values)
        for partner, values in other.partners.items():
            self.partners.setdefault(partner, []).extend(values)
        for name in ("wrong", "checked", "shared"):
            for key, counts in getattr(other, name).items():
                for part, count in counts.items():
                    _count(getattr(self, name), key, part, count)
        for key, hashes in other.hashes.items():
            for part, found in hashes.items():
                known = self.hashes.setdefault(key, {}).setdefault(part, [])
                known.extend(hash_ for hash_ in found if hash_ not in known)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are not empty as plain types."""
        plain = {name: value for name, value in vars(self).items() if value}
        if self.peaks:
            plain["peaks"] = {uuid: {**vars(it), "slow": dict(it.slow)} for uuid, it in self.peaks.items()}
        return plain

    @classmethod
    def from_dict(cls, plain: Line) -> NodeTotals:
        """Return the totals of an event."""
        totals = cls(**{name: value for name, value in plain.items() if name in cls.__dataclass_fields__})
        totals.peaks = {
            uuid: Peaks(peaks["samples"], peaks["celsius"], peaks["sm_mhz"], Counter(peaks["slow"]))
            for uuid, peaks in plain.get("peaks", {}).items()
        }
        totals.problems = [LoadFailure(*it)._replace(members=tuple(*it[4:5])) for it in plain.get("problems", ())]
        totals.ran = Counter(plain.get("ran", {}))
        return totals


@dataclass
class BurninResult:
    """A burn-in: its nodes, requested and actual duration (seconds), and the reason of its end (`ended`).

    `early`: why it ended before its time. `impossible`: what no node can run, and why; it ends at once then.
    """

    nodes: dict[str, NodeTotals]
    requested: float
    gpus: int = 0  # per node
    seconds: float = 0.0
    rounds: int = 0
    ended: str = ""
    early: str = ""
    impossible: str = ""
    command: str = ""
    limits: dict[str, BurninLimit] = field(default_factory=dict)  # metric -> hard limit of the profile
    model: str = ""  # the GPU of these limits
    # metric -> parts below their limit, with one
    missed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take_limits(self, profile: Profile) -> None:
        """Use the hard limits of this profile."""
        self.limits = {row.metric: row for row in profile.rows(BurninLimit)}
        self.model = profile.gpu.name if profile.gpu else ""

    def median(self, metric: str, node: str) -> dict[str, float]:
        """Return {part: median over the rounds} of a node; `power`: the 95th percentile of GPUs that multiplied."""
        totals = self.nodes[node]
        if metric == "power":
            hot = {part for dtype in DTYPES for part in totals.rates.get(dtype, ())}
            enough = {part for part in hot if sum(totals.watts.get(part, {}).values()) >= _FEW}
            return {part: power(totals, part)[1] for part in enough}
        rates = totals.rates.get(metric, {})
        return {part: statistics.median(values) for part, values in rates.items() if values}

    def fleet(self, metric: str) -> dict[tuple[str, str], float]:
        """Return {(node, part): median over the rounds} of all nodes."""
        return {(node, part): value for node in self.nodes for part, value in self.median(metric, node).items()}

    def corrupt_gpus(self) -> dict[tuple[str, str], list[Mismatch]]:
        """Return {(node, part): mismatches} of the parts whose results differ from others with the same input."""
        found: defaultdict[tuple[str, str], list[Mismatch]] = defaultdict(list)
        all_votes: defaultdict[str, dict[tuple[str, str], list[str]]] = defaultdict(dict)
        for name, totals in self.nodes.items():
            for key, parts in totals.hashes.items():
                all_votes[key] |= {(name, part): hashes for part, hashes in parts.items()}
        for key, votes in all_votes.items():
            counted = ((node, hash_) for (node, _), hashes in votes.items() for hash_ in hashes)
            usual, what = norm(counted, "results"), key.partition("/")[0]
            if len(usual.votes) < 2:  # all agree
                continue
            for who, hashes in votes.items():
                if len(hashes) > 1:
                    text = f"{what}: {len(hashes)} different results of the same input"
                    found[who].append(Mismatch(text))
                    continue
                for one in usual.judge_result("", hashes[0]):
                    text = f"{what}: another result than {usual.agree} others"
                    disputed = f"{what}: {hashes[0]}, and {UNDECIDED}"
                    if usual.clear:  # libraries of a node may change the bits on all of its GPUs
                        node = {it[0] for (name, _), it in votes.items() if name == who[0]}
                        beside = who[1] == HOST or usual.votes[0][0] in node
                        found[who].append(Mismatch(text, "" if beside else _ALL_DIFFER))
                    else:
                        found[who].append(Mismatch(disputed, str(one.expected)))
        return found


def in_rounds(burnin: BurninResult, node_name: str, *_facts: object, **_named: object) -> bool:
    """Return whether the loads ran more than once on this node: the burn-in repeats its measurements itself."""
    return burnin.nodes[node_name].rounds > 1


def power(totals: NodeTotals, part: str) -> tuple[float, float]:
    """Return mean and 95th percentile of the power of a GPU under the hot loads, in watts; it must have a reading."""
    counts = sorted((float(value), count) for value, count in totals.watts[part].items())
    total = sum(count for _, count in counts)
    sums = accumulate(count for _, count in counts)
    high = next(value for (value, _), below in zip(counts, sums, strict=True) if below >= 0.95 * total)
    return sum(value * count for value, count in counts) / total, high


def _foreign(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not name.rpartition("/")[2].startswith(EXPECTED_PROCESSES))


def _rates_of(load: str, result: Line) -> Iterator[tuple[str, float]]:
    if load == "matmul":
        yield str(result["dtype"]), result["tflops"]
    elif load == "nccl" and "busbw" in result:  # none beside products
        yield ("nccl_pairs" if len(result["members"]) > 1 else "nccl_alone"), result["busbw"]
    for key, metric in _RATES.get(load, {}).items():
        if key in result:
            yield metric, result[key]


def _count(where: dict[str, dict[str, int]], load: str, part: str, count: int) -> None:
    parts = where.setdefault(load, {})
    parts[part] = parts.get(part, 0) + count


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)


def unit_of(metric: str) -> str:
    """Return the unit of a metric of the burn-in."""
    return UNITS.get(metric, "TFLOP/s")
