"""Commands as data: the parser that is made of a table, and the reference that is made of the same table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli.command import JSON, Command, argument, each, leaves, one_of, parser_of
from pytest_gpucluster.cli.reference import filled

if TYPE_CHECKING:
    import argparse

SHOWN: list[argparse.Namespace] = []
TABLE = (
    Command(
        "list",
        "list what is there",
        SHOWN.append,
        (one_of(JSON, argument("--html", metavar="FILE", help="write a page")),),
        (
            Command(
                "one", "list one", SHOWN.append, (argument("name", help="its name"),), values={"verb": 1}
            ),
            Command(
                "many",
                "list many.",
                SHOWN.append,
                (
                    argument("what", nargs="?", choices=("a|b", "c"), default="c", help="what"),
                    argument("--depth", type=int, default=3, help="how deep (%(default)s; 0: 100%%)"),
                ),
            ),
        ),
    ),
    Command("verbs", "has verbs alone", commands=(Command("go", "go", SHOWN.append),)),
)
REFERENCE = r"""
## gpucluster list

List what is there.

| argument | default | meaning |
|---|---|---|
| `--json` |  | print one JSON document |
| `--html=FILE` |  | write a page |

## gpucluster list one

List one.

| argument | default | meaning |
|---|---|---|
| `NAME` |  | its name |

## gpucluster list many

List many.

| argument | default | meaning |
|---|---|---|
| `a\|b\|c` | `c` | what |
| `--depth=DEPTH` | `3` | how deep (3; 0: 100%) |

## gpucluster verbs go

Go.
"""


def parsed(*words: str) -> argparse.Namespace:
    args = parser_of(TABLE).parse_args(words)
    args.run(args)
    return SHOWN.pop()


def test_parser_has_the_commands_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert (parsed("list").json, parsed("list", "--json").json) == (False, True)
    one = parsed("list", "one", "x")
    assert (one.name, one.verb) == ("x", 1)
    assert (parsed("list", "many").depth, parsed("list", "many", "--depth", "4").depth) == (3, 4)
    for words in (["list", "--json", "--html", "x"], ["verbs"], [], ["other"]):
        with pytest.raises(SystemExit) as caught:
            parser_of(TABLE).parse_args(words)
        assert caught.value.code == 2
    assert "not allowed with argument --json" in capsys.readouterr().err


def test_reference_has_the_commands_of_the_table() -> None:
    marks = "<!-- commands: gpucluster schema --pages docs -->\nold\n<!-- end of the commands -->"
    written = filled(Path("docs/commands.md"), marks, TABLE)
    assert written.partition("\n")[2].partition("\n")[2] == f"{REFERENCE}<!-- end of the commands -->"


def test_every_argument_of_gpucluster_has_a_meaning() -> None:
    named = {
        words: [it.attributes["help"] for it in each(one.arguments)] for words, one in leaves(cli.commands())
    }
    assert all(help_ for helps in named.values() for help_ in helps)
    assert {"check", "profiles show", "sandbox fault", "junit merge"} <= named.keys()
    assert not {"sandbox", "junit", "record"} & named.keys(), "they need a verb"
