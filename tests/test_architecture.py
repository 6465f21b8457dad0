"""The order of the rooms, read from the imports: a room imports only from rooms above it in the list."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "pytest_gpucluster"
ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / PACKAGE

# Ground floor first. Rooms on one line do not import each other, but for what BESIDE allows.
ROOMS = (
    ("errors", "units", "hostlist", "printable", "jsontext", "redact", "ownfile", "runmark"),
    ("config",),
    ("transport",),
    ("slurm",),
    ("fleet",),
    ("probes",),
    ("checks",),
    ("payloads",),
    ("runners",),
    ("drain",),
    ("report",),
    ("sandbox",),
    ("suite",),
    ("plugin",),
    ("cli_history", "cli_report", "cli_reference", "cli_clean"),
    ("cli",),
)
ORDER = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
# fleet speaks of answers in the words of probes/base.py, which is pure
BESIDE = {("fleet", "probes")}

PROCESSES = {"subprocess", "pty"}
STARTERS = re.compile(
    r"subprocess\.(run|call|check_call|check_output|getoutput|getstatusoutput|Popen)"
    r"|os\.(system|popen|fork|forkpty|posix_spawnp?|spawn\w+|exec\w+)|pty\.\w+"
)
MAY_START_PROCESSES = {"transport", "sandbox", "payloads", "cli"}
MAY_IMPORT_PYTEST = {"plugin", "suite"}


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    """Return the room of a source file; '' for the package itself."""
    first = path.relative_to(SOURCE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


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


def upward(room: str, module: str) -> bool:
    """Whether this import goes from a room to one below it in the list (or beside it)."""
    parts = module.split(".")
    if parts[0] != PACKAGE or len(parts) < 2 or not room:
        return False
    other = parts[1]
    if other == room or (room, other) in BESIDE or other not in ORDER:
        return False
    return ORDER[other] >= ORDER[room] and not (ORDER[other] == ORDER[room] == 0)


def test_every_room_has_its_place_in_the_order() -> None:
    found = {room_of(path) for path in sources()} - {""}
    assert found - {"_version"} <= set(ORDER)
    assert len(found) > 8


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_from_rooms_above(path: Path) -> None:
    wrong = [f"{path}:{line}: {module}" for module, line in imported(path) if upward(room_of(path), module)]
    assert not wrong


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
        if room_of(path) not in MAY_START_PROCESSES
        for line in starts(ast.parse(path.read_text()))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("subprocess.run(['id'])", 1),
        ("with subprocess.Popen(['id']) as p: pass", 1),
        ("from subprocess import run", 1),
        ("os.system('id')", 1),
        ("os.posix_spawn('id', [], {})", 1),
        ("def f(p: subprocess.Popen[bytes]) -> None: ...", 0),
        ("contextlib.suppress(subprocess.TimeoutExpired)", 0),
        ("os.path.exists('id')", 0),
    ],
)
def test_the_reading_of_starts_itself(text: str, count: int) -> None:
    assert len([*starts(ast.parse(text))]) == count


def test_only_the_plugin_imports_pytest() -> None:
    wrong = [
        f"{path}:{line}: {module}"
        for path in sources()
        if room_of(path) not in MAY_IMPORT_PYTEST
        for module, line in imported(path)
        if module.split(".")[0] in {"pytest", "_pytest", "pluggy", "xdist"}
    ]
    assert not wrong


def test_frameworks_under_test_are_imported_by_payloads_alone() -> None:
    frameworks = {"torch", "ray", "horovod", "tensorflow", "submitit", "mpi4py"}
    wrong = [
        f"{path}:{line}: {module}"
        for path in sources()
        if room_of(path) != "payloads"
        for module, line in imported(path, typing_only=True)
        if module.split(".")[0] in frameworks
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("room", "text", "found"),
    [
        ("config", "from pytest_gpucluster.slurm.client import Slurm", True),
        ("config", "from pytest_gpucluster import slurm", True),
        ("config", "def f():\n    import pytest_gpucluster.sandbox", True),
        ("config", "from ..plugin import hooks", True),
        ("probes", "from pytest_gpucluster.checks import verdict", True),
        ("slurm", "from pytest_gpucluster.config.models import Cluster", False),
        ("cli", "from pytest_gpucluster.sandbox import Sandbox", False),
        ("config", "if TYPE_CHECKING:\n    from pytest_gpucluster.slurm.client import Slurm", False),
        ("config", "import yaml", False),
    ],
)
def test_the_reading_of_imports_itself(room: str, text: str, found: bool) -> None:  # noqa: FBT001 - a table of cases
    modules = [module for module, _line in imports(ast.parse(text), (PACKAGE, room))]
    assert any(upward(room, module) for module in modules) is found
