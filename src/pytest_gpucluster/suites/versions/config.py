"""The section `versions` of a cluster file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from pytest_gpucluster.core.values import Model, Section, Text

COMPONENTS = ("driver", "nccl", "ofed", "enroot", "pyxis", "container_toolkit", "slurm")


def _starts_with_a_number(text: str) -> str:
    if not text[:1].isdecimal():
        raise ValueError(f"must be a version like 550.90.07 or 22.05.8-4+deb12u3, not {text!r}")
    return text


Minimum = Annotated[str, Field(min_length=1), AfterValidator(_starts_with_a_number)]


class MinimumVersion(Model):
    """The lowest accepted version of one component, and why."""

    min: Minimum = Field(
        description="lowest accepted version; of a package that a distribution maintains its whole version, like 22.05.8-4+deb12u3"
    )
    branch: Minimum | None = Field(
        None, description="the row is for versions that begin with these numbers only, like 550 or 23.11"
    )
    reason: Text = Field(description="why, and where this is stated: a CVE or a known bug, the URL of a bulletin")


def _rows(value: Any) -> Any:
    return (value,) if isinstance(value, dict) else value


# one row, or one per branch
Minima = Annotated[tuple[MinimumVersion, ...], BeforeValidator(_rows)]


class VersionsConfig(Section):
    """Lowest accepted versions on the nodes: one row per component, or a list with one row per branch."""

    about = "lowest accepted versions of driver, libraries and Slurm"
    order = 5

    driver: Minima = Field((), description="NVIDIA driver, as nvidia-smi shows it")
    nccl: Minima = Field((), description="libnccl.so.2 that the loader finds on the node, not the one in an image")
    ofed: Minima = Field((), description="ofed_info -s: MLNX_OFED or DOCA-OFED")
    enroot: Minima = Field((), description="enroot version")
    pyxis: Minima = Field((), description="the version text in the plugin that plugstack.conf names")
    container_toolkit: Minima = Field((), description="nvidia-ctk or nvidia-container-cli --version")
    slurm: Minima = Field((), description="slurmd -V of the node")

    def rows(self, component: str) -> tuple[MinimumVersion, ...]:
        """Return the rows of a component."""
        found: tuple[MinimumVersion, ...] = getattr(self, component)
        return found
