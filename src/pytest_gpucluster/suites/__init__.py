"""The acceptance suites; a package, so that `pytest --pyargs pytest_gpucluster.suites` finds them in the wheel."""

from __future__ import annotations

import importlib
import pkgutil


def import_checks() -> None:
    """Import every module that may declare a check: core.check.CHECKS has all of them then."""
    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        if not info.name.rpartition(".")[2].startswith(("payload", "test_")) and ".payload." not in info.name:
            importlib.import_module(info.name)
