"""RDMA between the adapters of nodes, with perftest, rail by rail."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=6,
    markers=("rdma: bandwidth and latency of RDMA between adapters, rail by rail, and the bad part named",),
    section="config:RdmaConfig",
    profile_rows="config:RdmaLimit",
    by_profile=("rdma.*",),
    partners=3,
    proof=("rdma.bandwidth",),
    needs=("ib_write_bw", "2 nodes"),
    pair_results="campaign:judge_rail_pairs",
)
