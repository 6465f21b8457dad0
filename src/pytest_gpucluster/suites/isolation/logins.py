"""One login over ssh to each node as the user of the run, before it has a job there.

ssh starts where Slurm's commands run, with the keys and known hosts of the user. It never prompts, and uses no connection that
is already open, which PAM would not see.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import SlurmError, TransportError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.kit.suite_work import Submission
from pytest_gpucluster.suites.isolation.config import IsolationConfig
from pytest_gpucluster.suites.isolation.settings import sandbox_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster

AT_ONCE = 16  # logins
CONNECT, PATIENCE = 10, 25.0  # seconds for the connection, and for the whole login
SECONDS_PER_NODE = 0.25
_SHOW = "echo gpucluster-login $(id -u)"
_SSH = (
    *("ssh", "-n", "-T", "-a", "-x"),
    *("-oBatchMode=yes", f"-oConnectTimeout={CONNECT}", "-oControlPath=none", "-oClearAllForwardings=yes"),
    "-oLogLevel=INFO",  # the module's message is a banner, which ERROR hides
)
# send_user_msg() of contribs/pam_slurm_adopt/helper.c
_REFUSAL = re.compile(r"Access denied by pam_slurm_adopt: ([^\r\n]+)")
_SHELL = re.compile(r"^gpucluster-login (\d{1,10})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Login:
    """How a login ended: with a shell of `uid`, with a `refusal` by pam_slurm_adopt, or with a `problem`."""

    uid: int | None = None
    refusal: str = ""
    problem: str = ""


def read_login(rc: int, stdout: str, stderr: str) -> Login:
    """Read what ssh printed, with any lines of the site around it."""
    if shell := _SHELL.search(stdout):
        return Login(int(shell[1]))
    if refusal := _REFUSAL.search(stderr):
        return Login(refusal=one_line(refusal[1], 120))
    lines = [line.strip() for line in f"{stdout}\n{stderr}".splitlines() if line.strip()]
    return Login(problem=f"ssh: {one_line(lines[-1], 160) if lines else 'no message'} (exit {rc})")


def log_in(slurm: Slurm, nodes: Sequence[str], options: Sequence[str] = ()) -> dict[str, Login]:
    """Log in to these nodes, some at a time, within the deadline of a step: {node: login}; options: further ones of ssh."""
    until = time.monotonic() + IsolationConfig.deadline + SECONDS_PER_NODE * len(nodes)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(nodes, pool.map(partial(_log_in, slurm, options, until), nodes), strict=True))


def _log_in(slurm: Slurm, options: Sequence[str], until: float, node: str) -> Login:
    if time.monotonic() > until:
        return Login(problem="no login was tried: those to other nodes took the whole time limit")
    try:
        argv = (*_SSH, *options, node, _SHOW)
        done = slurm.transport.run(argv, timeout=PATIENCE, env=slurm.env)
    except TransportError as error:
        return Login(problem=one_line(str(error), 160))
    return read_login(done.rc, done.stdout, done.stderr)


def _with_jobs(slurm: Slurm) -> set[str]:
    """Return the nodes on which this user has a job."""
    lists = slurm.run("squeue", "-h", "--me", "-t", "running,completing", "-o", "%N").split()
    return {node for nodes in lists for node in hostlist.expand(nodes)}


class LoginsWithoutJob(Submission):
    """Logins before the run requests its nodes: the only time at which it has no job there. It submits no job."""

    def __init__(self, slurm: Slurm, cluster: Cluster) -> None:
        self._slurm, self._cluster = slurm, cluster
        self._found: dict[str, Login] = {}

    def use_nodes(self, nodes: Sequence[str]) -> None:
        """Log in to the nodes."""
        if self._cluster.stated("isolation.login") is False:
            return
        tree = sandbox_tree(self._cluster)
        options = ("-F", str(tree / "ssh/config")) if tree else ()
        try:
            own = _with_jobs(self._slurm)
            self._found = log_in(self._slurm, nodes, options)
            own |= _with_jobs(self._slurm)  # a job that started meanwhile
            why = "this user had a job on the node"
        except (SlurmError, ValueError) as error:
            own, why = {*nodes}, f"squeue does not show on which nodes this user has a job: {error}"
        self._found |= {node: Login(problem=why) for node, login in self._found.items() if login.uid and node in own}

    def outcome(self) -> dict[str, Login]:
        """Return {node: login}."""
        return self._found
