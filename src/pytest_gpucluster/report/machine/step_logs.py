"""Logs of steps: what every task of a step printed, one file per step in `steps/` of the run's folder."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

from pytest_gpucluster.core.sanitize import shorten
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.report.machine.atomic_write import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
    from pytest_gpucluster.report.machine.atomic_write import Reports

FOLDER = "steps"
MAX_STREAM = 256 << 10  # characters written of one stream of one task; a line states what is cut


class StepLogs:
    """Writes `steps/NNNN-CHECK.log` into the folder of `reports`; `worker` (gw0) separates the files of xdist's workers."""

    def __init__(self, reports: Reports, worker: str = "") -> None:
        self._reports, self._prefix = reports, f"{worker}-" if worker else ""
        self._numbers = itertools.count(1)

    def keep(self, check: str, result: StepResult) -> str:
        """Write the log of one step and return its path in the report folder, '' where it could not be written.

        A full disk must not end the run: Reports.problems holds the reason.
        """
        plain = re.sub(r"[^\w.-]", "-", check or "diagnostic")
        name = f"{self._prefix}{next(self._numbers):04}-{plain}.log"
        path = self._reports.folder / FOLDER / name
        with self._reports.writing(path):
            text = "".join(f"{part}\n" for part in _parts(check, result))
            with (
                contextlib.closing(Folder(path.parents[1], create=True, group=self._reports.group)) as above,
                contextlib.closing(above.folder(FOLDER, create=True)) as steps,
            ):
                steps.replace(name, [text.encode("utf-8", "replace")])
        return f"{FOLDER}/{name}" if path in self._reports.written else ""


def _parts(check: str, result: StepResult) -> Iterator[str]:
    """Yield lines and streams, harmless each by itself: half a private key takes only the rest of its own."""
    yield harmless(f"check:   {check or 'diagnostic step of the nodes'}")
    yield harmless(f"command: {result.command}")
    yield f"exit:    {result.rc} after {result.seconds:.1f} s"
    for title, text in (("srun", result.stderr), ("output without a task", result.stdout)):
        if text:
            yield from ("", f"--- {title}", _cut(text))
    for task in result.tasks:
        yield from _task_lines(task)


def _task_lines(task: TaskResult) -> Iterator[str]:
    ended = "exit unknown" if task.rc is None else f"exit {task.rc}"
    yield ""
    note = ", output cut" if task.truncated else ""
    yield harmless(f"--- task {task.rank} on {task.node or '?'}: {ended}{note}")
    if task.stdout:
        yield _cut(task.stdout)
    if task.stderr:
        yield from ("--- its stderr", _cut(task.stderr))


def _cut(text: str) -> str:
    """Keep both ends of a long text: causes stand at its start, results at its end.

    Secrets are taken out before: the cut may divide one from its name.
    """
    return shorten(harmless(text.rstrip("\r\n")), MAX_STREAM, gap="\n")
