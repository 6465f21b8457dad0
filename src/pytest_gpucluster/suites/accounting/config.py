"""The section `accounting` of a cluster file, and the limits of associations and QoS that it may state. Pure.

Names of limits: `sacctmgr show assoc|qos format=` of Slurm 22.05 to 26.05 (src/sacctmgr/common.c). Reasons of jobs beyond them:
job_reason_string() of src/common/slurm_protocol_defs.c (22.05 to 23.11), src/common/job_state_reason.c (24.05 to 26.05),
where they are the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pytest_gpucluster.core import units
from pytest_gpucluster.core.values import Count, Duration, Model, OptionalSection, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_JOBS = 8  # of one limit's trial; also the most nodes of one of its jobs
LEAST_MEMORY = 200 * 1024**2  # bytes: two jobs of a trial
Value = int | float | dict[str, int] | None  # None: no limit

_COMMON = {
    "GrpTRES": "tres", "GrpTRESMins": "tres", "GrpTRESRunMins": "tres", "GrpJobs": "count", "GrpJobsAccrue": "count",
    "GrpSubmitJobs": "count", "GrpWall": "time", "MaxTRES": "tres", "MaxTRESPerNode": "tres", "MaxTRESMins": "tres",
    "MaxWall": "time",
}  # fmt: skip
ASSOCIATION_LIMITS = {**_COMMON, "MaxJobs": "count", "MaxJobsAccrue": "count", "MaxSubmitJobs": "count"}
QOS_LIMITS = {
    **_COMMON,
    "MaxTRESPU": "tres", "MaxTRESPA": "tres", "MaxTRESRunMinsPU": "tres", "MaxTRESRunMinsPA": "tres",
    "MaxJobsPU": "count", "MaxJobsPA": "count", "MaxSubmitPU": "count", "MaxSubmitPA": "count",
    "MaxJobsAccruePU": "count", "MaxJobsAccruePA": "count", "MinTRES": "tres",
}  # fmt: skip
# sacctmgr takes these too
ALIASES = {
    "MaxTRESPerJob": "MaxTRES", "MaxTRESPJ": "MaxTRES", "MaxTRESMinsPerJob": "MaxTRESMins", "MaxTRESPN": "MaxTRESPerNode",
    "MaxWallDurationPerJob": "MaxWall", "MaxTRESPerUser": "MaxTRESPU", "MaxTRESPerAccount": "MaxTRESPA",
    "MaxJobsPerUser": "MaxJobsPU", "MaxJobsPerAccount": "MaxJobsPA", "MaxSubmitJobsPerUser": "MaxSubmitPU",
    "MaxSubmitJobsPU": "MaxSubmitPU", "MaxSubmitJobsPerAccount": "MaxSubmitPA", "MaxSubmitJobsPA": "MaxSubmitPA",
    "GrpSubmit": "GrpSubmitJobs", "MaxSubmit": "MaxSubmitJobs", "MinTRESPerJob": "MinTRES",
    "MaxTRESRunMinsPerUser": "MaxTRESRunMinsPU", "MaxTRESRunMinsPerAccount": "MaxTRESRunMinsPA",
}  # fmt: skip

TRES = ("node", "gres/gpu", "cpu", "mem")
_BY_TRES = {
    ("qos", "GrpTRES"): ("QOSGrpNodeLimit", "QOSGrpGRES", "QOSGrpCpuLimit", "QOSGrpMemLimit"),
    ("qos", "MaxTRES"): ("QOSMaxNodePerJobLimit", "QOSMaxGRESPerJob", "QOSMaxCpuPerJobLimit", "QOSMaxMemoryPerJob"),
    ("qos", "MaxTRESPU"): ("QOSMaxNodePerUserLimit", "QOSMaxGRESPerUser", "QOSMaxCpuPerUserLimit", "QOSMaxMemoryPerUser"),
    ("qos", "MaxTRESPA"): ("MaxNodePerAccount", "MaxGRESPerAccount", "MaxCpuPerAccount", "MaxMemoryPerAccount"),
    ("account", "GrpTRES"): ("AssocGrpNodeLimit", "AssocGrpGRES", "AssocGrpCpuLimit", "AssocGrpMemLimit"),
    ("account", "MaxTRES"): ("AssocMaxNodePerJobLimit", "AssocMaxGRESPerJob", "AssocMaxCpuPerJobLimit", "AssocMaxMemPerJob"),
}  # fmt: skip
_BY_COUNT = {
    ("qos", "GrpJobs"): "QOSGrpJobsLimit",
    ("qos", "MaxJobsPU"): "QOSMaxJobsPerUserLimit",
    ("qos", "MaxJobsPA"): "MaxJobsPerAccount",
    ("qos", "GrpSubmitJobs"): "QOSGrpSubmitJobsLimit",
    ("qos", "MaxSubmitPU"): "QOSMaxSubmitJobPerUserLimit",
    ("qos", "MaxSubmitPA"): "MaxSubmitJobsPerAccount",
    ("account", "GrpJobs"): "AssocGrpJobsLimit",
    ("account", "MaxJobs"): "AssocMaxJobsLimit",
    ("account", "GrpSubmitJobs"): "AssocGrpSubmitJobsLimit",
    ("account", "MaxSubmitJobs"): "AssocMaxSubmitJobLimit",
    ("qos", "MaxWall"): "QOSMaxWallDurationPerJobLimit",
    ("account", "MaxWall"): "AssocMaxWallDurationPerJobLimit",
}
SUBMIT_LIMITS = frozenset({"GrpSubmitJobs", "MaxSubmitPU", "MaxSubmitPA", "MaxSubmitJobs"})
JOB_LIMITS = frozenset({"MaxTRES", "MaxWall"})  # of one job; the others are of the sum of jobs


def reason_beyond(owner: str, limit: str, tres: str = "") -> str:
    """Return Slurm's reason for a job beyond a limit of an owner (qos or account); '' for a limit that is not tried."""
    if (owner, limit) in _BY_COUNT and not tres:
        return _BY_COUNT[owner, limit]
    base = tres if tres in TRES else "gres/gpu" if tres.startswith("gres/gpu:") else ""
    return _BY_TRES[owner, limit][TRES.index(base)] if base and (owner, limit) in _BY_TRES else ""


def tried(owner: str) -> tuple[str, ...]:
    """Return the limits of an owner (qos or account) that a trial can reach."""
    return tuple(limit for of, limit in (*_BY_COUNT, *_BY_TRES) if of == owner)


def stated_limits(limits: Mapping[str, object], known: Mapping[str, str]) -> dict[str, Value]:
    """Return limits of a cluster file by their names in sacctmgr; ValueError for an unknown name or value."""
    names = {name.lower(): name for name in known} | {
        other.lower(): name for other, name in ALIASES.items() if name in known
    }
    found: dict[str, Value] = {}
    for key, value in limits.items():
        name = names.get(key.lower())
        if name is None:
            raise ValueError(f"{key}: not a limit here (known: {', '.join(known)})")
        try:
            found[name] = read_value(known[name], value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return found


def read_value(limit_type: str, value: object) -> Value:
    """Read a limit of the type tres, count or time as sacctmgr prints it, or as a cluster file has it.

    '' , None and -1 are no limit. Memory is in bytes, a time in seconds.

    >>> read_value("tres", "gres/gpu=3,mem=1G"), read_value("time", "1-00:00:00"), read_value("count", "")
    ({'gres/gpu': 3, 'mem': 1073741824}, 86400.0, None)
    """
    text = "" if value is None else str(value).strip()
    if text in ("", "-1", "UNLIMITED"):
        return None
    if limit_type == "count":
        if not (text.isascii() and text.isdecimal() and len(text) < 12):
            raise ValueError(f"must be a number, not {text[:40]!r}")
        return int(text)
    if limit_type == "time":
        return units.parse_duration(value if isinstance(value, (int, float)) else text)
    pairs = value.items() if isinstance(value, dict) else [one.partition("=")[::2] for one in text.split(",")]
    found = {}
    for tres, amount in pairs:
        name, size = str(tres).strip().lower(), str(amount).strip()
        if not name or not size:
            raise ValueError(f"must be TRES=NUMBER[,...], like gres/gpu=8,mem=512G, not {text[:60]!r}")
        if name in ("mem", "vmem") and size.isdecimal():  # sacctmgr has memory in MiB
            size += "M"
        if size != "-1":
            found[name] = units.parse_size(size)
    return found or None


def written(value: Value) -> str:
    """Return a limit for a message."""
    if value is None:
        return "no limit"
    if isinstance(value, dict):
        return ",".join(
            f"{name}={units.write_size(amount) if name in ('mem', 'vmem') else amount}"
            for name, amount in sorted(value.items())
        )
    return units.slurm_time(value) if isinstance(value, float) else str(value)


def is_word(text: str) -> bool:
    """Return whether a name of Slurm's can be neither an option nor several names."""
    return bool(text) and not text.startswith("-") and not any(one in text for one in ", \t\n|=")


def _word(text: str) -> str:
    if not is_word(text):
        raise ValueError(f"must be one name of Slurm, without blanks, commas, | and =, not {text!r}")
    return text


def _association_limits(value: dict[str, Any]) -> dict[str, Any]:
    return dict(stated_limits(value, ASSOCIATION_LIMITS))


def _qos_limits(value: dict[str, Any]) -> dict[str, Any]:
    return dict(stated_limits(value, QOS_LIMITS))


def _users(value: Any) -> Any:
    return {name: {} for name in value} if isinstance(value, (list, tuple)) else value


def _trials(value: Any) -> Any:
    return (value,) if isinstance(value, dict) else value


PreemptMode = Literal["cluster", "off", "cancel", "requeue", "suspend", "gang"]
PREEMPT_MODES = get_args(PreemptMode)
Name = Annotated[str, Field(min_length=1), AfterValidator(_word)]
Names = tuple[Name, ...]
AssociationLimits = Annotated[dict[str, Any], AfterValidator(_association_limits)]
QosLimits = Annotated[dict[str, Any], AfterValidator(_qos_limits)]
FairshareShares = Count | Literal["parent"]


class AccountUser(Model):
    """A user's association with an account. Keys left out are not checked."""

    fairshare: FairshareShares | None = Field(None, description="shares, or parent")
    qos: Names | None = Field(None, description="QoS that it may use")
    limits: AssociationLimits = Field(
        {},
        description="limits by their names in sacctmgr, like GrpTRES: gres/gpu=64; null: there must be no such limit",
    )


class Account(AccountUser):
    """An account. Keys left out are not checked."""

    parent: Name | None = Field(None, description="account above it")
    users: Annotated[dict[Name, AccountUser], BeforeValidator(_users)] = Field(
        {}, description="users that must have it: a list of names, or a map of names to their own settings"
    )


class Qos(Model):
    """A QoS. Keys left out are not checked."""

    priority: Count | None = Field(None, description="Priority")
    preempt: Names | None = Field(None, description="QoS whose jobs it may preempt")
    preempt_mode: PreemptMode | None = Field(
        None, description="PreemptMode: how jobs of this QoS are preempted"
    )
    grace_time: Duration | Literal[0] | None = Field(None, description="GraceTime")
    flags: Names | None = Field(None, description="Flags, like DenyOnLimit")
    limits: QosLimits = Field(
        {},
        description="limits by their names in sacctmgr, like MaxTRESPU: gres/gpu=8; null: there must be no such limit",
    )


class PartitionPolicy(Model):
    """Who may use a partition, as `scontrol show partition` shows it; [ALL]: everyone. Keys left out are not checked."""

    allow_accounts: Names | None = Field(None, description="AllowAccounts")
    deny_accounts: Names | None = Field(None, description="DenyAccounts")
    allow_qos: Names | None = Field(None, description="AllowQos")
    deny_qos: Names | None = Field(None, description="DenyQos")
    allow_groups: Names | None = Field(None, description="AllowGroups")


class Access(Model):
    """A user with an account, a partition and a QoS, of which the job has Slurm's defaults where they are left out."""

    user: Name
    account: Name | None = None
    partition: Name | None = None
    qos: Name | None = None

    def __str__(self) -> str:
        named = (("account", self.account), ("partition", self.partition), ("QoS", self.qos))
        return " ".join([f"user {self.user}", *(f"{what} {name}" for what, name in named if name)])


class AccessRules(Model):
    """Who may submit what, and who may not."""

    may: tuple[Access, ...] = Field((), max_length=200, description="jobs that Slurm must accept")
    may_not: tuple[Access, ...] = Field((), max_length=200, description="jobs that Slurm must refuse")


class LimitTrial(Model):
    """A limit that jobs of the trial reach: of a QoS or of an account, as the file states it there."""

    qos: Name | None = None
    account: Name | None = None
    limit: Text = Field(description="its name, like MaxJobsPU, GrpTRES or MaxWall")
    tres: Text | None = Field(None, description=f"of a limit of TRES, the one to reach: {', '.join(TRES)}")

    @property
    def owner(self) -> str:
        """Return qos or account."""
        return "qos" if self.qos else "account"

    @property
    def owner_name(self) -> str:
        """The name of the QoS or account."""
        return self.qos or self.account or ""

    def __str__(self) -> str:
        return f"{self.limit} of {self.owner} {self.owner_name}{f', {self.tres}' if self.tres else ''}"

    @model_validator(mode="after")
    def _is_known(self) -> LimitTrial:
        if bool(self.qos) == bool(self.account):
            raise ValueError("needs either `qos` or `account`, whose limit it is")
        known = tried(self.owner)
        names = {one.lower(): one for one in known}
        names |= {other.lower(): one for other, one in ALIASES.items() if one in known}
        name = names.get(self.limit.lower())
        if name is None:
            raise ValueError(
                f"{self.limit}: no trial for this limit (limits of a {self.owner}: {', '.join(known)})"
            )
        object.__setattr__(self, "limit", name)
        if not reason_beyond(self.owner, name, self.tres or ""):
            of_tres = "TRES" in name
            raise ValueError(
                f"{name} {'needs `tres`, one of ' + ', '.join(TRES) if of_tres else 'has no `tres`'}"
            )
        return self


class FairshareTrial(Model):
    """Two accounts for trials, one of which gets usage. The user of the trials must have both."""

    busy: Name = Field(description="account that gets usage")
    idle: Name = Field(description="account that gets none")
    # how long its job of one task runs
    run: ClassVar[float] = 30


class PreemptionTrial(Model):
    """A job that is preempted, and the one that preempts it, both of one whole node."""

    low_qos: Name | None = None
    high_qos: Name | None = None
    low_partition: Name | None = None
    high_partition: Name | None = None
    mode: Literal["requeue", "cancel", "suspend"] = Field(
        description="what happens to the job with the low priority"
    )
    within: Duration = Field(
        60, le=1800, description="the other job must start within this time; add GraceTime"
    )

    def __str__(self) -> str:
        return f"{self.mode} {self.low_qos or self.low_partition or ''}".strip()


class Trials(Model):
    """Jobs of the trials (--intrusive) use nothing but these."""

    partition: Name = Field(description="partition of the jobs")
    account: Name | None = Field(None, description="default: that of the user")
    user: Name | None = Field(None, description="user of the jobs; default: the one who runs pytest")
    qos: Name | None = Field(None, description="QoS of jobs for which no other is named")
    reservation: Name | None = Field(
        None, description="reservation of the jobs, which keeps users' jobs away"
    )
    constraint: Text | None = Field(
        None, description="features of the nodes; default: any node of the partition"
    )
    # how long a job may wait for a free node
    start: ClassVar[float] = 60
    limits: tuple[LimitTrial, ...] = Field((), max_length=20, description="limits to reach")
    fairshare: FairshareTrial | None = Field(None, description="usage of one account lowers its priority")
    preemption: Annotated[tuple[PreemptionTrial, ...], BeforeValidator(_trials)] = Field(
        (), max_length=8, description="a job preempts another one; one trial, or a list"
    )
    backfill: bool = Field(
        default=False, description="a short job passes one that waits for more nodes; needs two idle nodes"
    )


def _bounds(trial: LimitTrial) -> tuple[int, float, str]:
    """Return the least and the most that a limit of a trial may be, and words for both."""
    if trial.tres == "mem":
        return LEAST_MEMORY, math.inf, f"from {units.write_size(LEAST_MEMORY)}"
    if trial.tres == "cpu" or trial.limit == "MaxWall":
        return 1, math.inf, f"from 1 {'CPU' if trial.tres else 'minute'}"
    return 1, MOST_JOBS, f"from 1 to {MOST_JOBS}"


class AccountingConfig(OptionalSection):
    """Slurm's accounting as the site has set it up. Nothing is changed; jobs are submitted with --intrusive only."""

    about = "requires Slurm with slurmdbd"
    order = 3

    exact: bool = Field(
        default=False,
        description="accounts, users, QoS and open partitions that the file does not state are failures",
    )
    accounts: dict[Name, Account] = Field({}, description="accounts, by name")
    qos: dict[Name, Qos] = Field({}, description="QoS, by name")
    partitions: dict[Name, PartitionPolicy] = Field(
        {}, description="who may use a partition, by partition name"
    )
    access: AccessRules = Field(AccessRules(), description="jobs that Slurm must accept, and must refuse")
    settings: dict[Name, str | int | float | tuple[str, ...]] = Field(
        {}, description="values of `scontrol show config`, like PriorityWeightFairshare: 100000"
    )
    sudo: bool = Field(
        default=False,
        description="become other users with `sudo -n -u USER` where pytest does not run as root",
    )
    # job records of this time are read
    records: ClassVar[float] = 3600
    trials: Trials | None = Field(None, description="what jobs of --intrusive may use")

    @model_validator(mode="after")
    def _trials_are_stated(self) -> AccountingConfig:
        for trial in self.trials.limits if self.trials else ():
            amount = self.amount_of(trial)
            if amount is None:
                raise ValueError(
                    f"trials.limits: {trial} is not stated under `{trial.owner}s`".replace("qoss", "qos")
                )
            least, most, needed = _bounds(trial)
            if not least <= amount <= most:
                raise ValueError(
                    f"trials.limits: {trial} is {amount}: a trial needs a limit {needed}; "
                    "use a QoS or an account for trials"
                )
        return self

    def amount_of(self, trial: LimitTrial) -> int | None:
        """Return the stated value of the limit that a trial reaches, None if the file does not state it.

        Memory is in bytes. MaxWall is in minutes, rounded down: Slurm has no seconds of a job's time.
        """
        of: Qos | Account | None
        of = self.qos.get(trial.owner_name) if trial.qos else self.accounts.get(trial.owner_name)
        value = of.limits.get(trial.limit) if of else None
        if isinstance(value, dict):
            value = value.get(trial.tres)
        if isinstance(value, float):
            return int(value // 60)
        return value if isinstance(value, int) else None

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Yield keys that have no effect without another one, and the reason."""
        if "sudo" in self.model_fields_set and not (self.trials or self.access.may or self.access.may_not):
            yield "sudo", "has no effect without 'access' or 'trials'"
