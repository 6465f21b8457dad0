"""TensorFlow's distribution strategies."""

from pytest_gpucluster.core.registry import Suite
from pytest_gpucluster.kit.framework.framework_config import RanksConfig


class TensorflowConfig(RanksConfig):
    """TensorFlow's distribution strategies."""

    about = "requires TensorFlow"
    order = 11


SUITE = Suite(
    __name__,
    by_profile=("tensorflow.*",),
    order=12,
    markers=("tensorflow: TensorFlow's distribution strategies",),
    section=TensorflowConfig,
    frameworks=("tensorflow",),
    partners=1,
    proof=("tensorflow.framework", "tensorflow.mirrored", "tensorflow.devices", "tensorflow.between"),
    needs=("tensorflow", "2 nodes"),
)
