"""Accounts, users, QoS, limits, fair share and preemption of a Slurm that many teams share. No node is allocated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpucluster.suite import Tests, fact, required_section
from pytest_gpucluster.suites.accounting import checks
from pytest_gpucluster.suites.accounting.config import AccountingConfig
from pytest_gpucluster.suites.accounting.steps import Accounting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo
    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.accounting.config import Access
    from pytest_gpucluster.suites.accounting.facts import Association, QosInfo, SubmitReply
    from pytest_gpucluster.suites.accounting.steps import Records

config = required_section(AccountingConfig)


@fact(once=True)
def accounting(config: AccountingConfig, gpucluster_session: ClusterSession) -> Accounting:
    """The queries; not applicable without Slurm, not checked without slurmdbd."""
    slurm, cluster = gpucluster_session.need_slurm(), gpucluster_session.cluster
    local = cluster.transport.kind != "ssh"
    conf = cluster.slurm.conf or (os.environ.get("SLURM_CONF", "") if local else "")
    made = Accounting(slurm, config, conf, sudo=cluster.sudo)
    _ = made.settings
    return made


@fact(once=True)
def settings(accounting: Accounting) -> Mapping[str, str]:
    """What `scontrol show config` prints."""
    return accounting.settings


@fact(once=True)
def enforced(accounting: Accounting) -> frozenset[str]:
    """What AccountingStorageEnforce enforces."""
    return accounting.enforced


@fact(once=True)
def hidden(accounting: Accounting) -> frozenset[str]:
    """What slurmdbd hides from this user."""
    return accounting.hidden


@fact(once=True)
def associations(accounting: Accounting) -> tuple[Association, ...]:
    """All associations of the cluster."""
    return accounting.associations


@fact(once=True)
def qos_found(accounting: Accounting) -> Mapping[str, QosInfo]:
    """All QoS."""
    return accounting.qos


@fact(once=True)
def partitions(accounting: Accounting) -> Mapping[str, PartitionInfo]:
    """All partitions."""
    return accounting.slurm.partitions()


@fact(once=True)
def answers(accounting: Accounting, config: AccountingConfig) -> Mapping[Access, SubmitReply]:
    """Slurm's answers to `sbatch --test-only` of the jobs under `access`."""
    return accounting.answers((*config.access.may, *config.access.may_not))


@fact(once=True)
def records(accounting: Accounting, gpucluster_session: ClusterSession) -> Records:
    """Job records, with those of this run's own jobs."""
    return accounting.records(held.job_id for held in gpucluster_session.allocations)


@fact(once=True)
def hours(config: AccountingConfig) -> float:
    """The seconds of the job records."""
    return config.records


TESTS = Tests(
    checks,
    marks=(
        "accounting",
        "slurm",
        "inventory",
    ),
)
