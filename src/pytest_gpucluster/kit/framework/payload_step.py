"""How a payload of Python travels: compressed, as the last words of its command line, whatever starts it.

It needs no shared storage and leaves no file; srun, Pyxis, mpirun, torchrun, kubectl and SSH pass words unchanged, but
not every one of them passes stdin or variables to each task. In `ps` the name of the payload and its words come first.
"""

from __future__ import annotations

import ast
import base64
import re
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig


PRELUDE = Path(__file__).parents[1] / "payloads" / "prelude.py"
COLLECTIVE = PRELUDE.with_name("collective.py")
PIECE = 96 << 10  # characters of a word: Linux takes at most 128 KiB of each (MAX_ARG_STRLEN)
_MARK = "PAYLOAD"  # the words behind it are the source; `again` in payloads/prelude.py finds it
_LOADER = (
    "name={name!r}; import base64, sys, zlib; at=sys.argv.index({mark!r}); source=''.join(sys.argv[at+1:]); "
    "del sys.argv[at:]; z=zlib.decompressobj(); text=z.decompress(base64.b64decode(source+'==')); "
    "z.unused_data and sys.exit(name+': a word stands behind the source'); exec(compile(text, name, 'exec'))"
)
_PACKAGE = Path(__file__).parents[2]
_IMPORT = re.compile(r"^from pytest_gpucluster\.([\w.]+) import (?:\([^)]*\)|.*)$", re.MULTILINE)
_TEXT = re.compile(r"\btext_of\(\"([^\"]+)\"\)")


def command(python: str, payload: Path, *words: str) -> tuple[str, ...]:
    """Return the command line that runs a payload with these words, under Python 3.6 or later."""
    loader = _LOADER.format(name=f"{payload.parent.name}/{payload.name}", mark=_MARK)
    packed = _packed(payload)
    pieces = (packed[at : at + PIECE] for at in range(0, len(packed), PIECE))
    return (python, "-c", loader, *words, _MARK, *pieces)


@cache  # a run of nccl starts some hundred steps of one payload
def _packed(payload: Path) -> str:
    return base64.b64encode(zlib.compress(sent(payload).encode(), 9)).decode().rstrip("=")


def sent(payload: Path) -> str:
    """Return a payload with each shared part inlined instead of its import, on one line, so that line numbers stay.

    `text_of("FILE")` becomes the text of this file of the package. Docstrings stay here: a command has limits.
    """
    inlined: set[str] = set()

    def inline(found: re.Match[str]) -> str:
        part, newlines = (_PACKAGE.joinpath(*found[1].split(".")).with_suffix(".py"), "\n" * found[0].count("\n"))
        if part.name in inlined:
            return newlines
        inlined.add(part.name)
        text = complete(_without_docstrings(part.read_text()))
        return f'exec(compile({text!r}, "{part.name}", "exec"))' + newlines

    def complete(text: str) -> str:
        return _TEXT.sub(lambda found: repr(sent(_PACKAGE / found[1])), _IMPORT.sub(inline, text))

    return complete(payload.read_text())


def _without_docstrings(text: str) -> str:
    """Return a program whose lines have the same numbers."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            first = node.body[0]
            number = (first.end_lineno or first.lineno) - first.lineno
            lines[first.lineno - 1 : first.lineno + number] = [" " * first.col_offset + "0"] + [""] * number
    return "\n".join(lines)


def environment_named(cluster: Cluster, name: str | None, section: str) -> EnvironmentConfig | None:
    """Return the environment of a section's steps, by default `environments.default`; ConfigError for an unknown name."""
    return cluster.environment(name, f"{section}.environment")
