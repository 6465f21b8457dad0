"""Healthy nodes whose objects look sick, and sick ones whose objects look healthy (docs/five-rules.md)."""

from __future__ import annotations

import datetime as dt
import functools
import json
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from paths import DATA

from pytest_gpucluster import config as configs
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.suites.kubernetes import checks, job_checks
from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
from pytest_gpucluster.suites.kubernetes.facts import KubeFacts, rdma_of, read_objects, read_time, version_of
from pytest_gpucluster.suites.kubernetes.jobs import JobFacts, PodResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.suites.kubernetes.facts import DaemonSet, KubeNode, Pod

NOW = "2026-09-10T00:00:00Z"
RDMA = "rdma/rdma_shared_device_a"
CONFIG = KubernetesConfig()
H100 = configs.load_profile("dgx-h100")
GPUS: GpuProfile = H100.gpu  # type: ignore[assignment]
PLUGIN = "https://github.com/NVIDIA/k8s-device-plugin"
OPERATOR = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/troubleshooting.html"
NETWORK = "https://github.com/Mellanox/network-operator"
DETECTOR = "https://github.com/kubernetes/node-problem-detector"
CONDITIONS = "https://kubernetes.io/docs/reference/node/node-status/"
AKS = "https://learn.microsoft.com/en-us/azure/aks/node-problem-detector"
EKS = "https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html"
NCCL = "https://github.com/NVIDIA/nccl-tests"
SIDECARS = "https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/"


def listed(*items: dict[str, Any]) -> tuple[list[KubeNode], list[Pod], list[DaemonSet]]:
    return read_objects(json.dumps({"kind": "List", "items": list(items)}))


def node(
    name: str = "gpu01",
    *,
    labels: Any = (),
    spec: Any = (),
    capacity: Any = (),
    left: Any = (),
    **conditions: str,
) -> KubeNode:
    """Return a node with eight GPUs; `left` differs from its capacity; conditions: TYPE="STATUS REASON"."""
    whole = {"nvidia.com/gpu": "8", **dict(capacity)}
    stated = {
        "Ready": "True KubeletReady",
        "MemoryPressure": "False KubeletHasSufficientMemory",
        **conditions,
    }
    said = [
        {"type": kind, "status": it.split()[0], "reason": it.split()[1], "lastHeartbeatTime": NOW, "lastTransitionTime": "2026-09-01T00:00:00Z"}
        for kind, it in stated.items()
    ]  # fmt: skip
    status = {"capacity": whole, "allocatable": {**whole, **dict(left)}, "conditions": said}
    meta = {"name": name, "labels": dict(labels), "creationTimestamp": "2026-01-01T00:00:00Z"}
    nodes, _, _ = listed({"kind": "Node", "metadata": meta, "spec": dict(spec), "status": status})
    return nodes[0]


def pod(
    name: str,
    *,
    owner: str = "",
    phase: str = "Running",
    gpus: int = 0,
    space: str = "gpu-operator",
    init: Any = (),
    **status: Any,
) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": space}
    if owner:
        meta["ownerReferences"] = [{"kind": "DaemonSet", "name": owner}]
    one = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": f"{gpus}"}} if gpus else {}}
    spec = {"nodeName": "gpu01", "containers": [one], "initContainers": list(init)}
    return {
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
        "status": {"phase": phase, "startTime": "2026-02-01T00:00:00Z", **status},
    }


def container(
    *, ready: bool = True, restarts: int = 0, ended: str = "", **state: Any
) -> list[dict[str, Any]]:
    last = {"terminated": {"finishedAt": ended, "reason": "Error", "exitCode": 1}} if ended else {}
    return [{"name": "main", "ready": ready, "restartCount": restarts, "state": state, "lastState": last}]


def daemonset(name: str, **selector: str) -> dict[str, Any]:
    spec = {"template": {"spec": {"nodeSelector": selector, "tolerations": [{"operator": "Exists"}]}}}
    return {"kind": "DaemonSet", "metadata": {"name": name, "namespace": "gpu-operator"}, "spec": spec}


def operator(judge: Callable[..., Verdict], one: KubeNode, *items: dict[str, Any]) -> Verdict:
    _, pods, sets = listed(*items)
    return judge(one, tuple(pods), KubeFacts(daemonsets=tuple(sets), now=read_time(NOW) or 0.0), CONFIG)


gpu_operator = functools.partial(operator, checks.gpu_operator)
network_operator = functools.partial(operator, functools.partial(checks.network_operator, profile=H100))


def ready(**conditions: str) -> Any:
    return lambda: checks.ready(node(**conditions), KubeFacts())


def gpus(*items: dict[str, Any], **facts: Any) -> Any:
    def judged() -> Verdict:
        _, pods, sets = listed(*items)
        seen = KubeFacts(daemonsets=tuple(sets), now=read_time(NOW) or 0.0)
        return checks.gpus(node(**facts), tuple(pods), seen, CONFIG, GPUS)

    return judged


def allocated(*pods: dict[str, Any], **facts: Any) -> Any:
    return lambda: checks.allocated(
        node(**facts), tuple(listed(*pods)[1]), KubeFacts(now=read_time(NOW) or 0.0), CONFIG
    )


def rdma(own: str, *others: str, left: str = "") -> Any:
    def offering(name: str, count: str) -> KubeNode:
        return node(name, capacity={RDMA: count}, left={RDMA: left or count})

    def judged() -> Verdict:
        mine = offering("gpu01", own)
        group = [mine, *(offering(f"gpu0{n}", it) for n, it in enumerate(others, 2))]
        typical = norm([(it.name, rdma_of(it)[RDMA]) for it in group], "nodes of its group")
        return checks.rdma(mine, KubeFacts(), {RDMA: typical}, H100)

    return judged


def api(server: str, **stated: Any) -> Any:
    found = version_of(server)
    return lambda: checks.api(
        KubeFacts(client=found, server=found), KubernetesConfig(**stated), dt.date(2026, 9, 15)
    )


def smi(count: int = 8, name: str = "NVIDIA H100 80GB HBM3", after: str = "") -> str:
    return "".join(f"GPU {n}: {name} (UUID: GPU-{n:08d}-0000){after}\n" for n in range(count))


def job_gpus(text: str, *, rc: int = 0, owners: Any = (), **facts: Any) -> Any:
    def judged() -> Verdict:
        results = JobFacts(gpus={"gpu01": PodResult("gpu01", text, rc)})
        known = {f"GPU-{n:08d}-0000": ("gpu01",) for n in range(8)} | dict(owners)
        return job_checks.job_gpus(results, "gpu01", node(**facts), CONFIG, GPUS, known)

    return judged


NCCL_RUN = (DATA / "nccl" / "derived-2.13.4-all_reduce.txt").read_text()
PODS = tuple(f"# rank {rank}: node {'n1' if rank < 8 else 'n2'} uuid GPU-{rank}\n" for rank in range(16))


def wrong(text: str) -> str:
    """Return the table with three wrong elements in its last row."""
    row = next(line for line in reversed(text.splitlines()) if line.strip()[:1].isdigit())
    return text.replace(row, row[::-1].replace("0", "3", 1)[::-1])


def job_nccl(log: str, *ends: tuple[int, str]) -> Any:
    """Return the check of a Job on two nodes; ends: exit status and message of its pods."""
    pods = tuple(
        PodResult(f"n{n}", message, rc) for n, (rc, message) in enumerate(ends or ((0, ""), (0, "")), 1)
    )
    found = JobFacts(nccl=pods, nccl_hosts=("n1", "n2"), nccl_log=log, gpus_per_node=8)
    return lambda: job_checks.job_nccl(found)


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"kubernetes.{check}", name, source, expected, judged, sick=sick)


ALL = {"nvidia.com/gpu.deploy.device-plugin": "true"}
SHARING = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
PLUGIN_SET = daemonset("nvidia-device-plugin-daemonset", **ALL)
PLUGIN_POD = pod(
    "nvidia-device-plugin-daemonset-x", owner="nvidia-device-plugin-daemonset", containerStatuses=container()
)
CRASH = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
MOFED = daemonset("mofed-ubuntu22.04-5f7b8c-ds", **{"feature.node.kubernetes.io/pci-15b3.present": "true"})
NIC = {"feature.node.kubernetes.io/pci-15b3.present": "true"}
HOLDS = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
REFUSED = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu",
}

COUNTER_EXAMPLES = (
    machine("ready", "a maintenance of the virtual machine is scheduled", AKS, WARNING, ready(VMEventScheduled="True VMEventScheduled")),
    machine("ready", "a condition of an agent that was switched on for another purpose", DETECTOR, PASSED,
        ready(SysctlChanged="True SysctlChanged", NetworkUnavailable="False FlannelIsUp")),
    machine("ready", "the agent has just started and has no opinion", DETECTOR, PASSED, ready(KernelDeadlock="Unknown NodeStatusUnknown")),
    machine("ready", "the kubelet stopped", CONDITIONS, MONITOR, ready(Ready="Unknown NodeStatusUnknown"), sick=True),
    machine("ready", "out of process ids", CONDITIONS, MONITOR, ready(PIDPressure="True KubeletHasInsufficientPID"), sick=True),
    machine("gpus", "four replicas of each GPU", PLUGIN, PASSED, gpus(labels=SHARING, capacity={"nvidia.com/gpu": "32"})),
    machine("gpus", "ten shares of each GPU, no label states them", "https://github.com/Project-HAMi/HAMi/issues/314", NOT_CHECKED,
        gpus(daemonset("hami-device-plugin"), capacity={"nvidia.com/gpu": "80"})),
    machine("gpus", "whole GPUs for virtual machines, under the name of their model",
        "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-kubevirt.html", NOT_CHECKED,
        gpus(labels={"nvidia.com/gpu.workload.config": "vm-passthrough"}, capacity={"nvidia.com/gpu": "0", "nvidia.com/GH100_H100_SXM5_80GB": "8"})),
    machine("gpus", "a GPU is unhealthy", PLUGIN, MONITOR, gpus(left={"nvidia.com/gpu": "7"}), sick=True),
    machine("gpus", "a GPU is lost, four replicas of the others", PLUGIN, MONITOR,
        gpus(labels=SHARING, capacity={"nvidia.com/gpu": "28"}), sick=True),
    machine("gpus", "a GPU is lost, ten shares of the others", "https://github.com/Project-HAMi/HAMi/issues/314", MONITOR,
        gpus(daemonset("hami-device-plugin"), capacity={"nvidia.com/gpu": "70"}), sick=True),
    machine("allocated", "an init container has the GPUs before the container", SIDECARS, PASSED, allocated(pod("a", gpus=8, space="ml", init=[HOLDS]))),
    machine("allocated", "the kubelet rejected a pod three hours ago", PLUGIN, PASSED,
        allocated(pod("a", gpus=8, space="ml", **{**REFUSED, "startTime": "2026-09-09T21:00:00Z"}))),
    machine("allocated", "a finished pod and its successor", CONDITIONS, PASSED,
        allocated(pod("a", gpus=8, space="ml", phase="Succeeded"), pod("b", gpus=8, space="ml"))),
    machine("allocated", "a GPU was lost under a pod", PLUGIN, MONITOR, allocated(pod("a", gpus=8, space="ml"), left={"nvidia.com/gpu": "7"}), sick=True),
    machine("allocated", "a sidecar holds a GPU beside the container", SIDECARS, MONITOR,
        allocated(pod("a", gpus=8, space="ml", init=[{"restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}])), sick=True),
    machine("gpu_operator", "the validator has ended, the driver is the host's", OPERATOR, PASSED,
        lambda: gpu_operator(node(labels=ALL), PLUGIN_SET, PLUGIN_POD,
            pod("nvidia-cuda-validator-x", phase="Succeeded", containerStatuses=container(ready=False, terminated={"exitCode": 0, "reason": "Completed"})))),
    machine("gpu_operator", "a user's pod with the name of the plugin fails", PLUGIN, PASSED,
        lambda: gpu_operator(node(labels=ALL), PLUGIN_SET, PLUGIN_POD,
            pod("nvidia-device-plugin-test", space="alice", containerStatuses=container(ready=False, restarts=9, waiting=CRASH)))),
    machine("gpu_operator", "the plugin restarted at the last upgrade of the driver, months ago", OPERATOR, PASSED,
        lambda: gpu_operator(node(labels=ALL), PLUGIN_SET,
            pod("p", owner="nvidia-device-plugin-daemonset", containerStatuses=container(restarts=14, ended="2026-05-01T00:00:00Z")))),
    machine("gpu_operator", "the plugin crashes", OPERATOR, MONITOR,
        lambda: gpu_operator(node(labels=ALL), PLUGIN_SET,
            pod("p", owner="nvidia-device-plugin-daemonset", containerStatuses=container(ready=False, restarts=9, waiting=CRASH))), sick=True),
    machine("gpu_operator", "no pod of the plugin", OPERATOR, MONITOR, lambda: gpu_operator(node(labels=ALL), PLUGIN_SET), sick=True),
    machine("network_operator", "not installed: the host has the driver", NETWORK, NOT_CHECKED, lambda: network_operator(node(labels=NIC))),
    machine("network_operator", "the driver's pod restarted months ago", NETWORK, PASSED,
        lambda: network_operator(node(labels=NIC), MOFED,
            pod("m", owner="mofed-ubuntu22.04-5f7b8c-ds", containerStatuses=container(restarts=3, ended="2026-03-01T00:00:00Z")))),
    machine("network_operator", "the driver's pod crashes", NETWORK, MONITOR,
        lambda: network_operator(node(labels=NIC), MOFED,
            pod("m", owner="mofed-ubuntu22.04-5f7b8c-ds", containerStatuses=container(ready=False, restarts=30, waiting=CRASH))), sick=True),
    machine("rdma", "more devices than the others: an adapter for storage", NETWORK, WARNING, rdma("9", "8", "8", "8")),
    machine("rdma", "the only node of its group", NETWORK, PASSED, rdma("8")),
    machine("rdma", "one device less than the others", NETWORK, MONITOR, rdma("7", "8", "8", "8"), sick=True),
    machine("rdma", "a device is unhealthy", NETWORK, MONITOR, rdma("8", "8", "8", "8", left="7"), sick=True),
    machine("api", "Amazon supports the version after upstream", EKS, WARNING, api("v1.33.5-eks-3cfe0ce")),
    machine("api", "OpenShift 4.16 with extended support", "https://access.redhat.com/support/policy/updates/openshift", WARNING, api("v1.29.10+67d3387")),
    machine("api", "the cluster file states the version", EKS, PASSED, api("v1.31.13-eks-3cfe0ce", minimum_version="1.31")),
    machine("api", "upstream's own build, four years old", "https://kubernetes.io/releases/", MONITOR, api("v1.24.3"), sick=True),
    machine("api", "older than the cluster file states", EKS, MONITOR, api("v1.30.9-eks-5d632ec", minimum_version="1.31"), sick=True),
    machine("job_gpus", "eight GPUs, each with MIG instances", PLUGIN, PASSED, job_gpus(smi(after="\n  MIG 3g.40gb     Device  0: (UUID: MIG-1)"))),
    machine("job_gpus", "a line of the driver before the list", PLUGIN, PASSED, job_gpus("Warning: persistence mode is disabled\n" + smi())),
    machine("job_gpus", "one share of four per pod", PLUGIN, PASSED, job_gpus(smi(1), labels=SHARING, capacity={"nvidia.com/gpu": "32"})),
    machine("job_gpus", "seven of eight", PLUGIN, MONITOR, job_gpus(smi(7)), sick=True),
    machine("job_gpus", "a GPU that another node has too", PLUGIN, MONITOR, job_gpus(smi(), owners={"GPU-00000003-0000": ("gpu01", "gpu02")}), sick=True),
    machine("job_nccl", "ranks proved, data right", NCCL, PASSED, job_nccl("".join(PODS) + NCCL_RUN)),
    machine("job_nccl", "NCCL warns of a missing plugin first", NCCL, PASSED,
        job_nccl("n1:31:31 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so\n" + "".join(PODS) + NCCL_RUN)),
    machine("job_nccl", "the cluster file asks for no Jobs", NCCL, NOT_APPLICABLE, lambda: job_checks.job_nccl(None)),
    machine("job_nccl", "wrong elements", NCCL, MONITOR, job_nccl("".join(PODS) + wrong(NCCL_RUN)), sick=True),
    machine("job_nccl", "a pod failed", NCCL, MONITOR, job_nccl("".join(PODS), (0, ""), (1, "RuntimeError: NCCL error: remote process exited")), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_nodes_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
