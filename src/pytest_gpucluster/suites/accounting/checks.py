"""Accounts, QoS, partitions, scheduling and job records against the cluster file. Pure; no finding drains a node."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import units
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NOT_STATED, NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part, named, register
from pytest_gpucluster.core.text import count, listed, some
from pytest_gpucluster.suites.accounting.config import written
from pytest_gpucluster.suites.accounting.facts import ENDED, job_part, users_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.suites.accounting.config import Access, Account, AccountingConfig, AccountUser, Value
    from pytest_gpucluster.suites.accounting.facts import Association, JobRecord, QosInfo, SubmitReply
    from pytest_gpucluster.suites.accounting.steps import Records

register("qos", "QoS", named=True, labelled=True)
ENFORCE = named("setting", "AccountingStorageEnforce")
BACKFILL = "sched/backfill"
MULTIFACTOR = "priority/multifactor"
SUNDAY = 7
SHOWN = 20  # of the jobs with one fault


@check(
    "accounting.accounts",
    cause="an account or user was not added to the accounting, or was changed or removed there",
    hint="sacctmgr show assoc tree; sacctmgr add|modify account|user; AccountingStorageEnforce of slurm.conf",
    action=Action.CONFIGURE,
)
def accounts(
    config: AccountingConfig, associations: tuple[Association, ...], enforced: Collection[str], hidden: Collection[str]
) -> Judgement:
    """Accounts and their users exist with parent, shares, QoS and limits as stated, and the limits are enforced."""
    if not config.accounts and not config.exact:
        raise NotApplicable("the cluster file states no accounts", NOT_STATED)
    if private := sorted({"accounts", "users"} & set(hidden)):
        raise NotAvailable(
            f"slurmdbd hides other users' associations from this user (PrivateData={','.join(private)}): run it as an operator"
        )
    own = {one.account.lower(): one for one in associations if not one.user}
    for name, stated in config.accounts.items():
        part, found = named("account", name), own.get(name.lower())
        if found is None:
            yield _absent(part)
            continue
        if stated.parent and found.parent.lower() != stated.parent.lower():
            yield _other(part, "parent", found.parent or "none", stated.parent)
        yield from _association(part, stated, found)
        yield from _users_of(part, stated, associations, exact=config.exact)
    if config.exact:
        for name in sorted(own.keys() - {known.lower() for known in config.accounts} - {"root"}):
            yield _unexpected(named("account", name))
    yield Metric("accounts", len(own), "accounts", detail=True)
    yield from _not_enforced(any(_any_limit(it.limits) for it in _stated(config)), enforced)


@check(
    "accounting.qos",
    cause="a QoS was not added to the accounting, or was changed there; or slurm.conf does not use it",
    hint="sacctmgr show qos; sacctmgr modify qos; PreemptType and AccountingStorageEnforce of slurm.conf",
    action=Action.CONFIGURE,
)
def qos(
    config: AccountingConfig, qos_found: Mapping[str, QosInfo], enforced: Collection[str], settings: Mapping[str, str]
) -> Judgement:
    """QoS exist with priority, preemption, flags and limits as stated, and Slurm enforces and uses them."""
    if not config.qos and not config.exact:
        raise NotApplicable("the cluster file states no QoS", NOT_STATED)
    known = {name.lower(): one for name, one in qos_found.items()}
    for name, stated in config.qos.items():
        part, found = named("qos", name), known.get(name.lower())
        if found is None:
            yield _absent(part)
            continue
        yield from _differs(part, "priority", found.priority, stated.priority)
        yield from _names_differ(part, "preempts", found.preempt, stated.preempt)
        yield from _names_differ(part, "flags", found.flags, stated.flags)
        yield from _limits_differ(part, found.limits, stated.limits)
    if config.exact:
        for name in sorted(known.keys() - {stated.lower() for stated in config.qos} - {"normal"}):
            yield _unexpected(named("qos", name))
    yield from _not_enforced(any(_any_limit(one.limits) for one in config.qos.values()), enforced)
    preempt_type = settings.get("PreemptType", "")
    if any(one.preempt for one in config.qos.values()) and preempt_type != "preempt/qos":
        part = named("setting", "PreemptType")
        expected = "preempt/qos: lists of QoS to preempt have no effect otherwise"
        yield Finding(part, preempt_type or "unknown", expected, code="no_preemption")


@check(
    "accounting.partition_access",
    cause="slurm.conf opens or closes the partition, or it was changed by scontrol until the next restart",
    hint="scontrol show partition; the line PartitionName= of slurm.conf, then scontrol reconfigure",
    action=Action.CONFIGURE,
)
def partition_access(
    config: AccountingConfig, partitions: Mapping[str, PartitionInfo], enforced: Collection[str]
) -> Judgement:
    """Partitions allow and deny the accounts, QoS and groups that the cluster file states."""
    if not config.partitions and not config.exact:
        raise NotApplicable("the cluster file states no partitions", NOT_STATED)
    for name, stated in config.partitions.items():
        part, found = named("partition", name), partitions.get(name)
        if found is None:
            yield _absent(part)
            continue
        for key, word in _POLICY.items():
            wanted = getattr(stated, key)
            if wanted is not None and _policy(wanted) != _policy(getattr(found, key)):
                everyone = "ALL" if key.startswith("allow") else "none"
                names = (",".join(sorted(_policy(it))) or everyone for it in (getattr(found, key), wanted))
                yield _other(part, word, *names)
    accounts_of = ((*(one.allow_accounts or ()), *(one.deny_accounts or ())) for one in config.partitions.values())
    if any(map(_policy, accounts_of)) and "associations" not in enforced:
        expected = "associations: otherwise users name any account, or none is checked"
        yield Finding(ENFORCE, _shown(enforced), expected, code="accounts_unchecked")
    if config.exact:
        for name in sorted(partitions.keys() - config.partitions.keys()):
            yield _unexpected(named("partition", name))


@check(
    "accounting.access",
    cause="associations, QoS or partitions admit another user than intended",
    hint="sacctmgr show assoc user=; scontrol show partition; sbatch --test-only as that user",
    action=Action.CONFIGURE,
)
def access(
    config: AccountingConfig,
    answers: Mapping[Access, SubmitReply],
    partitions: Mapping[str, PartitionInfo],
    settings: Mapping[str, str],
) -> Judgement:
    """`sbatch --test-only` is accepted for each job that may run, and refused for each that may not."""
    rules = config.access
    if not rules.may and not rules.may_not:
        raise NotApplicable("the cluster file states no `access`", NOT_STATED)
    unclear = []
    for job in rules.may:
        answer = answers[job]
        if answer.result == "refused":
            yield Finding(Part("job", name=str(job)), Quote(answer.message), "accepted", code="refused")
        elif answer.result != "accepted":
            unclear.append(f"{job}: {answer.message}")
    late = settings.get("EnforcePartLimits", "").upper() in ("", "NO")
    for job in rules.may_not:
        answer = answers[job]
        if answer.result == "accepted":
            if late and _restricted(job, partitions):
                unclear.append(
                    f"{job}: EnforcePartLimits=NO: Slurm accepts the job, and may let it wait forever; "
                    "--intrusive submits a real one"
                )
            else:
                yield Finding(Part("job", name=str(job)), "accepted", "refused", code="accepted")
        elif answer.result not in ("refused", "limit"):
            unclear.append(f"{job}: {answer.message}")
    if unclear:
        raise NotAvailable(some(unclear, 3))


@check(
    "accounting.scheduling",
    cause="slurm.conf was changed, or slurmctld was not restarted after a change",
    hint="scontrol show config | grep -iE 'Sched|Prio|Preempt|Enforce'; slurm.conf; scontrol reconfigure",
    action=Action.CONFIGURE,
)
def scheduling(config: AccountingConfig, settings: Mapping[str, str]) -> Judgement:
    """Scheduler, priorities, fair share and decay are set as stated; backfill, unless the file states another scheduler."""
    known = {key.lower(): value for key, value in settings.items()}
    stated: dict[str, Any] = {key.lower(): value for key, value in config.settings.items()}
    names = {key.lower(): key for key in config.settings}
    rules = {"schedulertype": BACKFILL}
    if _shares_stated(config) or float(_as_number(stated.get("priorityweightfairshare")) or 0):
        rules["prioritytype"] = MULTIFACTOR
    words = {"schedulertype": "SchedulerType", "prioritytype": "PriorityType"}
    for key, value in {**rules, **stated}.items():
        part = named("setting", names.get(key) or words[key])
        if key not in known:
            yield Finding(part, "not in scontrol show config", _value(value), code="absent")
        elif not _equal(known[key], value):
            yield Finding(part, known[key] or "not set", _value(value), code="other_value")
    if _shares_stated(config) and "priorityweightfairshare" not in stated:
        weight = known.get("priorityweightfairshare", "")
        if not float(_as_number(weight) or 0):
            part = named("setting", "PriorityWeightFairshare")
            expected = "above 0: shares have no effect otherwise"
            yield Finding(part, weight or "not set", expected, code="no_weight")


@check(
    "accounting.job_records",
    cause="slurmdbd was down or lost records, or slurmctld lost its state; runaway jobs also distort usage and fair share",
    hint="sacctmgr show runawayjobs (it offers to close them); sdiag (DBD Agent queue size); slurmdbd's log",
    action=Action.MONITOR,
)
def job_records(records: Records, hours: float, enforced: Collection[str]) -> Judgement:
    """Job records are complete, and no job is alive in the accounting that slurmctld does not know."""
    yield Metric("job_records", len(records.jobs), "records", detail=True)
    with_account = "associations" in enforced  # otherwise jobs without an association have none
    broken = [(one, why) for one in records.jobs if (why := dict(_lacks(one, with_account=with_account)))]
    for one, why in broken[:SHOWN]:
        measured = f"{', '.join(why.values())} ({one})"
        yield Finding(one.part, measured, "a complete record", code=next(iter(why)))
    if (total := len(broken)) > SHOWN:
        part = Part("job", name="job records")
        found = Quantity(total, "records", f"{total} incomplete in all")
        yield Finding(part, found, Quantity(0, "records", "complete"), code="incomplete")
    yield from _unknown_jobs(records)
    if not records.jobs and not records.compared:
        raise NotAvailable(f"sacct shows no job of the last {units.format_duration(hours)}")


_POLICY = {
    "allow_accounts": "AllowAccounts",
    "deny_accounts": "DenyAccounts",
    "allow_qos": "AllowQos",
    "deny_qos": "DenyQos",
    "allow_groups": "AllowGroups",
}


def _users_of(account: Part, stated: Account, associations: Iterable[Association], *, exact: bool) -> Iterator[Finding]:
    known = users_of(account.name, associations)
    for user, wanted in stated.users.items():
        part = Part("user", name=user, of=account)
        if user.lower() in known:
            yield from _association(part, wanted, known[user.lower()])
        else:
            yield _absent(part)
    for user in sorted(known.keys() - {one.lower() for one in stated.users}) if exact else ():
        yield _unexpected(Part("user", name=user, of=account))


def _association(part: Part, stated: AccountUser, found: Association) -> Iterator[Finding]:
    wanted = None if stated.fairshare is None else str(stated.fairshare)
    yield from _differs(part, "fairshare", found.fairshare, wanted)
    yield from _names_differ(part, "QoS", found.qos, stated.qos)
    yield from _limits_differ(part, found.limits, stated.limits)


def _differs(part: Part, what: str, found: object, stated: object) -> Iterator[Finding]:
    if stated is not None and found != stated:
        yield _other(part, what, str(found), str(stated))


def _names_differ(part: Part, what: str, found: Collection[str], stated: Collection[str] | None) -> Iterator[Finding]:
    if stated is not None and {one.lower() for one in found} != {one.lower() for one in stated}:
        yield _other(part, what, listed(sorted(found)), listed(sorted(stated)))


def _limits_differ(part: Part, found: Mapping[str, Value], stated: Mapping[str, Value]) -> Iterator[Finding]:
    for name, value in stated.items():
        if found.get(name) != value:
            yield _other(part, name, written(found.get(name)), written(value))


def _other(of: Part, what: str, found: str, stated: str) -> Finding:
    return Finding(Part("setting", name=what, of=of), found, stated, code="other_value")


def _absent(part: Part) -> Finding:
    return Finding(part, "missing", "exists", code="absent")


def _unexpected(part: Part) -> Finding:
    return Finding(part, "exists", "not stated in the cluster file", code="unexpected")


def _any_limit(limits: Mapping[str, Value]) -> bool:
    return any(value is not None for value in limits.values())


def _not_enforced(stated: bool, enforced: Collection[str]) -> Iterator[Finding | Advisory]:
    if stated and "limits" not in enforced:
        expected = "limits: otherwise Slurm ignores them"
        yield Finding(ENFORCE, _shown(enforced), expected, code="limits_ignored")
    elif not stated and "associations" not in enforced:
        expected = "associations: otherwise users may name any account"
        yield Advisory(ENFORCE, _shown(enforced), expected, code="accounts_unchecked")


def _shown(enforced: Collection[str]) -> str:
    return ",".join(sorted(enforced)) or "none"


def _policy(names: Collection[str]) -> frozenset[str]:
    """Return names without ALL and NONE, which stand for no restriction."""
    return frozenset(name for name in names if name.upper() not in ("ALL", "NONE"))


def _restricted(job: Access, partitions: Mapping[str, PartitionInfo]) -> bool:
    """Return whether the partition of a job restricts anyone."""
    known = [one for name, one in partitions.items() if job.partition in (None, name)]
    return any(_policy(getattr(one, key)) for one in known for key in _POLICY)


def _stated(config: AccountingConfig) -> Iterator[AccountUser]:
    """Yield what the cluster file states of accounts and of their users."""
    for account in config.accounts.values():
        yield from (account, *account.users.values())


def _shares_stated(config: AccountingConfig) -> bool:
    return any(one.fairshare is not None for one in _stated(config))


def _value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _equal(found: str, stated: object) -> bool:
    """Compare as a number, a time, or a list of words; Slurm writes 7-0 as 7-00:00:00 and prints lists in its own order."""
    text = _value(stated)
    if (numbers := (_as_number(found), _as_number(text))) != (None, None):
        return numbers[0] == numbers[1]
    if ":" in found and (times := (_as_time(found), _as_time(text))) != (None, None):
        return times[0] == times[1]
    return _word_set(found) == _word_set(text)


def _as_number(text: object) -> float | None:
    return float(str(text)) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", str(text)) else None


def _as_time(text: str) -> float | None:
    hours = re.fullmatch(r"(\d{1,5})-(\d{1,2})", text)  # D-H, which slurm.conf may have
    try:
        return units.parse_duration(f"{text}:00:00" if hours else text)
    except ValueError:
        return None


def _word_set(text: str) -> frozenset[str]:
    return frozenset(word.strip().lower() for word in text.split(",") if word.strip())


def _lacks(record: JobRecord, *, with_account: bool) -> Iterator[tuple[str, str]]:
    """Yield code and words of what is wrong with a record. A job that was cancelled while it waited has no nodes, and no times of a run."""
    ran = record.nodes not in ("", "None assigned")
    if not record.state:
        yield "no_state", "no state"
    if with_account and not record.account:
        yield "no_account", "no account"
    if ran and not record.started:
        yield "no_start", "no Start"
    if ran and not record.tres:
        yield "no_tres", "no AllocTRES"
    if record.state in ENDED:
        if not record.ended:
            yield "no_end", "no End"
        elif record.ended < record.started and not _clocks_went_back(record.ended, record.started):
            yield "end_before_start", f"End {record.ended} before Start {record.started}"
        if not re.fullmatch(r"\d{1,3}:\d{1,3}", record.exit_code):
            yield "no_exit_code", f"ExitCode {record.exit_code or 'none'}"


def _clocks_went_back(ended: str, started: str) -> bool:
    """Return whether the end of summer time explains an end before the start: sacct prints local times.

    Clocks are set back by an hour before 04:00 of a Sunday, in all zones of the EU, North America, Australia and New Zealand.
    """
    end, start = dt.datetime.fromisoformat(ended), dt.datetime.fromisoformat(started)
    night = start.isoweekday() == SUNDAY and start.hour < 4
    return night and start - end < dt.timedelta(hours=1)


def _unknown_jobs(records: Records) -> Judgement:
    """Judge jobs that only one of slurmctld and the accounting knows."""
    jobs = len(records.runaways) + len(records.missing)
    if jobs and records.unsent != 0:
        unsent = "an unknown number of" if records.unsent is None else str(records.unsent)
        records_there = f"slurmctld has {unsent} records that it has not sent to slurmdbd yet"
        raise NotAvailable(f"the accounting and squeue differ in {count(jobs, 'job')}, and {records_there}")
    for one in records.runaways[:SHOWN]:
        since = one.started or one.submitted or "an unknown time"
        measured = f"alive in the accounting since {since}, unknown to squeue ({one})"
        yield Finding(one.part, measured, "known to squeue", code="runaway")
    for job in records.missing:
        yield Finding(job_part(job), "no record of a job of this run", "a record", code="no_record")
    if records.hidden:
        advice = "run it as an operator to find runaway jobs"
        yield NotAvailable(f"PrivateData=jobs hides other users' jobs: {advice}")
