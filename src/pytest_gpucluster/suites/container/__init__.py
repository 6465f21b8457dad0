"""Pyxis and Enroot on every node."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=6,
    markers=("container: Pyxis and Enroot on every node",),
    section="config:ContainerConfig",
    proof=("container.plugin", "container.import", "container.release", "container.reuse"),
    draft="draft:lines",
    local_leftovers="containers:stale_user_files",
    node_leftovers="containers:of_ended_jobs",
    tried="draft:tried",
    before_release="containers:clear_nodes",
)
