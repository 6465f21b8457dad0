"""Belief before judgement: is this NCCL run the run that was asked for? Pure.

A bandwidth is worth nothing until the ranks are proved: 0..W-1 once each, on the nodes that were asked for, each on
a device of its own, over the transport that the profile expects, with right data and a whole table.
`suites/nccl/bandwidth.py` judges the numbers afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, conclude
from pytest_gpucluster.core.hostlist import shown
from pytest_gpucluster.core.text import some
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.nccl_log import HINTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.mpi_errors import LaunchFailure
    from pytest_gpucluster.kit.nccl_log import NcclLog
    from pytest_gpucluster.kit.nccl_rows import Half
    from pytest_gpucluster.kit.nccl_tests import NcclOutput, NcclRun, RankLine

__all__ = ["TRANSPORT", "RunSpec", "aligned", "is_consequence", "metrics", "validate_nodes", "validate_run"]

# From bad to good: a better transport than the profile expects is no fault.
_NET = ("NET/Socket", "NET/IB", "NET/IB/GDRDMA")
_SHOWN = 4
_NO_BUS = "-"
TRANSPORT = "transport"  # the part of a run whose connections were not logged
_CUT = ("table", "tables", "output")


@dataclass(frozen=True)
class RunSpec:
    """What the run was to be. `nodes` in Slurm's order; `sizes` in bytes, () for those of the run's own header.

    `node_of_rank` is Slurm's word on the ranks (task labels); it is needed where virtual nodes report one
    hostname. `log` is NCCL's log, where transports are to be proved; None: they are not asked about.
    `logged` False: the run was not asked to log them. `data_checked` False: it was asked for without validation.
    """

    nodes: tuple[str, ...]
    gpus_per_node: int
    collective: str = ""
    sizes: tuple[int, ...] = ()
    node_of_rank: Mapping[int, str] | None = None
    log: NcclLog | None = None
    logged: bool = True
    data_checked: bool = True

    @property
    def world(self) -> int:
        """The number of ranks that the run has to have."""
        return len(self.nodes) * self.gpus_per_node


@dataclass(frozen=True)
class _Doubt:
    """A finding with the likely cause and what to do; the first one gives the verdict its cause and hint."""

    finding: Finding
    cause: str
    hint: str


def validate_run(output: NcclOutput, asked: RunSpec, profile: Profile | None = None) -> Verdict:
    """Prove the one run of `output` against what was asked for; metrics are given only where it is believed."""
    doubts = [*_failures(output)]
    if doubts and not any(run.rows for run in output.runs):
        return _verdict(doubts, [])  # nothing was measured: the failure says it all
    doubts += _one_table(output, asked)
    if len(output.runs) == 1:
        run = output.runs[0]
        doubts += [*_ranks(run, asked), *_devices([run], asked.node_of_rank), *_table(run, asked)]
        doubts += [*_transports(asked, profile)]
    return _verdict(doubts, [] if doubts else [*metrics(output.runs[0])])


def validate_nodes(
    output: NcclOutput,
    node_of_label: Mapping[str, str],
    asked: RunSpec,
    profile: Profile | None = None,
    logs: Mapping[str, NcclLog] | None = None,
) -> dict[str, Verdict]:
    """Prove one table a node, all from one step: {node: verdict}. `node_of_label` says which task ran where.

    Nodes of one host (virtual nodes) must not share a device: that is looked for across the tables. `logs` is
    NCCL's log of each node, where transports are to be proved.
    """
    found: dict[str, list[_Doubt]] = {node: [*_failures_of(output.failures)] for node in asked.nodes}
    tables: dict[str, list[NcclRun]] = defaultdict(list)
    for run in output.runs:
        tables[node_of_label.get(run.label, "")].append(run)
    hosts = {_short(line.host) for run in output.runs for line in run.ranks}
    virtual = len(hosts) == 1 and not hosts & {_short(node) for node in asked.nodes}
    for node in asked.nodes:
        found[node] += _of_node(tables.get(node, []), node, asked, virtual=virtual)
        here = dict.fromkeys(range(asked.gpus_per_node), node)  # each node counts its ranks from 0
        alone = replace(asked, nodes=(node,), log=(logs or {}).get(node), node_of_rank=here)
        found[node] += _transports(alone, profile)
    for node, doubt in _shared_across({node: tables.get(node, []) for node in asked.nodes}):
        found[node].append(doubt)
    return {
        node: _verdict(doubts, [] if doubts else [*metrics(tables[node][0])])
        for node, doubts in found.items()
    }


def metrics(run: NcclRun) -> Iterator[Metric]:
    """Yield busbw (GB/s, out-of-place) of each size, and the latency (us) of the smallest up to 8 bytes.

    Where a size was measured several times, the median stands.
    """
    for size in sorted({row.size for row in run.rows}):
        halves = [row.out_of_place for row in run.rows if row.size == size]
        name = f"{run.collective or 'collective'} {format_size(size)}"
        busbw = _median([half.busbw for half in halves])
        if busbw is not None and run.world > 1:
            yield Metric("busbw", busbw, "GB/s", name, detail=True)  # the curve shows them all
        time = _median([half.time_us for half in halves])
        if 0 < size <= 8 and time is not None:  # latency is asked for at 8 bytes
            yield Metric("latency", time, "us", name)


def aligned(size: int, asked: int, ranks: int) -> bool:
    """Tell whether a row of `size` answers `asked`: nccl-tests rounds down to 16 bytes a rank."""
    return size == asked or 0 < asked - size < 16 * max(1, ranks)


def _median(values: Sequence[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    middle = len(known) // 2
    if not known:
        return None
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2


def _verdict(doubts: Sequence[_Doubt], found: Sequence[Metric]) -> Verdict:
    # a deadline that has passed, and a table that was cut, have reasons: the others
    doubts = sorted(
        doubts, key=lambda it: (is_consequence(it.finding), it.finding.measured.startswith("timeout:"))
    )
    cause, hint = (doubts[0].cause, doubts[0].hint) if doubts else ("", "")
    judgement: Judgement = iter([*(doubt.finding for doubt in doubts), *found])
    return conclude("nccl.belief", judgement, cause=cause, hint=hint, action=Action.MONITOR)


def is_consequence(finding: Finding) -> bool:
    """Tell whether a finding only says that the run did not come to its end: other findings say why."""
    cut = finding.part in _CUT or finding.measured.endswith(" tables")
    return cut or finding.measured.startswith("exit code")


def _doubt(part: str, measured: str, expected: str, cause: str, hint: str) -> _Doubt:
    return _Doubt(Finding(part, measured, expected), cause, hint)


# --- failures and tables ----------------------------------------------------------------------------------


def _failures(output: NcclOutput) -> Iterator[_Doubt]:
    of_runs = (failure for run in output.runs for failure in run.failures)
    yield from _failures_of([*dict.fromkeys((*output.failures, *of_runs))])  # ranks of a node say the same


def _failures_of(failures: Sequence[LaunchFailure]) -> Iterator[_Doubt]:
    leading = [failure for failure in failures if failure.kind not in ("relayed", "exit code")]
    for failure in leading or failures:
        yield _doubt(
            failure.host or "run", f"{failure.kind}: {failure.text}", "no failure", failure.kind, failure.hint
        )


def _one_table(output: NcclOutput, asked: RunSpec) -> Iterator[_Doubt]:
    if output.singletons and asked.world > 1:
        yield _doubt(
            "ranks", f"rank 0 alone, {output.singletons} times", f"1 run of {asked.world} ranks",
            "each process ran alone: MPI was started without PMI or PMIx, and the bus bandwidth reads 0.00",
            "srun --mpi=pmix (`srun --mpi=list` shows what Slurm has), or mpirun inside the allocation",
        )  # fmt: skip
    elif len(output.runs) != 1:
        yield _doubt(
            "tables", f"{len(output.runs)} tables", "1 table", "the run printed no table, or several runs did",
            "; ".join(output.reasons[:2]) or "run one command; with several, use srun --label",
        )  # fmt: skip
    for reason in output.reasons:
        if output.runs:
            yield _doubt(
                "output", reason, "whole output", "the output is cut or mixed", "repeat with srun --label"
            )


# --- ranks and devices ------------------------------------------------------------------------------------


def _ranks(run: NcclRun, asked: RunSpec) -> Iterator[_Doubt]:
    numbers = Counter(line.rank for line in run.ranks)
    missing = [rank for rank in range(asked.world) if rank not in numbers]
    surplus = [rank for rank in numbers if rank >= asked.world]
    twice = [rank for rank, times in numbers.items() if times > 1]
    hint = "compare srun's -N, --ntasks-per-node and the tool's -g with what was asked for"
    for ranks, what in ((missing, "missing"), (surplus, "too many"), (twice, "more than once")):
        if ranks:
            yield _doubt(
                f"ranks {some(sorted(ranks), _SHOWN)}", what, f"ranks 0-{asked.world - 1} once each",
                "the run was smaller, larger or other than asked for", hint,
            )  # fmt: skip
    yield from _places(run.ranks, asked)


def _places(ranks: Sequence[RankLine], asked: RunSpec) -> Iterator[_Doubt]:
    """Hold the nodes of the ranks against those asked for: Slurm's word first, else the printed hosts."""
    if not ranks:
        return
    where = asked.node_of_rank
    expected, hosts = {_short(node) for node in asked.nodes}, {_short(line.host) for line in ranks}
    virtual = where is not None and len(hosts) == 1 and not hosts & expected
    if where is not None and not virtual:
        lying = [line for line in ranks if _short(where.get(line.rank, "")) != _short(line.host)]
        for line in lying[:_SHOWN]:
            yield _doubt(
                f"rank {line.rank}", f"on {line.host}", f"on {where.get(line.rank, 'a node that Slurm knows')}",
                "the rank did not run where Slurm started it, or hostnames are wrong",
                "compare `hostname -s` with NodeHostName of scontrol show node",
            )  # fmt: skip
    names = Counter(_short(where.get(line.rank, line.host)) if where else _short(line.host) for line in ranks)
    wrong, absent = sorted(set(names) - expected), sorted(expected - set(names))
    if wrong or absent:
        yield _doubt(
            "nodes", f"ranks on {shown(names)}", f"ranks on {shown(expected)}",
            f"nodes without a rank: {shown(absent)}" if absent else f"nodes not asked for: {shown(wrong)}",
            "virtual nodes of one host need Slurm's own word on the ranks (srun --label); else look at the hostfile",
        )  # fmt: skip
        return
    for node, count in sorted(names.items()):
        if count != asked.gpus_per_node:
            yield _doubt(
                node, f"{count} ranks", f"{asked.gpus_per_node} ranks", "ranks are spread unevenly",
                "srun --ntasks-per-node, or -g of the tool",
            )  # fmt: skip


def _device(line: RankLine) -> str:
    """Return what tells a GPU from the others of its host, '' where nothing does.

    Before 2.14.1 nccl-tests prints the bus alone, without its domain: virtual machines have all GPUs on bus 00.
    """
    if not line.bus_id.startswith("0x"):
        return line.bus_id
    return f"{line.bus_id} device {line.device}" if int(line.bus_id, 16) else ""


def _devices(runs: Sequence[NcclRun], where: Mapping[int, str] | None) -> Iterator[_Doubt]:
    owners: dict[tuple[str, str], list[RankLine]] = defaultdict(list)
    for line in (line for run in runs for line in run.ranks):
        owners[_short(line.host), _device(line)].append(line)
    nameless = [line.rank for (_, bus_id), lines in owners.items() if bus_id == _NO_BUS for line in lines]
    if nameless:
        yield _doubt(
            f"ranks {some(sorted(nameless), _SHOWN)}", "no GPU named", "a GPU each",
            "the ranks ran on CPUs, or the tool names no device",
            "look at the names in the Rank lines; a newer torch tells the bus id",
        )  # fmt: skip
    for (host, bus_id), lines in sorted(owners.items()):
        if len(lines) > 1 and bus_id not in (_NO_BUS, ""):
            places = [f"{line.rank} ({where[line.rank]})" if where and line.rank in where else f"{line.rank}"
                      for line in lines]  # fmt: skip
            yield _doubt(
                f"GPU {bus_id} of {host}", f"ranks {', '.join(places)}", "one rank a GPU", "ranks share a GPU",
                "give each task its own GPU (--gpus-per-task=1), or a slice of the host's GPUs to each virtual node",
            )  # fmt: skip


def _shared_across(tables: Mapping[str, Sequence[NcclRun]]) -> Iterator[tuple[str, _Doubt]]:
    """Find devices that several nodes' tables use: their nodes are one host, and its GPUs were not dealt out."""
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node, runs in tables.items():
        for line in (line for run in runs for line in run.ranks):
            users[_short(line.host), _device(line)].append(node)
    for (host, bus_id), nodes in sorted(users.items()):
        for node in sorted(set(nodes)) if len(set(nodes)) > 1 and bus_id not in (_NO_BUS, "") else ():
            yield node, _doubt(
                f"GPU {bus_id} of {host}", f"used by {shown(nodes)} at once", f"used by {node} alone",
                "the nodes share one host and were given the same GPUs",
                "deal the host's GPUs out: gres.conf File= a node, and CUDA_VISIBLE_DEVICES in Slurm's TaskProlog",
            )  # fmt: skip


def _of_node(runs: Sequence[NcclRun], node: str, asked: RunSpec, *, virtual: bool) -> Iterator[_Doubt]:
    if len(runs) != 1:
        yield _doubt(
            node, f"{len(runs)} tables", "1 table", "the node's process printed nothing, or died",
            "repeat on this node alone",
        )  # fmt: skip
        return
    run, ranks = runs[0], asked.gpus_per_node
    yield from _failures_of(run.failures)
    found = [line.rank for line in run.ranks]
    if sorted(found) != [*range(ranks)]:
        yield _doubt(
            node, f"ranks {some(sorted(found), _SHOWN)}", f"ranks 0-{ranks - 1}",
            "the process used other GPUs than asked for",
            "compare -g of the tool with --gpus-per-node",
        )  # fmt: skip
    hosts = {_short(line.host) for line in run.ranks}
    if hosts and hosts != {_short(node)} and not (virtual and len(hosts) == 1):
        yield _doubt(node, f"ran on {shown(hosts)}", f"ran on {node}", "the task is not where Slurm says",
                     "compare `hostname -s` with NodeHostName of scontrol show node")  # fmt: skip
    yield from _devices([run], None)
    yield from _table(run, asked)


# --- the table --------------------------------------------------------------------------------------------


def _table(run: NcclRun, asked: RunSpec) -> Iterator[_Doubt]:
    for reason in run.reasons:
        yield _doubt(
            "table", reason, "a whole table", "the table is cut, mixed or contradicts itself", "repeat it"
        )
    if asked.collective and run.collective != asked.collective:
        yield _doubt("collective", run.collective or "not named", asked.collective, "another test ran", "")
    measured = {row.size for row in run.rows}
    for size in asked.sizes:
        if not any(aligned(have, size, run.world) for have in measured):
            yield _doubt(
                f"size {format_size(size)}", "not measured", "measured", "the sweep does not reach this size",
                "set -b, -e and -f of nccl-tests so that it does; small GPU memory cuts the largest size",
            )  # fmt: skip
    yield from _data(run, asked)


def _data(run: NcclRun, asked: RunSpec) -> Iterator[_Doubt]:
    """Wrong data is always a failure, whatever the speed; unchecked data is no right data."""
    hint = "run this size again on each node alone; the node that repeats it has bad memory, NVLink or NIC"
    for row in run.rows:
        for place, half in (("out-of-place", row.out_of_place), ("in-place", row.in_place)):
            if half and half.wrong:
                yield _doubt(
                    f"{run.collective} {format_size(row.size)} {place}", f"{half.wrong} wrong elements",
                    "0 wrong elements", "data is corrupted", hint,
                )  # fmt: skip
    if run.out_of_bounds:
        yield _doubt("data", f"{run.out_of_bounds} values out of bounds", "0", "data is corrupted", hint)
    unchecked = [row for row in run.rows if not _checked(row.out_of_place)]
    if asked.data_checked and run.rows and (run.validation is False or unchecked):
        yield _doubt(
            "data", f"not checked ({len(unchecked)} of {len(run.rows)} sizes)", "checked",
            "nccl-tests ran with -c 0", "run with -c 1",
        )  # fmt: skip


def _checked(half: Half) -> bool:
    return half.wrong is not None or half.error is not None


# --- transports -------------------------------------------------------------------------------------------


def _transports(asked: RunSpec, profile: Profile | None) -> Iterator[_Doubt]:
    log = asked.log
    if log is None or profile is None:
        return
    paths = log.paths(asked.node_of_rank)
    wanted = profile.fabric.transport
    if len(asked.nodes) > 1 and wanted:
        # NVLink beyond the node: with NVLS alone, NCCL logs no connection from rank to rank
        joined = log.nvls and 0 < log.nodes < len(asked.nodes)
        if not paths.between and not log.collnet and not joined:
            yield _unlogged("between nodes", wanted)
        for kind in sorted(paths.between):
            if _worse(kind, wanted):
                pairs = paths.pairs[f"between {kind}"]
                yield _doubt(
                    _pairs(pairs, asked.node_of_rank or log.hosts), f"{kind} between nodes",
                    wanted, _with_settings("traffic between nodes does not take the fabric of the profile", log),
                    HINTS.get(kind, ""),
                )  # fmt: skip
    linked = profile.gpu is not None and bool(profile.gpu.nvlinks)
    several = asked.logged and len(asked.nodes) == 1 and asked.gpus_per_node > 1
    if linked and several and not paths.within and not log.nvls:
        yield _unlogged("within the node", "P2P or NVLS")
    for kind in sorted(paths.within):
        if linked and not kind.startswith(("P2P", "NVLS")):
            yield _doubt(
                _pairs(paths.pairs[f"within {kind}"], asked.node_of_rank or log.hosts), f"{kind} within a node",
                "P2P or NVLS", _with_settings("GPUs of one node do not use NVLink", log), HINTS["SHM"],
            )  # fmt: skip


def _unlogged(where: str, wanted: str) -> _Doubt:
    return _doubt(
        TRANSPORT, f"no connection {where} was logged", wanted, "NCCL's log is missing or cut",
        "the step asks for NCCL_DEBUG=INFO, on stderr: do nccl.exports, the image or a wrapper of the tool set "
        "NCCL_DEBUG, NCCL_DEBUG_SUBSYS (INIT,ENV are needed) or NCCL_DEBUG_FILE otherwise?",
    )  # fmt: skip


def _with_settings(cause: str, log: NcclLog) -> str:
    return "; ".join(filter(None, (log.set_by, cause)))


def _worse(kind: str, wanted: str) -> bool:
    if kind in _NET and wanted in _NET:
        return _NET.index(kind) < _NET.index(wanted)
    # NVLink beyond the node (NVL72), or virtual nodes of one host: better than any network
    return kind != wanted and not kind.startswith(("P2P", "NVLS"))


def _pairs(pairs: Sequence[tuple[int, int]], where: Mapping[int, str]) -> str:
    nodes = {where[rank] for pair in pairs for rank in pair}
    first = ", ".join(f"{source}->{target}" for source, target in pairs[:_SHOWN])
    return f"{shown(nodes)}: ranks {first}{' ...' if len(pairs) > _SHOWN else ''}"


# --- words ------------------------------------------------------------------------------------------------


def _short(host: str) -> str:
    return host.split(".", 1)[0]
