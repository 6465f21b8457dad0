"""Errors of slurmctld's and slurmd's logs that have a known meaning, and lines that mean nothing. Pure.

The texts are those of Slurm's source (22.05 to 25.11), which `source` names. Healthy clusters print many other
lines with `error:`; those are shown as advisories only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pytest_gpucluster.suites.controller.facts import LogLine


class Weight(Enum):
    """When a line is a failure.

    DRAINS: Slurm takes the node out of service with it, so a node in service was returned to service since then.
    RECENT: nothing ends it but its absence. NOTE: never a failure; healthy nodes print it too.
    """

    DRAINS = "drains"
    RECENT = "recent"
    NOTE = "note"


@dataclass(frozen=True)
class KnownError:
    """One kind of line. The group `nodes` of the pattern, if any, is a hostlist."""

    what: str
    pattern: re.Pattern[str]
    weight: Weight
    cause: str
    hint: str
    source: str


def _known(what: str, pattern: str, weight: Weight, cause: str, hint: str, source: str) -> KnownError:
    return KnownError(what, re.compile(pattern), weight, cause, hint, source)


_PROLOG = "the prolog fails on the node"
_SEE_PROLOG = "slurmd's log has the prolog's output; scontrol show config | grep -i prolog; run it as root"
_EPILOG = "the epilog fails on the node"
_SEE_EPILOG = "slurmd's log has the epilog's output; scontrol show config | grep -i epilog; run it as root"
_AUTH = "a machine has another munge key, or its clock differs by more than five minutes"
_SEE_AUTH = (
    "the log names the peer; there: munge -n | ssh CONTROLLER unmunge; timedatectl; the mode of munge.key"
)
_NOT_KILLED = "a process of a job could not be killed: it waits for storage, a driver or a GPU (state D)"
_SEE_KILL = "ps -eo pid,stat,wchan:30,args on the node; UnkillableStepTimeout; reboot"
_DISK = "a file system of the machine is full"
_SEE_DISK = "df -h; df -i; du of SlurmdSpoolDir, StateSaveLocation and /var/log"

OF_SLURMCTLD = (
    _known(
        "prolog failed",
        r"Prolog or job env setup failure on node (?P<nodes>\S+), draining the node",
        Weight.DRAINS,
        _PROLOG,
        _SEE_PROLOG,
        "node_mgr.c: validate_node_specs",
    ),
    _known(
        "prolog or epilog failed",
        r"Prolog/Epilog failure on nodes (?P<nodes>\S+?)(?:, set to state DRAIN|$)",
        Weight.DRAINS,
        "the prolog or the epilog fails on the node",
        _SEE_PROLOG,
        "agent.c",
    ),
    _known(
        "epilog failed",
        r"epilog error on (?P<nodes>\S+), draining the node|Epilog failure on host (?P<host>\S+), setting DOWN",
        Weight.DRAINS,
        _EPILOG,
        _SEE_EPILOG,
        "job_mgr.c: job_epilog_complete; agent.c",
    ),
    _known(
        "invalid registration",
        r"Setting node (?P<nodes>\S+) state to INVAL with reason:",
        Weight.DRAINS,
        "slurmd reports fewer GPUs, CPUs or less memory than slurm.conf states",
        "scontrol show node NODE; on the node: slurmd -C, slurmd -G, nvidia-smi -L",
        "node_mgr.c: validate_node_specs",
    ),
    _known(
        "processes not killed",
        r"update_node: node (?P<nodes>\S+) reason set to: Kill task failed",
        Weight.DRAINS,
        _NOT_KILLED,
        _SEE_KILL,
        "node_mgr.c: update_node",
    ),
    _known(
        "duplicate job",
        r"Duplicate jobid on nodes (?P<nodes>\S+?)(?:, set to state DRAIN|$)",
        Weight.DRAINS,
        "slurmd still has a job that slurmctld started a second time",
        "on the node: scontrol listpids; restart slurmd",
        "agent.c",
    ),
    _known(
        "other slurm.conf",
        r"Node (?P<nodes>\S+) appears to have a different slurm\.conf than the slurmctld",
        Weight.RECENT,
        "the node has another slurm.conf than slurmctld, or has not read the new one",
        "compare the files; scontrol reconfigure; scontrol show config | grep HASH_VAL on the node; if intended: "
        "DebugFlags=NO_CONF_HASH",
        "proc_req.c: slurmd registers about every 33 minutes by default (ping_nodes.c: MAX_REG_FREQUENCY)",
    ),
    _known(
        "address of another node",
        r"Node registration response identity mismatch: expected (?P<nodes>[^\s,]+), got",
        Weight.RECENT,
        "two nodes have the same address, or DNS names the wrong one",
        "getent hosts NODE on the controller; NodeAddr of slurm.conf; ip address on both nodes",
        "agent.c, since 26.05",
    ),
    _known(
        "state cannot be saved",
        r"Can't save state, error (?:creating|writing) file",
        Weight.RECENT,
        "StateSaveLocation is full, read-only or not mounted: a restart of slurmctld would lose jobs",
        "df -h and ls -ld of StateSaveLocation on the controller",
        "state_save.c",
    ),
    _known(
        "accounting records lost",
        r"agent queue is full \(\d+\), discarding",
        Weight.RECENT,
        "slurmdbd has not accepted records for long, and slurmctld discards them",
        "systemctl status slurmdbd; sdiag shows the DBD Agent queue size; MaxDBDMsgs",
        "slurmdbd_agent.c",
    ),
    _known(
        "authentication",
        r"Munge decode failed: |auth_g_(?:verify|unpack): .*has authentication error",
        Weight.RECENT,
        _AUTH,
        _SEE_AUTH,
        "auth_munge.c; slurm_protocol_api.c",
    ),
    _known(
        "no response",
        r"Nodes (?P<nodes>\S+?) not responding",
        Weight.NOTE,
        "the node rebooted, was overloaded, or its network was interrupted",
        "scontrol show node NODE; slurmd's log of that time",
        "ping_nodes.c; node_mgr.c",
    ),
)

OF_SLURMD = (
    _known(
        "prolog failed",
        r"(?<![A-Za-z])[Pp]rolog failed(?:: rc:| status=)",
        Weight.DRAINS,
        _PROLOG,
        _SEE_PROLOG,
        "req.c; prep_script_slurmd.c",
    ),
    _known(
        "epilog failed",
        r"(?<![A-Za-z])[Ee]pilog failed(?:: rc:| status=)",
        Weight.DRAINS,
        _EPILOG,
        _SEE_EPILOG,
        "req.c; prep_script_slurmd.c",
    ),
    _known(
        "processes not killed",
        r"STEPD TERMINATED ON \S+ AT \S+ DUE TO JOB NOT ENDING WITH SIGNALS",
        Weight.DRAINS,
        _NOT_KILLED,
        _SEE_KILL,
        "step_terminate_monitor.c",
    ),
    _known(
        "health check failed",
        r"health_check (?:failed: rc:|killed by signal|didn't run)",
        Weight.RECENT,
        "HealthCheckProgram reports a fault of the node, or is missing there",
        "run HealthCheckProgram on the node as root; slurmd's log has its output",
        "slurmd.c: run_script_health_check",
    ),
    _known(
        "no cgroup",
        r"unable to create cgroup '[^']*' ?: (?:No space left on device|Cannot allocate memory)",
        Weight.RECENT,
        "the kernel has no room for another cgroup: removed ones are not released",
        "cat /proc/cgroups; reboot; a newer kernel",
        "cgroup_common.c",
    ),
    _known(
        "disk full",
        r"^(?!\[\d).*No space left on device",  # slurmstepd ([6457.batch]) writes to the folders of users
        Weight.RECENT,
        _DISK,
        _SEE_DISK,
        "errno(3)",
    ),
    _known(
        "authentication",
        r"Munge (?:de|en)code failed: |auth_g_(?:verify|unpack): .*has authentication error",
        Weight.RECENT,
        "munged of the node does not run, has another key, or a clock differs by more than five minutes",
        "systemctl status munge; munge -n | unmunge; timedatectl; munge -n | ssh CONTROLLER unmunge",
        "auth_munge.c",
    ),
    _known(
        "registration",
        r"Unable to register: ",
        Weight.NOTE,
        "slurmctld was not reachable when slurmd started; it repeats the registration",
        "scontrol show node NODE: SlurmdStartTime, LastBusyTime",
        "slurmd.c: send_registration_msg",
    ),
)

# Seen on healthy clusters. First start: aws-parallelcluster #1413, elasticluster #300. The first figure of a message is
# its length: a port scan ends with "Insane message length", a client that goes away with "Zero Bytes" or a closed socket.
HARMLESS = re.compile(
    r"Configured MailProg is invalid|Could not open \S+ state file|NOTE: Trying backup state save file"
    r"|Incomplete \S+ (?:state|data checkpoint) file|StateSaveLocation DIRECTORY IS WORLD WRITABLE|#####"
    r"|Insane message length|Zero Bytes were transmitted|Unexpected missing socket error|Broken pipe"
    r"|Header lengths are longer than data received|Invalid Protocol Version|Protocol authentication error"
    r"|_shutdown_bu_thread|while in standby mode"  # at the start of one of two controllers
    r"|slurm_receive_msg \[\S+\]: Unspecified error|Security violation|MaxJobCount limit|Socket timed out"
    r"|\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED|Job/step already completing or completed"
    r"|cannot create (?:http|url)_parser context"  # 25.11 and later, built without libhttp_parser
    # the second line of errors of the table above
    r"|_slurm_rpc_epilog_complete: epilog error|_slurm_rpc_node_registration node=|gres/\S+ on node \S+ configured for"
)
_OF_STEP = re.compile(r"^\[\d+(?:_\d+)?\.\w+\] ")  # slurmstepd: mostly about the program of a user
_NAMED = re.compile(r"\b[Nn]odes?(?:\(s\))?[ =](?P<nodes>[A-Za-z0-9][\w.,\[\]-]*)")
UNKNOWN = "unknown error"


@dataclass(frozen=True)
class LogError:
    """A line that counts. `known` is None for an error that the tables lack; `nodes` are those that it names."""

    known: KnownError | None
    line: LogLine
    nodes: tuple[str, ...] = ()


def sorted_errors(
    lines: Iterable[LogLine],
    table: tuple[KnownError, ...],
    *,
    window: float,
    ignored: Collection[str] = (),
    nodes: Collection[str] = (),
) -> Iterator[LogError]:
    """Yield the lines within the window that count, with the nodes of `nodes` that they name."""
    unwanted = [re.compile(pattern) for pattern in ignored]
    for line in lines:
        if (line.age is not None and line.age > window) or any(one.search(line.text) for one in unwanted):
            continue
        for known in table:
            if match := known.pattern.search(line.text):
                named = {name: text for name, text in match.groupdict().items() if text}
                yield LogError(known, line, _members(named.get("nodes") or named.get("host", ""), nodes))
                break
        else:
            if not HARMLESS.search(line.text) and not _OF_STEP.match(line.text):
                found = _NAMED.search(line.text)
                yield LogError(None, line, _members(found["nodes"] if found else "", nodes))


def _members(text: str, nodes: Collection[str]) -> tuple[str, ...]:
    try:
        names = hostlist.expand(text.rstrip(".,")) if text else ()
    except ValueError:
        return ()
    return tuple(name for name in names if name in nodes)
