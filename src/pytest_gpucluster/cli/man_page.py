"""The man page gpucluster(1), generated from the parser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucluster.cli.reference import STATUSES, arguments, leaves, sentence

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

ENVIRONMENT = {
    "GPUCLUSTER_HISTORY": "the file of --history",
    "GPUCLUSTER_SANDBOX": "the state folder of the sandbox",
    "SLURM_CONF": "the slurm.conf that init and commands without --cluster use",
}
CLUSTERS = "clusters/NAME.yaml, ~/.config/pytest-gpucluster/clusters, /etc/pytest-gpucluster/clusters"


def man_page(parser: argparse.ArgumentParser, version: str) -> str:
    """Return the page in the macros of man(7)."""
    return "\n".join(_page(parser, version)) + "\n"


def _page(parser: argparse.ArgumentParser, version: str) -> Iterator[str]:
    yield f'.TH GPUCLUSTER 1 "" "pytest-gpucluster {_escaped(version)}"'
    yield from (
        ".SH NAME",
        "gpucluster \\- cluster files, reports, history and sandbox of pytest \\-\\-cluster",
    )
    yield from (".SH SYNOPSIS", ".B gpucluster", "COMMAND [ARGUMENTS]")
    yield from (".SH DESCRIPTION", _escaped(sentence(parser.description or "")))
    yield ".SH COMMANDS"
    for words, one in leaves(parser):
        yield from (f".SS gpucluster {_escaped(' '.join(words))}", _escaped(sentence(one.description or "")))
        for written, action in arguments(one):
            about = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
            yield from (".TP", _bold(written), _escaped(about) or "\\&")
    yield from (".SH EXIT STATUS", _escaped(STATUSES.replace("`", "").removeprefix("Exit status: ")))
    yield ".SH ENVIRONMENT"
    for name, about in ENVIRONMENT.items():
        yield from (".TP", f".B {name}", _escaped(sentence(about)))
    yield from (".SH FILES", ".TP", f".I {_escaped(CLUSTERS)}", "The cluster files.")
    yield from (".SH SEE ALSO", ".BR pytest (1),", ".BR sinfo (1),", ".BR srun (1)")


def _bold(written: str) -> str:
    return re.sub("`([^`]*)`", lambda part: f"\\fB{_escaped(part[1])}\\fR", written)


def _escaped(text: str) -> str:
    """Return text on one line that no macro or escape can change."""
    plain = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain
