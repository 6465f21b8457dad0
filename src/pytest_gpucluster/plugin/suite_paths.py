"""Registered suites have the same ids wherever they are installed, `suites/NAME/test_NAME.py::...`, and runs accept them."""

from __future__ import annotations

from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import suite_folders, suite_packages, suites_path
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.plugin import fixtures
from pytest_gpucluster.plugin.fixtures import SESSION
from pytest_gpucluster.plugin.items import SuiteFile

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "suites"


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    """Collect the files of registered suites under ids that do not depend on the place of the installation."""
    path = module_path.resolve()
    found = next((it for it in suite_folders().items() if path.is_relative_to(it[1])), None)
    if found is None:
        return None
    address = f"{NAME}/{found[0]}/{path.relative_to(found[1]).as_posix()}"
    name, folder = found
    inside = path.relative_to(folder).with_suffix("").parts
    if inside != (f"test_{name}",):
        return pytest.Module.from_parent(parent, path=module_path, nodeid=address)
    module = ".".join((suite_packages()[name], *inside))
    run = parent.config.stash[SESSION]
    return SuiteFile.from_parent(
        parent, path=module_path, nodeid=address, module=module, run=run, shared=fixtures.FACTS
    )


def choose(config: pytest.Config, folders: Sequence[str] = ()) -> list[str]:
    """Return the paths to collect: those of the command line, or the site's own tests and the registered suites.

    `folders`: the `suites` of the cluster file; ConfigError for one that does not exist.
    """
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        if config.option.pyargs:
            return config.args
        return [path for arg in config.args for path in _found(config, arg)]
    here = config.invocation_params.dir
    own = config.args
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
        # of a folder without a project only its own files: it may be a home folder
        own = (
            [str(here)]
            if config.inipath is not None
            else [str(path) for path in sorted(here.glob("test_*.py"))]
        )
    for folder in folders:
        if not Path(folder).is_dir():
            raise ConfigError(f"suites: {folder} is not a folder")
    own = list(dict.fromkeys(_installed(here, arg) for arg in own))
    covered = [here / arg for arg in own]  # pytest 8.0 collects only the second of two paths that overlap
    own = [*own, *(it for it in folders if not any((here / it).is_relative_to(path) for path in covered))]
    present = [(here / arg).resolve() for arg in own]
    return [*own, *(root for root in roots() if not any(path.is_relative_to(root) for path in present))]


def roots() -> list[str]:
    """Return the folder of the shipped suites, and those of other distributions' suites."""
    return [suites_path(), *(str(it) for it in suite_folders().values() if not it.is_relative_to(_root()))]


def _found(config: pytest.Config, arg: str) -> list[str]:
    """Return arguments that pytest finds: of an id of a registered suite the path where that is installed, of `suites` all."""
    path, *rest = arg.split("::", 1)
    parts = [part for part in PurePath(path).parts if part != ".."]
    here = config.invocation_params.dir
    if parts[:1] != [NAME] or (here / path).exists():
        return ["::".join((_installed(here, path), *rest))]
    if parts[1:] == []:
        return roots()
    folder = suite_folders().get(parts[1])
    found = folder.joinpath(*parts[2:]) if folder else None
    return ["::".join((str(found), *rest))] if found and found.exists() else [arg]


def _installed(here: Path, arg: str) -> str:
    """Return the path, or, of one in another copy of the package as in a checkout, the same one in that which runs."""
    path = (here / arg).resolve()
    copy = next((it for it in (path, *path.parents) if it.parts[-2:] == _root().parts[-2:]), _root())
    return arg if copy == _root() else str(_root() / path.relative_to(copy))


@cache
def _root() -> Path:
    return Path(suites_path()).resolve()
