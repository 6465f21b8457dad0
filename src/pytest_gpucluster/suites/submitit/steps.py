"""submitit's driver: a process of ours that submits jobs BEFORE the nodes are allocated.

While an exclusive allocation holds all nodes no job of submitit's could start. So the driver submits first, the
allocation waits for the jobs through Slurm (`dependency`), and the driver, a user like any other, waits for
their results. It ends with us: when its stdin closes it cancels its jobs.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.transport import kill_group
from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import ConfigError, TransportError
from pytest_gpucluster.kit.os_config import OsConfig
from pytest_gpucluster.kit.payload_result import last_stderr_line, read_facts
from pytest_gpucluster.kit.payload_step import environment_named, source_of
from pytest_gpucluster.kit.suite_work import Submission
from pytest_gpucluster.suites.submitit.checks import SubmititTold
from pytest_gpucluster.suites.submitit.config import SubmititConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.transport import RemoteProcess
    from pytest_gpucluster.config.models import Cluster

KEY = "submitit"
PATIENCE = 60.0  # seconds to import submitit and to submit; the import may come over a network


def submit(slurm: Slurm, cluster: Cluster) -> SubmititDriver | None:
    """Start the driver; None where the cluster file does not claim submitit."""
    claim = cluster.section(SubmititConfig)
    return SubmititDriver(slurm, cluster, claim) if claim else None


class SubmititDriver(Submission):
    """The driver of one run. ConfigError where the cluster file lacks what it needs."""

    def __init__(self, slurm: Slurm, cluster: Cluster, claim: SubmititConfig) -> None:
        self.folder = shared_folder(cluster, claim)
        environment = environment_named(cluster, claim.environment, KEY)
        if environment and environment.in_container:
            raise ConfigError(
                f"submitit.environment {claim.environment!r} is a container: submitit runs where pytest runs"
            )
        self.wait = claim.wait + cluster.slurm.queue_wait
        self.accounting = keeps_records(slurm.config())
        self._facts: list[Mapping[str, Any]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors = bytearray()
        self._told: SubmititTold | None = None
        self._lock = threading.Lock()
        given = {
            "folder": str(self.folder),
            "parameters": parameters(cluster),
            "wait": self.wait,
            "accounting": self.accounting,
        }
        python = environment.python if environment else "python3"
        env = {**slurm.env, **(environment.exports if environment else {})}
        self._process: subprocess.Popen[bytes] | RemoteProcess | None = None
        try:
            self._process = slurm.transport.spawn(
                (python, "-c", source_of(__file__), json.dumps(given)), env=env
            )
        except TransportError as error:
            self._told = SubmititTold((), self.accounting, str(error))
            return
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        for target, pipe in ((self._read, self._process.stdout), (self._keep, self._process.stderr)):
            threading.Thread(target=target, args=(pipe,), daemon=True).start()

    def job_ids(self) -> tuple[str, ...]:
        """Return the ids of the jobs, () where none could be submitted."""
        self._follow("submitted", PATIENCE)
        fact = next((fact for fact in self._facts if fact[KEY] == "submitted"), None)
        return tuple(fact["jobs"]) if fact else ()

    def outcome(self) -> SubmititTold:
        """Wait for the driver's end and return its facts."""
        with self._lock:
            if self._told is None:
                ended = self._follow(None, self.wait + PATIENCE)
                problem = "" if ended else f"the driver did not end within {self.wait + PATIENCE:.0f} s"
                problem = problem or last_stderr_line(bytes(self._errors).decode(errors="replace"))
                self.close()
                self._told = SubmititTold(tuple(self._facts), self.accounting, problem)
            return self._told

    def close(self) -> None:
        """End the driver, which cancels what is left of its jobs; again and again is harmless."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        kill_group(process)

    def _follow(self, kind: str | None, seconds: float) -> bool:
        """Take what the driver says until it says `kind` or ends; False where the time comes first."""
        until = time.monotonic() + seconds
        while self._process is not None:
            try:
                line = self._lines.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                return False
            if line is None:
                self._lines.put(None)  # for who asks next
                return True
            self._facts += read_facts(line, KEY)
            if kind and any(fact[KEY] == kind for fact in self._facts):
                return True
        return True

    def _read(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):
            for raw in pipe:
                self._lines.put(raw.decode(errors="replace"))
        self._lines.put(None)

    def _keep(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):
            for raw in pipe:
                self._errors += raw[: 1 << 16]
                del self._errors[: -(1 << 16)]


def storage(cluster: Cluster, claim: SubmititConfig) -> str | None:
    """Return the storage that all nodes share, for the folders of runs; None where the cluster file names none."""
    return claim.folder or next(iter(cluster.section(OsConfig).shared_storage), None)


def shared_folder(cluster: Cluster, claim: SubmititConfig) -> Path:
    """Return a folder of this run on storage that the nodes share; ConfigError where the cluster file names none."""
    base = storage(cluster, claim)
    if base is None:
        raise ConfigError(
            f"cluster {cluster.name}: submitit needs a folder that all nodes share: name one as submitit.folder "
            "or under os.shared_storage"
        )
    return Path(base) / f".{runmark.name_of_run('submitit', secrets.token_hex(4))}"


def folders(cluster: Cluster) -> list[Path]:
    """Return the shared storage in which a run that was killed may have left its folder."""
    claim = cluster.section(SubmititConfig)
    base = storage(cluster, claim) if claim else None
    return [Path(base)] if base else []


def parameters(cluster: Cluster) -> dict[str, Any]:
    """Return submitit's parameters for the cluster file's `slurm:`."""
    asked = cluster.slurm
    plain = {
        "slurm_partition": asked.partition,
        "slurm_account": asked.account,
        "slurm_qos": asked.qos,
        "slurm_comment": asked.comment,
        "slurm_constraint": asked.constraint,
        "slurm_additional_parameters": {"reservation": asked.reservation} if asked.reservation else None,
    }
    return {"name": runmark.name_of_run("submitit"), **{key: value for key, value in plain.items() if value}}


def keeps_records(config: Mapping[str, str]) -> bool:
    """Whether Slurm keeps job records, by `scontrol show config`."""
    return config.get("AccountingStorageType", "") not in {"", "accounting_storage/none"}
