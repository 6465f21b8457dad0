"""The section `software` of a cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from pytest_gpucluster.core.scripts import FIND_MODULE
from pytest_gpucluster.core.values import Model, OptionalSection, Program, Text

if TYPE_CHECKING:
    from collections.abc import Iterator


def names_of_modules(text: str) -> str:
    """Return names of modules separated by spaces; ValueError for none, and for an option of `module`."""
    if not text.split() or any(word.startswith("-") for word in text.split()):
        raise ValueError(f"must be names of modules, like 'gcc/12 openmpi/4.1', not {text!r}")
    return text


ModuleNames = Annotated[str, AfterValidator(names_of_modules)]


class ModulesConfig(Model):
    """Environment modules: Lmod or Tcl Environment Modules."""

    load: tuple[ModuleNames, ...] = Field(
        min_length=1, description="modules to load, each item in a shell of its own: names, loaded in this order"
    )
    output: dict[ModuleNames, dict[Text, Text]] = Field(
        {},
        description="item of `load`: {command: text that its output must contain}, like "
        "{cuda/12.2: {nvcc --version: release 12.2}}",
    )


class CondaEnvironmentConfig(Model):
    """What a conda environment must contain."""

    python: Text | None = Field(None, description="version of python or its beginning, like 3.11")
    packages: dict[Text, Text] = Field({}, description="package: version or its beginning, like {numpy: '1.26'}")


class CondaConfig(Model):
    """Conda environments."""

    command: Program = Field("conda", description="name or path of conda")
    environments: dict[Program, CondaEnvironmentConfig] = Field(
        min_length=1, description="name or path of each environment"
    )


class SoftwareConfig(OptionalSection):
    """Software that jobs load on the nodes."""

    about = "requires environment modules or conda"
    order = 12

    modules: ModulesConfig | None = Field(None, description="environment modules")
    conda: CondaConfig | None = Field(None, description="conda environments")
    # lines for bash that define `module`, as in the steps of an environment with modules
    find_module: ClassVar[str] = FIND_MODULE
    # time limit of all module commands of a node; conda has the same
    timeout: ClassVar[float] = 120

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Yield keys that have no effect without another one, and the reason."""
        if self.modules is None and self.conda is None:
            yield "modules", "is missing, and so is 'conda': the section states nothing to test"
        if self.modules and (unknown := sorted(set(self.modules.output) - set(self.modules.load))):
            yield "modules", f"'output' names {unknown[0]!r}, which is no item of 'load'"
