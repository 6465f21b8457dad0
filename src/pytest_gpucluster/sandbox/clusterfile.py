"""The cluster file of a running sandbox: the expected values of its nodes, from the same hardware model."""

from __future__ import annotations

import platform
import resource
from typing import TYPE_CHECKING, Any

import yaml

from pytest_gpucluster import config
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.sandbox import node_files as render
from pytest_gpucluster.sandbox import slurmconf
from pytest_gpucluster.sandbox.collectives import CommunicatorModel, NodeHealth, busbw

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpucluster.sandbox.gpu_assignment import GpuAssignment
    from pytest_gpucluster.sandbox.hardware import SimulatedNode
    from pytest_gpucluster.sandbox.models import NodeModel
    from pytest_gpucluster.sandbox.slurmconf import NodeResources

COMPLETING = 20  # seconds that a node may take to release a job: epilogs are short in a sandbox
_TOLERANCE = 0.05
_SHARED_HOST = {
    "nccl.whole_bandwidth": "virtual nodes of one machine: no profile has a figure for the GPUs of several",
}
# sim-collective replaces the payload on torch: the sandbox has neither torch nor GPUs
_NCCL = {"mpi": "pmi2", "runner": "nccl-tests", "deadline": "120s", "payload": ["sim-collective"]}
# GPUs are simulated; the host's loads are real, and small: all nodes share this machine
_BURNIN = {
    "payload": ["sim-burnin"],
    "time": "1m",
    "memory": "32M",
    "cpus": 1,
    "storage_size": "16M",
    "beat": "1s",
    "sample": "1s",
    "min_relative_host": 0.9,  # a short load on the machine is not a slow node
}
_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "core": resource.RLIMIT_CORE}


def text(
    conf: Path,
    shape: NodeResources,
    profile: dict[str, Any] | str,
    expected: dict[str, Any],
    about: str,
    *,
    pattern: SimulatedNode | None,
    commands: Path | None = None,
    sections: Mapping[str, Any] | None = None,
) -> str:
    """Return the YAML text of the cluster file. `pattern` is a healthy simulated node; None: the GPUs are real.

    `commands`: the folder of Slurm's commands, if not on PATH; `sections`: further sections of the cluster file.
    """
    content = {
        "name": "sandbox",
        "description": about,
        "sandbox": True,
        "slurm": {
            "partition": slurmconf.PARTITION,
            "conf": str(conf),
            **({"bin": str(commands)} if commands else {}),
            "job_start": "20s",
            "completing": COMPLETING,
            "queue_wait": "60s",
        },
        "nodes": hostlist.fold(shape.nodes),
        "profile": profile,
        "os": expected,
        "limits": _limits(),
        "sudo": True,
        **({} if pattern is not None else {"not_applicable": _SHARED_HOST}),
        **(_nccl(pattern, len(shape.nodes)) if pattern is not None and pattern.gpus else {}),
        **(sections or {}),
    }
    head = "# Written by `gpucluster sandbox up`; `gpucluster sandbox down` removes it.\n"
    return head + yaml.safe_dump(content, sort_keys=False, width=110)


def simulated_profile(
    node: SimulatedNode, spec: NodeModel, shared: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sections `profile` and `os` of a healthy simulated node."""
    cpus, ports = spec.cpus, [hca for hca in node.hcas if hca.near]
    profile: dict[str, Any] = {
        "extends": spec.profile,
        "gpu": {"count": len(node.gpus)},
        "node": {
            "cpus": cpus.count,
            "numa_nodes": cpus.numa_nodes + cpus.memory_nodes,
            "memory": f"{node.mem_total_kb}KiB",
        },
        "fabric": {"hcas": len(ports), "mtu": ports[0].mtu if ports else None},
    }
    if not node.gpus:
        profile = {"extends": "generic", "simulated": True, "node": profile["node"]}
    release = node.os_release
    expected = {
        "release": f"{release['ID']} {release['VERSION_ID']}",
        "kernel": node.kernel,
        "min_uptime": "10m",
        **({"governor": node.governor} if node.governor else {}),
        "hugepages": node.hugepages,
        "limits": _host_limits(),
        "sysctls": dict(node.sysctls),
        "mounts": [
            {"path": m.path, "fstype": m.fstype, "source": m.source, "options": m.options.split(",")[:1]}
            | ({"min_free": "1TiB"} if m.size_kb > 4 * 2**30 else {})
            for m in node.mounts
            if m.path != "/dev/shm"  # a mount point
        ],
        "shared_storage": [shared],
        "packages": {
            **{
                name: text.partition("-")[0]
                for name, text in node.packages.items()
                if name.startswith("nvidia-driver-")
            },
            "datacenter-gpu-manager-4-core": "",
            "munge": "",
        },
        "services": ["nvidia-persistenced", "slurmd", "munge", "chrony"],
    }
    return profile, expected


def real_profile(
    assignment: GpuAssignment, gpus_per_node: int, shared: str
) -> tuple[dict[str, Any] | str, dict[str, Any]]:
    """Return the sections `profile` and `os` of virtual nodes that share this host and its real GPUs."""
    name = config.match_profile(assignment.gpu_name, gpus_per_node)
    profile = {"extends": name} if name else "generic"
    expected = {
        "kernel": platform.release(),
        "limits": _host_limits(),
        "time_sync": "none",
        "shared_storage": [shared],
    }
    return profile, expected


def _nccl(node: SimulatedNode, nodes: int) -> dict[str, Any]:
    return {"thresholds": _thresholds(node, nodes), "nccl": _NCCL, "burnin": _BURNIN}


def _thresholds(node: SimulatedNode, nodes: int) -> list[dict[str, Any]]:
    """Return rows for every number of nodes, from the link model: nodes may be out of service."""
    rows = []
    gpus, health = len(node.gpus), NodeHealth(**render.network(node))
    for count in range(1 if gpus > 1 else 2, nodes + 1):
        world = CommunicatorModel({str(number): health for number in range(count)}, gpus)
        rows.append(
            {
                "nodes": count,
                "gpus_per_node": gpus,
                "size": "1G",
                "busbw": round(busbw(world, "all_reduce", 2**30), 1),
                "tolerance": _TOLERANCE,
                "source": "link model of the sandbox",
            }
        )
    return rows


def _host_limits() -> dict[str, str]:
    """Return the soft limits of this process, which Slurm propagates to the steps."""
    limits = {}
    for name, number in _LIMITS.items():
        soft, _ = resource.getrlimit(number)
        limits[name] = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return limits


def _limits() -> dict[str, Any]:
    return {
        slurmconf.PARTITION: {
            "max_time": f"{slurmconf.MAX_MINUTES}m",
            "default_time": f"{slurmconf.DEFAULT_MINUTES}m",
            "state": "UP",
        },
        slurmconf.SMALL_PARTITION: {
            "max_time": f"{slurmconf.SMALL_MAX_MINUTES}m",
            "max_nodes": slurmconf.SMALL_MAX_NODES,
            "state": "UP",
        },
    }


def shared_folder(root: Path) -> Path:
    """Return the real folder that all nodes of a sandbox share."""
    return root / "shared"
