"""Healthy nodes whose objects look sick, and sick ones whose objects look healthy (docs/how-it-decides.md)."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, result
from judged import judged
from machine_helpers import Machines, examples, verdicts_of_a_person
from paths import DATA

from pytest_gpucluster import config as configs
from pytest_gpucluster.config.models import GpuProfile, Profile
from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.suites.kubernetes import checks, job_checks
from pytest_gpucluster.suites.kubernetes import facts as kube
from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
from pytest_gpucluster.suites.kubernetes.jobs import KubernetesJobs, PodResult

if TYPE_CHECKING:
    from collections.abc import Callable

    Thunk = Callable[[], Verdict]

NOW = dt.datetime(2026, 9, 10, tzinfo=dt.timezone.utc)
SEEN = kube.KubeFacts(now=NOW.timestamp())
DAY, YEAR = 86_400, 365 * 86_400
RDMA = "rdma/rdma_shared_device_a"
GPU = "nvidia.com/gpu"
CONFIG = KubernetesConfig()
H100 = configs.load_profile("dgx-h100")
GPUS = GpuProfile(count=8, name="NVIDIA H100 80GB HBM3")
WITH_MIG = GPUS.model_copy(update={"mig": True})
WITHOUT = Profile.model_validate({"name": "plain", "description": "a node", "source": "made up"})


def ago(seconds: float) -> str:
    return (NOW - dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def listed(*items: dict[str, Any]) -> tuple[list[kube.KubeNode], list[kube.Pod], list[kube.DaemonSet]]:
    return kube.read_objects(json.dumps({"kind": "List", "items": list(items)}))


def node(name: str = "gpu01", *, created: float = YEAR, since: float = 9 * DAY, **given: Any) -> kube.KubeNode:
    """Return a node with eight GPUs; given: labels, spec, capacity, what is left of it, and conditions TYPE="STATUS REASON"."""
    labels, spec, capacity, left = (dict(given.pop(it, ())) for it in ("labels", "spec", "capacity", "left"))
    whole = {GPU: "8", **capacity}
    said = [
        {
            "type": kind,
            "status": it.partition(" ")[0],
            "reason": it.partition(" ")[2],
            "lastHeartbeatTime": ago(0),
            "lastTransitionTime": ago(since),
        }
        for kind, it in {"Ready": "True KubeletReady", "MemoryPressure": "False", **given}.items()
    ]
    status = {"capacity": whole, "allocatable": {**whole, **left}, "conditions": said}
    meta = {"name": name, "labels": labels, "creationTimestamp": ago(created)}
    nodes, _, _ = listed({"kind": "Node", "metadata": meta, "spec": spec, "status": status})
    return nodes[0]


def pod(name: str, *, started: float = 200 * DAY, **given: Any) -> dict[str, Any]:
    """Return a pod; given: owner, gpus, space, init containers, and its status."""
    owner, gpus, init = given.pop("owner", ""), given.pop("gpus", 0), given.pop("init", ())
    meta: dict[str, Any] = {"name": name, "namespace": given.pop("space", "gpu-operator")}
    if owner:
        meta["ownerReferences"] = [{"kind": "DaemonSet", "name": owner}]
    one = {"name": "main", "resources": {"limits": {GPU: f"{gpus}"}} if gpus else {}}
    spec = {"nodeName": "gpu01", "containers": [one], "initContainers": list(init)}
    status = {"phase": "Running", "startTime": ago(started), **given}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def of_plugin(*, ready: bool = True, restarts: int = 0, ended: float | None = None, **more: Any) -> dict[str, Any]:
    """Return a pod of the device plugin, whose container ended so many seconds ago."""
    last = {"finishedAt": ago(ended), "reason": "Error", "exitCode": 1} if ended is not None else {}
    container = {"name": "main", "ready": ready, "restartCount": restarts, "state": more.pop("state", {})}
    container["lastState"] = {"terminated": last} if last else {}
    return pod("p", **{"owner": PLUGIN, "started": YEAR, **more}, containerStatuses=[container])


def daemonset(name: str, **selector: str) -> dict[str, Any]:
    spec = {"template": {"spec": {"nodeSelector": selector, "tolerations": [{"operator": "Exists"}]}}}
    return {"kind": "DaemonSet", "metadata": {"name": name, "namespace": "gpu-operator"}, "spec": spec}


def operator(*items: dict[str, Any], check: Any = checks.gpu_operator, **facts: Any) -> Thunk:
    _, pods, sets = listed(*items)
    seen = kube.KubeFacts(daemonsets=tuple(sets), now=SEEN.now)
    return lambda: check(node(**facts), tuple(pods), seen, CONFIG)


network_operator = partial(operator, check=partial(checks.network_operator, profile=H100))


def ready(**facts: Any) -> Thunk:
    return lambda: checks.ready(node(**facts), kube.KubeFacts())


def taints(text: str) -> Thunk:
    """Judge a taint KEY=VALUE:EFFECT."""
    key, _, rest = text.partition("=")
    value, _, effect = rest.partition(":")
    spec = {"taints": [{"key": key, "value": value, "effect": effect}]}
    return lambda: checks.taints(node(spec=spec), kube.KubeFacts(), CONFIG)


def gpus(*items: dict[str, Any], profile: GpuProfile = GPUS, **facts: Any) -> Thunk:
    _, pods, sets = listed(*items)
    seen = kube.KubeFacts(daemonsets=tuple(sets), now=SEEN.now)
    return lambda: checks.gpus(node(**facts), tuple(pods), seen, CONFIG, profile)


def allocated(*pods: dict[str, Any], **facts: Any) -> Thunk:
    return lambda: checks.allocated(node(**facts), tuple(listed(*pods)[1]), SEEN, CONFIG)


def rdma(own: str, *others: str, left: str = "", created: float = YEAR) -> Thunk:
    def offering(number: int, count: str) -> kube.KubeNode:
        own = {"capacity": {RDMA: count}, "left": {RDMA: left or count}}
        return node(f"gpu0{number}", **own, created=created, since=created)

    group = [offering(n, it) for n, it in enumerate((own, *others), 1)]
    typical = norm([(it.name, kube.rdma_of(it).get(RDMA, "0")) for it in group], "nodes of its group")
    return lambda: checks.rdma(group[0], SEEN, {RDMA: typical}, H100)


def labels(**shown: str) -> Thunk:
    """Judge labels of nvidia.com on a node with GPUs of A100."""
    found = {f"nvidia.com/{key.replace('__', '.').replace('_', '-')}": it for key, it in shown.items()}
    whole = {f"{GPU}.product": "NVIDIA-A100-SXM4-80GB", **found}
    profile = GpuProfile(count=8, name="NVIDIA A100-SXM4-80GB")
    return lambda: checks.labels(node(labels=whole), kube.KubeFacts(), CONFIG, profile, {})


TODAY = dt.date(2026, 9, 15)


def api(server: str) -> Thunk:
    seen = kube.KubeFacts(client=kube.version_of(server), server=kube.version_of(server))
    return lambda: checks.api(seen, TODAY)


def smi(count: int = 8, after: str = "") -> str:
    return "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n:08d}-0000){after}\n" for n in range(count))


def job_gpus(text: str, owners: Any = (), **facts: Any) -> Thunk:
    results = KubernetesJobs(gpus={"gpu01": PodResult("gpu01", text, 0)})
    known = {f"GPU-{n:08d}-0000": ("gpu01",) for n in range(8)} | dict(owners)
    return lambda: job_checks.job_gpus(results, "gpu01", node(**facts), CONFIG, GPUS, known)


NCCL_RUN = (DATA / "nccl" / "derived-2.13.4-all_reduce.txt").read_text()
PODS = "".join(f"# rank {rank}: node {'n1' if rank < 8 else 'n2'} uuid GPU-{rank}\n" for rank in range(16))
ROW = next(line for line in reversed(NCCL_RUN.splitlines()) if line.strip()[:1].isdigit())
WRONG = NCCL_RUN.replace(ROW, ROW[::-1].replace("0", "3", 1)[::-1])  # elements of the last row


def job_nccl(log: str, rc: int = 0) -> Thunk:
    """Judge a Job on two nodes; rc: the exit status of the second pod."""
    pods = (PodResult("n1", "", 0), PodResult("n2", "RuntimeError: NCCL error" if rc else "", rc))
    found = KubernetesJobs(nccl=pods, nccl_hosts=("n1", "n2"), nccl_log=f"{PODS}{log}", gpus_per_node=8)
    return lambda: job_checks.job_nccl(found)


PLUGIN = "nvidia-device-plugin-daemonset"
ALL = {"nvidia.com/gpu.deploy.device-plugin": "true"}
SHARING = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
PLUGIN_SET = daemonset(PLUGIN, **ALL)
CRASH = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
ENDED = {"terminated": {"exitCode": 0, "reason": "Completed"}}
MOFED = "mofed-ubuntu22.04-5f7b8c-ds"
NIC = {"feature.node.kubernetes.io/pci-15b3.present": "true"}
MOFED_SET = daemonset(MOFED, **NIC)
HOLDS = {"resources": {"limits": {GPU: "8"}}}
SIDECAR = {"restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}}
HAMI = daemonset("hami-device-plugin")
GUESTS = {"nvidia.com/gpu.workload.config": "vm-passthrough"}
MIG = {GPU: "0", "nvidia.com/mig-1g.10gb": "56", "nvidia.com/mig-3g.40gb": "0"}
UNAVAILABLE = "Allocate failed due to requested number of devices unavailable"
EARLY = "Allocate failed due to no healthy devices present"
LOST = "nvml: GPU is lost, which is unexpected"
gpu_operator = partial(operator, PLUGIN_SET, labels=ALL)
NOTHING = node(), (), SEEN, CONFIG
BOOTED = of_plugin(restarts=3, ended=800)
WITH_ALL = pod("b", gpus=8)
MODEL = {GPU: "0", "nvidia.com/GH100_H100_SXM5_80GB": "8"}
VALIDATED = of_plugin(ready=False, state=ENDED, phase="Succeeded", owner="")
OF_USER = pod(f"{PLUGIN}-test", space="alice", phase="Failed")
LONG_AGO = of_plugin(owner=MOFED, restarts=3, ended=190 * DAY)
CRASHES = of_plugin(owner=MOFED, ready=False, state=CRASH)
AUTOSCALER = "DeletionCandidateOfClusterAutoscaler=1782838000"


def refused(message: str, seconds: float) -> dict[str, Any]:
    """Return a pod that the kubelet rejected so long ago."""
    told = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    return pod("a", gpus=8, space="ml", started=seconds, **told)


MACHINES: Machines = {
    "kubernetes.ready": [
        ("a scheduled maintenance | AKS, node-problem-detector", WARNING, ready(VMEventScheduled="True x")),
        ("an agent's condition | node-problem-detector", PASSED, ready(SysctlChanged="True SysctlChanged")),
        ("sick: the kubelet stopped | node-status", MONITOR, ready(Ready="Unknown NodeStatusUnknown")),
        ("sick: out of process ids | node-status", MONITOR, ready(PIDPressure="True x")),
        ("sick: cordoned | kubectl cordon", MONITOR, ready(spec={"unschedulable": True})),
        ("sick: it left | node-status", MONITOR, lambda: checks.ready(None, SEEN)),
    ],
    "kubernetes.taints": [
        ("Azure's taint of GPU nodes | AKS", PASSED, taints("sku=gpu:NoSchedule")),
        ("a soft taint | cluster autoscaler", WARNING, taints(f"{AUTOSCALER}:PreferNoSchedule")),
        ("sick: a hard one | cluster autoscaler", CONFIGURE, taints(f"{AUTOSCALER}:NoSchedule")),
    ],
    "kubernetes.gpus": [
        ("four replicas of each GPU | k8s-device-plugin", PASSED, gpus(labels=SHARING, capacity={GPU: "32"})),
        ("ten shares, no label states them | HAMi, issue 314", NOT_CHECKED, gpus(HAMI, capacity={GPU: "80"})),
        ("whole GPUs of guests | gpu-operator-kubevirt", NOT_CHECKED, gpus(labels=GUESTS, capacity=MODEL)),
        ("MIG devices | mig-parted", NOT_CHECKED, gpus(capacity=MIG, profile=WITH_MIG)),
        ("an earlier partition | kubelet", PASSED, gpus(capacity={"nvidia.com/mig-1g.10gb": "0"})),
        ("it has just joined | GKE", NOT_CHECKED, gpus(capacity={GPU: "0"}, created=60, since=60)),
        ("it was restarted | GKE", NOT_CHECKED, gpus(capacity={GPU: "0"}, created=9000, since=599)),
        ("sick: none long after | GKE", MONITOR, gpus(capacity={GPU: "0"}, created=9000, since=600)),
        ("sick: seven, just joined | GKE", MONITOR, gpus(capacity={GPU: "7"}, created=60, since=60)),
        ("sick: one is unhealthy | k8s-device-plugin", MONITOR, gpus(left={GPU: "7"})),
        ("sick: one lost of four replicas | plugin", MONITOR, gpus(labels=SHARING, capacity={GPU: "28"})),
        ("sick: one lost of ten shares | HAMi, issue 314", MONITOR, gpus(HAMI, capacity={GPU: "70"})),
        ("sick: MIG devices where the profile excludes them | mig-parted", MONITOR, gpus(capacity=MIG)),
    ],
    "kubernetes.allocated": [
        ("an init container has them | sidecars", PASSED, allocated(pod("a", gpus=8, init=[HOLDS]))),
        ("rejected three hours ago | k8s-device-plugin", PASSED, allocated(refused(UNAVAILABLE, 3 * 3600))),
        ("rejected before the plugin registered | kubelet", WARNING, allocated(refused(EARLY, 60))),
        ("its predecessor ended | pods", PASSED, allocated(pod("a", gpus=8, phase="Succeeded"), WITH_ALL)),
        ("sick: rejected: a GPU is lost | nvml", MONITOR, allocated(refused(LOST, 60))),
        ("sick: rejected early, one lost | nvml", MONITOR, allocated(refused(EARLY, 60), left={GPU: "7"})),
        ("sick: lost under a pod | plugin", MONITOR, allocated(pod("a", gpus=8), left={GPU: "7"})),
        ("sick: a sidecar holds one too | sidecars", MONITOR, allocated(pod("a", gpus=8, init=[SIDECAR]))),
    ],
    "kubernetes.gpu_operator": [
        ("the validator has ended | operator", PASSED, gpu_operator(of_plugin(), VALIDATED)),
        ("a pod of a user fails | k8s-device-plugin", PASSED, gpu_operator(of_plugin(), OF_USER)),
        ("restarts months ago | driver", PASSED, gpu_operator(of_plugin(restarts=14, ended=130 * DAY))),
        ("while the pod started | DCGM", WARNING, operator(of_plugin(restarts=3, ended=2000, started=2400))),
        ("after a boot of the node | DCGM", WARNING, operator(BOOTED, since=900)),
        ("sick: not ready | DCGM", MONITOR, operator(of_plugin(restarts=3, ended=9, ready=False), since=90)),
        ("sick: long after both | DCGM", MONITOR, operator(BOOTED, since=9000)),
        ("sick: it crashes | plugin", MONITOR, gpu_operator(of_plugin(ready=False, state=CRASH))),
        ("sick: no pod of the plugin | GPU operator", MONITOR, gpu_operator()),
    ],
    "kubernetes.network_operator": [
        ("the host has the driver | network-operator", NOT_CHECKED, network_operator(labels=NIC)),
        ("restarts months ago | driver", PASSED, network_operator(MOFED_SET, LONG_AGO, labels=NIC)),
        ("no adapters | profile", NOT_APPLICABLE, lambda: checks.network_operator(*NOTHING, profile=WITHOUT)),
        ("sick: its pod crashes | mofed", MONITOR, network_operator(MOFED_SET, CRASHES, labels=NIC)),
    ],
    "kubernetes.rdma": [
        ("an adapter for storage | network-operator", WARNING, rdma("9", "8", "8", "8")),
        ("the only node of its group | network-operator", PASSED, rdma("8")),
        ("it has just joined | GKE", NOT_CHECKED, rdma("0", "1k", "1k", created=60)),
        ("no node offers any | profile", NOT_CHECKED, lambda: checks.rdma(node(), SEEN, {}, H100)),
        ("no adapters | profile", NOT_APPLICABLE, lambda: checks.rdma(node(), SEEN, {}, WITHOUT)),
        ("sick: none long after | GKE", MONITOR, rdma("0", "1k", "1k")),
        ("sick: half, just joined | GKE", MONITOR, rdma("500", "1k", "1k", created=60)),
        ("sick: one less than the others | network-operator", MONITOR, rdma("7", "8", "8", "8")),
        ("sick: a device is unhealthy | network-operator", MONITOR, rdma("8", "8", "8", "8", left="7")),
    ],
    "kubernetes.labels": [
        ("MIG is configured | mig-parted", PASSED, labels(mig__config__state="success")),
        ("sick: MIG failed | mig-parted", CONFIGURE, labels(mig__config__state="failed")),
        ("sick: an upgrade failed | operator", CONFIGURE, labels(gpu_driver_upgrade_state="upgrade-failed")),
        ("sick: MIG in parts | plugin", CONFIGURE, labels(gpu__product="NVIDIA-A100-SXM4-80GB-MIG-INVALID")),
    ],
    "kubernetes.api": [
        ("Amazon supports it after upstream | EKS", WARNING, api("v1.33.5-eks-3cfe0ce")),
        ("OpenShift 4.16 with extended support | Red Hat", WARNING, api("v1.29.10+67d3387")),
        ("upstream's own build, four years old | kubernetes.io/releases", WARNING, api("v1.24.3")),
        ("sick: no answer | kubectl", MONITOR, lambda: checks.api(kube.KubeFacts(problem="refused"), TODAY)),
    ],
    "kubernetes.job_gpus": [
        ("MIG instances | plugin", PASSED, job_gpus(smi(after="\n  MIG 3g.40gb Device 0: (UUID: M)"))),
        ("one share of four | plugin", PASSED, job_gpus(smi(1), labels=SHARING, capacity={GPU: "32"})),
        ("sick: seven of eight | plugin", MONITOR, job_gpus(smi(7))),
        ("sick: of two nodes | plugin", MONITOR, job_gpus(smi(), {"GPU-00000003-0000": ("gpu01", "gpu02")})),
    ],
    "kubernetes.job_nccl": [
        ("ranks proved, data right | nccl-tests", PASSED, job_nccl(NCCL_RUN)),
        ("NCCL warns first | nccl-tests", PASSED, job_nccl(f"NCCL INFO NET/Plugin: none\n{NCCL_RUN}")),
        ("the file asks for no Jobs | nccl-tests", NOT_APPLICABLE, lambda: job_checks.job_nccl(None)),
        ("sick: wrong elements | nccl-tests", MONITOR, job_nccl(WRONG)),
        ("sick: a pod failed | nccl-tests", MONITOR, job_nccl("", 1)),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


def test_what_must_be_equal_on_all_nodes() -> None:
    one = kube.KubeNode("n", kernel="6.8", runtime="containerd", kubelet="v1.35.1", os="Ubuntu")
    assert list(checks.software_of(one).values()) == ["6.8", "containerd", "v1.35.1", "Ubuntu"]
    seen = kube.KubeFacts(server=kube.version_of("v1.35.2"))
    for minor, expected in ((35, PASSED), (32, PASSED), (31, CONFIGURE), (36, CONFIGURE)):
        assert result(checks.software(replace(one, kubelet=f"v1.{minor}.0"), seen, {})) == expected


AGENTS = (
    "FrequentContainerdRestart FrequentKubeletRestart GPUClockThrottling IBLinkFlapping KernelDeadlock "
    "ReadonlyFilesystem VMEventScheduled XIDError XIDErrors"
)


def test_condition_of_an_agent() -> None:
    for condition, status, reason, expected in (
        ("GPUMissing", "True", "GPUMissing", MONITOR),
        ("GPUMissing", "Unknown", "", PASSED),
        ("AcceleratedHardwareReady", "False", "NvidiaDeviceCountMismatch", MONITOR),
        ("AcceleratedHardwareReady", "False", "DCGMError", WARNING),
        ("DeprecatedPullingSchemaV1Image", "True", "", PASSED),
        *((f"{it}Ready", "False", "x", WARNING) for it in ("ContainerRuntime", "Kernel", "Networking", "Storage")),
        *((it, "True", "x", WARNING) for it in AGENTS.split()),
        # no list names these
        ("SysLogsXIDError", "True", "x", WARNING),
        ("SysLogsXIDError", "False", "x", PASSED),
        ("SysLogsXIDError", "Unknown", "x", PASSED),
        ("GpuNotReady", "True", "x", WARNING),
        ("NicUnhealthy", "True", "x", WARNING),
        ("NicUnhealthy", "False", "x", PASSED),
        ("EtcdIsVoter", "True", "x", PASSED),
        ("FabricReady", "True", "x", PASSED),
        ("FabricReady", "False", "x", WARNING),
    ):
        verdict = ready(**{condition: f"{status} {reason}"})()
        assert judged(verdict) == (expected, [condition] if expected != PASSED else [])


def test_a_node_that_was_not_read_proves_no_gpu() -> None:
    for problem in ("", "HTTP 403: nodes is forbidden"):
        seen = kube.KubeFacts(now=SEEN.now, nodes_problem=problem)
        assert result(checks.gpus(None, (), seen, CONFIG, GPUS)) == NOT_CHECKED
        assert result(checks.ready(None, seen)) == (NOT_CHECKED if problem else MONITOR)
    timeless = kube.KubeNode("n", capacity={GPU: "0"}, allocatable={GPU: "0"})
    assert result(checks.gpus(timeless, (), SEEN, CONFIG, GPUS)) == MONITOR
