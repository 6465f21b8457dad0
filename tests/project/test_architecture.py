"""The order of the packages, read from the imports: a package imports only from packages before it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from paths import ROOT

from pytest_gpucluster.core.registry import suites

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "pytest_gpucluster"
SOURCE = ROOT / "src" / PACKAGE
# Lowest first. A package imports only from packages before it.
PACKAGES = (
    """core config cluster kit suites drain report evidence sandbox suite run gate campaign plugin api cli __main__"""
)
ORDER = {package: place for place, package in enumerate(PACKAGES.split())}
SANDBOX = "slurm_sandbox"  # a product of its own
SANDBOX_SOURCE = ROOT / "slurm-sandbox" / "src" / SANDBOX


def is_payload(path: Path) -> bool:
    """Say whether this is a program that steps run on the nodes."""
    name = str(path.relative_to(SOURCE))
    return bool(re.match(r"suites/\w+/payload[\w/]*\.py$|kit/payloads/", name))


def may_import_pytest(path: Path) -> bool:
    return package_of(path) in {"suite", "plugin"} or (bool(suite_of(path)) and path.name.startswith("test_"))


def sources() -> list[Path]:
    """Return the modules of the plugin; the examples are programs of a site."""
    return sorted(path for path in SOURCE.rglob("*.py") if package_of(path) != "examples")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def package_of(path: Path) -> str:
    """Return the package of a source file; '' for the top level."""
    first = path.relative_to(SOURCE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def suite_of(path: Path) -> str:
    """Return the suite that a source file belongs to, '' where it belongs to none."""
    parts = path.relative_to(SOURCE).parts
    return parts[1] if parts[0] == "suites" and len(parts) > 2 else ""


def imports(tree: ast.AST, package: tuple[str, ...], *, typing_only: bool = False) -> Iterator[str]:
    """Yield each imported module in full, also those inside functions.

    Imports under `if TYPE_CHECKING:` are left out unless `typing_only`: no code runs there.
    """
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing_only:
            skipped.update(inner for child in node.body for inner in ast.walk(child))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported(path: Path, *, typing_only: bool = False) -> list[str]:
    package = (PACKAGE, *path.relative_to(SOURCE).parent.parts)
    return list(imports(tree_of(path), package, typing_only=typing_only))


def upward(package: str, module: str) -> bool:
    """Whether this import goes from a package to one after it in the list."""
    parts = module.split(".")
    if parts[0] != PACKAGE or len(parts) < 2 or not package:
        return False
    return ORDER.get(parts[1], -1) > ORDER[package]


def of_another_suite(suite: str, module: str) -> bool:
    """Whether this is a module of a suite, and not of this one; '' is no suite."""
    parts = module.split(".")
    return parts[:2] == [PACKAGE, "suites"] and parts[2:3] not in ([], [suite])


def test_imports_go_one_way() -> None:
    wrong = {
        f"{path}: {module}"
        for path in sources()
        for module in imported(path)
        if (upward(package_of(path), module) and not may_import_pytest(path))
        or of_another_suite(suite_of(path), module)
    }
    assert wrong == set()


def test_the_sandbox_imports_nothing_of_the_plugin_nor_of_other_packages() -> None:
    for path in SANDBOX_SOURCE.rglob("*.py"):
        package = (SANDBOX, *path.relative_to(SANDBOX_SOURCE).parent.parts)
        names = {module.split(".")[0] for module in imports(tree_of(path), package, typing_only=True)}
        assert names <= {SANDBOX, "__future__", *sys.stdlib_module_names}, path


def test_the_plugin_starts_without_the_sandbox() -> None:
    code = (
        "import sys; sys.modules['slurm_sandbox'] = None\n"
        "import pytest_gpucluster.plugin, pytest_gpucluster.suite, pytest_gpucluster.cli.main\n"
        "from pytest_gpucluster.core.errors import SandboxError\n"
        "try: import pytest_gpucluster.sandbox\n"
        "except SandboxError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pytest-gpucluster[sandbox]'" in run.stdout


def test_only_the_plugin_imports_pytest_and_only_payloads_the_frameworks_under_test() -> None:
    frameworks = {name for suite in suites() for name in suite.frameworks}
    wrong = []
    for path in sources():
        names = {module.split(".")[0] for module in imported(path)}
        if not may_import_pytest(path) and names & {"pytest", "_pytest", "pluggy", "xdist"}:
            wrong.append(path)
        typed = {module.split(".")[0] for module in imported(path, typing_only=True)}
        if not is_payload(path) and typed & frameworks:
            wrong.append(path)
    assert wrong == []


def test_no_public_class_name_stands_twice() -> None:
    classes = [part for path in sources() for part in ast.walk(tree_of(path)) if isinstance(part, ast.ClassDef)]
    counts = Counter(part.name for part in classes if not part.name.startswith("_"))
    assert [name for name, count in counts.items() if count > 1] == []
