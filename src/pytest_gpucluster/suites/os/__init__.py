"""The operating system of every node."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=1,
    markers=("os: the operating system of the nodes",),
    section="pytest_gpucluster.kit.node.os_config:OsConfig",
    settings={"limits": "limits:refuse_limits"},
    draft="draft:lines",
    proof=("os.responds", "os.root_writable", "os.cpus", "os.memory"),
    draft_probes="draft:PROBES",
    least_limits="limits:least_limits",
)
