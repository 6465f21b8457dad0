"""Facts from sacctmgr, sacct, sdiag and sbatch. Pure.

Columns are requested by name and read by position (-P -n): the headings differ between versions.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.suites.accounting.config import Value, read_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ASSOCIATION = ("Account", "User", "Partition", "ParentName", "Fairshare", "QOS")
QOS = ("Name", "Priority", "Preempt", "Flags")
RECORD = (
    *("JobIDRaw", "User", "Account", "Partition", "State", "Submit", "Start", "End", "ExitCode", "AllocTRES"),
    "NodeList",
)
# sacct(1), JOB STATE CODES, of records that are closed; REQUEUED is the end of one run of a job
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REQUEUED", "TIMEOUT"}
)
ALIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED"})
# slurm_errno.c of 22.05 to 26.05: what Slurm refuses for the user, account, QoS or group, whatever the job asks for
_DENIED = re.compile(
    r"Invalid account or account/partition|Invalid qos specification|User's group not permitted"
    r"|Access/permission denied|Invalid user id|(?:account|QOS) not permitted",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"violates accounting/QOS policy|breached requested QOS usage", re.IGNORECASE)
_QUEUE_SIZE = re.compile(r"^DBD Agent queue size:\s*(\d{1,9})\s*$", re.MULTILINE)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Association:
    """An association of an account (`user` ''), or of a user with an account. `parent` is '' for that of a user."""

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    fairshare: str = ""
    qos: frozenset[str] = frozenset()
    limits: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class QosInfo:
    """A QoS."""

    name: str
    priority: int = 0
    preempt: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    limits: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRecord:
    """A job in the accounting. Times are '' where sacct shows none; `state` is its first word."""

    job: str
    user: str = ""
    account: str = ""
    partition: str = ""
    state: str = ""
    submitted: str = ""
    started: str = ""
    ended: str = ""
    exit_code: str = ""
    tres: str = ""
    nodes: str = ""

    @property
    def part(self) -> Part:
        """The job."""
        return job_part(self.job)

    def __str__(self) -> str:
        return f"{self.state or 'no state'}, user {self.user or 'unknown'}"


def job_part(job: str) -> Part:
    """Return the job with this number."""
    return Part("job", int(job)) if job.isdecimal() else Part("job", name=f"job {job}")


@dataclass(frozen=True)
class SubmitReply:
    """Slurm's answer to a job, with its message.

    `result`: accepted; refused (for its user, account, QoS or group); limit (of jobs or resources); unclear (for another
    reason); not tried.
    """

    result: str
    message: str = ""


def parse_associations(text: str, limits: Mapping[str, str]) -> tuple[Association, ...]:
    """Read `sacctmgr -nP show assoc` with the columns ASSOCIATION and `limits`, {name: type}."""
    found = []
    for row in _rows(text, len(ASSOCIATION) + len(limits), "sacctmgr show assoc"):
        account, user, partition, parent, fairshare, qos = row[: len(ASSOCIATION)]
        its = _limits(row[len(ASSOCIATION) :], limits)
        found.append(Association(account, user, partition, parent, fairshare, _names(qos), its))
    if not any(one.account == "root" for one in found):  # every cluster has it
        raise ProbeError("sacctmgr show assoc: the answer has no account root")
    return tuple(found)


def parse_qos(text: str, limits: Mapping[str, str]) -> dict[str, QosInfo]:
    """Read `sacctmgr -nP show qos` with the columns QOS and `limits`, {name: type}."""
    found = {}
    for row in _rows(text, len(QOS) + len(limits), "sacctmgr show qos"):
        name, priority, preempt, flags = row[: len(QOS)]
        if not re.fullmatch(r"[0-9]{0,19}", priority):
            raise ProbeError(f"Priority of a QoS is no number: {priority[:40]!r}")
        its = _limits(row[len(QOS) :], limits)
        found[name] = QosInfo(name, int(priority or 0), _names(preempt), _names(flags), its)
    if not found:
        raise ProbeError("sacctmgr show qos: the answer has no QoS")
    return found


def parse_records(text: str) -> tuple[JobRecord, ...]:
    """Read `sacct -nP -X` with the columns RECORD."""
    return tuple(
        JobRecord(*[*row[:4], row[4].partition(" ")[0], *map(_time, row[5:8]), *row[8:]])
        for row in _rows(text, len(RECORD), "sacct")
    )


def parse_queue_size(text: str) -> int | None:
    """Read how many records slurmctld has not sent to slurmdbd from `sdiag`; None where it does not show that."""
    match = _QUEUE_SIZE.search(text)
    return int(match[1]) if match else None


def parse_private_data(text: str) -> frozenset[str]:
    """Read PrivateData of slurmdbd from `sacctmgr show configuration`, whose second part is slurmdbd's."""
    _, found, own = text.partition("SlurmDBD configuration:")
    match = re.search(r"^PrivateData\s*=\s*(\S+)\s*$", own, re.MULTILINE)
    if not found or match is None:
        raise ProbeError("sacctmgr show configuration: the answer has no PrivateData of slurmdbd")
    return _names(match[1]) - {"none"}


def users_of(account: str, associations: Iterable[Association]) -> dict[str, Association]:
    """Return {user in lower case, as slurmdbd has it: association}; not one of a single partition if there is another."""
    mine = [one for one in associations if one.user and one.account.lower() == account.lower()]
    return {one.user.lower(): one for one in sorted(mine, key=lambda one: not one.partition)}


def enforced_words(text: str) -> frozenset[str]:
    """Return the words of AccountingStorageEnforce, with what they imply (slurm.conf(5))."""
    words = {word.strip().lower() for word in text.split(",")}
    if words & {"all", "1"}:
        words |= {"associations", "limits", "qos", "safe"}
    if "safe" in words:
        words.add("limits")
    if words & {"limits", "qos", "wckeys"}:
        words.add("associations")
    return frozenset(words - {"", "none", "0"})


def sees_all(user: str, settings: Mapping[str, str], level: str) -> bool:
    """Return whether PrivateData hides nothing from a user with this AdminLevel."""
    slurm_user = settings.get("SlurmUser", "").partition("(")[0]
    return user in ("root", slurm_user) or level in ("Operator", "Administrator")


def fairshare_weight(settings: Mapping[str, str]) -> float:
    """Return PriorityWeightFairshare, 0 without priority/multifactor; `scontrol show config` writes FairShare."""
    weight = settings.get("PriorityWeightFairShare") or "0"
    usable = settings.get("PriorityType") == "priority/multifactor" and weight.isdecimal()
    return float(weight) if usable else 0.0


def read_refusal(text: str) -> SubmitReply:
    """Read the stderr of an sbatch that failed, with or without --test-only."""
    prefix = r"^(?:sbatch: |error: |allocation failure: )+"
    lines = [re.sub(prefix, "", line.strip()) for line in text.splitlines()]
    result = "refused" if _DENIED.search(text) else "limit" if _LIMIT.search(text) else "unclear"
    return SubmitReply(result, " / ".join(line for line in lines if line)[-300:])


def _rows(text: str, columns: int, command: str) -> list[list[str]]:
    rows = [line.split("|") for line in text.splitlines() if line.strip()]
    for row in rows:
        if len(row) != columns:
            shown = "|".join(row)[:80]
            raise ProbeError(f"{command}: a row has {len(row)} columns instead of {columns}: {shown!r}")
    return rows


def _limits(values: Sequence[str], limit_types: Mapping[str, str]) -> dict[str, Value]:
    found = {}
    for (name, limit_type), value in zip(limit_types.items(), values, strict=True):
        try:
            found[name] = read_value(limit_type, value)
        except ValueError as error:
            raise ProbeError(f"sacctmgr: {name}: {error}") from None
    return found


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, (name.strip() for name in text.split(","))))


def _time(text: str) -> str:
    with contextlib.suppress(ValueError):
        if _TIME.fullmatch(text):
            return dt.datetime.fromisoformat(text).isoformat()
    return ""
