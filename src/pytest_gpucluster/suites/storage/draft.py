"""The section of a drafted cluster file: the networked file systems that most nodes have mounted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.config.yaml_loader import quoted
from pytest_gpucluster.core.probe import Answer, Probe, text_of
from pytest_gpucluster.kit.node.file_systems import NETWORKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.survey import Survey

EXAMPLE = "# storage: {filesystems: [{path: /shared/acceptance}, {path: /scratch, kind: local}]}"


def read_networked(answer: Answer) -> Mapping[str, str]:
    """Return {mount point: type} of networked file systems in /proc/mounts."""
    rows = [line.split() for line in text_of(answer).splitlines()]
    return {row[1]: row[2] for row in rows if len(row) > 2 and row[2] in NETWORKED and "\\" not in row[1]}


NETWORKED_MOUNTS = Probe("networked mounts", "cat /proc/mounts", read_networked)
PROBES = (NETWORKED_MOUNTS,)


def lines(survey: Survey) -> list[str]:
    """Return the section as a comment: in which folder of a file system the user may write is not known."""
    found = survey.each_agreed(survey.facts(NETWORKED_MOUNTS))
    if not found:
        return ["", EXAMPLE]
    drafted = [
        f"#     - {{path: {quoted(path, in_flow=True)}}}  # {one.value}, {one.count}" for path, one in found.items()
    ]
    return ["", "# storage:  # name a folder in which your user may write", "#   filesystems:", *drafted]
