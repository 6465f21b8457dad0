"""Where subnet.sh runs, and what is said where it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from ibfabric_helpers import NETDISCOVER

from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, StepError, TransportError
from pytest_gpucluster.core.probe import with_root
from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
from pytest_gpucluster.suites.ibfabric.facts import SUBNET_SH, NodePort, NodePorts
from pytest_gpucluster.suites.ibfabric.steps import begin, query_fabric

OUT = f"= subnet\n{NETDISCOVER}= exit 0\n"
SECTION = IbFabricConfig()
PORT = (NodePort("mlx5_0", 1, "1", "ACTIVE"),)
NODES = {"gpu01": NodePorts(PORT), "gpu02": NodePorts((), tools=True), "gpu03": NodePorts(PORT, tools=True)}


class Session:
    """A session, and its node, cluster, facts and Slurm at once, that notes where it ran what."""

    sudo = True

    def __init__(
        self,
        out: str = OUT,
        error: Exception | None = None,
        layer: str = "InfiniBand",
        section: IbFabricConfig | None = SECTION,
    ) -> None:
        self.out, self.error, self.its = out, error, section
        self.ran: list[object] = []
        self.profile = Profile(name="p", description="", source="", fabric=FabricProfile(link_layer=layer))
        self.cluster = self.facts = self.slurm = self.transport = self
        self.nodes = {"gpu01": self}

    def section(self, _model: type) -> IbFabricConfig | None:
        return self.its

    def of_fleet(self, _probe: object) -> dict[str, NodePorts]:
        return NODES

    def run_step(self, argv: tuple[str, ...], *, nodes: tuple[str, ...], **options: Any) -> StepResult:
        self.ran.append((nodes, argv, options["ntasks_per_node"]))
        if self.error:
            raise self.error
        tasks = (TaskResult(0, nodes[0], 0, stdout=self.out),) if self.out else ()
        return StepResult(0, tasks, "srun: error: gone", 1.0, "srun")

    def run(self, argv: tuple[str, ...], *, timeout: float, input: str) -> Completed:
        self.ran.append((argv[-2:], input, timeout))
        return Completed(argv, 0, self.out, "", 1.0)


def query(session: Any, nodes: dict[str, NodePorts], **section: Any) -> Any:
    return query_fabric(IbFabricConfig(**section), session, nodes)


def test_one_task_on_the_first_node_with_tools_and_ports_once_in_a_run() -> None:
    session: Any = Session()
    assert begin(session).host == "gpu03"
    assert session.ran == [(("gpu03",), ("sh", "-c", with_root(SUBNET_SH)), 1)]


def test_a_node_whose_ports_are_down_does_not_stand_for_the_subnet() -> None:
    down = NodePorts((NodePort("mlx5_0", 1, "1", "DOWN"),), tools=True)
    assert query(Session(), {"gpu00": down, **NODES}).host == "gpu03"
    assert query(Session(), {"gpu00": down}).host == "gpu00"


@pytest.mark.parametrize("session", [Session(layer="Ethernet"), Session(section=None)])
def test_nothing_runs_without_infiniband_or_without_a_section(session: Any) -> None:
    with pytest.raises(NotApplicable):
        begin(session)
    assert session.ran == []


def test_a_management_host_is_reached_over_ssh() -> None:
    session = Session()
    assert query(session, {}, host="ufm01").host == "ufm01"
    assert session.ran == [(("ufm01", "sh"), with_root(SUBNET_SH), IbFabricConfig.timeout)]


@pytest.mark.parametrize(
    ("session", "nodes", "words"),
    [
        (Session(), {"gpu01": NodePorts(PORT)}, "none of the nodes: install infiniband-diags"),
        (Session(), {"gpu01": NodePorts((), tools=True)}, "has an InfiniBand port"),
        (Session(error=StepError("srun: refused")), NODES, "did not run on gpu03: srun: refused"),
        (Session(error=TransportError("ssh: no route")), NODES, "ssh: no route"),
        (Session(out=""), NODES, "ibnetdiscover did not run on gpu03"),
    ],
)
def test_tools_that_cannot_run_no_failure(session: Session, nodes: dict[str, NodePorts], words: str) -> None:
    with pytest.raises(NotAvailable, match=words):
        query(session, nodes)
