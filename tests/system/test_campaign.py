"""Campaigns on a sandbox whose nodes are at work for users."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from constants import in_environment
from plugin_helpers import Run, cluster_file, command, run_pytest, write_suites
from process_helpers import OWN_PIDS
from sandbox_helpers import DEADLINE, environment, left_in_queue, queue, slurm, wait_for

from pytest_gpucluster.campaign.model import JUDGED
from pytest_gpucluster.campaign.store import CampaignStore
from pytest_gpucluster.cli.signed_folder import manifest_of
from pytest_gpucluster.report.machine.events import read_log
from pytest_gpucluster.report.machine.run_folder import KEEP_FOLDER, newest_log
from pytest_gpucluster.report.run_model import NO_NODES, WAITED
from pytest_gpucluster.report.run_model import REFUSED as REFUSED_RUN

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

COUNT = """
def test_count(host):
    assert host.run("nvidia-smi -L | wc -l").stdout.strip() == "8"
"""
SLOW = """
import time

def test_count(host):
    assert host.run("nvidia-smi -L | wc -l").stdout.strip() == "8"
    time.sleep(1)
"""
WAITING = """
def test_count(host):
    open("waits", "w").close()
    host.run("sleep 1200")
"""
# in the runs of a campaign and in its own process, which dies at the point that KILL_AT names, once
POINTS = """
import os, signal
from pathlib import Path

import pytest
from pytest_gpucluster.campaign.store import CampaignStore

HERE = Path(__file__).parent


def reached(point):
    with (HERE / "points").open("a") as file:
        file.write(point + chr(10))
    killed = HERE / f"killed-{point}"
    if os.environ.get("KILL_AT") == point and not killed.exists():
        killed.touch()
        os.kill(int((HERE / "campaign.pid").read_text()), signal.SIGKILL)


def wrap(name):
    call = getattr(CampaignStore, name)

    def called(*args, **named):
        result = call(*args, **named)
        if result is not None or name != "claim":
            reached(name)
        return result

    setattr(CampaignStore, name, called)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    if config.option.campaign is not None:
        (HERE / "campaign.pid").write_text(str(os.getpid()))
        for name in ("claim", "started", "release", "results"):
            wrap(name)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if report.when == "teardown":
        reached("result")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    reached("reports")
"""
PYTEST_INI = "[pytest]\naddopts = -p no:cacheprovider\n"
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")
REFUSED = 4
# what every campaign of a test has; its tests of the site take a second
QUICK = ("--history=h.db", "--time=2m")
OFTEN = {"campaign": {"poll": 1}}  # seconds between two readings of the nodes


def arguments(sandbox: Sandbox, folder: Path, name: str, *more: str) -> list[str]:
    # the shipped suites are not what is tested here
    return [f"--cluster={cluster_file(sandbox, folder)}", f"--campaign={name}", *QUICK, *more]


def start(
    sandbox: Sandbox,
    folder: Path,
    name: str,
    *more: str,
    tests: str = COUNT,
    within: tuple[str, ...] = (),
    kill_at: str = "",
) -> subprocess.Popen[str]:
    """Start a campaign in the background, `within` a command that starts it."""
    write_suites(folder, {"test_site.py": tests, "pytest.ini": PYTEST_INI, "conftest.py": POINTS})
    argv = [*within, *command(*arguments(sandbox, folder, name, *more), "test_site.py")]
    with (folder / "out").open("a") as out:
        env = in_environment(environment(KILL_AT=kill_at), **OFTEN)
        return subprocess.Popen(argv, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT, text=True)


def campaign(sandbox: Sandbox, folder: Path, name: str, *more: str, tests: str = COUNT) -> tuple[int, str]:
    """Run a campaign to its end; return its exit status and output."""
    run = run_pytest(
        folder,
        *arguments(sandbox, folder, name, *more),
        files={"test_site.py": tests, "pytest.ini": PYTEST_INI},
        where=("test_site.py",),
        constants=OFTEN,
    )
    return run.rc, run.out + run.err


def report(folder: Path, name: str, *more: str) -> dict[str, Any]:
    status = ("campaign", "status", name, "--history=h.db", "--json", *more)
    argv = (sys.executable, "-m", "pytest_gpucluster", *status)
    done = subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def verdicts(folder: Path, name: str) -> Counter[str]:
    """Return how often each node was judged."""
    with contextlib.closing(CampaignStore(folder / "h.db")) as store:
        (cluster,) = {cluster for cluster, known in store.names() if known == name}
        made = store.campaign(cluster, name)
        assert made is not None
        assert store.leases(cluster) == {}
        return Counter(it.node for it in store.results(made) if it.node and it.outcome in JUDGED)


def load(sandbox: Sandbox, jobs: int, seconds: float) -> None:
    """Submit jobs of users that fill the nodes, one node each."""
    argv = ("sbatch", f"--array=1-{jobs}", "-N1", "--exclusive", "-o", "/dev/null", "-J", "user", "-t", "1")
    slurm(sandbox, *argv, f"--wrap=sleep {seconds}")


@pytest.mark.essential
def test_a_full_cluster_is_tested_as_its_nodes_come_free(sandbox: Sandbox, tmp_path: Path) -> None:
    load(sandbox, 8, 3)
    wait_for(lambda: sum("RUNNING" in line for line in queue(sandbox)) == len(NODES), "the nodes are full")
    sandbox.fault("gpu_missing", "gpu02", gpu=1)  # while it runs a job
    rc, out = campaign(sandbox, tmp_path, "busy", "--max-nodes-at-once=2")
    assert rc == 1, out
    states = {row["node"]: row["state"] for row in report(tmp_path, "busy")["nodes"]}
    assert states == {**dict.fromkeys(NODES, "fit"), "gpu02": "failed"}, out
    assert "REJECTED: 4 nodes: 1 failed, 3 fit" in out
    assert left_in_queue(sandbox) == []
    sandbox.heal("gpu02")
    rc, out = campaign(sandbox, tmp_path, "busy")  # the same command again
    assert rc == 0, out
    assert verdicts(tmp_path, "busy") == {**dict.fromkeys(NODES, 1), "gpu02": 2}
    found = report(tmp_path, "busy", "--html=x.html", "--metrics=x.prom")
    assert found["verdict"] == "ACCEPTED"
    assert all(len(group["sha256"]) == 64 for group in found["groups"] if group["run"])
    assert (
        'gpucluster_campaign_nodes{campaign="busy",cluster="tiny",state="fit"} 4.0' in (tmp_path / "x.prom").read_text()
    )
    assert "gpu02" in (tmp_path / "x.html").read_text()
    with contextlib.closing(CampaignStore(tmp_path / "h.db")) as store:
        _, proved = manifest_of(tmp_path / "reports" / "campaign-busy", store)
    assert proved.verdict == "ACCEPTED, 4 of 4 nodes fit, judged by alone, SIMULATED hardware"


def test_ctrl_c_releases_the_nodes_and_the_same_command_continues(sandbox: Sandbox, tmp_path: Path) -> None:
    with start(sandbox, tmp_path, "stopped", "--max-nodes-at-once=2", tests=WAITING) as process:
        wait_for((tmp_path / "waits").exists, "a group runs")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 2, (tmp_path / "out").read_text()
    assert left_in_queue(sandbox) == []
    rc, out = campaign(sandbox, tmp_path, "stopped")
    assert rc == 0, out
    assert verdicts(tmp_path, "stopped") == dict.fromkeys(NODES, 1)


def test_outside_of_its_window_a_campaign_starts_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    begin = datetime.now().astimezone() + timedelta(hours=12)
    window = f"--campaign-window={begin:%H:%M}-{begin + timedelta(hours=1):%H:%M}"
    with start(sandbox, tmp_path, "night", window) as process:
        said = f"outside of the window {window.partition('=')[2]}: nothing starts before {begin:%H:%M}"
        wait_for(lambda: said in (tmp_path / "out").read_text(), "the campaign has begun")
        points = tmp_path / "points"
        wait_for(lambda: points.read_text().count("results") > 12, "it has gone round several times")
        assert left_in_queue(sandbox) == []
        assert report(tmp_path, "night")["groups"] == []
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 2, (tmp_path / "out").read_text()
    assert (tmp_path / "out").read_text().count(said) == 1


@pytest.mark.parametrize("points", [("claim", "result"), ("started", "release"), ("reports",)])
def test_killed_at_any_point_it_goes_on_and_tests_no_node_twice(
    sandbox: Sandbox, tmp_path: Path, points: tuple[str, ...]
) -> None:
    for point in (*points, ""):
        words = ("--nodes=gpu[01-02]", "--max-nodes-at-once=1")
        with start(sandbox, tmp_path, "killed", *words, kill_at=point) as process:
            status = process.wait(DEADLINE)
        assert status == (-signal.SIGKILL if point else 0), (point, (tmp_path / "out").read_text())
    assert verdicts(tmp_path, "killed") == {"gpu01": 1, "gpu02": 1}, (tmp_path / "out").read_text()
    assert left_in_queue(sandbox) == []


# its processes are in another PID namespace: neither sees whether the other's run, as on two login nodes


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
def test_two_processes_of_one_campaign_on_two_login_nodes_share_its_nodes(sandbox: Sandbox, tmp_path: Path) -> None:
    options = ("both", "--max-nodes-at-once=2")
    with (
        start(sandbox, tmp_path, *options, tests=SLOW) as one,
        start(sandbox, tmp_path, *options, tests=SLOW, within=OWN_PIDS) as other,  # as on another login node
    ):
        held: list[int] = []

        def ended() -> bool:
            held.append(sum(line.endswith(("RUNNING", "PENDING")) for line in queue(sandbox)))
            return one.poll() is not None and other.poll() is not None

        wait_for(ended, "both have ended")
        assert (one.wait(), other.wait()) == (0, 0), (tmp_path / "out").read_text()
    assert 1 <= max(held) <= 2
    assert verdicts(tmp_path, "both") == dict.fromkeys(NODES, 1)


def test_only_nodes_that_were_not_tested_for_a_time_are_tested(sandbox: Sandbox, tmp_path: Path) -> None:
    files = {"test_site.py": COUNT, "pytest.ini": PYTEST_INI}
    file = f"--cluster={cluster_file(sandbox, tmp_path)}"

    def run(*words: str) -> Run:
        where = ("test_site.py",)
        done = run_pytest(tmp_path, file, "--history=h.db", *words, files=files, where=where)
        assert done.rc == 0, done.out
        return done

    run("--nodes=gpu[01-02]")
    due = run("--untested-for=1h")
    assert set(due.outcomes) == {f"test_site.py::test_count[gpu0{number}]" for number in (3, 4)}
    assert "nothing to do: every selected node has a good verdict" in run("--untested-for=1h").out
    rc, out = campaign(sandbox, tmp_path, "old", "--untested-for=1h")
    assert rc == 0
    assert "nothing to do" in out


@pytest.mark.parametrize(
    ("more", "message"), [(("--junitxml=x.xml",), "a campaign has many runs"), (("--campaign=a/b",), "invalid name")]
)
def test_wrong_words_are_refused_before_anything_starts(
    sandbox: Sandbox, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    rc, out = campaign(sandbox, tmp_path, "wrong", *more)
    assert rc == REFUSED, out
    assert message in out


@pytest.mark.parametrize(
    ("more", "end"),
    [
        (("--nodes=gpu01", "--set=slurm.queue_wait=5s"), WAITED),
        (("--set=slurm.partition=nosuch",), REFUSED_RUN),
        (("--set=slurm.extra_args=[--constraint=nosuch]", "--nodes=gpu02"), NO_NODES),
    ],
)
def test_the_log_of_a_run_of_a_campaign_has_how_it_ended(
    sandbox: Sandbox, tmp_path: Path, more: tuple[str, ...], end: str
) -> None:
    load(sandbox, len(NODES), 60)
    wait_for(lambda: slurm(sandbox, "squeue", "-h", "-t", "R").count("user") == len(NODES), "the nodes are busy")
    write_suites(tmp_path, {"test_site.py": COUNT, "pytest.ini": PYTEST_INI})
    argv = command(f"--cluster={cluster_file(sandbox, tmp_path)}", "--report-dir=group", *more, "test_site.py")
    env = environment(**{KEEP_FOLDER: "1"})
    try:
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    finally:
        slurm(sandbox, "scancel", "--name=user")
        wait_for(lambda: not left_in_queue(sandbox), "the jobs of users have ended")
    assert done.returncode == REFUSED, done.stdout + done.stderr
    found = read_log(newest_log(tmp_path / "group"))
    assert (found.end, found.exit) == (end, REFUSED), done.stdout + done.stderr
