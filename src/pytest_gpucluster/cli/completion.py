"""Completion of the command line by a shell, with argcomplete (the extra `completion`)."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the words that a shell requests, and exit; without such a request do nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        sys.exit(1)  # the shell expects words, not the output of the command
    argcomplete.autocomplete(parser)
