"""Answers of the API server about Jobs: what is damaged is one clear error."""

from __future__ import annotations

import copy
import json
import subprocess
from typing import Any
from unittest.mock import Mock

import pytest
from constants import with_constants

from pytest_gpucluster.core.errors import GpuClusterError, ProbeError
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.suites.kubernetes import jobs
from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
from pytest_gpucluster.suites.kubernetes.facts import (
    COMPLETION_INDEX,
    JobPod,
    KubeFacts,
    KubeNode,
    read_job_pods,
    read_uid,
)
from pytest_gpucluster.suites.kubernetes.job_checks import RANK

POD = {
    "metadata": {
        "name": "pod-0",
        "labels": {"gpucluster-job": "gpucluster-nccl-t"},
        "annotations": {COMPLETION_INDEX: "0"},
    },
    "spec": {"nodeName": "kube01"},
    "status": {
        "phase": "Failed",
        "containerStatuses": [{"state": {"terminated": {"exitCode": 3, "message": "no GPU"}}}],
    },
}
NODES = {
    name: KubeNode(f"kube{name[-2:]}", allocatable={"nvidia.com/gpu": "8"}) for name in ("gpu01", "gpu02")
}


class Answers:
    """kubectl, with the answers of a test."""

    def __init__(self, pods: object, created: str = '{"metadata": {"uid": "1"}}') -> None:
        self.config = with_constants(KubernetesConfig, {"job_time": 1}, job_pull="1s")
        self.pods, self.created = pods, created

    def ask(self, *words: str, stdin: str = "") -> tuple[str, str]:
        return {"create": self.created, "get": json.dumps(self.pods), "logs": ""}[words[0]], ""


def work(pods: object, created: str = '{"metadata": {"uid": "1"}}') -> Any:
    return jobs._Work(Answers(pods, created), KubeFacts(nodes=NODES), "mark", "t")  # type: ignore[arg-type]


def damaged(path: str, value: object = ...) -> dict[str, Any]:
    """Return a List of a pod without the value at a path, or with another one."""
    pod: Any = copy.deepcopy(POD)
    *folders, last = path.replace("INDEX", COMPLETION_INDEX).split(":")
    at = pod
    for key in folders:
        at = at[int(key) if isinstance(at, list) else key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return {"items": [pod]}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "POLL", (0.0, 0.0))


DAMAGED = [
    {"items": None},
    {"items": [None]},
    {},
    [],
    *(damaged(key, None) for key in ("metadata", "metadata:labels")),
    damaged("metadata:labels:gpucluster-job"),
    *(damaged("metadata:annotations:INDEX", value) for value in ("", "x", "²", "9" * 5000, 1.5)),
    *(
        damaged("status:containerStatuses:0:state:terminated:exitCode", value)
        for value in (..., None, "x", True, 1e999)
    ),
    damaged("status", "x"),
    damaged("status:containerStatuses", [None]),
]


@pytest.mark.parametrize("answer", DAMAGED)
def test_damaged_pods_of_a_job_are_one_clear_error(answer: object) -> None:
    with pytest.raises(ProbeError, match=r"^kubectl get pods: "):
        read_job_pods(json.dumps(answer))
    with pytest.raises(GpuClusterError, match=r"^the pods of the Jobs cannot be read: kubectl get pods: "):
        work(answer).nccl(["gpu01", "gpu02"])


@pytest.mark.parametrize(
    ("problem", "noted"),
    [
        ("", b"yes\n"),
        ("kubectl create: Error from server (Forbidden): jobs.batch is forbidden: exceeded quota", b"no\n"),
        ('kubectl create: The Job "x" is invalid: spec.template', b"no\n"),
        ("kubectl create: admission webhook denied the request", b"no\n"),
        ("kubectl create: Error from server (InternalError): timeout", b"unknown\n"),
        ("kubectl create: Error from server (AlreadyExists): jobs.batch already exists", b"unknown\n"),
        ("kubectl: not finished after 65 s: does its server respond?", b"unknown\n"),
    ],
)
def test_a_creation_counts_as_refused_only_where_the_answer_excludes_it(problem: str, noted: bytes) -> None:
    kubectl = Mock()
    kubectl.config = KubernetesConfig()
    kubectl.argv.return_value = ("kubectl",)
    jobs.Guard(kubectl, "x", 60, Mock()).note(problem)
    kubectl.transport.spawn.return_value.stdin.write.assert_called_once_with(noted)


@pytest.mark.parametrize(
    ("index", "shown"),
    [
        (..., "pod pod-0 has no completion index"),
        (None, "pod pod-0 has no completion index"),
        ("2", "pod pod-0 has completion index 2, of 2 pods"),
        ("-1", "pod pod-0 has completion index -1, of 2 pods"),
    ],
)
def test_pod_without_an_index_of_its_job_is_one_clear_error(index: object, shown: str) -> None:
    with pytest.raises(GpuClusterError, match=f"^the pods of the Jobs cannot be read: {shown}$"):
        work(damaged("metadata:annotations:INDEX", index)).nccl(["gpu01", "gpu02"])


@pytest.mark.parametrize(
    "answer", ["", "x", "[]", "{}", '{"metadata": null}', '{"metadata": []}', '{"metadata": {"uid": null}}']
)
def test_created_job_without_a_uid_is_one_clear_error(answer: str) -> None:
    with pytest.raises(ProbeError, match=r"^kubectl create: "):
        read_uid(answer)
    guard = Mock()
    assert work({"items": []}, answer).own(guard, "gpu01").startswith("kubectl create: ")
    guard.note.assert_called_once_with("")  # it was created


def test_null_stands_for_what_is_absent() -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": "p", "labels": {"gpucluster-job": "j"}, "annotations": None},
        "spec": None,
        "status": {"phase": None, "containerStatuses": None, "conditions": None, "reason": None},
    }
    assert read_job_pods(json.dumps({"items": [pod]})) == [JobPod("p", "j")]
    pod["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"state": {"terminated": None, "waiting": {"reason": "ErrImagePull"}}}],
    }
    assert read_job_pods(json.dumps({"items": [pod]})) == [JobPod("p", "j", problem="Pending: ErrImagePull")]


def test_ended_pod_is_read_with_its_exit_status_and_message() -> None:
    assert read_job_pods(json.dumps({"items": [POD]})) == [
        JobPod("pod-0", "gpucluster-nccl-t", 0, "kube01", True, 3, "no GPU", "Failed")
    ]


def test_rank_of_endless_digits_is_no_rank() -> None:
    assert RANK.findall(f"# rank {'9' * 5000}: node gpu01 \n# rank 7: node gpu02 \n") == [("7", "gpu02")]


@pytest.mark.parametrize("created", ["yes", "unknown"])
@pytest.mark.thorough  # it waits for the TTL
def test_the_shell_gives_up_once_the_ttl_has_passed(created: str) -> None:
    refused = ("sh", "-c", "cat > /dev/null; echo 'Error from server (InternalError)' >&2; exit 1")
    argv = ("sh", "-c", script(jobs.__package__, "delete.sh"), "sh", "1", "1", "{}", *refused)
    done = subprocess.run(argv, input=f"{created}\n", capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error from server (InternalError)\n")
