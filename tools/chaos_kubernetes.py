"""The kind `kubernetes` of chaos.py: runs of Jobs against a SIMULATED API server that is slow and fails.

Only requests for the objects of runs meet trouble, so no verdict may blame a node for it.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "slurm-sandbox/tests"), str(ROOT)]

import kubernetes_server  # found by the path above
from kubernetes_server import Objects, Trouble

NODES = ("kube01", "kube02", "kube03")
TIMEOUT, JOB_PULL, JOB_TIME, KEEP = 5, 4, 2, 3600  # seconds; no TTL passes by itself
CONSTANTS = {"kubernetes.config.KubernetesConfig": {"timeout": TIMEOUT, "job_time": JOB_TIME, "keep_finished": KEEP}}
DEADLINE = 2 * (JOB_PULL + JOB_TIME + 3 * TIMEOUT) + KEEP  # docs/suites/kubernetes.md
GRACE = 100.0  # an owner that never appears is waited for TIMEOUT + 60 s
TESTS = ("job_gpus",) * len(NODES) + ("job_nccl",)
PROFILE = {"gpu": {"name": "NVIDIA H100 80GB HBM3", "count": 1}, "simulated": True}
# the pods of the NCCL Job never start, so it is not checked
IDS = tuple(f"suites/kubernetes/test_kubernetes.py::test_{name}" for name in dict.fromkeys(TESTS))


@dataclass
class Site:
    """The API server of one run, its cluster file, and when the run is to end: seconds after it created its first object."""

    objects: Objects
    cluster_file: Path
    at: float
    what: str

    def wait_for_jobs(self, stop: Any) -> None:
        """Wait until the first object is created, or `stop` returns True."""
        while not stop() and not any(it.startswith("POST") for it in self.objects.requests):
            time.sleep(0.01)

    def left(self, *, dead: bool) -> list[str]:
        """Return what is left. `dead`: no process of the run lives, so only Kubernetes removes it, by the deadline."""
        if dead and not self.objects.open:
            self.objects.pass_time(DEADLINE)
        return [f"{self.objects.open} requests"] * bool(self.objects.open) + self.objects.left()


@contextlib.contextmanager
def site(folder: Path, rng: random.Random) -> Iterator[Site]:
    """Serve a cluster of GPU nodes to one run, with trouble that `rng` chooses."""
    objects = Objects("v1.33.5", nodes=[_node(name) for name in NODES])
    objects.kubelet = _run_pod
    served = folder / "api"
    served.mkdir()
    with kubernetes_server.serving(objects, served) as kubeconfig:
        section = {
            "kubeconfig": str(kubeconfig),
            "nodes": "kube[01-03]",
            "profile": PROFILE,
            "jobs": True,
            "image": "example.com/image:1",
            "job_pull": JOB_PULL,
        }
        path = folder / "k8s.yaml"
        path.write_text(yaml.safe_dump({"kubernetes": section}))
        at = rng.choice((rng.uniform(0, 1), rng.uniform(0, 14)))
        yield Site(objects, path, at, _put_trouble(objects, rng, at))


def _put_trouble(objects: Objects, rng: random.Random, at: float) -> str:
    """Make requests for Jobs slow, and let them fail for some seconds around `at`; return what was chosen."""
    slowest = rng.choice((0.0, 1.0, TIMEOUT + 2.0))
    begin, length = at - rng.uniform(-0.3, 0.5), rng.choice((0.0, 4.0, 10.0))
    lock, first = threading.Lock(), list[float]()

    def trouble(_method: str, path: str) -> Trouble:
        if "/namespaces/default/" not in path:
            return Trouble()
        with lock:
            first.append(time.monotonic())
            fails = begin <= first[-1] - first[0] < begin + length
            delay, code, processed = rng.uniform(0, slowest), rng.choice((500, 503, 504)), rng.random() < 0.25
        return Trouble(delay, code if fails else 0, processed)

    objects.trouble = trouble
    return f"delay up to {slowest:g} s, 5xx from {begin:.1f} for {length:g} s"


def _node(name: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-21T02:00:00Z"}
    gpus = {"nvidia.com/gpu": "1"}
    status = {"conditions": [ready], "capacity": gpus, "allocatable": gpus}
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}, "spec": {}, "status": status}


def _run_pod(objects: Objects, job: dict[str, Any]) -> None:
    """End the pod of a Job that lists GPUs; as the kubelet, not before the Job was seen."""
    meta, spec = job["metadata"], job["spec"]["template"]
    if "nccl" in meta["name"]:
        return
    time.sleep(0.5)
    node = spec["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ][0]["matchFields"][0]["values"][0]
    message = f"GPU 0: {PROFILE['gpu']['name']} (UUID: GPU-00000000-0000-0000-0000-0000000000{node[-2:]})\n"  # type: ignore[index]
    state = {"terminated": {"exitCode": 0, "message": message}}
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"{meta['name']}-0",
            "uid": f"pod-of-{meta['uid']}",
            "namespace": meta["namespace"],
            "labels": spec["metadata"]["labels"],
            "ownerReferences": [{"kind": "Job", "uid": meta["uid"]}],
        },
        "spec": {"nodeName": node, "containers": [{"name": "check"}]},
        "status": {"phase": "Succeeded", "containerStatuses": [{"name": "check", "state": state}]},
    }
    objects.add("pods", pod)
