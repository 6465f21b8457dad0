"""Bracket lists of nodes."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.core import hostlist


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        (" \n", ()),
        ("gpu[09-11]", ("gpu09", "gpu10", "gpu11")),
        ("b,a,a", ("a", "b")),
        ("rack[1-2]gpu[1-2]", ("rack1gpu1", "rack1gpu2", "rack2gpu1", "rack2gpu2")),
        ("n[1,3-4].site.example", ("n1.site.example", "n3.site.example", "n4.site.example")),
    ],
)
def test_expand(text: str, nodes: tuple[str, ...]) -> None:
    assert hostlist.expand(text) == nodes


@given(st.sets(st.from_regex(r"[a-z]{1,4}[0-9]{1,3}", fullmatch=True), min_size=1, max_size=30))
def test_fold_is_read_back(nodes: set[str]) -> None:
    assert set(hostlist.expand(hostlist.fold(nodes))) == nodes


def test_examples_of_the_docstrings() -> None:
    outcome = doctest.testmod(hostlist)
    assert outcome.attempted
    assert not outcome.failed


def test_names_of_nodes() -> None:
    for text in ("a", "_a", "0", "A-b_c.d9", "n" * 253, "gpu" + "1" * 18):
        assert hostlist.is_name(text)
        assert hostlist.expand(text) == (text,)
    assert hostlist.is_name("n" * 254) is False
    for text in ("", "-a", ".a", "a b", "a/b", "a\n", "é", "a@b"):
        assert hostlist.is_name(text) is False


def test_names_for_a_message_are_folded_or_listed() -> None:
    cases: tuple[list[str], ...] = ([], ["n2", "n1"], ["b[", "a["])
    assert [hostlist.shown(names) for names in cases] == ["none", "n[1-2]", "a[, b["]
    assert hostlist.shown(set(), none="") == ""
    for text in ("gpu[01", "gpu[x]", "a[1-"):
        with pytest.raises(ValueError, match=r"^no names of nodes: "):
            hostlist.fold([text, "b"])


LONG = "n" * 90


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(
            (text, "not a hostlist")
            for text in ("gpu[1", "gpu]1[", "@all", "a b", "gpu[5-1]", "../x", "$(id)")
        ),
        *((text, "hostlist") for text in ("gpu01;reboot", "--help", ".hidden", f"{LONG};", f"{LONG}[1")),
        ("gpu" + "7" * 33 + "[1-20],l", "more than 18 digits"),
        (LONG + "7" * 19, "more than 18 digits"),
        ("gpu[" + "9" * 30 + "]", "hostlist"),
        ("g[1-٣]" + LONG, "ASCII"),
        *((text, "more than 65536") for text in ("gpu[1-70000]", "r[1-300]g[1-300]", "x," * 70_000)),
        *((f"gpu[{last}]", "more than 65536") for last in ("1-99999999999999999999", "0-" + "9" * 5000)),
        (f"{LONG}[0-65536]", "65537 nodes, more than 65536"),
    ],
)
def test_what_is_no_list_or_too_long_is_refused_in_short(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="hostlist") as caught:
        hostlist.expand(text)
    assert why in str(caught.value)
    assert text[:40] in str(caught.value)
    assert len(str(caught.value)) < 260
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "count", "bound"),
    [
        ("g[1-4,7,9-10]", 7, 7),  # ranges in a bracket add up, one more of each comma and dash
        ("r[1-3]g[1-4,6]", 15, 15),  # brackets of a name multiply
        ("r[1-3]g[1-4],l,m[5-6]", 15, 15),  # names add up
        ("gpu[001-300],cpu[001-300]", 600, 600),
        ("g[007]", 1, 1),
    ],
)
def test_how_many_nodes_a_list_may_name(
    monkeypatch: pytest.MonkeyPatch, text: str, count: int, bound: int
) -> None:
    monkeypatch.setattr(hostlist, "MAX_NODES", bound)
    assert len(hostlist.expand(text)) == count
    monkeypatch.setattr(hostlist, "MAX_NODES", bound - 1)
    with pytest.raises(ValueError, match=f"names {bound} nodes, more than {bound - 1}"):
        hostlist.expand(text)
