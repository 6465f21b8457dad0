"""A NodeItem run in one go: what pytest's hooks of setup, call and teardown do for it, without calling them.

Half a millisecond an item goes into machinery that has nothing to do for a test that takes what is known and judges it.
`Swift.run` does what has an effect: fixtures, capturing of output and logs, reports, and the hooks that report. It
leaves an item to pytest where anything else might have a say: another plugin with such a hook, a mark that skips, a
fixture with a teardown, the first and last item of a file, and a session fixture that is not there yet or has failed.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from _pytest import runner  # not names of it: only the releases that this file knows need to have them
from _pytest.junitxml import xml_key
from _pytest.logging import catching_logs

from pytest_gpucluster.plugin.node_items import NodeItem, own_marks, plugins
from pytest_gpucluster.report import junit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.plugin.junit_stream import Testcases
    from pytest_gpucluster.plugin.node_items import Shared

OURS = {"gpucluster-hooks", "gpucluster-drain"}
STOPS = {"skip", "skipif", "xfail"}
NO_PLAIN_FUNCTIONS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
# (plugin, wrapper or not) of every hook that we leave out: what each does is done here, or is nothing for a NodeItem
KNOWN: dict[str, set[tuple[str, bool]]] = {
    "pytest_runtest_setup": {
        *(("skipping", False), ("runner", False), ("capturemanager", True), ("logging-plugin", True)),
        *(("unraisableexception", False), ("threadexception", False), ("gpucluster-hooks", False)),
    },
    "pytest_runtest_call": {
        *(("skipping", True), ("runner", False), ("capturemanager", True), ("logging-plugin", True)),
        *(("unraisableexception", False), ("threadexception", False), ("hypothesispytest", True)),
    },
    "pytest_runtest_teardown": {
        *(("runner", False), ("capturemanager", True), ("logging-plugin", True)),
        *(("unraisableexception", False), ("threadexception", False)),
    },
    "pytest_runtest_makereport": {
        *(("runner", False), ("skipping", True), ("tmpdir", True), ("unittest", False)),
        ("hypothesispytest", True),
        *((name, True) for name in OURS),
    },
    "pytest_pyfunc_call": {("python", False)},
    "pytest_fixture_setup": {("fixtures", False), ("setuponly", True), ("setupplan", False)},
    "pytest_fixture_post_finalizer": {("setuponly", False)},
}
PROTOCOLS = {"runner", "gpucluster-hooks"}
# whom the report of a set-up or teardown tells nothing where it passed
LISTENERS = {"lfplugin", "terminalreporter", "logging-plugin", "session", "stepwiseplugin", *OURS}


class Recipe:
    """How the fixtures of a test are made: `wide` are those of a wider scope, `steps` call the others in order."""

    def __init__(self, shared: Shared) -> None:
        info = shared.template._fixtureinfo  # noqa: SLF001 - as pytest itself asks
        self.function = shared.template.obj
        self.arguments = info.argnames
        self.wide: dict[str, Any] = {}
        self.steps: list[tuple[str, Callable[..., Any], tuple[str, ...]]] = []
        self.depth = len(shared.template.listchain()) - 1
        self._definitions = info.name2fixturedefs
        self.whole = (
            not shared.marks & STOPS
            and type(shared.template.parent) is pytest.Module
            and not inspect.iscoroutinefunction(self.function)
            and not any("hypothesis" in name for name in vars(self.function))
            and all(self._add(name) for name in info.names_closure)
        )

    def _add(self, name: str) -> bool:
        """Take in a fixture and those that it asks for; False where pytest has to make it."""
        if name in self.wide or any(name == known for known, _, _ in self.steps):
            return True
        found = self._definitions.get(name, ())
        one = found[-1] if found else None
        # the last: it builds on the one that it replaces
        if one is None or one.params is not None or name in one.argnames:
            return False
        if not all(self._add(asked) for asked in one.argnames):
            return False
        if one.scope != "function":
            self.wide[name] = one
            return True
        self.steps.append((name, one.func, one.argnames))
        return inspect.isfunction(one.func) and not any(is_kind(one.func) for is_kind in NO_PLAIN_FUNCTIONS)

    def is_ready(self) -> bool:
        """Return True where every fixture of a wider scope is there."""
        for one in self.wide.values():
            result = one.cached_result
            if result is None or result[2] is not None:
                return False
        return True

    def fill(self) -> dict[str, Any]:
        """Make the fixtures; return the arguments of the test."""
        __tracebackhide__ = True
        values = {name: one.cached_result[0] for name, one in self.wide.items()}
        try:
            for name, function, asked in self.steps:
                values[name] = function(**{argument: values[argument] for argument in asked})
        except pytest.skip.Exception as skipped:
            skipped._use_item_location = True  # noqa: SLF001 - as pytest: not the fixture, the test is skipped
            raise
        return {argument: values[argument] for argument in self.arguments}


class Swift:
    """Runs the items of one process. `setup` and `enrich` are what our own hooks do with an item and a report."""

    def __init__(
        self,
        config: pytest.Config,
        setup: Callable[[pytest.Item], None],
        enrich: Callable[[pytest.Item, pytest.CallInfo[None], pytest.TestReport], None],
    ) -> None:
        self._config, self._setup, self._enrich = config, setup, enrich
        self.testcases: Testcases | None = None  # of junit.xml, where one is written
        self._capture: Any = None
        self._files: tuple[int, ...] | None = None  # where what is captured goes; None: into memory
        self._logging: Any = None
        self._free: bool | None = None  # nobody else has a say; None: to be looked at
        self._quiet = False  # nobody wants more of an item that passed than the report of its call

    def look_again(self) -> None:
        """Forget what is known of the other plugins: there is one more."""
        self._free = None

    def run(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        """Run an item; False where it is left to pytest."""
        if type(item) is not NodeItem or following is None or following.parent is not item.parent:
            return False  # the last of a file: pytest takes down what is to be
        if not self._may_run(item):
            return False
        self._run(item, item._shared.run)  # noqa: SLF001 - ours
        item.let_go()
        return True

    # --- whether

    def _may_run(self, item: NodeItem) -> bool:
        if self._free is None:
            self._free = self._look()
        shared = item._shared  # noqa: SLF001 - ours
        if shared.run is None:
            shared.run = Recipe(shared)
        recipe: Recipe = shared.run
        session = item.session
        stack = session._setupstate.stack  # noqa: SLF001 - as pytest's runner
        return (
            self._free
            and recipe.whole
            and len(stack) == recipe.depth
            and next(reversed(stack)) is item.parent
            and stack[item.parent][1] is None
            and not (session.shouldstop or session.shouldfail)
            and not any(mark.name in STOPS for mark in own_marks(item))
            and recipe.is_ready()
        )

    def _look(self) -> bool:
        """Return True where every plugin with a hook that is left out is known."""
        option, hook = self._config.option, self._config.hook
        if any(
            getattr(option, name, False)
            for name in ("usepdb", "trace", "setupshow", "setuponly", "setupplan")
        ):
            return False
        for name, known in KNOWN.items():
            found = {
                (_name(impl), impl.wrapper or impl.hookwrapper)
                for impl in getattr(hook, name).get_hookimpls()
            }
            if not found <= known:
                return False
        rivals = plugins(hook.pytest_runtest_protocol, around=False)
        manager = self._config.pluginmanager
        self._capture = manager.get_plugin("capturemanager")
        self._files = _files_of(self._capture)
        self._logging = manager.get_plugin("logging-plugin")
        self._terminal = manager.get_plugin("terminalreporter")
        self._reraise = runner.get_reraise_exceptions(self._config)
        self._watchers = [  # exceptions that nobody caught, in threads and in __del__
            impl.function
            for impl in hook.pytest_runtest_call.get_hookimpls()
            if impl.plugin_name in ("unraisableexception", "threadexception")
        ]
        self._handler: Any = getattr(self._logging, "report_handler", None)
        xml = self._config.stash.get(xml_key, None)
        self._quiet = option.durations is None and all(
            impl.plugin_name in LISTENERS or impl.plugin is xml
            for impl in hook.pytest_runtest_logreport.get_hookimpls()
        )
        self._tell = manager.subset_hook_caller("pytest_runtest_logreport", [xml] if xml is not None else [])
        return rivals <= PROTOCOLS and not self._logs_live()

    def _logs_live(self) -> bool:
        """Return True where logs go to the terminal at once: every phase has a head there."""
        if self._logging is None:
            return False
        return self._config.option.log_cli_level is not None or bool(self._config.getini("log_cli"))

    # --- how

    def _run(self, item: NodeItem, recipe: Recipe) -> None:
        hook, nodeid, location = item.ihook, item.nodeid, item.location
        hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        calls = self._phases(item, recipe)
        if not (self._quiet and calls[-1].excinfo is None and self._passed(item, calls, location)):
            for call in calls:
                self._report(item, call, location)
            session = item.session
            # of the run: then all is taken down, and what breaks is the item's
            last = session.shouldfail or session.shouldstop
            down = (lambda: session._setupstate.teardown_exact(None)) if last else _nothing  # noqa: SLF001 - as runner
            self._report(item, pytest.CallInfo.from_call(down, "teardown", self._reraise), location)
        hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def _phases(self, item: NodeItem, recipe: Recipe) -> list[pytest.CallInfo[None]]:
        """Set up and call; catch meanwhile what is printed and logged, as pytest's plugins do in their wrappers."""
        arguments: dict[str, Any] = {}

        def setup() -> None:
            __tracebackhide__ = True
            self._setup(item)
            arguments.update(recipe.fill())
            for watch in self._watchers:
                watch(item)

        def call() -> None:
            __tracebackhide__ = True
            _post_mortem(None)
            try:
                recipe.function(**arguments)
                for watch in self._watchers:
                    watch(item)
            except Exception as error:
                _post_mortem(error)
                raise

        calls = []
        with self._logs() if self._handler is not None else contextlib.nullcontext():
            for when, function in (("setup", setup), ("call", call)):
                os.environ["PYTEST_CURRENT_TEST"] = f"{item.nodeid} ({when})"
                if self._capture is not None and when == "setup":
                    self._capture.resume_global_capture()
                going_on = False
                try:
                    calls.append(pytest.CallInfo.from_call(function, when, self._reraise))  # type: ignore[arg-type]
                    going_on = when == "setup" and calls[-1].excinfo is None
                finally:
                    self._gather(item, when, going_on=going_on)
                if not going_on:
                    break
        return calls

    def _logs(self) -> catching_logs[Any]:
        self._handler.reset()
        return catching_logs(self._handler, level=self._logging.log_level)

    def _gather(self, item: NodeItem, when: str, *, going_on: bool) -> None:
        """Put what was printed and logged into the item; capturing goes on between its phases."""
        if not going_on:
            if self._capture is not None:
                self._capture.suspend_global_capture(in_=False)
            os.environ.pop("PYTEST_CURRENT_TEST", None)
        if self._capture is not None and self._has_output():
            out, err = self._capture.read_global_capture()
            item.add_report_section(when, "stdout", out)
            item.add_report_section(when, "stderr", err)
        if self._handler is not None and self._handler.records:
            item.add_report_section(when, "log", self._handler.stream.getvalue().strip())
            self._handler.reset()

    def _has_output(self) -> bool:
        """Return False where the files of what was captured are empty; reading them takes as long as an item."""
        try:
            return self._files is None or any(os.fstat(number).st_size for number in self._files)
        except OSError:  # they are others by now
            return True

    def _passed(self, item: NodeItem, calls: list[pytest.CallInfo[None]], location: Any) -> bool:
        """Tell of an item that passed and said nothing by the report of its call; False where others are needed.

        Nobody has a use for those of its set-up and teardown but --durations and JUnit, which gets their time.
        """
        session = item.session
        if item._report_sections or session.shouldfail or session.shouldstop:  # noqa: SLF001 - as the runner asks
            return False
        report = passed(item, calls[-1], location)
        self._enrich(item, calls[-1], report)
        if self.testcases is not None:
            record = report.__dict__["gpucluster"]
            properties = [(name, str(value)) for name, value in report.user_properties]
            seconds = sum(call.duration for call in calls), calls[-1].duration
            names = (
                junit.classname(record["suite"], record["node"]),
                junit.name(report.nodeid, record["node"]),
            )
            if not (self.testcases.is_plain and self.testcases.passed(*names, seconds, properties)):
                return False
        self._tell(report=report)
        self._keep_little(item, report)
        return True

    def _keep_little(self, item: NodeItem, report: pytest.TestReport) -> None:
        """Let pytest's terminal keep of a report what its summary shows."""
        kept = self._terminal.stats.get("passed") if self._terminal is not None else None
        if kept and kept[-1] is report:
            kept[-1] = Kept.of(item, report)

    def _report(self, item: NodeItem, call: pytest.CallInfo[None], location: Any) -> None:
        """Make the report of a phase and tell it to everybody."""
        hook = item.ihook
        if call.excinfo is not None:
            report = hook.pytest_runtest_makereport(item=item, call=call)
        else:
            report = passed(item, call, location)
            self._enrich(item, call, report)
        hook.pytest_runtest_logreport(report=report)
        if runner.check_interactive_exception(call, report):
            hook.pytest_exception_interact(node=item, call=call, report=report)


def _files_of(capture: Any) -> tuple[int, ...] | None:
    """Return the descriptors of the files that pytest captures into; None where it has none."""
    capturing = capture and capture._global_capturing  # noqa: SLF001 - there is no other door to it
    if capturing is None:
        return ()
    try:
        return tuple(one.tmpfile.fileno() for one in (capturing.out, capturing.err) if one is not None)
    except (AttributeError, OSError, ValueError):
        return None


def passed(item: NodeItem, call: pytest.CallInfo[None], location: Any) -> pytest.TestReport:
    """Return the report of a phase that raised nothing."""
    return pytest.TestReport(
        nodeid=getattr(item, "id", item.nodeid),
        location=location,
        keywords=item.report_keywords(),
        outcome="passed",
        longrepr=None,
        when=call.when,  # type: ignore[arg-type] # none is collected here
        sections=[(f"Captured {key} {when}", text) for when, key, text in item._report_sections],  # noqa: SLF001
        duration=call.duration,
        start=call.start,
        stop=call.stop,
        user_properties=item.user_properties,
    )


class Kept(pytest.TestReport):
    """The report of an item that passed, after everybody was told: what can be made from the item is."""

    __slots__ = ("_item", "duration", "start", "stop")

    outcome = "passed"
    longrepr = None
    when = "call"

    if TYPE_CHECKING:
        _item: NodeItem

    @classmethod
    def of(cls, item: NodeItem, report: pytest.TestReport) -> Kept:
        """Keep little of a report."""
        kept = cls.__new__(cls)
        kept._item = item  # noqa: SLF001 - ours
        kept.duration, kept.start, kept.stop = report.duration, report.start, report.stop
        return kept

    def __getattr__(self, name: str) -> Any:
        """Make what is not kept."""
        if name in ("sections", "user_properties"):
            return []
        if name == "keywords":
            return self._item.report_keywords()
        if name in ("nodeid", "location", "_id"):
            return getattr(self._item, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _post_mortem(error: Exception | None) -> None:
    """Let a debugger find the last error, as pytest's runner does."""
    if error is None:
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        return
    sys.last_type, sys.last_value = type(error), error
    sys.last_traceback = error.__traceback__ and error.__traceback__.tb_next
    if sys.version_info >= (3, 12):
        sys.last_exc = error


def _nothing() -> None:
    """Take down nothing: a NodeItem has no fixture of its own that would have to be."""


def _name(impl: Any) -> str:
    """Return the name of a plugin; those inside pytest that register themselves have none but their module's."""
    name = str(impl.plugin_name)
    return name if not name.isdigit() else type(impl.plugin).__name__
