"""Faults of slurmctld that no node shows: a backup that does not run, and slow requests.

All are real actions. They concern the whole cluster, whatever node is named.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from slurm_sandbox import daemons, processes
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.faults import slurm_fault
from slurm_sandbox.slurm_faults import FaultAction

if TYPE_CHECKING:
    from slurm_sandbox.faults import InjectedFault
    from slurm_sandbox.slurm_faults import FaultContext

_REGISTERED = 10.0  # seconds; a node whose slurmd is dead does not register
_PLUGIN = "\nJobSubmitPlugins=lua\n"
_REQUESTS, _COUNTED = 10, re.compile(r"REQUEST_JOB_WILL_RUN +\( *\d+\) count:(\d+)")  # sdiag.c
_PATIENCE = 30.0
_SLOW_LUA = """\
function slurm_job_submit(job, partitions, uid)
  os.execute("sleep {seconds}")
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


def _stop_backup(context: FaultContext, injected: InjectedFault) -> None:
    process = context.daemons.find(daemons.BACKUP)
    if process is None:
        raise SandboxError("the sandbox has no backup controller: start it with --backup")
    processes.stop([process], patience=2.0)


def _start_backup(context: FaultContext, injected: InjectedFault) -> None:
    context.daemons.start_backup()
    context.daemons.wait_for([daemons.BACKUP])


def _slow_plugin(context: FaultContext, seconds: object) -> None:
    """Load a job_submit plugin into slurmctld that delays each request."""
    (context.layout.etc / "job_submit.lua").write_text(_SLOW_LUA.format(seconds=seconds))
    conf = context.layout.conf
    conf.write_text(conf.read_text().replace(_PLUGIN, "") + _PLUGIN)
    _reconfigure(context)


def _reconfigure(context: FaultContext) -> None:
    _client(context, "scontrol", "reconfigure")
    # since 23.11 new processes replace all daemons: a node is unknown until its slurmd has registered
    deadline = time.monotonic() + _REGISTERED
    while time.monotonic() < deadline:
        states = context.daemons.states().values()
        if states and not any(state.startswith("unk") for state in states):
            return
        time.sleep(0.05)


def _client(context: FaultContext, *argv: str) -> str:
    done = context.daemons.client(*argv)
    if done.rc != 0:
        raise SandboxError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _slow_requests(context: FaultContext, injected: InjectedFault) -> None:
    """Let ten requests wait for one another in a job_submit plugin, until sdiag counts them; they create no job."""
    _slow_plugin(context, injected.options["seconds"])
    _client(context, "sdiag", "--reset")  # the mean is that of these requests alone
    with ThreadPoolExecutor(_REQUESTS) as pool:
        for _ in range(_REQUESTS):  # sbatch gives up after MessageTimeout, and slurmctld continues
            pool.submit(context.daemons.client, "sbatch", "--test-only", "-o", "/dev/null", "--wrap", "true")
    deadline = time.monotonic() + _REQUESTS * float(injected.options["seconds"]) + _PATIENCE
    while not ((count := _COUNTED.search(_client(context, "sdiag"))) and int(count[1]) >= _REQUESTS):
        if time.monotonic() > deadline:
            raise SandboxError(f"slurmctld did not process {_REQUESTS} requests of sbatch --test-only")
        time.sleep(0.1)


def _fast_requests(context: FaultContext, injected: InjectedFault) -> None:
    conf = context.layout.conf
    conf.write_text(conf.read_text().replace(_PLUGIN, ""))
    _reconfigure(context)
    (context.layout.etc / "job_submit.lua").unlink(missing_ok=True)
    _client(context, "sdiag", "--reset")


ACTIONS: dict[str, FaultAction] = {}


def _add(name: str, description: str, action: FaultAction, **options: object) -> None:
    slurm_fault(name, description, **options)
    ACTIONS[name] = action


_add("backup_dead", "the backup controller does not run (`up --backup`)", FaultAction(_stop_backup, _start_backup))
_add(
    "requests_slow",
    "a job_submit plugin lets ten requests wait for one another, as sdiag shows",
    FaultAction(_slow_requests, _fast_requests),
    seconds=1.5,
)
