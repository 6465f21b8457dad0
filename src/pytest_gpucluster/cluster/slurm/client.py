"""Slurm's commands, with deadlines and retries during short controller outages."""

from __future__ import annotations

import os
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.cluster.environment import SYSTEM_PATH
from pytest_gpucluster.cluster.slurm import inventory
from pytest_gpucluster.cluster.transport.local import LocalTransport
from pytest_gpucluster.core import redact
from pytest_gpucluster.core.errors import SlurmError, TransportError, in_vain
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, PartitionInfo, ReservationInfo, StepInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.cluster.transport import Transport
    from pytest_gpucluster.cluster.transport.base import Env
    from pytest_gpucluster.config.models import Cluster

_T = TypeVar("_T")

# Slurm's errors for a controller that does not answer: slurm_errno.c
_OUTAGE = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused|Connection reset"
    r"|Connection timed out|Slurm backup controller in standby mode|Transport endpoint is not connected"
    r"|Unable to connect to slurmctld|slurm_receive_msg: (?:Zero Bytes|No response)|Zero Bytes were transmitted"
    r"|Slurm controller is not responding|Transaction timed out|Communication connection failure"
    r"|Communication shutdown failure|Message receive failure|Message send failure"
    r"|Rate limit exceeded",  # SlurmctldParameters=rl_enable, since 23.02
    re.IGNORECASE,
)
# seconds of retries for a command after another one has waited for the controller without success
AGAIN = 10.0
# scontrol without any slurm.conf: src/common/fetch_config.c, read_config.c
_NO_CONF = "Could not establish a configuration source"
# versions of commands and slurmctld that differ too much: src/common/slurm_errno.c
_VERSIONS = "Incompatible versions of client and server code"


def outage(text: str) -> bool:
    """Return whether the text is about a controller that cannot be reached at the moment."""
    return bool(_OUTAGE.search(text))


class Slurm:
    """Slurm's commands over a transport.

    `retry_for`: seconds of waiting for an unreachable controller, by all commands together; `timeout`: seconds for one
    command. Results of `nodes`, `partitions` and `config` are cached until `refresh`.
    """

    def __init__(self, transport: Transport, *, retry_for: float = 60.0, timeout: float = 30.0) -> None:
        self.transport = transport
        self.retry_for = retry_for
        self.timeout = timeout
        self.env: dict[str, str | None] = {"SLURM_TIME_FORMAT": "standard"}  # added to that of the transport
        self._lock = threading.RLock()
        self._cache: dict[tuple[str, ...], object] = {}
        self._away: tuple[float, float] | None = None  # begin and last observation of a controller outage
        self.on_step: Callable[[StepResult], None] | None = None  # called after every step

    def run(self, *argv: str, timeout: float | None = None, input: str | None = None, env: Env | None = None) -> str:
        """Run a Slurm command and return its standard output.

        Raise SlurmError with one line: the command, its exit status and its error. If the controller cannot be
        reached, retry until the outage has lasted `retry_for` seconds.
        """
        begin = time.monotonic()
        pause = 0.5
        while True:
            try:
                done = self.transport.run(
                    argv, timeout=timeout or self.timeout, input=input, env={**self.env, **(env or {})}
                )
            except TransportError as problem:
                raise SlurmError(str(problem), argv=argv) from problem
            if done.rc == 0:
                self._away = None
                return done.stdout
            words = error_line(done.stderr)
            failed = partial(SlurmError, argv=argv, rc=done.rc, stderr=done.stderr)
            if not outage(done.stderr):
                command = " ".join(redact.words(argv))[:120]
                words = words or error_line(done.stdout) or "no message"
                raise failed(f"{argv[0]}: {words} (exit {done.rc}: {command})")
            now = time.monotonic()
            waited = now - begin
            since, seen = self._away or (begin, begin)
            if begin - seen > self.retry_for:  # an earlier outage
                since = begin
            self._away = since, now
            if now + pause > max(since + self.retry_for, begin + min(AGAIN, self.retry_for)):
                why = f"the Slurm controller did not answer for {waited:.0f} s: {words}"
                advice = "is slurmctld running and SLURM_CONF right? (scontrol ping)"
                raise in_vain(failed(f"{argv[0]}: {why}: {advice}"))
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def nodes(self) -> dict[str, NodeInfo]:
        """Return all nodes of Slurm: one process, cached."""
        return self._cached(inventory.parse_nodes, "scontrol", "show", "node", "-o", "-a")

    def partitions(self) -> dict[str, PartitionInfo]:
        """Return all partitions: one process, cached."""
        return self._cached(inventory.parse_partitions, "scontrol", "show", "partition", "-o", "-a")

    def reservations(self) -> dict[str, ReservationInfo]:
        """Return all reservations: one process, not cached."""
        return self._parsed(inventory.parse_reservations, "scontrol", "show", "reservation", "-o")

    def steps(self, job_id: int) -> tuple[StepInfo, ...]:
        """Return the running steps of a job, () also after its end: one process, not cached.

        squeue does not list the steps of a job that manages them itself (stepmgr; seen on 25.11.7).
        """
        try:
            return self._parsed(inventory.parse_steps, "scontrol", "show", "step", "-o", str(job_id))
        except SlurmError as error:
            if re.search(r"not found|Invalid job id", str(error)):
                return ()
            raise

    def config(self) -> dict[str, str]:
        """Return slurmctld's current configuration: one process, cached."""
        return self._cached(inventory.parse_config, "scontrol", "show", "config")

    @property
    def version(self) -> str:
        """The controller's version, like 22.05.8."""
        return self.config().get("SLURM_VERSION", "")

    def refresh(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._cache.clear()

    def _parsed(self, parse: Callable[[str], _T], *argv: str) -> _T:
        text = self.run(*argv)
        try:
            return parse(text)
        except (ValueError, KeyError) as error:
            raise SlurmError(f"{' '.join(argv)}: not understood: {one_line(error)}", argv=argv, rc=0) from error

    def _cached(self, parse: Callable[[str], _T], *argv: str) -> _T:
        with self._lock:
            if argv not in self._cache:
                self._cache[argv] = self._parsed(parse, *argv)
            return self._cache[argv]  # type: ignore[return-value]  # what its own parser returned


def error_line(stderr: str) -> str:
    """Return the most specific line of a Slurm command's stderr: its first error, without prefixes."""
    if _NO_CONF in stderr:  # its first error is about a DNS record, which few sites use
        return f"{_NO_CONF}: set SLURM_CONF, or slurm.conf in the cluster file, or run it on a machine of the cluster"
    if _VERSIONS in stderr:  # its first error is of an authentication plugin
        return f"{_VERSIONS}: set slurm.bin in the cluster file to the folder of the commands of slurmctld's version"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = (line for line in lines if "error:" in line or "unrecognized option" in line)
    chosen = next(telling, lines[-1] if lines else "")
    # the time: slurmstepd since 25.05
    return re.sub(r"^(?:\w+: |\[\d{4}-[^]]*\] )(?:fatal: |error: )*", "", chosen)


def make_slurm(cluster: Cluster) -> Slurm | None:
    """Return the client of the cluster's Slurm, None if it has none."""
    if cluster.why_no_slurm:
        return None
    environment = {"SLURM_CONF": cluster.slurm.conf} if cluster.slurm.conf else {}
    if cluster.transport.kind == "ssh":
        from pytest_gpucluster.cluster.transport.ssh import SshTransport  # Fabric takes 0.2 s to import

        return Slurm(SshTransport(cluster.transport, environment, path=cluster.slurm.bin))
    if cluster.slurm.bin:
        environment["PATH"] = os.pathsep.join([cluster.slurm.bin, SYSTEM_PATH])
    return Slurm(LocalTransport(environment))
