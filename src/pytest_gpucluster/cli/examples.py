"""`gpucluster examples`: copy the shipped cluster files, CI jobs and suite of a site into a new folder."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cli.command import Command, argument
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.report.machine.atomic_write import write_whole

if TYPE_CHECKING:
    import argparse

SHIPPED = Path(__file__).parents[1] / "examples"


def examples(args: argparse.Namespace) -> None:
    """Copy the examples; ConfigError if the folder has files or cannot be written."""
    folder: Path = args.folder
    # pip compiles Python files when it installs them
    files = [path for path in SHIPPED.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder}: has files already; name a new folder")
        for path in files:
            target = folder / path.relative_to(SHIPPED)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, path.read_bytes(), mode=stat.S_IMODE(path.stat().st_mode) | stat.S_IWUSR)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror}); name a new folder") from error
    print(f"{folder}: {len(files)} files")


COMMAND = Command(
    "examples",
    "copy the shipped cluster files, CI jobs and suite of a site into a new folder",
    examples,
    (argument("folder", type=Path, metavar="DIR", help="the folder to create; it must not have files"),),
)
