"""The checks of the accounting suite on facts: what fails, what passes, what is not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster.slurm.inventory import parse_partitions
from pytest_gpucluster.core.check import Action, Check, Outcome
from pytest_gpucluster.suites.accounting import checks, trial_checks
from pytest_gpucluster.suites.accounting.config import AccountingConfig
from pytest_gpucluster.suites.accounting.facts import Answer, Association, JobRecord, QosInfo, Share, TrialJob
from pytest_gpucluster.suites.accounting.limit_plan import LimitResult
from pytest_gpucluster.suites.accounting.steps import Records
from pytest_gpucluster.suites.accounting.trials import BackfillResult, FairshareResult, PreemptionResult

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

ALL = frozenset({"associations", "limits", "qos"})
PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts={accounts} AllowQos=ALL Default=NO DefaultTime=NONE "
    "MaxTime=UNLIMITED MaxNodes=UNLIMITED Nodes=gpu01 OverSubscribe=NO State=UP\n"
)


def config(**plain: Any) -> AccountingConfig:
    return AccountingConfig.model_validate(plain)


def told(verdict: Verdict) -> str:
    """Return the findings of a failure, or the outcome with its reason."""
    if verdict.outcome is Outcome.FAILED:
        assert verdict.action in (Action.CONFIGURE, Action.MONITOR)  # no node is at fault
        assert all(one.action is None for one in verdict.findings)
        return "; ".join(f"{one.part}: {one.measured} / {one.expected}" for one in verdict.findings)
    return f"{verdict.outcome.value}: {verdict.reason}".removesuffix(": ")


ML = Association("ml", "", "", "root", "10", frozenset({"normal"}), {"GrpTRES": {"gres/gpu": 8}})
ALICE = Association("ml", "alice", fairshare="1", limits={"GrpTRES": None})
STATED = {"ml": {"parent": "root", "fairshare": 10, "users": ["Alice"], "limits": {"GrpTRES": "gres/gpu=8"}}}


@pytest.mark.parametrize(
    ("stated", "found", "enforced", "hidden", "expected"),
    [
        ({"accounts": STATED}, (ML, ALICE), ALL, (), "passed"),
        ({"accounts": STATED, "exact": True}, (ML, ALICE), ALL, (), "passed"),
        ({"accounts": STATED}, (ALICE,), ALL, (), "account ml: missing / exists"),
        ({"accounts": STATED}, (ML,), ALL, (), "user Alice of account ml: missing / has the account"),
        ({"accounts": STATED}, (), ALL, ("users",), "not checked: slurmdbd hides other users' associations"),
        ({"accounts": STATED}, (ML, ALICE), ALL, ("jobs",), "passed"),
        ({"accounts": {"ml": {"parent": "ops"}}}, (ML,), ALL, (), "account ml: parent root / parent ops"),
        ({"accounts": {"ml": {"fairshare": 1}}}, (ML,), ALL, (), "account ml: fairshare 10 / fairshare 1"),
        ({"accounts": {"ml": {"qos": ["high"]}}}, (ML,), ALL, (), "account ml: QoS normal / QoS high"),
        (
            {"accounts": {"ml": {"limits": {"GrpTRES": None}}}},
            (ML,),
            ALL,
            (),
            "GrpTRES of account ml: gres/gpu=8 / no limit",
        ),
        (
            {"accounts": STATED},
            (ML, ALICE),
            {"associations"},
            (),
            "AccountingStorageEnforce: associations / limits",
        ),
        (
            {"accounts": {"ml": {}}, "exact": True},
            (ML, ALICE, Association("x"), Association("root")),
            ALL,
            (),
            "user alice of account ml: has the account / not stated in the cluster file; "
            "account x: exists / not stated in the cluster file",
        ),
        ({}, (ML,), ALL, (), "not applicable: the cluster file states no accounts"),
    ],
)
def test_accounts(stated: dict[str, Any], found: Any, enforced: Any, hidden: Any, expected: str) -> None:
    assert told(checks.accounts(config(**stated), found, enforced, hidden)).startswith(expected)


def test_association_of_one_partition_does_not_hide_the_general_one() -> None:
    narrow = Association("ml", "alice", "debug", fairshare="7")
    for order in ((ALICE, narrow), (narrow, ALICE)):
        stated = config(accounts={"ml": {"users": {"alice": {"fairshare": 1}}}})
        assert told(checks.accounts(stated, (ML, *order), ALL, ())) == "passed"


HIGH = QosInfo(
    "high", 1000, frozenset({"low"}), "requeue", 120.0, frozenset({"DenyOnLimit"}), {"MaxJobsPU": 4}
)


@pytest.mark.parametrize(
    ("stated", "enforced", "kind", "expected"),
    [
        (
            {"priority": 1000, "preempt": ["low"], "preempt_mode": "requeue", "grace_time": "2m"},
            ALL,
            "qos",
            "passed",
        ),
        ({"flags": ["DenyOnLimit"], "limits": {"MaxJobsPU": 4}}, ALL, "none", "passed"),
        ({"priority": 1}, ALL, "qos", "QoS High: priority 1000 / priority 1"),
        ({"preempt": ["low", "x"]}, ALL, "qos", "QoS High: preempts low / preempts low, x"),
        ({"preempt": []}, ALL, "qos", "QoS High: preempts low / preempts none"),
        ({"preempt": ["low"]}, ALL, "none", "PreemptType: preempt/none / preempt/qos"),
        ({"preempt_mode": "cancel"}, ALL, "qos", "QoS High: PreemptMode requeue / PreemptMode cancel"),
        ({"limits": {"MaxJobsPU": 5}}, ALL, "qos", "MaxJobsPU of QoS High: 4 / 5"),
        ({"limits": {"MaxJobsPU": 4}}, {"qos"}, "qos", "AccountingStorageEnforce: qos / limits"),
    ],
)
def test_qos(stated: dict[str, Any], enforced: Any, kind: str, expected: str) -> None:
    settings = {"PreemptType": f"preempt/{kind}"}
    found = {"high": HIGH, "normal": QosInfo("normal")}
    assert told(checks.qos(config(qos={"High": stated}), found, enforced, settings)).startswith(expected)


def test_qos_that_is_missing_or_not_stated() -> None:
    found = {"high": HIGH, "normal": QosInfo("normal")}
    verdict = checks.qos(config(qos={"low": {}}, exact=True), found, ALL, {})
    assert told(verdict) == "QoS low: missing / exists; QoS high: exists / not stated in the cluster file"


@pytest.mark.parametrize(
    ("accounts", "stated", "enforced", "expected"),
    [
        ("ml,ops", {"allow_accounts": ["ops", "ml"]}, ALL, "passed"),
        ("ALL", {"allow_accounts": ["ALL"]}, ALL, "passed"),
        ("ALL", {"deny_accounts": [], "allow_qos": ["ALL"], "allow_groups": ["ALL"]}, ALL, "passed"),
        ("ALL", {"allow_accounts": ["ml"]}, ALL, "AllowAccounts of partition p: ALL / ml"),
        ("ml", {"allow_accounts": ["ALL"]}, ALL, "AllowAccounts of partition p: ml / ALL"),
        ("ALL", {"deny_qos": ["low"]}, ALL, "DenyQos of partition p: none / low"),
        ("ALL", {"allow_accounts": ["ALL"]}, (), "passed"),
        # since 23.02 slurmctld does not look at AllowAccounts then (part_policy_valid_acct)
        ("ml", {"allow_accounts": ["ml"]}, (), "AccountingStorageEnforce: none / associations"),
    ],
)
def test_partition_access(accounts: str, stated: dict[str, Any], enforced: Any, expected: str) -> None:
    found = parse_partitions(PARTITION.format(name="p", accounts=accounts))
    assert told(checks.partition_access(config(partitions={"p": stated}), found, enforced)).startswith(
        expected
    )
    unknown = checks.partition_access(config(partitions={"q": {}}, exact=True), found, ALL)
    assert (
        told(unknown)
        == "partition q: unknown to Slurm / a partition; partition p: exists / not stated in the cluster file"
    )


JOB = {"user": "alice", "account": "ml", "partition": "p"}
NAMED = "user alice account ml partition p"


@pytest.mark.parametrize(
    ("rule", "kind", "accounts", "late", "expected"),
    [
        ("may", "accepted", "ml", "ALL", "passed"),
        ("may", "refused", "ml", "ALL", f"{NAMED}: why / accepted"),
        (
            "may",
            "limit",
            "ml",
            "ALL",
            f"not checked: {NAMED}: why",
        ),  # the user's own jobs may have reached it
        ("may", "not tried", "ml", "ALL", f"not checked: {NAMED}: why"),
        ("may_not", "refused", "ml", "ALL", "passed"),
        ("may_not", "limit", "ml", "ALL", "passed"),
        ("may_not", "accepted", "ALL", "ALL", f"{NAMED}: accepted / refused"),
        ("may_not", "accepted", "ALL", "NO", f"{NAMED}: accepted / refused"),
        ("may_not", "accepted", "ops", "NO", f"not checked: {NAMED}: EnforcePartLimits=NO"),
        ("may_not", "unclear", "ml", "ALL", f"not checked: {NAMED}: why"),
    ],
)
def test_access(rule: str, kind: str, accounts: str, late: str, expected: str) -> None:
    stated = config(access={rule: [JOB]})
    (job,) = (*stated.access.may, *stated.access.may_not)
    found = parse_partitions(PARTITION.format(name="p", accounts=accounts))
    verdict = checks.access(stated, {job: Answer(kind, "why")}, found, {"EnforcePartLimits": late})
    assert told(verdict).startswith(expected)


@pytest.mark.parametrize(
    ("stated", "found", "expected"),
    [
        ({}, {"SchedulerType": "sched/backfill"}, "passed"),
        ({}, {"SchedulerType": "sched/builtin"}, "SchedulerType: sched/builtin / sched/backfill"),
        ({}, {}, "SchedulerType: not in scontrol show config / sched/backfill"),
        ({"settings": {"SchedulerType": "sched/builtin"}}, {"SchedulerType": "sched/builtin"}, "passed"),
        ({"settings": {"PriorityWeightFairshare": 10}}, {"PriorityWeightFairShare": "10"}, "passed"),
        (
            {"settings": {"PriorityWeightFairshare": 10}},
            {"PriorityWeightFairShare": "9"},
            "PriorityWeightFairshare: 9 / 10",
        ),
        ({"settings": {"PriorityDecayHalfLife": "7-0"}}, {"PriorityDecayHalfLife": "7-00:00:00"}, "passed"),
        ({"settings": {"PriorityDecayHalfLife": "14d"}}, {"PriorityDecayHalfLife": "14-00:00:00"}, "passed"),
        (
            {"settings": {"PriorityDecayHalfLife": "14-0"}},
            {"PriorityDecayHalfLife": "7-00:00:00"},
            "PriorityDecayHalfLife: 7-00:00:00 / 14-0",
        ),
        ({"settings": {"PreemptMode": ["suspend", "gang"]}}, {"PreemptMode": "GANG,SUSPEND"}, "passed"),
        (
            {"settings": {"PreemptMode": "suspend"}},
            {"PreemptMode": "GANG,SUSPEND"},
            "PreemptMode: GANG,SUSPEND / suspend",
        ),
        (
            {"accounts": {"ml": {"fairshare": 3}}},
            {"PriorityType": "priority/basic", "PriorityWeightFairShare": "0"},
            "PriorityType: priority/basic / priority/multifactor; PriorityWeightFairshare: 0 / above 0",
        ),
    ],
)
def test_scheduling(stated: dict[str, Any], found: dict[str, str], expected: str) -> None:
    scheduler = {} if not found and not stated else {"SchedulerType": "sched/backfill"}
    priority = {"PriorityType": "priority/multifactor"}
    verdict = checks.scheduling(config(**stated), {**scheduler, **priority, **found})
    assert told(verdict).startswith(expected)


T0, T1 = "2026-11-23T14:45:44", "2026-11-23T14:46:04"
RAN = JobRecord("10", "a", "ml", "p", "COMPLETED", T0, T0, T1, "0:0", "cpu=1", "gpu01")
WAITED = JobRecord("6", "a", "ml", "p", "CANCELLED", T0, "", T1, "0:0", "", "None assigned")
RUNS = JobRecord("11", "a", "ml", "p", "RUNNING", T0, T0, "", "0:0", "cpu=1", "gpu01")


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (Records((RAN, WAITED, RUNS)), "passed"),
        (Records(compared=3), "passed"),
        (Records(), "not checked: sacct shows no job of the last 1 h"),
        (
            Records((JobRecord("1", state="COMPLETED", account="ml", exit_code="0:0"),)),
            "job 1 (COMPLETED, user unknown): no End",
        ),
        (Records((JobRecord(**{**vars(RAN), "ended": ""}),)), "job 10 (COMPLETED, user a): no End"),
        (
            Records((JobRecord(**{**vars(RAN), "exit_code": ""}),)),
            "job 10 (COMPLETED, user a): ExitCode none",
        ),
        (Records((JobRecord(**{**vars(RAN), "tres": ""}),)), "job 10 (COMPLETED, user a): no AllocTRES"),
        (Records((JobRecord(**{**vars(RAN), "started": ""}),)), "job 10 (COMPLETED, user a): no Start"),
        (Records((JobRecord(**{**vars(RAN), "account": ""}),)), "job 10 (COMPLETED, user a): no account"),
        (
            Records((JobRecord(**{**vars(RAN), "started": T1, "ended": T0}),)),
            f"job 10 (COMPLETED, user a): End {T0} before",
        ),
        (
            Records((RAN,), (RUNS,), compared=1),
            f"job 11 (RUNNING, user a): alive in the accounting since {T0}",
        ),
        (Records((RAN,), missing=("12",)), "job 12 of this run: no record / a record"),
        (
            Records((RAN,), (RUNS,), unsent=7),
            "not checked: the accounting and squeue differ in 1 jobs, and slurmctld has 7",
        ),
        (Records((RAN,), (RUNS,), unsent=None), "not checked: the accounting and squeue differ in 1 jobs"),
        (Records((RAN,), hidden=True), "not checked: PrivateData=jobs hides"),
    ],
)
def test_job_records(records: Records, expected: str) -> None:
    assert told(checks.job_records(records, 3600.0, ALL)).startswith(expected)


def test_jobs_without_an_association_have_no_account() -> None:
    record = JobRecord(**{**vars(RAN), "account": ""})
    assert told(checks.job_records(Records((record,)), 3600.0, ())) == "passed"


# -- trials --------------------------------------------------------------------------------------------------


def running(tres: dict[str, int] | None = None) -> TrialJob:
    return TrialJob("1", "RUNNING", tres=tres or {})


def waiting(reason: str) -> TrialJob:
    return TrialJob("2", "PENDING", reason)


@pytest.mark.parametrize(
    ("rule", "answer", "job", "expected"),
    [
        ("may", Answer("accepted"), running(), "passed"),
        ("may", Answer("accepted"), waiting("Resources"), "passed"),
        (
            "may",
            Answer("accepted"),
            waiting("AccountNotAllowed"),
            f"{NAMED}: PENDING (AccountNotAllowed) / starts",
        ),
        ("may", Answer("refused", "why"), None, f"{NAMED}: why / starts"),
        ("may", Answer("limit", "why"), None, f"not checked: {NAMED}: why"),
        ("may", Answer("accepted"), waiting("QOSGrpJobsLimit"), f"not checked: {NAMED}: PENDING"),
        ("may", Answer("accepted"), None, f"not checked: {NAMED}: squeue no longer"),
        ("may_not", Answer("refused", "why"), None, "passed"),
        ("may_not", Answer("accepted"), waiting("QOSNotAllowed"), "passed"),
        ("may_not", Answer("accepted"), running(), f"{NAMED}: RUNNING / refused"),
        ("may_not", Answer("accepted"), waiting("Priority"), f"{NAMED}: PENDING (Priority) / refused"),
        ("may_not", Answer("not tried", "why"), None, f"not checked: {NAMED}: why"),
    ],
)
def test_access_jobs(rule: str, answer: Answer, job: TrialJob | None, expected: str) -> None:
    stated = config(access={rule: [JOB]})
    (access,) = (*stated.access.may, *stated.access.may_not)
    assert told(trial_checks.access_jobs(stated, {access: (answer, job)})).startswith(expected)


TRIALS = config(
    qos={"q": {"limits": {"MaxJobsPU": 1, "MaxSubmitPU": 1, "MaxTRESPU": "gres/gpu=4"}}},
    trials={
        "partition": "p",
        "limits": [
            {"qos": "q", "limit": "MaxJobsPU"},
            {"qos": "q", "limit": "MaxSubmitPU"},
            {"qos": "q", "limit": "MaxTRESPU", "tres": "gres/gpu"},
        ],
        "fairshare": {"busy": "b", "idle": "i"},
        "preemption": {"mode": "requeue", "low_qos": "low", "high_qos": "high"},
    },
)
assert TRIALS.trials is not None
COUNT, SUBMIT, GPUS = TRIALS.trials.limits
REASON, GPU_REASON = "QOSMaxJobsPerUserLimit", "QOSMaxGRESPerUser"
TWO, FOUR = running({"gres/gpu": 2}), running({"gres/gpu": 4})


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (LimitResult(COUNT, 1, (running(), waiting(REASON))), "passed"),
        (
            LimitResult(COUNT, 1, (running(), running())),
            "MaxJobsPU of qos q: 2 in use by 2 running jobs / at most 1",
        ),
        (
            LimitResult(COUNT, 1, (running(), waiting("Resources"))),
            "not checked: MaxJobsPU of qos q: jobs are PENDING (Resources)",
        ),
        (
            LimitResult(COUNT, 1, (waiting(REASON), waiting(REASON))),
            f"MaxJobsPU of qos q: reached by 0 in use ({REASON}) / 1",
        ),
        (LimitResult(COUNT, 1, problem="busy"), "not checked: MaxJobsPU of qos q: busy"),
        (
            LimitResult(COUNT, 1, (running(),), (2, Answer("unclear", "why"))),
            "not checked: MaxJobsPU of qos q: job 2 was not",
        ),
        # nodes that are always allocated whole
        (LimitResult(GPUS, 4, (FOUR, *[waiting(GPU_REASON)] * 4)), "passed"),
        (
            LimitResult(GPUS, 4, (TWO, *[waiting(GPU_REASON)] * 4)),
            "MaxTRESPU of qos q, gres/gpu: reached by 2 in use",
        ),
        (
            LimitResult(GPUS, 4, (FOUR, TWO)),
            "MaxTRESPU of qos q, gres/gpu: 6 in use by 2 running jobs / at most 4",
        ),
        (
            LimitResult(
                SUBMIT, 1, refused=(2, Answer("limit", "QOSMaxSubmitJobPerUserLimit / Job violates"))
            ),
            "passed",
        ),
        (LimitResult(SUBMIT, 1, refused=(2, Answer("limit", "Job violates"))), "passed"),
        (
            LimitResult(SUBMIT, 1, refused=(2, Answer("limit", "AssocMaxSubmitJobLimit"))),
            "not checked: MaxSubmitPU",
        ),
        (
            LimitResult(SUBMIT, 1, refused=(1, Answer("limit", "why"))),
            "MaxSubmitPU of qos q: job 1 refused: why / 1 jobs",
        ),
        (
            LimitResult(SUBMIT, 1, refused=(2, Answer("unclear", "why"))),
            "not checked: MaxSubmitPU of qos q: why",
        ),
        (LimitResult(SUBMIT, 1), "MaxSubmitPU of qos q: 2 jobs accepted / 1, and job 2 refused"),
    ],
)
def test_limits(result: LimitResult, expected: str) -> None:
    assert told(trial_checks.limits([result])).startswith(expected)


SIZES = config(
    qos={"q": {"limits": {"MaxTRESPU": "cpu=8,mem=300M", "MaxTRES": "cpu=4", "MaxWall": "3:00"}}},
    trials={
        "partition": "p",
        "limits": [
            {"qos": "q", "limit": "MaxTRESPU", "tres": "cpu"},
            {"qos": "q", "limit": "MaxTRESPU", "tres": "mem"},
            {"qos": "q", "limit": "MaxTRESPerJob", "tres": "cpu"},
            {"qos": "q", "limit": "MaxWall"},
        ],
    },
)
assert SIZES.trials is not None
CPUS, MEMORY, JOB_CPUS, WALL = SIZES.trials.limits
MIB = 1024**2
CPU_REASON, MEMORY_REASON = "QOSMaxCpuPerUserLimit", "QOSMaxMemoryPerUser"
JOB_REASON, WALL_REASON = "QOSMaxCpuPerJobLimit", "QOSMaxWallDurationPerJobLimit"


def cpus(number: int) -> TrialJob:
    return running({"cpu": number})


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        # whole cores of two threads: 2 + 6 of 8
        (LimitResult(CPUS, 8, (cpus(2), cpus(6), waiting(CPU_REASON)), sizes=(1, 6, 2)), "passed"),
        (
            LimitResult(CPUS, 8, (cpus(2), cpus(6), cpus(2)), sizes=(1, 6, 2)),
            "MaxTRESPU of qos q, cpu: 10 in use by 3 running jobs / at most 8",
        ),
        (
            LimitResult(CPUS, 8, (cpus(2), waiting(CPU_REASON)), sizes=(1, 6)),
            f"MaxTRESPU of qos q, cpu: reached by 2 in use ({CPU_REASON}) / 8",
        ),
        (
            LimitResult(CPUS, 8, (waiting("Resources"),), sizes=(1,)),
            "not checked: MaxTRESPU of qos q, cpu: jobs are PENDING (Resources); check that nodes are idle",
        ),
        # where Slurm does not track memory, tres-alloc has none: the requested memory counts
        (
            LimitResult(MEMORY, 300 * MIB, (cpus(1),) * 3, sizes=(100 * MIB, 200 * MIB, 100 * MIB)),
            "MaxTRESPU of qos q, mem: 400MiB in use by 3 running jobs / at most 300MiB",
        ),
        (LimitResult(JOB_CPUS, 4, (cpus(2), cpus(4), waiting(JOB_REASON)), sizes=(1, 4, 6)), "passed"),
        (
            LimitResult(JOB_CPUS, 4, (cpus(2), cpus(4), cpus(6)), sizes=(1, 4, 6)),
            "MaxTRES of qos q, cpu: a job of 6 runs / at most 4",
        ),
        (
            LimitResult(JOB_CPUS, 4, (cpus(2), waiting(JOB_REASON), waiting(JOB_REASON)), sizes=(1, 4, 6)),
            f"MaxTRES of qos q, cpu: a job of 4 waits ({JOB_REASON}) / runs",
        ),
        (
            LimitResult(JOB_CPUS, 4, (cpus(2), cpus(4), waiting("Resources")), sizes=(1, 4, 6)),
            "not checked: MaxTRES of qos q, cpu: jobs are PENDING (Resources)",
        ),
        # a QoS with DenyOnLimit
        (
            LimitResult(
                *(JOB_CPUS, 4, (cpus(2), cpus(4)), (3, Answer("limit", f"{JOB_REASON} / violates"))),
                sizes=(1, 4, 6),
            ),
            "passed",
        ),
        (
            LimitResult(
                JOB_CPUS,
                4,
                (cpus(2), cpus(4)),
                (3, Answer("limit", "QOSMaxNodePerJobLimit")),
                sizes=(1, 4, 6),
            ),
            "not checked: MaxTRES of qos q, cpu: job 3 was refused for another limit",
        ),
        (
            LimitResult(JOB_CPUS, 4, (cpus(2),), (2, Answer("limit", "why")), sizes=(1, 4)),
            "MaxTRES of qos q, cpu: a job of 4 is refused: why / runs",
        ),
        (
            LimitResult(JOB_CPUS, 4, (cpus(2),), (2, Answer("unclear", "why")), sizes=(1, 4)),
            "not checked: MaxTRES of qos q, cpu: job 2 was not accepted: why",
        ),
        (LimitResult(WALL, 3, (running(), waiting(WALL_REASON)), sizes=(3, 4)), "passed"),
        (
            LimitResult(WALL, 3, (running(), running()), sizes=(3, 4)),
            "MaxWall of qos q: a job of 0-00:04:00 runs / at most 0-00:03:00",
        ),
        (
            LimitResult(WALL, 3, (running(), waiting("PartitionTimeLimit")), sizes=(3, 4)),
            "not checked: MaxWall of qos q: jobs are PENDING (PartitionTimeLimit)",
        ),
    ],
)
def test_limits_of_cpus_memory_and_time(result: LimitResult, expected: str) -> None:
    assert told(trial_checks.limits([result])).startswith(expected)


def shares(busy: tuple[int, float], idle: tuple[int, float] = (0, 0.5)) -> dict[str, Share]:
    return {"b": Share(*busy, level=busy[1]), "i": Share(*idle, level=idle[1] if idle[0] else None)}


WEIGHT = {"PriorityType": "priority/multifactor", "PriorityWeightFairShare": "1000"}
BEFORE = shares((0, 0.5))


@pytest.mark.parametrize(
    ("result", "settings", "expected"),
    [
        (FairshareResult(BEFORE, shares((30, 0.2)), {"b": 200, "i": 500}), WEIGHT, "passed"),
        (
            FairshareResult(BEFORE, shares((0, 0.5)), {}, 60.0),
            WEIGHT,
            "usage of account b: still 0 after 60 s / higher",
        ),
        (
            FairshareResult(BEFORE, shares((30, 0.5)), {}),
            WEIGHT,
            "fair share of account b: factors 0.500000 (busy)",
        ),
        (
            FairshareResult(BEFORE, shares((30, 0.5), (90, 0.4)), {}),
            WEIGHT,
            "not checked: account i has used more",
        ),
        (
            FairshareResult(BEFORE, shares((30, 0.2)), {"b": 500, "i": 500}),
            WEIGHT,
            "priorities of two equal jobs: 500 (busy)",
        ),
        (
            FairshareResult(BEFORE, shares((30, 0.499)), {"b": 500, "i": 500}),
            WEIGHT,
            "not checked: the factors differ by less than two units",
        ),
        (
            FairshareResult(BEFORE, shares((30, 0.2)), {"b": 1}),
            WEIGHT,
            "not checked: squeue showed no priority",
        ),
        (FairshareResult(problem="busy"), WEIGHT, "not checked: busy"),
        (
            FairshareResult(),
            {**WEIGHT, "PriorityWeightFairShare": "0"},
            "fair share: PriorityType=priority/multifactor",
        ),
        (FairshareResult(), {"PriorityType": "priority/basic"}, "fair share: PriorityType=priority/basic"),
    ],
)
def test_fairshare(result: FairshareResult, settings: dict[str, str], expected: str) -> None:
    assert told(trial_checks.fairshare(TRIALS, result, settings)).startswith(expected)


WAITS, SHORT = (
    TrialJob("2", "PENDING", "Resources", priority=20),
    TrialJob("3", "PENDING", "Priority", priority=10),
)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (BackfillResult(WAITS, TrialJob("3", "RUNNING", priority=10), frozenset({"gpu02"}), 2.0), "passed"),
        (
            BackfillResult(WAITS, SHORT, frozenset({"gpu02"}), 60.0),
            "short job: PENDING (Priority) after 60 s, node gpu02 idle",
        ),
        (BackfillResult(WAITS, SHORT, frozenset(), 60.0), "not checked: the short job is PENDING (Priority)"),
        (
            BackfillResult(running(), SHORT, frozenset({"gpu02"})),
            "not checked: the job of two nodes did not wait",
        ),
        (BackfillResult(SHORT, SHORT, frozenset({"gpu02"})), "not checked: both jobs have the priority 10"),
        (BackfillResult(problem="busy"), "not checked: busy"),
        (None, "not applicable"),
    ],
)
def test_backfill(result: BackfillResult | None, expected: str) -> None:
    assert told(trial_checks.backfill(result)).startswith(expected)


REQUEUED, KILLED = TrialJob("1", "PENDING", "BeginTime", restarts=1), TrialJob("1", "PREEMPTED")


@pytest.mark.parametrize(
    ("mode", "result", "expected"),
    [
        ("requeue", PreemptionResult(running(), REQUEUED, 1.0), "passed"),
        (
            "requeue",
            PreemptionResult(running(), KILLED, 1.0),
            "preempted job: PREEMPTED, 0 restarts / requeued",
        ),
        ("cancel", PreemptionResult(running(), KILLED, 1.0), "passed"),
        (
            "cancel",
            PreemptionResult(running(), REQUEUED, 1.0),
            "preempted job: PENDING (BeginTime), 1 restarts / cancelled",
        ),
        ("suspend", PreemptionResult(running(), TrialJob("1", "SUSPENDED"), 1.0, running()), "passed"),
        (
            "suspend",
            PreemptionResult(running(), TrialJob("1", "SUSPENDED"), 1.0, TrialJob("1", "SUSPENDED")),
            "suspended job",
        ),
        (
            "requeue",
            PreemptionResult(waiting("Resources"), running(), 60.0),
            "preempting job: PENDING (Resources) after 60 s",
        ),
        ("requeue", PreemptionResult(problem="busy"), "not checked: busy"),
        ("requeue", PreemptionResult(None, running()), "not checked: squeue"),
    ],
)
def test_preemption(mode: str, result: PreemptionResult, expected: str) -> None:
    stated = config(trials={"partition": "p", "preemption": {"mode": mode}})
    verdict = trial_checks.preemption(stated, [result])
    assert told(verdict).startswith(expected)
    if verdict.outcome is Outcome.PASSED:
        assert [metric.name for metric in verdict.metrics] == ["preemption"]


def test_several_preemptions_are_distinguished() -> None:
    modes = [
        {"mode": "requeue", "low_qos": "low"},
        {"mode": "suspend"},
        {"mode": "cancel", "low_qos": "gone"},
    ]
    stated = config(trials={"partition": "p", "preemption": modes})
    results = [
        PreemptionResult(running(), REQUEUED, 1.0),
        PreemptionResult(problem="busy"),
        PreemptionResult(running(), REQUEUED, 2.0),
    ]
    verdict = trial_checks.preemption(stated, results)
    assert told(verdict) == "preempted job (cancel gone): PENDING (BeginTime), 1 restarts / cancelled"
    assert [(metric.device, metric.value) for metric in verdict.metrics] == [
        ("requeue low", 1.0),
        ("cancel gone", 2.0),
    ]
    passed = trial_checks.preemption(stated, [*results[:2], PreemptionResult(running(), KILLED, 2.0)])
    assert told(passed) == "not checked: suspend: busy"


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
        assert verdict.outcome is Outcome.NOT_APPLICABLE
