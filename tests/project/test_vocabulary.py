"""Documentation, examples, help texts, field descriptions and the packages of PLAIN are free of retired words."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from docs_helpers import ROOT, name_of

import slurm_sandbox
from pytest_gpucluster import plugin
from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.config.json_schema import schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

RETIRED = {
    r"\b(told|tells)\b": "a program reports, states, returns or prints",
    r"\bsaid\b": "a program reports, states or prints",
    r"\basked\b": "a program requests, queries or selects",
    r"\bspeaks?\b|\bspoken\b": "name the protocol or the output",
    r"\bours\b": "name the owner",
    r"\b(some|no)body\b": "name the user or the program, or use the passive voice",
    r"\b(is|are|was|were) to be\b": "must",
    r"\b(has|have) to\b": "must",
    r"\b(were|be) had\b": "Slurm allocated no nodes",
    r"\bdealt\b": "assigned",
    r"\bafresh\b|\banew\b": "again, new",
    r"\bgo(es)? on\b": "continues",
    r"\bgiven back\b|\bgives? back\b|\bgo back\b": "released",
    r"\bso long\b|\bso many\b": "state the bound",
    r"\b(once|one|tasks?|GPUs?|process(es)?|second|trip|replica|worker|rank|object|line|items?) an? (node|task|rank|GPU"
    r"|line|item|command|process|cluster)\b": "per node",
    r"\bone's own\b": "its own",
    r"\bby hand:|\bagain: ": "reproduce:, rerun:",
    r"\bin place of\b": "instead of",
}
# retired in source text, where they stand for a value, a means or a possession
RETIRED_IN_SOURCE = {
    **RETIRED,
    r"\bhad\b": "has, or name the state",
    r"\bways?\b": "path, means, interface, direction",
    r"\blook(s|ed)?\b": "check, search, query",
    r"\bkept\b": "stored, cached, resumed",
    r"\bclaims?\b": "declares, requires",
}
SANDBOX = Path(slurm_sandbox.__file__).parent
# packages whose identifiers, comments and strings are free of retired words
PLAIN = (
    "cluster", "cli", "config", "core", "drain", "kit", "plugin", "report", "sandbox", "suites",
)  # fmt: skip
# (file or source, text around the word): why it may stay
ALLOWED = {
    ("docs/safety.md", "maps root to nobody"): "the user nobody of NFS",
    ("docs/sandbox.md", "| `epilog_failing` |"): "text of the fault as the product prints it today",
    ("docs/suites/burnin.md", '"what": "told"'): "value in events.jsonl of earlier versions",
    ("CHANGELOG.md", "(was `told`)"): "value in events.jsonl of earlier versions",
    ("CHANGELOG.md", "(was `asked`)"): "field in events.jsonl of earlier versions",
}


# (file, text around the word): why it may stay
ALLOWED_IN_SOURCE = {
    ("cluster/transport/ssh_connect.py", "look for keys"): "an argument of paramiko",
    ("core/probe.py", "by hand: str"): "the colon of an annotation",
    ("suites/burnin/steps.py", 'event["asked"]'): "key in events.jsonl of earlier versions",
    ("suites/burnin/steps.py", '("totals", "told")'): "value in events.jsonl of earlier versions",
    ("slurm_sandbox/spank/image.py", "nobody:x:65534"): "the user nobody",
    ("slurm_sandbox/spank/registry.py", "again: bool"): "the colon of an annotation",
    ("core/redact.py", "load|logs|look|make"): "first words of messages of other packages",
    (
        "kit/container/containers.py",
        'PREFIX}-kept"',
    ): "names of containers that earlier versions left on nodes",
    ("kit/nccl/nccl_step.py", "nodes asked for"): "a message of srun",
}


def pages() -> Iterator[tuple[str, str]]:
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for page in [*top, *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.*")]:
        # causes and hints of checks are texts of the product, below this heading
        yield name_of(page), page.read_text().partition("\n## Checks and repairs\n")[0]
    _, *versions = (ROOT / "CHANGELOG.md").read_text().split("\n## [")
    yield "CHANGELOG.md", "".join(versions[:2])  # unreleased changes and the newest version
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield name_of(path), path.read_text()


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the usage and help of a command and of its subcommands, as --help prints them."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from helps(one)


class Recorder:
    """Stands in for pytest's parser and its group; keeps the help texts."""

    def __init__(self) -> None:
        self.helps: list[str] = []

    def getgroup(self, *_names: str) -> Recorder:
        return self

    def addoption(self, *_names: str, **attributes: Any) -> None:
        self.helps.append(attributes["help"])


def described(part: Any) -> Iterator[str]:
    """Yield all descriptions of a JSON Schema."""
    if isinstance(part, dict):
        if isinstance(part.get("description"), str):
            yield part["description"]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from described(one)


def sources() -> Iterator[tuple[str, str]]:
    yield from pages()
    recorder: Any = Recorder()
    plugin.pytest_addoption(recorder)
    plugin.add_options(recorder)
    yield "options of pytest", "\n".join(recorder.helps)
    yield "command gpucluster", "\n".join(helps(cli._parser()))
    yield "field descriptions", "\n".join((*described(schema()), *described(schema("profile"))))


SOURCES = dict(sources())


def code() -> Iterator[tuple[str, str]]:
    """Yield the text of each module and script of PLAIN and of the sandbox, with the words of identifiers apart."""
    package = Path(plugin.__file__).parents[1]
    for folder in (*(package / name for name in PLAIN), SANDBOX):
        for path in sorted(folder.rglob("*")):
            if path.suffix in {".py", ".sh", ".awk"}:
                text = path.read_text().replace("_", " ")
                name = path.relative_to(SANDBOX.parent if folder == SANDBOX else package).as_posix()
                yield name, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)


CODE = dict(code())


def retired(
    name: str, text: str, words: Mapping[str, str], allowed: Collection[tuple[str, str]]
) -> Iterator[str]:
    for pattern, instead in words.items():
        for hit in re.finditer(pattern, text, re.IGNORECASE):
            near = text[max(0, hit.start() - 80) : hit.start() + 80]
            if not any(name == where and around in near for where, around in allowed):
                yield f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}: write: {instead}"


@pytest.mark.parametrize("name", SOURCES)
def test_no_retired_word_stands_here(name: str) -> None:
    assert list(retired(name, SOURCES[name], RETIRED, ALLOWED)) == []


def test_source_has_no_retired_words() -> None:
    hits = [retired(name, text, RETIRED_IN_SOURCE, ALLOWED_IN_SOURCE) for name, text in CODE.items()]
    assert "\n".join(hit for found in hits for hit in found) == ""


def test_every_exception_is_still_needed() -> None:
    assert [key for key in ALLOWED if key[1] not in SOURCES[key[0]]] == []
    assert [key for key in ALLOWED_IN_SOURCE if key[1] not in CODE[key[0]]] == []


@pytest.mark.parametrize(
    "text", ["self._told = 1", "class StepTold:", "# kept here", "last_look", "said: str"]
)
def test_retired_word_in_identifier_or_comment_is_found(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "new.py").write_text(text)
    monkeypatch.setattr(plugin, "__file__", str(tmp_path / "plugin" / "__init__.py"))
    monkeypatch.setitem(globals(), "SANDBOX", tmp_path / "none")
    ((name, words),) = code()
    assert list(retired(name, words, RETIRED_IN_SOURCE, ()))


@pytest.mark.parametrize(
    "text", ["no nodes were had", "it is to be a port", "by hand:", "Nobody knows", "one a node"]
)
def test_a_retired_word_is_found(text: str) -> None:
    assert any(re.search(pattern, text, re.IGNORECASE) for pattern in RETIRED)


def test_the_files_that_users_read_are_all_read_here() -> None:
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/reference/options.md"} <= SOURCES.keys()
    assert any(Path(name).suffix == ".sh" for name in SOURCES)
