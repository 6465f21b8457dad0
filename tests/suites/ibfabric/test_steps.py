"""Where subnet.sh runs, and what is said where it cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ibfabric_helpers import NETDISCOVER

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
    """A session that notes where it ran what."""

    def __init__(
        self,
        out: str = OUT,
        error: Exception | None = None,
        *,
        layer: str = "InfiniBand",
        section: Any = SECTION,
    ) -> None:
        self.out, self.error, self.ran = out, error, []  # type: ignore[var-annotated]
        self.cluster = SimpleNamespace(sudo=True, section=lambda _model: section)
        self.nodes = {
            "gpu01": SimpleNamespace(profile=SimpleNamespace(fabric=SimpleNamespace(link_layer=layer)))
        }
        self.facts = SimpleNamespace(of_fleet=lambda _probe: NODES)
        self.slurm = SimpleNamespace(transport=SimpleNamespace(run=self.run))

    def run_step(self, argv: tuple[str, ...], *, nodes: tuple[str, ...], **options: Any) -> Any:
        self.ran.append((nodes, argv, options["ntasks_per_node"]))
        if self.error:
            raise self.error
        tasks = (SimpleNamespace(stdout=self.out, stderr=""),) if self.out else ()
        return SimpleNamespace(tasks=tasks, stderr="srun: error: gone")

    def run(self, argv: tuple[str, ...], *, timeout: float, input: str) -> Any:
        self.ran.append((argv[-2:], input, timeout))
        return SimpleNamespace(stdout=self.out, stderr="")


def query(session: Any, nodes: dict[str, NodePorts], **section: Any) -> Any:
    return query_fabric(IbFabricConfig(**section), session, nodes)


def test_one_task_on_the_first_node_with_tools_and_ports() -> None:
    session = Session()
    assert query(session, NODES).host == "gpu03"
    assert session.ran == [(("gpu03",), ("sh", "-c", with_root(SUBNET_SH)), 1)]


def test_a_node_whose_ports_are_down_does_not_stand_for_the_subnet() -> None:
    down = NodePorts((NodePort("mlx5_0", 1, "1", "DOWN"),), tools=True)
    assert query(Session(), {"gpu00": down, **NODES}).host == "gpu03"
    assert query(Session(), {"gpu00": down}).host == "gpu00"


def test_the_work_before_the_first_test_reads_the_subnet_once() -> None:
    session: Any = Session()
    assert begin(session).host == "gpu03"
    assert len(session.ran) == 1


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
def test_where_the_tools_cannot_run_it_is_not_checked_and_no_failure(
    session: Session, nodes: dict[str, NodePorts], words: str
) -> None:
    with pytest.raises(NotAvailable) as caught:
        query(session, nodes)
    assert words in str(caught.value)
