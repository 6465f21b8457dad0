"""The commands of README and tutorial, typed one after the other by an ordinary user with a fresh HOME."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from docs_helpers import ROOT, blocks, lines
from sandbox_helpers import left_in_queue, sandbox_folder
from user_helpers import identity

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from user_helpers import Checkout

USER = "nobody"
# what is not typed, and why
NOT_TYPED = {
    "make ": "the project's own tests and its demo",
    "pytest --cluster=prod -m burnin": "hours of load on real GPUs",
}
AS_ROOT = "python3 -m venv /opt/gpucluster"  # from here on the tutorial is for root
CERTIFICATES = ("PIP_", "SSL_CERT", "http_proxy", "https_proxy", "no_proxy")
DEADLINE = 900


def typed() -> list[str]:
    """Return the commands of README from its installation on, then those of the tutorial up to its part for root."""
    readme = [block for block in blocks("sh", "README.md") if "gpucluster" in block.text]
    found = {_words(line): line for block in readme for line in lines(block.text)}
    once = {words for words in found if not words.startswith("pytest")}  # the tutorial repeats these
    for block in blocks("sh", "docs/tutorial.md"):
        for line in lines(block.text):
            if line.startswith(AS_ROOT):
                return [line for line in found.values() if not line.startswith(tuple(NOT_TYPED))]
            if _words(line) not in once:
                found[_words(line)] = line
    raise AssertionError("the tutorial has no part for root")


def _words(line: str) -> str:
    return shlex.join(shlex.split(line, comments=True))


@pytest.fixture(scope="module")
def cluster(checkout: Checkout) -> Iterator[Sandbox]:
    """The 16 nodes of README."""
    with sandbox_folder() as folder:
        folder.chmod(0o755)
        checkout.start_sandbox(folder / "s", "--nodes", "16")
        yield Sandbox(folder / "s")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_readme_and_tutorial_as_an_ordinary_user(cluster: Sandbox, folder: Path) -> None:
    user = pwd.getpwnam(USER)
    checkout = folder / "checkout"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if name.startswith(("src/", "docs/", "README", "LICENSE", "pyproject", "examples", "suites", "conftest")):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, user.pw_uid, user.pw_gid)
    commands = typed()
    assert len(commands) > 18
    done = subprocess.run(
        ["/bin/sh", "-ex", "-c", "\n".join(commands)],
        **identity(USER),
        cwd=checkout,
        env={
            "HOME": str(folder),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "SLURM_CONF": cluster.env["SLURM_CONF"],
            **{name: value for name, value in os.environ.items() if name.startswith(CERTIFICATES)},
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    screen = done.stdout[-6000:] + done.stderr[-3000:]
    assert done.returncode == 0, screen
    assert "Traceback" not in done.stderr + done.stdout, screen
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("ACCEPTED", "NOT "))]
    assert verdicts, screen
    assert all(line.startswith("ACCEPTED:") for line in verdicts), screen
    assert "No node is drained" in done.stdout
    assert (checkout / "reports" / "latest" / "report.html").exists()
    assert not left_in_queue(cluster)
