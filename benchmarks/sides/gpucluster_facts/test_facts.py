"""The 40 checks as this plugin's own suites are written: facts that one process can read are read by one.

The same facts are held against the same patterns as everywhere; only the commands are put together: one `cat` reads
all files, kernel settings among them, one `nvidia-smi` all values of the GPUs, one `uname` and one `systemctl` theirs.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from questions import Question, asked

from pytest_gpucluster.core.probe import Probe
from pytest_gpucluster.suite import Tests, of_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.probe import Answer

SMI, LAYOUT = "nvidia-smi --query-gpu=", " --format=csv,noheader"
BETWEEN, MARK = "/proc/sys/kernel/ostype", "Linux\n"  # twice: no file that is asked for holds such lines


def kind(question: Question) -> str:
    """Return the fact that reads the facts of a check: that of its kind, or one of its own."""
    first, *_ = question.command.split()
    kinds = {"cat": "files", "sysctl": "files", "uname": "uname", "systemctl": "services"}
    return "gpus" if question.command.startswith(SMI) else kinds.get(first, question.name)


def path(question: Question) -> str:
    """Return the file that a check reads."""
    name = question.command.split()[-1]
    return name if name.startswith("/") else f"/proc/sys/{name.replace('.', '/')}"


def fields(question: Question) -> list[str]:
    """Return what a check asks of each GPU."""
    return question.command.removeprefix(SMI).removesuffix(LAYOUT).split(",")


def together(name: str, questions: list[Question]) -> str:
    """Return the one command for all checks of a kind."""
    last = [question.command.split()[-1] for question in questions]
    if name == "files":
        return f"cat {f' {BETWEEN} {BETWEEN} '.join(map(path, questions))}"
    if name == "gpus":
        return f"{SMI}{','.join(field for question in questions for field in fields(question))}{LAYOUT}"
    if name == "uname":  # it answers in an order of its own, which is that of these checks
        return f"uname {' '.join(last)}"
    return f"systemctl is-active {' '.join(last)}" if name == "services" else questions[0].command


def apart(name: str, questions: list[Question], text: str) -> dict[str, str]:
    """Return the text of each check, as its own command would have printed it."""
    names = [question.name for question in questions]
    if name == "files":
        return dict(zip(names, text.split(2 * MARK), strict=True))
    if name == "gpus":
        rows, begin, found = [line.split(", ") for line in text.splitlines()], 0, {}
        for question in questions:
            end = begin + len(fields(question))
            found[question.name] = "".join(f"{', '.join(row[begin:end])}\n" for row in rows)
            begin = end
        return found
    if name in ("uname", "services"):
        return {name: f"{word}\n" for name, word in zip(names, text.split(), strict=True)}
    return {names[0]: text}


def reader(name: str, questions: list[Question]) -> Probe[dict[str, str]]:
    """Return the probe of a kind."""

    def read(answer: Answer) -> dict[str, str]:
        return apart(name, questions, answer.out)

    return Probe(name, together(name, questions), read)


def judge(question: Question) -> Callable[..., None]:
    """Return the test of one check; it needs the fact of its kind."""

    def test(**facts: dict[str, str]) -> None:
        assert question.right(facts[kind(question)][question.name])

    only = inspect.Parameter(kind(question), inspect.Parameter.KEYWORD_ONLY)
    test.__signature__ = inspect.Signature([only])  # type: ignore[attr-defined]
    return test


QUESTIONS = asked()[0]
MADE: dict[str, Any] = {}
for each in QUESTIONS:
    same = [question for question in QUESTIONS if kind(question) == kind(each)]
    MADE.setdefault(kind(each), of_node(reader(kind(each), same)))
    MADE[f"test_{each.name}"] = judge(each)
globals().update(MADE)

TESTS = Tests(marks=("facts",))
