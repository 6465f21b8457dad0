"""What a node must provide to Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.suites.ray.checks import Share
from pytest_gpucluster.suites.ray.config import RayConfig
from pytest_gpucluster.suites.ray.steps import Ray

NODE = "NodeName={} Arch=x86_64 CPUAlloc=0 CPUEfctv={} CPUTot=64 State=IDLE Gres=gpu:h100:8\n"


def test_ray_is_asked_for_the_cpus_that_a_job_can_have() -> None:
    config = RayConfig()
    inventory = parse_nodes(NODE.format("gpu01", 62) + NODE.format("gpu02", 60))
    runner: Any = SimpleNamespace(nodes=("gpu01", "gpu02"), inventory=inventory, config=config, gpus=8)
    ray: Any = Ray
    assert ray.shares.func(runner) == dict.fromkeys(("gpu01", "gpu02"), Share(60, 8))
