"""Functions as Slurm jobs."""

from pytest_gpucluster.core.registry import Suite, Work

SUITE = Suite(
    __name__,
    order=13,
    markers=("submitit: functions as Slurm jobs, by submitit",),
    section="config:SubmititConfig",
    frameworks=("submitit",),
    before_allocation=Work("submitted", "steps:submit", needs_nodes=False),
    leftover_folders="steps:folders",
    proof=("submitit.framework", "submitit.add"),
    needs=("submitit",),
    stated="a folder that all nodes and this machine share (folder: /shared/...)",
)
