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
    parts = _parts(commands)
    texts = [f"# Reference: {name}\n\n{part()}" for name, part in parts.items() if name not in ("keys", "former")]
    suites_with_checks = sorted({name.partition(".")[0] for name in _all_checks()})
    texts += [f"# Checks of {suite}\n\n{_checks(suite)}" for suite in suites_with_checks]
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
    yield from ("## Options of pytest", "", "| option | default | meaning |", "|---|---|---|")
    for names, attributes in recorder.added:
        yield _row(_written(names[:1], attributes), _default(attributes.get("default")), _help(attributes))
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
    text = attributes["help"].replace(" (%(default)s)", "")  # the default has a column
    return str(text.replace("%(default)s", str(attributes.get("default"))).replace("%%", "%"))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# --- markers and fixtures


def _markers() -> Iterator[str]:
    from pytest_gpucluster.plugin import marker_lines  # only the reference needs pytest

    pages = {suite.name: suite.page.replace("docs/", "../") for suite in suites()}
    yield from ("## Markers", "", "| marker | meaning |", "|---|---|")
    for name, _, about in (line.partition(":") for line in marker_lines()):
        yield _row(f"[`{name}`]({pages[name]})" if name in pages else f"`{name}`", about.strip())
    yield ""


def _fixtures() -> Iterator[str]:
    from pytest_gpucluster.plugin import fixtures  # only the reference needs pytest
    from pytest_gpucluster.run.facts import ItemView

    yield from ("## Fixtures", "")
    yield "For tests of a site. A test that uses `gpucluster_node`, itself or through a fixture, runs once per node."
    yield from ("", "| fixture | what it is |", "|---|---|")
    for name, value in vars(fixtures).items():
        if name.startswith(FIXTURES) or name == "host":
            yield _row(f"`{name}`", _flat(value.__doc__ or ""))
    views = {"": fixtures.RunView, "_fleet": fixtures.FleetView, "_node": fixtures.NodeView, "_item": ItemView}
    yield from ("", "| attribute | what it is |", "|---|---|")
    for end, view in views.items():
        for name, value in vars(view).items():
            if not name.startswith("_") and value.__doc__ and (end != "_item" or name in fixtures.OF_SITE):
                yield _row(f"`gpucluster{end}.{name}`", _flat(value.__doc__))
    yield ""


def _facts() -> Iterator[str]:
    from pytest_gpucluster.plugin.fixtures import RunView  # only the reference needs pytest
    from pytest_gpucluster.run.facts import ItemView

    yield from ("## Facts of every run", "")
    yield "For suites: `given.NAME`, sources of their facts; and parameters of their checks by their names. A check that needs"
    yield "`node`, itself or through a fact, runs once per node."
    yield from ("", "| fact | made once in | what it is |", "|---|---|---|")
    for name, fact in given.FACTS.items():
        about = fact.function if inspect.isfunction(fact.function) else getattr(ItemView, name, None)
        about = about or getattr(RunView, name)
        yield _row(f"`{name}`", "run" if fact.once else "item", _flat(about.__doc__ or ""))
    yield ""


def _flat(text: str) -> str:
    return " ".join(text.split())


TYPES = {"Judgement": "What a check yields: findings, advisories, metrics.", "Text": "The type of a key that is text."}


def _api() -> Iterator[str]:
    from pytest_gpucluster import api  # only the reference needs all of it

    yield from ("## Names of `pytest_gpucluster.api`", "")
    yield from ("All that tests of a site and suites of other distributions import.", "")
    yield from ("| name | what it is |", "|---|---|")
    for name in api.__all__:
        value = getattr(api, name)
        about = f"`better` of a metric: {value!r}" if isinstance(value, str) else _paragraph(value)
        yield _row(f"`{name}`", TYPES.get(name, about))
    yield ""


def _suite() -> Iterator[str]:
    from pytest_gpucluster.kit.payloads import prelude  # only the reference needs it

    yield from ("## What a suite registers", "")
    yield "`SUITE = Suite(__name__, ...)` in the `__init__.py` of its package. A part is a class or function of the package, or"
    yield 'its name as a text "MODULE:NAME", imported where it is first needed.'
    yield ""
    yield from ("| argument of `Suite` | type | what it is |", "|---|---|---|")
    fields = re.findall(r"^(\w+): (.*?)(?=^\w+: |\Z)", inspect.getdoc(Suite) or "", re.MULTILINE | re.DOTALL)
    for name, about in fields:
        kind = re.sub(r"SuitePart\[(.*)\]", r"\1", Suite.__annotations__.get(name, ""))
        yield _row(f"`{name}`", kind and f"`{kind}`", _flat(about))
    yield from ("", "| in `pytest_gpucluster.kit.payloads.prelude`, for payloads | what it does |", "|---|---|")
    for name, function in inspect.getmembers(prelude, inspect.isfunction):
        if function.__module__ == prelude.__name__ and not name.startswith("_"):
            signature = re.sub(r" = <[^>]*>", "", str(inspect.signature(function))).replace("NoneType", "None")
            yield _row(f"`{name}{signature}`", _paragraph(function))
    yield ""


def _paragraph(part: object) -> str:
    return _flat((inspect.getdoc(part) or "").partition("\n\n")[0])


def _former() -> Iterator[str]:
    """Yield a table of renamed options, keys and checks, then a list of those that went."""
    gone = []
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
        if went := [name for name, former in rows.items() if not former.new]:
            gone.append(f"- {title}s: {_by_section(went)}")
    yield from ("", "Gone, with what to do instead in the message of `gpucluster check NAME`:", "", *gone)


def _by_section(names: Iterable[str]) -> str:
    """Return dotted names, those of one section in braces."""
    inside: dict[str, list[str]] = {}
    for name in names:
        section, _, last = name.rpartition(".")
        inside.setdefault(section, []).append(last)
    shown = []
    for section, lasts in inside.items():
        words = lasts[0] if len(lasts) == 1 else f"{{{','.join(lasts)}}}"
        shown += [f"`{section}.{words}`"] if section else [f"`{last}`" for last in lasts]
    return ", ".join(shown)


# --- the command gpucluster


def _commands(commands: Iterable[Command]) -> Iterator[str]:
    yield STATUSES
    yield ""
    for words, command in leaves(commands):
        yield from (f"## gpucluster {words}", "", f"{_sentence(command.help)}", "")
        rows = [
            _row(_written_argument(one), _default(one.attributes.get("default")), _help(one.attributes))
            for one in each(command.arguments)
        ]
        if rows:
            yield from ("| argument | default | meaning |", "|---|---|---|", *rows, "")


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
    yield from ("## Findings", "", "| kind of part | name | findings of two nodes are the same |", "|---|---|---|")
    for kind, one in sorted(KINDS.items()):
        if kind:
            yield _row(f"`{kind}`", one.label, "with equal names" if one.named else "whatever the name")
    shared = sorted({*codes_of("pytest_gpucluster.core"), *codes_of("pytest_gpucluster.kit")})
    yield from ("", f"Codes that several suites share: {', '.join(f'`{code}`' for code in shared)}.", "")


# --- checks


def _checks(suite: str) -> str:
    """Return the table of the checks of a suite, its proof, and which of them may take a node out of service."""
    about = {
        name.partition(".")[2]: one
        for name, one in sorted(_all_checks().items())  # not in the order of imports
        if name.startswith(f"{suite}.")
    }
    rows = (_row(f"`{name}`", one.action.value, _holds(one), one.cause, one.hint) for name, one in about.items())
    lines = ["| check | action | what must hold | likely cause | what to do |", "|---|---|---|---|---|", *rows]
    proof = [f"`{name.partition('.')[2]}`" for one in suites() if one.name == suite for name in one.proof]
    if proof:
        lines += ["", f"Proof of the suite, without which a node is *not proved*: {', '.join(proof)}."]
    package = next((one.package for one in suites() if one.name == suite), "")
    if package and (codes := codes_of(package)):
        lines += ["", f"Codes of its findings: {', '.join(f'`{code}`' for code in codes)}."]
    reasons = [f"- `{name}`: {one.never_healthy}." for name, one in about.items() if one.never_healthy]
    if reasons:
        lines += ["", "May take a node out of service; why no healthy node fails so:", "", *reasons]
    return "\n".join(lines) + "\n"


def _all_checks() -> Mapping[str, CheckDescription]:
    from pytest_gpucluster.core import check as verdict
    from pytest_gpucluster.core.registry import import_checks  # only the reference needs all of them

    import_checks()
    return verdict.CHECKS


def _holds(one: CheckDescription) -> str:
    """Return what must hold; a text that begins with a program keeps its name."""
    judged = re.sub("^Judge (that )?", "", one.holds)
    return judged if judged == one.holds else _first_upper(judged)
