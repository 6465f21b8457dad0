"""The sandboxes of the sites, one at a time."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from first_night_helpers import Boxes, home
from user_helpers import Checkout, identity

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def boxes() -> Iterator[Boxes]:
    """The sandboxes of this module's sites."""
    made = Boxes()
    yield made
    made.close()


@pytest.fixture(scope="session")
def checkout() -> Iterator[Checkout]:
    """The checkout, where any user may read it."""
    found = Checkout()
    with tempfile.TemporaryDirectory(prefix="modules-") as folder:
        if os.geteuid() == 0:
            argv = [found.python, "-c", "import pytest_gpucluster.plugin, pytest_gpucluster.cli.main"]
            env = {"PYTHONPATH": found.modules, "HOME": "/"}
            readable = subprocess.run(
                argv, **identity("nobody"), env=env, cwd="/", capture_output=True, check=False
            )
            if readable.returncode:
                Path(folder).chmod(0o755)
                found.copy(Path(folder))
        yield found


@pytest.fixture
def folder() -> Iterator[Path]:
    """The operator's HOME."""
    with home() as made:
        yield made
