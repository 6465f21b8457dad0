"""Answers of the API server about Jobs: what is damaged is one clear error."""

from __future__ import annotations

import copy
import json
import subprocess
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from constants import with_constants

from pytest_gpucluster.core.errors import GpuClusterError, ProbeError
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.suites.kubernetes import facts, jobs
from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
from pytest_gpucluster.suites.kubernetes.job_checks import RANK

if TYPE_CHECKING:
    from pathlib import Path

ENDED = {"terminated": {"exitCode": 3, "message": "no GPU"}}
POD = {
    "metadata": {
        "name": "pod-0",
        "labels": {"gpucluster-job": "gpucluster-nccl-t"},
        "annotations": {facts.COMPLETION_INDEX: "0"},
    },
    "spec": {"nodeName": "kube01"},
    "status": {"phase": "Failed", "containerStatuses": [{"state": ENDED}]},
}
HOSTS = ["gpu01", "gpu02"]
NODES = {name: facts.KubeNode(f"kube{name[-2:]}", allocatable={"nvidia.com/gpu": "8"}) for name in HOSTS}
CREATED = '{"metadata": {"uid": "1"}}'


class Answers:
    """kubectl, with the answers of a test."""

    def __init__(self, pods: object, created: str) -> None:
        self.config = with_constants(KubernetesConfig, {"job_time": 1, "job_pull": 1})
        self.pods, self.created = pods, created

    def ask(self, *words: str, stdin: str = "") -> tuple[str, str]:
        return {"create": self.created, "get": json.dumps(self.pods), "logs": ""}[words[0]], ""


def work(pods: object, created: str = CREATED) -> Any:
    return jobs._Work(Answers(pods, created), facts.KubeFacts(nodes=NODES), "mark", "t")  # type: ignore[arg-type]


def damaged(path: str, value: object = ...) -> dict[str, Any]:
    """Return a List of a pod without the value at a path, or with another one."""
    pod: Any = copy.deepcopy(POD)
    *folders, last = path.replace("INDEX", facts.COMPLETION_INDEX).split(":")
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


def test_a_creation_counts_as_refused_only_where_the_answer_excludes_it() -> None:
    for problem, noted in (
        ("", b"yes\n"),
        ("kubectl create: Error from server (Forbidden): jobs.batch is forbidden: exceeded quota", b"no\n"),
        ('kubectl create: The Job "x" is invalid: spec.template', b"no\n"),
        ("kubectl create: admission webhook denied the request", b"no\n"),
        ("kubectl create: Error from server (InternalError): timeout", b"unknown\n"),
        ("kubectl create: Error from server (AlreadyExists): jobs.batch already exists", b"unknown\n"),
        ("kubectl: not finished after 65 s: does its server respond?", b"unknown\n"),
    ):
        kubectl = Mock()
        kubectl.config = KubernetesConfig()
        kubectl.argv.return_value = ("kubectl",)
        jobs.Guard(kubectl, "x", 60, Mock()).note(problem)
        kubectl.transport.spawn.return_value.stdin.write.assert_called_once_with(noted)


def test_pod_without_an_index_of_its_job_is_one_clear_error() -> None:
    for index, shown in (
        *((it, "pod pod-0 has no completion index") for it in (..., None)),
        *((it, f"pod pod-0 has completion index {it}, of 2 pods") for it in ("2", "-1")),
    ):
        with pytest.raises(GpuClusterError, match=f"^the pods of the Jobs cannot be read: {shown}$"):
            work(damaged("metadata:annotations:INDEX", index)).nccl(HOSTS)


@pytest.mark.parametrize(
    "answer", ["", "x", "[]", "{}", '{"metadata": null}', '{"metadata": []}', '{"metadata": {"uid": null}}']
)
def test_created_job_without_a_uid_is_one_clear_error(answer: str) -> None:
    with pytest.raises(ProbeError, match=r"^kubectl create: "):
        facts.read_uid(answer)
    guard = Mock()
    assert work({"items": []}, answer).own(guard, "gpu01").startswith("kubectl create: ")
    guard.note.assert_called_once_with("")  # it was created


def test_pods_that_ended_or_wait_are_read_and_null_stands_for_what_is_absent() -> None:
    def read(pod: dict[str, Any]) -> facts.JobPod:
        (found,) = facts.read_job_pods(json.dumps({"items": [pod]}))
        return found

    assert read(POD) == facts.JobPod("pod-0", "gpucluster-nccl-t", 0, "kube01", True, 3, "no GPU", "Failed")
    meta = {"name": "p", "labels": {"gpucluster-job": "j"}, "annotations": None}
    nothing = dict.fromkeys(("phase", "containerStatuses", "conditions", "reason"))
    assert read({"metadata": meta, "spec": None, "status": nothing}) == facts.JobPod("p", "j")
    waits = {"terminated": None, "waiting": {"reason": "ErrImagePull"}}
    status = {"phase": "Pending", "containerStatuses": [{"state": waits}]}
    pod = facts.JobPod("p", "j", problem="Pending: ErrImagePull")
    assert read({"metadata": meta, "status": status}) == pod


def test_rank_of_endless_digits_is_no_rank() -> None:
    assert RANK.findall(f"# rank {'9' * 5000}: node gpu01 \n# rank 7: node gpu02 \n") == [("7", "gpu02")]


@pytest.mark.parametrize(("created", "tries"), [("yes", 4), ("unknown", 4), ("no", 0)])
def test_the_shell_gives_up_once_the_ttl_has_passed(tmp_path: Path, created: str, tries: int) -> None:
    """Each try takes a second of the clock of a test; pauses take none."""
    clock = tmp_path / "uptime"
    clock.write_text("0.5 9\n")
    text = script(jobs.__package__, "delete.sh").replace("/proc/uptime", str(clock)).replace("sleep", ": #")
    refused = (
        f"cat >/dev/null; read -r n _ <{clock}; echo $((${{n%.*}} + 1)).5 9 >{clock}; echo '(Internal)' >&2; exit 1"
    )
    argv = ("sh", "-c", text, "sh", "1", "3", "{}", "sh", "-c", refused)
    done = subprocess.run(argv, input=f"{created}\n", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1 if tries else 0, "(Internal)\n" * tries)
