"""The burnin suite on a sandbox: each fault under load is found on its node alone; stopped, resumed, and watched.

GPUs are simulated; CPUs, memory and storage are really loaded, a little.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from constants import in_environment
from forked import DEFAULT_SIGNALS
from paths import ROOT
from plugin_helpers import Run, command, names, run_pytest
from sandbox_helpers import environment, left_in_queue

from pytest_gpucluster.core.part import Part
from pytest_gpucluster.report.machine.events import read_events
from pytest_gpucluster.sandbox.found_by import FOUND_BY

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores

DEADLINE = 1200  # seconds; a run takes a tenth of it at most
Faults = dict[str, dict[str, dict[str, int]]]
SUITE = ROOT / "suites" / "burnin" / "test_burnin.py"
# of each node
FAULTY: Faults = {
    "gpu01": {
        "burn_slow_gpu": {"gpu": 1},
        "burn_slow_memory": {"gpu": 0},
        "burn_hot": {"gpu": 3},
        "burn_replay": {"gpu": 2},
        "burn_dcgm": {"gpu": 5},
        "burn_low_power": {"gpu": 4},
    },
    "gpu02": {"burn_corruption": {"gpu": 2}, "burn_gpu_memory": {"gpu": 6}},
    "gpu03": {"burn_storage": {}},
    "gpu04": {"burn_node_lost": {"loads": 6}},
}
STOPPED: Faults = {"gpu02": {"burn_ecc": {"gpu": 2}}, "gpu03": {"burn_xid": {"gpu": 6, "xid": 79}}}


def arguments(sandbox: Sandbox, folder: Path, *words: object, **config: object) -> list[object]:
    """Return pytest's arguments; loads are short, so that rounds are."""
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    plain["burnin"] |= config
    cluster = folder / "cluster.yaml"
    cluster.write_text(yaml.safe_dump(plain))
    return [f"--cluster={cluster}", *("-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "-m", "burnin"), *words]


def env_of(sandbox: Sandbox, **constants: object) -> dict[str, str]:
    """Return the environment of a run with short loads."""
    return in_environment(sandbox.env, burnin={"load": 0.3, "beat": 0.5, "sample": 0.2, **constants})


def expected(faults: Faults) -> dict[str, set[str]]:
    return {node: {FOUND_BY[kind][0] for kind in kinds} for node, kinds in faults.items()}


def failed(run: Run) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for event in run.events:
        if event["event"] == "result" and event["outcome"] in ("failed", "error"):
            found.setdefault(event["node"], set()).add(event["check"])
    return found


def parts(run: Run, node: str, check: str) -> set[str]:
    """Return the parts that a verdict names, without their UUIDs."""
    (found,) = (
        event for event in run.events if event["event"] == "result" and (event["node"], event["check"]) == (node, check)
    )
    known = (Part.read(finding["part"]) for it in found["verdicts"] for finding in it["findings"])
    return {str(part).partition(" (")[0] for part in known}


def burnin_events(run: Run, what: str) -> list[dict[str, Any]]:
    return [event for event in run.events if event["event"] == "burnin" and event["what"] == what]


# --- running it ---------------------------------------------------------------------------------------------------


def is_hit(totals: dict[str, Any]) -> bool:
    """Return whether the node was lost, has wrong data or counters that rose."""
    wrong = (count for parts in totals.get("wrong", {}).values() for count in parts.values())
    return "lost" in totals or "rose" in totals or any(wrong)


class Watched:
    """A pytest that is stopped by Ctrl-C, on a terminal of its own or writing into a pipe."""

    def __init__(self, sandbox: Sandbox, folder: Path, *words: str, terminal: bool) -> None:
        self.folder, self.text = folder, ""
        self.master, out = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [*DEFAULT_SIGNALS, *command(*arguments(sandbox, folder, *words), SUITE)],
            cwd=folder,
            env=environment(**env_of(sandbox)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        os.close(out)

    @property
    def run(self) -> Run:
        code = self.process.returncode
        return Run(-1 if code is None else code, self.text, "", self.folder)

    def read(self, seconds: float) -> bool:
        """Take what was written meanwhile; False where nothing was, or the other end is closed."""
        before = len(self.text)
        if select.select([self.master], [], [], seconds)[0]:
            with contextlib.suppress(OSError):  # Linux: the other end is closed
                self.text += os.read(self.master, 1 << 16).decode(errors="replace")
        return len(self.text) > before

    def until_hit(self, nodes: set[str], rounds: int) -> None:
        """Wait until the faults of these nodes show and so many rounds were done after that."""
        path = self.folder / "reports" / "latest" / "events.jsonl"
        end, whole = time.monotonic() + DEADLINE, None
        while True:
            self.read(0.2)
            events = list(read_events(path)) if path.exists() else []
            reported = [event for event in events if event["event"] == "burnin" and event["what"] == "totals"]
            hit = {event["totals"]["node"] for event in reported if is_hit(event["totals"])}
            now = max((event["rounds"] for event in reported), default=0)
            if nodes <= hit:
                whole = now if whole is None else whole
                if now >= whole + rounds:
                    return
            assert time.monotonic() < end, self.text[-2000:]
            assert self.process.poll() is None, self.text[-2000:]

    def stop(self) -> Run:
        self.process.send_signal(signal.SIGINT)
        end = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            self.read(0.2)
            assert time.monotonic() < end, self.text[-2000:]
        while self.read(0.5):  # a terminal gives 4 KiB at a time
            pass
        return self.run

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.master)


def burn_until_hit(sandbox: Sandbox, folder: Path, faults: Faults, *words: str, terminal: bool) -> Run:
    """Run with these faults until each shows and all continued for two rounds; then Ctrl-C."""
    sandbox.heal()
    for node, kinds in faults.items():
        for kind, options in kinds.items():
            sandbox.fault(kind, node, **options)
    watched = Watched(sandbox, folder, *words, terminal=terminal)
    try:
        watched.until_hit(set(faults), rounds=2)
        return watched.stop()
    finally:
        watched.close()
        sandbox.heal()


# --- faults --------------------------------------------------------------------------------------------------------


def test_each_fault_is_found_by_its_check_on_its_node_alone_and_the_others_go_on(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    run = burn_until_hit(sandbox, tmp_path, FAULTY, "--burnin-time=200s", terminal=False)
    assert failed(run) == expected(FAULTY), run.out[-3000:]
    for node, check, part in (
        ("gpu01", "matmul", "GPU 1"),
        ("gpu01", "memory_bandwidth", "GPU 0"),
        ("gpu01", "temperature", "GPU 3"),
        ("gpu01", "counters", "GPU 2"),
        ("gpu01", "dcgm", "GPU 5"),
        ("gpu02", "corruption", "GPU 2"),
        ("gpu04", "survived", "node"),
    ):
        assert parts(run, node, f"burnin.{check}") == {part}, check
    (end,) = burnin_events(run, "end")
    assert (end["out"], end["lost"].keys()) == ({}, {"gpu04"})
    assert "signal 9" in end["lost"]["gpu04"]
    rounds = {
        event["node"]: metric["value"]
        for event in run.events
        if event["event"] == "result" and event["check"] == "burnin.survived"
        for metric in event["metrics"]
        if metric["name"] == "burnin_rounds"
    }
    assert rounds["gpu01"] > rounds["gpu04"]
    assert "(SIMULATED)" in run.out
    # off a terminal the progress is a line of its own
    (line,) = (it for it in run.out.splitlines() if it.startswith("burn-in ") and " healthy, " in it)
    assert line.endswith(" left")
    assert "\r" not in run.out
    assert left_in_queue(sandbox) == []


# --- stopped and resumed -------------------------------------------------------------------------------------------


def test_ctrl_c_ends_it_with_verdicts_and_resumed_it_goes_on_with_the_time_that_was_left(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    words = "--burnin-time=200s"
    stopped = burn_until_hit(sandbox, tmp_path, STOPPED, words, terminal=True)
    assert stopped.rc == 2, stopped.out[-3000:]
    assert "burn-in: it ended early: stopped by Ctrl-C" in stopped.out
    assert failed(stopped) == expected(STOPPED)
    assert "go on with: pytest --cluster=" in stopped.out
    assert f"-m burnin --burnin-resume=reports/{stopped.reports.name}/events.jsonl" in stopped.out
    passed = set(names(stopped.outcomes, "passed"))
    assert "test_corruption[gpu01]" in passed
    assert "test_survived[gpu01]" not in passed, "it did not take part for the whole time"
    assert len(stopped.outcomes) == stopped.event("selection")["items"], "every item has its verdict"
    assert left_in_queue(sandbox) == []
    # on a terminal the line is rewritten
    lines = [part for part in stopped.out.split("\r") if part.startswith("burn-in ") and " left" in part]
    assert len(lines) > 5
    assert "4 healthy, 0 suspect, 0 lost" in lines[0]
    assert "2 healthy, 2 suspect, 0 lost" in lines[-1]
    # resumed from the log that the new one takes the place of; the findings so far stand
    (end,) = burnin_events(stopped, "end")
    spent, done = end["seconds"], end["rounds"]
    log = tmp_path / "reports" / "latest" / "events.jsonl"
    worse: Faults = {"gpu04": {"burn_memory": {}}}
    run = burn_until_hit(sandbox, tmp_path, worse, f"--burnin-resume={log}", terminal=False)
    assert failed(run) == {**expected(STOPPED), "gpu04": {"burnin.memory"}}, run.out[-3000:]
    (begin,) = burnin_events(run, "begin")
    (end,) = burnin_events(run, "end")
    assert (begin["requested"], begin["seconds"], begin["rounds"]) == (200.0, spent, done)
    assert end["rounds"] > done
    assert end["seconds"] > spent
    later = [event["totals"] for event in burnin_events(run, "totals") if event["rounds"] > done]
    assert {reported["node"] for reported in later} == {"gpu01", "gpu02", "gpu03", "gpu04"}


def test_in_its_own_time_it_ends_green(sandbox: Sandbox, tmp_path: Path) -> None:
    loads = {"storage", "matmul", "idle"}
    chosen = {"loads": sorted(loads - {"idle"})}
    options = ("--burnin-time=8s", "--nodes=gpu01", "--set=burnin.profile=cycles")
    words = arguments(sandbox, tmp_path, *options, **chosen)
    env = env_of(sandbox, cycle_heat=1, cycle_idle=1)
    run = run_pytest(tmp_path, *words, env=env, where=[str(SUITE)], timeout=DEADLINE)
    assert run.rc == 0, run.out[-3000:]
    (end,) = burnin_events(run, "end")
    assert end["why"] == "the time is up"
    assert "test_storage[gpu01]" in names(run.outcomes, "passed")
    assert {load for event in burnin_events(run, "totals") for load in event["totals"]["ran"]} == loads
    hot = [event for event in burnin_events(run, "totals") if "matmul" in event["totals"]["ran"]]
    assert all(event["totals"]["watts"] for event in hot), "the record of power has each round"
