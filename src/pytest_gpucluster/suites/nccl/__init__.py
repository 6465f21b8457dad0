"""NCCL's collectives, judged against thresholds."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=5,
    markers=("nccl: collectives, judged against thresholds, and the bad node named",),
    section="pytest_gpucluster.kit.nccl.nccl_config:NcclConfig",
    options={
        "--baseline": {
            "metavar": "record|FILE",
            "help": "record measured bandwidths as the cluster's own thresholds, or judge against a recorded file",
        },
        "--until": {
            "metavar": "CONFIDENCE",
            "help": "measure pairs until each node is proved, with a confidence like 95%%, to be slow in at most 5%% of its measurements, or "
            "is accused: 59 rounds of pairs at 95%%, four times as many at most",
        },
    },
    by_profile=("nccl.*",),
    # alone, within the node, between nodes: not applicable where the hardware of the run has no such path
    partners=3,
    proof=("nccl.alone", "nccl.alone_bandwidth", "nccl.pairs", "nccl.whole"),
    again=("--baseline", "--until"),
    settings={"command": "steps:refuse_command"},
    draft="draft:lines",
    tried="draft:tried",
    check_options="options:check_options",
    job_pairs="job_pairs",
    pair_results="pytest_gpucluster.kit.nccl.pair_results:judge_pairs",
)
