"""Slurm does on every node what a job needs: it is known, schedulable, hands out its GPUs, and runs steps and jobs.

One step on all nodes and three short batch jobs are judged by many tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import fact
from pytest_gpucluster.suites.slurm import SUITE, checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster, Profile
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.slurm.diagnostic_step import JobFacts, NodeExam

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm")]


@fact(scope="session")
def slurm(gpucluster_session: ClusterSession) -> Slurm:
    """The client; not applicable where the cluster has no scheduler."""
    if gpucluster_session.slurm is None:
        pytest.skip(f"not applicable: {gpucluster_session.cluster.why_no_slurm}")
    return gpucluster_session.slurm


@fact(scope="session")
def examined(
    allocation: Allocation, gpucluster_session: ClusterSession
) -> dict[str, NodeExam]:  # must be held
    """One step on all nodes of every allocation: {node: what its tasks told and how they ended}."""
    exams: dict[str, NodeExam] = gpucluster_session.begin(SUITE).result()
    return exams


@fact
def exam(examined: dict[str, NodeExam], node: Node) -> NodeExam:
    """What the exam's step showed on this node."""
    return examined[node.name]


@fact(scope="session")
def jobs(slurm: Slurm, gpucluster_session: ClusterSession) -> JobFacts:  # not applicable without one
    """What became of the batch jobs that were submitted before the nodes were allocated."""
    told: JobFacts | None = gpucluster_session.outcome(SUITE)
    if told is None:
        pytest.skip("not checked: no batch job was submitted before the nodes were allocated")
    return told


@fact(scope="session")
def config(slurm: Slurm) -> dict[str, str]:
    """The configuration of slurmctld in force."""
    return slurm.config()


@pytest.mark.inventory
@pytest.mark.judges_node
def test_known(node: Node, expect: Expect) -> None:
    """Slurm knows the node."""
    expect(checks.known(node.name, node.info))


@pytest.mark.inventory
@pytest.mark.judges_node
def test_schedulable(node: Node, expect: Expect) -> None:
    """Jobs may start on the node: not drained, down, failing or reserved; else who, when and why."""
    expect(checks.schedulable(node.info))


@pytest.mark.inventory
@pytest.mark.judges_node
def test_responding(node: Node, expect: Expect) -> None:
    """The controller hears the node's slurmd."""
    expect(checks.responding(node.info))


@pytest.mark.inventory
@pytest.mark.judges_node
def test_completing(node: Node, expect: Expect) -> None:
    """The node lets go of jobs that have ended; else which job, whose, and for how long."""
    expect(checks.completing(node.info))


@pytest.mark.inventory
def test_gres(node: Node, profile: Profile, expect: Expect) -> None:
    """Slurm hands out the GPUs of the profile: type and count."""
    expect(checks.gres(node.info, profile))


@pytest.mark.inventory
def test_cpus(node: Node, profile: Profile, expect: Expect) -> None:
    """Slurm hands out the CPUs of the profile."""
    expect(checks.cpus(node.info, profile.node))


@pytest.mark.inventory
def test_memory(node: Node, profile: Profile, expect: Expect) -> None:
    """Slurm hands out at least 85% of the installed memory and no more than there is."""
    expect(checks.memory(node.info, profile.node))


@pytest.mark.inventory
def test_version(config: dict[str, str], node: Node, expect: Expect) -> None:
    """The node's slurmd has the controller's version."""
    expect(checks.version(node.info, config.get("SLURM_VERSION", "")))


def test_step(exam: NodeExam, expect: Expect) -> None:
    """All tasks of a step start and know their place."""
    expect(checks.step(exam))


def test_output(exam: NodeExam, expect: Expect) -> None:
    """Both stdout and stderr of every task arrive."""
    expect(checks.output(exam))


def test_environment(exam: NodeExam, expect: Expect) -> None:
    """An exported variable with commas, quotes and blanks arrives as it is."""
    expect(checks.environment(exam))


def test_exit_code(exam: NodeExam, expect: Expect) -> None:
    """The exit status of a task reaches srun."""
    expect(checks.exit_code(exam))


def test_signal(exam: NodeExam, expect: Expect) -> None:
    """The signal that ended a task reaches srun."""
    expect(checks.signal(exam))


def test_gpu_binding(exam: NodeExam, expect: Expect) -> None:
    """Each task of a step with --gpus-per-task=1 has a device of its own."""
    expect(checks.gpu_binding(exam))


def test_cpu_affinity(exam: NodeExam, cluster: Cluster, expect: Expect) -> None:
    """The tasks of a step may run on a CPU each."""
    if cluster.sandbox:
        expect.not_applicable("virtual nodes share the CPUs of their host")
    expect(checks.cpu_affinity(exam))


@pytest.mark.inventory
@pytest.mark.exclusive  # it may ask for the exam's step
def test_prolog(
    node: Node,
    config: dict[str, str],
    expect: Expect,
    gpucluster_session: ClusterSession,
    request: pytest.FixtureRequest,
) -> None:
    """The prolog let a step start, and drained nothing."""
    exam = None
    if gpucluster_session.allocation_of(node.name):  # a node that was drained before has had no step
        examined: dict[str, NodeExam] = request.getfixturevalue("examined")
        exam = examined.get(node.name)
    expect(checks.prolog(exam, node.info, config))


def test_epilog(
    node: Node,
    config: dict[str, str],
    expect: Expect,
    request: pytest.FixtureRequest,
) -> None:
    """The epilog of a job that ended on the node drained nothing."""
    ended = False
    if config.get("Epilog") or config.get("Epilog[0]"):
        facts: JobFacts = request.getfixturevalue("jobs")
        ended = any(record.node == node.name and record.ended for record in facts.records.values())
    expect(checks.epilog(node.info, config, ended))


def test_job_start(jobs: JobFacts, cluster: Cluster, expect: Expect) -> None:
    """A job of one task starts within the cluster file's `job_start`."""
    expect(checks.job_start(jobs, cluster.slurm.job_start))


def test_array(jobs: JobFacts, expect: Expect) -> None:
    """The elements of a job array run, each with its own exit status."""
    expect(checks.array(jobs))


def test_dependency(jobs: JobFacts, expect: Expect) -> None:
    """A job waits for the one it depends on."""
    expect(checks.dependency(jobs))


def test_requeue(jobs: JobFacts, expect: Expect) -> None:
    """A job that asks for it goes back to the queue."""
    expect(checks.requeue(jobs))


def test_begin(jobs: JobFacts, expect: Expect) -> None:
    """A job with --begin starts then and not before."""
    expect(checks.begin(jobs))


@pytest.mark.inventory
def test_limits(slurm: Slurm, cluster: Cluster, expect: Expect) -> None:
    """The partitions have the limits that the cluster file states."""
    expect(checks.limits(slurm.partitions() if cluster.limits else {}, cluster.limits))


@pytest.mark.slow
def test_time_limit(allocation: Allocation, srun: Callable[..., StepResult], expect: Expect) -> None:
    """Slurm ends a step that outlives its time limit of one minute, and says so."""
    # slurmctld looks every 30 s, and counts whole minutes: no cheaper way was found on 22.05
    result = srun(["sleep", "300"], nodes=allocation.nodes[:1], ntasks_per_node=1, time_limit=1, timeout=280)
    expect(checks.time_limit(result))
