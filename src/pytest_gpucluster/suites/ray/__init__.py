"""Ray's head and workers."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=10,
    markers=("ray: Ray starts on each node and as a cluster",),
    section="config:RayConfig",
    frameworks=("ray",),
    partners=1,
    proof=("ray.alone", "ray.tasks", "ray.actors", "ray.objects"),
    needs=("ray", "2 nodes"),
)
