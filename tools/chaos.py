"""Kill runs at random moments and look at what they leave. docs/safety.md says what is promised.

    make chaos                                  300 troubles on a sandbox of 4 nodes, one run each
    .venv/bin/python tools/chaos.py --kills 50 --seed 7 --kinds signal,slurmd

Each run is judged afterwards: `leaked` (an allocation, a step, a process, a temporary file, a node that is out of
service), `lost` (a result that pytest reported and that is not in events.jsonl, an item without an end), `wrong` (a verdict
that blames the wrong node or none, a run that ends green or breaks). Exit status 1 where there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import chaos_kubernetes
import chaos_suites

from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.config.loader import load_cluster
from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.drain import write_reason
from pytest_gpucluster.report.machine.events import events_of
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox import processes
from slurm_sandbox.processes import DaemonProcess

ROOT = Path(__file__).parent.parent
NODES = 4
FAULTY = "gpu03"  # has lost a GPU: whatever happens, it must not pass, and no other node may fail
REPORTS = ("junit.xml", "metrics.prom", "report.html")
TESTS = ("asked", "count", "quick", "responds", "step")

# Each item's end is also written to a file that the plugin does not know of.
WITNESS = """
import json, os
import pytest

@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    folder = os.environ.get("CHAOS_WITNESS")
    if folder and "PYTEST_XDIST_WORKER" not in os.environ and (report.when == "call" or report.outcome != "passed"):
        with open(folder, "a") as file:
            file.write(json.dumps(report.nodeid) + "\\n")


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config):
    folder = os.environ.get("CHAOS_WITNESS")
    if folder and "PYTEST_XDIST_WORKER" not in os.environ:
        open(folder + ".over", "w").close()
"""
SUITE = """
import pytest

from pytest_gpucluster.core.check import Action, Finding, check
from pytest_gpucluster.core.probe import Probe, text_of


@pytest.fixture
def shown(gpucluster_node):
    return gpucluster_node.facts(Probe("shown", "nvidia-smi -L | wc -l", lambda answer: int(text_of(answer))))


@check(
    "chaos.count",
    cause="a GPU fell off the bus",
    hint="reseat it",
    action=Action.DRAIN,
    never_healthy="the simulated tools of a healthy node list all GPUs",
)
def judge(shown):
    if shown != GPUS:
        yield Finding("GPUs", str(shown), "GPUS")


def test_quick(host):
    assert host.run("true").rc == 0


def test_count(shown, gpucluster_item):
    gpucluster_item.expect(judge(shown))


def test_asked(host, gpucluster_node):
    assert host.check_output("sleep 0.1; echo $SLURMD_NODENAME-" + gpucluster_node.name) == gpucluster_node.name + "-" + gpucluster_node.name


def test_step(gpucluster_srun, gpucluster_node):
    assert gpucluster_srun(["sleep", "0.1"]).ok
"""
RESPONDS = "suites/os/test_os.py::test_responds"  # runs for lost nodes too: only they may fail it
# drained nodes of an earlier run that `helper` has undrained and tested: node -> reason; the first is healthy now
TRIED = {
    node: write_reason(node, ["chaos.count"], Finding("", "1", "2 GPUs"), "20261121T020000-1")
    for node in ("gpu02", FAULTY)
}
SIGNALS = ("KILL", "TERM", "HUP", "STOP+CONT", "STOP")
ROLES = ("pytest", "pytest", "worker", "salloc", "guard", "holder", "srun", "agent")
SURVIVORS = ("salloc", "srun", "agent")
COMMANDS = ("scontrol", "squeue", "scancel", "salloc", "srun")
# The wall clock of all Python of a run, before anything else is imported. Not libfaketime: it breaks time.sleep(),
# which waits on the monotonic clock, also where that is left alone (0.9.10).
CLOCK = """
import os, time
real, jump = time.time, os.environ.get("CHAOS_CLOCK")
def jumping():
    try:
        with open(jump) as file:
            return real() + float(file.read() or 0)
    except (OSError, ValueError):
        return real()
if jump:
    time.time, time.time_ns = jumping, lambda: int(jumping() * 1e9)
"""


@dataclass
class RunOutcome:
    """What came of one run: the trouble, and what is wrong with it."""

    number: int
    kind: str
    what: str
    faults: list[tuple[str, str]] = field(default_factory=list)  # (leaked|lost|wrong, what)
    seconds: float = 0.0
    rc: int | None = None

    def fault(self, kind: str, what: str) -> None:
        self.faults.append((kind, what))


@dataclass
class Running:
    """One pytest under way. `killed`: by SIGKILL; `strict`: nothing may differ."""

    process: subprocess.Popen[str]
    plan: chaos_suites.Plan
    mark: str
    folder: Path
    workers: bool
    began: float
    killed: bool = False
    strict: bool = False
    undisturbed: bool = False  # it ended before it was struck, and all its nodes are healthy
    cleaned: bool = False  # the next run, or `gpucluster clean`, takes away what is left
    struck: str = ""  # the node whose agent or slurmd was hit: that it did not respond is true
    frozen: DaemonProcess | None = (
        None  # a worker that was stopped: as it starts, xdist does not know it and cannot kill it
    )
    output: subprocess.Popen[bytes] | None = None  # copies what the run prints; a frozen worker keeps it open
    at_end: bool = False  # it was stopped while it lived, before its last hook
    uncancelled: bool = False  # scancel hangs: jobs of the diagnostic step end by themselves, after minutes
    site: chaos_kubernetes.Site | None = None
    dead: bool = False  # no process is left to delete objects in Kubernetes
    patience: float = 45.0
    grace: float = 20.0  # seconds for nodes and processes to be back afterwards

    def own(self) -> list[DaemonProcess]:
        """Return its processes: Slurm's commands and tasks have only PATH of the environment of pytest."""
        return [one for one in map(processes.identify, pids_of(self.mark)) if one is not None]

    def victims(self, role: str) -> list[DaemonProcess]:
        return [one for one in self.own() if role_of(one, self.process.pid) == role]


def pids_of(mark: str) -> list[int]:
    """Return the processes with a text in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def role_of(process: DaemonProcess, main: int) -> str:  # a table
    """Return the role of a process in a run; '' for an unknown one."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    name, text = process.command, " ".join(words)
    if process.pid == main:
        return "pytest"
    if name in {"salloc", "srun"}:
        return name
    if "exec 3<&0" in text or (name == "sh" and "--raw=" in text):
        return "guard"
    if "drain_again" in text:
        return "helper"
    if "scontrol show hostnames" in text or words[:1] == ["cat"]:
        return "holder"
    if "gpucluster-agent" in words:
        return "agent"
    if "sys.stdin.readline" in text:
        return "worker"
    return ""


def node_of(process: DaemonProcess) -> str:
    """Return the node that a task of Slurm runs on, '' where it is none."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"SLURMD_NODENAME="):
                return entry.partition(b"=")[2].decode()
    return ""


class Campaign:
    """Runs on one sandbox, each with one trouble."""

    def __init__(self, sandbox: Sandbox, folder: Path, seed: int, kinds: tuple[str, ...], *, gpus: int = 2) -> None:
        self.sandbox, self.folder, self.seed, self.kinds = sandbox, folder, seed, kinds
        self.usual = {False: 3.0, True: 5.0}  # seconds that an undisturbed run takes, without and with workers
        self.outcomes: list[RunOutcome] = []
        suite = folder / "test_chaos_suite.py"
        suite.write_text(SUITE.replace("GPUS", str(gpus)))
        self.plan = chaos_suites.Plan(  # of most kinds
            (str(suite), RESPONDS), sandbox.cluster_file, NODES * len(TESTS), faulty=True
        )

    def _programs(self, folder: Path, plugin: str) -> Path:
        """Write the commands that a run may find hanging, its clock and its plugin; its processes are known by this folder."""
        place = folder / "bin"
        place.mkdir()
        (place / "sitecustomize.py").write_text(CLOCK)
        (place / "chaos_plugin.py").write_text(WITNESS + plugin)
        for name in COMMANDS:
            path = shutil.which(name, path=self.sandbox.env["PATH"])
            assert path, name
            wrapper = place / name
            hangs = folder / "hangs" / name
            wrapper.write_text(f'#!/bin/sh\n[ -e {hangs} ] && exec sleep 1000\nexec {path} "$@"\n')
            wrapper.chmod(0o755)
        return place

    # --- one run

    def once(self, number: int, say: Callable[[str], None]) -> RunOutcome:
        """Run once with a trouble chosen by seed and number, and judge what is left."""
        rng = random.Random(f"{self.seed}-{number}")
        kind = rng.choice(self.kinds)
        if kind == "slurmctld":
            time.sleep(6)  # by then it has saved the end of the run before, which a kill would have it forget
        workers = rng.random() < 0.3 and kind not in {
            "kubernetes",
            *chaos_suites.SUITES,
        }  # with -n Jobs need Slurm or SSH too
        outcome = RunOutcome(number, kind, "")
        folder = self.folder / f"run{number}"
        folder.mkdir()
        options = self._put_on_trial() if kind == "helper" else ()
        with contextlib.ExitStack() as stack:
            site, plan = None, self.plan
            if kind == "kubernetes":
                site = stack.enter_context(chaos_kubernetes.site(folder, rng))
                plan = chaos_suites.Plan(
                    chaos_kubernetes.IDS,
                    site.cluster_file,
                    len(chaos_kubernetes.TESTS),
                    constants=chaos_kubernetes.CONSTANTS,
                )
            elif kind in chaos_suites.SUITES:
                plan = chaos_suites.plan(kind, folder, self.sandbox)
            plan = replace(plan, options=(*plan.options, *options))
            with self._started(folder, workers, plan, *before(kind, rng, folder), site=site) as run:
                try:
                    outcome.what = TROUBLES[kind](self, run, rng)
                    self._wait(run, outcome)
                finally:
                    run.process.kill() if run.process.poll() is None else None
            outcome.rc, outcome.seconds = run.process.returncode, time.monotonic() - run.began
            if plan.ids == self.plan.ids and "it was over" in outcome.what:
                self.usual[workers] = outcome.seconds  # on a busy machine it changes
            try:
                self._judge(run, outcome)
            finally:
                if (folder / "reports").is_mount():
                    subprocess.run(["umount", str(folder / "reports")], check=True)
        self.outcomes.append(outcome)
        say(line_of(outcome))
        if not outcome.faults:
            shutil.rmtree(folder)
        return outcome

    def learn(self) -> None:
        """Take the time of undisturbed runs, and see that they are judged right."""
        for workers in (False, True):
            folder = self.folder / f"undisturbed{workers}"
            folder.mkdir()
            outcome = RunOutcome(0, "none", "undisturbed")
            with self._started(folder, workers, self.plan) as run:
                run.strict = True
                missing = {*ROLES, "pytest"} - ({"worker"} if not workers else set())
                while run.process.poll() is None and missing:
                    missing -= {role_of(one, run.process.pid) for one in run.own()}
                self._wait(run, outcome)
            if missing:
                raise SystemExit(f"processes of a run that the campaign does not see: {', '.join(sorted(missing))}")
            outcome.rc, outcome.seconds = run.process.returncode, time.monotonic() - run.began
            self.usual[workers] = outcome.seconds
            self._judge(run, outcome)
            if outcome.faults:
                raise SystemExit(f"an undisturbed run is judged {outcome.faults}: see {folder}")
            shutil.rmtree(folder)

    @contextlib.contextmanager
    def _started(
        self,
        folder: Path,
        workers: bool,
        plan: chaos_suites.Plan,
        *prefix: str,
        site: chaos_kubernetes.Site | None = None,
    ) -> Any:
        load_cluster(plan.cluster_file)  # a file that is refused would be a run without anything to strike
        programs = self._programs(folder, plan.plugin())
        (folder / "tmp").mkdir()
        (folder / "hangs").mkdir()
        args = [
            f"--cluster={plan.cluster_file}",
            "-n2" if workers else "-n0",
            f"--report-dir={folder / 'reports'}",
            *plan.options,
        ]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        variables = dict(word.split("=", 1) for word in prefix if "=" in word and not word.startswith("-"))
        words = [word for word in prefix if "=" not in word or word.startswith("-")]
        # through cat: a limit on files is not to hit what is printed
        cat = subprocess.Popen(
            ["sh", "-c", 'exec cat > "$0"', str(folder / "out")], stdin=subprocess.PIPE, start_new_session=True
        )
        out = cat.stdin
        assert out is not None
        process = subprocess.Popen(
            # whoever started us in the background may have us ignore signals
            [
                "env",
                "--default-signal=HUP,INT,TERM",
                *words,
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "-p",
                "chaos_plugin",
                *args,
                *plan.ids,
            ],
            cwd=folder,
            env={
                **kept,
                **self.sandbox.env,
                "PATH": f"{programs}:{self.sandbox.env['PATH']}",
                "PYTHONPATH": os.pathsep.join(
                    [str(programs), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
                ),
                "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": str(folder / "tmp"),
                "XDG_STATE_HOME": str(folder / "state"),
                "CHAOS_WITNESS": str(folder / "witness"),
                **variables,
            },
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        out.close()
        run = Running(process, plan, str(programs), folder, workers, time.monotonic(), site=site, output=cat)
        try:
            yield run
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            try:
                cat.wait(5)
            except subprocess.TimeoutExpired:  # what a killed run has left still holds the pipe
                cat.kill()
                cat.wait()

    def _wait(self, run: Running, outcome: RunOutcome) -> None:
        """Wait for its end; an operator loses patience after a while and sends SIGTERM, which has to do."""
        try:
            run.process.wait(run.patience)
            return
        except subprocess.TimeoutExpired:
            outcome.what += "; SIGTERM"
            run.strict = False
            run.process.send_signal(signal.SIGCONT)
            run.process.terminate()
        try:
            run.process.wait(90)
        except subprocess.TimeoutExpired:
            outcome.fault("wrong", "does not end 90 s after SIGTERM")
            run.killed = True

    # --- what is left

    def _judge(self, run: Running, outcome: RunOutcome) -> None:
        if outcome.kind == "helper":
            self._judge_trial(run, outcome)
        for text in self._left(run):
            outcome.fault("leaked", text)
        self._judge_events(run, outcome)

    def _left(self, run: Running) -> list[str]:
        """Return what is left behind once the grace is over, and take it away."""
        if run.frozen is not None:
            run.frozen.send(signal.SIGKILL)
            if run.output is not None:
                run.output.wait(5)
        if run.cleaned:
            self._clean(run)
        deadline = time.monotonic() + run.grace
        while True:
            jobs = self.client("squeue", "-h", "-o", "%i:%j:%T:%r")
            diagnostic = [job for job in jobs or [] if ":gpucluster-diagnostic" in job]
            if run.uncancelled and diagnostic and diagnostic == jobs:
                self.client("scancel", *(job.split(":")[0] for job in diagnostic))
            if jobs and not run.cleaned and all(map(self._was_forgotten, jobs)):
                run.cleaned = True
                self._clean(run)  # as safety.md says of a slurmctld that is killed within seconds after the release
            alive = [f"{p.pid} {role_of(p, run.process.pid) or p.command}" for p in run.own()]
            states = dict(s.split() for s in self.client("sinfo", "-N", "-h", "-p", "batch", "-o", "%N %t") or ["? ?"])
            away = [f"{node} is {state}" for node, state in states.items() if state != "idle"]
            objects = run.site.left(dead=run.dead) if run.site else []
            checkpoints = run.plan.left()
            if checkpoints and run.killed and not (jobs or alive or run.cleaned):
                run.cleaned = True  # a step that was killed too has left it to the operator
                self._clean(run)
            if not (jobs or alive or away or objects or checkpoints) or time.monotonic() > deadline:
                break
            time.sleep(0.15)
        temporary = [str(path) for path in (run.folder / "tmp").iterdir() if not path.name.startswith("pytest-of-")]
        temporary += (
            [str(p) for p in (run.folder / "reports").glob("**/.*")] if (run.folder / "reports").exists() else []
        )
        if jobs:
            self.client("scancel", *(job.split(":")[0] for job in (jobs or [])))
        for process in run.own():
            process.send(signal.SIGKILL)
        if away:
            self._mend()
        found = [f"job {job}" for job in jobs or []]
        found += [*(f"{name} in Kubernetes" for name in objects), *checkpoints]
        return [*found, *(f"process {p}" for p in alive), *(f"file {t}" for t in temporary), *away]

    def _was_forgotten(self, job: str) -> bool:
        """Return True for a job that slurmctld ended, and that it read back as running after it was killed."""
        number = job.partition(":")[0]
        log = (self.sandbox.layout.log / "slurmctld.log").read_text(errors="replace")
        _, ended, later = log.partition(f"_job_complete: JobId={number} done")
        return bool(ended) and re.search(rf"Recovered JobId={number}\b", later) is not None

    def _clean(self, run: Running) -> None:
        """Do as an operator does after a run that was killed whole."""
        done = subprocess.run(
            [*(sys.executable, "-m", "pytest_gpucluster"), "clean", "--yes", f"--cluster={run.plan.cluster_file}"],
            env={**os.environ, **self.sandbox.env, "TMPDIR": str(run.folder / "tmp")},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        (run.folder / "clean").write_text(f"{done.returncode}\n{done.stdout}{done.stderr}")

    def client(self, *argv: str) -> list[str] | None:
        """Run a command of Slurm; None where the controller does not answer."""
        done = subprocess.run(
            argv, env={**os.environ, **self.sandbox.env}, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout.split("\n")[:-1] if done.returncode == 0 else ["? controller-down"]

    def _mend(self) -> None:
        """Put nodes back into service, for the next run."""
        time.sleep(2)
        for node in self.sandbox.nodes:
            state = (self.client("sinfo", "-h", "-n", node, "-p", "batch", "-o", "%t") or [""])[0]
            if state.startswith(("drain", "drng")):
                self.client("scontrol", "update", f"NodeName={node}", "State=UNDRAIN")
            elif state.startswith("down"):
                self.client("scontrol", "update", f"NodeName={node}", "State=RESUME")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and set(
            self.client("sinfo", "-h", "-N", "-p", "batch", "-o", "%t") or []
        ) != {"idle"}:
            time.sleep(0.5)

    # --- trials

    def _put_on_trial(self) -> tuple[str, ...]:
        """Drain nodes as an earlier run has, inside of a reservation of all nodes; return pytest's options."""
        for node, reason in TRIED.items():
            self.client("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
        self.client(
            "scontrol", "create", "reservation", "ReservationName=chaos", f"Nodes={','.join(self.sandbox.nodes)}",
            "Users=root", "Flags=maint,ignore_jobs", "StartTime=now", "Duration=60",
        )  # fmt: skip
        return "--resume-passing", "--set=slurm.reservation=chaos"

    def _judge_trial(self, run: Running, outcome: RunOutcome) -> None:
        """See that the faulty node is drained as before, and the healthy one too, or resumed; then undo it all."""
        deadline = time.monotonic() + run.grace
        healthy, faulty = TRIED
        allowed = {healthy: ("", TRIED[healthy]), faulty: (TRIED[faulty],)}
        while True:
            shown = parse_nodes("\n".join(self.client("scontrol", "show", "node", "-o") or []))
            found = {node: shown[node].reason if "DRAIN" in shown[node].flags else "" for node in TRIED}
            wrong = [node for node in TRIED if found[node] not in allowed[node]]
            if not (wrong or self.client("squeue", "-h", "-o", "%i")) or time.monotonic() > deadline:
                break
            time.sleep(0.3)
        for node in wrong:
            outcome.fault("leaked", f"{node} was on trial and has the reason {found[node]!r} now")
        log = "".join(read_lines(run.folder / "reports" / "latest" / "events.jsonl"))
        if not run.killed and not found[healthy] and '"result": "resumed"' not in log:
            outcome.fault("wrong", f"{healthy} is in service, and the log does not say that it was resumed")
        for job in self.client("squeue", "-h", "-o", "%i") or []:
            self.client("scancel", job)  # _left will not see it any more
            outcome.fault("leaked", f"job {job}")
        while (self.client("scontrol", "delete", "ReservationName=chaos") or []) and time.monotonic() < deadline + 30:
            time.sleep(0.3)
        for node in (node for node in TRIED if found[node]):
            self.client("scontrol", "update", f"NodeName={node}", "State=UNDRAIN")

    # --- what is reported

    def _judge_events(self, run: Running, outcome: RunOutcome) -> None:
        lines = read_lines(run.folder / "reports" / "latest" / "events.jsonl")
        broken: list[int] = []
        events = [*events_of(lines, broken)]
        for number in broken:
            if number < len(lines):
                outcome.fault("lost", f"events.jsonl: line {number} cannot be read: {lines[number - 1][:80]!r}")
        results = [event for event in events if event["event"] == "result"]
        full = "full" in outcome.kind
        for event in results:
            if problem := wrong_verdict(event, run.struck):
                outcome.fault("wrong", problem)
        known = [event["nodeid"] for event in results]
        for item, count in Counter(known).items():
            if count > 1:
                outcome.fault("wrong", f"{item} has {count} results")
        witnessed = {json.loads(line) for line in read_lines(run.folder / "witness") if line.endswith('"')}
        if not full:
            for item in sorted(witnessed - set(known)):
                outcome.fault("lost", f"{item} has ended and is not in events.jsonl")
        self._judge_end(run, outcome, events, results)

    def _judge_end(self, run: Running, outcome: RunOutcome, events: list[Any], results: list[Any]) -> None:
        out = (run.folder / "out").read_text(errors="replace")
        if run.killed:
            return
        for word in ("INTERNALERROR", "Traceback (most recent"):
            if word in out and events:  # before that it is Python or pytest that a signal has met
                around = out[max(0, out.index(word) - 300) :][:2000]
                outcome.fault("wrong", f"{word} in what it printed: {around}")
        if run.undisturbed and outcome.rc != 0:
            outcome.fault("wrong", f"undisturbed, exit {outcome.rc}")
        if outcome.rc == 0 and run.plan.faulty:
            outcome.fault("wrong", "ends green")
        if outcome.rc is not None and outcome.rc < 0 and events:  # before it holds anything a signal may just end it
            outcome.fault("wrong", f"ended by signal {-outcome.rc}")
        if outcome.kind == "full":
            return
        finish = [event for event in events if event["event"] == "finish"]
        begun = any(event["event"] == "start" for event in events)
        exits = [event["exit"] for event in finish]  # a signal or a full disk after the first makes another
        if begun and (not exits or len(exits) > 2 or exits[-1] != outcome.rc):
            if outcome.rc != 4 or len(finish) > 1:  # no nodes: pytest.exit
                outcome.fault("lost", f"finish events have {exits}, exit {outcome.rc}")
        self._judge_reports(run, outcome, out, begun=begun)
        ends = [event for event in results if ".py::" in event["nodeid"]]  # the others are no items
        items = run.plan.items
        if outcome.rc == 1 and len(ends) != items and "worker died as it started" not in out:
            outcome.fault("lost", f"{len(ends)} of {items} items have an end")
        if run.strict and not (
            outcome.rc == 1 and sum(e["outcome"] == "passed" for e in results) == NODES * len(TESTS) - 1
        ):
            bad = [
                (e["nodeid"].split("::")[1], e["outcome"], e.get("message", "")[:100])
                for e in results
                if e["outcome"] != "passed"
            ]
            outcome.fault("wrong", f"exit {outcome.rc}, other verdicts than undisturbed: {bad}")

    def _judge_reports(self, run: Running, outcome: RunOutcome, out: str, *, begun: bool) -> None:
        """Each report is there, or an ERROR names it; a run that was stopped at its end ended with 2."""
        if run.at_end and outcome.rc != 2:
            outcome.fault("wrong", f"was stopped at its end, exit {outcome.rc}")
        errors = "".join(line for line in out.splitlines() if line.startswith("ERROR"))
        reports = run.folder / "reports" / "latest"
        for name in REPORTS if begun and outcome.rc in {1, 2} and "collected " in out else ():
            if not (reports / name).exists() and name not in errors:
                outcome.fault("lost", f"{name} is missing, and no line says so")
        with contextlib.suppress(OSError):
            page = (reports / "metrics.prom").read_text()
            if outcome.rc is not None and not re.search(
                rf"^gpucluster_run_exit_status\S* {outcome.rc}(\.0)?$", page, re.MULTILINE
            ):
                outcome.fault("wrong", f"metrics.prom has another exit status than {outcome.rc}")


def wrong_verdict(event: dict[str, Any], struck: str = "") -> str:
    """Return what is wrong with one result, '' where it is right: healthy passes, faulty fails, or it says why not.

    `struck`: a node that may fail to respond.
    """
    outcome, item = event["outcome"], event["nodeid"].rpartition("::")[2]
    if struck and outcome == "failed" and item == f"test_responds[{struck}]":
        return ""
    faulty = item == f"test_count[{FAULTY}]"
    if outcome == ("failed" if faulty else "passed"):
        return ""
    if outcome in {"error", "not tested", "not checked"}:
        return "" if event.get("message") else f"{item}: {outcome} without a reason"
    return f"{item}: {outcome}: {str(event.get('message', ''))[:200]}"


def read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


# --- troubles


def mount_small(folder: Path, kib: int) -> bool:
    """Make a file system of so many KiB there; only root may."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={kib}k", "tmpfs"]
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    return done.returncode == 0


def before(kind: str, rng: random.Random, folder: Path) -> list[str]:
    """Return words that go before pytest's command line."""
    if kind == "full" and rng.random() < 0.5 and mount_small(folder / "reports", rng.choice([4, 8, 12, 20])):
        return []
    if kind == "full":
        # less than 4, and Python itself finds no folder for temporary files: pytest ends before it has loaded us
        return ["CHAOS_WITNESS=", "prlimit", f"--fsize={rng.choice([4, 100, 500, 2000, 4000, 8000, 12000])}"]
    if kind == "clock":
        (folder / "clock").write_text("0")
        return [f"CHAOS_CLOCK={folder / 'clock'}"]
    return []


def moment(campaign: Campaign, run: Running, rng: random.Random) -> float:
    """Wait for a random moment of the run; return it."""
    at = rng.uniform(0.1, campaign.usual[run.workers] * 1.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(max(0.0, run.began + at - time.monotonic()))
    return at


def signalled(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Send a signal to one process of the run."""
    role, name = rng.choice(ROLES), rng.choice(SIGNALS)
    if role == "worker" and not run.workers:
        role = "srun"
    at = moment(campaign, run, rng)
    found: list[DaemonProcess] = []
    while run.process.poll() is None and not (found := run.victims(role)):
        time.sleep(0.02)
    if not found:
        return f"{name} {role} at {at:.1f}: it was over"
    victim = rng.choice(found)
    run.struck = node_of(victim) if role == "agent" else ""
    first, _, then = name.partition("+")
    victim.send(signal.Signals[f"SIG{first}"])
    if role == "pytest" and first == "KILL":
        run.killed = True
    if name == "STOP":
        run.patience = 12.0
        run.frozen = victim if role == "worker" else None
        if role == "pytest":  # the operator ends it for good
            time.sleep(1)
            run.process.kill()
            run.killed = True
    if then:
        time.sleep(rng.uniform(0.2, 2.0))
        victim.send(signal.SIGCONT)
        run.strict = True
    return f"{name} {role} at {at:.1f}{' -n2' if run.workers else ''}"


def holder(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Kill pytest, its workers and all shells at once: what Slurm's own commands do then is left to them."""
    while run.process.poll() is None and not run.victims("guard"):
        time.sleep(0.02)
    time.sleep(rng.uniform(0.0, campaign.usual[run.workers] / 2))
    at = time.monotonic() - run.began
    if run.process.poll() is not None:
        return f"KILL of all at {at:.1f}: it was over"
    return kill_all(run) + " -n2" * run.workers


def kill_all(run: Running) -> str:
    """Kill all processes of a run but Slurm's own commands and the agents; `gpucluster clean` follows."""
    at = time.monotonic() - run.began
    run.killed = run.cleaned = True
    killed: set[DaemonProcess] = set()
    while victims := {one for one in run.own() if one.alive and role_of(one, run.process.pid) not in SURVIVORS}:
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees the end of another
            for victim in victims:
                victim.send(number)
        killed |= victims
    return f"KILL of all {len(killed)} but {', '.join(SURVIVORS)} at {at:.1f}"


def stopped(run: Running, rng: random.Random, times: int) -> str:
    """Stop pytest several times within a moment: Ctrl-C as a terminal does, or a signal to pytest alone."""
    sent = []
    for _ in range(times):
        if run.process.poll() is not None:
            break
        name = rng.choice(("INT", "INT", "TERM", "HUP"))
        send = os.killpg if name == "INT" else os.kill
        with contextlib.suppress(ProcessLookupError):
            before_its_last = not (run.folder / "witness.over").exists()
            send(run.process.pid, signal.Signals[f"SIG{name}"])
            run.at_end = run.at_end or (
                before_its_last and read_lines(run.folder / "reports" / "latest" / "events.jsonl") != []
            )
            sent.append(name)
        time.sleep(rng.choice([0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5)]))
    return "+".join(sent) or "it was over"


def doubled(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Stop pytest two or three times, one soon after the other, at a random moment."""
    at = moment(campaign, run, rng)
    what = stopped(run, rng, rng.choice([2, 3]))
    run.at_end = False  # before it has its handlers a signal may just end it: _judge_end looks at that
    return f"{what} at {at:.1f}{' -n2' if run.workers else ''}"


def at_the_end(_campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Stop pytest one to three times, 0 to 1 s after the last verdict."""
    while run.process.poll() is None and len(read_lines(run.folder / "witness")) < NODES * len(TESTS):
        time.sleep(0.005)
    after = rng.choice([0.0, rng.uniform(0, 0.2), rng.uniform(0, 1)])
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(after)
    what = stopped(run, rng, rng.choice([1, 2, 3]))
    return f"{what} {after:.2f} s after the last verdict{' -n2' if run.workers else ''}"


def slurmd(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Kill a slurmd, and start it again, as systemd would."""
    at, node = moment(campaign, run, rng), rng.choice(campaign.sandbox.nodes)
    daemons = campaign.sandbox._daemons(campaign.sandbox._running_state())
    process = daemons.find(f"slurmd-{node}")
    assert process is not None, node
    run.struck = node
    processes.kill([process], patience=5)
    time.sleep(rng.uniform(0.1, 2.0))
    daemons.start_slurmd(node)
    daemons.wait_for([f"slurmd-{node}"])
    note_daemons(campaign.sandbox)
    run.grace = 40
    return f"slurmd of {node} restarted at {at:.1f}"


def slurmctld(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Stop or kill slurmctld, and start it again on the state it has left."""
    at, number = moment(campaign, run, rng), rng.choice([signal.SIGKILL, signal.SIGTERM])
    if run.process.poll() is not None:
        number = signal.SIGTERM  # killed now it would forget that the nodes were given back: see docs/safety.md
    sandbox = campaign.sandbox
    daemons = sandbox._daemons(sandbox._running_state())
    process = daemons.find("slurmctld")
    assert process is not None
    process.send(number)
    deadline = time.monotonic() + 30
    while process.alive and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(rng.uniform(0.1, 6.0))
    where = daemons._namespaces.on_login() if daemons._namespaces else []
    daemons._run([str(daemons._sbin / "slurmctld"), "-f", str(sandbox.layout.conf)], "slurmctld", where)
    while (now := daemons.find("slurmctld")) is None or not now.alive:
        time.sleep(0.05)
    note_daemons(sandbox)
    run.grace = 60
    return f"slurmctld restarted after {number.name} at {at:.1f}"


def note_daemons(sandbox: Sandbox) -> None:
    """Record daemons that were started again in the sandbox."""
    with sandbox._locked():
        state = sandbox._state()
        assert state is not None
        sandbox._with_current_daemons(state).save(sandbox.layout.state)


def full(_campaign: Campaign, _run: Running, _rng: random.Random) -> str:
    """No file may grow beyond a limit, as on a full disk; before() has set it."""
    return "files cannot grow"


def helper(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Kill or stop the shell that drains nodes again which a run has undrained to test them; then maybe the run."""
    name, then = rng.choice(("KILL", "KILL", "STOP", "STOP+CONT", "TERM")), rng.random() < 0.3
    run.patience = 110.0  # the run waits 60 s and 30 s for a shell that is stopped
    at = moment(campaign, run, rng)
    found: list[DaemonProcess] = []
    while run.process.poll() is None and not (found := run.victims("helper")):
        time.sleep(0.02)
    if not found:
        return f"{name} helper at {at:.1f}: it was over"
    first, _, go_on = name.partition("+")
    found[0].send(signal.Signals[f"SIG{first}"])
    if go_on:
        time.sleep(rng.uniform(0.2, 2.0))
        found[0].send(signal.SIGCONT)
    if then and name == "KILL":  # both at once is what cannot be promised: docs/safety.md
        time.sleep(3)
        run.process.kill()
        run.killed = True
    return f"{name} helper at {at:.1f}{', then the run' if run.killed else ''}{' -n2' if run.workers else ''}"


def clock(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Let the wall clock of the run jump."""
    at, jump = moment(campaign, run, rng), rng.choice([-86400, -3600, -30, 30, 3600, 86400])
    (run.folder / "clock").write_text(str(jump))
    run.strict = True
    return f"clock jumps by {jump} s at {at:.1f}"


def hang(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """From a moment on a command of Slurm hangs for the run."""
    name = rng.choice(COMMANDS)
    at = moment(campaign, run, rng)
    (run.folder / "hangs" / name).touch()
    run.patience = 15.0
    run.uncancelled = name == "scancel"
    return f"{name} hangs from {at:.1f}"


def network(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """Cut a node off the network, for good as far as the run knows; needs nodes with networks of their own."""
    at, node = moment(campaign, run, rng), rng.choice([n for n in campaign.sandbox.nodes if n != FAULTY])
    own = campaign.sandbox._namespaces(campaign.sandbox._running_state())
    assert own is not None, "--nodes=namespaced"
    link = [*own.on_node(node), "ip", "link", "set", "eth0"]
    subprocess.run([*link, "down"], check=True)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(100)
    finally:
        subprocess.run([*link, "up"], check=True)
    run.grace = 60
    return f"{node} cut off at {at:.1f}"


def kubernetes(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """End a run with Jobs while they are created, waited for or deleted; its API server is slow and fails."""
    assert run.site is not None
    name = rng.choice(("KILL", "KILL", "TERM", "TERM", "KILL guard", "KILL of all", "no signal"))
    run.patience, run.grace = 90.0, chaos_kubernetes.GRACE
    run.site.wait_for_jobs(lambda: run.process.poll() is not None)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(run.site.at)
    at = time.monotonic() - run.began
    what = f"{name} at {at:.1f}; {run.site.what}"
    if run.process.poll() is not None:
        return f"{what}: it was over"
    if name == "KILL guard":
        for shell in run.victims("guard"):
            shell.send(signal.SIGKILL)
    elif name == "KILL of all":
        victims = [one for one in run.own() if one.alive]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees the end of another
            for victim in victims:
                victim.send(number)
        run.killed = run.dead = True
    elif name != "no signal":
        run.process.send_signal(signal.Signals[f"SIG{name}"])
        run.killed = name == "KILL"
    return what


def suite(campaign: Campaign, run: Running, rng: random.Random) -> str:
    """End a run of a suite once its checkpoint is begun, or its jobs are submitted."""
    name = rng.choice(("KILL", "KILL", "TERM", "TERM", "INT", "KILL srun", "KILL of all"))
    run.patience, run.grace = run.plan.patience, 60.0

    def begun() -> bool:
        return bool(run.plan.left() if run.plan.shared else campaign.client("squeue", "-h", "-o", "%i"))

    while run.process.poll() is None and not begun():
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(rng.choice((rng.uniform(0, 0.3), rng.uniform(0, 3), rng.uniform(0, 12))))
    at = time.monotonic() - run.began
    run.undisturbed = run.process.poll() is not None
    if run.undisturbed:
        return f"{name} at {at:.1f}: it was over"
    if name == "KILL of all":
        return kill_all(run)
    if name == "KILL srun":
        for victim in run.victims("srun"):
            victim.send(signal.SIGKILL)
    else:
        run.process.send_signal(signal.Signals[f"SIG{name}"])
        run.killed = name == "KILL"
    return f"{name} at {at:.1f}"


TROUBLES: dict[str, Callable[[Campaign, Running, random.Random], str]] = {
    "signal": signalled,
    "holder": holder,
    "double": doubled,
    "end": at_the_end,
    "slurmd": slurmd,
    "slurmctld": slurmctld,
    "full": full,
    "clock": clock,
    "hang": hang,
    "helper": helper,
    "network": network,
    "kubernetes": kubernetes,
    "training": suite,
    "jobs": suite,
}
ONCE = ("holder", "slurmd", "slurmctld", "full", "full", "clock", "hang", "helper", "kubernetes", "training", "jobs")
USUAL = ("signal",) * 13 + ("double", "double", "end", "end", *ONCE)


def line_of(outcome: RunOutcome) -> str:
    end = "; ".join(f"{kind.upper()}: {what}" for kind, what in outcome.faults) or "well"
    return f"{outcome.number:4} {outcome.kind:9} {outcome.what} (exit {outcome.rc}, {outcome.seconds:.0f} s): {end}"


def figure(outcomes: list[RunOutcome], seed: int) -> str:
    """Return the figure of a campaign."""
    kinds = Counter(one.kind for one in outcomes)
    count = {
        kind: sum(any(k == kind for k, _ in one.faults) for one in outcomes) for kind in ("leaked", "lost", "wrong")
    }
    return (
        f"chaos: {len(outcomes)} runs, seed {seed} ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}): "
        + ", ".join(f"{kind} {number}" for kind, number in count.items())
    )


@contextlib.contextmanager
def campaign_on_sandbox(seed: int, kinds: tuple[str, ...], kind: str = "plain") -> Any:
    """Open a sandbox of its own with one faulty node."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    sandbox = Sandbox(folder / "s")
    kept = False
    try:
        sandbox.up(nodes=NODES, gpus_per_node=2, kind=kind, share=(folder,) if kind != "plain" else ())
        sandbox.fault("gpu_missing", FAULTY, gpu=1)
        campaign = Campaign(sandbox, folder, seed, kinds)
        yield campaign
        kept = any(one.faults for one in campaign.outcomes)
    finally:
        sandbox.down()
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"what the runs with faults have left: {folder}")


def main() -> int:
    """Run a campaign and print its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="runs, one trouble each (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same troubles (%(default)s)")
    parser.add_argument("--first", type=int, default=1, help="number of the first run (%(default)s)")
    parser.add_argument(
        "--kinds", help=f"of {', '.join(TROUBLES)}, separated by commas (all but network, mostly signal)"
    )
    parser.add_argument(
        "--nodes", choices=("plain", "namespaced"), default="plain", help="what network needs: namespaced"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has started us in the background
    kinds = tuple(options.kinds.split(",")) if options.kinds else USUAL
    with campaign_on_sandbox(options.seed, kinds, options.nodes) as campaign:
        campaign.learn()
        try:
            for number in range(options.first, options.first + options.kills):
                campaign.once(number, lambda line: print(line, flush=True))
        except KeyboardInterrupt:
            print("stopped")
        print(figure(campaign.outcomes, options.seed))
        return int(any(one.faults for one in campaign.outcomes))


if __name__ == "__main__":
    sys.exit(main())
