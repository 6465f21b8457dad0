"""Why Slurm gives no nodes, in its own words, and what to change in the cluster file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from pytest_gpucluster.core import units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo

# salloc's words (slurm_errno.c) and what to do about them
_ADVICE = (
    ("Invalid partition name", "name one of `sinfo -s` as partition"),
    (
        "Invalid account or account/partition",
        "set slurm.account in the cluster file to one of `sacctmgr show assoc user=$USER`",
    ),
    (
        "Invalid qos",
        "set slurm.qos in the cluster file to one of `sacctmgr show assoc user=$USER format=account,qos`",
    ),
    ("Requested reservation is invalid", "name one of `scontrol show reservation`"),
    ("Requested reservation not usable now", "wait for its start time or leave the reservation away"),
    (
        "Access denied to requested reservation",
        "the reservation is for other users or accounts (scontrol show reservation): be added, or set slurm.account",
    ),
    ("Access/permission denied", "ask for access to the partition, account or reservation"),
    ("Invalid node name", "a node of the cluster file is unknown to Slurm: compare `sinfo -N`"),
    ("Invalid feature specification", "no node has that constraint: compare `sinfo -o '%N %f'`"),
    ("Requested node configuration is not available", "no such node has the CPUs, memory or gres asked for"),
    (
        "Requested time limit is invalid",
        "ask for less time (slurm.time or --time), or another slurm.partition",
    ),
    (
        "MaxSubmitJob",
        "the account or QOS allows no more jobs in the queue (MaxSubmitJobs): wait for yours to end, or take another",
    ),
    (
        "violates accounting/QOS policy",
        "the account or QOS allows less (sacctmgr show qos): fewer --nodes, less slurm.time, or another slurm.qos",
    ),
    (
        "Node count specification invalid",
        "the partition has, or allows (MaxNodes), fewer nodes than were asked for: fewer --nodes",
    ),
    (
        "Required partition not available",
        "scontrol update PartitionName=NAME State=UP, or name another partition",
    ),
    ("More processors requested than permitted", "fewer nodes are there than were asked for"),
    ("are not in this partition", "name the partition of these nodes"),
    ("Unable to contact slurm controller", "is slurmctld running and SLURM_CONF right? (scontrol ping)"),
    (
        "Unspecified error",
        "a job_submit plugin refuses it: what it wants goes under slurm: account, qos, comment, extra_args",
    ),
)
_PENDING = {
    "Resources": "the nodes are busy",
    "Priority": "other jobs go first",
    "ReqNodeNotAvail": "nodes asked for are drained, down or reserved",
    "PartitionNodeLimit": "more nodes than the partition allows or has",
    "PartitionTimeLimit": "more time than the partition allows",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "Dependency": "jobs that go before have not ended",
    "ReservationDeleted": "the reservation is gone",
    "AssociationJobLimit": "the account's limit of jobs is reached",
    "AccountNotAllowed": "the partition does not take jobs of this account",
    "QOSNotAllowed": "the partition or account does not take jobs of this QOS",
}
# of what one job may have (slurm.h: WAIT_QOS_MAX_*_PER_JOB and the like); a limit per user or account may ease
_OF_ONE_JOB = re.compile(
    r"(?P<whose>QOS|Assoc)\w*(?:PerJob|PerNode)(?:Limit)?\b|(?P<least>QOSMin)\w+|(?:QOS|Assoc(?:iation)?)TimeLimit"
)
# Waiting does not help against these
_HOPELESS = (
    "PartitionNodeLimit", "PartitionTimeLimit", "PartitionInactive", "BadConstraints", "ReservationDeleted", "JobHeld",
    "AccountNotAllowed", "QOSNotAllowed", "InvalidAccount", "InvalidQOS",
)  # fmt: skip

# squeue's %T of a job that ended under a run that was not done with it
_ENDED = {
    "PREEMPTED": "a job of higher priority took its nodes: name a slurm.qos or slurm.partition that is not preempted",
    "TIMEOUT": "its time was over: give it more by --time or slurm.time",
    "DEADLINE": "its time was over: give it more by --time or slurm.time",
    "CANCELLED": "somebody ended it (scancel, scontrol requeue), or an administrator's script did",
    "NODE_FAIL": "a node failed: look at sinfo -R and slurmctld's log",
    "OUT_OF_MEMORY": "its memory was over on a node: look at dmesg there",
}


class JobRequest(Protocol):
    """What is known of the request."""

    @property
    def nodes(self) -> Sequence[str]:
        """By name."""

    @property
    def count(self) -> int | None:
        """Or any so many."""

    @property
    def time(self) -> float:
        """Seconds."""


def advice(text: str) -> str:
    """Return what to do about salloc's words; '' where they are not known."""
    if "Incompatible versions" in text:  # said with its repair (client.py); it ends with "Unspecified error"
        return ""
    return next((hint for words, hint in _ADVICE if words in text), "")


def explained(reason: str) -> str:
    """Return squeue's reason with what it means."""
    key = re.split(r"[^A-Za-z]", reason, maxsplit=1)[0]
    meaning = _PENDING.get(key, "")
    if re.match(r"(QOS|Assoc)(Max|Grp)", reason):
        meaning = "a limit of the account or QOS is reached: sacctmgr show qos; sacctmgr show assoc"
    if limit := _OF_ONE_JOB.match(reason):
        whose = "account" if limit["whose"] == "Assoc" else "QOS"
        wants = "asks for more" if limit["least"] else "allows less"
        meaning = (
            f"the {whose} {wants} in one job: sacctmgr show {'assoc' if whose == 'account' else 'qos'}; other --nodes, "
            "slurm.time, slurm.qos or slurm.account"
        )
    return f"{reason or 'unknown'}" + (f" ({meaning})" if meaning else "")


def ended_as(state: str) -> str:
    """Return the state of a job that ended too early with what it means; '' for one that says nothing."""
    return f"{state}: {_ENDED[state]}" if state in _ENDED else ""


def hopeless(reason: str) -> bool:
    """Say whether waiting will not help against squeue's reason."""
    return reason.startswith(_HOPELESS) or bool(_OF_ONE_JOB.match(reason))


def in_the_way(partition: PartitionInfo, asked: JobRequest, said: str) -> str:
    """Return which settings of the partition Slurm's words are about, and the key to change; '' for none."""
    found = "; ".join(_in_the_way(partition, asked, said))
    return f"partition {partition.name} has {found}" if found else ""


def _in_the_way(partition: PartitionInfo, asked: JobRequest, said: str) -> Iterator[str]:
    most, count = partition.max_time, len(asked.nodes) or asked.count or 1
    if re.search(r"time limit|PartitionTimeLimit", said, re.IGNORECASE) and most and asked.time > most:
        asks = units.slurm_time(asked.time)
        yield f"MaxTime={units.slurm_time(most)}, {asks} is asked for: slurm.time or --time"
    if re.search(r"Node count|PartitionNodeLimit", said) and count > (partition.max_nodes or count):
        yield f"MaxNodes={partition.max_nodes}, {count} are asked for: fewer --nodes"
    for about, name, names, key in (
        ("account", "AllowGroups", partition.allow_groups, "run as a member"),
        ("account", "AllowAccounts", partition.allow_accounts, "slurm.account or --account"),
        ("account", "DenyAccounts", partition.deny_accounts, "another slurm.account or --account"),
        ("qos", "AllowQos", partition.allow_qos, "slurm.qos"),
        ("qos", "DenyQos", partition.deny_qos, "another slurm.qos"),
    ):
        if names and about in said.lower():
            yield f"{name}={','.join(names)}: {key}"
