"""What a run selects and must prove. Suites without a section and items on request are no part of it unless named."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import suite_folders, suite_packages, suites_path
from pytest_gpucluster.config.models import SECTIONS
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.values import OptionalSection
from pytest_gpucluster.plugin.item_result import matches
from pytest_gpucluster.plugin.items import check_of, marks_of, needs_nodes, node_of, suite_of
from pytest_gpucluster.report.proof import Required, write_required
from pytest_gpucluster.report.words import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pytest

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.registry import Suite
    from pytest_gpucluster.plugin.session import ClusterSession

ON_REQUEST = ("slow", "intrusive")  # marks of items, and the options that add them to a run
_ARGUMENTS = re.compile(r"\(\s*\w+\s*=[^)]*\)")  # of pytest 8.3: name(key=value)


def without_section(cluster: Cluster) -> dict[str, str]:
    """Return {suite: key} of the suites whose section the cluster file leaves out."""
    found = {}
    for suite in suites():
        model = suite.load(suite.section) if suite.section is not None else None
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
        and _is_collected(suite, config)
        and selects(config.option.markexpr, _markers(suite))
        and not is_named(suite, config)
    ]


def idle(config: pytest.Config, session: ClusterSession) -> dict[str, str]:
    """Return {suite: why there is nothing to test on this cluster}, of suites that the run leaves out for it."""
    selected = (
        suite
        for suite in suites()
        if _is_collected(suite, config) and selects(config.option.markexpr, _markers(suite))
    )
    return {suite.name: why for suite in selected if (why := _why_idle(suite, config, session))}


def _why_idle(suite: Suite, config: pytest.Config, session: ClusterSession) -> str:
    if suite.idle is None or session.slurm is None or is_named(suite, config):
        return ""
    return str(suite.load(suite.idle)(session.slurm, session.cluster))


def ignores(path: Path, config: pytest.Config, session: ClusterSession) -> bool:
    """Return whether a path is a suite without a section, or with nothing to test, that is not selected by name."""
    place = path.resolve()
    suite = next((suite for suite in suites() if suite_folders()[suite.name] == place), None)
    if suite is None or is_named(suite, config):
        return False
    return suite.name in without_section(session.cluster) or bool(_why_idle(suite, config, session))


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


def _is_collected(suite: Suite, config: pytest.Config) -> bool:
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


class Selection:
    """What is left out of the items of a run, and what the others must prove."""

    def __init__(self, config: pytest.Config, session: ClusterSession) -> None:
        self._config, self._session = config, session
        self._missing: dict[tuple[str, str], set[str]] = defaultdict(
            set
        )  # suite, why -> nodes; '' the cluster
        self._on_request: dict[str, dict[str, int]] = {mark: Counter() for mark in ON_REQUEST}

    def reduce(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the items that run; note which of those that are selected by name cannot."""
        option, lacking = self._config.option, without_section(self._session.cluster)
        named = {arg.rpartition("::")[2].partition("[")[0] for arg in self._config.args if "::" in arg}
        requested = {
            "slow": option.slow or "slow" in option.markexpr,
            "intrusive": option.intrusive,  # a mark may select them by chance
        }
        chosen = []
        for item in items:
            suite, marks = suite_of(item), marks_of(item)
            by_id = item.name.partition("[")[0] in named
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

    def event(self, items: Iterable[pytest.Item]) -> dict[str, Any]:
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
        with_proof = {
            suite for suite, check, _ in counts if matches(check, (*proofs.get(suite, ()), *self._required))
        }
        of_suite: dict[str, dict[str, None]] = defaultdict(dict)
        for (suite, _, whole), by_node in counts.items():
            of_suite[suite] |= dict.fromkeys([] if whole else by_node)
        for (suite, check, whole), by_node in counts.items():
            everywhere = matches(check, (*proofs.get(suite, ()), *self._required)) is not None
            # a rerun of single checks must judge just these
            everywhere = everywhere or (suite in proofs and suite not in with_proof)
            nodes = [node for node in by_node if everywhere or self._requires(check, node)]
            for items in sorted({by_node[node] for node in nodes}):
                of_row = tuple(node for node in nodes if by_node[node] == items)
                if of_row == ("",):  # a result about the cluster counts for the nodes that its suite is about
                    of_row = tuple(of_suite[suite]) or of_row
                yield Required(suite, check, items, of_row, whole=whole)
        # tests of the site state no proof
        for suite, of_nodes in of_suite.items():
            if suite not in proofs and of_nodes:
                yield Required(suite, "", 1, tuple(of_nodes))
        for suite in dict.fromkeys(suite for suite, _, whole in counts if whole and suite not in proofs):
            together = dict.fromkeys(
                node for key, row in counts.items() if key[::2] == (suite, True) for node in row
            )
            if nodes := list(filter(None, together)):
                yield Required(suite, "", 1, tuple(nodes), whole=True)

    def _rows_without_items(self) -> Iterator[Required]:
        for (suite, why), nodes in self._missing.items():
            known = [node for node in ("", *self._session.plan.selected) if node in nodes]
            of_nodes = tuple(filter(None, known)) or tuple(known)
            yield Required(suite, "", 0, of_nodes, missing=why)

    @property
    def _required(self) -> tuple[str, ...]:
        return self._session.cluster.required

    def _requires(self, check: str, node: str) -> bool:
        """Return whether the profile of a node requires a check."""
        known = self._session.nodes.get(node)
        return known is not None and matches(check, known.profile.required) is not None


def on_request_line(event: Mapping[str, Any]) -> str:
    """Name what runs on request only and was not requested; '' where there is nothing."""
    parts = [
        f"{count(sum(by_suite.values()), f'{mark} check')} (--{mark}): {', '.join(sorted(by_suite))}"
        for mark, by_suite in event.get("on_request", {}).items()
    ]
    return f"on request only: {'; '.join(parts)}" if parts else ""
