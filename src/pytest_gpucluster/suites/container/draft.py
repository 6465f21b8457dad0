"""The section of a drafted cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.config.yaml_loader import clip, quoted

if TYPE_CHECKING:
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.core.survey import Software, Survey
    from pytest_gpucluster.core.values import SuiteSection

EXAMPLE = "# container: {image: REGISTRY#IMAGE:TAG}"


def tried(_suite: Suite, _section: SuiteSection, found: Software, _gpus: int) -> tuple[str, list[str]]:
    """Return the system in the image, whose step has proved that it ran inside."""
    return f"starts: {found.system or 'a system without os-release'}", []


def lines(survey: Survey) -> list[str]:
    """Return the section where each node that was read has Pyxis, Enroot and the same .sqsh file."""
    found = survey.software
    images = set.intersection(*({*one.images} for one in found.values())) if found else set()
    no_pyxis = ", ".join(node for node, one in found.items() if not one.pyxis)
    no_enroot = survey.without("enroot")
    lacking = [
        *([f"no Pyxis on {no_pyxis}"] if no_pyxis else []),
        *([f"no enroot on {no_enroot}"] if no_enroot else []),
        *(["no .sqsh file was found where sites have them: name an image"] if found and not images else []),
    ]
    if not found or lacking:
        return ["", f"{EXAMPLE}  # {clip('; '.join(lacking) or 'requires Pyxis and Enroot', 100)}"]
    return ["", f"container: {{image: {quoted(min(images), in_flow=True)}}}"]
