"""Accept or reject a Slurm GPU cluster with pytest.

Nothing that costs time is imported here: every pytest of the machine loads the plugin, and it must cost the others nothing.
"""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.3.0"
GROUP = "pytest_gpucluster.suites"  # entry points NAME = PACKAGE, whose __init__.py has the SUITE


class SuiteError(ValueError):
    """What the installed distributions register as suites cannot be used."""


def suites_path() -> str:
    """Return the folder of the shipped suites."""
    from pathlib import Path

    return str(Path(__file__).parent / "suites")


@cache
def suite_packages() -> dict[str, str]:
    """Return {suite: its package} of the entry points of all installed distributions. SuiteError for two of one name, or none."""
    from importlib.metadata import entry_points

    found: dict[str, str] = {}
    for one in entry_points(group=GROUP):
        if found.setdefault(one.name, one.value) != one.value:
            raise SuiteError(f"two installed packages register a suite {one.name!r}: {found[one.name]} and {one.value}")
    if not found:
        raise SuiteError("no suite is registered: install pytest-gpucluster again, with pip")
    return found


@cache
def suite_folders() -> dict[str, Path]:
    """Return {suite: the folder of its package}; no suite is imported for it. SuiteError for a package that is not there."""
    from importlib.util import find_spec
    from pathlib import Path

    found = {}
    for name, package in suite_packages().items():
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SuiteError(f"the suite {name!r} is registered as {package}, which is no package that is installed")
        found[name] = Path(spec.submodule_search_locations[0]).resolve()
    return found
