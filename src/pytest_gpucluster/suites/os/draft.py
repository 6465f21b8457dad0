"""The section of a drafted cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucluster.core.survey import Survey


def lines(_survey: Survey) -> list[str]:
    """Return an example of the expectations of the checks."""
    return [
        "",
        "# os:",
        "#   release: ubuntu 22.04",
        "#   mounts:",
        "#     - {path: /home, fstype: nfs4}",
        "#   shared_storage: [/shared/acceptance]",
    ]
