"""Cancellation of batch jobs at the end of this process: a shell reads a pipe from it and cancels when that closes.

If the shell is killed at the same time, the next run finds the jobs by their name (cluster/slurm/leftovers.py).
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport import kill_group
from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import SlurmError

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.transport import RemoteProcess

RETRY_FOR = 10.0  # seconds
# A line means release(). End of file means that the process died, and an sbatch may still be submitting.
_CANCEL = """
read -r _ || for _ in 1 2 3 4 5; do scancel --quiet --name="$0"; sleep 1; done
exec scancel --quiet --name="$0"
"""


class JobGuard:
    """Cancels all jobs with `name` (sbatch --job-name) at any end of this process. Make it before the first job."""

    def __init__(self, slurm: Slurm) -> None:
        self.name = runmark.name_of_run("diagnostic", secrets.token_hex(4))
        self._slurm = slurm
        self._process: subprocess.Popen[bytes] | RemoteProcess | None = slurm.transport.spawn(
            ("sh", "-c", _CANCEL, self.name), env=slurm.env
        )

    def release(self) -> None:
        """Cancel the remaining jobs. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        self._slurm.transport.count("scancel")
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.write(b"\n")
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        ended = process.poll()
        kill_group(process)
        if ended != 0:  # the shell was killed, or its scancel failed
            with contextlib.suppress(SlurmError):  # their time limit ends them in a minute
                again = Slurm(self._slurm.transport, retry_for=RETRY_FOR)
                again.run("scancel", "--quiet", f"--name={self.name}")
