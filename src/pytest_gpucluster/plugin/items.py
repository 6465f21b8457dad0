"""The items of suites: one for each check, for each node where the check needs one; what one found out; how it runs.

pytest collects the file of a suite as a `SuiteFile`; its items make their facts themselves, without pytest's fixtures.
"""

from __future__ import annotations

import bdb
import inspect
import os
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import SuiteError
from pytest_gpucluster.config.validation_errors import nearest
from pytest_gpucluster.core import given
from pytest_gpucluster.core.check import Check
from pytest_gpucluster.core.fact import arguments_of, in_order
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.run.facts import ItemView, facts_of, make, named, names_of
from pytest_gpucluster.run.item_record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.core.fact import Fact
    from pytest_gpucluster.run.session import ClusterSession
    from pytest_gpucluster.suite import Tests


WAIVED = "waived"


@lru_cache(1 << 12)  # the same for all nodes
def matches(check: str, patterns: tuple[str, ...]) -> str | None:
    """Return the first pattern (fnmatch, like 'gpu.*') that a check's name matches."""
    return next((pattern for pattern in patterns if fnmatchcase(check, pattern)), None)


NEEDS_NODES = {"node", "nodes", "allocation", "fleet", "fleet_facts", "host", "facts", "srun", "lane_nodes"}
FIXTURES = "gpucluster"  # how their names begin
RECORD: pytest.StashKey[Record] = pytest.StashKey()


class SuiteFile(pytest.File):
    """The file test_SUITE.py of a suite. `module`: its name. `known`: the facts that the plugin gives."""

    def __init__(self, *, module: str, run: ClusterSession, known: Mapping[Fact[Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.run, self._module, self.known = run, module, known

    def collect(self) -> Iterator[CheckItem]:
        """Yield the items of each check, for all nodes under test."""
        try:
            self.obj = module = import_module(self._module)
        except SuiteError as error:
            raise pytest.Collector.CollectError(f"{self._module}: {error}") from error
        tests: Tests | None = getattr(module, "TESTS", None)
        if tests is None:
            raise pytest.Collector.CollectError(f"{self._module} must have TESTS = Tests(MODULES, marks=...)")
        marks = [getattr(pytest.mark, name).mark for name in tests.marks]
        self.own_markers.extend(marks)
        self.keywords.update({mark.name: mark for mark in marks})
        facts = facts_of(module)
        functions = [it for name, it in vars(module).items() if name.startswith("test_") and inspect.isfunction(it)]
        judges: list[Check[Any] | Callable[..., Any]] = [*tests.checks(), *functions]
        names = names_of(facts)
        made = [CheckTest(one, self, facts, names, tests.needs) for one in judges]
        refuse_unknown_proof(self._module, {test.check for test in made})
        for test in made:
            yield from self._items(test)

    def _items(self, test: CheckTest) -> Iterator[CheckItem]:
        nodes = self.run.plan.selected if "node" in test.fixturenames else ("",)
        for word, value in test.values(self.run.cluster):
            for node in nodes:
                inside = "-".join(filter(None, (word, node)))
                name = f"{test.name}[{inside}]" if inside else test.name
                # given whole, so that pytest sees the parameter
                options = {
                    "name": name,
                    "nodeid": f"{self.nodeid}::{name}",
                    "test": test,
                    "node_name": node,
                    "value": value,
                }
                yield CheckItem.from_parent(self, **options)


class CheckTest:
    """What the items of one check share. `check`: a check, or a function that returns a verdict."""

    def __init__(
        self,
        check: Check[...] | Callable[..., Any],
        file: SuiteFile,
        facts: Mapping[str, Fact[Any]],
        names: Mapping[Fact[Any], str],
        needs: Sequence[Fact[Any]],
    ) -> None:
        self.module, self.run, self._known = file.obj, file.run, file.known
        self.suite = file.path.stem.removeprefix("test_")
        # pytest shows its file, its line and its frames
        self.function: Callable[..., Any] = inspect.unwrap(check)
        self._check = check
        if isinstance(check, Check):
            what, parameters, marks = check.name.partition(".")[2], check.facts, check.marks
        else:
            what, parameters, marks = check.__name__.removeprefix("test_"), arguments_of(check), ()
        self.name, self.check = f"test_{what}", f"{self.suite}.{what}"
        self.own_markers = [getattr(pytest.mark, name).mark for name in marks]
        self.keywords = {mark.name: mark for mark in self.own_markers}
        self.marks = frozenset(mark.name for mark in (*file.own_markers, *self.own_markers))
        try:
            self._arguments = named(parameters, facts, self.check)
        except SuiteError as error:
            raise pytest.Collector.CollectError(str(error)) from error
        own = self._arguments.values()
        self.steps = in_order((*needs, *own))
        # of the check itself, directly or not; without those that all items of the file need
        self.needs = {names[it] for it in in_order(own) if it in names}
        self.fixturenames = [names[it] for it in self.steps if it in names and it not in given.INPUTS]
        code = self.function.__code__
        self.path, self.line = code.co_filename, code.co_firstlineno - 1
        self.file = os.path.relpath(self.path, file.config.rootpath)

    def values(self, cluster: Any) -> list[tuple[str, dict[Fact[Any], Any]]]:
        """Return (word in the name, {fact: value}) of each item on a node."""
        several = {fact: fact.values(cluster) for fact in self.steps if fact.values is not None}
        if not several:
            return [("", {})]
        (fact, values), *more = several.items()
        assert not more, f"{self.check} needs two facts with several values"
        return [(word, {fact: value}) for word, value in values.items()]

    def arguments(self, item: CheckItem) -> dict[Fact[Any], Any]:
        """Make the facts of an item; return all of them."""
        return make(self.steps, ItemView(self.run, record_of(item)), {**self._known, **item.value})

    def judge(self, values: dict[Fact[Any], Any]) -> None:
        """Judge the facts of an item."""
        __tracebackhide__ = True
        arguments = {name: values[fact] for name, fact in self._arguments.items()}
        check = self._check
        verdict = check.of_facts(arguments) if isinstance(check, Check) else check(**arguments)
        if verdict is not None:
            values[given.item].expect(verdict)


def refuse_unknown_proof(module: str, checks: Collection[str]) -> None:
    """Raise CollectError where a suite names a proof that none of its checks can give: it would prove nothing, unnoticed."""
    for suite in (one for one in suites() if module.startswith(f"{one.package}.")):
        for pattern in suite.proof:
            if not any(fnmatchcase(check, pattern) for check in checks):
                hint = nearest(pattern, checks) or ": write whole names, like 'gpu.count'"
                raise pytest.Collector.CollectError(
                    f"the suite {suite.name} has no check {pattern!r}, which its `proof` names{hint}"
                )


class CheckItem(pytest.Item):
    """A check on one node, or on the cluster."""

    __slots__ = ("facts", "node_name", "prints", "record", "test", "value")  # a run has many thousands

    def __init__(self, *, test: CheckTest, node_name: str, value: Mapping[Fact[Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.test, self.node_name, self.value = test, node_name, value
        self.record: Record | None = None  # while the item runs
        self.facts: dict[Fact[Any], Any] | None = None  # from setup to teardown
        self.prints = False  # in its teardown
        if test.own_markers:
            self.own_markers.extend(test.own_markers)
            self.keywords.update(test.keywords)

    # the rest of what other plugins expect of a test function
    cls = None
    obj = function = property(attrgetter("test.function"), doc="The function of the check.")
    originalname = property(attrgetter("test.name"), doc="The name without parameters.")
    module = property(attrgetter("test.module"), doc="The module of the file.")
    fixturenames = property(attrgetter("test.fixturenames"), doc="The facts that the item needs, directly or not.")

    @property
    def location(self) -> tuple[str, int | None, str]:
        """File, line and name."""
        return self.test.file, self.test.line, self.name

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return where the check is."""
        return self.test.path, self.test.line, self.name

    def setup(self) -> None:
        """Make the facts; what is broken here is no verdict on the node."""
        self.facts = {} if self.config.option.setupplan else self.test.arguments(self)

    def runtest(self) -> None:
        """Judge."""
        assert self.facts is not None  # setup() has made them
        self.test.judge(self.facts)

    def teardown(self) -> None:
        """Let go of the facts."""
        self.facts = None

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
        return entries[last + 1 :].filter(excinfo) or entries[-1:]


def record_of(item: pytest.Item) -> Record:
    """Return the record of an item, made at the first call."""
    if type(item) is CheckItem:
        if item.record is None:
            item.record = Record(item.test.suite, item.test.check, item.node_name)
        return item.record
    return item.stash.setdefault(RECORD, Record(suite_of(item), check_of(item), node_of(item)))


def suite_of(item: pytest.Item) -> str:
    """Return the suite of an item: SUITE of test_SUITE.py."""
    return item.test.suite if type(item) is CheckItem else item.path.stem.removeprefix("test_")


def check_of(item: pytest.Item) -> str:
    """Return the check of an item: the one that a site's module declares for test_WHAT, else SUITE.WHAT of test_SUITE.py."""
    if type(item) is CheckItem:
        return item.test.check
    what = getattr(item, "originalname", item.name).removeprefix("test_")
    known = vars(item.module).values() if hasattr(item, "module") else ()
    declared = (it.name for it in known if isinstance(it, Check) and it.name.partition(".")[2] == what)
    return next(declared, f"{suite_of(item)}.{what}")


def node_of(item: pytest.Item) -> str:
    """Return the node that an item is parametrised for, '' for an item about the whole cluster."""
    if type(item) is CheckItem:
        return item.node_name
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("gpucluster_node", "")) if callspec else ""


def used_by(item: pytest.Item) -> set[str]:
    """Return the names of the facts that an item needs; of a site's test those that its fixtures stand for."""
    names = getattr(item, "fixturenames", ())
    if type(item) is CheckItem:
        return set(names)
    return {name.removeprefix(f"{FIXTURES}_") for name in names if name.startswith(FIXTURES)}


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
    return item.test.marks if type(item) is CheckItem else frozenset(mark.name for mark in item.iter_markers())


def one_per_test(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield one item of each test, and every item that is no CheckItem."""
    seen: set[CheckTest] = set()
    for item in items:
        if type(item) is CheckItem:
            if item.test in seen:
                continue
            seen.add(item.test)
        yield item


def needs_nodes(item: pytest.Item) -> bool:
    """Return True where an item needs an allocation: it uses nodes, and is not about the inventory only."""
    works = (suite.before_allocation for suite in suites())
    asking = {work.fixture for work in works if work is not None and work.needs_nodes}
    return bool(used_by(item) & (NEEDS_NODES | asking)) and not item.get_closest_marker("inventory")


READERS = ("makereport", "logreport")  # pytest_runtest_...
# by their modules: pytest's own plugins read nothing of such a report unless one of OPTIONS is given
NEUTRAL = (pytest.Item.__module__.partition(".")[0], __name__.partition(".")[0])
OPTIONS = ("durations", "setuponly", "setupshow", "usepdb", "xmlpath")


class ItemProtocol:
    """Registered in a run without xdist: its workers send all reports to the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reduced: bool | None = None  # unknown until the first item: plugins may come until then

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run an item of the plugin's own; leave others, and those that need all reports, to pytest."""
        if type(item) is not CheckItem:
            return None
        if self._reduced is None:
            self._reduced = not any(map(self._config.option.__dict__.get, OPTIONS)) and self._is_alone()
        if not self._reduced:
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for call in phases(item, nextitem):
            if call.excinfo is None and call.when != "call" and not (item.prints and call.when == "teardown"):
                continue
            report: pytest.TestReport = hook.pytest_runtest_makereport(item=item, call=call)
            hook.pytest_runtest_logreport(report=report)
            if call.excinfo is not None and not isinstance(call.excinfo.value, (pytest.skip.Exception, bdb.BdbQuit)):
                hook.pytest_exception_interact(node=item, call=call, report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _is_alone(self) -> bool:
        """Return True where only pytest and this plugin make and read reports, and no other runs items."""
        hook = self._config.hook
        callers = [getattr(hook, f"pytest_runtest_{name}") for name in READERS]
        known = [it for caller in (*callers, hook.pytest_report_teststatus) for it in caller.get_hookimpls()]
        known += [it for it in hook.pytest_runtest_protocol.get_hookimpls() if not (it.wrapper or it.hookwrapper)]
        return all(it.function.__module__.partition(".")[0] in NEUTRAL for it in known)
