"""Which checks do not apply to a node: what the cluster file says, and what the hardware of its profile lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_gpucluster.plugin.collection import Collection


def test_what_hardware_lacks_does_not_apply_to_its_nodes_only() -> None:
    absent = {"gpu.ecc*": "this card has no ECC memory"}
    nodes = {
        "t4": SimpleNamespace(profile=SimpleNamespace(absent=absent)),
        "h200": SimpleNamespace(profile=SimpleNamespace(absent={})),
    }
    cluster = SimpleNamespace(not_applicable={"os.load": "in use"})
    found: Any = object.__new__(Collection)
    found._session = SimpleNamespace(cluster=cluster, nodes=nodes)
    assert found._why_not("gpu.ecc_volatile", "t4") == "this card has no ECC memory"
    assert found._why_not("gpu.ecc_volatile", "h200") == ""
    assert found._why_not("gpu.count", "t4") == ""
    for node in ("t4", "h200", ""):
        assert found._why_not("os.load", node) == "in use"
