"""Checks that are judged after the release of the nodes: each held item is reported once, with its verdict."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.plugin.run_end import STOPPED, LateChecks

if TYPE_CHECKING:
    import pytest

NODES = ("gpu01", "gpu02", "gpu03")
AFTER = (
    "NodeName=gpu01 State=IDLE CPUTot=8\n"
    "NodeName=gpu02 State=IDLE+DRAIN CPUTot=8 Reason=Epilog error [root@2026-11-01T10:00:00]\n"
)


class Hook:
    """The hooks of pytest that reports go to."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def pytest_runtest_logstart(self, **_where: Any) -> None: ...

    def pytest_runtest_logfinish(self, **_where: Any) -> None: ...

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


def late(done: list[str], error: Exception | None = None) -> tuple[LateChecks, Hook]:
    """Return three held items of slurm.epilog, one for each node."""

    def after(_say: object) -> dict[str, Any]:
        if error is not None:
            raise error
        return dict(parse_nodes(AFTER))

    session: Any = SimpleNamespace(
        let_agents_leave=lambda: done.append("agents"),
        release_nodes=lambda: done.append("nodes"),
        nodes_after_release=after,
        slurm=SimpleNamespace(config=lambda: {"Epilog": "/etc/slurm/epilog"}),
        cluster=SimpleNamespace(waiver=lambda *_: None),
    )
    hook = Hook()
    config: Any = SimpleNamespace(hook=hook, getoption=lambda *_: None)
    found = LateChecks(config, session, lambda _line: None)
    found._held += [
        {
            "nodeid": f"test_slurm.py::test_epilog[{node}]",
            "location": ["test_slurm.py", 1, f"test_epilog[{node}]"],
            "keywords": {},
            "record": {"suite": "slurm", "check": "slurm.epilog", "node": node, "logs": []},
            "lines": [],
            "seconds": 0.1,
        }
        for node in NODES
    ]
    return found, hook


def ends(hook: Hook) -> dict[str, tuple[str, str]]:
    calls = (report for report in hook.reports if report.when == "call")
    return {it.gpucluster["node"]: (it.outcome, str(it.longrepr)) for it in calls}


def test_epilogs_are_judged_once_the_nodes_are_released() -> None:
    done: list[str] = []
    found, hook = late(done)
    found.judge()
    assert done == ["agents", "nodes"]
    outcomes = ends(hook)
    assert outcomes["gpu01"][0] == "passed"
    assert outcomes["gpu02"][0] == "failed"
    assert "Epilog error" in outcomes["gpu02"][1]
    assert outcomes["gpu03"][0] == "skipped"
    assert "its job has not ended" in outcomes["gpu03"][1]
    found.judge()
    found.give_up()
    assert len(hook.reports) == 3 * len(NODES)


def test_a_slurm_that_cannot_be_read_is_the_reason_of_each_item() -> None:
    found, hook = late([], GpuClusterError("slurmctld does not answer"))
    found.judge()
    assert {outcome for outcome, _ in ends(hook).values()} == {"skipped"}
    assert all("slurmctld does not answer" in text for _, text in ends(hook).values())


def test_a_stopped_run_reports_that_the_epilogs_were_not_judged() -> None:
    found, hook = late([])
    found.give_up()
    assert {node: STOPPED in text for node, (_, text) in ends(hook).items()} == dict.fromkeys(NODES, True)
