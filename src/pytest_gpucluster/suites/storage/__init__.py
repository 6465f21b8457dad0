"""The file systems of the nodes: shared storage under the load of all nodes, and local disks."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=6,
    markers=("storage: shared and local file systems: rates, latency, metadata, locks, visibility, integrity",),
    section="config:StorageConfig",
    partners=1,
    trade="storage",
    proof=(
        "storage.operations",
        "storage.bandwidth",
        "storage.latency",
        "storage.metadata",
        "storage.visibility",
        "storage.locks",
        "storage.integrity",
    ),
    needs=("2 nodes",),
    draft="draft:lines",
    leftover_folders="leftovers:folders",
    node_leftovers="leftovers:on_nodes",
    draft_probes="draft:PROBES",
)
