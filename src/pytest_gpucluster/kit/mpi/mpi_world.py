"""The check that the ranks of an MPI run form one world. Pure.

Every rank from 0 to N-1 must report once, each from a requested node; only then are sums and speeds judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, Remark, Verdict, check, revised
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.text import some
from pytest_gpucluster.kit.framework.payload_result import rank_part
from pytest_gpucluster.kit.mpi.mpi_errors import code_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.mpi.mpi_facts import MpiRun

# codes of mpi_errors: launcher and MPI have no PMI in common
PMI_CODES = ("mpi_without_pmi", "orte_ess_init", "plugin_missing")
SINGLETONS = "singletons"  # each rank is a world of one


def some_ranks(numbers: Iterable[int]) -> Part:
    """Return several ranks as one part."""
    return Part("rank", name=f"ranks {some(numbers)}")


def _known_cause(verdict: Verdict, run: MpiRun) -> Verdict:
    """Return the cause that the messages of the run name, or that of ranks which are each a world of one."""
    if verdict.outcome is not Outcome.FAILED:
        return verdict
    if run.failures:
        first, cause = run.failures[0], f"{run.launcher}: {run.failures[0].kind}"
        if first.code in PMI_CODES:
            cause = f"no PMI support: {run.launcher} offers no PMI that this MPI was built for"
        return replace(verdict, cause=cause, hint=first.hint)
    if any(finding.code == SINGLETONS for finding in verdict.findings):
        hint = _UNDER_MPIRUN if run.launcher == "mpirun" else _UNDER_SRUN
        return replace(verdict, cause=_SINGLETONS_CAUSE, hint=hint)
    return verdict


_SINGLETONS_CAUSE = (
    "the programs found no PMI of this launcher, and each ran as a world of its own: exit status 0, wrong result"
)
_UNDER_MPIRUN = "mpirun belongs to another MPI than the program (see mpi.matches): load one module only"
_UNDER_SRUN = (
    "MPICH and its derivatives need srun --mpi=pmi2, Open MPI srun --mpi=pmix; or set MpiDefault in slurm.conf"
)


@revised(_known_cause)
@check(
    "mpi.world",
    cause="the launcher did not start one world on the requested nodes",
    hint="read the first message of the run; srun --mpi=list; test the nodes one by one (--nodes)",
    action=Action.MONITOR,
    each="runs",
)
def world(run: MpiRun) -> Judgement:
    """All ranks form one world: each once, one size, on the requested nodes."""
    ranks = run.world.ranks
    yield Metric("mpi_ranks", len(ranks), "ranks", f"{run.launcher}, {run.language}")
    wrong = [*_wrong(run)]
    if wrong or run.rc != 0 or run.problem:
        yield from _messages(run)
        yield from wrong
    else:  # a right result: what was printed beside it changes nothing
        yield from (Remark(f"{it.kind}: {it.text}") for it in run.failures)


def _wrong(run: MpiRun) -> Iterator[Finding]:
    ranks = run.world.ranks
    if ranks and run.size > 1 and all(rank.size == 1 for rank in ranks):
        worlds = Quantity(len(ranks), "worlds", f"{len(ranks)} programs, each rank 0 of 1")
        one = Quantity(1, "worlds", f"one world of {run.size} ranks")
        yield Finding(_part(run), worlds, one, code=SINGLETONS)
        return
    yield from _ranks_once(run)
    yield from _on_nodes(run)


def _part(run: MpiRun, name: str = "") -> Part:
    return Part("run", name=name or run.launcher)


def _node(name: str) -> Part:
    return Part("node", name=name)


def _messages(run: MpiRun) -> Iterator[Finding]:
    for failure in run.failures:
        part, text = _node(failure.host) if failure.host else _part(run), f"{failure.kind}: {failure.text}"
        yield Finding(part, Quote(text), f"a world of {run.size} ranks by {run.launcher}", code=failure.code)
    if run.problem:
        yield Finding(_part(run), Quote(run.problem), "ends by itself", code="step_failed")
    elif run.rc != 0 and not run.failures:
        text = f"exit status {run.rc}: {run.first_error or 'no message'}"
        code = code_of(run.first_error, "exit_status")
        yield Finding(_part(run), Quote(text), "exit status 0", code=code)


def _ranks_once(run: MpiRun) -> Iterator[Finding]:
    seen = Counter(rank.rank for rank in run.world.ranks)
    expected = f"ranks 0 to {run.size - 1}, once each"
    missing = sorted(set(range(run.size)) - set(seen))
    if missing and not run.failures and not run.problem:
        yield Finding(some_ranks(missing), "sent no report", expected, code="silent")
    elif missing and run.world.ranks:
        yield Finding(some_ranks(missing), "did not start", expected, code="not_started")
    for rank, times in sorted(seen.items()):
        if times > 1:
            once = Quantity(1, "times", "once")
            yield Finding(rank_part(rank), Quantity(times, "times"), once, code="repeated")
        elif rank >= run.size:
            yield Finding(rank_part(rank), "unexpected", expected, code="surplus")
    sizes = sorted({rank.size for rank in run.world.ranks} - {run.size})
    if sizes:
        yield Finding(_part(run, "size of the world"), some(sizes), str(run.size), code="world_size")


def _on_nodes(run: MpiRun) -> Iterator[Finding]:
    counts, wanted = Counter(rank.node for rank in run.world.ranks), Quantity(run.ntasks_per_node, "ranks")
    for node, count in sorted(counts.items()):
        if node not in run.nodes:
            mine = [rank.rank for rank in run.world.ranks if rank.node == node]
            where = f"on {node or 'an unknown host'}, which was not requested"
            yield Finding(some_ranks(mine), where, f"on {hostlist.fold(run.nodes)}", code="elsewhere")
        elif count > run.ntasks_per_node:
            yield Finding(_node(node), Quantity(count, "ranks"), wanted, code="rank_count")
    if counts and len(run.world.ranks) >= run.size:  # fewer: the missing ranks are named already
        for node in run.nodes:
            if counts[node] < run.ntasks_per_node:
                yield Finding(_node(node), Quantity(counts[node], "ranks"), wanted, code="rank_count")


@check(
    "mpi.allreduce",
    cause="messages between these ranks are corrupted or lost: memory, NIC, or a broken MPI build",
    hint="repeat with another transport (UCX_TLS=tcp or OMPI_MCA_btl=self,tcp), then with pairs of nodes",
    action=Action.MONITOR,
    each="valid_runs",
)
def allreduce(run: MpiRun) -> Judgement:
    """The sum of all ranks is size * (size + 1) / 2 * (i + 1), element by element."""
    if not run.world.ranks:
        raise NotAvailable("no rank reported its sum")
    for rank in run.world.ranks:
        if rank.wrong or not rank.elements:
            part, text = rank_part(rank.rank, rank.node), f"{rank.wrong} of {rank.elements} elements wrong"
            right = Quantity(0, "elements", "the closed form of the sum")
            code = "wrong_data" if rank.wrong else "no_data"
            yield Finding(part, Quantity(rank.wrong, "elements", text), right, code=code)
