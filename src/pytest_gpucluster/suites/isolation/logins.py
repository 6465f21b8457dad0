"""Logins over ssh as the user of the run: before it has a job on the nodes, and with one.

ssh starts where Slurm's commands run, with the keys and known hosts of the user. It never prompts, and uses no connection that
is already open, which PAM would not see.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.kit.framework.framework_step import nodes_by_allocation
from pytest_gpucluster.kit.suite_work import Submission
from pytest_gpucluster.suites.isolation.config import IsolationConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster

AT_ONCE = 16  # logins
CONNECT, PATIENCE = 10, 25.0  # seconds for the connection, and for the whole login
SECONDS_PER_NODE = 0.25
_MARK = "gpucluster-login"
_SHOW = f"sh -c 'echo {_MARK} $(id -u); cat /proc/self/cgroup; echo {_MARK} end'"
_SSH = (
    *("ssh", "-n", "-T", "-a", "-x"),
    *("-oBatchMode=yes", f"-oConnectTimeout={CONNECT}", "-oControlPath=none", "-oClearAllForwardings=yes"),
    "-oLogLevel=INFO",  # the module's message is a banner, which ERROR hides
)
# send_user_msg() of contribs/pam_slurm_adopt/helper.c
_REFUSAL = re.compile(r"Access denied by pam_slurm_adopt: ([^\r\n]+)")
_SHELL = re.compile(rf"^{_MARK} (\d{{1,10}})\s*$(.*?)^{_MARK} end\s*$", re.MULTILINE | re.DOTALL)
_EXTERN = re.compile(r"/job_(\d{1,10})/step_extern(?:/|$)", re.MULTILINE)


@dataclass(frozen=True)
class Login:
    """How a login ended: with a shell of `uid`, with a `refusal` by pam_slurm_adopt, or with a `problem` of ssh.

    `job`: the job whose external step has the shell, None if none has; `cgroup`: the longest of the shell's cgroups.
    """

    uid: int | None = None
    job: int | None = None
    cgroup: str = ""
    refusal: str = ""
    problem: str = ""


def read_login(rc: int, stdout: str, stderr: str) -> Login:
    """Read what ssh printed, with any lines of the site around it."""
    if shell := _SHELL.search(stdout):
        paths = [line.split(":", 2)[-1] for line in shell[2].split()]
        extern = _EXTERN.search(shell[2])
        return Login(int(shell[1]), int(extern[1]) if extern else None, max(paths, key=len, default=""))
    if refusal := _REFUSAL.search(stderr):
        return Login(refusal=one_line(refusal[1], 120))
    lines = [line.strip() for line in f"{stdout}\n{stderr}".splitlines() if line.strip()]
    return Login(problem=f"ssh: {one_line(lines[-1], 160) if lines else 'no message'} (exit {rc})")


def why_unadoptable(config: Mapping[str, str], cluster: Cluster) -> str:
    """Return why Slurm's configuration or the cluster file lets no login be tested, '' if they do."""
    if cluster.stated("isolation.pam_slurm_adopt") is False:
        return "the cluster file has isolation.pam_slurm_adopt under not_applicable"
    if not re.search(r"\bcontain\b", config.get("PrologFlags", ""), re.IGNORECASE):
        return f"no job has an external step: slurm.conf has PrologFlags={config.get('PrologFlags', '')}, not Contain"
    if "cgroup" not in (tracking := config.get("ProctrackType", "")):
        return (
            f"a process does not show its job: slurm.conf has ProctrackType={tracking}, not proctrack/cgroup"
        )
    return ""


def log_in(slurm: Slurm, section: IsolationConfig, nodes: Sequence[str]) -> dict[str, Login]:
    """Log in to these nodes, some at a time, within the deadline of a step: {node: login}."""
    until = time.monotonic() + section.deadline + SECONDS_PER_NODE * len(nodes)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(nodes, pool.map(partial(_log_in, slurm, section, until), nodes), strict=True))


def _log_in(slurm: Slurm, section: IsolationConfig, until: float, node: str) -> Login:
    if time.monotonic() > until:
        return Login(problem="no login was tried: those to other nodes took the whole time limit")
    try:
        argv = (*_SSH, *section.ssh_options, node, _SHOW)
        done = slurm.transport.run(argv, timeout=PATIENCE, env=slurm.env)
    except TransportError as error:
        return Login(problem=one_line(str(error), 160))
    return read_login(done.rc, done.stdout, done.stderr)


class LoginsWithoutJob(Submission):
    """Logins before the run requests its nodes: the only time at which it has no job there. It submits no job."""

    def __init__(self, slurm: Slurm, cluster: Cluster) -> None:
        self._slurm, self._cluster = slurm, cluster
        self._found: dict[str, Login] = {}

    def use_nodes(self, nodes: Sequence[str]) -> None:
        """Log in to the nodes."""
        if not why_unadoptable(self._slurm.config(), self._cluster):
            self._found = log_in(self._slurm, self._cluster.section(IsolationConfig), nodes)

    def outcome(self) -> dict[str, Login]:
        """Return {node: login}."""
        return self._found


def logins_with_job(session: Any, section: IsolationConfig) -> dict[str, Login]:
    """Log in to the nodes of every allocation: {node: login}."""
    found: dict[str, Login] = {}
    for held, nodes in nodes_by_allocation(session):
        logins = log_in(held.slurm, section, nodes)
        ended = Login(problem=f"job {held.job_id} of the run ended meanwhile")
        found |= logins if held.alive else dict.fromkeys(nodes, ended)
    return found
