"""The section `accounting` of a cluster file, and the limits of associations and QoS that it may state. Pure.

Names of limits: `sacctmgr show assoc|qos format=` of Slurm 22.05 to 26.05 (src/sacctmgr/common.c).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pytest_gpucluster.core import units
from pytest_gpucluster.core.values import Count, Model, OptionalSection

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def _users(value: Any) -> Any:
    return {name: {} for name in value} if isinstance(value, (list, tuple)) else value


Name = Annotated[str, Field(min_length=1), AfterValidator(_word)]
Names = tuple[Name, ...]
AssociationLimits = Annotated[dict[str, Any], AfterValidator(partial(stated_limits, known=ASSOCIATION_LIMITS))]
QosLimits = Annotated[dict[str, Any], AfterValidator(partial(stated_limits, known=QOS_LIMITS))]
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


class AccountingConfig(OptionalSection):
    """Slurm's accounting as the site has set it up. Nothing is changed."""

    about = "requires Slurm with slurmdbd"
    order = 3

    exact: bool = Field(
        default=False, description="accounts, users, QoS and open partitions that the file does not state are failures"
    )
    accounts: dict[Name, Account] = Field({}, description="accounts, by name")
    qos: dict[Name, Qos] = Field({}, description="QoS, by name")
    partitions: dict[Name, PartitionPolicy] = Field({}, description="who may use a partition, by partition name")
    access: AccessRules = Field(AccessRules(), description="jobs that Slurm must accept, and must refuse")
    settings: dict[Name, str | int | float | tuple[str, ...]] = Field(
        {}, description="values of `scontrol show config`, like PriorityWeightFairshare: 100000"
    )
    # job records of this time are read
    records: ClassVar[float] = 3600
