"""What a node must provide to Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from suite_helpers import NODES, allocation_of, cluster_of

from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.suites.ray.checks import Share
from pytest_gpucluster.suites.ray.config import RayConfig
from pytest_gpucluster.suites.ray.steps import Ray

NODE = "NodeName={} Arch=x86_64 CPUAlloc=0 CPUEfctv={} CPUTot=64 State=IDLE Gres=gpu:h100:8\n"


def test_ray_is_asked_for_the_cpus_and_gpus_that_a_job_can_have() -> None:
    inventory = parse_nodes(NODE.format("gpu01", 62) + NODE.format("gpu02", 60))
    world: Any = SimpleNamespace(env={})
    channel: Any = None
    ray = Ray(allocation_of(world), cluster_of(), inventory, RayConfig(), NODES, channel=channel)
    assert ray.shares == dict.fromkeys(NODES, Share(60, 8))
