"""Software of the site that jobs load: environment modules and conda environments."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=13,
    markers=("software: environment modules and conda environments",),
    section="config:SoftwareConfig",
    proof=("software.modules", "software.conda"),
    stated="the names of environment modules or conda environments that jobs use",
)
