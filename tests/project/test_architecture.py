"""The order of the packages, read from the imports: a package imports only from packages before it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from paths import ROOT

from pytest_gpucluster.core.registry import suites

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "pytest_gpucluster"
SOURCE = ROOT / "src" / PACKAGE
# Lowest first. A package imports only from packages before it.
PACKAGES = (
    """core config cluster kit suites drain report sandbox suite run gate campaign plugin api cli __main__"""
)
ORDER = {package: place for place, package in enumerate(PACKAGES.split())}
SANDBOX = "slurm_sandbox"  # a product of its own
SANDBOX_SOURCE = ROOT / "slurm-sandbox" / "src" / SANDBOX
STARTERS = re.compile(
    r"subprocess\.(run|call|check_call|check_output|getoutput|getstatusoutput|Popen)"
    r"|os\.(system|popen|fork|forkpty|posix_spawnp?|spawn\w+|exec\w+)|pty\.\w+"
)


def is_payload(path: Path) -> bool:
    """Say whether this is a program that steps run on the nodes."""
    name = str(path.relative_to(SOURCE))
    return bool(re.match(r"suites/\w+/payload[\w/]*\.py$|kit/payloads/", name))


def may_start(path: Path) -> bool:
    return package_of(path) == "cli" or "cluster/transport/" in path.as_posix() or is_payload(path)


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from pytest_gpucluster.cluster.slurm.client import Slurm", True),
        ("from pytest_gpucluster import cluster", True),
        ("def f():\n    import pytest_gpucluster.sandbox", True),
        ("from ..plugin import hooks", True),
        ("from pytest_gpucluster.core import check", False),
        ("if TYPE_CHECKING:\n    from pytest_gpucluster.cluster.slurm.client import Slurm", False),
        ("import yaml", False),
    ],
)
def test_the_reading_of_imports_itself(text: str, found: bool) -> None:  # a table of cases
    assert any(upward("config", module) for module in imports(ast.parse(text), (PACKAGE, "config"))) is found


def test_the_plugin_knows_no_subject_of_a_suite() -> None:
    """It takes from the kit what suites have beside their checks, and nothing from a suite; for types too."""
    found = {
        module
        for path in sources()
        if package_of(path) == "plugin"
        for module in imported(path, typing_only=True)
        if module.startswith((f"{PACKAGE}.kit.", f"{PACKAGE}.suites."))
    }
    assert found
    assert all(module.startswith(f"{PACKAGE}.kit.suite_work") for module in found), found


def test_the_configuration_loads_nothing_of_a_suite_but_its_models() -> None:
    code = "import sys, pytest_gpucluster.config; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix(f"{PACKAGE}.") for name in run.stdout.split() if name.startswith(PACKAGE)}
    named = {suite.load(suite.section).__module__ for suite in suites() if suite.section}
    models = {name.removeprefix(f"{PACKAGE}.") for name in named}
    assert models <= loaded
    packages = {"kit", "suites", *(f"suites.{suite.name}" for suite in suites())}
    packages |= {name.rpartition(".")[0] for name in models}
    others = {name for name in loaded if name.startswith(("kit", "suites"))} - packages - models
    assert others == {"kit.framework", "kit.framework.framework_config"}
    for name in named:  # the configuration imports it, so it must not import the configuration
        own = imported(Path(str(sys.modules[name].__file__)))
        assert {module.split(".")[1] for module in own if module.startswith(PACKAGE)} <= {"core", "kit"}


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


def starts(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that start a process. Naming subprocess.Popen as a type, or its errors, starts none."""
    for node in ast.walk(tree):
        if (isinstance(node, ast.ImportFrom) and node.module in {"subprocess", "pty"}) or (
            isinstance(node, ast.Call) and STARTERS.fullmatch(ast.unparse(node.func))
        ):
            yield node.lineno


def test_only_the_door_starts_processes() -> None:
    assert [path for path in sources() if not may_start(path) and [*starts(tree_of(path))]] == []


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


# attributes of pytest's objects that are no part of its documented interface
PRIVATE = re.compile(
    "_(arg2fixturedefs|arg2scope|calls|file|fixtureinfo|fixturemanager|global_capturing|id|idlist|initrequest|nodeid|obj"
    "|opentestcase|report_sections|request|setupstate|tw|use_item_location|traceback_filter|repr_failure_py)"
)


def beside_the_documentation(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that use of pytest what it does not document, or that change it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            if any(module.partition(".")[0] == "_pytest" for module in imports(node, ())):
                yield node.lineno
        elif isinstance(node, ast.Attribute):
            changed = isinstance(node.ctx, ast.Store) and ast.unparse(node.value).split(".")[0] == "pytest"
            if ast.unparse(node.value) != "self" and (PRIVATE.fullmatch(node.attr) or changed):
                yield node.lineno
        elif isinstance(node, ast.Constant) and PRIVATE.fullmatch(
            str(node.value)
        ):  # of getattr() and the like
            yield node.lineno


def test_pytest_is_used_as_it_is_documented() -> None:
    of_pytest = [path for path in sources() if may_import_pytest(path)]
    assert [path for path in of_pytest if [*beside_the_documentation(tree_of(path))]] == []


def test_the_reading_of_undocumented_uses_itself() -> None:
    for text in (
        "import _pytest.fixtures",
        "item._fixtureinfo",
        "getattr(one, '_tw')",
        "pytest.Item.runtest = mine",
    ):
        assert len([*beside_the_documentation(ast.parse(text))]) == 1, text
    for text in ("self._request = 1", "import pytest\npytest.skip('why')"):
        assert [*beside_the_documentation(ast.parse(text))] == [], text


def test_tests_are_where_their_source_is() -> None:
    """`tests/kit/gpu/test_nvidia_smi_corpus.py` is of `kit/gpu/nvidia_smi.py`; system/, project/ and first_night/ test the whole."""
    lost = []
    for tests, source in ((ROOT / "tests", SOURCE), (ROOT / "slurm-sandbox/tests", SANDBOX_SOURCE)):
        for path in sorted(tests.rglob("test_*.py")):
            folder = path.relative_to(tests).parent
            words = path.stem.split("_")[1:]
            stems = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
            found = [source / folder / name for stem in stems for name in (f"{stem}.py", stem)]
            whole = folder.parts[:1] in (("system",), ("project",), ("first_night",))
            if not whole and not any(place.exists() for place in found):
                lost.append(str(path.relative_to(ROOT)))
    assert lost == []


def test_the_plugin_has_at_most_16_files_and_no_import_in_a_circle() -> None:
    graph = {}
    for path in sorted((SOURCE / "plugin").glob("*.py")):
        top = ast.Module([node for node in tree_of(path).body if isinstance(node, ast.ImportFrom)], [])
        own = (re.match(r"pytest_gpucluster\.plugin\.(\w+)", name) for name in imports(top, ()))
        graph[path.stem] = {match[1] for match in own if match and (path.parent / f"{match[1]}.py").exists()}
    assert len(graph) <= 16
    tuple(TopologicalSorter(graph).static_order())  # CycleError names a circle
