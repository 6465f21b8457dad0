"""Change the source a little, see whether a fast unit test fails: python tools/mutation.py [--seed 1] [PATH ...]

Prints each change that no test notices (a survivor) and the score of each package. PATH: packages or modules below
the package's folder, as `drain` or `suites/*/checks.py`. Nothing in the working tree is edited: the changed module is
compiled in the process that tests it.

A test is fast if it passes in SLOW seconds and starts no process but a shell. Which tests reach which line is measured
with coverage, once for each test module, and kept in .cache/mutation until the test or what it reaches changes. A
change is tested in a process forked from one that has imported pytest and the libraries: first by the tests that reach
the line, then, as results may be cached, by all tests that reach the file.

Changes that do no harm stand in tools/mutation-equivalent.txt and count as neither killed nor survived.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import gc
import hashlib
import importlib
import importlib.machinery
import itertools
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutants import Mutant, all_enums, changes, mutants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[1]
PACKAGE = "pytest_gpucluster"
# patterns of what judges, and of what acts on a cluster
TARGETS = (
    "core",
    "drain",
    "kit/*/*.py",
    "suites/*/*checks*",
    "cluster/plan.py",
    "config/loader.py",
    "cluster/slurm/inventory.py",
)
LIBRARIES = (
    "pytest", "_pytest.assertion.rewrite", "_pytest.junitxml", "xdist.plugin", "testinfra.plugin", "testinfra", "yaml",
    "pydantic", "jinja2", "fabric", "paramiko", "junitparser", "hypothesis", "tabulate", "ClusterShell.NodeSet",
    "coverage", "unittest.mock", "asyncio", "concurrent.futures", "html.parser", "xml.etree.ElementTree",
)  # fmt: skip
SHELLS = {"sh", "bash", "dash"}
SLOW = 3.0  # seconds; a test that takes longer is no fast one
MODULE_LIMIT = 300.0  # seconds for one test module, measured with coverage
MODULE_ENOUGH = 240.0  # seconds after which its further tests are left out
OTHER_TESTS = (
    15.0  # seconds of tests that reach the file but not the line, run for a change that survived the others
)
VERSION = 1  # of the coverage maps


@dataclass(frozen=True)
class Project:
    """The package whose source is changed, and its tests."""

    root: Path
    package: str

    @cached_property
    def source(self) -> Path:
        return self.root / "src" / self.package

    @cached_property
    def cache(self) -> Path:
        return self.root / ".cache" / "mutation" / hashlib.sha256(str(self.root).encode()).hexdigest()[:8]

    def module(self, path: str) -> str:
        """Return the name to import of a file below the package's folder."""
        parts = Path(path).with_suffix("").parts
        return ".".join((self.package, *(parts[:-1] if parts[-1] == "__init__" else parts)))

    def files(self, targets: Sequence[str]) -> list[str]:
        """Return the modules of these packages, as paths below the package's folder."""
        found: list[Path] = []
        for target in targets:
            paths = sorted(self.source.glob(target))
            if not paths:
                sys.exit(f"mutation: {target} does not exist; name a package or a module below {self.source}")
            for path in paths:
                found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
        return [path.relative_to(self.source).as_posix() for path in dict.fromkeys(found)]

    def importers(self) -> dict[str, set[str]]:
        """Return for each module the files that import it: of the package below its folder, tests as `tests/NAME`."""
        found: dict[str, set[str]] = {}
        files = {path: path.relative_to(self.source).as_posix() for path in self.source.rglob("*.py")}
        files |= {
            path: path.relative_to(self.root).as_posix() for path in (self.root / "tests").rglob("test_*.py")
        }
        for path, name in files.items():
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                        found.setdefault(module, set()).add(name)
        return found


# processes


def _quiet_start(folder: str, project: Project) -> None:
    """Make the forked process one that prints nothing, leads its own group and starts no process but a shell."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(f"{folder}/log-{os.getpid()}", os.O_RDWR | os.O_CREAT)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(TMPDIR=folder, HYPOTHESIS_STORAGE_DIRECTORY=f"{folder}/hypothesis")
    tempfile.tempdir = None
    os.chdir(project.root)
    sys.path[:0] = [str(project.root / "src")]
    sys.addaudithook(_no_process)


def _no_process(event: str, args: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        program = args[0] or args[1][0]
        if Path(os.fsdecode(program)).name not in SHELLS:
            raise OSError(f"no fast test starts {program}")
    elif event in {"os.posix_spawn", "os.fork", "os.forkpty"}:
        raise OSError(f"no fast test calls {event}")


def _pytest(folder: str, modules: Sequence[str], *plugins: object) -> int:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=short", "--no-header"]
    # pytest would load the package itself, from its files, to rewrite what it asserts
    options += ["--assert=plain"]
    options += [f"--basetemp={folder}/t-{os.getpid()}", "--hypothesis-seed=1"]
    return int(pytest.main([*options, *modules], plugins=[*plugins]))


def _ended(process: multiprocessing.Process, folder: str) -> None:
    """End what is left of a process and its children, and take its files away."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    shutil.rmtree(f"{folder}/t-{process.pid}", ignore_errors=True)
    Path(f"{folder}/log-{process.pid}").unlink(missing_ok=True)


def _adopt() -> None:
    """Become the parent of orphans below: none is left behind unnoticed. PR_SET_CHILD_SUBREAPER of prctl(2)."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _end_orphans() -> None:
    for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _in_turn(
    jobs: int, tasks: Sequence[Task], folder: str, deadline: float
) -> Iterator[tuple[Task, int | None]]:
    """Run each task in a forked process, `jobs` at a time; yield its exit status, None where time ran out on it.

    After the deadline no task starts and none goes on.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(tasks)), {}
    try:
        while running or (waiting and time.monotonic() < deadline):
            while waiting and len(running) < jobs and time.monotonic() < deadline:
                task = waiting.pop()
                process = context.Process(target=task.run, args=(folder,))
                process.start()
                running[process.sentinel] = (process, task, time.monotonic() + task.limit)
            first = min(deadline, *(until for _, _, until in running.values()))
            multiprocessing.connection.wait(list(running), max(0.0, first - time.monotonic()))
            for sentinel, (process, task, until) in list(running.items()):
                done = process.exitcode is not None
                if not done and time.monotonic() < min(until, deadline):
                    continue
                del running[sentinel]
                _ended(process, folder)
                if done or until <= deadline:
                    yield task, process.exitcode if done else None
    finally:
        for process, _, _ in running.values():
            _ended(process, folder)
        _end_orphans()


class Task:
    """What a forked process does, and its limit in seconds."""

    limit: float

    def run(self, folder: str) -> None:
        raise NotImplementedError


# which test reaches which line


class Measurement(Task):
    """Measure the tests of one test module; the result is a file."""

    limit = MODULE_LIMIT

    def __init__(self, project: Project, module: Path, target: Path, key: str) -> None:
        self.project, self.module, self.target, self.key = project, module, target, key

    def run(self, folder: str) -> None:
        _quiet_start(folder, self.project)
        import coverage  # the process that runs changes needs none

        cov = coverage.Coverage(data_file=None, config_file=False, include=[f"{self.project.source}/*"])
        recorder = _Recorder(cov, lambda: self.save(cov, recorder))
        cov.start()
        _pytest(folder, ["--maxfail=100000", str(self.module)], recorder)
        self.save(cov, recorder)

    def save(self, cov: Any, recorder: _Recorder) -> None:
        """Write what was measured, and end the process: a test that was ended may have left a thread that waits."""
        cov.stop()
        data, tests = cov.get_data(), recorder.fast
        lines: dict[str, dict[str, list[int]]] = {}
        for file in data.measured_files():
            path = Path(file).relative_to(self.project.source).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in set(contexts) & {*tests, SHARED}:
                    lines.setdefault(path, {}).setdefault(test, []).append(line)
        found = {
            "key": self.key,
            "tests": tests,
            "lines": lines,
            "sources": {path: _digest(self.project.source / path) for path in lines},
        }
        self.target.with_suffix(".part").write_text(json.dumps(found), encoding="utf-8")
        self.target.with_suffix(".part").replace(self.target)
        os._exit(0)


SHARED = "(fixtures of the module)"


class _Recorder:
    """A plugin of pytest: coverage by test, how long each took, and which are fast."""

    def __init__(self, cov: Any, save: Callable[[], None]) -> None:
        self.cov, self.save, self.fast, self.failed = cov, save, {}, set()
        self.alarms = 0
        self.until = time.monotonic() + MODULE_ENOUGH

    def pytest_runtest_protocol(self, item: Any) -> None:
        self.test = item.nodeid
        if time.monotonic() > self.until:
            item.session.shouldstop = "the module takes too long"
        self.cov.switch_context(item.nodeid)
        self.began = time.monotonic()
        self.alarms = 0
        signal.signal(signal.SIGALRM, self.too_slow)
        signal.setitimer(signal.ITIMER_REAL, SLOW, SLOW)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What a fixture of the module or session runs counts for each test of the module."""
        if fixturedef.scope == "function":
            return (yield)
        self.cov.switch_context(SHARED)
        try:
            return (yield)
        finally:
            self.cov.switch_context(self.test)

    def too_slow(self, _number: int, _frame: object) -> None:
        """End the test; what does not end even so (a lock that nobody gives back) ends the module."""
        self.alarms += 1
        if self.alarms > 3:
            self.save()
        pytest.fail("no fast test")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm between two tests would end the module
        if nodeid not in self.failed:
            self.fast[nodeid] = round(time.monotonic() - self.began, 4)
        self.cov.switch_context("")


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file():
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class Reached:
    """Which fast tests reach which lines."""

    def __init__(self, project: Project, found: Sequence[dict[str, Any]]) -> None:
        self.cost: dict[str, float] = {}
        self.by_line: dict[str, dict[int, set[str]]] = {}
        self.importers = project.importers()
        self.module = project.module
        for one in found:
            self.cost.update(one["tests"])
            for path, tests in one["lines"].items():
                at = self.by_line.setdefault(path, {})
                for test, lines in tests.items():
                    every = one["tests"] if test == SHARED else [test]
                    for line in lines:
                        at.setdefault(line, set()).update(every)

    def of_file(self, path: str) -> set[str]:
        return set().union(*self.by_line.get(path, {}).values())

    def tests(self, mutant: Mutant) -> list[list[str]]:
        """Return the tests for a change in batches, the most likely to fail first."""
        reached = self.by_line.get(mutant.path, {})
        here = set().union(*(reached.get(line, ()) for line in mutant.lines))
        others = self.of_file(mutant.path)
        if (
            mutant.at_import
        ):  # a table or default: whoever uses the module, or a module or test that imports it
            for importer in self.importers.get(self.module(mutant.path), ()):
                others |= self.of_file(importer)
                others |= {test for test in self.cost if test.startswith(f"{importer}::")}
        return [batch for batch in (*self.split(here), self.within(others - here, OTHER_TESTS)) if batch]

    def split(self, tests: set[str]) -> list[list[str]]:
        """Return the tests of the one or two cheapest modules, then the rest: to import them takes time, too."""
        modules: Counter[str] = Counter()
        for test in tests:
            modules[test.partition("::")[0]] += self.cost[test]
        first = sorted(
            modules, key=lambda name: modules[name] / sum(test.startswith(name) for test in tests)
        )[:2]
        near = {test for test in tests if test.partition("::")[0] in first}
        return [self.within(near, 60.0), self.within(tests - near, 60.0)]

    def within(self, tests: set[str], seconds: float) -> list[str]:
        """Return the tests, cheapest first, that take no longer than this together."""
        chosen, total = [], 0.0
        for test in sorted(tests, key=lambda test: (self.cost[test], test)):
            total += self.cost[test]
            if total > seconds:
                break
            chosen.append(test)
        return chosen


def reached_lines(
    project: Project, jobs: int, folder: str, deadline: float, words: Sequence[str] = ("",)
) -> Reached:
    """Return the coverage map; what has changed since the last time is measured anew."""
    project.cache.mkdir(parents=True, exist_ok=True)
    modules = sorted((project.root / "tests").rglob("test_*.py"))
    helpers = _digest(
        *(path for path in sorted((project.root / "tests").glob("*.py")) if path not in modules)
    )
    found, tasks = [], []
    for module in modules:
        if not any(word in module.relative_to(project.root).as_posix() for word in words):
            continue
        corpus = sorted((project.root / "tests" / "corpus").rglob("*.txt")) if "corpus" in module.name else ()
        key = f"{VERSION} {sys.version_info[:2]} {helpers} {_digest(module, *corpus)}"
        target = project.cache / f"{'-'.join(module.relative_to(project.root).with_suffix('').parts)}.json"
        try:
            known = json.loads(target.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        same = known.get("key") == key and all(
            _digest(project.source / path) == digest for path, digest in known["sources"].items()
        )
        if same:
            found.append(known)
        else:
            tasks.append(Measurement(project, module, target, key))
    if tasks:
        print(f"measuring which lines the tests of {len(tasks)} modules reach", flush=True)
    for task, status in _in_turn(jobs, tasks, folder, deadline):
        if status == 0:
            found.append(json.loads(task.target.read_text(encoding="utf-8")))
        else:
            print(f"left out: {task.module.name}: {'too slow' if status is None else f'ended with {status}'}")
    return Reached(project, found)


# changes


class Trial(Task):
    """Run the tests of one change: exit status 0 says that it survived, 1 that a test failed."""

    def __init__(self, project: Project, mutant: Mutant, batches: list[list[str]], cost: float) -> None:
        self.project, self.mutant, self.batches = project, mutant, batches
        self.limit = 20.0 + 5 * cost

    def run(self, folder: str) -> None:
        _quiet_start(folder, self.project)
        path = self.project.source / self.mutant.path
        sys.meta_path.insert(
            0, _Changed(self.project.module(self.mutant.path), path, self.mutant.applied(path.read_bytes()))
        )
        os._exit(int(any(not _passes(folder, batch, self.proof(folder)) for batch in self.batches)))

    def proof(self, folder: str) -> Path:
        """Return the file that names the test that failed."""
        return Path(folder) / f"proof-{id(self)}"


class Control(Task):
    """Run one test alone without a change: exit status 0 says that it passes."""

    limit = 60.0

    def __init__(self, project: Project, test: str) -> None:
        self.project, self.test = project, test

    def run(self, folder: str) -> None:
        _quiet_start(folder, self.project)
        os._exit(int(_pytest(folder, [self.test.partition("::")[0]], _Only([self.test])) != 0))


def _passes(folder: str, tests: list[str], proof: Path) -> bool:
    """Run tests; write the name of the one that fails, nothing where pytest itself fails."""
    modules = dict.fromkeys(test.partition("::")[0] for test in tests)
    return _pytest(folder, [*modules], _Only(tests), _Proof(proof)) == 0


class _Changed(importlib.machinery.SourceFileLoader):
    """Finds and loads one module, from text that no file holds."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self.source = source

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != self.name:
            return None
        folder = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            name, self.path, loader=self, submodule_search_locations=folder
        )

    def get_code(self, _name: str) -> Any:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class _Proof:
    """A plugin of pytest: writes the name of a test that fails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.path.write_text(report.nodeid, encoding="utf-8")


class _Only:
    """A plugin of pytest: these tests in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.rank = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.rank), key=lambda item: self.rank[item.nodeid]
        )


def harmless(path: Path) -> dict[tuple[str, str, str], str]:
    """Read the accepted changes: blocks of `FILE`, `- before`, `+ after` and `= why`."""
    found, block = {}, {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if line[:2] in {"- ", "+ ", "= "} or line in {"-", "+"}:
            block[line[0]] = line[2:]
            if line[0] == "=":
                found[block["file"], block["-"], block["+"]] = block["="]
        elif line and not line.startswith("#"):
            block = {"file": line}
    return found


def sample(project: Project, targets: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Return this many changes, chosen by the seed, in an order of chance."""
    chance = random.Random(seed)
    enums = all_enums(path.read_bytes() for path in sorted(project.source.rglob("*.py")))
    offered = []
    for path in project.files(targets):
        offered += mutants(path, (project.source / path).read_bytes(), enums, chance)
    chance.shuffle(offered)
    sound = (one for one in offered if changes(one, (project.source / one.path).read_bytes()))
    return list(itertools.islice(sound, count))


@contextmanager
def _folder() -> Iterator[str]:
    """A folder for all that tests write; it goes with the run, however that ends."""
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        yield folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the survivors and the score; 1 where the score is below --at-least."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", default=TARGETS, metavar="PATH")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="no change is tried after this time; default 10"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--at-least", type=float, default=0.0, metavar="PERCENT", help="exit with 1 below this score"
    )
    parser.add_argument(
        "--tests",
        default="",
        metavar="WORD,...",
        help="only test modules with one of these words in their paths: quicker",
    )
    parser.add_argument("--list", action="store_true", help="print the changes; run none")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--package", default=PACKAGE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as with ^C, what runs is ended
    project = Project(options.root.resolve(), options.package)
    chosen = sample(project, options.paths or TARGETS, options.seed, options.count)
    accepted = harmless(project.root / "tools" / "mutation-equivalent.txt")
    known = [one for one in chosen if (one.path, one.before, one.after) in accepted]
    chosen = [one for one in chosen if one not in known]
    if options.list:
        for one in chosen:
            print(_told(project, one))
        return 0
    deadline = time.monotonic() + 60 * options.minutes
    _adopt()
    _warm_up()
    with _folder() as folder:
        # the first time takes minutes, which are not those of the changes
        reached = reached_lines(
            project,
            options.jobs,
            folder,
            time.monotonic() + 60 * max(options.minutes, 10),
            options.tests.split(","),
        )
        deadline = time.monotonic() + 60 * options.minutes
        killed, survived = _tried(
            project, chosen, reached, jobs=options.jobs, folder=folder, deadline=deadline
        )
    return _scores(chosen, killed, survived, known, options.at_least)


def _warm_up() -> None:
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _tried(
    project: Project, chosen: list[Mutant], reached: Reached, *, jobs: int, folder: str, deadline: float
) -> tuple[list[Mutant], list[Mutant]]:
    killed, survived, trials = [], [], []
    proofs: dict[str, list[Mutant]] = {}
    for mutant in chosen:
        batches = reached.tests(mutant)
        if batches:
            cost = sum(reached.cost[test] for batch in batches for test in batch)
            trials.append(Trial(project, mutant, batches, cost))
        else:
            survived.append(mutant)
            print(f"SURVIVED {_told(project, mutant)}\n         (no fast test reaches it)", flush=True)
    for trial, status in _in_turn(jobs, trials, folder, deadline):
        if status == 0:
            survived.append(trial.mutant)
            print(f"SURVIVED {_told(project, trial.mutant)}", flush=True)
        elif status is None or status < 0:  # an endless loop, or the process died
            killed.append(trial.mutant)
        else:
            proof = trial.proof(folder)
            proofs.setdefault(proof.read_text(encoding="utf-8") if proof.exists() else "", []).append(
                trial.mutant
            )
    return killed + _proved(project, proofs, jobs=jobs, folder=folder), survived


def _proved(project: Project, proofs: dict[str, list[Mutant]], *, jobs: int, folder: str) -> list[Mutant]:
    """Return the changes that a test noticed which passes alone without a change; print the others."""
    killed = list(proofs.pop("", ()))  # the changed module cannot be imported
    controls = [Control(project, test) for test in proofs]
    for control, status in _in_turn(jobs, controls, folder, math.inf):
        if status == 0:
            killed += proofs[control.test]
        else:
            print(
                f"NOT COUNTED: {len(proofs[control.test])} changes: {control.test} fails alone without a change"
            )
    return killed


def _told(project: Project, mutant: Mutant) -> str:
    place = (project.source / mutant.path).relative_to(project.root)
    return f"{place}:{mutant.line}: {mutant.operator}\n       - {mutant.before}\n       + {mutant.after}"


def _scores(
    chosen: list[Mutant], killed: list[Mutant], survived: list[Mutant], known: list[Mutant], at_least: float
) -> int:
    package: Callable[[Mutant], str] = lambda mutant: mutant.path.rpartition("/")[0] or mutant.path
    dead, alive = Counter(map(package, killed)), Counter(map(package, survived))
    for name in sorted({*dead, *alive}):
        print(
            f"{name:16} {dead[name]:4} of {dead[name] + alive[name]:4} killed  {_share(dead[name], alive[name])}"
        )
    print(
        f"{'total':16} {len(killed):4} of {len(killed) + len(survived):4} killed  {_share(len(killed), len(survived))}"
    )
    if known:
        print(f"{len(known)} harmless by tools/mutation-equivalent.txt")
    if rest := len(chosen) - len(killed) - len(survived):
        print(f"{rest} were not tried: time is over; raise MINUTES or lower COUNT")
    return 100 * len(killed) < at_least * (len(killed) + len(survived))


def _share(killed: int, survived: int) -> str:
    return f"{killed / (killed + survived):.1%}" if killed + survived else "none"


if __name__ == "__main__":
    sys.exit(main())
