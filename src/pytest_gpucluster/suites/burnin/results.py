"""What a burn-in has found out so far: lines of its payload in, sums a node out. Pure.

A `NodeTotals` is one node's sums over rounds; that of a single round goes into the event log as plain types, and a
resumed burn-in adds them up again. GPUs are known by their UUID.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.kit.gpu_processes import EXPECTED_PROCESSES
from pytest_gpucluster.suites.burnin.config import BurninLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_gpucluster.config.models import Profile

    Line = Mapping[str, Any]

HOST = ""  # the part that stands for the node itself
MAX_PROBLEMS = 50
MAX_STRANGERS = 8
UNDECIDED = "no majority tells which is right"
# of a load's result: key -> metric; the host's own stand under the load's name
_RATES = {
    "hbm": {"gbs": "hbm"},
    "copies": {"h2d": "h2d", "d2h": "d2h"},
    "peer": {"gbs": "peer"},
    "cpu": {"rate": "cpu"},
    "memory": {"rate": "memory"},
    "storage": {"write": "storage_write", "read": "storage_read"},
}
UNITS = {
    "hbm": "GB/s",
    "h2d": "GB/s",
    "d2h": "GB/s",
    "peer": "GB/s",
    "cpu": "units/s",
    "memory": "GB/s",
    "storage_write": "GB/s",
    "storage_read": "GB/s",
    "nccl_alone": "GB/s",
    "nccl_pairs": "GB/s",
}


@dataclass(frozen=True)
class Lie:
    """A result that differs from others; `disputed` names who has which where no majority tells who is right."""

    said: str
    disputed: str = ""


@dataclass(frozen=True)
class GpuAbout:
    """One GPU of a node: index as nvidia-smi counts, names, limits."""

    index: int
    uuid: str
    bus: str = ""
    name: str = ""
    pcie_gen: int | None = None
    pcie_width: int | None = None
    slow_celsius: float | None = None
    foreign: tuple[str, ...] = ()  # processes that were on it before ours
    power_limit: float | None = None  # watts, as set
    power_default: float | None = None  # watts, as the card comes

    @property
    def capped(self) -> str:
        """Say that the power limit is set below the card's own; '' where it is not, or not known."""
        if not self.power_limit or not self.power_default or self.power_limit >= 0.99 * self.power_default:
            return ""
        return f"power limit set to {self.power_limit:g} of {self.power_default:g} W"

    def __str__(self) -> str:
        inner = ", ".join(filter(None, (self.uuid, self.bus)))
        return f"GPU {self.index} ({inner})"


@dataclass
class Peaks:
    """What sensors showed of one GPU while loads ran."""

    samples: int = 0
    celsius: float | None = None
    memory_celsius: float | None = None
    watts: float | None = None
    sm_mhz: list[float] = field(default_factory=list)  # medians, one a load of products
    slow: Counter[str] = field(default_factory=Counter)  # reason -> samples

    def add(self, samples: int, seen: Line) -> None:
        """Add the summary of one load, or the sums of a round."""
        self.samples += samples
        for name in ("celsius", "memory_celsius", "watts"):
            now, value = getattr(self, name), seen.get(name)
            if value is not None:
                setattr(self, name, value if now is None else max(now, value))


@dataclass
class NodeTotals:
    """The sums of one node. `hello` is what its agent said of itself, None where it never came."""

    node: str
    hello: dict[str, Any] | None = None
    rounds: int = 0
    rates: dict[str, dict[str, list[float]]] = field(
        default_factory=dict
    )  # metric -> part -> a value a round
    wrong: dict[str, dict[str, int]] = field(default_factory=dict)  # load -> part -> wrong results
    checked: dict[str, dict[str, int]] = field(default_factory=dict)  # load -> part -> results compared
    hashes: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # key -> part -> distinct hashes
    rose: dict[str, dict[str, int]] = field(default_factory=dict)  # part -> counter -> by how much
    rose_in: dict[str, list[str]] = field(default_factory=dict)  # 'part counter' -> loads
    peaks: dict[str, Peaks] = field(default_factory=dict)
    skips: dict[str, str] = field(default_factory=dict)  # load -> why it was not run
    problems: list[tuple[str, str, str]] = field(default_factory=list)  # load, part, what
    partners: dict[str, list[float]] = field(default_factory=dict)  # other node -> bus bandwidths
    ran: Counter[str] = field(default_factory=Counter)  # load -> how often
    strangers: dict[str, list[str]] = field(
        default_factory=dict
    )  # part -> processes of others, seen meanwhile
    shared: dict[str, dict[str, int]] = field(
        default_factory=dict
    )  # part -> load -> how often with strangers
    unread: dict[str, str] = field(default_factory=dict)  # source of counters -> why it could not be read
    dcgm: dict[str, Any] | None = None
    out: str = ""  # why the node left the burn-in
    lost: str = ""  # why it no longer answers

    # --- names

    @property
    def gpus(self) -> dict[str, GpuAbout]:
        """The GPUs that nvidia-smi shows, and those that workers found, by UUID."""
        if self.hello is None:
            return {}
        found = {}
        for gpu in self.hello.get("gpus", ()):
            found[gpu["uuid"]] = GpuAbout(
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
            found.setdefault(uuid, GpuAbout(about["gpu"], uuid, about.get("bus", ""), about.get("name", "")))
        return found

    @property
    def used(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that the burn-in uses."""
        devices = (self.hello or {}).get("devices", ())
        return tuple(about.get("uuid") or f"device {about['gpu']}" for about in devices)

    def part(self, uuid: str) -> str:
        """Write a part for people."""
        known = self.gpus.get(uuid)
        return str(known) if known else uuid or "node"

    def others(self, uuid: str, load: str) -> tuple[str, ...]:
        """Return who else was on a GPU: before us, or during at least half of these loads, whose median counts."""
        gpu = self.gpus.get(uuid)
        before = gpu.foreign if gpu else ()
        meanwhile = self.strangers.get(uuid, ())
        often = 2 * self.shared.get(uuid, {}).get(load, 0) >= max(1, self.ran[load])
        return before or (tuple(meanwhile) if often else ())

    @property
    def simulated(self) -> bool:
        """The GPUs of this node are simulated."""
        return bool((self.hello or {}).get("simulated"))

    # --- adding up

    def add(self, line: Line) -> None:
        """Add one line of kind `load`."""
        load = str(line["load"])
        ran = False
        for result in line.get("results", ()):
            ran |= self._add_result(load, result)
        if ran:
            self.ran[load] += 1
        for part, counters in line.get("deltas", {}).items():
            for counter, count in counters.items():
                self._rise(part, counter, count, [load])
        for uuid, seen in line.get("sensors", {}).items():
            peaks = self.peaks.setdefault(uuid, Peaks())
            samples = int(seen.get("samples", 0))
            peaks.add(samples, seen)
            peaks.slow.update({name: round(share * samples) for name, share in seen.get("slow", {}).items()})
            if load == "matmul" and seen.get("sm_mhz") is not None:
                peaks.sm_mhz.append(seen["sm_mhz"])
        for uuid, names in line.get("strangers", {}).items():
            if foreign := _foreign(names):
                self._meet(uuid, foreign)
                _count(self.shared, uuid, load, 1)
        if "unread" in line:
            self._add_unread(line["unread"])

    def _add_unread(self, unread: Mapping[str, str]) -> None:
        """Add what could not be read; an nvidia-smi that answers again is no driver that hangs."""
        if "gpu" not in unread:
            self.unread.pop("gpu", None)
        self.unread.update(unread)

    def _meet(self, uuid: str, names: Iterable[str]) -> None:
        known = self.strangers.setdefault(uuid, [])
        known.extend(name for name in names if name not in known and len(known) < MAX_STRANGERS)

    def _add_result(self, line_load: str, result: Line) -> bool:
        """Add one result; True where it is one of the load itself, run to its end."""
        load = str(result.get("load", line_load))
        part = str(result.get("uuid") or (f"device {result['gpu']}" if "gpu" in result else HOST))
        if result.get("problem"):
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append((load, part, _problem(result)))
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
        for hash_ in [result["hash"]] if "hash" in result else result.get("hashes", ()):
            known = self.hashes.setdefault(str(result["key"]), {}).setdefault(part, [])
            if hash_ not in known and len(known) < MAX_PROBLEMS:
                known.append(hash_)
        for metric, value in _rates_of(load, result):
            self.rates.setdefault(metric, {}).setdefault(part, []).append(float(value))
        if load == "nccl" and result.get("gpu") == 0:  # one of the node's GPUs tells for all
            for member in result["members"]:
                if member != self.node:
                    self.partners.setdefault(member, []).append(float(result["busbw"]))

    def _rise(self, part: str, counter: str, count: int, loads: list[str]) -> None:
        counters = self.rose.setdefault(part, {})
        counters[counter] = counters.get(counter, 0) + count
        known = self.rose_in.setdefault(f"{part} {counter}", [])
        known.extend(load for load in loads if load not in known)

    def merge(self, other: NodeTotals) -> None:
        """Add the sums of another span of time, like those of one round."""
        self.hello, self.dcgm = other.hello or self.hello, other.dcgm or self.dcgm
        self.out, self.lost = self.out or other.out, self.lost or other.lost
        self.rounds += other.rounds
        self._merge_results(other)
        for part, rises in other.rose.items():
            for counter, count in rises.items():
                self._rise(part, counter, count, other.rose_in.get(f"{part} {counter}", []))
        for uuid, seen in other.peaks.items():
            peaks = self.peaks.setdefault(uuid, Peaks())
            peaks.add(seen.samples, vars(seen))
            peaks.sm_mhz.extend(seen.sm_mhz)
            peaks.slow.update(seen.slow)
        for uuid, names in other.strangers.items():
            self._meet(uuid, names)
        for uuid, times in other.shared.items():
            for load, count in times.items():
                _count(self.shared, uuid, load, count)
        self.skips.update(other.skips)
        self.problems.extend(other.problems[: MAX_PROBLEMS - len(self.problems)])
        self.ran.update(other.ran)
        self._add_unread(other.unread)

    def _merge_results(self, other: NodeTotals) -> None:
        for metric, parts in other.rates.items():
            for part, values in parts.items():
                self.rates.setdefault(metric, {}).setdefault(part, []).extend(values)
        for partner, values in other.partners.items():
            self.partners.setdefault(partner, []).extend(values)
        for mine, theirs in ((self.wrong, other.wrong), (self.checked, other.checked)):
            for load, counts in theirs.items():
                for part, count in counts.items():
                    _count(mine, load, part, count)
        for key, hashes in other.hashes.items():
            for part, found in hashes.items():
                known = self.hashes.setdefault(key, {}).setdefault(part, [])
                known.extend(hash_ for hash_ in found if hash_ not in known)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, empty ones left out."""
        plain = {name: value for name, value in vars(self).items() if value}
        if self.peaks:
            plain["peaks"] = {
                uuid: {**vars(peaks), "slow": dict(peaks.slow)} for uuid, peaks in self.peaks.items()
            }
        return plain

    @classmethod
    def from_dict(cls, plain: Line) -> NodeTotals:
        """Make one of plain types, as an event holds them."""
        told = cls(**{name: value for name, value in plain.items() if name in cls.__dataclass_fields__})
        told.peaks = {
            uuid: Peaks(**{**peaks, "slow": Counter(peaks["slow"])})
            for uuid, peaks in plain.get("peaks", {}).items()
        }
        told.problems = [(problem[0], problem[1], problem[2]) for problem in plain.get("problems", ())]
        told.ran = Counter(plain.get("ran", {}))
        return told


@dataclass
class BurninResult:
    """A burn-in: its nodes, how long it ran of what was asked (seconds), and why it ended (`ended`)."""

    nodes: dict[str, NodeTotals]
    asked: float
    gpus: int = 0  # that each node was to use
    seconds: float = 0.0
    rounds: int = 0
    ended: str = ""
    command: str = ""
    limits: dict[str, BurninLimit] = field(default_factory=dict)  # metric -> hard limit of the profile
    model: str = ""  # the GPU that they are of
    below: dict[str, str] = field(
        default_factory=dict
    )  # metric -> whether most of the fleet miss their limit

    def take_limits(self, profile: Profile) -> None:
        """Judge by the hard limits of this profile."""
        self.limits = {row.metric: row for row in profile.rows(BurninLimit)}
        self.model = profile.gpu.name if profile.gpu else ""

    def median(self, metric: str, node: str) -> dict[str, float]:
        """Return {part: median over the rounds} of one node."""
        rates = self.nodes[node].rates.get(metric, {})
        return {part: statistics.median(values) for part, values in rates.items() if values}

    def fleet(self, metric: str) -> dict[tuple[str, str], float]:
        """Return {(node, part): median over the rounds} of all nodes."""
        return {
            (node, part): value for node in self.nodes for part, value in self.median(metric, node).items()
        }

    def corrupt_gpus(self) -> dict[tuple[str, str], list[Lie]]:
        """Return {(node, part): lies} for parts whose results differ from those of others with the same input."""
        found: dict[tuple[str, str], list[Lie]] = {}
        for key, votes in self._votes().items():
            counted = ((node, hash_) for (node, _), hashes in votes.items() for hash_ in hashes)
            usual, what = norm(counted, "results"), key.partition("/")[0]
            if len(usual.votes) < 2:  # all agree
                continue
            for who, hashes in votes.items():
                if len(hashes) > 1:
                    said = f"{what}: {len(hashes)} different results of the same input"
                    found.setdefault(who, []).append(Lie(said))
                    continue
                for one in usual.judge("", hashes[0]):
                    said = f"{what}: another result than {usual.agree} others"
                    disputed = f"{what}: {hashes[0]}, and {UNDECIDED}"
                    lie = Lie(said) if usual.clear else Lie(disputed, one.expected)
                    found.setdefault(who, []).append(lie)
        return found

    def _votes(self) -> dict[str, dict[tuple[str, str], list[str]]]:
        votes: dict[str, dict[tuple[str, str], list[str]]] = {}
        for node, told in self.nodes.items():
            for key, parts in told.hashes.items():
                for part, hashes in parts.items():
                    votes.setdefault(key, {})[node, part] = hashes
        return votes


def _foreign(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not name.rpartition("/")[2].startswith(EXPECTED_PROCESSES))


def _rates_of(load: str, result: Line) -> Iterator[tuple[str, float]]:
    if load == "matmul":
        yield str(result["dtype"]), result["tflops"]
    elif load == "nccl":
        yield ("nccl_pairs" if len(result["members"]) > 1 else "nccl_alone"), result["busbw"]
    for key, metric in _RATES.get(load, {}).items():
        if key in result:
            yield metric, result[key]


def _problem(result: Line) -> str:
    members = result.get("members")
    about = f" ({result['dtype']})" if "dtype" in result else f" ({' '.join(members)})" if members else ""
    return f"{str(result['problem'])[:300]}{about[:300]}"


def _count(where: dict[str, dict[str, int]], load: str, part: str, count: int) -> None:
    parts = where.setdefault(load, {})
    parts[part] = parts.get(part, 0) + count


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def unit_of(metric: str) -> str:
    """Return the unit of a metric."""
    return UNITS.get(metric, "TFLOP/s")
