"""The checks of the accounting suite on facts: what fails, what passes, what is not checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, CounterExample
from judged import figures, judged

from pytest_gpucluster.cluster.slurm.inventory import parse_partitions
from pytest_gpucluster.core.check import Check
from pytest_gpucluster.suites.accounting import checks, trial_checks
from pytest_gpucluster.suites.accounting.config import AccountingConfig
from pytest_gpucluster.suites.accounting.facts import (
    Answer,
    Association,
    JobRecord,
    QosInfo,
    Share,
    TrialJob,
    parse_records,
)
from pytest_gpucluster.suites.accounting.limit_plan import LimitResult
from pytest_gpucluster.suites.accounting.steps import Records
from pytest_gpucluster.suites.accounting.trials import BackfillResult, FairshareResult, PreemptionResult

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

ALL = frozenset({"associations", "limits", "qos"})
PARTITION = (
    "PartitionName=p AllowGroups=ALL AllowAccounts={} AllowQos=ALL Default=NO DefaultTime=NONE "
    "MaxTime=UNLIMITED MaxNodes=UNLIMITED Nodes=gpu01 OverSubscribe=NO State=UP\n"
)


def config(**plain: Any) -> AccountingConfig:
    return AccountingConfig.model_validate(plain)


def assert_judged(verdict: Verdict, expected: str | list[str]) -> None:
    """Fail unless the verdict is this outcome, or a fault of the configuration in these parts."""
    assert all(one.action is None for one in verdict.findings), "no node is at fault"
    if isinstance(expected, list):
        assert judged(verdict) == (CONFIGURE, expected)
    else:
        assert judged(verdict)[0] == expected


ML = Association("ml", "", "", "root", "10", frozenset({"normal"}), {"GrpTRES": {"gres/gpu": 8}})
ALICE = Association("ml", "alice", fairshare="1", limits={"GrpTRES": None})
STATED = {"ml": {"parent": "root", "fairshare": 10, "users": ["Alice"], "limits": {"GrpTRES": "gres/gpu=8"}}}
OTHERS = (ML, ALICE, Association("x"), Association("root"))


@pytest.mark.parametrize(
    ("stated", "found", "expected"),
    [
        ({"accounts": STATED}, (ML, ALICE), PASSED),
        ({"accounts": STATED, "exact": True}, (ML, ALICE), PASSED),
        ({"accounts": STATED}, (ALICE,), ["account ml"]),
        ({"accounts": STATED}, (ML,), ["user Alice of account ml"]),
        ({"accounts": {"ml": {"parent": "ops"}}}, (ML,), ["account ml"]),
        ({"accounts": {"ml": {"fairshare": 1}}}, (ML,), ["account ml"]),
        ({"accounts": {"ml": {"qos": ["high"]}}}, (ML,), ["account ml"]),
        ({"accounts": {"ml": {"limits": {"GrpTRES": None}}}}, (ML,), ["GrpTRES of account ml"]),
        ({"accounts": {"ml": {}}, "exact": True}, OTHERS, ["user alice of account ml", "account x"]),
        ({"accounts": {"ml": {}}}, OTHERS, PASSED),
        ({}, (ML,), NOT_APPLICABLE),
    ],
)
def test_accounts(stated: dict[str, Any], found: Any, expected: str | list[str]) -> None:
    assert_judged(checks.accounts(config(**stated), found, ALL, ()), expected)


@pytest.mark.parametrize(
    ("stated", "enforced", "hidden", "expected"),
    [
        (STATED, ALL, ("users",), NOT_CHECKED),
        (STATED, ALL, ("accounts",), NOT_CHECKED),
        (STATED, ALL, ("jobs",), PASSED),
        (STATED, {"associations"}, (), [checks.ENFORCE]),
        ({"ml": {}}, {"associations"}, (), PASSED),
        ({"ml": {}}, (), (), WARNING),
    ],
)
def test_accounts_that_are_hidden_or_not_enforced(
    stated: dict[str, Any], enforced: Any, hidden: Any, expected: str | list[str]
) -> None:
    assert_judged(checks.accounts(config(accounts=stated), (ML, ALICE), enforced, hidden), expected)


def test_association_of_one_partition_does_not_hide_the_general_one() -> None:
    narrow = Association("ml", "alice", "debug", fairshare="7")
    stated = config(accounts={"ml": {"users": {"alice": {"fairshare": 1}}}})
    for order in ((ALICE, narrow), (narrow, ALICE)):
        assert_judged(checks.accounts(stated, (ML, *order), ALL, ()), PASSED)


HIGH = QosInfo(
    "high", 1000, frozenset({"low"}), "requeue", 120.0, frozenset({"DenyOnLimit"}), {"MaxJobsPU": 4}
)
FULL = {"priority": 1000, "preempt": ["low"], "preempt_mode": "requeue", "grace_time": "2m"}


@pytest.mark.parametrize(
    ("stated", "enforced", "kind", "expected"),
    [
        (FULL, ALL, "qos", PASSED),
        ({"flags": ["DenyOnLimit"], "limits": {"MaxJobsPU": 4}}, ALL, "none", PASSED),
        ({"flags": ["NoDecay"]}, ALL, "none", ["QoS High"]),
        ({"priority": 1}, ALL, "qos", ["QoS High"]),
        ({"grace_time": "1m"}, ALL, "qos", ["QoS High"]),
        ({"preempt": ["low", "x"]}, ALL, "qos", ["QoS High"]),
        ({"preempt": []}, ALL, "qos", ["QoS High"]),
        ({"preempt": ["low"]}, ALL, "none", ["PreemptType"]),
        ({"preempt_mode": "cancel"}, ALL, "qos", ["QoS High"]),
        ({"limits": {"MaxJobsPU": 5}}, ALL, "qos", ["MaxJobsPU of QoS High"]),
        ({"limits": {"MaxJobsPU": 4}}, {"qos"}, "qos", [checks.ENFORCE]),
    ],
)
def test_qos(stated: dict[str, Any], enforced: Any, kind: str, expected: str | list[str]) -> None:
    found = {"high": HIGH, "normal": QosInfo("normal")}
    settings = {"PreemptType": f"preempt/{kind}"}
    assert_judged(checks.qos(config(qos={"High": stated}), found, enforced, settings), expected)


def test_qos_that_is_missing_or_not_stated() -> None:
    found = {"high": HIGH, "normal": QosInfo("normal")}
    assert_judged(checks.qos(config(qos={"low": {}}, exact=True), found, ALL, {}), ["QoS low", "QoS high"])
    assert_judged(checks.qos(config(), found, ALL, {}), NOT_APPLICABLE)


@pytest.mark.parametrize(
    ("accounts", "stated", "enforced", "expected"),
    [
        ("ml,ops", {"allow_accounts": ["ops", "ml"]}, ALL, PASSED),
        ("ALL", {"deny_accounts": [], "allow_qos": ["ALL"], "allow_groups": ["ALL"]}, ALL, PASSED),
        ("ALL", {"allow_accounts": ["ml"]}, ALL, ["AllowAccounts of partition p"]),
        ("ml", {"allow_accounts": ["ALL"]}, ALL, ["AllowAccounts of partition p"]),
        ("ALL", {"deny_qos": ["low"]}, ALL, ["DenyQos of partition p"]),
        ("ALL", {"allow_accounts": ["ALL"]}, (), PASSED),
        # since 23.02 slurmctld does not look at AllowAccounts then (part_policy_valid_acct)
        ("ml", {"allow_accounts": ["ml"]}, (), [checks.ENFORCE]),
        ("ALL", {"deny_accounts": ["x"]}, (), ["DenyAccounts of partition p", checks.ENFORCE]),
    ],
)
def test_partition_access(
    accounts: str, stated: dict[str, Any], enforced: Any, expected: str | list[str]
) -> None:
    found = parse_partitions(PARTITION.format(accounts))
    assert_judged(checks.partition_access(config(partitions={"p": stated}), found, enforced), expected)


def test_partition_that_is_missing_or_not_stated() -> None:
    found = parse_partitions(PARTITION.format("ALL"))
    other = config(partitions={"q": {}}, exact=True)
    assert_judged(checks.partition_access(other, found, ALL), ["partition q", "partition p"])
    assert_judged(checks.partition_access(config(), found, ALL), NOT_APPLICABLE)


JOB = {"user": "alice", "account": "ml", "partition": "p"}
NAMED = ["user alice account ml partition p"]


@pytest.mark.parametrize(
    ("rule", "kind", "accounts", "late", "expected"),
    [
        ("may", "accepted", "ml", "ALL", PASSED),
        ("may", "refused", "ml", "ALL", NAMED),
        ("may", "limit", "ml", "ALL", NOT_CHECKED),  # the user's own jobs may have reached it
        ("may_not", "refused", "ml", "ALL", PASSED),
        ("may_not", "limit", "ml", "ALL", PASSED),
        ("may_not", "accepted", "ml", "ALL", NAMED),
        ("may_not", "accepted", "ALL", "NO", NAMED),
        ("may_not", "accepted", "ops", "NO", NOT_CHECKED),  # Slurm accepts it, and may let it wait forever
        ("may_not", "unclear", "ml", "ALL", NOT_CHECKED),
    ],
)
def test_access(rule: str, kind: str, accounts: str, late: str, expected: str | list[str]) -> None:
    stated = config(access={rule: [JOB]})
    (job,) = (*stated.access.may, *stated.access.may_not)
    found, settings = parse_partitions(PARTITION.format(accounts)), {"EnforcePartLimits": late}
    assert_judged(checks.access(stated, {job: Answer(kind, "why")}, found, settings), expected)


def test_access_that_is_not_stated_is_not_applicable() -> None:
    assert_judged(checks.access(config(), {}, {}, {}), NOT_APPLICABLE)


DECAY = "PriorityDecayHalfLife"
WEIGHTED = "PriorityWeightFairshare"


@pytest.mark.parametrize(
    ("stated", "found", "expected"),
    [
        ({}, {}, PASSED),
        ({}, {"SchedulerType": "sched/builtin"}, ["SchedulerType"]),
        ({"SchedulerType": "sched/builtin"}, {"SchedulerType": "sched/builtin"}, PASSED),
        ({WEIGHTED: 10}, {"PriorityWeightFairShare": "10"}, PASSED),
        (
            {WEIGHTED: 10},
            {"PriorityWeightFairShare": "10", "PriorityType": "priority/basic"},
            ["PriorityType"],
        ),
        ({WEIGHTED: 10}, {"PriorityWeightFairShare": "9"}, [WEIGHTED]),
        ({WEIGHTED: 0}, {"PriorityWeightFairShare": "0", "PriorityType": "priority/basic"}, PASSED),
        ({DECAY: "7-0"}, {DECAY: "7-00:00:00"}, PASSED),
        ({DECAY: "14d"}, {DECAY: "14-00:00:00"}, PASSED),
        ({DECAY: "14-0"}, {DECAY: "7-00:00:00"}, [DECAY]),
        ({DECAY: "14-0"}, {}, [DECAY]),
        ({"PreemptMode": ["suspend", "gang"]}, {"PreemptMode": "GANG,SUSPEND"}, PASSED),
        ({"PreemptMode": "suspend"}, {"PreemptMode": "GANG,SUSPEND"}, ["PreemptMode"]),
    ],
)
def test_settings(stated: dict[str, Any], found: dict[str, str], expected: str | list[str]) -> None:
    shown = {"SchedulerType": "sched/backfill", "PriorityType": "priority/multifactor", **found}
    assert_judged(checks.scheduling(config(settings=stated), shown), expected)


def test_shares_need_a_weight_and_priority_multifactor_and_a_scheduler_is_set() -> None:
    shares = config(accounts={"ml": {"fairshare": 3}})
    basic = {"PriorityType": "priority/basic", "PriorityWeightFairShare": "0"}
    expected = ["SchedulerType", "PriorityType", WEIGHTED]
    assert_judged(checks.scheduling(shares, basic), expected)
    usual = {"SchedulerType": "sched/backfill", "PriorityType": "priority/multifactor"}
    assert_judged(checks.scheduling(shares, {**usual, "PriorityWeightFairShare": "1"}), PASSED)


# -- job records: sound ones that look broken, and broken ones that look sound (docs/five-rules.md) --

SACCT = "https://slurm.schedmd.com/sacct.html"
RUNAWAY = "https://slurm.schedmd.com/sacctmgr.html"
NEVER = {"start": "None", "tres": "", "nodes": "None assigned"}


def record(state: str = "COMPLETED", **changes: str) -> JobRecord:
    shown = {
        "submit": "2026-10-24T01:00:00",
        "start": "2026-10-24T01:01:00",
        "end": "2026-10-24T02:00:00",
        "code": "0:0",
        "tres": "billing=8,cpu=8,gres/gpu=1,mem=64G,node=1",
        "nodes": "gpu01",
        **changes,
    }
    account = shown.pop("account", "ml")
    (found,) = parse_records("|".join(("4711", "alice", account, "gpu", state, *shown.values())))
    return found


def of(*jobs: JobRecord, **known: Any) -> Records:
    return Records(jobs, **{"compared": 1, **known})


GONE = (record("RUNNING", end="Unknown"),)
EARLIER = {"start": "2026-10-25T02:50:00", "end": "2026-10-25T02:20:00"}
MACHINES: tuple[tuple[str, str, str, Records], ...] = (
    ("cancelled while it waited", SACCT, PASSED, of(record("CANCELLED by 1000", **NEVER))),
    ("its deadline passed while it waited", SACCT, PASSED, of(record("DEADLINE", **NEVER, code="0:1"))),
    ("it runs", SACCT, PASSED, of(*GONE)),
    ("it ran while summer time ended", f"{SACCT}#SLURM_TIME_FORMAT", PASSED, of(record(**EARLIER))),
    ("no job ended lately", SACCT, PASSED, of()),
    ("nothing is known", SACCT, NOT_CHECKED, of(compared=0)),
    ("records are still to be sent", RUNAWAY, NOT_CHECKED, of(runaways=GONE, unsent=40)),
    ("nobody knows what is to be sent", RUNAWAY, NOT_CHECKED, of(missing=("12",), unsent=None)),
    ("only own jobs are shown", RUNAWAY, NOT_CHECKED, of(record(), hidden=True)),
    ("completed, and no end", SACCT, MONITOR, of(record(end="Unknown"))),
    ("no start", SACCT, MONITOR, of(record(start="Unknown"))),
    ("no account", SACCT, MONITOR, of(record(account=""))),
    ("no state", SACCT, MONITOR, of(record(""))),
    ("no exit code", SACCT, MONITOR, of(record(code=""))),
    ("a runaway job", RUNAWAY, MONITOR, of(runaways=GONE)),
    ("a job of this run has no record", RUNAWAY, MONITOR, of(missing=("12",))),
    ("it ended a day before it started", SACCT, MONITOR, of(record(end="2026-10-23T01:00:00"))),
    ("it ended before it started, on a Saturday", SACCT, MONITOR, of(record(end="2026-10-24T01:00:59"))),
    ("it ran on a node without any resource", SACCT, MONITOR, of(record(tres=""))),
)
COUNTER_EXAMPLES = tuple(
    CounterExample(
        "accounting.job_records",
        machine,
        source,
        expected,
        lambda records=records: checks.job_records(records, 3600.0, ALL),  # type: ignore[misc]
        sick=expected == MONITOR,
    )
    for machine, source, expected, records in MACHINES
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=lambda one: one.machine)
def test_records_are_judged_as_a_person_would(example: CounterExample) -> None:
    verdict = example.judged()
    assert judged(verdict)[0] == example.expected
    assert len(verdict.findings) == example.sick


def test_jobs_without_an_association_have_no_account() -> None:
    assert_judged(checks.job_records(of(record(account="")), 3600.0, ()), PASSED)


def test_of_many_broken_records_twenty_are_shown_and_their_number() -> None:
    for count, shown in ((20, 20), (21, 21), (22, 21)):
        findings = checks.job_records(of(*[record(code="")] * count), 3600.0, ALL).findings
        assert len(findings) == shown
    assert figures(findings[-1].measured) == [22]


# -- trials --


def running(**tres: int) -> TrialJob:
    return TrialJob("1", "RUNNING", tres={key.replace("gpu", "gres/gpu"): size for key, size in tres.items()})


def waiting(reason: str) -> TrialJob:
    return TrialJob("2", "PENDING", reason)


@pytest.mark.parametrize(
    ("rule", "answer", "job", "expected"),
    [
        ("may", "accepted", running(), PASSED),
        ("may", "accepted", waiting("Resources"), PASSED),
        ("may", "accepted", waiting("AccountNotAllowed"), NAMED),
        ("may", "refused", None, NAMED),
        ("may", "limit", None, NOT_CHECKED),
        ("may", "accepted", waiting("QOSGrpJobsLimit"), NOT_CHECKED),
        ("may", "accepted", None, NOT_CHECKED),
        ("may_not", "refused", None, PASSED),
        ("may_not", "accepted", waiting("QOSNotAllowed"), PASSED),
        ("may_not", "accepted", running(), NAMED),
        ("may_not", "not tried", running(), NOT_CHECKED),
    ],
)
def test_access_jobs(rule: str, answer: str, job: TrialJob | None, expected: str | list[str]) -> None:
    stated = config(access={rule: [JOB]})
    (access,) = (*stated.access.may, *stated.access.may_not)
    seen = {access: (Answer(answer, "why" * (answer != "accepted")), job)}
    assert_judged(trial_checks.access_jobs(stated, seen), expected)


LIMITS = {"MaxJobsPU": 1, "MaxSubmitPU": 1, "MaxTRESPU": "gres/gpu=4,cpu=8,mem=300M", "MaxTRES": "cpu=4"}
OF = ("MaxJobsPU", "MaxSubmitPU", "MaxTRESPU gres/gpu", "MaxTRESPU cpu", "MaxTRESPU mem", "MaxTRES cpu")
TRIALS = config(
    qos={"q": {"limits": {**LIMITS, "MaxWall": "3:00"}}},
    trials={
        "partition": "p",
        "limits": [
            {"qos": "q", "limit": limit, "tres": tres or None}
            for limit, _, tres in (one.partition(" ") for one in (*OF, "MaxWall"))
        ],
        "fairshare": {"busy": "b", "idle": "i"},
    },
)
assert TRIALS.trials is not None
COUNT, SUBMIT, GPUS, CPUS, MEMORY, JOB_CPUS, WALL = TRIALS.trials.limits
MIB = 1024**2
BEYOND = waiting("QOSMaxJobsPerUserLimit")
NO_GPU, NO_CPU, NO_JOB_CPU, NO_TIME = (
    waiting(f"QOSMax{one}")
    for one in ("GRESPerUser", "CpuPerUserLimit", "CpuPerJobLimit", "WallDurationPerJobLimit")
)
BUSY = waiting("Resources")
C2, C4, C6 = running(cpu=2), running(cpu=4), running(cpu=6)


def no(number: int, result: str = "limit", message: str = "why") -> dict[str, Any]:
    return {"refused": (number, Answer(result, message))}


def sizes(*amounts: int) -> dict[str, Any]:
    return {"sizes": amounts}


@pytest.mark.parametrize(
    ("trial", "amount", "jobs", "more", "expected"),
    [
        (COUNT, 1, (running(), BEYOND), {}, PASSED),
        (COUNT, 1, (running(), running()), {}, [2, 2, 1]),
        (COUNT, 1, (running(), BUSY), {}, NOT_CHECKED),
        (COUNT, 1, (BEYOND, BEYOND), {}, [0, 1]),
        (COUNT, 1, (), {"problem": "busy"}, NOT_CHECKED),
        (COUNT, 1, (running(),), no(2, "unclear"), NOT_CHECKED),
        # nodes that are always allocated whole
        (GPUS, 4, (running(gpu=4), *[NO_GPU] * 4), {}, PASSED),
        (GPUS, 4, (running(gpu=2), *[NO_GPU] * 4), {}, [2, 4]),
        (GPUS, 4, (running(gpu=4), running(gpu=2)), {}, [6, 2, 4]),
        (SUBMIT, 1, (), no(2, message="QOSMaxSubmitJobPerUserLimit / Job violates"), PASSED),
        (SUBMIT, 1, (), no(2, message="Job violates"), PASSED),
        (SUBMIT, 1, (), no(2, message="AssocMaxSubmitJobLimit"), NOT_CHECKED),
        (SUBMIT, 1, (), no(1), [1, 1]),
        (SUBMIT, 1, (), no(2, "unclear"), NOT_CHECKED),
        (SUBMIT, 1, (), {}, [2, 1, 2]),
        # whole cores of two threads: 2 + 6 of 8
        (CPUS, 8, (C2, C6, NO_CPU), sizes(1, 6, 2), PASSED),
        (CPUS, 8, (C2, C6, C2), sizes(1, 6, 2), [10, 3, 8]),
        (CPUS, 8, (C2, NO_CPU), sizes(1, 6), [2, 8]),
        (CPUS, 8, (BUSY,), sizes(1), NOT_CHECKED),
        # where Slurm does not track memory, tres-alloc has none: the requested memory counts
        (MEMORY, 300 * MIB, (running(cpu=1),) * 3, sizes(100 * MIB, 200 * MIB, 100 * MIB), [400, 3, 300]),
        (JOB_CPUS, 4, (C2, C4, NO_JOB_CPU), sizes(1, 4, 6), PASSED),
        (JOB_CPUS, 4, (C2, C4, C6), sizes(1, 4, 6), [6, 4]),
        (JOB_CPUS, 4, (C2, NO_JOB_CPU, NO_JOB_CPU), sizes(1, 4, 6), [4]),
        (JOB_CPUS, 4, (C2, C4, BUSY), sizes(1, 4, 6), NOT_CHECKED),
        # a QoS with DenyOnLimit
        (JOB_CPUS, 4, (C2, C4), no(3, message="QOSMaxCpuPerJobLimit / x") | sizes(1, 4, 6), PASSED),
        (JOB_CPUS, 4, (C2, C4), no(3, message="QOSMaxNodePerJobLimit") | sizes(1, 4, 6), NOT_CHECKED),
        (JOB_CPUS, 4, (C2,), no(2) | sizes(1, 4), [4]),
        (JOB_CPUS, 4, (C2,), no(2, "unclear") | sizes(1, 4), NOT_CHECKED),
        (WALL, 3, (running(), NO_TIME), sizes(3, 4), PASSED),
        (WALL, 3, (running(), running()), sizes(3, 4), [0, 0, 4, 0, 0, 0, 3, 0]),
        (WALL, 3, (running(), waiting("PartitionTimeLimit")), sizes(3, 4), NOT_CHECKED),
    ],
)
def test_limits(trial: Any, amount: int, jobs: Any, more: Any, expected: str | list[float]) -> None:
    verdict = trial_checks.limits([LimitResult(trial, amount, jobs, **more)])
    if isinstance(expected, list):
        assert_judged(verdict, [str(trial)])
        (finding,) = verdict.findings
        assert figures(f"{finding.measured} / {finding.expected}") == expected
    else:
        assert_judged(verdict, expected)


def shares(busy: tuple[int, float], idle: tuple[int, float] = (0, 0.5)) -> dict[str, Share]:
    return {"b": Share(*busy, level=busy[1]), "i": Share(*idle, level=idle[1] if idle[0] else None)}


WEIGHT = {"PriorityType": "priority/multifactor", "PriorityWeightFairShare": "1000"}
EQUAL = {"b": 500, "i": 500}
LOWER = {"b": 200, "i": 500}


@pytest.mark.parametrize(
    ("after", "priorities", "expected"),
    [
        (shares((30, 0.2)), LOWER, PASSED),
        (shares((0, 0.2)), LOWER, ["usage of account b"]),
        (shares((30, 0.5)), LOWER, ["fair share of account b"]),
        (shares((30, 0.5), (90, 0.4)), LOWER, NOT_CHECKED),  # the idle account has used more
        (shares((30, 0.2)), EQUAL, ["priorities of two equal jobs"]),
        (shares((30, 0.498)), EQUAL, ["priorities of two equal jobs"]),
        (shares((30, 0.4981)), EQUAL, NOT_CHECKED),  # less than two units of priority
        (shares((30, 0.2)), {"b": 1}, NOT_CHECKED),
    ],
)
def test_fairshare(after: dict[str, Share], priorities: dict[str, int], expected: str | list[str]) -> None:
    result = FairshareResult(shares((0, 0.5)), after, priorities, 60.0)
    assert_judged(trial_checks.fairshare(TRIALS, result, WEIGHT), expected)


def test_fairshare_without_weight_fails_and_without_a_result_is_not_checked() -> None:
    for change in ({"PriorityWeightFairShare": "0"}, {"PriorityType": "priority/basic"}):
        assert_judged(trial_checks.fairshare(TRIALS, FairshareResult(), WEIGHT | change), ["fair share"])
    assert_judged(trial_checks.fairshare(TRIALS, FairshareResult(problem="busy"), WEIGHT), NOT_CHECKED)


WAITS = TrialJob("2", "PENDING", "Resources", priority=20)
SHORT = TrialJob("3", "PENDING", "Priority", priority=10)
IDLE = frozenset({"gpu02"})


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (BackfillResult(WAITS, TrialJob("3", "RUNNING", priority=10), IDLE, 2.0), PASSED),
        (BackfillResult(WAITS, SHORT, IDLE, 60.0), ["short job"]),
        (BackfillResult(WAITS, SHORT, frozenset(), 60.0), NOT_CHECKED),
        (BackfillResult(WAITS, replace(SHORT, reason="Resources"), IDLE, 60.0), NOT_CHECKED),
        (BackfillResult(running(), SHORT, IDLE), NOT_CHECKED),
        (BackfillResult(SHORT, SHORT, IDLE), NOT_CHECKED),  # of the same priority
        (BackfillResult(problem="busy"), NOT_CHECKED),
        (BackfillResult(WAITS, None, IDLE), NOT_CHECKED),
        (None, NOT_APPLICABLE),
    ],
)
def test_backfill(result: BackfillResult | None, expected: str | list[str]) -> None:
    assert_judged(trial_checks.backfill(result), expected)


REQUEUED, KILLED = TrialJob("1", "PENDING", "BeginTime", restarts=1), TrialJob("1", "PREEMPTED")
SUSPENDED = TrialJob("1", "SUSPENDED")


@pytest.mark.parametrize(
    ("mode", "result", "expected"),
    [
        ("requeue", PreemptionResult(running(), REQUEUED, 1.0), PASSED),
        ("requeue", PreemptionResult(running(), KILLED, 1.0), ["preempted job"]),
        ("cancel", PreemptionResult(running(), KILLED, 1.0), PASSED),
        ("cancel", PreemptionResult(running(), REQUEUED, 1.0), ["preempted job"]),
        ("suspend", PreemptionResult(running(), SUSPENDED, 1.0, running()), PASSED),
        ("suspend", PreemptionResult(running(), SUSPENDED, 1.0, SUSPENDED), ["suspended job"]),
        ("suspend", PreemptionResult(running(), SUSPENDED, 1.0), ["suspended job"]),
        ("requeue", PreemptionResult(waiting("Resources"), running(), 60.0), ["preempting job"]),
        ("requeue", PreemptionResult(problem="busy"), NOT_CHECKED),
        ("requeue", PreemptionResult(None, running()), NOT_CHECKED),
    ],
)
def test_preemption(mode: str, result: PreemptionResult, expected: str | list[str]) -> None:
    stated = config(trials={"partition": "p", "preemption": {"mode": mode}})
    verdict = trial_checks.preemption(stated, [result])
    assert_judged(verdict, expected)
    if expected == PASSED:
        assert [(metric.name, metric.value) for metric in verdict.metrics] == [("preemption", 1.0)]


def test_several_preemptions_are_distinguished() -> None:
    modes = [
        {"mode": "requeue", "low_qos": "low"},
        {"mode": "suspend"},
        {"mode": "cancel", "low_qos": "gone"},
    ]
    stated = config(trials={"partition": "p", "preemption": modes})
    fine, untried = PreemptionResult(running(), REQUEUED, 1.0), PreemptionResult(problem="busy")
    verdict = trial_checks.preemption(stated, [fine, untried, PreemptionResult(running(), REQUEUED, 2.0)])
    assert_judged(verdict, ["preempted job (cancel gone)"])
    assert [(one.device, one.value) for one in verdict.metrics] == [
        ("requeue low", 1.0),
        ("cancel gone", 2.0),
    ]
    killed = PreemptionResult(running(), KILLED, 2.0)
    assert_judged(trial_checks.preemption(stated, [fine, untried, killed]), NOT_CHECKED)


def test_only_trials_need_the_option_intrusive() -> None:
    for module, marks in ((checks, ()), (trial_checks, ("intrusive", "exclusive"))):
        found = [one for one in vars(module).values() if isinstance(one, Check)]
        assert found
        assert all(tuple(one.marks) == marks for one in found)


def test_trials_that_the_file_does_not_state_are_not_applicable() -> None:
    for verdict in (
        trial_checks.access_jobs(config(), None),
        trial_checks.limits(None),
        trial_checks.limits([]),
        trial_checks.fairshare(config(), None, {}),
        trial_checks.preemption(config(), []),
    ):
        assert_judged(verdict, NOT_APPLICABLE)
