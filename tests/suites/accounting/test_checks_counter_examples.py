"""Sound records of jobs that look broken, and broken ones that look sound (docs/five-rules.md)."""

from __future__ import annotations

from typing import Any

import pytest
from counter_examples import MONITOR, NOT_CHECKED, PASSED, CounterExample, assert_as_expected, name

from pytest_gpucluster.suites.accounting import checks
from pytest_gpucluster.suites.accounting.facts import parse_records
from pytest_gpucluster.suites.accounting.steps import Records

SACCT = "https://slurm.schedmd.com/sacct.html"
RUNAWAY = "https://slurm.schedmd.com/sacctmgr.html"
LIMITS = "https://slurm.schedmd.com/resource_limits.html"
TRES = "billing=8,cpu=8,gres/gpu=1,mem=64G,node=1"


def row(
    state: str,
    submit: str = "2026-10-24T01:00:00",
    start: str = "2026-10-24T01:01:00",
    end: str = "2026-10-24T02:00:00",
    code: str = "0:0",
    tres: str = TRES,
    nodes: str = "gpu01",
    account: str = "ml",
) -> str:
    return f"4711|alice|{account}|gpu|{state}|{submit}|{start}|{end}|{code}|{tres}|{nodes}"


def records(*rows: str, enforced: tuple[str, ...] = ("associations", "limits"), **known: Any) -> Any:
    found = Records(parse_records("\n".join(rows)), **{"compared": 1, **known})
    return lambda: checks.job_records(found, 1.0, enforced)


def machine(name: str, source: str, expected: str, judged: Any, *, sick: bool = False) -> CounterExample:
    return CounterExample("accounting.job_records", name, source, expected, judged, sick=sick)


NEVER = {"start": "None", "tres": "", "nodes": "None assigned"}
GONE = parse_records(row("RUNNING", end="Unknown"))
COUNTER_EXAMPLES = (
    machine("cancelled while it waited", SACCT, PASSED, records(row("CANCELLED by 1000", **NEVER))),
    machine("its deadline passed while it waited", SACCT, PASSED, records(row("DEADLINE", **NEVER, code="0:1"))),
    machine("a sibling of another cluster of a federation started", SACCT, PASSED, records(row("REVOKED", **{**NEVER, "start": "Unknown"}))),
    machine("it runs", SACCT, PASSED, records(row("RUNNING", end="Unknown"))),
    machine("no account: Slurm enforces no associations", LIMITS, PASSED, records(row("COMPLETED", account=""), enforced=())),
    machine("it ran while summer time ended: local times go back by an hour", "https://slurm.schedmd.com/sacct.html#OPT_SLURM_TIME_FORMAT", PASSED,
        records(row("COMPLETED", start="2026-10-25T02:50:00", end="2026-10-25T02:20:00"))),
    machine("alive in the accounting only, while records are still to be sent", RUNAWAY, NOT_CHECKED, records(runaways=GONE, unsent=40)),
    machine("completed, and no end", SACCT, MONITOR, records(row("COMPLETED", end="Unknown")), sick=True),
    machine("a runaway job", RUNAWAY, MONITOR, records(runaways=GONE), sick=True),
    machine("it ended a day before it started", SACCT, MONITOR, records(row("COMPLETED", end="2026-10-23T01:00:00")), sick=True),
    machine("it ran on a node without any resource", SACCT, MONITOR, records(row("COMPLETED", tres="")), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_records_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
