"""All that the tests of a site, and suites of other distributions, import. A name is loaded at its first use.

docs/reference/python.md lists them. A payload, a program that runs on the nodes, imports
`pytest_gpucluster.kit.payloads.prelude` instead, which travels with it.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
    from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
    from pytest_gpucluster.config import load_cluster
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig, GpuProfile, Profile
    from pytest_gpucluster.core.check import (
        Action,
        Advisory,
        Check,
        Finding,
        Judgement,
        Metric,
        Outcome,
        Verdict,
        check,
        conclude,
        revised,
        with_cause,
    )
    from pytest_gpucluster.core.errors import (
        ConfigError,
        GpuClusterError,
        NotApplicable,
        NotAvailable,
        ProbeError,
        SlurmError,
        StepError,
        StepTimeout,
        TransportError,
    )
    from pytest_gpucluster.core.fact import Fact
    from pytest_gpucluster.core.finding import Quantity, Quote
    from pytest_gpucluster.core.majority import Norm, differs, norm
    from pytest_gpucluster.core.metric_direction import HIGHER, LOWER, NEITHER
    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.core.probe import Answer, Probe, text_of
    from pytest_gpucluster.core.registry import Suite, Work
    from pytest_gpucluster.core.scripts import script
    from pytest_gpucluster.core.survey import Survey
    from pytest_gpucluster.core.values import Model, OptionalSection, ProfileRow, Section, Text
    from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig, RanksConfig
    from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner, framework_runner, framework_runners
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
    from pytest_gpucluster.kit.framework.payload_step import command as payload_command
    from pytest_gpucluster.kit.node.peers import Peers
    from pytest_gpucluster.kit.suite_work import LateCheck, Submission
    from pytest_gpucluster.plugin.fixtures import FleetView, NodeView, RunView
    from pytest_gpucluster.run.facts import ItemView
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, of_peers, required_section

# fmt: off
__all__ = [
    "HIGHER",
    "LOWER",
    "NEITHER",
    "Action",
    "Advisory",
    "Allocation",
    "Answer",
    "Check",
    "Cluster",
    "ClusterSession",
    "ConfigError",
    "EnvironmentConfig",
    "Fact",
    "Finding",
    "FleetView",
    "FrameworkConfig",
    "FrameworkStepRunner",
    "GpuClusterError",
    "GpuProfile",
    "ItemView",
    "Judgement",
    "LateCheck",
    "Metric",
    "Model",
    "Node",
    "NodeInfo",
    "NodeView",
    "Norm",
    "NotApplicable",
    "NotAvailable",
    "OptionalSection",
    "Outcome",
    "Part",
    "PayloadResult",
    "PayloadTask",
    "Peers",
    "Probe",
    "ProbeError",
    "Profile",
    "ProfileRow",
    "Quantity",
    "Quote",
    "RanksConfig",
    "RunView",
    "Section",
    "Slurm",
    "SlurmError",
    "StepError",
    "StepRequest",
    "StepResult",
    "StepTimeout",
    "Submission",
    "Suite",
    "Survey",
    "TaskResult",
    "Tests",
    "Text",
    "TransportError",
    "Verdict",
    "Work",
    "check",
    "conclude",
    "differs",
    "framework_runner",
    "framework_runners",
    "given",
    "load_cluster",
    "norm",
    "of_fleet",
    "of_node",
    "of_peers",
    "payload_command",
    "required_section",
    "revised",
    "run_step",
    "script",
    "text_of",
    "with_cause",
]
# fmt: on


@cache
def _imports() -> dict[str, tuple[str, str]]:
    """Return {name: (its module, its name there)}, as the imports above state them for type checkers."""
    tree = ast.parse(Path(__file__).read_bytes())
    stated = (it for it in ast.walk(tree) if isinstance(it, ast.ImportFrom))
    package = f"{__name__.partition('.')[0]}."
    return {
        name.asname or name.name: (it.module, name.name)
        for it in stated
        for name in it.names
        if it.module and it.module.startswith(package)
    }


if not TYPE_CHECKING:  # a type checker reports names that are not there

    def __getattr__(name: str) -> Any:
        """Load a name at its first use (PEP 562)."""
        if name not in _imports():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, there = _imports()[name]
        found = globals()[name] = getattr(import_module(module), there)
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
