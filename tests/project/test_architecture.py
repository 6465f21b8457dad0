"""The order of the packages, read from the imports: a package imports only from packages before it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from paths import ROOT

from pytest_gpucluster.core.registry import Suite, suites

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "pytest_gpucluster"
SOURCE = ROOT / "src" / PACKAGE

# Lowest first. A package imports only from packages before it.
PACKAGES = (
    "core",
    "config",
    "cluster",
    "kit",
    "suites",
    "drain",
    "report",
    "sandbox",
    "suite",
    "run",
    "gate",
    "campaign",
    "plugin",
    "api",
    "cli",
    "__main__",
)
ORDER = {package: place for place, package in enumerate(PACKAGES)}

# a product of its own, and the parts of it that the plugin uses
SANDBOX = "slurm_sandbox"
SANDBOX_SOURCE = ROOT / "slurm-sandbox" / "src" / SANDBOX
SANDBOX_API = (f"{SANDBOX}.api.", f"{SANDBOX}.cli")

PROCESSES = {"subprocess", "pty"}
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


def package_of(path: Path) -> str:
    """Return the package of a source file; '' for the top level."""
    first = path.relative_to(SOURCE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def suite_of(path: Path) -> str:
    """Return the suite that a source file belongs to, '' where it belongs to none."""
    parts = path.relative_to(SOURCE).parts
    return parts[1] if parts[0] == "suites" and len(parts) > 2 else ""


def imports(
    tree: ast.AST, package: tuple[str, ...], *, typing_only: bool = False
) -> Iterator[tuple[str, int]]:
    """Yield each imported module in full, also those inside functions, and its line.

    Imports under `if TYPE_CHECKING:` are left out unless `typing_only`: no code runs there.
    """
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing_only:
            skipped.update(inner for child in node.body for inner in ast.walk(child))
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def imported(path: Path, *, typing_only: bool = False) -> list[tuple[str, int]]:
    package = (PACKAGE, *path.relative_to(SOURCE).parent.parts)
    return list(imports(ast.parse(path.read_text()), package, typing_only=typing_only))


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


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    wrong = {
        module
        for module, _line in imported(path)
        if (upward(package_of(path), module) and not may_import_pytest(path))
        or of_another_suite(suite_of(path), module)
    }
    assert wrong == set()


def test_the_plugin_knows_no_subject_of_a_suite() -> None:
    """It takes from the kit what suites have beside their checks, and nothing from a suite; for types too."""
    of_plugin = [path for path in sources() if package_of(path) == "plugin"]
    found = {
        module
        for path in of_plugin
        for typing_only in (False, True)
        for module, _line in imported(path, typing_only=typing_only)
        if module.startswith((f"{PACKAGE}.kit.", f"{PACKAGE}.suites."))
    }
    assert found
    assert all(module.startswith(f"{PACKAGE}.kit.suite_work") for module in found), found


def test_the_configuration_loads_nothing_of_a_suite_but_its_models() -> None:
    code = "import sys, pytest_gpucluster.config; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix(f"{PACKAGE}.") for name in run.stdout.split() if name.startswith(PACKAGE)}
    named = {suite.load(part).__module__ for suite in suites() for part in (suite.section,) if part}
    models = {name.removeprefix(f"{PACKAGE}.") for name in named}
    assert models <= loaded
    packages = {"kit", "suites", *(f"suites.{suite.name}" for suite in suites())}
    packages |= {name.rpartition(".")[0] for name in models}
    others = {name for name in loaded if name.startswith(("kit", "suites"))} - packages - models
    assert others == {"kit.framework", "kit.framework.framework_config"}


@pytest.mark.parametrize(
    "suite", [suite for suite in suites() if suite.section], ids=lambda suite: suite.name
)
def test_the_model_of_a_section_can_be_imported_before_the_configuration(suite: Suite) -> None:
    """The configuration imports it, so it must not import the configuration."""
    assert suite.section
    module = sys.modules[suite.load(suite.section).__module__]
    names = {
        name.split(".")[1] for name, _ in imported(Path(str(module.__file__))) if name.startswith(PACKAGE)
    }
    assert names <= {"core", "kit"}


def sandbox_sources() -> list[Path]:
    return sorted(path for path in SANDBOX_SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", sandbox_sources(), ids=lambda path: str(path.relative_to(SANDBOX_SOURCE)))
def test_the_sandbox_imports_nothing_of_the_plugin_nor_of_other_packages(path: Path) -> None:
    package = (SANDBOX, *path.relative_to(SANDBOX_SOURCE).parent.parts)
    found = imports(ast.parse(path.read_text()), package, typing_only=True)
    names = {module.split(".")[0] for module, _ in found}
    assert names <= {SANDBOX, "__future__", *sys.stdlib_module_names}


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
        borrowed = isinstance(node, ast.ImportFrom) and node.module in PROCESSES
        if borrowed or (isinstance(node, ast.Call) and STARTERS.fullmatch(ast.unparse(node.func))):
            yield node.lineno  # type: ignore[attr-defined] # both kinds have a line


def test_only_the_door_starts_processes() -> None:
    wrong = [
        f"{path}:{line}"
        for path in sources()
        if not may_start(path)
        for line in starts(ast.parse(path.read_text()))
    ]
    assert not wrong


def test_only_the_plugin_imports_pytest() -> None:
    wrong = [
        f"{path}:{line}: {module}"
        for path in sources()
        if not may_import_pytest(path)
        for module, line in imported(path)
        if module.split(".")[0] in {"pytest", "_pytest", "pluggy", "xdist"}
    ]
    assert not wrong


def test_frameworks_under_test_are_imported_by_payloads_alone() -> None:
    frameworks = {name for suite in suites() for name in suite.frameworks}
    wrong = [
        f"{path}:{line}: {module}"
        for path in sources()
        if not is_payload(path)
        for module, line in imported(path, typing_only=True)
        if module.split(".")[0] in frameworks
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("package", "text", "found"),
    [
        ("config", "from pytest_gpucluster.cluster.slurm.client import Slurm", True),
        ("config", "from pytest_gpucluster import cluster", True),
        ("config", "def f():\n    import pytest_gpucluster.sandbox", True),
        ("config", "from ..plugin import hooks", True),
        ("kit", "from pytest_gpucluster.suites.os import facts", True),
        ("cluster", "from pytest_gpucluster.config.models import Cluster", False),
        ("cli", "from pytest_gpucluster.sandbox import Sandbox", False),
        ("config", "if TYPE_CHECKING:\n    from pytest_gpucluster.cluster.slurm.client import Slurm", False),
        ("config", "import yaml", False),
    ],
)
def test_the_reading_of_imports_itself(package: str, text: str, found: bool) -> None:  # a table of cases
    modules = [module for module, _line in imports(ast.parse(text), (PACKAGE, package))]
    assert any(upward(package, module) for module in modules) is found


# attributes of pytest's objects that are no part of its documented interface
PRIVATE = {
    *(
        "_arg2fixturedefs",
        "_arg2scope",
        "_calls",
        "_file",
        "_fixtureinfo",
        "_fixturemanager",
        "_global_capturing",
    ),
    *("_id", "_idlist", "_initrequest", "_nodeid", "_obj", "_opentestcase", "_report_sections", "_request"),
    *("_setupstate", "_tw", "_use_item_location", "_traceback_filter", "_repr_failure_py"),
}


def beside_the_documentation(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that use of pytest what it does not document, or that change it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            if any(module.partition(".")[0] == "_pytest" for module in modules):
                yield node.lineno
        elif isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id == "self"
        ):
            changed = isinstance(node.ctx, ast.Store) and ast.unparse(node.value).split(".")[0] == "pytest"
            if node.attr in PRIVATE or changed:
                yield node.lineno
        elif isinstance(node, ast.Constant) and node.value in PRIVATE:  # of getattr() and the like
            yield node.lineno


def test_pytest_is_used_as_it_is_documented() -> None:
    wrong = [
        f"{path}:{line}"
        for path in sources()
        if may_import_pytest(path)
        for line in beside_the_documentation(ast.parse(path.read_text()))
    ]
    assert not wrong
    pytests = [
        f"{path}: {module}" for path in sources() for module, _ in imported(path) if "_pytest." in module
    ]
    assert not [line for line in pytests if " _pytest" in line]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from _pytest.runner import runtestprotocol", 1),
        ("import _pytest.fixtures", 1),
        ("def f(item):\n    return item._fixtureinfo", 1),
        ("width = terminalreporter._tw.fullwidth", 1),
        ("getattr(reporter, '_tw', None)", 1),
        ("pytest.Item.runtest = mine", 1),
        ("class Item(pytest.Item):\n    def setup(self):\n        self._request = 1", 0),
        ("import pytest\npytest.skip('why')", 0),
    ],
)
def test_the_reading_of_undocumented_uses_itself(text: str, count: int) -> None:
    assert len([*beside_the_documentation(ast.parse(text))]) == count


def test_tests_are_where_their_source_is() -> None:
    """`tests/kit/gpu/test_nvidia_smi_corpus.py` is of `kit/gpu/nvidia_smi.py`; system/, project/ and first_night/ test the whole."""
    lost = []
    for tests, source in ((ROOT / "tests", SOURCE), (ROOT / "slurm-sandbox/tests", SANDBOX_SOURCE)):
        for path in sorted(tests.rglob("test_*.py")):
            folder = path.relative_to(tests).parent
            whole = folder.parts[:1] in (("system",), ("project",), ("first_night",))
            if not whole and not has_source(path, source / folder):
                lost.append(str(path.relative_to(ROOT)))
    assert lost == []


def has_source(test: Path, folder: Path) -> bool:
    words = test.stem.split("_")[1:]
    stems = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    found = [folder / name for stem in stems for name in (f"{stem}.py", stem)]
    return any(place.exists() for place in found)


def test_the_plugin_has_at_most_16_files_and_no_import_in_a_circle() -> None:
    graph = {}
    for path in sorted((SOURCE / "plugin").glob("*.py")):
        found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
        names = {
            f"{node.module}.{alias.name}" for node in found if node.col_offset == 0 for alias in node.names
        }
        own = (re.match(r"pytest_gpucluster\.plugin\.(\w+)", name) for name in names)
        graph[path.stem] = {match[1] for match in own if match and (path.parent / f"{match[1]}.py").exists()}
    assert len(graph) <= 16
    tuple(TopologicalSorter(graph).static_order())  # CycleError names a circle
