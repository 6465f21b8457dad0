"""The driver of submitit: a process that submits jobs before the nodes are allocated.

While an exclusive allocation occupies all nodes, no other job can start. So the driver submits first, the allocation
waits for the jobs through Slurm (`dependency`), and the driver waits for their results. When its stdin closes, it
cancels its jobs and ends.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.environment import OF_STEPS, login_lines, variables
from pytest_gpucluster.cluster.transport import kill_group
from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import ConfigError, TransportError
from pytest_gpucluster.kit.framework.payload_result import PayloadTask, last_stderr_line, read_facts
from pytest_gpucluster.kit.framework.payload_step import command, environment_named
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.kit.suite_work import Submission
from pytest_gpucluster.suites.submitit.checks import SubmititResult
from pytest_gpucluster.suites.submitit.config import SubmititConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.transport import RemoteProcess
    from pytest_gpucluster.config.models import Cluster

KEY = "submitit"
PATIENCE = 60.0  # seconds to import submitit, maybe from network storage, and to submit
LAST_WORDS = 5.0  # seconds for the last lines of a driver that has ended


def submit(slurm: Slurm, cluster: Cluster) -> SubmititDriver | None:
    """Start the driver; return None if the cluster file has no section `submitit`."""
    config = cluster.section(SubmititConfig)
    return SubmititDriver(slurm, cluster, config) if config else None


class SubmititDriver(Submission):
    """The driver of one run. ConfigError if the cluster file lacks a shared folder or names a container."""

    def __init__(self, slurm: Slurm, cluster: Cluster, config: SubmititConfig) -> None:
        folder = shared_folder(cluster, config)
        environment = environment_named(cluster, config.environment, KEY)
        if environment and environment.in_container and config.environment:
            raise ConfigError(
                f"submitit.environment {config.environment!r} is a container: submitit runs where pytest runs"
            )
        environment = environment and environment.outside
        known = slurm.config()
        self.accounting = stores_records(known)
        self.wait = config.wait + cluster.slurm.queue_wait
        self._facts: list[Mapping[str, Any]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors = bytearray()
        self._result: SubmititResult | None = None
        self._lock = threading.Lock()
        self._stderr: threading.Thread | None = None
        options = {
            "place": folder,
            "prefix": f".{runmark.name_of_run('submitit')}-",  # the driver adds a random part
            "parameters": parameters(cluster),
            "wait": self.wait,
            "accounting": self.accounting,
        }
        python = environment.python if environment else "python3"
        env = {**slurm.env, **OF_STEPS, **variables(environment)}
        words = command(python, Path(__file__).with_name("payload.py"), json.dumps(options))
        self._process: subprocess.Popen[bytes] | RemoteProcess | None = None
        try:
            self._process = slurm.transport.spawn(("sh", "-c", f'{login_lines()}\nexec "$@"', "sh", *words), env=env)
        except TransportError as error:
            self._result = self._result_of(str(error))
            return
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        self._stderr = threading.Thread(target=self._store, args=(self._process.stderr,), daemon=True)
        self._stderr.start()

    def job_ids(self) -> tuple[str, ...]:
        """Return the ids of the jobs, () if none could be submitted."""
        self._follow("submitted", PATIENCE)
        fact = next((fact for fact in self._facts if fact[KEY] == "submitted"), None)
        return tuple(fact["jobs"]) if fact else ()

    def outcome(self) -> SubmititResult:
        """Wait until the driver has ended and return its result."""
        with self._lock:
            if self._result is None:
                patience = self.wait + PATIENCE
                ended = self._follow(None, patience)
                problem = "" if ended else f"the driver did not end within {patience:.0f} s"
                if ended and self._stderr is not None:
                    self._stderr.join(LAST_WORDS)  # its other pipe may be read later
                problem = problem or last_stderr_line(bytes(self._errors).decode(errors="replace"))
                self.close()
                self._result = self._result_of(problem)
            return self._result

    def _result_of(self, problem: str) -> SubmititResult:
        task = PayloadTask(0, "", None, None, tuple(self._facts))
        return SubmititResult(KEY, (), 1, (task,), problem, accounting=self.accounting)

    def close(self) -> None:
        """End the driver, which cancels its remaining jobs; may be called repeatedly."""
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
        """Read the facts of the driver until one is of this kind or the driver ends; return False after `seconds`."""
        until = time.monotonic() + seconds
        while self._process is not None:
            try:
                line = self._lines.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                return False
            if line is None:
                self._lines.put(None)  # for the next caller
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

    def _store(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):
            for raw in pipe:
                self._errors += raw[: 1 << 16]
                del self._errors[: -(1 << 16)]


def storage(cluster: Cluster, config: SubmititConfig) -> str | None:
    """Return the storage that all nodes share, for the folders of runs; None if the cluster file names none."""
    return config.folder or next(iter(cluster.section(OsConfig).shared_storage), None)


def shared_folder(cluster: Cluster, config: SubmititConfig) -> str:
    """Return the storage that the nodes share; ConfigError if the cluster file names none."""
    base = storage(cluster, config)
    if base is None:
        raise ConfigError(
            f"cluster {cluster.name}: submitit needs a folder that all nodes share: name one as submitit.folder "
            "or under os.shared_storage"
        )
    return base


def folders(cluster: Cluster) -> list[Path]:
    """Return the shared storage in which a killed run may have left its folder."""
    config = cluster.section(SubmititConfig)
    base = storage(cluster, config) if config else None
    return [Path(base)] if base else []


def parameters(cluster: Cluster) -> dict[str, Any]:
    """Return submitit's parameters for the cluster file's `slurm:`."""
    options = cluster.slurm
    known = {
        "slurm_partition": options.partition,
        "slurm_account": options.account,
        "slurm_qos": options.qos,
        "slurm_comment": options.comment,
        "slurm_constraint": options.constraint,
        "slurm_additional_parameters": {"reservation": options.reservation} if options.reservation else None,
    }
    return {"name": runmark.name_of_run("submitit"), **{key: value for key, value in known.items() if value}}


def stores_records(config: Mapping[str, str]) -> bool:
    """Return whether Slurm stores job records, by `scontrol show config`."""
    return config.get("AccountingStorageType", "") not in {"", "accounting_storage/none"}
