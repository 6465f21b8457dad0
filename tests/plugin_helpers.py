"""Run the plugin as operators do: pytest in a process of its own, in a folder of its own, on tiny suites."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest
from constants import in_environment
from forked import DEFAULT_SIGNALS
from junitparser import JUnitXml, TestCase
from sandbox_helpers import DEADLINE, environment, slurm, wait_for

from pytest_gpucluster.cluster.plan import Plan, Problem
from pytest_gpucluster.config.models import Cluster, Group, Profile
from pytest_gpucluster.plugin.controller import Controller
from pytest_gpucluster.report.machine.events import read_events
from slurm_sandbox.processes import identify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.sandbox import Sandbox


TINY = """
def test_named(gpucluster_node):
    assert gpucluster_node.name


def test_release(host):
    assert host.file("/etc/os-release").exists


def test_whole(gpucluster):
    assert gpucluster.cluster.name
"""


# One item of each end: passed, failed by a verdict, by an assert, broken, not checked, not applicable.
ENDS = """
import pytest

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.probe import Probe, text_of


@check(
    "ends.count",
    cause="a GPU fell off the bus",
    hint="reseat it",
    action=Action.DRAIN,
    never_healthy="made for a test",
)
def judge(shown, expected):
    yield Metric("shown", float(shown), "GPUs")
    if int(shown) != expected:
        yield Finding(Part("gpu"), Quantity(int(shown)), Quantity(expected), code="count")


@pytest.fixture
def shown(gpucluster_node):
    return gpucluster_node.facts(Probe("shown", "nvidia-smi -L | wc -l", lambda answer: text_of(answer).strip()))


@pytest.fixture
def absent(gpucluster_node):
    return gpucluster_node.facts(Probe("absent", "no-such-tool", text_of))


def test_good(shown, gpucluster_item):
    gpucluster_item.expect(judge(shown, 8))


def test_count(shown, gpucluster_item):
    gpucluster_item.expect(judge(shown, 9))


def test_assert(host, gpucluster_item):
    gpucluster_item.measure("latency", 4.5, "us", device="mlx5_0")
    assert host.file("/etc/os-release").size == 1


def test_broken(gpucluster_node):
    raise OSError("not of ours")


def test_no_answer(gpucluster_srun):
    gpucluster_srun(["true"], nodes=("gpu01",), environment="no-such-environment")


def test_absent(absent, gpucluster_item):
    pytest.fail("never reached")


def test_fabric(gpucluster_node):
    raise NotApplicable("there is none")


@pytest.fixture
def broken(gpucluster_node):
    raise RuntimeError("a fixture breaks")


def test_in_setup(broken):
    pass
"""


@dataclass(frozen=True)
class Run:
    """What one pytest left: exit code, both streams, and its reports."""

    rc: int
    out: str
    err: str
    folder: Path

    @property
    def errors(self) -> list[str]:
        """The lines that say ERROR: to the operator."""
        return [line for line in (self.out + self.err).splitlines() if line.startswith("ERROR:")]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of the newest run, [] if it left none."""
        return list(read_events(self.reports / "events.jsonl")) if self.reports.is_dir() else []

    @property
    def reports(self) -> Path:
        """The folder of the newest run's reports; it does not exist if no run left one."""
        logs = (self.folder / "reports").glob("20*/events.jsonl")
        newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
        return newest.parent if newest else self.folder / "reports" / "none"

    def event(self, kind: str) -> dict[str, Any]:
        """Return the only event of a kind."""
        (found,) = (event for event in self.events if event["event"] == kind)
        return found

    @property
    def outcomes(self) -> dict[str, str]:
        """Item -> outcome; an item that appears twice breaks it."""
        results = [event for event in self.events if event["event"] == "result"]
        found = {event["nodeid"]: event["outcome"] for event in results}
        assert len(found) == len(results), "an item has two results"
        return found

    @property
    def cases(self) -> dict[str, TestCase]:
        """'classname name' -> testcase of junit.xml."""
        return cases(self.reports / "junit.xml")


def cases(path: Path) -> dict[str, TestCase]:
    """Read a JUnit file: 'classname name' -> testcase."""
    found: dict[str, TestCase] = {}
    for suite in JUnitXml.fromfile(str(path)):
        for case in suite:
            assert case.classname, f"a testcase has no class: {case.name}"
            assert case.name, "a testcase has no name"
            key = f"{case.classname} {case.name}"
            assert key not in found, f"two testcases are called {key}"
            found[key] = case
    return found


def completion_request(line: str, words: Path) -> dict[str, str]:
    """Return the variables by which a shell requests the words for the end of a line, which go to the file `words`."""
    return {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(words),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }


def write_bytecode(site: Path) -> None:
    """Compile an installed package and its suites as the first run on a cluster does; runs of tests write none."""
    words = ("--collect-only", "-qq", "-p", "no:cacheprovider", "--cluster=local")
    env = environment(PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="")
    argv = command(*words, "--pyargs", "pytest_gpucluster.suites")
    subprocess.run(argv, cwd=site, env=env, capture_output=True, timeout=DEADLINE, check=True)


def write_suites(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run_pytest(
    folder: Path,
    *args: object,
    files: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = DEADLINE,
    where: Sequence[str] = (".",),
    signals: Sequence[str] = DEFAULT_SIGNALS,
    constants: Mapping[str, Mapping[str, Any]] | None = None,
) -> Run:
    """Run pytest in a folder on the tests `where`, with these files written into it first.

    `constants`: {section: {name: value}} of the suites.
    """
    write_suites(folder, files or {})
    words = [*(() if signals == DEFAULT_SIGNALS else signals), *command(*args, *where)]
    done = forked.run(
        words, cwd=folder, env=in_environment(environment(**(env or {})), **(constants or {})), timeout=timeout
    )
    return Run(done.returncode, done.stdout, done.stderr, folder)


def made_suite(tests: str, conftest: str = "", **modules: str) -> dict[str, str]:
    """Return the files of an installed suite `made` for PYTHONPATH: its test_made.py, and further modules by name."""
    package, about = "gpucluster_made", "gpucluster_made-1.0.dist-info"
    init = 'from pytest_gpucluster.core.registry import Suite\n\nSUITE = Suite(__name__, markers=("made: a test",))\n'
    return {
        f"{package}/__init__.py": init,
        f"{package}/test_made.py": tests,
        "conftest.py": conftest,
        **{f"{package}/{name}.py": text for name, text in modules.items()},
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: gpucluster-made\nVersion: 1.0\n",
        f"{about}/entry_points.txt": f"[pytest_gpucluster.suites]\nmade = {package}\n",
    }


def run_made(folder: Path, sandbox: Sandbox, files: Mapping[str, str], *args: object) -> Run:
    """Run the suite of `made_suite`, with its slow items."""
    words = (on(sandbox), "-m", "made", "--slow", *args)
    return run_pytest(folder, *words, files=files, env={"PYTHONPATH": str(folder)}, where=("suites/made",))


def command(*args: object) -> list[str]:
    # Hypothesis would be imported by each of some hundred runs that need it for nothing
    return [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", *map(str, args)]


def on(sandbox: Sandbox) -> str:
    """Return the option that names the sandbox's cluster file."""
    return f"--cluster={sandbox.cluster_file}"


def cluster_file(sandbox: Sandbox, folder: Path, **keys: Any) -> Path:
    """Write a cluster file for the sandbox's nodes, with these keys beside or instead of the short ones."""
    plain: dict[str, Any] = {
        "name": "tiny",
        "nodes": "gpu[01-04]",
        "sandbox": True,
        "slurm": {"partition": "batch", "conf": sandbox.env["SLURM_CONF"]},
        **keys,
    }
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(plain))  # JSON is YAML
    return path


def start_controller(sandbox: Sandbox) -> None:
    """Start slurmctld anew on the state that the former one has left, as systemd would."""
    root, pid_file = sandbox.layout.root, sandbox.layout.pid_file("slurmctld")
    pid_file.unlink(missing_ok=True)  # one that was killed has left it
    subprocess.run([root / "sbin" / "slurmctld", "-f", sandbox.layout.conf], check=True, timeout=60)
    wait_for(lambda: pid_file.exists() and pid_file.read_text(), "slurmctld has started")
    known = json.loads((root / "sandbox.json").read_text())
    process = identify(int(pid_file.read_text()))
    assert process is not None
    known["processes"]["slurmctld"] = [process.pid, process.started]
    (root / "sandbox.json").write_text(json.dumps(known))  # else the sandbox would not know it as its own
    wait_for(lambda: slurm(sandbox, "sinfo", "-h"), "slurmctld answers")


def is_alive(pid: int) -> bool:
    process = identify(pid)
    return process is not None and process.alive


@contextlib.contextmanager
def out_of_service(sandbox: Sandbox, node: str, state: str, reason: str) -> Iterator[None]:
    """Take a node away as an administrator does, into a state that Slurm does not leave by itself."""
    slurm(sandbox, "scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={reason}")
    try:
        yield
    finally:
        slurm(sandbox, "scontrol", "update", f"NodeName={node}", "State=RESUME")
        show = ("sinfo", "-h", "-n", node, "-p", "batch", "-o", "%T")
        wait_for(lambda: slurm(sandbox, *show).strip() == "idle", f"{node} is idle again")


def jobs_so_far(sandbox: Sandbox) -> int:
    """Return the number of the next job, which counts every job there ever was."""
    text = slurm(sandbox, "scontrol", "show", "config")
    (line,) = (line for line in text.splitlines() if line.startswith("NEXT_JOB_ID"))
    return int(line.split("=")[1])


def processes(mark: str) -> Iterator[tuple[int, str]]:
    """Yield pid and command line of every process that has `mark` in its environment."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue


def names(results: Mapping[str, str], outcome: str) -> Sequence[str]:
    """Return the items of one outcome, without their file, sorted."""
    return sorted(nodeid.rpartition("::")[2] for nodeid, end in results.items() if end == outcome)


def a_cluster(nodes: str = "gpu[01-10]", **keys: Any) -> Cluster:
    profile = keys.pop("profile", None) or Profile(name="p", description="", source="test")
    return Cluster(name="c", groups=(Group(nodes=nodes, profile=profile),), **keys)


def a_session(
    cluster: Cluster | None = None,
    *,
    problems: Mapping[str, Problem] | None = None,
    inventory: Mapping[str, NodeInfo] | None = None,
    slurm: Any = None,
) -> Controller:
    """Return a session that selects all nodes of a cluster and holds none."""
    cluster = cluster or a_cluster()
    selected = tuple(node for group in cluster.groups for node in group.names)
    return Controller(cluster, inventory or {}, Plan(selected, problems or {}), slurm)


@dataclass
class FakeItem:
    """What the plugin reads of an item that pytest collected of a module test_gpu.py."""

    node: str = ""
    name: str = "test_count"
    fixturenames: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.originalname, self.path = self.name, Path("test_gpu.py")
        self.nodeid = f"test_gpu.py::{self.name}[{self.node}]"
        self.callspec, self.stash = self, pytest.Stash()

    def iter_markers(self) -> Iterator[pytest.Mark]:
        return iter(())

    def get_closest_marker(self, _name: str) -> None:
        """It has none."""

    @property
    def params(self) -> dict[str, str]:
        return {"gpucluster_node": self.node}


@dataclass
class FakeConfig:
    """What the plugin reads of pytest's config."""

    option: Namespace = field(default_factory=Namespace)
    args: Sequence[str] = ()
    folder: Path = Path("/")
    hook: Any = None

    @property
    def invocation_params(self) -> pytest.Config.InvocationParams:
        return pytest.Config.InvocationParams(args=self.args, plugins=None, dir=self.folder)

    def getoption(self, name: str, default: Any = None) -> Any:
        return getattr(self.option, name, default)


@dataclass
class PytestRun:
    """What the plugin reads and changes of pytest's own session."""

    exitstatus: int = 0
    items: Sequence[Any] = ()
    shouldfail: bool = False
    testsfailed: int = 0
    config: FakeConfig = field(default_factory=FakeConfig)
