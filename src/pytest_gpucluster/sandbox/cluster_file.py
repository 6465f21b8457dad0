"""The cluster file of a running sandbox: the expected values of its nodes, from the same hardware model."""

from __future__ import annotations

import platform
import resource
from typing import TYPE_CHECKING, Any

import yaml

from pytest_gpucluster import config
from pytest_gpucluster.core import hostlist
from slurm_sandbox.api import COMPLETING

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_sandbox.api import Description, JobIsolation, SimulatedNode

_TOLERANCE = 0.05
_SHARED_HOST = {
    "os.time_sync": "virtual nodes of one machine have its clock",
    "nccl.whole_bandwidth": "virtual nodes of one machine: no profile has a figure for the GPUs of several",
}
# sim-collective replaces the payload on torch: the sandbox has neither torch nor GPUs
_NCCL = {"mpi": "pmi2", "runner": "nccl-tests", "payload": ["sim-collective"]}
_BURNIN = {"time": "1m"}
_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "core": resource.RLIMIT_CORE}


_WITH_ISOLATION = {
    "slurm.cpus": "with isolation the virtual nodes have the CPUs of their host",
    "slurm.gpu_binding": "no driver opens the device files of the virtual GPUs, and with ConstrainDevices each task counts "
    "its GPUs from 0",
}
_STARTING = {  # slurmctld has no state yet, and the sandbox no mail program
    "pattern": "state file|state save file|MailProg",
    "meaning": "slurmctld's first start",
    "reason": "a new sandbox",
}
CABLES = "cables.csv"  # beside the cluster file
_HEAD = "# Written by `gpucluster sandbox up`; `gpucluster sandbox down` removes it.\n"


def cables(sandbox: Description) -> str:
    """Return the cabling plan of a sandbox, a sheet of point-to-point links."""
    rows = (f"{node},Host,{port},{switch},Switch,{at}" for node, port, switch, at in sandbox.cables)
    return "".join(f"{row}\n" for row in ("A-Node Name,A-Type,A-Port,Z-Node Name,Z-Type,Z-Port", *rows))


def text(conf: Path, sandbox: Description, plan: Path) -> str:
    """Return the YAML text of the cluster file of a sandbox with this slurm.conf and this cabling plan."""
    healthy = sandbox.healthy
    if healthy is None:
        profile, expected = _real_profile(sandbox)
        about = f"virtual nodes of one host with {sandbox.gpu_name}"
    else:
        profile, expected = _simulated_profile(healthy, str(sandbox.shared))
        about = f"virtual nodes, SIMULATED {healthy.spec.name}"
    image = sandbox.image
    container = image and {"image": str(image.path), "release": image.release, "min_free": "16MiB"}
    content = {
        "name": "sandbox",
        "description": about,
        "sandbox": True,
        "slurm": {
            "partition": sandbox.partitions[0].name,
            "conf": str(conf),
            **({"bin": str(sandbox.commands)} if sandbox.commands else {}),
            "completing": COMPLETING,
            "queue_wait": "60s",
        },
        "nodes": hostlist.fold(sandbox.nodes),
        "profile": profile,
        "os": expected,
        "limits": {
            it.name: {"max_time": f"{it.max_minutes}m", **({"max_nodes": it.max_nodes} if it.max_nodes else {})}
            for it in sandbox.partitions
        },
        "sudo": True,
        "known": [_STARTING],
        **({} if healthy else {"not_applicable": _SHARED_HOST}),
        **({"thresholds": _thresholds(sandbox), "nccl": _NCCL, "burnin": _BURNIN} if healthy and healthy.gpus else {}),
        **({"ibfabric": {"plan": [str(plan)]}} if healthy and any(hca.near for hca in healthy.hcas) else {}),
        **({"container": container} if container else {}),
        **(_isolation(sandbox.isolation) if sandbox.isolation else {}),
    }
    return _HEAD + yaml.safe_dump(content, sort_keys=False, width=110)


def _simulated_profile(node: SimulatedNode, shared: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sections `profile` and `os` of a healthy simulated node."""
    cpus, ports = node.spec.cpus, [hca for hca in node.hcas if hca.near]
    profile: dict[str, Any] = {
        "extends": f"sandbox-{node.spec.name}",
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
        **({"governor": node.governor} if node.governor else {}),
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


def _real_profile(sandbox: Description) -> tuple[dict[str, Any] | str, dict[str, Any]]:
    """Return the sections `profile` and `os` of virtual nodes that share this host and its real GPUs."""
    name = config.match_profile(sandbox.gpu_name, sandbox.gpus_per_node)
    shared = [str(sandbox.shared)]
    expected = {"kernel": platform.release(), "limits": _host_limits(), "shared_storage": shared}
    return {"extends": name} if name else "generic", expected


def _thresholds(sandbox: Description) -> list[dict[str, Any]]:
    """Return rows for every number of nodes, from the link model: nodes may be out of service."""
    gpus = sandbox.gpus_per_node
    return [
        {
            "nodes": count,
            "gpus_per_node": gpus,
            "size": "1G",
            "busbw": round(sandbox.busbw(count, "all_reduce", 2**30), 1),
            "tolerance": _TOLERANCE,
            "source": "link model of the sandbox",
        }
        for count in range(1 if gpus > 1 else 2, len(sandbox.nodes) + 1)
    ]


def _isolation(jobs: JobIsolation) -> dict[str, Any]:
    without = {"isolation.login": f"the nodes have no sshd: {jobs.why_no_sshd}"} if jobs.why_no_sshd else {}
    return {"not_applicable": _WITH_ISOLATION | without}


def _host_limits() -> dict[str, str]:
    """Return the soft limits of this process, which Slurm propagates to the steps."""
    soft = {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}
    return {name: "unlimited" if it == resource.RLIM_INFINITY else str(it) for name, it in soft.items()}
