"""Validation of an NCCL run before its bandwidth is judged. Pure.

The ranks must be 0..W-1 once each, on the requested nodes, each on its own device, over the transport that the profile
expects, with correct data and a complete table. `suites/nccl/bandwidth.py` judges the numbers afterwards.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, Remark, conclude
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.hostlist import shown
from pytest_gpucluster.core.part import Part, named, register
from pytest_gpucluster.core.text import some
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.nccl.nccl_log import HINTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.kit.mpi.mpi_errors import LaunchFailure
    from pytest_gpucluster.kit.nccl.nccl_log import NcclLog
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput, NcclRun, RankLine

ADAPTERS = "a transport over the adapters of the profile"
_SHOWN = 4
_NO_BUS = "-"
UNLOGGED = "transport_unlogged"
SLOWER_TRANSPORT = frozenset({"slower_between", "slower_within"})  # their cause has the settings of NCCL
WRONG_DATA = frozenset({"wrong_elements", "out_of_bounds"})
# a timeout follows from another failure, and a run that did not end prints no whole table
_CONSEQUENCES = {"timeout": 1, **dict.fromkeys(("tables", "incomplete_table", "incomplete_output", "exit_code"), 2)}
register("message", "message")  # a collective and the size of its messages


@dataclass(frozen=True)
class RunSpec:
    """The requested run. `nodes` in Slurm's order; `sizes` in bytes, () for those of the run's own header.

    `node_of_rank` comes from Slurm's task labels; virtual nodes that share a hostname need it. `log` is NCCL's log;
    None: the transports are not checked. `logged` False: the run does not log them. `data_checked` False: the run was
    requested without validation of the data.
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
        """The requested number of ranks."""
        return len(self.nodes) * self.gpus_per_node


@dataclass(frozen=True)
class _Problem:
    """A finding with its likely cause and hint; the verdict has those of the first one."""

    finding: Finding
    cause: str
    hint: str


def validate_run(output: NcclOutput, spec: RunSpec, profile: Profile | None = None) -> Verdict:
    """Return the verdict on the run of `output`; it has metrics only if the run is valid."""
    problems = [*_failures(output)]
    if problems and not any(run.rows for run in output.runs):
        return _verdict(problems, [])  # nothing was measured: the failure is the reason
    problems += _one_table(output, spec)
    if len(output.runs) == 1:
        run = output.runs[0]
        problems += [*_ranks(run, spec), *_devices([run], spec.node_of_rank), *_table(run, spec)]
        problems += [*_transports(spec, profile)]
    if problems:
        return _verdict([*_failures_of(output.messages), *problems], [])
    return _verdict([], [*metrics(output.runs[0]), *(Remark(str(_said(it))) for it in output.messages)])


def validate_nodes(
    output: NcclOutput,
    node_of_label: Mapping[str, str],
    spec: RunSpec,
    profile: Profile | None = None,
    logs: Mapping[str, NcclLog] | None = None,
) -> dict[str, Verdict]:
    """Return {node: verdict} on one table per node, all from one step. `node_of_label`: {task label: node}.

    Nodes of one host (virtual nodes) must not share a device across the tables. `logs` is {node: NCCL's log}, if the
    transports are checked.
    """
    found: dict[str, list[_Problem]] = {node: [*_failures_of(output.failures)] for node in spec.nodes}
    tables = grouped((node_of_label.get(run.label, ""), run) for run in output.runs)
    hosts = {_short(line.host) for run in output.runs for line in run.ranks}
    virtual = len(hosts) == 1 and not hosts & {_short(node) for node in spec.nodes}
    for node in spec.nodes:
        found[node] += _of_node(tables.get(node, []), node, spec, virtual=virtual)
        here = dict.fromkeys(range(spec.gpus_per_node), node)  # each node counts its ranks from 0
        alone = replace(spec, nodes=(node,), log=(logs or {}).get(node), node_of_rank=here)
        found[node] += _transports(alone, profile)
    for node, problem in _shared_across({node: tables.get(node, []) for node in spec.nodes}):
        found[node].append(problem)
    return {
        node: _verdict(problems, [] if problems else [*metrics(tables[node][0])]) for node, problems in found.items()
    }


def metrics(run: NcclRun) -> Iterator[Metric]:
    """Yield busbw (GB/s, out-of-place) of each size, and the latency (us) of the smallest up to 8 bytes.

    Where a size was measured several times, the median stands.
    """
    for size in sorted({row.size for row in run.rows}):
        halves = [row.out_of_place for row in run.rows if row.size == size]
        part = Part("size", size, of=named("run", run.collective or "collective"))
        speeds = [half.busbw for half in halves if half.busbw is not None]
        if speeds and run.world > 1:  # the curve shows them all
            yield Metric("busbw", statistics.median(speeds), "GB/s", part, detail=True)
        times = [half.time_us for half in halves if half.time_us is not None]
        if 0 < size <= 8 and times:  # latency is defined at 8 bytes
            yield Metric("latency", statistics.median(times), "us", part)


def aligned(size: int, requested: int, ranks: int) -> bool:
    """Return whether a row of `size` is the `requested` one: nccl-tests rounds down to 16 bytes per rank."""
    return size == requested or 0 < requested - size < 16 * max(1, ranks)


def _verdict(problems: Sequence[_Problem], found: Sequence[Metric | Remark]) -> Verdict:
    problems = sorted(problems, key=lambda it: rank_of_cause(it.finding))
    cause, hint = (problems[0].cause, problems[0].hint) if problems else ("", "")
    judgement: Judgement = iter([*(problem.finding for problem in problems), *found])
    return conclude("nccl.belief", judgement, cause=cause, hint=hint, action=Action.MONITOR)


def rank_of_cause(finding: Finding) -> int:
    """Return 0 for a reason why a run failed; more for what only reports that it did not end."""
    return _CONSEQUENCES.get(finding.code, 0)


def _problem(code: str, part: Part, measured: Measure, expected: Measure, cause: str, hint: str) -> _Problem:
    return _Problem(Finding(part, measured, expected, code=code), cause, hint)


def _node(name: str) -> Part:
    return Part("node", name=name)


def _some_ranks(numbers: Sequence[int]) -> Part:
    return Part("rank", name=f"ranks {some(sorted(numbers), _SHOWN)}")


# --- failures and tables ----------------------------------------------------------------------------------


def _failures(output: NcclOutput) -> Iterator[_Problem]:
    of_runs = (failure for run in output.runs for failure in run.failures)
    # the ranks of a node report the same
    yield from _failures_of([*dict.fromkeys((*output.failures, *of_runs))])


def _failures_of(failures: Sequence[LaunchFailure]) -> Iterator[_Problem]:
    leading = [failure for failure in failures if failure.kind not in ("relayed", "exit code")]
    for failure in leading or failures:
        part = _node(failure.host) if failure.host else Part("run")
        yield _problem(failure.code, part, _said(failure), "no failure", failure.kind, failure.hint)


def _said(failure: LaunchFailure) -> Quote:
    return Quote(f"{failure.kind}: {failure.text.rstrip('.')}")


def _one_table(output: NcclOutput, spec: RunSpec) -> Iterator[_Problem]:
    if output.singletons and spec.world > 1:
        yield _problem(
            "singletons", Part("run", name="ranks"), f"rank 0 alone, {output.singletons} times", f"1 run of {spec.world} ranks",
            "each process ran alone: MPI was started without PMI or PMIx, and the bus bandwidth reads 0.00",
            "srun --mpi=pmix (`srun --mpi=list` shows what Slurm has), or mpirun inside the allocation",
        )  # fmt: skip
    elif len(output.runs) != 1:
        yield _problem(
            "tables", Part("run", name="tables"), Quantity(len(output.runs), "tables"), Quantity(1, "tables"), "the run printed no table, or several runs did",
            "; ".join(output.reasons[:2]) or "run one command; with several, use srun --label",
        )  # fmt: skip
    part, cause = Part("run", name="output"), "the output is cut or mixed"
    for reason in output.reasons if output.runs else ():
        hint = "repeat with srun --label"
        yield _problem("incomplete_output", part, Quote(reason), "complete output", cause, hint)


# --- ranks and devices ------------------------------------------------------------------------------------


def _ranks(run: NcclRun, spec: RunSpec) -> Iterator[_Problem]:
    numbers = Counter(line.rank for line in run.ranks)
    missing = [rank for rank in range(spec.world) if rank not in numbers]
    surplus = [rank for rank in numbers if rank >= spec.world]
    twice = [rank for rank, times in numbers.items() if times > 1]
    hint = "compare srun's -N, --ntasks-per-node and the tool's -g with the requested run"
    for code, ranks, what in (
        ("missing", missing, "missing"),
        ("surplus", surplus, "too many"),
        ("repeated", twice, "more than once"),
    ):
        if ranks:
            yield _problem(
                code, _some_ranks(ranks), what, f"ranks 0-{spec.world - 1} once each",
                "the run was smaller or larger than requested, or another one", hint,
            )  # fmt: skip
    yield from _places(run.ranks, spec)


def _places(ranks: Sequence[RankLine], spec: RunSpec) -> Iterator[_Problem]:
    """Yield problems of the ranks' nodes: those of Slurm if known, else the printed hosts."""
    if not ranks:
        return
    where = spec.node_of_rank
    expected, hosts = {_short(node) for node in spec.nodes}, {_short(line.host) for line in ranks}
    virtual = where is not None and len(hosts) == 1 and not hosts & expected
    if where is not None and not virtual:
        misplaced = [line for line in ranks if _short(where.get(line.rank, "")) != _short(line.host)]
        for line in misplaced[:_SHOWN]:
            yield _problem(
                "elsewhere", Part("rank", line.rank), f"on {line.host}", f"on {where.get(line.rank, 'a node of the job')}",
                "the rank did not run where Slurm started it, or hostnames are wrong",
                "compare `hostname -s` with NodeHostName of scontrol show node",
            )  # fmt: skip
    names = Counter(_short(where.get(line.rank, line.host)) if where else _short(line.host) for line in ranks)
    wrong, absent = sorted(set(names) - expected), sorted(expected - set(names))
    if wrong or absent:
        yield _problem(
            "other_nodes", Part("run", name="nodes"), f"ranks on {shown(names)}", f"ranks on {shown(expected)}",
            f"nodes without a rank: {shown(absent)}" if absent else f"nodes not requested: {shown(wrong)}",
            "virtual nodes of one host need Slurm's task labels (srun --label); otherwise check the hostfile",
        )  # fmt: skip
        return
    for node, count in sorted(names.items()):
        if count != spec.gpus_per_node:
            yield _problem(
                "rank_count", _node(node), Quantity(count, "ranks"), Quantity(spec.gpus_per_node, "ranks"), "ranks are spread unevenly",
                "srun --ntasks-per-node, or -g of the tool",
            )  # fmt: skip


def _device(line: RankLine) -> str:
    """Return an identifier of a GPU among those of its host, '' if the line has none.

    Before 2.14.1 nccl-tests prints the bus alone, without its domain: virtual machines have all GPUs on bus 00.
    """
    if not line.bus_id.startswith("0x"):
        return line.bus_id
    return f"{line.bus_id} device {line.device}" if int(line.bus_id, 16) else ""


def _gpu(host: str, device: str) -> Part:
    return Part("gpu", address=device, of=_node(host))


def _devices(runs: Sequence[NcclRun], where: Mapping[int, str] | None) -> Iterator[_Problem]:
    owners = grouped(((_short(line.host), _device(line)), line) for run in runs for line in run.ranks)
    nameless = [line.rank for (_, bus_id), lines in owners.items() if bus_id == _NO_BUS for line in lines]
    if nameless:
        yield _problem(
            "no_gpu_named", _some_ranks(nameless), "no GPU named", "one GPU each",
            "the ranks ran on CPUs, or the tool names no device",
            "check the names in the Rank lines; a newer torch reports the bus id",
        )  # fmt: skip
    for (host, bus_id), lines in sorted(owners.items()):
        if len(lines) > 1 and bus_id not in (_NO_BUS, ""):
            ranks = [f"{line.rank} ({where[line.rank]})" if where and line.rank in where else f"{line.rank}"
                      for line in lines]  # fmt: skip
            yield _problem(
                "shared_by_ranks", _gpu(host, bus_id), f"ranks {', '.join(ranks)}", "one rank per GPU", "ranks share a GPU",
                "give each task its own GPU (--gpus-per-task=1); on virtual nodes, assign different GPUs to each node",
            )  # fmt: skip


def _shared_across(tables: Mapping[str, Sequence[NcclRun]]) -> Iterator[tuple[str, _Problem]]:
    """Yield (node, problem) for devices in the tables of several nodes, which share one host."""
    users = grouped(
        ((_short(line.host), _device(line)), node)
        for node, runs in tables.items()
        for run in runs
        for line in run.ranks
    )
    for (host, bus_id), nodes in sorted(users.items()):
        for node in sorted(set(nodes)) if len(set(nodes)) > 1 and bus_id not in (_NO_BUS, "") else ():
            yield node, _problem(
                "shared_by_nodes", _gpu(host, bus_id), f"used by {shown(nodes)} at once", f"used by {node} alone",
                "the nodes share one host and were given the same GPUs",
                "assign different GPUs to the nodes: File= in gres.conf, and CUDA_VISIBLE_DEVICES in Slurm's TaskProlog",
            )  # fmt: skip


def _of_node(runs: Sequence[NcclRun], node: str, spec: RunSpec, *, virtual: bool) -> Iterator[_Problem]:
    if len(runs) != 1:
        yield _problem(
            "tables", _node(node), Quantity(len(runs), "tables"), Quantity(1, "tables"), "the node's process printed nothing, or crashed",
            "repeat on this node alone",
        )  # fmt: skip
        return
    run, ranks = runs[0], spec.gpus_per_node
    yield from _failures_of(run.failures)
    found = [line.rank for line in run.ranks]
    if sorted(found) != [*range(ranks)]:
        yield _problem(
            "other_ranks", _node(node), f"ranks {some(sorted(found), _SHOWN)}", f"ranks 0-{ranks - 1}",
            "the process used other GPUs than requested",
            "compare -g of the tool with --gpus-per-node",
        )  # fmt: skip
    hosts = {_short(line.host) for line in run.ranks}
    if hosts and hosts != {_short(node)} and not (virtual and len(hosts) == 1):
        yield _problem("other_host", _node(node), f"ran on {shown(hosts)}", f"ran on {node}", "the task did not run where Slurm started it",
                     "compare `hostname -s` with NodeHostName of scontrol show node")  # fmt: skip
    yield from _devices([run], None)
    yield from _table(run, spec)


# --- the table --------------------------------------------------------------------------------------------


def _table(run: NcclRun, spec: RunSpec) -> Iterator[_Problem]:
    part, cause = Part("run", name="table"), "the table is cut, mixed or contradictory"
    for reason in run.reasons:
        yield _problem("incomplete_table", part, Quote(reason), "a complete table", cause, "repeat the run")
    if spec.collective and run.collective != spec.collective:
        part, found = Part("run", name="collective"), run.collective or "not named"
        yield _problem("other_collective", part, found, spec.collective, "another test ran", "")
    measured = {row.size for row in run.rows}
    for size in spec.sizes:
        if not any(aligned(have, size, run.world) for have in measured):
            yield _problem(
                "not_measured", Part("message", name=f"size {format_size(size)}"), "not measured", "measured", "the sweep does not reach this size",
                "set -b, -e and -f of nccl-tests so that it does; small GPU memory limits the largest size",
            )  # fmt: skip
    yield from _data(run, spec)


def _data(run: NcclRun, spec: RunSpec) -> Iterator[_Problem]:
    """Yield problems of the data: wrong elements, and data that was not checked."""
    hint = "repeat this size on each node alone; the node that fails again has bad memory, NVLink or NIC"
    for row in run.rows:
        for place, half in (("out-of-place", row.out_of_place), ("in-place", row.in_place)):
            if half and half.wrong:
                yield _problem(
                    "wrong_elements", Part("message", name=f"{run.collective} {format_size(row.size)} {place}"),
                    Quantity(half.wrong, "wrong elements"), Quantity(0, "wrong elements"), "data is corrupted", hint,
                )  # fmt: skip
    if run.out_of_bounds:
        out, none = (Quantity(it, "values out of bounds") for it in (run.out_of_bounds, 0))
        yield _problem("out_of_bounds", Part("run", name="data"), out, none, "data is corrupted", hint)
    unchecked = [row for row in run.rows if row.out_of_place.wrong is None and row.out_of_place.error is None]
    if spec.data_checked and run.rows and (run.validation is False or unchecked):
        yield _problem(
            "data_unchecked", Part("run", name="data"), f"not checked ({len(unchecked)} of {len(run.rows)} sizes)", "checked",
            "nccl-tests ran with -c 0", "run with -c 1",
        )  # fmt: skip


# --- transports -------------------------------------------------------------------------------------------


def transport_findings(spec: RunSpec, profile: Profile) -> Iterator[Finding]:
    """Yield a finding for each kind of connection that is slower than the profile expects, or was not logged."""
    for problem in _transports(spec, profile):
        yield problem.finding


def _transports(spec: RunSpec, profile: Profile | None) -> Iterator[_Problem]:
    log = spec.log
    if log is None or profile is None:
        return
    paths = log.paths(spec.node_of_rank)
    wanted = transport_of(profile)
    if len(spec.nodes) > 1 and wanted:
        # NVLink across nodes: with NVLS alone, NCCL logs no connection from rank to rank
        joined = log.nvls and 0 < log.nodes < len(spec.nodes)
        if not paths.between and not log.collnet and not joined and wanted != ADAPTERS:
            yield _unlogged("between nodes", wanted)
        for transport in sorted(paths.between):
            if _worse(transport, wanted):
                pairs = paths.pairs[f"between {transport}"]
                yield _problem(
                    "slower_between", _pairs(pairs, spec.node_of_rank or log.hosts), f"{transport} between nodes",
                    wanted, _with_settings("traffic between nodes does not use the fabric of the profile", log),
                    HINTS.get(transport, ""),
                )  # fmt: skip
    linked = profile.gpu is not None and bool(profile.gpu.nvlinks)
    several = spec.logged and len(spec.nodes) == 1 and spec.gpus_per_node > 1
    if linked and several and not paths.within and not log.nvls:
        yield _unlogged("within the node", "P2P or NVLS")
    for transport in sorted(paths.within):
        if linked and not transport.startswith(("P2P", "NVLS")):
            yield _problem(
                "slower_within", _pairs(paths.pairs[f"within {transport}"], spec.node_of_rank or log.hosts), f"{transport} within a node",
                "P2P or NVLS", _with_settings("GPUs of one node do not use NVLink", log), HINTS["SHM"],
            )  # fmt: skip


def transport_of(profile: Profile) -> str:
    """Return the expected transport between nodes: that of the profile, else any over its adapters; '' for any."""
    fabric = profile.fabric
    return fabric.transport or (ADAPTERS if fabric.hcas and fabric.link_layer != "none" else "")


def _unlogged(where: str, wanted: str) -> _Problem:
    return _problem(
        UNLOGGED, Part("run", name="transport"), f"no connection {where} was logged", wanted, "NCCL's log is missing or cut",
        "the step sets NCCL_DEBUG=INFO, on stderr: do exports of the environment, the image or a wrapper of the tool set "
        "NCCL_DEBUG, NCCL_DEBUG_SUBSYS (INIT,ENV are needed) or NCCL_DEBUG_FILE otherwise?",
    )  # fmt: skip


def _with_settings(cause: str, log: NcclLog) -> str:
    return "; ".join(filter(None, (log.set_by, cause)))


def _worse(transport: str, wanted: str) -> bool:
    if wanted == ADAPTERS:  # plugins have names of their own
        return transport == "NET/Socket"
    if transport.startswith("NET/") and wanted.startswith("NET/"):
        return _net(transport) < _net(wanted)
    # NVLink across nodes (NVL72), or virtual nodes of one host: faster than any network
    return transport != wanted and not transport.startswith(("P2P", "NVLS"))


def _net(transport: str) -> int:
    """Return 0 for sockets, 1 for adapters, 2 for these with GPUDirect: a faster one than the profile expects is no fault.

    Plugins have names of their own for the same adapters: NET/IBext_v8, NET/Libfabric, NET/gIB; NET/FastSocket is TCP.
    """
    return 0 if "socket" in transport.lower() else 2 if transport.endswith("GDRDMA") else 1


def _pairs(pairs: Sequence[tuple[int, int]], where: Mapping[int, str]) -> Part:
    nodes = {where[rank] for pair in pairs for rank in pair}
    first = ", ".join(f"{source}->{target}" for source, target in pairs[:_SHOWN])
    more = " ..." if len(pairs) > _SHOWN else ""
    return Part("rank", name=f"{shown(nodes)}: ranks {first}{more}", nodes=tuple(sorted(nodes)))


# --- hosts ------------------------------------------------------------------------------------------------


def _short(host: str) -> str:
    return host.split(".", 1)[0]
