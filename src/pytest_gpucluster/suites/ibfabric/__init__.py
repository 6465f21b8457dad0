"""The InfiniBand subnet as a whole: its manager, switches, links between switches, cables to nodes."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=5,
    markers=("ibfabric: the InfiniBand subnet as a whole, from one host",),
    section="config:IbFabricConfig",
    needs=("ibnetdiscover",),
    proof=("ibfabric.ports", "ibfabric.cables"),
    hooks={"known_cause": "known_cause:with_known_cause"},
)
