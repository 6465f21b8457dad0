"""The section `tensorflow` of a cluster file."""

from __future__ import annotations

from pytest_gpucluster.kit.framework_config import FrameworkConfig


class TensorflowConfig(FrameworkConfig):
    """TensorFlow's distribution strategies."""

    about = "claims TensorFlow"
    order = 11
