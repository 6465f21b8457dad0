"""The runs of a campaign: ordinary pytest runs of a few nodes, each with a folder of its own.

A run outlives the process that started it, so that a killed campaign loses no verdict. It starts only when the campaign
has stored its process id: a shell waits for one line, and ends without it.
"""

from __future__ import annotations

import hashlib
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import kill
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.run_mark import mark_of
from pytest_gpucluster.core.sanitize import clean, one_line
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.kit.suite_work import PairResult
from pytest_gpucluster.report.history.run_snapshot import JUDGED_EXITS, recorded
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.report.machine.run_folder import KEEP_FOLDER, newest_log
from pytest_gpucluster.report.proof import FAILED, FIT, NOT_PROVED, NOT_TESTED
from pytest_gpucluster.report.result import RED
from pytest_gpucluster.report.run_model import NO_NODES, TAKEN_BACK, WAITED

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.campaign.model import Kind, RunGroup
    from pytest_gpucluster.report.result import Result
    from pytest_gpucluster.report.run_model import Run

OUTPUT = "output.txt"
_CHUNK = 1 << 20
_START = 'read -r go && exec "$@" >>"$0" 2>&1 </dev/null'
_MAX_MESSAGE = 500
USAGE = 4  # pytest's exit status: also of a run that Slurm granted no nodes
STOPPED = (None, 2)  # killed, or ended by a signal


@dataclass(frozen=True)
class GroupResult:
    """How a group ended: {node: (state, message)}, node '' for the cluster; what pairs measured, by suite."""

    nodes: Mapping[str, tuple[str, str]]
    pairs: Mapping[str, Sequence[PairResult]] = field(default_factory=dict)
    boots: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    sha256: str = ""


class Child:
    """The process of one run, before its start."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        Folder(folder, create=True).close()
        output = folder / OUTPUT
        output.touch(mode=0o600)
        argv = ("sh", "-c", _START, str(output), sys.executable, "-m", "pytest", *arguments)
        self.process: subprocess.Popen[bytes] = LocalTransport(inherit=True).spawn(argv, env={KEEP_FOLDER: "1"})
        self.mark = mark_of(self.process.pid)

    def go(self) -> None:
        """Start the run."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: its result says how
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def stop(self) -> None:
        """End the run as Ctrl-C does: it releases its nodes and writes its reports."""
        with suppress(ProcessLookupError):
            kill(self.process.pid, signal.SIGTERM)


def arguments_of(
    given: Sequence[str], kind: Kind, nodes: Sequence[str], folder: Path, settings: Sequence[str]
) -> list[str]:
    """Return pytest's arguments for a group: those of the campaign, then what differs, since the last one counts."""
    own = [f"--nodes={hostlist.fold(nodes)}", f"--report-dir={folder}", *(f"--set={it}" for it in settings)]
    return [*given, "-m", kind.expression, *own]


def was_refused(folder: Path) -> bool:
    """Return whether a run that ended with USAGE was refused for its options, not for its nodes or the controller."""
    run = _run_in(folder)
    return run is None or run.end not in (WAITED, NO_NODES)


def last_line(folder: Path) -> str:
    """Return the last error that a run has printed, else its last line."""
    with suppress(OSError):
        lines = [line.strip() for line in (folder / OUTPUT).read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]
        return clean((errors or lines or [""])[-1])[:_MAX_MESSAGE]
    return ""


def outcome_of(group: RunGroup, kind: Kind, boots: Mapping[str, str]) -> GroupResult:
    """Return how the run of a group ended, by its event log."""
    folder = Path(group.folder) if group.folder else None
    run = _run_in(folder) if folder else None
    sha256 = sha256_of(newest_log(folder)) if folder and run else ""
    return replace(outcome_in(run, group, kind), boots=boots, sha256=sha256)


def _run_in(folder: Path) -> Run | None:
    """Return what the event log in the folder of a group holds, None without one."""
    with suppress(OSError):
        return read_log(newest_log(folder))
    return None


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file. OSError where it cannot be read."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for data in iter(lambda: file.read(_CHUNK), b""):
            found.update(data)
    return found.hexdigest()


def outcome_in(run: Run | None, group: RunGroup, kind: Kind) -> GroupResult:
    """Return how a group ended, by the events of its run; None: there are none."""
    folder = Path(group.folder) if group.folder else None
    if run is None:
        return GroupResult(dict.fromkeys(group.nodes, _without_log(folder)))
    made = GroupResult({}, {}, run=run.run)
    if run.exit not in JUDGED_EXITS:
        return replace(made, nodes=dict.fromkeys(group.nodes, _without_test(run)))
    of_cluster = _of_cluster(run)
    found = {node: _of_node(run, node) for node in group.nodes}
    if kind.partners and of_cluster[0] == FAILED:  # what the nodes do together has failed
        found = {
            node: (FAILED, of_cluster[1]) if state == FIT else (state, why) for node, (state, why) in found.items()
        }
    elif not kind.partners:
        found[""] = of_cluster
    return replace(made, nodes=found, pairs=_pairs(run, group, kind, of_cluster))


def _without_log(folder: Path | None) -> tuple[str, str]:
    """Return the state of the nodes of a run without a log: it was killed before it began, or Python could not start it."""
    why = last_line(folder) if folder else ""
    return (NOT_PROVED, why) if why else (NOT_TESTED, "the run was killed before its first test")


def _without_test(run: Run) -> tuple[str, str]:
    """Return the state of the nodes of a run that did not come to its end, by the end of its log."""
    if run.exit in STOPPED:
        return NOT_TESTED, "the run was stopped"
    why = clean(run.errors[0])[:_MAX_MESSAGE] if run.errors else f"the run ended with exit status {run.exit}"
    return (NOT_TESTED if run.end in (WAITED, TAKEN_BACK) else NOT_PROVED), why


def _of_node(run: Run, node: str) -> tuple[str, str]:
    state = run.proofs.nodes.get(node, NOT_TESTED)
    if state == FIT:
        return state, ""
    lost = run.lost.get(node, "")
    if state != FAILED and run.end == TAKEN_BACK:
        return NOT_TESTED, lost or run.errors[0]
    return state, _why(run, node) or lost or run.untested.get(node, "") or _unproved(run, node)


def _of_cluster(run: Run) -> tuple[str, str]:
    why = _why(run, "")
    return (FAILED, why) if why else (FIT, "")


def _why(run: Run, node: str) -> str:
    """Return the words for the first failure of a node, else for its first error; of the cluster only failures count."""
    red = _red(run, node)
    return one_line(f"{red[0].check}: {red[0].brief}", _MAX_MESSAGE) if red else ""


def _red(run: Run, node: str) -> list[Result]:
    wanted = RED if node else ("failed",)
    red = [result for result in run.results if result.node == node and result.outcome in wanted]
    return sorted(red, key=lambda result: result.outcome != "failed")


def _unproved(run: Run, node: str) -> str:
    reasons = [
        f"{suite}: {why.reasons[0]}"
        for (suite, name), why in run.proofs.unproved.items()
        if name == node and why.reasons
    ]
    return one_line(reasons[0], _MAX_MESSAGE) if reasons else ""


def _pairs(run: Run, group: RunGroup, kind: Kind, of_cluster: tuple[str, str]) -> dict[str, list[PairResult]]:
    """Return what pairs have measured; a group of two that failed without a measurement is a pair with a problem."""
    found: dict[str, list[PairResult]] = {}
    judging = [suite.name for suite in suites() if suite.pair_results and suite.name in kind.suites]
    for suite in judging:
        found[suite] = list(_measured(run, suite))
        failed_here = any(result.check.startswith(f"{suite}.") for result in _red(run, "")[:1])
        if not found[suite] and failed_here and len(group.nodes) == 2:
            one, other = group.nodes
            found[suite] = [PairResult((one, other), "", None, of_cluster[1])]
    return found


def _measured(run: Run, suite: str) -> Iterator[PairResult]:
    for it in recorded(run).metrics:
        if it.check.startswith(f"{suite}.") and it.paired and it.node < it.paired and it.metric.number is not None:
            yield PairResult((it.node, it.paired), it.metric.name, it.metric.number)
