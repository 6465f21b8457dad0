"""A check leaves a case to another one only by core.check.leave_to, which reads whether that one has a finding."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from paths import ROOT

from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.core.registry import import_checks

if TYPE_CHECKING:
    from collections.abc import Iterator


def violations(source: str) -> Iterator[str]:
    """Yield texts that leave a case to a named check by words alone, and cases that are not applicable because of one."""
    import_checks()
    name = f"({'|'.join(map(re.escape, CHECKS))})"
    tree = ast.parse(source)
    assigned = [(ast.unparse(it.targets[0]), it.value) for it in tree.body if isinstance(it, ast.Assign)]
    constants = {target: ast.unparse(value) for target, value in assigned}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and re.search(rf"which {name} judges", str(node.value)):
            yield str(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "NotApplicable":
            texts = [constants.get(text := ast.unparse(it), text) for it in node.args]
            yield from (it for it in texts if re.search(rf"see {name}", it))


def test_no_check_leaves_a_case_to_another_one_by_words_alone() -> None:
    planted = 'SEE = "few (see gpu.count)"\nraise NotApplicable(SEE)\nraise NotAvailable(f"{x}, which slurm.prolog judges: {y}")'
    assert len([*violations(planted)]) == 2
    files = sorted((ROOT / "src").rglob("*.py"))
    assert {str(path): found for path in files if (found := [*violations(path.read_text())])} == {}
