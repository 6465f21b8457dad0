"""Explanations of Slurm's errors and pending reasons, and what to change in the cluster file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucluster.core import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.cluster.slurm.allocation import AllocationRequest
    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo

# errors of salloc (slurm_errno.c) and what to do
_ADVICE = {
    "Invalid partition name": "name one of `sinfo -s` as partition",
    "Invalid account or account/partition": "set slurm.account in the cluster file to one of "
    "`sacctmgr show assoc user=$USER`",
    "Invalid qos": "set slurm.qos in the cluster file to one of `sacctmgr show assoc user=$USER format=account,qos`",
    "Requested reservation is invalid": "name one of `scontrol show reservation`",
    "Requested reservation not usable now": "wait for its start time or do not name the reservation",
    "Access denied to requested reservation": "the reservation is for other users or accounts (scontrol show "
    "reservation): request access, or set slurm.account",
    "Access/permission denied": "ask for access to the partition, account or reservation",
    "Invalid node name": "a node of the cluster file is unknown to Slurm: compare `sinfo -N`",
    "Invalid feature specification": "no node has that constraint: compare `sinfo -o '%N %f'`",
    "Requested node configuration is not available": "no such node has the requested CPUs, memory or gres, "
    "or MaxMemPerCPU allows less memory (scontrol show config): slurm.extra_args: [--mem=SIZE]",
    "Invalid user id": "Slurm takes no jobs of root (DisableRootJobs in slurm.conf), or does not know this "
    "user: run it as another user, or name one of a login node (transport.host, transport.user)",
    "Requested time limit is invalid": "request less time (slurm.time or --time), or another slurm.partition",
    "MaxSubmitJob": "the account or QOS allows no more jobs in the queue (MaxSubmitJobs): wait for the end "
    "of others, or set another account or QOS",
    "violates accounting/QOS policy": "the account or QOS allows less (sacctmgr show qos): fewer --nodes, "
    "less slurm.time, or another slurm.qos",
    "Node count specification invalid": "the partition has, or allows (MaxNodes), fewer nodes than "
    "requested: fewer --nodes",
    "Required partition not available": "an administrator sets its state to UP (scontrol update), or name "
    "another partition",
    "More processors requested than permitted": "fewer nodes exist than were requested",
    "are not in this partition": "name the partition of these nodes",
    "Unable to contact slurm controller": "is slurmctld running and SLURM_CONF right? (scontrol ping)",
    "Unspecified error": "a job_submit plugin refuses it: set what it requires under slurm: account, qos, "
    "comment, extra_args",
}
_PENDING = {
    "Resources": "the nodes are busy",
    "Priority": "other jobs go first",
    "ReqNodeNotAvail": "requested nodes are drained, down or reserved",
    "PartitionNodeLimit": "more nodes than the partition allows or has",
    "PartitionTimeLimit": "more time than the partition allows",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "Dependency": "jobs of the dependency have not ended",
    "ReservationDeleted": "the reservation was deleted",
    "AssociationJobLimit": "the account's limit of jobs is reached",
    "AccountNotAllowed": "the partition does not take jobs of this account",
    "QOSNotAllowed": "the partition or account does not take jobs of this QOS",
}
# limits of one job (slurm.h: WAIT_QOS_MAX_*_PER_JOB and the like), which waiting does not change
_OF_ONE_JOB = re.compile(
    r"(?P<whose>QOS|Assoc)\w*(?:PerJob|PerNode)(?:Limit)?\b|(?P<least>QOSMin)\w+|(?:QOS|Assoc(?:iation)?)TimeLimit"
)
# reasons that waiting does not change
_HOPELESS = (
    "PartitionNodeLimit", "PartitionTimeLimit", "PartitionInactive", "BadConstraints", "ReservationDeleted", "JobHeld",
    "AccountNotAllowed", "QOSNotAllowed", "InvalidAccount", "InvalidQOS",
)  # fmt: skip

FOR_OTHERS = ("PREEMPTED", "CANCELLED", "REVOKED", "REQUEUED")  # how Slurm ends a job that is at no fault
# squeue's state (%T) of a job that ended before its run
_ENDED = {
    "PREEMPTED": "a job of higher priority took its nodes: name a slurm.qos or slurm.partition that is not preempted",
    "TIMEOUT": "it reached its time limit: set a longer --time or slurm.time",
    "DEADLINE": "it reached its time limit: set a longer --time or slurm.time",
    "CANCELLED": "a user or a script of an administrator ended it (scancel, scontrol requeue)",
    "NODE_FAIL": "a node failed: see sinfo -R and slurmctld's log",
    "OUT_OF_MEMORY": "a node ran out of memory: see dmesg there",
}


def advice(text: str) -> str:
    """Return what to do about an error of salloc; '' for an unknown one."""
    if "Incompatible versions" in text:  # client.py adds the hint; the text ends with "Unspecified error"
        return ""
    return next((hint for words, hint in _ADVICE.items() if words in text), "")


def with_meaning(reason: str) -> str:
    """Return squeue's reason with its meaning."""
    key = re.split(r"[^A-Za-z]", reason, maxsplit=1)[0]
    meaning = _PENDING.get(key, "")
    if re.match(r"(QOS|Assoc)(Max|Grp)", reason):
        meaning = "a limit of the account or QOS is reached: sacctmgr show qos; sacctmgr show assoc"
    if limit := _OF_ONE_JOB.match(reason):
        whose = "account" if limit["whose"] == "Assoc" else "QOS"
        wants = "requires more" if limit["least"] else "allows less"
        meaning = (
            f"the {whose} {wants} in one job: sacctmgr show {'assoc' if whose == 'account' else 'qos'}; other --nodes, "
            "slurm.time, slurm.qos or slurm.account"
        )
    return f"{reason or 'unknown'}" + (f" ({meaning})" if meaning else "")


def end_explanation(state: str) -> str:
    """Return the state of a job that ended too early, with its meaning; '' for other states."""
    return f"{state}: {_ENDED[state]}" if state in _ENDED else ""


def hopeless(reason: str) -> bool:
    """Return whether waiting does not change squeue's reason."""
    return reason.startswith(_HOPELESS) or bool(_OF_ONE_JOB.match(reason))


def partition_limits(partition: PartitionInfo, request: AllocationRequest, error: str) -> str:
    """Return the settings of the partition that Slurm's error is about, and the key to change; '' for none."""
    found = "; ".join(_partition_limits(partition, request, error))
    return f"partition {partition.name} has {found}" if found else ""


def _partition_limits(partition: PartitionInfo, request: AllocationRequest, error: str) -> Iterator[str]:
    most, count = partition.max_time, len(request.nodes) or request.count or 1
    if re.search(r"time limit|PartitionTimeLimit", error, re.IGNORECASE) and most and request.time > most:
        time = units.slurm_time(request.time)
        yield f"MaxTime={units.slurm_time(most)}, {time} was requested: slurm.time or --time"
    if re.search(r"Node count|PartitionNodeLimit", error) and count > (partition.max_nodes or count):
        yield f"MaxNodes={partition.max_nodes}, {count} were requested: fewer --nodes"
    for about, name, names, key in (
        ("account", "AllowGroups", partition.allow_groups, "run as a member"),
        ("account", "AllowAccounts", partition.allow_accounts, "slurm.account"),
        ("account", "DenyAccounts", partition.deny_accounts, "another slurm.account"),
        ("qos", "AllowQos", partition.allow_qos, "slurm.qos"),
        ("qos", "DenyQos", partition.deny_qos, "another slurm.qos"),
    ):
        if names and about in error.lower():
            yield f"{name}={','.join(names)}: {key}"
