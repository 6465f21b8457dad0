"""Hours of load on all parts of the nodes."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=16,
    markers=("burnin: hours of load on all parts of the nodes; runs with -m burnin or --burnin-time",),
    options={
        "--burnin-time": {"metavar": "TIME", "help": "run the burnin suite for so long: 30m, 4h"},
        "--burnin-resume": {
            "metavar": "EVENTS",
            "help": "go on with the burn-in whose events.jsonl this is: the time that was left, without nodes that are "
            "out",
        },
    },
    on_request="options",
)
