"""The words of a run that pytest does not judge itself: option values, names, marks, and patterns of checks that match none."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import suite_folders, suites_path
from pytest_gpucluster.config.validation_errors import nearest
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.former_names import of_pattern
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.waivers import AVAILABLE
from pytest_gpucluster.plugin.items import check_of, matches, one_per_test
from pytest_gpucluster.plugin.option_table import attribute_of, text_options
from pytest_gpucluster.report.proof import ENGINE_CHECK
from pytest_gpucluster.report.verdict import BUDGET

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster


# options whose runs have their nodes from elsewhere
BESIDE_BUDGET = {
    "--campaign": "tests every node; --campaign-time and --max-nodes-at-once limit it",
    "--burnin-resume": "continues on the nodes of its burn-in",
    "--resume-passing": "tests the drained nodes, which no budget may leave out",
}


def refuse_words(option: Any) -> None:
    """Raise UsageError for words of the command line that mean nothing for a cluster, whatever it is."""
    if getattr(option, "dist", None) == "each":
        raise pytest.UsageError("--dist=each: runs every test in every worker, on the same nodes: leave it out")
    for name, word in (("-n", "numprocesses"), ("--maxprocesses", "maxprocesses")):
        value = getattr(option, word, None)
        if isinstance(value, int) and value < 0:
            raise pytest.UsageError(f"{name} {value}: must be a number of processes from 0 on")
    if getattr(option, "hosts", None):  # of testinfra
        raise pytest.UsageError(
            "--hosts: has no effect with --cluster, whose file names the nodes: use --nodes=HOSTLIST"
        )
    _refuse_two_choices(option)
    for name, word in text_options():
        if getattr(option, word) == "":
            raise pytest.UsageError(f"{name}: has no value: write one, or leave the option out")


def _refuse_two_choices(option: Any) -> None:
    """Raise UsageError for two options that choose the nodes."""
    if getattr(option, "punchlist", False):
        for name in ("--nodes", "--campaign", "--untested-for", BUDGET):
            if getattr(option, attribute_of(name), None) is not None:
                raise pytest.UsageError(f"{name}: --punchlist chooses the nodes: leave one of the two out")
    if getattr(option, "budget", None) is not None:
        for name, why in BESIDE_BUDGET.items():
            if getattr(option, attribute_of(name), None):
                raise pytest.UsageError(f"{BUDGET}: {name} {why}: leave one of the two out")


def refuse_names(cluster: Cluster) -> None:
    """Raise ConfigError for a value of the cluster file that a suite refuses, like a limit that no system has."""
    for loc, error in refused_values(cluster):
        raise ConfigError(f"cluster {cluster.name}: {'.'.join(loc)}: {error}") from error


def refused_values(cluster: Cluster) -> Iterator[tuple[tuple[str, str], ConfigError]]:
    """Yield the section and key of each value that a suite refuses, and the suite's error."""
    for suite in suites():
        section = getattr(cluster, suite.name, None)
        for key in section.model_fields_set & suite.settings.keys() if section is not None else ():
            try:
                suite.load(suite.settings[key])(cluster)
            except ConfigError as error:
                yield (suite.name, key), error


def check_nodes(cluster: Cluster, inventory: Mapping[str, NodeInfo]) -> None:
    """Raise ConfigError where Slurm has no node of the cluster file; one that is missing is its own problem."""
    expected = [node for group in cluster.groups for node in group.names]
    if not inventory.keys() & set(expected):
        known = hostlist.fold(inventory) if inventory else "none that this user sees"
        raise ConfigError(
            f"cluster {cluster.name}: Slurm knows no node of {hostlist.fold(expected)}; it has {known}: correct the "
            "nodes in the cluster file, or name this cluster's slurm.conf as slurm.conf there"
        )


_ARGUMENTS = re.compile(r"\(\s*\w+\s*=[^)]*\)")  # of pytest 8.3: name(key=value)
_GRAMMAR = {"and", "or", "not"}


def refuse_slips(config: pytest.Config) -> None:
    """Raise UsageError where -m names no known marker, but nearly one; words far from all may be markers of the site."""
    known = [re.split(r"[:(]", line, maxsplit=1)[0].strip() for line in config.getini("markers")]
    for word in strange_words(config.option.markexpr, known):
        if hint := nearest(word, known):
            raise pytest.UsageError(f"-m: no marker is called {word!r}{hint} (pytest --markers lists them)")


def strange_words(expression: str, known: Iterable[str]) -> list[str]:
    """Return the words of a -m expression that are no known marker, in their order."""
    usual = {*known, *_GRAMMAR}
    return [word for word in re.findall(r"\w+", _ARGUMENTS.sub("", expression)) if word not in usual]


_TEST = re.compile(r"\btest_(\w+)")  # also where a file imports or assigns the test
_CHECK = re.compile(r'@(?:[a-z]+_)?check\(\s*"(\w+\.\w+)"(?!,\s*item=False)')
_FILES = ("test_*.py", "*/test_*.py", "*/*/test_*.py")  # below the root folder: a home folder may be that


class Unmatched:
    """The patterns that match no check so far: {pattern: where it is written}."""

    def __init__(self, written: Iterable[tuple[str, Collection[str]]]) -> None:
        self.left = {pattern: f"{where}: {pattern!r}" for where, patterns in written for pattern in patterns}
        self.names: set[str] = set()

    def read(self, files: Iterable[Path], declared: re.Pattern[str] | None = None) -> None:
        """Take the tests of suite files, or the checks that files declare, as known, without importing them."""
        if self.left:
            self.add(name for path in files for name in names_in(path, declared))

    def add(self, names: Iterable[str]) -> None:
        """Take these checks as known."""
        self.names |= set(names)
        # behind a slash: a part of the check's findings
        matched = {it for name in self.names for it in self.left if matches(name, (it.partition("/")[0],))}
        self.left = {pattern: where for pattern, where in self.left.items() if pattern not in matched}

    def refuse(self, patterns: Collection[str]) -> None:
        """Raise ConfigError for the first of these patterns, with the check that is most like it."""
        if not patterns:
            return
        pattern, *others = patterns
        more = f" (and {len(others)} more)" if others else ""
        raise ConfigError(f"{self.left[pattern]} {self.why(pattern, more)}")

    def why(self, pattern: str, more: str = "") -> str:
        """Return what is wrong with a pattern: its checks are former ones, or which check or suite is most like it."""
        if former := of_pattern(pattern):
            return f"matches no check{more}: {former}"
        known = {*self.names, *(f"{name.partition('.')[0]}.*" for name in self.names)}
        nearest = difflib.get_close_matches(pattern.partition("/")[0], sorted(known), cutoff=0.0)[0]
        return f"matches no check{more}; the nearest is {nearest!r}"


def refuse_unmatched(config: pytest.Config, cluster: Cluster) -> list[str]:
    """Raise ConfigError for a pattern that matches no check of the shipped suites or of the site's own.

    Return warnings: patterns of waivers that match none.

    A pattern whose suite no file has may be for checks that a plugin makes: it is refused after the collection.
    """
    unmatched, wrong = unmatched_by(cluster, _site_files(config))
    unmatched.refuse(wrong)
    if unmatched.left:
        config.pluginmanager.register(AfterCollection(unmatched), "gpucluster-check-patterns")
    return unmatched_waivers(cluster, _site_files(config)) if cluster.waivers else []


def unmatched_by(cluster: Cluster, site_files: Iterable[Path]) -> tuple[Unmatched, list[str]]:
    """Return the patterns that match no check of the shipped suites and these files, and those that cannot match any.

    A pattern with the name of another suite may be for checks that a plugin makes.
    """
    return _unmatched(_written(cluster), site_files)


def unmatched_waivers(cluster: Cluster, site_files: Iterable[Path]) -> list[str]:
    """Return a warning for each pattern of a waiver that matches no check of the shipped suites and these files."""
    written = [(one.at, [it for it in one.checks if not matches(AVAILABLE, (it,))]) for one in cluster.waivers]
    if not written:
        return []
    unmatched, wrong = _unmatched(written, site_files, also=(f"{suite.name}.{ENGINE_CHECK}" for suite in suites()))
    return [f"{unmatched.left[pattern]} of a waiver {unmatched.why(pattern)}" for pattern in wrong]


def _unmatched(
    written: Iterable[tuple[str, Collection[str]]], site_files: Iterable[Path], also: Iterable[str] = ()
) -> tuple[Unmatched, list[str]]:
    unmatched = Unmatched(written)
    unmatched.add(also)
    unmatched.read(path for folder in suite_folders().values() for path in folder.glob("test_*.py"))
    unmatched.read(check_files(), _CHECK)
    shipped = {name.partition(".")[0] for name in unmatched.names}
    unmatched.read(site_files)
    return unmatched, [pattern for pattern in unmatched.left if pattern.partition(".")[0] in shipped]


def check_files() -> list[Path]:
    """Return the files that may declare a check of a registered suite."""
    of_suites = (path for folder in suite_folders().values() for path in folder.rglob("*.py"))
    return [*of_suites, *Path(suites_path()).with_name("kit").rglob("*.py")]


class AfterCollection:
    """Registered where patterns are left: knows what was collected, also what a plugin has made."""

    def __init__(self, unmatched: Unmatched) -> None:
        self._unmatched = unmatched

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Read the checks of all items, before other plugins deselect some."""
        if not session.testsfailed:  # a file that could not be imported may have the checks
            self._decide(map(check_of, one_per_test(items)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Read the checks that a worker of xdist has collected: the controller has no items."""
        self._decide(map(check_of_nodeid, ids))

    def _decide(self, names: Iterable[str]) -> None:
        self._unmatched.add(names)
        try:
            self._unmatched.refuse(list(self._unmatched.left))
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from error


def names_in(path: Path, declared: re.Pattern[str] | None = None) -> Iterator[str]:
    """Yield SUITE.WHAT for each word test_WHAT of a file test_SUITE.py, or what matches `declared`."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    suite = path.stem.removeprefix("test_")
    yield from declared.findall(text) if declared else (f"{suite}.{what}" for what in _TEST.findall(text))


def check_of_nodeid(nodeid: str) -> str:
    """Return the check of an item by its address: SUITE.WHAT of test_SUITE.py::test_WHAT[node]."""
    path, *_, name = nodeid.partition("[")[0].split("::")
    return f"{Path(path).stem.removeprefix('test_')}.{name.removeprefix('test_')}"


def _written(cluster: Cluster) -> Iterator[tuple[str, Collection[str]]]:
    """Yield where patterns are written, and the patterns."""
    yield f"cluster {cluster.name}: required", cluster.required
    yield f"cluster {cluster.name}: not_applicable", cluster.not_applicable
    yield f"cluster {cluster.name}: punchlist.trades", cluster.punchlist.trades
    for group in cluster.groups:
        yield f"profile {group.profile.name}: required", group.profile.required
        yield f"profile {group.profile.name}: absent", group.profile.absent


def _site_files(config: pytest.Config) -> Iterator[Path]:
    """Yield the suite files of the command line, and those below the root folder, which another run may select."""
    named = config.args_source is not pytest.Config.ArgsSource.INVOCATION_DIR
    for arg in config.args if named else ():
        path = config.invocation_params.dir / arg.partition("::")[0]
        yield from path.rglob("test_*.py") if path.is_dir() else [path]
    for pattern in _FILES:
        yield from config.rootpath.glob(pattern)
