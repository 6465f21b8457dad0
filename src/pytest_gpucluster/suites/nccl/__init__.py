"""NCCL's collectives, judged against thresholds."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=5,
    markers=("nccl: collectives, judged against thresholds, and the bad node named",),
    section="pytest_gpucluster.kit.nccl_config:NcclConfig",
    settings={"command": "steps:refuse_command"},
    draft="draft:lines",
)
