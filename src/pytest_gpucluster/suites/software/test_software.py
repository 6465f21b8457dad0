"""Software that jobs load: environment modules and conda environments, each judged by itself on every node.

One command per node for all modules and one for conda, both sent to all nodes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.suite import Tests, given, of_node, required_section
from pytest_gpucluster.suites.software import checks
from pytest_gpucluster.suites.software import facts as software
from pytest_gpucluster.suites.software.config import SoftwareConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.suites.software.facts import ScriptResult

    Facts = Callable[[Probe[ScriptResult]], ScriptResult]

section = required_section(SoftwareConfig)


def probes(cluster: Cluster) -> tuple[Probe[ScriptResult], ...]:
    """Return the probes of the cluster file."""
    config = cluster.section(SoftwareConfig)
    return software.probes_of(config) if config else ()


@of_node(section, given.facts, probes=lambda cluster, _: probes(cluster))
def modules(section: SoftwareConfig, facts: Facts) -> ScriptResult | None:
    """The results of the module commands on the item's node; None without `software.modules`."""
    return (
        facts(software.modules_probe(section.modules, section.find_module, section.timeout))
        if section.modules
        else None
    )


@of_node(section, given.facts, probes=lambda cluster, _: probes(cluster))
def conda(section: SoftwareConfig, facts: Facts) -> ScriptResult | None:
    """The results of the conda commands on the item's node; None without `software.conda`."""
    return facts(software.conda_probe(section.conda, section.timeout)) if section.conda else None


TESTS = Tests(checks, marks=("software",))
