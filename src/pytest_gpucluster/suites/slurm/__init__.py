"""Slurm's view of nodes, steps and jobs."""

from pytest_gpucluster.core.registry import Suite, Work

SUITE = Suite(
    __name__,
    order=2,
    markers=("slurm: Slurm's view of the nodes, steps and jobs",),
    before_allocation=Work("jobs", "diagnostic_step:BatchJobs"),
    before_first_test=Work("diagnostics", "diagnostic_step:run_diagnostics"),
    proof=(
        "slurm.known",
        "slurm.schedulable",
        "slurm.responding",
        "slurm.step",
        "slurm.environment",
        "slurm.gpu_binding",
    ),
    after_release="checks:EPILOGS",
)
