"""The kubernetes suite with the real kubectl, against recorded objects that a simulated API server serves."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import json
import os
import re
import signal
import subprocess
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from corpus_cases import CORPUS, ROOT, load
from kubernetes_server import Objects, serving
from plugin_helpers import command, environment, free_port, names, run_pytest, wait_for

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cluster.slurm import leftovers as slurm_leftovers
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core import run_mark
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.kit import containers
from pytest_gpucluster.suites.kubernetes.leftovers import jobs as left_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"
RECORDED = CORPUS / "kubernetes" / "healthy-eks-h100-gpu-operator-1.35.txt"
NODES = [f"gpu{number:02}" for number in range(1, 9)]
SUITE = ("--cluster=k8s.yaml", "-m", "kubernetes", "--pyargs", "pytest_gpucluster.suites.kubernetes")


def objects() -> Objects:
    """Return the recorded cluster with eight nodes, each a copy of its first one."""
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
                    mine["status"]["nodeInfo"] = {
                        "kernelVersion": "6.8.0-1030-aws",
                        "kubeletVersion": "v1.32.4",
                    }
                if mine["kind"] == "Pod":
                    mine["metadata"]["name"] += node
                kinds["nodes" if mine["kind"] == "Node" else "pods"].append(mine)
    return Objects("v1.33.5", **copy.deepcopy(kinds))


def cluster_file(folder: Path, kubeconfig: Path, **section: object) -> None:
    profile = yaml.safe_load(RECORDED.read_text().partition("\n---\n")[0])["profile"] | {"simulated": True}
    keys = {
        "kubeconfig": str(kubeconfig),
        "nodes": "gpu[01-08]",
        "profile": profile,
        "minimum_version": "1.33",
        **section,
    }
    (folder / "k8s.yaml").write_text(yaml.safe_dump({"kubernetes": keys}))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Objects, Path]]:
    """The objects that are served, and the folder of the runs."""
    monkeypatch.setenv("HOME", str(tmp_path))  # kubectl's cache
    found = objects()
    with serving(found, tmp_path) as config:
        cluster_file(tmp_path, config)
        yield found, tmp_path


def break_nodes(found: Objects) -> None:
    """Put one fault into each node, and one into the API server."""
    found.version = "v1.32.4"
    found.node("gpu01")["status"]["conditions"][0] |= {"status": "False", "reason": "KubeletNotReady"}
    found.node("gpu02")["spec"]["taints"] = [{"key": "example.com/broken", "effect": "NoSchedule"}]
    found.node("gpu03")["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    plugin = found.pod("gpu04", "device-plugin")["status"]["containerStatuses"][0]
    plugin |= {"ready": False, "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    found.node("gpu05")["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-A100-SXM4-80GB"
    found.node("gpu06")["status"]["nodeInfo"]["kernelVersion"] = "5.15.0-91-generic"
    request = {"resources": {"limits": {"nvidia.com/gpu": "9"}}}
    holder = {"name": "train", "namespace": "team-a"}
    running = {"phase": "Running", "containerStatuses": []}
    found.kinds["pods"] += [
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": holder,
            "spec": {"nodeName": "gpu07", "containers": [request]},
            "status": running,
        },
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": "mofed-x",
                "namespace": "net",
                "ownerReferences": [{"kind": "DaemonSet", "name": "mofed-ubuntu22.04-ds"}],
            },
            "spec": {"nodeName": "gpu08"},
            "status": {"phase": "Pending"},
        },
    ]


FAULTS = [
    "test_allocated[gpu07]",
    "test_api",
    "test_gpu_operator[gpu04]",
    "test_gpus[gpu03]",
    "test_labels[gpu05]",
    "test_network_operator[gpu08]",
    "test_ready[gpu01]",
    "test_software[gpu06]",
    "test_taints[gpu02]",
]


def test_healthy_cluster_passes_and_each_fault_is_found_on_its_node_alone(
    served: tuple[Objects, Path],
) -> None:
    found, folder = served
    run = run_pytest(folder, *SUITE, where=())
    assert run.rc == 0, run.out + run.err
    assert names(run.outcomes, "passed")
    assert not names(run.outcomes, "not checked")
    assert "SIMULATED" in run.out
    lists = [it for it in found.requests if it in ("GET /api/v1/nodes", "GET /api/v1/pods")]
    assert len(lists) == 2, found.requests  # not one per node and check
    assert not [it for it in found.requests if not it.startswith("GET")]

    break_nodes(found)
    run = run_pytest(folder, *SUITE, where=())
    assert run.rc == 1, run.out + run.err
    assert names(run.outcomes, "failed") == FAULTS, run.out
    assert "9 restarts" in run.out
    assert "drain" not in {event["action"] for event in run.events if "action" in event}


def list_gpus(node: str) -> str:
    """Return nvidia-smi -L of a node with one H100."""
    return f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-0000000000{node[-2:]})"


class Kubelet:
    """SIMULATED kubelet: runs the containers of Jobs as processes of this machine, with simulated GPUs."""

    def __init__(self, folder: Path, *, duplicate: bool = False) -> None:
        self.folder, self.duplicate = folder, duplicate
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.jobs: list[dict[str, Any]] = []
        self._tool("nvidia-smi", 'cat "$SIMULATED_GPUS"')
        self._tool("getent", "exit 0")  # the cluster's DNS, which would have the Service by now
        # the payload itself, on CPUs
        self._tool("python3", f'exec nice -n 19 {PYTHON} "$@" --device cpu')

    def _tool(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def __call__(self, found: Objects, job: dict[str, Any]) -> None:
        """Start the pods of a Job, and report how they end."""
        self.jobs.append(job)
        spec = job["spec"]["template"]["spec"]
        affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        nodes = [term["matchFields"][0]["values"][0] for term in affinity["nodeSelectorTerms"]]
        threads = [
            threading.Thread(target=self._pod, args=(found, job, index, nodes[index]))
            for index in range(job["spec"].get("completions", 1))
        ]
        for thread in threads:
            thread.start()

    def _pod(self, found: Objects, job: dict[str, Any], index: int, node: str) -> None:
        name = f"{job['metadata']['name']}-{index}"
        (container,) = job["spec"]["template"]["spec"]["containers"]
        message, gpus = self.folder / f"{name}.message", self.folder / f"{name}.gpus"
        gpus.write_text(list_gpus("gpu07" if self.duplicate and node == "gpu08" else node) + "\n")
        words = [word.replace("/dev/termination-log", str(message)) for word in container["command"]]
        env = {it["name"]: it.get("value", node) for it in container.get("env", ())} | {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "JOB_COMPLETION_INDEX": str(index),
            "SIMULATED_GPUS": str(gpus),
        }
        if "MASTER_ADDR" in env:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        # SIMULATED: the ranks ran on CPUs, which the suite does not accept for GPUs
        found.logs[name] = re.sub(
            r"(Rank +(\d+) .*)\[-\] CPU", r"\1[0000:1\2:00] NVIDIA H100 80GB HBM3", done.stdout
        )
        text = message.read_text() if message.exists() else done.stderr[-2048:]
        ended = {"exitCode": done.returncode, "message": text}
        with found.lock:
            found.kinds["pods"].append(
                {
                    "kind": "Pod",
                    "apiVersion": "v1",
                    "metadata": {
                        "name": name,
                        "namespace": job["metadata"]["namespace"],
                        "labels": job["spec"]["template"]["metadata"]["labels"],
                        "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
                        "ownerReferences": [{"kind": "Job", "uid": job["metadata"]["uid"]}],
                    },
                    "spec": {"nodeName": node, "containers": [{"name": "check"}]},
                    "status": {
                        "phase": "Failed" if done.returncode else "Succeeded",
                        "containerStatuses": [{"name": "check", "state": {"terminated": ended}}],
                    },
                }
            )

    @cached_property
    def port(self) -> int:
        """The port of the ranks' rendezvous."""
        return free_port()


def with_jobs(found: Objects, folder: Path) -> None:
    """Leave two nodes of one GPU, which a profile states, and ask for Jobs."""
    for node in found.kinds["nodes"]:
        for part in ("capacity", "allocatable"):
            node["status"][part]["nvidia.com/gpu"] = "1"
    keys = yaml.safe_load((folder / "k8s.yaml").read_text())["kubernetes"]
    keys |= {"nodes": "gpu[07-08]", "jobs": True, "image": "nvcr.io/nvidia/pytorch:26.01-py3"}
    keys |= {"nccl_sizes": ["1M", "4M"], "job_time": "240s", "job_pull": "60s"}
    keys["profile"]["gpu"]["count"] = 1
    (folder / "k8s.yaml").write_text(yaml.safe_dump({"kubernetes": keys}))


def test_jobs_list_gpus_and_prove_ranks_and_are_removed(served: tuple[Objects, Path]) -> None:
    found, folder = served
    with_jobs(found, folder)
    found.kubelet = kubelet = Kubelet(folder, duplicate=True)
    run = run_pytest(folder, *SUITE, "-k", "job", where=())
    assert names(run.outcomes, "failed") == ["test_job_gpus[gpu07]", "test_job_gpus[gpu08]"], (
        run.out + run.err
    )
    assert names(run.outcomes, "passed") == ["test_job_nccl"], run.out
    assert "also listed on gpu07, gpu08" in run.out
    (result,) = [it for it in run.events if it["event"] == "result" and it["nodeid"].endswith("job_nccl")]
    assert {it["name"]: it["value"] for it in result["metrics"]}["job_nodes"] == 2
    assert found.kinds["jobs"] == found.kinds["services"] == []
    assert [it["spec"]["ttlSecondsAfterFinished"] for it in kubelet.jobs] == [300] * 3
    assert all(it["spec"]["activeDeadlineSeconds"] == 300 for it in kubelet.jobs)
    assert found.requests.count("POST /api/v1/namespaces/default/services") == 1
    assert {"POST", "DELETE"} == {it.split()[0] for it in found.requests} - {"GET"}


def test_jobs_are_removed_after_sigkill(served: tuple[Objects, Path]) -> None:
    found, folder = served
    with_jobs(found, folder)  # its pods never end: no kubelet runs them
    with subprocess.Popen(
        command(*SUITE, "-k", "job_gpus"), cwd=folder, env=environment(), stdout=subprocess.DEVNULL
    ) as run:
        wait_for(lambda: len(found.kinds["jobs"]) == 2, "the Jobs were created", 30)
        run.kill()
    wait_for(lambda: not found.kinds["jobs"], "the Jobs were deleted", 30)


def kill_whole(run: subprocess.Popen[bytes]) -> None:
    """Kill a run together with the shell that would delete its Jobs."""
    children = subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(run.pid)], text=True)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (run.pid, *map(int, children.split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    run.wait()


def foreign_job(name: str, run: str | None, **status: object) -> dict[str, Any]:
    labels = {} if run is None else {"pytest-gpucluster/run": run}
    meta = {"name": name, "namespace": "default", "uid": f"uid-of-{name}", "labels": labels}
    return {
        "kind": "Job",
        "apiVersion": "batch/v1",
        "metadata": meta,
        "spec": {"ttlSecondsAfterFinished": 300},
        "status": status,
    }


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


def test_clean_removes_jobs_of_ended_runs_only(
    cleaned: tuple[Objects, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found, folder = cleaned
    with subprocess.Popen(
        command(*SUITE, "-k", "job_gpus"), cwd=folder, env=environment(), stdout=subprocess.DEVNULL
    ) as run:
        wait_for(lambda: len(found.kinds["jobs"]) == 2, "the Jobs were created", 30)
        kill_whole(run)
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
    assert "3 found: " in listed
    assert not [it for it in found.requests if it.startswith("DELETE")]
    assert cli.main([*arguments, "--yes"]) == 0
    assert job_names(found) == ["elsewhere", "elsewhere-just-ended", "live", "theirs", "unmarked"]
    deleted = [it.rpartition("/")[2] for it in found.requests if it.startswith("DELETE")]
    assert sorted(deleted) == sorted([*killed, "elsewhere-ended"])


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


def test_clean_without_an_api_server_ends_with_1(
    cleaned: tuple[Objects, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = cleaned
    text = (folder / "k8s.yaml").read_text()
    (folder / "k8s.yaml").write_text(text.replace("/kubeconfig", "/nowhere"))
    assert cli.main(["clean", f"--cluster={folder / 'k8s.yaml'}"]) == 1
    printed = capsys.readouterr()
    assert "Jobs in namespace default of Kubernetes were not checked: kubectl get" in printed.err
    assert "No leftovers" not in printed.out


def test_node_in_slurm_and_kubernetes_is_one_node(sandbox: Sandbox, tmp_path: Path) -> None:
    text = sandbox.cluster_file.read_text()
    with serving(objects(), tmp_path) as config:
        cluster_file(tmp_path, config, nodes="gpu[03-05]")
        own = yaml.safe_load((tmp_path / "k8s.yaml").read_text())["kubernetes"]
        (tmp_path / "both.yaml").write_text(text + yaml.safe_dump({"kubernetes": own}))
        chosen = ("--cluster=both.yaml", "-m", "kubernetes or slurm", "-k", "test_ready or test_known")
        run = run_pytest(
            tmp_path, *chosen, "--pyargs", "pytest_gpucluster.suites", where=(), env={"HOME": str(tmp_path)}
        )
    assert run.rc == 0, run.out + run.err
    passed = [f"test_known[gpu{number:02}]" for number in range(1, 5)]
    passed += [f"test_ready[gpu{number:02}]" for number in range(3, 6)]
    assert names(run.outcomes, "passed") == passed, run.out
    # Slurm has no gpu05, and Kubernetes is not stated for the first two
    assert names(run.outcomes, "not applicable") == [
        "test_known[gpu05]",
        "test_ready[gpu01]",
        "test_ready[gpu02]",
    ]
    assert run.event("nodes")["selected"] == [f"gpu{number:02}" for number in range(1, 6)]
