"""Slurm's own daemons: controllers, their load and logs; on request a burst of submissions, hold and singleton."""

from pytest_gpucluster.core.registry import Suite, Work

SUITE = Suite(
    __name__,
    order=3,
    markers=("controller: Slurm's daemons: controllers, load, logs, submissions",),
    section="config:ControllerConfig",
    before_allocation=Work("order", "jobs:OrderJobs", needs_nodes=False, option="intrusive"),
    proof=("controller.ping",),
)
