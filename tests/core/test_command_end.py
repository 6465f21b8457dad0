"""What a status of sh is a proof of, measured on real processes."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

import pytest_gpucluster
from pytest_gpucluster.core.command_end import LIMITED_SH, CommandEnd
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer, Probe

OF_A_KILL = {124, 137, 139, 143}


def ended(seconds: int, command: str) -> str:
    script = f'{LIMITED_SH}limited {seconds} sh -c "$1" 2>/dev/null; printf %s "$ended"'
    done = subprocess.run(["sh", "-c", script, "sh", command], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("exit 3", "3"),
        ("exit 124", "124"),
        ("exit 137", "137"),
        ("kill -9 $$", "137"),
        ("kill -9 $PPID; sleep 9", "137"),  # timeout(1) itself
        ("kill -15 $$", "143"),
        ("/no/such", "127"),
    ],
)
def test_only_a_deadline_that_was_over_is_a_hang(command: str, word: str) -> None:
    assert ended(20, command) == word
    assert not CommandEnd.of(word).hung


@pytest.mark.parametrize("command", ["exec sleep 20", "trap '' TERM; sleep 20 & wait; sleep 20"])
def test_a_command_that_outlasts_its_deadline_hangs(command: str) -> None:
    end = CommandEnd.of(ended(1, command))
    assert (end.hung, end.signal, str(end)) == (True, None, "no end within its deadline")


def test_a_command_that_something_killed_has_no_facts() -> None:
    probe: Probe[str] = Probe("tool", "tool", lambda answer: answer.out)
    with pytest.raises(NotAvailable, match="tool: killed by signal 9"):
        probe.parse(Answer("gpu01", 137, b"half"))
    assert probe.parse(Answer("gpu01", 255, b"as ssh(1) ends")) == "as ssh(1) ends"


def test_no_other_code_takes_a_status_for_a_cause() -> None:
    root = Path(pytest_gpucluster.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, (ast.Compare, ast.Assign, ast.AnnAssign, ast.Dict))
            numbers = {it.value for it in ast.walk(node) if isinstance(it, ast.Constant)} if named else set()
            if OF_A_KILL & {it for it in numbers if type(it) is int}:
                found.append(f"{path.relative_to(root)}: {ast.unparse(node)[:80]}")
    for path in (*root.rglob("*.sh"), *root.rglob("*.awk")):
        numbers = set(re.findall(r"(?<!exit )\b(?:124|137|139|143)\b", path.read_text()))
        found += [str(path.relative_to(root))] if numbers and path.name != "limited.sh" else []
    assert found == []
