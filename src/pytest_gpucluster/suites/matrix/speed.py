"""The speed of one workload under each launcher. Pure.

Rates of different workloads are not compared: a share of a CPU, the bandwidth of MPI, the bus bandwidth of NCCL.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, check, revised
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.text import count, some
from pytest_gpucluster.core.units import cpu_list
from pytest_gpucluster.kit.nccl.nccl_log import HINTS
from pytest_gpucluster.suites.matrix.checks import COLUMNS, ROWS, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.mpi.mpi_facts import MpiRun
    from pytest_gpucluster.kit.nccl.nccl_log import NcclLog
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput

MEASURED = ("cpu", "mpi", "nccl")  # columns whose workloads have a rate
PER_TASK = "CPUs/task"
CPUS, PMI, LIBRARY = "CPUs of the tasks", "PMI", "MPI library"
TRANSPORT, SETTINGS, VARIABLES = "transport", "NCCL variables", "MPI variables"
UNKNOWN, UNLOGGED = "unknown", "not logged"
OWN = "at least one CPU per task"
GIGA = 1e9
RUNS = 2  # of a launcher that is slow, and of the fastest one
_PLACES = "the environment of the step, of the image and of Enroot's hooks"
# What a difference means, in the order of its weight as a cause, and how to repair it
_MEANING = {
    TRANSPORT: ("NCCL uses another transport", "the step's NCCL_ variables, /dev/infiniband and NCCL's plugins in the image"),
    SETTINGS: ("NCCL has other variables", f"{_PLACES}; nccl.conf"),
    CPUS: (
        "the launcher binds several tasks to the same CPUs",
        "srun --cpu-bind=verbose, TaskPlugin and DefCpuPerGPU of Slurm; mpirun --report-bindings",
    ),
    VARIABLES: ("MPI has other variables", _PLACES),
    LIBRARY: ("the image has another MPI", "UCX and libfabric of the image's MPI: ompi_info, ucx_info -d"),
    PMI: ("of the known facts only the PMI differs", "srun --mpi=list; matrix and mpi of the cluster file"),
}  # fmt: skip
_NO_DIFFERENCE = "the facts of both runs are alike: mounts, devices and limits of the launcher remain"


@dataclass(frozen=True)
class Speed:
    """The speed of a cell; higher is better. `facts`: {what may explain it: as it is in this cell}."""

    value: float
    unit: str
    facts: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Like '12.3 GB/s'."""
        return f"{self.value:.3g} {self.unit}"


@dataclass(frozen=True)
class SpeedComparison:
    """One workload on the nodes of one allocation: {row: rates of its runs, one or two}. `absent`: {row: why none}."""

    column: str
    rates: Mapping[str, tuple[Speed, ...]]
    absent: Mapping[str, str]
    min_ratio: float
    where: str = ""

    def best(self, row: str) -> Speed:
        """Return the higher rate of a row: other programs of the machine only slow a run down."""
        return max(self.rates[row], key=lambda rate: rate.value)

    @property
    def fastest(self) -> str:
        """The row with the highest rate."""
        return max(self.rates, key=lambda row: self.best(row).value)

    @property
    def unrepeated(self) -> tuple[str, ...]:
        """The rows that need a second run before a finding: the slow ones and the fastest."""
        compared = (*self.slow, self.fastest) if self.slow else ()
        return tuple(row for row in compared if len(self.rates[row]) < RUNS)

    @property
    def slow(self) -> tuple[str, ...]:
        """The rows below the accepted share of the fastest one."""
        if not self.rates:
            return ()
        bound = self.min_ratio * self.best(self.fastest).value
        return tuple(row for row in self.rates if self.best(row).value < bound)

    def with_runs(self, rates: Mapping[str, Speed | None]) -> SpeedComparison:
        """Return the comparison with a second run of some rows."""
        both = {row: (*known, *filter(None, (rates.get(row),))) for row, known in self.rates.items()}
        return replace(self, rates=both)


# --- rates


def of_shares(reports: Sequence[tuple[str, float, str]]) -> Speed | None:
    """Return the median share of a CPU of a task, from (node, share, CPUs that it may use) of all tasks."""
    if not reports:
        return None
    facts = {CPUS: binding((node, cpus) for node, _, cpus in reports)}
    return Speed(statistics.median(share for _, share, _ in reports), PER_TASK, facts)


def of_world(run: MpiRun, pmi: str) -> Speed | None:
    """Return the median bandwidth of the pairs of an MPI run; None without a pair."""
    if not run.world.pairs:
        return None
    bandwidth = statistics.median(pair.bandwidth for pair in run.world.pairs) / GIGA
    libraries = Counter(rank.library for rank in run.world.ranks).most_common(1)
    facts = {
        CPUS: binding((rank.node, rank.cpus) for rank in run.world.ranks),
        LIBRARY: libraries[0][0] if libraries else UNKNOWN,
        VARIABLES: _listed(word for rank in run.world.ranks for word in rank.variables),
        PMI: pmi,
    }
    return Speed(bandwidth, "GB/s", facts) if bandwidth > 0 else None


def of_collective(output: NcclOutput, log: NcclLog, node_of_rank: Mapping[int, str] | None) -> Speed | None:
    """Return the bus bandwidth of the largest message, out-of-place; None for a single rank, which sends nothing."""
    rows = output.runs[0].rows if len(output.runs) == 1 else ()
    value = rows[-1].out_of_place.busbw if rows else 0.0
    if not value:
        return None
    paths = log.paths(node_of_rank)
    transports = sorted(paths.between) or sorted(paths.within) or sorted(paths.unplaced)
    settings = _listed(log.foreign) if transports else UNLOGGED
    return Speed(value, "GB/s", {TRANSPORT: ", ".join(transports) or UNLOGGED, SETTINGS: settings})


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted({*words})) or "none"


def binding(tasks: Iterable[tuple[str, str]]) -> str:
    """Return whether the tasks of a node share CPUs, from (node, list of CPUs) of each; the tightest node counts.

    >>> binding([("n1", "0"), ("n1", "0"), ("n2", "0-3"), ("n2", "0-3")])
    '2 tasks share 1 CPU (0) of n1'
    """
    masks: dict[str, list[frozenset[int]]] = {}
    try:
        for node, cpus in tasks:
            masks.setdefault(node, []).append(cpu_list(cpus))
    except ValueError:
        return UNKNOWN
    if not masks or not all(mask for known in masks.values() for mask in known):
        return UNKNOWN
    unions = {node: frozenset().union(*known) for node, known in masks.items()}
    node = min(masks, key=lambda one: (len(unions[one]) / len(masks[one]), one))
    union, sharing = unions[node], len(masks[node])
    if len(union) >= sharing:
        return OWN
    return f"{sharing} tasks share {count(len(union), 'CPU')} ({some(sorted(union))}) of {node}"


# --- the check


def differences(slow: Speed, fast: Speed) -> dict[str, tuple[str, str]]:
    """Return {fact: (in the slow run, in the fast run)} of the facts that may slow a run, the likeliest cause first."""
    pairs = {name: (slow.facts.get(name, UNKNOWN), fast.facts.get(name, UNKNOWN)) for name in _MEANING}
    return {
        name: pair
        for name, pair in pairs.items()
        if pair[0] != pair[1] and pair[0] != OWN and not {UNKNOWN, UNLOGGED} & {*pair}
    }


def _probable_cause(verdict: Verdict, it: SpeedComparison) -> Verdict:
    """Return the verdict with the cause that the facts of the first slow launcher show."""
    if verdict.outcome is not Outcome.FAILED:
        return verdict
    slow, fast = it.best(it.slow[0]), it.best(it.fastest)
    found = differences(slow, fast)
    if not found:
        return replace(verdict, cause=_NO_DIFFERENCE)
    name, (mine, theirs) = next(iter(found.items()))
    meaning, hint = _MEANING[name]
    hint = HINTS.get(mine, hint) if name == TRANSPORT else hint
    cause = f"{meaning}: {mine}; with {ROWS[it.fastest]}: {theirs}"
    return replace(verdict, cause=cause, hint=f"check {hint}")


@revised(_probable_cause)
@check(
    "matrix.speed",
    cause="the launcher slows the workload down: wrong PMI, CPU binding, or a missing device in the container",
    hint="run the workload with both launchers and compare NCCL's log, the CPU masks and the environment of the tasks",
    action=Action.MONITOR,
)
def speed(it: SpeedComparison) -> Judgement:
    """No launcher is slower than half the speed of the fastest one with the same workload, in both of two runs."""
    if len(it.rates) < 2:  # two launchers
        reasons = "; ".join(f"{ROWS[row]}: {why}" for row, why in it.absent.items())
        raise NotApplicable(f"fewer than two launchers have a rate of {COLUMNS[it.column]}: {reasons}")
    for row in it.rates:
        yield Metric("matrix_rate", it.best(row).value, it.best(row).unit, name_of(row, it.column))
    fast = it.best(it.fastest)
    for row in it.slow:
        mine = it.best(row)
        if row in it.unrepeated or it.fastest in it.unrepeated:
            yield NotAvailable(f"{ROWS[row]} at {mine} of {fast} could not be repeated")
            continue
        share = f"{mine.value / fast.value:.0%} of {ROWS[it.fastest]} ({fast})"
        apart = [f"{name}: {one}, not {other}" for name, (one, other) in differences(mine, fast).items()]
        text = "; ".join((f"{mine}, {share}, in the better of two runs", *apart))
        least = f"at least {it.min_ratio:.0%} of the fastest launcher"
        yield Finding(
            Part("cell", name=f"{ROWS[row]} with {COLUMNS[it.column]}{it.where}"),
            Quantity(mine.value, mine.unit, text),
            Quantity(it.min_ratio * fast.value, fast.unit, least),
            code="slower",
        )
