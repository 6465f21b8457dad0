"""What a log decides does not depend on its words: groups, common causes, actions and proofs with every text as noise."""

from __future__ import annotations

import random
from typing import Any

from report_helpers import a_run, failing, passing

from pytest_gpucluster.core.finding import Finding, mapped
from pytest_gpucluster.core.part import Part, gpu, port
from pytest_gpucluster.report.events import read_run

NODES = tuple(f"gpu{number:02}" for number in range(1, 7))
LOST = Finding(gpu(3), "GPU is lost", "answers", code="lost")
DOWN = Finding(port("mlx5_0", 1), "DOWN", "ACTIVE", code="down")
NOEXEC = Finding(Part("mount", name="/tmp"), "noexec", "programs run", code="noexec")


def decided(letters: str) -> object:
    chosen = random.Random(letters)

    def noise(text: str) -> str:
        return "".join(chosen.choices(letters, k=len(text))) if letters else text

    def failed(node: str, check: str, found: Finding, action: str) -> dict[str, Any]:
        found = mapped(
            found, lambda text: text if text in (found.part.name, *found.part.nodes) else noise(text)
        )
        words = {"cause": letters and "cause", "hint": "hint"}
        return failing(node, check=check, findings=[found.as_dict()], action=action, **words)

    results = [
        *(failed(node, "os.tmp", NOEXEC, "monitor") for node in NODES),
        *(failed(node, "fabric.port_state", DOWN, "drain") for node in NODES[:2]),
        failed("gpu06", "gpu.count", LOST, "reboot"),
        *(passing(node, check=it) for it in ("gpu.count", "fabric.port_state") for node in NODES[2:5]),
    ]
    events = a_run(results, nodes=NODES)
    events[1]["places"] = [{"group": "gpu[01-06]", "nodes": [*NODES]}]
    run = read_run(events)
    groups = sorted((it.check, it.action, it.common, tuple(it.nodes)) for it in run.groups.values())
    common = [(it.check, it.where, tuple(it.nodes)) for it in run.common]
    return groups, common, run.proofs.nodes, run.counts


def test_words_decide_nothing() -> None:
    assert decided("") == decided("abcdefgh ") == decided("0123456789 gpu")
