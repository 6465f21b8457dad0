"""Drained nodes of ours on trial: undrained inside a reservation, tested, and drained again unless they are kept.

Slurm gives a drained node to nobody, a maintenance reservation's jobs included (tried on 22.05.8). Undrained inside of
a reservation it goes to that reservation's jobs alone. A shell that reads a pipe of ours does both acts: however we
die, the pipe closes, and every node that was not kept is drained again with the reason that it had.
"""

from __future__ import annotations

import contextlib
import queue
import shlex
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.drain import policy
from pytest_gpucluster.drain.lock import locked
from pytest_gpucluster.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_gpucluster.slurm.client import Slurm
    from pytest_gpucluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.transport import Process

    Write = Callable[..., None]

BEGIN_WITHIN = 60.0  # seconds; an undrained node is heard again after slurmctld's next ping
END_WITHIN = 30.0  # the shell goes on after that, for 10 minutes

# Arguments: NODE REASON pairs. Lines in: `keep NODE`. Lines out: `undrained|refused|drained|left|lost NODE`.
_SHELL = r"""
trap '' HUP INT TERM PIPE
undrain() {
  while [ $# -gt 0 ]; do
    if scontrol update NodeName="$1" State=UNDRAIN </dev/null; then echo "undrained $1"; else echo "refused $1"; fi
    shift 2
  done
}
drain_again() {
  tries=0
  while [ $tries -lt 200 ]; do
    if shown=$(scontrol show node -o "$1" </dev/null); then
      state=${shown#* State=}
      case "${state%% *}" in
        *DRAIN*) echo "left $1"; return ;;
        *) scontrol update NodeName="$1" State=DRAIN Reason="$2" </dev/null && { echo "drained $1"; return; } ;;
      esac
    fi
    tries=$((tries + 1)); sleep 3
  done
  echo "lost $1"
}
drain_others() {
  while [ $# -gt 0 ]; do
    case "$kept" in *" $1 "*) ;; *) drain_again "$1" "$2" ;; esac
    shift 2
  done
}
exec 2>/dev/null
undrain "$@"
kept=' '
while read -r word node; do kept="$kept$node "; done
drain_others "$@"
"""


def fit_for_trial(info: NodeInfo) -> bool:
    """Return True for a node that we drained, that nobody uses, and that is not down beside."""
    return policy.ours(info) is not None and info.state == "IDLE" and not info.busy


@dataclass
class Trial:
    """`reasons`: node -> the reason of ours that drained it. Nothing happens before `begin`."""

    slurm: Slurm
    reasons: Mapping[str, str]
    write: Write
    lock: Path | None
    refused: dict[str, str] = field(default_factory=dict)  # node -> why it is not on trial
    ended: dict[str, str] = field(default_factory=dict)  # node -> drained, left (somebody drained it), lost
    _shell: Process | None = None
    _lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    _open: dict[str, str] = field(default_factory=dict)

    @property
    def running(self) -> tuple[str, ...]:
        """The nodes that are on trial now."""
        return tuple(self._open)

    def begin(self) -> None:
        """Undrain the nodes that are still as our reason left them, and wait until they are heard. SlurmError."""
        with locked(self.lock):
            self._undrain()
        self._wait_heard(set(self._open))

    def _undrain(self) -> None:
        self.slurm.refresh()
        nodes = self.slurm.nodes()
        for node, reason in self.reasons.items():
            why = policy.why_not_resume(nodes.get(node), reason)
            if why:
                self.refused[node] = why
                self.write("trial_refused", node=node, why=why)
            else:
                self._open[node] = reason
                self.write(
                    "node_intent",
                    node=node,
                    command=shlex.join(("scontrol", "update", f"NodeName={node}", "State=UNDRAIN")),
                    why="on trial inside the reservation",
                    state=nodes[node].full_state,
                    reason=reason,
                )
        if self._open:
            self._start()

    def keep(self, node: str) -> None:
        """Leave a node undrained: it has passed."""
        self._open.pop(node)
        assert self._shell is not None  # who has an open node has begun
        assert self._shell.stdin is not None
        with contextlib.suppress(OSError):
            self._shell.stdin.write(f"keep {node}\n".encode())
            self._shell.stdin.flush()

    def end(self) -> None:
        """Drain again what was not kept; again and again is harmless."""
        shell, self._shell = self._shell, None
        if shell is None:
            return
        for node, reason in self._open.items():
            self.write(
                "node_intent",
                node=node,
                command=shlex.join(
                    ("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
                ),
                why="back to drained after its trial",
            )
        with contextlib.suppress(OSError):
            if shell.stdin:
                shell.stdin.close()
        self._hear(self._open, self.ended, END_WITHIN)
        for node in self._open:
            result = self.ended.setdefault(node, "unknown")
            self.write("node_result", node=node, result=result, problem=_PROBLEMS.get(result, ""))
        self._open = {}

    def _start(self) -> None:
        pairs = [word for pair in self._open.items() for word in pair]
        shell = self._shell = self.slurm.transport.spawn(
            ("sh", "-c", _SHELL, "trial", *pairs), env=self.slurm.env
        )
        threading.Thread(target=self._read, args=(shell,), daemon=True).start()
        said: dict[str, str] = {}
        self._hear(self._open, said, BEGIN_WITHIN)
        for node in tuple(self._open):
            result = said.get(node, "unknown")
            self.slurm.transport.count("scontrol")
            self.write("node_result", node=node, result=result)
            if result != "undrained":
                self.refused[node] = f"it could not be undrained ({result}): are you Slurm's administrator?"

    def _wait_heard(self, wanted: set[str]) -> None:
        deadline = time.monotonic() + BEGIN_WITHIN
        silent = wanted - self.refused.keys()
        while silent and time.monotonic() < deadline:
            with contextlib.suppress(SlurmError):
                self.slurm.refresh()
                nodes = self.slurm.nodes()
                silent = {node for node in silent if not nodes[node].responding}
            if silent:
                time.sleep(0.5)
        for node in silent:
            self.refused[node] = "it is not heard by Slurm after it was undrained"

    def _hear(self, wanted: Mapping[str, str], said: dict[str, str], within: float) -> None:
        deadline = time.monotonic() + within
        while len(said) < len(wanted) and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                word, _, node = self._lines.get(timeout=left).partition(" ")
                if node in wanted:
                    said[node] = word

    def _read(self, shell: Process) -> None:
        assert shell.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for raw in shell.stdout:
                self._lines.put(raw.decode(errors="replace").strip())
        shell.wait()
        for pipe in (shell.stdout, shell.stderr):
            if pipe is not None:
                pipe.close()


_PROBLEMS = {
    "left": "somebody drained it meanwhile, or it never was undrained: its reason stays",
    "lost": "the controller did not take it for 10 minutes: drain it by hand",
    "unknown": "the controller has not answered yet; it is tried for 10 minutes",
}
