"""The end of a run: its reports are written one by one, and all state the exit status that pytest ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.plugin import signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.report.atomic_write import Reports
    from pytest_gpucluster.report.events import EventLog

# a run that came to its end
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.TESTS_FAILED)


class RunEnd:
    """Writes the `finish` event and the reports of a run. `log` is None where tests are only collected.

    `writers` write one report each, note what becomes of it in `reports`, and raise nothing. Those of `stating` show
    the exit status, and write again where it has changed.
    """

    def __init__(self, session: ClusterSession, log: EventLog | None, reports: Reports) -> None:
        self.session, self.log, self.reports = session, log, reports
        self.writers: list[Callable[[], None]] = []
        self.stating: list[Callable[[], None]] = []
        self.stated: int | None = None  # the exit status of the last `finish`
        self._complaints: list[str] = []
        self._known: set[str] = set()  # problems that are reported already

    def finish(self, status: int, complaints: Sequence[str]) -> None:
        """Write the `finish` event; of several the last one counts."""
        if self.log is None:
            return
        self.stated, self._complaints = status, [*complaints]
        self._known.update((*self.reports.problems.values(), *complaints))
        slurm = self.session.slurm
        record: dict[str, Any] = {
            kind: self.log.model.totals[kind]
            for kind in ("passed", "failed", "error", "waived", "not checked", "not tested")
        }
        record["nodes"] = self.log.model.proofs.counts
        processes = dict(slurm.transport.started) if slurm else {}
        self.log.write("finish", exit=status, complaints=self._complaints, processes=processes, record=record)
        self.reports.written[self.log.path] = None
        self.gaps()

    def gaps(self) -> list[str]:
        """Say what the event log lacks; a log with gaps is not among the files that are written."""
        if self.log is None or not self.log.failed:
            return []
        self.reports.written.pop(self.log.path, None)
        return [f"the event log is not whole: {self.log.failed}"]

    def write(self, session: pytest.Session) -> None:
        """Write all reports."""
        for write in self.writers:
            write()
        self.settle(session)

    def settle(self, session: pytest.Session) -> None:
        """Tell what is missing, and let the exit status, and all that states it, be the one that comes of that."""
        missing = [it for it in (*self.gaps(), *self.reports.problems.values()) if it not in self._known]
        if missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if signals.noted() and session.exitstatus in ENDED:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            missing.append(f"{signals.noted()} after the last test: the run ends with 2")
        self._known.update(missing)
        self.session.messages.extend(missing)
        if self.stated not in (None, int(session.exitstatus)):
            self.finish(int(session.exitstatus), [*self._complaints, *missing])
            for write in self.stating:
                write()
