"""The checks of the accounting suite on facts: what fails, what passes, what is not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, CounterExample
from judged import judged
from machine_helpers import Machines, examples

from pytest_gpucluster.cluster.slurm.inventory import parse_partitions
from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.suites.accounting import checks, facts
from pytest_gpucluster.suites.accounting.config import AccountingConfig
from pytest_gpucluster.suites.accounting.steps import Records

if TYPE_CHECKING:
    from collections.abc import Callable

ENFORCE = "AccountingStorageEnforce"
ALL = frozenset({"associations", "limits", "qos"})
PARTITION = (
    "PartitionName=p AllowGroups=ALL AllowAccounts={} AllowQos=ALL Default=NO DefaultTime=NONE "
    "MaxTime=UNLIMITED MaxNodes=UNLIMITED Nodes=gpu01 OverSubscribe=NO State=UP\n"
)


def config(**plain: Any) -> AccountingConfig:
    return AccountingConfig.model_validate(plain)


def of_ml(**stated: Any) -> AccountingConfig:
    return config(accounts={"ml": stated})


ML = facts.Association("ml", "", "", "root", "10", frozenset({"normal"}), {"GrpTRES": {"gres/gpu": 8}})
ALICE = facts.Association("ml", "alice", fairshare="1", limits={"GrpTRES": None})
NARROW = facts.Association("ml", "alice", "debug", fairshare="7")  # of one partition: hides no general one
WHOLE = {"ml": {"parent": "root", "fairshare": 10, "users": ["Alice"], "limits": {"GrpTRES": "gres/gpu=8"}}}
STATED = config(accounts=WHOLE)
SHARE = config(accounts={"ml": {"users": {"alice": {"fairshare": 1}}}})
PLAIN = config(accounts={"ml": {}})
BOTH, OTHERS = (ML, ALICE), (ML, ALICE, facts.Association("x"), facts.Association("root"))
HIGH = facts.QosInfo("high", 1000, frozenset({"low"}), frozenset({"DenyOnLimit"}), {"MaxJobsPU": 4})
FULL = {"priority": 1000, "preempt": ["low"]}
FOUR = {"limits": {"MaxJobsPU": 4}}
JOB = {"user": "alice", "account": "ml", "partition": "p"}
NAMED = ["user alice account ml partition p"]
DECAY, WEIGHTED = "PriorityDecayHalfLife", "PriorityWeightFairshare"
TEN, BASIC = {"PriorityWeightFairShare": "10"}, {"PriorityType": "priority/basic"}


def qos(stated: Any, enforced: Any = ALL, kind: str = "qos", name: str = "High") -> Any:
    settings = {"PreemptType": f"preempt/{kind}"}
    found = {"high": HIGH, "normal": facts.QosInfo("normal")}
    return checks.qos(config(qos={name: stated}, exact=name == "low"), found, enforced, settings)


def access_of_partition(accounts: str, stated: Any, enforced: Any = ALL, name: str = "p") -> Any:
    found = parse_partitions(PARTITION.format(accounts))
    return checks.partition_access(config(partitions={name: stated}, exact=name == "q"), found, enforced)


def access(rule: str, kind: str, accounts: str = "ml", late: str = "ALL") -> Any:
    stated = config(access={rule: [JOB]})
    (job,) = (*stated.access.may, *stated.access.may_not)
    found, settings = parse_partitions(PARTITION.format(accounts)), {"EnforcePartLimits": late}
    return checks.access(stated, {job: facts.SubmitReply(kind, "why")}, found, settings)


def scheduling(stated: Any, found: Any) -> Any:
    shown = {"SchedulerType": "sched/backfill", "PriorityType": "priority/multifactor", **found}
    return checks.scheduling(config(settings=stated), shown)


def shares_without(**shown: str) -> Any:
    return checks.scheduling(config(accounts={"ml": {"fairshare": 3}}), shown)


Cases = dict["Callable[..., Verdict]", "list[tuple[Any, ...]]"]
STATES: Cases = {
    checks.accounts: [
        (PASSED, STATED, BOTH, ALL, ()),
        (["account ml"], STATED, (ALICE,), ALL, ()),
        (["account ml user Alice"], STATED, (ML,), ALL, ()),
        (["account ml parent"], of_ml(parent="ops"), (ML,), ALL, ()),
        (["account ml fairshare"], of_ml(fairshare=1), (ML,), ALL, ()),
        (["account ml QoS"], of_ml(qos=["high"]), (ML,), ALL, ()),
        (["account ml GrpTRES"], of_ml(limits={"GrpTRES": None}), (ML,), ALL, ()),
        (PASSED, PLAIN, OTHERS, ALL, ()),
        (NOT_APPLICABLE, config(), (ML,), ALL, ()),
        *((NOT_CHECKED, STATED, BOTH, ALL, (it,)) for it in ("users", "accounts")),
        ([ENFORCE], STATED, BOTH, {"associations"}, ()),
        (PASSED, PLAIN, BOTH, {"associations"}, ()),
        (WARNING, PLAIN, BOTH, (), ()),
        *((PASSED, SHARE, (ML, *order), ALL, ()) for order in ((ALICE, NARROW), (NARROW, ALICE))),
        (PASSED, config(accounts=WHOLE, exact=True), BOTH, ALL, ()),
        (["account ml user alice", "account x"], config(accounts={"ml": {}}, exact=True), OTHERS, ALL, ()),
    ],
    qos: [
        (PASSED, FULL),
        (PASSED, {"flags": ["DenyOnLimit"], **FOUR}, ALL, "none"),
        (["QoS High flags"], {"flags": ["NoDecay"]}),
        (["QoS High priority"], {"priority": 1}),
        *((["QoS High preempts"], {"preempt": names}) for names in (["low", "x"], [])),
        (["PreemptType"], {"preempt": ["low"]}, ALL, "none"),
        (["QoS High MaxJobsPU"], {"limits": {"MaxJobsPU": 5}}),
        ([ENFORCE], FOUR, {"qos"}),
        (["QoS low", "QoS high"], {}, ALL, "none", "low"),
    ],
    access_of_partition: [
        (PASSED, "ml,ops", {"allow_accounts": ["ops", "ml"]}),
        (PASSED, "ALL", {"deny_accounts": [], "allow_qos": ["ALL"], "allow_groups": ["ALL"]}),
        (["partition p AllowAccounts"], "ALL", {"allow_accounts": ["ml"]}),
        (PASSED, "ALL", {"allow_accounts": ["ALL"]}, ()),
        # since 23.02 slurmctld does not look at AllowAccounts then (part_policy_valid_acct)
        ([ENFORCE], "ml", {"allow_accounts": ["ml"]}, ()),
        (["partition p DenyAccounts", ENFORCE], "ALL", {"deny_accounts": ["x"]}, ()),
        (["partition q", "partition p"], "ALL", {}, ALL, "q"),
    ],
    access: [
        (PASSED, "may", "accepted"),
        (NAMED, "may", "refused"),
        (NOT_CHECKED, "may", "limit"),  # the user's own jobs may have reached it
        (PASSED, "may_not", "refused"),
        (NAMED, "may_not", "accepted"),
        (NAMED, "may_not", "accepted", "ALL", "NO"),
        (NOT_CHECKED, "may_not", "accepted", "ops", "NO"),  # Slurm accepts it, and may let it wait forever
        (NOT_CHECKED, "may_not", "unclear"),
    ],
    scheduling: [
        (PASSED, {}, {}),
        (["SchedulerType"], {}, {"SchedulerType": "sched/builtin"}),
        (PASSED, {"SchedulerType": "sched/builtin"}, {"SchedulerType": "sched/builtin"}),
        (PASSED, {WEIGHTED: 10}, TEN),
        (["PriorityType"], {WEIGHTED: 10}, TEN | BASIC),
        ([WEIGHTED], {WEIGHTED: 9}, TEN),
        (PASSED, {WEIGHTED: 0}, {"PriorityWeightFairShare": "0"} | BASIC),
        (PASSED, {DECAY: "7-0"}, {DECAY: "7-00:00:00"}),
        ([DECAY], {DECAY: "14-0"}, {DECAY: "7-00:00:00"}),
        (PASSED, {"PreemptMode": ["suspend", "gang"]}, {"PreemptMode": "GANG,SUSPEND"}),
        (["PreemptMode"], {"PreemptMode": "suspend"}, {"PreemptMode": "GANG,SUSPEND"}),
    ],
    lambda weight, kind: shares_without(
        SchedulerType="sched/backfill", PriorityType=f"priority/{kind}", PriorityWeightFairShare=weight
    ): [(PASSED, "1", "multifactor"), (["PriorityType", WEIGHTED], "0", "basic")],
}


def record(state: str = "COMPLETED", **changes: str) -> facts.JobRecord:
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
    (found,) = facts.parse_records("|".join(("4711", "alice", account, "gpu", state, *shown.values())))
    return found


def records(*jobs: facts.JobRecord, **known: Any) -> Verdict:
    return checks.job_records(Records(jobs, **{"compared": 1, **known}), 3600.0, ALL)


def waited(state: str, code: str = "0:0") -> facts.JobRecord:
    """Return a job that never ran."""
    return record(state, start="None", tres="", nodes="None assigned", code=code)


GONE = (record("RUNNING", end="Unknown"),)
EARLIER = record(start="2026-10-25T02:50:00", end="2026-10-25T02:20:00")
MACHINES: Machines = {
    ("accounting.job_records", records): [
        ("cancelled while it waited | sacct", PASSED, waited("CANCELLED by 1000")),
        ("its deadline passed while it waited | sacct", PASSED, waited("DEADLINE", "0:1")),
        ("it runs | sacct", PASSED, *GONE),
        ("it ran while summer time ended | SLURM_TIME_FORMAT", PASSED, EARLIER),
        ("no job ended lately | sacct", PASSED),
        ("nothing is known | sacct", NOT_CHECKED, lambda: records(compared=0)),
        ("still to be sent | sacctmgr", NOT_CHECKED, lambda: records(runaways=GONE, unsent=40)),
        ("nobody knows | sacctmgr", NOT_CHECKED, lambda: records(missing=("12",), unsent=None)),
        ("only own jobs are shown | sacctmgr", NOT_CHECKED, lambda: records(record(), hidden=True)),
        ("sick: completed, and no end | sacct", MONITOR, record(end="Unknown")),
        ("sick: no start | sacct", MONITOR, record(start="Unknown")),
        ("sick: no account | sacct", MONITOR, record(account="")),
        ("sick: no state | sacct", MONITOR, record("")),
        ("sick: no exit code | sacct", MONITOR, record(code="")),
        ("sick: a runaway job | sacctmgr", MONITOR, lambda: records(runaways=GONE)),
        ("sick: a job of this run has no record | sacctmgr", MONITOR, lambda: records(missing=("12",))),
        ("sick: it ended a day before it started | sacct", MONITOR, record(end="2026-10-23T01:00:00")),
        ("sick: it ended before it started | sacct", MONITOR, record(end="2026-10-24T01:00:59")),
        ("sick: it ran on a node without any resource | sacct", MONITOR, record(tres="")),
    ]
}
COUNTER_EXAMPLES = examples(MACHINES)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=lambda one: one.machine)
def test_records_are_judged_as_a_person_would(example: CounterExample) -> None:
    verdict = example.judged()
    assert judged(verdict)[0] == example.expected
    assert len(verdict.findings) == example.sick
    assert all(one.code for one in verdict.findings)


def test_of_many_broken_records_twenty_are_shown_and_their_number() -> None:
    for count, shown in ((20, 20), (21, 21), (22, 21)):
        findings = records(*[record(code="")] * count).findings
        assert len(findings) == shown
    assert findings[-1].measured == Quantity(22, "records", "22 incomplete in all")


UNSTATED: Cases = {
    lambda check, *given: check(*given): [
        (NOT_APPLICABLE, checks.qos, config(), {"high": HIGH}, ALL, {}),
        (NOT_APPLICABLE, checks.partition_access, config(), parse_partitions(PARTITION.format("ALL")), ALL),
        (NOT_APPLICABLE, checks.access, config(), {}, {}, {}),
    ]
}


@pytest.mark.parametrize(
    ("check", "given", "expected"),
    [(check, given, expected) for of in (STATES, UNSTATED) for check, rows in of.items() for expected, *given in rows],
)
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str | list[str]) -> None:
    verdict = check(*given)
    assert all(one.code and one.action is None for one in verdict.findings), "no node is at fault"
    if isinstance(expected, list):
        assert judged(verdict) == (CONFIGURE, expected)
    else:
        assert judged(verdict)[0] == expected
