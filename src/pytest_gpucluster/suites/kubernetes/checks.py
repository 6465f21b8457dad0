"""Kubernetes: API server, nodes, GPUs, operators, labels, software. Pure.

No action is a drain: Slurm's drain would not stop Kubernetes, and a cordon is left to people.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, Remark, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import differs
from pytest_gpucluster.core.part import Part, named, register
from pytest_gpucluster.core.text import listed, some
from pytest_gpucluster.suites.kubernetes.facts import (
    GPU_COMPONENTS,
    NETWORK_COMPONENTS,
    component_of,
    devices,
    rdma_of,
    version_of,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.config.models import GpuProfile, Profile
    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
    from pytest_gpucluster.suites.kubernetes.facts import KubeFacts, KubeNode, Pod

for _kind in ("condition", "label", "resource", "component"):
    register(_kind, _kind, named=True)
register("taint", "taint", named=True, labelled=True)
register("pod", "pod", labelled=True)
API_SERVER = named("service", "API server")
# end of life of each minor version, https://kubernetes.io/releases/ as of 2026-09-15
END_OF_LIFE = {
    (1, 33): dt.date(2026, 6, 28),
    (1, 34): dt.date(2026, 10, 27),
    (1, 35): dt.date(2027, 2, 28),
    (1, 36): dt.date(2027, 6, 28),
    (1, 37): dt.date(2027, 10, 28),
}
SKEW = 1  # minor versions between kubectl and the API server: https://kubernetes.io/releases/version-skew-policy/
# minor versions that a kubelet may be older; none that it may be newer (same page, since 1.28)
KUBELET_SKEW = 3
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
# {condition that an agent of the provider sets: its status on a healthy node}, where the agent tests a state again and
# again, or where only a restart of the node ends the fault: AKS (learn.microsoft.com/azure/aks/node-problem-detector),
# GKE (GoogleCloudPlatform/container-engine-accelerators#497), EKS (docs.aws.amazon.com/eks/latest/userguide/node-health)
UNHEALTHY = {
    "AcceleratedHardwareReady": "True",
    "ContainerRuntimeProblem": "False",
    "FilesystemCorruptionProblem": "False",
    "GPUMissing": "False",
    "KubeletProblem": "False",
    "NVLinkStatusInactive": "False",
    "UnhealthyNvidiaDevicePlugin": "False",
    "XidCriticalError": "False",
}
# The same, where the agent keeps the condition after the node has recovered, or where programs of users cause it
SUSPICIOUS = {
    "ContainerRuntimeReady": "True",
    "KernelReady": "True",
    "NetworkingReady": "True",
    "StorageReady": "True",
    "FrequentContainerdRestart": "False",
    "FrequentKubeletRestart": "False",
    "GPUClockThrottling": "False",
    "IBLinkFlapping": "False",
    "KernelDeadlock": "False",
    "ReadonlyFilesystem": "False",
    "VMEventScheduled": "False",
    "XIDError": "False",
    "XIDErrors": "False",
}
# Ends of the names of conditions that are True on a healthy node; every other one names a problem
_GOOD = re.compile(
    "(?<!Not)(?<!Un)(?<!Non)(Ready|Healthy|healthy|Health|Available|Initialized|Succeeded|Valid|Running|Active|Connected|Synced"
    "|Schedulable|Enabled|Supported|Voter|Up|OK|Ok)$"
)
_NOTE = re.compile("^Deprecated|Changed$")  # of GKE: what the next upgrade breaks, and who changed a setting
LATCHED = {"DCGMError"}  # reasons of EKS that stay after a restart of DCGM: aws/eks-node-monitoring-agent#266
# Seconds in which the pods of a new or restarted node restart until those that they depend on are ready: the
# DCGM exporter restarted 3 times within 5 minutes (cncf/k8s-ai-conformance, v1.35/openshift). Its devices appear later
# too: GPUs 50 to 80 s after a node joined GKE (converged-computing/google-performance-study, experiments/gke/gpu)
STARTUP = 600
# Labels by which the operators report that they failed: constants of NVIDIA/mig-parted and NVIDIA/k8s-operator-libs
FAILED_STATES = {"nvidia.com/mig.config.state": "failed", "nvidia.com/gpu-driver-upgrade-state": "upgrade-failed"}
MEMORY_TOLERANCE = 0.03  # NVML counts reserved memory or not: 15109 and 15360 MiB on one T4
GKE_SHARES = "cloud.google.com/gke-max-shared-clients-per-gpu"
GKE_MIG = "cloud.google.com/gke-gpu-partition-size"
_PRODUCT = re.compile(r"-MIG-.*|-SHARED$")
NOT_STARTED = {  # reasons of the kubelet for a container that does not run: the code
    "CrashLoopBackOff": "crashes",
    "ErrImageNeverPull": "no_image",
    "ErrImagePull": "no_image",
    "ImagePullBackOff": "no_image",
    "InvalidImageName": "no_image",
}
# of the kubelet, for a pod that it starts before the device plugin registers
_TOO_EARLY = "no healthy devices present"


@check(
    "kubernetes.api",
    cause="the API server is down or not reachable, the kubeconfig is wrong, or the cluster was not upgraded",
    hint="kubectl version; kubectl get --raw /readyz?verbose; `kubernetes.context` of the cluster file",
    action=Action.MONITOR,
)
def api(seen: KubeFacts, today: dt.date) -> Judgement:
    """The API server answers. A warning: a version that upstream does not support, or of another age than kubectl."""
    if seen.server is None:
        yield Finding(API_SERVER, Quote(seen.problem), "an answer", code="no_answer")
        return
    for what, problem in (("nodes", seen.nodes_problem), ("pods", seen.pods_problem)):
        if problem:
            yield Finding(named("service", what), Quote(problem), "an answer", code="no_answer")
    server, key = seen.server, (seen.server.major, seen.server.minor)
    if key > max(END_OF_LIFE):
        yield NotAvailable(f"{server.major}.{server.minor} is newer than the list of versions of this release")
    elif key not in END_OF_LIFE or END_OF_LIFE[key] < today:
        ended = f", which upstream ended on {END_OF_LIFE[key]}" if key in END_OF_LIFE else ""
        living = [version for version, end in END_OF_LIFE.items() if end >= today]
        supported = listed(f"{a}.{b}" for a, b in living)
        expected = f"a supported version ({supported})"
        yield Advisory(API_SERVER, f"{server.text}{ended}", expected, code="unsupported")
    if seen.client is not None and abs(seen.client.minor - server.minor) > SKEW:
        pair = f"{seen.client.text} with API server {server.text}"
        expected = f"at most {SKEW} minor version apart"
        yield Advisory(named("software", "kubectl"), pair, expected, code="version_skew")
    if seen.unknown:
        part, measured = Part("node", name="GPU nodes"), f"{some(seen.unknown)} not in the cluster file"
        yield Advisory(part, measured, "every GPU node in the file", code="unknown")


@check(
    "kubernetes.ready",
    cause="the kubelet or the container runtime stopped, or the node lacks memory, disk, processes or its network",
    hint="kubectl describe nodes; on the node: systemctl status kubelet containerd; journalctl -u kubelet",
    action=Action.MONITOR,
)
def ready(kube_node: KubeNode | None, seen: KubeFacts) -> Judgement:
    """The node is Ready, without pressure, and not cordoned."""
    if kube_node is None and not seen.nodes_problem:
        yield Finding(Part("node"), _NOT_THERE, "a node", code="unknown")
        return
    kube_node = _present(kube_node, seen)
    found = kube_node.conditions.get("Ready")
    if found is None:
        yield Finding(named("condition", "Ready"), "no condition", "True", code="absent")
    elif found.status != "True":
        code = "not_ready" if found.status == "False" else "no_heartbeat"
        yield Finding(named("condition", "Ready"), Quote(str(found)), "True", code=code)
    for name in PRESSURES:
        pressure = kube_node.conditions.get(name)
        if pressure is not None and pressure.status == "True":
            yield Finding(named("condition", name), Quote(str(pressure)), "False", code="pressure")
    yield from _agents(kube_node)
    if kube_node.cordoned:
        part, expected = named("setting", "scheduling"), "schedulable: kubectl uncordon"
        yield Finding(part, "cordoned (unschedulable)", expected, code="cordoned")


@check(
    "kubernetes.taints",
    cause="an operator or a controller tainted the node and did not remove the taint",
    hint="kubectl describe nodes; `kubernetes.taints` of the cluster file states the expected ones",
    action=Action.CONFIGURE,
)
def taints(kube_node: KubeNode | None, seen: KubeFacts, config: KubernetesConfig) -> Judgement:
    """The node has no taint that the cluster file does not state."""
    kube_node = _present(kube_node, seen)
    for taint in kube_node.taints:
        # set together with the cordon, the condition or the pressure that kubernetes.ready reports
        if taint.key.startswith("node.kubernetes.io/") or any(map(taint.is_stated, config.taints)):
            continue
        # the autoscaler sets DeletionCandidateOfClusterAutoscaler:PreferNoSchedule on every idle node
        finding_class = Advisory if taint.effect == "PreferNoSchedule" else Finding
        part, expected = named("taint", taint.key), f"only {listed(config.taints)}"
        yield finding_class(part, Quote(str(taint)), expected, code="unexpected")


@check(
    "kubernetes.gpus",
    cause="a GPU is unhealthy for the device plugin (Xid), the driver lost it, or the plugin does not run",
    hint="kubectl describe nodes; kubectl logs of its device plugin; nvidia-smi -L and dmesg on the node",
    action=Action.MONITOR,
)
def gpus(
    kube_node: KubeNode | None,
    kube_pods: tuple[Pod, ...],
    seen: KubeFacts,
    config: KubernetesConfig,
    gpu_profile: GpuProfile,
) -> Judgement:
    """The node offers as many GPUs as the profile states, and all can be allocated."""
    kube_node = _present(kube_node, seen)
    resource = config.gpu_resource
    yield Metric("allocatable_gpus", offered(kube_node, resource)[1], "GPUs")
    otherwise = [*_offered_otherwise(kube_node, kube_pods, seen, resource, gpu_profile)]
    yield from otherwise or _counted(kube_node, resource, gpu_profile.count)


def _offered_otherwise(
    node: KubeNode, pods: tuple[Pod, ...], seen: KubeFacts, resource: str, profile: GpuProfile
) -> Judgement:
    """Judge a node whose GPUs `resource` does not count: MIG, DRA, virtual machines, or not yet."""
    capacity, allocatable = offered(node, resource)
    if mig := _mig(node, resource):
        yield from _lost(node, mig)
        if profile.mig is False:
            measured, expected = f"MIG devices: {some(mig)}", "whole GPUs, as the profile states"
            yield Finding(named("setting", "MIG"), measured, expected, code="mig")
        else:
            yield NotAvailable(f"MIG devices ({some(mig)}): the profile states no number of them")
    elif not capacity and _only_dra(node, pods, seen):
        yield NotAvailable("the DRA driver offers the GPUs as ResourceSlices, which are not read")
    elif not capacity and (guests := _of_guests(node)):
        yield from _lost(node, guests)
        yield NotAvailable(f"GPUs for virtual machines ({some(guests)}): the profile states no number of them")
    elif not allocatable and (why := starting(node, seen)):
        yield NotAvailable(f"no GPUs yet, {why}")


def _counted(node: KubeNode, resource: str, count: int) -> Judgement:
    """Judge the number of GPUs, or of their replicas."""
    capacity, allocatable = offered(node, resource)
    shares = replicas(node, resource)
    if shares is None or (shares == 1 and capacity > count and capacity % count == 0):
        name = resource if shares else f"{resource}.shared"
        yield from _lost(node, (name,))
        raise NotAvailable(f"{capacity} of {name}: no label states the replicas of a GPU")
    expected = count * shares
    if capacity != expected:
        measured = Quantity(capacity, "devices", f"capacity {capacity}")
        stated = Quantity(expected, "devices", str(expected))
        yield Finding(named("resource", resource), measured, stated, code="other_capacity")
    if allocatable not in (expected, capacity):
        yield _unhealthy(resource, str(allocatable), str(capacity))


@check(
    "kubernetes.allocated",
    cause="GPUs were lost after pods were given them, or the kubelet rejects pods of the node",
    hint="kubectl describe nodes (Allocated resources); kubectl get pods -A -o wide",
    action=Action.MONITOR,
)
def allocated(
    kube_node: KubeNode | None, kube_pods: tuple[Pod, ...], seen: KubeFacts, config: KubernetesConfig
) -> Judgement:
    """Pods hold no more GPUs than the node can allocate, and none was rejected there."""
    kube_node = _present(kube_node, seen, seen.pods_problem)
    resource = config.gpu_resource
    capacity, most = offered(kube_node, resource)
    holders = [pod for pod in kube_pods if not pod.ended and pod.holds(resource)]
    held = sum(pod.holds(resource) for pod in holders)
    yield Metric("allocated_gpus", held, "GPUs")
    if held > most:
        pods = some(f"{pod.namespace}/{pod.name} ({pod.holds(resource)})" for pod in holders)
        measured = Quantity(held, "devices", f"{held} allocated: {pods}")
        expected = Quantity(most, "devices", f"at most {most}, which are allocatable")
        yield Finding(named("resource", resource), measured, expected, code="overcommitted")
    healthy = 0 < capacity == most
    for pod in kube_pods:
        if pod.phase == "Failed" and pod.holds(resource) and "UnexpectedAdmissionError" in pod.reason:
            # after a restart of the node such pods stay until they are deleted: kubernetes/kubernetes#125579
            if pod.started is not None and seen.now - pod.started > config.restart_window:
                yield Remark(f"pod {pod.namespace}/{pod.name}: {pod.reason}")
                continue
            early = _TOO_EARLY in pod.reason
            finding_class = Advisory if healthy and early else Finding
            code = "no_healthy_devices" if early else "rejected"
            yield finding_class(pod.part, Quote(pod.reason), "admitted by the kubelet", code=code)


@check(
    "kubernetes.gpu_operator",
    cause="a pod of the GPU operator fails on this node: the components depend on each other, driver first",
    hint="kubectl get pods -A -o wide; kubectl logs and describe of the first one",
    action=Action.MONITOR,
)
def gpu_operator(
    kube_node: KubeNode | None, kube_pods: tuple[Pod, ...], seen: KubeFacts, config: KubernetesConfig
) -> Judgement:
    """The pods of the GPU operator, or of a device plugin alone, run on the node and do not restart."""
    yield from _operator(kube_node, kube_pods, seen, config, GPU_COMPONENTS, "GPU operator", config.components)


@check(
    "kubernetes.network_operator",
    cause="a pod of the network operator fails on this node: the driver (mofed) first",
    hint="kubectl get pods -A -o wide; kubectl logs and describe of the first one",
    action=Action.MONITOR,
)
def network_operator(
    kube_node: KubeNode | None, kube_pods: tuple[Pod, ...], seen: KubeFacts, config: KubernetesConfig, profile: Profile
) -> Judgement:
    """The pods of the network operator run on the node and do not restart."""
    try:
        yield from _operator(kube_node, kube_pods, seen, config, NETWORK_COMPONENTS, "network operator", ())
    except NotAvailable:
        _require_adapters(profile)
        raise


@check(
    "kubernetes.rdma",
    cause="the plugin for the network found no device: its driver (mofed, EFA) failed, or a NIC is missing or down",
    hint="kubectl describe nodes; kubectl logs of the RDMA, SR-IOV or EFA device plugin there; ibv_devinfo on the node",
    action=Action.MONITOR,
)
def rdma(
    kube_node: KubeNode | None, seen: KubeFacts, usual_rdma: Mapping[str, Norm[str]], profile: Profile
) -> Judgement:
    """The node offers the same devices for RDMA as the other nodes of its group, and all can be allocated."""
    kube_node = _present(kube_node, seen)
    if not usual_rdma:
        _require_adapters(profile)
        raise NotAvailable(
            "no node of the group offers devices for RDMA: install a device plugin for its adapters, or list the check"
            " under `not_applicable`"
        )
    if not has_rdma(kube_node) and (why := starting(kube_node, seen)):
        raise NotAvailable(f"no devices yet, {why}")
    mine = rdma_of(kube_node)
    for name, norm in usual_rdma.items():
        capacity, allocatable = mine.get(name, "0"), kube_node.allocatable.get(name, "0")
        yield from norm.judge(
            named("resource", name),
            capacity,
            worse=lambda mine, theirs: devices(mine) < devices(theirs),
            harmless="more than the others",
        )
        if allocatable != capacity:
            yield _unhealthy(name, allocatable, capacity)


@check(
    "kubernetes.labels",
    cause="the node has other GPUs than stated, or feature discovery has not run since they were changed",
    hint="kubectl get nodes --show-labels; nvidia-smi -L on the node; kubectl logs of gpu-feature-discovery there",
    action=Action.CONFIGURE,
)
def labels(
    kube_node: KubeNode | None,
    seen: KubeFacts,
    config: KubernetesConfig,
    gpu_profile: GpuProfile,
    usual_labels: Mapping[str, Norm[str]],
) -> Judgement:
    """The labels of the GPUs agree with the profile, with each other, and with those of the other nodes."""
    kube_node = _present(kube_node, seen)
    found, resource = kube_node.labels, config.gpu_resource
    product = found.get(f"{resource}.product")
    if product is None:
        if any(f"{resource}.product" in node.labels for node in seen.nodes.values()):
            part, expected = named("label", f"{resource}.product"), "a label, as other nodes have it"
            yield Finding(part, "no such label", expected, code="absent")
        else:
            yield NotAvailable(
                f"no node has the label {resource}.product: start GPU feature discovery, or list kubernetes.labels under "
                "`not_applicable`"
            )
        return
    yield from _against_profile(found, resource, product, gpu_profile)
    yield from _against_each_other(kube_node, resource)
    for key, norm in usual_labels.items():
        if key in found:
            yield from norm.judge(named("label", key), found[key], worse=differs)


@check(
    "kubernetes.software",
    cause="the node was installed or upgraded differently",
    hint="kubectl get nodes -o wide",
    action=Action.CONFIGURE,
)
def software(kube_node: KubeNode | None, seen: KubeFacts, usual_software: Mapping[str, Norm[str]]) -> Judgement:
    """Kernel, container runtime, kubelet and system are as on the other nodes, and the kubelet fits the API server."""
    kube_node = _present(kube_node, seen)
    for what, norm in usual_software.items():
        yield from norm.judge(named("software", what), software_of(kube_node)[what], worse=differs)
    kubelet = version_of(kube_node.kubelet)
    if kubelet is not None and seen.server is not None:
        behind = seen.server.minor - kubelet.minor
        if not 0 <= behind <= KUBELET_SKEW:
            pair = f"{kube_node.kubelet} with API server {seen.server.text}"
            expected = f"not newer than the API server, and at most {KUBELET_SKEW} minor versions older"
            code = "too_new" if behind < 0 else "too_old"
            yield Finding(named("software", "kubelet version"), pair, expected, code=code)


def starting(node: KubeNode, seen: KubeFacts) -> str:
    """Return since when the node is in service if its device plugins may not have registered yet, else ''."""
    age = max(0.0, seen.now - node.since)
    return f"{age:.0f} s after the node became Ready: repeat the run later" if age < STARTUP else ""


def has_rdma(node: KubeNode) -> bool:
    """Return whether the node offers a device for RDMA."""
    return any(count != "0" for count in rdma_of(node).values())


def software_of(node: KubeNode) -> dict[str, str]:
    """Return what must be equal on all nodes."""
    return {"kernel": node.kernel, "container runtime": node.runtime, "kubelet": node.kubelet, "system": node.os}


def number(resources: Mapping[str, str], name: str) -> int:
    """Return a whole resource; 0 where the node has none."""
    return whole(resources.get(name, "")) or 0


def offered(node: KubeNode, resource: str) -> tuple[int, int]:
    """Return capacity and allocatable GPUs; with `renameByDefault` shared ones have the suffix .shared."""
    names = (resource, f"{resource}.shared")
    return sum(number(node.capacity, name) for name in names), sum(number(node.allocatable, name) for name in names)


def replicas(node: KubeNode, resource: str) -> int | None:
    """Return how often the device plugin offers each GPU (time slicing, MPS); None if no label states it.

    The label says 0 or 1 without sharing; with a renamed resource it may say 1 too (NVIDIA/k8s-device-plugin#732).
    """
    stated = max(whole(node.labels.get(label, "")) or 1 for label in (f"{resource}.replicas", GKE_SHARES))
    return None if stated == 1 and number(node.capacity, f"{resource}.shared") else stated


def _against_profile(found: Mapping[str, str], resource: str, product: str, profile: GpuProfile) -> Iterator[Finding]:
    # sanitise() of internal/lm/resource.go, k8s-device-plugin
    expected = "-".join(re.sub(r"[^A-Za-z0-9-_. ]", "", profile.name).split())
    name = _PRODUCT.sub("", product)
    # drivers before 470 left the vendor out
    if name.removeprefix("NVIDIA-") != expected.removeprefix("NVIDIA-"):
        yield _label(f"{resource}.product", Quote(product), expected)
    if product.endswith("-MIG-INVALID"):
        # the strategy `single` refuses a GPU in MIG mode without devices, and devices of several kinds
        kinds = "MIG devices of one kind, or the strategy mixed"
        yield _label(f"{resource}.product", Quote(product), kinds, code="mig_invalid")
    if "-MIG-" in product:
        return  # count and memory are those of MIG devices
    count, memory = whole(found.get(f"{resource}.count", "")), whole(found.get(f"{resource}.memory", ""))
    if count is not None and count != profile.count:
        yield _label(f"{resource}.count", Quantity(count), Quantity(profile.count))
    if memory is not None and profile.memory is not None:
        stated = profile.memory / 2**20
        if abs(memory - stated) > MEMORY_TOLERANCE * stated:
            measured = Quantity(memory, "MiB", f"{memory} MiB")
            yield _label(f"{resource}.memory", measured, Quantity(stated, "MiB", f"{stated:.0f} MiB"))


def _against_each_other(node: KubeNode, resource: str) -> Iterator[Finding]:
    found, count = node.labels, whole(node.labels.get(f"{resource}.count", ""))
    capacity, shares = offered(node, resource)[0], replicas(node, resource)
    # with the strategy mixed the label counts all GPUs, and the resource those without MIG devices
    mixed = any(name != resource for name in _mig(node, resource))
    if count is not None and resource in node.capacity and shares and not mixed and count * shares != capacity:
        measured = Quantity(count * shares, "devices", f"{count}, with {shares} replicas each")
        whole_node = Quantity(capacity, "devices", f"capacity {capacity}")
        yield _label(f"{resource}.count", measured, whole_node, code="other_capacity")
    if found.get(f"{resource}.present", "true") != "true":
        yield _label(f"{resource}.present", Quote(found[f"{resource}.present"]), "true")
    for key, failed in FAILED_STATES.items():
        if found.get(key) == failed:
            yield _label(key, failed, "success, or no such label", code="failed")
    full = found.get("nvidia.com/cuda.driver-version.full", "")
    parts = [found.get(f"nvidia.com/cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    if full and all(parts) and full != ".".join(parts):
        expected = f"{full}, as nvidia.com/cuda.driver-version.full"
        yield _label("nvidia.com/cuda.driver", Quote(".".join(parts)), expected, code="contradicts")


def _label(name: str, measured: Measure, expected: Measure, code: str = "other_value") -> Finding:
    return Finding(named("label", name), measured, expected, code=code)


def _mig(node: KubeNode, resource: str) -> tuple[str, ...]:
    """Return the resources that count MIG devices; the kubelet keeps those of an earlier partition with 0."""
    mig = [name for name in node.capacity if name.startswith("nvidia.com/mig-") and number(node.capacity, name)]
    single = "-MIG-" in node.labels.get(f"{resource}.product", "") or GKE_MIG in node.labels
    return (*mig, *((resource,) if single else ()))


def _of_guests(node: KubeNode) -> tuple[str, ...]:
    """Return the resources that KubeVirt's device plugin offers: GPUs or vGPUs under the name of their model."""
    if not node.labels.get("nvidia.com/gpu.workload.config", "").startswith("vm-"):
        return ()
    of_nvidia = (name for name in node.capacity if name.startswith("nvidia.com/"))
    return tuple(name for name in of_nvidia if number(node.capacity, name) and name not in rdma_of(node))


def _lost(node: KubeNode, resources: tuple[str, ...]) -> Iterator[Finding]:
    for name in resources:
        capacity, allocatable = number(node.capacity, name), number(node.allocatable, name)
        if allocatable != capacity:
            yield _unhealthy(name, str(allocatable), str(capacity))


def _unhealthy(resource: str, allocatable: str, capacity: str) -> Finding:
    """Return a finding about a resource whose devices cannot all be allocated; numbers as Kubernetes writes them."""
    measured = Quantity(devices(allocatable), "devices", f"{allocatable} of {capacity} allocatable")
    expected = Quantity(devices(capacity), "devices", "all of them healthy")
    return Finding(named("resource", resource), measured, expected, code="unhealthy")


def _only_dra(node: KubeNode, pods: tuple[Pod, ...], seen: KubeFacts) -> bool:
    """Return whether the DRA driver runs on the node, and no device plugin belongs there."""
    there = {component_of(pod.daemonset, GPU_COMPONENTS) for pod in pods}
    sets = {component_of(it.name, GPU_COMPONENTS) for it in seen.daemonsets if it.belongs_on(node)}
    return "dra-driver" in there and "device-plugin" not in there | sets


def _agents(node: KubeNode) -> Iterator[Finding | Advisory]:
    """Judge the conditions that agents set, those that no list names as a warning; Unknown is one not tested yet."""
    for name, found in node.conditions.items():
        if name == "Ready" or name in PRESSURES or _NOTE.search(name):
            continue
        # as the node problem detector names its conditions
        of_name = "True" if _GOOD.search(name) else "False"
        proven, normal = name in UNHEALTHY, UNHEALTHY.get(name) or SUSPICIOUS.get(name, of_name)
        if found.status in (normal, "Unknown"):
            continue
        finding_class = Finding if proven and found.reason not in LATCHED else Advisory
        yield finding_class(named("condition", name), Quote(str(found)), normal, code="unhealthy")


def _require_adapters(profile: Profile) -> None:
    """Raise NotApplicable where the profile has no network for GPUs: nothing for it is missing then."""
    if not profile.fabric.has_adapters:
        raise NotApplicable(f"profile {profile.name} has no adapters for GPU traffic")


def _operator(
    node: KubeNode | None,
    pods: tuple[Pod, ...],
    seen: KubeFacts,
    config: KubernetesConfig,
    known: Mapping[str, tuple[str, ...]],
    operator: str,
    required: tuple[str, ...],
) -> Judgement:
    node = _present(node, seen, seen.pods_problem)
    mine = {pod.name: (pod, name) for pod in pods if (name := component_of(pod.daemonset, known))}
    there = {pod.daemonset for pod, _ in mine.values()}
    sets = [(it, name) for it in seen.daemonsets if (name := component_of(it.name, known))]
    expected = {name for it, name in sets if it.belongs_on(node)}
    if not mine and not expected and not required:
        raise NotAvailable(
            f"no DaemonSet of the {operator} selects this node: install it, or list the check under `not_applicable`"
        )
    for pod, name in mine.values():
        # the pod, or its node after a restart, could not start containers before
        yield from _pod(pod, name, config, seen.now, max(pod.started or 0.0, node.since))
    yield Metric("restarts", sum(it.restarts for pod, _ in mine.values() for it in pod.containers), "restarts")
    for it, name in sets:
        if it.belongs_on(node) and it.name not in there:
            measured = f"DaemonSet {it.namespace}/{it.name} has no pod on this node"
            yield Finding(named("component", name), measured, "a running pod", code="no_pod")
    for name in required:
        if name not in expected and all(name != component for _, component in mine.values()):
            part, wanted = named("component", name), "a running pod, as the cluster file states"
            yield Finding(part, "no DaemonSet puts it on this node", wanted, code="no_daemonset")


def _pod(pod: Pod, component: str, config: KubernetesConfig, now: float, begin: float) -> Iterator[Finding | Advisory]:
    part = Part("component", name=component, of=pod.part)
    if pod.phase == "Failed":
        yield Finding(part, Quote(f"Failed: {pod.reason or 'no reason'}"), "Running", code="failed")
        return
    broken = [it for it in pod.containers if it.waiting]
    for it in broken:
        why = f" ({it.why})" if it.why else ""
        rc = f", exit {it.exit}" if it.exit is not None else ""
        measured = Quote(f"{it.name}: {it.waiting}{why}{rc}, {it.restarts} restarts")
        yield Finding(part, measured, "ready", code=NOT_STARTED.get(it.waiting, "not_started"))
    recent = [it for it in pod.containers if it.restarts and it.ended and now - it.ended < config.restart_window]
    for it in recent if not broken else ():
        finding_class = Advisory if it.ready and (it.ended or now) < begin + STARTUP else Finding
        age = max(0.0, now - (it.ended or now))  # a heartbeat may be five minutes older than a restart
        words = f"{it.name}: restarted {age:.0f} s ago ({it.why or 'no reason'}), {it.restarts} restarts"
        least = Quantity(config.restart_window, "s", f"no restart within {config.restart_window:g} s")
        yield finding_class(part, Quantity(age, "s", words), least, code="restarted")
    failed = broken or [it for it in recent if not it.ready]
    if not failed and not (pod.phase == "Running" and all(it.ready for it in pod.containers)):
        waiting = listed(it.name for it in pod.containers if not it.ready)
        words = f"{pod.phase}, not ready: {waiting}"
        yield Finding(part, words, "Running, all containers ready", code="not_ready")


def _present(node: KubeNode | None, seen: KubeFacts, problem: str = "") -> KubeNode:
    """Return a node that Kubernetes has; NotAvailable without it, and with another problem."""
    if node is None or problem:
        raise NotAvailable(problem or seen.nodes_problem or _NOT_THERE)
    return node


_NOT_THERE = "Kubernetes has no node of this name or address"
