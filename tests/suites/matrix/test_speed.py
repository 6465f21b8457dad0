"""Rates of the cells, and the comparison of the launchers of one workload."""

from __future__ import annotations

from dataclasses import replace

import pytest
from counter_examples import MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, CounterExample
from judged import figures
from suite_helpers import considered

from pytest_gpucluster.core.check import Action, Metric, Outcome
from pytest_gpucluster.kit.mpi.mpi_facts import MpiRank, MpiRun, MpiWorld, RankPair
from pytest_gpucluster.kit.nccl import nccl_log
from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput, read
from pytest_gpucluster.suites.matrix import speed
from pytest_gpucluster.suites.matrix.speed import (
    CPUS,
    LIBRARY,
    OWN,
    PMI,
    SETTINGS,
    TRANSPORT,
    VARIABLES,
    Speed,
    SpeedComparison,
)

FAST = Speed(40.0, "GB/s", {TRANSPORT: "NET/IB/GDRDMA"})
SLOW = Speed(3.0, "GB/s", {TRANSPORT: "NET/Socket"})
Rates = tuple[Speed, ...]


def compared(*rows: tuple[str, Rates], column: str = "nccl") -> SpeedComparison:
    return SpeedComparison(column, dict(rows), {}, 0.5, " on gpu[01-02]")


def test_a_slow_launcher_is_named_with_both_rates_and_the_transport() -> None:
    verdict = speed.speed(compared(("mpirun", (FAST, FAST)), ("srun", (FAST,)), ("srun_pyxis", (SLOW, SLOW))))
    (finding,) = verdict.findings
    assert (str(finding.part), finding.relation) == ("srun + Pyxis with NCCL on gpu[01-02]", "<")
    assert figures(finding.measured)[:3] == [3, 8, 40]
    assert "transport: NET/Socket, not NET/IB/GDRDMA" in str(finding.measured)
    assert verdict.cause == "NCCL uses another transport: NET/Socket; with mpirun: NET/IB/GDRDMA"
    assert "InfiniBand" in verdict.hint
    assert verdict.action is Action.MONITOR
    assert verdict.metrics[0] == Metric("matrix_rate", 40.0, "GB/s", "mpirun-nccl")


@pytest.mark.parametrize("share", [0.5, 0.51, 1.0])
def test_launchers_within_the_ratio_pass(share: float) -> None:
    near = replace(FAST, value=40.0 * share)
    verdict = speed.speed(compared(("mpirun", (FAST,)), ("srun", (near,))))
    assert (verdict.outcome, len(verdict.metrics)) == (Outcome.PASSED, 2)


def test_one_slow_run_alone_is_no_finding() -> None:
    first = compared(("mpirun", (FAST,)), ("srun", (SLOW,)))
    assert first.unrepeated == ("srun", "mpirun")
    assert speed.speed(first).outcome is Outcome.NOT_CHECKED
    again = first.with_runs({"srun": replace(SLOW, value=39.0), "mpirun": FAST})
    assert again.unrepeated == ()
    assert speed.speed(again).outcome is Outcome.PASSED
    lost = first.with_runs({"srun": SLOW, "mpirun": None})
    assert lost.unrepeated == ("mpirun",)
    assert speed.speed(lost).reason == "srun at 3 GB/s of 40 GB/s could not be repeated"


def test_a_single_launcher_has_nothing_to_be_compared_with() -> None:
    alone = replace(compared(("srun", (FAST,))), absent={"mpirun": "no section `mpi`"})
    verdict = speed.speed(alone)
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert verdict.reason == "fewer than two launchers have a rate of NCCL: mpirun: no section `mpi`"
    assert speed.speed(replace(alone, rates={})).outcome is Outcome.NOT_APPLICABLE


def test_what_differs_is_the_cause_only_if_it_can_slow_a_run() -> None:
    bound, free = {CPUS: "2 tasks share 1 CPU (0) of n1"}, {CPUS: OWN}
    slow, fast = Speed(1, "GB/s", bound), Speed(9, "GB/s", free)
    assert speed.differences(slow, fast) == {CPUS: ("2 tasks share 1 CPU (0) of n1", OWN)}
    assert speed.differences(replace(slow, facts=free), replace(fast, facts=bound)) == {}
    assert speed.differences(replace(slow, facts={TRANSPORT: "not logged"}), FAST) == {}
    both = {**bound, LIBRARY: "MPICH", PMI: "pmi2"}
    fine = Speed(9, "GB/s", {**free, LIBRARY: "Open MPI", PMI: "pmix"})
    assert [*speed.differences(Speed(1, "GB/s", both), fine)] == [CPUS, LIBRARY, PMI]
    told = (Speed(1, "GB/s", {**free, VARIABLES: "UCX_TLS=tcp"}), Speed(9, "GB/s", {**free, VARIABLES: "none"}))
    by_variables = speed.speed(compared(("mpirun", told[1:] * 2), ("srun", told[:1] * 2), column="mpi"))
    assert by_variables.cause == "MPI has other variables: UCX_TLS=tcp; with mpirun: none"
    alike = speed.speed(compared(("mpirun", (fast, fast)), ("srun", (replace(slow, facts=free),) * 2)))
    assert alike.cause.startswith("the facts of both runs are alike")


def test_whether_tasks_share_cpus() -> None:
    assert speed.binding([("n1", "0"), ("n1", "1")]) == OWN
    assert speed.binding([("n1", "0-63"), ("n1", "0-63")]) == OWN
    assert speed.binding([("n1", "0-1"), ("n1", "0-1"), ("n1", "1")]) == "3 tasks share 2 CPUs (0, 1) of n1"
    assert speed.binding([("n1", "0-7"), ("n2", "3"), ("n2", "3")]) == "2 tasks share 1 CPU (3) of n2"
    assert speed.binding([("n1", ""), ("n1", "0")]) == speed.binding([]) == "unknown"
    assert speed.binding([("n1", "0-"), ("n1", "0")]) == "unknown"


def test_the_rate_of_cpu_tasks_is_the_median_share() -> None:
    rate = speed.of_shares([("n1", 0.9, "0-3"), ("n1", 1.0, "0-3"), ("n2", 0.1, "2")])
    assert rate == Speed(0.9, "CPUs/task", {CPUS: OWN})
    assert speed.of_shares([]) is None


def test_the_rate_of_an_mpi_world_is_the_median_of_its_pairs() -> None:
    tcp = ("UCX_TLS=tcp",)
    ranks = tuple(MpiRank(n, 3, "h", f"n{n}", "single", 0, 8, "MPICH 5", str(n), tcp) for n in range(3))
    pairs = tuple(RankPair((n, n + 1), 1e-6, speed_of * 1e9) for n, speed_of in enumerate((9.0, 10.0, 24.0)))
    run = MpiRun("srun", "c", ("n0", "n1", "n2"), 1, MpiWorld(ranks, pairs))
    facts = {CPUS: OWN, LIBRARY: "MPICH 5", VARIABLES: "UCX_TLS=tcp", PMI: "pmix"}
    assert speed.of_world(run, "pmix") == Speed(10.0, "GB/s", facts)
    assert speed.of_world(replace(run, world=MpiWorld(ranks)), "pmix") is None


TABLE = """# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4000 on      gpu01 device  0 [0000:19:00] NVIDIA H200
#  Rank  1 Group  0 Pid   4001 on      gpu02 device  0 [0000:19:00] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1   104.86   10.00   10.00       0   104.86   10.00   10.00       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 10.0
"""
LOG = "gpu01:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n"


def test_the_rate_of_a_collective_is_its_bus_bandwidth_with_the_transport_between_nodes() -> None:
    output = read(TABLE, rc=0)
    rate = speed.of_collective(output, nccl_log.read(LOG), {0: "gpu01", 1: "gpu02"})
    assert rate == Speed(10.0, "GB/s", {TRANSPORT: "NET/IB/GDRDMA", SETTINGS: "none"})
    off = "gpu01:7:7 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
    without = speed.of_collective(output, nccl_log.read(off + LOG.replace("IB/0/GDRDMA", "Socket/0")), None)
    assert without == Speed(10.0, "GB/s", {TRANSPORT: "NET/Socket", SETTINGS: "NCCL_IB_DISABLE=1"})
    unlogged = Speed(10.0, "GB/s", {TRANSPORT: "not logged", SETTINGS: "not logged"})
    assert speed.of_collective(output, nccl_log.NcclLog(), None) == unlogged
    assert speed.of_collective(NcclOutput(), nccl_log.NcclLog(), None) is None


def example(machine: str, expected: str, *rows: tuple[str, Rates], sick: bool = False) -> CounterExample:
    guide, found = "https://slurm.schedmd.com/mpi_guide.html", compared(*rows)
    return CounterExample("matrix.speed", machine, guide, expected, lambda: speed.speed(found), sick=sick)


MPIRUN = ("mpirun", (FAST, FAST))
TENTH = ("srun", (Speed(36.0, "GB/s", {}),))
COUNTER_EXAMPLES = (
    example("slow in the first run, beside another program", PASSED, MPIRUN, ("srun", (SLOW, FAST))),
    example("a tenth slower than the fastest", PASSED, ("mpirun", (FAST,)), TENTH),
    example("one launcher", NOT_APPLICABLE, ("srun", (FAST,))),
    example("it could not be repeated", NOT_CHECKED, MPIRUN, ("srun", (SLOW,))),
    example("slow in both runs", MONITOR, MPIRUN, ("srun", (SLOW, SLOW)), sick=True),
)
test_launchers_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
