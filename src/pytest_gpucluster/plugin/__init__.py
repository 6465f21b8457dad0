"""The pytest plugin: what pytest sees.

Every pytest of the machine loads this file, so it imports no other module of the package until --cluster is given.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import SuiteError, suite_folders, suites_path

if TYPE_CHECKING:
    from collections.abc import Generator

MARKERS = (
    "inventory: the test reads Slurm's inventory only; it runs for nodes that cannot be allocated too",
    "judges_node: the test judges whether the node answers; it runs for nodes that were lost too",
    "lane: the test has its node for itself; with -n it runs in the lane of the node",
    "exclusive: the test has all nodes for itself; with -n it runs alone",
    "slow: the test takes a minute or more; it runs with --slow",
    "intrusive: the test disturbs users of the cluster for a short time; it runs with --intrusive",
)
LAST = 100  # the order of a suite that does not name one


def marker_lines() -> list[str]:
    """Return the lines of all markers; those of the suites are read off their source, which is not to be imported."""
    found: list[tuple[int, str, tuple[str, ...]]] = []
    for name, folder in suite_folders().items():
        source = ast.parse((folder / "__init__.py").read_bytes())
        calls = [part for part in ast.walk(source) if isinstance(part, ast.Call)]
        words = {word.arg: word.value for call in calls for word in call.keywords}
        if "markers" in words:
            try:
                order = ast.literal_eval(words["order"]) if "order" in words else LAST
                found.append((order, name, ast.literal_eval(words["markers"])))
            except ValueError:
                raise SuiteError(f"the suite {name!r}: `markers` and `order` of its Suite must be literals") from None
    return [*(line for _, _, lines in sorted(found) for line in lines), *MARKERS]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one option; the others are added with it, so that they do not clash with another project's --slow."""
    _group(parser).addoption(
        "--cluster", metavar="NAME|PATH", help="the cluster to test: sandbox, local, a name, or a YAML file"
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Add the other options where --cluster is among the words of the command line or of addopts."""
    known = early_config.known_args_namespace
    has_cluster = known.cluster is not None
    try:
        if has_cluster:
            add_options(parser)
            # what seemed to be files may have been values
            known.file_or_dir = parser.parse_known_args(args).file_or_dir
        loaded = yield
        parser.parse_known_args([])  # older pytests meet a name that is taken only here
        if has_cluster:
            _refuse_former(parser, args)
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from None
    except (argparse.ArgumentError, ValueError) as error:
        if not has_cluster or "option" not in str(error):
            raise
        why = "another plugin or a conftest.py has it too: leave that out (-p no:NAME), or rename its option"
        raise pytest.UsageError(f"{error}: {why}") from None
    if known.help and not has_cluster:
        _add_free(parser)
    elif not has_cluster:
        _refuse_without_cluster(parser, args)
    return loaded


def add_options(parser: pytest.Parser) -> None:
    """Add the options beside --cluster."""
    from pytest_gpucluster.plugin.option_table import add_all  # only where --cluster is given

    add_all(_group(parser).addoption)


def _add_free(parser: pytest.Parser) -> None:
    """Add, for --help, the options whose names no other plugin has taken."""
    from pytest_gpucluster.plugin.option_table import add_all  # only for --help

    group = _group(parser)

    def add(name: str, **attributes: Any) -> None:
        # UsageError: another plugin's option of this name needs a value; ValueError: the attribute is taken
        with contextlib.suppress(pytest.UsageError, ValueError):
            if name in parser.parse_known_and_unknown_args([name])[1]:
                group.addoption(name, **attributes)

    add_all(add)


def _group(parser: pytest.Parser) -> pytest.OptionGroup:
    return parser.getgroup("gpucluster", "acceptance of a GPU cluster")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run a campaign instead of tests, if --campaign is given, or leave out nodes for --untested-for and --budget."""
    option = config.option
    if option.help or option.version or option.markers or hasattr(config, "workerinput"):
        return None
    if all(getattr(option, name, None) is None for name in ("campaign", "untested_for", "budget")):
        return None
    from pytest_gpucluster.plugin import campaign, option_table  # only for a campaign

    return campaign.main(config) if option_table.runs_tests(option) else None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the rest of the plugin where --cluster is given."""
    option = config.option
    if option.cluster is not None or option.markers or (config.rootpath / "clusters").is_dir():
        try:
            for marker in marker_lines():  # a project without clusters gets none
                config.addinivalue_line("markers", marker)
        except SuiteError as error:
            raise pytest.UsageError(str(error)) from None
    if option.showfixtures:
        from pytest_gpucluster.plugin import fixtures  # only here: its import takes time

        config.pluginmanager.register(fixtures, "gpucluster-fixtures")
    elif option.cluster is None:
        _refuse_suites_without_cluster(config)
    else:
        if not hasattr(option, "nodes"):
            raise pytest.UsageError("--cluster: load the plugin by -p pytest_gpucluster.plugin, not from a conftest.py")
        from pytest_gpucluster.plugin import open_session as start  # only where --cluster is given

        start.register(config)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Explain a run without tests that selects a suite by its marker and has no --cluster."""
    if config.option.cluster is None and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        words = set(re.findall(r"\w+", config.option.markexpr or ""))
        if words & {re.split(r"[:(]", line, maxsplit=1)[0] for line in marker_lines()}:
            chosen = f" -m {shlex.quote(config.option.markexpr)}"
            terminalreporter.write_line(f"no --cluster: to test a cluster: {_suggestion(config)}{chosen}")


def _refuse_suites_without_cluster(config: pytest.Config) -> None:
    """Raise UsageError for shipped suites on the command line: none of their tests could run."""
    package = __name__.partition(".")[0]
    shipped = Path(suites_path()).resolve()
    for arg in config.args:
        name = arg.partition("::")[0]
        path = (config.invocation_params.dir / name).resolve()
        if path.is_relative_to(shipped) or (config.option.pyargs and name.partition(".")[0] == package):
            words = f"{_suggestion(config)}{'' if config.option.pyargs else f' {arg}'}"
            raise pytest.UsageError(f"{arg}: needs --cluster, the cluster to test: {words}")


def _suggestion(config: pytest.Config) -> str:
    """Return the start of a command line, with the cluster file if there is only one."""
    from pytest_gpucluster.config.loader import own_cluster_names  # only for a message

    names = own_cluster_names()
    return f"pytest --cluster={shlex.quote(names[0]) if len(names) == 1 else 'NAME'}"


def _refuse_former(parser: pytest.Parser, args: list[str]) -> None:
    """Raise UsageError where options are given that an earlier version had, unless another plugin has them."""
    from pytest_gpucluster.core.former_names import OPTIONS  # only where --cluster is given

    words = [word.partition("=")[0] for word in parser.parse_known_and_unknown_args(args)[1]]
    if found := [f"{word} {OPTIONS[word].text}" for word in dict.fromkeys(words) if word in OPTIONS]:
        raise pytest.UsageError("; ".join(found))


def _refuse_without_cluster(parser: pytest.Parser, args: list[str]) -> None:
    """Raise UsageError where options of this plugin are given without --cluster."""
    _, unknown = parser.parse_known_and_unknown_args(args)
    if not unknown:
        return
    from pytest_gpucluster.plugin.option_table import add_all  # only for a message

    own: list[str] = []
    add_all(lambda name, **_: own.append(name))
    given = [word for word in (word.partition("=")[0] for word in unknown) if word in own]
    if given:
        raise pytest.UsageError(f"{', '.join(given)}: needs --cluster=NAME, the cluster to test")
