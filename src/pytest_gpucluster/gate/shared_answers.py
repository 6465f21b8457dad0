"""Answers that gates of one machine share: two gates at once do not run the same command twice."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.gate.files import content
from pytest_gpucluster.report.machine.atomic_write import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LIMITS = 16  # kinds of limits of Linux: RLIM_NLIMITS of <asm-generic/resource.h>
PAUSE = 0.05  # seconds between two attempts to get the lock


def default_folder() -> Path:
    """Return the folder of this user on this machine."""
    if os.geteuid() == 0 and Path("/run").is_dir():
        return Path("/run/gpucluster-gate")
    return Path(tempfile.gettempdir()) / f"gpucluster-gate-{os.geteuid()}"


class SharedAnswers:
    """The answers of earlier gates that are younger than `fresh` seconds.

    They are of one node, since a machine may have several slurmd, of one cluster, and of callers with the same limits, on which
    some answers depend.
    """

    def __init__(self, folder: Path, node: str, fresh: float, cluster: str = "") -> None:
        self._path, self._node, self._fresh = folder, node, fresh
        caller = repr((cluster, [resource.getrlimit(number) for number in range(_LIMITS)]))
        self.file = f"{node}-{hashlib.sha256(caller.encode()).hexdigest()[:8]}.json"
        self.problem = ""  # why nothing is shared

    @contextlib.contextmanager
    def locked(self, patience: float) -> Iterator[Mapping[str, Answer]]:
        """Have the lock, and yield the known answers; without the lock in `patience` seconds, what there is now."""
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(contextlib.closing(Folder(self._path, create=True)))
                file = stack.enter_context(os.fdopen(folder.open(f"{self._node}.lock"), "r+b"))
                self._lock(file.fileno(), patience)
                known = self._read()
            except (OSError, GpuClusterError) as error:
                self.problem, known = f"answers are not shared: {error}", {}
            yield known

    def _lock(self, handle: int, patience: float) -> None:
        end = time.monotonic() + patience
        while True:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    self.problem = "another gate has run all this time"
                    return None
                time.sleep(PAUSE)

    def _read(self) -> dict[str, Answer]:
        try:
            data = safe_json.loads(content(self._path / self.file, own=True).decode())
            return dict(self._recent(data))
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # nobody has written it, or another version

    def _recent(self, data: Mapping[str, Any]) -> Iterator[tuple[str, Answer]]:
        now = time.time()
        for command, plain in data.items():
            answer = decoded(self._node, plain)
            if 0 <= now - (answer.received or 0.0) <= self._fresh:
                yield str(command), answer

    def write(self, answers: Mapping[str, Answer]) -> None:
        """Store the answers of commands that ended."""
        data = encoded(answers)
        with contextlib.suppress(OSError, GpuClusterError):
            write_whole(self._path / self.file, json.dumps(data, separators=(",", ":")).encode())


def encoded(answers: Mapping[str, Answer], most: float = math.inf) -> dict[str, list[Any]]:
    """Return {command: answer as JSON} of the commands that ended, with at most this number of bytes."""
    return {
        command: [it.rc, it.stdout.decode("latin-1"), it.stderr.decode("latin-1"), it.sent, it.received]
        for command, it in answers.items()
        if it.rc is not None and not it.truncated and len(it.stdout) + len(it.stderr) <= most
    }


def decoded(node: str, plain: Any) -> Answer:
    """Return the answer of a node from what `encoded` made of it."""
    rc, out, err, sent, received = plain
    return Answer(node, int(rc), out.encode("latin-1"), err.encode("latin-1"), sent=sent, received=received)
