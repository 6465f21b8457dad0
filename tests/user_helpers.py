"""Run commands as another user, who may not read everything that root's interpreter and checkout need."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

# root's own interpreter may lie where no other user may look
PYTHON = shutil.which("python3", path="/usr/bin") or sys.executable


def _modules() -> str:
    places = [
        str(ROOT / "src"),
        str(ROOT / "slurm-sandbox/src"),
        *(path for path in sys.path if path.endswith("site-packages")),
    ]
    return os.pathsep.join(places)


@dataclass
class Checkout:
    """Where the users find the suites and all modules: here, or in a copy where they may not look here."""

    suites: Path = ROOT / "suites"
    modules: str = field(default_factory=_modules)
    python: str = PYTHON

    def copy(self, folder: Path) -> None:
        """Take along what they need, by links where that is possible."""
        places = [Path(place) for place in self.modules.split(os.pathsep)]
        copies = [folder / f"{number}" for number in range(len(places))]
        for source, target in zip([self.suites, *places], [folder / "suites", *copies], strict=True):
            shutil.copytree(source, target, copy_function=_link)
        self.suites, self.modules = folder / "suites", os.pathsep.join(map(str, copies))

    def start_sandbox(self, state: Path, *options: str) -> None:
        """Start a sandbox whose simulated tools any user can run: their Python is that of the users."""
        argv = [self.python, "-m", "pytest_gpucluster", "sandbox", "up", "--state-dir", str(state), *options]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        subprocess.run(argv, env=env | {"PYTHONPATH": self.modules}, check=True, capture_output=True, timeout=300)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@contextlib.contextmanager
def readable_checkout() -> Iterator[Checkout]:
    """The checkout, where any user may read it."""
    found = Checkout()
    with tempfile.TemporaryDirectory(prefix="modules-") as folder:
        if os.geteuid() == 0:
            argv = [found.python, "-c", "import pytest_gpucluster.plugin, pytest_gpucluster.cli.main"]
            env = {"PYTHONPATH": found.modules, "HOME": "/"}
            done = subprocess.run(argv, **identity("nobody"), env=env, cwd="/", capture_output=True, check=False)
            if done.returncode:
                Path(folder).chmod(0o755)
                found.copy(Path(folder))
        yield found


def identity(name: str) -> dict[str, Any]:
    """Return the arguments of subprocess that become this user."""
    user = pwd.getpwnam(name)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": (), "umask": 0o077}


@contextlib.contextmanager
def acting_as(name: str, *groups: int) -> Iterator[None]:
    """Root's own process as another user, a member of these groups, and so are the commands that it starts."""
    user, before = pwd.getpwnam(name), os.getgroups()
    os.setgroups(groups)
    os.setresgid(user.pw_gid, user.pw_gid, 0)
    os.setresuid(user.pw_uid, user.pw_uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(before)
