"""What is not judged where the profile of a group is of other hardware."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.plugin.scheduling import contradicted
from pytest_gpucluster.suites.gpu.profile_fit import Contradiction

OTHER = Contradiction("gpu[01-02]", "dgx-a100", "8 NVIDIA H200", "8 NVIDIA A100", ("h200-8",))
NODES = OTHER.nodes
REASON = "the nodes gpu[01-02] have 8 NVIDIA H200, profile dgx-a100 states 8 NVIDIA A100: see run.profile"


def session(found: dict[str, Contradiction]) -> Any:
    groups = {"gpu01": "gpu[01-02]", "old1": "old1"}
    cluster = SimpleNamespace(group_of=lambda node: SimpleNamespace(nodes=groups[node]))
    return SimpleNamespace(contradictions=found, cluster=cluster)


@pytest.mark.parametrize(
    ("node", "facts", "nodes"),
    [
        ("gpu01", {"gpus", "gpu_profile"}, NODES),
        ("gpu01", {"profile"}, NODES),
        ("gpu01", {"gpus"}, ""),  # judges the GPUs by themselves
        ("old1", {"gpu_profile"}, ""),  # the profile of its own group fits
        ("", {"profile"}, NODES),  # about all nodes
    ],
)
def test_an_item_that_compares_with_a_profile_of_other_hardware_is_not_judged(
    node: str, facts: set[str], nodes: str
) -> None:
    item: Any = SimpleNamespace(
        path=Path("test_gpu.py"),
        name="test_names",
        originalname="test_names",
        callspec=SimpleNamespace(params={"gpucluster_node": node}),
        fixturenames={f"gpucluster_{name}" for name in facts},
    )
    assert contradicted(item, session({"gpu[01-02]": OTHER})) == nodes
    assert contradicted(item, session({})) == ""
    assert OTHER.reason == REASON
