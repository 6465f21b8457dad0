"""Pyxis and Enroot on every node."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=6,
    markers=("container: Pyxis and Enroot on every node",),
    before_release="release:clear_nodes",
    section="config:ContainerConfig",
    proof=("container.plugin", "container.import", "container.release", "container.reuse"),
    draft="draft:lines",
    tried="draft:tried",
)
