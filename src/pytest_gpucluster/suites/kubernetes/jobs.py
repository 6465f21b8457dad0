"""Jobs of Kubernetes: `nvidia-smi -L` on each GPU node, then one NCCL Job on all of them. Only where `jobs: true`.

A Job without pods, `gpucluster-run-...`, is created first and owns all other objects (ownerReferences): once it is deleted,
Kubernetes removes them, also those whose creation was still in flight. It is deleted at the end, also where this process is
killed: a shell reads a pipe from it and deletes when the pipe closes. If the shell is killed at the same time, Kubernetes
ends the Jobs by activeDeadlineSeconds, and removes them and their owner by ttlSecondsAfterFinished.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pytest_gpucluster.core import run_mark
from pytest_gpucluster.core.errors import GpuClusterError, ProbeError
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.framework.payload_step import COLLECTIVE, command
from pytest_gpucluster.suites.kubernetes.facts import read_job_pods, read_uid, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
    from pytest_gpucluster.suites.kubernetes.facts import JobPod, KubeFacts
    from pytest_gpucluster.suites.kubernetes.steps import Kubectl

LABEL = "pytest-gpucluster/run"
POLL = 0.5, 5.0  # shortest and longest time between two queries of the pods of all Jobs
MESSAGE = "/dev/termination-log"  # its first 4096 bytes become part of the pod's status
PORT = 29500
_LIST_GPUS = f"nvidia-smi -L > {MESSAGE} 2>&1"
SERVER_TIMEOUT = 60  # seconds: --request-timeout of kube-apiserver; no request takes effect later
# answers after which nothing was created; any other failure, as a timeout or 5xx, leaves that open
_REFUSED = re.compile(r"\((?:Forbidden|Invalid|BadRequest|Unauthorized|NotFound)\)|is invalid|denied the request")


@dataclass(frozen=True)
class PodResult:
    """How the pod of a Job ended on a node. `problem`: why there is no result, '' if there is."""

    node: str
    message: str = ""
    rc: int | None = None
    problem: str = ""
    pod: str = ""


@dataclass(frozen=True)
class KubernetesJobs:
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
    """Deletes the owner of all objects at any end of this process. Make it before the first object.

    The shell retries until the API server answers that the owner is gone, or until its TTL has passed. `report` receives
    why objects may be left at the end of the run.
    """

    def __init__(self, kubectl: Kubectl, owner: str, lifetime: int, report: Callable[[str], None]) -> None:
        words, options = deletion(kubectl.config.namespace, owner)
        # kubectl's own limit, and then that of the server
        settled = str(int(kubectl.config.timeout) + SERVER_TIMEOUT)
        shell = ("sh", "-c", script(__package__, "delete.sh"), "sh")
        self._argv = (*shell, settled, str(lifetime), options, *kubectl.argv(*words))
        self._kubectl, self._report, self._created = kubectl, report, b""
        self._process = kubectl.transport.spawn(self._argv)

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = "the run was stopped before the API server confirmed their deletion"
        try:
            left = self._release(self._kubectl.config.timeout)
        finally:
            if left:
                self._report(left)

    def note(self, problem: str) -> None:
        """Record the result of the creation of the owner: `problem` is '' if it succeeded."""
        self._created = b"no\n" if _REFUSED.search(problem) else b"unknown\n" if problem else b"yes\n"
        self._send()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the shell was killed: _release starts another
            assert self._process.stdin is not None
            self._process.stdin.write(self._created)
            self._process.stdin.flush()

    def _release(self, patience: float) -> str:
        """Delete now; return why that failed, '' if it did not. The shell continues if `patience` is over."""
        try:
            _, err = self._process.communicate(timeout=patience)
            if self._process.returncode != 0:  # the shell was killed: another one takes its place
                self._process = self._kubectl.transport.spawn(self._argv)
                self._send()
                _, err = self._process.communicate(timeout=patience)
        except subprocess.TimeoutExpired as late:
            why = _last_line(late.stderr or b"") or "the API server has not confirmed their deletion"
            return f"{why}; after {patience:g} s process {self._process.pid} continues to delete them"
        rc = self._process.returncode
        return "" if rc == 0 else _last_line(err) or f"the shell that deletes them ended with {rc}"


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def deletion(namespace: str, job: str, **options: object) -> tuple[tuple[str, ...], str]:
    """Return the words of a kubectl command that deletes a Job and what it owns, and the command's stdin.

    The policy is in the query too: without it, as where a proxy drops the body, the API server keeps what a Job owns.
    """
    policy = {"propagationPolicy": "Background"}
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}?{urlencode(policy)}"
    words = ("delete", f"--raw={path}", "--filename=-")
    body = {"apiVersion": "v1", "kind": "DeleteOptions", **policy}
    return words, json.dumps({**body, **options})


def run_jobs(
    kubectl: Kubectl,
    seen: KubeFacts,
    nodes: Sequence[str],
    busy: Mapping[str, str],
    report: Callable[[str], None],
    *,
    nccl: bool = True,
) -> KubernetesJobs:
    """Run the Jobs on the nodes that are free; `nccl`: the NCCL Job too. `report` receives why objects may be left at the end."""
    config = kubectl.config
    left_out = {node: why for node in nodes if (why := busy.get(node) or why_not(seen, node, config))}
    free = [node for node in nodes if node not in left_out]
    if not free:
        return KubernetesJobs(left_out=left_out, nccl_problem="no node is free for a Job")
    work = _Work(kubectl, seen, run_mark.name_of_run("kube", secrets.token_hex(4)), secrets.token_hex(4))
    with Guard(kubectl, work.owner["name"], lifetime(config), report) as guard:
        if problem := work.own(guard, free[0]):
            gpus = {node: PodResult(node, problem=problem) for node in free}
            return KubernetesJobs(gpus=gpus, left_out=left_out, nccl_problem=problem)
        gpus = work.list_gpus(free)
        good = [node for node in free if gpus[node].rc == 0]
        facts = work.nccl(good) if nccl else KubernetesJobs(nccl_problem="it does not apply to this cluster")
    return KubernetesJobs(**{**vars(facts), "gpus": gpus, "left_out": left_out})


def lifetime(config: KubernetesConfig) -> int:
    """Return the seconds after which Kubernetes removes the owner: both rounds of Jobs and their kubectl commands end before."""
    return int(2 * (config.job_pull + config.job_time + 3 * config.timeout) + config.keep_finished)


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
        self.owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"gpucluster-run-{token}"}

    def own(self, guard: Guard, node: str) -> str:
        """Create the owner of all other objects; return why that failed, '' if it did not.

        It has the form of the other Jobs, which passes the same admission, and ends at once: it needs no completion.
        """
        job = self.job(self.owner["name"], [node], _gpus(self.seen, node, self.config), ["true"])
        del job["metadata"]["ownerReferences"]
        job["spec"] |= {"completions": 0, "parallelism": 0, "ttlSecondsAfterFinished": lifetime(self.config)}
        text, problem = self.create(job)
        guard.note(problem)
        try:
            self.owner["uid"] = "" if problem else read_uid(text)
        except ProbeError as error:
            return str(error)
        return problem

    def list_gpus(self, nodes: Sequence[str]) -> dict[str, PodResult]:
        """Run nvidia-smi -L on each node, all at once."""
        jobs = {f"gpucluster-gpus-{self.token}-{at}": node for at, node in enumerate(nodes)}
        gpus, argv = {node: _gpus(self.seen, node, self.config) for node in nodes}, ["sh", "-c", _LIST_GPUS]
        made = [self.job(name, [node], gpus[node], argv) for name, node in jobs.items()]
        _, problem = self.create({"apiVersion": "v1", "kind": "List", "items": made})
        if problem:
            return {node: PodResult(node, problem=problem) for node in nodes}
        ended = self.wait(dict.fromkeys(jobs, 1))
        return {node: self.result(node, ended.get((name, 0))) for name, node in jobs.items()}

    def nccl(self, nodes: Sequence[str]) -> KubernetesJobs:
        """Run the collective over all nodes, one pod each."""
        counts = {_gpus(self.seen, node, self.config) for node in nodes}
        if len(nodes) < 2:
            few = f"{len(nodes)} nodes are free and list their GPUs; it needs two"
            return KubernetesJobs(nccl_problem=few)
        if len(counts) != 1:
            return KubernetesJobs(nccl_problem="the nodes offer different numbers of GPUs")
        (gpus,) = counts
        name = f"gpucluster-nccl-{self.token}"
        made = [self.service(name), self.nccl_job(name, nodes, gpus)]
        _, problem = self.create({"apiVersion": "v1", "kind": "List", "items": made})
        if problem:
            return KubernetesJobs(nccl_problem=problem)
        ended = self.wait({name: len(nodes)})
        by_name = {self.seen.nodes[node].name: node for node in nodes}
        pods = [ended.get((name, index)) for index in range(len(nodes))]
        where = [by_name.get(pod.node if pod else "", "?") for pod in pods]
        results = tuple(self.result(node, pod) for node, pod in zip(where, pods, strict=True))
        log = ""
        if results[0].pod:
            log, problem = self.kubectl.ask("logs", f"--namespace={self.config.namespace}", results[0].pod)
        hosts = tuple((pod.node if pod else "") or "?" for pod in pods)
        return KubernetesJobs(nccl=results, nccl_hosts=hosts, nccl_log=log, nccl_problem=problem, gpus_per_node=gpus)

    def nccl_job(self, name: str, nodes: Sequence[str], gpus: int) -> dict[str, Any]:
        """Return the Indexed Job: its pods have the host names NAME-INDEX under the headless Service NAME."""
        first, last = self.config.nccl_sizes
        sweep = ["sweep", "-c", "all_reduce", "-b", str(first), "-e", str(last), "-f", "4"]
        ranks = ["sh", "-c", script(__package__, "ranks.sh"), "sh"]
        job = self.job(name, nodes, gpus, [*ranks, *command("python3", COLLECTIVE, *sweep)])
        job["spec"] |= {"completions": len(nodes), "parallelism": len(nodes), "completionMode": "Indexed"}
        pod = job["spec"]["template"]["spec"]
        pod["subdomain"] = name
        container = pod["containers"][0]
        variables = {
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
        names = [{"key": "metadata.name", "operator": "In", "values": [self.seen.nodes[it].name]} for it in nodes]
        terms = [{"matchFields": [it]} for it in names]
        keys = (it.partition(":")[0].partition("=")[0] for it in config.taints)
        tolerated = [{"key": it, "operator": "Exists"} for it in keys]
        pod: dict[str, Any] = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "tolerations": tolerated,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
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
            "metadata": {"name": name, "labels": labels, "ownerReferences": [self.owner]},
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": int(config.job_pull + config.job_time),
                "ttlSecondsAfterFinished": int(config.keep_finished),
                "template": {"metadata": {"labels": {**labels, "gpucluster-job": name}}, "spec": pod},
            },
        }

    def service(self, name: str) -> dict[str, Any]:
        """Return the headless Service."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": {LABEL: self.mark}, "ownerReferences": [self.owner]},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {"gpucluster-job": name},
                "ports": [{"port": PORT}],
            },
        }

    def create(self, found: dict[str, Any]) -> tuple[str, str]:
        """Create objects; return what the API server made of them, and why it refused."""
        words = ("create", f"--namespace={self.config.namespace}", "--validate=false", "--filename=-")
        return self.kubectl.ask(*words, "--output=json", stdin=json.dumps(found))

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
            own = (pod for pod in self.pods() if pod.job in wanted)
            found |= {(pod.job, _index(pod, wanted[pod.job])): pod for pod in own}
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
            why = "the Job has no pod: quota, admission or its deadline (kubectl describe job)"
            return PodResult(node, problem=why)
        if pod.rc is not None:
            return PodResult(node, pod.message, pod.rc, pod=pod.name)
        return PodResult(node, problem=f"pod {pod.name} did not run in time: {pod.problem}")


def _index(pod: JobPod, pods: int) -> int:
    """Return the index of a pod in a Job with this number of pods; a Job of one pod is not Indexed."""
    index = 0 if pod.index is None and pods == 1 else pod.index
    if index is None or not 0 <= index < pods:
        shown = "no completion index" if index is None else f"completion index {index}, of {pods} pods"
        raise GpuClusterError(f"the pods of the Jobs cannot be read: pod {pod.name} has {shown}")
    return index
