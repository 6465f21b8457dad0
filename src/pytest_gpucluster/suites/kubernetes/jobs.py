"""Jobs of Kubernetes: `nvidia-smi -L` on each GPU node, then one NCCL Job on all of them. Only where `jobs: true`.

Every object has a label of this run. They are removed by that label at the end, also where this process is killed: a shell
reads a pipe from it and deletes when the pipe closes. If the shell is killed at the same time, Kubernetes ends the Jobs by
activeDeadlineSeconds and removes them by ttlSecondsAfterFinished; the Service belongs to its Job (ownerReferences).
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import subprocess
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.transport.local import kill_group
from pytest_gpucluster.core import run_mark
from pytest_gpucluster.core.errors import GpuClusterError, ProbeError
from pytest_gpucluster.kit.payload_step import COLLECTIVE, sent
from pytest_gpucluster.suites.kubernetes.facts import read_job_pods, read_uid, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
    from pytest_gpucluster.suites.kubernetes.facts import JobPod, KubeFacts
    from pytest_gpucluster.suites.kubernetes.steps import Kubectl

LABEL = "pytest-gpucluster/run"
POLL = 0.5, 5.0  # shortest and longest time between two queries of the pods of all Jobs
MESSAGE = "/dev/termination-log"  # its first 4096 bytes become part of the pod's status
PORT = 29500
_LIST_GPUS = f"nvidia-smi -L > {MESSAGE} 2>&1"
# one process per GPU; the payload takes its rank from Slurm's variables
_RANKS = """until getent hosts "$MASTER_ADDR" > /dev/null; do sleep 1; done
local=0; pids=
while [ "$local" -lt "$GPUS" ]; do
  SLURM_PROCID=$((JOB_COMPLETION_INDEX * GPUS + local)) SLURM_LOCALID=$local "$@" &
  pids="$pids $!"; local=$((local + 1))
done
rc=0; for pid in $pids; do wait "$pid" || rc=$?; done; exit "$rc"
"""
# a line means release(); at end of file the output has no reader any more, and a write would end kubectl
_DELETE = 'read -r _ || exec "$@" > /dev/null 2>&1; exec "$@"'
_UNPACK = "import base64, os, zlib; exec(zlib.decompress(base64.b64decode(os.environ['PAYLOAD'])))"


@dataclass(frozen=True)
class PodResult:
    """How the pod of a Job ended on a node. `problem`: why there is no result, '' if there is."""

    node: str
    message: str = ""
    rc: int | None = None
    problem: str = ""
    pod: str = ""


@dataclass(frozen=True)
class JobFacts:
    """What became of the Jobs.

    `gpus`: {node: result of nvidia-smi -L}; `left_out`: {node: why it has no Job}. `nccl`: the pods by index, `nccl_hosts`
    their nodes as Kubernetes names them.
    """

    gpus: Mapping[str, PodResult] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    nccl: tuple[PodResult, ...] = ()
    nccl_hosts: tuple[str, ...] = ()
    nccl_log: str = ""
    nccl_problem: str = ""
    gpus_per_node: int = 0


class Guard:
    """Deletes the labelled objects at any end of this process. Make it before the first object."""

    def __init__(self, kubectl: Kubectl, mark: str) -> None:
        words = (
            "delete",
            "jobs,services",
            f"--namespace={kubectl.config.namespace}",
            f"--selector={LABEL}={mark}",
        )
        delete = kubectl.argv(*words, "--ignore-not-found", "--wait=false")
        self._process = kubectl.transport.spawn(("sh", "-c", _DELETE, "sh", *delete))

    def release(self, patience: float) -> str:
        """Delete now; return why that failed, '' if it did not."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            out, err = self._process.communicate(b"\n", patience)
            if self._process.returncode == 0:
                return ""
            return (err or out).decode(errors="replace").strip().rpartition("\n")[2]
        kill_group(self._process)
        return f"kubectl delete did not end within {patience:g} s"


def run_jobs(
    kubectl: Kubectl, seen: KubeFacts, nodes: Sequence[str], busy: Mapping[str, str]
) -> tuple[JobFacts, str]:
    """Run the Jobs on the nodes that are free; return the facts, and why objects may be left, '' if none are."""
    left_out = {node: why for node in nodes if (why := busy.get(node) or why_not(seen, node, kubectl.config))}
    free = [node for node in nodes if node not in left_out]
    if not free:
        return JobFacts(left_out=left_out, nccl_problem="no node is free for a Job"), ""
    mark, token = run_mark.name_of_run("kube", secrets.token_hex(4)), secrets.token_hex(4)
    guard = Guard(kubectl, mark)
    try:
        work = _Work(kubectl, seen, mark, token)
        gpus = work.list_gpus(free)
        good = [node for node in free if gpus[node].rc == 0]
        facts = (
            work.nccl(good) if kubectl.config.nccl else JobFacts(nccl_problem="`kubernetes.nccl` is false")
        )
        facts = JobFacts(**{**vars(facts), "gpus": gpus, "left_out": left_out})
    finally:
        left = guard.release(kubectl.config.timeout)
    return facts, left


def why_not(seen: KubeFacts, node: str, config: KubernetesConfig) -> str:
    """Return why no Job may run on a node, '' where it may."""
    found = seen.nodes.get(node)
    if found is None:
        return seen.nodes_problem or "Kubernetes has no node of this name or address"
    ready = found.conditions.get("Ready")
    if found.cordoned or ready is None or ready.status != "True":
        return "the node is cordoned" if found.cordoned else "the node is not Ready"
    if seen.pods_problem:
        return seen.pods_problem
    pods = [pod for pod in seen.pods.get(node, ()) if not pod.ended and pod.holds(config.gpu_resource)]
    if pods:
        return f"pod {pods[0].namespace}/{pods[0].name} uses GPUs"
    return "" if _gpus(seen, node, config) else f"the node offers no {config.gpu_resource}"


def _gpus(seen: KubeFacts, node: str, config: KubernetesConfig) -> int:
    return whole(seen.nodes[node].allocatable.get(config.gpu_resource, "")) or 0


class _Work:
    """The Jobs of one run."""

    def __init__(self, kubectl: Kubectl, seen: KubeFacts, mark: str, token: str) -> None:
        self.kubectl, self.seen, self.mark, self.token = kubectl, seen, mark, token
        self.config = kubectl.config

    def list_gpus(self, nodes: Sequence[str]) -> dict[str, PodResult]:
        """Run nvidia-smi -L on each node, all at once."""
        jobs = {f"gpucluster-gpus-{self.token}-{at}": node for at, node in enumerate(nodes)}
        made = [
            self.job(name, [node], _gpus(self.seen, node, self.config), ["sh", "-c", _LIST_GPUS])
            for name, node in jobs.items()
        ]
        _, problem = self.create({"apiVersion": "v1", "kind": "List", "items": made})
        if problem:
            return {node: PodResult(node, problem=problem) for node in nodes}
        ended = self.wait(dict.fromkeys(jobs, 1))
        return {node: self.result(node, ended.get((name, 0))) for name, node in jobs.items()}

    def nccl(self, nodes: Sequence[str]) -> JobFacts:
        """Run the collective over all nodes, one pod each."""
        counts = {_gpus(self.seen, node, self.config) for node in nodes}
        if len(nodes) < 2 or len(counts) != 1:
            few = f"{len(nodes)} nodes are free and list their GPUs; it needs two"
            return JobFacts(
                nccl_problem=few if len(nodes) < 2 else "the nodes offer different numbers of GPUs"
            )
        (gpus,) = counts
        name = f"gpucluster-nccl-{self.token}"
        text, problem = self.create(self.nccl_job(name, nodes, gpus))
        if not problem:
            try:
                _, problem = self.create(self.service(name, read_uid(text)))
            except ProbeError as error:
                problem = str(error)
        if problem:
            return JobFacts(nccl_problem=problem)
        ended = self.wait({name: len(nodes)})
        by_name = {self.seen.nodes[node].name: node for node in nodes}
        pods = [ended.get((name, index)) for index in range(len(nodes))]
        where = [by_name.get(pod.node if pod else "", "?") for pod in pods]
        results = tuple(self.result(node, pod) for node, pod in zip(where, pods, strict=True))
        log = ""
        if results[0].pod:
            log, problem = self.kubectl.ask("logs", f"--namespace={self.config.namespace}", results[0].pod)
        hosts = tuple((pod.node if pod else "") or "?" for pod in pods)
        return JobFacts(
            nccl=results, nccl_hosts=hosts, nccl_log=log, nccl_problem=problem, gpus_per_node=gpus
        )

    def nccl_job(self, name: str, nodes: Sequence[str], gpus: int) -> dict[str, Any]:
        """Return the Indexed Job: its pods have the host names NAME-INDEX under the headless Service NAME."""
        first, last = self.config.nccl_sizes
        payload = base64.b64encode(zlib.compress(sent(COLLECTIVE).encode(), 9)).decode()
        sweep = ["sweep", "-c", "all_reduce", "-b", str(first), "-e", str(last), "-f", "4"]
        command = ["sh", "-c", _RANKS, "sh", self.config.python, "-c", _UNPACK, *sweep]
        job = self.job(name, nodes, gpus, command)
        job["spec"] |= {"completions": len(nodes), "parallelism": len(nodes), "completionMode": "Indexed"}
        pod = job["spec"]["template"]["spec"]
        pod["subdomain"] = name
        container = pod["containers"][0]
        variables = {
            "PAYLOAD": payload,
            "GPUS": str(gpus),
            "SLURM_NTASKS": str(gpus * len(nodes)),
            "MASTER_ADDR": f"{name}-0.{name}",
            "MASTER_PORT": str(PORT),
        }
        container["env"] = [
            {"name": "SLURMD_NODENAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *({"name": key, "value": value} for key, value in variables.items()),
        ]
        # NCCL exchanges data between the GPUs of a node through it; the default is 64 MiB
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
        pod["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
        return job

    def job(self, name: str, nodes: Sequence[str], gpus: int, command: list[str]) -> dict[str, Any]:
        """Return a Job of one container with these GPUs, on one of these nodes."""
        config = self.config
        names = [self.seen.nodes[node].name for node in nodes]
        terms = [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [it]}]} for it in names
        ]
        tolerated = [
            {"key": it.partition(":")[0].partition("=")[0], "operator": "Exists"} for it in config.taints
        ]
        pod: dict[str, Any] = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "tolerations": tolerated,
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
                }
            },
            "containers": [
                {
                    "name": "check",
                    "image": config.image,
                    "command": command,
                    "resources": {"limits": {config.gpu_resource: str(gpus)}},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                }
            ],
            **({"runtimeClassName": config.runtime_class} if config.runtime_class else {}),
        }
        labels = {LABEL: self.mark}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": int(config.job_pull + config.job_time),
                "ttlSecondsAfterFinished": int(config.keep_finished),
                "template": {"metadata": {"labels": {**labels, "gpucluster-job": name}}, "spec": pod},
            },
        }

    def service(self, name: str, owner: str) -> dict[str, Any]:
        """Return the headless Service, which Kubernetes removes together with its Job."""
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": {LABEL: self.mark}, "ownerReferences": [reference]},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {"gpucluster-job": name},
                "ports": [{"port": PORT}],
            },
        }

    def create(self, found: dict[str, Any]) -> tuple[str, str]:
        """Create objects; return what the API server made of them, and why it refused."""
        words = (
            "create",
            f"--namespace={self.config.namespace}",
            "--validate=false",
            "-f",
            "-",
            "-o",
            "json",
        )
        return self.kubectl.ask(*words, stdin=json.dumps(found))

    def wait(self, wanted: Mapping[str, int]) -> dict[tuple[str, int], JobPod]:
        """Return {(Job, index): pod} as soon as all pods have ended, or what there is at the deadline.

        GpuClusterError if the pods cannot be read, or one has an index that its Job does not have.
        """
        deadline = time.monotonic() + self.config.job_pull + self.config.job_time
        total, pause = sum(wanted.values()), POLL[0]
        found: dict[tuple[str, int], JobPod] = {}
        while True:
            time.sleep(pause)
            pause = min(POLL[1], 2 * pause)
            # with those seen before: Kubernetes deletes the pods of a Job at its deadline
            found |= {
                (pod.job, _index(pod, wanted[pod.job])): pod for pod in self.pods() if pod.job in wanted
            }
            if sum(pod.ended for pod in found.values()) == total or time.monotonic() > deadline:
                return found

    def pods(self) -> list[JobPod]:
        """Return the pods of this run; GpuClusterError if they cannot be read."""
        words = ("get", "pods", f"--namespace={self.config.namespace}", f"--selector={LABEL}={self.mark}")
        text, problem = self.kubectl.ask(*words, "-o", "json")
        try:
            found = [] if problem else read_job_pods(text)
        except ProbeError as error:
            problem = str(error)
        if problem:
            raise GpuClusterError(f"the pods of the Jobs cannot be read: {problem}")
        return found

    def result(self, node: str, pod: JobPod | None) -> PodResult:
        """Return how a pod ended."""
        if pod is None:
            return PodResult(
                node, problem="the Job has no pod: quota, admission or its deadline (kubectl describe job)"
            )
        if pod.rc is not None:
            return PodResult(node, pod.message, pod.rc, pod=pod.name)
        return PodResult(node, problem=f"pod {pod.name} did not run in time: {pod.problem}")


def _index(pod: JobPod, pods: int) -> int:
    """Return the index of a pod in a Job of so many pods; a Job of one pod is not Indexed."""
    index = 0 if pod.index is None and pods == 1 else pod.index
    if index is None or not 0 <= index < pods:
        shown = "no completion index" if index is None else f"completion index {index}, of {pods} pods"
        raise GpuClusterError(f"the pods of the Jobs cannot be read: pod {pod.name} has {shown}")
    return index
