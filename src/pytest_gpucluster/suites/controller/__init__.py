"""Slurm's own daemons: controllers, their load and logs."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=3,
    markers=("controller: Slurm's daemons: controllers, load, logs",),
    section="config:ControllerConfig",
    proof=("controller.ping",),
)
