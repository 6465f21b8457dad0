"""Which items a run has: the suites that it asks for, one item per node and check, and what it must prove."""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import suite_folders, suite_packages, suites_path
from pytest_gpucluster.config.models import SECTIONS
from pytest_gpucluster.core.errors import ConfigError, NotApplicable
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.values import OptionalSection
from pytest_gpucluster.plugin import fixtures
from pytest_gpucluster.plugin.items import (
    CheckItem,
    SuiteFile,
    check_of,
    marks_of,
    matches,
    needs_nodes,
    node_of,
    one_per_test,
    suite_of,
)
from pytest_gpucluster.plugin.worker import Worker
from pytest_gpucluster.report.proof import Required, write_required

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.plugin.items import CheckTest
    from pytest_gpucluster.run.session import ClusterSession


ON_REQUEST = ("slow", "intrusive")  # marks of items, and the options that add them to a run
_ARGUMENTS = re.compile(r"\(\s*\w+\s*=[^)]*\)")  # of pytest 8.3: name(key=value)


def without_section(cluster: Cluster) -> dict[str, str]:
    """Return {suite: key} of the suites whose section the cluster file leaves out."""
    found = {}
    for suite in suites():
        model = suite.section
        if model is not None and issubclass(model, OptionalSection) and cluster.section(model) is None:
            found[suite.name] = SECTIONS[model]
    return found


def is_named(suite: Suite, config: pytest.Config) -> bool:
    """Return whether -m, a path or a node id selects a suite by its name."""
    expression = config.option.markexpr
    marks = _markers(suite)
    if expression and selects(expression, marks) and not selects(expression, set()):
        return True
    folder = suite_folders()[suite.name]
    return any(path.is_relative_to(folder) for path in _paths(config))


def left_out(config: pytest.Config, cluster: Cluster) -> list[str]:
    """Return the suites that a run would have with a section for them in the cluster file."""
    lacking = without_section(cluster)
    return [
        suite.name
        for suite in suites()
        if suite.name in lacking
        and is_collected(suite, config)
        and selects(config.option.markexpr, _markers(suite))
        and not is_named(suite, config)
    ]


def chosen(config: pytest.Config, cluster: Cluster) -> list[Suite]:
    """Return the suites that the paths and -m of a run select, as far as the cluster file has their section."""
    lacking = without_section(cluster)
    return [
        suite
        for suite in suites()
        if is_collected(suite, config)
        and selects((config.option.markexpr or "").strip(), _markers(suite))
        and (suite.name not in lacking or is_named(suite, config))
        and (suite.on_request is None or is_named(suite, config))
    ]


def names_of(config: pytest.Config, slurm: Slurm | None, cluster: Cluster) -> set[str]:
    """Return the suites whose verdicts a run will have: those chosen for which there is something to test."""
    return {suite.name for suite in chosen(config, cluster) if not _why_idle(suite, config, slurm, cluster)}


def idle(config: pytest.Config, slurm: Slurm | None, cluster: Cluster) -> dict[str, str]:
    """Return {suite: why there is nothing to test on this cluster}, of suites that the run leaves out for it."""
    selected = (
        suite for suite in suites() if is_collected(suite, config) and selects(config.option.markexpr, _markers(suite))
    )
    return {suite.name: why for suite in selected if (why := _why_idle(suite, config, slurm, cluster))}


def _why_idle(suite: Suite, config: pytest.Config, slurm: Slurm | None, cluster: Cluster) -> str:
    why = suite.idle
    if why is None or slurm is None or is_named(suite, config):
        return ""
    return str(why(slurm, cluster))


def ignores(path: Path, config: pytest.Config, session: ClusterSession) -> bool:
    """Return whether a path is a suite without a section, or with nothing to test, that is not selected by name."""
    folder = path.resolve()
    suite = next((suite for suite in suites() if suite_folders()[suite.name] == folder), None)
    if suite is None or is_named(suite, config):
        return False
    return suite.name in without_section(session.cluster) or bool(
        _why_idle(suite, config, session.slurm, session.cluster)
    )


def selects(expression: str, marks: set[str]) -> bool:
    """Return whether an expression of -m selects an item with these marks; True for one that pytest will refuse."""
    if not expression.strip():
        return True
    try:
        return _holds(ast.parse(_ARGUMENTS.sub("", expression).strip(), mode="eval").body, marks)
    except SyntaxError:
        return True


def _holds(part: ast.expr, marks: set[str]) -> bool:
    if isinstance(part, ast.BoolOp):
        return (all if isinstance(part.op, ast.And) else any)(_holds(it, marks) for it in part.values)
    if isinstance(part, ast.UnaryOp):
        return not _holds(part.operand, marks)
    return isinstance(part, ast.Name) and part.id in marks


def _markers(suite: Suite) -> set[str]:
    return {re.split(r"[:(]", line, maxsplit=1)[0] for line in suite.markers}


def _of_package(name: str) -> Path:
    """Return the path of a module that --pyargs names."""
    for suite, package in suite_packages().items():
        if name == package or name.startswith(f"{package}."):
            return suite_folders()[suite].joinpath(*name.removeprefix(package).split(".")[1:])
    return Path(suites_path()).resolve().parents[1].joinpath(*name.split("."))


def is_collected(suite: Suite, config: pytest.Config) -> bool:
    """Return whether a run collects from the folder of a suite, or from one above it."""
    folder = suite_folders()[suite.name]
    return any(folder.is_relative_to(path) for path in _paths(config))


def _paths(config: pytest.Config) -> Iterator[Path]:
    """Yield the paths that a run collects from."""
    for arg in config.args:
        name = arg.partition("::")[0]
        if config.option.pyargs and not (config.invocation_params.dir / name).exists():
            name = str(_of_package(name))
        yield (config.invocation_params.dir / name).resolve()


class ItemSelection:
    """What is left out of the items of a run, and what the others must prove."""

    def __init__(self, config: pytest.Config, session: ClusterSession) -> None:
        self._config, self._session = config, session
        # suite, why -> nodes; '' the cluster
        self._missing: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._on_request: dict[str, dict[str, int]] = {mark: Counter() for mark in ON_REQUEST}
        self.left_out: list[str] = []  # suites that run on request only

    def reduce(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the items that run; note which of those that are selected by name cannot."""
        option, lacking = self._config.option, without_section(self._session.cluster)
        named = {arg.rpartition("::")[2].partition("[")[0] for arg in self._config.args if "::" in arg}
        requested = {
            "slow": option.slow or "slow" in option.markexpr,
            "intrusive": option.intrusive,  # a mark may select them by chance
        }
        chosen = []
        scope = self._session.scope
        self._note_missing(items)
        for item in items:
            if scope.checks and not scope.has(check_of(item), node_of(item)):
                continue
            suite, marks = suite_of(item), marks_of(item)
            by_id = item.name.partition("[")[0] in named or check_of(item) in scope.asked
            unasked = [mark for mark in ON_REQUEST if mark in marks and not requested[mark]]
            if suite in lacking and item.path.resolve().is_relative_to(suite_folders()[suite]):
                why = f"the cluster file has no section `{lacking[suite]}` (add `{lacking[suite]}:`)"
                self._missing[suite, why].update(self._nodes(item))
            elif by_id and "intrusive" in unasked:
                why = f"{check_of(item)} disturbs users of the cluster for a short time: add --intrusive"
                self._missing[suite, why].update(self._nodes(item))
            elif unasked and not (by_id and unasked == ["slow"]):
                self._on_request[unasked[-1]][suite] += 1
            else:
                chosen.append(item)
        return chosen

    def _note_missing(self, items: Sequence[pytest.Item]) -> None:
        """Note the checks of the punch list that no item has; -m and -k leave them out on purpose."""
        option, asked = self._config.option, self._session.scope.asked
        if not asked or option.markexpr or option.keyword:
            return
        there = {(check_of(item), node_of(item)) for item in items}
        for check, nodes in asked.items():
            lacking = [node for node in nodes if not there.intersection(((check, node), (check, "")))]
            if lacking:
                why = f"no test of {check} was collected: repeat the options and paths of the run that found the item"
                self._missing[check.partition(".")[0], why].update(lacking)

    def event(self, items: Sequence[pytest.Item]) -> dict[str, Any]:
        """Return the fields of the `selection` event."""
        counts: dict[tuple[str, str, bool], Counter[str]] = defaultdict(Counter)
        for item in items:
            node = node_of(item)
            row = counts[suite_of(item), check_of(item), not node]
            for one in (node,) if node else self._nodes(item):
                row[one] += 1
        rows = [*self._rows(counts), *self._rows_without_items()]
        concerned = {node for row in counts.values() for node in row} | {
            node for nodes in self._missing.values() for node in nodes
        }
        selected = [node for node in self._session.plan.selected if node in concerned]
        return {
            "nodes": selected,
            "items": len(items),
            "suites_on_request": self.left_out,
            **write_required(rows),
            "on_request": {mark: dict(by_suite) for mark, by_suite in self._on_request.items() if by_suite},
        }

    def _nodes(self, item: pytest.Item) -> list[str]:
        """Return the nodes that an item is about; '' for one that is about the cluster without its nodes."""
        if node := node_of(item):
            return [node]
        plan = self._session.plan
        return [node for node in plan.selected if node not in plan.unreached] if needs_nodes(item) else [""]

    def _rows(self, counts: Mapping[tuple[str, str, bool], Counter[str]]) -> Iterator[Required]:
        proofs = {suite.name: suite.proof for suite in suites()}
        with_proof = {suite for suite, check, _ in counts if matches(check, (*proofs.get(suite, ()), *self._required))}
        of_suite: dict[str, dict[str, None]] = defaultdict(dict)
        together: dict[str, dict[str, None]] = defaultdict(dict)
        for (suite, _, whole), by_node in counts.items():
            of_suite[suite] |= dict.fromkeys([] if whole else by_node)
            together[suite] |= dict.fromkeys(filter(None, by_node) if whole else ())
        for (suite, check, whole), by_node in counts.items():
            everywhere = matches(check, (*proofs.get(suite, ()), *self._required)) is not None
            # a rerun of single checks must judge just these
            everywhere = everywhere or (suite in proofs and suite not in with_proof)
            nodes = [node for node in by_node if everywhere or self._requires(check, node)]
            for items in sorted({by_node[node] for node in nodes}):
                of_row = tuple(node for node in nodes if by_node[node] == items)
                if of_row == ("",):  # a result about the cluster counts for the nodes that its suite is about
                    of_row = tuple(of_suite[suite] or together[suite]) or of_row
                yield Required(suite, check, items, of_row, whole=whole)
        # tests of the site state no proof
        for suite, of_nodes in of_suite.items():
            if suite not in proofs and of_nodes:
                yield Required(suite, "", 1, tuple(of_nodes))
        for suite in dict.fromkeys(suite for suite, _, whole in counts if whole and suite not in proofs):
            if of_all := tuple(together[suite]):
                yield Required(suite, "", 1, of_all, whole=True)

    def _rows_without_items(self) -> Iterator[Required]:
        for (suite, why), nodes in self._missing.items():
            known = [node for node in ("", *self._session.plan.selected) if node in nodes]
            of_nodes = tuple(filter(None, known)) or tuple(known)
            yield Required(suite, "", 0, of_nodes, missing=why)

    @property
    def _required(self) -> tuple[str, ...]:
        return self._session.cluster.required

    def _requires(self, check: str, node: str) -> bool:
        """Return whether the profile of a node requires a check, or an item of the punch list that is done."""
        if node in self._session.scope.asked.get(check, ()):
            return True
        known = self._session.nodes.get(node)
        return known is not None and matches(check, known.profile.required) is not None


NAME = "suites"


def choose(config: pytest.Config, folders: Sequence[str] = ()) -> list[str]:
    """Return the paths to collect: those of the command line, or the site's own tests and the registered suites.

    `folders`: the `suites` of the cluster file; ConfigError for one that does not exist.
    """
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        if config.option.pyargs:
            return config.args
        return [path for arg in config.args for path in _found(config, arg)]
    here = config.invocation_params.dir
    own = config.args
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
        # of a folder without a project only its own files: it may be a home folder
        own = [str(here)] if config.inipath is not None else [str(path) for path in sorted(here.glob("test_*.py"))]
    for folder in folders:
        if not Path(folder).is_dir():
            raise ConfigError(f"suites: {folder} is not a folder")
    own = list(dict.fromkeys(_installed(here, arg) for arg in own))
    covered = [here / arg for arg in own]  # pytest 8.0 collects only the second of two paths that overlap
    own = [*own, *(it for it in folders if not any((here / it).is_relative_to(path) for path in covered))]
    present = [(here / arg).resolve() for arg in own]
    return [*own, *(root for root in roots() if not any(path.is_relative_to(root) for path in present))]


def roots() -> list[str]:
    """Return the folder of the shipped suites, and those of other distributions' suites."""
    return [suites_path(), *(str(it) for it in suite_folders().values() if not it.is_relative_to(_root()))]


def _found(config: pytest.Config, arg: str) -> list[str]:
    """Return arguments that pytest finds: of an id of a registered suite the path where that is installed, of `suites` all."""
    path, *rest = arg.split("::", 1)
    parts = [part for part in PurePath(path).parts if part != ".."]
    here = config.invocation_params.dir
    if parts[:1] != [NAME] or (here / path).exists():
        return ["::".join((_installed(here, path), *rest))]
    if parts[1:] == []:
        return roots()
    folder = suite_folders().get(parts[1])
    found = folder.joinpath(*parts[2:]) if folder else None
    return ["::".join((str(found), *rest))] if found and found.exists() else [arg]


def _installed(here: Path, arg: str) -> str:
    """Return the path, or, of one in another copy of the package as in a checkout, the same one in that which runs."""
    path = (here / arg).resolve()
    copy = next((it for it in (path, *path.parents) if it.parts[-2:] == _root().parts[-2:]), _root())
    return arg if copy == _root() else str(_root() / path.relative_to(copy))


@cache
def _root() -> Path:
    return Path(suites_path()).resolve()


WHY_NOT: pytest.StashKey[NotApplicable] = pytest.StashKey()


class Collection:
    """Registered in the controller and in every xdist worker."""

    def __init__(self, config: pytest.Config, session: ClusterSession) -> None:
        self._config, self._session, self._given = config, session, fixtures.of_plugin(session, config)
        self._selection = ItemSelection(config, session)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the suites without a section; one that is selected by name is reported as not proved."""
        return ignores(collection_path, self._config, self._session) or None

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> Any:
        """Collect the files of registered suites under ids that do not depend on the place of the installation."""
        path = module_path.resolve()
        found = next((it for it in suite_folders().items() if path.is_relative_to(it[1])), None)
        if found is None:
            return None
        name, folder = found
        inside = path.relative_to(folder).as_posix()
        options: dict[str, Any] = {"path": module_path, "nodeid": f"{NAME}/{name}/{inside}"}
        if inside != f"test_{name}.py":
            return pytest.Module.from_parent(parent, **options)
        module = f"{suite_packages()[name]}.test_{name}"
        return SuiteFile.from_parent(parent, module=module, run=self._session, known=self._given, **options)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item per node of every test of a site that asks for its node."""
        if "gpucluster_node" not in metafunc.fixturenames:
            return
        if hasattr(metafunc.module, "testinfra_hosts"):
            raise pytest.UsageError(
                f"testinfra_hosts of {metafunc.module.__file__} has no effect with --cluster, whose file names the nodes: "
                "remove it, and select nodes with --nodes=HOSTLIST"
            )
        metafunc.parametrize("gpucluster_node", self._session.plan.selected, indirect=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Switch the garbage collector off: it would search all items again and again."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.collect()  # items that were made and not chosen, which freeze() would retain
            gc.freeze()
            gc.enable()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what runs on request only; skip what does not apply to the cluster or profile."""
        self._leave_out_unasked(items)
        chosen = self._selection.reduce(items)
        if len(chosen) < len(items):
            running = set(chosen)
            self._config.hook.pytest_deselected(items=[item for item in items if item not in running])
            items[:] = chosen
        for item in items:
            reason = self._why_not(check_of(item), node_of(item)) or self._why_unreached(item)
            if reason:
                item.stash[WHY_NOT] = NotApplicable(reason)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """End an item that does not apply before anything is done for it."""
        if (why_not := item.stash.get(WHY_NOT, None)) is not None:
            raise why_not

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """State what the run must prove; an xdist worker sends it to the controller, which has no items."""
        run = self._session
        if self._config.pluginmanager.has_plugin("dsession"):
            return
        run.selection = self._selection.event(session.items)
        if isinstance(run, Worker) and run.relay is not None:
            run.relay.call("selection", run.selection)

    def _leave_out_unasked(self, items: list[pytest.Item]) -> None:
        """Leave suites out of a run that did not ask for them, be it by naming nothing else."""
        for suite in suites():
            module = suite.on_request
            if module is None or module.requested(self._config.option):
                continue
            gone = [item for item in items if suite.name in marks_of(item)]
            if gone and len(gone) < len(items):
                self._config.hook.pytest_deselected(items=gone)
                self._selection.left_out.append(suite.name)
                items[:] = [item for item in items if suite.name not in marks_of(item)]

    def _why_not(self, check: str, node: str) -> str:
        """Return why a check does not apply to a node, '' where it does."""
        rules: Mapping[str, str] = self._session.cluster.not_applicable
        if node and (absent := self._session.nodes[node].profile.absent):
            rules = {**rules, **absent}
        pattern = matches(check, tuple(rules)) if rules else None
        return rules[pattern] if pattern is not None else ""

    def _why_unreached(self, item: pytest.Item) -> str:
        """Return why an item does not apply to a node that only the section of another suite names; '' where it does."""
        session, node = self._session, node_of(item)
        if not session.plan.unreached:
            return ""
        if node not in session.plan.unreached:
            # an item of all nodes needs one that can be reached
            needs_commands = needs_nodes(item) and not node and not session.plan.testable
            return session.cluster.why_no_slurm if needs_commands else ""
        own = session.cluster.group_of(node).section in marks_of(item)
        return "" if own else session.cluster.unreachable(node)

    def readers(
        self, items: Sequence[pytest.Item], nodes: Sequence[str]
    ) -> dict[tuple[str, str], tuple[Probe[Any], CheckTest]]:
        """Return {name, command: (probe, the last test that reads it)} where these nodes are under test."""
        found, cluster = {}, self._session.cluster
        tests = [item.test for item in one_per_test(items) if isinstance(item, CheckItem)]
        for test in tests:
            asking = [fact.probes for fact in test.steps if fact.probes]
            for probe in (probe for needed in asking for probe in needed(cluster, nodes)):
                found[probe.name, probe.command] = probe, test
        return found
