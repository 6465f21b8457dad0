"""Faults of Slurm's daemons that no node shows: controllers, configuration files, munge, job_submit plugins.

All are real actions. Those of slurmctld concern the whole cluster, whatever node is named.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from slurm_sandbox import daemons, processes
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.faults import slurm_fault
from slurm_sandbox.slurm_faults import FaultAction, own_etc, restart

if TYPE_CHECKING:
    from slurm_sandbox.faults import InjectedFault
    from slurm_sandbox.slurm_faults import FaultContext

_REGISTERED = 10.0  # seconds; a node whose slurmd is dead does not register
_PLUGIN = "\nJobSubmitPlugins=lua\n"
_SLOW_SUBMISSION = 'os.execute("sleep {seconds}")'
_REQUESTS, _COUNTED = 10, re.compile(r"REQUEST_JOB_WILL_RUN +\( *\d+\) count:(\d+)")  # sdiag.c
_PATIENCE = 30.0
_LUA = """\
function slurm_job_submit(job, partitions, uid)
  {}
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


def _other_conf(context: FaultContext, injected: InjectedFault) -> None:
    """Start the node's slurmd with its own slurm.conf, one line of which differs."""
    own = own_etc(context, injected.node, without="slurm.conf")
    text = context.layout.conf.read_text()
    (own / "slurm.conf").write_text(re.sub(r"^KillWait=2$", "KillWait=3", text, flags=re.MULTILINE))
    restart(context, injected.node)


def _same_conf(context: FaultContext, injected: InjectedFault) -> None:
    shutil.rmtree(context.layout.root / f"etc.{injected.node}", ignore_errors=True)
    restart(context, injected.node)


def _failing_health_check(context: FaultContext, injected: InjectedFault) -> None:
    """Let HealthCheckProgram fail, which slurmd runs at its start."""
    (context.layout.node(injected.node) / "fault.health_check").touch()
    restart(context, injected.node)


def _working_health_check(context: FaultContext, injected: InjectedFault) -> None:
    (context.layout.node(injected.node) / "fault.health_check").unlink(missing_ok=True)


def _stop_backup(context: FaultContext, injected: InjectedFault) -> None:
    process = context.daemons.find(daemons.BACKUP)
    if process is None:
        raise SandboxError("the sandbox has no backup controller: start it with --backup")
    processes.stop([process], patience=2.0)


def _start_backup(context: FaultContext, injected: InjectedFault) -> None:
    context.daemons.start_backup()
    context.daemons.wait_for([daemons.BACKUP])


def _foreign_credential(context: FaultContext, injected: InjectedFault) -> None:
    """Send slurmctld one request with the credential of another munge key."""
    etc = context.layout.root / "etc.foreign"
    etc.mkdir(exist_ok=True)
    key, socket, pid = etc / "munge.key", etc / "socket", etc / "pid"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    conf = etc / "slurm.conf"
    info = re.compile(r"^AuthInfo=.*$", re.MULTILINE)
    conf.write_text(info.sub(f"AuthInfo=socket={socket}", context.layout.conf.read_text()))
    names = {
        "socket": socket,
        "key-file": key,
        "pid-file": pid,
        "log-file": etc / "log",
        "seed-file": etc / "seed",
    }
    context.daemons.run_munged({f"--{name}": path for name, path in names.items()})
    try:
        context.daemons.client("sinfo", conf=conf)  # refused
    finally:
        process = processes.from_pid_file(pid, str(context.layout.root))
        processes.stop([process] if process else [], patience=2.0)


def _forget_credential(context: FaultContext, injected: InjectedFault) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(context.layout.root / "etc.foreign")


def _submit_plugin(script: str, context: FaultContext, injected: InjectedFault) -> None:
    """Load a job_submit plugin into slurmctld."""
    text = script.format(**injected.options)
    (context.layout.etc / "job_submit.lua").write_text(_LUA.format(text))
    conf = context.layout.conf
    conf.write_text(conf.read_text().replace(_PLUGIN, "") + _PLUGIN)
    _reconfigure(context)


def _no_plugin(context: FaultContext, injected: InjectedFault) -> None:
    conf = context.layout.conf
    conf.write_text(conf.read_text().replace(_PLUGIN, ""))
    _reconfigure(context)
    (context.layout.etc / "job_submit.lua").unlink(missing_ok=True)


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
    _submit_plugin(_SLOW_SUBMISSION, context, injected)
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
    _no_plugin(context, injected)
    _client(context, "sdiag", "--reset")


ACTIONS: dict[str, FaultAction] = {}


def _add(name: str, description: str, action: FaultAction, **options: object) -> None:
    slurm_fault(name, description, **options)
    ACTIONS[name] = action


def _plugin(script: str) -> FaultAction:
    return FaultAction(partial(_submit_plugin, script), _no_plugin)


_add(
    "slurm_conf_differs",
    "slurmd of the node has another slurm.conf",
    FaultAction(_other_conf, _same_conf),
)
_add(
    "health_check_failing",
    "HealthCheckProgram fails on the node",
    FaultAction(_failing_health_check, _working_health_check),
)
_add(
    "backup_dead",
    "the backup controller does not run (`up --backup`)",
    FaultAction(_stop_backup, _start_backup),
)
_add(
    "foreign_key",
    "a machine with another munge key sends slurmctld a request",
    FaultAction(_foreign_credential, _forget_credential),
)
_add(
    "submissions_slow",
    "a job_submit plugin delays every submission",
    _plugin(_SLOW_SUBMISSION),
    seconds=1,
)
_add(
    "requests_slow",
    "a job_submit plugin lets ten requests wait for one another, as sdiag shows",
    FaultAction(_slow_requests, _fast_requests),
    seconds=1.5,
)
_add(
    "hold_ignored",
    "a job_submit plugin releases held jobs",
    _plugin("if job.priority == 0 then job.priority = slurm.NO_VAL end"),
)
_add(
    "singleton_ignored",
    "a job_submit plugin removes dependencies",
    _plugin('job.dependency = ""'),
)
