"""Text made harmless for terminals, XML and logs: each kind of character exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.sanitize import bare, clean, one_line, printable, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("function", "given", "shown"),
    [
        (bare, ("plain",), "plain"),
        (bare, ("pa\x1b[1mss\x00\u202ewo\rrd\n\t",), "password\n\t"),
        (bare, ("\x1b]0;title\x07x",), "x"),
        (one_line, ("a  b\n\tc ", 200), "a b c"),
        (one_line, ("a\x00b", 200), "a?b"),
        (one_line, ("x" * 10, 10), "x" * 10),
        (one_line, ("x" * 11, 10), "x" * 7 + "..."),
        (one_line, (" " * 200 + "x", 10), ""),  # only the first 20 widths are looked at
        (one_line, (" " * 199 + "x", 10), "x"),
        (one_line, (7, 10), "7"),
        (one_line, ("x" * 201,), "x" * 197 + "..."),
        (shorten, ("a" * 40, 40), "a" * 40),
        (shorten, ("a" * 20 + "b" * 21, 40), "a" * 20 + " [... 1 characters left out ...] " + "b" * 20),
        (
            shorten,
            ("a" * 20 + "\n" + "b" * 20, 40),
            "a" * 20 + "\n[... 1 characters left out ...]\n" + "b" * 20,
        ),
        (shorten, ("abcdef", 5), "ab [... 2 characters left out ...] ef"),
        (shorten, ("", 0), ""),
    ],
)
def test_a_text_in_short(function: Callable[..., str], given: tuple[Any, ...], shown: str) -> None:
    assert function(*given) == shown
