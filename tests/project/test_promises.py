"""Each sentence of the pages that promise something names the tests that fail if it is false; these tests exist.

A comment at the end of a page lists its sentences in their order, each by its first words, with the names of tests, or as
`explanation` if it promises nothing about this product. A paragraph, a list item and a table row have one sentence or more; headings,
heads of tables and code blocks have none.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from docs_helpers import FENCE
from paths import ROOT

import pytest_gpucluster
from pytest_gpucluster.cluster import signals
from pytest_gpucluster.cluster.channel import channel
from pytest_gpucluster.cluster.slurm import allocation, client, step
from pytest_gpucluster.cluster.transport import base
from pytest_gpucluster.config import yaml_loader
from pytest_gpucluster.core import hostlist, redact, values
from pytest_gpucluster.drain import executor, lock, reason, retest
from pytest_gpucluster.plugin import controller
from pytest_gpucluster.report import history_file

sys.path.insert(0, str(ROOT / "tools"))

import chaos

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ("safety.md", "drain.md", "bad-input.md", "rights.md")
EXPLANATION = "explanation"
COMMENT = re.compile(r"\n<!-- What proves this page[^\n]*\n(.*?)\n-->\n", re.DOTALL)
TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
CODE = re.compile(r"`[^`]*`")
END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"*(\[])")
SOURCE = Path(pytest_gpucluster.__file__).parent


class Sentence(NamedTuple):
    """A sentence of a page, and the line on which its block begins."""

    line: int
    text: str


class Entry(NamedTuple):
    """An entry of the comment: the first words of a sentence, and names of tests or EXPLANATION."""

    words: str
    tests: tuple[str, ...]


def sentences(text: str) -> list[Sentence]:
    """Return the sentences of a page."""
    return [
        Sentence(line, sentence.removeprefix("| "))
        for line, block in blocks(COMMENT.sub("\n", text))
        for sentence in split(block)
    ]


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each paragraph, list item and table row."""
    text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    begin, found = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if found and (not line.strip() or line.lstrip().startswith("|") or ITEM.match(line)):
            if not (found[0].startswith("#") or is_head(found[0], line)):
                yield begin, "\n".join(found)
            found = []
        if not found:
            begin = number
        if line.strip():
            found.append(line)


def is_head(row: str, following: str) -> bool:
    """Return whether a line is the head of a table, or the line below it."""
    return any(re.fullmatch(r"\s*\|[-| ]+\|", line) for line in (row, following))


def split(block: str) -> list[str]:
    """Return the sentences of a block. A table row is one, unless a cell has several."""
    hidden: list[str] = []

    def hide(code: re.Match[str]) -> str:
        hidden.append(code[0])
        return f"`{len(hidden) - 1}`"

    parts = END_OF_SENTENCE.split(CODE.sub(hide, ITEM.sub("", " ".join(block.split()))))
    return [re.sub(r"`(\d+)`", lambda number: hidden[int(number[1])], part) for part in parts]


def entries(text: str) -> list[Entry]:
    """Return the entries of a page's comment."""
    comment = COMMENT.search(text)
    found: list[Entry] = []
    for line in comment[1].splitlines() if comment else ():
        words, _, rest = line.rpartition(": ")
        if line.startswith(" ") and found:
            found[-1] = Entry(found[-1].words, (*found[-1].tests, *line.split()))
        elif rest == EXPLANATION:
            found.append(Entry(words, (EXPLANATION,)))
        elif line:
            found.append(Entry(line, ()))
    return found


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of the test functions of a file, without importing it; none if there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return frozenset(one.name for one in tree.body if isinstance(one, ast.FunctionDef))


def problems(page: str, text: str) -> Iterator[str]:
    """Yield what is wrong with the comment of a page."""
    listed = entries(text)
    for number, sentence in enumerate(sentences(text)):
        entry = listed[number] if number < len(listed) else Entry("", ())
        if not entry.words or not sentence.text.startswith(entry.words):
            yield f"docs/{page}:{sentence.line}: no entry for {sentence.text!r}; at its place is {entry.words!r}"
            return
    for entry in listed[len(sentences(text)) :]:
        yield f"docs/{page}: no sentence begins with {entry.words!r}"
    for entry in listed:
        if not entry.tests:
            yield f"docs/{page}: {entry.words!r} names no test"
        for name in entry.tests:
            found = TEST.fullmatch(name)
            if entry.tests != (EXPLANATION,) and (not found or found[2] not in functions_of(found[1])):
                yield f"docs/{page}: {entry.words!r}: no such test: {name}"


@pytest.mark.parametrize("page", PAGES)
def test_each_sentence_names_tests_that_exist_or_is_an_explanation(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert "\n".join(problems(page, text)) == ""
    assert sum(entry.tests != (EXPLANATION,) for entry in entries(text)) > 25


HERE = "tests/project/test_promises.py::test_each_sentence_names_tests_that_exist_or_is_an_explanation"
ONE, TWO = f"It holds\n    {HERE}\n", f"So does\n    {HERE}\n    {HERE}\n"


@pytest.mark.parametrize(
    ("text", "comment", "wrong"),
    [
        ("It holds.", ONE, ""),
        ("It holds.\nSo does `a. B`.", ONE + TWO, ""),
        ("It holds. So does it.", ONE + "So does: explanation\n", ""),
        ("- It holds.\n- So does\n  it.", ONE + TWO, ""),
        ("1. It holds:\n\n   | a | b |\n   |---|---|\n   | So does | `a|b` 1. |", ONE + TWO, ""),
        ("# Heading\n\nIt holds:\n\n```sh\nIt is code. Is it?\n```\n", ONE, ""),
        ("It holds.", "", "page.md:1: no entry for 'It holds.'; at its place is ''"),
        ("| a |\n|---|\n| It holds |", "", "page.md:3: no entry for 'It holds |'"),
        ("It holds. It is new. So does it.", ONE + TWO, "page.md:1: no entry for 'It is new.'; at its place is 'So does'"),
        ("It holds. So does it.", TWO + ONE, "page.md:1: no entry for 'It holds.'"),
        ("It holds.", ONE + TWO, "page.md: no sentence begins with 'So does'"),
        ("It holds.", "It holds\n", "page.md: 'It holds' names no test"),
        ("It holds.", ONE.rstrip() + "_renamed\n", "'It holds': no such test: tests/project/test_promises.py::"),
        ("It holds.", "It holds\n    tests/none.py::test_x\n", "'It holds': no such test: tests/none.py::test_x"),
        ("It holds.", ONE + "    nothing\n", "'It holds': no such test: nothing"),
    ],
)  # fmt: skip
def test_a_page_with_a_sentence_that_names_no_test_is_found(text: str, comment: str, wrong: str) -> None:
    printed = "\n".join(problems("page.md", f"{text}\n\n<!-- What proves this page\n{comment}-->\n"))
    assert wrong in printed
    assert bool(wrong) == bool(printed)


# --- what no other test compares with the pages


def page_text(page: str) -> str:
    return " ".join(re.sub(r"\s*<!--.*?-->", "", (ROOT / "docs" / page).read_text(), flags=re.DOTALL).split())


def default(function: object, name: str) -> float:
    assert callable(function)
    return float(inspect.signature(function).parameters[name].default)


MIB = 1 << 20
(MINUTES_OF_SUBMITIT,) = map(
    int, re.findall(r"timeout_min=(\d+)", (SOURCE / "suites" / "submitit" / "payload.py").read_text())
)
(TRIES,) = map(int, re.findall(r"tries -lt (\d+)", retest._SHELL))
(PAUSE,) = map(int, re.findall(r"sleep (\d+)", retest._SHELL))


@pytest.mark.parametrize(
    ("page", "text", "numbers"),
    [
        ("safety.md", "after {} s without a heartbeat", [channel.PING_TIMEOUT]),
        ("safety.md", "repeated for {} s", [default(client.Slurm.__init__, "retry_for")]),
        ("safety.md", "({} s; the channel's start: {} s)", [default(client.Slurm.__init__, "timeout"), channel.LAUNCH_TIMEOUT]),
        ("safety.md", "signals within {} s count as the same one", [signals.SAME]),
        ("safety.md", "at most {} s for the epilogs", [controller.EPILOG_WAIT]),
        ("safety.md", "for {} s ({} s if", [default(client.Slurm.__init__, "retry_for"), client.AGAIN]),
        ("safety.md", "or {} s after the last test", [retest.END_WITHIN]),
        ("safety.md", "then waits a minute", [history_file.BUSY / 60]),
        ("safety.md", "a minute after `slurm.queue_wait`", [allocation.SPARE / 60]),
        ("safety.md", "at most {} minutes each", [MINUTES_OF_SUBMITIT]),
        ("drain.md", "retries for {} minutes", [TRIES * PAUSE / 60]),
        ("drain.md", "all commands together {} minutes", [executor.OUT_OF_TIME / 60]),
        ("drain.md", "kills it after {} s", [retest.END_WITHIN]),
        ("drain.md", "waits {} s for the lock", [lock.PATIENCE]),
        ("drain.md", "at most {} characters", [reason.LIMIT]),
        ("bad-input.md", "{} KiB, {} values, {} characters", [yaml_loader.MAX_BYTES / 1024, yaml_loader.MAX_VALUES, yaml_loader.MAX_TEXT]),
        ("bad-input.md", "{} MiB per command and node", [channel.CAP / MIB]),
        ("bad-input.md", "{} MiB of each stream of a task, {} MiB in all", [step.StepRequest(("x",)).cap / MIB, step.STEP_CAP / MIB]),
        ("bad-input.md", "{} MiB, then `TransportError`", [base.MAX_OUTPUT / MIB]),
        ("bad-input.md", "{} nodes (`MAX_SLURM_NODES`), {} tasks", [hostlist.MAX_NODES, values.MAX_TASKS]),
        ("bad-input.md", "at most {}095 bytes, and {} between", [values.MAX_PATH // 1000, values.MAX_NAME]),
        ("bad-input.md", "up to five within one another", [redact._NESTED / 5]),
    ],
)  # fmt: skip
def test_numbers_of_the_pages_are_those_of_the_code(page: str, text: str, numbers: list[float]) -> None:
    assert text.format(*(f"{number:,g}" for number in numbers)) in page_text(page)
    assert "{}" in text or numbers == [1]  # written as a word


def test_nothing_runs_with_sudo_but_what_the_page_names() -> None:
    runs = re.compile(r"(?<!remap_)root=True|= with_root\(|\"sudo\", \"-n\"|sudo -n \{")
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if runs.search(path.read_text())}
    assert found == {
        "kit/node/kernel_log.py",
        "suites/accounting/steps.py",
        "suites/burnin/payload_counters.py",
        "suites/controller/steps.py",
        "suites/controller/test_controller.py",
        "kit/fabric/facts.py",
        "suites/ibfabric/lldp.py",
        "suites/ibfabric/optics.py",
        "suites/ibfabric/steps.py",
        "suites/isolation/pam.py",
        "suites/isolation/payload.py",
        "suites/os/bmc_facts.py",
        "suites/os/crash_facts.py",
        "suites/os/drive_facts.py",
        "cluster/channel/testinfra_backend.py",
    }


def test_the_campaign_has_the_kinds_and_options_of_the_page() -> None:
    text = page_text("safety.md").partition("The campaign")[2]
    named = {kind for kinds in re.findall(r"--kinds ([\w,]+)", text) for kind in kinds.split(",")}
    assert {"slurmctld", "hang", "holder", "network"} == named
    assert {*named, *re.findall(r"`([a-z]+)` (?:sends|runs)", text)} <= chaos.TROUBLES.keys()
    source = Path(chaos.__file__).read_text()
    assert [name for name in set(re.findall(r"(--\w+) \S", text)) if f'"{name}"' not in source] == []
    assert f"{chaos.NODES} nodes" in text
