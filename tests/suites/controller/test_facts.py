"""Readers of scontrol ping, sdiag and Slurm's logs, on recorded output."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from paths import ROOT

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.controller import facts
from pytest_gpucluster.suites.controller.facts import ControllerState, LogLine, Scheduler

if TYPE_CHECKING:
    from pathlib import Path

SDIAG = (ROOT / "tests" / "data" / "controller" / "sdiag-22.05.8.txt").read_text()
# with SlurmctldParameters=enable_rpc_queue, which adds columns
NEWER = (ROOT / "tests" / "data" / "controller" / "sdiag-25.11.7.txt").read_text()


@pytest.mark.parametrize(
    ("text", "figures", "main", "backfill", "age", "submissions"),
    [
        (SDIAG, (3, 0, 0, 0), Scheduler(181, 140 / 1e6), Scheduler(5, 15771 / 1e6), 3, (1135, 180518 / 1e6)),
        (NEWER, (1, 0, 0, 2), Scheduler(3, 99 / 1e6), Scheduler(4, 599 / 1e6), 1, (12, 1999 / 1e6)),
    ],
    ids=["22.05", "25.11"],
)
def test_sdiag_gives_its_figures(
    text: str, figures: object, main: Scheduler, backfill: Scheduler, age: int, submissions: object
) -> None:
    load = facts.parse_sdiag(text)
    assert (load.threads, load.agent_queue, load.dbd_queue, load.pending) == figures
    assert (load.main, load.backfill, load.now - (load.backfilled or 0)) == (main, backfill, age)
    assert load.rpcs["REQUEST_SUBMIT_BATCH_JOB"] == submissions
    assert "root" not in load.rpcs


def test_a_controller_that_has_just_started_has_no_mean() -> None:
    text = re.sub(r"Total cycles: \d+", "Total cycles: 0", re.sub(r"(?m)^\tMean.*\n", "", SDIAG))
    load = facts.parse_sdiag(text.replace("Mon Nov 23 15:10:09 2026 (1795446609)", "N/A"))
    assert (load.main, load.backfill, load.backfilled) == (Scheduler(0, None), Scheduler(0, None), None)


def test_a_figure_of_sdiag_stands_at_the_begin_of_its_line() -> None:
    """Names of requests and of users, which sites choose, follow the same words."""
    for words in ("sdiag output at", "\tLast cycle when:", "\tREQUEST_PARTITION_INFO", "Jobs pending:"):
        assert f"\n{words}" in f"\n{SDIAG}", words
        with pytest.raises((ProbeError, KeyError)):
            facts.parse_sdiag(SDIAG.replace(words, f"x{words}")).rpcs["REQUEST_PARTITION_INFO"]


@pytest.mark.parametrize("text", [SDIAG, NEWER])
def test_an_incomplete_sdiag_is_no_fact(text: str) -> None:
    end = text.index("Remote Procedure Call statistics by user")
    for cut in range(0, end, 7):
        with pytest.raises(ProbeError):
            facts.parse_sdiag(text[:cut])


def test_ping_of_one_two_and_three_controllers() -> None:
    up, down = ("Slurmctld(primary) at ctl1 is UP\n", "Slurmctld(backup) at ctl2 is DOWN\n*****\n** RE\n")
    assert facts.parse_ping(up) == (ControllerState("primary", "ctl1", True),)
    assert [one.up for one in facts.parse_ping(up + down)] == [True, False]
    three = facts.parse_ping(f"{up}Slurmctld(backup1) at b is UP\nSlurmctld(backup2) at c is UP")
    assert [one.role for one in three] == ["primary", "backup1", "backup2"]
    with pytest.raises(ProbeError):
        facts.parse_ping("slurm_load_ctl_conf error: Unable to contact slurm controller")


HOST = socket.gethostname().partition(".")[0]
NOW = "now 1795446612 2026-11-23T15:10:12\n"


IN_CONTAINERS = '{"log":"error: x","stream":"stderr","time":"2026-11-23T15:10:02"}'  # since 25.05


@pytest.mark.parametrize(
    ("line", "age"),
    [
        ("[2026-11-23T15:10:02.151] error: x", 10),  # iso8601_ms, the default
        ("[2026-11-23T17:10:02.151+02:00] error: x", 10),  # rfc5424_ms
        ("[2026-11-23T15:10:02Z] error: x", 10),  # rfc3339
        ("[Nov  3 15:10:12] error: x", 20 * 86400),  # short
        ("[Nov 23 15:10:02.151 4711   slurmd 0x7f00] error: x", 10),  # thread_id
        ("[1234567] error: x", None),  # clock
        ("2026-11-23T15:10:02+00:00 gpu01 slurmd[4711]: slurmd: error: x", 10),
        ("[2026-11-23T15:10:02.151] spank-prolog: error: x", 10),
        (IN_CONTAINERS, 10),
        ("error: x", None),
    ],
)
def test_times_of_all_formats_are_read(line: str, age: float | None) -> None:
    assert facts.parse_log(NOW + line).lines == (LogLine(age, "error: x"),)


def test_when_the_log_was_written() -> None:
    assert facts.parse_log(f"{NOW}written 1795446600\nerror: x").idle == 12
    empty = facts.parse_log(NOW)
    assert (empty.lines, empty.idle) == ((), None)
    for text in ("", "now 12 \n", "[2026-11-23T15:10:02] error: x", "now 12 tomorrow\n"):
        with pytest.raises(ProbeError):
            facts.parse_log(text)


def logged(path: object, size: int = 4096, **env: str) -> Answer:
    """Run the command for slurmd's log at a path, as it reads it on a node."""
    command = facts.log_command(str(path), "slurmd", size)
    done = subprocess.run(["sh", "-c", command], capture_output=True, env={**os.environ, **env}, check=False)
    return Answer("gpu01", done.returncode, done.stdout, done.stderr)


def test_the_command_prints_the_newest_errors_of_the_nodes_own_log(tmp_path: Path) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    lines = [f"[{stamp}] error: number {number}" for number in range(1000)] + [f"[{stamp}] done with job"]
    (tmp_path / f"it's a log-gpu01-{HOST}.log").write_text("\n".join(lines))
    tail = facts.read_log(logged(tmp_path / "it's a log-%n-%h.log", 1 << 20, SLURMD_NODENAME="gpu01"))
    assert (tail.lines[-1].text, len(tail.lines)) == ("error: number 999", 300)
    for seconds in (tail.lines[-1].age, tail.idle):
        assert seconds is not None
        assert 0 <= seconds < 600


def test_only_the_end_of_a_large_log_is_read_and_a_quiet_one_has_no_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[2026-11-23T15:10:02] error: old\n" + "x" * 5000 + "\n[2026-11-23T15:10:03] error: new\n")
    assert [line.text for line in facts.read_log(logged(log)).lines] == ["error: new"]
    log.write_text("[2026-11-23T15:10:02] slurmd started\n")
    assert facts.read_log(logged(log)).lines == ()


def test_a_log_that_cannot_be_read_is_no_pass(tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match=f"^{tmp_path}/no-such.log cannot be read$"):
        facts.read_log(logged(f"{tmp_path}/no-such.log"))


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        # journalctl of systemd 252: -n 1 shows the newest line
        ("echo 2026-11-23T15:10:02+0000 gpu01 slurmd[4711]: error: x", 1),
        ("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1", None),
        ("exit 0", None),
    ],
)
def test_without_a_file_the_journal_is_read(tmp_path: Path, script: str, lines: int | None) -> None:
    tool = tmp_path / "journalctl"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    answer = logged("", PATH=f"{tmp_path}:{os.environ['PATH']}")
    if lines is None:
        with pytest.raises(NotAvailable, match="the journal shows no line of slurmd"):
            facts.read_log(answer)
    else:
        assert len(facts.read_log(answer).lines) == lines


def test_lines_of_our_own_question_for_rights_are_no_lines_of_the_site() -> None:
    """As slurmctld 22.05.8 writes them for an administrator, and for another user."""
    log = """[2026-11-27T17:12:02.573] error: _find_node_record: lookup failure for node "gpucluster-asks-for-its-rights"
[2026-11-27T17:12:02.573] error: update_node: node gpucluster-asks-for-its-rights does not exist
[2026-11-27T17:12:02.574] _slurm_rpc_update_node for gpucluster-asks-for-its-rights: Invalid node name specified
[2026-11-27T17:12:02.598] error: Security violation, UPDATE_NODE RPC from uid=65534
[2026-11-27T17:12:02.598] _slurm_rpc_update_node for gpucluster-asks-for-its-rights: Invalid user id
[2026-11-27T17:12:03.000] error: Security violation, UPDATE_NODE RPC from uid=1000
"""
    (line,) = facts.parse_log(NOW + log).lines
    assert line.text == "error: Security violation, UPDATE_NODE RPC from uid=1000"
