"""Hours of load on all parts of the nodes."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=16,
    markers=("burnin: hours of load on all parts of the nodes; runs with -m burnin or --burnin-time",),
    section="config:BurninConfig",
    profile_rows="config:BurninLimit",
    # each load of burnin.loads; of GPUs, on each GPU
    by_profile=("burnin.*",),
    proof=(
        "burnin.survived",
        "burnin.corruption",
        "burnin.matmul",
        "burnin.gpu_memory",
        "burnin.memory_bandwidth",
        "burnin.copies",
        "burnin.peer",
        "burnin.nccl",
        "burnin.cpu",
        "burnin.memory",
        "burnin.storage",
        "burnin.rdma",
    ),
    options={
        "--burnin-time": {"metavar": "TIME", "help": "run the burnin suite for this time: 30m, 4h"},
        "--burnin-resume": {
            "metavar": "EVENTS",
            "help": "continue the burn-in of this events.jsonl for its remaining time",
        },
    },
    again=("--burnin-time",),
    resume="--burnin-resume",
    tried="draft:tried",
    on_request="options",
    simulated_payload="steps:simulated_payload",
)
