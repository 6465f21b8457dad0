"""Text made harmless for terminals, XML and logs: each kind of character exactly."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.core.sanitize import clean, printable

MARK = "\N{REPLACEMENT CHARACTER}"
BAD = (
    "\x00\x07\x08\x0b\x0c\r\x1b\x7f\x80\x85\x9b\xa0\xad\u200b\u2028\u2029\u202e\u2066\ufeff\ud800\udfff\ufffe"
    "\uffff\ue000\U000e0001"
)
GOOD = ["", " ", "a", "\n", "\t", "é", "漢", "\N{PILE OF POO}", MARK]


@pytest.mark.parametrize("char", BAD)
def test_a_character_that_does_not_print_is_marked(char: str) -> None:
    assert clean(char) == "?"
    assert clean(f"a{char}\tb\n") == "a?\tb\n"
    assert printable(f"a{char}\tb\n") == f"a{MARK}\tb\n"


@pytest.mark.parametrize("char", GOOD)
def test_what_prints_stays(char: str) -> None:
    for text in (char, f"a{char}b", f"{char}\n\t"):
        assert clean(text) == text
        assert printable(text) == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[?25lx\x1b[?25h", "x"),
        ("\x1b[@x\x1b[~y", "xy"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x9b?1~x\x9b0 @y", "xy"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never ended", ""),
        ("\x1b]0;one\x1b[31mx", "x"),
        ("\x1bMx\x1bZy\x1b@z", "xyz"),
        ("\x1b\\x\x1b^y\x1b_z", "xyz"),
        ("\x1b7x", f"{MARK}7x"),
        ("\x1b[31", f"{MARK}[31"),
        ("\x1b", MARK),
        ("a\r\nb\rc\n", f"a\nb{MARK}c\n"),
        (None, ""),
        (b"\x00x", r"b'\x00x'"),
    ],
)
def test_terminal_escapes_go(raw: Any, shown: str) -> None:
    assert printable(raw) == shown
