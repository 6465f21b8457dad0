"""Whatever stands in an answer, a reader gives facts or its own error: no other one, and not for ever."""

from __future__ import annotations

import pytest
from fuzz_readers import ALL, Reader, campaign, typed
from hypothesis import example, given
from hypothesis import strategies as st

CAMPAIGN = campaign(6)
LONG = 20_000
WORDS = "\" ' , | - : = 0 -1 nan inf 1e999 ² ٣ <b>&amp;]]> 0-99999999999 gpu[1- %s{0} null true [] {} $(id) ² 1111111111111111111"
TEXTS = [*"\0\x1e\n\t \ud800\u202e", "", "\x1b[2J\x1b[31m", "\r\n", "9" * 5000, "\\" * 200, *WORDS.split()]
TEXTS += ["[" * LONG, "{" * LONG, '{"a":' * LONG, "a" * LONG]
NASTY = (*(text.encode("utf-8", "surrogatepass") for text in TEXTS), b"\xff\xfe", b"\x80" * 9)


@st.composite
def damaged(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Draw a text of the corpus with pieces cut out, doubled, or put in."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 80)))
        put = draw(st.sampled_from(NASTY) | st.binary(max_size=8) | st.just(data[start:end] * 2))
        data = data[:start] + put + data[end:]
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


@pytest.mark.parametrize("reader", ALL, ids=lambda reader: reader.name)
def test_the_corpus_is_understood(reader: Reader) -> None:
    read = [typed(reader, seed) for seed in reader.seeds]
    assert any(not isinstance(facts, Exception) for facts in read), read


@pytest.mark.parametrize("reader", ALL, ids=lambda reader: reader.name)
def test_any_text_gives_facts_or_a_typed_error(reader: Reader) -> None:
    @CAMPAIGN
    @given(damaged(reader.seeds))
    @example(b"")
    def check(data: bytes) -> None:
        typed(reader, data)

    check()
    for nasty in NASTY:
        typed(reader, nasty)
        for seed in reader.seeds[:1]:  # in place of the first number
            digits = next((at for at, byte in enumerate(seed) if chr(byte).isdigit()), 0)
            typed(reader, seed[:digits] + nasty + seed[digits + 1 :])
