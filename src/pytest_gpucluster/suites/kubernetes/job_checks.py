"""Results of the Jobs: the GPUs that a pod gets, and a collective over all nodes. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part, gpu, named
from pytest_gpucluster.kit.nccl.nccl_tests import read
from pytest_gpucluster.kit.nccl.nccl_validation import RunSpec, validate_run
from pytest_gpucluster.suites.kubernetes.checks import replicas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
    from pytest_gpucluster.suites.kubernetes.facts import KubeNode
    from pytest_gpucluster.suites.kubernetes.jobs import KubernetesJobs, PodResult

GPU = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[0-9A-Za-z-]+)\)", re.MULTILINE)
# each rank's own word: the payload's header
RANK = re.compile(r"^# rank ([0-9]{1,9}): node (\S+) ", re.MULTILINE)
OFF = "the cluster file does not set kubernetes.jobs: true"


@check(
    "kubernetes.job_gpus",
    cause="the container toolkit or the device plugin gives pods other GPUs than the node has",
    hint="kubectl describe pod of such a Job; nvidia-smi -L on the node; kubectl logs of the device plugin there",
    action=Action.MONITOR,
    marks=("exclusive",),
)
def job_gpus(
    job_facts: KubernetesJobs | None,
    node_name: str,
    kube_node: KubeNode | None,
    config: KubernetesConfig,
    gpu_profile: GpuProfile,
    uuid_owners: Mapping[str, tuple[str, ...]],
) -> Judgement:
    """A pod that asks for all GPUs of the node sees them, each once, and no other node's."""
    if job_facts is None:
        raise NotApplicable(OFF)
    result = job_facts.gpus.get(node_name)
    if result is None or result.problem:
        raise NotAvailable(result.problem if result else job_facts.left_out.get(node_name, "no Job ran there"))
    if result.rc != 0:
        yield Finding(named("software", "nvidia-smi -L"), _end(result), "exit 0", code="exit_status")
        return
    found = GPU.findall(result.message)
    if kube_node is not None and replicas(kube_node, config.gpu_resource) == 1:
        yield Metric("pod_gpus", len(found), "GPUs")
        if len(found) != gpu_profile.count:
            part, stated = named("setting", "GPUs in the pod"), Quantity(gpu_profile.count, "GPUs")
            yield Finding(part, Quantity(len(found), "GPUs"), stated, code="other_count")
    for index, name, uuid in found:
        part, others = gpu(int(index), uuid=uuid), uuid_owners[uuid]
        if name != gpu_profile.name:
            yield Finding(part, Quote(name), gpu_profile.name, code="other_model")
        if len(others) > 1:
            yield Finding(part, f"also listed on {', '.join(others)}", "a UUID of its own", code="duplicate_uuid")


@check(
    "kubernetes.job_nccl",
    cause="pods of different nodes do not reach each other, or the GPUs compute wrong sums",
    hint="kubectl get pods -o wide while it runs; the network plugin (CNI); the suite nccl on these nodes",
    action=Action.MONITOR,
    marks=("exclusive",),
)
def job_nccl(job_facts: KubernetesJobs | None) -> Judgement:
    """An all-reduce over pods on all free nodes proves its ranks and has correct data."""
    if job_facts is None:
        raise NotApplicable(OFF)
    broken = [it for it in job_facts.nccl if it.rc != 0]
    if not job_facts.nccl or (broken and all(it.problem for it in broken) and not job_facts.nccl_log):
        raise NotAvailable(job_facts.nccl_problem or broken[0].problem)
    for it in broken:
        code, part = "no_result" if it.problem else "exit_status", Part("pod", name=f"on {it.node}")
        yield Finding(part, Quote(it.problem) if it.problem else _end(it), "exit 0", code=code)
    ranks = {int(rank): node for rank, node in RANK.findall(job_facts.nccl_log)}
    spec = RunSpec(job_facts.nccl_hosts, job_facts.gpus_per_node, "all_reduce", node_of_rank=ranks)
    verdict = validate_run(read(job_facts.nccl_log, rc=job_facts.nccl[0].rc, collective="all_reduce"), spec)
    yield from verdict.findings if not broken else ()
    yield from verdict.metrics
    yield Metric("job_nodes", len(job_facts.nccl), "nodes")


def _end(result: PodResult) -> Quote:
    return Quote(f"exit {result.rc}: {result.message.strip()[-300:]}")
