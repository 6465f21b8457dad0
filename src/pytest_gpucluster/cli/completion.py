"""Completion of the command line by a shell, with argcomplete (the extra `completion`)."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pytest_gpucluster import config

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the words that a shell requests, and exit; without such a request do nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        sys.exit(1)  # the shell expects words, not the output of the command
    argcomplete.autocomplete(parser)


def completes(action: argparse.Action, words: Callable[[], Iterable[str]]) -> None:
    """Let the shell complete an argument; where no word fits, it completes file names."""
    vars(action)["completer"] = lambda **_: words()  # the attribute that argcomplete reads


def add_cluster(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the option --cluster."""
    completes(parser.add_argument("--cluster", metavar="NAME|PATH", help=about), config.cluster_names)
