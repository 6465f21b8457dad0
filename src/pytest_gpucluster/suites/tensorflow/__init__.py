"""TensorFlow's distribution strategies."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=12,
    markers=("tensorflow: TensorFlow's distribution strategies",),
    section="config:TensorflowConfig",
    frameworks=("tensorflow",),
)
