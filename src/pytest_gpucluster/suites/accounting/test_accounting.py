"""Accounts, users, QoS, limits, fair share and preemption of a Slurm that many teams share.

No node is allocated. Jobs are submitted with --intrusive only, and only with what `accounting.trials` names.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import pytest

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.suite import checks_as_tests, required_section
from pytest_gpucluster.suites.accounting import checks, trial_checks
from pytest_gpucluster.suites.accounting.config import AccountingConfig
from pytest_gpucluster.suites.accounting.steps import Accounting
from pytest_gpucluster.suites.accounting.trials import TrialRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import PartitionInfo
    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.suites.accounting.config import Access
    from pytest_gpucluster.suites.accounting.facts import Answer, Association, QosInfo, TrialJob
    from pytest_gpucluster.suites.accounting.limit_plan import LimitResult
    from pytest_gpucluster.suites.accounting.steps import Records
    from pytest_gpucluster.suites.accounting.trials import BackfillResult, FairshareResult, PreemptionResult

    T = TypeVar("T")

pytestmark = [pytest.mark.accounting, pytest.mark.slurm, pytest.mark.inventory]
config = required_section(AccountingConfig)


def available(query: Callable[[], T]) -> T:
    """Return the result of a query; without it the item ends as not checked."""
    try:
        return query()
    except NotAvailable as error:
        pytest.skip(f"not checked: {error}")


@pytest.fixture(scope="session")
def accounting(config: AccountingConfig, gpucluster_session: ClusterSession) -> Accounting:
    """The queries; not applicable without Slurm, not checked without slurmdbd."""
    session = gpucluster_session
    if session.slurm is None:
        pytest.skip(f"not applicable: {session.cluster.why_no_slurm}")
    local = session.cluster.transport.kind != "ssh"
    conf = session.cluster.slurm.conf or (os.environ.get("SLURM_CONF", "") if local else "")
    made = Accounting(session.slurm, config, conf)
    available(lambda: made.settings)
    return made


@pytest.fixture(scope="session")
def settings(accounting: Accounting) -> Mapping[str, str]:
    """What `scontrol show config` prints."""
    return accounting.settings


@pytest.fixture(scope="session")
def enforced(accounting: Accounting) -> frozenset[str]:
    """What AccountingStorageEnforce enforces."""
    return accounting.enforced


@pytest.fixture(scope="session")
def hidden(accounting: Accounting) -> frozenset[str]:
    """What slurmdbd hides from this user."""
    return available(lambda: accounting.hidden)


@pytest.fixture(scope="session")
def associations(accounting: Accounting) -> tuple[Association, ...]:
    """All associations of the cluster."""
    return available(lambda: accounting.associations)


@pytest.fixture(scope="session")
def qos_found(accounting: Accounting) -> Mapping[str, QosInfo]:
    """All QoS."""
    return available(lambda: accounting.qos)


@pytest.fixture(scope="session")
def partitions(accounting: Accounting) -> Mapping[str, PartitionInfo]:
    """All partitions."""
    return accounting.slurm.partitions()


@pytest.fixture(scope="session")
def answers(accounting: Accounting, config: AccountingConfig) -> Mapping[Access, Answer]:
    """Slurm's answers to `sbatch --test-only` of the jobs under `access`."""
    return available(lambda: accounting.answers((*config.access.may, *config.access.may_not)))


@pytest.fixture(scope="session")
def records(accounting: Accounting, gpucluster_session: ClusterSession) -> Records:
    """Job records, with those of this run's own jobs."""
    return available(lambda: accounting.records(held.job_id for held in gpucluster_session.allocations))


@pytest.fixture(scope="session")
def hours(config: AccountingConfig) -> float:
    """The seconds of the job records."""
    return config.records


@pytest.fixture(scope="session")
def runner(
    accounting: Accounting,
    config: AccountingConfig,
    gpucluster_session: ClusterSession,
    request: pytest.FixtureRequest,
) -> Iterator[TrialRunner | None]:
    """Submits the jobs of the trials; None without `trials`."""
    if config.trials is None:
        yield None
        return
    if hasattr(request.config, "workerinput") and gpucluster_session.channel is None:
        # without a channel no worker waits for another, and the jobs of one would count against limits of another
        pytest.skip("not checked: with -n, trials run only in a run that also allocates nodes: leave -n out")
    held = {node for one in gpucluster_session.allocations for node in one.nodes}
    known = accounting.slurm.partitions().get(config.trials.partition)
    if held and known is not None and held.issuperset(known.nodes):
        pytest.skip(
            "not checked: this run holds all nodes of the partition of the trials: run it with -m accounting"
        )
    made = TrialRunner(accounting, config.trials)
    available(lambda: made.user)
    yield made
    made.close()


@pytest.fixture(scope="session")
def access_trial(
    runner: TrialRunner | None, config: AccountingConfig
) -> Mapping[Access, tuple[Answer, TrialJob | None]] | None:
    """Real jobs of the users under `access`."""
    jobs = (*config.access.may, *config.access.may_not)
    return available(lambda: runner.access(jobs)) if runner and jobs else None


@pytest.fixture(scope="session")
def limit_trials(runner: TrialRunner | None, config: AccountingConfig) -> Sequence[LimitResult] | None:
    """Each limit under `trials.limits`, reached one after another."""
    if runner is None or config.trials is None:
        return None
    return [runner.limit(trial, config.amount_of(trial) or 0) for trial in config.trials.limits]


@pytest.fixture(scope="session")
def fairshare_trial(runner: TrialRunner | None, config: AccountingConfig) -> FairshareResult | None:
    """Usage of one account, and priorities after it."""
    trial = config.trials and config.trials.fairshare
    return runner.fairshare(trial) if runner and trial else None


@pytest.fixture(scope="session")
def backfill_trial(runner: TrialRunner | None, config: AccountingConfig) -> BackfillResult | None:
    """A short job behind one that waits."""
    return runner.backfill() if runner and config.trials and config.trials.backfill else None


@pytest.fixture(scope="session")
def preemption_trials(runner: TrialRunner | None, config: AccountingConfig) -> Sequence[PreemptionResult]:
    """Jobs that preempt others, one trial after another."""
    trials = config.trials.preemption if config.trials else ()
    return [runner.preemption(trial) for trial in trials] if runner else []


globals().update(checks_as_tests(checks, trial_checks))
