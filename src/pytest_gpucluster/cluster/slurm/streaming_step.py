"""A step with interactive input and output: lines to all tasks, and lines from them as they arrive, each with its task.

The end of a task or the failure of a node ends no other task: `--kill-on-bad-exit=0 --no-kill --wait=0`. srun copies its
stdin to every task; when it closes, the tasks get the end of their input.
"""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.environment import OF_STEPS, login_lines
from pytest_gpucluster.cluster.slurm.step import PIECE, environment_request, srun_endings
from pytest_gpucluster.cluster.transport import kill_group
from pytest_gpucluster.core.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.step import StepRequest

_LABEL = re.compile(rb" *(\d+): ")
_LONGEST = 1 << 22
_STDERR_LINES = 400


class StreamingStep:
    """One srun; one task per node, or more as `request` states. `stderr` holds its last lines of stderr."""

    def __init__(self, slurm: Slurm, allocation: Allocation, request: StepRequest) -> None:
        if request.environment is not None:
            request = environment_request(request.environment, request)
        nodes = request.nodes or allocation.nodes
        request = replace(request, nodes=nodes, ntasks=len(nodes) * (request.ntasks_per_node or 1))
        self._slurm, self._allocation = slurm, allocation
        self.argv = [
            # not --unbuffered: srun would end a line wherever a piece of it ends
            *("srun", "--overlap", f"--jobid={allocation.job_id}", "--label", "--input=all"),
            *("--no-kill", "--wait=0", *request.options()),
            *request.on_node(login_lines()).task_argv(None),
        ]
        env = {**slurm.env, **OF_STEPS, **request.env}
        self.process = slurm.transport.spawn(self.argv, env=env)
        self.step_id = ""  # set by the caller, from the output of a task
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._lines: queue.Queue[tuple[int, str] | None] = queue.Queue()
        self._input: queue.Queue[bytes | None] = queue.Queue()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        work = ((self._read, self.process.stdout), (self._read_errors, self.process.stderr))
        self._readers = [threading.Thread(target=it, args=(pipe,), daemon=True) for it, pipe in work]
        for thread in (*self._readers, threading.Thread(target=self._write, daemon=True)):
            thread.start()

    @property
    def ended(self) -> bool:
        """Whether srun has ended."""
        return self.process.poll() is not None

    def send(self, line: str) -> None:
        """Send a line to every task; never waits."""
        self._input.put(line.encode() + b"\n")

    def lines(self, seconds: float) -> Iterator[tuple[int, str]]:
        """Yield (task, line) as they arrive, for at most `seconds`, or until srun has ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                found = self._lines.get(timeout=left)
            except queue.Empty:
                return
            if found is None:
                self._lines.put(None)  # for the next call
                return
            yield found

    def endings(self) -> list[tuple[str, int, int, int | None]]:
        """Return (node, task, exit status, signal) of each task that srun reports as failed."""
        return srun_endings("\n".join(self.stderr))

    def stop(self, patience: float = 10.0) -> None:
        """End the step: by the end of its input, then by a signal to srun, then by scancel."""
        self._input.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        if not self.ended:
            kill_group(self.process, 15)  # srun forwards it to the tasks
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if not self.ended and self.step_id:
            step = f"{self._allocation.job_id}.{self.step_id}"
            with contextlib.suppress(SlurmError):
                self._slurm.run("scancel", "--signal=KILL", step, timeout=20)
        for thread in self._readers:
            thread.join(1)
        kill_group(self.process)

    def _write(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while (data := self._input.get()) is not None:
                self.process.stdin.write(data)
                self.process.stdin.flush()
            self.process.stdin.close()

    def _read(self, pipe: IO[bytes]) -> None:
        pending: dict[int, bytearray] = {}
        with contextlib.suppress(OSError, ValueError):
            while raw := pipe.readline(_LONGEST):
                label = _LABEL.match(raw)
                if label is None:
                    continue
                task, piece = int(label[1]), raw[label.end() :]
                whole = pending.setdefault(task, bytearray())
                if len(piece) == PIECE + 1 and piece.endswith(b"\n") and len(whole) < _LONGEST:
                    whole += piece[:-1]  # the line continues: the newline is from --label
                    continue
                self._lines.put((task, (bytes(whole) + piece).decode(errors="replace").rstrip("\n")))
                whole.clear()
        self._lines.put(None)

    def _read_errors(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while raw := pipe.readline(_LONGEST):
                self.stderr.append(raw.decode(errors="replace").rstrip())
