"""Change functions a little with mutmut, print each change that no test detects: python tools/mutation.py [PATH ...]

PATH: modules or packages below the package, as `drain/policy.py` or `suites/matrix`. The tests of a module are those at its
mirrored path, or of its folder if it has none there. A comment `# pragma: no mutate` in the source excludes a line; state why.

Everything happens in a copy. There each decorator is called below its function, as mutmut changes no function that has one,
and every check has. What stands outside functions is not changed. Tests that fail where no change is made, as those that need the
frameworks, are left out, and named.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".cache" / "mutation"
SOURCE = Path("src/pytest_gpucluster")
DEFAULT = ("core/majority.py", "core/outliers.py", "drain/policy.py")
# mutmut changes functions with these
LEFT_ABOVE = {"staticmethod", "classmethod"}
FIRST_ARGUMENT = "pytest_add_cli_args = ["
ALL_FAILURES = '"--maxfail=9999", '  # mutmut says -x, and a run for each failure takes hours
# kit/framework/payload_step.py reads these from the file; another name breaks all that is sent
SENT_TEXT = re.compile(r'(\btext_of\("[^"\n]+"\).*)')
DETECTED = {"killed", "timeout", "segfault", "suspicious"}


def decorators_below(source: str) -> str:
    """Return the source with `@d` above each function or method `f` as `f = d(f)` below it."""
    lines = source.splitlines()
    for function in reversed(list(_functions(ast.parse(source)))):
        called = function.name
        for decorator in reversed(function.decorator_list):
            called = f"({ast.unparse(decorator)})({called})"
        lines.insert(function.end_lineno or 0, f"{' ' * function.col_offset}{function.name} = {called}")
        del lines[function.decorator_list[0].lineno - 1 : function.lineno - 1]
    return "\n".join(lines) + "\n"


def _functions(scope: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Yield functions and methods with decorators; none of those whose name is defined twice, as with `@x.setter`."""
    names = Counter(node.name for node in scope.body if isinstance(node, ast.FunctionDef))
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node)
        elif isinstance(node, ast.FunctionDef) and node.decorator_list and names[node.name] == 1:
            if not any(ast.unparse(one) in LEFT_ABOVE for one in node.decorator_list):
                yield node


def modules(paths: Sequence[str]) -> list[Path]:
    """Return the modules of these paths, as paths below the root of the project."""
    found: list[Path] = []
    for path in paths:
        below = ROOT / SOURCE / path
        if not below.exists():
            sys.exit(f"mutation: {path} does not exist; name a module or a package below {SOURCE}")
        found += sorted(below.rglob("*.py")) if below.is_dir() else [below]
    return [path.relative_to(ROOT) for path in found]


def tests_of(module: Path) -> list[str]:
    """Return the test modules at the mirrored path, or the nearest mirrored folder that exists."""
    folder = ROOT / "tests" / module.parent.relative_to(SOURCE)
    named = sorted({*folder.glob(f"test_{module.stem}.py"), *folder.glob(f"test_{module.stem}_*.py")})
    nearest = next(one for one in (folder, *folder.parents) if one.is_dir())
    return [str(path.relative_to(ROOT)) for path in named or [nearest]]


def copy(chosen: Sequence[Path], tests: Sequence[str]) -> None:
    """Make the folder in which mutmut works: the sources, links to all else, and its configuration."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(ROOT / "src", WORK / "src", ignore=shutil.ignore_patterns("__pycache__"))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    others = sorted({line.partition("/")[0] for line in tracked.splitlines()} - {"src", "pyproject.toml"})
    for name in others:
        (WORK / name).symlink_to(ROOT / name)
    for path in chosen:
        source = decorators_below((ROOT / path).read_text(encoding="utf-8"))
        (WORK / path).write_text(SENT_TEXT.sub(r"\1  # pragma: no mutate", source), encoding="utf-8")
    section = f"""
[tool.mutmut]
source_paths = ["src"]
also_copy = {others}
only_mutate = {[str(path) for path in chosen]}
process_isolation = "forkserver"  # a cache that tests have filled would hide a change
pytest_add_cli_args_test_selection = {[*tests]}
{FIRST_ARGUMENT}{ALL_FAILURES}"-p", "no:cacheprovider"]
debug = true
use_git_change_detection = false
"""
    (WORK / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + section)


def sample(chosen: Sequence[Path], seed: int, count: int) -> list[str]:
    """Return the names of this many changes."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    found = [
        get_mutant_name(path, name)
        for path in chosen
        for name in mutate_file_contents(str(path), path.read_text()).mutant_names
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args(arguments)
    chosen = modules(options.paths or DEFAULT)
    copy(chosen, list(dict.fromkeys(test for path in chosen for test in tests_of(path))))
    os.chdir(WORK)
    names = sample(chosen, options.seed, options.count)
    deadline = time.monotonic() + 60 * options.minutes
    mutate(names[:1], deadline)
    leave_out_failing()
    mutate(names, deadline)
    while leave_out_failing() and time.monotonic() < deadline:
        mutate(names, deadline)
    return report(names)


def mutate(names: Sequence[str], deadline: float) -> None:
    mutmut = str(Path(sys.executable).with_name("mutmut"))
    command = [mutmut, "run", "--max-children", str(os.cpu_count()), *names]
    with Path("mutmut.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as running:
        try:
            running.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)


def leave_out_failing() -> list[str]:
    """Return the tests without which mutmut can go on: those that failed before it changed anything."""
    log, config = Path("mutmut.log").read_text(errors="replace"), Path("pyproject.toml")
    config.write_text(config.read_text().replace(ALL_FAILURES, ""))
    if "failed to collect stats" not in log:
        return []
    # a test with all its parameters: their values can hold any character
    failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+?\.py(?:::\w+)*)", log, re.MULTILINE)))
    words = ", ".join(f'"--deselect={one}"' for one in failed)
    config.write_text(config.read_text().replace(FIRST_ARGUMENT, f"{FIRST_ARGUMENT}{words}, "))
    print("left out, since they fail without a change:", *failed)
    return failed


def report(names: Sequence[str]) -> int:
    """Print the changes that no test detects, and the score; 1 if no change was tried."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    results = subprocess.run(
        [Path(sys.executable).with_name("mutmut"), "results", "--all", "1"], capture_output=True, text=True, check=True
    )
    status = dict(line.strip().split(": ", 1) for line in results.stdout.splitlines())
    found = Counter(status[name] for name in names)
    for name in sorted(name for name in names if status[name] in {"survived", "no tests"}):
        diff = [line for line in get_diff_for_mutant(name).splitlines()[2:] if line[0] in "+-"]
        print(f"{status[name]}: {name}", *diff, sep="\n    ")
    tried = len(names) - found["not checked"]
    detected = sum(found[one] for one in DETECTED)
    print(
        f"{detected} of {tried} changes detected",
        *(f"{number} {what}" for what, number in sorted(found.items())),
        sep=", ",
    )
    if not tried:
        print(f"mutmut tried no change: see {WORK / 'mutmut.log'}")
    return not tried


if __name__ == "__main__":
    sys.exit(main())
