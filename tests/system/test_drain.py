"""Drain and resume on a real Slurm of ten nodes: what it does, and above all what it never does."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import forked
import pytest
from drain_helpers import summed
from paths import ROOT
from plugin_helpers import Run, cluster_file, command, run_pytest, start_controller, write_suites
from sandbox_helpers import environment, queue, sandbox_folder, slurm, wait_for

from pytest_gpucluster.report.machine.events import read_events
from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GPU_SUITE = ROOT / "suites" / "gpu" / "test_gpu.py"
ALL = "gpu[01-10]"

# A node fails where a file of its name lies in the folder; where it ends in `.once`, at the first asking only.
SITE = """
import os
import subprocess
from pathlib import Path

import pytest

from pytest_gpucluster.core.check import Action, Finding, check
from pytest_gpucluster.core.probe import Probe, text_of

HERE = Path(__file__).parent
ASK = f'cd {HERE}; echo x >> asked.$SLURMD_NODENAME; [ -e $SLURMD_NODENAME ] || mv $SLURMD_NODENAME.once done'
@pytest.fixture
def state(gpucluster_node):
    return gpucluster_node.facts(Probe("state", f'if {ASK} 2>/dev/null; then echo 7; else echo 8; fi', lambda a: int(text_of(a))))


def judge(seen):
    if seen != 8:
        yield Finding("GPUs", str(seen), "8 GPUs")


fit = check("site.fit", cause="c", hint="h", action=Action.DRAIN, never_healthy="made for a test")(judge)


def test_fit(state, gpucluster_item):
    gpucluster_item.expect(fit(state))
"""


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with sandbox_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))  # the lock's
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=10, gpus_per_node=2)
        yield sandbox


@pytest.fixture
def sandbox(ten: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """The ten nodes, in service before and after."""
    for name, value in ten.env.items():
        monkeypatch.setenv(name, value)
    yield ten
    ten.heal()
    wait_for(lambda: not queue(ten), "all jobs are over")
    for line in slurm(ten, "scontrol", "show", "reservation", "-o").splitlines():
        if line.startswith("ReservationName="):
            slurm(ten, "scontrol", "delete", line.split()[0])
    for name in reasons(ten):
        slurm(ten, "scontrol", "update", f"NodeName={name}", "State=UNDRAIN")
    wait_for(lambda: set(states(ten).values()) == {"idle"}, "all nodes are idle")


def states(sandbox: Sandbox) -> dict[str, str]:
    lines = slurm(sandbox, "sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T").splitlines()
    return dict(line.split() for line in lines)


def reasons(sandbox: Sandbox) -> dict[str, str]:
    """Return what `sinfo -R` says: node -> reason."""
    lines = slurm(sandbox, "sinfo", "-R", "-h", "-N", "-o", "%N|%E").splitlines()
    return dict(line.split("|", 1) for line in lines)


def drain_by_hand(node: str, reason: str, sandbox: Sandbox) -> None:
    slurm(sandbox, "scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")


def reserve(sandbox: Sandbox, *nodes: str) -> None:
    what = f"Nodes={','.join(nodes)} Users={getpass.getuser()} Flags=maint,ignore_jobs StartTime=now Duration=60"
    slurm(sandbox, "scontrol", "create", "reservation", "ReservationName=fix", *what.split())


def on_trial(sandbox: Sandbox, *nodes: str) -> dict[str, str]:
    """Drain nodes as an earlier run did, and reserve them; return {node: reason}."""
    found = {name: summed("gpucluster:site.fit 7<8 GPUs run=20261120T020000-1", name) for name in nodes}
    for name, reason in found.items():
        drain_by_hand(name, reason, sandbox)
    reserve(sandbox, *nodes)
    return found


TRIED = ("--resume-passing", "--set=slurm.reservation=fix")


def fail(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def site(
    sandbox: Sandbox, folder: Path, *args: object, more: str = "", slurm_keys: Mapping[str, str] | None = None
) -> Run:
    """Run the site's suite on the ten nodes."""
    keys = {"partition": "batch", "conf": sandbox.env["SLURM_CONF"], **(slurm_keys or {})}
    path = cluster_file(sandbox, folder, nodes=ALL, slurm=keys)
    return run_pytest(folder, f"--cluster={path}", *args, files={"test_site.py": SITE + more})


def events(run: Run, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in run.events if event["event"] in kinds]


# --- the controller down: first, since one that is killed forgets the last seconds, as drains that were taken back

DOWN = """
def test_zz_down(state, gpucluster_node):
    if gpucluster_node.name == "gpu10":
        pid = int(Path(os.environ["CTLD_PID"]).read_text())
        os.kill(pid, 9)
"""


def test_with_the_controller_down_in_the_middle_nothing_is_drained(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(tmp_path, "gpu01", "gpu02")
    monkeypatch.setenv("CTLD_PID", str(sandbox.layout.pid_file("slurmctld")))
    keys = {"partition": "batch", "conf": sandbox.env["SLURM_CONF"]}
    path = cluster_file(sandbox, tmp_path, nodes=ALL, slurm=keys)
    write_suites(tmp_path, {"test_site.py": SITE + DOWN})
    argv = command(f"--cluster={path}", "--drain=apply", "--set=drain.max=5", ".")
    log = tmp_path / "reports" / "latest" / "events.jsonl"
    with subprocess.Popen(argv, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            # it comes back, with its state, once all is decided: the nodes are given back the sooner
            wait_for(lambda: log.exists() and log.read_text().count("drain_decision") == 2, "all is decided")
        finally:
            start_controller(sandbox)
        out, _ = process.communicate(timeout=1200)
    run = Run(process.returncode, out, "", tmp_path)
    slurm(sandbox, "scancel", "--user=root")  # a controller that came back may have missed the end of the job
    assert run.rc == 1
    assert reasons(sandbox) == {}
    assert events(run, "node_intent", "node_result") == []
    decisions = events(run, "drain_decision")
    assert [event["decision"] for event in decisions] == ["spare", "spare"]
    assert all("cannot be read" in event["why"] for event in decisions)
    assert run.event("finish")["failed"] == 2


# --- the whole circle


def gpus(sandbox: Sandbox, folder: Path, *args: str, chosen: str = "test_count or test_names") -> Run:
    """Run two tests of the shipped gpu suite."""
    option = f"--cluster={sandbox.cluster_file}"
    return run_pytest(folder, option, "-k", chosen, *args, where=[str(GPU_SUITE)])


def test_a_dry_run_prints_the_very_command_and_changes_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("gpu_missing", "gpu02", gpu=1)
    before = slurm(sandbox, "scontrol", "show", "node", "-o")
    run = gpus(sandbox, tmp_path, "--drain=dry-run")
    assert run.rc == 1, run.out
    assert reasons(sandbox) == {}
    assert set(states(sandbox).values()) <= {"idle", "completing"}
    assert events(run, "node_intent", "node_result") == []
    for key in ("Reason=", "DRAIN"):
        assert key not in before + slurm(sandbox, "scontrol", "show", "node", "-o")
    (printed,) = re.findall(r"dry run, nothing was touched: (.*)", run.out)
    subprocess.run(printed, shell=True, check=True, timeout=1200)  # it is the very command: typed, it drains
    (decision,) = events(run, "drain_decision")
    reason = summed(f"gpucluster:gpu.count 1<2 GPUs repair=drain run={decision['run']}", "gpu02")
    assert reasons(sandbox) == {"gpu02": reason}


@pytest.mark.essential
def test_fault_drain_repair_resume(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("gpu_missing", "gpu02", gpu=1)
    run = gpus(sandbox, tmp_path, "--drain=apply")
    assert run.rc == 1
    assert "drained: gpu02" in run.out
    (result,) = events(run, "node_result")
    reason = summed(f"gpucluster:gpu.count 1<2 GPUs repair=drain run={result['run']}", "gpu02")
    assert (result["result"], result["state"], result["reason"]) == ("drained", "ALLOCATED+DRAIN", reason)
    assert reasons(sandbox) == {"gpu02": reason}
    wait_for(lambda: states(sandbox)["gpu02"] == "drained", "gpu02 is drained once the job is over")
    kinds = [event["event"] for event in events(run, "drain_confirm", "drain_decision", "node_intent")]
    assert kinds == ["drain_confirm", "drain_decision", "node_intent"]

    listing = gpucluster(tmp_path, "drains", "--json")
    (row,) = json.loads(listing)["drains"]
    expected = {"node": "gpu02", "state": "DRAINED", "checks": "gpu.count", "repair": "drain"}
    expected |= {"found": "1<2 GPUs", "run": result["run"], "log": f"reports/{result['run']}/events.jsonl"}
    assert row == {**expected, "since": row["since"], "by": getpass.getuser()}
    assert result["run"] in gpucluster(tmp_path, "drains", "--cluster", str(sandbox.cluster_file))

    # again: it is left as it is, and not tested without a reservation
    run = gpus(sandbox, tmp_path, "--drain=apply", "--resume-passing")
    assert run.rc == 1
    assert reasons(sandbox) == {"gpu02": reason}
    assert "gpu02 stays drained: it was not tested" in run.out

    # in the reservation, but not repaired; then repaired, but what drained it does not run; then all
    reserve(sandbox, "gpu02", "gpu03")
    options = (*TRIED, "--drain=apply")
    run = gpus(sandbox, tmp_path, *options)
    assert run.rc == 1
    assert "gpu02 is drained again: gpu.count ended as failed" in run.out
    assert reasons(sandbox) == {"gpu02": reason}
    assert [event["result"] for event in events(run, "node_result")] == ["undrained", "drained"]

    sandbox.heal("gpu02")
    run = gpus(sandbox, tmp_path, *options, chosen="test_names")
    assert run.rc == 0, run.out
    assert "gpu02 is drained again: gpu.count did not run" in run.out
    assert reasons(sandbox) == {"gpu02": reason}

    run = gpus(sandbox, tmp_path, *options)
    assert run.rc == 0, run.out
    assert "gpu02 is resumed" in run.out
    assert reasons(sandbox) == {}
    assert set(run.outcomes.values()) == {"passed"}
    assert len(run.outcomes) == 4  # the reservation's two nodes are what is under test
    assert gpucluster(tmp_path, "drains") == "No node is drained with a reason that begins with gpucluster:\n"


def gpucluster(folder: Path, *args: str) -> str:
    argv = [sys.executable, "-m", "pytest_gpucluster", *args]
    done = forked.run(argv, cwd=folder, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- what it never does


def test_forty_percent_failing_drains_ten_percent_and_says_so_loudly(sandbox: Sandbox, tmp_path: Path) -> None:
    fail(tmp_path, "gpu02", "gpu04", "gpu06", "gpu08")
    run = site(sandbox, tmp_path, "--drain=apply")
    assert run.rc == 1
    assert list(reasons(sandbox)) == ["gpu02"]
    assert any("left in service: gpu[04,06,08]" in line for line in run.errors)
    assert events(run, "drain_over_budget")[0]["nodes"] == ["gpu04", "gpu06", "gpu08"]
    # the next night adds nothing: what we drained before counts
    run = site(sandbox, tmp_path, "--drain=apply")
    assert list(reasons(sandbox)) == ["gpu02"]


# from the task down: whoever is left would end this very command
LEAVES = """
KILL = '''
[ $SLURMD_NODENAME = gpu05 ] || exit 0
p=$PPID
while read -r _ name _ up _ </proc/$p/stat && case $name in *slurmstep*) false ;; esac; do all="$p $all"; p=$up; done
kill -9 $all
'''


def test_zz_leaves(gpucluster_fleet):
    gpucluster_fleet.ask(KILL)  # a dying agent may still answer this
    assert gpucluster_fleet.ask("echo again")["gpu06"].rc == 0
"""


def test_a_node_that_is_lost_is_not_drained(sandbox: Sandbox, tmp_path: Path) -> None:
    fail(tmp_path, "gpu05", "gpu06")
    run = site(sandbox, tmp_path, "--drain=apply", "--set=drain.max=5", more=LEAVES)
    assert list(reasons(sandbox)) == ["gpu06"], run.out
    assert [event["node"] for event in run.events if event["event"] == "lost"] == ["gpu05"], run.out


BOB = """
def test_zz_bob(state, gpucluster_node):
    if gpucluster_node.name in ("gpu03", "gpu04"):
        say = ["scontrol", "update", f"NodeName={gpucluster_node.name}", "State=DRAIN", "Reason=bob: bad cable, ticket 4711"]
        subprocess.run(say, check=True)
"""


def test_a_foreign_drain_survives(sandbox: Sandbox, tmp_path: Path) -> None:
    theirs = "bob: bad cable, ticket 4711"
    ours = summed("gpucluster:site.fit 7<8 GPUs run=20261120T020000-1", "gpu02").replace("7<8", "7<8 alice: keep out")
    drain_by_hand("gpu01", theirs, sandbox)
    drain_by_hand("gpu02", ours, sandbox)  # somebody has added a word to it: it is not ours alone any more
    forged = summed("gpucluster:site.fit 7<8 GPUs run=20261120T020000-2", "gpu06")  # no run of ours that is known
    drain_by_hand("gpu06", forged, sandbox)
    fail(tmp_path, "gpu03", "gpu04", "gpu05")
    history = f"--history={tmp_path / 'history.sqlite'}"
    run = site(sandbox, tmp_path, "--drain=apply", "--set=drain.max=9", history, more=BOB)
    found = reasons(sandbox)
    assert (found["gpu01"], found["gpu02"]) == (theirs, ours)
    assert (found["gpu03"], found["gpu04"]) == (theirs, theirs), run.out  # drained while we tested
    assert found["gpu05"].startswith("gpucluster:site.fit 7!=8 GPUs repair=drain run=")
    assert f'not drained: gpu[03-04] (site.fit): it has another reason: "{theirs}" by root' in run.out
    reserve(sandbox, "gpu01", "gpu02", "gpu06")
    run = site(sandbox, tmp_path, *TRIED, history)
    found = reasons(sandbox)
    assert (found["gpu01"], found["gpu02"], found["gpu06"]) == (theirs, ours, forged)
    assert events(run, "node_intent") == []
    assert f'gpu02 stays drained: its reason is not as gpucluster wrote it for this node: "{ours}"' in run.out
    assert "gpu06 stays drained: its reason names run 20261120T020000-2, which is neither in the history" in run.out


def test_a_run_that_is_stopped_early_drains_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    fail(tmp_path, "gpu01")
    run = site(sandbox, tmp_path, "--drain=apply", "-x")
    assert run.rc == 1
    assert reasons(sandbox) == {}
    assert events(run, "drain_skipped")


# Slurm's own scontrol, but for an update: there the run dies, before anything is done
KILLER = """#!/bin/sh
case " $* " in *" State=DRAIN "*) kill -9 $PPID; exit 1 ;; esac
exec {scontrol} "$@"
"""


def test_a_kill_between_decision_and_act_leaves_a_truthful_log(sandbox: Sandbox, tmp_path: Path) -> None:
    fail(tmp_path, "gpu01")
    real = shutil.which("scontrol", path=sandbox.env.get("PATH", os.defpath))
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text(KILLER.format(scontrol=real))
    (folder / "scontrol").chmod(0o755)
    run = site(sandbox, tmp_path, "--drain=apply", slurm_keys={"bin": str(folder)})
    assert run.rc == -signal.SIGKILL
    last = run.events[-2:]
    assert [event["event"] for event in last] == ["drain_decision", "node_intent"]
    assert "State=DRAIN" in last[-1]["command"]
    assert "node_result" not in {event["event"] for event in run.events}
    assert reasons(sandbox) == {}
    wait_for(lambda: not queue(sandbox), "the nodes are given back")


ADMIN = """
def test_zz_admin(state, gpucluster_node):
    if gpucluster_node.name == "gpu04":
        say = ["scontrol", "update", "NodeName=gpu02", "State=FAIL", "Reason=bob: keep out"]
        subprocess.run(say, check=True)
        os.kill(os.getpid(), 9)
"""


def test_what_an_administrator_sets_during_a_trial_outlives_the_run_and_the_next(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    reason = on_trial(sandbox, "gpu02", "gpu04")
    run = site(sandbox, tmp_path, *TRIED, more=ADMIN)
    assert run.rc == -signal.SIGKILL
    theirs = {"gpu02": "bob: keep out"}
    assert run.outcomes["test_site.py::test_fit[gpu04]"] == "passed"  # it was undrained, and tested
    # the shell takes the nodes in order: then it has decided about all
    wait_for(lambda: reasons(sandbox).get("gpu04") == reason["gpu04"], "gpu04 is drained again")
    assert reasons(sandbox) == {**theirs, "gpu04": reason["gpu04"]}
    wait_for(lambda: not queue(sandbox), "the nodes are given back")
    run = site(sandbox, tmp_path, *TRIED)
    assert reasons(sandbox) == theirs, run.out
    assert {event["node"] for event in events(run, "node_intent")} == {"gpu04"}
    assert "+FAIL" in slurm(sandbox, "scontrol", "show", "node", "-o", "gpu02")


def test_two_runs_at_once_share_one_budget(sandbox: Sandbox, tmp_path: Path) -> None:
    runs = []
    with contextlib.ExitStack() as stack:
        for nodes in ("gpu[01-05]", "gpu[06-10]"):
            folder = tmp_path / nodes[4:6]
            folder.mkdir()
            fail(folder, "gpu01", "gpu02", "gpu06", "gpu07")  # most nodes alike would be no one's fault
            path = cluster_file(sandbox, folder, nodes=ALL)
            write_suites(folder, {"test_site.py": SITE})
            argv = command(f"--cluster={path}", f"--nodes={nodes}", "--drain=apply", "--set=drain.max=3", ".")
            process = subprocess.Popen(argv, cwd=folder, env=environment(), stdout=subprocess.PIPE)
            runs.append(stack.enter_context(process))
        outs = [run.communicate(timeout=1200)[0].decode() for run in runs]
    assert len(reasons(sandbox)) == 3, outs
    drained = [
        event["node"]
        for folder in ("01", "06")
        for event in read_events(tmp_path / folder / "reports" / "latest" / "events.jsonl")
        if event.get("result") == "drained"
    ]
    assert sorted(drained) == sorted(reasons(sandbox))
