"""What the burn-in would load on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.node import node_facts

if TYPE_CHECKING:
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.core.survey import Software
    from pytest_gpucluster.suites.burnin.config import BurninConfig


def tried(_suite: Suite, _section: BurninConfig, found: Software, gpus: int) -> tuple[str, list[str]]:
    """Return the loads that would run, and what is missing."""
    if not found.python:
        return "", ["no python3 there: burnin.environment names another one"]
    if not gpus:
        return f"host loads, python {found.python}", []
    if "torch" in found.packages:
        words = f"GPU loads on {node_facts.torch_words(found)}, python {found.python}"
        return words, node_facts.torch_problems(found, gpus)
    return "", [
        f"torch is not in {found.python}, so no GPU would be loaded: name an environment that has it (burnin.environment, "
        "environments.default)"
    ]
