"""Text from nodes and from Slurm, made harmless for terminals, XML and logs."""

from __future__ import annotations

import re
from typing import Any

# CSI and OSC sequences, and the two-character ones: ECMA-48
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]")
_MARK = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """Replace control characters by '?', line ends and tabs excepted.

    XML cannot hold them and a terminal would execute them. Bidirectional overrides, surrogates and unassigned code
    points are replaced too.
    """
    if text.isprintable():  # nearly every text
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def one_line(text: object, width: int = 200) -> str:
    """Return an untrusted text as one line of at most `width` characters."""
    words = clean(" ".join(str(text)[: 20 * width].split()))
    return words if len(words) <= width else f"{words[: width - 3]}..."


def bare(text: str) -> str:
    r"""Return text without terminal escapes and other control characters.

    >>> bare("pass\x1b[1mwo\x00rd")
    'password'
    """
    if text.isprintable():
        return text
    return "".join(char for char in _ESCAPES.sub("", text) if char.isprintable() or char in "\n\t")


def printable(value: Any) -> str:
    r"""Return text without terminal escapes; other characters that do not print become U+FFFD.

    Bidirectional overrides and surrogates do not print either. Newline and tab stay.

    >>> printable("\x1b[31mred\x1b[0m")
    'red'
    """
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if text.isprintable():  # nearly every text
        return text
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return "".join(char if char.isprintable() or char in "\n\t" else _MARK for char in text)


def shorten(text: str, limit: int, gap: str = "") -> str:
    """Keep both ends of a text longer than `limit` characters, with the number of omitted characters between.

    >>> shorten("a" * 100, 40)
    'aaaaaaaaaaaaaaaaaaaa [... 60 characters left out ...] aaaaaaaaaaaaaaaaaaaa'
    """
    if len(text) <= limit:
        return text
    half, gap = limit // 2, gap or ("\n" if "\n" in text else " ")
    return f"{text[:half]}{gap}[... {len(text) - 2 * half} characters left out ...]{gap}{text[-half:]}"
