"""The kubernetes suite with the real kubectl, against recorded objects that a simulated API server serves."""

from __future__ import annotations

import copy
import datetime as dt
import json
import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from constants import in_environment
from corpus_cases import CORPUS, load
from kubernetes_kubelet import Kubelet
from kubernetes_server import Objects, Trouble, serving
from plugin_helpers import command, names, processes, run_pytest
from sandbox_helpers import environment, wait_for

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cluster.slurm import leftovers as slurm_leftovers
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core import run_mark
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.suites.container import containers
from pytest_gpucluster.suites.kubernetes.leftovers import jobs as left_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

RECORDED = CORPUS / "kubernetes" / "healthy-eks-h100-gpu-operator-1.35.txt"
NODES = [f"gpu{number:02}" for number in range(3, 14)]
OF_JOBS = {"kubernetes": {"nccl_sizes": (1 << 20, 1 << 22), "job_pull": 60}}
SUITE = ("--cluster=k8s.yaml", "-m", "kubernetes", "--pyargs", "pytest_gpucluster.suites.kubernetes")


def objects() -> Objects:
    """Return the recorded cluster with eleven nodes, each a copy of its first one."""
    items: list[dict[str, Any]] = []
    for section in load(RECORDED).sections:
        items += json.loads(section.text).get("items", [])
    kinds: dict[str, list[dict[str, Any]]] = {"nodes": [], "pods": [], "daemonsets": []}
    for item in items:
        if item["kind"] == "DaemonSet":
            kinds["daemonsets"].append(item)
        elif "gpu01" in (item["metadata"]["name"], item.get("spec", {}).get("nodeName")):
            for node in NODES:
                mine = json.loads(json.dumps(item).replace('"gpu01"', json.dumps(node)))
                if mine["kind"] == "Node":
                    mine["status"]["nodeInfo"] = {"kernelVersion": "6.8.0-1030-aws", "kubeletVersion": "v1.32.4"}
                    for part in ("capacity", "allocatable"):
                        mine["status"][part]["vpc.amazonaws.com/efa"] = "32"
                if mine["kind"] == "Pod":
                    mine["metadata"]["name"] += node
                kinds["nodes" if mine["kind"] == "Node" else "pods"].append(mine)
    return Objects("v1.33.5", **copy.deepcopy(kinds))


def cluster_file(folder: Path, **section: object) -> None:
    profile = yaml.safe_load(RECORDED.read_text().partition("\n---\n")[0])["profile"] | {"simulated": True}
    keys = {"nodes": "gpu[03-13]", "profile": profile, **section}
    (folder / "k8s.yaml").write_text(yaml.safe_dump({"kubernetes": keys}))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Objects, Path]]:
    """The objects that are served, and the folder of the runs."""
    monkeypatch.setenv("HOME", str(tmp_path))  # kubectl's cache
    found = objects()
    with serving(found, tmp_path) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        cluster_file(tmp_path)
        yield found, tmp_path


def break_nodes(found: Objects) -> None:
    """Put one fault into each node from gpu05 on."""
    found.node("gpu05")["status"]["conditions"][0] |= {"status": "False", "reason": "KubeletNotReady"}
    found.node("gpu06")["spec"]["taints"] = [{"key": "example.com/broken", "effect": "NoSchedule"}]
    found.node("gpu07")["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    plugin = found.pod("gpu08", "device-plugin")["status"]["containerStatuses"][0]
    plugin |= {"ready": False, "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    found.node("gpu09")["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-A100-SXM4-80GB"
    found.node("gpu10")["status"]["nodeInfo"]["kernelVersion"] = "5.15.0-91-generic"
    for part in ("capacity", "allocatable"):
        del found.node("gpu13")["status"][part]["vpc.amazonaws.com/efa"]
    request = {"resources": {"limits": {"nvidia.com/gpu": "9"}}}
    owner = {"kind": "DaemonSet", "name": "mofed-ubuntu22.04-ds"}
    found.kinds["pods"] += [
        pod("gpu11", "Running", {"name": "train", "namespace": "team-a"}, containers=[request]),
        pod("gpu12", "Pending", {"name": "mofed-x", "namespace": "net", "ownerReferences": [owner]}),
    ]


def pod(node: str, phase: str, meta: dict[str, Any], **spec: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"nodeName": node, **spec}}
    return {**about, "status": {"phase": phase, "containerStatuses": []}}


FAULTS = {
    "allocated": "gpu11",
    "gpu_operator": "gpu08",
    "gpus": "gpu07",
    "labels": "gpu09",
    "ready": "gpu05",
    "network_operator": "gpu12",
    "rdma": "gpu13",
    "software": "gpu10",
    "taints": "gpu06",
}


def test_each_fault_is_found_on_its_node_alone_and_a_node_in_slurm_too_is_one_node(
    sandbox: Sandbox, served: tuple[Objects, Path]
) -> None:
    found, folder = served
    break_nodes(found)
    for node in ("gpu03", "gpu04"):  # in Slurm too, with the GPUs that the sandbox's profile states
        labels = found.node(node)["metadata"]["labels"]
        labels |= {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771"}
    both = sandbox.cluster_file.read_text() + (folder / "k8s.yaml").read_text()
    (folder / "both.yaml").write_text(both)
    suites = ("--pyargs", "pytest_gpucluster.suites.slurm", "pytest_gpucluster.suites.kubernetes")
    run = run_pytest(folder, "--cluster=both.yaml", "-k", "kubernetes or test_known", *suites, where=())
    assert run.rc == 1, run.out + run.err
    failed = {f"test_{check}[{node}]" for check, node in FAULTS.items()}
    assert set(names(run.outcomes, "failed")) == failed, run.out
    assert "9 restarts" in run.out
    assert "SIMULATED" in run.out
    assert "drain" not in {event["action"] for event in run.events if "action" in event}
    assert run.event("nodes")["selected"] == [f"gpu{number:02}" for number in range(1, 14)]
    passed = names(run.outcomes, "passed")
    assert [it for it in passed if "known" in it] == [f"test_known[gpu{number:02}]" for number in range(1, 5)]
    assert {f"test_{name}[gpu04]" for name in ("ready", "gpus", "labels", "gpu_operator")} <= set(passed)
    # Slurm has none from gpu05 on, and Kubernetes is not stated for the first two
    absent = names(run.outcomes, "not applicable")
    assert {"test_known[gpu05]", "test_ready[gpu01]", "test_ready[gpu02]"} <= set(absent)
    lists = [it for it in found.requests if it in ("GET /api/v1/nodes", "GET /api/v1/pods")]
    assert len(lists) == 2, found.requests  # not one per node and check
    assert not [it for it in found.requests if not it.startswith("GET")]


def with_jobs(found: Objects, folder: Path) -> None:
    """Leave two nodes of one GPU, which a profile states, and ask for Jobs."""
    found.kinds["nodes"] = [found.node("gpu11"), found.node("gpu12")]
    for node in found.kinds["nodes"]:
        node["metadata"]["labels"]["nvidia.com/gpu.count"] = "1"
        for part in ("capacity", "allocatable"):
            node["status"][part]["nvidia.com/gpu"] = "1"
    keys = yaml.safe_load((folder / "k8s.yaml").read_text())["kubernetes"]
    keys |= {"nodes": "gpu[11-12]", "jobs": True, "image": "nvcr.io/nvidia/pytorch:26.01-py3"}
    keys["profile"]["gpu"]["count"] = 1
    (folder / "k8s.yaml").write_text(yaml.safe_dump({"kubernetes": keys}))


def test_healthy_cluster_passes_and_its_jobs_prove_ranks_and_are_removed(served: tuple[Objects, Path]) -> None:
    found, folder = served
    with_jobs(found, folder)
    found.kubelet = kubelet = Kubelet(folder, gpus_of={"gpu12": "gpu11"})
    with kubelet.running():
        run = run_pytest(folder, *SUITE, where=(), constants=OF_JOBS)
    failed = ["test_job_gpus[gpu11]", "test_job_gpus[gpu12]"]
    assert names(run.outcomes, "failed") == failed, run.out + run.err
    assert not names(run.outcomes, "not checked"), run.out
    assert "also listed on gpu11, gpu12" in run.out
    passed = {"test_api", "test_job_nccl", "test_gpus[gpu11]", "test_gpu_operator[gpu12]"}
    assert passed <= set(names(run.outcomes, "passed"))
    (result,) = [it for it in run.events if it["event"] == "result" and it["nodeid"].endswith("job_nccl")]
    assert {it["name"]: it["value"] for it in result["metrics"]}["job_nodes"] == 2
    assert found.kinds["jobs"] == found.kinds["services"] == []
    assert [it["spec"]["ttlSecondsAfterFinished"] for it in kubelet.jobs] == [300] * 3
    owners = [it["metadata"]["ownerReferences"][0]["name"] for it in kubelet.jobs]
    assert all(owner.startswith("gpucluster-run-") for owner in owners)
    assert all(it["spec"]["activeDeadlineSeconds"] == 660 for it in kubelet.jobs)
    assert found.requests.count("POST /api/v1/namespaces/default/services") == 1
    assert {"POST", "DELETE"} == {it.split()[0] for it in found.requests} - {"GET"}


def foreign_job(name: str, run: str | None, **status: object) -> dict[str, Any]:
    labels = {} if run is None else {"pytest-gpucluster/run": run}
    meta = {"name": name, "namespace": "default", "uid": f"uid-of-{name}", "labels": labels}
    about = {"kind": "Job", "apiVersion": "batch/v1", "metadata": meta}
    return {**about, "spec": {"ttlSecondsAfterFinished": 300}, "status": status}


JOBS = "POST /apis/batch/v1/namespaces/default/jobs"
ELSEWHERE = "gpucluster-kube-1a2b3c4d-12-34-00c0ffee"


def ended(when: str) -> list[dict[str, str]]:
    return [{"type": "Complete", "status": "True", "lastTransitionTime": when}]


@pytest.fixture
def cleaned(served: tuple[Objects, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Objects, Path]:
    """Like `served`; `gpucluster clean` finds nothing on this machine, which other tests share."""
    monkeypatch.setattr(slurm_leftovers, "folders", lambda *_more: [])
    monkeypatch.setattr(containers, "stale_user_files", list)
    with_jobs(*served)
    return served


def job_names(found: Objects) -> list[str]:
    return sorted(it["metadata"]["name"] for it in found.kinds["jobs"])


@contextmanager
def run_of_jobs(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run of Jobs whose pods never end."""
    argv = ["env", "--default-signal=TERM", *command(*SUITE, "-k", "job_gpus")]
    with subprocess.Popen(
        argv,
        cwd=folder,
        text=True,
        env=in_environment(environment(MARK=str(folder)), **OF_JOBS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as run:
        try:
            yield run
        finally:
            run.kill()


def shell_of(run: subprocess.Popen[str]) -> int:
    """Return the only shell that a run has started, which deletes its Jobs."""
    found = subprocess.run(["pgrep", "-x", "-P", str(run.pid), "sh"], stdout=subprocess.PIPE, check=True)
    return int(found.stdout)


def nothing_is_left(found: Objects, folder: Path) -> None:
    """Fail unless all objects go, also those of requests under way, and then the processes."""
    wait_for(lambda: not found.open, "all requests were answered")
    wait_for(lambda: not list(processes(f"MARK={folder}")), "all processes ended")
    assert found.left() == []


def test_jobs_of_a_killed_run_are_removed_by_its_shell_or_by_clean(
    cleaned: tuple[Objects, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found, folder = cleaned  # its pods never end: no kubelet runs them
    with run_of_jobs(folder) as run:
        wait_for(lambda: len(found.kinds["jobs"]) == 3, "the Jobs and their owner were created")
        left = copy.deepcopy(found.kinds["jobs"])
        run.kill()
    nothing_is_left(found, folder)
    found.kinds["jobs"] += left  # as if the shell had been killed too
    found.requests.clear()
    killed = job_names(found)
    late = dt.datetime.now(dt.timezone.utc).isoformat()
    found.kinds["jobs"] += [
        foreign_job("live", run_mark.name_of_run("kube", "00c0ffee")),
        foreign_job("elsewhere", ELSEWHERE),
        foreign_job("elsewhere-just-ended", ELSEWHERE, conditions=ended(late)),
        foreign_job("elsewhere-ended", ELSEWHERE, conditions=ended("2026-03-10T03:40:00Z")),
        foreign_job("unmarked", "gpucluster-kube-00c0ffee"),
        foreign_job("theirs", None),
    ]
    arguments = ["clean", f"--cluster={folder / 'k8s.yaml'}"]
    assert cli.main(arguments) == 0
    listed = capsys.readouterr().out
    for name in killed:
        assert f"Kubernetes Job default/{name} (active) of a killed run (process {run.pid})" in listed
    assert "Kubernetes Job default/elsewhere (active) of process 12 of another machine" in listed
    assert "Kubernetes Job default/elsewhere-just-ended (ended) of process 12" in listed
    assert "activeDeadlineSeconds and removes it 300 s later" in listed
    assert "default/unmarked (active) of a run without a mark" in listed
    assert "live" not in listed
    assert "theirs" not in listed
    assert "4 found: " in listed
    assert not [it for it in found.requests if it.startswith("DELETE")]
    assert cli.main([*arguments, "--yes"]) == 0
    assert job_names(found) == ["elsewhere", "elsewhere-just-ended", "live", "theirs", "unmarked"]
    deleted = [it.rpartition("/")[2] for it in found.requests if it.startswith("DELETE")]
    assert sorted(deleted) == sorted([*killed, "elsewhere-ended"])


def test_a_run_whose_shell_was_killed_deletes_its_jobs(cleaned: tuple[Objects, Path]) -> None:
    found, folder = cleaned
    with run_of_jobs(folder) as run:
        wait_for(lambda: len(found.kinds["jobs"]) == 3, "the Jobs were created")
        os.kill(shell_of(run), signal.SIGKILL)
        run.terminate()
        printed, _ = run.communicate(timeout=1200)
    assert "may be left" not in printed
    nothing_is_left(found, folder)


def test_kubernetes_removes_everything_by_the_deadline_if_all_processes_are_dead(cleaned: tuple[Objects, Path]) -> None:
    found, folder = cleaned
    found.trouble = lambda *request: Trouble(
        delay=2 if " ".join(request) == JOBS and found.requests.count(JOBS) == 3 else 0
    )
    with run_of_jobs(folder) as run:
        wait_for(lambda: found.requests.count(JOBS) == 3, "the last creation is in flight")
        pids = (shell_of(run), run.pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
    wait_for(lambda: not found.open, "all requests were answered")
    found.kinds["jobs"][-1]["spec"]["suspend"] = True  # by a queue: no deadline applies to it
    assert len(found.left()) == 3
    found.pass_time(60 + 600 + 300)  # job_pull, job_time, keep_finished
    assert len(found.left()) == 2  # the owner, and the Job that did not start
    found.pass_time(2 * (60 + 600 + 3 * 60) + 300)
    assert found.left() == []


def test_clean_removes_no_other_job_of_the_same_name(cleaned: tuple[Objects, Path]) -> None:
    found, folder = cleaned
    found.kinds["jobs"] += [
        foreign_job(name, ELSEWHERE, conditions=ended("2026-03-10T03:40:00Z")) for name in ("a", "b")
    ]
    first, second = left_jobs(load_cluster(str(folder / "k8s.yaml")))
    found.kinds["jobs"][0]["metadata"]["uid"] = "of another Job"
    del found.kinds["jobs"][1]
    assert first.remove is not None
    assert second.remove is not None
    with pytest.raises(GpuClusterError, match="UID in precondition"):
        first.remove()
    second.remove()  # it is gone already
    assert job_names(found) == ["a"]
