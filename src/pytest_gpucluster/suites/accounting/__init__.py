"""Accounts, users, QoS, limits, fair share and preemption of a Slurm that many teams share."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=3,
    markers=("accounting: accounts, QoS, limits, fair share and preemption of Slurm",),
    section="config:AccountingConfig",
    draft="draft:lines",
    proof=(
        "accounting.accounts",
        "accounting.qos",
        "accounting.partition_access",
        "accounting.access",
        "accounting.scheduling",
    ),
    draft_commands="draft:commands",
)
