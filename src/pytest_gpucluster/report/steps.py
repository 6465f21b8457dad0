"""Logs of steps: what every task of a step said, one file a step in `steps/` of the report folder."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

from pytest_gpucluster.errors import GpuClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.slurm.result import StepResult, TaskResult

__all__ = ["MAX_STREAM", "StepLogs", "clear"]

FOLDER = "steps"
MAX_STREAM = 256 << 10  # characters kept of one stream of one task; what is cut is said
_OURS = re.compile(r"(?:gw\d+-)?\d{4}-[\w.-]+\.log")


class StepLogs:
    """Writes `steps/NNNN-CHECK.log` below `folder`; `worker` (gw0) keeps the files of xdist's workers apart."""

    def __init__(self, folder: Path, worker: str = "") -> None:
        self.folder, self._prefix = folder / FOLDER, f"{worker}-" if worker else ""
        self._numbers = itertools.count(1)

    def keep(self, check: str, result: StepResult) -> str:
        """Write the log of one step and return its path in the report folder, '' where it could not be written."""
        name = re.sub(r"[^\w.-]", "-", check or "exam")
        path = self.folder / f"{self._prefix}{next(self._numbers):04}-{name}.log"
        with contextlib.suppress(OSError):  # a full disk must not end the run; the event log says it
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(_lines(check, result)) + "\n", encoding="utf-8", errors="replace")
            return f"{FOLDER}/{path.name}"
        return ""


def clear(folder: Path) -> None:
    """Take away the logs of an earlier run in this folder: they would pass for this one's."""
    try:
        for path in (folder / FOLDER).glob("*.log"):
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise GpuClusterError(
            f"{folder / FOLDER}: logs of an earlier run cannot be taken away ({error.strerror}): --report-dir=DIR "
            "names another folder"
        ) from error


def _lines(check: str, result: StepResult) -> Iterator[str]:
    yield f"check:   {check or 'exam of the nodes'}"
    yield f"command: {result.command}"
    yield f"exit:    {result.rc} after {result.seconds:.1f} s"
    for title, text in (("srun", result.stderr), ("output without a task", result.stdout)):
        if text:
            yield from ("", f"--- {title}", _cut(text))
    for task in result.tasks:
        yield from _task_lines(task)


def _task_lines(task: TaskResult) -> Iterator[str]:
    ended = "exit unknown" if task.rc is None else f"exit {task.rc}"
    yield ""
    yield f"--- task {task.rank} on {task.node or '?'}: {ended}" + (", output cut" if task.truncated else "")
    if task.stdout:
        yield _cut(task.stdout)
    if task.stderr:
        yield from ("--- its stderr", _cut(task.stderr))


def _cut(text: str) -> str:
    """Keep both ends of a long text: causes stand at its start, results at its end."""
    text = text.rstrip("\n")
    if len(text) <= MAX_STREAM:
        return text
    half = MAX_STREAM // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
