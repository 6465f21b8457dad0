"""The commands of `gpucluster` as data: parsers, completion by a shell and the reference are made from it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import __version__, config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


@dataclass(frozen=True)
class Argument:
    """One argument: names and attributes as argparse's add_argument() takes them, and the words that a shell completes."""

    names: tuple[str, ...]
    attributes: Mapping[str, Any]
    completes: Callable[[], Iterable[str]] | None = None


@dataclass(frozen=True)
class OneOf:
    """Arguments of which a command line has at most one."""

    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Command:
    """A command: its name, one line of help, what runs it (it returns the exit status; None is 0), its arguments and subcommands.

    Without `run` a command line must name a subcommand. `values`: further attributes of the parsed arguments.
    """

    name: str
    help: str
    run: Callable[[argparse.Namespace], int | None] | None = None
    arguments: tuple[Argument | OneOf, ...] = ()
    commands: tuple[Command, ...] = ()
    epilog: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def argument(*names: str, completes: Callable[[], Iterable[str]] | None = None, **attributes: Any) -> Argument:
    """Return an argument, declared as with add_argument()."""
    return Argument(names, attributes, completes)


def one_of(*arguments: Argument) -> OneOf:
    """Return arguments that exclude one another."""
    return OneOf(arguments)


def cluster_option(about: str) -> Argument:
    """Return the option --cluster."""
    return argument("--cluster", metavar="NAME|PATH", help=about, completes=config.cluster_names)


def report_group(what: str) -> Argument:
    """Return the option --report-group; `what`: "the file"."""
    return argument("--report-group", metavar="GROUP", help=f"let this group read {what}: mode 0640 instead of 0600")


def source(more: str = "") -> Argument:
    """Return the argument that names the event log of a run."""
    return argument(
        "source",
        nargs="?",
        type=Path,
        default=Path("reports"),
        metavar="DIR|FILE",
        help=f"the folder of a run, an events.jsonl, or a --report-dir for its newest run (default: reports){more}",
    )


JSON = argument("--json", action="store_true", help="print one JSON document")


def parser_of(commands: Iterable[Command]) -> argparse.ArgumentParser:
    """Return the parser of `gpucluster` with these commands."""
    parser = argparse.ArgumentParser(
        prog="gpucluster", description="Cluster files, reports, history and sandbox of pytest --cluster=NAME."
    )
    parser.add_argument("--version", action="version", version=f"gpucluster {__version__}")
    _add_commands(parser, commands, metavar="COMMAND", required=True)
    return parser


def _add_commands(
    parser: argparse.ArgumentParser, commands: Iterable[Command], *, metavar: str, required: bool
) -> None:
    subparsers = parser.add_subparsers(required=required, metavar=metavar)
    for command in commands:
        one = subparsers.add_parser(
            command.name, help=command.help, description=command.help, epilog=command.epilog or None
        )
        _add_arguments(one, command.arguments)
        one.set_defaults(**command.values)
        if command.run is not None:
            one.set_defaults(run=command.run)
        if command.commands:
            words = "|".join(below.name for below in command.commands)
            _add_commands(one, command.commands, metavar=words, required=command.run is None)


def _add_arguments(parser: argparse.ArgumentParser, arguments: Sequence[Argument | OneOf]) -> None:
    for one in arguments:
        exclusive = isinstance(one, OneOf)
        container = parser.add_mutually_exclusive_group() if exclusive else parser
        for it in each((one,)):
            action = container.add_argument(*it.names, **it.attributes)
            if it.completes is not None:
                # the attribute that argcomplete reads; where no word fits, it completes file names
                vars(action)["completer"] = lambda words=it.completes, **_: words()


def each(arguments: Iterable[Argument | OneOf]) -> Iterator[Argument]:
    """Yield all arguments, also those that exclude one another."""
    for one in arguments:
        yield from one.arguments if isinstance(one, OneOf) else (one,)


def leaves(commands: Iterable[Command], words: str = "") -> Iterator[tuple[str, Command]]:
    """Yield each command that a command line can name, with its words."""
    for command in commands:
        named = f"{words} {command.name}".lstrip()
        if command.run is not None:
            yield named, command
        yield from leaves(command.commands, named)
