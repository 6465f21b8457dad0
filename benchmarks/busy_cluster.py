"""When jobs of users start on a full cluster, without and with a campaign that tests its nodes meanwhile.

    python benchmarks/busy_cluster.py 16 --jobs 96 --limit 4 [--reframe]

With --reframe the load comes a fourth time, beside ReFrame with as many jobs at once and the same --nice (`make reframe` installs it).
A sandbox gets the same load three times: jobs of one node and some of several, in waves, more than its nodes can hold. The second time a
campaign runs beside it; the third time, without one, shows what differs by chance. The schedules are printed, with the delay of each wave; the load counts only if the campaign has judged every node.
Times are seconds after the first submission. The bound: no job starts later by more than the time limit of one group.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.campaign.store import CampaignStore
from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

TEST = "def test_count(host):\n    assert host.run('nvidia-smi -L | wc -l').stdout.strip() == '8'\n"
WAVES, PAUSE = 4, 10.0  # seconds between two waves
SHORTEST, LONGEST = 5.0, 15.0  # seconds of a job
WIDE = 4  # nodes of a wide job, one in each wave
GROUP_MINUTES = 2
SIDES = Path(__file__).parent / "sides"
REFRAME = Path(__file__).parent.parent / ".cache/reframe/bin/reframe"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@dataclass(frozen=True)
class Job:
    """A job of the load: its wave, its nodes and how long it runs."""

    name: str
    wave: int
    nodes: int
    seconds: float


def make_load(jobs: int, nodes: int, seed: int) -> list[Job]:
    """Return the jobs of a load, the same ones for the same seed."""
    dice = random.Random(seed)
    made = [Job(f"j{number:03d}", number * WAVES // jobs, 1, dice.uniform(SHORTEST, LONGEST)) for number in range(jobs)]
    wide = [Job(f"w{wave}", wave, min(WIDE, nodes), SHORTEST) for wave in range(WAVES)]
    return sorted([*made, *wide], key=lambda job: job.wave)


def run_load(sandbox: Sandbox, load: list[Job], folder: Path) -> dict[str, float]:
    """Submit the load in its waves; return when each job started, in seconds after the first submission."""
    folder.mkdir()
    env = {**os.environ, **sandbox.env}
    begin = time.time()
    for wave in range(WAVES):
        time.sleep(max(0.0, begin + wave * PAUSE - time.time()))
        for job in (job for job in load if job.wave == wave):
            started = shlex.quote(str(folder / job.name))
            argv = ("sbatch", f"-N{job.nodes}", "--exclusive", "-t", "1", "-o", "/dev/null", "-J", job.name)
            wrap = f"--wrap=date +%s.%N >{started}; sleep {job.seconds:.1f}"
            subprocess.run((*argv, wrap), env=env, check=True, capture_output=True)
    while len(list(folder.iterdir())) < len(load):
        time.sleep(0.5)
    while "j0" in (left := _queue(env)) or "w" in left:
        time.sleep(0.5)
    return {path.name: float(path.read_text()) - begin for path in folder.iterdir()}


def _queue(env: dict[str, str]) -> str:
    argv = ("squeue", "-h", "-o", "%j")
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout


def start_campaign(sandbox: Sandbox, folder: Path, limit: int, nice: int) -> subprocess.Popen[bytes]:
    """Start a campaign over all nodes, with a test of a second."""
    (folder / "test_site.py").write_text(TEST)
    options = (f"--cluster={sandbox.cluster_file}", "--campaign=busy", "--history=h.db")
    more = (
        f"--max-nodes-at-once={limit}",
        f"--set=slurm.extra_args=[--nice={nice}]",
        f"--time={GROUP_MINUTES}m",
        "--set=slurm.queue_wait=60s",
        "test_site.py",
    )
    with (folder / "campaign.txt").open("wb") as out:
        return subprocess.Popen((*PYTEST, *options, *more), cwd=folder, stdout=out, stderr=subprocess.STDOUT)


def start_reframe(sandbox: Sandbox, folder: Path, limit: int, nice: int) -> subprocess.Popen[bytes]:
    """Start ReFrame with the same test, one job a node whatever its state."""
    argv = [
        str(REFRAME),
        f"--config-file={SIDES / 'reframe_settings.py'}",
        "--system=sandbox",
        f"--checkpath={SIDES / 'reframe_nodes.py'}",
        "--distribute=all",
        "--exec-policy=async",
        *("-J", "exclusive", "-J", f"nice={nice}"),
        f"--prefix={folder / 'reframe'}",
        f"--report-file={folder / 'reframe.json'}",
        "--run",
    ]
    env = {**os.environ, **sandbox.env, "JOBS": str(limit)}
    with (folder / "reframe.txt").open("wb") as out:
        return subprocess.Popen(argv, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)


def reframe_lines(folder: Path, when: float) -> Iterator[str]:
    """Yield what ReFrame reports: nodes that passed, those before a time, and why others did not."""
    report = json.loads((folder / "reframe.json").read_text())
    cases = [case for run in report["runs"] for case in run["testcases"]]
    passed = [case for case in cases if case["result"] == "pass"]
    during = sum((case["job_completion_time_unix"] or when) < when for case in passed)
    yield f"ReFrame: {len(passed)} of {len(cases)} tests passed, {during} before the last job of the load started"
    whys = Counter(str(case.get("fail_reason")).strip().splitlines()[0] for case in cases if case not in passed)
    yield from (f"ReFrame: {count} failed: {why}" for why, count in whys.items())


def tested_by(folder: Path, when: float) -> int:
    """Return the number of nodes that the campaign had judged at a time."""
    with contextlib.closing(CampaignStore(folder / "h.db")) as store:
        (found,) = [store.campaign(*names) for names in store.names()]
        assert found is not None
        return len({it.node for it in store.results(found) if it.node and it.ended < when})


def rows(load: list[Job], without: dict[str, float], beside: dict[str, float]) -> list[tuple[object, ...]]:
    """Return a row for each wave, and one for each wide job."""
    found: list[tuple[object, ...]] = []
    for wave in range(WAVES):
        names = [job.name for job in load if job.wave == wave and job.nodes == 1]
        found.append((f"wave {wave + 1}, {len(names)} jobs", *_figures(names, without, beside)))
    wide = [job for job in load if job.nodes > 1]
    found += [(f"wave {job.wave + 1}, {job.nodes} nodes", *_figures([job.name], without, beside)) for job in wide]
    return [*found, ("all", *_figures([job.name for job in load], without, beside))]


def _figures(names: list[str], without: dict[str, float], beside: dict[str, float]) -> tuple[float, ...]:
    delays = [beside[name] - without[name] for name in names]
    return (
        *(round(statistics.median(times[name] for name in names), 1) for times in (without, beside)),
        *(round(max(times[name] for name in names), 1) for times in (without, beside)),
        round(statistics.median(delays), 1),
        round(max(delays), 1),
    )


def schedule(title: str, load: list[Job], starts: dict[str, float]) -> None:
    """Print how many jobs started in each ten seconds."""
    last = max(starts.values())
    print(f"{title}: jobs that started in each 10 s")
    for begin in range(0, int(last) + 1, 10):
        count = sum(begin <= starts[job.name] < begin + 10 for job in load)
        print(f"  {begin:4d} s  {count:3d}  {'#' * count}")


def main() -> int:
    """Run the load twice and print both schedules; 1 if a node has no verdict, or the bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int, nargs="?", default=16)
    parser.add_argument("--jobs", type=int, default=96, help="jobs of one node (%(default)s)")
    parser.add_argument("--limit", type=int, default=4, help="--max-nodes-at-once (%(default)s)")
    parser.add_argument("--nice", type=int, default=1000, help="salloc's --nice of the campaign (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reframe", action="store_true", help="also run the load beside ReFrame")
    args = parser.parse_args()
    load = make_load(args.jobs, args.nodes, args.seed)
    with tempfile.TemporaryDirectory(prefix="busy-") as name:
        folder, sandbox = Path(name), Sandbox(Path(name, "s"))
        sandbox.up(nodes=args.nodes)
        try:
            run_load(sandbox, make_load(args.nodes, args.nodes, args.seed), folder / "warm")  # the first jobs are slow
            without = run_load(sandbox, load, folder / "without")
            with start_campaign(sandbox, folder, args.limit, args.nice) as campaign:
                begin = time.time()
                beside = run_load(sandbox, load, folder / "beside")
                loaded = time.monotonic()
                status = campaign.wait()
            after = time.monotonic() - loaded
            lines = (folder / "campaign.txt").read_text().splitlines()
            during = tested_by(folder, begin + max(beside.values()))
            again = run_load(sandbox, load, folder / "again")
            if args.reframe:
                with start_reframe(sandbox, folder, args.limit, args.nice) as other:
                    begin = time.time()
                    rival = run_load(sandbox, load, folder / "rival")
                    other.wait()
                rival_lines = [*reframe_lines(folder, begin + max(rival.values()))]
        finally:
            sandbox.down()
    schedule("without a campaign", load, without)
    schedule("beside a campaign", load, beside)
    schedule("without a campaign, again", load, again)
    heads = ("", "median start", "with campaign", "last start", "with campaign", "median delay", "greatest delay")
    print(tabulate(rows(load, without, beside), heads, tablefmt="github"))
    print("\n".join(lines[-3:]))
    worst = max(beside[job] - without[job] for job in without)
    by_chance = max(again[job] - without[job] for job in without)
    if args.reframe:
        schedule("beside ReFrame", load, rival)
        print(
            tabulate(rows(load, without, rival), [it.replace("campaign", "ReFrame") for it in heads], tablefmt="github")
        )
        print("\n".join(rival_lines))
    print(f"greatest delay of the second load without a campaign: {by_chance:.1f} s")
    print(
        f"campaign: exit {status}; {during} of {args.nodes} nodes were judged before the last job of the load started"
    )
    print(f"campaign: ended {after:.0f} s after the load; bound of a delay: {60 * GROUP_MINUTES} s")
    print(stamp())
    return int(status != 0 or worst > 60 * GROUP_MINUTES)


if __name__ == "__main__":
    sys.exit(main())
