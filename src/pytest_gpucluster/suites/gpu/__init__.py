"""The GPUs of every node."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=3,
    markers=("gpu: the GPUs of the nodes",),
    proof=("gpu.count", "gpu.names", "gpu.uuids", "gpu.memory", "gpu.temperature"),
    contradictions="profile_fit:contradictions",
    known_cause="known_cause:with_known_cause",
)
