"""Accounts, users, QoS, limits, fair share and preemption of a Slurm that many teams share.

No node is allocated. Jobs are submitted with --intrusive only, and only with what `accounting.trials` names.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.suite import Tests, fact, required_section
from pytest_gpucluster.suites.accounting import checks, trial_checks
from pytest_gpucluster.suites.accounting.config import AccountingConfig
from pytest_gpucluster.suites.accounting.steps import Accounting
from pytest_gpucluster.suites.accounting.trials import TrialRunner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo
    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.accounting.config import Access
    from pytest_gpucluster.suites.accounting.facts import Answer, Association, QosInfo, TrialJob
    from pytest_gpucluster.suites.accounting.limit_plan import LimitResult
    from pytest_gpucluster.suites.accounting.steps import Records
    from pytest_gpucluster.suites.accounting.trials import BackfillResult, FairshareResult, PreemptionResult

    T = TypeVar("T")

config = required_section(AccountingConfig)


@fact(once=True)
def accounting(config: AccountingConfig, gpucluster_session: ClusterSession) -> Accounting:
    """The queries; not applicable without Slurm, not checked without slurmdbd."""
    slurm, cluster = gpucluster_session.need_slurm(), gpucluster_session.cluster
    local = cluster.transport.kind != "ssh"
    conf = cluster.slurm.conf or (os.environ.get("SLURM_CONF", "") if local else "")
    made = Accounting(slurm, config, conf)
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
def answers(accounting: Accounting, config: AccountingConfig) -> Mapping[Access, Answer]:
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


@fact(once=True)
def runner(
    accounting: Accounting,
    config: AccountingConfig,
    gpucluster_session: ClusterSession,
) -> Iterator[TrialRunner | None]:
    """Submits the jobs of the trials; None without `trials`."""
    if config.trials is None:
        yield None
        return
    if gpucluster_session.in_worker and gpucluster_session.channel is None:
        # without a channel no worker waits for another, and the jobs of one would count against limits of another
        raise NotAvailable("with -n, trials run only in a run that also allocates nodes: leave -n out")
    held = {node for one in gpucluster_session.allocations for node in one.nodes}
    known = accounting.slurm.partitions().get(config.trials.partition)
    if held and known is not None and held.issuperset(known.nodes):
        raise NotAvailable(
            "this run holds all nodes of the partition of the trials: run it with -m accounting"
        )
    made = TrialRunner(accounting, config.trials)
    _ = made.user
    yield made
    made.close()


@fact(once=True)
def access_trial(
    runner: TrialRunner | None, config: AccountingConfig
) -> Mapping[Access, tuple[Answer, TrialJob | None]] | None:
    """Real jobs of the users under `access`."""
    jobs = (*config.access.may, *config.access.may_not)
    return runner.access(jobs) if runner and jobs else None


@fact(once=True)
def limit_trials(runner: TrialRunner | None, config: AccountingConfig) -> Sequence[LimitResult] | None:
    """Each limit under `trials.limits`, reached one after another."""
    if runner is None or config.trials is None:
        return None
    return [runner.limit(trial, config.amount_of(trial) or 0) for trial in config.trials.limits]


@fact(once=True)
def fairshare_trial(runner: TrialRunner | None, config: AccountingConfig) -> FairshareResult | None:
    """Usage of one account, and priorities after it."""
    trial = config.trials and config.trials.fairshare
    return runner.fairshare(trial) if runner and trial else None


@fact(once=True)
def backfill_trial(runner: TrialRunner | None, config: AccountingConfig) -> BackfillResult | None:
    """A short job behind one that waits."""
    return runner.backfill() if runner and config.trials and config.trials.backfill else None


@fact(once=True)
def preemption_trials(runner: TrialRunner | None, config: AccountingConfig) -> Sequence[PreemptionResult]:
    """Jobs that preempt others, one trial after another."""
    trials = config.trials.preemption if config.trials else ()
    return [runner.preemption(trial) for trial in trials] if runner else []


TESTS = Tests(
    checks,
    trial_checks,
    marks=(
        "accounting",
        "slurm",
        "inventory",
    ),
)
