"""Trial of nodes that gpucluster drained: undrained inside a reservation, tested, drained again unless they pass.

Slurm allocates a drained node to no job, not even to one of a maintenance reservation (tested on 22.05.8). A node that is
undrained inside a reservation is available to jobs of that reservation only. A shell that reads a pipe of this process
undrains and drains: when the process ends, for any reason, the pipe closes, and the shell drains every node that did not
pass again, with its former reason. If the shell dies, this process drains the nodes at once. The result of a trial is
the state in Slurm afterwards. Both read a node directly before a change, and leave one that another user has changed.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.inventory import names_of_flags
from pytest_gpucluster.cluster.transport import kill_group
from pytest_gpucluster.core.errors import GpuClusterError, SlurmError
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.drain import policy
from pytest_gpucluster.drain.executor import LockError, locked
from pytest_gpucluster.drain.reason import SILENT, bare

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.transport import RemoteProcess

    Write = Callable[..., None]

BEGIN_WITHIN = 60.0  # seconds; an undrained node responds again after slurmctld's next ping
END_WITHIN = 30.0  # seconds until this process drains itself; without a controller the shell tries for 10 minutes

_SHELL = script(
    __package__,
    "retest.sh",
    STATES="|".join(sorted(policy.IN_SERVICE | names_of_flags(policy.FLAGS_OF_SLURM))),
    SILENT=SILENT,
)


def fit_for_retest(info: NodeInfo) -> bool:
    """Return whether gpucluster drained the node, and the node is idle and in no state that another user set."""
    mine = policy.own_reason(info) is not None and not policy.why_not_resume(info, info.reason)
    return mine and info.state == "IDLE" and not info.busy


@dataclass
class Retest:
    """`reasons`: node -> the reason with which gpucluster drained it. No command runs before `begin`."""

    slurm: Slurm
    reasons: Mapping[str, str]
    write: Write
    lock: Path | None
    refused: dict[str, str] = field(default_factory=dict)  # node -> why it is not on trial
    # node -> drained, resumed, left (another user changed it), failed, unknown
    ended: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)  # node -> what another user has changed
    _shell: subprocess.Popen[bytes] | RemoteProcess | None = None
    _gone: bool = False  # the shell has ended
    _reports: dict[str, str] = field(default_factory=dict)  # node -> the last report of the shell
    _open: dict[str, str] = field(default_factory=dict)  # node -> reason
    _resumed: set[str] = field(default_factory=set)
    _problems: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)  # guards all of the above

    @property
    def running(self) -> tuple[str, ...]:
        """The nodes that are on trial now."""
        with self._news:
            return tuple(node for node in self._open if node not in self._resumed)

    def begin(self) -> None:
        """Undrain the nodes that have not changed, and wait until they respond; none without the lock. SlurmError."""
        try:
            with locked(self.lock), self._news:
                self._undrain()
        except LockError as error:
            for node in self.reasons:
                self._refuse(node, str(error))
        self._wait_responding(set(self.running))

    def _refuse(self, node: str, why: str) -> None:
        self.refused[node] = why
        self.write("trial_refused", node=node, why=why)

    def _undrain(self) -> None:
        nodes, chosen = self._nodes(), {}
        for node, reason in self.reasons.items():
            why = policy.why_not_resume(nodes.get(node), reason)
            if why:
                self._refuse(node, why)
            else:
                chosen[node] = reason
                self.write(
                    "node_intent",
                    node=node,
                    command=shlex.join(policy.undrain_command(node)),
                    why="on trial inside the reservation",
                    state=nodes[node].full_state,
                    reason=reason,
                )
        if chosen:
            self._start(chosen)

    def _start(self, chosen: dict[str, str]) -> None:
        pairs = [word for pair in chosen.items() for word in pair]
        self._shell = self.slurm.transport.spawn(("sh", "-c", _SHELL, "trial", *pairs), env=self.slurm.env)
        self._open = dict(chosen)
        threading.Thread(target=self._read, args=(self._shell,), name="trial", daemon=True).start()
        self._news.wait_for(lambda: self._gone or self._reports.keys() >= chosen.keys(), BEGIN_WITHIN)
        for node in chosen:
            result = self._reports.get(node, "unknown")
            self.slurm.transport.count("scontrol")
            self.write("node_result", node=node, result=result)
            if result != "undrained" or self._gone:
                self.refused[node] = _REFUSALS.get(result, _NOT_UNDRAINED)
            if result in {"changed", "unread"}:
                del self._open[node]
        if not self._open and self._shell.stdin is not None:
            self._shell.stdin.close()

    def keep(self, node: str) -> bool:
        """Leave a node that has passed undrained; False if its trial is over and it is drained."""
        with self._news:
            sent = self._send(f"keep {node}\n")
            if sent:
                self._resumed.add(node)
            else:
                self._settle()
            return sent

    def _send(self, line: str) -> bool:
        assert self._shell is not None  # not called before begin
        assert self._shell.stdin is not None
        try:
            self._shell.stdin.write(line.encode())
            self._shell.stdin.flush()
        except (OSError, ValueError):  # the shell was killed, or the pipe is closed
            return False
        return True

    def end(self) -> list[str]:
        """Drain the nodes that did not pass, and return failures, for people. Idempotent."""
        with self._news:
            if self._open and not self._gone:
                for node in self.running:
                    self._intend(node, "back to drained after its trial")
                assert self._shell is not None  # it has begun
                assert self._shell.stdin is not None
                with contextlib.suppress(OSError):
                    self._shell.stdin.close()
                self._news.wait_for(lambda: self._gone, END_WITHIN)
            self._settle()
            problems, self._problems = self._problems, []
        return problems

    # --- how it ends

    def _settle(self) -> None:
        """Check the state of every node, drain it if necessary, and write the result."""
        if not self._open:
            return
        if self._gone:
            self.slurm.retry_for = END_WITHIN  # the shell no longer tries
        shown, away = self._shown()
        if shown and not self._gone:
            assert self._shell is not None  # it has begun
            # else it would act later, after changes of other users, and outside the reservation
            kill_group(self._shell)
            self._gone = True
            shown, away = self._shown()
        for node, reason in tuple(self._open.items()):
            info, why = shown.get(node), away
            if info is not None and self._must_drain(node, info):
                info, why = self._drain(node, reason)
            self._conclude(node, reason, info, why)

    def _shown(self) -> tuple[Mapping[str, NodeInfo], str]:
        try:
            return self._nodes(), ""
        except SlurmError as error:
            return {}, str(error)

    def _must_drain(self, node: str, info: NodeInfo) -> bool:
        """Return whether a node is as it was undrained and the shell has not drained it; else another user resumed it."""
        by_shell = self._reports.get(node) in {"drained", "left"}
        changed = policy.why_not_drain_again(info, self._open[node])
        return not changed and node not in self._resumed and not by_shell

    def _drain(self, node: str, reason: str) -> tuple[NodeInfo | None, str]:
        """Drain a node that the shell has not drained; return its state afterwards, and the error."""
        shown, why = self._shown()
        info = shown.get(node)
        if info is None or not self._must_drain(node, info):  # another user has just drained it
            return info, why
        self._intend(node, "back to drained by the run itself: the shell for that has ended or hangs")
        problem = ""
        try:
            self.slurm.run(*policy.drain_command(node, reason))
        except SlurmError as error:
            problem = str(error)
        shown, why = self._shown()
        return shown.get(node), problem or why

    def _conclude(self, node: str, reason: str, info: NodeInfo | None, why: str) -> None:
        result = self.ended[node] = self._result(node, reason, info)
        del self._open[node]
        wanted = {"resumed"} if node in self._resumed else {"drained"}
        if result == "left" and info is not None:
            self.left[node] = info.why_unavailable() or policy.why_not_drain_again(info, reason)
        if info is None or node in self._resumed or not policy.takes_jobs(info):
            wanted.add("left")
        problem = ""
        if result not in wanted:
            problem = why or f"Slurm shows {info.full_state if info else 'no such node'}"
            self._problems.append(self._for_people(node, reason, result, problem))
        state, now = (info.full_state, info.reason) if info else (None, None)
        self._note("node_result", node=node, result=result, problem=problem, state=state, reason=now)

    def _result(self, node: str, reason: str, info: NodeInfo | None) -> str:
        if info is None:
            reported = self._reports.get(node, "")
            return reported if reported in {"drained", "left"} else "unknown"
        if not policy.why_not_drain_again(info, reason):
            return "resumed" if node in self._resumed else "failed"
        return "drained" if "DRAIN" in info.flags and bare(info.reason) == bare(reason) else "left"

    def _for_people(self, node: str, reason: str, result: str, problem: str) -> str:
        passed = node in self._resumed
        wanted, argv = (
            ("resumed", policy.undrain_command(node))
            if passed
            else ("drained again", policy.drain_command(node, reason))
        )
        if result == "unknown":
            tries = "" if self._gone or passed else ", a shell tries for 10 minutes"
            return (
                f"{node}: whether it is {wanted} after its trial is not known ({problem}){tries}: check "
                f"scontrol show node {node}; if necessary, run: {shlex.join(argv)}"
            )
        if result == "left":
            return (
                f"{node}: failed its trial and is in service: another user changed it meanwhile "
                f"({self.left[node]}); if necessary, run: {shlex.join(argv)}"
            )
        return f"{node}: could not be {wanted} after its trial ({problem}); run: {shlex.join(argv)}"

    def _intend(self, node: str, why: str) -> None:
        self._note("node_intent", node=node, command=shlex.join(policy.drain_command(node, self._open[node])), why=why)

    def _note(self, event: str, **fields: Any) -> None:
        """Write an event; a full log must not prevent a drain."""
        with contextlib.suppress(GpuClusterError):
            self.write(event, **fields)

    # --- Slurm and the shell

    def _nodes(self) -> dict[str, NodeInfo]:
        self.slurm.refresh()
        return self.slurm.nodes()

    def _wait_responding(self, wanted: set[str]) -> None:
        deadline = time.monotonic() + BEGIN_WITHIN
        silent = wanted - self.refused.keys()
        while silent and time.monotonic() < deadline:
            with contextlib.suppress(SlurmError):
                nodes = self._nodes()
                silent = {node for node in silent if not nodes[node].responding}
            if silent:
                time.sleep(0.5)
        for node in silent:
            self.refused[node] = "it does not respond to Slurm after it was undrained"

    def _read(self, shell: subprocess.Popen[bytes] | RemoteProcess) -> None:
        assert shell.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for raw in shell.stdout:
                word, _, node = raw.decode(errors="replace").strip().partition(" ")
                with self._news:
                    self._reports[node] = word
                    self._news.notify_all()
        shell.wait()
        with self._news:
            self._gone = True
            for pipe in (shell.stdin, shell.stdout, shell.stderr):
                with contextlib.suppress(OSError):  # from unread input
                    if pipe is not None:
                        pipe.close()
            self._news.notify_all()
            self._settle()  # no node is open after a regular end


_REFUSALS = {
    "refused": "it could not be undrained: are you Slurm's administrator?",
    "changed": "another user changed it directly before its trial",
    "unread": "its state could not be read directly before its trial",
}
_NOT_UNDRAINED = "it was not undrained in time: the shell for that has ended, or Slurm does not answer"
