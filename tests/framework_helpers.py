"""What the tests of framework suites share: the interpreter with the frameworks, and runs of one suite."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from judged import figures, judged
from plugin_helpers import Run, cluster_file, run_pytest

from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.kit.framework.payload_step import sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.sandbox import Sandbox

ROOT = Path(__file__).parents[1]
FRAMEWORKS = ROOT / ".cache" / "frameworks" / "bin" / "python"
DEADLINE = 1200  # seconds; a run takes a tenth of it at most


def framework_python() -> Path:
    """Return the interpreter that has the frameworks; the test fails where it is not there."""
    if not FRAMEWORKS.exists():
        pytest.fail(f"{FRAMEWORKS} is missing: make .cache/frameworks/.ready")
    return FRAMEWORKS


def run_suite(
    sandbox: Sandbox,
    folder: Path,
    suite: str,
    *words: str,
    python: Path | None = None,
    exports: dict[str, str] | None = None,
    constants: dict[str, dict[str, Any]] | None = None,
    **keys: Any,
) -> Run:
    """Run a suite of the product on a sandbox, with these sections in the cluster file."""
    exports = {"OMP_NUM_THREADS": "1", **(exports or {})}
    environment = {"python": str(python or framework_python()), "exports": exports}
    path = cluster_file(sandbox, folder, environments={"frameworks": environment}, **keys)
    suites = str(ROOT / "suites" / suite.removeprefix("test_").removesuffix(".py") / suite)
    return run_pytest(
        folder,
        f"--cluster={path}",
        "-c",
        ROOT / "pyproject.toml",
        "-p",
        "no:cacheprovider",
        "-rs",
        *words,
        where=[suites],
        env=sandbox.env,
        timeout=DEADLINE,
        constants=constants,
    )


def ends(run: Run) -> dict[str, str]:
    """Return {item without its file: outcome}."""
    return {nodeid.rpartition("::")[2]: end for nodeid, end in run.outcomes.items()}


def message(run: Run, item: str) -> str:
    """Return what an item said of its end."""
    (found,) = (it for it in run.events if it["event"] == "result" and it["nodeid"].endswith(f"::{item}"))
    verdicts = "; ".join(
        f"{finding.part}: {finding.measured}"
        for it in found["verdicts"]
        for finding in map(Finding.from_dict, it["findings"])
    )
    return verdicts or str(found)


def imported(path: Path) -> set[str]:
    """Return what a payload imports as it is sent, its syntax read as Python 3.6's."""
    tree = ast.parse(sent(path), feature_version=(3, 6))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def spelled(verdict: Verdict) -> tuple[str, str, list[str], list[str]]:
    """Return outcome, reason, findings and metrics of a verdict, each word for word."""
    findings = [f"{it.part}: {it.measured} / {it.expected}" for it in verdict.findings]
    metrics = [f"{it.name} {it.value:g} {it.unit} {it.device}".rstrip() for it in verdict.metrics]
    return verdict.outcome.value, verdict.reason, findings, metrics


Table = dict["Callable[..., Verdict]", list[tuple[Any, ...]]]
"""{check: rows (what `told` returns, the arguments of the check ...)}."""


def decided(table: Table, *, codes: bool = True) -> Callable[[Callable[..., Verdict], list[Any], str], None]:
    """Return the test that the check of each row tells what the row expects."""

    rows = [(check, given, expected) for check, of_check in table.items() for expected, *given in of_check]

    @pytest.mark.parametrize(("check", "given", "expected"), rows)
    def judged(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
        assert told(check(*given), codes=codes) == expected

    test: Callable[..., None] = judged
    return test


def told(verdict: Verdict, *, codes: bool = False) -> str:
    """Return 'outcome or action: parts and devices of metrics [figures of the texts, values of metrics]'.

    codes: the code of findings follows their parts.
    """
    word, parts = judged(verdict)
    if codes:
        alike = groupby(verdict.findings or verdict.advisories, key=lambda one: one.code)
        parts = [f"{'; '.join(str(one.part) for one in found)} {code}" for code, found in alike]
    named = [*parts, *(metric.device for metric in verdict.metrics if metric.device)]
    text = " ".join([verdict.reason, *(f"{one.measured} / {one.expected}" for one in verdict.findings)])
    numbers = [f"{number:g}" for number in (*figures(text), *(metric.value for metric in verdict.metrics))]
    return word + (f": {'; '.join(named)}" if named else "") + (f" [{', '.join(numbers)}]" if numbers else "")
