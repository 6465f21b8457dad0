"""The section of a drafted cluster file: accounts, QoS, partitions and settings as they are, where Slurm has slurmdbd."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from pytest_gpucluster.cluster.slurm.inventory import parse_config, parse_partitions
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.suites.accounting import facts
from pytest_gpucluster.suites.accounting.config import ASSOCIATION_LIMITS, QOS_LIMITS, is_word, written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo
    from pytest_gpucluster.core.survey import Survey
    from pytest_gpucluster.suites.accounting.config import Value
    from pytest_gpucluster.suites.accounting.facts import Association, QosInfo

EXAMPLE = [
    "",
    "# accounting:  # requires slurmdbd: accounts, QoS and fair share as they must be",
    "#   accounts:",
    "#     ml: {users: [alice, bob], fairshare: 10, qos: [normal]}",
]
_MORE = [
    "  # exact: true  # what is not stated here is a failure",
    "  # access:",
    "  #   may: [{user: USER, account: ACCOUNT}]",
    "  #   may_not: [{user: USER, account: ACCOUNT}]",
]
_CONFIG = ("scontrol", "show", "config")
_PARTITIONS = ("scontrol", "show", "partition", "-o", "-a")
_NAME = ("id", "-un")
_LEVELS = ("sacctmgr", "-nP", "show", "user", "format=User,AdminLevel")
_PRIVATE = ("sacctmgr", "show", "configuration")
_QOS = ("sacctmgr", "-nP", "show", "qos", f"format={','.join((*facts.QOS, *QOS_LIMITS))}")
_SETTINGS = (
    *("AccountingStorageEnforce", "EnforcePartLimits", "PreemptMode", "PreemptType", "PriorityDecayHalfLife"),
    *("PriorityFlags", "PriorityMaxAge", "PriorityType", "PriorityUsageResetPeriod", "PriorityWeightAge"),
    *("PriorityWeightAssoc", "PriorityWeightFairShare", "PriorityWeightJobSize", "PriorityWeightPartition"),
    *("PriorityWeightQOS", "PriorityWeightTRES", "SchedulerParameters", "SchedulerType"),
)


def commands(config: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the commands whose output the draft needs; none without slurmdbd."""
    if "slurmdbd" not in config.get("AccountingStorageType", ""):
        return []
    return [_CONFIG, _PARTITIONS, _NAME, _LEVELS, _PRIVATE, _QOS, _associations(config)]


def _associations(config: Mapping[str, str]) -> tuple[str, ...]:
    columns = ",".join((*facts.ASSOCIATION, *ASSOCIATION_LIMITS))
    return (*("sacctmgr", "-nP", "show", "assoc"), f"cluster={config.get('ClusterName', '')}", f"format={columns}")


@dataclass
class _Draft:
    """What is known; `left_out` collects why something is not drafted: the check would fail, or could not run."""

    survey: Survey
    config: Mapping[str, str]
    left_out: list[str] = field(default_factory=list)

    @property
    def enforced(self) -> frozenset[str]:
        return facts.enforced_words(self.config.get("AccountingStorageEnforce", ""))

    def output(self, command: tuple[str, ...]) -> str:
        return self.survey.outputs[command]

    def names(self, found: Collection[str]) -> list[str]:
        """Return the names that a cluster file may have."""
        usable = [name for name in sorted(found) if is_word(name)]
        if len(usable) < len(found):
            self.left_out.append("names with blanks, commas, | or =")
        return usable

    def listed(self, key: str, found: Collection[str]) -> dict[str, list[str]]:
        """Return the names under a key; nothing if one is unusable, since the check compares all."""
        usable = self.names(found)
        return {key: usable} if len(usable) == len(found) else {}

    def limits(self, found: Mapping[str, Value], known: Mapping[str, Value] | None = None) -> dict[str, Any]:
        """Return the limits, without those of `known`: users inherit them of the account."""
        own = {name: value for name, value in found.items() if value is not None}
        own = {name: value for name, value in own.items() if value != (known or {}).get(name)}
        if own and "limits" not in self.enforced:
            self.left_out.append("limits: AccountingStorageEnforce has no `limits`, so Slurm ignores them")
            return {}
        texts = {name: value if isinstance(value, int) else written(value) for name, value in own.items()}
        return {"limits": texts} if texts else {}

    def shares(self, fairshare: str, usual: str = "") -> dict[str, Any]:
        if fairshare in ("", usual):
            return {}
        if not facts.fairshare_weight(self.config):
            self.left_out.append("shares: PriorityWeightFairShare is 0, or PriorityType is not priority/multifactor")
            return {}
        return {"fairshare": int(fairshare) if fairshare.isdecimal() else fairshare}


def lines(survey: Survey) -> list[str]:
    """Return the section, an example without slurmdbd, or the reason why it could not be drafted."""
    if _CONFIG not in survey.outputs:
        return EXAMPLE
    draft = _Draft(survey, parse_config(survey.outputs[_CONFIG]))
    try:
        accounts = _accounts(draft)
        qos = facts.parse_qos(draft.output(_QOS), QOS_LIMITS)
        section = {
            "accounts": accounts,
            "qos": {name: _qos(draft, qos[name]) for name in draft.names(qos)},
            "partitions": dict(_partitions(draft, parse_partitions(draft.output(_PARTITIONS)))),
        }
    except (GpuClusterError, KeyError) as error:
        why = f"{error.args[0][0]} failed" if isinstance(error, KeyError) else str(error)
        return [*EXAMPLE[:1], f"# the accounting could not be read: {one_line(why, 200)}", *EXAMPLE[1:]]
    notes = [f"# left out: {one_line(why, 200)}" for why in dict.fromkeys(draft.left_out)]
    drafted = _block(section, default_flow_style=None) + _block(_settings(draft), default_flow_style=False)
    return ["", "# as sacctmgr and scontrol show them", *notes, "accounting:", *drafted, *_MORE]


def _block(section: Mapping[str, Any], **style: Any) -> list[str]:
    """Return the keys that have a value as YAML, indented."""
    stated = {key: value for key, value in section.items() if value}
    text = yaml.safe_dump(stated, sort_keys=False, width=110, **style)
    return [f"  {line}" for line in text.splitlines()]


def _settings(draft: _Draft) -> dict[str, Any]:
    usable = {
        name: int(value) if value.isdecimal() else value
        for name in _SETTINGS
        if (value := draft.config.get(name, "")) and draft.survey.may_be_written(name, value)
    }
    return {"settings": usable}


def _accounts(draft: _Draft) -> dict[str, Any]:
    private = facts.parse_private_data(draft.output(_PRIVATE)) & {"accounts", "users"}
    name, hides = draft.output(_NAME).strip(), f"PrivateData={','.join(sorted(private))} hides some"
    levels = dict(line.split("|") for line in draft.output(_LEVELS).splitlines() if line.count("|") == 1)
    if private and not facts.sees_all(name, draft.config, levels.get(name, "")):
        draft.left_out.append(f"accounts: {hides}; run init as an operator")
        return {}
    found = facts.parse_associations(draft.output(_associations(draft.config)), ASSOCIATION_LIMITS)
    own = {one.account: one for one in found if not one.user and one.account != "root"}
    return {name: _account(draft, own[name], found) for name in draft.names(own)}


def _account(draft: _Draft, own: Association, found: Sequence[Association]) -> dict[str, Any]:
    users = facts.users_of(own.account, found)
    settings = {name: _user(draft, own, users[name]) for name in draft.names(users)}
    account: dict[str, Any] = {"parent": own.parent} if own.parent and is_word(own.parent) else {}
    if settings:
        account["users"] = settings if any(settings.values()) else list(settings)
    qos = draft.listed("qos", own.qos)
    return {**account, **draft.shares(own.fairshare), **qos, **draft.limits(own.limits)}


def _user(draft: _Draft, account: Association, user: Association) -> dict[str, Any]:
    qos = {} if user.qos == account.qos else draft.listed("qos", user.qos)
    return {**draft.shares(user.fairshare, "1"), **qos, **draft.limits(user.limits, account.limits)}


def _qos(draft: _Draft, one: QosInfo) -> dict[str, Any]:
    found: dict[str, Any] = {"priority": one.priority}
    if one.preempt and draft.config.get("PreemptType") != "preempt/qos":
        draft.left_out.append("QoS to preempt: PreemptType is not preempt/qos, so Slurm ignores them")
    else:
        found |= draft.listed("preempt", one.preempt)
    flags = draft.listed("flags", one.flags) if one.flags else {}
    return {**found, **flags, **draft.limits(one.limits)}


def _partitions(draft: _Draft, found: Mapping[str, PartitionInfo]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in draft.names(found):
        one = found[name]
        if (one.allow_accounts or one.deny_accounts) and "associations" not in draft.enforced:
            draft.left_out.append("accounts of partitions: AccountingStorageEnforce has no `associations`")
            continue
        policy: dict[str, Any] = {}
        for key in ("allow_accounts", "allow_qos", "allow_groups"):
            policy |= draft.listed(key, getattr(one, key) or ("ALL",))
        for key in ("deny_accounts", "deny_qos"):
            policy |= draft.listed(key, getattr(one, key)) if getattr(one, key) else {}
        yield name, policy
