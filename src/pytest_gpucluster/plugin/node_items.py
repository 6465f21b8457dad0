"""One item for each node of a test whose fixtures are all facts (`suite.fact`), without pytest's fixture machinery.

pytest collects the test for one node, by its own rules; the items of all nodes take its place, and share what it knows.
A test with any other fixture (with a yield, parameters or `request`, autouse), a method, and a test that another plugin
parametrises or makes are left to pytest, parametrised by the node.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.plugin.facts import ItemView
from pytest_gpucluster.plugin.item_result import Record
from pytest_gpucluster.suite import Fact, arguments_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_gpucluster.plugin.session import ClusterSession

    FixtureScope = Literal["session", "package", "module", "class", "function"]

SESSION, ITEM = "gpucluster_session", "gpucluster_item"  # the fixtures that all others are made of
BY_NODE = ("node", "host")  # the fixtures that pytest parametrises by nodes
SCOPES: tuple[FixtureScope, ...] = ("function", "class", "module", "package", "session")
NEEDS_NODES = {"node", "nodes", "allocation", "fleet", "fleet_facts", "host", "facts", "srun", "lane_nodes"}
RECORD: pytest.StashKey[Record] = pytest.StashKey()
PLAIN = {"pytestmark", "__wrapped__", "__signature__"}  # what pytest.mark and suite.checks_as_tests set
NO_PLAIN_FUNCTIONS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class NodeTest:
    """What the items of one test share. `template` is the Function that pytest made for the first node."""

    def __init__(self, template: pytest.Function, facts: Mapping[str, Fact], session: ClusterSession) -> None:
        self.function: Callable[..., Any] = template.obj
        self.name, self._session = template.originalname, session
        self.module, self.fixturenames = template.module, list(template.fixturenames)
        self.own_markers = list(template.own_markers)
        self.keywords = {mark.name: mark for mark in self.own_markers}
        self.marks = frozenset(mark.name for mark in template.iter_markers())
        self.file, self.line, _ = template.location
        self.path = template.reportinfo()[0]
        self.suite = template.path.stem.removeprefix("test_")
        self.check = f"{self.suite}.{self.name.removeprefix('test_')}"
        self._arguments = arguments_of(self.function)
        self._steps: dict[str, Fact] = {}  # in the order in which pytest makes them
        self.needs: set[str] = set()  # facts of the test, directly or not; without those of its marks
        for name in self._arguments:
            self._add(name, facts)
        self.needs.update(self._arguments, self._steps)
        for name in self.fixturenames:
            self._add(name, facts)

    def _add(self, name: str, facts: Mapping[str, Fact]) -> None:
        if name not in self._steps and name in facts:
            for argument in facts[name].arguments:
                self._add(argument, facts)
            self._steps[name] = facts[name]

    def arguments(self, record: Record) -> dict[str, Any]:
        """Make the facts of the item with this record; return the arguments of the test."""
        session = self._session
        values: dict[str, Any] = {SESSION: session, ITEM: ItemView(session, record)}
        for name, fact in self._steps.items():
            function, given = fact.function, {argument: values[argument] for argument in fact.arguments}
            values[name] = once(session.made, function, given) if fact.once else function(**given)
        return {argument: values[argument] for argument in self._arguments}


def once(made: dict[Any, Any], function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return what the function returned, or raise what it raised, when it was first called."""
    if function not in made:
        try:
            made[function] = function(**arguments), None, None
        except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised below
            made[function] = None, error, error.__traceback__
    value, broken, traceback = made[function]
    if broken is not None:
        raise broken.with_traceback(traceback)
    return value


class NodeItem(pytest.Item):
    """A test on one node."""

    __slots__ = ("arguments", "node_name", "prints", "record", "skipped", "test")  # a run has many thousands

    def __init__(self, *, test: NodeTest, node_name: str, **options: Any) -> None:
        super().__init__(**options)
        self.test, self.node_name = test, node_name
        self.record: Record | None = None  # while the item runs
        self.arguments: dict[str, Any] | None = None  # from setup to teardown
        self.skipped = False  # by a fact: pytest's summary then shows where the test is
        self.prints = False  # in its teardown
        if test.own_markers:
            self.own_markers.extend(test.own_markers)
            self.keywords.update(test.keywords)

    # the rest of what other plugins expect of a test function
    cls = None
    obj = function = property(attrgetter("test.function"), doc="The test function.")
    originalname = property(attrgetter("test.name"), doc="The name of the test function.")
    module = property(attrgetter("test.module"), doc="The module of the test.")
    fixturenames = property(
        attrgetter("test.fixturenames"), doc="The fixtures that the test uses, directly or not."
    )

    @property
    def location(self) -> tuple[str, int | None, str]:
        """File, line and name."""
        return self.test.file, self.test.line, self.name

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return where the test is, or the check it was made of."""
        return self.test.path, self.test.line, self.name

    def setup(self) -> None:
        """Make the facts; what is broken here is no verdict on the node."""
        try:
            self.arguments = {} if self.config.option.setupplan else self.test.arguments(record_of(self))
        except pytest.skip.Exception:
            self.skipped = True
            raise

    def runtest(self) -> None:
        """Judge."""
        assert self.arguments is not None  # setup() has made them
        self.test.function(**self.arguments)

    def teardown(self) -> None:
        """Let go of the facts."""
        self.arguments = None

    def add_report_section(self, when: str, key: str, content: str) -> None:
        """Add what was captured; what a teardown printed needs its report."""
        self.prints = self.prints or (when == "teardown" and bool(content))
        super().add_report_section(when, key, content)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the frames of the test and of its facts, as pytest does for a function."""
        option = self.config.option
        style = style or option.tbstyle
        return excinfo.getrepr(
            funcargs=True,
            showlocals=option.showlocals,
            style="long" if style == "auto" else style,
            abspath=False,
            tbfilter=False if option.fulltrace else self._shorter,
            truncate_locals=self.config.get_verbosity() <= 1,
        )

    def _shorter(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        entries = excinfo.traceback
        last = max((at for at, entry in enumerate(entries) if str(entry.path) == __file__), default=-1)
        return entries[last + 1 :].filter(excinfo) or entries


class Maker:
    """Makes the items of one run, for all nodes under test."""

    def __init__(self, config: pytest.Config, session: ClusterSession, own: Any) -> None:
        self.definitions = Definitions(config, own)
        self._session, self._nodes = session, session.plan.selected
        # made once: pytest would make and check them again for every test
        self._params = {
            count: [pytest.param(*[node] * count, id=node) for node in self._nodes]
            for count in range(1, len(BY_NODE) + 1)
        }
        self._facts: dict[str, Fact] | None = None  # of the test that pytest makes for one node now
        self._left_to_pytest = self._shows_fixtures = config.option.show_fixtures_per_test

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Parametrise a test by nodes: by the first only, where `items` makes the items."""
        if hasattr(metafunc.module, "testinfra_hosts"):
            raise pytest.UsageError(
                f"testinfra_hosts of {metafunc.module.__file__} has no effect with --cluster, whose file names the nodes: "
                "remove it, and select nodes with --nodes=HOSTLIST"
            )
        self._facts = None if self._left_to_pytest else self._all_facts(metafunc)
        find = partial(self.definitions.find, path=Path(metafunc.module.__file__), holder=metafunc.module)
        # both directly: a fixture of the module or the session may use both, and gets their scope
        names = [
            name
            for name in BY_NODE
            if name in metafunc.fixturenames and (name == "node" or hasattr(find(name), "gpucluster_fact"))
        ]
        params, scope = self._params[len(names)], SCOPES[0]
        if self._facts is not None:
            params = params[:1]
        else:
            scope = widest_scope({name: find(name) for name in metafunc.fixturenames})
        metafunc.parametrize(names, params, indirect=True, scope=scope)

    def _all_facts(self, metafunc: pytest.Metafunc) -> dict[str, Fact] | None:
        """Return the facts that a test needs, directly or not; None where it needs another fixture too."""
        function = metafunc.function
        found: dict[str, Fact | None] = {}
        for name in metafunc.fixturenames:
            definition = self.definitions.find(name, Path(metafunc.module.__file__), metafunc.module)
            fact = getattr(definition, "gpucluster_fact", None)
            if name == "request":  # of ITEM; a test or fact that uses it itself is found below
                continue
            overrides = fact is not None and name in fact.arguments
            if name not in (SESSION, ITEM) and (fact is None or overrides):
                return None
            found[name] = fact
        facts = {name: it for name, it in found.items() if it is not None}
        needed = {name for it in facts.values() for name in it.arguments}
        of_items = {ITEM, *(name for name, it in facts.items() if not it.once)}
        if any(it.once and of_items & {*it.arguments} for it in facts.values()):  # pytest refuses that
            return None
        plain = metafunc.cls is None and vars(function).keys() <= PLAIN and inspect.isfunction(function)
        if not plain or not {*needed, *arguments_of(function)} - {SESSION, ITEM} <= found.keys():
            return None
        if any(is_kind(function) for is_kind in NO_PLAIN_FUNCTIONS):
            return None
        return facts

    def items(self, made: Any, make_all: Callable[[], Any]) -> Any:
        """Return the items of a test for which pytest has `made` one; with `make_all` pytest makes those of all nodes."""
        facts, self._facts = self._facts, None
        if facts is None:
            return made
        if isinstance(made, list) and [type(item) for item in made] == [pytest.Function]:
            (template,) = made
            if template.name == f"{template.originalname}[{self._nodes[0]}]":
                return self._items(template, facts)
        self._left_to_pytest = True  # another plugin parametrises the test too, or makes items of its own
        try:
            return make_all()
        finally:
            self._left_to_pytest = self._shows_fixtures

    def _items(self, template: pytest.Function, facts: dict[str, Fact]) -> list[NodeItem]:
        test, parent = NodeTest(template, facts, self._session), template.parent
        assert parent is not None  # the module
        return [
            NodeItem.from_parent(
                parent,
                name=f"{test.name}[{node}]",
                nodeid=f"{parent.nodeid}::{test.name}[{node}]",  # given whole, so that pytest sees the parameter
                test=test,
                node_name=node,
            )
            for node in self._nodes
        ]


class Definitions:
    """Finds what a fixture's name means, as pytest does: in the module, a conftest.py above it, here, another plugin."""

    def __init__(self, config: pytest.Config, own: Any) -> None:
        self._manager, self._own = config.pluginmanager, own

    def find(self, name: str, path: Path, holder: Any) -> Any:
        """Return the fixture that a test at `path` gets; None for none. `holder` is its module or class."""
        if (found := getattr(holder, name, None)) is not None:
            return found
        plugins = (plugin for plugin in self._manager.get_plugins() if plugin is not self._own)
        there = [(depth, vars(it)[name]) for it in plugins if (depth := _depth(it, name, path)) is not None]
        depth, nearest = max(there, key=lambda pair: pair[0], default=(0, None))
        own = getattr(self._own, name, None)
        return (
            nearest if depth or own is None else own
        )  # those of this plugin are registered after other plugins'


def widest_scope(definitions: Mapping[str, Any]) -> FixtureScope:
    """Return the widest scope of the fixtures that use a node, directly or not; pytest checks that it is wide enough.

    It is read off the decorators: pytest has no documented attribute for the scope of a fixture before the set-up.
    """
    plain = {
        name: getattr(found, "__wrapped__", found)
        for name, found in definitions.items()
        if name not in BY_NODE and not hasattr(found, "gpucluster_fact") and callable(found)
    }
    using = {*BY_NODE}
    while more := {
        name for name, function in plain.items() if name not in using and using & {*arguments_of(function)}
    }:
        using |= more
    scopes = [_scope_of(plain[name]) for name in using & plain.keys()]
    return max(scopes, key=SCOPES.index, default="function")


def _scope_of(function: Any) -> FixtureScope:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return "session"
    words = [
        word
        for part in ast.walk(tree)
        if isinstance(part, ast.Call)
        for word in part.keywords
        if word.arg == "scope"
    ]
    if not words:
        return "function"
    scope = words[0].value
    return next((one for one in SCOPES if isinstance(scope, ast.Constant) and scope.value == one), "session")


def _depth(plugin: Any, name: str, path: Path) -> int | None:
    """Return how near to a test a plugin is that has a fixture of this name; None where it has none for the test."""
    if not inspect.ismodule(plugin) or not hasattr(vars(plugin).get(name), "__wrapped__"):
        return None
    file = Path(getattr(plugin, "__file__", None) or "")
    if file.name != "conftest.py":
        return 0
    return len(file.parts) if file.parent in path.parents else None


def record_of(item: pytest.Item) -> Record:
    """Return the record of an item, made at the first call."""
    if type(item) is NodeItem:
        if item.record is None:
            item.record = Record(item.test.suite, item.test.check, item.node_name)
        return item.record
    return item.stash.setdefault(RECORD, Record(suite_of(item), check_of(item), node_of(item)))


def suite_of(item: pytest.Item) -> str:
    """Return the suite of an item: SUITE of test_SUITE.py."""
    return item.test.suite if type(item) is NodeItem else item.path.stem.removeprefix("test_")


def check_of(item: pytest.Item) -> str:
    """Return the check of an item: SUITE.WHAT of test_SUITE.py::test_WHAT."""
    if type(item) is NodeItem:
        return item.test.check
    return f"{suite_of(item)}.{getattr(item, 'originalname', item.name).removeprefix('test_')}"


def node_of(item: pytest.Item) -> str:
    """Return the node that an item is parametrised for, '' for an item about the whole cluster."""
    if type(item) is NodeItem:
        return item.node_name
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("node", "")) if callspec else ""


def phases(item: pytest.Item, following: pytest.Item | None) -> Iterator[pytest.CallInfo[None]]:
    """Run setup, test and teardown of an item as pytest does; yield how each ended, before the next one starts."""
    hook, ending = item.ihook, (KeyboardInterrupt, pytest.exit.Exception)
    call = pytest.CallInfo.from_call(lambda: hook.pytest_runtest_setup(item=item), "setup", ending)
    yield call
    if call.excinfo is None:
        yield pytest.CallInfo.from_call(lambda: hook.pytest_runtest_call(item=item), "call", ending)
    following = None if item.session.shouldfail or item.session.shouldstop else following
    down = hook.pytest_runtest_teardown
    yield pytest.CallInfo.from_call(lambda: down(item=item, nextitem=following), "teardown", ending)


def marks_of(item: pytest.Item) -> frozenset[str]:
    """Return the names of an item's marks; those that all items of a test share are read once."""
    return item.test.marks if type(item) is NodeItem else frozenset(mark.name for mark in item.iter_markers())


def kinds(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield one item of each test, and every item that is no NodeItem."""
    seen: set[NodeTest] = set()
    for item in items:
        if type(item) is NodeItem:
            if item.test in seen:
                continue
            seen.add(item.test)
        yield item


def needs_nodes(item: pytest.Item) -> bool:
    """Return True where an item needs an allocation: it uses nodes, and is not about the inventory only."""
    names = set(getattr(item, "fixturenames", ()))
    works = (suite.before_allocation for suite in suites())
    asking = {work.fixture for work in works if work is not None and work.needs_nodes}
    return bool(names & (NEEDS_NODES | asking)) and not item.get_closest_marker("inventory")
