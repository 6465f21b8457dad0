"""Accounts, users, QoS, limits, fair share and preemption of a Slurm that many teams share. No node is allocated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpucluster.suite import Tests, given, of_fleet, required_section
from pytest_gpucluster.suites.accounting import checks
from pytest_gpucluster.suites.accounting.config import AccountingConfig
from pytest_gpucluster.suites.accounting.steps import Accounting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.accounting.config import Access
    from pytest_gpucluster.suites.accounting.facts import SubmitReply
    from pytest_gpucluster.suites.accounting.steps import Records

config = required_section(AccountingConfig)


@of_fleet(config, given.session)
def accounting(config: AccountingConfig, session: ClusterSession) -> Accounting:
    """The queries; not applicable without Slurm, not checked without slurmdbd."""
    slurm, cluster = session.need_slurm(), session.cluster
    local = cluster.transport.kind != "ssh"
    conf = cluster.slurm.conf or (os.environ.get("SLURM_CONF", "") if local else "")
    made = Accounting(slurm, config, conf, sudo=cluster.sudo)
    _ = made.settings
    return made


settings = of_fleet(accounting)(lambda accounting: accounting.settings)


enforced = of_fleet(accounting)(lambda accounting: accounting.enforced)


hidden = of_fleet(accounting)(lambda accounting: accounting.hidden)


associations = of_fleet(accounting)(lambda accounting: accounting.associations)


qos_found = of_fleet(accounting)(lambda accounting: accounting.qos)


partitions = of_fleet(accounting)(lambda accounting: accounting.slurm.partitions())


@of_fleet(accounting, config)
def answers(accounting: Accounting, config: AccountingConfig) -> Mapping[Access, SubmitReply]:
    """Slurm's answers to `sbatch --test-only` of the jobs under `access`."""
    return accounting.answers((*config.access.may, *config.access.may_not))


@of_fleet(accounting, given.session)
def records(accounting: Accounting, session: ClusterSession) -> Records:
    """Job records, with those of this run's own jobs."""
    return accounting.records(held.job_id for held in session.allocations)


hours = of_fleet(config)(lambda config: config.records)


TESTS = Tests(checks, marks=("accounting", "slurm", "inventory"))
