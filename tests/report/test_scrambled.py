"""What a log decides does not depend on its words: groups, common causes, actions and proofs with every text as noise."""

from __future__ import annotations

from report_helpers import a_run, failing, passing
from scrambled import scrambled

from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.core.part import Part, gpu, port
from pytest_gpucluster.report.machine.events import read_run

NODES = tuple(f"gpu{number:02}" for number in range(1, 7))


def decided() -> object:
    lost = Finding(gpu(3), "GPU is lost", "answers", code="lost").as_dict()
    down = Finding(port("mlx5_0", 1), "DOWN", "ACTIVE", code="down").as_dict()
    noexec = Finding(Part("mount", name="/tmp"), "noexec", "programs run", code="noexec").as_dict()
    results = [
        *(failing(node, check="os.tmp", findings=[noexec], action="monitor") for node in NODES),
        *(failing(node, check="fabric.port_state", findings=[down]) for node in NODES[:2]),
        failing("gpu06", check="gpu.count", findings=[lost], action="reboot"),
        *(passing(node, check=it) for it in ("gpu.count", "fabric.port_state") for node in NODES[2:5]),
    ]
    events = a_run(results, nodes=NODES)
    events[1]["places"] = [{"group": "gpu[01-06]", "nodes": [*NODES]}]
    run = read_run(events)
    groups = sorted((it.check, it.action, it.common, tuple(it.nodes)) for it in run.groups.values())
    common = [(it.check, it.where, tuple(it.nodes)) for it in run.common]
    return groups, common, run.proofs.nodes, run.counts


def test_words_decide_nothing() -> None:
    plain = decided()
    with scrambled():
        assert decided() == plain
