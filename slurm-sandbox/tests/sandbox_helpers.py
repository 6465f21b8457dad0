"""What several tests of a sandbox need."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_sandbox.api import Sandbox
from slurm_sandbox.ports import reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

TESTS = Path(__file__).parent
DATA = TESTS / "data"
SOURCE = TESTS.parent / "src"

DEADLINE = 300  # seconds; a run of a tiny suite takes 2, a minute on a machine that others use with all their might
GOES_BY_ITSELF = DEADLINE  # for a job that was given back and a node that was healed


def environment(**changes: str) -> dict[str, str]:
    """Return an environment without what the pytest around us has put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "120", **changes}


def slurm(sandbox: Sandbox, *argv: str) -> str:
    """Run a Slurm command of the sandbox's and return its stdout."""
    env = environment(**sandbox.env)
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def queue(sandbox: Sandbox) -> list[str]:
    """Return the jobs that are not over: 'ID NAME STATE'."""
    return slurm(sandbox, "squeue", "-h", "-a", "-o", "%i %j %T").splitlines()


def left_in_queue(sandbox: Sandbox) -> list[str]:
    """Return what is queued of a run that has ended; of a job that was given back the epilog may still run."""
    wait_for(lambda: not any(line.endswith("COMPLETING") for line in queue(sandbox)), "all epilogs have run")
    return queue(sandbox)


def not_as_before(sandbox: Sandbox, before: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the jobs beside those of `before`, and the nodes out of service."""
    known = {line.split()[0] for line in before}
    jobs = [line for line in queue(sandbox) if line.split()[0] not in known]
    listed = slurm(sandbox, "sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T").splitlines()
    return jobs, [] if jobs or known else [line for line in listed if not line.endswith(" idle")]


def left_behind(sandbox: Sandbox, before: Collection[str], patience: float = GOES_BY_ITSELF) -> list[str]:
    """Return jobs beside those of `before`, and nodes out of service, that do not go by themselves; take them away."""
    deadline = time.monotonic() + patience
    while any(left := not_as_before(sandbox, before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    jobs, nodes = left
    for job in jobs:
        slurm(sandbox, "scancel", job.split()[0])
    for node in nodes:
        slurm(sandbox, "scontrol", "update", f"NodeName={node.split()[0]}", "State=RESUME")
    if jobs or nodes:
        wait_for(lambda: not any(not_as_before(sandbox, before)), "all is as before")
    return [*(f"job {job}" for job in jobs), *(f"node {node}" for node in nodes)]


# Takes a sandbox down that we have left: our end closes its stdin, however we end. xdist kills a worker 10 s after Ctrl-C.
UNDERTAKER = """
import os, sys
folder = sys.stdin.read()
if os.path.exists(folder):
    import shutil
    from pathlib import Path
    from slurm_sandbox.api import Sandbox
    try:
        Sandbox(Path(folder) / "s").down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
"""


@contextlib.contextmanager
def sandbox_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder for one sandbox, in its `s`; both are gone after us, also where we are killed."""
    folder = Path(
        tempfile.mkdtemp(prefix="sbx-", dir=parent)
    )  # short: a munge socket's path has at most 107 characters
    argv = [sys.executable, "-c", UNDERTAKER]
    # in a session of its own: out of Ctrl-C's reach
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, text=True) as undertaker:
        assert undertaker.stdin
        undertaker.stdin.write(str(folder))
        undertaker.stdin.flush()
        yield folder
        Sandbox(folder / "s").down()
        shutil.rmtree(folder, ignore_errors=True)
    assert undertaker.returncode == 0, f"the sandbox in {folder} was not taken down"


def wait_for(true: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """Return what becomes true; fail where it does not."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
    return found


def free_port() -> int:
    """Return a port that nobody listens on.

    Not one that Linux gives to outgoing connections: Slurm's commands of the tests beside us take those by the dozen,
    and who tries again and again to connect to such a port may in the end be connected to itself.
    """
    with reserve(1) as port:
        return port


def of_folder(folder: Path) -> list[str]:
    """Return the command lines of all processes that name the folder."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in text and int(entry.name) != os.getpid():
            lines.append(text)
    return lines
