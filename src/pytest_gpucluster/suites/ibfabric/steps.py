"""Runs subnet.sh once in a run: on the management host that the cluster file names, else on the first node with the tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import GpuClusterError, NotApplicable, NotAvailable
from pytest_gpucluster.core.probe import with_root
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
from pytest_gpucluster.suites.ibfabric.facts import NODE_PORTS, NOT_INSTALLED, SUBNET_SH, FabricFacts, read_fabric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suites.ibfabric.facts import NodePorts

MOST_OUTPUT = 64 << 20  # bytes; ibdiagnet's table of 10,000 ports has about 30 MB
NO_PORT = (
    "no node with ibnetdiscover has an InfiniBand port (link_layer in /sys/class/infiniband): name a host that is in the subnet, "
    "`ibfabric: {host: HOST}`, or correct the profile"
)
_SSH = ("ssh", "-T", "-a", "-x", "-oBatchMode=yes", "-oConnectTimeout=10")


def begin(session: ClusterSession) -> FabricFacts:
    """Return what the tools show; NotApplicable where no profile has InfiniBand, or the cluster file has no section."""
    config = session.cluster.section(IbFabricConfig)
    if config is None or not any(node.profile.fabric.link_layer == "InfiniBand" for node in session.nodes.values()):
        raise NotApplicable("no profile of the nodes has InfiniBand (`fabric: {link_layer: InfiniBand}`)")
    return query_fabric(config, session, session.facts.of_fleet(NODE_PORTS))


def query_fabric(config: IbFabricConfig, session: ClusterSession, ports: Mapping[str, NodePorts]) -> FabricFacts:
    """Return what the tools show; NotAvailable with what to do where they cannot be run."""
    command = with_root(SUBNET_SH) if session.cluster.sudo else SUBNET_SH
    able = [name for name, found in ports.items() if found.tools and found.ports]
    # one whose ports are down sees nothing
    node = max(able, key=lambda name: any(port.state == "ACTIVE" for port in ports[name].ports), default="")
    host = config.host or node
    if not host:
        tools = any(found.tools for found in ports.values())
        raise NotAvailable(NO_PORT if tools else f"ibnetdiscover is on none of the nodes: {NOT_INSTALLED}")
    try:
        if config.host:
            transport = session.slurm.transport if session.slurm else LocalTransport(inherit=True)
            done = transport.run((*_SSH, config.host, "sh"), timeout=config.timeout, input=command)
            out, err = done.stdout, done.stderr
        else:
            step = session.run_step(
                ("sh", "-c", command),
                nodes=(node,),
                environment="none",
                ntasks_per_node=1,
                timeout=config.timeout,
                cap=MOST_OUTPUT,
            )
            out, err = (step.tasks[0].stdout, step.tasks[0].stderr) if step.tasks else ("", step.stderr)
    except GpuClusterError as error:
        raise NotAvailable(f"subnet.sh did not run on {host}: {one_line(str(error), 300)}") from error
    return read_fabric(host, out, err)
