"""The reference of options, fixtures, markers, commands and checks in Markdown, generated from the code.

`gpucluster schema --reference` prints it, and `--pages` writes its parts between the marks of pages.
"""

from __future__ import annotations

import argparse
import inspect
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cli.codes import codes_of
from pytest_gpucluster.cli.command import each, leaves
from pytest_gpucluster.config import json_schema
from pytest_gpucluster.config.json_schema import list_item, wrapped
from pytest_gpucluster.core import former_names, given
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.part import KINDS
from pytest_gpucluster.core.registry import Suite, suites
from pytest_gpucluster.plugin.items import FIXTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.cli.command import Argument, Command
    from pytest_gpucluster.core.check import CheckDescription

STATUSES = (
    "Exit status: 0; 1 for an error; 2 for wrong usage; 3 if `compare` finds that something got worse; "
    "4 for a wrong file; 130 for Ctrl-C."
)


# a part of the reference between its marks in a page
_PART = re.compile(r"(<!-- (\w+): gpucluster schema --pages [^>]*-->\n).*?(<!-- end of the \2 -->)", re.DOTALL)


def reference(commands: Sequence[Command]) -> str:
    """Return the whole reference as Markdown; `commands` are those of gpucluster."""
    parts: dict[str, Callable[[], str]] = {
        **_parts(commands),
        "options": lambda: _text(_options(), _markers(suites_too=True)),
    }
    texts = [f"# Reference: {name}\n\n{part()}" for name, part in parts.items() if name not in ("keys", "former")]
    suites_with_checks = sorted({name.partition(".")[0] for name in _all_checks()})
    texts += [f"# Checks of {suite}\n\n{_checks_in_full(suite)}" for suite in suites_with_checks]
    return "\n".join(texts)


def _parts(commands: Sequence[Command]) -> Mapping[str, Callable[[], str]]:
    return {
        "options": lambda: _text(_options(), _markers()),
        "commands": lambda: _text(_commands(commands)),
        "python": lambda: _text(_fixtures(), _facts(), _api(), _suite(), _parts_and_codes()),
        "keys": json_schema.reference,
        "former": lambda: _text(_former()),
    }


def _text(*parts: Iterable[str]) -> str:
    return "\n".join("\n".join(part) for part in parts).rstrip("\n") + "\n"


def filled(page: Path, text: str, commands: Sequence[Command]) -> str:
    """Return the text of a page with the parts that it has marks for: `checks` are those of the suite of its name."""
    checks = page.stem.replace("-", "_")
    parts: dict[str, Callable[[], str]] = {**_parts(commands), "checks": lambda: _checks(checks)}

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}{parts[found[2]]()}{found[3]}" if found[2] in parts else found[0]

    return _PART.sub(part, text)


def pages(folder: Path, commands: Sequence[Command]) -> dict[Path, str]:
    """Return {page: its text with the generated parts} of each page with marks below a folder. ConfigError without any."""
    texts = {page: page.read_text() for page in sorted(folder.rglob("*.md"))}
    found = {page: filled(page, text, commands) for page, text in texts.items() if _PART.search(text)}
    if not found:
        raise ConfigError(
            f"--pages: no page below {folder} has marks like <!-- checks: gpucluster schema --pages docs -->"
        )
    return found


# --- options of pytest


class _Recorder:
    """Replaces pytest's parser and its group, and records the options."""

    def __init__(self) -> None:
        self.added: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def getgroup(self, *_about: str) -> _Recorder:
        return self

    def addoption(self, *names: str, **attributes: Any) -> None:
        self.added.append((names, attributes))


def _options() -> Iterator[str]:
    from pytest_gpucluster import plugin  # only the reference needs pytest

    recorder = _Recorder()
    for add in (plugin.pytest_addoption, plugin.add_options):
        add(recorder)  # type: ignore[arg-type] # the part of a parser that is used
    yield from ("## Options of pytest", "")
    for names, attributes in recorder.added:
        yield list_item(_written(names[:1], attributes), _help(attributes))
    yield ""
    yield "The other options exist only with `--cluster`, so that other projects can use their names; a run that"
    yield "names one without `--cluster` ends with exit status 4. pytest's own options are unchanged."
    yield ""


def _written(names: Iterable[str], attributes: Mapping[str, Any]) -> str:
    value = attributes.get("metavar") or "|".join(attributes.get("choices") or ())
    return ", ".join(f"`{name}={value}`" if value else f"`{name}`" for name in names)


def _default(value: Any) -> str:
    return f"`{value}`" if value not in (None, False, "", argparse.SUPPRESS) and value != [] else ""


def _help(attributes: Mapping[str, Any]) -> str:
    text = attributes["help"].replace("(%(default)s)", "(default: %(default)s)")
    text = text.replace("%(default)s", str(attributes.get("default"))).replace("%%", "%")
    default = _default(attributes.get("default"))
    return text if not default or default.strip("`") in text else f"{text} (default: {default})"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# --- markers and fixtures


def _markers(*, suites_too: bool = False) -> Iterator[str]:
    from pytest_gpucluster.plugin import marker_lines  # only the reference needs pytest

    pages = {suite.name: suite.page.removeprefix("docs/") for suite in suites()}
    yield from ("## Markers", "")
    if not suites_too:
        yield from ("The name of each [suite](which-suite.md) is a marker. The others are:", "")
    for name, _, about in (line.partition(":") for line in marker_lines()):
        if suites_too or name not in pages:
            yield list_item(f"[`{name}`]({pages[name]})" if name in pages else f"`{name}`", about.strip())
    yield ""


def _fixtures() -> Iterator[str]:
    yield from ("## Fixtures", "")
    yield "For tests of a site. A test that uses `gpucluster_node`, itself or through a fixture, runs once per node."
    yield ""
    for name, about in _attributes():
        if "." not in name:
            yield list_item(f"`{name}`", _first_sentence(about))
    yield from ("", "Their attributes:", "")
    for name, about in _attributes():
        if "." in name:
            yield list_item(f"`{name}`", _first_sentence(about))
    yield ""


def _attributes() -> Iterator[tuple[str, str]]:
    """Yield the names of fixtures and of their attributes, like `gpucluster_node.host`, with their docstrings."""
    from pytest_gpucluster.plugin import fixtures  # only the reference needs pytest
    from pytest_gpucluster.run.facts import ItemView

    yield from ((name, value.__doc__ or "") for name, value in vars(fixtures).items() if _is_fixture(name))
    views = {"": fixtures.RunView, "_fleet": fixtures.FleetView, "_node": fixtures.NodeView, "_item": ItemView}
    for end, view in views.items():
        for name, value in vars(view).items():
            if not name.startswith("_") and value.__doc__ and (end != "_item" or name in fixtures.OF_SITE):
                yield f"gpucluster{end}.{name}", value.__doc__


def _is_fixture(name: str) -> bool:
    return name.startswith(FIXTURES) or name == "host"


def _facts() -> Iterator[str]:
    from pytest_gpucluster.plugin import fixtures  # only the reference needs pytest
    from pytest_gpucluster.run.facts import ItemView

    yield from ("## Facts of every run", "")
    yield "Parameters of checks by their names, and `given.NAME` as sources of a suite's facts. A check that needs `node`, itself"
    yield "or through a fact, runs once per node."
    yield ""
    alike = {name.removeprefix("gpucluster_") for name, _ in _attributes()}
    alike |= {name.partition(".")[2] for name in alike}
    for name, fact in given.FACTS.items():
        if name not in alike:
            about = fact.function if inspect.isfunction(fact.function) else getattr(ItemView, name, None)
            about = about or getattr(fixtures.RunView, name)
            yield list_item(f"`{name}`", _first_clause(about.__doc__ or ""))
    same = ", ".join(f"`{name}`" for name in given.FACTS if name in alike)
    yield from ("", *wrapped(f"As the fixtures and attributes of these names: {same}."), "")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z`])", _flat(text))[0].removesuffix(".").removesuffix(", ..")


def _first_clause(text: str) -> str:
    """Return the first sentence up to a colon or semicolon outside of quotations and braces."""
    sentence = _first_sentence(text)
    for found in re.finditer("[:;] ", sentence):
        before = sentence[: found.start()]
        if len(before.split()) > 3 and not any(before.count(a) > before.count(b) for a, b in ("{}", "()")):
            return before if before.count("`") % 2 == 0 and before.count('"') % 2 == 0 else sentence
    return sentence


TYPES = {"Judgement": "What a check yields: findings, advisories, metrics.", "Text": "The type of a key that is text."}


def _api() -> Iterator[str]:
    from pytest_gpucluster import api  # only the reference needs all of it

    yield from ("## Names of `pytest_gpucluster.api`", "")
    yield from ("All that tests of a site and suites of other distributions import.", "")
    for name in api.__all__:
        value = getattr(api, name)
        about = f"`better` of a metric, {value!r}" if isinstance(value, str) else _first_clause(_paragraph(value))
        yield list_item(f"`{name}`", TYPES.get(name, about))
    yield ""


def _suite() -> Iterator[str]:
    from pytest_gpucluster.kit.payloads import prelude  # only the reference needs it

    yield from ("## What a suite registers", "")
    yield "`SUITE = Suite(__name__, ...)` in the `__init__.py` of its package. A part is a class or function of the package, or"
    yield 'its name as a text "MODULE:NAME", imported where it is first needed; `help(Suite)` has the types.'
    yield ""
    fields = re.findall(r"^(\w+): (.*?)(?=^\w+: |\Z)", inspect.getdoc(Suite) or "", re.MULTILINE | re.DOTALL)
    for name, about in fields:
        yield list_item(f"`{name}`", _first_clause(about))
    names = [
        f"`{name}`"
        for name, function in inspect.getmembers(prelude, inspect.isfunction)
        if function.__module__ == prelude.__name__ and not name.startswith("_")
    ]
    text = f"For payloads, `pytest_gpucluster.kit.payloads.prelude` has {', '.join(names)}."
    yield from ("", *wrapped(text), "")


def _paragraph(part: object) -> str:
    return _flat((inspect.getdoc(part) or "").partition("\n\n")[0])


def _former() -> Iterator[str]:
    """Yield a table of renamed options, keys and checks."""
    yield from ("| name of an earlier version | now |", "|---|---|")
    for title, rows in former_names.tables():
        alike: dict[str, list[str]] = {}
        for name, former in rows.items():
            if former.new:
                last = re.split(r"[.-]+", name)[-1]
                text = re.sub(rf"\b{last}\b", title.upper(), former.text)
                alike.setdefault(text, []).append(name)
        for text, names in alike.items():
            single = former_names.named(names[0]).text if len(names) == 1 else text
            yield _row(", ".join(f"`{name}`" for name in names), single)
    yield from ("", "For a name that went without a successor, `gpucluster check NAME` prints what to do instead.")


# --- the command gpucluster


def _commands(commands: Iterable[Command]) -> Iterator[str]:
    yield STATUSES
    yield ""
    yield "`gpucluster COMMAND --help` prints the meaning of each option."
    yield ""
    for words, command in leaves(commands):
        options = " ".join(_written_argument(one).replace("`", "") for one in each(command.arguments))
        yield list_item(f"**gpucluster {words}**", _sentence(command.help), options and f"`{options}`")


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(text: str) -> str:
    return _first_upper(text) + ("" if text.endswith(".") else ".") if text else ""


def _written_argument(one: Argument) -> str:
    """Return an argument as a command line has it, in backquotes."""
    name, attributes = one.names[0], dict(one.attributes)
    if not name.startswith("-"):
        return f"`{attributes.get('metavar') or '|'.join(attributes.get('choices', ())) or name.upper()}`"
    if attributes.get("action") != "store_true" and "choices" not in attributes:
        attributes.setdefault("metavar", name.strip("-").upper())
    return _written(one.names, attributes)


def _parts_and_codes() -> Iterator[str]:
    _all_checks()  # suites register kinds
    kinds = sorted((kind, one.named) for kind, one in KINDS.items() if kind)
    yield from ("## Findings", "")
    yield from wrapped(f"Kinds of parts: {', '.join(f'`{kind}`' for kind, _ in kinds)}.")
    named = ", ".join(f"`{kind}`" for kind, named in kinds if named)
    yield from ("", *wrapped(f"Findings of two nodes about these are the same only if the names are equal: {named}."))
    shared = sorted({*codes_of("pytest_gpucluster.core"), *codes_of("pytest_gpucluster.kit")})
    yield from ("", *wrapped(f"Codes that several suites share: {', '.join(f'`{code}`' for code in shared)}."), "")


# --- checks


def _checks(suite: str) -> str:
    """Return the table of the checks of a suite, its proof, and which of them may take a node out of service."""
    about = _checks_of(suite)
    rows = (_row(f"`{name}`", one.action.value, _holds(one), one.hint) for name, one in about.items())
    lines = ["| check | action | what must hold | what to do |", "|---|---|---|---|", *rows]
    if proof := _proof(suite):
        lines += ["", *wrapped(f"Proof: {proof}.")]
    if drains := ", ".join(f"`{name}`" for name, one in about.items() if one.never_healthy):
        lines += ["", *wrapped(f"May take a node out of service: {drains}.")]
    return "\n".join(lines) + "\n"


def _checks_in_full(suite: str) -> str:
    """Return what the table of a suite leaves out, too: likely causes, codes, and why no healthy node fails with a repair."""
    about = _checks_of(suite)
    rows = (_row(f"`{name}`", one.action.value, _holds(one), one.cause, one.hint) for name, one in about.items())
    lines = ["| check | action | what must hold | likely cause | what to do |", "|---|---|---|---|---|", *rows]
    if proof := _proof(suite):
        lines += ["", f"Proof of the suite, without which a node is *not proved*: {proof}."]
    package = next((one.package for one in suites() if one.name == suite), "")
    if package and (codes := codes_of(package)):
        lines += ["", f"Codes of its findings: {', '.join(f'`{code}`' for code in codes)}."]
    reasons = [f"- `{name}`: {one.never_healthy}." for name, one in about.items() if one.never_healthy]
    if reasons:
        lines += ["", "May take a node out of service; why no healthy node fails so:", "", *reasons]
    return "\n".join(lines) + "\n"


def _checks_of(suite: str) -> Mapping[str, CheckDescription]:
    return {
        name.partition(".")[2]: one
        for name, one in sorted(_all_checks().items())  # not in the order of imports
        if name.startswith(f"{suite}.")
    }


def _proof(suite: str) -> str:
    return ", ".join(f"`{name.partition('.')[2]}`" for one in suites() if one.name == suite for name in one.proof)


def _all_checks() -> Mapping[str, CheckDescription]:
    from pytest_gpucluster.core import check as verdict
    from pytest_gpucluster.core.registry import import_checks  # only the reference needs all of them

    import_checks()
    return verdict.CHECKS


def _holds(one: CheckDescription) -> str:
    """Return what must hold; a text that begins with a program keeps its name."""
    judged = re.sub("^Judge (that )?", "", one.holds)
    return judged if judged == one.holds else _first_upper(judged)
