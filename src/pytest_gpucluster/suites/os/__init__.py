"""The operating system of every node."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=1,
    markers=("os: the operating system of the nodes",),
    section="pytest_gpucluster.kit.node.os_config:OsConfig",
    settings={"limits": "checks.settings:refuse_limits"},
    not_over_ssh={"os.limits": "the limits are those of a step; over SSH there is none"},
    draft="draft:lines",
    draft_probes="draft:PROBES",
    proof=("os.responds", "os.root_writable", "os.kernel", "os.cpus", "os.memory"),
)
