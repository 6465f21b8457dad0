"""Which lines of Slurm's logs count, and which node they name. Lines without a source were recorded on the sandbox (22.05.8)."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.suites.controller.facts import LogLine
from pytest_gpucluster.suites.controller.known_errors import (
    SLURMCTLD,
    SLURMD,
    SLURMDBD,
    Daemon,
    LogError,
    sorted_errors,
    subjects,
    table,
)

NODES = ("gpu01", "gpu02", "gpu03", "k003-006")


def telling(text: str, daemon: Daemon, age: float | None = 60.0, **options: object) -> list[LogError]:
    known = {"window": 86400.0, "nodes": NODES, **options}
    found = sorted_errors([LogLine(age, text)], daemon, **known)  # type: ignore[arg-type]
    return [one for one in found if not one.quiet]


@pytest.mark.parametrize(
    ("daemon", "text", "what", "nodes"),
    [
        (
            SLURMCTLD,
            "error: job_epilog_complete: JobId=8 epilog error on gpu03, draining the node",
            "epilog failed",
            ("gpu03",),
        ),
        (SLURMCTLD, "error: Epilog failure on host k003-006, setting DOWN", "epilog failed", ("k003-006",)),
        (
            SLURMCTLD,
            "update_node: node gpu01 reason set to: Kill task failed",
            "processes not killed",
            ("gpu01",),
        ),
        (SLURMCTLD, "fatal: mkdir(/var/spool/slurm/ctld): No such file", "the daemon ended", ()),
        (SLURMCTLD, "error: gpu07 and node gpu02 disagree", None, ("gpu02",)),
        (SLURMCTLD, "error: nodes gpu[01-02],k003-006.", None, ("gpu01", "gpu02", "k003-006")),
        (SLURMCTLD, "error: nodes [", None, ()),
        (SLURMD, "error: [job 6] prolog failed status=1:0", "prolog failed", ()),
        (SLURMD, "spank-epilog: error: pyxis: mkdir: cannot create directory", "SPANK plugin", ()),
        (SLURMD, "warning: Multiple leaf switches contain nodes: gpu[01-02]", "a setting", ()),
        (SLURMD, "error: Invalid PrologFlag: Contian", "a setting", ()),  # of PrologFlags
    ],
)
def test_what_a_line_means(daemon: Daemon, text: str, what: str | None, nodes: tuple[str, ...]) -> None:
    (found,) = telling(text, daemon)
    assert (getattr(found.known, "what", None), found.nodes) == (what, nodes)


@pytest.mark.parametrize(
    "text",
    [
        # a healthy slurmctld that starts for the first time, a port scan, users, a node that starts
        "error: Could not open job state file /var/spool/slurm/job_state: No such file or directory",
        "error: slurm_receive_msg [127.0.0.1:38356]: Insane message length",
        "error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 DUE TO TIME LIMIT ***",
        "[7.0] error: TaskProlog failed status=1",
        "error: Nodes gpu[01-03] not responding",
        # lines of other levels that hold the words, and other warnings
        "debug2: _file_read_content: error: unable to open '/sys/fs/cgroup': No space left on device",
        "sched: JobId=7 fatal: odd",
        "warning: can't honor --ntasks-per-node set to 4",
    ],
)
def test_lines_of_healthy_clusters_do_not_count(text: str) -> None:
    assert telling(text, SLURMCTLD) == telling(text, SLURMD) == []


def test_old_and_ignored_lines_do_not_count() -> None:
    text = "error: Node gpu02 appears to have a different slurm.conf than the slurmctld."
    ignored = KnownLine(pattern="different slurm.conf", meaning="x", reason="y")
    assert [len(telling(text, SLURMCTLD, age=age)) for age in (86400.0, 86401.0, None)] == [1, 0, 1]
    assert telling(text, SLURMCTLD, of_site=(ignored,)) == []


def test_lines_of_jobs_users_and_clients_explain_no_node() -> None:
    for text, count in (
        ("error: JobId=8 is odd", 0),
        ("error: Nodes gpu01 not responding", 1),
        ("error: odd", 1),
    ):
        assert len(list(sorted_errors([LogLine(1.0, text)], SLURMCTLD, window=9.0))) == count


def test_every_known_error_and_subject_has_a_hint_a_cause_and_a_source() -> None:
    every: tuple[Any, ...] = (*table(SLURMCTLD), *table(SLURMD), *table(SLURMDBD), *subjects())
    for known in every:
        assert all((known.cause, known.hint, known.source)), known
