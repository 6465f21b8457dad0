"""Jobs of submitit that end as they should and look otherwise, and the other way round (docs/five-rules.md)."""

from __future__ import annotations

from typing import Any

import pytest
from counter_examples import MONITOR, PASSED, WARNING, CounterExample, assert_as_expected, name

from pytest_gpucluster.kit.framework.payload_result import PayloadTask
from pytest_gpucluster.suites.submitit import checks
from pytest_gpucluster.suites.submitit.checks import SubmititResult

SQUEUE = "https://slurm.schedmd.com/squeue.html"
SACCT = "https://slurm.schedmd.com/sacct.html"


def cancel(
    state: str,
    *,
    over: bool = True,
    accounting: bool = True,
    known: bool = True,
    sacct: str = "CANCELLED by 1000",
) -> Any:
    fact = {
        "submitit": "cancel",
        "over": over,
        "slurm": state,
        "known": known,
        "state": sacct,
        "seconds": 3.0 if over else 30.0,
    }
    task = PayloadTask(0, "", None, None, ({"submitit": "submitted"}, fact))
    return lambda: checks.cancel(SubmititResult("submitit", (), 1, (task,), accounting=accounting))


def machine(name: str, source: str, expected: str, judged: Any, *, sick: bool = False) -> CounterExample:
    return CounterExample("submitit.cancel", name, source, expected, judged, sick=sick)


COUNTER_EXAMPLES = (
    machine("cancelled by its user", SACCT, PASSED, cancel("CANCELLED")),
    machine("Slurm has forgotten the job, and stores no records", SQUEUE, PASSED, cancel("", accounting=False, known=False, sacct="UNKNOWN")),
    machine("its epilog takes a minute", "https://slurm.schedmd.com/prolog_epilog.html", WARNING, cancel("COMPLETING", over=False, known=False, sacct="RUNNING")),
    machine("it still runs", SQUEUE, MONITOR, cancel("RUNNING", over=False, known=False, sacct="RUNNING"), sick=True),
    machine("the accounting believes that it runs", SACCT, MONITOR, cancel("CANCELLED", sacct="RUNNING"), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_jobs_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
