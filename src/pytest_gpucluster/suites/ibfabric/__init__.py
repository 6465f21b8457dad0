"""The InfiniBand subnet as a whole: its manager, switches, links between switches, cables to nodes."""

from pytest_gpucluster.core.registry import Suite, Work

SUITE = Suite(
    __name__,
    order=5,
    markers=("ibfabric: the InfiniBand subnet as a whole, from one host",),
    section="config:IbFabricConfig",
    needs=("ibnetdiscover",),
    stated="access to /dev/infiniband/umad* (sudo: true)",
    # two readings of the error counters, some seconds apart: they pass while the nodes answer and other tests run
    before_first_test=Work("fabric", "steps:begin", first=True),
    settings={"plan": "plan:plan_of"},
    proof=("ibfabric.ports", "ibfabric.cables"),
    planned_cables="plan:cables_of_adapters",
    known_cause="known_cause:with_known_cause",
)
