"""Isolation of jobs: one user's job cannot disturb another's."""

from pytest_gpucluster.core.registry import Suite, Work

SUITE = Suite(
    __name__,
    order=3,
    markers=("isolation: jobs are confined to their CPUs, GPUs, memory and /tmp; srun --pty",),
    section="config:IsolationConfig",
    before_allocation=Work("logins", "logins:LoginsWithoutJob", option="intrusive", first=True),
    proof=("isolation.cpus", "isolation.devices", "isolation.tmp"),
    idle="settings:why_idle",
)
