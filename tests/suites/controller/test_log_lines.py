"""Lines of Slurm's logs that are equal but for numbers and nodes are one kind. The lines are of public threads."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.suites.controller.facts import LogLine
from pytest_gpucluster.suites.controller.log_lines import ErrorKind, folded

NODES = frozenset({"gpu01", "gpu02", "gpu03", "k003-006", "login"})
HOUR = 3600.0


def fold(*lines: str | tuple[str, float | None], node: str = "", **options: Any) -> tuple[ErrorKind, ...]:
    """Fold lines, oldest first; those without an age are a minute old."""
    known = {"window": HOUR, "nodes": NODES, **options}
    aged = [LogLine(60.0, it) if isinstance(it, str) else LogLine(it[1], it[0]) for it in lines]
    return folded([(node, line) for line in aged], **known)


@pytest.mark.parametrize(
    ("first", "second", "nodes"),
    [
        (
            "error: validate_node_specs: Prolog or job env setup failure on node gpu02, draining the node",
            "error: validate_node_specs: Prolog or job env setup failure on node k003-006, draining the node",
            ("gpu02", "k003-006"),
        ),
        (
            "error: Prolog/Epilog failure on nodes gpu[01-02], setting DOWN",
            "error: Prolog/Epilog failure on nodes gpu03,login, setting DOWN",
            ("gpu01", "gpu02", "gpu03", "login"),
        ),
        (
            "[2.batch] error: *** JOB 2 ON gpu01 CANCELLED AT 2026-11-23T14:46:37 ***",
            "[71.batch] error: *** JOB 71 ON gpu02 CANCELLED AT 2026-11-23T15:00:01 ***",
            ("gpu01", "gpu02"),
        ),
        (  # 25.11.7
            "error: JobId=1 SLUID=s9VHM84X91Z600 prolog failed status=1:0",
            "error: JobId=20 SLUID=s9VHM84XA1ZD00 prolog failed status=1:0",
            (),
        ),
        # neither a hostlist nor a node
        ("error: lookup failure for node gpu98", "error: lookup failure for node gpu99", ()),
    ],
)
def test_lines_of_other_numbers_and_nodes_are_alike(first: str, second: str, nodes: tuple[str, ...]) -> None:
    assert fold(first, (second, 5.0)) == (ErrorKind(first, 2, 5.0, nodes),)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("error: x", True),
        ("[63532.0] error: *** STEP 63532.0 STEPD TERMINATED ON cn106 ***", True),
        ("debug2: _file_read_content: error: unable to open '/sys/fs/cgroup'", False),
        ("sched: JobId=7 fatal: odd", False),
        ("warning: can't honor --ntasks-per-node set to 4", False),
    ],
)
def test_only_the_levels_error_and_fatal_count(text: str, counts: bool) -> None:
    assert bool(fold(text)) is counts


def test_lines_older_than_the_window_do_not_count_and_those_without_a_time_do() -> None:
    found = fold(("error: a 1", HOUR + 1), ("error: a 2", HOUR), ("error: a 3", None))
    assert found == (ErrorKind("error: a 2", 2, HOUR),)


def test_a_line_of_a_nodes_own_log_is_of_that_node() -> None:
    assert fold("error: gpu01 odd", node="gpu03") == (ErrorKind("error: gpu01 odd", 1, 60.0, ("gpu03",)),)


def test_the_cluster_file_leaves_lines_out_and_explains_others() -> None:
    ignored = KnownLine(pattern="slurm.conf", meaning="two files", reason="by intent")
    drains = KnownLine(pattern="odd thing", meaning="our patch", reason="ticket 7", action="drain")
    found = fold("error: Node gpu02 has another slurm.conf", "error: odd thing 1", of_site=(ignored, drains))
    assert found == (ErrorKind("error: odd thing 1", 1, 60.0, (), "our patch (known: ticket 7)"),)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("[4.batch] error: *** JOB 4 ON gpu01 CANCELLED AT 2026-11-30T02:06:13 DUE TO JOB REQUEUE ***", True),
        ("[4.0] error: *** STEP 4.0 ON gpu01 CANCELLED AT 2026-11-30T02:06:13 ***", True),
        ("error: _slurm_rpc_complete_batch_script: JobId=1_0(4) is not running", True),
        ("error: step_partial_comp: StepId=4.extern invalid", True),
        ("error: JobId=4 SLUID=s9VHM84X91Z600 prolog failed status=1:0", False),
        ("[40.batch] error: *** JOB 40 ON gpu01 CANCELLED ***", False),
        ("error: JobId=4 and JobId=9 share gpu01", False),
        ("error: 4 nodes do not answer", False),
    ],
)
def test_a_line_is_of_our_jobs_if_all_that_it_names_are(text: str, *, own: bool) -> None:
    (found,) = fold(text, jobs={1, 4})
    assert found.own is own
