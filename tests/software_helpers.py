"""Module trees and a conda for the tests of the software suite."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

TCL_MODULES = Path("/usr/share/modules/init/bash")  # of Debian's package environment-modules
CONDA = Path(__file__).parent / "data" / "software" / "conda-stand-in"

MODULEFILES = {
    "alpha/1.0": "prepend-path PATH /opt/alpha/bin\nprepend-path LD_LIBRARY_PATH /opt/alpha/lib\n"
    "setenv ALPHA_HOME /opt/alpha\n",
    "beta/1.0": "conflict alpha\nprepend-path PATH /opt/beta/bin\n",
    "gamma/1.0": 'puts stderr "gamma is deprecated"\nprepend-path PATH /usr/bin\n',
    "broken/1.0": "nonsense-command x\n",
    "leaky/1.0": "if {[module-info mode load]} {prepend-path PATH /opt/leaky/bin}\nsetenv LEAKY 1\n",
}


def module_tree(folder: Path, changes: dict[str, str | None] | None = None) -> Path:
    """Write modulefiles below a folder; a change of None leaves the file out."""
    for name, text in {**MODULEFILES, **(changes or {})}.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#%Module1.0\n{text}")
    return folder


def init_file(folder: Path, tree: str) -> Path:
    """Write a file that defines `module`; `tree` is a folder, which may contain variables of the shell."""
    if not TCL_MODULES.exists():
        pytest.skip("environment-modules is not installed (make packages)")
    path = folder / "init.sh"
    path.write_text(f". {shlex.quote(str(TCL_MODULES))}\nexport MODULEPATH={tree}\n")
    return path


def stand_in_conda(folder: Path) -> Path:
    """Copy the stand-in for conda, whose environments are folders beside it, with one: torch."""
    conda = folder / "bin" / "conda"
    conda.parent.mkdir(parents=True)
    shutil.copy(CONDA, conda)
    environment(folder, "torch", {"python": "3.11.2", "numpy": "1.26.4"})
    return conda


def environment(folder: Path, name: str, packages: dict[str, str]) -> None:
    """Write an environment of the stand-in."""
    prefix = folder / "envs" / name
    (prefix / "bin").mkdir(parents=True, exist_ok=True)
    (prefix / "packages").write_text("".join(f"{name} {version}\n" for name, version in packages.items()))
    python = prefix / "bin" / "python"
    python.write_text(f"#!/bin/sh\necho Python {packages.get('python', '')}\n")
    python.chmod(0o755)
