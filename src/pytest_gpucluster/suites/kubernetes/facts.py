"""Facts from objects of the Kubernetes API, as kubectl prints them with -o json. Pure.

Fields: https://kubernetes.io/docs/reference/kubernetes-api/ (v1 Node and Pod, apps/v1 DaemonSet), which 1.20 to 1.37 share.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# component -> patterns of the names of its DaemonSets: assets/*/0500_daemonset.yaml of NVIDIA/gpu-operator, charts of
# NVIDIA/k8s-device-plugin, NVIDIA/dcgm-exporter and kubernetes-sigs/dra-driver-nvidia-gpu, GKE's own plugin, manifests/ of
# Mellanox/network-operator, chart aws-efa-k8s-device-plugin of aws/eks-charts
GPU_COMPONENTS = {
    "driver": ("nvidia-driver-daemonset*", "nvidia-gpu-driver-*", "nvidia-driver-installer*"),
    "toolkit": ("nvidia-container-toolkit-daemonset*",),
    "device-plugin": ("*nvidia-device-plugin*", "nvidia-gpu-device-plugin*", "nvidia-sandbox-device-plugin*"),
    "feature-discovery": ("*gpu-feature-discovery*", "*node-feature-discovery-worker*", "nfd-worker*"),
    "dcgm-exporter": ("*dcgm-exporter*", "nvidia-dcgm"),
    "validator": ("nvidia-operator-validator*", "nvidia-sandbox-validator*"),
    "mig-manager": ("nvidia-mig-manager*",),
    "virtual machines": (
        "nvidia-vgpu-manager*",
        "nvidia-vgpu-device-manager*",
        "nvidia-vfio-manager*",
        "nvidia-cc-manager*",
        "nvidia-kata-manager*",
    ),
    "dra-driver": ("*dra-driver*kubelet-plugin*",),
}
NETWORK_COMPONENTS = {
    "driver": ("mofed-*", "*doca-driver*"),
    "device-plugin": (
        "*rdma-shared-d*",
        "*sriov-device-plugin*",
        "sriov-network-config-daemon*",
        "*efa*device-plugin*",
    ),
    "secondary network": ("*multus*", "cni-plugins-ds*", "kube-ipoib-cni-ds*", "nv-ipam-node*", "whereabouts*"),
    "nic-discovery": ("nic-feature-discovery-ds*", "nic-configuration-daemon*"),
}
# resources that count devices for RDMA: rdma/hca_shared_devices_a, mellanox.com/shared_hca_rdma, vpc.amazonaws.com/efa,
# networking.gke.io.networks/rdma-0, nvidia.com/hostdev
RDMA = ("rdma/*", "*/*rdma*", "*/efa", "*/*hostdev*", "*/*mlnx*")
_MINOR = re.compile(r"v?(\d{1,4})\.(\d{1,4})")
_COUNT, _NUMBER = re.compile(r"[0-9]{1,9}"), re.compile(r"-?[0-9]{1,10}")
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Version:
    """A version as Kubernetes writes it: v1.33.5+rke2r1, v1.31.1-eks-ce1d5eb."""

    text: str
    major: int
    minor: int


@dataclass(frozen=True)
class Condition:
    """A condition of a node: Ready, MemoryPressure, ... `since`: Unix time of its last change."""

    status: str
    reason: str = ""
    message: str = ""
    since: float | None = None

    def __str__(self) -> str:
        return f"{self.status}: {self.reason} ({self.message})"


@dataclass(frozen=True)
class Container:
    """A container of a pod. `waiting`: why it does not run, like CrashLoopBackOff; `ended`: Unix time of its last end."""

    name: str
    ready: bool
    restarts: int = 0
    waiting: str = ""
    why: str = ""
    ended: float | None = None
    exit: int | None = None


@dataclass(frozen=True)
class Pod:
    """A pod. `gpus`: {resource: number} of its requests; `daemonset`: '' if none owns it; `started`: Unix time."""

    name: str
    namespace: str
    node: str
    phase: str
    daemonset: str = ""
    gpus: Mapping[str, int] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    reason: str = ""
    started: float | None = None

    @property
    def part(self) -> Part:
        """The pod as a part of the cluster."""
        return named("pod", f"{self.namespace}/{self.name}")

    @property
    def ended(self) -> bool:
        """Whether it holds no resources any more."""
        return self.phase in _ENDED

    def holds(self, resource: str) -> int:
        """Return its GPUs; with `renameByDefault` the device plugin offers shared ones as RESOURCE.shared."""
        return self.gpus.get(resource, 0) + self.gpus.get(f"{resource}.shared", 0)


@dataclass(frozen=True)
class DaemonSet:
    """A DaemonSet; `selector` is its nodeSelector. `affine`: it has further rules about nodes, which are not read here."""

    name: str
    namespace: str
    selector: Mapping[str, str] = field(default_factory=dict)
    affine: bool = False
    tolerations: tuple[Mapping[str, str], ...] = ()

    def belongs_on(self, node: KubeNode) -> bool | None:
        """Return whether it must have a pod on a node; None where that is not decided here."""
        if any(node.labels.get(key) != value for key, value in self.selector.items()):
            return False
        tolerated = all(any(_tolerates(it, taint) for it in self.tolerations) for taint in node.taints)
        return None if self.affine or not tolerated else True


@dataclass(frozen=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}{f':{self.effect}' if self.effect else ''}"

    def is_stated(self, text: str) -> bool:
        """Return whether KEY[=VALUE][:EFFECT] is this taint."""
        rest, _, effect = text.partition(":")
        key, equals, value = rest.partition("=")
        return key == self.key and effect in ("", self.effect) and (not equals or value == self.value)


@dataclass(frozen=True)
class KubeNode:
    """A node. `heartbeat`: the newest one of its conditions, `created`: when it joined, as Unix time."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    kernel: str = ""
    runtime: str = ""
    kubelet: str = ""
    os: str = ""
    heartbeat: float = 0.0
    created: float = 0.0

    @property
    def since(self) -> float:
        """Since when it is in service: its creation, or a later change to Ready; 0 if neither is known."""
        found = self.conditions.get("Ready")
        ready = found.since if found is not None and found.status == "True" else None
        return max(self.created, ready or 0.0)


@dataclass(frozen=True)
class Job:
    """A Job. `ended`: Unix time, None while it is active; `keep`: its ttlSecondsAfterFinished; `deleting`: is being deleted."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ended: float | None = None
    keep: int = 0
    deleting: bool = False


@dataclass(frozen=True)
class JobPod:
    """A pod of a Job. `index`: of an Indexed Job; `node`: its name in Kubernetes; `rc`: None while its container runs."""

    name: str
    job: str
    index: int | None = None
    node: str = ""
    ended: bool = False
    rc: int | None = None
    message: str = ""
    problem: str = ""
    """Why it does not run, as far as Kubernetes states it."""


@dataclass(frozen=True)
class KubeFacts:
    """What the API server answered. A `..._problem` is the reason if there are no facts of that kind.

    `nodes` and `pods` are by the name of the cluster file's node. `now` is the newest heartbeat of a kubelet.
    """

    client: Version | None = None
    server: Version | None = None
    problem: str = ""
    nodes: Mapping[str, KubeNode] = field(default_factory=dict)
    pods: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    daemonsets: tuple[DaemonSet, ...] = ()
    nodes_problem: str = ""
    pods_problem: str = ""
    unknown: tuple[str, ...] = ()
    """Nodes with GPUs in Kubernetes that the cluster file does not name."""
    now: float = 0.0


def read_version(text: str) -> tuple[Version | None, Version | None]:
    """Read `kubectl version -o json`: the versions of kubectl and of the server, None where one is absent."""
    answer = _json(text, "kubectl version")
    return _version(answer.get("clientVersion")), _version(answer.get("serverVersion"))


def version_of(text: str) -> Version | None:
    """Read v1.33.5+rke2r1; None for a text without two numbers."""
    match = _MINOR.match(text)
    return Version(text, int(match[1]), int(match[2])) if match else None


def read_objects(text: str) -> tuple[list[KubeNode], list[Pod], list[DaemonSet]]:
    """Read a List of nodes, pods and DaemonSets; ProbeError where an object has another form."""
    nodes, pods, sets = [], [], []
    with _understood("kubectl get"):
        for item in _items(text, "kubectl get"):
            if item["kind"] == "Node":
                nodes.append(_node(item))
            elif item["kind"] == "Pod":
                pods.append(_pod(item))
            elif item["kind"] == "DaemonSet":
                sets.append(_daemonset(item))
    return nodes, pods, sets


def read_jobs(text: str) -> list[Job]:
    """Read a List of Jobs; ProbeError where one has another form."""
    with _understood("kubectl get jobs"):
        return [_job(item) for item in _items(text, "kubectl get jobs")]


def read_job_pods(text: str) -> list[JobPod]:
    """Read a List of the pods of Jobs; ProbeError where one has another form."""
    with _understood("kubectl get pods"):
        return [_job_pod(item) for item in _items(text, "kubectl get pods")]


def read_uid(text: str) -> str:
    """Read the uid of a created object; ProbeError without one."""
    with _understood("kubectl create"):
        uid = _json(text, "kubectl create")["metadata"]["uid"]
    if not isinstance(uid, str) or not uid:
        raise ProbeError("kubectl create: the answer has no uid")
    return uid


def matched(nodes: Iterable[KubeNode], known: Mapping[str, str]) -> dict[str, str]:
    """Return {name in Kubernetes: node of the cluster file}: by its name, its first label, or one of its addresses."""
    found: dict[str, str] = {}
    for node in nodes:
        words = (node.name, node.name.partition(".")[0], *node.addresses)
        name = next((known[word] for word in words if word in known), None)
        if name is not None:
            found[node.name] = name
    return found


def whole(text: str) -> int | None:
    """Return the number of a whole resource or label; None for any other text."""
    return int(text) if _COUNT.fullmatch(text) else None


def devices(text: str) -> int:
    """Return a number of devices as Kubernetes writes it; 0 for any other text."""
    thousands = text.endswith("k")
    return (whole(text.removesuffix("k")) or 0) * (1000 if thousands else 1)


def rdma_of(node: KubeNode) -> dict[str, str]:
    """Return the resources that count devices for RDMA, with their capacity as Kubernetes writes it (1000 as 1k)."""
    return {it: node.capacity[it] for it in node.capacity if any(fnmatchcase(it, one) for one in RDMA)}


def by_node(pods: Iterable[Pod], names: Mapping[str, str]) -> dict[str, tuple[Pod, ...]]:
    """Return the pods of each node of the cluster file."""
    found = grouped((names[pod.node], pod) for pod in pods if pod.node in names)
    return {node: tuple(mine) for node, mine in found.items()}


def component_of(daemonset: str, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return the component of a DaemonSet's name, '' for any other."""
    matching = (it for it, patterns in known.items() if any(fnmatchcase(daemonset, one) for one in patterns))
    return next(matching, "")


def _node(item: Mapping[str, Any]) -> KubeNode:
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    about, conditions = status.get("nodeInfo", {}), status.get("conditions", [])
    beats = [beat for it in conditions if (beat := read_time(it.get("lastHeartbeatTime"))) is not None]
    return KubeNode(
        name=str(meta["name"]),
        labels=_texts(meta.get("labels")),
        taints=tuple(
            Taint(str(it["key"]), str(it.get("value", "")), str(it.get("effect", ""))) for it in spec.get("taints", ())
        ),
        cordoned=bool(spec.get("unschedulable", False)),
        capacity=_texts(status.get("capacity")),
        allocatable=_texts(status.get("allocatable")),
        conditions={
            str(it["type"]): Condition(
                str(it["status"]),
                str(it.get("reason", "")),
                _line(it.get("message")),
                read_time(it.get("lastTransitionTime")),
            )
            for it in conditions
        },
        addresses=tuple(str(it["address"]) for it in status.get("addresses", ())),
        kernel=str(about.get("kernelVersion", "")),
        runtime=str(about.get("containerRuntimeVersion", "")),
        kubelet=str(about.get("kubeletVersion", "")),
        os=str(about.get("osImage", "")),
        heartbeat=max(beats, default=0.0),
        created=read_time(meta.get("creationTimestamp")) or 0.0,
    )


def _job(item: Mapping[str, Any]) -> Job:
    meta, ends = item["metadata"], item.get("status", {}).get("conditions", ())
    ended = [it for it in ends if it["type"] in ("Complete", "Failed") and it["status"] == "True"]
    return Job(
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        labels=_texts(meta.get("labels")),
        ended=read_time(ended[0].get("lastTransitionTime")) if ended else None,
        keep=int(item.get("spec", {}).get("ttlSecondsAfterFinished", 0)),
        deleting="deletionTimestamp" in meta,
    )


def _job_pod(item: Mapping[str, Any]) -> JobPod:
    meta, status = item["metadata"], item.get("status") or {}
    states = [it.get("state") or {} for it in status.get("containerStatuses") or ()]
    done = next((it["terminated"] for it in states if it.get("terminated") is not None), None)
    waiting = next((_line(it["waiting"].get("reason")) for it in states if it.get("waiting") is not None), "")
    why = waiting or _line(status.get("reason"))
    conditions = [_line(it.get("message")) for it in status.get("conditions") or ()]
    phase, index = _line(status.get("phase")), (meta.get("annotations") or {}).get(COMPLETION_INDEX)
    return JobPod(
        name=str(meta["name"]),
        job=str(meta["labels"]["gpucluster-job"]),
        index=None if index is None else _number(index),
        node=str((item.get("spec") or {}).get("nodeName") or ""),
        ended=phase in _ENDED,
        rc=None if done is None else _number(done["exitCode"]),
        message="" if done is None else str(done.get("message") or ""),
        problem=": ".join(filter(None, (phase, why, next(filter(None, conditions), "")))),
    )


def _number(value: object) -> int:
    if not _NUMBER.fullmatch(str(value)):
        raise ValueError(f"{one_line(value, 40)} is not a whole number")
    return int(str(value))


def _pod(item: Mapping[str, Any]) -> Pod:
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    owner = next((it["name"] for it in meta.get("ownerReferences", ()) if it["kind"] == "DaemonSet"), "")
    return Pod(
        name=str(meta["name"]),
        namespace=str(meta.get("namespace", "")),
        node=str(spec.get("nodeName", "")),
        phase=str(status.get("phase", "")),
        daemonset=str(owner),
        gpus=_requested(spec),
        containers=(
            *(_container(it, init=True) for it in status.get("initContainerStatuses", ())),
            *(_container(it, init=False) for it in status.get("containerStatuses", ())),
        ),
        reason=": ".join(filter(None, (str(status.get("reason", "")), _line(status.get("message"))))),
        started=read_time(status.get("startTime")),
    )


def _container(item: Mapping[str, Any], *, init: bool) -> Container:
    state = item.get("state", {})
    waiting, done = state.get("waiting", {}), state.get("terminated", {})
    last = done if done and not init else item.get("lastState", {}).get("terminated", {})
    reason = str(waiting.get("reason", ""))
    finished = init and done.get("exitCode") == 0
    return Container(
        name=str(item["name"]),
        ready=bool(item.get("ready", False)) or finished,
        restarts=int(item.get("restartCount", 0)),
        waiting="" if reason in ("PodInitializing", "ContainerCreating") else reason,
        why=_line(waiting.get("message")) or str(last.get("reason", "")),
        ended=read_time(last.get("finishedAt")),
        exit=last.get("exitCode"),
    )


def _daemonset(item: Mapping[str, Any]) -> DaemonSet:
    spec = item["spec"]["template"]["spec"]
    return DaemonSet(
        name=str(item["metadata"]["name"]),
        namespace=str(item["metadata"].get("namespace", "")),
        selector=_texts(spec.get("nodeSelector")),
        affine="nodeAffinity" in (spec.get("affinity") or {}),
        tolerations=tuple(_texts(it) for it in spec.get("tolerations", ())),
    )


def _requested(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the extended resources that the pod holds: the most of its containers, or of one init container, at a time.

    An init container that restarts always is a sidecar: it runs beside all that start after it
    (https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers).
    """
    beside: Counter[str] = Counter()  # held by sidecars
    found: Counter[str] = Counter()
    for container in spec.get("initContainers", ()):
        own = Counter(dict(_extended(container)))
        found |= own + beside
        if container.get("restartPolicy") == "Always":
            beside += own
    held = sum((Counter(dict(_extended(one))) for one in spec.get("containers", ())), beside)
    return dict(found | held)


def _extended(container: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    resources = container.get("resources", {})
    stated = {**resources.get("limits", {}), **resources.get("requests", {})}
    for name, number in stated.items():
        # cpu and memory have no domain in their names
        if "/" in name and (count := whole(str(number))) is not None:
            yield str(name), count


def _tolerates(toleration: Mapping[str, str], taint: Taint) -> bool:
    if taint.effect == "PreferNoSchedule":
        return True
    key, same = toleration.get("key", ""), toleration.get("operator", "Equal") == "Exists"
    return (
        key in ("", taint.key)
        and toleration.get("effect", "") in ("", taint.effect)
        and (same or (bool(key) and toleration.get("value", "") == taint.value))
    )


def read_time(text: object) -> float | None:
    """Return the Unix time of 2026-11-23T09:00:00Z, without or with a fraction; None without one."""
    if not text:
        return None
    plain = re.sub(r"\.\d+", "", str(text)).replace("Z", "+00:00")
    return dt.datetime.fromisoformat(plain).timestamp()


def _version(about: object) -> Version | None:
    return version_of(str(about.get("gitVersion", ""))) if isinstance(about, dict) else None


def _texts(found: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _line(text: object) -> str:
    return " ".join(str(text or "").split())


@contextlib.contextmanager
def _understood(what: str) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ProbeError(f"{what}: an object is not understood ({error!r})") from error


def _items(text: str, what: str) -> list[Any]:
    items = _json(text, what).get("items")
    if not isinstance(items, list):
        raise ProbeError(f"{what}: the answer has no items")
    return items


def _json(text: str, what: str) -> dict[str, Any]:
    try:
        answer = safe_json.loads(text)
    except ValueError as error:
        raise ProbeError(f"{what}: the answer is not JSON") from error
    if not isinstance(answer, dict):
        raise ProbeError(f"{what}: the answer is no JSON object")
    return answer
