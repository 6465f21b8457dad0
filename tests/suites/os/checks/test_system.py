from __future__ import annotations

from dataclasses import replace

from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, result
from judged import figures
from machine_helpers import Machines, examples, verdicts_of_a_person

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.suites.os.checks import system as checks
from pytest_gpucluster.suites.os.checks.system import CommonTime
from pytest_gpucluster.suites.os.facts import Clock

AWS = "ip-10-0-1-7"


def skew(mine: float, *others: float, took: float = 0.0) -> Verdict:
    clocks = {"n1": Clock(mine, 0.0, took), **{f"n{n}": Clock(t, 0.0, 0.0) for n, t in enumerate(others, 2)}}
    return checks.clock(clocks["n1"], CommonTime.of(clocks, 1.0), 1.0)


MACHINES: Machines = {
    ("os.hostname", checks.hostname): [
        ("uname -n is a FQDN (RHEL) | hostname(1)", PASSED, "GPU01.cluster.site", "gpu01", "gpu01"),
        ("NodeName is a FQDN | slurm.conf(5), NodeName", PASSED, "gpu01", "gpu01.cluster.site", ""),
        ("an AWS node | ParallelCluster", PASSED, f"{AWS}.compute.internal", "q1-st-p5-1", f"{AWS}.x"),
        ("sick: cloned under another name | hostnamectl", CONFIGURE, "gpu02", "gpu01", "vm"),
    ],
    ("os.clock", skew): [
        ("0.4 s off within 1 s | chrony after a step", PASSED, 100.4, 100.0, 100.0),
        ("a slow answer | loaded node", PASSED, lambda: skew(103.0, 100.0, 100.0, took=5.0)),
        ("the only node | one node", NOT_APPLICABLE, 5.0),
        ("sick: 90 s ahead | no time service", CONFIGURE, 190.0, 100.0, 100.0),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


def clocks(**seconds: float) -> dict[str, Clock]:
    return {name: Clock(1000 + value, 1000.0, 1000.5) for name, value in seconds.items()}


# a wide fleet starts over seconds: the windows differ, and all of them hold the one time
WINDOWS = [(0.0, 9.0), (0.1, 8.0), (5.0, 5.1), (6.0, 6.1), (7.9, 9.5), (8.9, 9.0)]
WIDE = {f"n{n}": Clock(read, 0.0, received) for n, (read, received) in enumerate(WINDOWS)}


def test_skew_is_what_no_window_explains() -> None:
    for fleet, wrong in (
        (clocks(n1=0.1, n2=0.3, n3=120, n4=0.2), ["n3"]),
        (WIDE, []),
        ({**WIDE, "n9": Clock(60.0, 0.0, 9.0)}, ["n9"]),
        (clocks(n1=0.2, n2=-300), ["n2"]),  # between two clocks the controller decides
        (clocks(n1=50, n2=50.2, n3=50.1), []),  # the controller is the one that differs
        ({f"n{t}": Clock(t) for t in (100.0, 100.3, 160.0, 160.2)}, []),  # halves
        ({f"n{t}": Clock(t) for t in (100.0, 100.3, 160.0)}, ["n160.0"]),
    ):
        common = CommonTime.of(fleet, 1.0)
        assert [it for it in fleet if result(checks.clock(fleet[it], common, 1.0)) == CONFIGURE] == wrong


def test_a_clock_at_its_bound() -> None:
    common = CommonTime(10, 20, 2, 3)
    for time in (9.0, 21.0):
        assert result(checks.clock(Clock(time), common, 1)) == PASSED
    for time, skew, side in ((21.5, 1.5, "ahead"), (8.5, -1.5, "behind")):
        verdict = checks.clock(Clock(time), replace(common, nodes=2), 1)
        assert figures(verdict.findings[0].measured) == [1.5, 2, 2]
        assert (verdict.findings[0].code, verdict.metrics[0].value) == (side, skew)


def test_the_time_that_most_clocks_share() -> None:
    timed = {"a": Clock(5.0, 4.0, 4.5)}
    assert CommonTime.of({}, 1.0) == CommonTime(0.0, 0.0, 1, 0)
    assert CommonTime.of(timed, 1.0) == CommonTime(0.5, 1.0, 1, 1)  # one node: the controller has no voice
    assert CommonTime.of({**timed, "b": Clock(4.25, 4.0, 4.5)}, 1.0) == CommonTime(0.25, 0.25, 3, 3)
    assert CommonTime.of({**timed, "b": Clock(9.0)}, 1.0).nodes == 2  # its window is not known
    pairs = {"a": Clock(2.0, 0.0, 2.0), "b": Clock(3.0, 0.0, 2.0)}
    assert CommonTime.of(pairs, 0.0).nodes == 3
