"""InfiniBand, peer memory, and the path from GPU to NIC."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=4,
    markers=("fabric: peer memory, InfiniBand and the path from GPU to NIC",),
    proof=("fabric.hca_count", "fabric.link_layer", "fabric.port_state", "fabric.rate"),
)
