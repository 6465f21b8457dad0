"""The shipped suites have the same ids wherever they are installed, `suites/NAME/test_NAME.py::...`, and runs accept them."""

from __future__ import annotations

from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster import suites_path
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "suites"


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the modules of shipped suites under ids that do not depend on the place of the installation."""
    if not _is_shipped(module_path):
        return None
    address = f"{NAME}/{module_path.resolve().relative_to(_root()).as_posix()}"
    made: pytest.Module = pytest.Module.from_parent(parent, path=module_path, nodeid=address)
    return made


def choose(config: pytest.Config, folders: Sequence[str] = ()) -> list[str]:
    """Return the paths to collect: those of the command line, or the site's own tests and the shipped suites.

    `folders`: the `suites` of the cluster file; ConfigError for one that does not exist.
    """
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return config.args if config.option.pyargs else [_found(config, arg) for arg in config.args]
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
    shipped = any(_is_shipped(here / arg) for arg in own)
    return own if shipped else [*own, suites_path()]


def _found(config: pytest.Config, arg: str) -> str:
    """Return an argument that pytest finds: an id of a shipped suite as the path where that is installed."""
    path, *rest = arg.split("::", 1)
    parts = [part for part in PurePath(path).parts if part != ".."]
    here = config.invocation_params.dir
    if parts[:1] != [NAME] or (here / path).exists():
        return "::".join((_installed(here, path), *rest))
    shipped = Path(suites_path(), *parts[1:])
    return "::".join((str(shipped), *rest)) if shipped.exists() else arg


def _installed(here: Path, arg: str) -> str:
    """Return the path, or, of one in another copy of the package as in a checkout, the same one in that which runs."""
    path = (here / arg).resolve()
    copy = next((it for it in (path, *path.parents) if it.parts[-2:] == _root().parts[-2:]), _root())
    return arg if copy == _root() else str(_root() / path.relative_to(copy))


@cache
def _root() -> Path:
    return Path(suites_path()).resolve()


def _is_shipped(path: Path) -> bool:
    return path.resolve().is_relative_to(_root())
