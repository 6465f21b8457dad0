"""Slurm's commands, with deadlines, and short controller outages ridden out."""

from __future__ import annotations

import os
import re
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.cluster.slurm import inventory
from pytest_gpucluster.cluster.transport.local import LocalTransport
from pytest_gpucluster.core import redact
from pytest_gpucluster.core.errors import SlurmError, TransportError
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, PartitionInfo, ReservationInfo, StepInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.cluster.transport import Transport
    from pytest_gpucluster.config.models import Cluster

_T = TypeVar("_T")

# Slurm's words for a controller that is away for a moment: slurm_errno.c
_OUTAGE = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused|Connection reset"
    r"|Connection timed out|Slurm backup controller in standby mode|Transport endpoint is not connected"
    r"|Unable to connect to slurmctld|slurm_receive_msg: (?:Zero Bytes|No response)|Zero Bytes were transmitted"
    r"|Slurm controller is not responding|Transaction timed out|Communication connection failure"
    r"|Communication shutdown failure|Message receive failure|Message send failure"
    r"|Rate limit exceeded",  # SlurmctldParameters=rl_enable, since 23.02
    re.IGNORECASE,
)
AGAIN = 10.0  # seconds that a command tries where one before it has waited for the controller in vain
# scontrol without any slurm.conf: src/common/fetch_config.c, read_config.c
_NO_CONF = "Could not establish a configuration source"
# commands and slurmctld that are too far apart: src/common/slurm_errno.c
_VERSIONS = "Incompatible versions of client and server code"
# What a surrounding job or a user's shell would put into our commands
_FOREIGN = re.compile(r"(?:SLURM|SALLOC|SBATCH|SCANCEL|SINFO|SQUEUE|SRUN)_")
_OURS = frozenset(
    {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"}
    | {"SLURM_SACK_SOCKET", "SLURM_SACK_KEY", "SLURM_SACK_JWKS"}  # auth/slurm, in place of munge
)


def outage(text: str) -> bool:
    """Say whether the text is about a controller that cannot be reached for the moment."""
    return bool(_OUTAGE.search(text))


def clean_env(names: Iterable[str] | None = None) -> dict[str, str | None]:
    """Return what has to be changed in an environment before Slurm's commands see it.

    `names` are those of its variables; None: this process's.
    """
    found = os.environ if names is None else names
    env: dict[str, str | None] = {name: None for name in found if _FOREIGN.match(name) and name not in _OURS}
    env["SLURM_TIME_FORMAT"] = "standard"
    return env


class Slurm:
    """Slurm's commands over a transport.

    `retry_for`: how long (s) an unreachable controller is waited for, by all commands together; `timeout`: for one
    command (s).
    Answers of `nodes`, `partitions` and `config` are remembered until `refresh`.
    """

    def __init__(self, transport: Transport, *, retry_for: float = 60.0, timeout: float = 30.0) -> None:
        self.transport = transport
        self.retry_for = retry_for
        self.timeout = timeout
        self._lock = threading.RLock()
        self._answers: dict[str, object] = {}
        self._away: tuple[float, float] | None = (
            None  # since when the controller is, and when that was last seen
        )
        self.on_step: Callable[[StepResult], None] | None = None  # is told of every step that ended

    @cached_property
    def env(self) -> dict[str, str | None]:
        """What is changed in the environment of Slurm's commands, so that no surrounding job is seen by them."""
        return clean_env(self.transport.names())

    def run(
        self,
        *argv: str,
        timeout: float | None = None,
        input: str | None = None,  # subprocess's own word
        env: Mapping[str, str | None] | None = None,
    ) -> str:
        """Run a Slurm command and return its standard output.

        Raise SlurmError with one line: the command, its exit status and what it said. A controller that
        cannot be reached is asked again, until it has been away for `retry_for` seconds.
        """
        begin = time.monotonic()
        pause = 0.5
        while True:
            error = None
            try:
                done = self.transport.run(
                    argv, timeout=timeout or self.timeout, input=input, env={**self.env, **(env or {})}
                )
            except TransportError as problem:
                raise SlurmError(str(problem), argv=argv) from problem
            if done.rc == 0:
                self._away = None
                return done.stdout
            error = SlurmError(
                f"{argv[0]}: {said(done.stderr) or said(done.stdout) or 'no message'} "
                f"(exit {done.rc}: {' '.join(redact.words(argv))[:120]})",
                argv=argv,
                rc=done.rc,
                stderr=done.stderr,
            )
            if not outage(done.stderr):
                raise error
            now = time.monotonic()
            waited = now - begin
            since, seen = self._away or (begin, begin)
            if begin - seen > self.retry_for:  # that was another outage
                since = begin
            self._away = since, now
            if now + pause > max(since + self.retry_for, begin + min(AGAIN, self.retry_for)):
                raise SlurmError(
                    f"{argv[0]}: the Slurm controller did not answer for {waited:.0f} s: {said(done.stderr)}: "
                    "is slurmctld running and SLURM_CONF right? (scontrol ping)",
                    argv=argv,
                    rc=done.rc,
                    stderr=done.stderr,
                )
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def nodes(self) -> dict[str, NodeInfo]:
        """Return every node that Slurm knows: one process, remembered."""
        return self._remembered(
            "nodes", lambda: self._parsed(inventory.parse_nodes, "scontrol", "show", "node", "-o", "-a")
        )

    def partitions(self) -> dict[str, PartitionInfo]:
        """Return every partition: one process, remembered."""
        return self._remembered(
            "partitions",
            lambda: self._parsed(inventory.parse_partitions, "scontrol", "show", "partition", "-o", "-a"),
        )

    def reservations(self) -> dict[str, ReservationInfo]:
        """Return every reservation: one process, not remembered, for they come and go."""
        return self._parsed(inventory.parse_reservations, "scontrol", "show", "reservation", "-o")

    def steps(self, job_id: int) -> tuple[StepInfo, ...]:
        """Return the steps of a job that run, () also where the job has ended: one process, not remembered.

        Not by squeue: it does not know the steps of a job that manages them itself (stepmgr; seen on 25.11.7).
        """
        try:
            return self._parsed(inventory.parse_steps, "scontrol", "show", "step", "-o", str(job_id))
        except SlurmError as error:
            if re.search(r"not found|Invalid job id", str(error)):
                return ()
            raise

    def config(self) -> dict[str, str]:
        """Return slurmctld's configuration in force: one process, remembered."""
        return self._remembered(
            "config", lambda: self._parsed(inventory.parse_config, "scontrol", "show", "config")
        )

    @property
    def version(self) -> str:
        """Slurm's version as the controller says it, like 22.05.8."""
        return self.config().get("SLURM_VERSION", "")

    def refresh(self) -> None:
        """Forget what was remembered."""
        with self._lock:
            self._answers.clear()

    def _parsed(self, parse: Callable[[str], _T], *argv: str) -> _T:
        text = self.run(*argv)
        try:
            return parse(text)
        except (ValueError, KeyError) as error:
            raise SlurmError(
                f"{' '.join(argv)}: not understood: {one_line(error)}", argv=argv, rc=0
            ) from error

    def _remembered(self, key: str, ask: Callable[[], _T]) -> _T:
        with self._lock:
            if key not in self._answers:
                self._answers[key] = ask()
            return self._answers[key]  # type: ignore[return-value]  # stored under the key of its own type


def said(stderr: str) -> str:
    """Return the line of a Slurm command's stderr that says most: its first error, bare."""
    if _NO_CONF in stderr:  # its first error is of a DNS record, which hardly a site has
        return f"{_NO_CONF}: set SLURM_CONF, or slurm.conf in the cluster file, or run it on a machine of the cluster"
    if _VERSIONS in stderr:  # its first error is of an authentication plugin
        return f"{_VERSIONS}: name the folder of the commands that go with slurmctld as slurm.bin in the cluster file"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = (line for line in lines if "error:" in line or "unrecognized option" in line)
    chosen = next(telling, lines[-1] if lines else "")
    return re.sub(
        r"^(?:\w+: |\[\d{4}-[^]]*\] )(?:fatal: |error: )*", "", chosen
    )  # the time: slurmstepd since 25.05


def make_slurm(cluster: Cluster) -> Slurm | None:
    """Return the client for the cluster's Slurm, None where it has none."""
    if cluster.why_no_slurm:
        return None
    environment = {"SLURM_CONF": cluster.slurm.conf} if cluster.slurm.conf else {}
    if cluster.transport.kind == "ssh":
        from pytest_gpucluster.cluster.transport.ssh import SshTransport  # Fabric takes 0.2 s to import

        return Slurm(SshTransport(cluster.transport, environment, path=cluster.slurm.bin))
    if cluster.slurm.bin:
        environment["PATH"] = os.pathsep.join([cluster.slurm.bin, os.environ.get("PATH", os.defpath)])
    return Slurm(LocalTransport(environment))
