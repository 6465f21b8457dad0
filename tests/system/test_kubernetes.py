"""The kubernetes suite with the real kubectl, against recorded objects that a simulated API server serves."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from corpus_cases import CORPUS, load
from kubernetes_server import Objects, serving
from plugin_helpers import names, run_pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
