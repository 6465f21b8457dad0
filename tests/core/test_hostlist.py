"""Bracket lists of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.core import hostlist


@given(st.sets(st.from_regex(r"[a-z]{1,4}[0-9]{1,3}", fullmatch=True), min_size=1, max_size=30))
def test_fold_is_read_back(nodes: set[str]) -> None:
    assert set(hostlist.expand(hostlist.fold(nodes))) == nodes


def test_names_of_nodes() -> None:
    for text in ("a", "_a", "0", "A-b_c.d9", "n" * 253, "gpu" + "1" * 18):
        assert hostlist.is_name(text)
        assert hostlist.expand(text) == (text,)
    assert hostlist.is_name("n" * 254) is False
    assert len(hostlist.expand("n[1-65536]")) == hostlist.MAX_NODES
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
        *((text, "not a hostlist") for text in ("gpu[1", "gpu]1[", "@all", "a b", "gpu[5-1]", "../x", "$(id)")),
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
